"""Any image file is read, or the error is one clear line; preprocessing is torchvision's."""

import io
import json
import os
import struct
import warnings
import zlib
from dataclasses import replace

import numpy as np
import pytest
import torch
from feature_helpers import (
    one_line,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torchvision import transforms

from captionlab.features.preprocessing import Preprocess, load_image

WIDTH, HEIGHT = 64, 40


@pytest.fixture(scope="module")
def picture() -> Image.Image:
    """Red on the left, blue on the right, a gradient from top to bottom."""
    pixels = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    pixels[:, : WIDTH // 2, 0], pixels[:, WIDTH // 2 :, 2] = 220, 220
    pixels[..., 1] = np.linspace(0, 200, HEIGHT)[:, None]
    return Image.fromarray(pixels)


def written(picture, path, **how):
    picture.save(path, **how)
    return path


def apart(one, other) -> float:
    """Mean difference of two pictures, in levels of 255."""
    return np.abs(np.asarray(one, float) - np.asarray(other, float)).mean()


class TestLoadImage:
    @pytest.mark.parametrize(
        ("mode", "name"),
        [
            ("RGB", "a.png"),
            ("CMYK", "a.jpg"),
            ("CMYK", "a.tif"),
            ("P", "a.gif"),
            ("P", "a.png"),
            ("YCbCr", "a.jpg"),
            ("RGBA", "a.png"),
            ("RGB", "a.webp"),
            ("RGB", "a.bmp"),
        ],
    )
    def test_colour_survives(self, picture, tmp_path, mode, name):
        path = written(picture.convert(mode), tmp_path / name)
        assert load_image(path).mode == "RGB"
        assert apart(load_image(path), picture) < 13

    @pytest.mark.parametrize("mode", ["L", "1", "LA"])
    def test_grey(self, picture, tmp_path, mode):
        grey = picture.convert("L").convert(mode)
        assert (
            apart(load_image(written(grey, tmp_path / "a.png")), grey.convert("L").convert("RGB"))
            == 0
        )

    @pytest.mark.parametrize("name", ["a.png", "a.tif"])
    def test_sixteen_bits(self, picture, tmp_path, name):
        deep = Image.fromarray(np.asarray(picture.convert("L")).astype(np.uint16) * 257)
        assert (
            apart(load_image(written(deep, tmp_path / name)), picture.convert("L").convert("RGB"))
            == 0
        )

    def test_dark_sixteen_bits_stay_dark(self, tmp_path):
        path = written(Image.fromarray(np.full((4, 4), 200, np.uint16)), tmp_path / "a.png")
        assert np.asarray(load_image(path)).max() == 1

    def test_floats_are_stretched_and_nan_is_black(self, tmp_path):
        path = written(
            Image.fromarray(np.array([[0, 0.5], [np.nan, 1]], np.float32)), tmp_path / "a.tif"
        )
        assert np.asarray(load_image(path))[..., 0].tolist() == [[0, 128], [0, 255]]

    def test_transparent_stands_on_white(self, tmp_path):
        clear = Image.new("RGBA", (8, 8), (0, 0, 0, 0))
        palette = Image.new("RGB", (8, 8), "red").quantize(4)
        for path in (
            written(clear, tmp_path / "a.png"),
            written(palette, tmp_path / "b.png", transparency=palette.getpixel((0, 0))),
        ):
            assert np.asarray(load_image(path)).min() == 255

    @pytest.mark.parametrize("turned", range(1, 9))
    def test_exif_note_is_honoured(self, picture, tmp_path, turned):
        note, undo = (
            Image.Exif(),
            {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4},
        )  # Pillow's names of the ways to turn
        note[274] = turned
        stored = picture.transpose(undo[turned]) if turned in undo else picture
        assert apart(load_image(written(stored, tmp_path / "a.png", exif=note)), picture) == 0

    def test_one_pixel(self, tmp_path):
        path = written(Image.new("RGB", (1, 1), "red"), tmp_path / "a.png")
        assert Preprocess(size=5, resize="crop").pixels(path).tolist() == [[[255, 0, 0]] * 5] * 5

    @pytest.mark.parametrize("name", ["a.jpg", "a.png"])
    @pytest.mark.parametrize("resize", ["stretch", "crop"])
    def test_twenty_thousand_wide(self, picture, tmp_path, name, resize):
        wide = picture.resize((20_000, 300), Image.Resampling.NEAREST)
        pixels = Preprocess(size=32, resize=resize).pixels(written(wide, tmp_path / name))
        ours = np.asarray(picture.resize((32, 32), Image.Resampling.BILINEAR), float)
        assert pixels.shape == (32, 32, 3)
        assert resize == "crop" or apart(pixels, ours) < 5

    def test_large_jpeg_is_not_decoded_in_full(self, picture, tmp_path):
        path = written(picture.resize((3200, 2000)), tmp_path / "a.jpg")
        assert load_image(path, min_size=400).size == (800, 500)
        assert load_image(path).size == (3200, 2000)
        assert load_image(path, min_size=1500).size == (3200, 2000)

    def test_bomb_is_one_line(self, picture, tmp_path, monkeypatch):
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
        with pytest.raises(ValueError, match=r"a.png.*set CAPTIONLAB_MAX_MB") as fault:
            load_image(written(picture, tmp_path / "a.png"))
        one_line(fault)

    def test_too_many_pixels_are_refused_before_they_are_decoded(self, tmp_path, monkeypatch):
        path = tmp_path / "a.png"
        header = struct.pack(">IIBBBBB", 13_300, 13_300, 8, 6, 0, 0, 0)
        chunk = b"IHDR" + header
        size_and_sum = struct.pack(">I", len(header)), struct.pack(">I", zlib.crc32(chunk))
        path.write_bytes(b"\x89PNG\r\n\x1a\n" + size_and_sum[0] + chunk + size_and_sum[1])
        path.write_bytes(path.read_bytes() + b"\0\0\0\0IDAT" + bytes(4))
        with warnings.catch_warnings(action="ignore"):
            with pytest.raises(
                ValueError, match="a.png.*13300 x 13300 pixels would take 675 MB.*512 MB"
            ) as fault:
                load_image(path)
            one_line(fault)
            monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", Image.MAX_IMAGE_PIXELS)
            monkeypatch.setenv("CAPTIONLAB_MAX_MB", "4000")
            with pytest.raises(ValueError, match="a.png as a picture") as fault:
                load_image(path)
        assert "MB" not in one_line(fault)      # now the missing pixels are the reason

    def test_one_limit_is_enough(self, picture, tmp_path, monkeypatch):
        """Who raises ours need not raise Pillow's as well."""
        path = written(picture, tmp_path / "a.png")
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
        monkeypatch.setenv("CAPTIONLAB_MAX_MB", "1")
        assert load_image(path).size == picture.size
        monkeypatch.setenv("CAPTIONLAB_MAX_MB", "0.0078125")
        with pytest.raises(ValueError, match="a.png.*limit of 0.007"):
            load_image(path)

    def test_a_large_jpeg_counts_as_it_is_decoded(self, picture, tmp_path, monkeypatch):
        path = written(picture.resize((1600, 1000)), tmp_path / "a.jpg")
        monkeypatch.setenv("CAPTIONLAB_MAX_MB", "1")
        assert load_image(path, min_size=200).size == (400, 250)
        with pytest.raises(ValueError, match="1600 x 1000 pixels would take 7 MB"):
            load_image(path)

    @pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "I;16", "F"])
    def test_strips_equal_the_whole(self, mode):
        values = np.random.default_rng(0).integers(0, 256, (600, 7, 4), dtype=np.uint8)
        if mode in ("I;16", "F"):
            numbers = values[..., 0].astype(np.uint16 if mode == "I;16" else np.float32) * 3
            image = Image.fromarray(numbers)
            white = 65535 if mode == "I;16" else numbers.max()
            expected = (numbers * np.float32(255 / white)).round()[..., None].repeat(3, 2)
        else:
            image = Image.fromarray(values).convert(mode)
            if mode == "P":
                image.info["transparency"] = 3
            opaque = image.convert("RGBA")
            white = Image.new("RGBA", image.size, "white")
            expected = np.asarray(Image.alpha_composite(white, opaque).convert("RGB"))
        assert image.mode == mode
        assert np.array_equal(np.asarray(load_image(image)), expected)

    def test_a_pipe_does_not_hang(self, tmp_path):
        os.mkfifo(tmp_path / "x.jpg")
        with pytest.raises(ValueError, match="x.jpg is a pipe or a device") as fault:
            load_image(tmp_path / "x.jpg")
        one_line(fault)

    @pytest.mark.parametrize("source", [b"\xff\xd8\xff" * 1000, 7, None, [], object()])
    def test_other_objects_are_one_short_line(self, source):
        with pytest.raises(ValueError, match="a picture is a file or an open image, not") as fault:
            load_image(source)
        assert len(one_line(fault)) < 100

    @pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.gif", "a.tif", "a.webp"])
    def test_cut_off(self, picture, tmp_path, name):
        path = written(picture.resize((300, 300)), tmp_path / name)
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        with pytest.raises(ValueError, match=name) as fault:
            load_image(path)
        one_line(fault)

    @pytest.mark.parametrize(
        "content", [b"", b"Dear diary,\nit rained.\n", b"\xff\xd8\xff", b"GIF89a", bytes(5000)]
    )
    def test_not_a_picture(self, tmp_path, content):
        (tmp_path / "holiday.jpg").write_bytes(content)
        with pytest.raises(ValueError, match=r"holiday.jpg") as fault:
            load_image(tmp_path / "holiday.jpg")
        one_line(fault)

    def test_missing_file_and_folder(self, tmp_path):
        with pytest.raises(FileNotFoundError, match=r"gone.jpg") as fault:
            load_image(tmp_path / "gone.jpg")
        one_line(fault)
        with pytest.raises(ValueError, match="is a folder: name a picture in it"):
            load_image(tmp_path)

    @settings(max_examples=150, deadline=None)
    @given(
        kind=st.sampled_from(["JPEG", "PNG", "GIF", "TIFF", "BMP"]),
        where=st.floats(0, 1),
        byte=st.integers(0, 255),
    )
    def test_any_damage_is_a_picture_or_a_line(self, tmp_path_factory, kind, where, byte):
        file = io.BytesIO()
        Image.linear_gradient("L").resize((24, 24)).save(file, kind)
        data = bytearray(file.getvalue())
        data[int(where * (len(data) - 1))] = byte
        path = tmp_path_factory.mktemp("damaged") / "a"
        path.write_bytes(data)
        with warnings.catch_warnings(action="ignore"):
            try:
                assert load_image(path).mode == "RGB"
            except ValueError as error:
                message = str(error)
            else:
                return
        assert "\n" not in message
        assert str(path) in message

    def test_original_is_left_alone(self, picture):
        load_image(picture).putpixel((0, 0), (1, 2, 3))
        assert picture.getpixel((0, 0)) != (1, 2, 3)


class TestPreprocess:
    @pytest.mark.parametrize("size", [(640, 480), (333, 500), (227, 227), (100, 900)])
    def test_equals_torchvision(self, picture, size):
        photo = picture.resize(size, Image.Resampling.BICUBIC)
        mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
        finish = [transforms.ToTensor(), transforms.Normalize(mean, std)]
        stretch = transforms.Compose([transforms.Resize((96, 96)), *finish])(photo)
        torch.testing.assert_close(Preprocess(size=96)([photo])[0], stretch, rtol=0, atol=1e-5)
        crop = transforms.Compose([transforms.Resize(96), transforms.CenterCrop(96), *finish])(
            photo
        )
        assert (Preprocess(size=96, resize="crop")([photo])[0] - crop).abs().mean() < 0.03

    @pytest.mark.parametrize(
        "window", [(0, 0, 0.8, 0.8), (0.2, 0.25, 1, 1), (0.5, 0.5, 0.75, 0.55)]
    )
    def test_window_equals_torchvisions_crop(self, picture, window):
        photo = picture.resize((400, 600), Image.Resampling.BICUBIC)
        left, top, right, bottom = (
            round(share * side) for share, side in zip(window, photo.size * 2, strict=False)
        )
        theirs = transforms.functional.resized_crop(
            photo, top, left, bottom - top, right - left, [64, 64]
        )
        ours = Preprocess(size=64, window=window)
        assert np.abs(ours.pixels(photo).astype(float) - np.array(theirs)).mean() < 2
        assert (replace(ours, mirror=True).pixels(photo) == ours.pixels(photo)[:, ::-1]).all()

    def test_crop_takes_the_middle_of_the_window(self, picture):
        photo = picture.resize((400, 600), Image.Resampling.BICUBIC)
        middle = Preprocess(size=64, resize="crop", window=(0, 0.5, 1, 1)).pixels(photo)
        assert (middle == Preprocess(size=64, window=(0.125, 0.5, 0.875, 1)).pixels(photo)).all()

    @pytest.mark.slow
    def test_small_windows_of_large_jpegs_are_sharp(self, picture, tmp_path):
        picture.resize((4000, 4000), Image.Resampling.BICUBIC).save(
            tmp_path / "large.jpg", quality=95
        )
        ours = Preprocess(size=64, window=(0.4, 0.4, 0.42, 0.42))
        with Image.open(tmp_path / "large.jpg") as whole:
            assert (
                np.abs(
                    ours.pixels(tmp_path / "large.jpg").astype(float) - ours.pixels(whole.copy())
                ).mean()
                < 1
            )

    def test_survives_json(self):
        choices = Preprocess(
            size=99,
            resize="crop",
            interpolation="bicubic",
            mean=(0.5, 0.5, 0.5),
            mirror=True,
            window=(0, 0, 0.5, 1),
        )
        assert Preprocess.from_dict(json.loads(json.dumps(choices.to_dict()))) == choices

    def test_every_choice_changes_the_fingerprint(self):
        other = {
            "size": 99,
            "resize": "crop",
            "interpolation": "bicubic",
            "mean": (0.5, 0.5, 0.5),
            "std": (0.5, 0.5, 0.5),
        }
        assert (
            other.keys() == Preprocess().to_dict().keys()
        )  # those that came later are told only if they are not plain
        other |= {"mirror": True, "window": (0, 0, 1, 0.9)}
        prints = {Preprocess(**{name: value}).fingerprint for name, value in other.items()} | {
            Preprocess().fingerprint
        }
        assert len(prints) == 8

    @pytest.mark.parametrize(
        "wrong",
        [
            {"size": 0},
            {"resize": "squash"},
            {"interpolation": "nearest"},
            {"std": (1, 0, 1)},
            {"mean": (1, 1)},
            {"window": (0, 0, 227, 227)},
            {"window": (0.5, 0, 0.5, 1)},
            {"window": (0, 0.6, 1, 0.4)},
        ],
    )
    def test_wrong_choice_is_one_line(self, wrong):
        with pytest.raises(
            ValueError, match=r"no such preprocessing|three numbers|window"
        ) as fault:
            Preprocess(**wrong)
        one_line(fault)
