"""The model card of the packaged photo captioner holds what its files hold."""

import json

import pytest

from benchmarks.flickr8k import judgement

JUDGED = json.loads(judgement.JUDGED.read_text())


@pytest.mark.parametrize("name", ["judged", "outside", "biases"])
def test_card_holds_the_section(name):
    card = judgement.CARD.read_text()
    assert judgement.with_section(card, name, judgement.sections()[name]) == card


def test_judged_captions_are_the_sample():
    """The hundred photos come from the seed, and the captions are those of the run."""
    judged = [{key: row[key] for key in ("image_id", "caption")} for row in JUDGED["captions"]]
    assert judged == judgement.sample()


@pytest.mark.parametrize("row", JUDGED["captions"], ids=lambda row: row["image_id"])
def test_judgement_is_whole(row):
    """A caption has errors if and only if it is not correct, and every one has a remark."""
    assert row["verdict"] in judgement.VERDICTS
    assert set(row["kinds"]) <= set(judgement.KINDS)
    assert len(set(row["kinds"])) == len(row["kinds"])
    assert bool(row["kinds"]) == (row["verdict"] != "correct")
    assert row["remark"].strip()


def test_table_counts_every_caption():
    counts = {"correct": 0, "minor error": 0, "wrong": 0}
    for row in JUDGED["captions"]:
        counts[row["verdict"]] += 1
    table = judgement.judged_table(JUDGED)
    assert sum(counts.values()) == judgement.PHOTOS
    for verdict, count in counts.items():
        assert f"| {verdict}: {judgement.VERDICTS[verdict]} | {count} |" in table


def test_section_without_its_marks_is_an_error():
    with pytest.raises(ValueError, match="judged begins"):
        judgement.with_section("no marks", "judged", "text")


def test_biases_are_those_of_the_captions(real_data):
    assert judgement.measure_biases() == json.loads(judgement.BIASES.read_text())
