"""A folder of photos to a JSON file, against a loop that captions one photo after the other.

Both use the packaged captioner of photos with the same settings, and take turns by chunks.
"""

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import captionlab
from benchmarks import record
from captionlab.files import data_home
from captionlab.runs import Run, caption_files

COUNT = 1000
CHUNK = 100


def plain_loop(run: Run, files: list[Path], out: Path) -> None:
    """What one writes without thinking."""
    records = [{"image": str(file), "captions": [run.caption(file)]} for file in files]
    out.write_text(json.dumps(records))


def measure(way: Callable, *args: object) -> tuple[float, float]:
    """Seconds, and seconds of the processor, of all threads of this process."""
    start = time.perf_counter(), time.process_time()
    way(*args)
    return time.perf_counter() - start[0], time.process_time() - start[1]


def texts(out: Path) -> list[str]:
    return [record["captions"][0] for record in json.loads(out.read_text())]


def main() -> None:
    files = sorted((data_home() / "flickr8k" / "images").glob("*.jpg"))[:COUNT]
    if len(files) < COUNT:
        sys.exit("this benchmark needs the photos of Flickr8k: captionlab data get flickr8k")
    run = captionlab.load("photos")
    run.caption(files[:2])  # warm-up
    ways = {"folder": caption_files, "loop": plain_loop}
    measured = {way: [] for way in ways}
    different = 0
    with tempfile.TemporaryDirectory() as temporary:
        outs = {way: Path(temporary) / f"{way}.json" for way in ways}
        for first in range(0, COUNT, CHUNK):
            order = list(ways) if first % (2 * CHUNK) == 0 else list(ways)[::-1]
            for way in order:
                chunk = files[first : first + CHUNK]
                measured[way].append(measure(ways[way], run, chunk, outs[way]))
            pairs = zip(texts(outs["folder"]), texts(outs["loop"]), strict=True)
            different += sum(ours != peer for ours, peer in pairs)
            print(first + CHUNK, *(f"{way} {measured[way][-1]}" for way in ways), flush=True)
    for column, unit, suffix in ((0, "photos/s", ""), (1, "photos per CPU second", "-cpu")):
        speed = {way: CHUNK / median(row[column] for row in measured[way]) for way in ways}
        ratio = speed["folder"] / speed["loop"]
        record(f"caption-folder{suffix}", speed["folder"], speed["loop"], ratio, unit)
    print(f"{different} of {COUNT} captions differ")


if __name__ == "__main__":
    main()
