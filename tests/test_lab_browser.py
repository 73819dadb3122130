"""Lessons in JupyterLab, in a real browser: what is folded, what waits, and what a click shows."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from urllib.request import urlopen

import pytest
from conftest import ROOT
from tidy import FOLDED, is_call, text

pytestmark = pytest.mark.slow

LESSONS = ("00b_primer", "02_masks", "03_positions", "04_patches", "11_scenes")
MINUTE = 60_000
WAITS = "This result waits"
SETTINGS = "@jupyterlab/notebook-extension/tracker.jupyterlab-settings"
DRAWN = """() => [...document.querySelectorAll('.jp-RenderedMarkdown img')]
    .filter(picture => picture.naturalWidth).length"""
RUNNING = """() => [...document.querySelectorAll('.jp-InputPrompt')]
    .filter(prompt => prompt.innerText.includes('*')).length"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """The address of a JupyterLab in a copy of the lessons."""
    home = tmp_path_factory.mktemp("lab")
    (home / "nbs").mkdir()
    for lesson in LESSONS:
        shutil.copy(ROOT / "nbs" / f"{lesson}.ipynb", home / "nbs")
    settings = home / "settings" / SETTINGS
    settings.parent.mkdir(parents=True)
    settings.write_text('{"windowingMode": "none"}')  # all cells are in the page
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folders = {name: str(home / name) for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR",
                                                   "IPYTHONDIR", "XDG_CACHE_HOME")}
    environment = {**os.environ, **folders, "JUPYTERLAB_SETTINGS_DIR": str(home / "settings"),
                   "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root",
               f"--port={port}", "--IdentityProvider.token=", "--ServerApp.password=",
               f"--ServerApp.root_dir={home / 'nbs'}"]
    server = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}"
    for _ in range(120):
        try:
            urlopen(f"{address}/api")
            break
        except OSError:
            time.sleep(0.5)
    yield address
    server.terminate()
    server.wait()


@pytest.fixture(params=LESSONS)
def lesson(request, browser, lab):
    """A lesson in JupyterLab, not run yet, and its cells as they are stored."""
    cells = json.loads((ROOT / "nbs" / f"{request.param}.ipynb").read_text())["cells"]
    context = browser.new_context(viewport={"width": 1300, "height": 1000})
    page = context.new_page()
    page.goto(f"{lab}/lab/tree/{request.param}.ipynb?reset")
    page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=MINUTE)
    page.wait_for_function(
        f"document.querySelectorAll('.jp-Notebook .jp-Cell').length == {len(cells)}")
    yield page, cells
    context.close()


def answers(cells: list[dict]) -> list[list[int]]:
    """For each prediction the places of the cells whose outputs answer it."""
    with_output = [place for place, cell in enumerate(cells)
                   if cell.get("outputs") and not is_call(cell, "predict")]
    found = []
    for question, cell in enumerate(cells):
        if is_call(cell, "predict"):
            results = re.search(r"results=(\d+)\)$", text(cell))
            later = [place for place in with_output if place > question]
            found.append(later[: int(results[1]) if results else 1])
    return found


def run_all(page) -> None:
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_text("Run All Cells", exact=True).click()
    page.wait_for_function(f"({RUNNING})() > 0", timeout=MINUTE)
    page.wait_for_function(f"({RUNNING})() == 0", timeout=5 * MINUTE)


def test_inputs_fold_and_answers_wait_for_a_click(lesson):
    page, cells = lesson
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    folded = [cell for cell in code if FOLDED.search(text(cell))
              or is_call(cell, "predict") or is_call(cell, "review")]
    notebook = page.locator(".jp-Notebook")
    assert notebook.locator(".jp-InputPlaceholder").count() == len(folded)
    hidden = [cell for cell in code if cell["metadata"].get("jupyter", {}).get("outputs_hidden")]
    assert notebook.locator(".jp-OutputPlaceholder").count() == len(hidden)
    assert notebook.locator("details[open]").count() == 0
    diagrams = sum(len(cell.get("attachments", {})) for cell in cells)
    page.wait_for_function(f"diagrams => ({DRAWN})() == diagrams", arg=diagrams)

    # Without a kernel a choice opens to its sentence.
    choice = notebook.locator("details", has_text=re.compile("^A. ")).first
    choice.locator("summary").click()
    assert re.search(r"Right\.|Not quite\.", choice.inner_text())

    run_all(page)
    places = answers(cells)
    waiting = page.get_by_text(WAITS)
    assert waiting.count() == len(set().union(*places))
    questions = notebook.locator(".jp-OutputArea-output .widget-vbox")
    assert questions.count() == len(places)
    first, second = questions.nth(0), questions.nth(1)
    calls = [text(cell) for cell in cells if is_call(cell, "predict")]
    rights = [re.search(r'right="(\w)"', call)[1] for call in calls]
    wrong = "B" if rights[0] == "A" else "A"
    first.get_by_role("button", name=wrong, exact=True).click()
    first.get_by_text("Not quite.").wait_for()
    second.get_by_role("button", name=rights[1], exact=True).click()
    second.get_by_text("Right.").wait_for()
    left = len(set().union(*places[2:]))
    page.wait_for_function(
        "left => document.querySelector('.jp-Notebook').innerText"
        f".split('{WAITS}').length - 1 <= left", arg=left)
    if folder := os.environ.get("CAPTIONLAB_SCREENSHOTS"):
        second.scroll_into_view_if_needed()
        page.screenshot(path=f"{folder}/{len(cells)}.png")
