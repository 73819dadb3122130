"""Write the pages that come out of the code: each module's API, and where every equation lives."""
import ast
import json
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from textwrap import dedent, indent

import yaml
from convert import BIBLIOGRAPHY, EQUATION, HIDDEN, LABEL, PAPERS, REPOSITORY, cited, directives, notebooks, number, write

CONSTANTS = Path(__file__).with_name("constants.yaml")
COMMAND = re.compile(r"(\w+_)?app\.command\((?:'([\w-]+))?")
LONG = 14  # lines of an example
TAG = re.compile(r"\\tag\{[^}]*\}")

# In backticks these are mostly a command, a column of a file, a run: only with () are they links.
WORDS = {"caption", "scenes", "ensemble", "load", "bench", "faithfulness", "demo", "doctor", "reproduce", "translate",
         "main", "app", "echo", "check", "sample", "heads"}

NAMES = {"human": "*people*", "vanilla": "plain Transformer"}  # in the table of the front page

# What a reader should meet first: names of the package itself, with an example.
EXAMPLES = {"load": 'run = captionlab.load("photos")\nprint(run.caption("me.jpg"))',
            "list_runs": "print(captionlab.list_runs())"}


def public(path: Path) -> dict[str, ast.stmt]:
    """The names a module lists in `__all__`, each with the statement that defines it."""
    body = ast.parse(path.read_text()).body
    defined = {}
    for node in body:
        targets = getattr(node, "targets", [getattr(node, "target", None)])
        defined |= {target.id: node for target in targets if isinstance(target, ast.Name)}
        defined |= {node.name: node} if hasattr(node, "name") else {}
        for base in map(ast.unparse, getattr(node, "bases", ())):
            if base.startswith("_") and base in defined:  # its methods are those of this class, too
                node.body += defined[base].body
    listed = ast.literal_eval(defined["__all__"].value) if "__all__" in defined else []
    return {name: defined[name] for name in listed if name in defined and not name.startswith("_")}


def modules(package: Path) -> dict[str, dict[str, ast.stmt]]:
    """Every module with public names, by its dotted name."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        found[".".join(parts).removesuffix(".__init__")] = public(path)
    return {module: names for module, names in found.items() if names}


def spellings(found: dict[str, dict]) -> dict[str, str]:
    """Each unambiguous way to write a public name: `attend`, `attention.attend`, or all of it."""
    full = [f"{module}.{name}" for module, names in found.items() for name in names]
    tails = [(".".join(one.split(".")[start:]), one)
             for one in full for start in range(one.count(".") + 1)]
    often = Counter(tail for tail, _ in tails)
    unambiguous = {tail: one for tail, one in tails if often[tail] == 1}
    # A public name of a submodule may be written as one of its subpackage, too.
    short = {f"{one.rsplit('.', 2)[0]}.{one.rsplit('.', 1)[1]}": one for one in full if one.count(".") > 2}
    return {module: module for module in found} | short | unambiguous


# ---- the API of each module

def sentence(words: str | None) -> str:
    """The first sentence of a docstring or a comment, on one line."""
    first = " ".join((words or "").split("\n\n")[0].split())
    return re.split(r"(?<=[^.][.:])\s(?=[A-Z`])", first)[0].rstrip(":")


def comment(source: list[str], node: ast.stmt) -> str:
    """The comment above a constant, or behind its first line."""
    above: list[str] = []
    for line in reversed(source[:node.lineno - 1]):
        if not line.startswith("# ") or line.startswith("# %%"):
            break
        above.insert(0, line[2:])
    behind = source[node.lineno - 1].partition("  # ")[2]
    return " ".join(above) or ("" if behind.startswith("noqa") else behind)


def option_help(node: ast.stmt) -> str:
    """The help of an option or a group of commands, which is all that its name stands for."""
    helps = [word.value for word in ast.walk(node) if isinstance(word, ast.keyword) and word.arg == "help"]
    return helps[0].value if helps and isinstance(helps[0], ast.Constant) else ""


def summaries(package: Path, constants: Path) -> dict[str, str]:
    """One line on every public name and module, by its full name; a constant's is in a file, its help or comment."""
    lines = yaml.safe_load(constants.read_text()) if constants.exists() else {}
    for path in sorted(package.rglob("*.py")):
        module = ".".join(path.relative_to(package.parent).with_suffix("").parts).removesuffix(".__init__")
        source = path.read_text().splitlines()
        lines[module] = sentence(ast.get_docstring(ast.parse(path.read_text())))
        for name, node in public(path).items():
            documented = isinstance(node, (ast.ClassDef, ast.FunctionDef))
            own = ast.get_docstring(node) if documented else option_help(node) or comment(source, node)
            words = sentence(own)
            full_stop = "." * (words[-1:] not in ("", ".", "?"))
            lines.setdefault(f"{module}.{name}", words[:1].upper() + words[1:] + full_stop)
    return lines


def pieces(path: Path) -> Iterator[tuple[str, list[ast.AST], bool]]:
    """A file's code piece by piece, its cells or functions: the text, the piece's nodes, whether it may be an example."""
    if path.suffix == ".py":
        text = path.read_text()
        whole = list(ast.walk(ast.parse(text)))
        yield text, whole, False
        yield from ((text, list(ast.walk(node)), True) for node in whole if isinstance(node, ast.FunctionDef))
        return
    for one in json.loads(path.read_text())["cells"]:
        said, code = directives("".join(one["source"])) if one["cell_type"] == "code" else ({}, "")
        with suppress(SyntaxError):  # a command of the notebook
            yield code, list(ast.walk(ast.parse(code))), not (HIDDEN | {"export"}) & said.keys()


def uses(path: Path, module: str, names: dict[str, str]) -> Iterator[tuple[str, bool, tuple]]:
    """The public names that a file uses: full name, whether it is called, and text, piece and node of the use."""
    local: dict[str, str] = {}
    for text, nodes, is_shown in pieces(path):
        for node in nodes:
            if isinstance(node, ast.ImportFrom):
                home = ".".join([*module.split(".")[:-node.level], node.module or ""]) if node.level else node.module
                local |= {one.asname or one.name: names.get(f"{home}.{one.name}", "") for one in node.names}
        called = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
        for node in nodes if is_shown else ():
            own = ""
            if isinstance(node, ast.Name):
                own = local.get(node.id) or names.get(f"{module}.{node.id}", "")
            elif isinstance(node, ast.Attribute) and id(node) in called:
                own = names.get(ast.unparse(node), "")
            name = own.rpartition(".")[2]
            if name and getattr(nodes[0], "name", "") != name and (id(node) in called or name[0].isupper()):
                yield own, id(node) in called, (text, nodes, node)


def excerpt(text: str, nodes: list[ast.AST], use: ast.expr) -> str:
    """The code around a use: the piece if it is short, else the statement, else the line."""
    lines = text.splitlines()
    inside = [one for one in nodes if isinstance(one, ast.stmt) and one.lineno <= use.lineno <= one.end_lineno]
    places = [(getattr(one, "lineno", 1), getattr(one, "end_lineno", len(lines))) for one in (nodes[0], *inside[:-2:-1], use)]
    first, last = next((place for place in places if place[1] - place[0] < LONG), places[-1])
    return dedent("\n".join(lines[first - 1:last]))


def examples(root: Path, modules: dict[str, Path], names: dict[str, str]) -> dict[str, tuple[str, str]]:
    """For each public name where it is used and how: if possible called, in a notebook, else in a test or the library."""
    best: dict[str, tuple] = {}
    lessons = sorted(notebooks(root / "nbs"), key=lambda one: "library" not in one.parts)
    exported = {lesson: module for module, lesson in modules.items()}
    places = [(exported.get(path.relative_to(root / "nbs"), ""), path) for path in lessons if "solutions" not in path.parts]
    places += [("", path) for path in sorted((root / "tests").glob("test_*.py"))]
    places += [(".".join(path.relative_to(root).with_suffix("").parts), path)
               for path in sorted((root / "captionlab").rglob("*.py"))]
    for module, path in places:
        kind = ["nbs", "tests", "captionlab"].index(path.relative_to(root).parts[0])
        for name, is_called, place in uses(path, module, names):
            if name not in best or (not is_called, kind) < best[name][0]:
                best[name] = ((not is_called, kind), path.relative_to(root), excerpt(*place))
    return {name: (f":doc:`/course/{path.relative_to('nbs').with_suffix('')}`" if path.suffix == ".ipynb"
                   else f"`{path} <{REPOSITORY}/blob/main/{path}>`__", code) for name, (_, path, code) in best.items()}


def example(shown: tuple[str, str] | None) -> str:
    """The code of an example below an entry, with its source."""
    return f"\n   Used in {shown[0]}:\n\n   .. code-block:: python\n\n{indent(shown[1], ' ' * 6)}\n" if shown else ""


def entry(module: str, name: str, node: ast.stmt, summary: str = "") -> str:
    """The directive of one public name."""
    if isinstance(node, ast.ClassDef):
        methods = [one.name for one in node.body if isinstance(one, ast.FunctionDef)
                   and ast.get_docstring(one) and not one.name.startswith("_")]
        members = f"   :members: {', '.join(methods)}\n" * bool(methods)
        return f".. autoclass:: {module}.{name}\n{members}"
    if isinstance(node, ast.FunctionDef):
        decorators = " ".join(map(ast.unparse, node.decorator_list))
        if not (command := COMMAND.search(decorators)):
            return f".. autofunction:: {module}.{name}\n"
        page = ((command[1] or "") + (command[2] or name)).replace("_", "-")
        return (f".. py:function:: {name}(...)\n\n   {escape(summary)} "
                f"Its options and examples: :doc:`commands/{page}`.\n")
    code = ast.unparse(node.value)
    # An option and a long constant are told, not printed.
    value = f"   :value: {code}\n" * (len(code) < 70 and "typer." not in code)
    return f".. py:data:: {name}\n{value}\n   {escape(summary)}\n"


def escape(words: str) -> str:
    """Plain words as reStructuredText: outside backticks, no character is markup."""
    parts = re.split(r"(`+[^`]+`+)", words)
    # What follows a literal is divided from it, as in `Object`s.
    return "".join(f"``{part.strip('`')}``\\ " if part[:1] == "`" else re.sub(r"[*|_\\]", r"\\\g<0>", part)
                   for part in parts)


def taught(nbs: Path) -> dict[str, Path]:
    """Which notebook exports each module."""
    found = {}
    for path in notebooks(nbs):
        for one in json.loads(path.read_text())["cells"]:
            said = directives("".join(one["source"]))[0] if one["cell_type"] == "code" else {}
            if name := said.get("default_exp"):
                found[f"captionlab.{name}".removesuffix(".__init__")] = path.relative_to(nbs)
    return found


def module_page(module: str, names: dict[str, ast.stmt], lesson: Path | None, lines: dict[str, str],
                shown: dict[str, tuple[str, str]]) -> str:
    """One page of the reference."""
    title = f"``{module}``"
    about = f"{escape(lines[module])}\n\n" if lines.get(module) else ""
    kind = "module notebook" if lesson and lesson.parts[0] == "library" else "lesson"
    built = f"Built step by step in the {kind} :doc:`/course/{lesson.with_suffix('')}`.\n\n" if lesson else ""
    return (f"{title}\n{'=' * len(title)}\n\n{about}{built}.. py:module:: {module}\n\n"
            + "\n".join(entry(module, name, node, lines.get(f"{module}.{name}", ""))
                        + example(shown.get(f"{module}.{name}")) for name, node in names.items()))


def package_page(package: Path) -> str:
    """The page of the names that `import captionlab` gives, the first with examples."""
    listed = re.search(r"^__all__ = (\[.*?\])", (package / "__init__.py").read_text(), re.M | re.S)
    own = [name for name in ast.literal_eval(listed[1]) if not (package / name).exists()] if listed else []
    title = f"``{package.name}``"
    text = (f"{title}\n{'=' * len(title)}\n\nThe names of the package itself. They are imported when "
            f"they are first used.\n\n.. py:module:: {package.name}\n\n")
    for name in sorted(own, key=[*EXAMPLES, *own].index):
        text += f".. autofunction:: {package.name}.{name}\n\n"
        if name in EXAMPLES:
            code = f"import captionlab\n{EXAMPLES[name]}"
            text += f"   .. code-block:: python\n\n{indent(code, ' ' * 6)}\n\n"
    return text


def api_index(found: dict[str, dict], lines: dict[str, str] | None = None, own: str = "") -> str:
    """The reference's first page: every module with its names, each with one line."""
    lines = lines or {}
    rows, part = "", ""
    for module, names in found.items():
        if (area := module.split(".")[1] if module.count(".") > 1 else "") != part:
            part = area
            rows += f".. rubric:: captionlab.{area}\n   :heading-level: 2\n\n" if area else ""
        rows += f":py:mod:`{module}`\n   {escape(lines.get(module, ''))}\n\n"
        for name in names:
            words = lines.get(f"{module}.{name}", "")
            rows += f"   - :py:obj:`{name} <{module}.{name}>`" + f": {escape(words)}" * bool(words) + "\n"
        rows += "\n"
    own_page = f"   {own} <{own}>\n" * bool(own)
    pages = own_page + "".join(f"   {module.removeprefix('captionlab.')} <{module}>\n" for module in found)
    start = (f"Begin with :py:obj:`captionlab.load`, which loads a trained model; the other names of the package "
             f"itself are on :doc:`its page <{own}>`.\n\n") if own else ""
    return ("Library reference\n=================\n\nEvery public name of every module, as in "
            f"``from captionlab.attention import attend``. {start}\n\n"
            f".. toctree::\n   :hidden:\n\n{pages}\n{rows}")


# ---- what was measured

def measured(results: Path) -> str:
    """CIDEr of the papers' models, published and ours, for the front page; without results only the table's head."""
    from captionlab.runs.results import load_result
    best: dict[str, tuple[float, str]] = {}
    for path in results.glob("*.json"):
        name = path.stem.partition("-squeezenet-")
        if path.stem != "human" and (name[2] not in ("xe", "scst") or "-" in name[0]):
            continue
        one = load_result(str(path))
        reached = mean(run["metrics"]["CIDEr"] for run in one["runs"])
        words = f"{reached:.1f}" + " (without rewards)" * (name[2] == "xe")
        best[one["model"]] = max(best.get(one["model"], (0.0, "")), (reached, words))
    published = {one["model"]: one for one in BIBLIOGRAPHY if "model" in one}
    rows = [f"| {cited(published[model], short=True) if model in published else NAMES.get(model, model)} "
            f"| {published.get(model, {}).get('cider', '')} | {words} |"
            for model, (_, words) in sorted(best.items(), key=lambda item: -item[1][0])]
    return "\n".join(["| model | published, on COCO | ours, on Flickr8k |", "| --- | ---: | ---: |", *rows]) + "\n"


# ---- where each equation lives

@dataclass
class Equation:
    """A published equation: the lesson it stands in, what implements it, what checks it."""
    label: str
    lesson: str = ""
    formula: str = ""
    implements: list[str] = field(default_factory=list)
    checks: list[str] = field(default_factory=list)


def defined(code: str) -> list[str]:
    """The functions and classes that a cell defines."""
    return re.findall(r"^(?:def|class) ([A-Za-z]\w*)", code, re.M)


def equations(nbs: Path, tests: Path, names: dict[str, str]) -> dict[str, Equation]:
    """Every label of the notebooks, with links to its code and its checks."""
    found: dict[str, Equation] = {}
    for path in notebooks(nbs):
        page = path.relative_to(nbs).with_suffix("").as_posix()
        for one in json.loads(path.read_text())["cells"]:
            note(found, page, one["cell_type"], "".join(one["source"]), names)
    for path in sorted(tests.glob("test_*.py")):
        for label in sorted(set(LABEL.findall(path.read_text())) & found.keys()):
            found[label].checks.append(f"{{doc}}`tests/{path.name} <tests/{path.stem}>`")
    return found


def note(found: dict[str, Equation], page: str, kind: str, source: str,
         names: dict[str, str]) -> None:
    """Enter what one cell says of equations."""
    if kind == "markdown":
        for match in EQUATION.finditer(source):
            for label in LABEL.findall(match[2]):
                one = found.setdefault(label, Equation(label))
                one.lesson, one.formula = page, TAG.sub("", match[1]).strip()
        return
    said, code = directives(source)
    for label in LABEL.findall(said.get("implements", "")):
        api = [f"{{py:obj}}`{name} <{names[name]}>`" for name in defined(code) if name in names]
        links = api or [f"[lesson cell](#implements-{label})"]
        found.setdefault(label, Equation(label)).implements += links
    for label in LABEL.findall(said.get("checks", "")):
        found.setdefault(label, Equation(label)).checks.append(f"[lesson cell](#checks-{label})")


def problems(found: dict[str, Equation]) -> list[str]:
    """What is missing: an equation without its place, its code or its check."""
    wanted = {"lesson": "stands in no lesson", "implements": "has no implementation",
              "checks": "has no check"}
    return [f"{one.label} {words}" for one in found.values()
            for part, words in wanted.items() if not getattr(one, part)]


def equations_page(found: dict[str, Equation]) -> str:
    """Paper by paper: equation, lesson, function, check."""
    text = ("# Equations\n\nEvery published equation that the course builds: "
            "where it stands, what implements it, what checks it.\n")
    papers = {label.split("-")[1] for label in found}
    for paper in [*(known for known in PAPERS if known in papers), *sorted(papers - PAPERS.keys())]:
        mine = [one for one in found.values() if one.label.split("-")[1] == paper]
        about = PAPERS.get(paper)
        text += f"\n## {about['short']}\n\n{cited(about)}\n\n" if about else f"\n## {paper}\n\n"
        text += "\n".join(block(one) for one in sorted(mine, key=natural))
    return text


def papers_page(nbs: Path) -> str:
    """The bibliography: the papers of the course, each with its lessons."""
    text = ("---\nfind: papers, bibliography, references, literature, citations\n---\n# Papers\n\nThe papers that the lessons build, measure or name. A lesson's own papers stand under "
            "its title, too; their equations are in the [table of equations](equations.md).\n")
    parts = {"The five systems": BIBLIOGRAPHY[:5], "All others": BIBLIOGRAPHY[5:]}
    for part, rows in parts.items():
        text += f"\n## {part}\n\n"
        for one in sorted(rows, key=lambda row: row["by"]) if part == "All others" else rows:
            pages = [path.name for number in one.get("lessons", ()) for path in nbs.glob(f"{number}_*.ipynb")]
            lessons = ", ".join(f"[lesson {page.split('_')[0]}](../course/{page})" for page in pages)
            also = f" ([arXiv]({one['also']}))" if "also" in one else ""
            text += f"- {cited(one)}{also}" + f" · {lessons}" * bool(lessons) + "\n"
    return text


def natural(one: Equation) -> list:
    """Sort key in which 10 follows 9."""
    parts = re.split(r"(\d+)", one.label)
    return [(int(part), "") if part.isdigit() else (0, part) for part in parts]


def block(one: Equation) -> str:
    """One equation: its number and lesson, its formula, its code and its checks."""
    code, checks = (", ".join(dict.fromkeys(links)) for links in (one.implements, one.checks))
    number_of_lesson = re.match(r"\d+", Path(one.lesson).name)
    title = f"lesson {number_of_lesson[0]}" if number_of_lesson else Path(one.lesson).name
    lesson = f"{{doc}}`{title} </course/{one.lesson}>`"
    return (f"**[{number(one.label)}](#{one.label})** · {lesson} · implemented by {code} · "
            f"checked by {checks}\n\n$$\n{one.formula}\n$$\n")


def test_page(path: Path) -> str:
    """A test file as a page, so that the equations can link to it."""
    title = f"tests/{path.name}"
    return (f":orphan:\n\n{title}\n{'=' * len(title)}\n\n"
            f".. literalinclude:: ../../../tests/{path.name}\n   :linenos:\n")


def reference(root: Path, out: Path) -> dict[str, str]:
    """Write all generated pages into out/; the spellings of public names come back."""
    found = modules(root / "captionlab")
    names, lessons = spellings(found), taught(root / "nbs")
    known = equations(root / "nbs", root / "tests", names)
    if missing := problems(known):
        raise ValueError("; ".join(missing))
    lines = summaries(root / "captionlab", CONSTANTS)
    shown = examples(root, lessons, names)
    pages = {f"{module}.rst": module_page(module, own, lessons.get(module), lines, shown)
             for module, own in found.items()}
    package = {"captionlab.rst": package_page(root / "captionlab")}
    package = package if ".. autofunction" in package["captionlab.rst"] else {}
    pages |= package | {"equations.md": equations_page(known), "papers.md": papers_page(root / "nbs"),
                        "index.rst": api_index(found, lines, "captionlab" * bool(package))}
    checks = " ".join(check for one in known.values() for check in one.checks)
    pages |= {f"tests/{path.stem}.rst": test_page(path)
              for path in (root / "tests").glob("test_*.py") if f"tests/{path.stem}>" in checks}
    for stale in {path.relative_to(out).as_posix() for path in out.rglob("*.*")
                  if "commands" not in path.parts} - pages.keys():
        (out / stale).unlink()
    for page, text in pages.items():
        write(out / page, text)
    return {spelling: name for spelling, name in names.items() if spelling not in WORDS}
