"""The layout of the package: which module may import which, how large a module may be."""

import ast
import json
import re
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "captionlab"
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path.name != "_modidx.py")
LESSONS = sorted((ROOT / "nbs").glob("[0-9]*.ipynb"))

# From the bottom to the top: a module imports from its own row or from rows above it in this list.
ROWS = [
    ["files", "lazy", "untrusted", "arguments"],
    [
        "fast", "attention", "masks", "positions", "patches", "blocks", "pytorch_layers",
        "visualise", "text", "subwords",
    ],
    ["scenes"],
    ["data"],
    ["metrics"],
    ["losses", "captioner", "distillation"],
    ["decoding"],
    ["training"],
    ["rewards", "scst"],
    ["features"],
    ["models"],
    ["runs"],
    ["explore"],
    ["deploy"],
    ["course"],  # its machinery needs files alone, the checks of a lesson anything
    ["cli"],
]
ROW = {name: number for number, row in enumerate(ROWS) for name in row}
LINES_PER_MODULE = 350
LINES_PER_LESSON = 300
LINES_PER_LONG_LESSON = 450  # lessons 33 to 35: the papers with the largest models


def dotted(path: Path) -> str:
    """`scenes/world.py` as `scenes.world`; an `__init__` by the name of its folder."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts).removesuffix("__init__").rstrip(".")


def imported(path: Path) -> list[tuple[str, str]]:
    """The module, inside the package, and the name of each import from the package."""
    package = list(path.relative_to(PACKAGE).parent.parts)
    pairs = []
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.ImportFrom):
            continue
        if node.level:
            base = package[: len(package) - node.level + 1]
            module = ".".join([*base, *(node.module or "").split(".")]).strip(".")
        elif (node.module or "").split(".")[0] == "captionlab":
            module = node.module.removeprefix("captionlab").lstrip(".")
        else:
            continue
        pairs += [(module, alias.name) for alias in node.names]
    return pairs


def code_lines(source: str) -> int:
    """Lines of code: without docstrings, comments and blank lines."""
    docstrings = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node):
            docstrings |= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    lines = enumerate(source.splitlines(), 1)
    return sum(
        bool(line.strip()) and not line.strip().startswith("#") and number not in docstrings
        for number, line in lines
    )


def exported_cells(path: Path) -> list[str]:
    cells = json.loads(path.read_text())["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    return [source for source in sources if "#| export" in source]


def subpackages() -> list[str]:
    return sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))


@pytest.mark.parametrize("path", MODULES, ids=dotted)
class TestModule:
    def test_imports_only_from_its_own_row_or_lower_ones(self, path):
        top = dotted(path).split(".")[0]
        if top not in ROW:
            pytest.skip("the package itself and its entry point")
        wrong = [
            module or name
            for module, name in imported(path)
            if ROW.get((module or name).split(".")[0], 0) > ROW[top]
        ]
        assert not wrong, f"{dotted(path)} imports from above itself: {wrong}"

    def test_takes_no_private_name_of_another(self, path):
        private = [name for _, name in imported(path) if name.startswith("_")]
        assert [name for name in private if not name.startswith("__")] == []

    def test_is_of_a_size_that_can_be_read(self, path):
        assert code_lines(path.read_text()) <= LINES_PER_MODULE

    def test_states_its_job(self, path):
        assert ast.get_docstring(ast.parse(path.read_text())), "no docstring in the first line"


def test_contributing_lists_every_module():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    tree = text.partition("```\nfiles")[2].partition("```")[0]
    listed = {"files", *re.findall(r"\w+", tree)}
    modules = [path for path in MODULES if path.parent.name != "cli"]
    assert [dotted(path) for path in modules if path.stem[0] != "_"
            and not path.stem.startswith("lesson_") and path.stem not in listed] == []


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_a_lesson_exports_the_idea_that_it_teaches(path):
    limit = LINES_PER_LONG_LESSON if path.stem[:2] in ("33", "34", "35") else LINES_PER_LESSON
    assert sum(map(code_lines, exported_cells(path))) <= limit


@pytest.mark.parametrize("name", subpackages())
class TestSubpackage:
    def test_every_name_it_lists_can_be_imported(self, name):
        package = import_module(f"captionlab.{name}")
        assert [one for one in package.__all__ if not hasattr(package, one)] == []
        assert set(package.__all__) <= set(dir(package))

    def test_no_function_is_called_like_a_module(self, name):
        package = import_module(f"captionlab.{name}")
        files = {path.stem for path in (PACKAGE / name).glob("[a-z]*.py")}
        assert files & set(package.__all__) == set()


@pytest.mark.parametrize("path", sorted((ROOT / "tests").glob("*.py")), ids=lambda path: path.stem)
def test_tests_use_public_names_of_the_package(path):
    private = [
        alias.name
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("captionlab")
        for alias in node.names
        if alias.name.startswith("_") and not alias.name.startswith("__")
    ]
    assert private == []
