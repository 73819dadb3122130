"""The command-line reference: a page for each command, from what its --help says."""
import re
from pathlib import Path

from convert import write
from reference import escape
from typer.main import get_command

from captionlab.cli import app

TYPED = re.compile(r"^ *(captionlab (?:[a-z].*[^\\]|.*\\(?:\n.*\\)*\n.*))$", re.M)
FAR = re.compile(r"<=x<=\d{15,}")
BOUND = re.compile(r"\s*\[([^\[\]]*(?:default|required|<=|>=)[^\[\]]*)\]$")


def commands(group, name: str = "captionlab") -> dict[str, object]:
    """Every command by what one types, in the order of the help; groups are walked."""
    found = {}
    for word, command in group.commands.items():
        inner = hasattr(command, "commands")
        found |= commands(command, f"{name} {word}") if inner else {f"{name} {word}": command}
    return found


def page_of(name: str) -> str:
    """The page of a command, below docs/api/commands."""
    return "-".join(name.split()[1:])


def typed(folder: Path) -> list[str]:
    """The commands that the task pages show; a line that goes on keeps its parts."""
    texts = (path.read_text() for path in sorted(folder.glob("*.md")))
    blocks = (block for text in texts for block in re.findall(r"^```(?:sh|bash)\n(.*?)^```", text, re.M | re.S))
    return [line for block in blocks for line in TYPED.findall(block)]


def option(parameter, context) -> str:
    """One argument or option: how it is written, what it does, its type, range and default."""
    usage, words = parameter.get_help_record(context)
    usage = re.sub(r"<list\[(\w+)\]>", r"<\1> ...", usage.replace(" range>", ">"))
    facts = BOUND.search(words)
    text = BOUND.sub("", words).strip()
    if not re.match(r"\w+,", text):  # a list of names keeps its small letter
        text = text[:1].upper() + text[1:]
    text = re.sub(r"(?<![\w`])--\w[\w-]*", r"`\g<0>`", text) + "." * (text[-1:] not in ("", ".", "?", "!"))
    bound = f" *{escape(FAR.sub('<=x', facts[1]).capitalize())}.*" if facts else ""
    return f".. option:: {usage}\n\n   {escape(text)}{bound}\n\n"


def command_page(name: str, command, examples: list[str]) -> str:
    """The page of one command: what it does, examples, arguments and options."""
    context = command.context_class(command, info_name=name)
    title = f"``{name}``"
    usage = " ".join([name, *command.collect_usage_pieces(context)])
    parts: dict[str, str] = {"Arguments": "", "Options": ""}
    for parameter in command.get_params(context):
        if parameter.get_help_record(context):
            parts["Arguments" if parameter.param_type_name == "argument" else "Options"] += option(parameter, context)
    about = "\n\n".join(escape(" ".join(one.split())) for one in (command.help or "").split("\n\n"))
    shown = "".join(f"   {line}\n" for example in examples for line in example.splitlines())
    return (f"{title}\n{'=' * len(title)}\n\n{about}\n\n.. code-block:: text\n\n   {usage}\n\n"
            + f".. rubric:: Examples\n\n.. code-block:: bash\n\n{shown}\n" * bool(examples)
            + f".. program:: {name}\n\n"
            + "".join(f".. rubric:: {part}\n\n{text}" for part, text in parts.items() if text))


def command_reference(tasks: Path, out: Path) -> None:
    """Write the page of every command, and the list of all, into out/; examples come from the task pages."""
    known, examples = commands(get_command(app)), typed(tasks)
    pages = {"index": "Commands\n========\n\nWhat ``captionlab --help`` lists, with every option. Values in "
             "capitals are yours to fill in. An error is one line; ``captionlab --debug COMMAND`` shows its traceback.\n\n"
             ".. toctree::\n   :hidden:\n\n" + "".join(f"   {page_of(name)}\n" for name in known) + "\n"}
    for name, command in known.items():
        mine = [one for one in examples if one.startswith(f"{name} ") or one == name]
        pages[page_of(name)] = command_page(name, command, list(dict.fromkeys(mine))[:4])
        pages["index"] += f":doc:`{name} <{page_of(name)}>`\n   {escape(command.get_short_help_str(200))}\n\n"
    for stale in {path.stem for path in out.glob("*.rst")} - pages.keys():
        (out / f"{stale}.rst").unlink()
    for page, text in pages.items():
        write(out / f"{page}.rst", text)
