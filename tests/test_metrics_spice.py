"""SPICE: installation and messages without Java; where it is installed, the program itself."""

import hashlib
import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from captionlab.cli import app
from captionlab.course.miniature import serve
from captionlab.data import downloads
from captionlab.data.datasets import CaptionData, Item
from captionlab.metrics import compare, confidence_intervals, find_java, java, spice, tokenize
from captionlab.metrics.spice import (
    ARCHIVES,
    SUBSCORES,
    find_spice,
    install_spice,
    score_spice,
    spice_report,
)
from captionlab.runs import evaluation
from captionlab.runs.results import load_result, merge_run

REFERENCES = {
    1: ["A brown dog sits on a red sofa.", "The dog is lying on the couch."],
    "two": ["Two men ride horses.", "Two small riders on big horses."],
    3: ["Ein Hund rennt über die Wiese.", "Собака бежит 犬 🐕"],
}
GOOD = {1: "a brown dog on a sofa", "two": "two men on horses", 3: ""}
BAD = {1: "a cat on a table", "two": "a red car", 3: "Собака\nбежит"}


def is_installed():
    try:
        return bool(find_spice())
    except FileNotFoundError:
        return False


needs_spice = pytest.mark.skipif(not is_installed(), reason="SPICE is not installed")


def printed_scores(*values):
    kinds = ("All", *SUBSCORES.values())
    rows = [
        {
            kind: {"f": value if kind != "Size" else None, "tp": 1, "fp": 0, "fn": 2}
            for kind in kinds
        }
        for value in values
    ]
    return [{"image_id": row, "scores": scores} for row, scores in enumerate(rows)]


@pytest.fixture
def fake_program(tmp_path, monkeypatch):
    """Makes a shell script play Java; SPICE's own files are empty ones."""
    folder = tmp_path / "data" / "spice"
    folder.mkdir(parents=True)
    for address in ARCHIVES:
        (folder / Path(address).name).touch()
    monkeypatch.setenv("CAPTIONLAB_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(spice, "tokenize", lambda captions: captions)

    def play(script):
        program = tmp_path / "program"
        program.write_text(f"#!/bin/sh\ncat > {tmp_path}/sent\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setattr(java, "find_java", lambda: str(program))
        return tmp_path / "sent"

    return play


class TestWithoutTheProgram:
    def test_not_installed_is_one_line_that_says_how_to_get_it(self, tmp_path, monkeypatch):
        monkeypatch.setenv("CAPTIONLAB_DATA", str(tmp_path))
        monkeypatch.setattr(spice, "cache_home", lambda: tmp_path / "cache")
        with pytest.raises(
            FileNotFoundError, match=r"SPICE is not installed: get it \(380 MB\) with: captionlab"
        ) as problem:
            score_spice({"a": GOOD}, REFERENCES)
        assert "\n" not in str(problem.value)

    def test_a_java_error_quotes_its_last_line(self, fake_program):
        fake_program(
            "echo Loading >&2; echo 'OutOfMemoryError: Java heap space' >&2; echo >&2; exit 3"
        )
        with pytest.raises(
            RuntimeError,
            match=r"SPICE scored 0 of 1 runs and stopped: OutOfMemoryError: Java heap space$",
        ):
            score_spice({"a": GOOD}, REFERENCES)

    def test_scores_are_read_in_the_order_of_the_references(self, fake_program):
        sent = fake_program(f"cat <<END\n{json.dumps(printed_scores(0.5, None, 0.25))}\nEND")
        shuffled = {key: GOOD[key] for key in (3, 1, "two")}
        scores = score_spice({"a": shuffled}, REFERENCES, threads=7)["a"]
        assert scores.ids == [1, "two", 3]
        assert json.loads(sent.read_text())["jobs"][0]["captions"] == list(GOOD.values())
        assert json.loads(sent.read_text())["threads"] == 7
        np.testing.assert_array_equal(scores.parts["colour"], [50, np.nan, 25])
        assert scores.subscores()["colour"] == 37.5
        assert np.isnan(scores.subscores()["size"])
        assert scores.counts["SPICE"].shape == (3, 3)

    @pytest.mark.parametrize(
        ("candidates", "references", "message"),
        [
            ({1: "a"}, {1: ["b"], 2: ["c"]}, "1 references no candidate"),
            ({1: "a", 2: "b"}, {1: ["b"]}, "1 candidates have no references"),
            ({}, {}, "nothing to score: no pictures"),
            ({1: "a"}, {1: []}, "1 pictures have no reference"),
            ({1: "a"}, {1: "a text"}, "and a list of texts"),
            ({1: ["a"]}, {1: ["b"]}, "needs one text as its candidate"),
        ],
    )
    def test_wrong_input(self, fake_program, candidates, references, message):
        fake_program("exit 1")
        with pytest.raises(ValueError, match=message):
            score_spice({"a": candidates}, references)

    def test_no_runs_need_no_java(self, fake_program):
        fake_program("exit 1")
        assert score_spice({}, REFERENCES) == {}

    def test_a_picture_without_a_tuple_of_a_kind_is_left_out_of_that_mean_only(self):
        scores = spice._read_scores([1, 2], printed_scores(0.5, 1.0))
        report = spice_report({"a": scores}, resamples=50)["runs"]["a"]
        assert report["SPICE"] == 75
        assert report["subscores"]["size"] is None
        assert report["subscore_intervals"]["size"] == [None, None]
        low, high = report["interval"]
        assert 50 <= low < high <= 100
        assert confidence_intervals(scores, 50)["SPICE"] == (low, high)
        assert compare(scores, scores)["SPICE"].difference == 0
        json.dumps(report, allow_nan=False)


def test_add_spice_completes_an_evaluation(monkeypatch):
    seen = {}

    def score(runs, references):
        seen.update(runs["run"], references=references)
        return {"run": spice._read_scores([1, 2], printed_scores(0.5, 1.0))}

    monkeypatch.setattr(evaluation, "score_spice", score)
    items = [Item("1", ("a dog",)), Item("2", ("a cat", "one cat"))]
    result = {
        "metadata": {"split": "test", "scorer": {}},
        "run": {"metrics": {"CIDEr": 1.0}},
        "captions": [{"image_id": 1, "caption": "a"}, {"image_id": 2, "caption": "b"}],
    }
    evaluation.add_spice(result, CaptionData("few", {"test": items}))
    assert seen == {1: "a", 2: "b", "references": {1: ["a dog"], 2: ["a cat", "one cat"]}}
    assert result["run"]["metrics"] == {"CIDEr": 1.0, "SPICE": 75}
    assert set(result["run"]["spice"]) == {"interval", "subscores", "subscore_intervals"}
    assert result["metadata"]["scorer"] == {"SPICE": spice.SPICE_SCORER}


def test_the_command_misses_spice_before_it_captions(monkeypatch, tmp_path):
    monkeypatch.setattr(spice, "cache_home", lambda: tmp_path)
    monkeypatch.setenv("CAPTIONLAB_DATA", str(tmp_path))
    for run, reason in (("scenes", "install-spice"), ("translation", "leave --spice out")):
        done = CliRunner().invoke(app, ["evaluate", run, "--spice"])
        assert done.exit_code == 1
        assert reason in " ".join(done.output.split())


def test_a_run_without_spice_replaces_one_with_it(tmp_path):
    scorer = {"CIDEr": "pycocoevalcap"}
    first = {"seed": 0, "metrics": {"CIDEr": 1.0}}
    merge_run(tmp_path / "a.json", {"data": "x", "scorer": scorer}, first)
    result = load_result(tmp_path / "a.json")
    result["scorer"]["SPICE"] = spice.SPICE_SCORER
    result["runs"][0]["metrics"]["SPICE"] = 2.0
    (tmp_path / "a.json").write_text(json.dumps(result))
    second = {"seed": 1, "metrics": {"CIDEr": 3.0}}
    merge_run(tmp_path / "a.json", {"data": "x", "scorer": scorer}, second)
    assert load_result(tmp_path / "a.json")["scorer"] == result["scorer"]
    merge_run(tmp_path / "a.json", {"data": "x", "scorer": scorer}, first)
    assert load_result(tmp_path / "a.json")["scorer"] == scorer


class TestInstalling:
    CONTENT = b"not really a jar" * 1000
    SHA256 = hashlib.sha256(CONTENT).hexdigest()

    @pytest.fixture
    def address(self, tmp_path, monkeypatch):
        """Serves `a.jar`, the only file that SPICE needs here."""
        (tmp_path / "served").mkdir()
        (tmp_path / "served/a.jar").write_bytes(self.CONTENT)
        with serve(tmp_path / "served") as address:
            monkeypatch.setattr(spice, "ARCHIVES", {f"{address}/a.jar": self.SHA256})
            yield f"{address}/a.jar"

    def test_it_comes_once(self, address, tmp_path):
        goal = tmp_path / "mit Leerzeichen und Ümlauten"
        assert install_spice(goal) == goal
        (tmp_path / "served/a.jar").unlink()
        assert install_spice(goal) == goal
        assert [file.name for file in goal.iterdir()] == ["a.jar"]

    def test_a_broken_file_is_fetched_again_and_a_part_goes_on(self, address, tmp_path):
        (tmp_path / "a.jar").write_bytes(b"half")
        (tmp_path / "a.jar.part").write_bytes(self.CONTENT[:5000])
        install_spice(tmp_path)
        assert (tmp_path / "a.jar").read_bytes() == self.CONTENT

    def test_another_checksum_is_refused_and_leaves_nothing(self, address, tmp_path, monkeypatch):
        monkeypatch.setattr(spice, "ARCHIVES", {address: "0" * 64})
        with pytest.raises(OSError, match=r"could not download a\.jar .*its checksum is"):
            install_spice(tmp_path / "goal")
        assert not [*(tmp_path / "goal").iterdir()]

@pytest.fixture(scope="module")
def scored():
    return score_spice({"good": GOOD, "bad": BAD}, REFERENCES, threads=1)


@needs_spice
@pytest.mark.java
class TestTheProgram:
    def test_what_is_stated_counts(self, scored):
        good, bad = scored["good"], scored["bad"]
        assert good.per_image["SPICE"][0] > 50
        assert bad.per_image["SPICE"][0] == 0
        assert good.parts["colour"][0] > 0
        assert good.parts["count"][1] > bad.parts["count"][1]
        assert good.per_image["SPICE"][2] == 0, "an empty caption states nothing"
        assert np.isnan(good.parts["count"][0])

    def test_captions_are_parsed_once(self):
        jobs = [{"captions": ["a dog"], "references": [["a cat", "a brown dog"]]}] * 2
        _, messages = spice._run_spice(jobs, 1, "4G")
        parsed = [line for line in messages.splitlines() if line.startswith("parsing")]
        assert parsed == ["parsing 2 of 2", "parsing 1 of 1", "parsing 0 of 2", "parsing 0 of 1"]

    def test_equals_the_program_run_by_hand(self, scored, tmp_path):
        words = tokenize(
            {("r", key): texts for key, texts in REFERENCES.items()}
            | {("c", key): [GOOD[key]] for key in GOOD}
        )
        entries = [
            {"image_id": str(key), "test": words["c", key][0], "refs": words["r", key]}
            for key in REFERENCES
        ]
        (tmp_path / "in.json").write_text(json.dumps(entries))
        command = spice._java_command(
            find_spice(),
            "4G",
            "edu.anu.spice.SpiceScorer",
            "in.json",
            "-out",
            "out.json",
            "-subset",
            "-silent",
        )
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
        printed = json.loads((tmp_path / "out.json").read_text())
        by_hand = spice._read_scores(list(REFERENCES), printed)
        np.testing.assert_array_equal(by_hand.per_image["SPICE"], scored["good"].per_image["SPICE"])
        for name in SUBSCORES:
            np.testing.assert_array_equal(by_hand.parts[name], scored["good"].parts[name])

    @pytest.mark.parametrize("locale", ["C", "de_DE.UTF-8"])
    def test_a_folder_with_blanks_and_umlauts_and_any_locale(
        self, tmp_path, monkeypatch, scored, locale
    ):
        folder = tmp_path / "mit Leerzeichen und Ümlauten" / "spice"
        folder.mkdir(parents=True)
        for address in ARCHIVES:
            (folder / Path(address).name).symlink_to(find_spice() / Path(address).name)
        monkeypatch.setenv("CAPTIONLAB_DATA", str(folder.parent))
        monkeypatch.setenv("LC_ALL", locale)
        again = score_spice({"good": GOOD}, REFERENCES, threads=1)["good"]
        np.testing.assert_array_equal(again.per_image["SPICE"], scored["good"].per_image["SPICE"])

    def test_too_little_memory_is_a_clear_line(self):
        with pytest.raises(RuntimeError, match=r"SPICE scored 0 of 1 runs and stopped: \w+"):
            score_spice({"good": GOOD}, REFERENCES, memory="40M")

    def test_the_installed_files_are_the_pinned_ones(self):
        for address, sha256 in ARCHIVES.items():
            assert downloads._file_checksum(find_spice() / Path(address).name) == sha256
        assert shutil.which(find_java())
        assert Path(find_java()).is_file()
