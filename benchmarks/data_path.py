"""The data path alone, without a model: photos of 640 x 480 pixels to batches of 384 x 384.

Pictures per second, read in the process itself and by one and two workers, in turns. The photos are
those of Flickr8k, resized and encoded as JPEG like COCO's.
"""

import os
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median

import torch
from PIL import Image

from benchmarks import record
from captionlab.data import (
    BatchLoader,
    CaptionDataset,
    Item,
    ResumableBatchSampler,
    batch_by_count,
)
from captionlab.files import data_home
from captionlab.models import find_preset
from captionlab.processors import ImageProcessor, input_transforms
from captionlab.text import Vocabulary
from captionlab.training.distributed import tune_malloc

PICTURES, BATCH, ROUNDS = 384, 32, 5
WORKERS = (0, 1, 2)
CAPTION = "a photo"


def encode_photos(folder: Path) -> list[Item]:
    """Write photos of 640 x 480 pixels into a folder."""
    files = sorted((data_home() / "flickr8k" / "images").glob("*.jpg"))[:PICTURES]
    if len(files) < PICTURES:
        sys.exit("this benchmark needs the photos of Flickr8k: captionlab data get flickr8k")
    items = []
    for number, file in enumerate(files):
        target = folder / f"{number}.jpg"
        Image.open(file).convert("RGB").resize((640, 480)).save(target, quality=90)
        items.append(Item(str(number), (CAPTION,), target))
    return items


def dataset(items: list[Item]) -> CaptionDataset:
    """Return the photos as CPTR reads them, none of them kept in memory."""
    preset = find_preset("cptr", "paper")
    preset = replace(preset, inputs=replace(preset.inputs, image_size=384))
    vocabulary = Vocabulary.build([CAPTION], 1)
    processor = ImageProcessor(preset, vocabulary=vocabulary)
    return CaptionDataset(items, vocabulary, inputs=input_transforms(processor, cache_bytes=0))


def read_epoch(loader: BatchLoader) -> float:
    """Return the pictures per second of an epoch, without the start of the workers."""
    batches = iter(loader)
    next(batches)
    start = time.perf_counter()
    count = sum(len(batch) for batch in batches)
    return count / (time.perf_counter() - start)


def main() -> None:
    torch.set_num_threads(1)
    tune_malloc()       # as a training does
    cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder:
        data = dataset(encode_photos(Path(folder)))
        sampler = ResumableBatchSampler(partial(batch_by_count, len(data), BATCH, 0))
        speeds = {workers: [] for workers in WORKERS}
        for _ in range(ROUNDS):
            for workers in WORKERS:
                with closing(BatchLoader(data, sampler, workers=workers)) as loader:
                    speeds[workers].append(read_epoch(loader))
    alone = median(speeds[0])
    for workers in WORKERS[1:]:
        speed = median(speeds[workers])
        unit = f"pictures/s, {workers} workers, {cores} cores; peer: no worker"
        record(f"data-path-{workers}", speed, alone, speed / alone, unit)


if __name__ == "__main__":
    main()
