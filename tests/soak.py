"""Kill tiny jobs at random moments, resume them, and compare with jobs that were left alone.

python tests/soak.py --kills 100                    all jobs in turn
python tests/soak.py --kills 20 --jobs photos scst  some of them

The jobs are cross-entropy, cross-entropy with two workers that decode and mirror photos, SCST with
a worker, feature extraction, and attributes.

A job is killed by SIGKILL, sometimes up to four times; then it runs to its end, and every file must
hold what the undisturbed job wrote, bit for bit, but for the seconds that it took.
"""

import argparse
import json
import os
import random
import shutil
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from PIL import Image

from captionlab.data.datasets import CaptionData, from_files, scenes
from captionlab.data.picture_decoding import find_images
from captionlab.features.attributes import load_detector, save_detector, train_detector
from captionlab.features.backbones import Backbone
from captionlab.features.extraction import extract_maps
from captionlab.models import cptr
from captionlab.models.vanilla import PRESETS
from captionlab.runs.fitting import NewModel, fit
from captionlab.runs.objectives import SCST
from captionlab.runs.preparation import grid_inputs
from captionlab.scenes.generator import generate_scene
from captionlab.scenes.world import render
from captionlab.training.loop import Trainer

TINY = PRESETS["tiny"]
PIXELS = cptr.PRESETS["tiny"]
BRIEF = replace(TINY, training=replace(TINY.training, epochs=3, warmup=5))
MIRRORED = replace(
    PIXELS,
    inputs=replace(PIXELS.inputs, hflip=True),
    training=replace(PIXELS.training, epochs=2, batch_size=4, warmup=5),
)
SAVE_EVERY = 0.05  # seconds between checkpoints: some steps are lost by a kill, most are not
MOST_KILLS = 4  # of one job, before it may run to its end
JOBS = ["cross-entropy", "photos", "scst", "extraction", "attributes"]
TIMES = ("seconds", "train_seconds", "trained", "command")

Job = Callable[[Path], object]


def prepare(folder: Path) -> dict[str, Job]:
    """Return the jobs, by name; each takes the folder that it writes.

    SCST begins with the run of the first job, which must be in `folder` by then.
    """
    world = scenes(train=40, val=4, test=4, novel=0)
    pictures = folder / "pictures"
    pictures.mkdir()
    for number in range(40):
        Image.fromarray(render(generate_scene(number), 64)).save(pictures / f"{number:02}.png")
    images = find_images(pictures)
    photos = captioned_photos(pictures)
    network = Backbone("squeezenet1_1", None, size=64)
    return {
        "cross-entropy": _fitting(NewModel("vanilla", BRIEF), world, seed=1),
        # Two workers decode and mirror; their random numbers do not depend on the kills either.
        "photos": _fitting(NewModel("cptr", MIRRORED), photos, seed=1, workers=2),
        "scst": _fitting(
            folder / "cross-entropy", world, SCST(), epochs=2, batch_size=4, workers=1
        ),
        "extraction": lambda out: extract_maps(
            images, network, out, grid=2, chunk_size=3, batch_size=3, num_workers=1
        ),
        "attributes": partial(attributes, world),
    }


def _fitting(*start: object, **settings: object) -> Job:
    return lambda out: fit(*start, **settings, out=out, resume=True)


def captioned_photos(folder: Path) -> CaptionData:
    """Write captions for the pictures in a folder and return both as a data set."""
    files = sorted(folder.glob("*.png"))
    lines = [f"{file.name},picture {number % 7},train" for number, file in enumerate(files)]
    table = folder / "captions.csv"
    table.write_text("\n".join(["image,caption,split", *lines]))
    return from_files(table)


def attributes(world: CaptionData, out: Path) -> None:
    """Train a detector, unless there is one already."""
    out.mkdir(parents=True, exist_ok=True)
    file = out / "detector.safetensors"
    if not file.exists():
        grid, spec = grid_inputs(world, "tiny", None)
        save_detector(train_detector(world, grid, spec=spec, num_words=20, epochs=4), file)


def start_job(job: Job, out: Path) -> int:
    """Start a job in a child and return the child's id."""
    child = os.fork()
    if child == 0:
        try:
            job(out=out)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return child


def finish_job(job: Job, out: Path) -> float:
    """Let a job run to its end and return how many seconds it took."""
    start = time.monotonic()
    if os.waitpid(start_job(job, out), 0)[1]:
        sys.exit(f"a job in {out.name} failed")
    return time.monotonic() - start


def kill_job(job: Job, out: Path, delay: float) -> bool:
    """Start a job and kill it after some seconds; return whether it was still running."""
    child = start_job(job, out)
    time.sleep(delay)
    os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        sys.exit(f"a job in {out.name} failed before it could be killed")
    return os.WIFSIGNALED(status)


def without_times(value: object) -> object:
    """Return plain values without the seconds that something took."""
    if isinstance(value, dict):
        return {key: without_times(x) for key, x in value.items() if key not in TIMES}
    if isinstance(value, list | tuple):
        return [without_times(x) for x in value]
    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape), value.contiguous().numpy().tobytes()
    return value


def file_content(file: Path) -> object:
    """Return everything that a file holds, without times."""
    if file.name == "checkpoint.pt":
        return without_times(torch.load(file, weights_only=True))
    if file.suffix == ".json":
        return without_times(json.loads(file.read_text()))
    if file.name == "detector.safetensors":
        detector = load_detector(file)
        return without_times([detector.config, detector.metadata, detector.state_dict()])
    return file.read_bytes()


def folder_content(folder: Path) -> dict[str, object]:
    """Return the content of every file but locks and what killed writers left."""
    files = [file for file in sorted(folder.iterdir()) if file.suffix not in (".part", ".lock")]
    return {file.name: file_content(file) for file in files if file.name != ".lock"}


def soak(kills: int, seed: int, folder: Path, names: list[str]) -> Counter:
    """Kill and resume jobs until there were enough kills; return their number for each job."""
    jobs = prepare(folder)
    if "scst" in names and "cross-entropy" not in names:
        finish_job(jobs["cross-entropy"], folder / "cross-entropy")
    jobs = {name: jobs[name] for name in names}
    seconds = {name: finish_job(job, folder / name) for name, job in jobs.items()}
    expected = {name: folder_content(folder / name) for name in jobs}
    chance = random.Random(seed)
    counts = Counter(dict.fromkeys(jobs, 0))
    rounds = 0
    while counts.total() < kills:
        name = list(jobs)[rounds % len(jobs)]
        most = chance.randint(1, MOST_KILLS) if rounds // len(jobs) % 2 else 1
        out = folder / f"round-{rounds + 1}"
        killed = 0
        for _ in range(min(most, kills - counts.total())):
            delay = chance.uniform(0, seconds[name])
            if not kill_job(jobs[name], out, delay):
                seconds[name] = delay  # it takes less than was measured
                break
            killed += 1
        finish_job(jobs[name], out)
        check_equal(folder_content(out), expected[name], f"round {rounds + 1}, {name}")
        shutil.rmtree(out)
        counts[name] += killed
        rounds += killed > 0
        print(f"{name}: killed {killed} times, then equal", flush=True)
    print(f"{rounds} interrupted jobs, {rounds} equal to an uninterrupted one, bit for bit")
    return counts


def check_equal(content: dict[str, object], expected: dict[str, object], title: str) -> None:
    """End the program unless two folders hold the same."""
    names = sorted(content.keys() | expected.keys())
    different = [name for name in names if content.get(name) != expected.get(name)]
    if different:
        sys.exit(f"{title}: other content in {', '.join(different)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", nargs="+", choices=JOBS, default=JOBS)
    options = parser.parse_args()
    os.environ |= {"TQDM_DISABLE": "1", "ACCELERATE_USE_CPU": "true"}
    torch.set_num_threads(1)
    plain = Trainer.__init__
    Trainer.__init__ = lambda *args, **more: plain(*args, **more | {"save_every": SAVE_EVERY})
    with TemporaryDirectory() as folder:
        counts = soak(options.kills, options.seed, Path(folder), options.jobs)
    text = ", ".join(f"{count} of {name}" for name, count in counts.items())
    print(f"{counts.total()} kills: {text}")


if __name__ == "__main__":
    main()
