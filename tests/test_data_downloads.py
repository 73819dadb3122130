"""COCO's archives in small: written, served, downloaded in pieces, unpacked, checked."""

import hashlib
import json
import shutil
from zipfile import ZipFile

import pytest
from PIL import Image
from typer.testing import CliRunner

from captionlab.cli import application
from captionlab.course.miniature import (
    CORRUPT_ID,
    REGION_WIDTH,
    RangeHandler,
    miniature_pictures,
    serve,
    write_archives,
    write_regions,
)
from captionlab.data import catalog, downloads
from captionlab.data.catalog import check_pictures, download, load_dataset
from captionlab.data.datasets import CaptionData, Item, registry
from captionlab.data.downloads import Archive, fetch_file, get_archives
from captionlab.features.boxes import open_boxes

@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A folder with the miniature's archives."""
    return write_archives(tmp_path_factory.mktemp("served"), count=40)


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty data folder."""
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("CAPTIONLAB_DATA", str(tmp_path / "home"))
    monkeypatch.delenv("CAPTIONLAB_MIRROR", raising=False)
    monkeypatch.setattr(catalog, "cache_home", lambda: tmp_path / "cache")
    monkeypatch.setattr(downloads, "_WAIT", 0.0)
    return tmp_path / "home"


def coco_archives():
    return [
        Archive(**one | {"members": tuple(one.get("members", ("*",)))})
        for one in registry()["coco"]["archives"]
    ]


# The miniature


def test_the_miniature_has_the_names_ids_and_splits_of_coco(served):
    with ZipFile(served / "caption_datasets.zip") as archive:
        karpathy = json.loads(archive.read("dataset_coco.json"))
    images = karpathy["images"]
    assert karpathy["dataset"] == "coco"
    assert {image["split"] for image in images} == {"train", "restval", "val", "test"}
    for image in images:
        folder = "train2014" if image["split"] == "train" else "val2014"
        assert image["filepath"] == folder
        assert image["filename"] == f"COCO_{folder}_{image['cocoid']:012}.jpg"
        assert len(image["sentences"]) == len(image["sentids"]) == 5
    with ZipFile(served / "annotations_trainval2014.zip") as archive:
        listed = json.loads(archive.read("annotations/captions_val2014.json"))
    names = {image["file_name"] for image in listed["images"]}
    assert names == {image["filename"] for image in images if image["filepath"] == "val2014"}
    with ZipFile(served / "val2014.zip") as archive:
        assert {f"val2014/{name}" for name in names} == set(archive.namelist())


def test_the_miniature_is_the_same_each_time(tmp_path, served):
    again = write_archives(tmp_path, count=40)
    assert (again / "train2014.zip").stat().st_size == (served / "train2014.zip").stat().st_size
    ids = [picture.image_id for picture in miniature_pictures(40)]
    assert ids == [picture.image_id for picture in miniature_pictures(40)]
    assert CORRUPT_ID in ids


def test_the_regions_are_read_as_those_of_bottom_up_attention(tmp_path):
    file = open_boxes(write_regions(tmp_path / "regions.tsv", count=20))
    picture = miniature_pictures(20)[3]
    regions = file[picture.file_name]
    assert regions.features.shape == (len(picture.scene.objects), REGION_WIDTH)
    assert regions.boxes.numpy() == pytest.approx(picture.scene.boxes, abs=1e-6)


# Downloads


def test_a_download_that_was_interrupted_asks_for_the_rest_alone(tmp_path, served, monkeypatch):
    asked = []
    plain = RangeHandler.do_GET

    def note(handler):
        asked.append(handler.headers.get("Range"))
        plain(handler)

    monkeypatch.setattr(RangeHandler, "do_GET", note)
    content = (served / "train2014.zip").read_bytes()
    (tmp_path / "train2014.zip.part").write_bytes(content[:5000])
    with serve(served) as address:
        fetch_file([f"{address}/train2014.zip"], tmp_path / "train2014.zip")
    assert asked == ["bytes=5000-"]
    assert (tmp_path / "train2014.zip").read_bytes() == content


def test_a_connection_that_breaks_off_is_taken_up_again(tmp_path, served, monkeypatch, home):
    plain = RangeHandler.do_GET
    broken = iter([3000, 4000])

    def break_off(handler):
        size = next(broken, None)
        if size is None:
            plain(handler)
            return
        content = (served / "val2014.zip").read_bytes()
        start = int((handler.headers.get("Range") or "bytes=0-")[6:-1])
        handler.send_response(206 if start else 200)
        handler.send_header("Content-Length", str(len(content) - start))
        handler.end_headers()
        handler.wfile.write(content[start:start + size])

    monkeypatch.setattr(RangeHandler, "do_GET", break_off)
    with serve(served) as address:
        fetch_file([f"{address}/val2014.zip"], tmp_path / "val2014.zip")
    assert (tmp_path / "val2014.zip").read_bytes() == (served / "val2014.zip").read_bytes()


def test_a_wrong_file_is_deleted_and_named(tmp_path, served):
    with serve(served) as address, pytest.raises(OSError, match=r"its checksum is .*, not 0000"):
        fetch_file([f"{address}/val2014.zip"], tmp_path / "val2014.zip", "0" * 64)
    assert list(tmp_path.iterdir()) == []


def test_each_mirror_is_tried_and_named(tmp_path, served):
    with serve(served) as address:
        addresses = [f"{address}/absent.zip", "http://127.0.0.1:9/x", f"{address}/val2014.zip"]
        fetch_file(addresses, tmp_path / "val2014.zip")
        with pytest.raises(OSError, match=r"404 .*127.0.0.1:9/x.* give the same command again"):
            fetch_file(addresses[:2], tmp_path / "other.zip")


def test_too_small_a_disk_is_found_before_the_download(tmp_path, served, monkeypatch):
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with (
        serve(served) as address,
        pytest.raises(OSError, match=r"0.0 GB are free: free some, or set CAPTIONLAB_DATA"),
    ):
        get_archives(coco_archives(), tmp_path / "coco", mirrors=[address])
    assert not (tmp_path / "coco").exists()


def test_coco_needs_34_gigabytes():
    sizes = {archive: archive.size for archive in coco_archives()}
    assert downloads._space_needed(sizes) == pytest.approx(34e9, rel=0.01)


def test_every_archive_of_coco_has_a_checksum_and_a_size():
    for archive in coco_archives():
        assert len(archive.sha256) == 64
        assert archive.size > 10**7


def test_a_checksum_that_is_not_known_is_recorded_and_compared_later(tmp_path, served):
    source = tmp_path / "source"
    source.mkdir()
    shutil.copy(served / "val2014.zip", source)
    archive = Archive("val2014.zip", "", 1000, 1000)
    with serve(source) as address:
        get_archives([archive], tmp_path / "coco", mirrors=[address])
        record = json.loads((tmp_path / "coco" / "downloads.json").read_text())
        checksum = hashlib.sha256((served / "val2014.zip").read_bytes()).hexdigest()
        assert record["val2014.zip"]["sha256"] == checksum
        # The same archive once more, which is another file now.
        record["val2014.zip"].pop("unpacked")
        (tmp_path / "coco" / "downloads.json").write_text(json.dumps(record))
        shutil.copy(served / "train2014.zip", source / "val2014.zip")
        with pytest.raises(OSError, match="its checksum is"):
            get_archives([archive], tmp_path / "coco", mirrors=[address])


def test_unpacking_goes_on_and_stays_in_its_folder(tmp_path, served):
    number = downloads._unpack(served / "val2014.zip", tmp_path)
    files = sorted((tmp_path / "val2014").iterdir())
    assert number == len(files)
    files[0].write_bytes(b"half")
    times = {file: file.stat().st_mtime_ns for file in files[1:]}
    downloads._unpack(served / "val2014.zip", tmp_path)
    assert files[0].stat().st_size > 4
    assert times == {file: file.stat().st_mtime_ns for file in files[1:]}
    with ZipFile(tmp_path / "bad.zip", "w") as archive:
        archive.writestr("../outside.txt", "no")
    with pytest.raises(ValueError, match="do not use it"):
        downloads._unpack(tmp_path / "bad.zip", tmp_path / "inside")
    (tmp_path / "cut.zip").write_bytes((served / "val2014.zip").read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"cut.zip is damaged .*: delete it and get it again"):
        downloads._unpack(tmp_path / "cut.zip", tmp_path / "inside")


# Unreadable pictures


@pytest.mark.slow
def test_coco_is_downloaded_checked_and_loaded_without_the_corrupt_picture(home, served):
    with serve(served) as address:
        folder = download("coco", [address])
    assert sorted(file.name for file in folder.iterdir()) == [
        "annotations", "dataset_coco.json", "downloads.json", "train2014", "val2014"]
    assert list(check_pictures("coco")) == [str(CORRUPT_ID)]
    with pytest.warns(UserWarning, match="COCO_train2014_000000167126.jpg cannot be read"):
        data = load_dataset("coco")
    assert data.counts == {"train": 27, "val": 6, "test": 6}
    assert data.left_out == {"train": 1}
    assert all(item.image_id != CORRUPT_ID for item in data["train"])


def test_a_data_set_without_its_unreadable_pictures_is_still_official(monkeypatch):
    items = [Item(str(number), ("a dog",)) for number in range(3)]
    data = CaptionData("coco", {"train": items}, left_out={"train": 113_284})
    assert data.is_official
    assert not CaptionData("coco", {"train": items}).is_official


def test_a_list_of_unreadable_pictures_goes_when_all_can_be_read(tmp_path):
    Image.new("RGB", (8, 8)).save(tmp_path / "a.jpg")
    whole = (tmp_path / "a.jpg").read_bytes()
    (tmp_path / "b.jpg").write_bytes(whole[:300])
    (tmp_path / "own.csv").write_text("image,caption\na.jpg,x\nb.jpg,y\n")
    assert list(check_pictures(tmp_path / "own.csv")) == ["b.jpg"]
    with pytest.warns(UserWarning, match="own: b.jpg cannot be read and is left out"):
        assert [item.name for item in load_dataset(tmp_path / "own.csv").items] == ["a.jpg"]
    (tmp_path / "b.jpg").write_bytes(whole)
    assert check_pictures(tmp_path / "own.csv") == {}
    assert len(load_dataset(tmp_path / "own.csv").items) == 2


# The command


@pytest.mark.slow
def test_the_command_takes_a_mirror_from_an_option_or_the_environment(home, served, monkeypatch):
    runner = CliRunner()
    with serve(served) as address:
        words = ["data", "get", "coco", "--mirror", address]
        with pytest.warns(UserWarning, match="left out"):
            result = runner.invoke(application.app, words)
        assert result.exit_code == 0, result.output
        assert "cannot be read and is left out: 167126" in result.stdout
        assert "train 27, val 6, test 6" in result.stdout
        shutil.rmtree(home / "coco")
        monkeypatch.setenv("CAPTIONLAB_MIRROR", address)
        with pytest.warns(UserWarning, match="left out"):
            result = runner.invoke(application.app, ["data", "get", "coco"])
        assert result.exit_code == 0, result.output
    with pytest.warns(UserWarning, match="left out"):
        result = runner.invoke(application.app, ["data", "get", "coco"])     # nothing is asked
    assert result.exit_code == 0, result.output
    result = runner.invoke(application.app, ["data", "check", "coco"])
    assert "1 of the pictures cannot be read" in result.stdout
