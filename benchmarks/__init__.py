"""Side-by-side runs against peers: `make bench` runs them all and rewrites results/bench.json."""

import os
import time

def clocks() -> tuple[float, float]:
    """Seconds of the clock, and of all cores, those of programs that have ended included."""
    return time.perf_counter(), sum(os.times()[:4])


BEGIN = clocks()        # before torch is imported, which takes seconds

# ruff: noqa: E402
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median

from torch import nn

from captionlab.captioner import Captioner
from captionlab.runs.results import provenance, result_file
from captionlab.runs.run import Run
from captionlab.training.config import TrainingConfig
from captionlab.training.loop import Trainer

CAPTIONERS = ("vanilla", "cptr", "position_aware", "entangled", "image_transformer")
RESULTS = Path(__file__).resolve().parent.parent / "results" / "bench.json"


def timed(way: Callable, clock: Callable[[], float] = time.perf_counter) -> float:
    start = clock()
    way()
    return clock() - start


def medians(
    ours: Callable, peer: Callable, rounds: int, clock: Callable[[], float] = time.perf_counter
) -> tuple[float, float]:
    """Median seconds of both, taken in turns after a warm-up, so that both see the same machine."""
    timed(ours), timed(peer)
    pairs = [(timed(ours, clock), timed(peer, clock)) for _ in range(rounds)]
    return median(a for a, _ in pairs), median(b for _, b in pairs)


def step_trainer(model: Captioner, config: TrainingConfig, steps: int) -> Trainer:
    """Return a trainer for single steps, with the schedule of epochs of so many steps."""
    config = replace(config, max_tokens=0)
    return Trainer(model, range(steps * config.batch_size), config)


def scaled_embedding(size: int, width: int) -> nn.Embedding:
    """Return an embedding (V, D) whose rows, times the root of D, have a deviation of 1."""
    embedding = nn.Embedding(size, width, padding_idx=0)
    nn.init.normal_(embedding.weight, std=width**-0.5)
    return embedding


def record(name: str, ours: float, peer: float, ratio: float, unit: str) -> None:
    """Put one row into results/bench.json, in place of an older one of that name.

    A ratio above 1 is in our favour.
    """
    rows = json.loads(RESULTS.read_text())["rows"] if RESULTS.exists() else []
    row = {
        "name": name,
        "ours": round(ours, 4),
        "peer": round(peer, 4),
        "ratio": round(ratio, 3),
        "unit": unit,
        "machine": provenance()["machine"],
    }
    rows = sorted([r for r in rows if r["name"] != name] + [row], key=lambda r: r["name"])
    half = RESULTS.with_suffix(".part")
    half.write_text(json.dumps({"rows": rows}, indent=1) + "\n")
    os.replace(half, RESULTS)
    print(
        f"{name:32} ours {ours:10.3f}   peer {peer:10.3f}   ratio {ratio:6.2f}   {unit}", flush=True
    )


def artifact_path(run: Run, data: str, kind: str, split: str = "test") -> Path:
    """Return where something else that was measured of a run belongs: beside its result.

    Args:
        run: that was measured.
        data: name of the data set.
        kind: of measurement, such as "gate"; part of the file's name.
        split: of the data set.
    """
    metadata = run.metadata
    parts = (metadata.model, metadata.variant, metadata.preset_name, metadata.stage)
    name = "-".join(part for part in parts if part)
    if split != "test":
        name += f"-{split}"
    file = result_file(f"{data}/{name}.seed{metadata.seed}.{kind}.json")
    file.parent.mkdir(parents=True, exist_ok=True)
    return file
