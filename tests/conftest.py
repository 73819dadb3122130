"""What several test files share."""
import os
import shutil
import sys
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real data that CAPTIONLAB_DATA names; without it the test is skipped."""
    folder = os.environ.get("CAPTIONLAB_DATA")
    if not folder:
        pytest.skip("CAPTIONLAB_DATA is not set: no real data here")
    return Path(folder)


def skip_browser_test(reason: str) -> None:
    """Skip a test that needs a browser, or what it looks at; where they belong, as in CI, fail."""
    if os.environ.get("CAPTIONLAB_BROWSER") == "required":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="module")
def browser():
    """Playwright's own browser, or one that is installed; without one the test is skipped."""
    try:
        from playwright import sync_api as api
    except ImportError:
        skip_browser_test("playwright is not installed")
    names = ("chromium", "chromium-browser", "google-chrome")
    installed = next(filter(None, map(shutil.which, names)), None)
    with api.sync_playwright() as playwright:
        try:
            chromium = playwright.chromium.launch(executable_path=installed, args=["--no-sandbox"])
        except api.Error as error:
            skip_browser_test(f"no browser: {error.message.splitlines()[0]}")
        yield chromium
        chromium.close()


# The first call of a torch operator is slow, which is no flaw of the test that makes it.
settings.register_profile("captionlab", deadline=None)
settings.load_profile("captionlab")

# `slow` and `java` are written at a test; `data` and `quick` follow from its fixtures and marks.
NOT_QUICK = {"slow", "data", "java"}


@pytest.hookimpl(tryfirst=True)         # before pytest selects by marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "real_data" in getattr(item, "fixturenames", ()):
            item.add_marker("data")
        if not NOT_QUICK & {mark.name for mark in item.iter_markers()}:
            item.add_marker("quick")


_started_java: list[str] = []


def _note_java(event: str, arguments: tuple) -> None:
    """An audit hook: Python calls it whenever a process is started."""
    if event == "subprocess.Popen" and Path(str(arguments[0])).name in ("java", "java.exe"):
        _started_java.append(str(arguments[0]))


sys.addaudithook(_note_java)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> object:
    _started_java.clear()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo) -> object:
    """A test that starts Java, in a fixture or itself, says so with its mark."""
    report = yield
    if call.when == "teardown" and _started_java and not item.get_closest_marker("java"):
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} starts Java: mark it with @pytest.mark.java"
    return report


@pytest.fixture
def own_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty `results/` in the current folder, which stands for that of the clone, too."""
    from captionlab.runs import results

    (tmp_path / "results").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(results, "results_home", lambda: tmp_path / "results")
    return tmp_path / "results"


MINIATURE_RUN = "test_every_captioner_goes_from_pictures_to_a_file_for_the_server"
MINIATURE_MINUTES = 3       # that it should take on two cores


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how long the whole run on COCO in small took, from download to server file."""
    reports = [
        report for group in terminalreporter.stats.values() for report in group
        if MINIATURE_RUN in getattr(report, "nodeid", "") and hasattr(report, "duration")
    ]
    if reports:
        captioners = sum(report.when == "call" for report in reports)
        minutes = sum(report.duration for report in reports) / 60
        terminalreporter.write_line(
            f"COCO in small, {captioners} captioners from download to server file: "
            f"{minutes:.1f} of {MINIATURE_MINUTES} minutes"
        )
