"""Diversity: counts by hand."""

import pytest

from captionlab.metrics.diversity import measure_diversity, split_caption


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
