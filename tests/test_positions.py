"""Positions against complex numbers, against loops, and against one-word-at-a-time decoding."""

import cmath
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from captionlab.attention import MultiHeadAttention
from captionlab.masks import causal_mask
from captionlab.positions import (
    LearnedPositions,
    SinusoidalPositions,
    frequencies,
    shift_matrix,
    sinusoids,
)

EVEN = st.integers(1, 8).map(lambda pairs: 2 * pairs)
BASE = st.sampled_from([10.0, 1000.0, 10000.0])


@settings(deadline=None)
@given(st.integers(0, 40), EVEN, BASE)
def test_table_is_a_point_turning_on_the_unit_circle(length, width, base):
    """eq-vaswani-pe, and eq-translation-7 except its last exponent, as complex powers."""
    table = sinusoids(length, width, base)
    assert table.shape == (length, width)
    for pair in range(width // 2):
        step = cmath.exp(1j * math.exp(-2 * pair / width * math.log(base)))
        for place in range(length):
            turned = step**place
            assert table[place, 2 * pair].item() == pytest.approx(turned.imag, abs=1e-5)
            assert table[place, 2 * pair + 1].item() == pytest.approx(turned.real, abs=1e-5)


@settings(deadline=None)
@given(st.integers(-30, 30), st.integers(30, 60), EVEN, BASE)
def test_a_shift_is_one_rotation_everywhere(offset, start, width, base):
    table, M = sinusoids(100, width, base), shift_matrix(offset, width, base)
    torch.testing.assert_close(table[start] @ M, table[start + offset], atol=1e-5, rtol=0)
    torch.testing.assert_close(M @ M.T, torch.eye(width), atol=1e-5, rtol=0)


@settings(deadline=None)
@given(st.integers(0, 50), st.integers(0, 50), st.integers(0, 200), EVEN)
def test_similarity_depends_on_the_distance_alone(t, s, further, width):
    table = sinusoids(300, width)
    torch.testing.assert_close(
        table[t] @ table[s], table[t + further] @ table[s + further], atol=1e-4, rtol=0
    )


def test_far_places_are_exact():
    """Single-precision angles would be wrong in the fourth digit here."""
    last = sinusoids(100_000, 8)[-1].tolist()
    expected = [f(99_999 * 10**-pair) for pair in range(4) for f in (math.sin, math.cos)]
    assert last == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    "make",
    [
        frequencies,
        SinusoidalPositions,
        lambda width: sinusoids(3, width),
        lambda width: shift_matrix(1, width),
    ],
)
def test_odd_width_is_refused(make):
    with pytest.raises(ValueError, match="width of 7 is odd"):
        make(7)


@settings(deadline=None)
@given(
    st.lists(st.integers(1, 3), max_size=2),
    st.integers(0, 12),
    EVEN,
    st.integers(0, 9),
    st.integers(1, 4),
    st.booleans(),
)
def test_positions_are_added_from_start_on(front, length, width, start, max_length, learned):
    positions = LearnedPositions(21, width) if learned else SinusoidalPositions(width, max_length)
    table = positions.table if learned else sinusoids(21, width)
    x = torch.randn(*front, length, width)
    added = positions(x, start=start)
    assert added.shape == x.shape
    for t in range(length):
        torch.testing.assert_close(added[..., t, :], x[..., t, :] + table[start + t])


@pytest.mark.parametrize("positions", [SinusoidalPositions(16, 3), LearnedPositions(9, 16)])
def test_cached_decoding_keeps_count(positions):
    """Decoding token by token equals decoding at once, for C captions of each picture."""
    attention, words = MultiHeadAttention(16, 4), torch.randn(2, 3, 9, 16)
    at_once = attention(positions(words), mask=causal_mask(9))
    past, written = attention.project(words[:, :, :0]), []
    for t in range(9):
        word = positions(words[:, :, t : t + 1], start=t)
        past = past.append(attention.project(word))
        written.append(attention(word, past))
    torch.testing.assert_close(torch.cat(written, 2), at_once)


def test_sinusoidal_table_is_not_saved_and_grows_once():
    positions = SinusoidalPositions(8, max_length=2)
    assert not positions.state_dict()
    assert not list(positions.parameters())
    positions(torch.zeros(1, 5, 8))
    grown = positions.table
    positions(torch.zeros(1, 1, 8), start=5)
    assert positions.table is grown
    assert len(grown) > 5


def test_table_follows_its_model_when_it_grows():
    positions = SinusoidalPositions(8, max_length=2).double()
    assert (
        positions(torch.zeros(4, 8, dtype=torch.double)).dtype
        == positions.table.dtype
        == torch.double
    )
    meta = SinusoidalPositions(8, max_length=2).to("meta")
    assert (
        meta(torch.zeros(4, 8, device="meta")).device == meta.table.device == torch.device("meta")
    )


def test_base_is_kept_when_the_table_grows():
    positions = SinusoidalPositions(8, max_length=1, base=1000.0)
    torch.testing.assert_close(positions(torch.zeros(6, 8)), sinusoids(6, 8, 1000.0))


@pytest.mark.parametrize(("length", "start"), [(6, 0), (1, 5), (3, 3)])
def test_learned_positions_end(length, start):
    with pytest.raises(
        ValueError, match=f"{start + length} positions, but encodings were learned for 5"
    ):
        LearnedPositions(5, 4)(torch.zeros(2, length, 4), start=start)


def test_learned_positions_learn_only_what_they_gave():
    positions = LearnedPositions(6, 4)
    positions(torch.zeros(3, 2, 4), start=1).sum().backward()
    torch.testing.assert_close(
        positions.table.grad, torch.tensor([0.0, 3, 3, 0, 0, 0])[:, None].expand(6, 4)
    )
    assert [name for name, p in positions.named_parameters() if isinstance(p, nn.Parameter)] == [
        "table"
    ]


@settings(deadline=None, max_examples=25)
@given(st.permutations(range(6)))
def test_attention_alone_has_no_order_and_with_positions_it_has(order):
    attention, x = MultiHeadAttention(8, 2), torch.randn(1, 6, 8)
    torch.testing.assert_close(attention(x[:, order]), attention(x)[:, order])
    place = SinusoidalPositions(8)
    same = torch.allclose(attention(place(x[:, order])), attention(place(x))[:, order], atol=1e-5)
    assert same == (list(order) == list(range(6)))


def test_words_in_16_bits_leave_the_table_as_it_was():
    positions, x = SinusoidalPositions(8), torch.zeros(5, 8)
    before = positions(x)
    assert positions(x.bfloat16()).dtype == torch.bfloat16
    assert positions(x).equal(before)
