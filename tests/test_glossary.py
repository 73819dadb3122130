"""The glossary: its entries, its page, and the links to it at first uses in the lessons."""

import json
import re
import sys

import pytest
from conftest import ROOT

sys.path.insert(0, str(ROOT / "docs"))
import convert
import glossary

ENTRIES = glossary.read_glossary(ROOT / "docs/glossary.yaml")
PAGES = convert.notebook_pages(ROOT / "nbs")
SAMPLE = (
    glossary.Entry("head", "01", "One of several attentions.", ("head", "heads")),
    glossary.Entry("key", "01", "What a query is compared with.", ("keys and values",)),
    glossary.Entry("multi-head attention", "01", "Several heads.", ("multi-head attention",)),
    glossary.Entry("BLEU", "16", "A metric of n-grams.", ("BLEU", "BLEU-4")),
)


def linked(*cells):
    """The cells of one lesson, with links."""
    terms = glossary.TermLinks(SAMPLE)
    return [terms(cell) for cell in cells]


def lesson_text(number):
    """Everything a lesson says, without the marks of emphasis and formulas."""
    (path,) = (ROOT / "nbs").glob(f"{number}_*.ipynb")
    sources = ["".join(cell["source"]) for cell in json.loads(path.read_text())["cells"]]
    return re.sub(r"[*$_]", " ", "\n".join(sources)).replace(" n -", " n-")


# ---- the entries


def test_the_course_has_its_glossary():
    assert len(ENTRIES) >= 120


def test_no_term_and_no_form_stands_twice():
    terms = [one.term.lower() for one in ENTRIES]
    forms = [form.lower() for one in ENTRIES for form in one.forms]
    assert sorted(set(terms)) == sorted(terms)
    assert sorted(set(forms)) == sorted(forms)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.term)
class TestEntry:
    def test_is_one_short_sentence(self, entry):
        assert re.fullmatch(r"[A-Z].*[^.]\.", entry.means)
        assert len(entry.means.split()) <= 30
        assert not re.search(r"[.!?] [A-Z]", entry.means.replace("et al. in", ""))

    def test_names_a_lesson_that_uses_the_term(self, entry):
        text = lesson_text(entry.lesson)
        forms = [form.replace("_", " ") for form in entry.forms]
        assert any(re.search(glossary.form_pattern(form), text) for form in forms)


# ---- links in the prose of a lesson


def test_the_first_use_is_linked_and_later_ones_are_not():
    assert linked("Two heads. One head.", "A head.") == [
        "Two {term}`heads <head>`. One head.",
        "A head.",
    ]


def test_each_lesson_begins_anew():
    assert linked("a head") == linked("a head") == ["a {term}`head`"]


def test_the_longest_term_wins_and_capitals_of_a_sentence_do_not_matter():
    assert linked("Multi-head attention has heads.") == [
        "{term}`Multi-head attention <multi-head attention>` has {term}`heads <head>`."
    ]


@pytest.mark.parametrize(
    "source",
    [
        "# One head",
        "`head`",
        "``head``",
        "[a head](02_masks.ipynb)",
        "![a head](head.png)",
        "$head$",
        "$$\nhead\n$$",
        "```python\nhead = 1\n```",
        "<details><summary>head</summary>",
        "{py:obj}`head <captionlab.head>`",
        "<!-- head -->",
        "ahead, headed, per-head, head-on",
        "bleu",
        "a key",
    ],
)
def test_words_that_are_no_link(source):
    assert linked(source) == [source]


def test_names_of_other_things_are_no_use_of_a_term():
    terms = glossary.TermLinks(ENTRIES)
    for name in (
        "*Attention Is All You Need*",
        "Mask R-CNN",
        "the ground truth",
        "*Scheduled sampling*",
    ):
        assert terms(name) == name


def test_a_use_that_may_not_be_linked_is_not_the_first():
    assert linked("# Heads\n\nMany `heads`, many heads")[0].endswith("many {term}`heads <head>`")


def test_boxes_and_tables_are_prose():
    course = convert.Course({}, frozenset({"01_sample.ipynb"}), SAMPLE)
    cells = [convert.cell("markdown", "> **Note.** A head.\n\n| BLEU-4 |\n|---|\n| 1 |")]
    page = convert.notebook({"cells": cells, "metadata": {}}, "01_sample.ipynb", course)
    text = page["cells"][0]["source"]
    assert ":class: note\nA {term}`head`." in text
    assert "| {term}`BLEU-4 <BLEU>` |" in text


def test_library_pages_and_solutions_have_no_links():
    course = convert.Course({}, frozenset({"solutions/01_sample.ipynb"}), SAMPLE)
    cells = [convert.cell("markdown", "A head.")]
    page = convert.notebook({"cells": cells, "metadata": {}}, "solutions/01_sample.ipynb", course)
    assert page["cells"][0]["source"] == "A head."


# ---- the page


def test_the_page_has_every_term_once_with_its_lesson():
    page = glossary.glossary_page(ENTRIES, PAGES)
    for one in ENTRIES:
        assert (
            page.count(f"\n{one.term}\n  {one.means} [Lesson {one.lesson}](../course/{one.lesson}_")
            == 1
        )


def test_without_lessons_the_page_has_their_numbers():
    assert "  A metric of n-grams. Lesson 16.\n" in glossary.glossary_page(SAMPLE, frozenset())


def test_the_page_is_in_the_table_of_contents():
    trees = re.findall(r"```{toctree}(.*?)```", (ROOT / "docs/index.md").read_text(), re.S)
    assert "api/glossary" in "\n".join(trees).split()
