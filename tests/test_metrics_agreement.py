"""Kendall's tau against SciPy, and captions of known quality."""

import numpy as np
import pytest

from captionlab.metrics.agreement import caption_targets, kendall_tau, known_captions
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
