"""Captions and pictures where people have them: COCO's folders, Karpathy's files, patterns."""

import json
from contextlib import nullcontext

import pytest
from PIL import Image

from captionlab.data import ImageFinder, load_dataset, split_in_name
from captionlab.runs.fitting import FitConfig, NewModel, fit

def picture(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8)).save(path)


def annotate(file, names):
    """Captions in COCO's format: one of each picture, whose file has its number as its name."""
    images = [{"id": number, "file_name": name} for number, name in names.items()]
    annotations = [
        {"id": number, "image_id": number, "caption": f"picture {number}"} for number in names
    ]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"images": images, "annotations": annotations}))


@pytest.fixture
def coco(tmp_path):
    """COCO as it comes, in a folder with a blank in its name."""
    root = tmp_path / "my coco 2017"
    for split, numbers in (("train", (1, 2, 3)), ("val", (4, 5))):
        names = {number: f"{number:012}.jpg" for number in numbers}
        annotate(root / "annotations" / f"captions_{split}2017.json", names)
        for name in names.values():
            picture(root / f"{split}2017" / name)
    (root / "annotations" / "instances_train2017.json").write_text("{}")
    return root


def test_a_folder_joins_its_annotations_and_takes_splits_from_their_names(coco):
    data = load_dataset(coco)
    assert data.counts == {"train": 3, "val": 2, "test": 0}
    assert data.name == "my coco 2017"
    assert data["val"][0].image == coco / "val2017" / "000000000004.jpg"
    assert data["val"][0].image_id == 4


def test_a_pattern_joins_as_well(coco):
    data = load_dataset(str(coco / "annotations" / "captions_*2017.json"))
    assert data.counts == {"train": 3, "val": 2, "test": 0}


def test_one_file_finds_its_pictures_beside_its_folder(coco):
    data = load_dataset(coco / "annotations" / "captions_val2017.json")
    images = {item.image for items in data.splits.values() for item in items}
    assert images == set((coco / "val2017").glob("*.jpg"))


def test_pictures_of_one_name_come_from_the_folder_in_the_files_name(tmp_path):
    for split in ("train", "val"):
        annotate(tmp_path / "annotations" / f"captions_{split}.json", {len(split): "1.jpg"})
        picture(tmp_path / split / "1.jpg")
    data = load_dataset(tmp_path)
    assert [data[split][0].image.parent.name for split in ("train", "val")] == ["train", "val"]


def test_folders_of_splits_may_lie_in_images(coco):
    (coco / "images").mkdir()
    for split in ("train2017", "val2017"):
        (coco / split).rename(coco / "images" / split)
    data = load_dataset(coco)
    assert data.counts == {"train": 3, "val": 2, "test": 0}
    assert data["val"][0].image == coco / "images" / "val2017" / "000000000004.jpg"


def test_annotations_in_another_folder_are_named_themselves(coco):
    (coco / "annotations").rename(coco / "notes")
    with pytest.raises(ValueError, match=r"captions_\*.json, .*name a file elsewhere itself$"):
        load_dataset(coco)
    data = load_dataset(coco / "notes" / "captions_val2017.json")
    images = {item.image for items in data.splits.values() for item in items}
    assert images == set((coco / "val2017").glob("*.jpg"))


def test_pictures_beside_the_annotations(tmp_path):
    annotate(tmp_path / "captions_a.json", {1: "1.jpg"})
    annotate(tmp_path / "captions_b.json", {2: "2.jpg"})
    for number in (1, 2):
        picture(tmp_path / f"{number}.jpg")
    assert sum(load_dataset(tmp_path).counts.values()) == 2


def test_a_picture_in_two_files_is_refused(coco):
    annotate(coco / "annotations" / "captions_val2014.json", {4: "000000000004.jpg"})
    with pytest.raises(ValueError, match=r"4 is in two of captions_train2017.json, .*leave one"):
        load_dataset(coco)


def test_a_missing_picture_is_named(coco):
    (coco / "val2017" / "000000000005.jpg").unlink()
    with pytest.raises(ValueError, match=r"no picture .*000000000005.jpg") as caught:
        load_dataset(coco)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("folder", ["karpathy files", "annotations", "."])
def test_karpathys_file_may_have_a_folder_of_its_own(tmp_path, folder):
    sentences = [{"raw": "a dog"}]
    images = [
        {"filepath": f"{split}2014", "filename": f"{number}.jpg", "cocoid": number,
         "split": split, "sentences": sentences}
        for number, split in ((1, "train"), (2, "val"))
    ]  # fmt: skip
    for image in images:
        picture(tmp_path / image["filepath"] / image["filename"])
    file = tmp_path / folder / "dataset_coco.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps({"images": images}))
    is_elsewhere = folder == "karpathy files"
    with pytest.warns(UserWarning, match="taken from") if is_elsewhere else nullcontext():
        data = load_dataset(file)
    assert data.counts == {"train": 1, "val": 1, "test": 0}
    assert all(item.image.exists() for item in data["train"] + data["val"])
    if not is_elsewhere:
        assert load_dataset(tmp_path).counts == data.counts


def test_a_folder_with_one_table(tmp_path):
    picture(tmp_path / "images" / "a b.jpg")
    (tmp_path / "my captions.csv").write_text("image,caption\na b.jpg,a dog\n")
    assert load_dataset(tmp_path).name == "my captions"


def test_a_folder_without_captions_says_what_was_expected(tmp_path):
    with pytest.raises(ValueError, match="holds no data set"):
        load_dataset(tmp_path)


def test_a_picture_of_another_folder_is_not_taken_if_the_first_lies_beside(tmp_path):
    picture(tmp_path / "1.jpg")
    picture(tmp_path / "other" / "2.jpg")
    finder = ImageFinder(tmp_path / "captions.csv")
    assert finder.find("1.jpg") == tmp_path / "1.jpg"
    assert finder.find("2.jpg") is None


@pytest.mark.parametrize(("name", "split"), [
    ("captions_val2017.json", "val"), ("test.json", "test"), ("my-train.csv", "train"),
    ("captions_training.json", None), ("retest.json", None), ("captions.json", None),
])  # fmt: skip
def test_the_split_in_a_name(name, split, tmp_path):
    assert split_in_name(tmp_path / name) == split


@pytest.mark.slow
def test_a_model_trains_on_such_a_folder(coco, tmp_path):
    options = FitConfig(epochs=1, warmup=1)
    run = fit(NewModel("vanilla"), str(coco), config=options, out=tmp_path / "run")
    assert run.metadata.source == str(coco)
