"""The site: what the converter makes of each directive; every equation has its code and check."""

import json
import re
import shutil
import subprocess
import sys

import pytest
import yaml
from conftest import ROOT

sys.path.insert(0, str(ROOT / "docs"))
import commands
import convert
import reference
from glossary import Entry
from typer.main import get_command

from captionlab.cli import app
from captionlab.runs.results import published_tables

SPHINX = [sys.executable, "-m", "sphinx", "-q", "--fail-on-warning", "--keep-going", "docs", "html"]
PICTURE = {
    "output_type": "display_data",
    "metadata": {},
    "data": {
        "image/png": "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==",  # noqa: E501
        "text/plain": ["<Figure>"],
    },
}
WORDS = {"output_type": "stream", "name": "stdout", "text": ["three words here\n"]}
COURSE = convert.Course(
    {"look": "captionlab.sample.look", "Eye": "captionlab.sample.Eye"},
    frozenset({"01_sample.ipynb", "02_other.ipynb", "solutions/01_sample.ipynb"}),
)

MODULE = '''
"""A module."""
__all__ = ["look", "Eye", "SHADES"]

SHADES = (1, 2)

def look(eye: "Eye", far: int = 2) -> int:
    """Look with `Eye`s.

    Args:
        eye: the eye; shape `(B, T)`.

    Returns:
        What is seen.

    Source: Sample et al., equation (1).
    """

class Eye:
    """An eye."""

    def blink(self) -> None:
        """Close for a moment, then `look`."""
'''


def md(source):
    return convert.cell("markdown", source)


def py(source, *outputs):
    return convert.cell("code", source, outputs=list(outputs))


def page(source, where="01_sample.ipynb"):
    return convert.markdown(source, where, COURSE)


def shown(source, *outputs):
    """The cells that one code cell becomes, and all their text."""
    cells = convert.code(source, list(outputs), "1.1")
    return cells, "\n".join(one["source"] for one in cells)


LESSON = [
    md(
        "# 01 · Sample\n\n**Time** 5 minutes. A promise. See `look`.\n\n## Part\n\n[other](02_other.ipynb), [eq. (1)](#eq-sample-1), [Fig](#fig-sample)"  # noqa: E501
    ),
    py("#| default_exp sample"),
    md("$$a = \\begin{aligned} b \\\\ c \\end{aligned} \\tag{1}$$\n<!-- eq-sample-1 -->"),
    py("#| export\n#| implements: eq-sample-1\ndef look(eye, far=2):\n    return 1"),
    py("#| checks: eq-sample-1\nassert look(0) == 1", WORDS),
    py(
        '#| label: fig-sample\n#| fig-cap: "What it sees."\n#| code-fold: true\nprint(1)',
        WORDS,
        PICTURE,
    ),
    md("> **Predict.** What will `Eye` do?\n> Two lines."),
    py("#| hide\nsecret = 1"),
]
OTHER = [
    md(
        "# 02 · Other\n\nBack to [eq. (1)](#eq-sample-1) and [the figure](#fig-sample)."
        " Now CIDEr, and CIDEr again."
    ),
    py("#| slow\n1 + 1"),
]
SOLUTION = [md("# Solutions\n\n[lesson](../01_sample.ipynb)"), py("assert 1")]


def raw(cells):
    return {
        "cells": cells,
        "metadata": {
            "kernelspec": {"name": "python3", "display_name": "python3", "language": "python"}
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }


@pytest.fixture
def sample(tmp_path):
    """A small repository: two lessons, one solution, one module."""
    for name, cells in {
        "01_sample": LESSON,
        "02_other": OTHER,
        "solutions/01_sample": SOLUTION,
    }.items():
        path = tmp_path / f"nbs/{name}.ipynb"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(raw(cells)))
    (tmp_path / "captionlab").mkdir()
    (tmp_path / "captionlab/__init__.py").touch()
    (tmp_path / "captionlab/sample.py").write_text(MODULE)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_sample.py").write_text("# eq-sample-1 and eq-sample-10\n")
    shutil.copytree(
        ROOT / "docs",
        tmp_path / "docs",
        ignore=shutil.ignore_patterns("_build", "course", "api", "tasks", "__pycache__"),
    )
    (tmp_path / "docs/teaching.md").write_text("# For teachers\n\n{{ lessons 01 }}\n")
    (tmp_path / "docs/index.md").write_text(
        "# Sample\n\n```{toctree}\n:glob:\nteaching\ncourse/0*\napi/*\n```\n")
    return tmp_path


# ---- code cells


@pytest.mark.parametrize(
    "source",
    ["#| hide\nx = 1", "#|hide\nx = 1", "#| default_exp sample", "#| hide\n#| export\nx = 1"],
)
def test_hidden_cells_go(source):
    assert shown(source, WORDS)[0] == []


@pytest.mark.parametrize(
    "line",
    [
        "#| export",
        "#|exporti",
        "# | slow",
        "#| implements: eq-sample-1",
        "#| never-heard-of: it",
        "#|",
    ],
)
def test_directives_go_and_code_stays(line):
    _cells, text = shown(f"{line}\nx = 1  # | is an or")
    assert "x = 1  # | is an or" in text
    assert line not in text
    assert "#|" not in text


def test_code_folds_under_its_summary():
    cells, _ = shown('#| code-fold: true\n#| code-summary: "the plot: long"\nx = 1')
    assert cells[0]["metadata"] == {
        "tags": ["hide-input"],
        "mystnb": {
            "code_prompt_show": "the plot: long",
            "code_prompt_hide": "Hide the code",
            "image": {"alt": "the plot: long"},
        },
    }


def test_a_picture_without_a_label_is_described():
    [cell], _ = shown('#| fig-cap: "A test photo."\nplot()', PICTURE)
    assert cell["metadata"]["mystnb"]["image"] == {"alt": "A test photo."}


def test_echo_false_keeps_only_the_output():
    [cell], _ = shown("#| echo: false\nx", WORDS)
    assert cell["metadata"]["tags"] == ["remove-input"]
    assert cell["outputs"] == [WORDS]


@pytest.mark.parametrize("call", ["captionlab.course.predict(", "predict(\n    ", "captionlab.course.review("])
def test_of_a_prediction_only_the_choices_are_shown(call):
    [cell], _ = shown(f'{call}"01.p1", {{"a": "", "b": ""}}, right="A")', WORDS)
    assert cell["metadata"]["tags"] == ["remove-input"]
    assert cell["outputs"] == [WORDS]


def test_answers_of_a_review_link_to_the_lessons_that_there_are():
    words = '<div class="cl-review"><p>lesson 01 (lesson 02, A part) (lesson 43, B)</p></div>'
    output = {"output_type": "display_data", "metadata": {}, "data": {"text/html": [words]}}
    html = convert.linked(output, COURSE)["data"]["text/html"]
    assert '(<a href="02_other.html">lesson 02</a>, A part)' in html
    assert "<p>lesson 01 " in html
    assert "(lesson 43, B)" in html
    assert convert.linked(WORDS, COURSE) == WORDS


def test_output_false_keeps_only_the_code():
    [cell], _ = shown("#| output: false\nx", WORDS)
    assert cell["source"] == "x"
    assert cell["outputs"] == []


def test_a_labelled_figure_is_numbered_and_captioned_and_words_stay_outside():
    (code, figure), _ = shown(
        '#| label: fig-x\n#| fig-cap: "Two: \\"words\\""\nplot()', WORDS, PICTURE
    )
    assert code["outputs"] == [WORDS]
    assert figure["outputs"] == [PICTURE]
    assert figure["metadata"]["mystnb"]["figure"] == {
        "name": "fig-x",
        "caption": '**Figure 1.1.** Two: "words"',
    }


def test_a_diagram_is_a_figure_with_its_words(tmp_path):
    source = "![From a to `b`: both.](attachment:two.png)\n\n*Two `boxes`.*"
    raw = {"cells": [{"cell_type": "markdown", "source": source}] * 2, "metadata": {}}
    pages = convert.notebook(raw, "05_blocks.ipynb", convert.Course({}, frozenset()))["cells"]
    figures = [one["source"] for one in pages if "images/two.svg" in one["source"]]
    assert [line for line in figures[1].splitlines() if line] == [
        ":::::{figure} images/two.svg",
        ":name: fig-two",
        ':alt: "From a to `b`: both."',
        "**Figure 5.2.** Two `boxes`.",
        ":::::",
    ]


def test_a_diagram_without_a_caption_is_an_svg_on_the_site_too():
    source = "Before.\n\n![From a to b.](attachment:two.png)"
    raw = {"cells": [{"cell_type": "markdown", "source": source}], "metadata": {}}
    pages = convert.notebook(raw, "05_blocks.ipynb", convert.Course({}, frozenset()))["cells"]
    assert any("![From a to b.](images/two.svg)" in one["source"] for one in pages)


def test_of_widgets_their_picture_stays():
    both = PICTURE | {"data": PICTURE["data"] | {convert.WIDGET: {"model_id": "1"}}}
    (_, figure), _ = shown("#| label: fig-x\nexplorer", both)
    assert figure["outputs"] == [PICTURE]
    page = convert.notebook(
        raw([py("1", both)]) | {"metadata": {"widgets": {"state": 1}, "kernelspec": {}}},
        "01_sample.ipynb",
        COURSE,
    )
    assert "widget" not in json.dumps(page)


def test_figures_count_up_within_a_lesson():
    drawing = [py(f"#| label: fig-{i}\nplot()", PICTURE) for i in range(2)]
    text = json.dumps(
        convert.notebook(raw([drawing[0], py("1", PICTURE), drawing[1]]), "01_sample.ipynb", COURSE)
    )
    assert re.findall(r"Figure \d+\.\d+", text) == ["Figure 1.1", "Figure 1.2"]


def test_a_cell_says_which_equation_it_implements():
    cells, text = shown("#| implements: eq-sample-1, eq-sample-2b\nx = 1")
    assert cells[0]["cell_type"] == "markdown"
    assert cells[1]["source"] == "x = 1"
    assert "(implements-eq-sample-1)=" in text
    assert "[implements eq. (2b)](#eq-sample-2b)" in text


# ---- prose


def test_an_equation_keeps_its_number_and_gets_its_labels():
    text = page("$$u$$\n\n$$a \\\\ b \\tag{1}$$\n<!-- eq-sample-1 -->\n<!-- eq-other-4 -->\nmore")
    assert (
        "(eq-sample-1)=\n(eq-other-4)=\n\\begin{equation*}\na \\\\ b \\tag{1}\n\\end{equation*}"
        in text
    )
    assert text.startswith("$$u$$")
    assert "<!--" not in text
    assert text.endswith("more")


@pytest.mark.parametrize(("title", "kind"), convert.BOX_CLASS.items())
def test_boxes(title, kind):
    text = page(f"before\n\n> **{title}.** One\n> two.\n>\n> Three.\n\nafter")
    assert f"{{admonition}} {title}\n:class: {kind}\nOne\ntwo.\n\nThree.\n:::::\n" in text
    assert text.endswith("\nafter")


def test_a_box_may_begin_with_a_list():
    text = page("> **Note.**\n>\n> - One.\n> - Two.\n\nafter")
    assert text == ":::::{admonition} Note\n:class: note\n- One.\n- Two.\n:::::\n\nafter"


def test_other_quotes_stay_quotes():
    assert page("> **Once.** upon a time") == "> **Once.** upon a time"


def test_public_names_become_links():
    assert (
        page("Use `look` or `Eye()`.")
        == "Use {py:obj}`look <captionlab.sample.look>` or {py:obj}`Eye() <captionlab.sample.Eye>`."
    )


@pytest.mark.parametrize(
    "source",
    [
        "`unknown`",
        "# On `look`",
        "```\n`look`\n```",
        "[`look`](02_other.ipynb)",
        "``a `look` b``",
        "`look at it`",
    ],
)
def test_names_that_stay(source):
    assert page(source) == source


def test_ambiguous_names_are_no_links():
    names = reference.spellings(
        {"captionlab.a": {"Model": 0, "one": 0}, "captionlab.b": {"Model": 0}}
    )
    assert names["one"] == names["a.one"] == "captionlab.a.one"
    assert "Model" not in names
    assert names["b.Model"] == "captionlab.b.Model"
    assert names["captionlab.a"] == "captionlab.a"


@pytest.mark.parametrize(
    ("where", "target"),
    [
        ("01_sample.ipynb", "02_other.ipynb"),
        ("01_sample.ipynb", "solutions/01_sample.ipynb"),
        ("solutions/01_sample.ipynb", "../01_sample.ipynb"),
    ],
)
def test_links_between_notebooks_stay(where, target):
    assert page(f"[it]({target}#part)", where) == f"[it]({target}#part)"


def test_every_notebook_becomes_a_page(tmp_path):
    convert.convert(ROOT / "nbs", tmp_path, {})         # a link to a notebook that is gone is an error
    assert len(list(tmp_path.rglob("*.ipynb"))) == len(convert.notebook_pages(ROOT / "nbs"))


def test_a_link_to_a_wrong_name_is_an_error():
    with pytest.raises(ValueError, match=r"nbs/01_sample.ipynb links to 02_wrong.ipynb"):
        page("[lesson 2](02_wrong.ipynb)")


@pytest.mark.parametrize(
    ("source", "where", "expected"),
    [
        ("See lesson 02.", "01_sample.ipynb", "See [lesson 02](02_other.ipynb)."),
        ("Lesson 02 asks", "solutions/01_sample.ipynb", "[Lesson 02](../02_other.ipynb) asks"),
        ("This is lesson 01.", "01_sample.ipynb", "This is lesson 01."),
        ("lesson 40", "01_sample.ipynb", "lesson 40"),
        ("# After lesson 02", "01_sample.ipynb", "# After lesson 02"),
        ("[lesson 02](02_other.ipynb)", "01_sample.ipynb", "[lesson 02](02_other.ipynb)"),
        ("`lesson 02`", "01_sample.ipynb", "`lesson 02`"),
    ],
)
def test_the_number_of_a_lesson_is_a_link(source, where, expected):
    assert page(source, where) == expected


def test_a_lesson_is_in_the_index_under_the_terms_that_it_introduces():
    terms = [
        Entry("eye", "01", "It sees.", ("eye",)),
        Entry("ear", "02", "It hears.", ("ear",)),
    ]
    [line] = convert.index_entries("01_sample.ipynb", terms)
    assert line["source"] == "```{index} ! eye\n```"
    assert convert.index_entries("solutions/01_sample.ipynb", terms) == []


def test_a_lesson_links_to_its_solutions():
    [line] = convert.ending([md("# A lesson")], "01_sample.ipynb", COURSE)
    assert "(solutions/01_sample.ipynb)" in line["source"]
    assert convert.ending([line], "01_sample.ipynb", COURSE) == []
    assert (
        convert.ending([], "02_other.ipynb", COURSE)
        == convert.ending([], "solutions/01_sample.ipynb", COURSE)
        == []
    )


def test_pages_of_gone_notebooks_go(sample):
    for _ in range(2):
        convert.convert(sample / "nbs", sample / "out", {})
        there = sorted(path.name for path in (sample / "out").rglob("*.ipynb"))
        (sample / "nbs/solutions/01_sample.ipynb").unlink(missing_ok=True)
    assert there == ["01_sample.ipynb", "02_other.ipynb"]


# ---- equations


def found(sample):
    return reference.equations(sample / "nbs", sample / "tests", COURSE.names)


def test_equations_know_their_lesson_code_and_checks(sample):
    equation = found(sample)["eq-sample-1"]
    assert equation.lesson == "01_sample"
    assert equation.implements == ["{py:obj}`look <captionlab.sample.look>`"]
    assert equation.checks == [
        "[lesson cell](#checks-eq-sample-1)",
        "{doc}`tests/test_sample.py <tests/test_sample>`",
    ]
    assert list(found(sample)) == ["eq-sample-1"]


@pytest.mark.parametrize(
    ("without", "problem"),
    [(2, "stands in no lesson"), (3, "has no implementation"), (4, "has no check")],
)
def test_an_incomplete_equation_is_an_error(sample, without, problem):
    (sample / "tests/test_sample.py").unlink()
    (sample / "nbs/01_sample.ipynb").write_text(
        json.dumps(raw(LESSON[:without] + LESSON[without + 1 :]))
    )
    assert reference.problems(found(sample)) == [f"eq-sample-1 {problem}"]


def test_every_equation_of_the_course_is_implemented_and_checked():
    assert reference.problems(reference.equations(ROOT / "nbs", ROOT / "tests", {})) == []


# ---- the reference


def test_every_public_name_has_one_line():
    """A constant without one needs a comment above it or a line in docs/constants.yaml."""
    lines = reference.summaries(ROOT / "captionlab", reference.CONSTANTS)
    public = reference.modules(ROOT / "captionlab")
    names = {f"{module}.{name}" for module, own in public.items() for name in own} | public.keys()
    assert sorted(name for name in names if not lines[name]) == []


def test_every_line_on_a_constant_is_of_one_that_exists():
    public = reference.modules(ROOT / "captionlab")
    names = {f"{module}.{name}" for module, own in public.items() for name in own}
    assert sorted(yaml.safe_load(reference.CONSTANTS.read_text()).keys() - names) == []


def test_a_line_is_the_first_sentence(sample):
    (sample / "captionlab/more.py").write_text(
        '"""More. And more."""\n__all__ = ["FAR", "NEAR", "see"]\n\n# in units\nFAR = 9\n'
        'NEAR = 1  # in units, too\n\ndef see():\n    """See it, e.g. a\n    scene.  Not more."""\n'
    )
    lines = reference.summaries(sample / "captionlab", sample / "none.yaml")
    assert lines["captionlab.more"] == "More."
    assert lines["captionlab.more.FAR"] == "In units."
    assert lines["captionlab.more.NEAR"] == "In units, too."
    assert lines["captionlab.more.see"] == "See it, e.g. a scene."


def test_a_line_is_plain_text():
    assert reference.escape("All `Eye`s of *args_") == "All ``Eye``\\ s of \\*args\\_"


@pytest.mark.slow
def test_nearly_every_public_name_has_an_example():
    public = reference.modules(ROOT / "captionlab")
    found = reference.examples(ROOT, reference.taught(ROOT / "nbs"), reference.spellings(public))
    names = {f"{module}.{name}" for module, own in public.items() for name in own
             if not module.startswith("captionlab.cli")}
    assert len(names - found.keys()) < len(names) / 40, sorted(names - found.keys())
    assert found["captionlab.attention.attend"][0].startswith(":doc:`/course/")
    assert "attend(" in found["captionlab.attention.attend"][1]


def test_load_has_an_entry_with_an_example():
    text = reference.package_page(ROOT / "captionlab")
    load, _, rest = text.partition("captionlab.load\n")[2].partition(".. autofunction")
    assert 'captionlab.load("photos")' in load
    assert "captionlab.list_runs" in rest


def test_equations_show_their_formulas(sample):
    text = reference.equations_page(found(sample))
    assert found(sample)["eq-sample-1"].formula in text
    assert "\\tag" not in text


# ---- what was measured


def test_the_front_page_has_published_and_own_figures(tmp_path):
    rows = reference.measured(ROOT / "results/flickr8k").splitlines()[2:]
    own = [float(row.split("|")[-2].split()[0]) for row in rows]
    assert rows[0].startswith("| *people*")
    assert len(rows) == 6
    assert own == sorted(own, reverse=True)
    assert "| [Image Transformer](https://doi.org/" in "".join(rows)
    assert len(reference.measured(tmp_path).splitlines()) == 2


def test_published_figures_are_those_of_the_library():
    known: dict[str | None, list[float | None]] = {}
    for table in published_tables()["tables"].values():
        for row in table["rows"].values():
            known.setdefault(row.get("model"), []).append(row["published"].get("CIDEr"))
    papers = [one for one in convert.BIBLIOGRAPHY if "cider" in one]
    assert len(papers) == 4
    assert all(one["cider"] in known[one["model"]] for one in papers)


# ---- papers


def test_every_paper_has_an_address_but_the_text_that_has_none():
    without = [one["key"] for one in convert.BIBLIOGRAPHY if "url" not in one]
    assert without == ["maass"]
    assert len({one["key"] for one in convert.BIBLIOGRAPHY}) == len(convert.BIBLIOGRAPHY)


def test_a_lesson_links_its_papers_under_its_title():
    [line] = convert.papers("32_cptr.ipynb")
    assert "(https://arxiv.org/abs/2101.10804)" in line["source"]
    assert convert.papers("solutions/32_cptr.ipynb") == convert.papers("99_none.ipynb") == []


def test_a_paper_of_a_lesson_is_named_there():
    for one in convert.BIBLIOGRAPHY:
        for number in one.get("lessons", []):
            [lesson] = (ROOT / "nbs").glob(f"{number}_*.ipynb")
            names = {one["by"].split()[0], one["title"].split(":")[0], one.get("short", one["by"])}
            text = lesson.read_text()
            assert any(name in text for name in names), (one["title"], number)


# ---- commands


def test_every_command_has_a_page_with_its_options(tmp_path):
    commands.command_reference(ROOT / "docs/tasks", tmp_path)
    known = commands.commands(get_command(app))
    assert len(list(tmp_path.glob("*.rst"))) == len(known) + 1
    for name, command in known.items():
        text = (tmp_path / f"{commands.page_of(name)}.rst").read_text()
        assert all(f"{one.opts[0]}" in text for one in command.params if one.param_type_name == "option")
    served = (tmp_path / "serve.rst").read_text()
    assert ".. option:: --port <int>\n\n   Port of the page. *Default: 7860;" in served
    assert "captionlab train --from photos --data mine.csv" in (tmp_path / "train.rst").read_text()


# ---- the site


@pytest.mark.slow
def test_the_site_builds(sample):
    """Everything at once: warnings are errors, and references arrive where they should."""
    built = subprocess.run(SPHINX, cwd=sample, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    lesson, other, equations, api, front, teaching = [
        (sample / f"html/{name}.html").read_text()
        for name in (
            "course/01_sample",
            "course/02_other",
            "api/equations",
            "api/captionlab.sample",
            "index",
            "teaching",
        )
    ]
    assert 'href="#eq-sample-1"' in lesson
    assert 'href="01_sample.html#eq-sample-1"' in other
    assert 'href="01_sample.html#fig-sample"' in other
    assert 'href="solutions/01_sample.html"' in lesson
    assert 'href="../api/captionlab.sample.html#captionlab.sample.look"' in lesson
    assert 'href="../course/01_sample.html#checks-eq-sample-1"' in equations
    assert 'href="../course/01_sample.html"' in api
    assert 'href="course/01_sample.html"' in teaching
    assert "(5 minutes)" in teaching
    [term] = re.findall(r'<a [^>]*href="../api/glossary.html#term-CIDEr"[^>]*>', other)
    assert 'title="A metric' in term
    assert "cl-term" in term
    assert lesson.count("(1)") == lesson.count("eq. (1)") + lesson.count("<mtext>(1)</mtext>")
    assert "<mtext>(1)</mtext>" in lesson
    assert 'href="course/01_sample.html"' in front
    assert "secret" not in lesson
    assert not re.search(r"#\||&lt;!--", lesson + other)
    # Formulas are set; no page needs a script of more than a megabyte.
    assert "tex-chtml.js" not in lesson
    assert "fontawesome.js" not in lesson + other + front
    assert '<link rel="canonical" href="https://captionlab.github.io/captionlab/teaching.html"' in teaching
    assert (sample / "html/404.html").exists()
    assert "course/01_sample.html" in (sample / "html/sitemap.txt").read_text()


@pytest.mark.slow
def test_a_directive_left_on_a_page_fails_the_build(sample):
    (sample / "nbs/02_other.ipynb").write_text(json.dumps(raw([md("# 02 · Other\n\n`#| hide`")])))
    built = subprocess.run(SPHINX, cwd=sample, capture_output=True, text=True, check=False)
    assert built.returncode != 0
    assert "course/02_other.html has #| hide" in built.stderr


@pytest.mark.parametrize("path", sorted((ROOT / "nbs").rglob("*.ipynb")), ids=lambda one: one.stem)
def test_no_text_quotes_a_directive(path):
    """The site refuses pages on which a directive of nbdev is left, and could not tell a quote."""
    cells = json.loads(path.read_text())["cells"]
    texts = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"]
    assert [text for text in texts if "#|" in text] == []
