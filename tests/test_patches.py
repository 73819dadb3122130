"""Patches against PyTorch's own cutting and torchvision's Vision Transformer."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torchvision.models.vision_transformer import VisionTransformer

from captionlab.patches import PatchEmbedding, patchify, unpatchify

SIZES = st.integers(1, 5)
few = settings(max_examples=40, deadline=None)


@few
@given(SIZES, SIZES, SIZES, st.integers(1, 4), st.integers(1, 3))
def test_patchify_is_unfold_and_unpatchify_its_inverse(size, rows, columns, channels, batch):
    images = torch.randn(batch, channels, rows * size, columns * size)
    patches = patchify(images, size)
    assert patches.equal(nn.Unfold(size, stride=size)(images).transpose(1, 2))
    assert unpatchify(patches, size, (rows, columns)).equal(images)


@few
@given(SIZES, SIZES, SIZES, st.integers(0, 24))
def test_a_patch_holds_its_own_square(size, rows, columns, which):
    images = torch.randn(1, 3, rows * size, columns * size)
    row, column = divmod(which % (rows * columns), columns)
    square = images[0, :, row * size : (row + 1) * size, column * size : (column + 1) * size]
    assert patchify(images, size)[0, row * columns + column].equal(square.flatten())


@few
@given(SIZES, SIZES, SIZES, st.integers(1, 4), st.integers(1, 9))
def test_embedding_is_patchify_and_linear_with_the_same_gradients(
    size, rows, columns, channels, width
):
    images = torch.randn(2, channels, rows * size, columns * size, dtype=torch.float64)
    ours = PatchEmbedding(size, width, channels).double()
    weight = ours.projection.weight.detach().flatten(1).requires_grad_()
    theirs = nn.functional.linear(patchify(images, size), weight, ours.projection.bias.detach())
    torch.testing.assert_close(ours(images), theirs)
    ours(images).square().sum().backward()
    theirs.square().sum().backward()
    torch.testing.assert_close(ours.projection.weight.grad.flatten(1), weight.grad)


def test_shapes_of_the_cptr_article():
    photo = torch.randn(1, 3, 384, 384)
    unfolded = nn.Unfold(kernel_size=16, stride=16)(photo)
    assert unfolded.shape == (1, 768, 576)
    assert patchify(photo, 16).shape == PatchEmbedding(16, 768)(photo).shape == (1, 576, 768)
    assert patchify(photo, 16).equal(unfolded.permute(0, 2, 1))


def test_torchvision_prepares_its_input_like_this():
    theirs = VisionTransformer(
        image_size=48, patch_size=16, num_layers=1, num_heads=2, hidden_dim=32, mlp_dim=8
    )
    ours = PatchEmbedding(16, 32)
    ours.projection.load_state_dict(theirs.conv_proj.state_dict())
    photos = torch.randn(2, 3, 48, 48)
    torch.testing.assert_close(ours(photos), theirs._process_input(photos))


@pytest.mark.parametrize("shape", [(1, 3, 100, 96), (1, 3, 96, 100), (1, 3, 8, 8), (1, 96, 96, 3)])
@pytest.mark.parametrize("cut", [lambda images: patchify(images, 16), PatchEmbedding(16, 8)])
def test_a_picture_that_does_not_fit_is_refused(cut, shape):
    with pytest.raises(
        ValueError, match=f"{shape[2]} x {shape[3]} pixels is not a multiple of the patch size 16"
    ):
        cut(torch.zeros(shape))


def test_a_grid_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="6 patches do not fill a grid of 2 x 2"):
        unpatchify(torch.zeros(1, 6, 12), 2, (2, 2))
