"""Attention against plain Python, against PyTorch's module, and against itself done another way."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from captionlab.attention import (
    KeyValue,
    MultiHeadAttention,
    attend,
    masked_softmax,
    merge_heads,
    split_heads,
)
from captionlab.pytorch_layers import copy_attention

SIZE = st.integers(1, 5)
HEADS = st.sampled_from([1, 2, 4])
close = torch.testing.assert_close


def attend_in_python(query, key, value, allowed):
    """eq-vaswani-1 with lists and `math`, for one head: rows of numbers in, rows of numbers out."""
    outputs, weights = [], []
    for q, may in zip(query, allowed, strict=True):
        shares = {
            n: math.exp(sum(a * b for a, b in zip(q, k, strict=True)) / math.sqrt(len(q)))
            for n, k in enumerate(key)
            if may[n]
        }
        total = sum(shares.values())
        row = [shares[n] / total if n in shares else 0.0 for n in range(len(key))]
        weights.append(row)
        outputs.append(
            [sum(w * v[i] for w, v in zip(row, value, strict=True)) for i in range(len(value[0]))]
        )
    return outputs, weights


@st.composite
def masks(draw, *shape):
    """A boolean mask that broadcasts to a shape; rows without any True are common."""
    shape = tuple(draw(st.sampled_from([1, n])) for n in shape)
    bits = draw(st.lists(st.booleans(), min_size=math.prod(shape), max_size=math.prod(shape)))
    return torch.tensor(bits).reshape(shape)


def doubles(*shape):
    return torch.randn(*shape, dtype=torch.double)


@pytest.mark.slow
@settings(deadline=None)
@given(st.data(), SIZE, SIZE, SIZE, SIZE, SIZE, SIZE)
def test_attend_is_the_loop(data, B, H, T, N, K, value_width):
    mask = data.draw(st.none() | masks(B, H, T, N))
    query, key, value = doubles(B, H, T, K), doubles(B, H, N, K), doubles(B, H, N, value_width)
    allowed = torch.ones(B, H, T, N, dtype=torch.bool) if mask is None else mask.expand(B, H, T, N)
    output, weights = attend(query, key, value, mask)
    for b in range(B):
        for h in range(H):
            lists = (x[b, h].tolist() for x in (query, key, value, allowed))
            expected = [torch.tensor(x, dtype=torch.double) for x in attend_in_python(*lists)]
            close(output[b, h], expected[0]), close(weights[b, h], expected[1])


@settings(deadline=None)
@given(st.data(), SIZE, SIZE, st.sampled_from([1e-3, 1.0, 1e4]))
def test_masked_softmax_sums_to_one_or_is_zero_and_its_gradient_obeys_the_mask(data, T, N, scale):
    mask = data.draw(masks(T, N)).expand(T, N)
    scores = (scale * torch.randn(T, N)).requires_grad_()
    weights = masked_softmax(scores, mask)
    close(weights.sum(-1), mask.any(-1).float())
    assert (weights[~mask] == 0).all()
    (weights * torch.randn(T, N)).sum().backward()
    assert scores.grad.isfinite().all()
    assert (scores.grad[~mask] == 0).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_masked_softmax_in_every_precision(dtype):
    weights = masked_softmax(
        torch.full((2, 3), -100.0, dtype=dtype), torch.tensor([[True, True, False], [False] * 3])
    )
    assert weights.dtype == dtype
    assert weights.tolist() == [[0.5, 0.5, 0.0], [0.0] * 3]


@settings(deadline=None)
@given(st.lists(SIZE, max_size=2), SIZE, HEADS, SIZE)
def test_heads_are_slices_of_the_width(front, T, heads, K):
    x = torch.randn(*front, T, heads * K)
    cut = split_heads(x, heads)
    assert cut.shape == (*front, heads, T, K)
    for h in range(heads):
        assert cut[..., h, :, :].equal(x[..., h * K : (h + 1) * K])
    assert merge_heads(cut).equal(x)


@settings(deadline=None, max_examples=40)
@given(st.data(), SIZE, SIZE, SIZE, HEADS, st.booleans(), st.booleans())
def test_multi_head_is_torchs_forward_and_backward(data, B, T, N, heads, bias, masked):
    """eq-vaswani-multihead: the same weights give the same numbers and the same gradients."""
    theirs = nn.MultiheadAttention(8, heads, bias=bias, batch_first=True)
    ours = copy_attention(theirs).double()
    theirs.double()
    x, memory = (doubles(B, n, 8).requires_grad_() for n in (T, N))
    mask = data.draw(masks(B, heads, T, N)).expand(B, heads, T, N).clone() if masked else None
    if masked:
        mask[..., 0] = True  # theirs gives nan for a row with nothing to see
    ignore = None if mask is None else ~mask.flatten(0, 1)
    outputs = (
        ours(x, memory, mask),
        theirs(x, memory, memory, attn_mask=ignore, need_weights=False)[0],
    )
    close(*outputs)
    projections = ours.query.weight, ours.key.weight, ours.value.weight
    our_inputs, their_inputs = (
        (x, memory, layer.weight) for layer in (ours.output, theirs.out_proj)
    )
    *ours_grad, q, k, v = torch.autograd.grad(
        outputs[0].square().sum(), (*our_inputs, *projections)
    )
    *their_grad, qkv = torch.autograd.grad(
        outputs[1].square().sum(), (*their_inputs, theirs.in_proj_weight)
    )
    for one, other in zip((*ours_grad, torch.cat([q, k, v])), (*their_grad, qkv), strict=True):
        close(one, other)


@settings(deadline=None, max_examples=40)
@given(st.data(), SIZE, SIZE, SIZE, HEADS)
def test_trace_and_fused_agree_with_any_mask(data, B, T, N, heads):
    attention = MultiHeadAttention(8, heads).double()
    x, memory = (doubles(B, n, 8).requires_grad_() for n in (T, N))
    mask, trace = data.draw(st.none() | masks(B, heads, T, N)), []
    outputs = attention(x, memory, mask), attention(x, memory, mask, trace)
    close(*outputs)
    assert trace[0].shape == (B, heads, T, N)
    gradients = [
        torch.autograd.grad(o.square().sum(), (x, memory, *attention.parameters())) for o in outputs
    ]
    for fused, traced in zip(*gradients, strict=True):
        assert fused.isfinite().all()
        close(fused, traced)


@settings(deadline=None, max_examples=25)
@given(SIZE, SIZE, st.integers(1, 7), HEADS)
def test_cached_equals_uncached(B, C, T, heads):
    attention, x = MultiHeadAttention(8, heads).double(), doubles(B, C, T, 8)
    at_once = attention(x, mask=torch.ones(T, T, dtype=torch.bool).tril())
    past, written = attention.project(x[:, :, :0]), []
    for t in range(T):
        past = past.append(attention.project(x[:, :, t : t + 1]))
        written.append(attention(x[:, :, t : t + 1], past))
    assert past.key.shape == past.value.shape == (B * C, heads, T, 8 // heads)
    close(torch.cat(written, 2), at_once)


@settings(deadline=None, max_examples=25)
@given(st.data(), SIZE, SIZE, SIZE, SIZE)
def test_folded_captions_equal_one_by_one(data, B, C, T, N):
    """Of a picture's captions each is as if it were alone: with the picture, and with itself."""
    attention, x, grid = MultiHeadAttention(8, 2).double(), doubles(B, C, T, 8), doubles(B, N, 8)
    see = data.draw(masks(B, 1, 1, N)).expand(B, 1, 1, N)
    across, within = attention(x, attention.project(grid), see), attention(x)
    for b in range(B):
        for c in range(C):
            close(across[b, c], attention(x[b : b + 1, c], grid[b : b + 1], see[b : b + 1])[0])
            close(within[b, c], attention(x[b : b + 1, c])[0])


def test_projecting_once_is_projecting_each_time():
    attention, x, memory = MultiHeadAttention(8, 2), torch.randn(3, 4, 8), torch.randn(3, 6, 8)
    assert attention(x, attention.project(memory)).equal(attention(x, memory))


@settings(deadline=None)
@given(st.lists(st.integers(0, 3), max_size=6), SIZE, SIZE)
def test_key_value_appends_positions_and_selects_rows(rows, N, new):
    first, second = (KeyValue(*torch.randn(2, 4, 2, n, 3)) for n in (N, new))
    joined = first.append(second)
    chosen = joined.select(torch.tensor(rows, dtype=torch.long))
    for one, a, b, c in zip(joined, first, second, chosen, strict=True):
        assert one[:, :, :N].equal(a)
        assert one[:, :, N:].equal(b)
        assert len(c) == len(rows)
        assert all(c[i].equal(one[row]) for i, row in enumerate(rows))


@pytest.mark.parametrize("trace", [None, []])
def test_dropout_in_training_only_and_right_on_average(trace):
    """Values of 1 and identity projections: the output is the sum of the remaining weights."""
    attention = MultiHeadAttention(16, 2, dropout=0.25)
    for layer in (attention.value, attention.output):
        nn.init.eye_(layer.weight), nn.init.zeros_(layer.bias)
    (
        nn.init.zeros_(attention.query.weight),
        nn.init.zeros_(attention.query.bias),
    )  # even weights of 1/8
    x, memory = torch.randn(50, 100, 16), torch.ones(50, 8, 16)
    torch.manual_seed(0)
    kept = attention(x, memory, trace=trace)[..., 0] * 0.75 * 8  # how many of 8 keys were kept
    close(kept, kept.round(), atol=1e-4, rtol=0)
    assert kept.mean().item() == pytest.approx(8 * 0.75, abs=0.1)
    assert kept.var().item() == pytest.approx(8 * 0.75 * 0.25, abs=0.15)
    close(attention.eval()(x, memory, trace=trace), torch.ones(50, 100, 16))


@pytest.mark.parametrize(("width", "heads"), [(8, 3), (10, 4), (2, 4), (8, 0)])
def test_heads_that_do_not_divide_are_refused(width, heads):
    with pytest.raises(ValueError, match=f"{heads} heads do not divide a width of {width}"):
        MultiHeadAttention(width, heads)


@pytest.mark.parametrize("bias", [True, False])
def test_copied_weights_are_copies(bias):
    theirs = nn.MultiheadAttention(8, 2, dropout=0.3, bias=bias, batch_first=True).eval()
    ours, x = copy_attention(theirs), torch.randn(2, 3, 8)
    assert not ours.training
    assert ours.dropout.p == 0.3
    before = theirs(x, x, x)[0]
    for p in ours.parameters():
        p.data.zero_()
    close(theirs(x, x, x)[0], before)


@pytest.mark.parametrize(
    "more", [{"kdim": 4}, {"vdim": 4}, {"add_bias_kv": True}, {"add_zero_attn": True}]
)
def test_attention_that_does_more_is_not_copied(more):
    with pytest.raises(ValueError, match="without them"):
        copy_attention(nn.MultiheadAttention(8, 2, **more))


def test_no_picture_at_all_is_no_error():
    attention = MultiHeadAttention(16, 2)
    assert attention(torch.randn(0, 5, 3, 16), torch.randn(0, 7, 16)).shape == (0, 5, 3, 16)
    assert attention(torch.randn(0, 3, 16)).shape == (0, 3, 16)


@pytest.mark.parametrize("dtype", [torch.float, torch.long])
def test_a_mask_of_numbers_is_refused(dtype):
    attention, x = MultiHeadAttention(8, 2), torch.randn(1, 3, 8)
    with pytest.raises(ValueError, match="give a boolean mask, True means may attend"):
        attention(x, mask=torch.ones(3, 3, dtype=dtype))


@torch.no_grad()
def test_no_pictures_are_attended_to_by_no_words():
    attention = MultiHeadAttention(16, 4)
    for trace in (None, []):
        assert attention(torch.randn(0, 5, 16), torch.randn(0, 7, 16), trace=trace).shape == (
            0,
            5,
            16,
        )
        assert attention(torch.randn(0, 3, 5, 16), torch.randn(0, 7, 16), trace=trace).shape == (
            0,
            3,
            5,
            16,
        )
