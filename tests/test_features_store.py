"""A store is complete and right whatever happens while it is filled."""

import json
import os
import pickle
import random
import re
import subprocess
import sys
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from feature_helpers import KILLED_JOBS, content, one_line, write_pictures
from PIL import Image

from captionlab import files
from captionlab.data.picture_decoding import find_images
from captionlab.features import store as store_module
from captionlab.features.backbones import Backbone, Pyramid
from captionlab.features.extraction import extract_maps, map_spec
from captionlab.features.preprocessing import Preprocess
from captionlab.features.store import FeatureStore, diff_specs, fill_store
from captionlab.files import write_atomically

SIZE, COUNT, CHUNK = 48, 60, 4


TOY = {"backbone": {"name": "toy", "weights": None}, "grid": [1, 1]}


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> Path:
    """A folder of small pictures, two of which are broken."""
    return write_pictures(tmp_path_factory.mktemp("pictures"), COUNT)


@pytest.fixture(scope="module")
def net() -> Backbone:
    return Backbone("squeezenet1_1", None, size=SIZE)


@pytest.fixture(scope="module")
def pyramid() -> Pyramid:
    return Pyramid("squeezenet1_1", None, size=SIZE)


@pytest.fixture(scope="module")
def whole(pictures, net, tmp_path_factory) -> FeatureStore:
    """The store of an uninterrupted run."""
    return extract_maps(
        find_images(pictures),
        net,
        tmp_path_factory.mktemp("whole") / "store",
        grid=2,
        chunk_size=CHUNK,
        batch_size=3,
        num_workers=2,
    )


@pytest.fixture(scope="module")
def both(pictures, pyramid, tmp_path_factory) -> FeatureStore:
    """The same of a pyramid."""
    return extract_maps(
        find_images(pictures),
        pyramid,
        tmp_path_factory.mktemp("both") / "store",
        grid=(3, 2),
        chunk_size=CHUNK,
        batch_size=3,
        num_workers=2,
    )


def toy(names):
    return np.array([[[int(name)]] for name in names], np.float32), {}


def names(count):
    return [str(number) for number in range(count)]


class TestFeatures:
    def test_equal_the_backbones_own(self, whole, pictures, net):
        for name in ("000.png", "031.jpg", "057.jpg"):
            alone = net(net.preprocess([pictures / name]), grid=2).flatten(1, 2)[0]
            torch.testing.assert_close(whole[name], alone, rtol=2e-3, atol=1e-4)

    def test_access_by_name_in_any_order(self, whole):
        some = ["057.jpg", "000.png", "057.jpg", "030.png"]
        assert whole[some].shape == (4, 4, 512)
        assert whole[some].dtype == torch.float32
        assert all(row.equal(whole[name]) for row, name in zip(whole[some], some, strict=False))

    def test_unreadable_pictures_are_noted(self, whole):
        assert set(whole.skipped) == {"011b.jpg", "042b.png"}
        assert len(whole) == COUNT - 2
        assert "011b.jpg" not in whole
        assert "011.jpg" in whole
        with pytest.raises(ValueError, match="not a picture file"):
            whole["011b.jpg"]
        with pytest.raises(ValueError, match=r"no features of gone.jpg"):
            whole[["000.png", "gone.jpg"]]

    def test_workers_do_not_change_a_bit(self, whole, pictures, net, tmp_path):
        for workers in (1, 3):
            extract_maps(
                find_images(pictures),
                net,
                tmp_path / str(workers),
                grid=2,
                chunk_size=CHUNK,
                batch_size=3,
                num_workers=workers,
            )
            assert content(tmp_path / str(workers)) == content(whole.folder)

    def test_threads_are_given_back(self, pictures, net, tmp_path):
        before = torch.get_num_threads()
        torch.set_num_threads(2)
        try:
            extract_maps({"a": pictures / "000.png"}, net, tmp_path / "s", grid=1)
            assert torch.get_num_threads() == 2
        finally:
            torch.set_num_threads(before)

    def test_pickled_as_its_address(self, whole):
        whole["000.png"]
        letter = pickle.dumps(whole)
        assert len(letter) < 1000
        assert pickle.loads(letter)["030.png"].equal(whole["030.png"])

    def test_a_picture_that_was_mended_is_read_after_all(self, net, tmp_path):
        good, images = tmp_path / "good.png", {"a": tmp_path / "a.png", "b": tmp_path / "b.png"}
        Image.effect_noise((9, 9), 50).convert("RGB").save(good)
        images["a"].write_bytes(good.read_bytes()[:60]), images["b"].write_bytes(good.read_bytes())
        assert set(extract_maps(images, net, tmp_path / "s", grid=1).skipped) == {"a"}
        images["a"].write_bytes(good.read_bytes())
        store = extract_maps(images, net, tmp_path / "s", grid=1)
        assert not store.skipped
        assert store["a"].equal(store["b"])


class TestPyramid:
    def test_equals_the_nets_own(self, both, pictures, pyramid):
        assert both.shape == {"low": (9, 256), "high": (4, 512)}
        assert set(both.skipped) == {"011b.jpg", "042b.png"}
        for name in ("000.png", "031.jpg", "057.jpg"):
            alone = pyramid(pyramid.preprocess([pictures / name]), (3, 2))
            for level, cells in both[name].items():
                torch.testing.assert_close(
                    cells, alone[level].flatten(1, 2)[0], rtol=2e-3, atol=1e-4
                )

    def test_access_by_name_in_any_order(self, both):
        some = ["057.jpg", "000.png", "057.jpg"]
        assert {level: tuple(x.shape) for level, x in both[some].items()} == {
            "low": (3, 9, 256),
            "high": (3, 4, 512),
        }
        assert all(both[some][level][1].equal(both["000.png"][level]) for level in ("low", "high"))

    def test_one_pass_gives_the_grid_too(self, both, whole):
        assert both[["030.png"]]["high"].equal(whole[["030.png"]])

    @pytest.mark.parametrize(
        ("wanted", "says"),
        [
            ({"grid": (2, 2)}, r"grid low is \[3, 3\], not \[2, 2\]"),
            ({"grid": (3, 1)}, "grid high is"),
            (
                {"backbone": Pyramid("squeezenet1_1", None, SIZE, ("fire3", "fire9"))},
                "backbone levels is",
            ),
            (
                {"backbone": Backbone("squeezenet1_1", None, SIZE), "grid": 2},
                "kind is pyramid, not None",
            ),
        ],
    )
    def test_other_recipe_is_refused_with_the_command(self, both, pyramid, wanted, says):
        with pytest.raises(
            ValueError, match=f"stale: .*{says}.*captionlab features extract"
        ) as fault:
            FeatureStore.open(
                both.folder,
                expect=map_spec(**{"backbone": pyramid, "grid": (3, 2), "batch_size": 3} | wanted),
            )
        one_line(fault)
        FeatureStore.open(both.folder, expect=map_spec(pyramid, grid=(3, 2), batch_size=3))

    def test_command_can_be_run_again(self, both):
        said = files.command_line(both.spec, "out")
        assert "--kind pyramid" in said
        assert "--grid 3x3,2x2" in said
        assert f"--size {SIZE}" in said


class TestInterrupted:
    def test_any_failing_write(self, whole, pictures, net, tmp_path, monkeypatch):
        """The disk fails at every fifth write; each run goes further, the last is complete."""
        real, calls = store_module._write_rows, [0]

        def failing(*arguments):
            calls[0] += 1
            if calls[0] % 5 == 0:
                raise OSError("no space left on device")
            real(*arguments)

        monkeypatch.setattr(store_module, "_write_rows", failing)
        failures = 0
        while failures < 40:
            try:
                extract_maps(
                    find_images(pictures),
                    net,
                    tmp_path / "s",
                    grid=2,
                    chunk_size=CHUNK,
                    batch_size=3,
                    num_workers=2,
                )
                break
            except OSError:
                failures += 1
                with pytest.raises((ValueError, FileNotFoundError)):
                    FeatureStore.open(tmp_path / "s")
        left = {
            name: data
            for name, data in content(tmp_path / "s").items()
            if not name.endswith(".part")
        }
        assert failures > 1
        assert left == content(whole.folder)

    @pytest.mark.slow
    @pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
    @pytest.mark.parametrize(("kind", "grid"), [("Backbone", "2"), ("Pyramid", "(3, 2)")])
    def test_kill_9_at_random_moments(self, request, pictures, tmp_path, kind, grid):
        """A real SIGKILL, several times, until a run lives long enough to finish."""
        whole = request.getfixturevalue("whole" if kind == "Backbone" else "both")
        program = tmp_path / "program.py"
        program.write_text(PROGRAM.replace("KIND", kind).replace("CELLS", grid))
        ended = subprocess.run(
            check=False,
            args=[sys.executable, program, pictures, tmp_path / "store"],
            capture_output=True,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1"},
            timeout=3600,
        )
        assert ended.returncode == 0, ended.stderr
        counts = [int(line) for line in ended.stdout.split()]
        assert any(0 < count < COUNT - 2 for count in counts), (
            f"no kill fell into the middle: {counts}"
        )
        left = {
            name: data
            for name, data in content(tmp_path / "store").items()
            if not name.endswith(".part")
        }
        assert left == content(whole.folder)

    def test_write_whole_keeps_the_old(self, tmp_path):
        (tmp_path / "a").write_text("old")

        def dies(file):
            file.write(b"ne")
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            write_atomically(tmp_path / "a", dies)
        assert (tmp_path / "a").read_text() == "old"

    def test_error_stops_what_has_not_begun(self, tmp_path):
        asked = []

        def breaks(part):
            asked.append(part)
            time.sleep(0.005)
            raise RuntimeError("broken")

        with pytest.raises(RuntimeError, match="broken"):
            fill_store(
                tmp_path / "s",
                names(300),
                breaks,
                shape=(1, 1),
                spec=TOY,
                chunk_size=1,
                num_workers=1,
            )
        assert len(asked) < 300


START = f"""
from captionlab.data.picture_decoding import find_images
from captionlab.features.backbones import KIND
from captionlab.features.extraction import extract_maps
pictures, out = map(Path, sys.argv[1:])
net = KIND("squeezenet1_1", None, size={SIZE})
def job():
    extract_maps(find_images(pictures), net, out, grid=CELLS,
                 chunk_size={CHUNK}, batch_size=3, num_workers=2)
"""
PROGRAM = KILLED_JOBS.format(start=START, seconds=0.1)


class TestStale:
    def test_complete_and_expected_opens(self, whole, net):
        assert (
            FeatureStore.open(whole.folder, expect=map_spec(net, grid=2, batch_size=3)).names
            == whole.names
        )

    @pytest.mark.parametrize(
        ("change", "says"),
        [
            (
                {"backbone": Backbone("squeezenet1_1", None, size=SIZE, seed=1)},
                "backbone fingerprint",
            ),
            (
                {"preprocess": Preprocess(size=SIZE, resize="crop")},
                "preprocess resize is stretch, not crop",
            ),
            ({"grid": (2, 1)}, r"grid is \[2, 2\], not \[2, 1\]"),
            ({"batch_size": 4}, "batch is 3, not 4"),
        ],
    )
    def test_other_recipe_is_refused_with_the_command(self, whole, pictures, net, change, says):
        wanted = {
            "backbone": net,
            "preprocess": net.preprocess,
            "grid": 2,
            "batch_size": 3,
        } | change
        with pytest.raises(
            ValueError, match=f"stale: .*{says}.*captionlab features extract .*--weights none"
        ) as fault:
            FeatureStore.open(whole.folder, expect=map_spec(**wanted))
        one_line(fault)
        before = content(whole.folder)
        with pytest.raises(ValueError, match=r"holds other features .*--out") as fault:
            extract_maps(
                find_images(pictures),
                wanted.pop("backbone"),
                whole.folder,
                chunk_size=CHUNK,
                **wanted,
            )
        one_line(fault)
        assert content(whole.folder) == before

    def test_other_pictures_are_refused(self, whole, pictures, net):
        with pytest.raises(ValueError, match="its names differ"):
            extract_maps(
                {"a": pictures / "000.png"},
                net,
                whole.folder,
                grid=2,
                chunk_size=CHUNK,
                batch_size=3,
            )

    def test_label_of_weights_does_not_matter(self):
        one, other = (
            {"backbone": {"name": "n", "weights": w, "fingerprint": "f"}, "grid": g}
            for w, g in (("a.pth", (7, 7)), ("DEFAULT", [7, 7]))
        )
        assert not diff_specs(one, other)

    def test_nothing_there(self, tmp_path):
        with pytest.raises(
            FileNotFoundError, match=r"no features in .*captionlab features extract"
        ) as fault:
            FeatureStore.open(tmp_path / "gone")
        one_line(fault)

    def test_incomplete(self, whole, tmp_path):
        for name, data in content(whole.folder).items():
            (tmp_path / name).write_bytes(data)
        np.lib.format.open_memmap(tmp_path / "checksums.npy", "r+")[3] = 0
        with pytest.raises(ValueError, match=r"1 of 60 pictures missing.*--grid 2x2") as fault:
            FeatureStore.open(tmp_path)
        one_line(fault)

    def test_what_does_not_fit_is_refused(self, tmp_path):
        for bad in (1e6, np.nan):
            with pytest.raises(ValueError, match="toy do not fit into 16 bits"):
                fill_store(
                    tmp_path / str(bad),
                    names(2),
                    lambda part, bad=bad: (np.full((len(part), 1, 1), bad), {}),
                    shape=(1, 1),
                    spec=TOY,
                )


class TestManyPictures:
    @pytest.mark.slow
    @pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
    def test_coco_without_memory(self, tmp_path):
        """123,287 pictures on sparse files of their true number; memory read from the system."""

        def resident():
            return (
                next(
                    int(line.split()[1])
                    for line in Path("/proc/self/status").read_text().split("\n")
                    if line.startswith("RssAnon")
                )
                / 1024
            )

        count, shape = 123_287, (49, 64)
        listed = [f"COCO_{number:012}.jpg" for number in range(count)]
        manifest = {
            "made_by": TOY,
            "shape": shape,
            "chunk": 1024,
            "names": listed,
            "sizes": [],
            "skipped": {},
            "complete": True,
        }
        write_atomically(
            tmp_path / "manifest.json", lambda file: file.write(json.dumps(manifest).encode())
        )
        mapped = np.lib.format.open_memmap(
            tmp_path / "features.npy", "w+", np.float16, (count, *shape)
        )
        mapped[-1] = 120  # the rest are holes
        hole = zlib.crc32(bytes(mapped[0].nbytes)) + 1
        checksums = np.full(count, hole)
        checksums[-1] = zlib.crc32(mapped[-1]) + 1
        np.save(tmp_path / "checksums.npy", checksums)
        mapped.flush()
        del mapped
        size = sum(file.stat().st_size for file in tmp_path.glob("*.npy")) / 2**20
        before, start = resident(), time.perf_counter()
        store = FeatureStore.open(tmp_path)
        opened, opening = resident() - before, time.perf_counter() - start
        chance, start = random.Random(0), time.perf_counter()
        for _ in range(50):
            batch = store[chance.sample(listed, 64)]
        read, reading = resident() - before - opened, time.perf_counter() - start
        assert batch.shape == (64, *shape)
        assert store[listed[-1]].eq(120).all()
        assert store[listed[1023]].eq(0).all()
        print(
            f"{size:.0f} MB of features: {opened:.0f} MB and {opening:.2f} s to open, "
            f"{read:.0f} MB and {reading:.2f} s for 50 batches of 64"
        )
        assert size > 700
        assert opened < 64
        assert read < 16


def test_an_array_that_was_cut_off_is_made_again(tmp_path):
    rows = np.arange(24, dtype=np.float32).reshape(4, 2, 3)

    def make(names):
        return (rows[[int(name) for name in names]], {})

    store = fill_store(
        tmp_path / "s",
        list("0123"),
        make,
        shape=(2, 3),
        spec={"backbone": {"name": "own", "weights": None}},
        chunk_size=2,
    )
    file = tmp_path / "s" / "features.npy"
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(ValueError, match="not complete"):
        FeatureStore.open(tmp_path / "s")
    again = fill_store(
        tmp_path / "s",
        list("0123"),
        make,
        shape=(2, 3),
        spec={"backbone": {"name": "own", "weights": None}},
        chunk_size=2,
    )
    assert torch.equal(again["3"], torch.from_numpy(rows[3]))
    assert len(store) == 4


def test_a_failed_writing_leaves_nothing_behind(tmp_path):
    def fail(file):
        file.write(b"half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_atomically(tmp_path / "file", fail)
    assert list(tmp_path.iterdir()) == []


def test_arrays_are_joined_by_name(tmp_path):
    rows = {"high": np.full((2, 1, 3), 9.0), "low": np.zeros((2, 2, 3))}
    store = fill_store(
        tmp_path / "s",
        ["a", "b"],
        lambda names: (rows, {}),
        shape={"low": (2, 3), "high": (1, 3)},
        spec=TOY,
    )
    assert (store["a"]["high"] == 9).all()
    assert (store["b"]["low"] == 0).all()


def test_an_end_in_the_middle_of_a_second_try_is_not_complete(tmp_path):
    reads = {"a": "fine", "b": None}

    def compute(names):
        if reads["a"] is None and reads["b"] == "killed":
            raise KeyboardInterrupt
        return np.ones((2, 1, 2)), {name: "gone" for name in names if reads[name] is None}

    fill_store(tmp_path / "s", ["a", "b"], compute, shape=(1, 2), spec=TOY)
    reads |= {"a": None, "b": "killed"}
    with pytest.raises(KeyboardInterrupt):
        fill_store(tmp_path / "s", ["a", "b"], compute, shape=(1, 2), spec=TOY)
    with pytest.raises(ValueError, match="not complete"):
        FeatureStore.open(tmp_path / "s")


class TestSomeAreNeeded:
    """Who reads a few pictures waits for their chunks alone; the store grows with what is asked."""

    def fill(self, folder, calls, broken=(), **options):
        def compute(names):
            calls.append("".join(names))
            rows = np.float32([[[ord(name)]] for name in names])
            return rows, {name: "unreadable" for name in names if name in broken}

        return fill_store(folder, list("abcdef"), compute, shape=(1, 1), spec=TOY, chunk_size=2,
                          num_workers=1, **options)

    def test_and_each_chunk_is_computed_once(self, tmp_path):
        calls = []
        some = self.fill(tmp_path / "s", calls, needed=["d"])
        assert calls == ["cd"] and len(some) == 2 and "d" in some and "a" not in some
        with pytest.raises(ValueError, match=r"not complete \(4 of 6 pictures missing\)"):
            FeatureStore.open(tmp_path / "s")
        sent = pickle.loads(pickle.dumps(some))         # as to a process that reads data
        assert sent["d"].item() == ord("d")
        with pytest.raises(ValueError, match="no features of a"):
            sent["a"]
        assert self.fill(tmp_path / "s", calls, needed=["c", "f"])["f"].item() == ord("f")
        assert calls == ["cd", "ef"]
        whole = self.fill(tmp_path / "s", calls)
        assert calls == ["cd", "ef", "ab"] and len(whole) == 6
        assert content(tmp_path / "s") == content(self.fill(tmp_path / "t", []).folder)

    def test_and_what_was_skipped_elsewhere_stays_known(self, tmp_path):
        calls = []
        self.fill(tmp_path / "s", calls, broken="a", needed=["a"])
        some = self.fill(tmp_path / "s", calls, broken="f", needed=["f"])
        assert list(some.skipped) == ["a", "f"] and calls == ["ab", "ef"]
        whole = self.fill(tmp_path / "s", calls)
        assert not whole.skipped and sorted(calls[2:]) == ["ab", "cd", "ef"]

    def test_and_a_damaged_row_of_an_interrupted_job_is_not_taken_for_done(self, tmp_path):
        self.fill(tmp_path / "s", [])
        manifest = tmp_path / "s" / "manifest.json"
        manifest.write_text(manifest.read_text().replace('"complete":true', '"complete":false'))
        rows = np.load(tmp_path / "s" / "features.npy", mmap_mode="r+")
        rows[1] = 0
        rows.flush()
        self.fill(tmp_path / "s", [], needed=["f"])
        calls = []
        whole = self.fill(tmp_path / "s", calls)
        assert calls == ["ab"] and whole["b"].item() == ord("b")


class TestExchangedPictures:
    """Files of the same names are not the same pictures."""

    @pytest.fixture
    def folder(self, tmp_path):
        """Four texts that stand for pictures; the function puts their lengths into a store."""
        files = {name: tmp_path / f"{name}.txt" for name in "abcd"}
        for number, file in enumerate(files.values(), 1):
            file.write_text("x" * number)

        def compute(names):
            lengths = {name: len(files[name].read_text()) for name in names}
            rows = np.float32([[[lengths[name]]] for name in names])
            return rows, {name: "unreadable" for name in names if lengths[name] == 4}

        self.out, self.files = tmp_path / "s", files
        return lambda compute=compute: fill_store(
            self.out,
            list("abcd"),
            compute,
            shape=(1, 1),
            spec=TOY,
            chunk_size=2,
            num_workers=1,
            images=files,
        )

    def test_are_refused_and_nothing_is_lost(self, folder):
        folder()
        before = content(self.out)
        self.files["b"].write_text("another")
        with pytest.raises(
            ValueError, match=r"holds other features \(b was another file\): choose another folder"
        ) as fault:
            folder()
        one_line(fault)
        assert content(self.out) == before

    def test_one_that_was_mended_is_read_again(self, folder):
        assert folder().skipped == {"d": "unreadable"}
        self.files["d"].write_text("mended now")
        assert folder()["d"].item() == 10
        self.files["d"].write_text("another")
        with pytest.raises(ValueError, match="d was another file"):
            folder()

    def test_one_still_to_come_may_change(self, folder):
        def end_early(names):
            if "c" in names:
                raise KeyboardInterrupt
            return np.ones((2, 1, 1), np.float32), {}

        with pytest.raises(KeyboardInterrupt):
            folder(end_early)
        self.files["c"].write_text("another")
        assert folder()["c"].item() == 7


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"names": [], "shape": [1, 1], "made_by": {}, "chunk": 0}']
)
def test_a_broken_manifest_is_one_clear_line(text, tmp_path):
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(
        ValueError, match=r"manifest.json is broken: delete its folder and extract once more"
    ):
        FeatureStore.open(tmp_path)


class TestDamage:
    """What is not as it was written is noticed: at opening, or when a row is first read."""

    @pytest.fixture
    def store(self, tmp_path):
        return fill_store(
            tmp_path / "s", names(7), toy, shape=(1, 1), spec=TOY, chunk_size=3, num_workers=1
        )

    def edit(self, store, **changes):
        file = store.folder / "manifest.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))

    def fill_again(self, store):
        return fill_store(store.folder, names(7), toy, shape=(1, 1), spec=TOY, chunk_size=3)

    @pytest.mark.parametrize("name", ["features", "checksums"])
    def test_any_flipped_bit(self, store, name):
        """A bit of the header that says nothing may be another; the values never are."""
        file = store.folder / f"{name}.npy"
        content = file.read_bytes()
        size = {"features": 2, "checksums": 8}[name] * 7
        for position in range(len(content)):
            damaged = bytearray(content)
            damaged[position] ^= 1 << position % 8
            file.write_bytes(damaged)
            said = ""
            try:
                rows = FeatureStore.open(store.folder)[names(7)]
            except ValueError as fault:
                said = str(fault)
            if said:
                assert re.fullmatch(".*(damaged|not complete).*", said)
            else:
                assert position < len(content) - size
                assert rows.flatten().tolist() == list(range(7))

    def test_a_damaged_row_is_named_with_its_remedy(self, store):
        rows = np.lib.format.open_memmap(store.folder / "features.npy", "r+")
        rows[4] = 9
        rows.flush()
        opened = FeatureStore.open(store.folder)
        assert opened["3"].item() == 3
        with pytest.raises(ValueError, match=r"features of 4 in .* are damaged.*delete .*sums.npy"):
            opened[["3", "4"]]
        (store.folder / "checksums.npy").unlink()
        assert self.fill_again(store)["4"].item() == 4

    def test_a_job_that_was_stopped_makes_damaged_rows_again(self, store):
        """As after a power failure, when checksums were written and rows were not."""
        self.edit(store, complete=False)
        rows = np.lib.format.open_memmap(store.folder / "features.npy", "r+")
        rows[4] = 0
        rows.flush()
        assert self.fill_again(store)[names(7)].flatten().tolist() == list(range(7))

    @pytest.mark.parametrize(
        "rows",
        [
            np.zeros((6, 1, 1), np.float16),
            np.zeros((8, 1, 1), np.float16),
            np.zeros((7, 1, 2), np.float16),
            np.zeros((7, 1, 1), np.float32),
            np.zeros((0, 1, 1), np.float16),
            np.float16(1),
        ],
        ids=lambda rows: f"{rows.dtype}{rows.shape}",
    )
    def test_an_array_of_another_shape_never_opens(self, store, rows):
        np.save(store.folder / "features.npy", rows)
        with pytest.raises(ValueError, match="7 of 7 pictures missing"):
            FeatureStore.open(store.folder)
        assert self.fill_again(store)[names(7)].flatten().tolist() == list(range(7))

    def test_an_old_store_is_made_again_by_its_command(self, store):
        """Earlier versions had one file for each chunk."""
        (store.folder / "features.npy").rename(store.folder / "chunk-00000.npy")
        (store.folder / "checksums.npy").unlink()
        with pytest.raises(ValueError, match="not complete .*: run captionlab features extract"):
            FeatureStore.open(store.folder)
        assert self.fill_again(store)["6"].item() == 6

    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("complete", None),
            ("complete", 1),
            ("names", "0123456"),
            ("names", ["0", "0"]),
            ("names", [0, 1]),
            ("names", None),
            ("shape", []),
            ("shape", {}),
            ("shape", [1, -1]),
            ("shape", [True]),
            ("shape", {"low": 3}),
            ("chunk", True),
            ("chunk", 1.5),
            ("made_by", []),
            ("made_by", {"backbone": 3}),
            ("made_by", {"backbone": {}, "boxes": []}),
            ("skipped", []),
            ("skipped", {"0": 1}),
            ("shape", {"../low": [3]}),
            ("sizes", 3),
        ],
    )
    def test_a_manifest_with_an_odd_entry(self, store, key, value):
        self.edit(store, **{key: value})
        for use in (
            lambda: FeatureStore.open(store.folder),
            lambda: fill_store(store.folder, names(7), toy, shape=(1, 1), spec=TOY),
        ):
            with pytest.raises(ValueError, match=f"manifest.json is broken.*no usable {key}"):
                use()

    @pytest.mark.parametrize("text", ["[" * 200_000, '{"chunk": ' + "9" * 6000 + "}"])
    def test_json_that_pythons_reader_trips_over(self, store, text):
        (store.folder / "manifest.json").write_text(text)
        with pytest.raises(ValueError, match=r"manifest.json is broken"):
            self.fill_again(store)
