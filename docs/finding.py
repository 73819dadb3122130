"""What the search page reads: pages and their parts, public names, options, terms; prose only."""
import json
import re
from pathlib import Path
from textwrap import shorten

from docutils import nodes
from sphinx import addnodes

# Which kind of page an address is; the search page ranks by it.
KINDS = [("tests", "api/tests/"), ("solution", "course/solutions/"), ("notebook", "course/library/"),
         ("lesson", "course/"), ("command", "api/commands/"),
         ("inner", "api/captionlab.cli"), ("module", "api/captionlab"), ("task", "tasks/"),
         ("page", "")]
SILENT = (nodes.math, nodes.math_block, nodes.raw, nodes.literal_block, nodes.comment, nodes.image)
WORD = re.compile(r"[a-zA-Z][a-zA-Z0-9]+")
ASIDE = {"sources", "tie", "solutions", "paper"}


def words(node: nodes.Node) -> str:
    """The text of a node on one line, without formulas and code boxes."""
    if isinstance(node, nodes.Text):
        return node.astext()
    if isinstance(node, SILENT):
        return ""
    glue = "" if isinstance(node, nodes.TextElement) else " "
    return re.sub(r"\s+", " ", glue.join(map(words, node.children)))


def opening(node: nodes.Element) -> str:
    """The first words of a part: its first paragraph that says something."""
    prose = (one for one in node.findall(nodes.paragraph) if not ASIDE & set(one["classes"]))
    return shorten(next((text for text in map(words, prose) if len(text) > 25), ""), 170, placeholder=" …")


def parts(doctree: nodes.document) -> list[tuple[str, ...]]:
    """Anchor, title, first words and parameters of every section, public name, option and term of a page."""
    found = []
    for node in doctree.findall(nodes.Element):
        if isinstance(node, nodes.section):
            inside = [one for one in node.children[1:] if not isinstance(one, nodes.section)]
            found.append((node["ids"][0], words(node[0]), opening(nodes.container("", *(one.deepcopy() for one in inside)))))
        elif isinstance(node, addnodes.desc) and node["objtype"] != "module":
            for line in node.findall(addnodes.desc_signature):
                if line.parent is node and line["ids"]:
                    named = line["ids"][0] if node["domain"] == "py" else words(line)
                    given = " ".join(one[0].astext() for one in line.findall(addnodes.desc_parameter))
                    found.append((line["ids"][0], named, opening(node[-1]), *[given] * bool(given)))
        elif isinstance(node, nodes.definition_list_item) and isinstance(node[0], nodes.term) and node[0]["ids"]:
            found.append((node[0]["ids"][0], words(node[0]), opening(node)))
    return found


def write_index(app, terms) -> None:
    """Write search.json: [page, anchor, title, words, parameters] of each part, and the pages of each word."""
    env, pages, entries, places = app.env, [], [], {}
    for docname in sorted(env.found_docs):
        doctree = env.get_doctree(docname)
        kind = next(kind for kind, start in KINDS if docname.startswith(start))
        keys = [one.term.lower() for one in terms
                if kind == "lesson" and docname.startswith(f"course/{one.lesson}_")]
        keys += [key.strip() for key in env.metadata[docname].get("find", "").split(",") if key.strip()]
        title, *others = parts(doctree) if kind != "tests" else [("", env.titles[docname].astext(), "")]
        pages.append([docname, kind, keys])
        entries += [[len(pages) - 1, *one] for one in [("", *title[1:]), *others]]
        for word in {word.lower() for word in WORD.findall(words(doctree))} if kind != "tests" else ():
            places.setdefault(word, []).append(len(pages) - 1)
    known = {word: rows for word, rows in places.items() if len(rows) < len(pages) / 3 and len(word) < 18}
    out = json.dumps({"pages": pages, "entries": entries, "words": known}, separators=(",", ":"), ensure_ascii=False)
    (Path(app.outdir) / "search.json").write_text(out)
