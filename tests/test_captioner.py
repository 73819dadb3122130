"""A captioner's guarantees: decoding equals training, captions and pictures are independent."""

from collections import defaultdict

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

from captionlab.blocks import BlockConfig
from captionlab.captioner import Captioner, TransformerCaptioner
from captionlab.data.batches import Batch
from captionlab.losses import caption_loss

WIDTH, V = 16, 11
SIZE = st.integers(1, 4)
SEEDS = st.integers(0, 10_000)
NORMS = st.sampled_from(["post", "pre"])


class GridCaptioner(TransformerCaptioner):
    """Asks cells, of which those that are all 0 are padding."""

    def __init__(self, norm="post", tied=True):
        super().__init__(BlockConfig(WIDTH, 2, 2 * WIDTH, norm=norm), 2, V, tied)
        self.projection, self.looks = nn.Linear(3, WIDTH), 0

    def encode_inputs(self, batch):
        self.looks += 1
        grid = batch.require("grid")
        return self.projection(grid), (grid != 0).any(-1)[:, None, None]


def world(seed, B, C, T, N, norm="post"):
    """A model in double precision, pictures with some padded cells, captions of full length."""
    torch.manual_seed(seed)
    model, grid = GridCaptioner(norm).double().eval(), torch.randn(B, N, 3).double()
    grid[torch.rand(B, N) < 0.2] = 0.0
    return model, grid, torch.randint(3, V, (B, C, T))


def stepped(model, state, tokens):
    """The logits of `step` for each token in turn, `(B, C, T, V)`, and the last state."""
    outputs = []
    for t in range(tokens.shape[-1]):
        logits, state = model.step(state, tokens[..., t])
        outputs.append(logits)
    return torch.stack(outputs, 2), state


@settings(deadline=None, max_examples=20)
@given(SEEDS, SIZE, SIZE, st.integers(1, 6), SIZE, NORMS)
def test_cached_equals_uncached(seed, B, C, T, N, norm):
    model, grid, tokens = world(seed, B, C, T, N, norm)
    memory = model.encode(Batch(grid=grid))
    assert_close(stepped(model, model.start(memory, C), tokens)[0], model.decode(memory, tokens))


@pytest.mark.slow
@settings(deadline=None, max_examples=20)
@given(SEEDS, SIZE, SIZE, SIZE, SIZE, NORMS)
def test_folded_captions_equal_one_by_one(seed, B, C, T, N, norm):
    """Logits, steps and loss of each caption are those of the caption alone."""
    model, grid, tokens = world(seed, B, C, T + 1, N, norm)
    memory, losses = model.encode(Batch(grid=grid)), []
    together, by_step = (
        model.decode(memory, tokens),
        stepped(model, model.start(memory, C), tokens)[0],
    )
    for b in range(B):
        for c in range(C):
            batch = Batch(grid=grid[b : b + 1], captions=tokens[b : b + 1, c : c + 1])
            alone = model.decode(model.encode(batch), batch.captions)[0, 0]
            assert_close(together[b, c], alone)
            assert_close(by_step[b, c], alone)
            losses.append(model.loss(batch, 0.1))
    assert_close(
        sum(loss for loss, _ in losses), model.loss(Batch(grid=grid, captions=tokens), 0.1)[0]
    )


@settings(deadline=None, max_examples=20)
@given(st.data(), SEEDS, SIZE, SIZE, SIZE, st.integers(1, 3), NORMS)
def test_batch_order_and_padding_change_nothing(data, seed, B, C, T, extra, norm):
    """Another order, more padded cells and longer padded captions: same logits and loss."""
    model, grid, tokens = world(seed, B, C, T + 1, 4, norm)
    order = torch.tensor(data.draw(st.permutations(range(B))))
    wide = torch.cat([grid, torch.zeros(B, extra, 3)], 1)[order]
    long = torch.cat([tokens, torch.zeros(B, C, extra, dtype=torch.long)], -1)[order]
    plain, padded = Batch(grid=grid, captions=tokens), Batch(grid=wide, captions=long)
    logits = model.decode(model.encode(padded), long)
    assert_close(logits[:, :, : T + 1], model.decode(model.encode(plain), tokens)[order])
    assert_close(model.loss(padded, 0.1), model.loss(plain, 0.1))


@settings(deadline=None, max_examples=20)
@given(st.data(), SEEDS, SIZE, SIZE, NORMS)
def test_a_reordered_caption_is_its_parent_from_then_on(data, seed, B, C, norm):
    model, grid, tokens = world(seed, B, C, 5, 3, norm)
    parents = torch.tensor(
        data.draw(
            st.lists(
                st.lists(st.integers(0, C - 1), min_size=C, max_size=C), min_size=B, max_size=B
            )
        )
    )
    _, state = stepped(model, model.start(model.encode(Batch(grid=grid)), C), tokens[..., :3])
    after = stepped(model, state.reorder(parents), tokens[..., 3:])[0]
    told = torch.cat(
        [torch.take_along_dim(tokens[..., :3], parents[..., None], 1), tokens[..., 3:]], -1
    )
    assert_close(after, model.decode(state.memory, told)[:, :, 3:])
    assert state.reorder(parents).memory is state.memory


@pytest.mark.slow
@settings(deadline=None, max_examples=20)
@given(st.data(), SEEDS, SIZE, SIZE, NORMS)
def test_selected_pictures_go_on_alone(data, seed, B, C, norm):
    model, grid, tokens = world(seed, B, C, 5, 3, norm)
    rows = torch.tensor(data.draw(st.lists(st.integers(0, B - 1), min_size=1, max_size=B)))
    _, state = stepped(model, model.start(model.encode(Batch(grid=grid)), C), tokens[..., :3])
    chosen = state.select(rows)
    assert len(chosen.memory) == len(rows)
    assert chosen.position == 3
    assert_close(
        stepped(model, chosen, tokens[rows, :, 3:])[0],
        model.decode(state.memory, tokens)[rows, :, 3:],
    )
    assert_close(
        model.decode(state.memory.select(rows), tokens[rows]),
        model.decode(state.memory, tokens)[rows],
    )


def test_a_picture_is_looked_at_once_and_its_keys_are_never_copied():
    model, grid, tokens = world(0, 3, 5, 4, 6)
    model.loss(Batch(grid=grid, captions=tokens))
    assert model.looks == 1
    state = model.start(model.encode(Batch(grid=grid)), 5)
    keys = [layer.key for layer in state.memory.layers]
    _, state = stepped(model, state.reorder(torch.zeros(3, 5, dtype=torch.long)), tokens)
    assert model.looks == 2
    assert all(
        new.key is key and len(key) == 3 for new, key in zip(state.memory.layers, keys, strict=True)
    )


def test_a_trace_holds_shares_of_attention_and_none_on_padding():
    model, grid, tokens = world(1, 2, 3, 2, 4)
    grid[:, 3], trace = 0.0, defaultdict(list)
    state = model.start(model.encode(Batch(grid=grid)), 3)
    traced, plain = (
        model.step(state, tokens[..., 0], trace)[0],
        model.step(state, tokens[..., 0])[0],
    )
    assert_close(traced, plain)
    assert [tuple(weights.shape) for weights in trace["cross"]] == [(2, 2, 3, 4)] * 2
    for weights in trace["cross"]:
        seen = (grid != 0).any(-1).any(-1)
        assert_close(weights.sum(-1), seen[:, None, None].expand(2, 2, 3).to(weights))
        assert (weights[..., 3] == 0).all()


@settings(deadline=None, max_examples=30)
@given(SEEDS, SIZE, SIZE, st.integers(1, 5), st.sampled_from([0.0, 0.1, 0.5]))
def test_the_loss_is_the_sum_over_real_words(seed, B, C, T, smoothing):
    generator = torch.Generator().manual_seed(seed)
    logits, targets = (
        torch.randn(B, C, T, V, generator=generator),
        torch.randint(0, V, (B, C, T), generator=generator),
    )
    options = logits.log_softmax(-1)
    expected = [
        (1 - smoothing) * -options[b, c, t, word] - smoothing * options[b, c, t].mean()
        for b in range(B)
        for c in range(C)
        for t in range(T)
        if (word := targets[b, c, t])
    ]
    sum_, words = caption_loss(logits, targets, smoothing)
    assert words == len(expected)
    assert_close(sum_, sum(expected, torch.zeros(())), atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("tied", [True, False])
def test_tied_weights_are_one_tensor(tied):
    model = GridCaptioner(tied=tied)
    assert (model.output.weight is model.words.weight) == tied
    assert len(list(model.parameters())) == len(list(GridCaptioner(tied=True).parameters())) + (
        not tied
    )


def test_a_missing_field_is_named():
    with pytest.raises(ValueError, match="this model reads grid, and the batch has none"):
        GridCaptioner().encode(Batch(captions=torch.ones(1, 1, 2, dtype=torch.long)))
    with pytest.raises(ValueError, match="this model reads captions"):
        GridCaptioner().loss(Batch(grid=torch.randn(1, 2, 3)))


@pytest.mark.parametrize(
    "call",
    [
        lambda m: m.encode(None),
        lambda m: m.decode(None, None),
        lambda m: m.start(None),
        lambda m: m.step(None, None),
    ],
)
def test_the_interface_itself_does_nothing(call):
    with pytest.raises(NotImplementedError):
        call(Captioner())


def test_a_hidden_position_is_as_good_as_padding():
    """What it holds changes nothing any more, and what was padding stays so."""
    model, grid, tokens = world(0, 3, 2, 4, 5)
    places, rows = torch.tensor([0, 4, 2]), torch.arange(3)
    without, expected = model.encode(Batch(grid=grid)).mask_position(places), grid.clone()
    expected[rows, places] = 0.0
    assert_close(
        model.decode(without, tokens), model.decode(model.encode(Batch(grid=expected)), tokens)
    )
    state = model.step(model.start(model.encode(Batch(grid=grid)), 2), tokens[..., 0])[1]
    later, before = (
        model.step(state.mask_position(places), tokens[..., 1])[0],
        model.step(state, tokens[..., 1])[0],
    )
    assert not torch.allclose(later, before)
    assert state.memory.mask.sum() > state.mask_position(places).memory.mask.sum()
