"""The site: the course's notebooks with their outputs, and the reference, all of it offline."""
import importlib.metadata
import re
import subprocess
import sys
from html import escape, unescape
from inspect import getsourcefile, getsourcelines, unwrap
from pathlib import Path
from textwrap import shorten

from docutils import nodes

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(HERE), str(ROOT)]

import convert  # noqa: E402
import finding  # noqa: E402
import glossary  # noqa: E402
import live_parts  # noqa: E402
import reference  # noqa: E402
import teaching  # noqa: E402

project = "captionlab"
author = "The captionlab authors"
copyright = "2026 onwards, The captionlab authors"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.linkcode",
              "sphinx_copybutton", "formulas"]
html_math_renderer = "mathml"
exclude_patterns = ["_build", "api/measured.md"]
nitpicky = True
# Only our own names have a page here; torch's and Python's have not.
# Nor have our private classes and type variables.
nitpick_ignore_regex = [("py:.*", r"(?!captionlab\b).*"), ("py:class", r"captionlab\..*\._[A-Z]\w*")]

# notebooks: outputs are committed, nothing is executed
nb_execution_mode = "off"
nb_merge_streams = True
nb_render_markdown_format = "myst"  # tables in outputs are tables
nb_ipywidgets_js = {}
myst_enable_extensions = ["amsmath", "attrs_block", "attrs_inline", "colon_fence", "dollarmath"]
myst_heading_anchors = 3

# reference
default_role = "code"
add_module_names = False
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 72
napoleon_use_ivar = True
napoleon_custom_sections = [("Source", "returns_style")]

# copied code has no prompts and no outputs
copybutton_prompt_text = r"\$ |>>> "
copybutton_prompt_is_regexp = True
copybutton_selector = "div.cell_input div.highlight pre, div.highlight-python pre, div.highlight-bash pre"

# pages
REPOSITORY = convert.REPOSITORY
html_baseurl = "https://captionlab.github.io/captionlab/"  # canonical addresses, cards, sitemap
release = importlib.metadata.version("captionlab")
TAGLINE = "How a Transformer looks at a picture and writes a sentence about it: a course and a library."
CARD = "_static/demo.png"
html_theme = "sphinx_book_theme"
html_title = "captionlab"
templates_path = ["_templates"]
html_static_path = ["_static"]
html_extra_path = ["_extra"]
html_css_files = ["captionlab.css"]
html_js_files = ["choices.js", "predict.js", "review.js", "accessible.js"]
TAGS = subprocess.run(["git", "tag", "--list", "v*"], cwd=ROOT, capture_output=True, text=True, check=False)
html_context = {"default_mode": "auto", "html_baseurl": html_baseurl, "versions": ["main", *reversed(TAGS.stdout.split())]}
html_sidebars = {"**": ["navbar-logo.html", "version.html", "icon-links.html", "search-button-field.html", "sbt-sidebar-nav.html"]}
html_additional_pages = {"search": "search.html"}
html_favicon = LOGO = "_static/logo.svg"
html_copy_source = False
html_theme_options = {
    "logo": {"text": "captionlab", "image_light": LOGO, "image_dark": LOGO},
    "repository_url": REPOSITORY,
    "use_repository_button": True,
    "home_page_in_toc": True,
    "show_toc_level": 2,
    "collapse_navbar": True,
    "use_issues_button": True,
    "use_download_button": False,
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
    "footer_content_items": "copyright.html",
}

SPELLINGS: dict[str, str] = {}
MEANINGS: dict[str, str] = {}  # of the glossary's terms
FETCHED = re.compile(r'<(?:script|link(?! rel="canonical")|img|source)\b[^>]*?\b(?:src|href)="(?:https?:)?//[^"]*'
                     r"|@import[^;]*//")


def generate(app) -> None:
    """Write docs/api and docs/course before Sphinx looks for pages."""
    SPELLINGS.update(reference.reference(ROOT, HERE / "api"))
    convert.write(HERE / "api/measured.md", reference.measured(ROOT / "results/flickr8k"))
    terms = glossary.read_glossary(HERE / "glossary.yaml")
    MEANINGS.update({one.term: one.means for one in terms})
    if (ROOT / "captionlab/cli").exists():
        import commands
        commands.command_reference(HERE / "tasks", HERE / "api/commands")
    pages = convert.notebook_pages(ROOT / "nbs")
    convert.write(HERE / "api/glossary.md", glossary.glossary_page(terms, pages))
    convert.convert(ROOT / "nbs", HERE / "course", SPELLINGS, terms)


def state_minutes(app, docname: str, content: list[str]) -> None:
    """The page for teachers has the lessons' own titles and minutes."""
    if docname == "teaching":
        content[0] = teaching.fill(content[0], ROOT / "nbs")


def keep_aside(app, doctree) -> None:
    """Solutions are reached from their lesson, module notebooks from the reference; no menu has them."""
    if app.env.docname.startswith(("course/solutions/", "course/library/")):
        app.env.metadata[app.env.docname]["orphan"] = True


def show_meanings(app, doctree, docname: str) -> None:
    """A link to a term of the glossary shows its sentence; a picture is fetched when it is reached."""
    for image in doctree.findall(nodes.image):
        image["loading"] = "lazy"
    places = app.env.get_domain("std").objects
    ids = {places["term", term][1]: means for term, means in MEANINGS.items()}
    for reference_node in doctree.findall(nodes.reference):
        target = reference_node.get("refuri", "").partition("#")[2]
        if target in ids:
            reference_node["reftitle"] = ids[target]
            reference_node["classes"].append("cl-term")


def link_names(app, what, name, obj, options, lines) -> None:
    """Public names in a docstring's backticks become links, as they do in the lessons."""
    def linked(match: re.Match) -> str:
        full = SPELLINGS.get(match[1])
        glue = "\\ " * match.string[match.end():][:1].isalnum()  # as in `Object`s
        role = f":py:obj:`{match[1]} <{full}>`" if full and full != name else f"``{match[1]}``"
        return role + glue
    lines[:] = re.sub(r"(?<![`:])`([^`]+)`(?!`)", linked, "\n".join(lines)).split("\n")


def describe(app, pagename: str, templatename: str, context: dict, doctree) -> None:
    """What a search engine or a message with a link shows of a page: title, first paragraph, picture."""
    prose = doctree.findall(nodes.paragraph) if doctree else []
    texts = (" ".join(one.astext().split()) for one in prose if "sources" not in one["classes"])
    words = shorten(next((text for text in texts if len(text) > 40), TAGLINE), 200, placeholder=" ...")
    title = re.sub(r"<[^>]+>", "", context.get("title", project))
    pictures = (one["uri"] for one in doctree.findall(nodes.image)) if doctree else ()
    drawn = next((f"_images/{Path(uri).name}" for uri in pictures if uri.endswith(".png")), CARD)
    facts = {"og:type": "article", "og:site_name": project, "og:title": unescape(title),
             "og:url": f"{html_baseurl}{pagename}.html", "og:description": words,
             "og:image": html_baseurl + drawn, "twitter:card": "summary_large_image"}
    tags = [f'<meta name="description" content="{escape(words)}" />',
            *(f'<meta property="{key}" content="{escape(value)}" />' for key, value in facts.items())]
    context["metatags"] = context.get("metatags", "") + "\n".join(tags)


def linkcode_resolve(domain: str, info: dict[str, str]) -> str | None:
    """The address of a name's source: its lines in the repository."""
    if domain != "py" or not info["module"]:
        return None
    value = sys.modules.get(info["module"])
    for part in info["fullname"].split("."):
        value = getattr(value, part, None)
    try:
        file = Path(getsourcefile(unwrap(value)) or "")
        lines, first = getsourcelines(unwrap(value))
    except (TypeError, OSError):  # a constant has no source of its own
        return None
    if not file.is_relative_to(ROOT):
        return None
    return f"{REPOSITORY}/blob/main/{file.relative_to(ROOT)}#L{first}-L{first + len(lines) - 1}"


def inspect_pages(app, exception) -> None:
    """No directive may be left on a page, and nothing may come from another host."""
    for path in [] if exception else sorted(Path(app.outdir).rglob("*.html")):
        text = path.read_text()
        if found := FETCHED.search(text) or re.search(r"^\s*#\|.*", re.sub(r"<[^>]+>", "", text), re.M):
            raise ValueError(f"{path.relative_to(app.outdir)} has {found[0].strip()}")


def write_lists(app, exception) -> None:
    """What the search page reads, smaller than Sphinx's own index, and the list for search engines."""
    if exception:
        return
    finding.write_index(app, glossary.read_glossary(HERE / "glossary.yaml"))
    pages = [f"{html_baseurl}{name}.html\n" for name in sorted(app.env.found_docs)]
    (Path(app.outdir) / "sitemap.txt").write_text("".join(pages))


def setup(app) -> None:
    app.connect("builder-inited", lambda app: setattr(app.builder, "search", False))
    live_parts.setup(app)
    app.connect("builder-inited", generate)
    app.connect("env-get-outdated", lambda *_: ["index", "teaching"])
    app.connect("source-read", state_minutes)
    app.connect("doctree-read", keep_aside)
    app.connect("doctree-resolved", show_meanings)
    app.connect("html-page-context", describe)
    app.connect("autodoc-process-docstring", link_names)
    app.connect("build-finished", write_lists)
    app.connect("build-finished", inspect_pages)
