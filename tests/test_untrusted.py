"""Files from others: limits of size, kinds of files, text that is safe to print."""

import gzip
import io
import json
import os
import re
import zipfile
from html import unescape

import numpy as np
import pytest
from conftest import ROOT
from feature_helpers import one_line
from markdown_it import MarkdownIt

from captionlab import untrusted
from captionlab.data.datasets import Item
from captionlab.data.text_files import read_json_file, read_lines
from captionlab.features.boxes import open_boxes
from captionlab.metrics import read_results
from captionlab.untrusted import (
    check_regular,
    check_size,
    escape_markdown,
    load_arrays,
    max_bytes,
    printable,
    read_gzip,
)

def packed_zeros(file, shape=(2048, 1024)) -> None:
    """An .npz that is a thousand times larger when it is unpacked: 8 MB of zeros."""
    names = {"names": ["a"], "counts": [len(np.zeros(shape[0]))], "boxes": np.zeros((1, 4))}
    np.savez_compressed(file, features=np.zeros(shape, np.float32), **names)


class TestLimit:
    @pytest.mark.parametrize("value", ["x", "0", "-1", "nan", "inf", "1 MB"])
    def test_a_variable_that_is_no_number_is_one_line(self, monkeypatch, value):
        monkeypatch.setenv("CAPTIONLAB_MAX_MB", value)
        with pytest.raises(ValueError, match="CAPTIONLAB_MAX_MB is .*number above 0") as fault:
            max_bytes()
        one_line(fault)

    @pytest.mark.parametrize(("value", "number"), [("", 512), ("2000", 2000), (" 0.5 ", 0.5)])
    def test_is_in_megabytes(self, monkeypatch, value, number):
        monkeypatch.setenv("CAPTIONLAB_MAX_MB", value)
        assert max_bytes() == number * 2**20
        check_size(max_bytes(), "a file at the limit")
        with pytest.raises(ValueError, match=r"a file would take .* set CAPTIONLAB_MAX_MB"):
            check_size(max_bytes() + 1, "a file")


class TestPackedFiles:
    @pytest.fixture
    def small_limit(self, monkeypatch):
        monkeypatch.setenv("CAPTIONLAB_MAX_MB", "4")

    def test_npz_is_refused_before_it_is_unpacked(self, tmp_path, monkeypatch, small_limit):
        packed_zeros(tmp_path / "bomb.npz")
        assert (tmp_path / "bomb.npz").stat().st_size < 20_000
        monkeypatch.setattr(np, "load", lambda *_: pytest.fail("it was unpacked"))
        for read in (open_boxes, untrusted._check_archive):
            with pytest.raises(ValueError, match="bomb.npz: its content would take 9 MB") as fault:
                read(tmp_path / "bomb.npz")
            one_line(fault)

    def test_gzip_is_unpacked_up_to_the_limit(self, tmp_path, small_limit):
        (tmp_path / "bomb.gz").write_bytes(gzip.compress(bytes(64 * 2**20)))
        for read in (read_gzip, read_lines, read_json_file):
            with pytest.raises(ValueError, match="bomb.gz: its content would take 5 MB") as fault:
                read(tmp_path / "bomb.gz")
            one_line(fault)

    def test_a_higher_limit_reads_both(self, tmp_path, monkeypatch):
        monkeypatch.setenv("CAPTIONLAB_MAX_MB", "16")
        packed_zeros(tmp_path / "large.npz")
        assert load_arrays(tmp_path / "large.npz", ["features"])["features"].shape == (2048, 1024)
        (tmp_path / "large.gz").write_bytes(gzip.compress(b"a dog\n" * 2**20))
        assert len(read_lines(tmp_path / "large.gz")) == 2**20

    def test_a_header_of_a_huge_array_is_one_line(self, tmp_path):
        """Two hundred bytes that say they hold 8 TB."""
        array = io.BytesIO()
        header = {"descr": "<f8", "fortran_order": False, "shape": (10**12,)}
        np.lib.format.write_array_header_1_0(array, header)
        with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
            archive.writestr("boxes.npy", array.getvalue() + bytes(64))
        with pytest.raises(ValueError, match="a.npz is broken or cut off") as fault:
            load_arrays(tmp_path / "a.npz", ["boxes"])
        one_line(fault)

    def test_objects_are_not_unpickled(self, tmp_path):
        np.savez(tmp_path / "a.npz", boxes=np.array([{"a": 1}]))
        with pytest.raises(ValueError, match="a.npz is broken or cut off"):
            load_arrays(tmp_path / "a.npz", ["boxes"])

    @pytest.mark.parametrize("kind", ["encrypted", "unknown method", "other member"])
    def test_unusual_archives_are_one_line(self, tmp_path, kind):
        np.savez(tmp_path / "a.npz", boxes=np.zeros((1, 4)))
        content = bytearray((tmp_path / "a.npz").read_bytes())
        local = content.index(b"PK\3\4")
        central = content.index(b"PK\1\2")
        if kind == "encrypted":
            content[local + 6] |= 1
            content[central + 8] |= 1
        elif kind == "unknown method":
            content[local + 8] = content[central + 10] = 99
        else:
            content[local + 30] ^= 1
        (tmp_path / "a.npz").write_bytes(content)
        with pytest.raises(ValueError, match="a.npz is broken or cut off") as fault:
            load_arrays(tmp_path / "a.npz", ["boxes"])
        one_line(fault)


class TestKinds:
    def test_regular_files_and_links_pass(self, tmp_path):
        (tmp_path / "a").write_bytes(b"")
        (tmp_path / "link").symlink_to(tmp_path / "a")
        check_regular(tmp_path / "link")

    def test_others_are_one_line(self, tmp_path):
        os.mkfifo(tmp_path / "pipe")
        for path, problem in (
            (tmp_path, "is a folder: name a picture in it"),
            (tmp_path / "pipe", "is a pipe or a device"),
            ("/dev/null", "is a pipe or a device"),
        ):
            with pytest.raises(ValueError, match=problem) as fault:
                check_regular(path, "picture")
            one_line(fault)
        with pytest.raises(FileNotFoundError, match="there is no picture .*gone"):
            check_regular(tmp_path / "gone", "picture")
        (tmp_path / "a").write_bytes(b"")
        with pytest.raises(FileNotFoundError, match="there is no file"):
            check_regular(tmp_path / "a" / "b")

    def test_pipes_as_files_of_boxes_do_not_hang(self, tmp_path):
        os.mkfifo(tmp_path / "a.npz")
        os.mkfifo(tmp_path / "a.tsv")
        for name in ("a.npz", "a.tsv"):
            with pytest.raises(ValueError, match=f"{name} is a pipe or a device"):
                open_boxes(tmp_path / name)
        with pytest.raises(ValueError, match="holds no .npz"):
            open_boxes(tmp_path)


def test_pipes_as_results_do_not_hang(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "a.json")
    with pytest.raises(ValueError, match=r"a\.json is a pipe or a device"):
        read_results(tmp_path / "a.json")
    monkeypatch.setenv("CAPTIONLAB_MAX_MB", "1")
    (tmp_path / "b.json").write_bytes(bytes(2**20 + 1))
    with pytest.raises(ValueError, match=r"b\.json: its content would take"):
        read_results(tmp_path / "b.json")


class TestHostileJson:
    def deep(self, file):
        file.write_text("[" * 200_000)

    def long(self, file):
        file.write_text('{"images": [' + "9" * 6000 + "]}")

    @pytest.mark.parametrize("write", [deep, long])
    @pytest.mark.parametrize("read", [read_json_file, read_results])
    def test_is_one_line_that_names_the_file(self, tmp_path, write, read):
        write(self, tmp_path / "a.json")
        with pytest.raises(ValueError, match=r"a\.json(: not | cannot be read as )") as fault:
            read(tmp_path / "a.json")
        assert len(one_line(fault)) < 400


class TestPrintable:
    @pytest.mark.parametrize(
        ("text", "safe"),
        [
            ("\x1b[31mred\x1b[0m", r"\x1b[31mred\x1b[0m"),
            ("\x9b2J", r"\x9b2J"),
            ("a\rb\bc\x7f", r"a\rb\x08c\x7f"),
            ("\u202egpj.exe", r"\u202egpj.exe"),
            ("caf\udce9.jpg", r"caf\udce9.jpg"),
            ("a\u2028b", r"a\u2028b"),
        ],
    )
    def test_escapes_what_a_terminal_obeys(self, text, safe):
        assert printable(text) == safe

    @pytest.mark.parametrize(
        "text", ["Füße", "猫が\u3000いる", "नमस्ते", "می\u200cخواهم", "👩\u200d🚀", "a\tb\nc", r"a\nb"]
    )
    def test_leaves_languages_alone(self, text):
        assert printable(text) == text

    def test_takes_any_object(self):
        assert printable(7) == "7"


class TestMarkdown:
    texts = (
        "<img src=x onerror=alert(1)> | *a* [dog](http://example.org) `code`",
        "a\n# dog\n\n| x |",
        r"\* ~~a~~ $x$ &amp; ![p](q)",
        "\x1b[31mred",
    )

    @pytest.mark.parametrize("text", texts)
    def test_shows_every_character_as_it_is(self, text):
        table = f"| a | b |\n|---|---|\n| {escape_markdown(text)} | end |"
        html = MarkdownIt("gfm-like", {"linkify": False, "html": True}).render(table)
        cells = re.findall(r"<td>(.*?)</td>", html, re.S)
        assert len(cells) == 2
        assert "<" not in cells[0]
        assert unescape(cells[0]) == " ".join(printable(text).split())

    def test_plain_sentences_stay_readable(self):
        text = "Ein Mann (mit Hut), 2-mal so gro\u00df; \"ja\"."
        assert escape_markdown(text) == text

    def test_lessons_put_no_sentence_raw_into_a_table(self):
        """The cell that makes the table of lesson 50, with sentences from somebody else."""
        notebook = json.loads((ROOT / "nbs" / "50_multi30k.ipynb").read_text())
        cells = ["".join(cell["source"]) for cell in notebook["cells"]]
        cell = next(cell for cell in cells if "def sentence_table" in cell)
        names = {
            "escape_markdown": escape_markdown,
            "test": [Item("0", (), source=self.texts[0])],
            "references": [self.texts[2]],
        }
        exec(cell, names)
        rows = names["sentence_table"]([0], {"strong": [self.texts[1]]}).split("\n")
        assert len(rows) == 3
        assert rows[2].count("|") == 4
        assert "<img" not in rows[2]


def test_results_in_json_stay_readable(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps([{"image_id": 1, "caption": "a dog"}]))
    assert read_results(tmp_path / "a.json") == {1: "a dog"}
