"""A training of a few seconds, for tests that kill it or share it between processes.

python tests/tiny_training.py killed FOLDER     one run undisturbed, one killed 20 times and resumed
python tests/tiny_training.py curve FILE        writes every step's loss; under `accelerate launch`
python tests/tiny_training.py apart FOLDER      one of several processes, each with FOLDER/RANK
python tests/tiny_training.py lost FOLDER       one of several processes; one is killed
python tests/tiny_training.py broken FOLDER     one of several processes; one cannot read a picture
python tests/tiny_training.py shared FOLDER     one of several processes that train to the end
python tests/tiny_training.py workers FOLDER    trains with two workers until it is killed
"""

import json
import os
import random
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from captionlab.blocks import BlockConfig
from captionlab.captioner import TransformerCaptioner
from captionlab.data.batches import CaptionDataset
from captionlab.data.datasets import Item
from captionlab.text import Vocabulary
from captionlab.training.config import TrainingConfig
from captionlab.training.loop import Trainer

RECIPE = TrainingConfig(
    epochs=8, batch_size=2, lr=3e-3, warmup=10, ema_decay=0.9
)  # 8 epochs of 21 steps
PAIR = replace(RECIPE, epochs=2)        # of two processes, which take longer to start
KILLS, MOST_STEPS = 20, 7  # 20 kills within 7 steps each come before the last of 168 steps


class GridCaptioner(TransformerCaptioner):
    """Two cells of three numbers, a decoder of one small block."""

    def __init__(self, words, dropout):
        super().__init__(BlockConfig(8, 2, 16, dropout), 1, words)
        self.projection = nn.Linear(3, 8)

    def encode_inputs(self, batch):
        return self.projection(batch.require("grid")), None


def examples():
    """42 items with captions of very different length, always the same."""
    chance = random.Random(0)

    def caption():
        return " ".join(
            chance.choices(["red", "blue", "circle", "square", "a"], k=chance.randint(1, 9))
        )

    items = [Item(str(n), (caption(), caption())) for n in range(42)]

    def cells(item):
        return torch.rand(2, 3, generator=torch.Generator().manual_seed(int(item.name)))

    vocabulary = Vocabulary.build(text for item in items for text in item.captions)
    return CaptionDataset(items, vocabulary, inputs={"grid": cells}), len(vocabulary)


def trainer(folder=None, config=RECIPE, dropout=0.1, workers=0):
    """A fresh model about to be trained, with a checkpoint after every step."""
    data, words = examples()
    torch.manual_seed(0)
    model = GridCaptioner(words, dropout)
    return Trainer(model, data, config, folder, save_every=0, workers=workers)


def watched(tell):
    """Let `Trainer.step` tell its result after every step."""
    plain = Trainer.step

    def step(self, batch):
        result = plain(self, batch)
        tell(result)
        return result

    Trainer.step = step


def in_a_child(folder, pipe=None):
    """Start a process that trains, from the checkpoint if there is one; returns its id."""
    child = os.fork()
    if child == 0:
        if pipe:
            watched(lambda result: os.write(pipe, b"."))
        trainer(folder).fit()
        os._exit(0)
    return child


def kill_at_random(folder, chance):
    """Train in a child, let it do a few steps, and kill it at any moment after that."""
    ear, mouth = os.pipe()
    child = in_a_child(folder, mouth)
    os.close(mouth)
    for _ in range(chance.randint(0, MOST_STEPS - 1)):
        os.read(ear, 1)
    time.sleep(chance.uniform(0, 0.02))
    os.kill(child, signal.SIGKILL)
    os.close(ear)
    return os.WTERMSIG(os.waitpid(child, 0)[1])


def finished(folder):
    assert os.waitpid(in_a_child(folder), 0)[1] == 0


def killed(folder):
    """Write the signals that ended the processes, and checkpoints in `whole` and `killed`."""
    trainer()  # imports what a first training imports, once for all children
    chance = random.Random(1)
    signals = [kill_at_random(folder / "killed", chance) for _ in range(KILLS)]
    left = (folder / "killed" / "checkpoint.pt").exists()
    finished(folder / "killed"), finished(folder / "whole")
    (folder / "signals.json").write_text(json.dumps({"signals": signals, "left": left}))


def curve(file):
    """Write the loss of every step over all processes, and the last weights."""
    losses = []
    def note(result):
        loss, tokens = result.tolist()
        losses.append(loss / tokens)

    watched(note)
    run = trainer(config=replace(RECIPE, batch_size=4, epochs=2), dropout=0.0)
    weights = {name: x.tolist() for name, x in run.fit().state_dict().items()}
    if run.accelerator.is_main_process:
        content = {
            "processes": run.accelerator.num_processes,
            "losses": losses,
            "weights": weights,
        }
        file.write_text(json.dumps(content))


def apart(folder):
    """Train in a folder of this process alone, as on machines that share none."""
    trainer(folder / os.environ["RANK"]).fit()


def lost(folder):
    """Train in a shared folder; all processes but the first are killed in their fifth step."""
    steps = iter(range(4))
    if os.environ["RANK"] != "0":
        watched(lambda result: next(steps, None) is None and os.kill(os.getpid(), signal.SIGKILL))
    trainer(folder, PAIR).fit()


def broken(folder):
    """Train in a shared folder; all processes but the first fail to read their ninth row."""
    run = trainer(folder, PAIR)
    if os.environ["RANK"] != "0":
        rows = iter(range(8))
        cells = run.data.input_variants[0]["grid"]

        def read(item):
            if next(rows, None) is None:
                raise ValueError(f"cannot read {item.name}.jpg as a picture: it is cut off")
            return cells(item)

        run.data.input_variants[0]["grid"] = read
    run.fit()


def shared(folder):
    """Train in a shared folder, from the checkpoint if there is one."""
    trainer(folder, PAIR).fit()


def workers(folder):
    """Train with worker processes until somebody ends this one; print a line after a step."""
    watched(lambda result: print(flush=True))
    trainer(folder, replace(RECIPE, epochs=10**6), workers=2).fit()


if __name__ == "__main__":
    os.environ.setdefault("TQDM_DISABLE", "1")
    modes = {"killed": killed, "curve": curve, "apart": apart, "lost": lost}
    modes |= {"broken": broken, "shared": shared, "workers": workers}
    modes[sys.argv[1]](Path(sys.argv[2]))
