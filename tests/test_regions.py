"""Regions: boxes are right or refused in one line, features are torchvision's, the graph is the loop's."""
import base64
import json
import os
import shutil
import subprocess
import sys
import time
import warnings
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st
from PIL import Image
from torchvision.models import get_model
from torchvision.ops import box_iou, roi_align
from typer.testing import CliRunner

from captionlab.cli import application
from captionlab.data.batches import Batch
from captionlab.data.datasets import CaptionData, Item, scenes
from captionlab.vision.features import FeatureStore
from captionlab.vision.boxes import DETECTORS, Detector, open_boxes, save_boxes
from captionlab.vision.extraction import extract_features, extract_regions, region_spec
from captionlab.vision.regions import (
    Regions,
    pool_regions,
    region_fields,
    regions_from_store,
    scene_regions,
    spatial_graph,
    validate_boxes,
)
from captionlab.processors.image import match_name
from captionlab.runs.training import train
from captionlab.scenes.generator import generate_scene
from captionlab.scenes.world import render
from captionlab.vision.backbones import Backbone
from captionlab.vision.images import Preprocess

BOX = [0.1, 0.2, 0.5, 0.6]


def one_line(fault) -> str:
    assert "\n" not in str(fault.value)
    return str(fault.value)


def boxes_of(count: int, seed: int = 0) -> torch.Tensor:
    """Some boxes (N, 4) in shares of the picture."""
    draw = np.random.default_rng(seed).random((count, 2, 2))
    return torch.from_numpy(np.sort(draw, 1)).float().flatten(1)


class TestBoxes:
    @pytest.mark.parametrize("bad, says", [
        ([0.1, float("nan"), 0.5, 0.6], "not a number"), ([0.1, 0.2, float("inf"), 0.6], "not a number"),
        ([0.5, 0.2, 0.1, 0.6], "upside down"), ([0.1, 0.6, 0.5, 0.2], "upside down"),
        ([10, 20, 50, 60], "not in shares"), ([-3, 0.2, 0.5, 0.6], "not in shares")])
    def test_what_cannot_be_mended_is_refused_by_name(self, bad, says):
        with pytest.raises(ValueError, match=f"dog.jpg, box 2 .*{says}") as fault:
            Regions([BOX, BOX, bad], label="dog.jpg")
        one_line(fault)

    @pytest.mark.parametrize("out, mended", [
        ([-0.2, 0.2, 0.5, 1.3], [0, 0.2, 0.5, 1]), ([1.2, 0.2, 1.5, 0.6], [1, 0.2, 1, 0.6]), ([-0.5, -0.5, 1.5, 1.5], [0, 0, 1, 1])])
    def test_what_sticks_out_is_cut_with_one_warning(self, out, mended):
        with pytest.warns(UserWarning, match="^dog.jpg, box 1 .*sticks out.* 1 more do: cut at its edge$") as said:
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
        with pytest.raises(ValueError, match="dog.jpg: 1 boxes, but 2 scores"):
            Regions([BOX], scores=[0.5, 0.5], label="dog.jpg")

    def test_no_box_is_fine(self):
        assert len(Regions(np.zeros((0, 4)), [], [])) == 0

    def test_best_keeps_the_surest_in_their_order(self):
        found = Regions(boxes_of(5), range(5), [0.1, 0.9, 0.3, 0.9, 0.2], torch.arange(10.).reshape(5, 2))
        assert found.topk(3).classes.tolist() == [1, 2, 3] and found.topk(3).features[:, 0].tolist() == [2, 4, 6]
        assert found.topk(9) is found and Regions(found.boxes).topk(2).boxes.equal(found.boxes[:2])

    @given(st.lists(st.lists(st.floats(-1, 2, width=32), min_size=4, max_size=4), max_size=6))
    def test_clean_boxes_are_in_the_picture_or_refused(self, boxes):
        boxes = torch.tensor(boxes).reshape(-1, 4)
        upright = ((boxes[:, 2:] >= boxes[:, :2]).all(-1)).all()
        if upright:
            cleaned, note = validate_boxes(boxes, str)
            assert ((cleaned >= 0) & (cleaned <= 1)).all() and (cleaned[:, 2:] >= cleaned[:, :2]).all()
            assert bool(note) == bool(((boxes < -0.01) | (boxes > 1.01)).any())
        else:
            with pytest.raises(ValueError, match="upside down"):
                validate_boxes(boxes, str)


# Boxes on a lattice of whole numbers: their areas, and nine tenths of them, are compared without rounding.
LATTICE = st.integers(0, 40)
BOXES = st.lists(st.tuples(LATTICE, LATTICE, LATTICE, LATTICE).map(
    lambda b: (min(b[0], b[2]), min(b[1], b[3]), max(b[0], b[2]), max(b[1], b[3]))), min_size=1, max_size=8)


def exact_graph(boxes, threshold=Fraction(9, 10)) -> torch.Tensor:
    """Equation (5) as it is printed, with fractions."""
    def area(box):
        return (box[2] - box[0]) * (box[3] - box[1])

    graph = torch.zeros(3, len(boxes), len(boxes), dtype=torch.bool)
    for l, a in enumerate(boxes):
        for m, b in enumerate(boxes):
            common = max(min(a[2], b[2]) - max(a[0], b[0]), 0) * max(min(a[3], b[3]) - max(a[1], b[1]), 0)
            in_m, in_l = (Fraction(int(common), int(area(x))) if area(x) else Fraction(0) for x in (a, b))
            parent, child = in_m >= threshold and in_m > in_l, in_l >= threshold and in_l > in_m
            graph[:, l, m] = torch.tensor([parent, not parent and not child, child])
    return graph


def graph_of(boxes) -> torch.Tensor:
    return spatial_graph(torch.tensor([boxes], dtype=torch.float))[0]


class TestGraph:        # eq-it-5
    @pytest.mark.slow
    @given(BOXES)
    @example([(0, 0, 10, 10), (0, 0, 9, 10), (0, 1, 10, 10), (1, 0, 11, 10), (0, 0, 10, 1), (1, 0, 30, 1)])      # nine tenths exactly
    def test_equals_the_printed_equation(self, boxes):
        assert graph_of(boxes).equal(exact_graph(boxes))

    @given(BOXES)
    def test_sums_to_one_and_child_is_parent_transposed(self, boxes):
        graph = graph_of(boxes)
        assert (graph.sum(0) == 1).all() and graph[0].equal(graph[2].T) and graph[1].equal(graph[1].T)
        assert graph[1].diagonal().all()

    @given(BOXES, st.integers(1, 9), st.integers(-50, 50), st.integers(-50, 50))
    def test_scale_and_shift_change_nothing(self, boxes, scale, right, down):
        moved = [(a * scale + right, b * scale + down, c * scale + right, d * scale + down) for a, b, c, d in boxes]
        assert graph_of(moved).equal(graph_of(boxes))

    @given(BOXES, st.randoms())
    def test_order_does_not_matter(self, boxes, chance):
        rows = list(range(len(boxes)))
        chance.shuffle(rows)
        assert graph_of([boxes[row] for row in rows]).equal(graph_of(boxes)[:, rows][:, :, rows])

    @given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 30), st.integers(0, 30))
    def test_boxes_apart_are_neighbours(self, width, height, right, down):
        one, other = (0, 0, width, height), (width + right, height + down, 3 * width + right, 3 * height + down)
        assert graph_of([one, other])[1].all()

    @given(BOXES, st.integers(0, 7), st.sampled_from(["copy", "line", "point"]))
    def test_degenerate_and_identical_boxes_are_neighbours(self, boxes, row, how):
        assume(row < len(boxes))
        left, top, right, bottom = boxes[row]
        boxes = [*boxes, {"copy": boxes[row], "line": (left, top, left, bottom), "point": (left, top, left, top)}[how]]
        graph = graph_of(boxes)
        assert graph[1, row, -1] if how == "copy" else graph[1, -1].all() and graph[1, :, -1].all()

    def test_threshold(self):
        boxes = torch.tensor([[[0, 0, 1, 1], [0.5, 0.5, 1.1, 1.1]]])       # 25/36 of the second is in the first
        assert spatial_graph(boxes)[0, 0].sum() == 0 and spatial_graph(boxes, threshold=0.69)[0, 0, 1, 0]

    def test_padding_is_nobodys_relative(self):
        boxes, mask = boxes_of(60).reshape(5, 12, 4), torch.arange(12) < torch.tensor([0, 1, 5, 11, 12])[:, None]
        graph = spatial_graph(boxes * mask[..., None], mask)
        assert graph.sum(1).bool().equal(mask[:, :, None] & mask[:, None])
        for picture, count in zip(range(5), mask.sum(1)):
            assert graph[picture, :, :count, :count].equal(spatial_graph(boxes[picture:picture + 1, :count])[0])

    @pytest.mark.parametrize("B, N", [(0, 3), (3, 0), (1, 1), (40, 100), (2, 500)])
    def test_sizes(self, B, N):
        boxes = boxes_of(B * N).reshape(B, N, 4)
        graph = spatial_graph(boxes)
        assert graph.shape == (B, 3, N, N) and graph.dtype == torch.bool
        assert graph.equal(torch.cat([spatial_graph(picture[None]) for picture in boxes] or [graph]))

    def test_against_torchvisions_overlaps(self):
        boxes = boxes_of(100)
        iou, area = box_iou(boxes.double(), boxes.double()), (boxes[:, 2:] - boxes[:, :2]).double().prod(1)
        inside = iou / (1 + iou) * (area[:, None] + area) / area[:, None]
        sure = (inside - 0.9).abs() > 1e-6
        assert spatial_graph(boxes[None])[0, 0][sure].equal(((inside >= 0.9) & (area[:, None] < area))[sure])

    def test_scenes_inside_is_its_edge(self):
        for seed in range(60):
            scene = generate_scene(seed)
            edges = set(map(tuple, spatial_graph(scene_regions(scene).boxes[None])[0, 0].nonzero().tolist()))
            assert edges == {(i, j) for i, word, j in scene.relations if word == "inside"}

    @pytest.mark.slow
    def test_a_thousand_photos_in_a_fifth_of_a_second(self):
        """Time of one core, whatever else the machine does."""
        boxes, before = boxes_of(100_000).reshape(1000, 100, 4), torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            spatial_graph(boxes[:50])
            seconds = []
            for _ in range(5):
                start = time.thread_time()
                spatial_graph(boxes)
                seconds.append(time.thread_time() - start)
        finally:
            torch.set_num_threads(before)
        print(f"spatial graph of 1,000 photos with 100 boxes: {min(seconds) * 1000:.0f} ms")
        assert min(seconds) < 0.2


class TestPool:
    @pytest.mark.parametrize("h, w, D, N", [(14, 14, 8, 13), (3, 7, 2, 1), (1, 1, 3, 4), (5, 5, 4, 100)])
    def test_equals_the_mean_of_torchvisions_bins(self, h, w, D, N):
        """Ours is one bin of 8 x 8 points; the mean of 4 x 4 bins of 2 x 2 points is the same."""
        cells, boxes = torch.randn(2, h, w, D), boxes_of(2 * N).reshape(2, N, 4)
        bins = roi_align(cells.permute(0, 3, 1, 2), list(boxes * torch.tensor([w, h, w, h])), 4, sampling_ratio=2, aligned=True)
        torch.testing.assert_close(pool_regions(cells, boxes, samples=8), bins.mean((2, 3)).reshape(2, N, D), rtol=1e-4, atol=1e-5)

    def test_the_whole_of_an_even_map_is_its_number(self):
        cells = torch.full((1, 6, 4, 3), 5.0)
        torch.testing.assert_close(pool_regions(cells, boxes_of(20)[None]), torch.full((1, 20, 3), 5.0))

    def test_a_slope_is_read_at_the_middle_of_the_box(self):
        cells = (torch.arange(10.) + 0.5)[None, None, :, None].expand(1, 10, 10, 1) / 10       # as far right as it says
        boxes = torch.tensor([[[0.3, 0.3, 0.5, 0.4], [0.2, 0.1, 0.8, 0.9], [0.4, 0.4, 0.4, 0.4]]])
        torch.testing.assert_close(pool_regions(cells, boxes)[0, :, 0], torch.tensor([0.4, 0.5, 0.4]))

    def test_mirrored_boxes_read_the_mirrored_map(self):
        cells, found = torch.randn(1, 7, 9, 4), Regions(boxes_of(5))
        assert found.flipped().flipped().boxes.allclose(found.boxes, atol=1e-6)
        torch.testing.assert_close(pool_regions(cells.flip(2), found.flipped().boxes[None]), pool_regions(cells, found.boxes[None]),
                                   rtol=1e-4, atol=1e-5)

    def test_boxes_in_a_window_read_the_windows_map(self):
        """Where all boxes are inside, a map seen in part says of them what the whole map says."""
        cells = (torch.arange(20.)[:, None, None] + 100 * torch.arange(30.)[None, :, None])[None]       # a slope both ways
        inner = boxes_of(8) * 0.2 + 0.4
        found, part = Regions(inner), cells[:, 5:15, 9:24]
        seen = found.cropped((0.3, 0.25, 0.8, 0.75))
        torch.testing.assert_close(pool_regions(part, seen.boxes[None]), pool_regions(cells, found.boxes[None]), rtol=1e-3, atol=0.1)

    def test_half_precision_boxes_and_other_dtypes(self):
        cells, boxes = torch.randn(1, 7, 7, 4), boxes_of(3)[None]
        torch.testing.assert_close(pool_regions(cells.double(), boxes).float(), pool_regions(cells, boxes))


class TestWindow:
    def test_what_shows_half_or_less_is_left_out_with_all_that_belongs_to_it(self):
        boxes = torch.tensor([[0.1, 0, 0.5, 1], [0.3, 0, 0.7, 1], [0.29, 0, 0.69, 1], [0.6, 0, 0.9, 1], [0.2, 0.2, 0.4, 0.4]])
        found = Regions(boxes, torch.arange(5), torch.arange(5) / 5, torch.arange(10.).view(5, 2))
        seen = found.cropped((0, 0, 0.5, 1))
        assert seen.classes.tolist() == [0, 2, 4]
        torch.testing.assert_close(seen.boxes, torch.tensor([[0.2, 0, 1, 1], [0.58, 0, 1, 1], [0.4, 0.2, 0.8, 0.4]]))
        assert seen.scores.equal(found.scores[[0, 2, 4]]) and seen.features.equal(found.features[[0, 2, 4]])

    def test_nothing_seen_is_no_region(self):
        assert len(Regions([(0.6, 0.6, 0.9, 0.9)]).cropped((0, 0, 0.5, 0.5))) == 0
        assert len(Regions(torch.zeros(0, 4)).cropped((0, 0, 0.5, 0.5))) == 0

    def test_the_whole_picture_and_twice_mirrored_change_nothing(self):
        found = Regions(boxes_of(9), features=torch.randn(9, 3))
        assert found.cropped((0, 0, 1, 1)).boxes.equal(found.boxes) and found.transformed(Preprocess()) is found
        assert found.flipped().features.equal(found.features)

    def test_the_window_is_cut_before_it_is_mirrored(self):
        found, window = Regions(boxes_of(9)), (0.0, 0.2, 0.8, 1.0)
        assert found.transformed(Preprocess(mirror=True, window=window)).boxes.equal(found.cropped(window).flipped().boxes)


class TestFields:
    @pytest.mark.parametrize("counts", [[0], [1], [100], [0, 1, 100], [3, 3]])
    def test_no_box_one_box_a_hundred(self, counts):
        found = [Regions(boxes_of(count, count)) for count in counts]
        cells = torch.randn(len(counts), 4, 4, 8)
        fields, most = region_fields(found, cells), max(1, *counts)
        assert {name: x.shape[:2] for name, x in fields.items()} == dict.fromkeys(fields, (len(counts), most))
        assert fields["region_mask"].sum(1).tolist() == counts
        for row, (regions, count) in enumerate(zip(found, counts)):
            torch.testing.assert_close(fields["boxes"][row, :count], regions.boxes, rtol=2**-11, atol=1e-7)
            torch.testing.assert_close(fields["regions"][row, :count], pool_regions(cells[row:row + 1], fields["boxes"][row:row + 1, :count])[0])
            assert not fields["boxes"][row, count:].any() and not fields["regions"][row, count:].any()
        graph = spatial_graph(fields["boxes"], fields["region_mask"])
        assert graph.sum((1, 2, 3)).tolist() == [count**2 for count in counts]

    def test_most_keeps_the_surest(self):
        found = Regions(boxes_of(5), scores=[0.1, 0.9, 0.3, 0.8, 0.2], features=torch.eye(5))
        assert region_fields([found], max_boxes=2)["regions"][0].argmax(1).tolist() == [1, 3]
        assert region_fields([found], max_boxes=7)["region_mask"][0].tolist() == [True] * 5 + [False] * 2

    def test_neither_map_nor_features(self):
        with pytest.raises(ValueError, match="no features: give a map") as fault:
            region_fields([Regions([BOX])])
        one_line(fault)

    def test_batch_has_the_fields_or_says_how_to_make_them(self):
        fields = region_fields([Regions([BOX]), Regions(boxes_of(4))], torch.randn(2, 4, 4, 8))
        batch = Batch(**fields)
        assert len(batch) == 2 and batch.select(torch.tensor([1])).region_mask.sum() == 4
        for name in fields:
            with pytest.raises(ValueError, match=f"reads {name}, .*--kind regions"):
                Batch().require(name)

    def test_scenes_without_a_network(self):
        items = scenes(4, 0, 0, 0)["train"]
        found = [scene_regions(item.image) for item in items]
        pixels = torch.stack([torch.from_numpy(render(item.image, 64)) for item in items]) / 255
        assert region_fields(found, pixels)["regions"].shape == (4, max(map(len, found)), 3)


def one_for_all(file: Path, names, counts, boxes, **more) -> Path:
    np.savez(file, names=np.array(names, dtype=str), counts=counts, boxes=np.array(boxes).reshape(-1, 4), **more)
    return file


class TestOneForAll:
    def test_saved_and_opened(self, tmp_path):
        found = {"a.jpg": Regions(boxes_of(3), [1, 2, 0], [0.5, 0.25, 0.125]), "b.jpg": Regions(np.zeros((0, 4)), [], [])}
        save_boxes(tmp_path / "r.npz", found, ["dog", "ball", "sky"])
        back = open_boxes(tmp_path / "r.npz")
        assert list(back) == list(found) and back.class_names == ["dog", "ball", "sky"] and len(back["b.jpg"]) == 0
        torch.testing.assert_close(back["a.jpg"].boxes, found["a.jpg"].boxes, rtol=2**-11, atol=1e-7)
        assert back["a.jpg"].classes.tolist() == [1, 2, 0] and back["a.jpg"].scores.tolist() == [0.5, 0.25, 0.125]
        save_boxes(tmp_path / "none.npz", {})
        assert len(open_boxes(tmp_path / "none.npz")) == 0

    def test_reads_back(self, tmp_path):
        file = one_for_all(tmp_path / "r.npz", ["a.jpg", "b.jpg", "c.jpg"], [2, 0, 1], [BOX, [0, 0, 1, 1], [0, 0, 0.5, 0.5]],
                           classes=[1, 0, 1], scores=[0.5, 0.4, 0.3], class_names=["dog", "ball"])
        found = open_boxes(file)
        assert [len(found[name]) for name in found] == [2, 0, 1] and found.max_boxes == 2 and "d.jpg" not in found
        assert found["c.jpg"].boxes.tolist() == [[0, 0, 0.5, 0.5]] and found["a.jpg"].classes.tolist() == [1, 0]
        assert found.class_names == ["dog", "ball"]
        with pytest.raises(ValueError, match="no regions of d.jpg in .*r.npz"):
            found["d.jpg"]

    def test_a_bad_box_is_named_with_file_and_picture(self, tmp_path):
        file = one_for_all(tmp_path / "r.npz", ["a.jpg", "b.jpg", "c.jpg"], [2, 0, 2], [BOX, BOX, BOX, [0.5, 0, 0.1, 1]])
        with pytest.raises(ValueError, match="r.npz, picture c.jpg, box 1 .*upside down") as fault:
            open_boxes(file)
        one_line(fault)

    def test_boxes_that_stick_out_are_told_once(self, tmp_path):
        file = one_for_all(tmp_path / "r.npz", list("abcd"), [1] * 4, [[0, 0, 1.2, 1]] * 4)
        with pytest.warns(UserWarning, match="r.npz, picture a, box 0 .* 3 more do.*once a file") as said:
            found = open_boxes(file)
        assert len(said) == 1 and found["d"].boxes.tolist() == [[0, 0, 1, 1]]

    @pytest.mark.parametrize("change, says", [
        (dict(counts=[1, 2]), "2 counts that sum to 3"), (dict(counts=[3]), "1 counts"), (dict(names=["a"]), "1 names")])
    def test_numbers_must_agree(self, tmp_path, change, says):
        file = one_for_all(tmp_path / "r.npz", **(dict(names=["a", "b"], counts=[1, 1], boxes=[BOX, BOX]) | change))
        with pytest.raises(ValueError, match=f"{says}.*get it again") as fault:
            open_boxes(file)
        one_line(fault)

    def test_other_or_broken_files(self, tmp_path):
        file = one_for_all(tmp_path / "r.npz", ["a"], [1], [BOX])
        (tmp_path / "half.npz").write_bytes(file.read_bytes()[:200])
        (tmp_path / "text.npz").write_text("Dear diary")
        np.savez(tmp_path / "other.npz", bbox=[BOX])
        (tmp_path / "boxes.json").write_text("{}")
        for name, says in (("half.npz", "broken or cut off"), ("text.npz", "broken or cut off"), ("other.npz", "give the folder"),
                           ("boxes.json", "no file of boxes"), ("gone.npz", "no boxes gone.npz: neither .* nor a detector")):
            with pytest.raises((ValueError, FileNotFoundError), match=says) as fault:
                open_boxes(tmp_path / name if name != "gone.npz" else name)
            one_line(fault)

    @pytest.mark.slow
    def test_flickr8k(self, real_data):
        found = open_boxes(real_data / "flickr8k" / "regions.npz")
        assert len(found) == 8000 and found.max_boxes == 36 and found.class_names[0] == "person"
        assert sum(len(found[name]) for name in found) == 105150


def per_picture(folder: Path, name: str, boxes, width=640, height=480, **more) -> None:
    """One file of bottom-up-attention.pytorch: boxes in pixels, an `info` that only pickle reads."""
    folder.mkdir(exist_ok=True)
    pixels = np.float32(boxes).reshape(-1, 4) * np.float32([width, height] * 2)
    np.savez_compressed(folder / name, bbox=pixels, image_w=width, image_h=height, info={"objects_id": [1]}, **more)


class TestOneEach:
    def test_reads_back_both_ways_round(self, tmp_path):
        features = np.arange(15, dtype=np.float32).reshape(3, 5)
        per_picture(tmp_path / "f", "COCO_val2014_000000000042", [BOX] * 3, x=features, num_bbox=3)
        per_picture(tmp_path / "f", "COCO_val2014_000000000043", [BOX] * 3, x=features.T)
        per_picture(tmp_path / "f", "7", [BOX] * 3, features=features, num_bbox=2)
        per_picture(tmp_path / "f", "8", [], x=np.zeros((0, 5), np.float32), num_bbox=0)
        found = open_boxes(tmp_path / "f")
        assert found.max_boxes == 3 and found.width == 5 and [len(found[name]) for name in ("42", "43", "7", "8")] == [3, 3, 2, 0]
        torch.testing.assert_close(found["COCO_val2014_000000000042.jpg"].boxes, torch.tensor([BOX] * 3))
        assert found["43"].features.equal(torch.from_numpy(features)) and found["8"].features.shape == (0, 5)

    def test_boxes_without_features(self, tmp_path):
        per_picture(tmp_path / "f", "a", [BOX])
        assert open_boxes(tmp_path / "f")["a.jpg"].features is None and open_boxes(tmp_path / "f").width == 0

    def test_nothing_in_it_is_executed(self, tmp_path):
        class Evil:
            def __reduce__(self):
                return os.mkdir, (str(tmp_path / "evil"),)

        folder = tmp_path / "f"
        folder.mkdir()
        np.savez(folder / "a.npz", bbox=np.zeros((1, 4)), image_w=2, image_h=2, info=np.array(Evil(), dtype=object))
        np.savez(folder / "b.npz", bbox=np.array([Evil()], dtype=object), image_w=2, image_h=2)
        found = open_boxes(folder)
        assert len(found["a"]) == 1
        with pytest.raises(ValueError, match="b.npz is broken"):
            found["b"]
        assert not (tmp_path / "evil").exists()

    def test_faults_name_the_file(self, tmp_path):
        folder = tmp_path / "f"
        per_picture(folder, "a", [BOX], x=np.zeros((1, 5), np.float32))
        per_picture(folder, "pixels", np.float32([BOX]) * 500, x=np.zeros((1, 5), np.float32))
        per_picture(folder, "wide", [BOX], x=np.zeros((1, 6), np.float32))
        np.savez(folder / "sizeless.npz", bbox=np.float32([BOX]), x=np.zeros((1, 5), np.float32))
        (folder / "cut.npz").write_bytes((folder / "a.npz").read_bytes()[:-50])
        found = open_boxes(folder)
        assert found.max_boxes == 1
        for name, says in (("pixels", "pixels.npz, box 0 .*not in shares"), ("wide", "wide.npz: its features have 6"),
                           ("sizeless", "sizeless.npz has no image_h, image_w"), ("cut", "cut.npz is broken or cut off")):
            with pytest.raises(ValueError, match=says) as fault:
                found[name]
            one_line(fault)

    def test_empty_folder(self, tmp_path):
        with pytest.raises(ValueError, match="holds no .npz"):
            open_boxes(tmp_path)


def tsv_line(name, boxes, features, width=640, height=480) -> bytes:
    """One line as bottom-up-attention's generate_tsv.py writes it."""
    pixels = np.float32(boxes).reshape(-1, 4) * np.float32([width, height] * 2)
    texts = [base64.b64encode(np.float32(part).tobytes()).decode() for part in (pixels, features)]
    return "\t".join([str(name), str(width), str(height), str(len(boxes)), *texts]).encode() + b"\r\n"


def features_of(count, number, width=7):
    return np.full((count, width), number, np.float32)


class TestLines:
    def whole(self, file: Path) -> list[bytes]:
        lines = [tsv_line(40 + k, boxes_of(k).numpy(), features_of(k, k)) for k in (3, 0, 5, 4)]
        file.write_bytes(b"".join(lines))
        return lines

    def test_reads_back(self, tmp_path):
        self.whole(tmp_path / "f.tsv")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = open_boxes(tmp_path / "f.tsv")
        assert list(found) == ["43", "40", "45", "44"] and (found.max_boxes, found.width) == (5, 7)
        assert [len(found[name]) for name in found] == [3, 0, 5, 4] and found["40"].features.shape == (0, 7)
        torch.testing.assert_close(found["COCO_train2014_000000000045.jpg"].boxes, boxes_of(5))
        assert found["45"].features.equal(torch.full((5, 7), 5.0))

    def test_cut_off_after_any_byte_of_the_last_line(self, tmp_path):
        """Whatever is cut, the lines before are used, and one warning names the line; only the line's end is not missed."""
        lines = self.whole(tmp_path / "f.tsv")
        before, last = b"".join(lines[:-1]), lines[-1]
        for kept in range(1, len(last) + 1):
            (tmp_path / "cut.tsv").write_bytes(before + last[:kept])
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("ignore")             # files that other tests left open
                warnings.simplefilter("always", UserWarning)
                found = open_boxes(tmp_path / "cut.tsv")
            is_whole = kept >= len(last) - 2
            assert len(said) == (not is_whole) and len(found) == 3 + is_whole and len(found["45"]) == 5
            if not is_whole:
                assert "cut.tsv, line 4 is cut off" in str(said[0].message) and "the 3 pictures of the other lines are used" in str(said[0].message)
                assert "\n" not in str(said[0].message)
                with pytest.raises(ValueError, match=r"no regions of 44 in .*cut.tsv \(line 4 is cut off") as fault:
                    found["44"]
                one_line(fault)

    def test_damaged_in_the_middle_and_there_again(self, tmp_path):
        """As in the published files: a line broken by a second writer, and the picture once more, whole."""
        lines = self.whole(tmp_path / "f.tsv")
        (tmp_path / "f.tsv").write_bytes(lines[0] + lines[2][:150] + lines[3] + lines[2])
        with pytest.warns(UserWarning, match="f.tsv, line 2 is cut off or damaged"):
            found = open_boxes(tmp_path / "f.tsv")
        assert set(found) == {"43", "45"} and len(found["45"]) == 5 and list(found.bad_lines) == [2]

    def test_a_bad_box_is_named_with_file_line_and_picture(self, tmp_path):
        (tmp_path / "f.tsv").write_bytes(tsv_line(1, [BOX], features_of(1, 1)) + tsv_line(2, [BOX, [np.nan] * 4], features_of(2, 1)))
        found = open_boxes(tmp_path / "f.tsv")
        assert len(found["1"]) == 1
        with pytest.raises(ValueError, match="f.tsv, line 2, picture 2, box 1 .*not a number") as fault:
            found["2"]
        one_line(fault)

    def test_no_whole_line(self, tmp_path):
        (tmp_path / "f.tsv").write_text("image_id\timage_w\n1\t2\n")
        with pytest.raises(ValueError, match="no whole line"):
            open_boxes(tmp_path / "f.tsv")

    def test_is_indexed_without_being_read_into_memory(self, tmp_path):
        with open(tmp_path / "large.tsv", "wb") as file:
            for number in range(200):
                file.write(tsv_line(number, boxes_of(36).numpy(), features_of(36, number, 2048)))
        size, start = (tmp_path / "large.tsv").stat().st_size / 2**20, time.perf_counter()
        found = open_boxes(tmp_path / "large.tsv")
        print(f"{size:.0f} MB indexed in {time.perf_counter() - start:.2f} s")
        assert size > 70 and found["199"].features[0, 0] == 199 and found.max_boxes == 36


@pytest.fixture(scope="module")
def detector() -> Detector:
    return Detector(DETECTORS[1], weights=None, max_boxes=20)


class TestDetector:
    @pytest.mark.slow
    def test_finds_boxes_in_any_picture(self, detector, tmp_path):
        picture = Image.fromarray(render(generate_scene(0), 200)).crop((0, 0, 200, 120))
        picture.save(tmp_path / "a.png")
        found = detector(tmp_path / "a.png")
        assert len(found) == 10 and found.boxes.max() > 0.5 and found.scores.diff().le(0).all()      # random ones are unsure: the least
        assert found.boxes.equal(detector(picture).boxes) and found.classes.max() < len(detector.class_names) == 91

    @pytest.mark.slow
    def test_equals_torchvisions_own(self, detector):
        picture = Image.fromarray(render(generate_scene(1), 96))
        net = get_model(DETECTORS[1], weights=None, weights_backbone=None, box_score_thresh=0.0, box_detections_per_img=20)
        net.load_state_dict(detector.net.state_dict())
        theirs = net.eval()([torch.from_numpy(np.array(picture)).permute(2, 0, 1) / 255])[0]
        torch.testing.assert_close(detector(picture).boxes, theirs["boxes"][:10] / 96, rtol=1e-4, atol=1e-5)

    def test_as_many_as_it_is_sure_of(self, detector):
        picture, before = Image.fromarray(render(generate_scene(1), 96)), detector.threshold
        try:
            detector.threshold = 0.0
            assert len(detector(picture)) == 20
        finally:
            detector.threshold = before

    @pytest.mark.slow
    def test_weights_from_a_file(self, detector, tmp_path):
        torch.save(detector.net.state_dict(), tmp_path / "w.pth")
        again = Detector(DETECTORS[1], str(tmp_path / "w.pth"), max_boxes=20, seed=1)
        assert again.describe() == detector.describe() and again.describe()["most"] == 20
        torch.save({"a": torch.zeros(1)}, tmp_path / "other.pth")
        with pytest.raises(ValueError, match="are not the weights of torchvision's fasterrcnn") as fault:
            Detector(DETECTORS[1], str(tmp_path / "other.pth"))
        one_line(fault)

    @pytest.mark.slow
    def test_the_large_one_is_made_the_same_way(self):
        large = open_boxes(DETECTORS[0], weights=None)
        large.net.transform.min_size, large.net.rpn._post_nms_top_n["testing"] = (64,), 30
        assert len(large(Image.fromarray(render(generate_scene(0), 64)))) <= 100

    def test_unknown(self):
        with pytest.raises(ValueError, match="no detector yolo: there are fasterrcnn"):
            Detector("yolo")


SIZE, CHUNK = 48, 4


@pytest.fixture(scope="module")
def net() -> Backbone:
    return Backbone("squeezenet1_1", None, size=SIZE)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> Path:
    """A folder with 30 scenes as pictures, and their boxes; one is no picture, two have no boxes in the file."""
    folder = tmp_path_factory.mktemp("pictures")
    found = [generate_scene(seed) for seed in range(30)]
    for seed, scene in enumerate(found):
        Image.fromarray(render(scene, 64)).save(folder / f"{seed:02}.png")
    (folder / "07.png").write_text("Dear diary")
    counts = [0 if seed == 3 else len(scene.boxes) for seed, scene in enumerate(found[:28])]
    one_for_all(folder / "boxes.npz", [f"{seed:02}.png" for seed in range(28)], counts,
                np.concatenate([scene.boxes for seed, scene in enumerate(found[:28]) if seed != 3]))
    return folder


def images_in(folder: Path) -> dict[str, Path]:
    return {file.name: file for file in sorted(folder.glob("*.png"))}


@pytest.fixture(scope="module")
def whole(pictures, net, tmp_path_factory) -> FeatureStore:
    return extract_regions(images_in(pictures), open_boxes(pictures / "boxes.npz"), tmp_path_factory.mktemp("s") / "store", net,
                           chunk_size=CHUNK, batch_size=3, num_workers=2)


def content(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir() if not file.name.endswith(".part")}


class TestStore:
    def test_equals_what_a_photo_gets_now(self, whole, pictures, net):
        found = open_boxes(pictures / "boxes.npz")
        for name in ("00.png", "03.png", "27.png"):
            stored = regions_from_store(whole[name])
            now = region_fields([found[name]], net(net.preprocess([pictures / name])), max_boxes=found.max_boxes)
            assert stored["boxes"].equal(now["boxes"][0]) and stored["region_mask"].equal(now["region_mask"][0])
            torch.testing.assert_close(stored["regions"], now["regions"][0], rtol=2e-3, atol=1e-4)
        assert not regions_from_store(whole["03.png"])["region_mask"].any() and len(whole) == 27

    def test_mirrored_pictures_have_mirrored_boxes(self, pictures, net, tmp_path):
        preprocess, found = Preprocess(size=SIZE, mirror=True), open_boxes(pictures / "boxes.npz")
        store = extract_regions({"00.png": pictures / "00.png"}, found, tmp_path / "m", net, preprocess=preprocess)
        now = region_fields([found["00.png"].flipped()], net(preprocess([pictures / "00.png"])), max_boxes=found.max_boxes)
        assert store["00.png"]["boxes"].equal(now["boxes"][0])
        torch.testing.assert_close(store["00.png"]["regions"], now["regions"][0], rtol=2e-3, atol=1e-4)

    def test_what_is_missing_is_noted(self, whole):
        assert set(whole.skipped) == {"07.png", "28.png", "29.png"}
        assert "not a picture" in whole.skipped["07.png"] and "no regions of 28.png" in whole.skipped["28.png"]

    def test_deleted_chunks_come_back_bit_by_bit(self, whole, pictures, net, tmp_path):
        for name, data in content(whole.folder).items():
            (tmp_path / name).write_bytes(data)
        (tmp_path / "chunk-00002.npy").unlink()
        (tmp_path / "manifest.json").write_text(json.dumps(json.loads((tmp_path / "manifest.json").read_text()) | {"complete": False, "skipped": {}}))
        with pytest.raises(ValueError, match="--kind regions --boxes .*boxes.npz --most 6 --backbone squeezenet1_1 --weights none") as fault:
            FeatureStore.open(tmp_path)
        one_line(fault)
        extract_regions(images_in(pictures), open_boxes(pictures / "boxes.npz"), tmp_path, net, chunk_size=CHUNK, batch_size=3)
        assert {name: data for name, data in content(tmp_path).items() if name != "manifest.json"} == {
            name: data for name, data in content(whole.folder).items() if name != "manifest.json"}

    @pytest.mark.slow
    @pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
    def test_kill_9_at_random_moments(self, whole, pictures, tmp_path):
        (tmp_path / "program.py").write_text(PROGRAM)
        ended = subprocess.run([sys.executable, tmp_path / "program.py", pictures, tmp_path / "store"], capture_output=True, text=True,
                               env=os.environ | {"OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1"}, timeout=300)
        assert ended.returncode == 0, ended.stderr
        assert any(0 < int(count) < 8 for count in ended.stdout.split()), f"no kill fell into the middle: {ended.stdout}"
        assert content(tmp_path / "store") == content(whole.folder)

    def test_other_boxes_are_other_features(self, whole, pictures, net, tmp_path):
        other = one_for_all(tmp_path / "other.npz", ["00.png"], [6], [BOX] * 6)
        with pytest.raises(ValueError, match="boxes fingerprint is .*, not .*--out") as fault:
            extract_regions(images_in(pictures), open_boxes(other), whole.folder, net, chunk_size=CHUNK, batch_size=3)
        one_line(fault)
        config = region_spec(open_boxes(pictures / "boxes.npz"), 6, net, batch_size=3)
        assert FeatureStore.open(whole.folder, expect=config).names == whole.names

    def test_other_features_are_other_regions(self):
        """Also where a printed tensor would leave them out."""
        table = torch.randn(40, 64)
        changed = table.clone()
        changed[20, 30] += 1e-6
        boxes = torch.rand(40, 4).sort().values
        one, same, other = (region_spec({"a": Regions(boxes, features=x)}, 40) for x in (table, table.clone(), changed))
        assert one == same != other

    def test_a_file_elsewhere_is_the_same_file(self, whole, pictures, net, tmp_path):
        (tmp_path / "moved.npz").write_bytes((pictures / "boxes.npz").read_bytes())
        assert FeatureStore.open(whole.folder, expect=region_spec(open_boxes(tmp_path / "moved.npz"), 6, net, batch_size=3))

    def test_features_that_the_file_brings_need_no_pictures(self, tmp_path):
        (tmp_path / "f.tsv").write_bytes(b"".join(tsv_line(k, boxes_of(k).numpy(), features_of(k, k)) for k in (2, 3, 0)) + b"9\t64")
        with pytest.warns(UserWarning, match="line 4 is cut off"):
            found = open_boxes(tmp_path / "f.tsv")
        store = extract_regions({f"{k}.jpg": "nowhere" for k in (0, 2, 3, 9)}, found, tmp_path / "s", num_workers=1)
        assert store.shape["regions"] == (3, 7) and regions_from_store(store["2.jpg"])["regions"].equal(torch.tensor([[2.] * 7, [2.] * 7, [0.] * 7]))
        assert "line 4 is cut off" in store.skipped["9.jpg"] and len(store) == 3

    @pytest.mark.slow
    def test_from_a_detector_and_from_a_dictionary(self, pictures, net, detector, tmp_path):
        images = dict(list(images_in(pictures).items())[:2])
        store = extract_regions(images, detector, tmp_path / "d", net, num_workers=1)
        assert store.shape["regions"] == (20, 512) and regions_from_store(store["00.png"])["region_mask"].sum() == 10
        own = extract_regions(images, {"00.png": scene_regions(generate_scene(0))}, tmp_path / "o", net, num_workers=1)
        assert regions_from_store(own["00.png"])["region_mask"].all() and "no regions of 01.png" in own.skipped["01.png"]

    def test_mistakes_are_one_line(self, pictures, net, tmp_path):
        found = open_boxes(pictures / "boxes.npz")
        for says, how in (("bring no features", {}), ("use --resize stretch", dict(backbone=net, preprocess=Preprocess(size=SIZE, resize="crop")))):
            with pytest.raises(ValueError, match=says) as fault:
                extract_regions(images_in(pictures), found, tmp_path / "s", **how)
            one_line(fault)


# Imports once; then forks a job, kills it, counts the chunks, and again, until one finishes.
PROGRAM = f"""
import os, random, signal, sys, time
from pathlib import Path
from captionlab.vision.backbones import Backbone
from captionlab.vision.boxes import open_boxes
from captionlab.vision.extraction import extract_regions
folder, out = map(Path, sys.argv[1:])
images = {{file.name: file for file in sorted(folder.glob("*.png"))}}
boxes, net, chance, done = open_boxes(folder / "boxes.npz"), Backbone("squeezenet1_1", None, size={SIZE}), random.Random(), 0
for attempt in range(60):
    before, child = done, os.fork()
    if not child:
        replace = os.replace
        os.replace = lambda *names: time.sleep(0.02) or replace(*names)     # or a fast machine is done before it can be killed
        extract_regions(images, boxes, out, net, chunk_size={CHUNK}, batch_size=3, num_workers=2)
        os._exit(0)
    while done == before and os.waitpid(child, os.WNOHANG) == (0, 0):       # until it has made something new
        time.sleep(0.001)
        done = len(list(out.glob("chunk-*.npy")))
    time.sleep(chance.uniform(0, 0.05))
    try:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    except (ProcessLookupError, ChildProcessError):
        pass
    done = len(list(out.glob("chunk-*.npy")))
    print(done, flush=True)
    if '"complete":true' in (out / "manifest.json").read_text():
        break
else:
    sys.exit("never finished")
"""


class TestCommand:
    def call(self, *words):
        return CliRunner().invoke(application.app, ["features", "extract", *map(str, words)])

    def test_regions_from_a_file(self, pictures, whole, tmp_path):
        said = self.call(pictures, "--kind", "regions", "--boxes", pictures / "boxes.npz", "--weights", "none", "--size", SIZE, "--out", tmp_path / "s")
        assert said.exit_code == 0, said.output
        assert "27 pictures, up to 6 regions x 512 each" in said.stdout and said.stdout.count("skipped:") == 3
        torch.testing.assert_close(dict(FeatureStore.open(tmp_path / "s")["00.png"]), dict(whole["00.png"]), rtol=2e-3, atol=1e-3)

    @pytest.mark.slow
    def test_fewer_and_a_detector(self, pictures, tmp_path):
        said = self.call(pictures / "00.png", "--kind", "regions", "--boxes", DETECTORS[1], "--detector-weights", "none", "--most", 5, "--weights", "none",
                         "--size", SIZE, "--out", tmp_path / "s")
        assert said.exit_code == 0 and "1 pictures, up to 5 regions" in said.stdout, said.output

    @pytest.mark.slow
    def test_features_of_the_file_cut_off(self, pictures, tmp_path):
        lines = b"".join(tsv_line(k, boxes_of(2).numpy(), features_of(2, k)) for k in (0, 1, 2))
        (tmp_path / "f.tsv").write_bytes(lines[:-30])
        said = subprocess.run([sys.executable, "-c", "from captionlab.cli import main; main()", "features", "extract",
                               *(str(pictures / f"0{k}.png") for k in (0, 1, 2)), "--kind", "regions", "--boxes", tmp_path / "f.tsv",
                               "--backbone", "file", "--out", tmp_path / "s"], capture_output=True, text=True, env=os.environ | {"TQDM_DISABLE": "1"})
        assert said.returncode == 0 and "2 pictures, up to 2 regions x 7 each" in said.stdout, said.stderr
        assert "skipped: no regions of 02.png" in said.stdout and "Traceback" not in said.stderr
        told = said.stderr.strip().splitlines()
        assert len(told) == 1 and told[0].startswith("captionlab: ") and "line 3 is cut off" in told[0]

    @pytest.mark.parametrize("words, says", [
        (["--kind", "regions"], "--kind regions needs --boxes"), (["--kind", "regions", "--boxes", "gone.npz"], "no boxes gone.npz"),
        (["--kind", "regions", "--boxes", "boxes.npz", "--weights", "none", "--resize", "crop"], "--resize stretch"),
        (["--kind", "regions", "--boxes", "boxes.npz", "--weights", "none", "--grid", "7"], "--grid is for --kind grid or pyramid, not regions"),
        (["--kind", "attributes", "--backbone", "resnet18"], "--backbone is for --kind grid or pyramid or regions, not attributes"),
        (["--kind", "attributes", "--resize", "crop"], "--resize is for --kind"),
        (["--boxes", "boxes.npz"], "--boxes is for --kind regions")])
    def test_mistakes_are_one_line(self, pictures, tmp_path, monkeypatch, words, says):
        monkeypatch.chdir(pictures)
        said = self.call(".", *words, "--out", tmp_path / "s")
        lines = said.stderr.strip().splitlines()
        assert said.exit_code == 1 and len(lines) == 1 and says in lines[0], said.output


def test_extract_command_says_what_came_of_it(pictures, tmp_path, capsys):
    extract_features([pictures], tmp_path / "s", kind="regions", boxes=pictures / "boxes.npz", weights="none", size=SIZE)
    assert "27 pictures, up to 6 regions x 512 each" in capsys.readouterr().out


def test_short_names_never_lead_to_another_picture(tmp_path):
    boxes = boxes_of(2).tolist()
    shared = open_boxes(one_for_all(tmp_path / "shared.npz", ["cats/2.jpg", "dogs/2.jpg"], [1, 1], boxes))
    assert "cats/2.jpg" in shared and "2" not in shared and "birds/2.jpg" not in shared


def test_a_folder_of_its_own_is_another_picture(tmp_path):
    save_boxes(tmp_path / "b.npz", {"cats/rex.png": Regions(boxes_of(2)), "tom.png": Regions(boxes_of(1))})
    found = open_boxes(tmp_path / "b.npz")
    assert "cats/rex.png" in found and "rex.jpg" in found and "dogs/rex.png" not in found and "dogs/tom.png" in found
    with pytest.raises(ValueError, match="no regions of dogs/rex.png"):
        found["dogs/rex.png"]
    assert match_name(found, "dogs/rex.png", "/photos/dogs/rex.png") not in found


def test_two_pictures_never_share_the_boxes_of_one(pictures, tmp_path):
    save_boxes(tmp_path / "b.npz", {"00.png": Regions(boxes_of(2))})
    images = {f"{folder}/00.png": pictures / "00.png" for folder in ("cats", "dogs")}
    with pytest.raises(ValueError, match="would be those of cats/00.png and of dogs/00.png"):
        extract_regions(images, open_boxes(tmp_path / "b.npz"), tmp_path / "s", Backbone("squeezenet1_1", None, SIZE))


def test_nor_when_a_model_is_trained(pictures, tmp_path):
    save_boxes(tmp_path / "b.npz", {"00.png": Regions(boxes_of(2)), "01.png": Regions(boxes_of(2))})
    folders = {folder: tmp_path / folder for folder in ("cats", "dogs")}
    for folder in folders.values():
        folder.mkdir()
        shutil.copy(pictures / "00.png", folder)
    items = [Item(f"{name}/00.png", ("a cat",), folder / "00.png") for name, folder in folders.items()]
    with pytest.raises(ValueError, match="the boxes of .*00.png would be those of .*cats.* and of .*dogs.*: name pictures there"):
        train("entangled", variant="visual", data=CaptionData("pets", {"train": items}), boxes=tmp_path / "b.npz", out=tmp_path / "run")


def test_scores_belong_to_what_regions_are(tmp_path):
    one, two = ({"a.png": Regions(boxes_of(2), scores=torch.tensor(scores))} for scores in ([.9, .1], [.1, .9]))
    net = Backbone("squeezenet1_1", None, SIZE)
    assert region_spec(one, 1, net) != region_spec(two, 1, net)


def test_nobody_has_regions(pictures, tmp_path):
    store = extract_regions({"00.png": pictures / "00.png"}, {}, tmp_path / "s", Backbone("squeezenet1_1", None, SIZE))
    assert "no regions of 00.png" in store.skipped["00.png"]


def test_features_tell_two_files_apart(tmp_path):
    marks = set()
    for number, shift in enumerate((0, 1)):
        file = tmp_path / f"{number}.tsv"
        file.write_bytes(b"".join(tsv_line(name, [[0, 0, 64, 48]], features_of(1, name + shift)) for name in (1, 2)))
        marks.add(open_boxes(file).describe()["fingerprint"])
    assert len(marks) == 2


def test_numbers_for_names_and_too_few_features(tmp_path):
    np.savez(tmp_path / "n.npz", names=np.array([42, 7]), counts=np.array([1, 0]), boxes=np.array([BOX], np.float32))
    assert "COCO_val2014_000000000042.jpg" in open_boxes(tmp_path / "n.npz") and len(open_boxes(tmp_path / "n.npz")["42"]) == 1
    (tmp_path / "each").mkdir()
    for name, rows in (("1", 2), ("2", 1)):
        np.savez(tmp_path / "each" / f"{name}.npz", bbox=np.array([BOX, BOX], np.float32), num_bbox=2, x=np.ones((rows, 3), np.float32), image_w=1, image_h=1)
    with pytest.raises(ValueError, match="2.npz: 2 boxes, but features of 1"):
        open_boxes(tmp_path / "each")["2"]


def test_arrays_that_are_no_archive_and_counts_that_are_no_numbers(tmp_path):
    np.save(tmp_path / "plain.npy", np.zeros(3))
    (tmp_path / "plain.npy").rename(tmp_path / "plain.npz")
    np.savez(tmp_path / "text.npz", names=["a"], counts=["two"], boxes=np.zeros((2, 4)))
    for name, why in (("plain.npz", "not an .npz"), ("text.npz", "counts are not whole numbers")):
        with pytest.raises(ValueError, match=f"{name}.*{why}"):
            open_boxes(tmp_path / name)
