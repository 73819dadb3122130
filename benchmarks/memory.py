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

from benchmarks import record
from captionlab.captioner import Memory
from captionlab.data.batches import Batch
from captionlab.decoding.beam import beam_search
from captionlab.decoding.generation import EOS
from captionlab.models import cptr, vanilla
from captionlab.scst import SelfCritical
from captionlab.text import pad_sequences
from captionlab.training.config import TrainingConfig
from captionlab.training.loop import TrainStep

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
    step = TrainStep(model, config, steps=10)
    size = preset.inputs.image_size
    captions = pad_sequences([[[1, *[7] * 18, 2]]])
    batch = Batch(images=torch.randn(1, 3, size, size), captions=captions)
    return peak_bytes(lambda: step.accelerator.backward(step._loss(batch)[0]))


def search_bytes(model: cptr.Model, beams: int, pictures: int = 2) -> tuple[int, int]:
    """Return the bytes of the pictures' memory, and the peak of what a beam search adds."""
    positions = (model.preset.inputs.image_size // model.preset.patch_size) ** 2
    with torch.no_grad():
        features = torch.randn(pictures, positions, model.preset.width)
        layers = [layer.contiguous() for layer in model.decoder.project(features)]
        image_bytes = sum(x.nbytes for layer in layers for x in layer)
        peak = peak_bytes(
            lambda: beam_search(
                model, Memory(layers), beams, max_length=20, suppress_tokens=[EOS]
            )
        )
    return image_bytes, peak


def scst_bytes(steps: int) -> list[int]:
    """Return the bytes that are alive after each step of self-critical training."""
    torch.manual_seed(0)
    preset = vanilla.PRESETS["tiny"]
    captioner = vanilla.Model(preset, 50)
    model = SelfCritical(captioner, lambda ids, _: ids.float().mean(-1), max_length=8)
    step = TrainStep(model, TrainingConfig(lr=1e-5), steps=steps)
    grid = torch.randn(2, math.prod(vanilla.grid_size(preset.inputs.grid)), preset.channels)
    batch = Batch(grid=grid, captions=pad_sequences([[[1, 5, 2]]] * 2))
    live = []
    with LiveMemory() as memory:
        for _ in range(steps):
            step.step(batch)
            live.append(memory.live_bytes())
    return live


def main() -> None:
    torch.set_num_threads(1)
    paper = cptr.PRESETS["paper"]
    stored, again = (step_bytes(cptr.Model, paper, option) for option in (False, True))
    unit = "MB, forward and backward of one picture, with gradients"
    record("checkpointing-cptr-paper", again / MEGABYTE, stored / MEGABYTE, stored / again, unit)
    torch.manual_seed(0)
    model = cptr.Model(paper, V).eval()
    image_bytes, least = search_bytes(model, 1)
    for beams in (3, 5):
        growth = (search_bytes(model, beams)[1] - least) / (beams - 1)
        unit = "MB per beam; peer: memory of the 2 pictures, CPTR paper, 20 tokens"
        ratio = image_bytes / growth
        record(f"beam-{beams}-memory", growth / MEGABYTE, image_bytes / MEGABYTE, ratio, unit)
    live = scst_bytes(200)
    ratio = live[9] / live[-1]
    unit = "MB alive after step 200; peer: after step 10; vanilla tiny"
    record("scst-memory", live[-1] / MEGABYTE, live[9] / MEGABYTE, ratio, unit)
