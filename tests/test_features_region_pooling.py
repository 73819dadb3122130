"""Features of boxes are torchvision's, the spatial graph is the printed equation."""

from fractions import Fraction

import pytest
import torch
from feature_helpers import boxes_of
from hypothesis import assume, example, given
from hypothesis import strategies as st
from torchvision.ops import box_iou, roi_align

from captionlab.features.region_pooling import pool_regions, spatial_graph
from captionlab.features.regions import Regions, scene_regions
from captionlab.scenes.generator import generate_scene

# Boxes on a lattice of whole numbers: areas, and nine tenths of them, have no rounding.
LATTICE = st.integers(0, 40)


BOXES = st.lists(
    st.tuples(LATTICE, LATTICE, LATTICE, LATTICE).map(
        lambda b: (min(b[0], b[2]), min(b[1], b[3]), max(b[0], b[2]), max(b[1], b[3]))
    ),
    min_size=1,
    max_size=8,
)


def exact_graph(boxes, threshold=Fraction(9, 10)) -> torch.Tensor:
    """Equation (5) as it is printed, with fractions."""

    def area(box):
        return (box[2] - box[0]) * (box[3] - box[1])

    graph = torch.zeros(3, len(boxes), len(boxes), dtype=torch.bool)
    for row, a in enumerate(boxes):
        for column, b in enumerate(boxes):
            width = max(min(a[2], b[2]) - max(a[0], b[0]), 0)
            height = max(min(a[3], b[3]) - max(a[1], b[1]), 0)
            in_b, in_a = (
                Fraction(int(width * height), int(area(x))) if area(x) else Fraction(0)
                for x in (a, b)
            )
            parent = in_b >= threshold and in_b > in_a
            child = in_a >= threshold and in_a > in_b
            graph[:, row, column] = torch.tensor([parent, not parent and not child, child])
    return graph


def graph_of(boxes) -> torch.Tensor:
    return spatial_graph(torch.tensor([boxes], dtype=torch.float))[0]


class TestGraph:  # eq-it-5
    @pytest.mark.slow
    @given(BOXES)
    @example(
        [
            (0, 0, 10, 10),
            (0, 0, 9, 10),
            (0, 1, 10, 10),
            (1, 0, 11, 10),
            (0, 0, 10, 1),
            (1, 0, 30, 1),
        ]
    )  # nine tenths exactly
    def test_equals_the_printed_equation(self, boxes):
        assert graph_of(boxes).equal(exact_graph(boxes))

    @given(BOXES)
    def test_sums_to_one_and_child_is_parent_transposed(self, boxes):
        graph = graph_of(boxes)
        assert (graph.sum(0) == 1).all()
        assert graph[0].equal(graph[2].T)
        assert graph[1].equal(graph[1].T)
        assert graph[1].diagonal().all()

    @given(BOXES, st.integers(1, 9), st.integers(-50, 50), st.integers(-50, 50))
    def test_scale_and_shift_change_nothing(self, boxes, scale, right, down):
        moved = [
            (a * scale + right, b * scale + down, c * scale + right, d * scale + down)
            for a, b, c, d in boxes
        ]
        assert graph_of(moved).equal(graph_of(boxes))

    @given(BOXES, st.randoms())
    def test_order_does_not_matter(self, boxes, chance):
        rows = list(range(len(boxes)))
        chance.shuffle(rows)
        assert graph_of([boxes[row] for row in rows]).equal(graph_of(boxes)[:, rows][:, :, rows])

    @given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 30), st.integers(0, 30))
    def test_boxes_apart_are_neighbours(self, width, height, right, down):
        one, other = (
            (0, 0, width, height),
            (width + right, height + down, 3 * width + right, 3 * height + down),
        )
        assert graph_of([one, other])[1].all()

    @given(BOXES, st.integers(0, 7), st.sampled_from(["copy", "line", "point"]))
    def test_degenerate_and_identical_boxes_are_neighbours(self, boxes, row, how):
        assume(row < len(boxes))
        left, top, _right, bottom = boxes[row]
        boxes = [
            *boxes,
            {
                "copy": boxes[row],
                "line": (left, top, left, bottom),
                "point": (left, top, left, top),
            }[how],
        ]
        graph = graph_of(boxes)
        assert graph[1, row, -1] if how == "copy" else graph[1, -1].all() and graph[1, :, -1].all()

    def test_threshold(self):
        boxes = torch.tensor(
            [[[0, 0, 1, 1], [0.5, 0.5, 1.1, 1.1]]]
        )  # 25/36 of the second is in the first
        assert spatial_graph(boxes)[0, 0].sum() == 0
        assert spatial_graph(boxes, threshold=0.69)[0, 0, 1, 0]

    def test_padding_is_nobodys_relative(self):
        boxes, mask = (
            boxes_of(60).reshape(5, 12, 4),
            torch.arange(12) < torch.tensor([0, 1, 5, 11, 12])[:, None],
        )
        graph = spatial_graph(boxes * mask[..., None], mask)
        assert graph.sum(1).bool().equal(mask[:, :, None] & mask[:, None])
        for picture, count in zip(range(5), mask.sum(1), strict=False):
            assert graph[picture, :, :count, :count].equal(
                spatial_graph(boxes[picture : picture + 1, :count])[0]
            )

    @pytest.mark.parametrize(("B", "N"), [(0, 3), (3, 0), (1, 1), (40, 100), (2, 500)])
    def test_sizes(self, B, N):
        boxes = boxes_of(B * N).reshape(B, N, 4)
        graph = spatial_graph(boxes)
        assert graph.shape == (B, 3, N, N)
        assert graph.dtype == torch.bool
        assert graph.equal(
            torch.cat([spatial_graph(picture[None]) for picture in boxes] or [graph])
        )

    def test_against_torchvisions_overlaps(self):
        boxes = boxes_of(100)
        iou, area = (
            box_iou(boxes.double(), boxes.double()),
            (boxes[:, 2:] - boxes[:, :2]).double().prod(1),
        )
        inside = iou / (1 + iou) * (area[:, None] + area) / area[:, None]
        sure = (inside - 0.9).abs() > 1e-6
        assert spatial_graph(boxes[None])[0, 0][sure].equal(
            ((inside >= 0.9) & (area[:, None] < area))[sure]
        )

    def test_scenes_inside_is_its_edge(self):
        for seed in range(60):
            scene = generate_scene(seed)
            edges = set(
                map(tuple, spatial_graph(scene_regions(scene).boxes[None])[0, 0].nonzero().tolist())
            )
            assert edges == {(i, j) for i, word, j in scene.relations if word == "inside"}


class TestPool:
    @pytest.mark.parametrize(
        ("h", "w", "D", "N"), [(14, 14, 8, 13), (3, 7, 2, 1), (1, 1, 3, 4), (5, 5, 4, 100)]
    )
    def test_equals_the_mean_of_torchvisions_bins(self, h, w, D, N):
        """Ours is one bin of 8 x 8 points; the mean of 4 x 4 bins of 2 x 2 points is the same."""
        cells, boxes = torch.randn(2, h, w, D), boxes_of(2 * N).reshape(2, N, 4)
        bins = roi_align(
            cells.permute(0, 3, 1, 2),
            list(boxes * torch.tensor([w, h, w, h])),
            4,
            sampling_ratio=2,
            aligned=True,
        )
        torch.testing.assert_close(
            pool_regions(cells, boxes, samples=8),
            bins.mean((2, 3)).reshape(2, N, D),
            rtol=1e-4,
            atol=1e-5,
        )

    def test_the_whole_of_an_even_map_is_its_number(self):
        cells = torch.full((1, 6, 4, 3), 5.0)
        torch.testing.assert_close(
            pool_regions(cells, boxes_of(20)[None]), torch.full((1, 20, 3), 5.0)
        )

    def test_a_slope_is_read_at_the_middle_of_the_box(self):
        cells = (torch.arange(10.0) + 0.5)[None, None, :, None].expand(
            1, 10, 10, 1
        ) / 10  # as far right as it says
        boxes = torch.tensor([[[0.3, 0.3, 0.5, 0.4], [0.2, 0.1, 0.8, 0.9], [0.4, 0.4, 0.4, 0.4]]])
        torch.testing.assert_close(
            pool_regions(cells, boxes)[0, :, 0], torch.tensor([0.4, 0.5, 0.4])
        )

    def test_mirrored_boxes_read_the_mirrored_map(self):
        cells, found = torch.randn(1, 7, 9, 4), Regions(boxes_of(5))
        assert found.flipped().flipped().boxes.allclose(found.boxes, atol=1e-6)
        torch.testing.assert_close(
            pool_regions(cells.flip(2), found.flipped().boxes[None]),
            pool_regions(cells, found.boxes[None]),
            rtol=1e-4,
            atol=1e-5,
        )

    def test_boxes_in_a_window_read_the_windows_map(self):
        """Where all boxes are inside, a map seen in part says of them what the whole map says."""
        cells = (torch.arange(20.0)[:, None, None] + 100 * torch.arange(30.0)[None, :, None])[
            None
        ]  # a slope both ways
        inner = boxes_of(8) * 0.2 + 0.4
        found, part = Regions(inner), cells[:, 5:15, 9:24]
        seen = found.cropped((0.3, 0.25, 0.8, 0.75))
        torch.testing.assert_close(
            pool_regions(part, seen.boxes[None]),
            pool_regions(cells, found.boxes[None]),
            rtol=1e-3,
            atol=0.1,
        )

    def test_half_precision_boxes_and_other_dtypes(self):
        cells, boxes = torch.randn(1, 7, 7, 4), boxes_of(3)[None]
        torch.testing.assert_close(
            pool_regions(cells.double(), boxes).float(), pool_regions(cells, boxes)
        )
