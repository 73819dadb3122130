"""What trains a row of a paper's table, and whether it comes out as committed."""

import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from captionlab.models import find_preset
from captionlab.runs.ensembles import load_ensemble
from captionlab.runs.evaluation import evaluate, merge_result
from captionlab.runs.results import load_result, results_home

@dataclass(frozen=True)
class Settings:
    """Where and on what rows are trained.

    Args:
        folder: of the runs; one that is trained already is not trained again.
        device: "cpu" forbids the accelerator.
        detector: file of the attribute detector; one is trained in the folder if None.
        changes: values of the presets that are replaced, such as "training.epochs=1".
    """

    folder: Path = Path("runs/reproduced")
    device: str | None = None
    detector: Path | None = None
    changes: Sequence[str] = ()


@dataclass(frozen=True)
class Step:
    """A command and the file that is there when it has run."""

    command: str
    makes: Path


def result_name(row: dict[str, Any], protocol: dict[str, Any], preset: str | None = None) -> str:
    """Return the name of a row's result file under `results/`."""
    return f"{protocol['data']}/{row['result']}-{preset or protocol['preset']}-{row['stage']}"


def load_row(row: dict[str, Any], protocol: dict[str, Any], preset: str | None = None) -> dict:
    """Return the committed result of a row, one without runs if there is none."""
    if "model" not in row:
        return {"runs": []}
    name = result_name(row, protocol, preset)
    return load_result(name) if (results_home() / f"{name}.json").exists() else {"runs": []}


def plan_row(
    row: dict[str, Any], protocol: dict[str, Any], seed: int, where: Settings
) -> tuple[list[Step], list[Path]]:
    """Return the trainings of a row with one seed, and the runs that caption together.

    Raises:
        ValueError: captionlab has no model for the row.
    """
    if "model" not in row:
        raise ValueError("captionlab has no model for this row: choose another one")
    data = protocol["data"]
    device = f" --device {where.device}" if where.device else ""
    settings = [*row.get("settings", {}).get(data, ()), *where.changes]
    steps, runs = [], []
    for variant, shift in [(row.get("variant"), 0), *row.get("members", ())]:
        grid = "grid" if row.get("settings") else None
        parts = [data, row["model"], variant, grid, protocol["preset"], str(seed + shift)]
        run = where.folder / "-".join(part for part in parts if part)
        command = f"captionlab train {row['model']} --data {data} --preset {protocol['preset']}"
        if variant:
            command += f" --variant {variant}"
        reads = find_preset(row["model"], protocol["preset"], variant).inputs.fields
        if "attributes" in reads:
            detector = where.detector or where.folder / f"detector-{data}.safetensors"
            steps.append(Step(f"captionlab attributes train --data {data} "
                              f"--preset {protocol['preset']} --out {detector}", detector))
            command += f" --detector {detector}"
        command += "".join(f" --set {setting}" for setting in settings)
        steps.append(Step(f"{command} --seed {seed + shift} --out {run}{device}",
                          run / "run.json"))
        if row["stage"] == "scst":
            start, run = run, run.with_name(f"{run.name}-scst")
            steps.append(Step(f"captionlab train --objective scst --from {start} --out {run}"
                              f"{device}", run / "run.json"))
        runs.append(run)
    return steps, runs


def train_row(steps: Sequence[Step]) -> None:
    """Run the commands whose files are missing; an interrupted training goes on.

    Raises:
        RuntimeError: a command failed; it has printed why.
    """
    for step in steps:
        if step.makes.exists():
            continue
        step.makes.parent.parent.mkdir(parents=True, exist_ok=True)
        words = shlex.split(step.command)
        if (step.makes.parent / "checkpoint.pt").exists():
            words.append("--resume")
        if subprocess.run([sys.executable, "-m", *words], check=False).returncode:
            raise RuntimeError(f"this command failed: {step.command}")


def judge_row(
    row: dict[str, Any], protocol: dict[str, Any], seed: int, where: Settings, *, write: bool
) -> float:
    """Train a row with one seed and return its CIDEr in percent on the test split."""
    steps, runs = plan_row(row, protocol, seed, where)
    train_row(steps)
    run = load_ensemble(runs)
    if where.device:
        run = run.to(where.device)
    result = evaluate(run, length_penalty=protocol["length_penalty"],
                      oracle=row.get("oracle", False))
    if write:
        merge_result(run, result, result_name(row, protocol))
    return result["run"]["metrics"]["CIDEr"]


def compare(measured: Sequence[float], committed: Sequence[float]) -> tuple[float | None, str]:
    """Return by how much two rows may differ, and the verdict on these.

    Rows may differ by two standard deviations of the difference of their means, where the
    deviation is that between the seeds of the committed row. One seed has none: it passes nothing.
    """
    if not committed:
        return None, "nothing committed"
    if len(committed) == 1:
        return None, "one seed is committed, which passes nothing"
    allowed = 2 * stdev(committed) * sqrt(1 / len(measured) + 1 / len(committed))
    difference = abs(mean(measured) - mean(committed))
    return allowed, "as committed" if difference <= allowed else "differs"
