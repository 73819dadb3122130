"""Every command that a text names is one that the command line reads."""

import ast
import json
import re
import shlex
from pathlib import Path

import pytest
from conftest import ROOT
from typer.main import get_command

from captionlab.cli import app

PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "results/README.md")),
    *(ROOT / "docs").glob("*.md"),
    *(ROOT / "docs/tasks").glob("*.md"),
    *(ROOT / "nbs").rglob("*.ipynb"),
]
TYPED = re.compile(r"^ *(?:\$ )?(captionlab .*)$", re.M)  # a line of a block
NAMED = re.compile(r"`(captionlab [^`\n]+)`")  # within a sentence
PLACEHOLDERS = ("...", "…", "COMMAND")
PROSE = ("has", "has,", "knows", "may", "reads", "attributes 1")  # after "captionlab" in sentences


def text_of(page: Path) -> str:
    """The prose of a page, without a notebook's code."""
    if page.suffix == ".md":
        return page.read_text()
    cells = json.loads(page.read_text())["cells"]
    return "\n".join("".join(x["source"]) for x in cells if x["cell_type"] == "markdown")


def commands_in(text: str) -> list[str]:
    """The commands of a text, in its blocks and in its sentences."""
    blocks = re.findall(r"^ *```(?:bash|sh|console)?\n(.*?)^ *```", text, re.M | re.S)
    typed = [line for block in blocks for line in TYPED.findall(block.replace("\\\n", " "))]
    named = NAMED.findall(text)
    return [x for x in typed + named if not any(word in x for word in PLACEHOLDERS)]


def read(arguments: list[str]) -> None:
    """Let the command line read arguments, and run nothing."""
    command = get_command(app)
    context = command.make_context("captionlab", arguments)
    while hasattr(context.command, "commands"):
        rest = [*getattr(context, "_protected_args", []), *context.args]
        name, command, rest = context.command.resolve_command(context, rest)
        context = command.make_context(name, rest, parent=context)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_are_read(page):
    for command in commands_in(text_of(page)):
        words = shlex.split(re.split(r" [|>] ", command)[0], comments=True)
        try:
            read(words[1:])
        except Exception as error:  # typer may bring its own click, with classes of its own
            named = type(error).__name__ in ("Exit", "MissingParameter")  # --help, or no arguments
            if not named:
                pytest.fail(f"{command}: {getattr(error, 'message', error)}")


def test_a_command_that_is_gone_is_found():
    with pytest.raises(Exception, match="No such option"):
        read(["train", "vanilla", "--stage", "scst"])


def messages_of(module: Path) -> list[str]:
    """The strings of a module but its docstrings; what is filled in stands as X."""
    tree = ast.parse(module.read_text())
    own = (ast.Module, ast.ClassDef, ast.FunctionDef)
    docstrings = {id(n.body[0].value) for n in ast.walk(tree)
                  if isinstance(n, own) and ast.get_docstring(n, clean=False) is not None}
    joined = [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)]
    parts = {id(part) for node in joined for part in node.values}
    plain = [node.value for node in ast.walk(tree)
             if isinstance(node, ast.Constant) and isinstance(node.value, str)
             and id(node) not in parts | docstrings]
    filled = ["".join(getattr(part, "value", "X") if isinstance(part, ast.Constant) else "X"
                      for part in node.values) for node in joined]
    return plain + filled


def test_commands_in_messages_are_read():
    named = 0
    for module in sorted((ROOT / "captionlab").rglob("*.py")):
        for text in messages_of(module):
            for words in re.findall(r"\bcaptionlab ([a-z][^:;,`'\")\n]*)", text):
                command = get_command(app)
                rest = words.split()
                if rest[0] in PROSE or words in PROSE:
                    continue
                while hasattr(command, "commands"):
                    assert rest, f"{module.name}: {text}"
                    assert rest[0] in command.commands, f"{module.name}: {text}"
                    command = command.commands[rest.pop(0)]
                options = {name for x in command.params for name in (*x.opts, *x.secondary_opts)}
                assert {x for x in rest if x.startswith("--")} <= options, f"{module.name}: {text}"
                named += 1
    assert named > 20
