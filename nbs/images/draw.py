"""Draw the lessons' diagrams: boxes on a grid and arrows between them, as SVG.

    python nbs/images/draw.py         each NAME.toml here becomes NAME.svg
    python nbs/images/draw.py --alt   prints the alternative texts, which the lessons hold

A source has these keys:

    title       in one line, for the alternative text
    grid        a row of boxes per line; `|` separates the cells of a row. Equal names in
                neighbouring cells are one box, an empty cell stays empty. What follows "#" in a
                name is not shown, so that "+#1" and "+#2" are two boxes with a plus
    arrows      a chain per line, such as "x -> norm -> sum : (B, T, D)": the label after " : ",
                usually a shape, stands at each arrow. A second " : " is followed by the route,
                one of ROUTES, where the chosen one is not good
    data        names of the boxes that are tensors, which get round ends
    highlight   names of the boxes that are filled with a colour
    labels      by name the text of a box where it is not the name itself
    groups      by title the names of the boxes that a dashed frame holds together

The colours follow the page: a picture has a light and a dark form.
"""

import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise
from pathlib import Path

from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextToPath

PAGE_WIDTH = 7.5  # of the widest diagram that fits a page, in inches


@dataclass(frozen=True)
class Box:
    """A box of a diagram, in cells of its grid, counted from 0.

    Args:
        name: by which arrows and groups refer to it.
        top: its first row.
        bottom: its last row.
        left: its first column.
        right: its last column.
    """

    name: str
    top: int
    bottom: int
    left: int
    right: int


def parse_grid(text: str) -> list[Box]:
    """Read the boxes of a diagram from text.

    Args:
        text: a row per line; `|` separates the cells of a row. Equal names in neighbouring
            cells are one box. Empty lines are skipped, and short rows end with empty cells.

    Returns:
        The boxes in reading order.

    Raises:
        ValueError: there is no box, or the cells of a name are not a filled rectangle.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    cells: dict[str, list[tuple[int, int]]] = {}
    for row, line in enumerate(lines):
        for column, name in enumerate(line.split("|")):
            if name.strip():
                cells.setdefault(name.strip(), []).append((row, column))
    if not cells:
        raise ValueError("the grid has no box: write a name into at least one cell")
    return [_bounding_box(name, places) for name, places in cells.items()]


def _bounding_box(name: str, cells: list[tuple[int, int]]) -> Box:
    rows = [row for row, _ in cells]
    columns = [column for _, column in cells]
    box = Box(name, min(rows), max(rows), min(columns), max(columns))
    area = (box.bottom - box.top + 1) * (box.right - box.left + 1)
    if area != len(cells):
        raise ValueError(f"the cells of {name!r} are not one rectangle: "
                         "give boxes at different places different names")
    return box

ROUTES = ("vertical", "horizontal", "elbow", "side", "left", "right")


@dataclass(frozen=True)
class Arrow:
    """An arrow of a diagram.

    Args:
        source: the name of the box where it begins.
        target: the name of the box where it ends.
        label: what it carries, usually a shape such as "(B, T, D)".
        route: one of `ROUTES`; chosen by the places of the boxes if it is empty.
    """

    source: str
    target: str
    label: str = ""
    route: str = ""


def _overlap(first: tuple[int, int], second: tuple[int, int]) -> bool:
    """Whether two ranges of rows or columns, both ends included, have one in common."""
    return first[0] <= second[1] and second[0] <= first[1]


def _is_free(boxes: list[Box], source: Box, target: Box) -> bool:
    """Whether no other box lies between two boxes that share a row or a column."""
    if _overlap((source.left, source.right), (target.left, target.right)):
        columns = (max(source.left, target.left), min(source.right, target.right))
        rows = (min(source.bottom, target.bottom) + 1, max(source.top, target.top) - 1)
    else:
        columns = (min(source.right, target.right) + 1, max(source.left, target.left) - 1)
        rows = (max(source.top, target.top), min(source.bottom, target.bottom))
    return not any(
        _overlap((box.left, box.right), columns) and _overlap((box.top, box.bottom), rows)
        for box in boxes
        if box not in (source, target) and rows[0] <= rows[1] and columns[0] <= columns[1]
    )


def choose_route(boxes: list[Box], source: Box, target: Box) -> str:
    """Choose how an arrow goes from one box to another.

    Args:
        boxes: all boxes of the diagram.
        source: the box where the arrow begins.
        target: another box, where it ends.

    Returns:
        One of `ROUTES`.
    """
    if _overlap((source.left, source.right), (target.left, target.right)):
        return "vertical" if _is_free(boxes, source, target) else "right"
    if _overlap((source.top, source.bottom), (target.top, target.bottom)):
        return "horizontal" if _is_free(boxes, source, target) else "elbow"
    distance = max(source.top - target.bottom, target.top - source.bottom)
    return "elbow" if distance == 1 else "side"

LABEL_SIZE = 9.5       # of the text in boxes, in points; STYLE has both in pixels
SMALL_SIZE = 8.0       # of the text beside arrows and groups
_LANE = 0.2            # from a box, or the last arrow, to the next arrow that goes around
_PAD = 0.14            # from boxes to the edge of their group


def text_size(text: str, size: float) -> tuple[float, float]:
    """Measure text of one or more lines.

    Args:
        text: lines are separated by an end of line.
        size: of the font, in points.

    Returns:
        Width of the widest line and height of all lines, in inches.
    """
    font = FontProperties(size=size)
    lines = text.split("\n")
    measure = TextToPath().get_text_width_height_descent
    width = max(measure(line, font, False)[0] for line in lines)
    return width / 72, 1.3 * size * len(lines) / 72

@dataclass(frozen=True)
class Graph:
    """Boxes on a grid, and arrows between them.

    Args:
        boxes: in reading order.
        arrows: each with its route.
        labels: text of a box, by its name, where it is not the name itself.
        groups: by title the names of the boxes that a frame holds together.
        data: names of the boxes that are tensors.
        highlight: names of the boxes that are filled with a colour.
        title: in one line.

    Raises:
        ValueError: one of these names a box that the grid does not have.
    """

    boxes: list[Box]
    arrows: list[Arrow]
    labels: Mapping[str, str] = field(default_factory=dict)
    groups: Mapping[str, Sequence[str]] = field(default_factory=dict)
    data: Sequence[str] = ()
    highlight: Sequence[str] = ()
    title: str = "boxes and arrows"

    def __post_init__(self) -> None:
        grouped = [name for names in self.groups.values() for name in names]
        ends = [name for arrow in self.arrows for name in (arrow.source, arrow.target)]
        known = [box.name for box in self.boxes]
        for name in [*ends, *grouped, *self.labels, *self.data, *self.highlight]:
            if name not in known:
                raise ValueError(f"there is no box {name!r} in the grid; its boxes are "
                                 f"{', '.join(known)}")

    def label(self, name: str) -> str:
        """Return the text that stands in a box: its name up to "#", or its entry in `labels`.

        Args:
            name: of the box.
        """
        return self.labels.get(name, name.split("#")[0].strip())

@dataclass
class _Gap:
    """The space between two rows or two columns, in inches.

    Args:
        after: edges of groups and arrows around the row or column that comes before the gap.
        free: what arrows from one to the other need.
        before: edges of groups and arrows around the row or column that follows.
    """

    after: float = 0.0
    free: float = 0.0
    before: float = 0.0

    @property
    def size(self) -> float:
        return self.after + self.free + self.before

    def widen(self, size: float) -> None:
        """Make the free space at least so large."""
        self.free = max(self.free, size)


class _Axis:
    """Positions along the rows or along the columns, in inches.

    Args:
        sizes: height or width of each.
        gaps: before each of them, and one after the last.
    """

    def __init__(self, sizes: list[float], gaps: list[_Gap]):
        self.gaps = gaps
        self.starts: list[float] = []
        self.ends: list[float] = []
        position = 0.0
        for size, gap in zip(sizes, gaps[:-1], strict=True):
            position += gap.size
            self.starts.append(position)
            position += size
            self.ends.append(position)
        self.length = position + gaps[-1].size

    def middle_of_gap(self, number: int) -> float:
        """Return the middle of the free space before a row or column."""
        gap = self.gaps[number]
        start = self.ends[number - 1] if number else 0.0
        return start + gap.after + gap.free / 2

def _sides(arrow: Arrow, source: Box, target: Box) -> tuple[str, str]:
    """Return the sides of its boxes at which an arrow begins and ends."""
    if arrow.route in ("left", "right"):
        return arrow.route, arrow.route
    if arrow.route in ("horizontal", "side"):
        return ("right", "left") if source.right < target.left else ("left", "right")
    if _overlap((source.top, source.bottom), (target.top, target.bottom)):
        return "bottom", "bottom"
    return ("bottom", "top") if source.bottom < target.top else ("top", "bottom")


def _label_width(arrow: Arrow) -> float:
    return text_size(arrow.label, SMALL_SIZE)[0]


def _column_widths(graph: Graph) -> list[float]:
    """Return the width of each column, in inches: that of its widest label."""
    widths = [0.6] * (max(box.right for box in graph.boxes) + 1)
    for box in sorted(graph.boxes, key=lambda box: box.right - box.left):
        covered = range(box.left, box.right + 1)
        needed = text_size(graph.label(box.name), LABEL_SIZE)[0] + 0.3
        missing = needed - sum(widths[column] for column in covered)
        for column in covered:
            widths[column] += max(0.0, missing) / len(covered)
    return widths


def _row_heights(graph: Graph) -> list[float]:
    """Return the height of each row, in inches: that of its highest label."""
    heights = [0.3] * (max(box.bottom for box in graph.boxes) + 1)
    for box in graph.boxes:
        needed = text_size(graph.label(box.name), LABEL_SIZE)[1] + 0.16
        missing = needed - sum(heights[box.top:box.bottom + 1])
        heights[box.top] += max(0.0, missing)
    return heights

def _lanes(graph: Graph) -> dict[Arrow, float]:
    """Return for each arrow around boxes how far from their column it runs, in inches."""
    boxes = {box.name: box for box in graph.boxes}
    offsets: dict[Arrow, float] = {}
    rows: dict[Arrow, tuple[int, int]] = {}
    for arrow in graph.arrows:
        if arrow.route not in ("left", "right"):
            continue
        source = boxes[arrow.source]
        target = boxes[arrow.target]
        rows[arrow] = (min(source.top, target.top), max(source.bottom, target.bottom))
        occupied = [
            offsets[other] + _label_width(other)
            for other in offsets
            if other.route == arrow.route and _overlap(rows[other], rows[arrow])
        ]
        offsets[arrow] = _LANE + max(occupied, default=0.0)
    return offsets


@dataclass(frozen=True)
class Frame:
    """The frame of a group.

    Args:
        cells: that it holds.
        title_side: where its title stands: "left", "right" or "top".
        pads: its distance from the cells at each side, in inches.
    """

    cells: Box
    title_side: str
    pads: dict[str, float]


def _title_side(graph: Graph, cells: Box, names: Sequence[str]) -> str:
    """Return the side of a group at which no arrow crosses its frame."""
    if cells.top == cells.bottom:
        return "top"
    boxes = {box.name: box for box in graph.boxes}
    crossed = set()
    for arrow in graph.arrows:
        sides = _sides(arrow, boxes[arrow.source], boxes[arrow.target])
        if arrow.source in names and arrow.target not in names:
            crossed.add(sides[0])
        if arrow.target in names and arrow.source not in names:
            crossed.add(sides[1])
    return "right" if "left" in crossed else "left"

def _frames(graph: Graph, lanes: dict[Arrow, float]) -> dict[str, Frame]:
    """Return the frame of each group, by its title; a group inside another comes first."""
    boxes = {box.name: box for box in graph.boxes}
    frames: dict[str, Frame] = {}
    for title, names in sorted(graph.groups.items(), key=lambda item: len(item[1])):
        members = [boxes[name] for name in names]
        cells = Box(title, min(box.top for box in members), max(box.bottom for box in members),
                    min(box.left for box in members), max(box.right for box in members))
        inner = [frame for other, frame in frames.items()
                 if set(graph.groups[other]) <= set(names)]
        side = _title_side(graph, cells, names)
        pads = {}
        for edge in ("left", "right", "top", "bottom"):
            inside = [offset + _label_width(arrow) for arrow, offset in lanes.items()
                      if arrow.route == edge and {arrow.source, arrow.target} & set(names)]
            inside += [frame.pads[edge] for frame in inner
                       if getattr(frame.cells, edge) == getattr(cells, edge)]
            pads[edge] = max(inside, default=0.0) + _PAD + (0.18 if edge == side else 0)
        frames[title] = Frame(cells, side, pads)
    return frames

class Layout:
    """Where everything in a diagram lies, in inches; y grows downwards.

    Args:
        graph: whose boxes are placed and whose arrows are routed.
    """

    def __init__(self, graph: Graph):
        self.graph = graph
        self.boxes = {box.name: box for box in graph.boxes}
        self.lanes = _lanes(graph)
        self.frames = _frames(graph, self.lanes)
        widths = _column_widths(graph)
        heights = _row_heights(graph)
        self._column_gaps = [_Gap(free=0.3) for _ in range(len(widths) + 1)]
        self._row_gaps = [_Gap(free=0.26) for _ in range(len(heights) + 1)]
        for gaps in (self._column_gaps, self._row_gaps):
            gaps[0].free = 0.06
            gaps[-1].free = 0.06
        self._reserve_frames()
        for arrow in graph.arrows:
            self._reserve(arrow, widths)
        self.columns = _Axis(widths, self._column_gaps)
        self.rows = _Axis(heights, self._row_gaps)
        self.ports = self._place_ports()

    def _reserve_frames(self) -> None:
        for frame in self.frames.values():
            cells = frame.cells
            for gaps, start, end, edges in (
                    (self._column_gaps, cells.left, cells.right, ("left", "right")),
                    (self._row_gaps, cells.top, cells.bottom, ("top", "bottom"))):
                gaps[start].before = max(gaps[start].before, frame.pads[edges[0]])
                gaps[end + 1].after = max(gaps[end + 1].after, frame.pads[edges[1]])

    def _reserve(self, arrow: Arrow, widths: list[float]) -> None:
        """Make room for an arrow and its label."""
        source = self.boxes[arrow.source]
        target = self.boxes[arrow.target]
        label = _label_width(arrow)
        if arrow.route == "horizontal":
            self._column_gaps[max(source.left, target.left)].widen(label + 0.3)
        elif arrow.route == "side":
            self._column_gaps[self._side_gap(source, target)].widen(label + 0.36)
        elif arrow.route == "right":
            gap = self._column_gaps[max(source.right, target.right) + 1]
            gap.after = max(gap.after, self.lanes[arrow] + label + 0.05)
        elif arrow.route == "left":
            gap = self._column_gaps[min(source.left, target.left)]
            gap.before = max(gap.before, self.lanes[arrow] + label + 0.05)
        else:
            self._reserve_below(arrow, widths)

    def _reserve_below(self, arrow: Arrow, widths: list[float]) -> None:
        """Make room for a vertical arrow or an elbow, whose label stands to its right."""
        boxes = (self.boxes[arrow.source], self.boxes[arrow.target])
        row = self._row_gap(*boxes)
        if arrow.route == "elbow":
            self._row_gaps[row].widen(0.5 if arrow.label else 0.36)
        elif arrow.label:
            self._row_gaps[row].widen(0.36)
        if arrow.label:
            narrow = min(boxes, key=lambda box: box.right - box.left)
            half = sum(widths[narrow.left:narrow.right + 1]) / 2
            gap = self._column_gaps[narrow.right + 1]
            gap.widen(_label_width(arrow) + 0.15 - half - gap.after - gap.before)

    @staticmethod
    def _side_gap(source: Box, target: Box) -> int:
        """Return the number of the gap between columns that an arrow to the side runs in."""
        return target.left if source.right < target.left else target.right + 1

    @staticmethod
    def _row_gap(source: Box, target: Box) -> int:
        """Return the number of the gap between rows that an elbow runs in."""
        if _overlap((source.top, source.bottom), (target.top, target.bottom)):
            return max(source.bottom, target.bottom) + 1
        return target.top if source.bottom < target.top else target.bottom + 1

    def corners(self, box: Box, pads: Mapping[str, float] | None = None
                ) -> tuple[float, float, float, float]:
        """Return left, top, right and bottom of a box or a frame, in inches.

        Args:
            box: or the cells of a frame.
            pads: distances of the frame from them, in inches, by side.
        """
        extra = pads or {}
        return (self.columns.starts[box.left] - extra.get("left", 0.0),
                self.rows.starts[box.top] - extra.get("top", 0.0),
                self.columns.ends[box.right] + extra.get("right", 0.0),
                self.rows.ends[box.bottom] + extra.get("bottom", 0.0))

    def _range(self, name: str, axis: int) -> tuple[float, float]:
        """Return where a box begins and ends along x (axis 0) or y (axis 1)."""
        corners = self.corners(self.boxes[name])
        return corners[axis], corners[axis + 2]

    def _place_ports(self) -> dict[tuple[Arrow, str], float]:
        """Return where along the side of its box each arrow begins ("out") and ends ("in")."""
        meeting: dict[tuple[str, str], list[tuple[Arrow, str]]] = {}
        for arrow in self.graph.arrows:
            sides = _sides(arrow, self.boxes[arrow.source], self.boxes[arrow.target])
            meeting.setdefault((arrow.source, sides[0]), []).append((arrow, "out"))
            meeting.setdefault((arrow.target, sides[1]), []).append((arrow, "in"))
        ports: dict[tuple[Arrow, str], float] = {}
        for (name, side), ends in meeting.items():
            axis = 0 if side in ("top", "bottom") else 1
            ports |= self._spread(name, axis, ends)
        return ports

    def _spread(self, name: str, axis: int, ends: list[tuple[Arrow, str]]
                ) -> dict[tuple[Arrow, str], float]:
        """Spread the arrows that meet at one side of a box along it."""
        start, end = self._range(name, axis)
        straight = {}
        lower = []
        upper = []
        for arrow, kind in ends:
            other = self._range(arrow.target if kind == "out" else arrow.source, axis)
            if arrow.route in ("vertical", "horizontal"):
                straight[arrow, kind] = (max(start, other[0]) + min(end, other[1])) / 2
            elif sum(other) < start + end:
                lower.append((sum(other), (arrow, kind)))
            else:
                upper.append((sum(other), (arrow, kind)))
        halves = [(lower, start, (start + end) / 2), (upper, (start + end) / 2, end)]
        if not straight:
            halves = [([*lower, *upper], start, end)]
        for members, first, last in halves:
            for number, (_, key) in enumerate(sorted(members, key=lambda pair: pair[0]), 1):
                straight[key] = first + (last - first) * number / (len(members) + 1)
        return straight

    def path(self, arrow: Arrow) -> list[tuple[float, float]]:
        """Return the corners of an arrow, from its source to its target, in inches.

        Args:
            arrow: one of the graph.
        """
        source = self.boxes[arrow.source]
        target = self.boxes[arrow.target]
        sides = _sides(arrow, source, target)
        begin = self._end_point(source, sides[0], self.ports[arrow, "out"])
        end = self._end_point(target, sides[1], self.ports[arrow, "in"])
        if arrow.route in ("vertical", "horizontal"):
            return [begin, end]
        if arrow.route == "elbow":
            y = self.rows.middle_of_gap(self._row_gap(source, target))
            return [begin, (begin[0], y), (end[0], y), end]
        if arrow.route == "side":
            x = self.columns.middle_of_gap(self._side_gap(source, target))
        elif arrow.route == "right":
            x = max(begin[0], end[0]) + self.lanes[arrow]
        else:
            x = min(begin[0], end[0]) - self.lanes[arrow]
        return [begin, (x, begin[1]), (x, end[1]), end]

    def label_point(self, arrow: Arrow) -> tuple[float, float]:
        """Return the point of an arrow beside which its label stands, in inches.

        Args:
            arrow: one of the graph.
        """
        boxes = (self.boxes[arrow.source], self.boxes[arrow.target])
        points = self.path(arrow)
        if arrow.route == "horizontal":
            return self.columns.middle_of_gap(self._side_gap(*boxes)), points[0][1]
        if arrow.route == "vertical":
            return points[0][0], self.rows.middle_of_gap(self._row_gap(*boxes))
        # The first piece of an elbow, the middle piece of an arrow beside boxes.
        first = 0 if arrow.route == "elbow" else 1
        (x0, y0), (x1, y1) = points[first:first + 2]
        return (x0 + x1) / 2, (y0 + y1) / 2

    def _end_point(self, box: Box, side: str, port: float) -> tuple[float, float]:
        left, top, right, bottom = self.corners(box)
        points = {"left": (left, port), "right": (right, port),
                  "top": (port, top), "bottom": (port, bottom)}
        return points[side]


def parse_arrows(text: str) -> list[Arrow]:
    """Read the arrows of a diagram from text.

    Raises:
        ValueError: a line has no arrow, an arrow has no box at one of its ends or ends where it
            begins, or there is no such route.
    """
    arrows = []
    for line in filter(str.strip, text.splitlines()):
        chain, label, route, *_ = [*line.split(" : "), "", ""]
        names = [name.strip() for name in chain.split("->")]
        if len(names) < 2 or not all(names):
            raise ValueError(f"{line.strip()!r} is not a chain of arrows: write it as "
                             "first -> second -> third : label")
        if route.strip() and route.strip() not in ROUTES:
            raise ValueError(f"no route {route.strip()!r}: choose {', '.join(ROUTES)}")
        for source, target in pairwise(names):
            if source == target:
                raise ValueError(f"an arrow from {source!r} to itself cannot be drawn")
            arrows.append(Arrow(source, target, label.strip(), route.strip()))
    return arrows


def read_diagram(text: str) -> Graph:
    """Read a diagram from its source.

    Raises:
        ValueError: something names a box that the grid does not have.
    """
    source = tomllib.loads(text)
    boxes = parse_grid(source.pop("grid"))
    graph = Graph(boxes, parse_arrows(source.pop("arrows")), **source)
    places = {box.name: box for box in boxes}
    for number, arrow in enumerate(graph.arrows):
        if not arrow.route:
            route = choose_route(boxes, places[arrow.source], places[arrow.target])
            graph.arrows[number] = Arrow(arrow.source, arrow.target, arrow.label, route)
    return graph


def alt_text(graph: Graph) -> str:
    """Return a diagram in words, in one line: its arrows, then its groups."""
    def words(name: str) -> str:
        return " ".join(graph.label(name).split())

    parts = [f"Diagram: {graph.title}."]
    for source in dict.fromkeys(arrow.source for arrow in graph.arrows):
        targets = [
            words(arrow.target) + (f", carrying {arrow.label}" if arrow.label else "")
            for arrow in graph.arrows
            if arrow.source == source
        ]
        parts.append(f"From {words(source)} to {'; and to '.join(targets)}.")
    for title, names in graph.groups.items():
        parts.append(f"{title} holds {', '.join(map(words, names))}.")
    return " ".join(parts)


PIXELS = 100  # per inch
STYLE = """
text { font-family: "DejaVu Sans", Verdana, sans-serif; fill: var(--ink); text-anchor: middle;
       dominant-baseline: central; font-size: 13.2px }
.small { font-size: 11.1px }
.start { text-anchor: start } .end { text-anchor: end }
.page { fill: var(--page) }
.box { fill: var(--box); stroke: var(--line) }
.data { fill: var(--page); stroke: var(--line) }
.new { fill: var(--new); stroke: var(--accent); stroke-width: 1.5 }
.frame { fill: none; stroke: var(--line); stroke-dasharray: 6 4 }
.arrow { fill: none; stroke: var(--arrow); stroke-width: 1.4; marker-end: url(#head) }
marker { fill: var(--arrow) }
.label { stroke: var(--page); stroke-width: 4; paint-order: stroke }
:root { --page: #fff; --ink: #1b1f24; --box: #eff0f0; --line: #767a80; --arrow: #53575c;
        --new: #bcd9ee; --accent: #0072b2 }
@media (prefers-color-scheme: dark) {
  :root { --page: #14181d; --ink: #e6e9ed; --box: #23282e; --line: #8b9199; --arrow: #b4bac2;
          --new: #1c4763; --accent: #7fc8f8 }
}
"""


def draw(graph: Graph) -> str:
    """Return a diagram as SVG.

    Raises:
        ValueError: it is wider than a page.
    """
    layout = Layout(graph)
    width = layout.columns.length
    height = layout.rows.length
    if width > PAGE_WIDTH:
        raise ValueError(f"the diagram is {width:.1f} inches wide, and a page {PAGE_WIDTH}: "
                         "give it fewer columns or shorter labels")
    parts = [_frame(title, frame, layout) for title, frame in layout.frames.items()]
    parts += [_arrow(arrow, layout) for arrow in graph.arrows]
    parts += [_label(arrow, layout) for arrow in graph.arrows if arrow.label]
    parts += [_box(graph, box, layout.corners(box)) for box in graph.boxes]
    size = f'width="{PIXELS * width:.0f}" height="{PIXELS * height:.0f}"'
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">',
        f"<title>{escape(graph.title)}</title>",
        f"<style>{STYLE}</style>",
        '<marker id="head" viewBox="0 0 10 10" refX="10" refY="5" markerWidth="7" '
        'markerHeight="7" orient="auto"><path d="M0 1 10 5 0 9z"/></marker>',
        '<rect class="page" width="100%" height="100%" rx="8"/>',
        *parts,
        "</svg>\n",
    ])


def _text(text: str, x: float, y: float, kind: str = "", turn: int = 0) -> str:
    """Return text of one or more lines around a point, given in inches."""
    place = f'x="{PIXELS * x:.1f}" y="{PIXELS * y:.1f}"'
    turned = f' transform="rotate({turn} {PIXELS * x:.1f} {PIXELS * y:.1f})"' if turn else ""
    kind = f' class="{kind}"' if kind else ""
    lines = text.split("\n")
    if len(lines) == 1:
        return f"<text {place}{kind}{turned}>{escape(text)}</text>"
    spans = [
        f'<tspan x="{PIXELS * x:.1f}" dy="{-0.6 * (len(lines) - 1) if not number else 1.2:.1f}em">'
        f"{escape(line)}</tspan>"
        for number, line in enumerate(lines)
    ]
    return f"<text {place}{kind}{turned}>{''.join(spans)}</text>"


def _rectangle(corners: tuple[float, float, float, float], kind: str, radius: float) -> str:
    left, top, right, bottom = (PIXELS * value for value in corners)
    return (f'<rect class="{kind}" x="{left:.1f}" y="{top:.1f}" width="{right - left:.1f}" '
            f'height="{bottom - top:.1f}" rx="{PIXELS * radius:.1f}"/>')


def _box(graph: Graph, box: Box, corners: tuple[float, float, float, float]) -> str:
    left, top, right, bottom = corners
    is_data = box.name in graph.data
    kind = "new" if box.name in graph.highlight else "data" if is_data else "box"
    radius = min((bottom - top) / 2, 0.2) if is_data else 0.05
    label = _text(graph.label(box.name), (left + right) / 2, (top + bottom) / 2)
    return _rectangle(corners, kind, radius) + label


def _arrow(arrow: Arrow, layout: Layout) -> str:
    points = " ".join(f"{PIXELS * x:.1f},{PIXELS * y:.1f}" for x, y in layout.path(arrow))
    return f'<polyline class="arrow" points="{points}"/>'


def _label(arrow: Arrow, layout: Layout) -> str:
    x, y = layout.label_point(arrow)
    places = {"horizontal": (x, y - 0.09, ""), "side": (x, y, ""), "left": (x - 0.05, y, " end")}
    x, y, anchor = places.get(arrow.route, (x + 0.05, y, " start"))
    return _text(arrow.label, x, y, f"small label{anchor}")


def _frame(title: str, frame: Frame, layout: Layout) -> str:
    corners = layout.corners(frame.cells, frame.pads)
    left, top, right, bottom = corners
    places = {"top": (left + 0.08, top + 0.13, "small start", 0),
              "left": (left + 0.13, (top + bottom) / 2, "small", -90),
              "right": (right - 0.13, (top + bottom) / 2, "small", -90)}
    return _rectangle(corners, "frame", 0.08) + _text(title, *places[frame.title_side])


def main() -> None:
    for file in sorted(Path(__file__).parent.glob("*.toml")):
        graph = read_diagram(file.read_text(encoding="utf-8"))
        if "--alt" in sys.argv:
            print(f"{file.stem}: {alt_text(graph)}\n")
        else:
            file.with_suffix(".svg").write_text(draw(graph), encoding="utf-8")


if __name__ == "__main__":
    main()
