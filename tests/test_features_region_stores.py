"""Stores of regions hold what a photo would get now, and say what is missing."""

import json
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from feature_helpers import (
    BOX,
    KILLED_JOBS,
    boxes_of,
    content,
    extract,
    features_of,
    one_for_all,
    one_line,
    per_picture,
    tsv_line,
)
from PIL import Image
from typer.testing import CliRunner

from captionlab.cli import application
from captionlab.data.datasets import CaptionData, Item
from captionlab.features import boxes as boxes_module
from captionlab.features.backbones import Backbone
from captionlab.features.boxes import open_boxes, save_boxes
from captionlab.features.detectors import DETECTORS, Detector
from captionlab.features.extraction import (
    extract_regions,
)
from captionlab.features.preprocessing import Preprocess
from captionlab.features.regions import (
    Regions,
    region_fields,
)
from captionlab.features.store import FeatureStore
from captionlab.runs.fitting import NewModel, fit
from captionlab.scenes.generator import generate_scene
from captionlab.scenes.world import render

SIZE, CHUNK = 48, 4


@pytest.fixture(scope="module")
def detector() -> Detector:
    return Detector(DETECTORS[1], weights=None, max_boxes=20)


@pytest.fixture(scope="module")
def net() -> Backbone:
    return Backbone("squeezenet1_1", None, size=SIZE)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> Path:
    """A folder of 30 scenes and a file of boxes; one is no picture, two have no boxes there."""
    folder = tmp_path_factory.mktemp("pictures")
    found = [generate_scene(seed) for seed in range(30)]
    for seed, scene in enumerate(found):
        Image.fromarray(render(scene, 64)).save(folder / f"{seed:02}.png")
    (folder / "07.png").write_text("Dear diary")
    counts = [0 if seed == 3 else len(scene.boxes) for seed, scene in enumerate(found[:28])]
    one_for_all(
        folder / "boxes.npz",
        [f"{seed:02}.png" for seed in range(28)],
        counts,
        np.concatenate([scene.boxes for seed, scene in enumerate(found[:28]) if seed != 3]),
    )
    return folder


def images_in(folder: Path) -> dict[str, Path]:
    return {file.name: file for file in sorted(folder.glob("*.png"))}


@pytest.fixture(scope="module")
def whole(pictures, net, tmp_path_factory) -> FeatureStore:
    return extract_regions(
        images_in(pictures),
        open_boxes(pictures / "boxes.npz"),
        tmp_path_factory.mktemp("s") / "store",
        net,
        chunk_size=CHUNK,
        batch_size=3,
        num_workers=2,
    )


class TestStore:
    def test_equals_what_a_photo_gets_now(self, whole, pictures, net):
        found = open_boxes(pictures / "boxes.npz")
        for name in ("00.png", "03.png", "27.png"):
            stored = whole[name]
            now = region_fields(
                [found[name]], net(net.preprocess([pictures / name])), max_boxes=found.max_boxes
            )
            assert stored["boxes"].equal(now["boxes"][0])
            assert (stored["region_mask"] > 0).equal(now["region_mask"][0])
            torch.testing.assert_close(stored["regions"], now["regions"][0], rtol=2e-3, atol=1e-4)
        assert not whole["03.png"]["region_mask"].any()
        assert len(whole) == 27

    def test_mirrored_pictures_have_mirrored_boxes(self, pictures, net, tmp_path):
        preprocess, found = Preprocess(size=SIZE, mirror=True), open_boxes(pictures / "boxes.npz")
        store = extract_regions(
            {"00.png": pictures / "00.png"}, found, tmp_path / "m", net, preprocess=preprocess
        )
        now = region_fields(
            [found["00.png"].flipped()],
            net(preprocess([pictures / "00.png"])),
            max_boxes=found.max_boxes,
        )
        assert store["00.png"]["boxes"].equal(now["boxes"][0])
        torch.testing.assert_close(
            store["00.png"]["regions"], now["regions"][0], rtol=2e-3, atol=1e-4
        )

    def test_what_is_missing_is_noted(self, whole):
        assert set(whole.skipped) == {"07.png", "28.png", "29.png"}
        assert "not a picture" in whole.skipped["07.png"]
        assert "no regions of 28.png" in whole.skipped["28.png"]

    def test_deleted_rows_come_back_bit_by_bit(self, whole, pictures, net, tmp_path):
        for name, data in content(whole.folder).items():
            (tmp_path / name).write_bytes(data)
        np.lib.format.open_memmap(tmp_path / "checksums.npy", "r+")[8:12] = 0
        (tmp_path / "manifest.json").write_text(
            json.dumps(
                json.loads((tmp_path / "manifest.json").read_text())
                | {"complete": False, "skipped": {}}
            )
        )
        with pytest.raises(
            ValueError,
            match=r"--kind regions --boxes .*boxes.npz --max-boxes 6 --backbone squeezenet1_1 "
            "--weights none",
        ) as fault:
            FeatureStore.open(tmp_path)
        one_line(fault)
        extract_regions(
            images_in(pictures),
            open_boxes(pictures / "boxes.npz"),
            tmp_path,
            net,
            chunk_size=CHUNK,
            batch_size=3,
        )
        assert {
            name: data for name, data in content(tmp_path).items() if name != "manifest.json"
        } == {name: data for name, data in content(whole.folder).items() if name != "manifest.json"}

    @pytest.mark.slow
    @pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
    def test_kill_9_at_random_moments(self, whole, pictures, tmp_path):
        (tmp_path / "program.py").write_text(PROGRAM)
        ended = subprocess.run(
            check=False,
            args=[sys.executable, tmp_path / "program.py", pictures, tmp_path / "store"],
            capture_output=True,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1"},
            timeout=3600,
        )
        assert ended.returncode == 0, ended.stderr
        assert any(0 < int(count) < 27 for count in ended.stdout.split()), (
            f"no kill fell into the middle: {ended.stdout}"
        )
        assert content(tmp_path / "store") == content(whole.folder)

    def test_other_boxes_are_other_features(self, whole, pictures, net, tmp_path):
        other = one_for_all(tmp_path / "other.npz", ["00.png"], [6], [BOX] * 6)
        with pytest.raises(ValueError, match=r"boxes fingerprint is .*, not .*--out") as fault:
            extract_regions(
                images_in(pictures),
                open_boxes(other),
                whole.folder,
                net,
                chunk_size=CHUNK,
                batch_size=3,
            )
        one_line(fault)

    def test_a_file_elsewhere_is_the_same_file(self, whole, pictures, net, tmp_path):
        (tmp_path / "moved.npz").write_bytes((pictures / "boxes.npz").read_bytes())
        moved = open_boxes(tmp_path / "moved.npz")
        again = extract_regions(
            images_in(pictures), moved, whole.folder, net, chunk_size=CHUNK, batch_size=3)
        assert again.names == whole.names

    def test_features_that_the_file_brings_need_no_pictures(self, tmp_path):
        (tmp_path / "f.tsv").write_bytes(
            b"".join(tsv_line(k, boxes_of(k).numpy(), features_of(k, k)) for k in (2, 3, 0))
            + b"9\t64"
        )
        with pytest.warns(UserWarning, match="line 4 is cut off"):
            found = open_boxes(tmp_path / "f.tsv")
        store = extract_regions(
            {f"{k}.jpg": "nowhere" for k in (0, 2, 3, 9)}, found, tmp_path / "s", num_workers=1
        )
        assert store.shape["regions"] == (3, 7)
        assert store["2.jpg"]["regions"].equal(
            torch.tensor([[2.0] * 7, [2.0] * 7, [0.0] * 7])
        )
        assert "line 4 is cut off" in store.skipped["9.jpg"]
        assert len(store) == 3

    @pytest.mark.slow
    def test_from_a_detector(self, pictures, net, detector, tmp_path):
        images = dict(list(images_in(pictures).items())[:2])
        store = extract_regions(images, detector, tmp_path / "d", net, num_workers=1)
        assert store.shape["regions"] == (20, 512)
        assert store["00.png"]["region_mask"].sum() == 10

    def test_mistakes_are_one_line(self, pictures, net, tmp_path):
        found = open_boxes(pictures / "boxes.npz")
        for says, how in (
            ("bring no features", {}),
            (
                "use --resize stretch",
                {"backbone": net, "preprocess": Preprocess(size=SIZE, resize="crop")},
            ),
        ):
            with pytest.raises(ValueError, match=says) as fault:
                extract_regions(images_in(pictures), found, tmp_path / "s", **how)
            one_line(fault)


START = f"""
from captionlab.features.backbones import Backbone
from captionlab.features.boxes import open_boxes
from captionlab.features.extraction import extract_regions
folder, out = map(Path, sys.argv[1:])
images = {{file.name: file for file in sorted(folder.glob("*.png"))}}
boxes = open_boxes(folder / "boxes.npz")
net = Backbone("squeezenet1_1", None, size={SIZE})
def job():
    extract_regions(images, boxes, out, net, chunk_size={CHUNK}, batch_size=3, num_workers=2)
"""
PROGRAM = KILLED_JOBS.format(start=START, seconds=0.05)


class TestCommand:
    def call(self, *words):
        return CliRunner().invoke(application.app, ["features", "extract", *map(str, words)])

    def test_regions_from_a_file(self, pictures, whole, tmp_path):
        said = self.call(
            pictures,
            "--kind",
            "regions",
            "--boxes",
            pictures / "boxes.npz",
            "--weights",
            "none",
            "--size",
            SIZE,
            "--out",
            tmp_path / "s",
        )
        assert said.exit_code == 1, said.output
        assert "captionlab: 3 of 30 pictures have no features: mend" in said.stderr
        assert "27 pictures, up to 6 regions x 512 each" in said.stdout
        assert said.stdout.count("skipped:") == 3
        torch.testing.assert_close(
            dict(FeatureStore.open(tmp_path / "s")["00.png"]),
            dict(whole["00.png"]),
            rtol=2e-3,
            atol=1e-3,
        )

    @pytest.mark.slow
    def test_fewer_and_a_detector(self, pictures, tmp_path, monkeypatch):
        monkeypatch.setattr(boxes_module, "find_weights", lambda name: None)
        said = self.call(
            pictures / "00.png",
            "--kind",
            "regions",
            "--boxes",
            DETECTORS[1],
            "--max-boxes",
            5,
            "--weights",
            "none",
            "--size",
            SIZE,
            "--out",
            tmp_path / "s",
        )
        assert said.exit_code == 0, said.output
        assert "1 pictures, up to 5 regions" in said.stdout

    @pytest.mark.slow
    def test_features_of_the_file_cut_off(self, pictures, tmp_path):
        lines = b"".join(tsv_line(k, boxes_of(2).numpy(), features_of(2, k)) for k in (0, 1, 2))
        (tmp_path / "f.tsv").write_bytes(lines[:-30])
        said = subprocess.run(
            check=False,
            args=[
                sys.executable,
                "-c",
                "from captionlab.cli import main; main()",
                "features",
                "extract",
                *(str(pictures / f"0{k}.png") for k in (0, 1, 2)),
                "--kind",
                "regions",
                "--boxes",
                tmp_path / "f.tsv",
                "--backbone",
                "file",
                "--out",
                tmp_path / "s",
            ],
            capture_output=True,
            text=True,
            env=os.environ | {"TQDM_DISABLE": "1"},
        )
        assert said.returncode == 1
        assert "1 of 3 pictures have no features" in said.stderr
        assert "2 pictures, up to 2 regions x 7 each" in said.stdout
        assert "skipped: no regions of 02.png" in said.stdout
        assert "Traceback" not in said.stderr
        told = said.stderr.strip().splitlines()
        assert len(told) == 2
        assert told[0].startswith("captionlab: ")
        assert "line 3 is cut off" in told[0]

    @pytest.mark.parametrize(
        ("words", "says"),
        [
            (["--kind", "regions"], "--kind regions needs --boxes"),
            (["--kind", "regions", "--boxes", "gone.npz"], "no boxes gone.npz"),
            (
                [
                    "--kind",
                    "regions",
                    "--boxes",
                    "boxes.npz",
                    "--weights",
                    "none",
                    "--resize",
                    "crop",
                ],
                "--resize stretch",
            ),
            (
                ["--kind", "regions", "--boxes", "boxes.npz", "--weights", "none", "--grid", "7"],
                "--grid is for --kind grid or pyramid, not regions",
            ),
            (
                ["--kind", "attributes", "--backbone", "resnet18"],
                "--backbone is for --kind grid or pyramid or regions, not attributes",
            ),
            (["--kind", "attributes", "--resize", "crop"], "--resize is for --kind"),
            (["--boxes", "boxes.npz"], "--boxes is for --kind regions"),
        ],
    )
    def test_mistakes_are_one_line(self, pictures, tmp_path, monkeypatch, words, says):
        monkeypatch.chdir(pictures)
        said = self.call(".", *words, "--out", tmp_path / "s")
        lines = said.stderr.strip().splitlines()
        assert said.exit_code == 1, said.output
        assert len(lines) == 1
        assert says in lines[0]


def test_extract_command_says_what_came_of_it(pictures, tmp_path):
    boxes = f"--kind regions --boxes {pictures / 'boxes.npz'}"
    told = extract(f"{pictures} {boxes} --weights none --size {SIZE} --out {tmp_path / 's'}")
    assert "27 pictures, up to 6 regions x 512 each" in told


def test_two_pictures_never_share_the_boxes_of_one(pictures, tmp_path):
    save_boxes(tmp_path / "b.npz", {"00.png": Regions(boxes_of(2))})
    images = {f"{folder}/00.png": pictures / "00.png" for folder in ("cats", "dogs")}
    with pytest.raises(ValueError, match=r"would be those of cats/00.png and of dogs/00.png"):
        extract_regions(
            images,
            open_boxes(tmp_path / "b.npz"),
            tmp_path / "s",
            Backbone("squeezenet1_1", None, SIZE),
        )


def test_nor_when_a_model_is_trained(pictures, tmp_path):
    save_boxes(tmp_path / "b.npz", {"00.png": Regions(boxes_of(2)), "01.png": Regions(boxes_of(2))})
    folders = {folder: tmp_path / folder for folder in ("cats", "dogs")}
    for folder in folders.values():
        folder.mkdir()
        shutil.copy(pictures / "00.png", folder)
    items = [
        Item(f"{name}/00.png", ("a cat",), folder / "00.png") for name, folder in folders.items()
    ]
    with pytest.raises(
        ValueError,
        match=r"the boxes of .*00.png would be those of .*cats.* and of .*dogs.*: name pictures",
    ):
        fit(
            NewModel("entangled", variant="visual"),
            CaptionData("pets", {"train": items}),
            boxes=tmp_path / "b.npz",
            out=tmp_path / "run",
        )


class TestDamagedFiles:
    """What is damaged is skipped and named; the rest is extracted."""

    @pytest.fixture
    def photos(self, tmp_path) -> Path:
        """A folder of twelve pictures, and `boxes` with a file of regions for each."""
        (tmp_path / "photos").mkdir()
        for number in range(12):
            Image.new("RGB", (64, 48), (20 * number, 0, 0)).save(
                tmp_path / "photos" / f"{number:02}.png"
            )
            per_picture(
                tmp_path / "boxes", f"{number:02}", boxes_of(2), 64, 48, x=features_of(2, number)
            )
        return tmp_path

    def extract(self, folder):
        return extract_regions(
            images_in(folder / "photos"),
            open_boxes(folder / "boxes"),
            folder / "store",
            chunk_size=4,
            num_workers=2,
        )

    def test_each_kind_of_damage(self, photos, monkeypatch):
        monkeypatch.setenv("CAPTIONLAB_MAX_MB", "1")
        boxes = photos / "boxes"
        (boxes / "01.npz").write_bytes((boxes / "01.npz").read_bytes()[:200])
        (boxes / "02.npz").write_text("Dear diary")
        (boxes / "03.npz").unlink()
        os.mkfifo(boxes / "03.npz")
        per_picture(boxes, "04", boxes_of(2), 64, 48, x=np.zeros((2, 2**20), np.float32))
        per_picture(boxes, "05", boxes_of(2), 64, 48, x=np.full((2, 7), np.nan))
        per_picture(boxes, "06", boxes_of(2), 64, 48, x=np.ones((2, 9), np.float32))
        content = bytearray((boxes / "07.npz").read_bytes())
        content[content.index(b"PK\1\2") + 10] = 99         # of a method that nobody knows
        (boxes / "07.npz").write_bytes(content)
        per_picture(boxes, "08", boxes_of(2), 64, 48, x=features_of(2, 8).astype(">u2"))
        store = self.extract(photos)
        reasons = {
            "01.png": "01.npz is broken or cut off",
            "02.png": "02.npz is broken or cut off",
            "03.png": "no regions of 03.png",
            "04.png": "its content would take 9 MB",
            "05.png": "or are not numbers",
            "06.png": "its features have 9 numbers each",
            "07.png": "07.npz is broken or cut off",
        }
        assert store.skipped.keys() == reasons.keys()
        for name, reason in reasons.items():
            assert reason in store.skipped[name]
            assert "\n" not in store.skipped[name]
        assert len(store) == 5
        assert store["08.png"]["regions"].tolist() == [[8] * 7] * 2

    def test_changed_bytes_never_stop_it(self, photos):
        draw = np.random.default_rng(0)
        intact = {file.name: file.read_bytes() for file in (photos / "boxes").iterdir()}
        for number in range(12):
            for name in sorted(intact)[1:]:
                content = bytearray(intact[name])
                for place in draw.integers(0, len(content), 1 + number % 4):
                    content[place] = draw.integers(256)
                (photos / "boxes" / name).write_bytes(content)
            shutil.rmtree(photos / "store", ignore_errors=True)
            with warnings.catch_warnings(action="ignore"):
                store = self.extract(photos)
            assert "00.png" in store
            assert len(store) + len(store.skipped) == 12
            assert all("\n" not in reason for reason in store.skipped.values())

    def test_the_command_names_them_and_fails_at_the_end(self, photos):
        os.mkfifo(photos / "photos" / "x.jpg")
        (photos / "photos" / "evil\x1b[2J.png").write_text("no picture")
        result = TestCommand().call(
            photos / "photos", "--weights", "none", "--size", SIZE, "--out", photos / "s"
        )
        assert result.exit_code == 1
        assert "x.jpg is a pipe or a device" in result.stdout
        assert r"evil\x1b[2J.png as a picture" in result.stdout
        assert "\x1b" not in result.output
        assert "12 pictures," in result.stdout
        assert result.stderr.splitlines()[-1] == (
            "captionlab: 2 of 14 pictures have no features: mend the files named above, "
            "and run the same command again"
        )


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"counts": np.array([2, -1])}, "counts are not whole numbers from 0"),
        ({"counts": np.array(1)}, "counts are not whole numbers from 0"),
        ({"names": np.array("a")}, "not .pictures,. and .boxes, 4."),
        ({"boxes": np.array(0.5)}, "not .pictures,. and .boxes, 4."),
        ({"boxes": np.array(["a"])}, "not .pictures,. and .boxes, 4."),
        ({"classes": np.array(1)}, "its classes are not one number for each of 1 boxes"),
        ({"scores": np.array(["a"])}, "its scores are not one number for each of 1 boxes"),
        ({"scores": np.array([0.5, 0.5])}, "its scores are not one number for each of 1 boxes"),
    ],
)
def test_arrays_of_other_shapes_are_one_line(tmp_path, changes, reason):
    arrays = {"names": ["a", "b"], "counts": [1, 0], "boxes": boxes_of(1).numpy()}
    np.savez(tmp_path / "b.npz", **arrays | changes)
    with pytest.raises(ValueError, match=f"b.npz: .*{reason}") as fault:
        open_boxes(tmp_path / "b.npz")
    one_line(fault)
