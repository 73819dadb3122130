"""Pictures in zip files: read by threads and processes, damaged ones named in one line."""

import multiprocessing
import shutil
import zipfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image

from captionlab import zip_files
from captionlab.course.miniature import CORRUPT_ID, write_archives
from captionlab.data import BatchLoader, CaptionDataset, ResumableBatchSampler, batch_by_count
from captionlab.data.catalog import load_dataset
from captionlab.data.picture_decoding import find_images
from captionlab.features import ImageProcessor, input_transforms
from captionlab.features.preprocessing import load_image
from captionlab.models import find_preset
from captionlab.text import Vocabulary
from captionlab.zip_files import file_size, list_files, split_zip_path, walk_zip

@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """A zip file of 12 random pictures, stored and deflated, and the folder they came from."""
    folder = tmp_path_factory.mktemp("pictures")
    chance = np.random.default_rng(0)
    with zipfile.ZipFile(folder / "all.zip", "w") as archive:
        for number in range(12):
            pixels = chance.integers(0, 256, (20, 30, 3), np.uint8)
            Image.fromarray(pixels).save(folder / f"{number}.png")
            method = zipfile.ZIP_DEFLATED if number % 2 else zipfile.ZIP_STORED
            archive.write(folder / f"{number}.png", f"part/{number}.png", method)
    return folder


@pytest.fixture(scope="module")
def coco(tmp_path_factory):
    """The miniature of COCO with its pictures zipped, and the same one unpacked."""
    root = tmp_path_factory.mktemp("coco")
    write_archives(root / "zipped", count=40, size=48)
    for folder in ("zipped", "unpacked"):
        (root / folder).mkdir(exist_ok=True)
        with zipfile.ZipFile(root / "zipped" / "caption_datasets.zip") as archive:
            archive.extractall(root / folder)
    for name in ("train2014", "val2014"):
        with zipfile.ZipFile(root / "zipped" / f"{name}.zip") as archive:
            archive.extractall(root / "unpacked")
    return root


def test_a_path_through_a_zip_file_is_split(pictures):
    inside = pictures / "all.zip" / "part" / "1.png"
    assert split_zip_path(inside) == (pictures / "all.zip", "part/1.png")
    assert split_zip_path(pictures / "1.png") is None
    assert split_zip_path(pictures / "all.zip") is None
    assert split_zip_path(pictures / "none.zip" / "1.png") is None


def test_every_member_is_read_in_every_order(pictures):
    for number in (3, 0, 11, 4, 3):
        content = (pictures / f"{number}.png").read_bytes()
        inside = pictures / "all.zip" / "part" / f"{number}.png"
        assert zip_files._read_zipped(inside) == content
        assert file_size(inside) == len(content)
    assert zip_files._read_zipped(pictures / "0.png") is None
    assert file_size(pictures / "all.zip" / "part" / "none.png") is None
    assert file_size(pictures / "none.png") is None


def test_a_zip_file_is_listed_like_a_folder(pictures):
    names = {f"{number}.png" for number in range(12)}
    assert list_files(pictures / "all.zip" / "part") == names
    assert list_files(pictures / "all.zip") == set()
    assert list_files(pictures) == {*names, "all.zip"}
    assert list_files(pictures / "none") == set()
    assert set(walk_zip(pictures / "all.zip" / "part")) == names
    assert walk_zip(pictures) == []
    found = find_images(pictures / "all.zip")
    assert found["part/3.png"] == pictures / "all.zip" / "part" / "3.png"
    assert set(find_images(pictures / "all.zip" / "part")) == names


def same_pictures(folder, numbers):
    """Whether each picture in the archive is that of the folder."""
    pairs = [
        (load_image(folder / "all.zip" / "part" / f"{n}.png"), load_image(folder / f"{n}.png"))
        for n in numbers
    ]
    return all(one.tobytes() == other.tobytes() for one, other in pairs)


def test_threads_and_processes_read_one_archive_at_the_same_time(pictures):
    """Positions in an open file are shared by threads and by forked processes."""
    assert same_pictures(pictures, [0])
    jobs = [np.random.default_rng(seed).integers(0, 12, 60).tolist() for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(partial(same_pictures, pictures), jobs))
    context = multiprocessing.get_context("fork")
    with context.Pool(2) as pool:
        assert all(pool.map(partial(same_pictures, pictures), jobs))


def test_the_directory_is_read_once(pictures, monkeypatch):
    shutil.copy(pictures / "all.zip", pictures / "copy.zip")
    opened = []
    plain = zipfile.ZipFile

    def counted(*args):
        opened.append(args)
        return plain(*args)

    monkeypatch.setattr(zip_files.zipfile, "ZipFile", counted)
    for number in range(12):
        zip_files._read_zipped(pictures / "copy.zip" / "part" / f"{number}.png")
    assert len(opened) == 1
    (pictures / "copy.zip").unlink()
    with plain(pictures / "copy.zip", "w") as archive:
        archive.writestr("part/0.png", b"another file")
    assert zip_files._read_zipped(pictures / "copy.zip" / "part" / "0.png") == b"another file"


@pytest.mark.parametrize("number", [2, 3])      # stored, deflated
def test_a_damaged_member_is_named_in_one_line(pictures, tmp_path, number):
    content = bytearray((pictures / "all.zip").read_bytes())
    with zipfile.ZipFile(pictures / "all.zip") as archive:
        start = archive.getinfo(f"part/{number}.png").header_offset + 60
    content[start + 200] ^= 1
    (tmp_path / "all.zip").write_bytes(content)
    inside = tmp_path / "all.zip" / "part" / f"{number}.png"
    with pytest.raises(ValueError, match="as a picture: its checksum in the archive") as error:
        load_image(inside)
    assert str(inside) in str(error.value)
    assert "\n" not in str(error.value)
    load_image(tmp_path / "all.zip" / "part" / "4.png")


def test_what_cannot_be_read_is_one_line(pictures, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no part/99.png in .*all.zip$"):
        load_image(pictures / "all.zip" / "part" / "99.png")
    whole = (pictures / "all.zip").read_bytes()
    (tmp_path / "cut.zip").write_bytes(whole[:-40])
    with pytest.raises(ValueError, match=r"cut.zip is not a zip file .*: get it again$"):
        load_image(tmp_path / "cut.zip" / "part" / "0.png")
    # A directory that says another place or another size than there is.
    (tmp_path / "moved.zip").write_bytes(whole.replace(b"PK\3\4", b"PK\7\7"))
    with pytest.raises(ValueError, match="the archive is damaged"):
        load_image(tmp_path / "moved.zip" / "part" / "0.png")


def test_a_member_that_unpacks_to_more_than_it_says_takes_no_memory(tmp_path, monkeypatch):
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.png", bytes(2**24))
    monkeypatch.setenv("CAPTIONLAB_MAX_MB", "8")
    with pytest.raises(ValueError, match="would take 16 MB in memory"):
        load_image(tmp_path / "a.zip" / "a.png")


def test_coco_is_read_from_its_zip_files(coco):
    zipped = load_dataset(coco / "zipped")
    unpacked = load_dataset(coco / "unpacked")
    assert zipped.counts == unpacked.counts
    for one, other in zip(zipped["test"], unpacked["test"], strict=True):
        assert one.name == other.name
        assert ".zip/" in str(one.image)
        assert np.array_equal(load_image(one.image), load_image(other.image))
        assert one.picture().size == (48, 48)
    corrupt = next(item for item in zipped["train"] if item.image_id == CORRUPT_ID)
    with pytest.raises(ValueError, match=r"train2014.zip/train2014/COCO_train2014_\d+.jpg as a"):
        load_image(corrupt.image)


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("workers", [0, 2])
def test_workers_read_the_same_batches_from_zip_files(coco, workers):
    preset = find_preset("cptr", "tiny")
    read = {}
    for name in ("zipped", "unpacked"):
        data = load_dataset(coco / name)
        vocabulary = Vocabulary.build(data.captions("train"), 1)
        processor = ImageProcessor(preset, vocabulary=vocabulary)
        items = [item for item in data["train"] if item.image_id != CORRUPT_ID]
        examples = CaptionDataset(items, vocabulary, inputs=input_transforms(processor))
        sampler = ResumableBatchSampler(partial(batch_by_count, len(examples), 8, 0))
        loader = BatchLoader(examples, sampler, workers=workers)
        read[name] = torch.cat([batch.images for batch in loader])
        loader.close()
    assert torch.equal(read["zipped"], read["unpacked"])
