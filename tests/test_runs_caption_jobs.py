"""Many files are captioned into one, and a job that was killed is resumed."""

import csv
import json
import signal
import subprocess
import sys

import pytest
from PIL import Image

import captionlab
from captionlab.cli.options import find_pictures, split_run
from captionlab.decoding import GenerationConfig
from captionlab.runs import caption_files, caption_jobs, write_captions

@pytest.fixture(scope="module")
def run():
    return captionlab.load("scenes")


@pytest.fixture
def files(tmp_path):
    """Twelve pictures of one colour each, in two folders."""
    for number in range(12):
        folder = tmp_path / "pictures" / ("more" if number % 2 else "")
        folder.mkdir(parents=True, exist_ok=True)
        colour = (20 * number, 0, 255 - 20 * number)
        Image.new("RGB", (8, 8), colour).save(folder / f"{number:02}.png")
    return find_pictures([tmp_path / "pictures"])


def images(out):
    return [record["image"] for record in json.loads(out.read_text())]


def test_a_folder_is_searched(files, tmp_path):
    folder = tmp_path / "pictures"
    assert len(files) == 12
    (folder / ".hidden.png").touch()
    (folder / ".cache").mkdir()
    (folder / ".cache" / "a.png").touch()
    (folder / "notes.txt").touch()
    # A file that is named beside its folder counts once, and one that is not there stays.
    absent = tmp_path / "absent.jpg"
    assert find_pictures([files[3], folder, absent]) == [
        files[3], *files[:3], *files[4:], absent
    ]  # fmt: skip
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="holds no pictures"):
        find_pictures([tmp_path / "empty"])
    assert split_run(str(folder), []) == ("photos", [folder])


def test_three_formats_hold_the_same(run, files, tmp_path):
    config = GenerationConfig(num_captions=2)
    expected = run.generate(files, config)
    for suffix in (".json", ".jsonl", ".csv"):
        out = tmp_path / f"captions{suffix}"
        assert caption_files(run, files, out, config, scores=True, batch_size=5) == []
        assert not out.with_name(f"{out.name}.partial").exists()
    records = json.loads((tmp_path / "captions.json").read_text())
    lines = (tmp_path / "captions.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == records
    assert [record["image"] for record in records] == [str(file) for file in files]
    texts = [[row["text"] for row in record["captions"]] for record in records]
    assert texts == [[caption.text for caption in captions] for captions in expected]
    first = records[0]["captions"][0]
    assert first["log_prob"] == pytest.approx(expected[0][0].log_prob, abs=1e-3)
    with open(tmp_path / "captions.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["image"], row["caption"]) for row in rows] == [
        (str(file), text) for file, pair in zip(files, texts, strict=True) for text in pair
    ]
    assert [row["rank"] for row in rows] == ["1", "2"] * 12
    assert float(rows[0]["log_prob"]) == first["log_prob"]


def test_text_alone(tmp_path):
    captions = {'a,"b".png': [{"text": "a dog", "log_prob": -1.0}]}
    write_captions(tmp_path / "c.json", captions)
    assert json.loads((tmp_path / "c.json").read_text()) == [
        {"image": 'a,"b".png', "captions": ["a dog"]}
    ]


def test_a_broken_file_is_tried_again(run, files, tmp_path):
    out = tmp_path / "captions.json"
    content = files[4].read_bytes()
    files[4].write_text("no picture")
    (error,) = caption_files(run, files, out)
    assert str(files[4]) in str(error)
    assert images(out) == [str(file) for file in files if file != files[4]]
    files[4].write_bytes(content)
    with pytest.raises(ValueError, match="resume that"):
        caption_files(run, files, out)
    counts = []
    assert caption_files(run, files, out, resume=True, on_progress=counts.append) == []
    assert counts == [12]
    assert images(out) == [str(file) for file in files]


def test_a_journal_of_another_job_is_refused(run, files, tmp_path):
    journal = tmp_path / "c.json.partial"
    settings = caption_jobs._journal_settings(run, GenerationConfig())
    journal.write_text(json.dumps({"settings": settings}) + "\n")
    with pytest.raises(ValueError, match="another beam, num_captions"):
        caption_files(
            run, files, tmp_path / "c.json", GenerationConfig(beam=5, num_captions=5), resume=True
        )
    journal.write_text("nonsense\n")
    with pytest.raises(ValueError, match="no journal of captions"):
        caption_jobs._read_journal(journal, settings)
    for name, line in (("c.txt", "ends in .json"), ("no/c.json", "no folder")):
        with pytest.raises((ValueError, OSError), match=line):
            caption_files(run, files, tmp_path / name)


@pytest.mark.parametrize("cut", [1, 7, 30])
def test_half_a_line_is_cut_off(run, files, tmp_path, cut):
    out = tmp_path / "captions.json"
    caption_files(run, files, out, scores=True)
    expected = json.loads(out.read_text())
    files[-1].rename(files[-1].with_suffix(".away"))
    caption_files(run, files, out)  # leaves its journal
    files[-1].with_suffix(".away").rename(files[-1])
    journal = tmp_path / "captions.json.partial"
    journal.write_bytes(journal.read_bytes()[:-cut])
    done = caption_jobs._read_journal(journal, caption_jobs._journal_settings(run, GenerationConfig()))
    assert len(done) == 10
    assert journal.read_bytes().endswith(b"\n")
    caption_files(run, files, out, scores=True, resume=True)
    resumed = json.loads(out.read_text())
    assert [one["image"] for one in resumed] == [one["image"] for one in expected]
    assert [one["captions"][0]["text"] for one in resumed] == [
        one["captions"][0]["text"] for one in expected
    ]


@pytest.mark.parametrize("complete", [1, 4, 7])
def test_a_resumed_job_samples_what_an_unbroken_one_does(run, files, tmp_path, complete):
    """A job that was killed after some pictures, as its journal tells."""
    config = GenerationConfig(sample=True, seed=3, temperature=2.0, num_captions=2)
    out = tmp_path / "captions.json"
    absent = files[-1].rename(tmp_path / "away")
    caption_files(run, files, out, config, scores=True, batch_size=5)  # leaves its journal
    absent.rename(files[-1])
    journal = tmp_path / "captions.json.partial"
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join(lines[: 1 + complete]))
    caption_files(run, files, out, config, scores=True, resume=True, batch_size=5)
    resumed = json.loads(out.read_text())
    caption_files(run, files, out, config, scores=True, batch_size=4)
    unbroken = json.loads(out.read_text())
    texts = [[row["text"] for row in record["captions"]] for record in unbroken]
    assert [[row["text"] for row in record["captions"]] for record in resumed] == texts
    assert len({text for pair in texts for text in pair}) > 12


def test_a_killed_job_is_resumed(run, files, tmp_path):
    """SIGKILL in the middle; then each picture is in the file once."""
    out = tmp_path / "captions.json"
    code = (
        "import sys, time, captionlab\n"
        "from captionlab.cli.options import find_pictures\n"
        "from captionlab.runs import caption_files\n"
        "from pathlib import Path\n"
        "files = find_pictures([Path(sys.argv[1])])\n"
        "wait = lambda count: (print(count, flush=True), time.sleep(60 if count == 6 else 0))\n"
        "caption_files(captionlab.load('scenes'), files, sys.argv[2], batch_size=3,"
        " on_progress=wait)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "pictures"), str(out)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert [child.stdout.readline().strip() for _ in range(2)] == ["3", "6"]
    finally:
        child.send_signal(signal.SIGKILL)
        child.communicate()
    assert not out.exists()
    counts = []
    caption_files(run, files, out, batch_size=3, resume=True, on_progress=counts.append)
    assert counts == [9, 12]
    assert images(out) == [str(file) for file in files]
    assert [record["captions"] for record in json.loads(out.read_text())] == [
        [text] for text in run.caption(files, batch_size=3)
    ]
