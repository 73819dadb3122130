"""The benchmarks of whole trainings and of what only a GPU can show, in small."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import gpu, speedrun

ROOT = Path(__file__).resolve().parent.parent


PHASES = {
    "scenes": ["start", "xe", "scst", "metrics"],
    "flickr8k": ["start", "features", "xe", "scst", "metrics"],
    "multi30k": ["start", "xe", "metrics"],
}


@pytest.mark.slow
@pytest.mark.java
@pytest.mark.filterwarnings("ignore:.* captions are cut")
@pytest.mark.parametrize(
    "data",
    ["scenes", *(pytest.param(name, marks=pytest.mark.data) for name in ("flickr8k", "multi30k"))],
)
def test_a_trial_has_all_phases(data, tmp_path):
    out = tmp_path / "run.json"
    rows = (ROOT / "results" / "bench.json").read_text()
    options = ["--items", "24", "--epochs", "1", "--val", "8", "--beam", "1", "--out", str(out)]
    result = speedrun.main([data, *options])
    assert [*result["phases"]] == PHASES[data]
    assert all(lap["seconds"] > 0 and lap["core_seconds"] > 0 for lap in result["phases"].values())
    assert 0 < result["phases"]["xe"]["steps"] < result["phases"]["xe"]["seconds"]
    assert json.loads(out.read_text())["score"] == result["score"]
    assert speedrun.log_line(result, "none").startswith(f"| {data} |")
    assert (ROOT / "results" / "bench.json").read_text() == rows    # a trial leaves no row


@pytest.mark.slow
@pytest.mark.java
def test_what_a_gpu_shows_runs_in_small_on_a_cpu(tmp_path):
    out = tmp_path / "gpu.json"
    command = [sys.executable, "-m", "benchmarks.gpu", "--tiny", "--out", str(out)]
    done = subprocess.run([*command, "same", "cptr", "scst"], cwd=ROOT, capture_output=True,
                          text=True, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=True)
    results = json.loads(out.read_text())
    assert "MiB: {'tree':" in done.stdout
    assert results["same"]["largest_relative_gap"] == 0
    assert results["same-scst"]["largest_relative_gap"] == 0
    assert results["cptr"]["share"] > 0
    assert results.keys() >= {"scst-vanilla", "scst-image_transformer"}
    assert not any("error" in found for found in results.values() if isinstance(found, dict))


def test_what_a_run_adds_to_the_log_is_a_row_of_its_table():
    before, row = speedrun.LOG.read_text(encoding="utf-8").splitlines()[-2:]
    assert row.count("|") == before.count("|") == 8


def test_a_cpu_counts_the_seconds_of_its_cores_and_of_other_programs():
    watch = speedrun.Stopwatch(None)
    watch.lap("start")
    subprocess.run([sys.executable, "-c", "sum(range(10**7))"], check=True)
    watch.lap("xe")
    lap = watch.phases["xe"]
    assert lap["core_seconds"] > 0.05
    result = {"phases": watch.phases, "device": "cpu"}
    assert speedrun.cost(result) == (lap["core_seconds"], "core s")
    assert speedrun.cost(result | {"device": "cuda"}) == (lap["seconds"], "s")


def test_every_course_has_a_preset_and_the_checks_a_goal():
    for name, course in speedrun.COURSES.items():
        preset = speedrun.find_preset(course.model, course.preset)
        usual = preset.training.max_tokens // 18 if preset.training.max_tokens == 144 else None
        assert usual in (None, course.usual), name
    assert gpu.GOALS.keys() < set(gpu.CAPTIONERS)
    assert gpu.sizes()["tree"] > 1
