"""Damaged files of every kind: one line of ours, or what was written (see `mutations.py`)."""

import io
import json
import random
import sys
import time

import mutations
import numpy as np
import pytest
from mutations import is_ours, mutate, run_mutations

from captionlab.untrusted import load_json

def test_damaged_inputs(tmp_path):
    outcomes, complaints = run_mutations(200, tmp_path)
    assert complaints == []
    assert outcomes["refused"] > 80, "hardly any damage was noticed: are the files damaged at all?"


def test_damage_is_the_same_each_time():
    content = json.dumps({"a": [1, {"b": "c"}]}).encode()
    once, again = ([mutate(content, "a.json", random.Random(7)) for _ in range(5)] for _ in "ab")
    assert once == again
    assert len({mutate(content, "a.npz", random.Random(seed)) for seed in range(30)}) > 20


def test_errors_of_others_are_not_ours(tmp_path):
    """The harness would notice an error of a library, and one of several lines."""
    with pytest.raises(ValueError, match=r"fromstring|allow_pickle|pickled") as fault:
        np.load(io.BytesIO(b"no array"))
    assert not is_ours(fault.value)
    assert not is_ours(KeyError("a"))
    assert not is_ours(ValueError("two\nlines"))


def test_a_silent_change_is_a_complaint(tmp_path, monkeypatch):
    def make(folder):
        (folder / "features.npy").write_bytes(bytes(range(100)))
        return (folder / "features.npy").read_bytes

    monkeypatch.setattr(mutations, "KINDS", {"plain": (make, False)})
    outcomes, complaints = run_mutations(10, tmp_path)
    assert outcomes["silently other"] == len(complaints) > 5
    assert "with other values" in complaints[0]


def test_a_reader_that_hangs_is_stopped(tmp_path, monkeypatch):
    def make(folder):
        (folder / "a").write_bytes(b"good")

        def read():
            while (folder / "a").read_bytes() != b"good":
                pass

        return read

    monkeypatch.setattr(mutations, "LIMIT", 0.1)
    monkeypatch.setattr(mutations, "KINDS", {"slow": (make, False)})
    outcomes, complaints = run_mutations(5, tmp_path)
    assert outcomes["wrong error"] == len(complaints) > 0
    assert "TooSlowError" in complaints[0]


def test_a_reader_that_a_signal_does_not_reach_is_too_slow(tmp_path, monkeypatch):
    monkeypatch.setattr(mutations, "LIMIT", 0.02)
    monkeypatch.setattr(mutations.signal, "setitimer", lambda *_: None)
    with pytest.raises(mutations.TooSlowError, match=r"more than 0\.02 s"), mutations.time_limit():
        time.sleep(0.05)


on_linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")


def greedy_kind(folder):
    """Make a file whose reader takes 160 MB if it is damaged, and refuses it in one line."""
    (folder / "a").write_bytes(b"good")

    def read():
        if (folder / "a").read_bytes() != b"good":
            np.ones(20 * 2**20)
            load_json(folder)

    return read


@on_linux
def test_a_reader_that_takes_too_much_memory_is_noticed(tmp_path, monkeypatch):
    """Each of them, not the first alone, and although the reader refuses the file."""
    monkeypatch.setattr(mutations, "KINDS", {"greedy": (greedy_kind, False)})
    outcomes, complaints = run_mutations(5, tmp_path)
    assert outcomes["refused"] == 5
    assert complaints == []
    monkeypatch.setattr(mutations, "MEMORY_LIMIT", 100 * 2**20)
    (tmp_path / "again").mkdir()
    outcomes, complaints = run_mutations(5, tmp_path / "again")
    assert outcomes["wrong error"] == len(complaints) == 5
    assert all("TooMuchMemoryError" in complaint for complaint in complaints)


@on_linux
def test_the_script_fails_if_a_limit_was_passed(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(mutations, "KINDS", {"greedy": (greedy_kind, False)})
    monkeypatch.setattr(sys, "argv", ["mutations.py", "--count", "3"])
    assert mutations.main() == 0
    assert "3 damaged inputs" in capsys.readouterr().out
    monkeypatch.setattr(mutations, "MEMORY_LIMIT", 100 * 2**20)
    assert mutations.main() == 1
    assert "3 faults" in capsys.readouterr().out


@on_linux
def test_an_allocation_far_above_the_limit_fails(monkeypatch):
    monkeypatch.setattr(mutations, "MEMORY_LIMIT", 100 * 2**20)
    before = mutations.resource.getrlimit(mutations.resource.RLIMIT_AS)
    with pytest.raises(MemoryError), mutations.memory_limit():
        np.empty(2**30)
    after = mutations.resource.getrlimit(mutations.resource.RLIMIT_AS)
    assert after == before  # the limit holds for the reader alone
