"""Diagrams: nothing overlaps, arrows touch their boxes, words leave nothing out."""

import itertools

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.path import Path

from captionlab import visualise
from captionlab.diagram_layout import LABEL_SIZE, text_size
from captionlab.diagrams import clocks, diagram, parse_arrows
from captionlab.positions import sinusoids
from captionlab.visualise import PAPER, use_style

CHAIN = "x | y\nnorm |\nlayer | z\nsum |"
ARROWS = [("x", "norm", "(B, T)"), ("norm", "layer"), ("layer", "sum"), ("x", "sum", "skip")]


@pytest.fixture(autouse=True)
def light_style():
    use_style()
    yield
    plt.close("all")


def texts(figure) -> dict[str, object]:
    """The texts of a figure, each with where it lies in pixels."""
    figure.canvas.draw()
    return {text.get_text(): text.get_window_extent() for text in figure.axes[0].texts}


def outlines(figure, names) -> list:
    """Where boxes lie, in pixels; frames are drawn first, then arrows, then boxes."""
    patches = figure.axes[0].patches[-len(names):]
    return [patch.get_window_extent() for patch in patches]


def corners(patch) -> np.ndarray:
    """The corners of an arrow and its head, in inches."""
    path = patch.get_path()
    return path.vertices[path.codes != Path.CLOSEPOLY]


def contains(outer, inner) -> bool:
    return bool((outer.min < inner.min).all() and (inner.max < outer.max).all())


class TestDrawing:
    def test_text_is_as_wide_as_it_was_measured(self):
        figure = diagram(CHAIN, ARROWS).draw()
        width, _ = text_size("layer", LABEL_SIZE)
        assert texts(figure)["layer"].width / figure.dpi == pytest.approx(width, rel=0.1)

    def test_labels_stay_inside_their_boxes_and_boxes_inside_the_picture(self):
        labels = {"norm": "a label\nof two lines", "z": "a rather long label"}
        figure = diagram(CHAIN, ARROWS, labels=labels, data=["x"], highlight=["sum"]).draw()
        places = texts(figure)
        names = ["x", "y", labels["norm"], "layer", labels["z"], "sum"]
        for name, box in zip(names, outlines(figure, names), strict=True):
            assert contains(box, places[name])
            assert contains(figure.bbox, box)

    @settings(deadline=None, max_examples=25)
    @given(
        cells=st.lists(st.booleans(), min_size=12, max_size=12),
        ends=st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11)), max_size=5),
    )
    def test_no_two_boxes_overlap_and_arrows_touch_theirs(self, cells, ends):
        cells = [True, *cells[1:]]
        rows = [
            " | ".join(f"n{3 * r + c}" if cells[3 * r + c] else "" for c in range(3))
            for r in range(4)
            if any(cells[3 * r : 3 * r + 3])
        ]
        drawn = {(f"n{a}", f"n{b}") for a, b in ends if a != b and cells[a] and cells[b]}
        one = diagram("\n".join(rows), [(a, b, "(B, N)") for a, b in sorted(drawn)])
        figure = one.draw()
        boxes = outlines(figure, one.boxes)
        assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))
        layout = dict(zip([box.name for box in one.boxes], boxes, strict=True))
        arrows = figure.axes[0].patches[: len(one.arrows)]
        for arrow, patch in zip(one.arrows, arrows, strict=True):
            points = figure.axes[0].transData.transform(corners(patch))
            for name in (arrow.source, arrow.target):
                box = layout[name]
                distance = np.abs(points - np.clip(points, box.min, box.max)).max(axis=1)
                assert distance.min() < 1.5, f"{arrow} does not reach {name}"
        plt.close(figure)

    def test_an_arrow_around_a_box_does_not_cross_it(self):
        figure = diagram(CHAIN, ARROWS).draw()
        names = ["x", "y", "norm", "layer", "z", "sum"]
        layer = dict(zip(names, outlines(figure, names), strict=True))["layer"]
        points = figure.axes[0].transData.transform(corners(figure.axes[0].patches[3]))
        assert points[:, 0].min() > (layer.x0 + layer.x1) / 2
        assert points[:, 0].max() > layer.x1

    def test_a_frame_holds_its_boxes_and_no_other(self):
        figure = diagram(CHAIN, ARROWS, groups={"group": ["norm", "layer"]}).draw()
        frame = figure.axes[0].patches[0].get_window_extent()
        names = ["x", "y", "norm", "layer", "z", "sum"]
        for name, box in zip(names, outlines(figure, names), strict=True):
            assert contains(frame, box) == (name in ("norm", "layer")), name
            assert contains(frame, box) or not frame.overlaps(box)
        assert frame.x0 < texts(figure)["group"].x0

    @pytest.mark.parametrize("dark", [False, True])
    def test_it_has_the_colours_of_the_style(self, dark):
        use_style(dark)
        figure = diagram(CHAIN, ARROWS).draw()
        page = mpl.colors.to_hex(figure.get_facecolor()).upper()
        assert page == PAPER["dark" if dark else "light"]

    def test_two_arrows_at_one_side_have_two_ends(self):
        figure = diagram("a |  | c\n | b |", [("a", "b"), ("c", "b")]).draw()
        paths = [corners(patch) for patch in figure.axes[0].patches[:2]]
        left, right = (path[path[:, 1].argmax(), 0] for path in paths)     # y grows downwards
        assert right - left > 0.1

    def test_it_is_no_wider_than_a_page(self):
        with pytest.raises(ValueError, match=r"inches wide, and a page 7\.5: give it fewer"):
            diagram(" | ".join(f"a long name, number {n}" for n in range(6)), []).draw()


def test_chains_are_tuples_in_short():
    chains = "x -> norm : (B, T)\n\n norm -> layer -> sum\n x -> sum : skip"
    assert diagram(CHAIN, chains) == diagram(CHAIN, ARROWS)
    assert parse_arrows("a -> b -> c : (B, T)") == [("a", "b", "(B, T)"), ("b", "c", "(B, T)")]


def test_what_follows_a_hash_is_not_shown():
    one = diagram("+#1 | +#2", "+#1 -> +#2")
    assert [text.get_text() for text in one.draw().axes[0].texts] == ["+", "+"]
    assert "From + to +." in one.alt_text


class TestWords:
    def test_they_name_every_box_at_an_arrow_every_shape_and_every_group(self):
        one = diagram(
            CHAIN, ARROWS, title="A block", labels={"sum": "+"}, groups={"twice": ["norm", "layer"]}
        )
        assert one.alt_text == (
            "Diagram: A block. From x to norm, carrying (B, T); and to +, carrying skip. "
            "From norm to layer. From layer to +. twice holds norm, layer."
        )
        assert repr(one) == one.alt_text

    def test_a_notebook_gets_them_with_a_picture_twice_as_fine_as_the_page(self):
        one = diagram(CHAIN, ARROWS)
        content, metadata = one._repr_mimebundle_()
        width = int.from_bytes(content["image/png"][16:20])
        assert width == pytest.approx(2 * metadata["image/png"]["width"], abs=2)
        assert content["text/plain"] == metadata["image/png"]["alt"] == one.alt_text
        assert plt.get_fignums() == []


class TestMistakes:
    @pytest.mark.parametrize(
        "options",
        [
            {"labels": {"q": "x"}},
            {"groups": {"g": ["x", "q"]}},
            {"data": ["q"]},
            {"highlight": ["q"]},
        ],
    )
    def test_a_name_that_is_no_box(self, options):
        with pytest.raises(ValueError, match="no box 'q' in the grid; its boxes are x, y, norm"):
            diagram(CHAIN, ARROWS, **options)

    @pytest.mark.parametrize(
        ("arrow", "message"),
        [
            (("x", "q"), "no box 'q'"),
            (("q", "x"), "no box 'q'"),
            (("x",), "is not an arrow"),
            (("x", "y", "", "", ""), "is not an arrow"),
            ("x to y", "'x to y' is not a chain of arrows"),
            ("x -> ", "is not a chain of arrows"),
            ("x -> q", "no box 'q'"),
            (("x", "x"), "to itself"),
            (("x", "y", "", "around"), "no route 'around': choose vertical"),
        ],
    )
    def test_an_arrow_that_cannot_be_drawn(self, arrow, message):
        with pytest.raises(ValueError, match=message):
            diagram(CHAIN, arrow if isinstance(arrow, str) else [arrow])

    def test_a_text_in_a_list_is_no_tuple(self):
        with pytest.raises(ValueError, match="'xy' is not an arrow"):
            diagram(CHAIN, ["xy"])


class TestClocks:
    def test_a_hand_ends_at_its_sine_and_cosine(self):
        encodings = sinusoids(5, 6)
        figure = clocks(encodings, positions=[0, 3], pairs=[0, 2])
        tips = [ax.lines[0].get_xydata()[1] for ax in figure.axes]
        expected = encodings[[0, 3]].view(2, 3, 2)[:, [0, 2]].reshape(4, 2)
        np.testing.assert_allclose(tips, expected, atol=1e-6)

    def test_of_everything_by_default(self):
        assert len(clocks(sinusoids(3, 8)).axes) == 3 * 4

    @pytest.mark.parametrize("shape", [(4, 3), (4,), (1, 4, 4)])
    def test_pairs_need_an_even_width(self, shape):
        with pytest.raises(ValueError, match=r"shape \(T, D\) with D even"):
            clocks(torch.zeros(shape))


def test_visualise_has_them_too():
    assert visualise.diagram is diagram
    assert visualise.clocks is clocks
