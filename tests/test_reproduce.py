"""Rows of the papers' tables: what trains them, when they pass, and the claims about them."""

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from captionlab.files import write_json
from captionlab.metrics.statistics import bootstrap_counts
from captionlab.models import find_preset, list_models, model_presets
from captionlab.runs.results import published_tables, seed_deviation, seed_spread
from captionlab.training.config import override_preset
from reproduce.claims import (
    decidable,
    in_words,
    machines_of,
    measure_claims,
    own_errors,
    paired_spread,
    shared_trainings,
)
from reproduce.rows import Settings, compare, load_row, plan_row, result_name

ROOT = Path(__file__).resolve().parent.parent
PUBLISHED = published_tables()
TABLES, PROTOCOLS = PUBLISHED["tables"], PUBLISHED["protocols"]
ROWS = [(table, name) for table, one in TABLES.items() for name in one["rows"]]
TRAINED = [(table, name) for table, name in ROWS if "model" in TABLES[table]["rows"][name]]
CLAIMS = json.loads((ROOT / "results" / "claims.json").read_text())["claims"]


def commands(table: str, name: str, data: str = "scenes", seed: int = 0, **where) -> list[str]:
    steps, _ = plan_row(TABLES[table]["rows"][name], PROTOCOLS[data], seed, Settings(**where))
    return [step.command for step in steps]


def call(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-m", "reproduce", *arguments], cwd=ROOT,
                          capture_output=True, text=True, check=False)


class TestTables:
    @pytest.mark.parametrize(("table", "name"), TRAINED)
    @pytest.mark.parametrize("data", PROTOCOLS)
    def test_the_plan_of_every_row_is_valid(self, table, name, data):
        row, protocol = TABLES[table]["rows"][name], PROTOCOLS[data]
        assert row["model"] in list_models()
        assert row["stage"] in ("xe", "scst")
        for variant, shift in [(row.get("variant"), 0), *row.get("members", ())]:
            preset = find_preset(row["model"], protocol["preset"], variant)
            preset = override_preset(preset, row.get("settings", {}).get(protocol["data"], ()))
            assert preset.inputs.fields, f"{table} {name} would read nothing"
            assert shift >= 0
        assert result_name(row, protocol).startswith(f"{protocol['data']}/{row['model']}-")

    @pytest.mark.parametrize("table", TABLES)
    def test_comparisons_name_rows(self, table):
        for pair in TABLES[table]["comparisons"]:
            assert pair[0] != pair[1]
            assert set(pair) <= TABLES[table]["rows"].keys()

    def test_one_result_is_of_one_training(self):
        plans = {}
        for data in PROTOCOLS:
            for table, name in TRAINED:
                row = TABLES[table]["rows"][name]
                plan = (commands(table, name, data), row.get("oracle"))
                assert plans.setdefault(result_name(row, PROTOCOLS[data]), plan) == plan

    @pytest.mark.parametrize(("table", "first", "second", "difference"), [
        ("pat-2", "fpn", "vanilla", 6.3), ("pat-5", "position_aware", "bottom-up", 5.4),
        ("eta-1", "two xe", "eta xe", 1.4), ("eta-1", "two scst", "eta scst", 1.0),
        ("eta-2", "oracle", "eta", 86.3), ("eta-4", "visual", "visual_no_encoder", 2.0),
        ("eta-5", "eta", "parallel", 1.7), ("eta-5", "visual", "visual+semantic", 5.4),
        ("eta-6", "eta", "tanh", 11.1), ("it-1", "released", "aoanet", 1.0),
        ("it-3", "full", "baseline", 2.5),
        ("captioners", "image_transformer scst", "vanilla scst", 0.8),
        ("captioners", "position_aware scst", "vanilla scst", -4.5),
    ])
    def test_published_differences_are_those_of_the_papers(self, table, first, second, difference):
        one, other = (TABLES[table]["rows"][name]["published"] for name in (first, second))
        assert one["CIDEr"] - other["CIDEr"] == pytest.approx(difference)

    def test_results_are_named_as_evaluate_names_them(self):
        for table, name, data, expected in [
            ("eta-2", "eta", "scenes", "scenes/entangled-tiny-xe"),
            ("eta-2", "oracle", "scenes", "scenes/entangled-oracle-tiny-xe"),
            ("eta-1", "two xe", "scenes", "scenes/entangled-eta+eta-tiny-xe"),
            ("eta-4", "visual", "scenes", "scenes/entangled-visual-grid-tiny-xe"),
            ("it-3", "full", "photos", "flickr8k/image_transformer-released-ablation-xe"),
        ]:
            assert result_name(TABLES[table]["rows"][name], PROTOCOLS[data]) == expected

    @pytest.mark.parametrize("model", ["vanilla", "cptr", "position_aware", "entangled",
                                       "image_transformer"])
    def test_the_preset_of_ablations_is_the_one_of_photos_trained_less(self, model):
        ablation = find_preset(model, "ablation")
        presets = model_presets(model)
        # The stored ablation of CPTR is older than its `small`.
        of_photos = "squeezenet" if model == "cptr" else "small"
        base = presets.get(of_photos, presets["squeezenet"])
        assert ablation.inputs == base.inputs
        assert (ablation.training.epochs, ablation.scst.epochs) == (8, 4)
        assert ablation.training.lr == base.training.lr


class TestSteps:
    def test_of_two_models_that_caption_together(self):
        steps = commands("eta-5", "visual+semantic", "photos", 2, folder=Path("r"))
        assert steps[0] == (
            "captionlab train entangled --data flickr8k --preset ablation --variant visual "
            "--seed 2 --out r/flickr8k-entangled-visual-ablation-2"
        )
        assert [step.split()[1] for step in steps] == ["train", "train", "attributes", "train",
                                                       "train"]
        assert "--detector r/detector-flickr8k.safetensors" in steps[3]

    def test_name_the_settings_of_a_row_and_the_next_seed_of_a_member(self):
        (grid,) = commands("eta-4", "visual", changes=["training.epochs=1"])
        assert ("--set inputs.grid=8 --set inputs.max_boxes=0 --set channels=12 "
                "--set training.epochs=1") in grid
        two = [step for step in commands("eta-1", "two xe") if " train entangled" in step]
        assert ["--seed 0 " in two[0], "--seed 1 " in two[1]] == [True, True]

    def test_are_printed_once(self):
        printed = call("eta-2", "--seed", "0", "--commands").stdout.splitlines()
        assert len(printed) == len(set(printed)) == 4       # a detector, and three models
        assert "tiny-0" in printed[0] or "detector" in printed[0]

    @pytest.mark.parametrize(("arguments", "message"), [
        (["eta-9"], "no table 'eta-9': choose from pat-2"),
        (["eta-2", "--row", "both"], "no row of eta-2 'both': choose from semantic"),
        (["eta-2", "--data", "coco"], "no protocol 'coco': choose from scenes"),
        (["it-1", "--row", "vorn"], "captionlab has no model for this row"),
    ])
    def test_a_wrong_name_is_one_line(self, arguments, message):
        done = call(*arguments)
        assert done.returncode == 1
        assert message in done.stderr
        assert done.stderr.count("\n") == 1


class TestVerdict:
    @pytest.mark.parametrize(("measured", "verdict"), [
        ([86.0, 86.0, 86.0], "as committed"),
        ([89.2, 89.2, 89.2], "as committed"),       # 2 · 2 · √(1/3 + 1/3) = 3.27
        ([89.4, 89.4, 89.4], "differs"),
        ([82.6, 82.6, 82.6], "differs"),
        ([90.5], "as committed"),                   # 2 · 2 · √(1 + 1/3) = 4.62
        ([90.7], "differs"),
    ])
    def test_a_row_may_differ_as_its_own_seeds_do(self, measured, verdict):
        assert compare(measured, [84.0, 86.0, 88.0])[1] == verdict

    def test_one_seed_or_none_passes_nothing(self):
        assert compare([86.0], [86.0]) == (None, "one seed is committed, which passes nothing")
        assert compare([86.0], []) == (None, "nothing committed")

    def test_rows_of_a_table_do_not_pass_as_each_other(self):
        rows = TABLES["eta-2"]["rows"]
        scores = {name: [run["metrics"]["CIDEr"] for run in
                         load_row(rows[name], PROTOCOLS["scenes"])["runs"]]
                  for name in ("semantic", "visual")}
        assert compare(scores["semantic"], scores["visual"])[1] == "differs"
        assert compare(scores["visual"], scores["visual"])[1] == "as committed"


def write_result(results: Path, name: str, scores: list[float], stage: str = "xe",
                 **more: str) -> None:
    runs = [{"seed": seed, "metrics": {"CIDEr": score}} for seed, score in enumerate(scores)]
    (results / name).parent.mkdir(exist_ok=True)
    write_json(results / f"{name}.json", {"stage": stage, "split": "test", "runs": runs, **more})


class TestSeeds:
    def test_variances_of_all_results_with_several_seeds_are_pooled(self, own_results):
        write_result(own_results, "scenes/a-tiny-xe", [10.0, 12.0])         # variance 2, 1 degree
        write_result(own_results, "scenes/b-tiny-xe", [20.0, 20.0, 26.0])   # variance 12, 2 degrees
        write_result(own_results, "scenes/c-tiny-xe", [50.0])
        write_result(own_results, "scenes/d-tiny-scst", [0.0, 90.0], "scst")
        deviation, freedom = seed_deviation("scenes", "xe")
        assert freedom == 3
        assert deviation == pytest.approx(math.sqrt((1 * 2 + 2 * 12) / 3))

    def test_results_with_the_trainings_of_others_do_not_count(self, own_results):
        write_result(own_results, "scenes/a-tiny-xe", [10.0, 12.0])
        write_result(own_results, "scenes/a-oracle-tiny-xe", [20.0, 90.0], variant="oracle")
        write_result(own_results, "scenes/a-b+c-tiny-xe", [20.0, 90.0], variant="b+c")
        assert seed_deviation("scenes", "xe") == (pytest.approx(math.sqrt(2)), 1)

    def test_other_stages_count_where_a_stage_has_no_second_seed(self, own_results):
        write_result(own_results, "scenes/a-tiny-xe", [10.0, 12.0])
        write_result(own_results, "scenes/a-tiny-scst", [10.0], "scst")
        assert seed_deviation("scenes", "scst") == (pytest.approx(math.sqrt(2)), 1)

    @pytest.mark.usefixtures("own_results")
    def test_the_spread_is_infinite_where_nothing_is_known(self):
        assert math.isinf(seed_spread(seed_deviation("scenes", "xe"), 3, 3))

    def test_the_spread_is_students_interval_of_two_means(self):
        assert seed_spread((2.0, 4), 3, 3) == pytest.approx(2.776 * 2 * math.sqrt(2 / 3))
        assert seed_spread((2.0, 11), 1, 1) == pytest.approx(2.228 * 2 * math.sqrt(2))


class TestClaims:
    @pytest.mark.parametrize("data", PROTOCOLS)
    def test_are_of_the_committed_results(self, data):
        means = {}
        for name, table, rows, preset in decidable(data):
            runs = [load_row(row, PROTOCOLS[data], preset)["runs"] for row in rows]
            ours = [sum(run["metrics"]["CIDEr"] for run in group) / len(group) for group in runs]
            means[name, in_words(table["paper"], rows)] = (ours[0] - ours[1], [*map(len, runs)])
        claims = [claim for claim in CLAIMS if claim["data"] == data]
        assert claims
        for claim in claims:
            difference, seeds = means[claim["table"], claim["claim"]]
            assert claim["ours"] == pytest.approx(difference, abs=0.006)
            assert claim["runs"] == seeds
            assert claim["pictures"] > 0
            assert claim["seeds"] is None or claim["seeds"] > 0
            assert (claim["common"] is None) == (claim["seeds"] is None)
            assert claim["common"] is None or 0 <= claim["common"] < claim["pictures"]

    def test_are_of_one_papers_table(self):
        assert "captioners" not in {claim["table"] for claim in CLAIMS}

    def test_pair_the_seeds_of_shared_trainings(self):
        """Differences are −0.3, −3.8 and +1.5: their deviation is 2.7, that of the mean 1.6."""
        by_name = {(one["data"], one["claim"]): one for one in CLAIMS}
        oracle = "Entangled: both, with true attributes − both"
        assert by_name["scenes", oracle]["shared"]
        scores = [{run["seed"]: run["metrics"]["CIDEr"] for run in
                   load_row(TABLES["eta-2"]["rows"][row], PROTOCOLS["scenes"])["runs"]}
                  for row in ("oracle", "eta")]
        assert by_name["scenes", oracle]["seeds"] == round(paired_spread(*scores), 2)
        assert by_name["photos", oracle]["seeds"] is None
        assert by_name["photos", "Entangled: both, self-critical − both"]["seeds"] is None
        assert by_name["photos", "Entangled: both − regions alone"]["seeds"] > 0

    def test_a_shared_training_is_one_whose_losses_are_the_same(self):
        """The self-critical models of both on scenes were trained twice, with equal losses; the
        cross-entropy models of another commit with others."""
        rows = TABLES["eta-1"]["rows"]
        scenes = PROTOCOLS["scenes"]
        assert shared_trainings([rows["two scst"], rows["eta scst"]], scenes, "tiny")
        assert not shared_trainings([rows["two xe"], rows["eta xe"]], scenes, "tiny")

    def test_names_the_machines_behind_a_claim(self):
        by_name = {(one["data"], one["claim"]): one["machines"] for one in CLAIMS}
        assert by_name["photos", "Entangled: both − attributes alone"] == ["CPU", "GPU"]
        assert by_name["photos", "Entangled: both − regions alone"] == ["CPU"]
        assert machines_of([{"machine": "2 cores, NVIDIA"}]) == ["GPU"]

    def test_the_own_errors_of_a_training_are_those_that_another_does_not_share(self):
        """Deviation 20 over 400 pictures: that of a mean is 1, the half width 1.96."""
        rng = np.random.default_rng(0)
        pictures = rng.normal(0, 50, 400)
        trainings = pictures + rng.normal(0, 20, (3, 400))
        own = own_errors(trainings, bootstrap_counts(400))
        assert own == pytest.approx(1.96**2, rel=0.2)

    def test_a_paired_spread_is_students(self):
        spread = paired_spread({0: 1.0, 1: 2.0, 2: 3.0}, {0: 0.0, 1: 0.0, 2: 0.0})
        assert spread == pytest.approx(4.303 / math.sqrt(3))
        assert paired_spread({0: 1.0}, {0: 0.0}) is None
        assert paired_spread({0: 1.0, 1: 2.0}, {0: 0.0}) is None

    def test_the_file_names_what_is_left_out(self):
        stored = json.loads((ROOT / "results" / "claims.json").read_text())
        assert [(one["data"], one["claim"]) for one in stored["left_out"]] == [
            ("scenes", "Entangled: regions alone − attributes alone (self-critical)")]
        assert all(count >= len(CLAIMS) / 2 for count in stored["pairs"].values())

    def test_say_once_that_both_models_are_self_critical(self):
        assert ("Image Transformer: full model − two Entangled (self-critical)"
                in [claim["claim"] for claim in CLAIMS])

    @pytest.mark.java
    @pytest.mark.slow
    def test_come_out_again(self):
        assert measure_claims("scenes")[0] == [one for one in CLAIMS if one["data"] == "scenes"]


@pytest.mark.java
@pytest.mark.slow
def test_a_row_of_the_scenes_scores_as_committed(tmp_path):
    arguments = ["eta-2", "--row", "visual", "--seed", "0", "--device", "cpu"]
    done = call(*arguments, "--runs", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "as committed" in done.stdout
    # The run is there now: nothing is trained again, and the same comes out.
    file = tmp_path / "scenes-entangled-visual-tiny-0" / "run.json"
    made = file.stat().st_mtime_ns
    assert call(*arguments, "--runs", str(tmp_path)).stdout.splitlines()[-1] == (
        done.stdout.splitlines()[-1])
    assert file.stat().st_mtime_ns == made
