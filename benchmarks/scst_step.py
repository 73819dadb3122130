"""A step of SCST against a step of cross-entropy on the same photos, five captions each.

Both steps include the encoder, the backward pass and the optimiser; SCST's also sampling and the
reward. Features of photos are random numbers here: the backbone is frozen, and its maps are stored
before training. A few steps of cross-entropy come first, so that samples have the lengths of
captions.
"""

import time
from dataclasses import replace
from statistics import median

import torch

from benchmarks import record, step_trainer
from captionlab.data.batches import Batch
from captionlab.data.catalog import load_dataset
from captionlab.models.vanilla import PRESETS, Model
from captionlab.rewards import CiderD
from captionlab.scst import SelfCritical
from captionlab.text import Vocabulary, pad_sequences
from captionlab.training.loop import Trainer

PRESET, PICTURES, SAMPLES, WARMUP, ROUNDS = PRESETS["small"], 16, 5, 150, 15


def flickr8k_batches() -> tuple[Vocabulary, list[list[list[int]]], list[Batch]]:
    """The vocabulary, the ids of all training captions, and batches of 16 pictures."""
    items = load_dataset("flickr8k")["train"]
    captions = [text for item in items for text in item.captions]
    vocabulary = Vocabulary.build(captions, min_count=PRESET.min_count)
    limit = PRESET.max_length
    ids = [[vocabulary.encode(text)[:limit] for text in item.captions] for item in items]
    generator = torch.Generator().manual_seed(0)
    cells = PRESET.inputs.grid**2
    batches = []
    for first in range(0, PICTURES * 20, PICTURES):
        rows = ids[first : first + PICTURES]
        padded = pad_sequences([row for listed in rows for row in listed])
        features = torch.randn(PICTURES, cells, PRESET.channels, generator=generator).relu()
        batches.append(Batch(grid=features, captions=padded.view(PICTURES, SAMPLES, -1)))
    return vocabulary, ids, batches


def timed_steps(step: Trainer, batches: list[Batch]) -> list[float]:
    """Seconds of one core that each batch takes."""
    seconds = []
    for batch in batches:
        start = time.process_time()
        step.step(batch)
        seconds.append(time.process_time() - start)
    return seconds


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    vocabulary, ids, batches = flickr8k_batches()
    model = Model(PRESET, len(vocabulary))
    config = replace(PRESET.training, precision="no", lr=5e-4, warmup=20)
    learning = step_trainer(model.train(), config, 10_000)
    for number in range(WARMUP):
        learning.step(batches[number % len(batches)])
    reward = CiderD([[row[1:] for row in rows] for rows in ids])
    critic = SelfCritical(
        model, reward, SAMPLES, max_length=PRESET.max_length, suppress_tokens=[vocabulary.unk]
    )
    rewarded = step_trainer(critic, replace(PRESET.scst, precision="no", lr=1e-6), 10_000)
    pairs = []
    for batch in batches[:ROUNDS]:  # in turns, so that both see the same machine
        model.train()
        (xe,) = timed_steps(learning, [batch])
        critic.train()
        (scst,) = timed_steps(rewarded, [batch])
        pairs.append((scst, xe))
    sampled = critic.sample_captions(model.encode(batches[0]))
    print(f"tokens in a sample: {(sampled != 0).sum(-1).float().mean():.1f}, in a reference: "
          f"{(batches[0].captions[..., 1:] != 0).sum(-1).float().mean():.1f}")
    ours, peer = (1000 * median(times) for times in zip(*pairs[3:], strict=True))
    record("scst-step", ours, peer, peer / ours, "ms of one core, 16 photos, 5 samples; peer: XE")


if __name__ == "__main__":
    main()
