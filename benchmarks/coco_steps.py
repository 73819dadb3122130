"""The hours of a full run on COCO, from steps of each captioner with its paper's sizes.

The steps are real: model, loss, backward pass, optimiser and moving average, as `captionlab train`
runs them with `--no-graphs`, with captions of Flickr8k, five a picture. The pictures' features are
random numbers in memory, so reading them from disk is not counted. Some steps of cross-entropy come
first, so that the captions that self-critical training samples have usual lengths. Both stages have
the batch of cross-entropy, as the commands of `results/coco-commands.json` have.

A GPU is needed: python -m benchmarks.coco_steps
"""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from benchmarks import CAPTIONERS, step_trainer
from captionlab.data.batches import Batch
from captionlab.data.catalog import load_dataset
from captionlab.features.backbones import Backbone
from captionlab.models import find_preset, model_module, random_inputs
from captionlab.rewards import CiderD
from captionlab.runs.results import provenance
from captionlab.scst import SelfCritical
from captionlab.text import Vocabulary, pad_sequences
from captionlab.training.config import BasePreset
from captionlab.training.loop import Trainer

RESULTS = Path(__file__).resolve().parent.parent / "results" / "coco-steps.json"
VOCABULARY_SIZE = 9_500
WARMUP, XE_STEPS, SCST_STEPS = 40, 25, 8


def caption_ids(max_length: int | None) -> list[list[list[int]]]:
    """Token ids of five captions of each training picture of Flickr8k."""
    items = load_dataset("flickr8k")["train"]
    vocabulary = Vocabulary.build([text for item in items for text in item.captions], min_count=1)
    return [[vocabulary.encode(text)[:max_length] for text in item.captions] for item in items]


def batches_of(preset: BasePreset, ids: list[list[list[int]]]) -> list[Batch]:
    """Eight batches with the preset's number of pictures."""
    pictures = preset.training.batch_size
    batches = []
    for number in range(8):
        rows = ids[number * pictures : (number + 1) * pictures]
        padded = pad_sequences([row for five in rows for row in five])
        captions = padded.view(pictures, 5, -1)
        batches.append(Batch(captions=captions, **random_inputs(preset, pictures)).pin_memory())
    return batches


def mean_seconds(calls: Sequence[Callable[[], object]]) -> float:
    """Mean seconds of some calls, with the GPU's work."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for call in calls:
        call()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / len(calls)


def seconds_per_step(trainer: Trainer, batches: list[Batch], steps: int) -> float:
    """Mean seconds of a training step, on one batch after another."""
    chosen = [batches[number % len(batches)] for number in range(steps)]
    return mean_seconds([partial(trainer.step, batch) for batch in chosen])


def measure(name: str) -> dict[str, float]:
    """Seconds of a step of both stages, and the memory that they take."""
    torch.manual_seed(0)
    torch.cuda.reset_peak_memory_stats()
    preset = find_preset(name, "paper")
    if name == "image_transformer":
        preset = replace(preset, inputs=replace(preset.inputs, max_boxes=36))
    ids = caption_ids(preset.max_length)
    batches = batches_of(preset, ids)
    model = model_module(name).Model(preset, VOCABULARY_SIZE)
    config = replace(preset.training, lr=5e-4, warmup=20, schedule="constant",
                     graphs=False)
    xe = step_trainer(model.train(), config, 10_000)

    seconds_per_step(xe, batches, WARMUP)
    values = {"xe_seconds": seconds_per_step(xe, batches, XE_STEPS), "pictures": len(batches[0])}
    reward = CiderD([[row[1:] for row in five] for five in ids])
    critic = SelfCritical(model, reward, max_length=preset.max_length or 30)
    scst = step_trainer(critic, replace(preset.scst, lr=1e-7, precision="no", graphs=False), 10_000)
    seconds_per_step(scst, batches, 3)
    values["scst_seconds"] = seconds_per_step(scst, batches, SCST_STEPS)
    with torch.inference_mode():
        memory = model.eval().encode(batches[0].to("cuda"))
        sampled = critic.sample_captions(memory)
    values["sampled_tokens"] = (sampled != 0).sum(-1).float().mean().item()
    values["gigabytes"] = torch.cuda.max_memory_allocated() / 1e9
    return values


def feature_seconds() -> float:
    """Seconds of the network of *vanilla*'s features for one picture."""
    network = Backbone("resnet101", None, 448).cuda().eval()
    images = torch.rand(8, 3, 448, 448).pin_memory()
    with torch.inference_mode():
        mean_seconds([lambda: network(images.cuda())] * 5)
        return mean_seconds([lambda: network(images.cuda())] * 30) / len(images)


def main() -> None:
    if not torch.cuda.is_available():
        print("coco_steps needs a GPU and there is none here: skipped")
        return
    rows = {}
    for name in CAPTIONERS:
        rows[name] = {key: round(value, 4) for key, value in measure(name).items()}
        print(name, rows[name], flush=True)
    content = {
        "features_seconds_per_picture": round(feature_seconds(), 5),
        "steps": {"xe": XE_STEPS, "scst": SCST_STEPS, "recorded": False},
        "captioners": rows,
        **provenance(),
    }
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
