"""The interface of learned metrics, with stubs in place of networks."""

import numpy as np
import pytest

from captionlab.metrics import compare, confidence_intervals
from captionlab.metrics.learned import (
    ClipScore,
    learned_metrics,
    register_metric,
    score_learned,
)

@pytest.fixture(autouse=True)
def _no_metrics_stay(monkeypatch):
    monkeypatch.setattr("captionlab.metrics.learned._FACTORIES", {})


def constant(value):
    return lambda: lambda images, captions, references: value


def test_a_metric_gets_what_belongs_together_in_the_order_of_the_candidates():
    calls = []

    def metric(images, captions, references):
        calls.append((images, captions, references))
        return np.array([0.25, 0.75])

    register_metric("stub", lambda: metric)
    scores = score_learned(
        "stub", {"b": "two", "a": "one"}, {"a": 1, "b": 2, "c": 3}, {"a": ["x"], "b": ("y", "z")}
    )
    assert calls == [([2, 1], ["two", "one"], [["y", "z"], ["x"]])]
    assert scores.ids == ["b", "a"]
    assert scores.corpus_scores == {"stub": 50}
    low, high = confidence_intervals(scores, 100)["stub"]
    assert 25 <= low <= high <= 75
    assert compare(scores, scores)["stub"].difference == 0


def test_the_network_is_loaded_when_it_is_needed():
    loaded = []
    register_metric("stub", lambda: loaded.append(1) or (lambda *_: [0.5]))
    assert learned_metrics() == ["stub"]
    assert not loaded
    score_learned("stub", {1: "a"}, {1: 0})
    assert loaded == [1]


@pytest.mark.parametrize("value", [[0.5], [np.nan, 1], [[0.5], [0.5]], [np.inf, 0], 0.5])
def test_what_is_no_number_for_each_caption_is_an_error(value):
    register_metric("stub", constant(value))
    with pytest.raises(ValueError, match="stub returned no finite number for each of 2 captions"):
        score_learned("stub", {1: "a", 2: "b"}, {1: 0, 2: 0})


def test_other_errors():
    with pytest.raises(
        ValueError, match="no metric 'CLIPScore': registered are none; add one with"
    ):
        score_learned("CLIPScore", {1: "a"}, {1: 0})
    register_metric("stub", constant([0.5]))
    with pytest.raises(ValueError, match=r"1 captions have no picture \(1 for one\)"):
        score_learned("stub", {1: "a"}, {2: 0})
    with pytest.raises(ValueError, match="no captions"):
        score_learned("stub", {}, {})


class TestClipScore:
    def embed(self, rows):
        table = {
            "A photo depicts north": [0, 2],
            "A photo depicts east": [3, 0],
            "A photo depicts west": [-1, 0],
            "A photo depicts nothing": [0, 0],
            "east": [5, 0],
        }
        return [table[row] for row in rows]

    def test_cosines_are_cut_off_at_0(self):
        scores = ClipScore(self.embed, self.embed)(
            ["east"] * 4, ["east", "north", "west", "nothing"], [[]] * 4
        )
        np.testing.assert_allclose(scores, [2.5, 0, 0, 0])

    def test_references_of_different_numbers(self):
        metric = ClipScore(self.embed, self.embed, with_references=True, weight=1)
        scores = metric(["east"] * 3, ["east"] * 3, [["north", "east"], ["north"], ["west"]])
        np.testing.assert_allclose(scores, [1, 0, 0])

    def test_no_reference(self):
        with pytest.raises(ValueError, match="needs at least one reference"):
            ClipScore(self.embed, self.embed, with_references=True)(["east"], ["east"], [[]])
