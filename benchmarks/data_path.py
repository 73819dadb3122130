"""The data path alone, without a model: photos of 640 x 480 pixels to batches of 384 x 384.

Pictures per second, read in the process itself and by one and two workers, in turns. The photos are
those of Flickr8k, resized and encoded as JPEG like COCO's. Batches arrive as floats, scaled.

The CPU time of a picture, that of the workers included, is printed beside. It says what to expect
of cores that do nothing else, and does not change much when other programs run.
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

import psutil
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
from captionlab.features import ImageProcessor, input_transforms
from captionlab.files import data_home
from captionlab.models import find_preset
from captionlab.text import Vocabulary
from captionlab.training.distributed import tune_malloc

PICTURES, BATCH, ROUNDS = 384, 32, 7
REPEATS = 2     # of the photos in an epoch, so that its beginning and end count less
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


def cpu_seconds() -> float:
    """Return the CPU time of this process and its workers so far."""
    this = psutil.Process()
    times = [process.cpu_times() for process in (this, *this.children())]
    return sum(one.user + one.system for one in times)


def read_epoch(loader: BatchLoader) -> tuple[float, float]:
    """Return pictures per second of an epoch, and CPU seconds a picture; workers run already."""
    for _ in loader:        # the first epoch starts the workers
        pass
    cpu_start = cpu_seconds()
    start = time.perf_counter()
    count = sum(len(batch) for batch in loader)
    seconds = time.perf_counter() - start
    return count / seconds, (cpu_seconds() - cpu_start) / count


def main() -> None:
    torch.set_num_threads(1)
    tune_malloc()       # as a training does
    cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder:
        data = dataset(encode_photos(Path(folder)) * REPEATS)
        sampler = ResumableBatchSampler(partial(batch_by_count, len(data), BATCH, 0))
        measured = {workers: [] for workers in WORKERS}
        for _ in range(ROUNDS):
            for workers in WORKERS:
                with closing(BatchLoader(data, sampler, workers=workers)) as loader:
                    measured[workers].append(read_epoch(loader))
    speeds = {workers: median(speed for speed, _ in rows) for workers, rows in measured.items()}
    for workers in WORKERS:
        cpu = median(seconds for _, seconds in measured[workers])
        print(f"{workers} workers: {speeds[workers]:.0f} pictures/s, {1000 * cpu:.2f} ms CPU each")
        if workers:
            unit = f"pictures/s, {workers} workers, {cores} cores; peer: no worker"
            ratio = speeds[workers] / speeds[0]
            record(f"data-path-{workers}", speeds[workers], speeds[0], ratio, unit)


if __name__ == "__main__":
    main()
