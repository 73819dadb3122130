"""Diversity: counts by hand, self-CIDEr against pycocoevalcap's vectors."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pycocoevalcap.cider.cider_scorer import CiderScorer

from captionlab.metrics.ciderd import CiderDScorer
from captionlab.metrics.diversity import (
    caption_similarities,
    measure_diversity,
    self_cider,
    split_caption,
)

CAPTIONS = st.lists(st.lists(st.integers(1, 9), max_size=9), min_size=2, max_size=6)
TRAINING = [[[1, 2, 3, 4], [1, 2, 3]], [[5, 6, 7]], [[3, 3, 4]], [[8, 9]]]


def pycoco_cosines(captions):
    """Plain CIDEr of all pairs, with the document frequencies of pycocoevalcap."""
    scorer = CiderScorer(n=4)
    for texts in TRAINING:
        scorer += (None, [" ".join(map(str, ids)) for ids in texts])
    scorer.compute_doc_freq()
    frequencies, pictures = scorer.document_frequency, len(TRAINING)

    def vectors(ids):
        grams = [
            tuple(map(str, ids[i : i + n])) for n in (1, 2, 3, 4) for i in range(len(ids) - n + 1)
        ]
        found = [{}, {}, {}, {}]
        for gram in grams:
            weight = np.log(pictures) - np.log(max(1, frequencies.get(gram, 0)))
            found[len(gram) - 1][gram] = found[len(gram) - 1].get(gram, 0) + weight
        return found

    def cosine(one, other):
        dot = sum(one[gram] * other.get(gram, 0) for gram in one)
        norms = np.sqrt(sum(v**2 for v in one.values()) * sum(v**2 for v in other.values()))
        return dot / norms if norms else 0.0

    listed = [vectors(ids) for ids in captions]
    return np.array(
        [[np.mean([cosine(a[n], b[n]) for n in range(4)]) for b in listed] for a in listed]
    )


class TestSelfCider:
    @given(CAPTIONS)
    def test_similarities_are_plain_cider(self, captions):
        ours = caption_similarities(captions, CiderDScorer(TRAINING))
        np.testing.assert_allclose(ours, pycoco_cosines(captions), atol=1e-9)
        assert np.linalg.eigvalsh(ours).min() > -1e-9

    @given(CAPTIONS)
    def test_lies_between_0_and_1_whatever_the_order(self, captions):
        scorer = CiderDScorer(TRAINING)
        value, turned = self_cider([captions, captions[::-1]], scorer)
        assert 0 <= value <= 1 + 1e-9
        assert value == pytest.approx(turned, abs=1e-6)

    def test_extremes(self):
        scorer = CiderDScorer(TRAINING)
        same, apart, empty = [[1, 2, 3, 4]] * 5, [[10, 11, 12, 13], [14, 15, 16, 17]], [[], []]
        np.testing.assert_allclose(self_cider([same, apart, empty], scorer), [0, 1, 0], atol=1e-6)

    def test_one_caption_is_an_error(self):
        with pytest.raises(
            ValueError, match=r"1 pictures have fewer than two captions \(number 1 for one\)"
        ):
            self_cider([[[1], [2]], [[1]]], CiderDScorer(TRAINING))

    def test_no_pictures(self):
        assert self_cider([], CiderDScorer(TRAINING)).shape == (0,)


class TestCounts:
    def test_by_hand(self):
        measured = measure_diversity(
            ["a dog and a dog", "A dog, and a dog!", "cats"], ["a dog and a dog", "dogs"]
        )
        assert (measured.captions, measured.vocabulary) == (3, 4)
        assert measured.distinct == pytest.approx(200 / 3)
        assert measured.copied == pytest.approx(200 / 3)
        assert measured.distinct_1 == pytest.approx(100 * 4 / 11)
        assert measured.distinct_2 == pytest.approx(100 * 3 / 8)
        assert measured.mean_length == pytest.approx(11 / 3)

    def test_other_alphabets_and_apostrophes(self):
        assert split_caption("The dog's Wiese, собака… 犬!") == (
            "the",
            "dog's",
            "wiese",
            "собака",
            "犬",
        )

    def test_empty_captions_are_counted(self):
        measured = measure_diversity(["", ""])
        assert (measured.distinct, measured.distinct_1, measured.distinct_2) == (50, 0, 0)
        assert measured.copied is None

    @pytest.mark.parametrize("nothing", [[], "a dog"])
    def test_no_list_of_captions(self, nothing):
        with pytest.raises(ValueError, match="give a list of captions"):
            measure_diversity(nothing)
