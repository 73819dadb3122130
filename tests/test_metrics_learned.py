"""CLIPScore, with stubs in place of networks."""

import numpy as np
import pytest

from captionlab.metrics.learned import ClipScore


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
