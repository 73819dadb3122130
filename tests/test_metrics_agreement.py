"""Kendall's tau against SciPy, and captions of known quality."""

import matplotlib.pyplot as plt
import numpy as np
import pytest

from captionlab.metrics.agreement import (
    POOLS,
    caption_targets,
    compare_pairs,
    draw_agreement,
    kendall_tau,
    known_captions,
    measure_agreement,
)
from captionlab.scenes import Object, Scene

stats = pytest.importorskip("scipy.stats")
SCENE = Scene(
    (
        Object("circle", "red", "large", "plain", 60, 60, 40),
        Object("star", "blue", "small", "plain", 160, 160, 15),
    )
)


@pytest.mark.parametrize("seed", range(5))
def test_tau_equals_scipys_with_ties_and_weights(seed):
    rng = np.random.default_rng(seed)
    scores = rng.integers(0, 6, 40).astype(float)
    targets = rng.integers(0, 3, 40).astype(float)
    counts = rng.integers(0, 4, (2, 40)).astype(float)
    ours = kendall_tau(scores, targets, counts)
    for row, tau in zip(counts.astype(int), ours, strict=True):
        expected = stats.kendalltau(scores.repeat(row), targets.repeat(row)).statistic
        assert tau == pytest.approx(expected, abs=1e-12)


def test_tau_of_equal_scores_is_not_defined():
    assert np.isnan(kendall_tau(np.zeros(4), np.arange(4.0), np.ones((1, 4)))).all()


def test_known_captions_are_as_they_should_be():
    kinds = known_captions("A red circle is above a blue star.", SCENE)
    names = ("true", "one fact changed", "shuffled", "short and safe")
    targets = caption_targets([kinds[name] for name in names], [SCENE] * 4)
    assert targets["truth"].tolist() == [1, 0, 0, 1]
    assert targets["coverage"].argmax() == 0
    assert (targets["CHAIR"] <= 0).all()
    assert targets["CHAIR"][0] == 0


def test_a_metric_that_is_the_truth_agrees_with_it_and_is_drawn():
    rng = np.random.default_rng(0)
    kinds = ("true", "one fact changed", "shuffled", "short and safe", "model")
    truths = dict(zip(kinds, (1, 0, 0, 1, None), strict=True))
    targets = {
        kind: {
            "truth": rng.integers(0, 2, 30).astype(float) if value is None else np.full(30, value),
            "coverage": rng.random(30),
        }
        for kind, value in truths.items()
    }
    scores = {
        kind: {"truth": target["truth"], "noise": rng.random(30), "constant": np.zeros(30)}
        for kind, target in targets.items()
    }
    table = measure_agreement(scores, targets, resamples=200)
    assert list(table) == list(POOLS)
    for columns in table.values():
        assert columns["truth"]["truth"]["tau"] == pytest.approx(1)
        assert columns["truth"]["constant"] is None
        low, high = columns["truth"]["noise"]["interval"]
        assert -0.6 < low < high < 0.6
    figure, ax = plt.subplots()
    draw_agreement(table, "truth", ax)
    assert [label.get_text() for label in ax.get_yticklabels()] == ["truth", "noise", "constant"]
    plt.close(figure)


def test_pairs_are_counted():
    counts = compare_pairs(np.array([1.0, 2, 3]), np.array([0.0, 2, 4]))
    assert counts == {"above": 1, "equal": 1, "below": 1}
