"""Masks against plain loops, against PyTorch's conventions, and against leaks."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from captionlab.attention import MultiHeadAttention, attend
from captionlab.masks import causal_mask, length_mask, padding_mask, target_mask
from captionlab.pytorch_layers import copy_attention

SIZE = st.integers(1, 6)
TWO_OR_THREE_AXES = st.integers(2, 3)


@st.composite
def batches(draw, axes=TWO_OR_THREE_AXES):
    """Word numbers of any small shape with padding anywhere, and the number that pads."""
    shape = [draw(SIZE) for _ in range(draw(axes))]
    numbers = draw(
        st.lists(st.integers(0, 3), min_size=math.prod(shape), max_size=math.prod(shape))
    )
    return torch.tensor(numbers).reshape(shape), draw(st.integers(0, 3))


@settings(deadline=None)
@given(batches())
def test_padding_mask_asks_every_word(batch):
    tokens, pad = batch
    rows = tokens.reshape(-1, tokens.shape[-1]).tolist()
    expected = [[[[word != pad for word in row]]] for row in rows]
    assert padding_mask(tokens, pad).tolist() == expected


@settings(deadline=None)
@given(batches())
def test_target_mask_asks_every_pair(batch):
    tokens, pad = batch
    rows = tokens.reshape(-1, tokens.shape[-1]).tolist()
    expected = [
        [[[s <= t and word != pad for s, word in enumerate(row)] for t in range(len(row))]]
        for row in rows
    ]
    assert target_mask(tokens, pad).tolist() == expected


@settings(deadline=None)
@given(st.lists(st.integers(0, 7), max_size=5), st.none() | st.integers(1, 9))
def test_length_mask_counts(counts, max_length):
    mask = length_mask(torch.tensor(counts, dtype=torch.long), max_length)
    places = max(counts, default=0) if max_length is None else max_length
    assert mask.tolist() == [[[[place < count for place in range(places)]]] for count in counts]


@settings(deadline=None)
@given(st.integers(0, 9))
def test_causal_mask_hides_the_future_and_shows_the_diagonal(length):
    mask = causal_mask(length)
    assert mask.shape == (1, 1, length, length)
    assert all(mask[0, 0, t, s].item() == (s <= t) for t in range(length) for s in range(length))


@pytest.mark.parametrize(
    "mask",
    [
        padding_mask(torch.ones(2, 3)),
        length_mask(torch.tensor([1])),
        causal_mask(2),
        target_mask(torch.ones(2, 3)),
    ],
)
def test_masks_are_boolean_with_four_axes(mask):
    assert mask.dtype == torch.bool
    assert mask.ndim == 4


def test_masks_live_where_their_tokens_live():
    tokens, counts = (
        torch.ones(2, 3, dtype=torch.long, device="meta"),
        torch.ones(2, dtype=torch.long, device="meta"),
    )
    for mask in (
        padding_mask(tokens),
        target_mask(tokens),
        length_mask(counts, 4),
        causal_mask(3, "meta"),
    ):
        assert mask.device.type == "meta"


@settings(deadline=None)
@given(batches(st.just(2)))
def test_boolean_masks_are_those_of_scaled_dot_product_attention(batch):
    tokens, pad = batch
    mask = target_mask(tokens, pad)
    q, k, v = torch.randn(3, len(tokens), 2, tokens.shape[-1], 4, dtype=torch.double)
    torch.testing.assert_close(
        attend(q, k, v, mask)[0], F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    )


def test_causal_mask_is_torchs_float_mask():
    theirs = nn.Transformer.generate_square_subsequent_mask(7)
    assert causal_mask(7)[0, 0].equal(theirs == 0)
    q, k, v = torch.randn(3, 2, 2, 7, 4)
    torch.testing.assert_close(
        attend(q, k, v, causal_mask(7))[0], F.scaled_dot_product_attention(q, k, v, is_causal=True)
    )


@pytest.mark.slow
@settings(deadline=None)
@given(batches(st.just(2)))
def test_masks_are_the_opposite_of_nn_multiheadattention(batch):
    tokens, pad = batch
    tokens[:, 0] = pad + 1  # theirs has no answer for a row with nothing to see
    theirs = nn.MultiheadAttention(8, 2, batch_first=True)
    ours, x = copy_attention(theirs).double(), torch.randn(*tokens.shape, 8, dtype=torch.double)
    theirs.double()
    expected, _ = theirs(
        x, x, x, key_padding_mask=tokens == pad, attn_mask=~causal_mask(tokens.shape[1])[0, 0]
    )
    torch.testing.assert_close(ours(x, mask=target_mask(tokens, pad)), expected)


@settings(deadline=None, max_examples=25)
@given(batches())
def test_no_word_hears_of_the_future_or_of_padding(batch):
    """Through two layers with a residual, masked derivatives are exactly zero."""
    tokens, pad = batch
    first, second = MultiHeadAttention(4, 2), MultiHeadAttention(4, 2)
    mask = target_mask(tokens, pad)

    def f(x):
        x = x + first(x, mask=mask)
        return (x + second(x, mask=mask)).flatten(0, -3)

    x = torch.randn(*tokens.shape, 4, requires_grad=True)
    rows = tokens.reshape(-1, tokens.shape[-1])
    for t in range(rows.shape[1]):
        (gradient,) = torch.autograd.grad(f(x)[:, t].square().sum(), x)
        moved = gradient.flatten(0, -3).abs().sum(-1) > 0
        for row, moves in zip(rows.tolist(), moved.tolist(), strict=True):
            assert not any(moves[s] for s in range(len(row)) if s > t or (row[s] == pad and s != t))


@pytest.mark.parametrize("trace", [None, []])
def test_rows_with_nothing_to_see(trace):
    """A missing caption and an empty picture give the output bias only, and no gradient."""
    attention = MultiHeadAttention(8, 2)
    words, regions = (
        torch.randn(2, 3, 8, requires_grad=True),
        torch.randn(2, 4, 8, requires_grad=True),
    )
    tokens, counts = torch.tensor([[1, 4, 5], [0, 0, 0]]), torch.tensor([4, 0])
    for memory, mask in ((None, target_mask(tokens)), (regions, length_mask(counts))):
        output = attention(words, memory, mask, trace)
        torch.testing.assert_close(output[1], attention.output.bias.expand(3, 8))
        output.square().sum().backward()
        assert words.grad[1].eq(0).all()
        assert words.grad[0].ne(0).any()
        assert words.grad.isfinite().all()
    assert regions.grad[1].eq(0).all()
    assert regions.grad[0].ne(0).any()
