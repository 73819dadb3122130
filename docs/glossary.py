"""The glossary: a page made from glossary.yaml, and links to it at first uses in the lessons."""
import re
from dataclasses import dataclass
from pathlib import Path

import yaml

# What is never linked: fences, directives, headings, HTML, formulas, images and links, code.
PASSED = (r"^(?P<fence>`{3,}|~{3,}).*?^(?P=fence)|^:{3,}.*?$|^#+ .*?$|^<.*?$|<!--.*?-->|<[^>\n]+>"
          r"|\$\$.*?\$\$|\$[^$\n]+\$|!?\[[^\]]*\](?:\([^)]*\))?|(?P<ticks>`+).+?(?P=ticks)"
          # names of other things, in which a term is only a word
          r"|Attention Is All You Need|Mask R-CNN|[Gg]round truth|[Ss]cheduled\W* sampling")
HEADER = """# Glossary

Every term of the field that the course uses, in one sentence each, with the lesson that introduces
it. In the lessons, the first use of a term leads here, and shows its sentence when the pointer
rests on it.

"""


@dataclass(frozen=True)
class Entry:
    """A term: its meaning, the lesson that introduces it, and the forms that are linked."""
    term: str
    lesson: str
    means: str
    forms: tuple[str, ...]


def read_glossary(path: Path) -> tuple[Entry, ...]:
    """The entries of glossary.yaml."""
    rows = yaml.safe_load(path.read_text())
    plural = [(row["term"], row["term"] + "s") for row in rows]
    return tuple(Entry(row["term"], row["lesson"], row["means"], tuple(row.get("forms", usual)))
                 for row, usual in zip(rows, plural, strict=True))


def form_pattern(form: str) -> str:
    """An expression for one form as a whole word; the case counts if the form has a capital."""
    words = re.escape(form)
    return rf"(?<![\w-]){words if form != form.lower() else f'(?i:{words})'}(?![\w-])"


def lesson_link(number: str, pages: frozenset[str]) -> str:
    """A link to a lesson, from a page beside the course; without the lesson its number."""
    found = [page for page in sorted(pages) if page.split("_")[0] == number]
    return f"[Lesson {number}](../course/{found[0]})" if found else f"Lesson {number}"


def glossary_page(entries: tuple[Entry, ...], pages: frozenset[str]) -> str:
    """The page of all terms, in alphabetical order."""
    ordered = sorted(entries, key=lambda one: one.term.lower())
    rows = (f"{one.term}\n  {one.means} {lesson_link(one.lesson, pages)}.\n" for one in ordered)
    body = "\n".join(rows)
    return f"{HEADER}```{{glossary}}\n{body}```\n"


class TermLinks:
    """Links the first use of each term in the prose of one lesson."""

    def __init__(self, entries: tuple[Entry, ...]) -> None:
        self.terms = {form.lower(): one.term for one in entries for form in one.forms}
        forms = sorted((form for one in entries for form in one.forms), key=len, reverse=True)
        uses = "|".join(form_pattern(form) for form in forms)
        self.pattern = re.compile(f"{PASSED}|(?P<use>{uses})", re.S | re.M)
        self.linked: set[str] = set()

    def __call__(self, source: str) -> str:
        """A markdown cell with links at first uses."""
        return self.pattern.sub(self.link, source)

    def link(self, match: re.Match) -> str:
        """One use as a reference, if it is the first of its term."""
        term = self.terms.get((match["use"] or "").lower())
        if term is None or term in self.linked:
            return match[0]
        self.linked.add(term)
        return f"{{term}}`{match[0]}`" if match[0] == term else f"{{term}}`{match[0]} <{term}>`"
