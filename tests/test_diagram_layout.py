"""The layout of diagrams: what a grid means, and how arrows go."""

import pytest

from captionlab.diagram_layout import (
    Arrow,
    Box,
    Graph,
    Layout,
    choose_route,
    parse_grid,
    text_size,
)

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
