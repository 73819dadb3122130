"""Interrupted trainings of attribute detectors go on exactly."""

from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

from captionlab.cli import app
from captionlab.data import catalog
from captionlab.data.datasets import CaptionData, Item, scenes
from captionlab.features import attributes, train_detector
from captionlab.features.detector_checkpoint import DetectorCheckpoint

SETTINGS = {"num_words": 2, "epochs": 5, "batch_size": 4, "lr": 0.05, "seed": 3, "patience": 9}


@pytest.fixture(scope="module")
def pictures():
    """24 pictures of 4 cells, and a word for those whose first number is large."""
    torch.manual_seed(0)
    grids = {str(number): torch.randn(4, 6) for number in range(24)}
    items = [
        Item(name, ("spark glow" if grid[:, 0].max() > 1 else "glow",))
        for name, grid in grids.items()
    ]
    data = CaptionData("planted", {"train": items[:16], "val": items[16:], "test": []})
    return data, lambda item: grids[item.name]


class KilledError(Exception):
    """Stands for a process that is killed."""


def interrupt(monkeypatch, epochs: int) -> None:
    """Let a training end after some epochs."""
    save = DetectorCheckpoint.save

    def save_some(self, *args):
        save(self, *args)
        if len(self.history) == epochs:
            raise KilledError

    monkeypatch.setattr(DetectorCheckpoint, "save", save_some)


def untimed(detector) -> dict:
    return {key: x for key, x in detector.metadata.items() if key != "train_seconds"}


@pytest.mark.parametrize("epochs", [1, 3, 5])
def test_an_interrupted_training_gives_the_same_detector(pictures, tmp_path, monkeypatch, epochs):
    whole = train_detector(*pictures, **SETTINGS)
    file = tmp_path / "detector.checkpoint"
    with monkeypatch.context() as patch:
        interrupt(patch, epochs)
        with pytest.raises(KilledError):
            train_detector(*pictures, **SETTINGS, checkpoint=file)
    resumed = train_detector(*pictures, **SETTINGS, checkpoint=file)
    assert len(whole.metadata["history"]) > 1
    assert untimed(resumed) == untimed(whole)
    assert resumed.fingerprint == whole.fingerprint


def test_it_goes_on_and_does_not_begin_anew(pictures, tmp_path, monkeypatch):
    file = tmp_path / "detector.checkpoint"
    train_detector(*pictures, **(SETTINGS | {"epochs": 2}), checkpoint=file)
    numbers = []
    train_epoch = attributes._train_epoch
    monkeypatch.setattr(
        attributes, "_train_epoch",
        lambda *args, **options: numbers.append(options["title"]) or train_epoch(*args, **options),
    )  # fmt: skip
    train_detector(*pictures, **(SETTINGS | {"epochs": 3}), checkpoint=file)
    assert numbers == ["epoch 3"]


def test_patience_also_ends_a_training_that_goes_on(pictures, tmp_path):
    settings = SETTINGS | {"epochs": 40, "patience": 2}
    whole = train_detector(*pictures, **settings, checkpoint=tmp_path / "c")
    again = train_detector(*pictures, **settings, checkpoint=tmp_path / "c")
    assert len(whole.metadata["history"]) < 40
    assert untimed(again) == untimed(whole)


@pytest.mark.parametrize(("change", "line"), [
    ({"seed": 4}, "seed was 3 and is now 4"),
    ({"lr": 0.1}, "lr was 0.05 and is now 0.1"),
    ({"hidden": 2}, "hidden was 0 and is now 2"),
    ({"spec": {"grid": [7, 7]}}, "grids was"),
    ({"num_words": 1}, "words was"),
])  # fmt: skip
def test_other_settings_are_one_line(pictures, tmp_path, change, line):
    file = tmp_path / "detector.checkpoint"
    train_detector(*pictures, **(SETTINGS | {"epochs": 1}), checkpoint=file)
    with pytest.raises(ValueError, match=line) as caught:
        train_detector(*pictures, **(SETTINGS | change), checkpoint=file)
    assert "\n" not in str(caught.value)
    assert str(file) in str(caught.value)


def test_other_pictures_are_one_line(pictures, tmp_path):
    data, see = pictures
    file = tmp_path / "detector.checkpoint"
    train_detector(data, see, **(SETTINGS | {"epochs": 1}), checkpoint=file)
    other = replace(data, splits={**data.splits, "train": data["train"][1:]})
    with pytest.raises(ValueError, match=r"pictures was .* and is now"):
        train_detector(other, see, **SETTINGS, checkpoint=file)


@pytest.mark.parametrize("damage", [
    lambda content: b"nonsense",
    lambda content: content[: len(content) // 2],
    lambda content: content.replace(b"best_weights", b"best_weighty"),
])  # fmt: skip
def test_a_damaged_file_is_one_line(pictures, tmp_path, damage):
    file = tmp_path / "detector.checkpoint"
    train_detector(*pictures, **(SETTINGS | {"epochs": 1}), checkpoint=file)
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(ValueError, match="not a readable checkpoint") as caught:
        train_detector(*pictures, **SETTINGS, checkpoint=file)
    assert "\n" not in str(caught.value)


class TestCommand:
    @pytest.fixture(autouse=True)
    def _few_scenes(self, monkeypatch, tmp_path):
        world = scenes(train=12, val=4, test=4, novel=0)
        monkeypatch.setattr(catalog, "load_dataset", lambda *_, **__: world)
        monkeypatch.chdir(tmp_path)

    def call(self, *words):
        return CliRunner().invoke(app, ["attributes", "train", "--num-words", "5", *words])

    def test_it_resumes(self, monkeypatch, tmp_path):
        assert self.call("--out", "whole.safetensors").exit_code == 0
        with monkeypatch.context() as patch:
            interrupt(patch, 2)
            stopped = self.call("--out", "cut.safetensors")
        assert isinstance(stopped.exception, KilledError)
        assert not (tmp_path / "cut.safetensors").exists()

        refused = self.call("--out", "cut.safetensors")
        assert refused.exit_code == 1
        (line,) = refused.stderr.splitlines()
        assert "cut.safetensors.checkpoint is of a training that was interrupted" in line
        assert "--resume" in line

        resumed = self.call("--out", "cut.safetensors", "--resume")
        assert resumed.exit_code == 0, resumed.output
        detectors = [
            attributes.load_detector(tmp_path / f"{name}.safetensors") for name in ("whole", "cut")
        ]
        assert detectors[0].fingerprint == detectors[1].fingerprint
        assert untimed(detectors[0]) == untimed(detectors[1])
        assert sorted(file.name for file in tmp_path.iterdir()) == [
            "cut.safetensors", "whole.safetensors",
        ]  # fmt: skip

    def test_without_a_checkpoint_it_begins(self, tmp_path):
        assert self.call("--out", "new.safetensors", "--resume").exit_code == 0
        assert (tmp_path / "new.safetensors").exists()
