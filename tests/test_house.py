"""The rules of the house, held by tests: documented shapes, tidy notebooks."""

import ast
import inspect
import json
import re
import sys
from importlib import import_module
from pathlib import Path

import pytest
from torch import nn

import captionlab

ROOT = Path(__file__).resolve().parent.parent
MODULES = sorted(p for p in (ROOT / "captionlab").rglob("*.py") if not p.name.startswith("_"))
LESSONS = sorted((ROOT / "nbs").glob("[0-9]*.ipynb"))
LIBRARY = sorted((ROOT / "nbs/library").rglob("*.ipynb"))
SHAPE = re.compile(r"\(\s*(\.\.\.|[A-Z]\b|\d|[a-z]+,)[^()]*\)")


def public_names() -> list:
    """Every exported function and class, as a pytest parameter."""
    modules = [
        import_module(".".join(path.relative_to(ROOT).with_suffix("").parts)) for path in MODULES
    ]
    things = [
        (f"{m.__name__}.{name}", getattr(m, name))
        for m in modules
        for name in getattr(m, "__all__", [])
    ]
    return [
        pytest.param(t, id=name) for name, t in things if inspect.isroutine(t) or inspect.isclass(t)
    ]


def signature_of(thing) -> inspect.Signature:
    return inspect.signature(thing)


def documentation(thing) -> str:
    """The docstring; for a class those of its public methods, too."""
    members = vars(thing).items() if inspect.isclass(thing) else ()
    methods = [
        member for name, member in members if not name.startswith("_") and inspect.isroutine(member)
    ]
    return "\n".join(inspect.getdoc(t) or "" for t in (thing, *methods))


def handles_arrays(thing) -> bool:
    annotations = "".join(str(p.annotation) for p in signature_of(thing).parameters.values())
    returns = str(signature_of(thing).return_annotation)
    is_module = inspect.isclass(thing) and issubclass(thing, nn.Module)
    return is_module or "Tensor" in annotations + returns or "ndarray" in annotations + returns


@pytest.mark.parametrize("thing", public_names())
def test_public_name_is_documented(thing):
    text = documentation(thing)
    if thing.__module__.startswith("captionlab.cli."):
        text += str(inspect.signature(thing))  # a command's options are documented by their help
    wanted = [p for p in signature_of(thing).parameters if p not in ("self", "args", "kwargs")]
    missing = [p for p in wanted if not re.search(rf"\b{p}\b", text)]
    assert text, "no docstring"
    assert not missing, f"not documented: {missing}"


@pytest.mark.parametrize("thing", public_names())
def test_shapes_are_documented(thing):
    if handles_arrays(thing):
        text = documentation(thing)
        assert SHAPE.search(text) or " shape" in text, (
            "its docstring names no shape such as (B, T, D)"
        )


def code_lines(source: str) -> int:
    """Lines of a cell without directives and docstrings, which do not make it long to read."""
    docstrings = re.compile(r'^ +""".*?"""\n', re.S | re.M)
    return len(
        [
            line
            for line in docstrings.sub("", source).splitlines()
            if line and not line.startswith("#|")
        ]
    )


def cells(path: Path, kind: str = "code"):
    notebook = json.loads(path.read_text())
    return [cell for cell in notebook["cells"] if cell["cell_type"] == kind]


def sources(path: Path) -> list[str]:
    """The code of each cell."""
    return ["".join(cell["source"]) for cell in cells(path)]


@pytest.mark.parametrize("path", sorted((ROOT / "nbs").rglob("*.ipynb")), ids=lambda p: p.stem)
def test_gradients_are_on_again_at_the_end(path):
    """`nbdev_test` runs several notebooks in one process."""
    switches = re.findall(r"set_grad_enabled\((\w+)\)", path.read_text())
    assert not switches or switches[-1] == "True"


# What every lesson begins with, for Colab and Kaggle; the next line names the lesson.
INSTALLATION = sources(ROOT / "nbs/52_coco.ipynb")[0].partition("\ncaptionlab.course.")[0]


@pytest.mark.parametrize("path", LESSONS, ids=lambda p: p.stem)
class TestLesson:
    def test_is_small(self, path):
        assert path.stat().st_size < 600_000

    def test_exported_cells_are_short(self, path):
        for source in sources(path):
            assert "#| export" not in source or code_lines(source) <= 100, source

    def test_begins_with_the_cell_that_installs_the_package(self, path):
        lesson = path.stem.split("_")[0]
        start = f'captionlab.course.start_lesson("{lesson}", "{captionlab.__version__}"'
        assert sources(path)[0].startswith(f"{INSTALLATION}\n{start}")

    def test_ran_without_errors(self, path):
        outputs = [output for cell in cells(path) for output in cell["outputs"]]
        assert outputs
        assert not [o for o in outputs if o["output_type"] == "error"]
        # A machine without an optional program would leave its results out.
        assert "is not installed" not in json.dumps(outputs)

    def test_holds_no_path_of_the_machine_that_ran_it(self, path):
        assert not re.search(r"/(work|tmp|home|root)/", path.read_text())

    def test_has_what_every_lesson_has(self, path):
        text = "".join("".join(cell["source"]) for cell in cells(path, "markdown"))
        wanted = [
            "You will be able to",
            "**Time**",
            "**Needs**",
            "**Predict.**",
            "## Exercises",
            "## Summary",
            "**Next:**",
        ]
        assert not [phrase for phrase in wanted if phrase not in text]

    def test_every_figure_has_a_caption(self, path):
        for cell in cells(path):
            if any("image/png" in output.get("data", {}) for output in cell["outputs"]):
                assert "#| fig-cap:" in "".join(cell["source"]), "".join(cell["source"])

    def test_has_solutions(self, path):
        def text(file):
            return "\n".join("".join(cell["source"]) for cell in cells(file, "markdown"))

        asked = text(path).split("## Exercises")[1].split("## Summary")[0]
        solved = re.findall(r"^##+ *(\d+)", text(path.parent / "solutions" / path.name), re.M)
        assert solved == re.findall(r"^(\d+)\. ", asked, re.M)


@pytest.mark.parametrize("is_missing", [True, False])
def test_the_cell_installs_the_package_only_where_it_is_missing(is_missing, monkeypatch):
    commands = []
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if is_missing else name)
    monkeypatch.setattr("subprocess.run", lambda command, check: commands.append(command))
    monkeypatch.setenv("CAPTIONLAB_SOURCE", "a folder")
    exec(INSTALLATION, {})
    expected = [[sys.executable, "-m", "pip", "install", "--quiet", "a folder"]]
    assert commands == (expected if is_missing else [])


def library_name(path: Path) -> str:
    return str(path.relative_to(ROOT / "nbs/library").with_suffix(""))


@pytest.mark.parametrize("path", LIBRARY, ids=library_name)
class TestLibraryNotebook:
    def test_is_small(self, path):
        assert path.stat().st_size < 600_000

    def test_begins_with_a_title_and_a_docstring_line(self, path):
        first = "".join(cells(path, "markdown")[0]["source"])
        assert re.match(r"# \S.*\n\n> \S.*", first), "a title, an empty line, and a line with >"

    def test_has_no_exercises_and_no_predictions(self, path):
        text = "".join("".join(cell["source"]) for cell in cells(path, "markdown"))
        assert "## Exercises" not in text
        assert "**Predict.**" not in text

    def test_ran_without_errors(self, path):
        outputs = [output for cell in cells(path) for output in cell["outputs"]]
        assert not [output for output in outputs if output["output_type"] == "error"]

    def test_holds_no_path_of_the_machine_that_ran_it(self, path):
        assert not re.search(r"/(work|tmp|home|root)/", path.read_text())

    def test_checks_the_module_that_it_exports(self, path):
        sources = ["".join(cell["source"]) for cell in cells(path)]
        examples = [source for source in sources if "#| export" not in source]
        assert any(re.search(r"^ *assert |assert_close\(", source, re.M) for source in examples)

    def test_every_figure_has_a_caption(self, path):
        for cell in cells(path):
            if any("image/png" in output.get("data", {}) for output in cell["outputs"]):
                assert "#| fig-cap:" in "".join(cell["source"])


@pytest.mark.parametrize(
    "path", sorted((ROOT / "results").rglob("*.json")), ids=lambda p: str(p.relative_to(ROOT))
)
def test_a_result_names_commands_that_anybody_can_give(path):
    text = path.read_text()
    assert not re.search(r"/(work|tmp|home|root)/", text)
    assert not re.search(r'"command": "(?!captionlab |python -[cm] |make )', text), (
        "the command is not one of a shell"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "path", sorted((ROOT / "captionlab").rglob("*.py")), ids=lambda p: str(p.relative_to(ROOT))
)
def test_modules_import_what_they_use_and_no_more(path):
    """A name that only the lesson needs is imported in the lesson."""
    tree = ast.parse(path.read_text())
    imports = [
        alias.asname or alias.name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    ]
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    said = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
    texts = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in said
    ]
    used |= {word for text in texts for word in re.findall(r"\w+", text)}  # annotations in quotes
    assert path.name == "__init__.py" or not [name for name in imports if name not in used]


NOTEBOOKS = pytest.mark.parametrize(
    "path",
    sorted(p for p in (ROOT / "nbs").rglob("*.ipynb") if ".ipynb_checkpoints" not in p.parts),
    ids=lambda path: str(path.relative_to(ROOT / "nbs").with_suffix("")),
)


@NOTEBOOKS
def test_code_cells_are_short(path):
    for source in sources(path):
        setup = "captionlab.course.start_lesson(" in source  # hidden, one for the whole lesson
        assert "#| export" in source or setup or code_lines(source) <= 25, source


@NOTEBOOKS
def test_code_cells_fit_their_box_on_the_site(path):
    """Lines have at most 100 columns; directives are not shown, and may be longer."""
    lines = [line for cell in cells(path) for line in "".join(cell["source"]).splitlines()]
    assert [line for line in lines if len(line) > 100 and not line.startswith("#|")] == []
