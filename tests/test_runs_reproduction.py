"""Rows of the papers' tables are trained, judged and compared with what is committed."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from captionlab.cli import app
from captionlab.data.datasets import scenes
from captionlab.files import write_json
from captionlab.runs import reproduction
from captionlab.runs.reproduction import (
    Reproduction,
    RunSettings,
    reproduce_row,
    row_commands,
    seed_deviation,
    seed_spread,
)
from captionlab.runs.tables import PROTOCOLS, find_table

@pytest.fixture
def results(own_results):
    return own_results


def write_result(results, name, scores, stage="xe"):
    runs = [{"seed": seed, "metrics": {"CIDEr": score}, "spice": {"subscores": {"relations": 1.0}}}
            for seed, score in enumerate(scores)]
    (results / name).parent.mkdir(exist_ok=True)
    write_json(results / f"{name}.json", {"stage": stage, "split": "test", "runs": runs})


class TestSpread:
    def test_pools_the_variances_of_all_results_with_several_seeds(self, results):
        write_result(results, "scenes/a-tiny-xe", [10.0, 12.0])            # variance 2, 1 degree
        write_result(results, "scenes/b-tiny-xe", [20.0, 20.0, 26.0])      # variance 12, 2 degrees
        write_result(results, "scenes/c-tiny-xe", [50.0])
        write_result(results, "scenes/d-tiny-scst", [0.0, 90.0], "scst")
        deviation, freedom = seed_deviation("scenes", "CIDEr", "xe")
        assert freedom == 3
        assert deviation == pytest.approx(math.sqrt((1 * 2 + 2 * 12) / 3))

    def test_takes_other_stages_where_a_stage_has_no_second_seed(self, results):
        write_result(results, "scenes/a-tiny-xe", [10.0, 12.0])
        write_result(results, "scenes/a-tiny-scst", [10.0], "scst")
        assert seed_deviation("scenes", "CIDEr", "scst") == (pytest.approx(math.sqrt(2)), 1)

    def test_reads_the_parts_of_spice(self, results):
        write_result(results, "scenes/a-tiny-xe", [10.0, 12.0])
        assert seed_deviation("scenes", "SPICE, relations", "xe") == (0.0, 1)

    def test_is_infinite_where_nothing_is_known(self, results):
        assert math.isinf(seed_spread(seed_deviation("scenes", "CIDEr", "xe"), 3, 3))

    def test_is_students_interval_of_two_means(self):
        assert seed_spread((2.0, 4), 3, 3) == pytest.approx(2.776 * 2 * math.sqrt(2 / 3))
        assert seed_spread((2.0, 11), 1, 1) == pytest.approx(2.228 * 2 * math.sqrt(2))

    @pytest.mark.parametrize(("committed", "verdict"), [
        (None, "nothing committed"), (86.0, "as committed"), (74.0, "as committed"),
        (73.9, "differs"), (99.0, "differs"),
    ])
    def test_decides_the_verdict(self, committed, verdict):
        one = Reproduction("eta-2", "visual", "CIDEr", 80.0, 3, committed, spread=6.0)
        assert one.verdict == verdict
        assert verdict in str(one)


class TestSteps:
    def test_of_two_models_that_caption_together(self):
        row = find_table("eta-5").row("visual+semantic")
        commands = row_commands(row, PROTOCOLS["photos"], 2, RunSettings(Path("r")))
        assert len(commands) == 5
        assert commands[0] == (
            "captionlab train entangled --data flickr8k --preset ablation --variant visual "
            "--seed 2 --out r/flickr8k-entangled-visual-ablation-2"
        )
        assert "--detector r/detector-flickr8k.safetensors" in commands[2]
        assert commands[4].endswith("--ensemble r/flickr8k-entangled-semantic-ablation-2-scst")

    def test_name_the_settings_of_a_row_and_the_next_seed_of_a_member(self):
        grid = row_commands(find_table("eta-4").row("visual"), PROTOCOLS["scenes"], 0)
        assert "--set inputs.grid=8 --set inputs.max_boxes=0 --set channels=12" in grid[0]
        two = row_commands(find_table("eta-1").row("two xe"), PROTOCOLS["scenes"], 0)
        assert "--seed 0 " in two[0]
        assert "--seed 1 " in two[1]

    def test_an_oracle_judges_only(self):
        commands = row_commands(find_table("eta-2").row("oracle"), PROTOCOLS["scenes"], 0)
        assert ["--oracle" in command for command in commands] == [False, True]

    def test_are_printed_instead_of_run(self):
        arguments = ["reproduce", "eta-2", "--row", "visual", "--seed", "0", "--commands"]
        printed = CliRunner().invoke(app, arguments).output.strip().split("\n")
        assert [line.split()[1] for line in printed] == ["train", "evaluate"]


class TestCommand:
    def test_lists_tables_and_rows(self):
        printed = CliRunner().invoke(app, ["reproduce"]).output
        assert "eta-5" in printed
        assert "rows: vanilla, fpn, position_aware" in printed

    @pytest.mark.parametrize(("arguments", "message"), [
        (["eta-9"], "no table 'eta-9'"),
        (["eta-2", "--row", "both"], "eta-2 has no row 'both'"),
        (["eta-2", "--data", "coco"], "no protocol 'coco'"),
        (["it-1", "--row", "vorn"], "captionlab has no model for the row vorn"),
    ])
    def test_says_in_one_line_what_is_wrong(self, results, arguments, message):
        result = CliRunner().invoke(app, ["reproduce", *arguments])
        assert result.exit_code == 1
        assert message in result.output

    @pytest.mark.parametrize(("score", "code"), [(85.0, 0), (40.0, 1)])
    def test_the_exit_code_tells_whether_rows_differ(self, results, monkeypatch, score, code):
        write_result(results, "scenes/entangled-visual-tiny-xe", [84.0, 86.0, 88.0])
        monkeypatch.setattr(reproduction, "judge_row", lambda *_, **__: {"CIDEr": score})
        result = CliRunner().invoke(app, ["reproduce", "eta-2", "--row", "visual"])
        assert result.exit_code == code, result.output
        assert "committed   86.0" in result.output

    def test_bench_prints_the_table(self, results):
        row = {"name": "attention", "ours": 2.0, "peer": 3.0, "ratio": 1.5, "unit": "ms"}
        write_json(results / "bench.json", {"rows": [row]})
        printed = CliRunner().invoke(app, ["bench"]).output.split("\n")
        assert printed[1].split() == ["attention", "2.00", "3.00", "1.50", "ms"]

    @pytest.mark.parametrize(("content", "message"), [
        (None, "no benchmarks here"), ([], "are not benchmarks"),
        ({"rows": [{"name": "attention"}]}, "are not benchmarks"),
    ])
    def test_bench_says_what_is_missing(self, results, content, message):
        if content is not None:
            write_json(results / "bench.json", content)
        result = CliRunner().invoke(app, ["bench"])
        assert result.exit_code == 1
        assert message in result.output


@pytest.mark.java
@pytest.mark.slow
@pytest.mark.parametrize(("table", "row"), [("eta-2", "visual"), ("eta-5", "visual+semantic")])
def test_a_row_runs_from_nothing_on_a_handful_of_scenes(results, tmp_path, table, row):
    data = scenes(train=24, val=4, test=6, novel=0)
    protocol = replace(PROTOCOLS["scenes"], seeds=(0,),
                       settings=("training.epochs=1", "scst.epochs=1", "width=16", "hidden=16"))
    where = RunSettings(tmp_path / "runs", data)
    found = find_table(table)
    arguments = {"where": where, "write": True}
    outcome = reproduce_row(found, found.row(row), protocol, **arguments)
    assert outcome.verdict == "nothing committed"
    name = found.row(row).result(protocol)
    assert (results / f"{name}.json").exists()
    assert (results / f"{name}.seed0.captions.json").exists()
    # The runs are there now: nothing is trained again, and the same comes out.
    trained = {file: file.stat().st_mtime_ns for file in (tmp_path / "runs").glob("*/run.json")}
    again = reproduce_row(found, found.row(row), protocol, **arguments)
    assert again.measured == outcome.measured == again.committed
    assert trained == {file: file.stat().st_mtime_ns
                       for file in (tmp_path / "runs").glob("*/run.json")}


@pytest.mark.java
@pytest.mark.slow
def test_a_row_of_the_scenes_scores_as_committed(tmp_path):
    arguments = ["reproduce", "eta-2", "--row", "visual", "--seed", "0",
                 "--runs", str(tmp_path / "runs"), "--device", "cpu"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "as committed" in result.output
