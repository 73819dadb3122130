"""Everything that counts as a picture gives the same pixels; what is none is one clear line."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

from captionlab.features.preprocessing import load_image
from captionlab.features.picture_inputs import image_source, is_one_picture

PIXELS = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)


def png():
    file = io.BytesIO()
    Image.fromarray(PIXELS).save(file, "PNG")
    return file


@pytest.mark.parametrize(
    "picture",
    [
        PIXELS,
        PIXELS / 255,
        torch.tensor(PIXELS).permute(2, 0, 1),
        torch.tensor(PIXELS / 255).permute(2, 0, 1),
        Image.fromarray(PIXELS),
        png(),
        png().getvalue(),
    ],
)
def test_every_kind_gives_the_same_pixels(picture):
    assert is_one_picture(picture)
    assert np.array_equal(np.asarray(load_image(image_source(picture))), PIXELS)


@pytest.mark.parametrize(
    ("picture", "line"),
    [
        (np.zeros((3, 8, 8)), "not a picture"),
        (np.zeros((8, 8, 3), int), "uint8"),
        (PIXELS / 255 - 0.5, "normalised"),
        (torch.zeros(8, 8, 3), "not a picture"),
        (io.StringIO("text"), "mode 'rb'"),
        (7, "not a picture"),
        (b"no picture", "not a picture"),
    ],
)
def test_what_is_no_picture_is_one_line(picture, line):
    with pytest.raises(ValueError, match=line) as caught:
        load_image(image_source(picture))
    assert "\n" not in str(caught.value)


def test_a_folder_is_no_picture(tmp_path):
    with pytest.raises(ValueError, match="is a folder"):
        load_image(image_source(tmp_path))
    assert not is_one_picture(tmp_path.glob("*.jpg"))
    assert not is_one_picture(torch.zeros(2, 3, 8, 8))
