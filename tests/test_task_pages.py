"""The site's task pages: each begins with what to type, and what they show works as it stands."""

import json
import re
import shlex
import shutil
import sys
from pathlib import Path

import matplotlib as mpl
import pytest
from conftest import ROOT
from PIL import Image
from typer.main import get_command
from typer.testing import CliRunner

import captionlab
from captionlab.cli import app

sys.path.insert(0, str(ROOT / "docs"))
import commands

PAGES = sorted((ROOT / "docs/tasks").glob("*.md"))
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```", re.M | re.S)
# What needs a network, a server or another process is parsed and not run.
PARSED = re.compile(r"\bcoco\b|captionlab (?:serve|doctor)|--device cuda")


def shown(page: Path, language: str) -> list[str]:
    """The blocks of a language on a page."""
    return [text for kind, text in BLOCK.findall(page.read_text()) if kind == language]


def lines(page: Path) -> list[str]:
    """What a page has its reader type for captionlab."""
    typed = [line for block in shown(page, "sh") for line in block.splitlines()]
    return [line.split("  #")[0] for line in typed if line.startswith("captionlab ")]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A reader's folder: photos, captions of them, and the run that the pages name."""
    monkeypatch.chdir(tmp_path)
    photo = Image.open(Path(mpl.get_data_path()) / "sample_data/grace_hopper.jpg").convert("RGB")
    Path("photos").mkdir()
    for name in ("me", "you", "cat1", "cat2", "cat3", "photos/a", "photos/b"):
        photo.resize((160, 160)).save(f"{name}.jpg")
    Path("mine.csv").write_text(
        "image,caption,split\ncat1.jpg,a grey cat sleeps,train\ncat2.jpg,a kitten plays,train\n"
        "cat3.jpg,a cat looks up,val\nyou.jpg,a woman in uniform,val\n"
    )
    Path("results.json").write_text(json.dumps([{"image_id": 1, "caption": "a dog runs"}]))
    annotations = [{"id": 1, "image_id": 1, "caption": "a brown dog runs"}]
    Path("references.json").write_text(json.dumps({"annotations": annotations}))
    shutil.copytree(ROOT / "captionlab/checkpoints/photos", "runs/mine")
    shutil.copytree(ROOT / "captionlab/checkpoints/scenes", "runs/first")
    return tmp_path


def test_there_are_ten():
    assert len(PAGES) == 10


@pytest.mark.parametrize("page", PAGES, ids=lambda one: one.stem)
def test_a_page_starts_with_what_to_type(page):
    after_title = page.read_text().split("\n# ", 1)[1].partition("\n")[2].lstrip()
    assert re.match(r"```(sh|python)\n", after_title)


@pytest.mark.parametrize(
    ("page", "line"),
    [(page, line) for page in PAGES for line in lines(page)],
    ids=lambda one: one.stem if isinstance(one, Path) else one[11:60],
)
def test_a_command_is_understood(page, line, folder):
    """Every command and option on the pages exists."""
    known = commands.commands(get_command(app))
    name = max((one for one in known if f"{line} ".startswith(f"{one} ")), key=len)
    known[name].make_context(name, shlex.split(line)[len(name.split()) :])


@pytest.mark.slow
@pytest.mark.java
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("page", PAGES, ids=lambda one: one.stem)
def test_the_commands_of_a_page_run(page, folder):
    for line in lines(page):
        if PARSED.search(line):
            continue
        extra = " --set num_scenes=48" * ("--data scenes" in line)
        extra += " --epochs 1" * ("captionlab train" in line)
        if out := re.search(r"captionlab train.*--out (\S+)", line):
            shutil.rmtree(out[1], ignore_errors=True)
        result = CliRunner().invoke(app, shlex.split(line + extra)[1:])
        assert result.exit_code == 0, f"{line}: {result.output}{result.exception}"


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda one: one.stem)
def test_the_python_of_a_page_runs(page, folder):
    blocks = shown(page, "python")
    if any("OnnxCaptioner" in block for block in blocks):
        pytest.importorskip("onnxscript")
        from captionlab.deploy import export_onnx

        export_onnx(captionlab.load("photos", device="cpu"), "exported")
    for block in blocks:
        exec(compile(block, page.name, "exec"), {})
