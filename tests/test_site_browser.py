"""The built site in a real browser: errors, menus, tables, code boxes, search, accessibility.

Build the site first (`make docs`, or name its folder in CAPTIONLAB_SITE). The audit of
accessibility needs axe-core: CAPTIONLAB_AXE names its file `axe.min.js`.
"""

import os
import re
import threading
import time
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote

import pytest
from conftest import ROOT, skip_browser_test

pytestmark = pytest.mark.slow

SITE = Path(os.environ.get("CAPTIONLAB_SITE", ROOT / "docs/_build/html"))
DESKTOP = {"width": 1280, "height": 900}
SAMPLE = (
    "index",
    "teaching",
    "search",
    "api/index",
    "api/equations",
    "api/glossary",
    "api/captionlab.attention",
    "api/captionlab.runs.run",
    "api/commands/train",
    "api/papers",
    "tasks/caption",
    "tasks/train",
    "course/00_start_here",
    "course/01_attention",
    "course/16_metrics",
    "course/31_vanilla",
    "course/solutions/01_attention",
    "course/library/files",
    "course/22_decoding",
    "course/40_explore",
    "course/42_interventions",
)

# What a reader types: where the first result leads.
QUERIES = {
    "attention": "course/01_",
    "dot product": "course/01_",
    "mask": "course/02_",
    "causal mask": "course/02_",
    "attention mask": "course/02_",
    "position": "course/03_",
    "positional encoding": "course/03_",
    "patch": "course/04_",
    "residual connection": "course/05_",
    "layer norm": "course/05_",
    "tokenizer": "course/10_",
    "scene": "course/11_",
    "backbone": "course/13_",
    "region": "course/14_",
    "attribute": "course/15_",
    "CIDEr": "course/16_",
    "BLEU": "course/16_",
    "metrics": "course/16_",
    "label smoothing": "course/21_",
    "learning rate": "course/21_",
    "training": "course/21_",
    "beam search": "course/22_",
    "decoding": "course/22_",
    "length penalty": "course/22_",
    "SCST": "course/23_",
    "distillation": "course/25_",
    "CPTR": "course/32_",
    "entangled attention": "course/34_",
    "image transformer equation 5": "course/35_",
    "pointing game": "course/40_",
    "install": "tasks/install",
    "how do I caption my own photo": "tasks/caption",
    "caption a folder of images": "tasks/folder",
    "fine-tune": "tasks/finetune",
    "train on COCO": "tasks/train",
    "evaluate": "tasks/evaluate",
    "export to ONNX": "tasks/export",
    "multiple GPUs": "tasks/gpu",
    "add a new model": "tasks/extend",
    "read a run folder": "tasks/runs",
    "captionlab train": "api/commands/train",
    "captionlab caption": "api/commands/caption",
    "captionlab data get": "api/commands/data-get",
    "--length-penalty": "api/commands/",
    "length_penalty": "api/captionlab.",
    "captionlab.load": "api/captionlab.html#captionlab.load",
    "Run.caption": "api/captionlab.runs.run.html#captionlab.runs.run.Run.caption",
    "Run.generate": "api/captionlab.runs.run.html#captionlab.runs.run.Run.generate",
    "MultiHeadAttention": "api/captionlab.attention.html#",
    "Vocabulary": "api/captionlab.text.html#",
    "Trainer": "api/captionlab.training.",
    "CaptionData": "api/captionlab.data.",
    "generate_scene": "api/captionlab.scenes.",
    "score": "api/captionlab.metrics.",
    "papers": "api/papers",
    "glossary": "api/glossary",
}

# Wider than their box, by how many pixels; what is folded has no width.
WIDE_CODE = """() => [...document.querySelectorAll('div.cell_input pre')]
    .filter(box => box.scrollWidth > box.clientWidth + 1)
    .map(box => [box.scrollWidth - box.clientWidth, box.innerText.slice(0, 60)])"""
RAW_TABLES = """() => [...document.querySelectorAll('article p')]
    .map(paragraph => paragraph.innerText).filter(text => /^\\|/.test(text.trim()))"""
WIDE_SIGNATURES = """() => [...document.querySelectorAll('dt.sig')]
    .filter(line => line.scrollWidth > line.clientWidth + 1).map(line => line.id)"""
SMALL_CODE = """() => [...document.querySelectorAll('article pre')]
    .map(box => parseFloat(getComputedStyle(box).fontSize)).filter(size => size < 13.5)"""
# Bytes of everything that a page asks for; a picture further down is fetched when it is reached.
WEIGHT = """() => ['resource', 'navigation'].flatMap(kind => performance.getEntriesByType(kind))
    .reduce((sum, one) => sum + one.decodedBodySize, 0)"""
HEAVY = 1_500_000
OVERFLOW = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"


class QuietHandler(SimpleHTTPRequestHandler):
    """Serve files without a line per request."""

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def address():
    """Where the built site is served."""
    if not (SITE / "index.html").exists():
        skip_browser_test(f"no built site at {SITE}: run `make docs`, or set CAPTIONLAB_SITE")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=SITE))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


@pytest.fixture(scope="module")
def visits(browser, address):
    """What one visit of every page shows, at the width of a laptop."""
    context = browser.new_context(viewport=DESKTOP)
    tab = context.new_page()
    context.new_cdp_session(tab).send("Network.setCacheDisabled", {"cacheDisabled": True})
    errors: list[str] = []
    tab.on("console", lambda line: errors.append(line.text) if line.type == "error" else None)
    tab.on("pageerror", lambda error: errors.append(str(error)))
    tab.on(
        "request",
        lambda request: None
        if request.url.startswith((address, "data:", "blob:"))
        else errors.append(f"asks for {request.url}"),
    )
    shown = {}
    for path in sorted(SITE.rglob("*.html")):
        name = path.relative_to(SITE).with_suffix("").as_posix()
        if name.startswith("_"):
            continue
        errors.clear()
        tab.goto(f"{address}/{name}.html", wait_until="load")
        shown[name] = {
            "errors": list(errors),
            "wide code": tab.evaluate(WIDE_CODE),
            "raw tables": tab.evaluate(RAW_TABLES),
            "overflow": tab.evaluate(OVERFLOW),
            "wide signatures": tab.evaluate(WIDE_SIGNATURES),
            "small code": tab.evaluate(SMALL_CODE),
            "weight": tab.evaluate(WEIGHT),
        }
    context.close()
    return shown


def faults(visits: dict[str, dict], kind: str) -> dict[str, object]:
    """The pages that show something of this kind."""
    return {name: shown[kind] for name, shown in visits.items() if shown[kind]}


class TestEveryPage:
    def test_there_are_pages(self, visits):
        assert len(visits) > 200

    def test_no_console_error_and_no_request_to_another_host(self, visits):
        assert faults(visits, "errors") == {}

    def test_tables_are_tables(self, visits):
        assert faults(visits, "raw tables") == {}

    def test_no_code_is_wider_than_its_box(self, visits):
        assert faults(visits, "wide code") == {}

    def test_no_page_scrolls_sideways(self, visits):
        assert faults(visits, "overflow") == {}

    def test_signatures_fit(self, visits):
        assert faults(visits, "wide signatures") == {}

    def test_code_is_large_enough_to_read(self, visits):
        assert faults(visits, "small code") == {}

    def test_no_page_is_heavy(self, visits):
        weights = {name: shown["weight"] for name, shown in visits.items()}
        assert {name: weight for name, weight in weights.items() if weight > HEAVY} == {}

    def test_options_are_told_and_not_printed(self, address):
        pages = [path.name for path in SITE.rglob("*.html") if "OptionInfo" in path.read_text()]
        assert pages == []


@pytest.fixture
def tab(browser, width):
    """A fresh page of the test's width."""
    context = browser.new_context(viewport={"width": width, "height": 900})
    yield context.new_page()
    context.close()


@pytest.mark.parametrize("width", [390, 768, 1280])
@pytest.mark.parametrize("page", ["index", "course/01_attention", "api/captionlab.attention"])
class TestMenus:
    def test_menu_shows_the_lessons(self, tab, address, page, width):
        tab.goto(f"{address}/{page}.html")
        menus = tab.locator(".bd-sidebar-primary:visible a, dialog[open] a")
        lesson = menus.get_by_text("02 · Masks")
        if not lesson.first.is_visible():
            tab.locator("button.primary-toggle:visible").first.click()
        lesson.first.wait_for(state="visible", timeout=5_000)

    def test_contents_show_the_sections(self, tab, address, page, width):
        tab.goto(f"{address}/{page}.html")
        sections = tab.locator("#pst-secondary-sidebar nav a, #pst-secondary-sidebar-modal nav a")
        if not any(one.is_visible() for one in sections.all()):
            tab.locator("button.secondary-toggle:visible").first.click()
        tab.wait_for_function(
            """() => [...document.querySelectorAll('[id^=pst-secondary-sidebar] nav a')]
                .some(link => link.checkVisibility())""",
            timeout=5_000,
        )


def test_words_in_tables_are_not_cut(browser, address):
    tab = browser.new_page()
    tab.goto(f"{address}/course/53_tables.html")
    wraps = tab.evaluate(
        "[...document.querySelectorAll('td p, th p')].map(p => getComputedStyle(p).overflowWrap)"
    )
    tab.close()
    assert wraps
    assert set(wraps) == {"normal"}


class TestSearch:
    @pytest.fixture(scope="class")
    def search(self, browser):
        context = browser.new_context(viewport=DESKTOP)
        yield context.new_page()
        context.close()

    def ask(self, search, address, query):
        search.goto(f"{address}/search.html?q={quote(query)}")
        search.wait_for_function(
            "/results|Nothing/.test(document.querySelector('#search-status').textContent)"
        )
        return [one.get_attribute("href") for one in search.locator("#search-results li a").all()]

    @pytest.mark.parametrize(("query", "page"), QUERIES.items())
    def test_the_right_page_comes_first(self, search, address, query, page):
        links = self.ask(search, address, query)
        assert links[0].startswith(page), links[:3]

    def test_a_query_is_small(self, browser, address):
        tab = browser.new_page()
        requests: list[str] = []
        tab.on("request", lambda request: requests.append(request.url))
        self.ask(tab, address, "attention")
        fetched = tab.evaluate("performance.getEntriesByName(new URL('search.json', location))[0]")
        tab.close()
        own = [url for url in requests if re.search(r"search(\.html|\.js)", url)]
        assert len(own) == len(set(own)) <= 10
        assert fetched["decodedBodySize"] < 1_000_000

    def test_excerpts_are_prose(self, search, address):
        self.ask(search, address, "attention")
        shown = search.locator("#search-results").inner_text()
        assert not re.search(r"\\\\[a-z]+|\\$|import |def ", shown)

    def test_what_is_not_there_is_said(self, search, address):
        assert self.ask(search, address, "qqxyz") == []
        assert "Nothing found" in search.locator("#search-status").inner_text()


def test_from_the_front_page_to_the_caption_of_ones_own_photo(browser, address):
    """At most 40 MB; how many seconds it took, from an empty cache, is printed."""
    if not (SITE / "_static/live").exists():
        skip_browser_test("the site was built without its live parts")
    context = browser.new_context(viewport=DESKTOP)
    tab = context.new_page()
    begin = time.perf_counter()
    tab.goto(f"{address}/index.html", wait_until="load")
    part = tab.locator("section[data-live=photo][data-ready]")
    part.locator("input[type=file]").set_input_files(SITE / "_static/photos/3064383768_f6838f57da.jpg")
    part.locator(".live-load button").click()
    part.get_by_role("status").filter(has_text="The model writes: a surfer").wait_for(timeout=120_000)
    seconds = time.perf_counter() - begin
    size = tab.evaluate(WEIGHT)
    context.close()
    print(f"front page to one's own caption: {seconds:.1f} s, {size / 1e6:.1f} MB")
    assert size <= 40_000_000


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 768])
def test_pages_fit_a_phone_and_a_tablet(browser, address, width, theme):
    """No page scrolls sideways, and no box of code does."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme)
    tab = context.new_page()
    wide = {}
    for page in SAMPLE:
        tab.goto(f"{address}/{page}.html")
        found = [tab.evaluate(OVERFLOW), *tab.evaluate(WIDE_CODE)]
        wide |= {page: found} if any(found) else {}
    context.close()
    assert wide == {}


# Which predictions and reviews are settled, and what is said of them.
ANSWERED = """() => [...document.querySelectorAll('.cl-question')].map(question => [
    question.querySelector('[aria-pressed=true]')?.innerText.replace(' ✓', '') ?? null,
    question.querySelector('[role=status]').innerText])"""


@pytest.fixture
def lesson(browser, address):
    """A lesson in a fresh browser, and the errors of its scripts."""
    context = browser.new_context(viewport=DESKTOP)
    tab = context.new_page()
    errors: list[str] = []
    tab.on("console", lambda line: errors.append(line.text) if line.type == "error" else None)
    tab.on("pageerror", lambda error: errors.append(str(error)))
    tab.goto(f"{address}/course/31_vanilla.html")
    yield tab
    context.close()
    assert errors == []


class TestReview:
    def test_a_choice_by_keyboard_is_judged_kept_and_can_be_taken_back(self, lesson):
        questions = lesson.locator(".cl-question")
        assert questions.count() == 5
        rights = [int(one.get_attribute("data-right")) for one in questions.all()]
        first, second = questions.nth(0).get_by_role("button"), questions.nth(1).get_by_role("button")
        first.nth(rights[0] - 1).focus()
        lesson.keyboard.press("Enter")
        second.nth(rights[1] % second.count()).focus()
        lesson.keyboard.press("Space")
        assert lesson.evaluate("document.activeElement.getAttribute('aria-pressed')") == "true"
        answered = lesson.evaluate(ANSWERED)
        assert answered[0][1].startswith("Right. ")
        assert answered[1][1].startswith(f"Not right, it is {rights[1]}. ")
        assert answered[2:] == [[None, ""]] * 3
        tally = lesson.locator(".cl-review .cl-tally")
        assert tally.inner_text().startswith("2 of 5 answered, 1 right.")

        first.nth(rights[0] % first.count()).focus()
        lesson.keyboard.press("Enter")  # too late
        lesson.reload()
        assert lesson.evaluate(ANSWERED) == answered
        lesson.get_by_role("button", name="Answer again").click()
        assert lesson.evaluate(ANSWERED) == [[None, ""]] * 5
        assert tally.inner_text().strip() == "0 of 5 answered, 0 right."

    def test_an_answer_links_to_its_lesson(self, lesson):
        question = lesson.locator(".cl-question").first
        question.get_by_role("button").first.click()
        link = question.get_by_role("link")
        number = question.get_attribute("data-id").split(".")[0]
        assert link.inner_text() == f"lesson {number}"
        link.click()
        lesson.wait_for_url(f"**/course/{number}_*.html")

    def test_the_calls_of_a_notebook_are_not_shown(self, lesson):
        assert "captionlab.course.review(" not in lesson.locator("article").inner_text()
        assert lesson.locator(".cl-review").bounding_box()["y"] < 1200

    def test_without_scripts_the_answers_are_folded(self, browser, address):
        context = browser.new_context(viewport=DESKTOP, java_script_enabled=False)
        tab = context.new_page()
        tab.goto(f"{address}/course/31_vanilla.html")
        question = tab.locator(".cl-question").first
        assert question.locator("li").count() >= 3
        answer = question.locator("details p")
        assert not answer.is_visible()
        question.locator("summary").click()
        assert answer.is_visible()
        assert answer.inner_text().startswith(f"{question.get_attribute('data-right')}. ")
        context.close()


class TestPrediction:
    def test_a_choice_opens_the_result_and_is_kept(self, lesson):
        question = lesson.locator(".cl-predict").first
        folded = lesson.locator(".cl-folded").count()
        assert folded
        right = question.get_by_role("button").nth(int(question.get_attribute("data-right")))
        right.focus()
        lesson.keyboard.press("Enter")
        assert question.get_by_role("status").inner_text().startswith("Right.")
        assert lesson.locator(".cl-folded").count() < folded
        tally = lesson.locator("article > .cl-tally").inner_text()
        assert re.search(r"1 of \d+ made, 1 right", tally)
        lesson.reload()
        assert question.get_by_role("status").inner_text().startswith("Right.")
        assert right.get_attribute("aria-pressed") == "true"


@pytest.fixture(scope="module")
def axe() -> str:
    """The script of axe-core."""
    file = os.environ.get("CAPTIONLAB_AXE")
    if not file:
        pytest.skip("CAPTIONLAB_AXE does not name axe.min.js of axe-core")
    return Path(file).read_text()


@pytest.mark.parametrize(("theme", "width"), [("light", 1280), ("dark", 390)])
@pytest.mark.parametrize("page", SAMPLE)
def test_axe_has_no_serious_finding(browser, address, axe, page, theme, width):
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme)
    tab = context.new_page()
    tab.goto(f"{address}/{page}.html", wait_until="load")
    # Colours fade in; on a slow machine axe would see them halfway.
    tab.evaluate("() => Promise.all(document.getAnimations().map((one) => one.finished))")
    tab.evaluate(axe)
    found = tab.evaluate("() => axe.run(document, {resultTypes: ['violations']})")
    context.close()
    serious = {
        one["id"]: [node["target"] for node in one["nodes"][:3]]
        for one in found["violations"]
        if one["impact"] in ("serious", "critical")
    }
    assert serious == {}
