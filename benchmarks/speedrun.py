"""A full training as a benchmark: from files to features, a trained model, SCST and test scores.

    python -m benchmarks.speedrun flickr8k|multi30k|scenes [--seed S] [--batch B] [--epochs E]

Seconds of each phase, and those of its cores together, Java included. Start-up (imports, data)
stands apart, and of a training the seconds of its steps: what the first epoch takes more than the
median one is recording and compilation, the rest of the phase is validation. One row per kind of
device goes into results/bench.json, on a CPU in core seconds, one line into benchmarks/speedrun.md.
`scenes`, or --items, is a trial of a minute and leaves neither.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from unittest.mock import patch

import torch

from benchmarks import BEGIN, clocks, record
from captionlab.data import load_dataset, scenes
from captionlab.models import find_preset
from captionlab.runs.evaluation import evaluate
from captionlab.runs.fitting import FitConfig, NewModel, fit
from captionlab.runs.objectives import SCST
from captionlab.runs.preparation import build_processor, prepare_training
from captionlab.runs.results import provenance
from captionlab.runs.run import Run
from captionlab.training.devices import best_device

LOG = Path(__file__).with_name("speedrun.md")


@dataclass(frozen=True)
class Course:
    """What is run.

    Args:
        model: its name.
        preset: of the model.
        usual: pictures, or sentences, of a step of that preset.
        gpu_batch: of a step on a GPU; a CPU takes the preset's.
        score: the number that counts.
        goal: seconds on a GPU that we aim at, without start-up.
        scst: whether the second training follows.
    """

    model: str
    preset: str
    usual: int
    gpu_batch: int
    score: str
    goal: float
    scst: bool = True


COURSES = {
    "flickr8k": Course("vanilla", "small", 8, 64, "CIDEr", 120.0),
    "multi30k": Course("translation", "strong", 64, 256, "BLEU", 120.0, scst=False),
    "scenes": Course("vanilla", "tiny", 8, 8, "CIDEr", 60.0),
}


class Stopwatch:
    """Measures phases: seconds, and seconds of all cores together; writes them as they come."""

    def __init__(self, out: Path | None):
        self.out = out
        self.phases: dict[str, dict[str, float]] = {}
        self.last = BEGIN

    def lap(self, phase: str, **extra: float) -> None:
        """End a phase."""
        now = clocks()
        seconds, cores = (b - a for a, b in zip(self.last, now, strict=True))
        self.phases[phase] = {"seconds": seconds, "core_seconds": cores} | extra
        self.last = now
        if self.out:
            self.out.write_text(json.dumps({"phases": self.phases}, indent=1) + "\n")
        print(f"{phase:9} {seconds:8.1f} s {cores:8.1f} core s  {extra or ''}", flush=True)


def seconds_of_steps(run: Run) -> dict[str, float]:
    """The seconds of a run's last training, and its score on val."""
    history = run.metadata.history
    seconds = [record["seconds"] for record in history]
    return {"steps": round(sum(seconds), 1), "first_epoch": seconds[0],
            "epoch": round(median(seconds), 2), "val": history[-1]["score"]}


def run_course(name: str, course: Course, args: argparse.Namespace, folder: Path) -> dict:
    """Run all phases; return them with the score."""
    watch = Stopwatch(args.out)
    on_gpu = best_device() == "cuda"
    batch = args.batch or (course.gpu_batch if on_gpu else None)
    data = scenes(48, 8, 8, novel=0) if name == "scenes" else load_dataset(name)
    if args.items:
        splits = {split: items[: args.items] for split, items in data.splits.items()}
        data = replace(data, splits=splits)
    preset = find_preset(course.model, course.preset)
    if batch:
        recipe = preset.training.with_batch_size(batch, course.usual)
        preset = replace(preset, training=recipe)
    watch.lap("start")
    if preset.inputs.backbone not in (None, "pixels"):
        # Of all views, as the training will look for them.
        vocabulary, processor = build_processor(data, preset)
        prepare_training(data, vocabulary, processor.to(best_device()))
        watch.lap("features")
    config = FitConfig(seed=args.seed, epochs=args.epochs, max_val_items=args.val)
    start = NewModel(course.model, preset)
    run = fit(start, data, config=config, out=folder / "xe")
    watch.lap("xe", **seconds_of_steps(run))
    if course.scst:
        run = fit(folder / "xe", data, SCST(), config, out=folder / "scst")
        watch.lap("scst", **seconds_of_steps(run))
    found = evaluate(run, data, beam=args.beam, length_penalty=1.0, meteor=False, blind=False)
    watch.lap("metrics")
    scores = found["run"]["metrics"]
    return {"data": name, "seed": args.seed, "batch": batch, "score": scores[course.score],
            "phases": watch.phases, "device": best_device(), **provenance()}


def cost(result: dict) -> tuple[float, str]:
    """What a course took without its start, and the unit: on a CPU seconds of all cores."""
    clock, unit = ("core_seconds", "core s") if result["device"] == "cpu" else ("seconds", "s")
    laps = [lap[clock] for name, lap in result["phases"].items() if name != "start"]
    return sum(laps), unit


def log_line(result: dict, note: str) -> str:
    """One line of the log."""
    phases = ", ".join(f"{name} {lap['seconds']:.0f} s ({lap['core_seconds']:.0f} core s)"
                       for name, lap in result["phases"].items())
    return (f"| {result['data']} | {result['device']} | {result['seed']} | {result['score']:.1f} "
            f"| {phases} | {result['commit']} | {note} |\n")


def main(arguments: Sequence[str] = ()) -> dict:
    """Run a course, by default the trial, and write its row and its line."""
    parser = argparse.ArgumentParser(description="a full training as a benchmark")
    parser.add_argument("data", nargs="?", choices=COURSES, default="scenes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch", type=int, help="pictures of a step; by default the device's")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--beam", type=int, default=3)
    parser.add_argument("--val", type=int, default=500, help="items judged after each epoch")
    parser.add_argument("--items", type=int, help="a trial with so many items of each split")
    parser.add_argument("--note", default="", help="what was changed, for the log")
    parser.add_argument("--out", type=Path, help="also write the result to this file, as JSON")
    args = parser.parse_args(arguments)
    course = COURSES[args.data]
    torch.manual_seed(args.seed)
    with tempfile.TemporaryDirectory() as folder:
        cache = partial(Path, folder)       # empty: features that are there would take no time
        with patch("captionlab.features.extraction.cache_home", cache):
            result = run_course(args.data, course, args, Path(folder))
    if args.out:
        args.out.write_text(json.dumps(result | {"course": asdict(course)}, indent=1) + "\n")
    if not (args.items or args.data == "scenes"):
        used, unit = cost(result)
        record(f"speedrun-{args.data}-{result['device']}", used, course.goal, course.goal / used,
               f"{unit} without start-up; peer: our aim on a GPU, in s; "
               f"{course.score} {result['score']:.1f}")
        with LOG.open("a") as log:
            log.write(log_line(result, args.note))
    return result


if __name__ == "__main__":
    main(sys.argv[1:])
