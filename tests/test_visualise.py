"""Figures hold the numbers they were given, and say no to what does not fit."""

import re

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.patches import Rectangle

from captionlab.visualise import (
    INK,
    PAPER,
    as_picture,
    heads,
    heatmap,
    over_boxes,
    over_patches,
    over_words,
    panels,
    stretch,
    use_style,
    weight_colours,
)

PICTURE = np.full((12, 18, 3), 128, np.uint8)


@pytest.fixture(autouse=True)
def light_style():
    use_style()
    yield
    plt.close("all")


def frames(ax) -> list[tuple[float, float]]:
    """Left top corners of the frames in an axes."""
    return [patch.get_xy() for patch in ax.patches if isinstance(patch, Rectangle)]


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 40), st.integers(1, 40))
def test_stretch_equals_asking_every_pixel_for_its_cell(h, w, height, width):
    cells = np.arange(h * w).reshape(h, w)
    expected = [
        [cells[y * h // height, x * w // width] for x in range(width)] for y in range(height)
    ]
    assert (stretch(cells, height, width) == expected).all()


@pytest.mark.parametrize("dark", [False, True])
def test_zero_is_the_paper_and_one_the_accent(dark):
    use_style(dark)
    theme = "dark" if dark else "light"
    ax = heatmap(torch.tensor([[0.0, 1.0]]))
    colours = ax.images[0].to_rgba(np.array([0.0, 1.0]))[:, :3]
    np.testing.assert_allclose(colours[0], mpl.colors.to_rgb(PAPER[theme]), atol=0.01)
    np.testing.assert_allclose(colours, weight_colours(theme)([0.0, 1.0])[:, :3], atol=0.01)


def test_heatmap_holds_its_numbers_and_leaves_zero_blank():
    ax = heatmap(torch.tensor([[0.25, 0.75, 0.0]]), ["red"], ["a", "b", "c"])
    assert [text.get_text() for text in ax.texts] == [".25", ".75"]
    assert "full colour = 1" in ax.get_xlabel()


def test_numbers_of_one_and_more_are_written_out():
    assert [
        text.get_text() for text in heatmap(torch.tensor([[1.0, 10.0, 0.5]]), vmax=10.0).texts
    ] == ["1.00", "10.00", ".50"]


@pytest.mark.parametrize("weight", [0.1, 0.5, 0.69, 0.71, 1.0])
def test_numbers_can_be_read_on_their_cell(weight):
    ax = heatmap(torch.tensor([[weight]]))
    written, cell = ax.texts[0].get_color(), weight_colours()(weight)
    other = PAPER["light"] if written == INK["light"] else INK["light"]
    assert contrast(written, cell) >= contrast(other, cell) - 0.6
    assert contrast(written, cell) > 3.5


def contrast(a, b) -> float:
    """WCAG contrast ratio."""

    def luminance(colour):
        rgb = np.array(mpl.colors.to_rgb(colour))
        return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4) @ [
            0.2126,
            0.7152,
            0.0722,
        ]

    low, high = sorted(map(luminance, (a, b)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: heatmap(torch.rand(2, 3, 4)), "choose a picture and a head"),
        (lambda: heatmap(torch.rand(2, 3), ["one"], []), "1 queries"),
        (
            lambda: over_patches(PICTURE, torch.rand(6), (2, 2)),
            "6 weights do not fill a grid of 2 x 2",
        ),
        (lambda: over_words(PICTURE, ["a"], torch.rand(2, 6), (2, 3)), "1 words but 2 rows"),
        (lambda: over_words(PICTURE, [], torch.rand(0, 6), (2, 3)), "no words to draw"),
        (lambda: over_boxes(PICTURE, torch.rand(3, 4), torch.rand(2)), "give (N, 4) and (N,)"),
        (lambda: as_picture(np.zeros((4, 4))), "a picture has shape"),
        (lambda: as_picture(np.full((4, 4, 3), 200.0)), "give bytes"),
        (lambda: as_picture(np.full((4, 4, 3), np.nan)), "give bytes"),
    ],
)
def test_what_does_not_fit_is_one_clear_line(call, words):
    with pytest.raises(ValueError, match=re.escape(words)) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_the_largest_cell_is_framed_in_its_own_row_and_column():
    weights = torch.full((6,), 0.1)
    weights[4] = 0.5  # row 1, column 1 of 2 x 3
    assert frames(over_patches(PICTURE, weights, (2, 3))) == [(1 * 6 - 0.5, 1 * 6 - 0.5)]


def test_equal_cells_are_framed_alike_and_even_attention_not_at_all():
    assert (
        len(frames(over_patches(PICTURE, torch.tensor([0.4, 0.4, 0.1, 0.1, 0.0, 0.0]), (2, 3))))
        == 2
    )
    nearly = torch.tensor([0.4, 0.398, 0.39, 0.0, 0.0, 0.0])      # within a hundredth, and without
    assert len(frames(over_patches(PICTURE, nearly, (2, 3)))) == 2
    assert frames(over_patches(PICTURE, torch.full((6,), 1 / 6), (2, 3))) == []


def test_words_share_one_scale():
    fig = over_words(PICTURE, ["strong", "faint"], torch.tensor([[1.0, 0.0], [0.1, 0.1]]), (1, 2))
    strong, faint = (ax.images[0].get_array() for ax in fig.axes[:2])
    np.testing.assert_allclose(strong[0, 0], as_picture(PICTURE)[0, 0])
    assert (faint[0, 0] > strong[0, 0]).all()  # nearer to white paper


def test_no_box_is_a_picture_without_boxes():
    assert frames(over_boxes(PICTURE, torch.zeros(0, 4), torch.zeros(0))) == []


def test_channels_first_and_bytes_are_the_same_picture():
    tensor = torch.from_numpy(PICTURE.copy()).permute(2, 0, 1) / 255
    np.testing.assert_allclose(as_picture(tensor), as_picture(PICTURE), atol=1e-6)
    np.testing.assert_allclose(as_picture(tensor.bfloat16()), as_picture(PICTURE), atol=4e-3)
    np.testing.assert_allclose(as_picture(PICTURE[:, ::-1]), as_picture(PICTURE)[:, ::-1])


@pytest.mark.slow
@given(st.integers(1, 13), st.integers(1, 6))
def test_panels_are_as_many_as_asked_for(count, columns):
    fig, axes = panels(count, columns, size=0.5)
    assert len(axes) == count
    plt.close(fig)


def test_heads_draws_one_table_a_head():
    assert len(heads(torch.rand(3, 2, 2), ["a", "b"], ["a", "b"]).axes) >= 3
