"""Files of boxes are read right, or their faults are named; the detector is torchvision's."""

import base64
import os
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from feature_helpers import BOX, boxes_of, features_of, one_for_all, one_line, per_picture, tsv_line
from PIL import Image
from torchvision.models import get_model

from captionlab.features.boxes import (
    DETECTORS,
    Detector,
    check_boxes_unique,
    open_boxes,
    save_boxes,
)
from captionlab.features.image_processor import match_name
from captionlab.features.regions import (
    Regions,
)
from captionlab.scenes.generator import generate_scene
from captionlab.scenes.world import render

class TestOneForAll:
    def test_saved_and_opened(self, tmp_path):
        found = {
            "a.jpg": Regions(boxes_of(3), [1, 2, 0], [0.5, 0.25, 0.125]),
            "b.jpg": Regions(np.zeros((0, 4)), [], []),
        }
        save_boxes(tmp_path / "r.npz", found, ["dog", "ball", "sky"])
        back = open_boxes(tmp_path / "r.npz")
        assert list(back) == list(found)
        assert back.class_names == ["dog", "ball", "sky"]
        assert len(back["b.jpg"]) == 0
        torch.testing.assert_close(
            back["a.jpg"].boxes, found["a.jpg"].boxes, rtol=2**-11, atol=1e-7
        )
        assert back["a.jpg"].classes.tolist() == [1, 2, 0]
        assert back["a.jpg"].scores.tolist() == [0.5, 0.25, 0.125]
        save_boxes(tmp_path / "none.npz", {})
        assert len(open_boxes(tmp_path / "none.npz")) == 0

    def test_reads_back(self, tmp_path):
        file = one_for_all(
            tmp_path / "r.npz",
            ["a.jpg", "b.jpg", "c.jpg"],
            [2, 0, 1],
            [BOX, [0, 0, 1, 1], [0, 0, 0.5, 0.5]],
            classes=[1, 0, 1],
            scores=[0.5, 0.4, 0.3],
            class_names=["dog", "ball"],
        )
        found = open_boxes(file)
        assert [len(found[name]) for name in found] == [2, 0, 1]
        assert found.max_boxes == 2
        assert "d.jpg" not in found
        assert found["c.jpg"].boxes.tolist() == [[0, 0, 0.5, 0.5]]
        assert found["a.jpg"].classes.tolist() == [1, 0]
        assert found.class_names == ["dog", "ball"]
        with pytest.raises(ValueError, match=r"no regions of d.jpg in .*r.npz"):
            found["d.jpg"]

    def test_a_bad_box_is_named_with_file_and_picture(self, tmp_path):
        file = one_for_all(
            tmp_path / "r.npz",
            ["a.jpg", "b.jpg", "c.jpg"],
            [2, 0, 2],
            [BOX, BOX, BOX, [0.5, 0, 0.1, 1]],
        )
        with pytest.raises(ValueError, match=r"r.npz, picture c.jpg, box 1 .*upside down") as fault:
            open_boxes(file)
        one_line(fault)

    def test_boxes_that_stick_out_are_told_once(self, tmp_path):
        file = one_for_all(tmp_path / "r.npz", list("abcd"), [1] * 4, [[0, 0, 1.2, 1]] * 4)
        with pytest.warns(
            UserWarning, match="r.npz, picture a, box 0 .* 3 more do.*once a file"
        ) as said:
            found = open_boxes(file)
        assert len(said) == 1
        assert found["d"].boxes.tolist() == [[0, 0, 1, 1]]

    @pytest.mark.parametrize(
        ("change", "says"),
        [
            ({"counts": [1, 2]}, "2 counts that sum to 3"),
            ({"counts": [3]}, "1 counts"),
            ({"names": ["a"]}, "1 names"),
        ],
    )
    def test_numbers_must_agree(self, tmp_path, change, says):
        file = one_for_all(
            tmp_path / "r.npz",
            **({"names": ["a", "b"], "counts": [1, 1], "boxes": [BOX, BOX]} | change),
        )
        with pytest.raises(ValueError, match=f"{says}.*get it again") as fault:
            open_boxes(file)
        one_line(fault)

    def test_other_or_broken_files(self, tmp_path):
        file = one_for_all(tmp_path / "r.npz", ["a"], [1], [BOX])
        (tmp_path / "half.npz").write_bytes(file.read_bytes()[:200])
        (tmp_path / "text.npz").write_text("Dear diary")
        np.savez(tmp_path / "other.npz", bbox=[BOX])
        (tmp_path / "boxes.json").write_text("{}")
        for name, says in (
            ("half.npz", "broken or cut off"),
            ("text.npz", "broken or cut off"),
            ("other.npz", "give the folder"),
            ("boxes.json", "not a file of boxes"),
            ("gone.npz", "no boxes gone.npz: neither .* nor a detector"),
        ):
            with pytest.raises((ValueError, FileNotFoundError), match=says) as fault:
                open_boxes(tmp_path / name if name != "gone.npz" else name)
            one_line(fault)

    @pytest.mark.slow
    def test_flickr8k(self, real_data):
        found = open_boxes(real_data / "flickr8k" / "regions.npz")
        assert len(found) == 8000
        assert found.max_boxes == 36
        assert found.class_names[0] == "person"
        assert sum(len(found[name]) for name in found) == 105150


class TestOneEach:
    def test_reads_back_both_ways_round(self, tmp_path):
        features = np.arange(15, dtype=np.float32).reshape(3, 5)
        per_picture(tmp_path / "f", "COCO_val2014_000000000042", [BOX] * 3, x=features, num_bbox=3)
        per_picture(tmp_path / "f", "COCO_val2014_000000000043", [BOX] * 3, x=features.T)
        per_picture(tmp_path / "f", "7", [BOX] * 3, features=features, num_bbox=2)
        per_picture(tmp_path / "f", "8", [], x=np.zeros((0, 5), np.float32), num_bbox=0)
        found = open_boxes(tmp_path / "f")
        assert found.max_boxes == 3
        assert found.width == 5
        assert [len(found[name]) for name in ("42", "43", "7", "8")] == [3, 3, 2, 0]
        torch.testing.assert_close(
            found["COCO_val2014_000000000042.jpg"].boxes, torch.tensor([BOX] * 3)
        )
        assert found["43"].features.equal(torch.from_numpy(features))
        assert found["8"].features.shape == (0, 5)

    def test_boxes_without_features(self, tmp_path):
        per_picture(tmp_path / "f", "a", [BOX])
        assert open_boxes(tmp_path / "f")["a.jpg"].features is None
        assert open_boxes(tmp_path / "f").width == 0

    def test_nothing_in_it_is_executed(self, tmp_path):
        class Evil:
            def __reduce__(self):
                return os.mkdir, (str(tmp_path / "evil"),)

        folder = tmp_path / "f"
        folder.mkdir()
        np.savez(
            folder / "a.npz",
            bbox=np.zeros((1, 4)),
            image_w=2,
            image_h=2,
            info=np.array(Evil(), dtype=object),
        )
        np.savez(folder / "b.npz", bbox=np.array([Evil()], dtype=object), image_w=2, image_h=2)
        found = open_boxes(folder)
        assert len(found["a"]) == 1
        with pytest.raises(ValueError, match=r"b.npz is broken"):
            found["b"]
        assert not (tmp_path / "evil").exists()

    def test_faults_name_the_file(self, tmp_path):
        folder = tmp_path / "f"
        per_picture(folder, "a", [BOX], x=np.zeros((1, 5), np.float32))
        per_picture(folder, "pixels", np.float32([BOX]) * 500, x=np.zeros((1, 5), np.float32))
        per_picture(folder, "wide", [BOX], x=np.zeros((1, 6), np.float32))
        np.savez(folder / "sizeless.npz", bbox=np.float32([BOX]), x=np.zeros((1, 5), np.float32))
        (folder / "cut.npz").write_bytes((folder / "a.npz").read_bytes()[:-50])
        found = open_boxes(folder)
        assert found.max_boxes == 1
        for name, says in (
            ("pixels", "pixels.npz, box 0 .*not in shares"),
            ("wide", "wide.npz: its features have 6"),
            ("sizeless", "sizeless.npz has no image_h, image_w"),
            ("cut", "cut.npz is broken or cut off"),
        ):
            with pytest.raises(ValueError, match=says) as fault:
                found[name]
            one_line(fault)

    def test_empty_folder(self, tmp_path):
        with pytest.raises(ValueError, match=r"holds no .npz"):
            open_boxes(tmp_path)


class TestLines:
    def whole(self, file: Path) -> list[bytes]:
        lines = [tsv_line(40 + k, boxes_of(k).numpy(), features_of(k, k)) for k in (3, 0, 5, 4)]
        file.write_bytes(b"".join(lines))
        return lines

    def test_reads_back(self, tmp_path):
        self.whole(tmp_path / "f.tsv")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = open_boxes(tmp_path / "f.tsv")
        assert list(found) == ["43", "40", "45", "44"]
        assert (found.max_boxes, found.width) == (5, 7)
        assert [len(found[name]) for name in found] == [3, 0, 5, 4]
        assert found["40"].features.shape == (0, 7)
        torch.testing.assert_close(found["COCO_train2014_000000000045.jpg"].boxes, boxes_of(5))
        assert found["45"].features.equal(torch.full((5, 7), 5.0))

    def test_cut_off_after_any_byte_of_the_last_line(self, tmp_path):
        """The lines before are used, and one warning names the line; its end is not missed."""
        lines = self.whole(tmp_path / "f.tsv")
        before, last = b"".join(lines[:-1]), lines[-1]
        for kept in range(1, len(last) + 1):
            (tmp_path / "cut.tsv").write_bytes(before + last[:kept])
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("ignore")  # files that other tests left open
                warnings.simplefilter("always", UserWarning)
                found = open_boxes(tmp_path / "cut.tsv")
            is_whole = kept >= len(last) - 2
            assert len(said) == (not is_whole)
            assert len(found) == 3 + is_whole
            assert len(found["45"]) == 5
            if not is_whole:
                assert "cut.tsv, line 4 is cut off" in str(said[0].message)
                assert "the 3 pictures of the other lines are used" in str(said[0].message)
                assert "\n" not in str(said[0].message)
                with pytest.raises(
                    ValueError, match=r"no regions of 44 in .*cut.tsv \(line 4 is cut off"
                ) as fault:
                    found["44"]
                one_line(fault)

    def test_damaged_in_the_middle_and_there_again(self, tmp_path):
        """As in published files: a line broken by a second writer, and the picture once more."""
        lines = self.whole(tmp_path / "f.tsv")
        (tmp_path / "f.tsv").write_bytes(lines[0] + lines[2][:150] + lines[3] + lines[2])
        with pytest.warns(UserWarning, match="f.tsv, line 2 is cut off or damaged"):
            found = open_boxes(tmp_path / "f.tsv")
        assert set(found) == {"43", "45"}
        assert len(found["45"]) == 5
        assert list(found.bad_lines) == [2]

    def test_a_bad_box_is_named_with_file_line_and_picture(self, tmp_path):
        (tmp_path / "f.tsv").write_bytes(
            tsv_line(1, [BOX], features_of(1, 1))
            + tsv_line(2, [BOX, [np.nan] * 4], features_of(2, 1))
        )
        found = open_boxes(tmp_path / "f.tsv")
        assert len(found["1"]) == 1
        with pytest.raises(
            ValueError, match=r"f.tsv, line 2, picture 2, box 1 .*not a number"
        ) as fault:
            found["2"]
        one_line(fault)

    def test_no_whole_line(self, tmp_path):
        (tmp_path / "f.tsv").write_text("image_id\timage_w\n1\t2\n")
        with pytest.raises(ValueError, match="no whole line"):
            open_boxes(tmp_path / "f.tsv")

    def test_is_indexed_without_being_read_into_memory(self, tmp_path):
        with open(tmp_path / "large.tsv", "wb") as file:
            for number in range(200):
                file.write(tsv_line(number, boxes_of(36).numpy(), features_of(36, number, 2048)))
        size, start = (tmp_path / "large.tsv").stat().st_size / 2**20, time.perf_counter()
        found = open_boxes(tmp_path / "large.tsv")
        print(f"{size:.0f} MB indexed in {time.perf_counter() - start:.2f} s")
        assert size > 70
        assert found["199"].features[0, 0] == 199
        assert found.max_boxes == 36


@pytest.fixture(scope="module")
def detector() -> Detector:
    return Detector(DETECTORS[1], weights=None, max_boxes=20)


class TestDetector:
    @pytest.mark.slow
    def test_finds_boxes_in_any_picture(self, detector, tmp_path):
        picture = Image.fromarray(render(generate_scene(0), 200)).crop((0, 0, 200, 120))
        picture.save(tmp_path / "a.png")
        found = detector(tmp_path / "a.png")
        assert len(found) == 10
        assert found.boxes.max() > 0.5
        assert found.scores.diff().le(0).all()
        assert found.boxes.equal(detector(picture).boxes)
        assert found.classes.max() < len(detector.class_names) == 91

    @pytest.mark.slow
    def test_equals_torchvisions_own(self, detector):
        picture = Image.fromarray(render(generate_scene(1), 96))
        net = get_model(
            DETECTORS[1],
            weights=None,
            weights_backbone=None,
            box_score_thresh=0.0,
            box_detections_per_img=20,
        )
        net.load_state_dict(detector.net.state_dict())
        theirs = net.eval()([torch.from_numpy(np.array(picture)).permute(2, 0, 1) / 255])[0]
        torch.testing.assert_close(
            detector(picture).boxes, theirs["boxes"][:10] / 96, rtol=1e-4, atol=1e-5
        )

    def test_as_many_as_it_is_sure_of(self, detector):
        picture, before = Image.fromarray(render(generate_scene(1), 96)), detector.threshold
        try:
            detector.threshold = 0.0
            assert len(detector(picture)) == 20
        finally:
            detector.threshold = before

    @pytest.mark.slow
    def test_weights_from_a_file(self, detector, tmp_path):
        torch.save(detector.net.state_dict(), tmp_path / "w.pth")
        again = Detector(DETECTORS[1], str(tmp_path / "w.pth"), max_boxes=20, seed=1)
        assert again.describe() == detector.describe()
        assert again.describe()["most"] == 20
        torch.save({"a": torch.zeros(1)}, tmp_path / "other.pth")
        with pytest.raises(
            ValueError, match="are not the weights of torchvision's fasterrcnn"
        ) as fault:
            Detector(DETECTORS[1], str(tmp_path / "other.pth"))
        one_line(fault)

    @pytest.mark.slow
    def test_the_large_one_is_made_the_same_way(self):
        large = open_boxes(DETECTORS[0], weights=None)
        large.net.transform.min_size, large.net.rpn._post_nms_top_n["testing"] = (64,), 30
        assert len(large(Image.fromarray(render(generate_scene(0), 64)))) <= 100

    def test_unknown(self):
        with pytest.raises(ValueError, match="no detector yolo: there are fasterrcnn"):
            Detector("yolo")


def test_short_names_never_lead_to_another_picture(tmp_path):
    boxes = boxes_of(2).tolist()
    shared = open_boxes(
        one_for_all(tmp_path / "shared.npz", ["cats/2.jpg", "dogs/2.jpg"], [1, 1], boxes)
    )
    assert "cats/2.jpg" in shared
    assert "2" not in shared
    assert "birds/2.jpg" not in shared


def test_a_folder_of_its_own_is_another_picture(tmp_path):
    save_boxes(
        tmp_path / "b.npz", {"cats/rex.png": Regions(boxes_of(2)), "tom.png": Regions(boxes_of(1))}
    )
    found = open_boxes(tmp_path / "b.npz")
    assert "cats/rex.png" in found
    assert "rex.jpg" in found
    assert "dogs/rex.png" not in found
    assert "dogs/tom.png" in found
    with pytest.raises(ValueError, match=r"no regions of dogs/rex.png"):
        found["dogs/rex.png"]
    assert match_name(found, "dogs/rex.png", "/photos/dogs/rex.png") not in found


def test_the_source_is_named_from_the_data_folder(tmp_path, monkeypatch):
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("CAPTIONLAB_DATA", str(tmp_path / "home"))
    regions = {"a.png": Regions(boxes_of(3))}
    for name in ("home/in.npz", "out.npz"):
        save_boxes(tmp_path / name, regions)
    inside = open_boxes(tmp_path / "home/in.npz").describe()
    assert inside["source"] == "in.npz"
    assert open_boxes(inside["source"]).describe() == inside
    outside = open_boxes(tmp_path / "out.npz").describe()
    assert outside["source"] == str(tmp_path / "out.npz")
    assert outside["fingerprint"] == inside["fingerprint"]


def test_features_tell_two_files_apart(tmp_path):
    marks = set()
    for number, shift in enumerate((0, 1)):
        file = tmp_path / f"{number}.tsv"
        file.write_bytes(
            b"".join(
                tsv_line(name, [[0, 0, 64, 48]], features_of(1, name + shift)) for name in (1, 2)
            )
        )
        marks.add(open_boxes(file).describe()["fingerprint"])
    assert len(marks) == 2


def test_numbers_for_names_and_too_few_features(tmp_path):
    np.savez(
        tmp_path / "n.npz",
        names=np.array([42, 7]),
        counts=np.array([1, 0]),
        boxes=np.array([BOX], np.float32),
    )
    assert "COCO_val2014_000000000042.jpg" in open_boxes(tmp_path / "n.npz")
    assert len(open_boxes(tmp_path / "n.npz")["42"]) == 1
    (tmp_path / "each").mkdir()
    for name, rows in (("1", 2), ("2", 1)):
        np.savez(
            tmp_path / "each" / f"{name}.npz",
            bbox=np.array([BOX, BOX], np.float32),
            num_bbox=2,
            x=np.ones((rows, 3), np.float32),
            image_w=1,
            image_h=1,
        )
    with pytest.raises(ValueError, match=r"2.npz: 2 boxes, but features of 1"):
        open_boxes(tmp_path / "each")["2"]


def test_arrays_that_are_no_archive_and_counts_that_are_no_numbers(tmp_path):
    np.save(tmp_path / "plain.npy", np.zeros(3))
    (tmp_path / "plain.npy").rename(tmp_path / "plain.npz")
    np.savez(tmp_path / "text.npz", names=["a"], counts=["two"], boxes=np.zeros((2, 4)))
    for name, why in (("plain.npz", "not an .npz"), ("text.npz", "counts are not whole numbers")):
        with pytest.raises(ValueError, match=f"{name}.*{why}"):
            open_boxes(tmp_path / name)


def test_boxes_of_one_picture_belong_to_one(tmp_path):
    save_boxes(
        tmp_path / "b.npz", {"rex.png": Regions(boxes_of(1)), "tom.png": Regions(boxes_of(1))}
    )
    file = open_boxes(tmp_path / "b.npz")
    check_boxes_unique(file, [(name, name) for name in ("rex.png", "tom.jpg", "unknown.png")])
    with pytest.raises(
        ValueError, match=r"boxes of rex.png would be those of one and of two"
    ) as fault:
        check_boxes_unique(file, [("cats/rex.png", "one"), ("tom.png", "tom"), ("rex", "two")])
    one_line(fault)


class TestArraysOfOne:
    """Programs differ in whether they write a number, an array of one, or a squeezed row."""

    def write(self, folder, **changes):
        folder.mkdir(exist_ok=True)
        arrays = {
            "bbox": np.float32([[0, 0, 320, 240]]),
            "num_bbox": 1,
            "image_w": 640,
            "image_h": 480,
            "x": np.ones((1, 5), np.float32),
        }
        np.savez(folder / "a.npz", **arrays | changes)
        return open_boxes(folder)

    @pytest.mark.parametrize(
        "changes",
        [
            {"num_bbox": np.array([1])},
            {"num_bbox": np.array([[1.0]])},
            {"image_w": np.array([640]), "image_h": np.array([480])},
            {"x": np.ones(5, np.float32)},
            {"bbox": np.float32([0, 0, 320, 240]), "x": np.ones(5, np.float32)},
        ],
    )
    def test_are_read_as_the_number(self, tmp_path, changes):
        file = self.write(tmp_path / "f", **changes)
        assert file.max_boxes == 1
        assert file.width == 5
        assert file["a"].boxes.tolist() == [[0, 0, 0.5, 0.5]]
        assert file["a"].features.tolist() == [[1] * 5]

    @pytest.mark.parametrize(
        ("changes", "reason"),
        [
            ({"num_bbox": np.array([1, 1])}, "its number of boxes"),
            ({"num_bbox": -1}, "its number of boxes"),
            ({"num_bbox": 2}, "its number of boxes"),
            ({"image_w": np.array([640, 640])}, "width and height"),
            ({"image_w": 0}, "width and height"),
            ({"image_w": np.nan}, "width and height"),
            ({"x": np.float32(1)}, "its features"),
            ({"x": np.array(["a"])}, "its features"),
            ({"x": np.full((1, 5), np.nan)}, "or are not numbers"),
            ({"x": np.full((1, 5), 1e300)}, "exceed 65504"),
            ({"x": np.full((1, 5), -70000)}, "exceed 65504"),
        ],
    )
    def test_other_numbers_are_refused_with_the_file(self, tmp_path, changes, reason):
        with pytest.raises(ValueError, match=f"a.npz.*{reason}") as fault:
            self.write(tmp_path / "f", **changes)["a"]
        one_line(fault)

    def test_boxes_divided_before_are_noticed(self, tmp_path):
        file = self.write(tmp_path / "f", bbox=np.float32([[0, 0, 0.5, 0.5]]))
        with pytest.warns(UserWarning, match=r"a.npz: no box reaches beyond the first pixel"):
            file["a"]


class TestCausesInLines:
    line = tsv_line("p", [BOX], np.ones((1, 6), np.float32)).rstrip()

    def columns(self, **changes):
        names = ("image_id", "image_w", "image_h", "num_boxes", "boxes", "features")
        columns = dict(zip(names, self.line.split(b"\t"), strict=True))
        return b"\t".join((columns | changes).values()) + b"\n"

    @pytest.mark.parametrize(
        ("changes", "cause"),
        [
            ({"image_w": b"640.0"}, r"line 1 .*image_w is '640\.0', not a whole number"),
            (
                {"boxes": base64.b64encode(np.float64([BOX]).tobytes())},
                "line 1 .*its boxes are 64-bit floats",
            ),
            (
                {"features": base64.b64encode(np.ones(4, np.float32)).rstrip(b"=")},
                "line 1 .*without the padding",
            ),
        ],
    )
    def test_are_in_the_error(self, tmp_path, changes, cause):
        (tmp_path / "f.tsv").write_bytes(self.columns(**changes))
        with pytest.raises(ValueError, match=cause) as fault:
            open_boxes(tmp_path / "f.tsv")
        one_line(fault)

    @pytest.mark.parametrize("number", [np.nan, np.inf, 70000])
    def test_features_out_of_range_name_line_and_picture(self, tmp_path, number):
        features = base64.b64encode(np.full((1, 6), number, np.float32).tobytes())
        (tmp_path / "f.tsv").write_bytes(self.columns(features=features))
        with pytest.raises(ValueError, match=r"line 1, picture p: its features exceed"):
            open_boxes(tmp_path / "f.tsv")["p"]
