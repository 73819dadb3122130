"""Interrupted trainings of attribute detectors go on exactly."""

import pytest
import torch
from typer.testing import CliRunner

from captionlab.cli import app
from captionlab.data import catalog
from captionlab.data.datasets import CaptionData, Item, scenes
from captionlab.features import attributes, train_detector
from captionlab.training import loop

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
    finish = loop._finish_epoch

    def finish_some(trainer):
        finish(trainer)
        if len(trainer.history) == epochs:
            raise KilledError

    monkeypatch.setattr(loop, "_finish_epoch", finish_some)


def untimed(detector) -> dict:
    """What a detector says of itself, without times."""
    history = [{**record, "seconds": 0} for record in detector.metadata["history"]]
    return {**detector.metadata, "history": history, "train_seconds": 0}


@pytest.mark.parametrize("epochs", [1, 3, 5])
def test_an_interrupted_training_gives_the_same_detector(pictures, tmp_path, monkeypatch, epochs):
    whole = train_detector(*pictures, **SETTINGS)
    with monkeypatch.context() as patch:
        interrupt(patch, epochs)
        with pytest.raises(KilledError):
            train_detector(*pictures, **SETTINGS, folder=tmp_path)
    resumed = train_detector(*pictures, **SETTINGS, folder=tmp_path)
    assert len(whole.metadata["history"]) > 1
    assert untimed(resumed) == untimed(whole)
    assert resumed.fingerprint == whole.fingerprint


def test_other_settings_are_one_line(pictures, tmp_path):
    train_detector(*pictures, **(SETTINGS | {"epochs": 1}), folder=tmp_path)
    with pytest.raises(ValueError, match=r"lr was 0.05 and is now 0.1") as caught:
        train_detector(*pictures, **(SETTINGS | {"epochs": 1, "lr": 0.1}), folder=tmp_path)
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
        assert "cut.safetensors.training holds a run already: add --resume" in line
        refused = self.call("--out", "cut.safetensors", "--resume", "--pool", "max")
        assert refused.exit_code == 1
        assert "pool was noisy-or and is now max" in refused.stderr

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
