"""Diagrams: nothing overlaps, arrows touch their boxes, words leave nothing out."""

import base64
import hashlib
import io
import itertools
import json
import re
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "nbs" / "images"
sys.path.insert(0, str(IMAGES))

from draw import (  # noqa: E402
    Arrow,
    Box,
    Graph,
    Layout,
    alt_text,
    choose_route,
    draw,
    parse_arrows,
    parse_grid,
    read_diagram,
    text_size,
)

CHAIN = "x | y\nnorm |\nlayer | z\nsum |"
ARROWS = "x -> norm : (B, T)\nnorm -> layer -> sum\nx -> sum : skip"


def source(grid: str, arrows: str = "", **more) -> str:
    values = {"grid": grid, "arrows": arrows, **more}
    return "\n".join(f"{key} = {toml(value)}" for key, value in values.items())


def toml(value) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {toml(v)}" for k, v in value.items()) + "}"
    return json.dumps(value)


def overlap(one, other) -> bool:
    apart = one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]
    return not apart


class TestSources:
    @pytest.mark.parametrize("file", sorted(IMAGES.glob("*.toml")), ids=lambda file: file.stem)
    def test_its_picture_and_its_words_are_of_today(self, file):
        graph = read_diagram(file.read_text(encoding="utf-8"))
        assert file.with_suffix(".svg").read_text(encoding="utf-8") == draw(graph)
        image = f"![{alt_text(graph)}](attachment:{file.stem}.png)"
        lessons = (ROOT / "nbs").glob("[0-9]*.ipynb")
        cells = [cell for one in lessons for cell in json.loads(one.read_text("utf-8"))["cells"]]
        (cell,) = [cell for cell in cells if image in "".join(cell["source"])]
        png = base64.b64decode(cell["attachments"][f"{file.stem}.png"]["image/png"])
        drawn_from = Image.open(io.BytesIO(png)).text["svg"]
        assert drawn_from == hashlib.sha256(draw(graph).encode()).hexdigest()

    def test_a_lesson_needs_no_file_beside_it(self):
        for lesson in (ROOT / "nbs").glob("[0-9]*.ipynb"):
            for cell in json.loads(lesson.read_text("utf-8"))["cells"]:
                if cell["cell_type"] == "markdown":
                    assert not re.search(r"!\[[^]]*\]\((?!attachment:|https:)", "".join(cell["source"]))


class TestGrid:
    def test_equal_names_in_neighbouring_cells_are_one_box(self):
        assert parse_grid("a | a | b\nc |   | b") == [
            Box("a", 0, 0, 0, 1),
            Box("b", 0, 1, 2, 2),
            Box("c", 1, 1, 0, 0),
        ]

    def test_empty_lines_are_no_rows(self):
        assert parse_grid("\n  a\n\n  b\n") == [Box("a", 0, 0, 0, 0), Box("b", 1, 1, 0, 0)]

    @pytest.mark.parametrize("grid", ["a | b | a", "a |\n | a", "a | a\na |"])
    def test_a_name_is_one_rectangle(self, grid):
        with pytest.raises(ValueError, match="'a' are not one rectangle"):
            parse_grid(grid)

    def test_it_has_a_box(self):
        with pytest.raises(ValueError, match="no box"):
            parse_grid(" |\n")


@pytest.mark.parametrize(
    ("grid", "route"),
    [
        ("a\nb", "vertical"),
        ("a\n\nb", "vertical"),
        ("b\na", "vertical"),
        ("a | a\nb | ", "vertical"),
        ("a | b", "horizontal"),
        ("a | | b", "horizontal"),
        ("a | c | b", "elbow"),
        ("a\nc\nb", "right"),
        ("a | \n | b", "elbow"),
        ("a | \nc | \n | b", "side"),
    ],
)
def test_a_route_follows_from_the_places(grid, route):
    boxes = parse_grid(grid)
    place = {box.name: box for box in boxes}
    assert choose_route(boxes, place["a"], place["b"]) == route


def test_text_of_two_lines_is_as_wide_as_the_longer_and_twice_as_high():
    width, height = text_size("one", 9)
    assert text_size("one\ni", 9) == (width, pytest.approx(2 * height))
    assert text_size("one", 18) == (pytest.approx(2 * width), pytest.approx(2 * height))


class TestLayout:
    def test_a_label_fits_between_two_boxes(self):
        label = "a label that is rather long"
        arrow = Arrow("a", "b", label, "horizontal")
        layout = Layout(Graph(parse_grid("a | b"), [arrow]))
        (x0, y0), (x1, y1) = layout.path(arrow)
        assert x1 - x0 > text_size(label, 8)[0]
        assert y0 == y1

    def test_arrows_around_the_same_boxes_run_beside_each_other(self):
        arrows = [Arrow("a", "c", "(B, N)", "right"), Arrow("b", "d", "", "right")]
        layout = Layout(Graph(parse_grid("a\nb\nc\nd"), arrows))
        first, second = (layout.path(arrow)[1][0] for arrow in arrows)
        assert second - first > text_size("(B, N)", 8)[0]

    def test_a_frame_has_its_title_where_no_arrow_crosses_it(self):
        boxes = parse_grid("x | a\ny | b")
        crossing = Graph(boxes, [Arrow("x", "a", "", "horizontal")], groups={"group": ["a", "b"]})
        assert Layout(crossing).frames["group"].title_side == "right"
        free = Graph(boxes, [], groups={"group": ["a", "b"], "row": ["x", "a"]})
        assert Layout(free).frames["group"].title_side == "left"
        assert Layout(free).frames["row"].title_side == "top"

    def test_a_frame_in_a_frame_keeps_its_distance(self):
        groups = {"outer": ["a", "b"], "inner": ["a"]}
        frames = Layout(Graph(parse_grid("a\nb"), [], groups=groups)).frames
        assert all(frames["outer"].pads[s] > frames["inner"].pads[s] for s in ("left", "top"))


class TestDrawing:
    @settings(deadline=None, max_examples=25)
    @given(
        cells=st.lists(st.booleans(), min_size=12, max_size=12),
        ends=st.sets(st.tuples(st.integers(0, 11), st.integers(0, 11)), max_size=5),
    )
    def test_no_two_boxes_overlap_and_arrows_touch_theirs(self, cells, ends):
        cells = [True, *cells[1:]]
        rows = [
            " | ".join(f"n{3 * r + c}" if cells[3 * r + c] else "" for c in range(3))
            for r in range(4)
            if any(cells[3 * r : 3 * r + 3])
        ]
        drawn = [(a, b) for a, b in sorted(ends) if a != b and cells[a] and cells[b]]
        arrows = "\n".join(f"n{a} -> n{b} : (B, N)" for a, b in drawn)
        graph = read_diagram(source("\n".join(rows), arrows))
        layout = Layout(graph)
        corners = {box.name: layout.corners(box) for box in graph.boxes}
        assert not any(overlap(a, b) for a, b in itertools.combinations(corners.values(), 2))
        for arrow in graph.arrows:
            path = layout.path(arrow)
            for name, (x, y) in ((arrow.source, path[0]), (arrow.target, path[-1])):
                left, top, right, bottom = corners[name]
                assert left - 1e-9 <= x <= right + 1e-9
                assert top - 1e-9 <= y <= bottom + 1e-9

    def test_an_arrow_around_a_box_does_not_cross_it(self):
        graph = read_diagram(source(CHAIN, ARROWS))
        layout = Layout(graph)
        layer = layout.corners(layout.boxes["layer"])
        assert max(x for x, _ in layout.path(graph.arrows[-1])) > layer[2]

    def test_two_arrows_at_one_side_have_two_ends(self):
        graph = read_diagram(source("a |  | c\n | b |", "a -> b\nc -> b"))
        left, right = (Layout(graph).path(arrow)[-1][0] for arrow in graph.arrows)
        assert right - left > 0.1

    def test_it_is_no_wider_than_a_page(self):
        grid = " | ".join(f"a long name, number {n}" for n in range(6))
        with pytest.raises(ValueError, match=r"inches wide, and a page 7\.5: give it fewer"):
            draw(read_diagram(source(grid)))

    def test_it_is_svg_with_escaped_text_and_marks(self):
        text = source("a & b | <c>#1", data=["a & b"], highlight=["<c>#1"])
        picture = draw(read_diagram(text))
        assert "a &amp; b</text>" in picture
        assert "&lt;c&gt;</text>" in picture
        assert '<rect class="data"' in picture
        assert '<rect class="new"' in picture


def test_words_name_every_box_at_an_arrow_every_shape_and_every_group():
    more = {"title": "A block", "labels": {"sum": "+"}, "groups": {"twice": ["norm", "layer"]}}
    assert alt_text(read_diagram(source(CHAIN, ARROWS, **more))) == (
        "Diagram: A block. From x to norm, carrying (B, T); and to +, carrying skip. "
        "From norm to layer. From layer to +. twice holds norm, layer."
    )


class TestMistakes:
    @pytest.mark.parametrize(
        "more",
        [{"labels": {"q": "x"}}, {"groups": {"g": ["q"]}}, {"data": ["q"]}, {"highlight": ["q"]}],
    )
    def test_a_name_that_is_no_box(self, more):
        with pytest.raises(ValueError, match="no box 'q' in the grid; its boxes are x, y, norm"):
            read_diagram(source(CHAIN, ARROWS, **more))

    @pytest.mark.parametrize(
        ("arrow", "message"),
        [
            ("x -> q", "no box 'q'"),
            ("x to y", "'x to y' is not a chain of arrows"),
            ("x -> ", "is not a chain of arrows"),
            ("x -> x", "to itself"),
            ("x -> y :  : around", "no route 'around': choose vertical"),
        ],
    )
    def test_an_arrow_that_cannot_be_drawn(self, arrow, message):
        with pytest.raises(ValueError, match=message):
            read_diagram(source(CHAIN, arrow))


def test_a_chain_is_an_arrow_per_pair():
    assert parse_arrows("a -> b -> c : (B, T) : right") == [
        Arrow("a", "b", "(B, T)", "right"),
        Arrow("b", "c", "(B, T)", "right"),
    ]
