"""Fast CIDEr-D against pycocoevalcap and against the teaching version of the lesson on SCST."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pycocoevalcap.cider.cider import Cider

from captionlab.metrics.ciderd import (
    CiderDScorer,
    HashTable,
    PairPacker,
    count_sorted,
    flatten_captions,
    pack_ngrams,
)
from captionlab.scst import CiderD

CAPTION = st.lists(st.integers(1, 6), max_size=12)
PICTURES = st.lists(
    st.tuples(st.lists(CAPTION, min_size=1, max_size=5), CAPTION), min_size=1, max_size=8
)
OFFSETS = pytest.mark.parametrize("offset", [0, 8_000, 32_700, 50_257, 10**9 - 100])


def text(ids):
    return " ".join(map(str, ids))


def pycoco(references, candidates):
    gts = {row: [text(ids) for ids in captions] for row, captions in enumerate(references)}
    res = {row: [text(ids)] for row, ids in enumerate(candidates)}
    return Cider().compute_score(gts, res)[1]


def score(references, candidates, training=None):
    scorer = CiderDScorer(references if training is None else training)
    return scorer.score(candidates, np.arange(len(candidates)), scorer.index(references))


class TestAgainstOthers:
    @given(PICTURES)
    @settings(max_examples=150)
    def test_equals_pycocoevalcap(self, pictures):
        references, candidates = zip(*pictures, strict=True)
        assume(
            any(ids for captions in references for ids in captions)
        )  # pycocoevalcap stops where there is no word
        np.testing.assert_allclose(
            score(references, candidates), pycoco(references, candidates), rtol=0, atol=1e-9
        )

    @given(PICTURES, PICTURES)
    @settings(max_examples=100)
    def test_equals_the_teaching_version_on_pictures_that_are_not_of_the_training_data(
        self, training, pictures
    ):
        references, candidates = zip(*pictures, strict=True)
        training = [captions for captions, _ in training]
        slow = CiderD(training)
        expected = [
            slow.score([ids], captions)[0]
            for ids, captions in zip(candidates, references, strict=True)
        ]
        np.testing.assert_allclose(
            score(references, candidates, training), expected, rtol=0, atol=1e-9
        )

    @OFFSETS
    def test_any_size_of_vocabulary_gives_the_same_scores(self, offset):
        rng = np.random.default_rng(3)
        references = [
            [rng.integers(1, 40, rng.integers(0, 14)).tolist() for _ in range(4)] for _ in range(30)
        ]
        candidates = [captions[0][:5] + captions[1][2:] for captions in references]
        moved = [[[token + offset for token in ids] for ids in captions] for captions in references]
        ours = score(moved, [[token + offset for token in ids] for ids in candidates])
        np.testing.assert_allclose(ours, pycoco(references, candidates), rtol=0, atol=1e-9)
        assert ours.max() > 1

    @given(PICTURES)
    @settings(max_examples=50)
    def test_padded_arrays_equal_the_reward_of_the_lesson(self, pictures):
        references, candidates = zip(*pictures, strict=True)
        width, most = 13, max(map(len, references))
        rows = [[*captions, *[[]] * (most - len(captions))] for captions in references]
        padded = torch.tensor(
            [[ids + [0] * (width - len(ids)) for ids in captions] for captions in rows]
        )
        said = torch.tensor(
            [
                [ids + [0] * (width - len(ids)), [0, *ids] + [0] * (width - 1 - len(ids))]
                for ids in candidates
            ]
        )
        ours = CiderDScorer(references).score_arrays(said.numpy(), padded.numpy())
        np.testing.assert_allclose(
            ours, CiderD(references)(said, padded).numpy(), rtol=0, atol=1e-5
        )
        np.testing.assert_array_equal(
            ours[:, 0], ours[:, 1]
        )  # where the padding stands does not matter


REFERENCES = [[[3, 4, 5], [3, 4, 6]], [[7, 8]], []]


class TestEdges:
    def test_empty_candidates_and_pictures_without_references_score_0(self):
        assert score(REFERENCES, [[], [7, 8], [3]]).tolist()[::2] == [0, 0]

    def test_no_candidate_gives_no_score(self):
        assert score(REFERENCES, []).shape == (0,)

    def test_a_repeated_word_counts_once_where_the_reference_has_it_once(self):
        once, often = score(REFERENCES[:2] * 2, [[3, 4, 5], [7], [3] * 9, [7, 7, 7]])[[0, 2]]
        assert 0 < often < once

    def test_unseen_ngrams_are_counted_too(self):
        training = [[[1, 2, 3]], [[4, 5]], [[6]]]
        candidates = [[9, 9, 9, 9], [9, 9, 9, 8]]
        references = [[[9, 9, 9, 9]], [[9, 9, 9, 9]]]
        slow = CiderD(training)
        expected = [
            slow.score([ids], captions)[0]
            for ids, captions in zip(candidates, references, strict=True)
        ]
        np.testing.assert_allclose(score(references, candidates, training), expected, atol=1e-12)
        assert expected[0] == pytest.approx(10)

    def test_no_training_captions(self):
        assert score([[[1, 2]]], [[1, 2]], training=[]).tolist() == [0]

    def test_several_candidates_of_a_picture_in_any_order(self):
        scorer = CiderDScorer(REFERENCES)
        index = scorer.index(REFERENCES)
        candidates = [[7, 8], [3, 4, 5], [3], [8]]
        pictures = np.array([1, 0, 0, 1])
        alone = [
            scorer.score([ids], pictures[k : k + 1], index)[0] for k, ids in enumerate(candidates)
        ]
        np.testing.assert_array_equal(scorer.score(candidates, pictures, index), alone)

    def test_errors_say_what_to_do(self):
        scorer = CiderDScorer(REFERENCES)
        index = scorer.index(REFERENCES)
        with pytest.raises(ValueError, match="0 or larger, and one is -1"):
            scorer.score([[-1]], np.array([0]), index)
        with pytest.raises(ValueError, match="1 candidates, and pictures of shape"):
            scorer.score([[3]], np.array([0, 1]), index)
        with pytest.raises(ValueError, match="numbers from 0 to 2"):
            scorer.score([[3]], np.array([3]), index)
        with pytest.raises(ValueError, match="vocab_size of 40001 or more"):
            scorer.score([[40_000]], np.array([0]), index)
        roomy = CiderDScorer(REFERENCES, vocab_size=40_001)
        assert roomy.score([[40_000]], np.array([0]), roomy.index(REFERENCES)).tolist() == [0]


class TestParts:
    @given(st.lists(st.lists(st.integers(0, 32_766), max_size=9), max_size=6))
    @settings(max_examples=60)
    def test_packings_tell_the_same_ngrams_apart(self, captions):
        table = flatten_captions(captions)
        direct, paired = pack_ngrams(table), PairPacker()(table)
        expected = [
            [tuple(ids[i : i + n]) for ids in captions for i in range(len(ids) - n + 1)]
            for n in (1, 2, 3, 4)
        ]
        for one, other, words in zip(direct, paired, expected, strict=True):
            for packed, _ in (one, other):
                assert (
                    len(set(zip(packed.tolist(), words, strict=True)))
                    == len(set(packed.tolist()))
                    == len(set(words))
                )
        distinct = {number for packed, _ in paired for number in packed.tolist()}
        assert len(distinct) == sum(len(set(words)) for words in expected)

    @given(st.sets(st.integers(0, 2**60)), st.lists(st.integers(0, 2**60)))
    @settings(max_examples=60)
    def test_a_hash_table_finds_what_it_has_and_nothing_else(self, keys, others):
        stored = np.array(sorted(keys), np.int64)
        asked = np.array([*keys, *others], np.int64)
        rows = {key: row for row, key in enumerate(stored.tolist())}
        assert HashTable(stored).find(asked).tolist() == [
            rows.get(key, -1) for key in asked.tolist()
        ]

    def test_a_full_run_of_slots_wraps_around(self):
        keys = np.arange(8, dtype=np.int64)
        table = HashTable(keys)
        table.keys = np.concatenate(
            [[5, 6, 7], np.full(12, -1), [4]]
        )  # 16 slots; 4 stands in the last
        table.rows = np.concatenate([[1, 2, 3], np.full(12, -1), [0]])
        table._slots = lambda asked: np.full(len(asked), 15)
        assert table.find(np.array([4, 5, 7, 9])).tolist() == [0, 1, 3, -1]

    def test_counts_of_nothing(self):
        none = np.empty(0, np.int64)
        assert count_sorted(none, none).counts.shape == (0,)
