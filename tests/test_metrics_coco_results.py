"""COCO result files: what is written is what is checked, and what is wrong is named."""

import json

import pytest

from captionlab.metrics.coco_results import export_coco, read_image_ids
from captionlab.metrics.files import read_results

NAMES = {3: "three.jpg", 1: "one.jpg", 2: "two.jpg"}
CAPTIONS = {3: "a dog", 1: "ein Hund läuft", 2: "собака 犬"}


@pytest.fixture
def images(tmp_path):
    file = tmp_path / "image_info_test2014.json"
    file.write_text(
        json.dumps({"images": [{"id": key, "file_name": name} for key, name in NAMES.items()]})
    )
    return file


def export(captions, images, folder, split="test2014", name="vanilla-small"):
    return export_coco(captions, images, folder, split=split, name=name)


@pytest.mark.parametrize("rename", [lambda key: key, str, NAMES.get])
def test_ids_their_digits_and_file_names_give_the_same_file(images, tmp_path, rename):
    file = export({rename(key): text for key, text in CAPTIONS.items()}, images, tmp_path / "new")
    assert file.name == "captions_test2014_vanilla-small_results.json"
    assert read_results(file) == CAPTIONS
    assert [entry["image_id"] for entry in json.loads(file.read_text())] == [1, 2, 3]


@pytest.mark.parametrize(
    ("captions", "message"),
    [
        (CAPTIONS | {9: "x"}, r"1 captions are of pictures that .* does not list \(9 for one\)"),
        ({1: "a", 2: "b"}, r"not written: 1 pictures of the split have no caption \(3 for one\)"),
        (CAPTIONS | {2: " "}, r"not written: 1 pictures have an empty caption \(2 for one\)"),
        (CAPTIONS | {2: None}, "not written: 1 pictures have an empty caption"),
        (CAPTIONS | {"two.jpg": "b"}, "not written: 1 pictures have more than one caption"),
        ({}, "not written: there are no captions"),
    ],
)
def test_what_cannot_be_handed_in_is_not_written(images, tmp_path, captions, message):
    with pytest.raises(ValueError, match=message):
        export(captions, images, tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("split", "name"), [("test 2014", "a"), ("test2014", "a_b"), ("", "a"), ("test2014", "../a")]
)
def test_names_that_a_server_cannot_read(images, tmp_path, split, name):
    with pytest.raises(ValueError, match="write the split with letters and digits"):
        export(CAPTIONS, images, tmp_path, split, name)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", "no pictures here"),
        ('{"images": []}', "no pictures here"),
        ('{"images": [{"id": "1", "file_name": "a"}]}', "image 0 has no whole number as id"),
        ('{"images": [{"id": 1}]}', "image 0 has no whole number as id or no file_name"),
        (
            '{"images": [{"id": 1, "file_name": "a"}, {"id": 1, "file_name": "b"}]}',
            "id 1 is listed twice",
        ),
    ],
)
def test_a_wrong_list_of_pictures(tmp_path, content, message):
    (tmp_path / "images.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        read_image_ids(tmp_path / "images.json")
    with pytest.raises(FileNotFoundError, match="there is no file"):
        read_image_ids(tmp_path / "none.json")
