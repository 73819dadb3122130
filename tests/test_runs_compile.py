"""Runs whose model `torch.compile` made: they work, and what they save loads anywhere.

The backends are those that need no compiler of C++.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from untrained_runs import CAPTIONERS, untrained_captioner, untrained_translator

from captionlab import models
from captionlab.data.batches import Batch
from captionlab.data.datasets import scenes
from captionlab.models import list_models
from captionlab.runs.run import Run

MODELS = [*CAPTIONERS, "translation"]
PICTURES = [item.image for item in scenes(train=0, val=0, test=2, novel=0)["test"]]
SENTENCES = ["a red circle", "a blue square"]


def untrained(name: str) -> Run:
    return untrained_translator() if name == "translation" else untrained_captioner(name)


def outputs(run: Run) -> list[str]:
    """What a run writes of two inputs."""
    return run.translate(SENTENCES) if run.translates else run.caption(PICTURES)


def training_batch(run: Run) -> Batch:
    """Two inputs with two captions each."""
    batch = run.processor(SENTENCES if run.translates else PICTURES)
    torch.manual_seed(1)
    return replace(batch, captions=torch.randint(4, len(run.vocabulary), (2, 2, 5)))


def compile_copy(run: Run) -> None:
    run.model = torch.compile(run.model, backend="eager")


def compile_in_place(run: Run) -> None:
    run.model.compile(backend="eager")


def compile_children(run: Run) -> None:
    for name, child in run.model.named_children():
        setattr(run.model, name, torch.compile(child, backend="eager"))


def test_every_model_is_tested():
    # Other tests of the same process may have registered models of their own.
    package = Path(models.__file__).parent
    assert set(MODELS) == {name for name in list_models() if (package / f"{name}.py").exists()}


@pytest.mark.parametrize("compile_model", [compile_copy, compile_in_place, compile_children])
@pytest.mark.parametrize("name", MODELS)
def test_what_a_compiled_run_saves_loads(name, compile_model: Callable, tmp_path):
    run = untrained(name)
    expected = outputs(run)
    plain = sorted(file.name for file in run.save(tmp_path / "plain").iterdir())
    compile_model(run)
    folder = run.save(tmp_path / "compiled")
    # Names of weights are hashes of their content.
    assert sorted(file.name for file in folder.iterdir()) == plain
    again = Run.load(folder)
    assert outputs(again) == expected
    assert set(again.model.state_dict()) == set(untrained(name).model.state_dict())


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_a_model_that_ran_compiled_captions_and_saves(name, tmp_path):
    run = untrained(name)
    expected = outputs(run)
    loss, count = run.model(training_batch(run))
    # Gradients are compiled for one model only: that takes seconds.
    backend = "aot_eager" if name == "vanilla" else "eager"
    run.model = torch.compile(run.model, backend=backend)
    compiled_loss, compiled_count = run.model(training_batch(run))
    torch.testing.assert_close(compiled_loss, loss)
    assert compiled_count == count
    compiled_loss.backward()
    assert outputs(run) == expected
    assert outputs(Run.load(run.save(tmp_path))) == expected
