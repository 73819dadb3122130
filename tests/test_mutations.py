"""Damaged files of every kind: one line of ours, or what was written (see `mutations.py`)."""

import io
import json
import random

import mutations
import numpy as np
import pytest
from mutations import is_ours, mutate, run_mutations

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
        (folder / "chunk-0").write_bytes(bytes(range(100)))
        return (folder / "chunk-0").read_bytes

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
