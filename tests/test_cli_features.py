"""`captionlab features extract` finds images and fills stores of every kind."""

from pathlib import Path

import pytest
from feature_helpers import extract, one_line, write_pictures
from PIL import Image

from captionlab.data.picture_decoding import find_images
from captionlab.features.extraction import extract_features
from captionlab.features.store import FeatureStore

SIZE, COUNT, CHUNK = 48, 60, 4


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> Path:
    """A folder of small pictures, two of which are broken."""
    return write_pictures(tmp_path_factory.mktemp("pictures"), COUNT)


class TestFind:
    def test_folders_lists_and_files(self, pictures, tmp_path):
        (tmp_path / "sub").mkdir()
        for name in ("b.JPG", "sub/a.png"):
            Image.new("RGB", (2, 2)).save(tmp_path / name, "PNG")
        (tmp_path / "notes.md").write_text("no picture")
        (tmp_path / "list.txt").write_text("sub/a.png\n\nb.JPG\n")
        assert list(find_images(tmp_path)) == ["b.JPG", "sub/a.png"]
        assert find_images(tmp_path / "list.txt") == {
            "a.png": tmp_path / "sub/a.png",
            "b.JPG": tmp_path / "b.JPG",
        }
        assert len(find_images(pictures)) == COUNT

    def test_faults_are_one_line(self, tmp_path, pictures):
        for source, error, says in [
            ([tmp_path / "gone"], FileNotFoundError, "no folder or picture"),
            ([tmp_path], ValueError, "no pictures in"),
            ([pictures, pictures], ValueError, "same name"),
        ]:
            with pytest.raises(error, match=says) as fault:
                find_images(*source)
            one_line(fault)


class TestCommand:
    def test_unknown_kind_is_one_line(self, pictures, tmp_path):
        with pytest.raises(
            ValueError, match="no features of kind 'words': choose from grid"
        ) as fault:
            extract_features([pictures], tmp_path / "out", kind="words")
        one_line(fault)

    def test_makes_a_store_and_tells(self, pictures, tmp_path):
        out = tmp_path / "out"
        told = extract(
            f"{pictures} --weights none --grid 2x1 --size {SIZE} --resize crop --out {out}"
        )
        store = FeatureStore.open(out)
        assert "58 pictures, 2 x 512 each" in told
        assert told.count("skipped:") == 2
        assert "011b.jpg" in told
        assert store.spec["preprocess"]["resize"] == "crop"
        assert store.spec["grid"] == [2, 1]
        with pytest.raises(
            ValueError,
            match="--backbone squeezenet1_1 --weights none --grid 2x1 "
            f"--size {SIZE} --resize crop --out",
        ):
            FeatureStore.open(tmp_path / "out", expect=store.spec | {"batch": 99})

    def test_makes_a_pyramid_and_tells(self, pictures, tmp_path):
        options = f"{pictures} --weights none --size {SIZE} --kind pyramid --out {tmp_path / 'out'}"
        assert "58 pictures, low 6 x 256 and high 1 x 512 each" in extract(
            f"{options} --grid 3x2,1"
        )
        assert FeatureStore.open(tmp_path / "out").spec["grid"] == {"low": [3, 2], "high": [1, 1]}
        for grid, says in (("7", "two, the fine one first"), ("7,x", "--grid is a number")):
            assert says in extract(f"{options} --grid {grid}")

    @pytest.mark.parametrize("grid", ["0", "7x", "seven", "1x2x3", "-1"])
    def test_wrong_grid_is_one_line(self, pictures, tmp_path, grid):
        told = extract(f"{pictures} --out {tmp_path / 'out'} --weights none --grid={grid}")
        assert "--grid is a number" in told
        assert len(told.splitlines()) == 1


@pytest.mark.slow
def test_real_photos(real_data, tmp_path):
    """Some photos of Flickr8k through the command's function, with the real weights."""
    photos = [str(file) for file in sorted((real_data / "flickr8k" / "images").glob("*.jpg"))[:12]]
    store = extract_features(
        photos, tmp_path / "out", weights=str(real_data / "weights" / "squeezenet1_1.pth"), grid=7
    )
    assert len(store) == 12
    assert store.shape == (49, 512)
    assert not store.skipped
    assert store[store.names].std() > 0.1


def test_a_list_from_another_editor(pictures, tmp_path):
    (tmp_path / "list.txt").write_text(
        f"\ufeff{pictures / '000.png'} \n\n{pictures / '001.jpg'}\t\n", encoding="utf-8"
    )
    assert {*find_images(tmp_path / "list.txt")} == {"000.png", "001.jpg"}
    assert all(Path(file).exists() for file in find_images(tmp_path / "list.txt").values())


def test_features_of_nothing_are_an_error(tmp_path):
    (tmp_path / "broken.png").write_bytes(b"no picture")
    with pytest.raises(ValueError, match=r"none of these pictures .*broken.png"):
        extract_features([tmp_path], tmp_path / "out", weights="none", size=64)
