"""Consensus decoding against a plain loop over CIDEr-D, and what it refuses."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from captionlab.decoding import consensus
from captionlab.decoding.consensus import minimum_bayes_risk
from captionlab.metrics.ciderd import CiderDScorer
from captionlab.scst import CiderD

WORDS = 12


def random_captions(rng, least, most):
    """Some captions of one picture, lists of 3 to 8 ids."""
    return [
        rng.integers(0, WORDS, rng.integers(3, 9)).tolist()
        for _ in range(rng.integers(least, most + 1))
    ]


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000))
def test_the_chosen_caption_has_the_largest_mean_similarity(seed):
    rng = np.random.default_rng(seed)
    train = [random_captions(rng, 1, 5) for _ in range(6)]
    candidates = [random_captions(rng, 1, 4) for _ in range(5)]
    samples = [random_captions(rng, 2, 6) for _ in range(5)]
    plain = CiderD(train)
    chosen = minimum_bayes_risk(candidates, samples, CiderDScorer(train, WORDS))
    for captions, references, number in zip(candidates, samples, chosen, strict=True):
        scores = [
            np.mean([plain.score([caption], [one])[0] for one in references])
            for caption in captions
        ]
        assert scores[number] == pytest.approx(max(scores))


def test_pictures_do_not_depend_on_each_other(monkeypatch):
    rng = np.random.default_rng(0)
    scorer = CiderDScorer([random_captions(rng, 1, 5) for _ in range(6)], WORDS)
    candidates = [random_captions(rng, 2, 4) for _ in range(7)]
    samples = [random_captions(rng, 2, 6) for _ in range(7)]
    together = minimum_bayes_risk(candidates, samples, scorer)
    monkeypatch.setattr(consensus, "_PICTURES", 3)
    assert minimum_bayes_risk(candidates, samples, scorer) == together


def test_the_first_of_equal_candidates_is_chosen():
    scorer = CiderDScorer([[[0, 1, 2]], [[3, 4]]], WORDS)
    assert minimum_bayes_risk([[[5, 6], [0, 1], [0, 1]]], [[[0, 1]]], scorer) == [1]
    assert minimum_bayes_risk([[[5, 6], [7, 8]]], [[[0, 1]]], scorer) == [0]


@pytest.mark.parametrize(
    ("candidates", "samples", "message"),
    [
        ([[[0]], []], [[[0]], [[0]]], "a picture has no candidate"),
        ([[[0]]], [[[0]], [[0]]], "candidates of 1 pictures and samples of 2"),
    ],
)
def test_what_is_missing_is_one_line(candidates, samples, message):
    with pytest.raises(ValueError, match=message):
        minimum_bayes_risk(candidates, samples, CiderDScorer([[[0, 1]], [[1]]], WORDS))
