"""Turn the course's notebooks into what MyST-NB reads: nbdev's directives become pages."""
import json
import posixpath
import re
from dataclasses import dataclass
from pathlib import Path

import yaml
from glossary import PASSED, Entry, TermLinks

BIBLIOGRAPHY = yaml.safe_load(Path(__file__).with_name("papers.yaml").read_text())
PAPERS = {one["equations"]: one for one in BIBLIOGRAPHY if "equations" in one}
DIRECTIVE = re.compile(r"^\s*#\s*\|\s*([\w-]*)\s*:?\s*(.*?)\s*$")
QUOTED = re.compile(r"""^(["'])(.*)\1$""")
EQUATION = re.compile(r"\$\$((?:(?!\$\$).)+)\$\$((?:\s*<!--\s*eq-[\w-]+\s*-->)+)", re.S)
LABEL = re.compile(r"eq-\w+-[\w-]*\w")
METRICS = {"bleu": "BLEU", "rouge": "ROUGE", "cider": "CIDEr", "meteor": "METEOR", "spice": "SPICE", "ter": "TER"}
BOX = re.compile(r"^> \*\*(Differs from the paper|Predict|Note|Warning)\.\*\*"
                 r"((?:.*\n)?(?:.+\n?)*)", re.M)
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s#]+\.ipynb)(#[^)]*)?\)")
# Fences, headings, formulas, links, doubled backticks are passed over; single backticks looked up.
NAME = re.compile(r"^(`{3,}|~{3,}).*?^\1|^#+ .*?$|\$\$.*?\$\$|\[[^\]]*\]\([^)]*\)|``.+?``"
                  r"|`([\w.]+)(?:\(\))?`", re.S | re.M)
BOX_CLASS = {"Differs from the paper": "differs", "Predict": "predict",
             "Note": "note", "Warning": "warning"}
# A lesson's number in prose, which is no part of a link, a heading or code.
LESSON = re.compile(rf"{PASSED}|\b(?P<words>[Ll]esson (?P<number>\d\d[a-z]?))\b", re.S | re.M)
HIDDEN = {"hide", "default_exp"}
QUESTION = re.compile(r"^(captionlab\.course\.)?(predict|review)\(")
# Around a text that answers a prediction; on the page a script folds it.
ANSWER = re.compile(r"<details class=\"cl-answer\"><summary>.*?</summary>\n\n(.*?)\n\n</details>", re.S)
ANSWERED = re.compile(r"\(lesson (\d\d[a-z]?)\b")
ATTACHED = re.compile(r"\]\(attachment:([\w-]+)\.png\)")     # the PNG of an SVG in nbs/images
DIAGRAM = re.compile(r"!\[(.*)\]\(images/([\w-]+)\.svg\)\n\n\*(.*)\*")
WIDGET = "application/vnd.jupyter.widget-view+json"
REPOSITORY = "https://github.com/captionlab/captionlab"
COLAB = "https://colab.research.google.com/github/captionlab/captionlab/blob/main/nbs"
KAGGLE = f"https://www.kaggle.com/kernels/welcome?src={REPOSITORY}/blob/main/nbs"
LOOKS = [("echo", "false", "remove-input"), ("code-fold", "true", "hide-input")]


@dataclass(frozen=True)
class Course:
    """What a page knows of the rest: public names as prose may write them, notebooks, glossary."""
    names: dict[str, str]
    pages: frozenset[str]
    glossary: tuple[Entry, ...] = ()


def directives(source: str) -> tuple[dict[str, str], str]:
    """A code cell's directives, and the code that readers see."""
    found, code = {}, []
    for line in source.splitlines():
        if match := DIRECTIVE.match(line):
            found[match[1]] = ", ".join(filter(None, (found.get(match[1]), match[2])))
        else:
            code.append(line)
    found = {key: QUOTED.sub(r"\2", value).replace('\\"', '"') for key, value in found.items()}
    return found, "\n".join(code).strip("\n")


def equation(match: re.Match) -> str:
    """A formula that keeps its paper's number; links find it by its labels."""
    targets = "".join(f"({label})=\n" for label in LABEL.findall(match[2]))
    return f"\n{targets}\\begin{{equation*}}\n{match[1].strip()}\n\\end{{equation*}}\n"


def box(match: re.Match) -> str:
    """A blockquote that opens with a known title becomes an admonition."""
    body = re.sub(r"^> ?", "", match[2], flags=re.M).strip()
    return f":::::{{admonition}} {match[1]}\n:class: {BOX_CLASS[match[1]]}\n{body}\n:::::\n"


def link(match: re.Match, page: str, course: Course) -> str:
    """A link to a notebook; to a wrong name it is an error."""
    if posixpath.normpath(posixpath.join(posixpath.dirname(page), match[2])) not in course.pages:
        raise ValueError(f"nbs/{page} links to {match[2]}, which does not exist; correct the name")
    return match[0]


def lesson(match: re.Match, page: str, course: Course) -> str:
    """A lesson's number becomes a link to the lesson, except on its own page."""
    own = [one for one in course.pages if one.split("_")[0] == match["number"]]
    up = "../" * page.count("/")
    return f"[{match['words']}]({up}{own[0]})" if own and own[0] != page else match[0]


def name(match: re.Match, course: Course) -> str:
    """A public name in backticks becomes a link to the API reference."""
    full = course.names.get(match[2] or "")
    return f"{{py:obj}}`{match[0].strip('`')} <{full}>`" if full else match[0]


def markdown(source: str, page: str, course: Course, terms: TermLinks | None = None) -> str:
    """A markdown cell with its equations, boxes, links, names and terms made into references."""
    source = NAME.sub(lambda match: name(match, course), source)
    source = LINK.sub(lambda match: link(match, page, course), source)
    source = LESSON.sub(lambda match: lesson(match, page, course), source)
    source = terms(source) if terms else source
    return BOX.sub(box, EQUATION.sub(equation, source))


def cell(kind: str, source: str, **more) -> dict:
    """One notebook cell."""
    outputs = {"execution_count": None, "outputs": []} if kind == "code" else {}
    return {"cell_type": kind, "metadata": {}, "source": source} | outputs | more


def paper(label: str) -> str:
    """The words that name an equation's paper, or nothing for a paper that is not listed."""
    one = PAPERS.get(label.split("-")[1])
    return f" of {one['short']}" if one else ""


def number(label: str) -> str:
    """An equation's number as its paper prints it, or the name it goes by; with the metric's, since lesson 16 has six papers."""
    _, paper, own = label.split("-", 2)
    if not own[0].isdigit():
        return own
    return f"({METRICS[paper]} {own})" if paper in METRICS else f"({own})"


def ties(found: dict[str, str]) -> list[dict]:
    """A line above a cell that says which equation it implements or checks."""
    pairs = [(verb, label) for verb in ("implements", "checks")
             for label in LABEL.findall(found.get(verb, ""))]
    targets = "".join(f"({verb}-{label})=\n" for verb, label in pairs)
    links = " · ".join(f"[{verb} eq. {number(label)}{paper(label)}](#{label})"
                       for verb, label in pairs)
    return [cell("markdown", f"{targets}{{.tie}}\n{links}")] if pairs else []


def figure(output: dict, found: dict[str, str], place: str) -> dict:
    """The cell that shows a captioned figure."""
    caption = found.get("fig-cap", "")
    named = {"name": found["label"], "caption": f"**Figure {place}.** {caption}"}
    options = {"figure": named, "image": {"alt": caption}}
    return cell("code", f"# {found['label']}",  # not shown, but MyST-NB skips empty cells
                outputs=[output], metadata={"tags": ["remove-input"], "mystnb": options})


def diagram(name: str, words: str, caption: str) -> str:
    """A diagram of nbs/images as a figure; the words describe it."""
    return (f":::::{{figure}} images/{name}.svg\n:name: fig-{name}\n"
            f":alt: {json.dumps(words, ensure_ascii=False)}\n\n{caption}\n:::::")


def still(output: dict) -> dict:
    """An output as a page without a kernel shows it: of widgets, the picture that stands beside them."""
    return output | {"data": {kind: x for kind, x in output["data"].items() if kind != WIDGET}} if "data" in output else output


def linked(output: dict, course: Course) -> dict:
    """An output; in the answers to a review's questions the lessons' numbers become links."""
    data = output.get("data", {})
    words = "".join(data.get("text/html", ""))
    if "cl-review" not in words:
        return output
    pages = {page.split("_")[0]: page for page in course.pages if "/" not in page}
    link = lambda found: (found[0] if found[1] not in pages else  # noqa: E731
                          f'(<a href="{pages[found[1]].removesuffix(".ipynb")}.html">lesson {found[1]}</a>')
    return output | {"data": data | {"text/html": ANSWERED.sub(link, words)}}


def code(source: str, outputs: list[dict], place: str) -> list[dict]:
    """The cells a code cell becomes: none if hidden, two if it draws a labelled figure."""
    found, shown = directives(source)
    if HIDDEN & found.keys() or not (shown or outputs):
        return []
    outputs = [] if found.get("output") == "false" else [still(out) for out in outputs]
    pictures = [out for out in outputs if out.get("data", {}).keys() - {"text/plain"}]
    drawn = pictures[-1:] if "label" in found else []
    tags = [tag for key, value, tag in LOOKS if found.get(key) == value]
    if QUESTION.match(shown):  # the page shows the question itself
        tags = ["remove-input"]
    prompts = {"code_prompt_show": found.get("code-summary", "Show the code"),
               "code_prompt_hide": "Hide the code",
               "image": {"alt": found.get("fig-cap") or found.get("code-summary") or "What the code above draws"}}
    shown = cell("code", shown, outputs=[out for out in outputs if out not in drawn],
                 metadata={"tags": tags, "mystnb": prompts})
    return [*ties(found), shown, *(figure(out, found, place) for out in drawn)]


def notebook(raw: dict, page: str, course: Course) -> dict:
    """A whole notebook as MyST-NB reads it; figures are numbered lesson.figure."""
    cells, figures = [], 0
    terms = TermLinks(course.glossary) if "/" not in page else None
    for old in raw["cells"]:
        source = "".join(old["source"])
        if old["cell_type"] == "code":
            outputs = [linked(out, course) for out in old["outputs"]]
            new = code(source, outputs, figure_number(page, figures + 1))
            figures += any("figure" in one["metadata"].get("mystnb", {}) for one in new)
        else:
            source = ATTACHED.sub(r"](images/\1.svg)", ANSWER.sub(r"\1", source))
            if drawn := DIAGRAM.fullmatch(source):
                figures += 1
                words, name, caption = drawn.groups()
                caption = f"**Figure {figure_number(page, figures)}.** {markdown(caption, page, course)}"
                new = [cell("markdown", diagram(name, words, caption))]
            else:
                new = [cell("markdown", markdown(titled(source, page), page, course, terms))]
        cells += new
    cells[1:1] = [*sources(page), *papers(page), *index_entries(page, course.glossary)]
    cells += ending(cells, page, course)
    # A notebook without a kernel's name is in Python, too, and is highlighted as such.
    metadata = {"language_info": {"name": "python"}} | raw["metadata"]
    metadata.pop("widgets", None)
    return raw | {"metadata": metadata, "cells": [one | {"id": f"cell-{i}"} for i, one in enumerate(cells)]}


def titled(source: str, page: str) -> str:
    """The title of a library notebook names its module, as two may be called Text; a lesson's is followed by the lesson."""
    module = page.removeprefix("library/").removesuffix(".ipynb").replace("/", ".")
    if page.startswith("library/"):
        return re.sub(r"\A# (.+)", rf"# \1 (`{module}`)", source)
    return re.sub(r"\A(# .+\n)\n> .+\n", r"\1", source)  # the docstring of its module


def figure_number(page: str, count: int) -> str:
    """The number of a figure: lesson.figure in a lesson, its count in a library notebook."""
    lesson = re.match(r"(\d+)([a-z]?)", Path(page).name)
    return f"{int(lesson[1])}{lesson[2]}.{count}" if lesson else str(count)


def sources(page: str) -> list[dict]:
    """Below a lesson's title: where it can be run, downloaded and edited."""
    if "/" in page:
        return []
    up = "../" * 2
    return [cell("markdown", " · ".join([
        f"{{.sources}}\n[Run in Colab]({COLAB}/{page})",
        f"[Run in Kaggle]({KAGGLE}/{page})",
        f"{{download}}`Download the notebook <{up}nbs/{page}>`",
        f"[Edit]({REPOSITORY}/edit/main/nbs/{page})",
    ]))]


def cited(one: dict, with_title: bool = True, short: bool = False) -> str:
    """A paper as a link to where it can be read."""
    words = one["short"] if short else f"{one['by']}, *{one['title']}*" if with_title else one["by"]
    return f"[{words}]({one['url']})" if "url" in one else words


def papers(page: str) -> list[dict]:
    """Below a lesson's title: the papers that it is about."""
    mine = [one for one in BIBLIOGRAPHY if page.split("_")[0] in one.get("lessons", ()) and "/" not in page]
    links = " · ".join(cited(one, len(mine) < 4) for one in mine)
    return [cell("markdown", f"{{.paper}}\n{'Papers' if len(mine) > 1 else 'Paper'}: {links}")] if mine else []


def index_entries(page: str, glossary: tuple[Entry, ...]) -> list[dict]:
    """The terms that a lesson introduces, as main entries of the index: the search finds it by them."""
    own = [one.term for one in glossary if page.split("_")[0] == one.lesson and "/" not in page]
    marked = ", ".join(f"! {term}" for term in own)
    return [cell("markdown", f"```{{index}} {marked}\n```")] if own else []


def ending(cells: list[dict], page: str, course: Course) -> list[dict]:
    """The way to a lesson's solutions, unless the lesson shows it itself."""
    target = f"solutions/{page}"
    shown = any(f"]({target}" in one["source"] for one in cells)
    line = cell("markdown", f"{{.solutions}}\n[Worked solutions of the exercises]({target})")
    return [line] if target in course.pages and not shown else []


def notebooks(nbs: Path) -> list[Path]:
    """Lessons, their solutions and library notebooks, in this order."""
    patterns = ("[0-9]*.ipynb", "solutions/[0-9]*.ipynb", "library/**/*.ipynb")
    return [path for pattern in patterns for path in sorted(nbs.glob(pattern))]


def notebook_pages(nbs: Path) -> frozenset[str]:
    """Every notebook of the site, as a path below nbs/."""
    return frozenset(str(path.relative_to(nbs)) for path in notebooks(nbs))


def convert(nbs: Path, out: Path, names: dict[str, str], glossary: tuple[Entry, ...] = ()) -> None:
    """Convert every notebook under nbs/ into out/, and drop pages of notebooks that are gone."""
    course = Course(names, notebook_pages(nbs), glossary)
    for stale in {str(path.relative_to(out)) for path in out.rglob("*.ipynb")} - course.pages:
        (out / stale).unlink()
    for page in sorted(course.pages):
        write(out / page, json.dumps(notebook(json.loads((nbs / page).read_text()), page, course)))
    for image in (nbs / "images").glob("*.svg"):
        write(out / "images" / image.name, image.read_text())


def write(path: Path, text: str) -> None:
    """Write a page only if it changed, so that Sphinx reads again only what it must."""
    if not path.exists() or path.read_text() != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
