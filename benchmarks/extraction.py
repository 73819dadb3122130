"""Our extraction against the plain loop: open, transform, forward, one picture at a time.

The photos and the net are the same, and both write a file.
"""

import os
import tempfile
from pathlib import Path
from statistics import median

import numpy as np
import torch
from PIL import Image
from torchvision import models, transforms

from benchmarks import record, timed
from captionlab.features.backbones import Backbone
from captionlab.features.extraction import extract_maps
from captionlab.features.store import FeatureStore
from captionlab.files import data_home

COUNT, ROUNDS, GRID = 128, 5, 7


def photos(folder: Path) -> tuple[str, list[Path]]:
    """JPEG files of 224x224: Flickr8k's if they are there, else noise."""
    real = sorted((data_home() / "flickr8k" / "images").glob("*.jpg"))[:COUNT]
    if len(real) == COUNT:
        return "extraction-vs-plain-loop", real
    draw = np.random.default_rng(0)
    for number in range(COUNT):
        small = Image.fromarray(draw.integers(0, 256, (28, 28, 3), dtype=np.uint8))
        small.resize((224, 224), Image.Resampling.BICUBIC).save(folder / f"{number:04}.jpg")
    return "extraction-of-noise-vs-plain-loop", sorted(folder.glob("*.jpg"))


@torch.no_grad()
def plain_loop(
    files: list[Path], net: torch.nn.Module, size: int, threads: int, out: Path
) -> np.ndarray:
    """What one writes without thinking, with PIL and torchvision."""
    torch.set_num_threads(threads)
    normalise = transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    transform = transforms.Compose(
        [transforms.Resize((size, size)), transforms.ToTensor(), normalise]
    )
    rows = []
    for file in files:
        cells = net.features(transform(Image.open(file).convert("RGB"))[None])
        pooled = torch.nn.functional.adaptive_avg_pool2d(cells, GRID)
        rows.append(pooled[0].flatten(1).T.half().numpy())
    np.save(out, np.stack(rows))
    return np.stack(rows)


def main() -> None:
    torch.manual_seed(0)
    ours, net = Backbone("squeezenet1_1", weights=None), models.squeezenet1_1(weights=None).eval()
    cores = os.cpu_count() or 1
    with tempfile.TemporaryDirectory() as temporary:
        folder, turn = Path(temporary), iter(range(1000))
        name, files = photos(folder)
        images = {file.name: file for file in files}

        def store() -> FeatureStore:
            return extract_maps(images, ours, folder / f"store-{next(turn)}", GRID, chunk_size=32)

        def loop(threads: int) -> np.ndarray:
            return plain_loop(files, net, ours.size, threads, folder / "rows.npy")

        theirs = torch.from_numpy(loop(1)).float()
        torch.testing.assert_close(store()[list(images)], theirs, rtol=5e-3, atol=5e-3)
        ways = {"ours": store, **{threads: lambda t=threads: loop(t) for threads in {1, cores}}}
        seconds = {way: [] for way in ways}
        for _ in range(ROUNDS):  # in turns, so that all see the same machine
            for way, run in ways.items():
                seconds[way].append(timed(run))
    speed = {way: COUNT / median(times) for way, times in seconds.items()}
    print(*(f"{way}: {value:.1f}" for way, value in speed.items()), "pictures/s")
    # the loop with one thread or with all, whichever is faster
    peer = max(value for way, value in speed.items() if way != "ours")
    record(name, speed["ours"], peer, speed["ours"] / peer, "pictures/s")


if __name__ == "__main__":
    main()
