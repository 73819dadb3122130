"""The files of the repository outside the notebooks: what git ignores."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SUBPACKAGES = (
    "build",
    "cli",
    "data",
    "decoding",
    "deploy",
    "dist",
    "docs",
    "explore",
    "features",
    "metrics",
    "models",
    "runs",
    "scenes",
    "training",
)


def ignored(paths: list[str]) -> list[str]:
    """Those of the paths that git would leave out; they need not exist."""
    command = ["git", "check-ignore", "--no-index", "--stdin"]
    text = "\n".join(paths)
    run = subprocess.run(command, cwd=ROOT, input=text, capture_output=True, text=True, check=False)
    assert run.returncode in (0, 1), run.stderr
    return run.stdout.splitlines()


@pytest.fixture(scope="module", autouse=True)
def clone():
    if not (ROOT / ".git").exists() or not shutil.which("git"):
        pytest.skip("not a clone, or no git here")


def test_git_ignores_nothing_of_the_package_its_notebooks_and_tests():
    paths = [
        f"{folder}/{name}/x{suffix}"
        for name in SUBPACKAGES
        for folder, suffix in (("captionlab", ".py"), ("nbs/library", ".ipynb"), ("tests", ".py"))
    ]
    for folder, pattern in (
        ("captionlab", "*.py"),
        ("nbs", "*.ipynb"),
        ("tests", "*.py"),
        ("results", "*.json"),
    ):
        files = (ROOT / folder).rglob(pattern)
        paths += [
            str(file.relative_to(ROOT)) for file in files if ".ipynb_checkpoints" not in file.parts
        ]
    assert ignored(paths) == []


def test_git_ignores_downloads_and_runs():
    paths = [
        "runs/first/run.json",
        "data/flickr8k/Flickr8k.token.txt",
        "build/lib/captionlab/x.py",
        "docs/_build/html/index.html",
    ]
    assert ignored(paths) == paths
