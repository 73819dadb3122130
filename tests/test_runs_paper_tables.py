"""The papers' tables as Markdown: published figures beside ours, "not run" where nothing is."""

import pytest

from captionlab.runs.paper_tables import difference_table, paper_names, paper_table
from captionlab.runs.results import format_metric, load_result
from captionlab.runs.tables import TABLES

@pytest.mark.parametrize("paper", paper_names())
def test_a_paper_has_a_row_for_every_row_of_the_registry(paper):
    lines = paper_table(paper).split("\n")
    for table in TABLES.values():
        if table.paper == paper:
            start = lines.index(f"**{table.title}** (`{table.name}`)") + 4
            names = [line.split(" | ")[0].removeprefix("| ") for line in
                     lines[start : start + len(table.rows)]]
            assert names == [row.name for row in table.rows]


def test_published_figures_stand_beside_ours():
    ours = format_metric(load_result("scenes/position_aware-fpn-tiny-xe"), "CIDEr")
    line = next(line for line in paper_table("position_aware").split("\n")
                if line.startswith("| fpn | 113.9"))
    assert ours in line


@pytest.mark.usefixtures("own_results")
def test_rows_without_results_say_so():
    lines = paper_table("image_transformer").split("\n")
    assert "| released | 130.8 | not run | not run |  |" in lines
    assert "| vorn | 128.3 | not run: no such model | not run: no such model |  |" in lines
    assert "| fpn − vanilla | +6.3 | not run | not run | not run |" in difference_table("pat-2")


def test_an_unknown_paper_is_one_line():
    with pytest.raises(ValueError, match="no tables of 'sat': choose from position_aware"):
        paper_table("sat")
    assert set(paper_names()) == {table.paper for table in TABLES.values()}


@pytest.mark.parametrize("name", list(TABLES))
def test_every_comparison_has_a_line(name):
    lines = difference_table(name).split("\n")
    assert len(lines) == 2 + len(TABLES[name].comparisons)
    assert len({line.count("|") for line in lines}) == 1
