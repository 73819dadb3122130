"""Files: written completely or not at all, with the reason where that fails."""

import errno
import json
import os
import time
from pathlib import Path

import numpy as np
import pytest
import torch

try:
    import resource
except ImportError:     # on Windows
    resource = None

from captionlab import files
from captionlab.features.store import fill_store
from captionlab.files import remove_partial_files, write_atomically, write_json
from captionlab.runs.folder import lock_folder

WRITERS = {
    "bytes": lambda file: file.write(bytes(2**20)),
    "np.save": lambda file: np.save(file, np.zeros(2**18)),
    "np.savez": lambda file: np.savez(file, a=np.zeros(2**18)),
    "torch.save": lambda file: torch.save({"a": torch.zeros(2**18)}, file),
}


class FullDisk:
    """A file of the system that has room for a number of bytes."""

    def __init__(self, file, room):
        self.file, self.room = file, room

    def __getattr__(self, name):
        return getattr(self.file, name)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()

    def write(self, data):
        self.room -= len(data)
        if self.room < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self.file.write(data)


@pytest.fixture
def full_disk(monkeypatch):
    """Let every file that is opened from now on have room for 100 bytes."""
    opened = os.fdopen
    monkeypatch.setattr(files.os, "fdopen", lambda *words: FullDisk(opened(*words), 100))


@pytest.mark.parametrize("name", WRITERS)
def test_a_full_disk_is_named_and_nothing_is_lost(tmp_path, full_disk, name):
    path = tmp_path / "checkpoint.pt"
    path.write_bytes(b"before")
    with pytest.raises(OSError, match="the disk is full") as fault:
        write_atomically(path, WRITERS[name])
    assert fault.value.errno == errno.ENOSPC
    assert str(path) in str(fault.value)
    assert "\n" not in str(fault.value)
    assert [file.read_bytes() for file in tmp_path.iterdir()] == [b"before"]


@pytest.mark.skipif(resource is None, reason="needs a limit of the size of files")
@pytest.mark.parametrize("name", WRITERS)
def test_no_room_that_the_system_itself_finds(tmp_path, name):
    path = tmp_path / "checkpoint.pt"
    path.write_bytes(b"before")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, before[1]))
    try:
        with pytest.raises(OSError, match="the disk is full") as fault:
            write_atomically(path, WRITERS[name])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert str(path) in str(fault.value)
    assert "\n" not in str(fault.value)
    assert [file.read_bytes() for file in tmp_path.iterdir()] == [b"before"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_that_the_last_flush_finds(tmp_path, monkeypatch):
    opened = os.open
    monkeypatch.setattr(files.os, "open", lambda *_: opened("/dev/full", os.O_WRONLY))
    (tmp_path / "a").write_bytes(b"before")
    with pytest.raises(OSError, match="the disk is full"):
        write_atomically(tmp_path / "a", lambda file: file.write(b"few"))
    assert (tmp_path / "a").read_bytes() == b"before"


def test_other_errors_stay_what_they_are(tmp_path):
    def fail(file):
        file.write(b"half")
        raise KeyError("a")

    with pytest.raises(KeyError):
        write_atomically(tmp_path / "a", fail)
    with pytest.raises(FileNotFoundError):
        write_atomically(tmp_path / "none" / "a", fail)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", WRITERS)
def test_what_is_written_is_what_the_library_writes(tmp_path, name):
    write_atomically(tmp_path / "a", WRITERS[name])
    if name.startswith("np"):
        loaded = np.load(tmp_path / "a")
        assert not (loaded["a"] if name == "np.savez" else loaded).any()
    elif name == "torch.save":
        assert torch.load(tmp_path / "a", weights_only=True)["a"].shape == (2**18,)
    else:
        assert (tmp_path / "a").read_bytes() == bytes(2**20)


@pytest.mark.skipif(not hasattr(os, "O_NOFOLLOW"), reason="needs symbolic links")
def test_a_planted_link_is_not_followed(tmp_path, monkeypatch):
    (tmp_path / "target").write_bytes(b"mine")
    monkeypatch.setattr(files.secrets, "token_hex", lambda count: "0" * 2 * count)
    (tmp_path / f"a.json.{os.getpid()}-00000000.part").symlink_to(tmp_path / "target")
    with pytest.raises(FileExistsError):
        write_json(tmp_path / "a.json", {})
    assert (tmp_path / "target").read_bytes() == b"mine"


def test_what_killed_writers_leave_is_removed_under_the_lock(tmp_path):
    leftovers = ["checkpoint.pt.123.part", "run.json.7-0a1b2c3d.part"]
    others = ["mine.part", "chunk.12.parts", "1.part", "a.jar.part"]
    for name in leftovers + others:
        (tmp_path / name).write_bytes(b"half")
    (tmp_path / "a.1.part").mkdir()
    with lock_folder(tmp_path, resume=False):
        assert sorted(file.name for file in tmp_path.iterdir() if file.name != ".lock") == sorted(
            [*others, "a.1.part"]
        )


def test_a_store_keeps_what_another_process_may_be_writing(tmp_path):
    for name, age in (("features.npy.1.part", 0), ("features.npy.1-00000000.part", 10**6)):
        (tmp_path / name).write_bytes(b"half")
        os.utime(tmp_path / name, (time.time() - age,) * 2)
    options = {"shape": (1,), "spec": {"backbone": None}}
    for _ in range(2):
        fill_store(tmp_path, ["a"], lambda names: (np.ones((1, 1)), {}), **options)
    assert [file.name for file in tmp_path.glob("*.part")] == ["features.npy.1.part"]
    remove_partial_files(tmp_path)
    assert list(tmp_path.glob("*.part")) == []


def test_each_entry_of_a_list_gets_a_line(tmp_path):
    for content in ([{"a": 1}, {"b": "é"}], [], {"a": [1]}):
        write_json(tmp_path / "x.json", content)
        assert json.loads((tmp_path / "x.json").read_text(encoding="utf-8")) == content
    write_json(tmp_path / "x.json", [{"a": 1}, {"b": "é"}])
    assert (tmp_path / "x.json").read_text(encoding="utf-8") == '[\n {"a": 1},\n {"b": "é"}\n]\n'
