"""The whole run on COCO in small: from the download to the file for the server."""

import importlib.util
import json
import re
import shlex
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from typer.testing import CliRunner

from captionlab import files
from captionlab.cli import app
from captionlab.course.miniature import (
    miniature_pictures,
    prepare_miniature,
    serve,
    write_archives,
)
from captionlab.data import catalog
from captionlab.features import attributes, extraction
from captionlab.metrics.files import read_results
from captionlab.models import find_preset
from captionlab.runs import catalog as runs_catalog
from captionlab.runs.results import results_home
from captionlab.training.config import override_preset

COMMANDS = json.loads((results_home() / "coco-commands.json").read_text())
PICTURES = 240      # more than by default, as in lesson 52, which has 700


def call(command: str) -> str:
    """Give a command; return what it prints."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")     # of the picture that is left out, and adapted recipes
        result = CliRunner().invoke(app, shlex.split(command)[1:])
    assert result.exit_code == 0, f"{command}\n{result.output}"
    return result.output


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A data folder with the miniature, downloaded from a server; the folder to work in, too."""
    root = tmp_path_factory.mktemp("coco")
    (root / "home").mkdir()
    served = write_archives(root / "served", PICTURES)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CAPTIONLAB_DATA", str(root / "home"))
        patch.setenv("XDG_CACHE_HOME", str(root / "cache"))
        for module in (files, catalog, attributes, extraction, runs_catalog):
            patch.setattr(module, "cache_home", lambda: root / "cache")
        patch.chdir(root / "home")
        with serve(served) as address:
            printed = call(f"captionlab data get coco --mirror {address}")
        assert "cannot be read and is left out: 167126" in printed
        assert "train 167, val 36, test 36" in printed
        prepare_miniature(root / "home", PICTURES)
        yield root / "home"


@pytest.mark.slow
@pytest.mark.java
@pytest.mark.parametrize("model", COMMANDS)
def test_every_captioner_goes_from_pictures_to_a_file_for_the_server(home, model):
    for step in COMMANDS[model]:
        printed = call(step["miniature"])
        if step["name"] == "features grid":
            assert "skipped: cannot read coco/train2014/COCO_train2014_000000167126.jpg" in printed
        if step["name"].startswith("evaluation"):
            assert "36 pictures of coco test" in printed
            for metric in ("BLEU-1", "BLEU-4", "METEOR", "ROUGE-L", "CIDEr"):
                assert metric in printed
    listed = home / "coco/annotations/captions_val2014.json"
    name = model.replace("_", "-")
    captions = read_results(home / f"server/captions_val2014_{name}_results.json")
    assert len(captions) == len(json.loads(listed.read_text())["images"]) == 96
    for name, epochs in ((f"coco-{model}-check", 1), (f"coco-{model}", 2)):
        history = json.loads((home / f"runs/{name}/run.json").read_text())["history"]
        assert len(history) == epochs


def test_every_picture_of_the_lesson_has_regions(tmp_path):
    """Its archives and its regions are those of the same pictures."""
    lesson = Path(__file__).parents[1] / "nbs" / "52_coco.ipynb"
    cells = ["".join(cell["source"]) for cell in json.loads(lesson.read_text())["cells"]]
    cell = next(cell for cell in cells if "prepare_miniature(home" in cell)
    archives, regions = map(int, re.findall(r"count=(\d+)", cell))
    prepare_miniature(tmp_path, count=regions)
    lines = (tmp_path / "coco/regions.tsv").read_text().splitlines()
    listed = [picture.image_id for picture in miniature_pictures(archives)]
    assert [int(line.partition("\t")[0]) for line in lines] == listed


@pytest.mark.parametrize("model", COMMANDS)
def test_the_miniature_takes_the_same_commands_with_other_options(model):
    for step in COMMANDS[model]:
        words = shlex.split(step["command"])
        others = shlex.split(step["miniature"])
        assert words[:3] == others[:3]
        assert set(words) & {"--objective", "--data", "--features", "--preset"} <= set(others)


@pytest.mark.parametrize("model", COMMANDS)
def test_the_self_critical_command_has_the_batch_that_was_timed(model):
    """So the hours of lesson 52 have the batch of this command."""
    timed = json.loads((results_home() / "coco-steps.json").read_text())["captioners"][model]
    preset = find_preset(model, "paper")
    assert timed["pictures"] == preset.training.batch_size
    command = next(step["command"] for step in COMMANDS[model] if step["name"] == "scst")
    given = re.search(r"--batch-size (\d+)", command)
    assert timed["pictures"] == (int(given[1]) if given else preset.scst.batch_size)


@pytest.mark.parametrize("model", COMMANDS)
def test_an_epoch_is_checked_before_the_long_training(model):
    commands = {step["name"]: step["command"] for step in COMMANDS[model]}
    names = list(commands)
    assert names.index("check") + 1 == names.index("check score") == names.index("xe") - 1
    long = commands["xe"].replace(f"runs/coco-{model}", f"runs/coco-{model}-check")
    assert commands["check"] == f"{long} --epochs 1"


def test_the_first_cell_of_the_lesson_installs_the_package(monkeypatch):
    """Until the package is there it needs the standard library alone."""
    lesson = Path(__file__).parents[1] / "nbs" / "52_coco.ipynb"
    cells = json.loads(lesson.read_text())["cells"]
    first = next("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    first, *_ = first.partition("captionlab.course.start_lesson")
    names = re.findall(r"^(?:import|from) (\w+)", first, re.MULTILINE)
    assert names
    assert set(names) - {"captionlab"} <= sys.stdlib_module_names
    assert first.rindex("import captionlab") > first.index("subprocess.run")
    commands = []
    monkeypatch.setattr(subprocess, "run", lambda command, check: commands.append((command, check)))
    exec(first, {})     # captionlab is here: nothing to install
    assert commands == []
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    exec(first, {})
    monkeypatch.setenv("CAPTIONLAB_SOURCE", "some/clone")
    exec(first, {})
    assert [command[3:5] for command, _ in commands] == [["install", "--quiet"]] * 2
    assert commands[0][0][-1].startswith("captionlab @ git+https://")
    assert commands[1] == ([sys.executable, "-m", "pip", "install", "--quiet", "some/clone"], True)


def test_a_value_of_a_preset_can_be_replaced():
    preset = find_preset("vanilla", "paper")
    settings = ["width=64", "inputs.grid=7", "training.lr=1", "scst.epochs=2", "norm=pre"]
    changed = override_preset(preset, settings)
    assert (changed.width, changed.inputs.grid, changed.norm) == (64, 7, "pre")
    assert (changed.training.lr, changed.scst.epochs) == (1.0, 2)
    assert changed.heads == preset.heads


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("widht=3", "write NAME=VALUE with one of width"),
        ("width", "write NAME=VALUE"),
        ("width=wide", "512 is to be replaced by a value of its kind"),
        ("width.x=3", "width has no parts"),
        ("inputs=3", "name a part of it"),
        ("inputs.gird=3", "write NAME=VALUE with one of fields"),
    ],
)
def test_a_wrong_setting_is_one_line(setting, message):
    with pytest.raises(ValueError, match=message) as error:
        override_preset(find_preset("vanilla", "paper"), [setting])
    assert "\n" not in str(error.value)
