"""Data sets: real counts, broken files, downloads that fail, batches that lose nothing."""

import gzip
import hashlib
import json
import operator
import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import partial, reduce
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch.utils.data import DataLoader

from captionlab.data import catalog, text_files
from captionlab.data.batches import (
    Batch,
    CaptionDataset,
    ResumableBatchSampler,
    batch_by_count,
    batch_by_tokens,
    collate,
    epoch_permutation,
    padding_fraction,
)
from captionlab.data.catalog import (
    dataset_path,
    download,
    load_dataset,
    register_dataset,
    register_path,
)
from captionlab.data.datasets import (
    CaptionData,
    Item,
    coco_karpathy,
    flickr8k,
    from_files,
    multi30k,
    registry,
    scenes,
)
from captionlab.files import command_line, data_home
from captionlab.models import find_preset
from captionlab.runs.preparation import build_processor
from captionlab.text import Vocabulary

@pytest.fixture(autouse=True)
def _alone(tmp_path, monkeypatch):
    """A cache of its own for every test, and its own folder to work in."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(catalog, "cache_home", lambda: tmp_path / "cache" / "captionlab")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty CAPTIONLAB_DATA."""
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("CAPTIONLAB_DATA", str(tmp_path / "home"))
    return tmp_path / "home"


def picture(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (4, 4)).save(path)


def one_line(what, *parts):
    """Calling it fails with one line that has all these parts."""
    with pytest.raises((ValueError, OSError)) as caught:
        what()
    message = str(caught.value)
    assert "\n" not in message, message
    assert all(part in message for part in parts), message


# Batches


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=80), st.integers(20, 300), st.integers(0, 3)
)
def test_buckets_hold_every_row_once_and_keep_to_the_places(lengths, places, epoch):
    lengths = np.array(lengths)
    batches = batch_by_tokens(lengths, places, epoch=epoch)
    assert sorted(reduce(operator.iadd, batches, [])) == list(range(len(lengths)))
    assert all(len(batch) == 1 or len(batch) * lengths[batch].max() <= places for batch in batches)
    assert 0 <= padding_fraction(lengths, batches) < 1


@given(st.integers(0, 50), st.integers(1, 9), st.none() | st.integers(0, 5), st.integers(0, 5))
def test_batches_by_picture_hold_every_row_once(rows, size, seed, epoch):
    batches = batch_by_count(rows, size, seed, epoch)
    assert sorted(reduce(operator.iadd, batches, [])) == list(range(rows))
    assert all(0 < len(batch) <= size for batch in batches)


def test_two_sided_buckets_count_both_sides():
    lengths = np.array([[3, 30], [3, 4], [3, 4], [3, 30]])
    batches = batch_by_tokens(lengths, max_tokens=66)
    assert sorted(map(sorted, batches)) == [[0, 3], [1, 2]]
    assert padding_fraction(lengths, batches) == 0


@pytest.mark.slow
def test_order_is_the_same_in_another_process():
    code = (
        "from captionlab.data import epoch_permutation; print(epoch_permutation(50, 3, 7).tolist())"
    )
    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert json.loads(printed) == epoch_permutation(50, 3, 7).tolist()
    assert epoch_permutation(50, 3, 7).tolist() != epoch_permutation(50, 7, 3).tolist()


def test_a_resumed_epoch_goes_on_where_it_stopped_with_workers_too():
    items = [
        Item(str(n), tuple(f"{'a ' * (n % 7 + 1)} b{n}" for _ in range(n % 3 + 1)))
        for n in range(40)
    ]
    data = CaptionDataset(items, Vocabulary.build(text for item in items for text in item.captions))
    plan = partial(batch_by_tokens, data.lengths, 40, seed=5)
    batches = []
    for workers, done in ((0, 0), (2, 3)):
        epochs = ResumableBatchSampler(plan)
        epochs.set_epoch(2, done)
        loader = DataLoader(data, batch_sampler=epochs, collate_fn=collate, num_workers=workers)
        batches.append([batch.captions for batch in loader])
        assert len(loader) == len(batches[-1])
    assert len(batches[1]) == len(batches[0]) - 3 > 0
    assert all(torch.equal(a, b) for a, b in zip(batches[0][3:], batches[1], strict=False))


def test_items_with_fewer_captions_get_rows_of_padding():
    items = [Item("a", ("one two three", "one")), Item("b", ("two",))]
    batch = collate([*CaptionDataset(items, Vocabulary.build(["one two three"]))])
    assert batch.captions.shape == (2, 2, 5)
    assert (batch.captions[1, 1] == 0).all()
    assert (batch.captions[1, 0] != 0).any()


def test_a_cut_caption_does_not_claim_to_have_ended():
    words = Vocabulary.build(["one two three four"])
    data = CaptionDataset([Item("a", ("one two three four", "one"))], words, max_length=4)
    long, short = data[0]["captions"]
    assert len(long) == 4
    assert words.eos not in long
    assert short[-1] == words.eos


@pytest.mark.parametrize("max_length", [1, 0, -1])
def test_captions_of_which_nothing_is_left_are_refused(max_length):
    with pytest.raises(ValueError, match=f"cut after {max_length} tokens: .* give 2 or more"):
        CaptionDataset(
            [Item("a", ("one two",))], Vocabulary.build(["one two"]), max_length=max_length
        )


def test_select_and_to_keep_fields_together():
    batch = Batch(grid=torch.arange(6.0).reshape(3, 2, 1), source=torch.arange(3)[:, None])
    chosen = batch.select(torch.tensor([2, 0])).to("cpu")
    assert chosen.source.flatten().tolist() == [2, 0]
    assert chosen.grid[:, 0, 0].tolist() == [4, 0]
    assert len(chosen) == 2
    assert chosen.captions is None
    assert len(Batch()) == 0
    assert batch.select(torch.tensor([True, False, True])).source.flatten().tolist() == [0, 2]


@pytest.mark.parametrize("name", ["images", "grid", "source", "captions"])
def test_a_missing_field_is_named(name):
    one_line(lambda: Batch().require(name), f"reads {name}")
    one_line(lambda: Batch().require("grid"), "captionlab features extract")


def test_no_source_no_items():
    words = Vocabulary.build(["a"])
    one_line(
        lambda: CaptionDataset([Item("x", ("a",))], words, words), "x has no source", "multi30k"
    )
    one_line(lambda: CaptionDataset([], words), "empty")
    one_line(lambda: Item("x", ("a",)).picture(), "no picture")
    one_line(lambda: CaptionData("d", {"train": []})["dev"], "no split 'dev'", "train")


# Scenes


def test_scenes_pair_languages_and_longer_splits_begin_alike():
    short, long = (scenes(train=n, val=1, test=1, novel=1) for n in (2, 5))
    assert long["train"][:2] == short["train"]
    assert len(long["train"]) == 5
    assert short["train"][0].picture(32).size == (32, 32)
    pairs = scenes(train=2, val=0, test=0, novel=0, language="de", source="en")["train"]
    assert [item.source for item in pairs[:5]] == list(short["train"][0].captions)
    assert len(pairs) == 10
    names = [item.name for items in long.splits.values() for item in items]
    assert len(names) == len({*names}) == 8
    assert len(long.annotations("train")["annotations"]) == 25


# Flickr8k


@pytest.fixture
def small8k(tmp_path):
    root = tmp_path / "f8k"
    for name in ("a.jpg", "b.jpg", "c.jpg"):
        picture(root / "images" / name)
    for split, names in (("train", "a.jpg\n"), ("dev", "b.jpg\n"), ("test", "c.jpg\n\n")):
        (root / f"Flickr_8k.{split}Images.txt").write_text(names)
    lines = [
        f"{name}#{k}\tA dog , {k} .  " for name in ("a.jpg", "b.jpg", "c.jpg") for k in range(5)
    ]
    (root / "Flickr8k.token.txt").write_text(
        "\n".join([*lines, "gone.jpg.1#0\tA ghost .", "a.jpg#5\t .", ""])
    )
    return root


def test_flickr8k_skips_the_ghost_the_wordless_and_odd_endings(small8k):
    data = flickr8k(small8k)
    assert data.counts == {"train": 1, "val": 1, "test": 1}
    assert data["train"][0].captions == tuple(f"A dog , {k} ." for k in range(5))


def test_flickr8k_in_the_folders_of_its_archives(small8k):
    (small8k / "Flickr8k_text").mkdir()
    for file in small8k.glob("Flickr*.txt"):
        file.rename(small8k / "Flickr8k_text" / file.name)
    (small8k / "images").rename(small8k / "Flicker8k_Dataset")
    assert load_dataset(small8k).counts["train"] == 1


def broken_token(root):
    lines = (root / "Flickr8k.token.txt").read_text().split("\n")
    lines[6] = lines[6].replace("\t", " ")
    (root / "Flickr8k.token.txt").write_text("\n".join(lines))


@pytest.mark.parametrize(
    ("break_it", "parts"),
    [
        (broken_token, ("Flickr8k.token.txt, line 7", "tab")),
        (
            lambda r: (r / "Flickr8k.token.txt").write_bytes(b"a.jpg#0\tfine\nb.jpg#0\t\xff\n"),
            ("line 2", "UTF-8"),
        ),
        (lambda r: (r / "images/b.jpg").unlink(), ("line 6", "b.jpg", "put it there")),
        (
            lambda r: (r / "Flickr_8k.testImages.txt").write_text("c.jpg\na.jpg\n"),
            ("testImages.txt, line 2", "a.jpg", "train"),
        ),
        (
            lambda r: (r / "Flickr_8k.testImages.txt").write_text("c.jpg\nzz.jpg\n"),
            ("no caption for zz.jpg",),
        ),
        (lambda r: (r / "Flickr_8k.devImages.txt").unlink(), ("Flickr_8k.devImages.txt",)),
        (lambda r: (r / "images").rename(r / "imgs"), ("no images in",)),
    ],
)
def test_broken_flickr8k(small8k, break_it, parts):
    break_it(small8k)
    one_line(lambda: flickr8k(small8k), *parts)


@pytest.mark.slow
def test_flickr8k_is_whole(real_data):
    data = flickr8k(real_data / "flickr8k")
    assert data.counts == {"train": 6000, "val": 1000, "test": 1000}
    assert all(len(item.captions) == 5 for items in data.splits.values() for item in items)


# Multi30K


@pytest.fixture
def small30k(tmp_path):
    root = tmp_path / "m30k"
    root.mkdir()
    for split in ("train", "val", "test_2016_flickr"):
        (root / f"{split}.en").write_text(
            "A dog.\nA\u2028cat.\n"
        )  # a separator that splitlines falls for
        (root / f"{split}.de.gz").write_bytes(gzip.compress(b"Ein Hund. \nEine Katze.\n"))
    return root


def test_multi30k_reads_plain_and_gz_and_both_directions(small30k):
    assert [(i.source, *i.captions) for i in multi30k(small30k)["test"]] == [
        ("A dog.", "Ein Hund."),
        ("A\u2028cat.", "Eine Katze."),
    ]
    assert multi30k(small30k, "de", "en")["val"][0].captions == ("A dog.",)


@pytest.mark.parametrize(
    ("break_it", "parts"),
    [
        (lambda r: (r / "val.en").write_text("A dog.\n"), ("val.en has 1", "has 2")),
        (lambda r: (r / "val.en").write_text("A dog.\n\n"), ("val.en, line 2", "empty")),
        (
            lambda r: (r / "val.de.gz").write_bytes((r / "val.de.gz").read_bytes()[:-9]),
            ("val.de.gz", "cut off"),
        ),
        (
            lambda r: (r / "val.de.gz").write_bytes(b"<html>not found</html>"),
            ("val.de.gz", "broken"),
        ),
        (lambda r: (r / "train.en").unlink(), ("train.en",)),
    ],
)
def test_broken_multi30k(small30k, break_it, parts):
    break_it(small30k)
    one_line(lambda: multi30k(small30k), *parts)


@pytest.mark.slow
def test_multi30k_is_whole(real_data):
    data = multi30k(real_data / "multi30k")
    assert data.counts == {
        "train": 29_000,
        "val": 1_014,
        "test": 1_000,
        "test_2017_flickr": 1_000,
        "test_2017_mscoco": 461,
    }
    assert data.is_official
    assert data["test_2017_mscoco"][0].captions[0].startswith("Ich kann nicht sehen, wohin")


def test_multi30k_has_the_later_test_sets_that_are_there(small30k):
    name = "test_2017_flickr"
    assert list(multi30k(small30k).splits) == ["train", "val", "test"]
    one_line(lambda: multi30k(small30k)[name], "choose from train", "captionlab data get multi30k")
    (small30k / f"{name}.en").write_text("Two cats.\n")
    one_line(lambda: multi30k(small30k), f"{name}.de")
    (small30k / f"{name}.de").write_text("Zwei Katzen.\n")
    items = multi30k(small30k)[name]
    assert [(i.name, i.source, *i.captions) for i in items] == [
        (f"{name}-1", "Two cats.", "Zwei Katzen.")
    ]


def test_the_registry_has_both_files_of_each_later_test_set():
    entry = registry()["multi30k"]
    later = {name for name in entry["items"] if name.startswith("test_")}
    files = {file.split(".")[0] for file in entry["files"]} - {"train", "val", "test_2016_flickr"}
    assert later == files
    assert all({f"{name}.en.gz", f"{name}.de.gz"} <= entry["files"].keys() for name in later)


# COCO with Karpathy's split


@pytest.fixture
def karpathy(tmp_path):
    images = [
        {
            "filepath": "val2014",
            "filename": f"{n}.jpg",
            "cocoid": 100 + n,
            "split": split,
            "sentences": [{"raw": f"Caption {n} {k}."} for k in range(5 + n)],
        }
        for n, split in enumerate(("train", "restval", "val", "test"))
    ]
    for n in range(4):
        picture(tmp_path / "coco/val2014" / f"{n}.jpg")
    (tmp_path / "coco/dataset_coco.json").write_text(
        json.dumps({"images": images, "dataset": "coco"})
    )
    return tmp_path / "coco"


def test_karpathys_restval_trains_and_ids_are_numbers(karpathy):
    data = load_dataset(karpathy)
    assert data.counts == {"train": 2, "val": 1, "test": 1}
    assert data.name == "coco"
    assert data.annotations("test")["images"] == [{"id": 103}]
    assert data["test"][0].picture().size == (4, 4)
    assert load_dataset(karpathy / "dataset_coco.json").counts == data.counts
    assert coco_karpathy(karpathy / "dataset_coco.json")["val"][0].image is None


@pytest.mark.parametrize(
    ("break_it", "parts"),
    [
        (lambda r: (r / "val2014/2.jpg").unlink(), ("images entry 2", "2.jpg")),
        (
            lambda r: (r / "dataset_coco.json").write_text('{"images": [{"filename": "x"}]}'),
            ("images entry 0", "split"),
        ),
        (
            lambda r: (r / "dataset_coco.json").write_text('{"images": [\n'),
            ("dataset_coco.json, line 2", "not JSON"),
        ),
        (
            lambda r: (r / "dataset_coco.json").write_text("[]"),
            ("dataset_coco.json", "found a list"),
        ),
    ],
)
def test_broken_karpathy(karpathy, break_it, parts):
    break_it(karpathy)
    one_line(lambda: load_dataset(karpathy), *parts)


# One's own


@pytest.fixture
def photos(tmp_path):
    for name in ("x.jpg", "y.jpg"):
        picture(tmp_path / "photos" / name)
    return tmp_path / "photos"


def csv_of(photos, text):
    (photos / "me.csv").write_text(text)
    return photos / "me.csv"


def test_own_csv_with_excels_marks_and_quoted_newlines(photos):
    file = csv_of(
        photos,
        '\ufeffimage,caption,split\r\nx.jpg,"A dog,\nat sea",train\r\n'
        "x.jpg,Waves,train\r\ny.jpg,Rain,Dev\r\n",
    )
    data = load_dataset(str(file))
    assert data.counts == {"train": 1, "val": 1, "test": 0}
    assert data["train"][0].captions == ("A dog,\nat sea", "Waves")


def test_own_splits_by_the_hash_of_the_picture(tmp_path):
    for n in range(200):
        picture(tmp_path / "p" / f"{n}.png")
    rows = "".join(f"{n}.png,one {n}\n{n}.png,two {n}\n" for n in range(200))
    data = from_files(csv_of(tmp_path / "p", "image,caption\n" + rows))
    again = from_files(
        csv_of(
            tmp_path / "p", "image,caption\n" + "".join(reversed(rows.splitlines(keepends=True)))
        )
    )
    assert sum(data.counts.values()) == 200
    assert 130 < data.counts["train"] < 190
    assert min(data.counts.values()) > 5
    assert {i.name for i in data["test"]} == {i.name for i in again["test"]}


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("picture,caption\nx.jpg,a\n", ("line 1", "picture, caption")),
        ("", ("line 1", "none")),
        ("image,caption\n", ("no caption",)),
        ("image,caption\nx.jpg,a\ny.jpg,a, b\n", ("line 3", "quotes")),
        ("image,caption\nx.jpg\n", ("line 2",)),
        ("image,caption\nx.jpg,  \n", ("line 2", "empty")),
        ("image,caption\n  ,a dog\n", ("line 2", "expected image,caption")),
        ("image,caption\nx.jpg,a\nx.jpg, ...\n", ("line 3", "empty")),
        ("image,caption,Caption\nx.jpg,a,b\n", ("line 1", "two columns are called caption")),
        (
            "image,caption, Split\nx.jpg,a,train\n./x.jpg,b,test\n",
            ("line 3", "test here and in train in line 2"),
        ),
        ("image,caption\nx.jpg,a\nz.jpg,b\n", ("line 3", "z.jpg")),
        (
            "image,caption,split\nx.jpg,a,train\nx.jpg,b,test\n",
            ("line 3", "test here and in train in line 2"),
        ),
        ("image,caption,split\nx.jpg,a,exam\n", ("line 2", "exam")),
        ('image,caption\nx.jpg,"a\n', ("me.csv, line", "quotes")),
        ('image,"caption\nx.jpg,a\n', ("me.csv, line", "quotes")),
    ],
)
def test_broken_csv(photos, text, parts):
    one_line(lambda: from_files(csv_of(photos, text)), *parts)


def test_columns_may_be_spelt_with_capitals_and_blanks(photos):
    assert from_files(
        csv_of(photos, "Image, Caption,SPLIT\nx.jpg,a,val\n./y.jpg,b,test\n")
    ).counts == {"train": 0, "val": 1, "test": 1}


def test_padding_of_batches_that_come_one_by_one():
    batches = [[0, 1], [2, 3]]
    assert (
        padding_fraction(np.array([3, 5, 9, 4]), iter(batches))
        == padding_fraction(np.array([3, 5, 9, 4]), batches)
        == 0.25
    )


def test_a_file_of_ones_own_is_not_taken_for_a_known_data_set(photos):
    (photos / "flickr8k.csv").write_text("image,caption\nx.jpg,a dog\n")
    assert from_files(photos / "flickr8k.csv").name == "own-flickr8k"
    assert from_files(csv_of(photos, "image,caption\nx.jpg,a\n")).name == "me"


def coco_of(photos, images, notes):
    (photos / "me.json").write_text(json.dumps({"images": images, "annotations": notes}))
    return photos / "me.json"


def test_own_coco_json(photos):
    images = [
        {"id": 7, "file_name": "x.jpg", "split": "train"},
        {"id": 8, "file_name": "y.jpg", "split": "test"},
    ]
    file = coco_of(
        photos,
        images,
        [
            {"image_id": 7, "caption": "a"},
            {"image_id": 8, "caption": "b"},
            {"image_id": 7, "caption": "c"},
        ],
    )
    data = load_dataset(file)
    assert data["train"][0].captions == ("a", "c")
    assert data.annotations("test")["annotations"][0]["image_id"] == 8


@pytest.mark.parametrize(
    ("images", "notes", "parts"),
    [
        (
            [{"id": 7, "file_name": "x.jpg"}],
            [{"image_id": 9, "caption": "a"}],
            ("annotations entry 0", "9"),
        ),
        ([{"id": 7}], [{"image_id": 7, "caption": "a"}], ("annotations entry 0", "file_name")),
        ([{"id": 7, "file_name": "x.jpg"}], [{"image_id": 7}], ("caption",)),
        (
            [{"id": 7, "file_name": "q.jpg"}],
            [{"image_id": 7, "caption": "a"}],
            ("q.jpg", "put it there"),
        ),
        (
            [{"id": 7, "file_name": "x.jpg"}, {"id": 8, "file_name": "./x.jpg"}],
            [{"image_id": 7, "caption": "a"}, {"image_id": 8, "caption": "b"}],
            ("two ids, 7 and 8",),
        ),
    ],
)
def test_broken_coco_json(photos, images, notes, parts):
    one_line(lambda: from_files(coco_of(photos, images, notes)), *parts)


# Found by name


def test_a_relative_home_is_absolute_at_once(tmp_path, monkeypatch):
    (tmp_path / "d").mkdir()
    monkeypatch.setenv("CAPTIONLAB_DATA", "d")
    assert data_home() == tmp_path / "d"


def test_a_home_that_is_not_there_warns(monkeypatch):
    monkeypatch.setenv("CAPTIONLAB_DATA", "/no/such/folder")
    with pytest.warns(UserWarning, match="no such folder"):
        data_home()


@pytest.mark.parametrize("name", ["flickr30k", "scenes"])
def test_only_data_sets_with_files_lie_somewhere(name):
    one_line(
        lambda: dataset_path(name),
        f"no data set with files is called '{name}': choose from flickr8k",
    )


def test_use_checks_before_it_notes(small30k, home):
    (small30k / "val.en").write_text("short\n")
    one_line(lambda: register_path(small30k), "val.en has 1")
    one_line(lambda: dataset_path("multi30k"), "captionlab data get multi30k")
    (small30k / "val.en").write_text("A dog.\nA cat.\n")
    assert register_path(small30k).name == "multi30k"
    assert dataset_path("multi30k") == small30k
    assert load_dataset("multi30k").counts["val"] == 2
    os.rename(small30k, small30k.with_name("moved"))
    one_line(lambda: load_dataset("multi30k"), "captionlab data use FOLDER")
    shutil.copytree(
        small30k.with_name("moved"), data_home() / "multi30k"
    )  # what the line above told to do
    assert dataset_path("multi30k") == data_home() / "multi30k"


def test_a_registered_data_set(home, monkeypatch):
    monkeypatch.setattr("captionlab.data.catalog._OWN_DATASETS", {})
    register_dataset("mine", lambda: scenes(train=2, val=1, test=1, novel=0))
    data = load_dataset("mine")
    assert (data.name, data.origin, data.counts["train"]) == ("mine", "mine", 2)
    one_line(lambda: load_dataset("mime"), "multi30k, coco, mine", "register_dataset")
    one_line(lambda: register_dataset("coco", scenes), "choose another name")


def test_unknown_names_and_folders(tmp_path, home):
    one_line(lambda: load_dataset("cocoa"), "cocoa", "scenes, flickr8k, multi30k, coco")
    one_line(lambda: load_dataset(tmp_path), "no data set")
    one_line(lambda: load_dataset("absent.csv"), "absent.csv")
    one_line(lambda: register_path("absent"), "no folder")
    one_line(lambda: download("imagenet"), "choose from")
    one_line(lambda: download("flickr8k"), "captionlab data use FOLDER")


# Downloads, from a server of our own


class Mirror(BaseHTTPRequestHandler):
    """Serves `files`; `cut` addresses break off half way; `wrong` ones send something else."""

    files, asked = {}, []

    def do_GET(self):
        kind, name = self.path.strip("/").split("/")
        self.asked.append(self.path)
        body = self.files.get(name)
        if body is None:
            return self.send_error(404)
        body = b"something else entirely" if kind == "wrong" else body
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if kind == "cut" else body)
        return None

    def log_message(self, *_):
        pass


@pytest.fixture
def server(small30k, home, monkeypatch):
    """A mirror of the small Multi30K, and a registry that knows its sums."""
    Mirror.files, Mirror.asked = {file.name: file.read_bytes() for file in small30k.iterdir()}, []
    sums = {name: hashlib.sha256(body).hexdigest() for name, body in Mirror.files.items()}
    monkeypatch.setattr(catalog, "registry", lambda: {"multi30k": {"files": sums, "mirrors": []}})
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Mirror)
    Thread(target=httpd.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{httpd.server_port}"
    httpd.shutdown()


def test_download_then_nothing_is_asked_again(server, home):
    assert load_dataset(download("multi30k", [f"{server}/good"])).counts["train"] == 2
    asked = len(Mirror.asked)
    assert download("multi30k", [f"{server}/good"]) == home / "multi30k"
    assert len(Mirror.asked) == asked == 6


@pytest.mark.parametrize("fault", ["cut", "wrong", "gone"])
def test_a_bad_mirror_leaves_nothing_and_the_next_one_is_asked(server, home, fault):
    bad = "http://127.0.0.1:9/x" if fault == "gone" else f"{server}/{fault}"
    one_line(lambda: download("multi30k", [bad]), "could not download", "the same command again")
    assert not [file for file in (home / "multi30k").glob("*") if file.suffix != ".part"]
    download("multi30k", [bad, f"{server}/good"])
    assert load_dataset("multi30k").counts["val"] == 2


def test_a_wrong_checksum_is_named(server):
    one_line(lambda: download("multi30k", [f"{server}/wrong"]), "its checksum is")


def test_an_interrupted_download_goes_on_with_what_is_missing(server, home):
    download("multi30k", [f"{server}/good"])
    (home / "multi30k/val.en").write_text("half")
    (home / "multi30k/train.en").unlink()
    asked = len(Mirror.asked)
    download("multi30k", [f"{server}/good"])
    assert sorted(Mirror.asked[asked:]) == ["/good/train.en", "/good/val.en"]
    assert load_dataset("multi30k").counts["val"] == 2


@pytest.mark.parametrize(
    ("name", "said"), [("7", 7), ("0007", "0007"), ("a7.png", "a7.png"), ("0", 0)]
)
def test_only_a_plain_decimal_name_is_a_number(name, said):
    assert Item(name, ()).image_id == said


_IMAGE, _NOTE = {"id": 1, "file_name": "a.png"}, {"image_id": 1, "caption": "a dog"}


@pytest.mark.parametrize(
    "broken",
    [
        {"images": None, "annotations": []},
        {"images": {}, "annotations": [_NOTE]},
        {"images": [1], "annotations": []},
        {"images": [_IMAGE], "annotations": [_NOTE | {"caption": None}]},
        {"images": [_IMAGE], "annotations": [_NOTE | {"image_id": [1]}]},
        {"images": [_IMAGE | {"file_name": 7}], "annotations": [_NOTE]},
        {"images": [_IMAGE | {"split": 7}], "annotations": [_NOTE]},
        {"images": [{"filename": "a.png", "split": "trian", "sentences": [{"raw": "a dog"}]}]},
        {"images": [{"filename": "a.png", "split": "train", "sentences": [{"raw": None}]}]},
    ],
)
def test_json_with_something_else_in_it_is_one_clear_line(broken, tmp_path):
    (tmp_path / "a.png").touch()
    (tmp_path / "mine.json").write_text(json.dumps(broken))
    with pytest.raises(ValueError, match=r"mine.json") as error:
        load_dataset(tmp_path / "mine.json")
    assert "\n" not in str(error.value)


def test_a_broken_note_of_places_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr(catalog, "cache_home", lambda: tmp_path)
    for text in ("{", "[]", "null", '{"coco": 3}', "[" * 200_000, "9" * 6000):
        (tmp_path / "places.json").write_text(text)
        with pytest.raises(ValueError, match=r"places.json is broken: delete it"):
            load_dataset("coco")


def test_two_pictures_of_one_name_are_refused(photos):
    image = {"id": 1, "file_name": "a.jpg"}
    note = {"image_id": 1, "caption": "a dog"}
    (photos / "twice.json").write_text(
        json.dumps({"images": [image, image | {"file_name": "b.jpg"}], "annotations": [note]})
    )
    with pytest.raises(ValueError, match="two of its images have one id"):
        from_files(photos / "twice.json")


def test_a_csv_may_have_blanks_after_its_commas_and_be_called_in_capitals(photos):
    (photos / "MINE.CSV").write_text('image, caption, split\nx.jpg, "a dog, here", train\n')
    assert load_dataset(photos / "MINE.CSV")["train"][0].captions == ("a dog, here",)


def test_a_caption_without_a_word_is_refused(photos):
    (photos / "mine.csv").write_text("image,caption,split\nx.jpg,!!!,train\n")
    with pytest.raises(
        ValueError, match=r"line 2.*the caption of x.jpg is empty or has no word: write one"
    ):
        load_dataset(photos / "mine.csv")


def test_what_has_the_name_of_a_data_set_may_be_something_else():
    few = CaptionData("flickr8k", {"test": [Item("a", ("a dog",))]})
    assert not few.is_official
    assert not CaptionData("mine", {}).is_official
    assert CaptionData("flickr8k", {"test": few["test"] * 1000}).is_official
    assert scenes(train=1, val=0, test=0, novel=0).is_official


@pytest.mark.parametrize(
    ("lines", "where"),
    [
        (["a.png,one", "a.png,two", '"a.png","Stop" says a sign'], "line 4: .*write quotes in it"),
        (["a.png,one", 'a.png,"two', "a.png,three"], "line 3: .*close the quotes"),
    ],
)
def test_a_badly_quoted_caption_is_reported_with_its_line(tmp_path, lines, where):
    Image.new("RGB", (2, 2)).save(tmp_path / "a.png")
    (tmp_path / "own.csv").write_text("\n".join(["image,caption", *lines, ""]))
    with pytest.raises(ValueError, match=where):
        from_files(tmp_path / "own.csv")


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["一只狗在草地上跑", "两个孩子在海滩上玩"], True),
        (["一 只 狗 在 草地 上 跑", "两 个 孩子 在 海滩 上 玩"], False),
        (["犬が草の上を走っている。"], True),
        (["犬 が 草 の 上 を 走って いる 。"], False),
        (["สุนัขกำลังวิ่งบนสนามหญ้า"], True),
        (["สุนัข กำลัง วิ่ง บน สนามหญ้า"], False),
        (["Ein Hund läuft über die Straße.", "собака бежит по траве"], False),
        (["a dog"] * 20 + ["一只狗在草地上跑"], False),
        ([], False),
    ],
)
def test_scripts_without_blanks_must_be_segmented(texts, expected):
    assert text_files._lack_blanks(texts) == expected


def test_a_data_set_is_shown_in_one_line():
    items = [Item(str(number), ("a dog",)) for number in range(1234)]
    data = CaptionData("mine", {"train": items, "val": items[:2]})
    assert repr(data) == "CaptionData('mine': train 1,234, val 2; en)"
    assert repr(replace(data, source="de")).endswith("; de to en)")


def test_training_on_captions_without_blanks_warns_in_one_line():
    data = CaptionData("mine", {"train": [Item("1", ("一只狗在草地上跑",))]})
    with pytest.warns(UserWarning, match="跑' have no blanks between words") as warned:
        build_processor(data, find_preset("cptr", "tiny"))
    assert len(warned) == 1


def test_suggested_commands_quote_what_a_shell_would_split():
    weights = "/my weights/detector.pth"
    spec = {"kind": "attributes", "backbone": {"name": "resnet50", "weights": weights}}
    words = shlex.split(command_line(spec, "out $1", "my photos"))
    assert words[:4] == ["captionlab", "features", "extract", "my photos"]
    options = dict(zip(words[4::2], words[5::2], strict=True))
    assert options["--weights"] == weights
    assert options["--out"] == "out $1"
