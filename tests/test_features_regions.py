"""Boxes are right or refused in one line; batches of regions have their fields."""

import warnings

import numpy as np
import pytest
import torch
from feature_helpers import BOX, boxes_of, one_line
from hypothesis import given
from hypothesis import strategies as st

from captionlab.data.batches import Batch
from captionlab.data.datasets import scenes
from captionlab.features.preprocessing import Preprocess
from captionlab.features.region_pooling import pool_regions, spatial_graph
from captionlab.features.regions import Regions, region_fields, scene_regions, validate_boxes
from captionlab.scenes.world import render

class TestBoxes:
    @pytest.mark.parametrize(
        ("bad", "says"),
        [
            ([0.1, float("nan"), 0.5, 0.6], "not a number"),
            ([0.1, 0.2, float("inf"), 0.6], "not a number"),
            ([0.5, 0.2, 0.1, 0.6], "upside down"),
            ([0.1, 0.6, 0.5, 0.2], "upside down"),
            ([10, 20, 50, 60], "not in shares"),
            ([-3, 0.2, 0.5, 0.6], "not in shares"),
        ],
    )
    def test_what_cannot_be_mended_is_refused_by_name(self, bad, says):
        with pytest.raises(ValueError, match=f"dog.jpg, box 2 .*{says}") as fault:
            Regions([BOX, BOX, bad], label="dog.jpg")
        one_line(fault)

    @pytest.mark.parametrize(
        ("out", "mended"),
        [
            ([-0.2, 0.2, 0.5, 1.3], [0, 0.2, 0.5, 1]),
            ([1.2, 0.2, 1.5, 0.6], [1, 0.2, 1, 0.6]),
            ([-0.5, -0.5, 1.5, 1.5], [0, 0, 1, 1]),
        ],
    )
    def test_what_sticks_out_is_cut_with_one_warning(self, out, mended):
        with pytest.warns(
            UserWarning, match="^dog.jpg, box 1 .*sticks out.* 1 more do: cut at its edge$"
        ) as said:
            found = Regions([BOX, out, out], label="dog.jpg")
        assert len(said) == 1
        torch.testing.assert_close(found.boxes, torch.tensor([BOX, mended, mended]))

    def test_rounding_is_cut_without_a_word(self):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert Regions([[-0.005, 0, 1.005, 1]]).boxes.tolist() == [[0, 0, 1, 1]]

    def test_shapes_and_rows_must_match(self):
        for wrong in ([], [0.1, 0.2, 0.3, 0.4], [[0.1, 0.2, 0.3]]):
            with pytest.raises(ValueError, match=r"boxes have shape \(N, 4\)"):
                Regions(wrong)
        with pytest.raises(ValueError, match=r"dog.jpg: 1 boxes, but 2 scores"):
            Regions([BOX], scores=[0.5, 0.5], label="dog.jpg")

    def test_no_box_is_fine(self):
        assert len(Regions(np.zeros((0, 4)), [], [])) == 0

    def test_best_keeps_the_surest_in_their_order(self):
        found = Regions(
            boxes_of(5), range(5), [0.1, 0.9, 0.3, 0.9, 0.2], torch.arange(10.0).reshape(5, 2)
        )
        assert found.topk(3).classes.tolist() == [1, 2, 3]
        assert found.topk(3).features[:, 0].tolist() == [2, 4, 6]
        assert found.topk(9) is found
        assert Regions(found.boxes).topk(2).boxes.equal(found.boxes[:2])

    @given(st.lists(st.lists(st.floats(-1, 2, width=32), min_size=4, max_size=4), max_size=6))
    def test_clean_boxes_are_in_the_picture_or_refused(self, boxes):
        boxes = torch.tensor(boxes).reshape(-1, 4)
        upright = ((boxes[:, 2:] >= boxes[:, :2]).all(-1)).all()
        if upright:
            cleaned, note = validate_boxes(boxes, str)
            assert ((cleaned >= 0) & (cleaned <= 1)).all()
            assert (cleaned[:, 2:] >= cleaned[:, :2]).all()
            assert bool(note) == bool(((boxes < -0.01) | (boxes > 1.01)).any())
        else:
            with pytest.raises(ValueError, match="upside down"):
                validate_boxes(boxes, str)


class TestWindow:
    def test_what_shows_half_or_less_is_left_out_with_all_that_belongs_to_it(self):
        boxes = torch.tensor(
            [
                [0.1, 0, 0.5, 1],
                [0.3, 0, 0.7, 1],
                [0.29, 0, 0.69, 1],
                [0.6, 0, 0.9, 1],
                [0.2, 0.2, 0.4, 0.4],
            ]
        )
        found = Regions(boxes, torch.arange(5), torch.arange(5) / 5, torch.arange(10.0).view(5, 2))
        seen = found.cropped((0, 0, 0.5, 1))
        assert seen.classes.tolist() == [0, 2, 4]
        torch.testing.assert_close(
            seen.boxes, torch.tensor([[0.2, 0, 1, 1], [0.58, 0, 1, 1], [0.4, 0.2, 0.8, 0.4]])
        )
        assert seen.scores.equal(found.scores[[0, 2, 4]])
        assert seen.features.equal(found.features[[0, 2, 4]])

    def test_nothing_seen_is_no_region(self):
        assert len(Regions([(0.6, 0.6, 0.9, 0.9)]).cropped((0, 0, 0.5, 0.5))) == 0
        assert len(Regions(torch.zeros(0, 4)).cropped((0, 0, 0.5, 0.5))) == 0

    def test_the_whole_picture_and_twice_mirrored_change_nothing(self):
        found = Regions(boxes_of(9), features=torch.randn(9, 3))
        assert found.cropped((0, 0, 1, 1)).boxes.equal(found.boxes)
        assert found.transformed(Preprocess()) is found
        assert found.flipped().features.equal(found.features)

    def test_the_window_is_cut_before_it_is_mirrored(self):
        found, window = Regions(boxes_of(9)), (0.0, 0.2, 0.8, 1.0)
        assert found.transformed(Preprocess(mirror=True, window=window)).boxes.equal(
            found.cropped(window).flipped().boxes
        )


class TestFields:
    @pytest.mark.parametrize("counts", [[0], [1], [100], [0, 1, 100], [3, 3]])
    def test_no_box_one_box_a_hundred(self, counts):
        found = [Regions(boxes_of(count, count)) for count in counts]
        cells = torch.randn(len(counts), 4, 4, 8)
        fields, most = region_fields(found, cells), max(1, *counts)
        assert {name: x.shape[:2] for name, x in fields.items()} == dict.fromkeys(
            fields, (len(counts), most)
        )
        assert fields["region_mask"].sum(1).tolist() == counts
        for row, (regions, count) in enumerate(zip(found, counts, strict=False)):
            torch.testing.assert_close(
                fields["boxes"][row, :count], regions.boxes, rtol=2**-11, atol=1e-7
            )
            torch.testing.assert_close(
                fields["regions"][row, :count],
                pool_regions(cells[row : row + 1], fields["boxes"][row : row + 1, :count])[0],
            )
            assert not fields["boxes"][row, count:].any()
            assert not fields["regions"][row, count:].any()
        graph = spatial_graph(fields["boxes"], fields["region_mask"])
        assert graph.sum((1, 2, 3)).tolist() == [count**2 for count in counts]

    def test_most_keeps_the_surest(self):
        found = Regions(boxes_of(5), scores=[0.1, 0.9, 0.3, 0.8, 0.2], features=torch.eye(5))
        assert region_fields([found], max_boxes=2)["regions"][0].argmax(1).tolist() == [1, 3]
        assert (
            region_fields([found], max_boxes=7)["region_mask"][0].tolist()
            == [True] * 5 + [False] * 2
        )

    def test_neither_map_nor_features(self):
        with pytest.raises(ValueError, match="no features: give a map") as fault:
            region_fields([Regions([BOX])])
        one_line(fault)

    def test_batch_has_the_fields_or_says_how_to_make_them(self):
        fields = region_fields([Regions([BOX]), Regions(boxes_of(4))], torch.randn(2, 4, 4, 8))
        batch = Batch(**fields)
        assert len(batch) == 2
        assert batch.select(torch.tensor([1])).region_mask.sum() == 4
        for name in fields:
            with pytest.raises(ValueError, match=f"reads {name}, .*--kind regions"):
                Batch().require(name)

    def test_scenes_without_a_network(self):
        items = scenes(4, 0, 0, 0)["train"]
        found = [scene_regions(item.image) for item in items]
        pixels = torch.stack([torch.from_numpy(render(item.image, 64)) for item in items]) / 255
        assert region_fields(found, pixels)["regions"].shape == (4, max(map(len, found)), 3)
