"""Blocks against PyTorch's own layers, and the promises of the decoder: cached, folded, traced."""
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from captionlab.blocks import BlockConfig, Decoder, DecoderBlock, Encoder, FeedForward, Residual
from captionlab.masks import causal_mask, length_mask, target_mask
from captionlab.pytorch_layers import (
    copy_decoder,
    copy_decoder_layer,
    copy_encoder,
    copy_encoder_layer,
)

few = settings(max_examples=30, deadline=None)
SMALL = st.integers(1, 4)
NORMS, BENDS = st.booleans(), st.sampled_from(["relu", "gelu"])
HEADS = st.sampled_from([1, 2, 4])
D, F = 8, 12


@pytest.fixture(scope="module", autouse=True)
def double_precision():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def drawn(layer: nn.Module) -> nn.Module:
    """Every weight drawn: fresh norms and biases of ones and zeros would hide a swap."""
    for weight in layer.parameters():
        nn.init.normal_(weight, std=0.4)
    return layer


def gradient(output, x):
    return torch.autograd.grad(output.square().sum(), x)[0]


def lengths_of(B, N):
    """One length a row, 1 to N, the first one full."""
    return torch.cat([torch.tensor([N]), torch.randint(1, N + 1, (B - 1,))])


@pytest.mark.slow
@few
@given(SMALL, SMALL, HEADS, NORMS, BENDS)
def test_encoder_is_torchs(B, N, H, norm_first, bend):
    layer = nn.TransformerEncoderLayer(
        D, H, F, 0.0, bend, 1e-6, batch_first=True, norm_first=norm_first
    )
    last = nn.LayerNorm(D) if norm_first else None
    theirs = drawn(nn.TransformerEncoder(layer, 2, last, enable_nested_tensor=False))
    ours = copy_encoder(theirs)
    x, mask = torch.randn(B, N, D).requires_grad_(), length_mask(lengths_of(B, N), N)
    expected = theirs(x, src_key_padding_mask=~mask[:, 0, 0])
    torch.testing.assert_close(ours(x, mask), expected)
    torch.testing.assert_close(gradient(ours(x, mask), x), gradient(expected, x))


@pytest.mark.slow
@few
@given(SMALL, SMALL, SMALL, HEADS, NORMS, BENDS)
def test_decoder_is_torchs(B, T, N, H, norm_first, bend):
    layer = nn.TransformerDecoderLayer(
        D, H, F, 0.0, bend, 1e-6, batch_first=True, norm_first=norm_first
    )
    theirs = drawn(nn.TransformerDecoder(layer, 2, nn.LayerNorm(D) if norm_first else None))
    ours = copy_decoder(theirs)
    x, memory = torch.randn(B, T, D).requires_grad_(), torch.randn(B, N, D).requires_grad_()
    mask, look_back = length_mask(lengths_of(B, N), N), causal_mask(T)
    expected = theirs(x, memory, tgt_mask=~look_back[0, 0], memory_key_padding_mask=~mask[:, 0, 0])
    output = ours(x, ours.project(memory), look_back, mask)
    torch.testing.assert_close(output, expected)
    for tensor in (x, memory):
        torch.testing.assert_close(
            torch.autograd.grad(output.square().sum(), tensor, retain_graph=True)[0],
            torch.autograd.grad(expected.square().sum(), tensor, retain_graph=True)[0],
        )


@pytest.mark.parametrize("norm_first", [False, True])
def test_gradients_of_all_weights_are_torchs(norm_first):
    theirs = drawn(
        nn.TransformerDecoderLayer(D, 2, F, 0.0, batch_first=True, norm_first=norm_first)
    )
    ours, x, memory = copy_decoder_layer(theirs), torch.randn(2, 3, D), torch.randn(2, 4, D)
    ours(x, ours.cross_attention.project(memory))[0].square().sum().backward()
    theirs(x, memory).square().sum().backward()
    for mine, other in (
        (ours.self_attention, theirs.self_attn),
        (ours.cross_attention, theirs.multihead_attn),
    ):
        stacked = torch.cat([mine.query.weight.grad, mine.key.weight.grad, mine.value.weight.grad])
        torch.testing.assert_close(stacked, other.in_proj_weight.grad)
        torch.testing.assert_close(mine.output.bias.grad, other.out_proj.bias.grad)
    torch.testing.assert_close(ours.feed_forward.up_proj.weight.grad, theirs.linear1.weight.grad)
    torch.testing.assert_close(ours.feed_forward.down_proj.weight.grad, theirs.linear2.weight.grad)
    for residual, norm in zip(
        ours.residuals, (theirs.norm1, theirs.norm2, theirs.norm3), strict=True
    ):
        torch.testing.assert_close(residual.norm.weight.grad, norm.weight.grad)
        torch.testing.assert_close(residual.norm.bias.grad, norm.bias.grad)


PLACES = {
    "feed_forward.dropout": "dropout",
    "residuals.0.dropout": "dropout1",
    "residuals.1.dropout": "dropout2",
    "residuals.2.dropout": "dropout3",
}


@pytest.mark.parametrize("here", PLACES)
@pytest.mark.parametrize("norm_first", [False, True])
def test_dropout_stands_where_torchs_does(here, norm_first):
    theirs = drawn(
        nn.TransformerDecoderLayer(D, 2, F, 0.0, batch_first=True, norm_first=norm_first)
    )
    ours, x, memory = copy_decoder_layer(theirs), torch.randn(2, 3, D), torch.randn(2, 4, D)
    whole = ours(x, ours.cross_attention.project(memory))[0]
    ours.get_submodule(here).p = theirs.get_submodule(PLACES[here]).p = 1.0
    dropped = ours(x, ours.cross_attention.project(memory))[0]
    torch.testing.assert_close(dropped, theirs(x, memory))
    assert not torch.allclose(dropped, whole)


def test_copies_keep_settings_and_mode():
    theirs = nn.TransformerEncoderLayer(D, 2, F, 0.3, "gelu", 1e-6, norm_first=True).eval()
    ours = copy_encoder_layer(theirs)
    rates = {module.p for module in ours.modules() if isinstance(module, nn.Dropout)}
    assert not ours.training
    assert rates == {0.3}
    assert ours.residuals[0].norm.eps == 1e-6
    assert ours.residuals[0].norm.weight.data_ptr() != theirs.norm1.weight.data_ptr()


@pytest.mark.parametrize("module", [nn.GELU(), nn.ReLU()])
def test_activations_may_be_modules(module):
    theirs, x = (
        nn.TransformerEncoderLayer(D, 2, F, 0.0, module, batch_first=True),
        torch.randn(2, 3, D),
    )
    torch.testing.assert_close(copy_encoder_layer(theirs)(x), theirs(x))


@pytest.mark.parametrize("other", [nn.GELU("tanh"), nn.SiLU(), torch.tanh])
def test_another_activation_is_refused(other):
    with pytest.raises(ValueError, match="only relu and the exact gelu are supported"):
        copy_encoder_layer(nn.TransformerEncoderLayer(D, 2, F, 0.0, other))


def decoder_of(norm, bend="relu", layers=2):
    return drawn(Decoder(layers, BlockConfig(D, 2, F, activation=bend, norm=norm)))


@few
@given(SMALL, SMALL, st.integers(1, 5), SMALL, st.sampled_from(["post", "pre"]), BENDS)
def test_cached_equals_uncached(B, C, T, N, norm, bend):
    decoder, words = decoder_of(norm, bend), torch.randn(B, C, T, D)
    memory, mask = decoder.project(torch.randn(B, N, D)), length_mask(lengths_of(B, N), N)
    past, outputs = [], []
    for t in range(T):
        y, past = decoder.step(words[:, :, t], memory, past, mask)
        outputs.append(y)
    torch.testing.assert_close(
        torch.stack(outputs, 2), decoder(words, memory, causal_mask(T), mask)
    )
    assert all(kv.key.shape == (B * C, 2, T, D // 2) for kv in past)


@few
@given(SMALL, SMALL, st.integers(1, 5), SMALL, st.sampled_from(["post", "pre"]))
def test_folded_captions_equal_one_by_one(B, C, T, N, norm):
    decoder, words, features = decoder_of(norm), torch.randn(B, C, T, D), torch.randn(B, N, D)
    tokens = torch.randint(0, 3, (B, C, T))
    tokens[..., 0] = 1
    mask = length_mask(lengths_of(B, N), N)
    folded = decoder(words, decoder.project(features), target_mask(tokens), mask)
    for b in range(B):
        memory = decoder.project(features[b : b + 1])
        for c in range(C):
            alone = decoder(
                words[b : b + 1, c], memory, target_mask(tokens[b : b + 1, c]), mask[b : b + 1]
            )
            torch.testing.assert_close(folded[b : b + 1, c], alone)


@pytest.mark.slow
@few
@given(SMALL, st.integers(1, 5), SMALL, st.integers(1, 3), st.sampled_from(["post", "pre"]))
def test_padding_and_batch_order_change_nothing(B, T, N, extra, norm):
    decoder, words, features = decoder_of(norm), torch.randn(B, 2, T, D), torch.randn(B, N, D)
    mask = length_mask(lengths_of(B, N), N)
    plain = decoder(words, decoder.project(features), causal_mask(T), mask)
    more_words, more = (
        torch.cat([words, torch.randn(B, 2, extra, D)], 2),
        torch.cat([features, torch.randn(B, extra, D)], 1),
    )
    more_mask = torch.cat([mask, mask.new_zeros(B, 1, 1, extra)], -1)
    padded = decoder(more_words, decoder.project(more), causal_mask(T + extra), more_mask)
    torch.testing.assert_close(padded[:, :, :T], plain)
    order = torch.randperm(B)
    turned = decoder(words[order], decoder.project(features[order]), causal_mask(T), mask[order])
    torch.testing.assert_close(turned, plain[order])


@few
@given(SMALL, SMALL, st.integers(1, 4), SMALL, st.sampled_from(["post", "pre"]))
def test_tracing_changes_nothing_and_shows_every_layer(B, C, T, N, norm):
    decoder, words, memory = decoder_of(norm), torch.randn(B, C, T, D), torch.randn(B, N, D)
    trace, memory = {}, decoder.project(memory)
    torch.testing.assert_close(
        decoder(words, memory, causal_mask(T), trace=trace), decoder(words, memory, causal_mask(T))
    )
    assert [w.shape for w in trace["self"]] == [(B * C, 2, T, T)] * 2
    assert [w.shape for w in trace["cross"]] == [(B, 2, C * T, N)] * 2
    encoder, trace = drawn(Encoder(3, BlockConfig(D, 2, F, norm=norm))), {}
    assert encoder(torch.randn(B, N, D), trace=trace).shape == (B, N, D)
    assert [w.shape for w in trace["self"]] == [(B, 2, N, N)] * 3


def test_a_step_traces_its_own_word_only():
    decoder, words = decoder_of("pre"), torch.randn(2, 3, 2, D)
    memory, trace = decoder.project(torch.randn(2, 5, D)), {}
    _, past = decoder.step(words[:, :, 0], memory, [])
    y, _ = decoder.step(words[:, :, 1], memory, past, trace=trace)
    assert y.shape == (2, 3, D)
    assert trace["self"][0].shape == (6, 2, 1, 2)
    assert trace["cross"][1].shape == (2, 2, 3, 5)
    whole = {}
    decoder(words, memory, causal_mask(2), trace=whole)
    for step, full in zip(trace["self"], whole["self"], strict=True):
        torch.testing.assert_close(
            step[:, :, 0], full[:, :, 1]
        )  # the keys in the order of the words


@few
@given(SMALL, st.integers(1, 3), st.integers(1, 4), st.sampled_from(["post", "pre"]), st.data())
def test_a_reordered_past_continues_the_right_captions(B, C, T, norm, data):
    decoder, words = decoder_of(norm), torch.randn(B, C, T + 1, D)
    memory, past = decoder.project(torch.randn(B, 3, D)), []
    for t in range(T):
        _, past = decoder.step(words[:, :, t], memory, past)
    parents = torch.tensor(
        data.draw(
            st.lists(
                st.lists(st.integers(0, C - 1), min_size=C, max_size=C), min_size=B, max_size=B
            )
        )
    )
    rows = (torch.arange(B)[:, None] * C + parents).flatten()
    continued, _ = decoder.step(words[:, :, T], memory, [kv.select(rows) for kv in past])
    chosen = torch.cat([words[torch.arange(B)[:, None], parents, :T], words[:, :, T:]], 2)
    torch.testing.assert_close(continued, decoder(chosen, memory, causal_mask(T + 1))[:, :, -1])


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_nothing_to_attend_to_is_finite(norm):
    decoder, words = decoder_of(norm), torch.randn(2, 3, D).requires_grad_()
    nothing = torch.zeros(2, 1, 1, 4, dtype=torch.bool)
    output = decoder(
        words, decoder.project(torch.randn(2, 4, D)), nothing[..., :3] & causal_mask(3), nothing
    )
    assert output.isfinite().all()
    assert gradient(output, words).isfinite().all()


def test_the_memory_is_projected_once_for_all_captions():
    decoder = decoder_of("post")
    memory = decoder.project(torch.randn(2, 5, D))
    assert len(memory) == 2
    assert all(kv.key.shape == (2, 2, 5, D // 2) for kv in memory)
    pointers = [kv.key.data_ptr() for kv in memory]
    decoder.step(torch.randn(2, 7, D), memory, [])
    assert [kv.key.data_ptr() for kv in memory] == pointers


def test_only_pre_norm_ends_with_a_norm():
    assert isinstance(Encoder(1, BlockConfig(D, 2, F, norm="pre")).norm, nn.LayerNorm)
    assert isinstance(Decoder(1, BlockConfig(D, 2, F)).norm, nn.Identity)


def test_wrong_words_are_refused():
    with pytest.raises(ValueError, match="no activation 'swish': choose relu or gelu"):
        FeedForward(D, F, activation="swish")
    with pytest.raises(ValueError, match="no norm 'middle': choose post or pre"):
        Residual(D, norm="middle")


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_a_block_without_cross_attention_is_an_encoder_block_with_a_causal_mask(norm):
    config = BlockConfig(D, 2, F, norm=norm)
    ours = drawn(Decoder(2, config, partial(DecoderBlock, cross_attention=False)))
    encoder = Encoder(2, config)
    names = {name: name.replace("self_attention", "attention") for name in ours.state_dict()}
    encoder.load_state_dict({names[name]: value for name, value in ours.state_dict().items()})
    x, mask, no_memory = torch.randn(2, 3, 5, D), causal_mask(5), [None, None]
    at_once, trace = ours(x, no_memory, mask), {}
    torch.testing.assert_close(at_once, encoder(x.flatten(0, 1), mask).view_as(x))
    past = []
    for t in range(5):
        output, past = ours.step(x[..., t, :], no_memory, past, trace=trace)
        torch.testing.assert_close(output, at_once[..., t, :])
    assert set(trace) == {"self"} and trace["self"][-1].shape == (6, 2, 1, 5)


@pytest.mark.parametrize("cross_attention", [True, False])
def test_a_block_refuses_a_memory_that_it_cannot_use_and_misses_one_that_it_needs(cross_attention):
    block = DecoderBlock(BlockConfig(D, 2, F), cross_attention=cross_attention)
    memory = None if cross_attention else block.self_attention.project(torch.randn(2, 4, D))
    with pytest.raises(ValueError, match="takes a memory, and one without takes None"):
        block(torch.randn(2, 3, D), memory)
