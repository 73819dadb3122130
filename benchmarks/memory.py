"""Memory on a CPU: bytes of live tensors, at their peak or from step to step.

CPTR's `paper` preset with and without activation checkpointing, beam search with more beams, and
the steps of self-critical training.
"""

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks import record, step_trainer
from captionlab.captioner import Memory
from captionlab.data.batches import Batch
from captionlab.decoding.beam import beam_search
from captionlab.decoding.generation import EOS
from captionlab.models import cptr, vanilla
from captionlab.scst import SelfCritical
from captionlab.text import pad_sequences
from captionlab.training.config import TrainingConfig

MEGABYTE = 2**20
V = 9500


class LiveMemory(TorchDispatchMode):
    """A context that counts the bytes of tensors that are made in it.

    Attributes:
        peak: the most bytes that were alive at once.
    """

    def __init__(self):
        super().__init__()
        self.storages: dict[int, tuple[StorageWeakRef, int]] = {}
        self.total = 0
        self.peak = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        known = {x.untyped_storage()._cdata for x in tree_leaves((args, kwargs)) if _holds_data(x)}
        for tensor in tree_leaves(result):
            if _holds_data(tensor) and tensor.untyped_storage()._cdata not in known:
                self._add(tensor)
        if self.total > self.peak:
            self.peak = max(self.peak, self.live_bytes())
        return result

    def _add(self, tensor: Tensor) -> None:
        """Count the storage of a tensor `(...)`."""
        storage = tensor.untyped_storage()
        old = self.storages.get(storage._cdata)
        if old is not None:
            self.total -= old[1]
        self.storages[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        self.total += storage.nbytes()

    def live_bytes(self) -> int:
        """Return the bytes of the tensors that are alive now."""
        # References that have expired stay in the total until somebody asks.
        alive = {key: entry for key, entry in self.storages.items() if not entry[0].expired()}
        self.storages = alive
        self.total = sum(size for _, size in alive.values())
        return self.total


def _holds_data(x: object) -> bool:
    return isinstance(x, Tensor) and x.layout == torch.strided and x.device.type != "meta"


def peak_bytes(way: Callable[[], object]) -> int:
    """Return the most bytes that a function's tensors take at once."""
    with LiveMemory() as memory:
        way()
    return memory.peak


def step_bytes(model_class: type, preset: cptr.Preset, checkpointing: bool) -> int:
    """Return the peak of forward and backward pass of one picture, gradients included."""
    torch.manual_seed(0)
    model = model_class(preset, V)
    config = replace(preset.training, checkpointing=checkpointing)
    trainer = step_trainer(model, config, steps=10)
    size = preset.inputs.image_size
    captions = pad_sequences([[[1, *[7] * 18, 2]]])
    batch = Batch(images=torch.randn(1, 3, size, size), captions=captions)
    return peak_bytes(lambda: trainer.accelerator.backward(trainer._loss(batch)[0]))


def search_bytes(
    model: cptr.Model | vanilla.Model, beams: int, positions: int, pictures: int = 2
) -> tuple[int, int]:
    """Return the bytes of the pictures' memory, and the peak of what a beam search adds."""
    with torch.no_grad():
        features = torch.randn(pictures, positions, model.output.in_features)
        layers = [layer.contiguous() for layer in model.decoder.project(features)]
        image_bytes = sum(x.nbytes for layer in layers for x in layer)
        peak = peak_bytes(
            lambda: beam_search(model, Memory(layers), beams, max_length=20, suppress_tokens=[EOS])
        )
    return image_bytes, peak


def scst_bytes(steps: int) -> list[int]:
    """Return the bytes that are alive after each step of self-critical training."""
    torch.manual_seed(0)
    preset = vanilla.PRESETS["tiny"]
    captioner = vanilla.Model(preset, 50)
    model = SelfCritical(captioner, lambda ids, _: ids.float().mean(-1), max_length=8)
    trainer = step_trainer(model, TrainingConfig(lr=1e-5), steps=steps)
    grid = torch.randn(2, math.prod(vanilla.grid_size(preset.inputs.grid)), preset.channels)
    batch = Batch(grid=grid, captions=pad_sequences([[[1, 5, 2]]] * 2))
    live = []
    with LiveMemory() as memory:
        for _ in range(steps):
            trainer.step(batch)
            live.append(memory.live_bytes())
    return live


def record_beams(name: str, model: cptr.Model | vanilla.Model, positions: int) -> None:
    """Record what each further beam adds to the peak of a search of 20 tokens.

    The keys and values of the tokens alone are 20 / positions of the image memory. The peak holds
    them twice, because `reorder` copies them.
    """
    model.eval()
    image_bytes, least = search_bytes(model, 1, positions)
    unit = f"MB per beam; peer: memory of the 2 pictures, {positions} positions, 20 tokens"
    for beams in (3, 5):
        growth = (search_bytes(model, beams, positions)[1] - least) / (beams - 1)
        sizes = (growth / MEGABYTE, image_bytes / MEGABYTE)
        record(f"beam-{beams}-memory{name}", *sizes, image_bytes / growth, unit)


def main() -> None:
    torch.set_num_threads(1)
    paper = cptr.PRESETS["paper"]
    stored, again = (step_bytes(cptr.Model, paper, option) for option in (False, True))
    unit = "MB, forward and backward of one picture, with gradients"
    record("checkpointing-cptr-paper", again / MEGABYTE, stored / MEGABYTE, stored / again, unit)
    torch.manual_seed(0)
    record_beams("", cptr.Model(paper, V), (paper.inputs.image_size // paper.patch_size) ** 2)
    record_beams("-vanilla", vanilla.Model(vanilla.PRESETS["paper"], V), 14 * 14)
    live = scst_bytes(200)
    ratio = live[9] / live[-1]
    unit = "MB alive after step 200; peer: after step 10; vanilla tiny"
    record("scst-memory", live[-1] / MEGABYTE, live[9] / MEGABYTE, ratio, unit)
