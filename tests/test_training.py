"""Runs that are killed, shared between processes, or found by another config."""

import json
import math
import os
import random
import re
import shutil
import socket
import subprocess
import sys
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tiny_training
import torch
import typer
from hypothesis import given
from hypothesis import strategies as st
from operators import WaitCounter
from torch import nn

from benchmarks import memory
from captionlab import captioner
from captionlab.captioner import CaptionerWrapper
from captionlab.cli import app
from captionlab.data.batches import Batch, collate
from captionlab.decoding import generation
from captionlab.models import cptr, vanilla
from captionlab.scst import SelfCritical
from captionlab.text import pad_sequences
from captionlab.training import config as config_module
from captionlab.training import devices
from captionlab.training.checkpoint import read_checkpoint, write_checkpoint
from captionlab.training.config import TrainingConfig, cosine, noam
from captionlab.training.distributed import explain_lost_process
from captionlab.training.loop import Trainer
from captionlab.training.memory import checkpoint_activations

SCRIPT = Path(__file__).with_name("tiny_training.py")
# Seconds until a child process counts as hung; a slow or busy machine must not reach it.
SLOW = 3600
ALONE = os.environ | {"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}


def same(one, other):
    """Whether two checkpoints, or parts of them, are equal to the bit."""
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


def untimed(checkpoint):
    """A checkpoint without the seconds that its epochs took."""
    history = [
        {name: value for name, value in record.items() if name != "seconds"}
        for record in checkpoint["history"]
    ]
    return checkpoint | {"history": history}


@pytest.mark.slow
def test_killed_twenty_times_and_resumed_is_never_killed(tmp_path):
    """After twenty times kill -9 at random moments the weights are the same to the bit."""
    subprocess.run([sys.executable, SCRIPT, "killed", tmp_path], env=ALONE, check=True, timeout=SLOW)
    told = json.loads((tmp_path / "signals.json").read_text())
    assert told == {"signals": [9] * 20, "left": True}
    resumed, whole = (
        torch.load(tmp_path / name / "checkpoint.pt", weights_only=True)
        for name in ("killed", "whole")
    )
    assert len(whole["history"]) == tiny_training.RECIPE.epochs
    assert same(untimed(resumed), untimed(whole))


@pytest.mark.slow
def test_five_kills_of_five_kinds_of_jobs(tmp_path):
    """Trainings, SCST, extraction and attributes; `make soak` takes a hundred."""
    command = [sys.executable, SCRIPT.with_name("soak.py"), "--kills", "5"]
    result = subprocess.run(
        command, env=ALONE, check=False, timeout=SLOW, capture_output=True, text=True, cwd=tmp_path
    )
    assert result.returncode == 0, result.stderr
    assert "5 kills: 1 of cross-entropy, 1 of photos, 1 of scst, 1 of extr" in result.stdout


def free_port():
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return str(free.getsockname()[1])


@pytest.mark.slow
def test_two_processes_give_the_loss_curve_of_one(tmp_path):
    # "multi_gpu" launches several processes; ACCELERATE_USE_CPU gives each a share of the CPU.
    launch = [
        sys.executable,
        "-m",
        "accelerate.commands.launch",
        "--multi_gpu",
        "--num_processes",
        "2",
        "--num_machines",
        "1",
        "--num_cpu_threads_per_process",
        "1",
        "--mixed_precision",
        "no",
        "--dynamo_backend",
        "no",
        "--main_process_port",
        free_port(),
    ]
    for how, name in (([sys.executable], "one"), (launch, "two")):
        subprocess.run([*how, SCRIPT, "curve", tmp_path / name], env=ALONE, check=True, timeout=SLOW)
    one, two = (json.loads((tmp_path / name).read_text()) for name in ("one", "two"))
    assert (one["processes"], two["processes"], len(one["losses"])) == (1, 2, 22)
    assert one["losses"] == pytest.approx(two["losses"], abs=1e-5)
    for name, weights in one["weights"].items():
        if name.endswith(
            "key.bias"
        ):  # it shifts all scores alike: its gradient is rounding, and Adam makes steps of that
            continue
        torch.testing.assert_close(
            torch.tensor(two["weights"][name]), torch.tensor(weights), atol=1e-4, rtol=1e-4
        )


def two_processes(*arguments):
    """Start two processes that train together; return their exit codes and error outputs."""
    meet = {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": free_port()}
    children = []
    for rank in ("0", "1"):
        env = ALONE | meet | {"RANK": rank, "LOCAL_RANK": rank, "TQDM_DISABLE": "1"}
        child = subprocess.Popen(
            [sys.executable, *map(str, arguments)],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        children.append(child)
    # A process that waits for one that is gone would wait for half an hour.
    outputs = [child.communicate(timeout=SLOW)[0] for child in children]
    return [child.returncode for child in children], outputs


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    """A checkpoint of `RECIPE` after three steps."""
    folder = tmp_path_factory.mktemp("interrupted")
    run = tiny_training.trainer(folder)
    steps = iter(range(3))
    run.reseed = lambda *place: next(steps)
    with pytest.raises(StopIteration):
        run.fit()
    return folder / "checkpoint.pt"


def last_lines(outputs):
    """The last line of each process, without the rank that PyTorch writes before it."""
    lines = [text.rstrip().rpartition("\n")[2] for text in outputs]
    return [re.sub(r"^\[rank\d\]: ", "", line) for line in lines]


@pytest.mark.slow
class TestTwoProcesses:
    @pytest.mark.parametrize("second", ["none", "damaged"])
    def test_without_a_shared_folder_do_not_continue(self, interrupted, tmp_path, second):
        for rank in ("0", "1"):
            (tmp_path / rank).mkdir()
        content = interrupted.read_bytes()
        (tmp_path / "0/checkpoint.pt").write_bytes(content)
        if second == "damaged":
            (tmp_path / "1/checkpoint.pt").write_bytes(content[:1000])
        codes, outputs = two_processes(SCRIPT, "apart", tmp_path)
        lines = last_lines(outputs)
        assert codes == [1, 1]
        assert lines[0] == lines[1]
        where = {
            "none": "is at step 0 of 21 in epoch 1",
            "damaged": "cannot read its checkpoint",
        }[second]
        assert f"rank 0 is at step 3 of 21 in epoch 1; rank 1 {where}" in lines[0]
        assert "machines share" in lines[0]
        assert (tmp_path / "0/checkpoint.pt").read_bytes() == content

    def test_a_killed_one_is_one_line_that_names_resume(self, tmp_path):
        codes, outputs = two_processes(SCRIPT, "lost", tmp_path)
        assert codes == [1, -9]
        line = last_lines(outputs)[0]
        assert re.match(r"ConnectionError: rank 0 has lost the connection to .*--resume", line)
        checkpoint = read_checkpoint(tmp_path / "checkpoint.pt", tiny_training.PAIR)
        assert checkpoint["state"]["step"] >= 3

    def test_print_the_end_of_a_training_once(self, tmp_path):
        command = ("train", "vanilla", "--epochs", "1", "--max-val-items", "4", "--seed", "3")
        codes, outputs = two_processes("-m", "captionlab", *command, "--out", tmp_path / "run")
        assert codes == [0, 0], outputs
        assert [output.count("1 epoch in ") for output in outputs] == [1, 0]
        assert (tmp_path / "run/run.json").exists()


# Both launchers for a script; `--multi_gpu` starts several processes, on a CPU as well.
SCRIPT_LAUNCHERS = {
    "torchrun": ["torch.distributed.run", "--nproc_per_node", "2", "--master_port"],
    "accelerate": [
        "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1",
        "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port",
    ],
}


def launched(launcher, mode, folder):
    """Train in two processes; return the exit code of their launcher, and what all printed."""
    command = [sys.executable, "-m", *SCRIPT_LAUNCHERS[launcher], free_port(), SCRIPT, mode, folder]
    result = subprocess.run(
        list(map(str, command)), env=ALONE | {"TQDM_DISABLE": "1"}, capture_output=True, text=True,
        check=False, timeout=SLOW,
    )
    return result.returncode, result.stdout + result.stderr


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The last checkpoint of two processes that nothing happened to."""
    folder = tmp_path_factory.mktemp("undisturbed")
    codes, outputs = two_processes(SCRIPT, "shared", folder)
    assert codes == [0, 0], outputs
    return torch.load(folder / "checkpoint.pt", weights_only=True)


@pytest.mark.slow
@pytest.mark.parametrize(("launcher", "mode"), [("torchrun", "lost"), ("accelerate", "broken")])
def test_one_process_that_ends_ends_all_and_training_goes_on_exactly(
    undisturbed, tmp_path, launcher, mode
):
    """Killed or failed: long before the 30 minutes that gloo waits for another process."""
    code, printed = launched(launcher, mode, tmp_path)
    assert code == 1
    if mode == "broken":
        assert "ValueError: cannot read" in printed
    if "rank 0 has lost the connection" in printed:     # else its launcher was faster to end it
        assert "start all of them again with --resume" in printed
    checkpoint = read_checkpoint(tmp_path / "checkpoint.pt", tiny_training.PAIR)
    assert 3 <= checkpoint["state"]["step"] < 21
    codes, outputs = two_processes(SCRIPT, "shared", tmp_path)
    assert codes == [0, 0], outputs
    resumed = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    assert same(untimed(resumed), untimed(undisturbed))


def test_an_error_of_a_process_alone_is_not_a_lost_connection():
    with pytest.raises(RuntimeError, match=r"^Connection reset by peer$"), explain_lost_process():
        raise RuntimeError("Connection reset by peer")


SHORT = replace(tiny_training.RECIPE, epochs=1)
PAIR = tiny_training.PAIR


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with the checkpoint of a finished run."""
    folder = tmp_path_factory.mktemp("trained")
    tiny_training.trainer(folder, SHORT).fit()
    return folder


def test_another_config_in_the_folder_is_one_clear_line(trained):
    other = replace(SHORT, lr=1e-4, label_smoothing=0.0)
    before = (trained / "checkpoint.pt").read_bytes()
    with pytest.raises(
        ValueError, match=r"lr was 0.003 and is now 0.0001; label_smoothing was 0.1 and is now 0.0"
    ) as error:
        tiny_training.trainer(trained, other).fit()
    assert "\n" not in str(error.value)
    assert "another folder" in str(error.value)
    assert (trained / "checkpoint.pt").read_bytes() == before


def test_a_checkpoint_of_another_device_is_one_clear_line(trained, tmp_path):
    checkpoint = torch.load(trained / "checkpoint.pt", weights_only=True)
    torch.save(checkpoint | {"device": "cuda"}, tmp_path / "checkpoint.pt")
    with pytest.raises(ValueError, match="was begun on cuda, .* resume it on cuda, or train anew"):
        tiny_training.trainer(tmp_path, SHORT).fit()


@pytest.mark.parametrize("nothing", [{"epochs": 0}, {"warmup": 0}, {"batch_size": 0}])
def test_a_config_has_something_to_do(nothing):
    with pytest.raises(ValueError, match="is 0: take a whole number of at least 1"):
        TrainingConfig(**nothing)
    with pytest.raises(ValueError, match="for no clipping give float"):
        TrainingConfig(max_grad_norm=0.0)
    for betas in ((0.9,), (0.9, 1.0), (-0.1, 0.9), (0.9, 0.98, 0.5)):
        with pytest.raises(ValueError, match="Adam takes two"):
            TrainingConfig(betas=betas)


@pytest.mark.parametrize(
    "wrong",
    [
        {"epochs": 2.5}, {"epochs": 2.0}, {"epochs": True}, {"epochs": "3"}, {"batch_size": 1.5},
        {"max_tokens": 0.5}, {"warmup": float("nan")}, {"patience": None}, {"seed": 1.0},
        {"accumulation": 1.5},
    ],
)  # fmt: skip
def test_what_is_counted_is_a_whole_number(wrong):
    (name,) = wrong
    with pytest.raises(ValueError, match=f"^{name} .*: (take|give) a whole number"):
        TrainingConfig(**wrong)
    assert TrainingConfig(epochs=np.int64(3)).epochs == 3


def test_a_checkpoint_without_a_newer_field_is_read(tmp_path):
    stored = asdict(SHORT)
    del stored["encoder_lr_scale"]
    write_checkpoint(tmp_path / "checkpoint.pt", {"config": stored})
    assert read_checkpoint(tmp_path / "checkpoint.pt", SHORT) == {"config": stored}
    with pytest.raises(ValueError, match=r"encoder_lr_scale was 1.0 and is now 0.1"):
        read_checkpoint(tmp_path / "checkpoint.pt", replace(SHORT, encoder_lr_scale=0.1))


@pytest.mark.parametrize("content", [b"", b"not a checkpoint"])
def test_a_broken_checkpoint_is_one_clear_line(tmp_path, content):
    (tmp_path / "checkpoint.pt").write_bytes(content)
    with pytest.raises(
        ValueError, match=r"not a readable checkpoint .*delete it to start anew"
    ) as error:
        read_checkpoint(tmp_path / "checkpoint.pt", SHORT)
    assert "\n" not in str(error.value)


def test_a_bit_that_changed_in_a_checkpoint_is_noticed(interrupted, tmp_path):
    """Wherever it is: the file is refused, or its values are the same."""
    content = interrupted.read_bytes()
    whole = read_checkpoint(interrupted, tiny_training.RECIPE)
    chance = random.Random(0)
    messages = []
    file = tmp_path / "checkpoint.pt"
    for _ in range(60):
        damaged = bytearray(content)
        damaged[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        file.write_bytes(damaged)
        try:
            same_values = same(read_checkpoint(file, tiny_training.RECIPE), whole)
        except ValueError as error:
            messages.append(str(error))
        else:
            assert same_values
    assert len(messages) > 20
    assert [text for text in messages if "not a readable checkpoint (" not in text] == []
    assert [text for text in messages if "\n" in text] == []


def test_a_changed_weight_is_called_damage(interrupted, tmp_path):
    state = torch.load(interrupted, weights_only=True)
    weight = state["optimizer"]["state"][0]["exp_avg"].numpy().tobytes()
    content = bytearray(interrupted.read_bytes())
    content[content.index(weight)] ^= 1
    (tmp_path / "checkpoint.pt").write_bytes(content)
    with pytest.raises(ValueError, match=r"it is damaged: .* has another checksum .*start anew"):
        read_checkpoint(tmp_path / "checkpoint.pt", tiny_training.RECIPE)


def put(value, *keys):
    """A change of a checkpoint: `value` in the place that `keys` lead to."""

    def change(state):
        for key in keys[:-1]:
            state = state[key]
        state[keys[-1]] = value

    return change


RECORD = {"epoch": 1, "loss": 1.0, "rate": 0.1, "seconds": 1.0}
ODD = {
    "a text for a moment": put("text", "optimizer", "state", 0, "exp_avg"),
    "a moment of another shape": put(torch.zeros(1), "optimizer", "state", 0, "exp_avg_sq"),
    "a number for a step": put(3, "optimizer", "state", 0, "step"),
    "moments of no parameter": put({}, "optimizer", "state", 900),
    "no moments": put([], "optimizer", "state"),
    "a text for a rate": put("fast", "optimizer", "param_groups", 0, "lr"),
    "a text for betas": put("ab", "optimizer", "param_groups", 0, "betas"),
    "no rate": lambda state: state["optimizer"]["param_groups"][0].pop("lr"),
    "no groups": put(None, "optimizer", "param_groups"),
    "a text for the scheduler's step": put("late", "scheduler", "last_epoch"),
    "a step before the first": put(-5, "scheduler", "last_epoch"),
    "a scheduler without a step": lambda state: state["scheduler"].pop("last_epoch"),
    "base rates that are texts": put(["a"], "scheduler", "base_lrs"),
    "a scheduler that is a list": put([1], "scheduler"),
    "a history of texts": put(["good"], "history"),
    "a history that is too long": put([RECORD], "history"),
    "a dictionary for a history": put({}, "history"),
    "numbers for the best": put([1], "best"),
    "an epoch that is a text": put("2", "state", "epoch"),
    "a negative step": put(-1, "state", "step"),
    "a step past the end": put(10**9, "state", "step"),
    "a loss that is no number": put(math.nan, "state", "total_loss"),
    "weights that are texts": put("text", "model", "projection.weight"),
    "an average that is a list": put([], "ema_model"),
    "no averaged weights": put({}, "ema_model"),
}


@pytest.mark.parametrize("change", ODD.values(), ids=ODD)
def test_an_odd_value_in_a_checkpoint_is_one_clear_line(interrupted, tmp_path, change):
    state = torch.load(interrupted, weights_only=True)
    change(state)
    write_checkpoint(tmp_path / "checkpoint.pt", state)
    with pytest.raises(ValueError, match=r"not a readable checkpoint .*start anew") as error:
        tiny_training.trainer(tmp_path).fit()
    assert str(error.value).startswith(str(tmp_path / "checkpoint.pt"))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "record", [{"loss": "low"}, {"epoch": 2}, {"score": "good"}, {"seconds": None}, "none"]
)
def test_an_odd_record_in_a_history_is_one_clear_line(trained, tmp_path, record):
    state = torch.load(trained / "checkpoint.pt", weights_only=True)
    state["history"] = [RECORD | record if isinstance(record, dict) else record]
    write_checkpoint(tmp_path / "checkpoint.pt", state)
    with pytest.raises(ValueError, match=r"its history .*delete it to start anew"):
        tiny_training.trainer(tmp_path, SHORT).fit()


def test_values_that_a_scheduler_does_not_have_are_not_taken_over(interrupted, tmp_path):
    state = torch.load(interrupted, weights_only=True)
    state["scheduler"]["get_lr"] = "planted"
    write_checkpoint(tmp_path / "checkpoint.pt", state)
    run = tiny_training.trainer(tmp_path)
    run.fit()
    assert len(run.history) == tiny_training.RECIPE.epochs


@pytest.mark.slow
@pytest.mark.parametrize("compiled", [(True, False), (False, True), (True, True)])
def test_a_compiled_training_is_continued_as_any_other(tmp_path, monkeypatch, compiled):
    """The names in its checkpoint are those of the model before `torch.compile`."""

    def captioner(words, dropout, compile_it):
        model = tiny_training.GridCaptioner(words, dropout)
        return torch.compile(model, backend="eager") if compile_it else model

    def start(folder, compile_it):
        data, words = tiny_training.examples()
        torch.manual_seed(0)
        model = captioner(words, 0.0, compile_it)   # a compiled dropout draws others
        return Trainer(model, data, SHORT, folder, save_every=0)

    whole = start(None, False).fit()
    run = start(tmp_path, compiled[0])
    steps = iter(range(3))
    reseed = run.reseed
    run.reseed = lambda *place: (next(steps), reseed(*place))
    with pytest.raises(StopIteration):
        run.fit()
    stored = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    assert not [name for name in stored["model"] if "_orig_mod" in name]
    resumed = start(tmp_path, compiled[1]).fit()
    # Padding stays in a compiled step, so its sums round otherwise. A key's bias changes no
    # attention: its gradient is rounding, which Adam scales up.
    expected = {n: x for n, x in whole.state_dict().items() if not n.endswith("key.bias")}
    found = {name: resumed.state_dict()[name] for name in expected}
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


def test_a_loss_that_is_no_number_changes_no_weight():
    run = tiny_training.trainer(config=SHORT)
    with torch.no_grad():
        run.model.projection.weight.fill_(math.nan)
    before = {name: x.clone() for name, x in run.model.state_dict().items()}
    with pytest.raises(ValueError, match="the loss of a step is nan: train with a lower lr"):
        run.fit()
    after = run.model.state_dict()
    assert all(
        x.equal(before[name]) for name, x in after.items() if not name.startswith("projection")
    )


@pytest.mark.parametrize("precisions", [("no", "bf16"), ("bf16", "no")])
def test_one_process_trains_in_two_precisions(precisions):
    for precision in precisions:
        run = tiny_training.trainer(config=replace(SHORT, epochs=1, precision=precision))
        run.fit()
        assert run.accelerator.mixed_precision == precision


class Encoding(tiny_training.GridCaptioner):
    """A captioner with an encoder behind its projection."""

    def __init__(self, words):
        super().__init__(words, dropout=0.0)
        self.encoder = nn.Linear(8, 8)

    def encode_inputs(self, batch):
        cells, mask = super().encode_inputs(batch)
        return self.encoder(cells), mask


@pytest.mark.parametrize("wrap", [lambda model: model, CaptionerWrapper])
def test_an_encoder_learns_at_a_rate_of_its_own(wrap):
    """Adam's first step is as long as the rate, wherever the gradient is not nearly zero."""
    data, words = tiny_training.examples()
    config = replace(SHORT, schedule="constant", warmup=1, encoder_lr_scale=0.1)
    stepper = Trainer(wrap(Encoding(words)), data, config)
    before = {name: x.detach().clone() for name, x in stepper.model.named_parameters()}
    stepper.step(collate([data[0], data[1]]))
    moved = {
        name: (x - before[name]).abs().max().item() for name, x in stepper.model.named_parameters()
    }
    for name in ("encoder.weight", "projection.weight", "words.weight"):
        (found,) = (value for full, value in moved.items() if full.endswith(name))
        assert found == pytest.approx(config.lr * (0.1 if "encoder" in name else 1.0), rel=1e-3), (
            name
        )
    assert stepper.lr == config.lr


@pytest.mark.parametrize(
    ("has", "gain", "found"),
    [
        ({"avx512_bf16": True}, 2.0, "bf16"),
        ({"amx_bf16": True}, 2.0, "bf16"),
        ({"avx512_bf16": True}, 0.6, "no"),
        ({"avx512_bf16": False}, 2.0, "no"),
        ({}, 2.0, "no"),
    ],
)
def test_a_processor_takes_16_bits_only_if_it_has_them_and_is_faster(monkeypatch, has, gain, found):
    """Also where there is a GPU that the training was told not to use."""
    monkeypatch.setattr(
        devices, "PartialState", lambda **_: SimpleNamespace(device=torch.device("cpu"))
    )
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: has, raising=False)
    monkeypatch.setattr(devices, "bf16_speedup", lambda: gain)
    assert devices.resolve_precision("auto") == found
    assert devices.resolve_precision("auto", varied_shapes=True) == "no"


@pytest.mark.parametrize(("max_tokens", "precision"), [(0, "bf16"), (500, "no")])
def test_steps_of_varied_shapes_stay_at_32_bits_on_a_processor(
    monkeypatch, max_tokens, precision
):
    """Products in bf16 would be compiled for each of them."""
    monkeypatch.setattr(devices, "_device_type", lambda: "cpu")
    monkeypatch.setattr(devices, "_has_fast_bf16", lambda: True)
    config = replace(SHORT, precision="auto", max_tokens=max_tokens)
    assert tiny_training.trainer(None, config).accelerator.mixed_precision == precision


def test_a_half_written_part_file_is_ignored(trained, tmp_path):
    half = (trained / "checkpoint.pt").read_bytes()[:500]
    (tmp_path / "checkpoint.pt.1.part").write_bytes(half)
    tiny_training.trainer(tmp_path, SHORT).fit()
    assert same(
        *(untimed(torch.load(f / "checkpoint.pt", weights_only=True)) for f in (trained, tmp_path))
    )


def test_a_write_that_fails_leaves_the_old_checkpoint(tmp_path):
    write_checkpoint(tmp_path / "checkpoint.pt", {"config": asdict(SHORT)})
    with pytest.raises(Exception, match="pickle"):
        write_checkpoint(tmp_path / "checkpoint.pt", {"config": lambda: None})
    assert read_checkpoint(tmp_path / "checkpoint.pt", SHORT) == {"config": asdict(SHORT)}


def test_scores_of_numpy_can_be_read_back(tmp_path):
    scored = tiny_training.trainer(tmp_path, SHORT)
    scored.validate = lambda model: {
        "score": np.float64(1.5),
        "more": torch.tensor(2.5),
        "plain": 3,
    }
    scored.fit()
    history = read_checkpoint(tmp_path / "checkpoint.pt", SHORT)["history"]
    assert [history[0][name] for name in ("score", "more", "plain")] == [1.5, 2.5, 3]


def test_a_finished_run_trains_no_further(trained, monkeypatch):
    monkeypatch.setattr(Trainer, "_train_epoch", lambda self: pytest.fail("trained on"))
    best = torch.load(trained / "checkpoint.pt", weights_only=True)["best"]
    assert same(dict(tiny_training.trainer(trained, SHORT).fit().state_dict()), best)


def test_a_notebook_that_has_turned_gradients_off_can_train():
    train = tiny_training.trainer(config=SHORT)
    before = {name: x.clone() for name, x in train.model.state_dict().items()}
    with torch.no_grad():
        after = dict(train.fit().state_dict())
    assert not same(after, before)


def test_an_epoch_takes_the_time_before_an_interruption_too(tmp_path, monkeypatch):
    train, step, left = tiny_training.trainer(tmp_path, SHORT), Trainer.step, iter(range(3))
    monkeypatch.setattr(Trainer, "step", lambda self, batch: (next(left), step(self, batch))[1])
    with pytest.raises(StopIteration):
        train.fit()
    monkeypatch.undo()
    state = read_checkpoint(tmp_path / "checkpoint.pt", SHORT)
    assert 0 < state["state"]["seconds"] < 60
    state["state"]["seconds"] += 1000.0
    write_checkpoint(tmp_path / "checkpoint.pt", state)
    again = tiny_training.trainer(tmp_path, SHORT)
    again.fit()
    assert 1000 < again.history[0]["seconds"] < 1120


def test_pictures_without_a_caption_teach_nothing():
    train = tiny_training.trainer(config=SHORT)
    before = {name: x.clone() for name, x in train.model.state_dict().items()}
    bare = collate([train.data[row] for row in range(2)])
    bare = replace(bare, captions=bare.captions[:, :0])
    assert train.step(bare).tolist() == [0.0, 0.0]
    assert same(dict(train.model.state_dict()), before)


@pytest.mark.parametrize("parts", [2, 3, 8])
def test_a_step_in_parts_is_the_step(parts):
    results = []
    for accumulation in (1, parts):
        torch.manual_seed(0)
        run = tiny_training.trainer(config=replace(SHORT, accumulation=accumulation))
        for module in run.model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        batch = collate([run.data[row] for row in range(5)])
        sums = [run.step(batch).tolist() for _ in range(3)]
        # A key's bias changes no attention: its gradient is rounding, which Adam scales up.
        state = run.model.state_dict()
        weights = {name: x for name, x in state.items() if not name.endswith("key.bias")}
        results.append((sums, weights))
    (sums, weights), (part_sums, part_weights) = results
    torch.testing.assert_close(torch.tensor(part_sums), torch.tensor(sums))
    torch.testing.assert_close(part_weights, weights, rtol=1e-5, atol=1e-5)


def test_a_run_in_parts_is_resumed_exactly(tmp_path):
    config = replace(SHORT, accumulation=2)
    whole = tiny_training.trainer(tmp_path / "whole", config=config)
    whole.fit()
    first = tiny_training.trainer(tmp_path / "halves", config=config)
    first.save_every = -1.0
    step, calls = first.step, []

    def interrupted(batch):
        if len(calls) == 3:
            raise KeyboardInterrupt
        calls.append(batch)
        return step(batch)

    first.step = interrupted
    with pytest.raises(KeyboardInterrupt):
        first.fit()
    second = tiny_training.trainer(tmp_path / "halves", config=config)
    second.fit()
    assert same(dict(second.best), dict(whole.best))


def test_too_little_memory_is_one_line_that_names_the_option(monkeypatch):
    run = tiny_training.trainer(config=replace(SHORT, accumulation=2))

    def exhausted(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    monkeypatch.setattr(run, "_loss", exhausted)
    with pytest.raises(MemoryError, match="set accumulation=4") as error:
        run.fit()
    assert "\n" not in str(error.value)
    options = {name for option in typer.main.get_command(app).commands["train"].params
               for name in option.opts}
    assert {"--accumulate", "--checkpointing", "--batch-size"} <= options
    assert set(re.findall(r"--[a-z-]+", str(error.value))) <= options


@pytest.mark.slow
def test_blocks_that_are_computed_again_train_to_the_same_bits():
    results = []
    for checkpointing in (False, True):
        run = tiny_training.trainer(config=replace(SHORT, checkpointing=checkpointing))
        fitted = run.fit()
        results.append((run.history[-1]["loss"], fitted.state_dict()))
    assert results[0][0] == results[1][0]
    assert same(dict(results[0][1]), dict(results[1][1]))


@pytest.mark.slow
def test_blocks_that_are_computed_again_take_less_memory():
    preset = replace(cptr.PRESETS["tiny"], encoder_layers=6, dropout=0.1)
    stored, again = (memory.step_bytes(cptr.Model, preset, option) for option in (False, True))
    assert again < 0.8 * stored


def test_a_model_without_blocks_cannot_compute_them_again():
    with pytest.raises(ValueError, match="leave checkpointing"):
        checkpoint_activations(nn.Linear(2, 2))


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("g++"), reason="needs a C++ compiler")
def test_a_compiled_step_has_the_loss_of_a_plain_one():
    losses = []
    states = []
    for compiled in (False, True):
        config = replace(SHORT, compile=compiled)
        run = tiny_training.trainer(config=config, dropout=0.0)
        batch = collate([run.data[row] for row in range(4)])
        losses.append([run.step(batch)[0].item() for _ in range(2)])
        states.append(run.ema_model.state_dict())
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    assert states[0].keys() == states[1].keys()


def test_compiling_without_a_compiler_is_one_line(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(ValueError, match="leave --compile out"):
        tiny_training.trainer(config=replace(SHORT, compile=True))


def gpu_tensors(trainer, batch):
    """What a GPU would hold before a training step."""
    moments = [x for state in trainer.optimizer.optimizer.state.values() for x in state.values()]
    weights = [*trainer.model.state_dict().values(), *trainer.ema_model.module.state_dict().values()]
    return [*weights, *moments, *batch.tensors().values()]


@pytest.fixture
def all_rows(monkeypatch):
    """Losses as on a GPU: padding stays in, and is ignored."""
    monkeypatch.setattr(
        captioner, "rows_to_score", lambda rows, targets: rows.flatten(0, targets.ndim - 1)
    )


@pytest.mark.parametrize("accumulation", [1, 3])
def test_a_step_does_not_wait_for_a_gpu(all_rows, accumulation):
    run = tiny_training.trainer(config=replace(SHORT, accumulation=accumulation))
    batch = collate([run.data[row] for row in range(4)])
    run.step(batch)
    with WaitCounter(gpu_tensors(run, batch)) as waits:
        run.step(batch)
    assert not waits.counts
    with WaitCounter(gpu_tensors(run, batch)) as waits:
        run.step(batch).tolist()
    assert waits.counts == {"tolist": 1}


def test_a_reward_that_reads_numbers_lets_samples_end_early(monkeypatch):
    preset = vanilla.PRESETS["tiny"]
    torch.manual_seed(0)
    model = vanilla.Model(preset, 50)
    model = SelfCritical(model, lambda ids, _: ids.float().mean(-1), max_length=8)
    run = Trainer(model, range(40), SHORT)
    grid = torch.randn(2, math.prod(vanilla.grid_size(preset.inputs.grid)), preset.channels)
    batch = Batch(grid=grid, captions=pad_sequences([[[1, 5, 2]]] * 2))
    run.step(batch)
    monkeypatch.setattr(generation, "_words_per_check", lambda device: 3)
    with WaitCounter(gpu_tensors(run, batch)) as waits:
        run.step(batch)
    # After three, six and eight words, and for the length.
    assert waits.counts == {"tolist": 4}


def losses_of(run):
    return [record["loss"] for record in run.history], run.best


@pytest.mark.parametrize("interval", [4, 100])
def test_losses_that_are_read_rarely_are_the_same(interval):
    whole = tiny_training.trainer(config=PAIR)
    whole.fit()
    rare = tiny_training.trainer(config=PAIR)
    rare.steps_per_reading = interval
    plain_step = rare.step
    left = iter(range(30))

    def step(batch):
        if next(left) == 25:
            raise KeyboardInterrupt
        return plain_step(batch)

    rare.step = step
    with pytest.raises(KeyboardInterrupt):
        rare.fit()
    rare.step = plain_step
    rare.fit()      # goes on with the weights that it has
    assert same(losses_of(rare), losses_of(whole))


@pytest.mark.parametrize("interval", [4, 100])
def test_a_run_with_rare_readings_is_resumed_exactly(tmp_path, interval):
    whole = tiny_training.trainer(config=PAIR)
    whole.fit()
    saved = 0
    for steps in (3, 9, 11, 100):
        run = tiny_training.trainer(tmp_path, PAIR)
        run.save_every = math.inf
        run.steps_per_reading = interval
        reseed = run.reseed
        left = iter(range(steps))

        def counted(epoch, step, run=run, reseed=reseed, left=left):
            if next(left, None) is None:
                raise KeyboardInterrupt
            if step % 5 == 0:
                run.last_save = -math.inf       # the clock says that it is time
            reseed(epoch, step)

        run.reseed = counted
        try:
            run.fit()
        except KeyboardInterrupt:
            saved += 1
    assert saved == 3
    assert same(losses_of(run), losses_of(whole))


@pytest.mark.parametrize("saves", [False, True])
def test_nothing_is_saved_after_a_loss_that_is_no_number(tmp_path, saves):
    run = tiny_training.trainer(tmp_path, config=SHORT)
    run.save_every = -1.0 if saves else math.inf
    run.steps_per_reading = 7
    plain_step = run.step
    weights = []

    def step(batch):
        weights.append({name: x.clone() for name, x in run.model.state_dict().items()})
        if len(weights) > 3:
            batch = replace(batch, grid=batch.grid * math.nan)
        return plain_step(batch)

    run.step = step
    with pytest.raises(ValueError, match="the loss of a step is nan: train with a lower lr"):
        run.fit()
    assert len(weights) == (4 if saves else 7)
    assert same(dict(run.model.state_dict()), weights[3])
    stored = read_checkpoint(tmp_path / "checkpoint.pt", SHORT)
    assert (stored is not None) == saves
    if saves:
        assert stored["state"]["step"] == 3
        assert same(stored["model"], weights[3])


@pytest.mark.slow
def test_memory_of_self_critical_training_is_flat():
    live = memory.scst_bytes(200)
    assert len(live) == 200
    assert set(live[9:]) == {live[9]}
    assert live[9] > 0


def test_accumulation_below_one_is_refused():
    with pytest.raises(ValueError, match="accumulation is 0"):
        TrainingConfig(accumulation=0)


def test_a_checkpoint_executes_no_code(tmp_path):
    torch.save({"config": print}, tmp_path / "checkpoint.pt")
    with pytest.raises(Exception, match="Weights only load failed"):
        read_checkpoint(tmp_path / "checkpoint.pt", SHORT)


@pytest.mark.slow
def test_the_best_epoch_is_kept_and_patience_ends_the_run():
    scores, kept = iter([1.0, 3.0, 2.0, 2.5, 9.0]), []

    def validate(model):
        kept.append({name: x.clone() for name, x in model.state_dict().items()})
        return {"score": next(scores)}

    run = tiny_training.trainer(config=replace(tiny_training.RECIPE, patience=2))
    run.validate = validate
    model = run.fit()
    assert len(run.history) == 4
    assert not model.training
    assert same(dict(model.state_dict()), kept[1])


def test_without_averaging_the_last_weights_are_kept():
    run = tiny_training.trainer(config=replace(SHORT, ema_decay=0.0))
    model = run.fit()
    assert same(dict(model.state_dict()), dict(run.model.state_dict()))


@given(st.integers(1, 50), st.integers(1, 20))
def test_schedules_rise_to_one_and_then_never_again(warmup, every):
    steps = range(warmup + 60)
    for share in (
        lambda s: noam(s, warmup),
        lambda s: cosine(s, warmup, warmup + 60),
        lambda s: config_module._step_decay(s, warmup, every),
        TrainingConfig(schedule="constant", warmup=warmup).lr_lambda(10),
    ):
        rates = [share(step) for step in steps]
        assert all(0 <= rate <= 1 for rate in rates)
        assert all(b <= a + 1e-12 for a, b in pairwise(rates[warmup - 1 :]))
        assert rates[0] == pytest.approx(1 / warmup)
    assert noam(warmup - 1, warmup) == cosine(warmup - 1, warmup, warmup + 60) == 1.0
    assert cosine(warmup + 60, warmup, warmup + 60) == pytest.approx(0, abs=1e-9)
    assert math.isclose(config_module._step_decay(3 * every + 100, 1, every), 0.8 ** ((3 * every + 100) // every))


def test_an_unknown_schedule_is_named():
    with pytest.raises(
        ValueError, match="no schedule 'linear': choose from noam, cosine, stairs, constant"
    ):
        TrainingConfig(schedule="linear").lr_lambda(10)


@pytest.mark.parametrize(
    "wrong",
    [
        {"label_smoothing": 1.0}, {"ema_decay": 1.0}, {"max_tokens": -1}, {"encoder_lr_scale": -1.0},
        {"lr": 0.0}, {"lr": float("inf")}, {"patience": -1},
    ],
)  # fmt: skip
def test_a_config_that_teaches_nothing_is_refused(wrong):
    with pytest.raises(ValueError, match=r"(give|take) (a|numbers) .*(from|above|at least) 0"):
        TrainingConfig(**wrong)


def test_another_file_of_torchs_is_no_checkpoint(tmp_path):
    for other in (torch.ones(3), {"config": None}):
        torch.save(other, tmp_path / "checkpoint.pt")
        with pytest.raises(ValueError, match="is not a readable checkpoint"):
            read_checkpoint(tmp_path / "checkpoint.pt", TrainingConfig())


@pytest.mark.slow
@pytest.mark.parametrize("part", ["model", "optimizer", "state", "history", "best"])
def test_a_checkpoint_that_lacks_a_part_is_one_clear_line(part, tmp_path):
    tiny_training.trainer(config=SHORT, folder=tmp_path).fit()
    state = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    for content in (
        {key: x for key, x in state.items() if key != part},
        state | {part: None},
        state | {"state": {"elsewhere": 1}},
    ):
        write_checkpoint(tmp_path / "checkpoint.pt", content)
        with pytest.raises(
            ValueError, match=r"not a readable checkpoint .*delete it to start anew"
        ):
            tiny_training.trainer(config=SHORT, folder=tmp_path).fit()


@pytest.mark.slow
def test_torchrun_starts_two_processes_that_train_together(tmp_path):
    launcher = ["torch.distributed.run", "--nproc_per_node", "2", "--master_port", free_port()]
    command = [sys.executable, "-m", *launcher, "-m", "captionlab", "train"]
    train = ["vanilla", "--epochs", "1", "--max-val-items", "4", "--device", "cpu"]
    env = ALONE | {"TQDM_DISABLE": "1"}
    losses = []
    for start, name in ((command, "two"), ([sys.executable, "-m", "captionlab", "train"], "one")):
        out = tmp_path / name
        result = subprocess.run(
            [*start, *train, "--out", out], env=env, check=False, timeout=400,
            capture_output=True, text=True,
        )  # fmt: skip
        assert result.returncode == 0, result.stderr
        assert result.stdout.count("1 epoch in ") == 1
        losses.append(json.loads((out / "run.json").read_text())["history"][0]["loss"])
    # Each process draws its own dropout, so that two processes differ from one, but not by much.
    assert losses[0] != losses[1]
    assert losses[0] == pytest.approx(losses[1], abs=0.2)
