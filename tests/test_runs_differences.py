"""Differences of rows: scores of each picture, intervals and verdicts."""

import json
from dataclasses import replace

import numpy as np
import pytest

from captionlab.data.datasets import scenes
from captionlab.metrics import score
from captionlab.metrics.files import read_results
from captionlab.runs.differences import (
    Difference,
    difference_from_dict,
    difference_to_dict,
    has_collapsed,
    mean_score,
    picture_scores,
    row_results,
)
from captionlab.runs.paper_tables import load_differences, paper_claims
from captionlab.runs.results import load_result, result_file
from captionlab.runs.tables import TABLES, find_table
from captionlab.scenes.verification import truth

EXAMPLE = Difference(table="eta-2", first="visual", second="semantic", metric="CIDEr",
                     preset="tiny", published=16.0, difference=9.0, low=3.0, high=15.0,
                     spread=6.0, seeds=(3, 3))


@pytest.mark.parametrize(("changes", "verdict"), [
    ({}, "held"),
    ({"published": -16.0}, "not held"),
    ({"difference": -9.0, "low": -15.0, "high": -3.0}, "not held"),
    ({"low": 0.0, "high": 18.0}, "cannot be told"),     # 9 and 6 are 10.8 together
    ({"low": 2.5, "high": 15.5}, "held"),               # 6.5 and 6 are 8.8 together
    ({"spread": 7.0}, "cannot be told"),                # 6 and 7 are 9.2 together
    ({"spread": 9.5}, "cannot be told"),
    ({"spread": float("inf")}, "cannot be told"),
    ({"published": None}, "higher"),
    ({"published": None, "difference": -9.0, "low": -15.0, "high": -3.0}, "lower"),
    ({"low": None, "high": None}, "held"),
    ({"collapsed": True}, "a run collapsed"),
])
def test_a_claim_holds_only_outside_both_kinds_of_chance(changes, verdict):
    assert replace(EXAMPLE, **changes).verdict == verdict


@pytest.mark.parametrize("changes", [{}, {"spread": float("inf")}, {"low": None, "high": None}])
def test_a_difference_comes_back_from_json(changes):
    difference = replace(EXAMPLE, **changes)
    assert difference_from_dict(difference_to_dict(difference)) == difference


def test_one_caption_for_all_pictures_is_a_collapse():
    assert has_collapsed(dict.fromkeys(range(100), "a red circle"))
    assert not has_collapsed({number: f"{number % 5} circles" for number in range(100)})


def test_results_come_with_the_preset_that_they_were_trained_with():
    results = row_results(find_table("eta-2").row("visual"), "scenes")
    assert list(results) == ["tiny"]
    assert row_results(find_table("it-1").row("vorn"), "scenes") == {}


@pytest.mark.java
def test_scores_of_pictures_are_those_of_the_scorer():
    items = scenes(train=0, val=0, test=4, novel=0)["test"]
    captions = {item.image_id: item.captions[0].replace("red", "blue") for item in items}
    captions[items[3].image_id] = "a green, large circle."
    references = {item.image_id: list(item.captions) for item in items}
    scores = picture_scores({"some": captions}, items)["some"]
    expected = score(captions, references, meteor=False)
    np.testing.assert_allclose(scores["CIDEr"], expected.per_image["CIDEr"], atol=1e-6)
    holds = truth([[captions[item.image_id]] for item in items], [item.image for item in items])
    assert scores["truth"].mean() == pytest.approx(100 * holds["all"])


@pytest.mark.java
@pytest.mark.slow
def test_scores_of_pictures_add_up_to_the_committed_score():
    name = "scenes/entangled-visual-tiny-xe"
    captions = read_results(result_file(f"{name}.seed0.captions.json"))
    scores = picture_scores({"seed 0": captions}, scenes()["test"])["seed 0"]
    metrics = load_result(name)["runs"][0]["metrics"]
    assert scores["CIDEr"].mean() == pytest.approx(metrics["CIDEr"], abs=1e-4)
    assert scores["truth"].mean() == pytest.approx(metrics["truth"])


@pytest.mark.parametrize("protocol", ["scenes", "photos"])
def test_committed_differences_are_those_of_the_committed_results(protocol):
    differences = load_differences(protocol)
    assert differences
    for one in differences:
        table = TABLES[one.table]
        results = [row_results(table.row(name), protocol)[one.preset]
                   for name in (one.first, one.second)]
        means = [mean_score(result, one.metric) for result in results]
        assert one.difference == pytest.approx(means[0] - means[1])
        assert one.seeds == tuple(len(result["runs"]) for result in results)
        assert one.published == table.published_difference((one.first, one.second))
        if one.low is not None:
            assert one.low < one.difference < one.high


def test_the_file_of_claims_is_that_of_the_differences():
    stored = json.loads(result_file("claims.json").read_text())["claims"]
    assert stored == paper_claims("photos") + paper_claims("scenes")


@pytest.mark.parametrize("protocol", ["photos", "scenes"])
def test_claims_compare_cider_of_models_with_equal_inputs(protocol):
    claims = paper_claims(protocol)
    assert claims
    for claim in claims:
        assert "CPTR" not in claim["claim"]
        assert claim["table"] != "captioners" or protocol == "photos"
        assert claim["pictures"] > 0
        assert claim["seeds"] > 0


def test_a_claim_of_two_self_critical_models_says_so_once():
    claims = [claim["claim"] for claim in paper_claims("scenes")]
    assert "Image Transformer: full model − two Entangled (self-critical)" in claims
