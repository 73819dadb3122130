"""The published Image Transformer and a plain one on the same regions, in seconds of one core.

A training step has 10 photos of 50 regions with 5 captions each; captions are generated with a beam
of 5. The Image Transformer has width 1024, an LSTM and three sub-transformers; the plain one has
width 512 and three layers on either side.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from statistics import median

import torch
from torch import Tensor, nn

from benchmarks import record, step_trainer
from captionlab.blocks import BlockConfig, Encoder
from captionlab.captioner import Captioner, TransformerCaptioner
from captionlab.data.batches import Batch
from captionlab.decoding.beam import beam_search
from captionlab.models.image_transformer import PRESETS, Model
from captionlab.training.distributed import tune_malloc

PHOTOS, CAPTIONS, REGIONS, BEAM, LONGEST, V, ROUNDS = 10, 5, 50, 5, 16, 10_369, 3
PAPER = PRESETS["paper"]


class Plain(TransformerCaptioner):
    """A Transformer of width 512 with three layers on either side, on regions."""

    def __init__(self):
        config = BlockConfig(width=512, heads=8, hidden=2048, dropout=0.1)
        super().__init__(config, 3, V)
        self.project, self.encoder = nn.Linear(PAPER.channels, 512), Encoder(3, config)

    def encode_inputs(self, batch: Batch) -> tuple[Tensor, Tensor]:
        mask = batch.require("region_mask")[:, None, None]
        return self.encoder(self.dropout(self.project(batch.require("regions"))), mask), mask


def photos() -> Batch:
    """Random regions, and captions as long as COCO's are: 8 to 16 words, with both ends."""
    torch.manual_seed(0)
    lengths = torch.randint(10, 19, (PHOTOS, CAPTIONS, 1))
    captions = torch.randint(4, V, (PHOTOS, CAPTIONS, 18)).masked_fill(
        torch.arange(18) >= lengths, 0
    )
    boxes = torch.rand(PHOTOS, REGIONS, 2, 2).sort(2).values.flatten(2)
    return Batch(
        regions=torch.randn(PHOTOS, REGIONS, PAPER.channels),
        boxes=boxes,
        region_mask=torch.ones(PHOTOS, REGIONS, dtype=torch.bool),
        captions=captions,
    )


def core_seconds(way: Callable) -> float:
    """Seconds that one core works on it, whatever else the machine does."""
    start = time.process_time()
    way()
    return time.process_time() - start


def compare(ways: list[Callable], rounds: int = ROUNDS) -> list[float]:
    """Medians, taken in turns after a warm-up."""
    for way in ways:
        way()
    return [
        median(times)
        for times in zip(*([core_seconds(way) for way in ways] for _ in range(rounds)), strict=True)
    ]


@torch.inference_mode()
def describe(model: Captioner, batch: Batch) -> None:
    beam_search(model, model.encode(batch), BEAM, max_length=LONGEST)


def main() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    tune_malloc()
    try:
        batch, models = photos(), [Model(PAPER, V), Plain()]
        config = replace(PAPER.training, precision="no")
        steps = [partial(step_trainer(model, config, 100).step, batch) for model in models]
        ours, plain = compare(steps)
        record("image-transformer-step", ours, plain, plain / ours, "s of one core, training step")
        ours, plain = compare([partial(describe, model.eval(), batch) for model in models])
        record(
            "image-transformer-beam-5",
            PHOTOS / ours,
            PHOTOS / plain,
            plain / ours,
            "captions/s of one core",
        )
    finally:
        torch.set_num_threads(threads)


if __name__ == "__main__":
    main()
