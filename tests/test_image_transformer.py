"""The Image Transformer against equations (5) to (11), evaluated number by number."""

import json
import math
from collections import defaultdict
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from benchmarks import relations
from benchmarks.relations import attention_by_relation, measure_relations
from captionlab.blocks import BlockConfig, Encoder
from captionlab.data.batches import Batch
from captionlab.data.datasets import Item, scenes
from captionlab.decoding.beam import beam_search
from captionlab.features import regions as regions_module
from captionlab.features.image_processor import ImageProcessor
from captionlab.features.region_pooling import spatial_graph
from captionlab.models.image_transformer import (
    PRESETS,
    VARIANTS,
    GraphEncoder,
    GraphVariant,
    ImplicitAttention,
    ImplicitDecoder,
    LSTMState,
    Model,
    SpatialGraphAttention,
)
from captionlab.runs.run import Run
from captionlab.runs.storage import RunMetadata
from captionlab.text import Vocabulary

V, D, H = 23, 16, 2
RELATIONS = range(3)  # parent, neighbour, child


# ---- the paper, in plain loops over lists of numbers: equations (5) to (11), eq-it-6 to eq-it-11


def relation(region: list, other: list) -> int:
    """Equation (5), eq-it-5: what the other box is to the region's."""

    def area(b):
        return (b[2] - b[0]) * (b[3] - b[1])

    common = max(0.0, min(region[2], other[2]) - max(region[0], other[0])) * max(
        0.0, min(region[3], other[3]) - max(region[1], other[1])
    )

    def inside(a, b):
        return area(a) > 0 and common / area(a) >= 0.9 and area(a) < area(b)

    return 0 if inside(region, other) else 2 if inside(other, region) else 1


def times(matrix: Tensor, x: list, bias: Tensor | None = None) -> list:
    """A matrix, one row an output, times a vector."""
    rows = matrix.tolist()
    plus = [0.0] * len(rows) if bias is None else bias.tolist()
    return [
        sum(w * v for w, v in zip(row, x, strict=True)) + b
        for row, b in zip(rows, plus, strict=True)
    ]


def soft(scores: list) -> list:
    top = max(scores)
    powers = [math.exp(s - top) for s in scores]
    return [p / sum(powers) for p in powers]


def normed(x: list, norm: nn.LayerNorm) -> list:
    mean = sum(x) / len(x)
    spread = math.sqrt(sum((v - mean) ** 2 for v in x) / len(x) + norm.eps)
    return [
        (v - mean) / spread * w + b
        for v, w, b in zip(x, norm.weight.tolist(), norm.bias.tolist(), strict=True)
    ]


def head(query: list, keys: list, values: list, allowed: list) -> list:
    """One head of one query; after the softmax over all keys `allowed` multiplies the weights."""
    weights = soft(
        [
            sum(q * k for q, k in zip(query, key, strict=True)) / math.sqrt(len(query))
            for key in keys
        ]
    )
    return [
        sum(w * a * value[i] for w, a, value in zip(weights, allowed, values, strict=True))
        for i in range(len(query))
    ]


def heads(query: list, keys: list, values: list, allowed: list) -> list:
    width = len(query) // H

    def cut(x, n):
        return x[n * width : (n + 1) * width]

    return [
        v
        for n in range(H)
        for v in head(
            cut(query, n), [cut(k, n) for k in keys], [cut(x, n) for x in values], allowed
        )
    ]


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def glu(z: list) -> list:
    return [a * sigmoid(b) for a, b in zip(z[:D], z[D:], strict=True)]


def encoder_layer(
    block: nn.Module, rows: list, boxes: list, variant: GraphVariant, graph: bool
) -> list:
    """Equations (6), (7) and (4), or what a variant has instead, for the real regions."""
    attention, out, (first, second) = (
        block.attention.attention if variant.attention_gate else block.attention,
        [],
        block.residuals,
    )

    def part(layer, i):
        return (layer.weight[i * D : (i + 1) * D], layer.bias[i * D : (i + 1) * D])

    def project(layer, i, x):
        return times(part(layer, i)[0], x, part(layer, i)[1])

    def before(x, residual):
        return normed(x, residual.norm) if variant.norm == "pre" else x

    def after(x, residual):
        return x if variant.norm == "pre" else normed(x, residual.norm)

    seen = [before(x, first) for x in rows]
    for number, row in enumerate(rows):
        query, summed = times(attention.query.weight, seen[number], attention.query.bias), [0.0] * D
        for i in RELATIONS if graph else [0]:
            allowed = [
                float(relation(boxes[number], boxes[m]) == i) if variant.use_graph else 1 / 3
                for m in range(len(rows))
            ]
            keys, values = (
                [project(layer, i, y) for y in seen] for layer in (attention.key, attention.value)
            )
            summed = [
                a + b
                for a, b in zip(
                    summed,
                    heads(query, keys, values, allowed if graph else [1.0] * len(rows)),
                    strict=True,
                )
            ]
        gated = block.attention.gate if variant.attention_gate else None
        attended = (
            glu(times(gated.weight, summed + seen[number], gated.bias))
            if variant.attention_gate
            else times(attention.output.weight, summed, attention.output.bias)
        )
        x = after([a + b for a, b in zip(row, attended, strict=True)], first)
        if variant.feed_forward:
            wide = [
                max(0.0, v)
                for v in times(
                    block.feed_forward.up_proj.weight,
                    before(x, second),
                    block.feed_forward.up_proj.bias,
                )
            ]
            fed = times(
                block.feed_forward.down_proj.weight, wide, block.feed_forward.down_proj.bias
            )
            x = after([a + b for a, b in zip(x, fed, strict=True)], second)
        out.append(x)
    return out


def implicit(attention: ImplicitAttention, h: list, regions: list) -> list:
    """Equation (9), and the mean of equation (10)."""
    M, mean = attention.parts, [0.0] * D
    query = times(attention.query.weight, h, attention.query.bias)
    for i in range(M):
        rows = slice(i * D, (i + 1) * D)
        keys, values = (
            [times(layer.weight[rows], x, layer.bias[rows]) for x in regions]
            for layer in (attention.key, attention.value)
        )
        found = heads(query, keys, values, [1.0] * len(regions)) if regions else [0.0] * D
        if attention.output is not None:
            found = times(attention.output.weight[:, rows], found, attention.output.bias / M)
        mean = [a + b / M for a, b in zip(mean, found, strict=True)]
    return mean


def lstm(decoder: ImplicitDecoder, x: list, h: list, m: list) -> tuple[list, list]:
    """An LSTM cell by PyTorch's formula; x is the word and what goes with it."""
    weight = torch.cat([decoder.word_gates.weight, decoder.state_gates.weight], 1)
    gates = times(weight, x + h, decoder.word_gates.bias)
    i, f, g, o = (gates[n * D : (n + 1) * D] for n in range(4))
    m = [sigmoid(b) * c + sigmoid(a) * math.tanh(d) for a, b, c, d in zip(i, f, m, g, strict=True)]
    return [sigmoid(a) * math.tanh(b) for a, b in zip(o, m, strict=True)], m


def by_the_paper(model: Model, rows: list, boxes: list, tokens: list) -> list:
    """Softmax of equation (11) after every token of one caption of one picture."""
    x = [times(model.project[-1].weight, row, model.project[-1].bias) for row in rows]
    variant = model.variant
    for number, block in enumerate(model.encoder.blocks, 1):
        x = encoder_layer(block, x, boxes, variant, number in variant.graph_layers)
    x = [normed(row, model.encoder.norm) for row in x] if variant.norm == "pre" else x
    mean = [sum(row[i] for row in x) / max(1, len(x)) for i in range(D)]
    decoder, h, m, c, said = model.decoder, [0.0] * D, [0.0] * D, [0.0] * D, []
    for token in tokens:
        word = [max(0.0, v) if variant.word_relu else v for v in model.words.weight[token].tolist()]
        h, m = lstm(decoder, word + [a + b for a, b in zip(mean, c, strict=True)], h, m)
        asked = normed(h, decoder.norm) if variant.query_norm else h
        c = glu(
            times(decoder.gate.weight, h + implicit(decoder.attention, asked, x), decoder.gate.bias)
        )
        said.append(soft(times(model.output.weight, c, model.output.bias)))
    return said


# ---- pictures of every kind


def boxes_of(pictures: int, regions: int) -> Tensor:
    """Random boxes, some inside others, some alike, some without area."""
    boxes = torch.rand(pictures, regions, 2, 2).sort(2).values.flatten(2)
    boxes[:, 1::4] = (
        boxes[:, ::4][:, : boxes[:, 1::4].shape[1]] * 0.5
        + 0.25
        * (boxes[..., :2] + boxes[..., 2:]).repeat(1, 1, 2)[:, ::4][:, : boxes[:, 1::4].shape[1]]
    )
    boxes[:, 6::7, 2] = boxes[:, 6::7, 0]
    return boxes


def model_and_batch(
    variant: str = "full", regions: int = 7, real: tuple = (7, 5, 1, 0), grid: int = 0, **more
) -> tuple[Model, Batch]:
    torch.manual_seed(0)
    preset = replace(
        PRESETS["tiny"],
        width=D,
        heads=H,
        hidden=24,
        channels=6,
        variant=variant,
        inputs=replace(PRESETS["tiny"].inputs, grid=grid),
        **more,
    )
    mask = torch.arange(regions) < torch.tensor(real)[:, None]
    batch = Batch(
        regions=torch.randn(len(real), regions, 6),
        boxes=boxes_of(len(real), regions),
        region_mask=mask,
        captions=torch.randint(3, V, (len(real), 3, 6)),
    )
    model = Model(preset, V).eval()
    for parameter in model.parameters():
        nn.init.normal_(
            parameter, std=0.4
        )  # biases and norms, too: zeros and ones would hide a slip
    return model, batch


def probabilities(model: Model, batch: Batch) -> Tensor:
    with torch.no_grad():
        return model.decode(model.encode(batch), batch.captions).softmax(-1)


class TestAgainstThePaper:  # eq-it-6 eq-it-7 eq-it-8 eq-it-9 eq-it-10 eq-it-11
    @pytest.mark.parametrize(
        "variant",
        [
            "full",
            "baseline",
            "layer1",
            "layer2",
            "layer3",
            "graph",
            "unrelated",
            "m2",
            "m4",
            "released",
            "gate",
            "pre-norm",
            "no-ffn",
            "query-norm",
            "no-output",
            "relu",
        ],
    )
    def test_every_probability(self, variant):
        model, batch = model_and_batch(variant)
        ours = probabilities(model, batch)
        for b, count in enumerate(batch.region_mask.sum(1).tolist()):
            rows, boxes = batch.regions[b, :count].tolist(), batch.boxes[b, :count].tolist()
            for c in range(3 if variant == "full" else 1):
                expected = torch.tensor(
                    by_the_paper(model, rows, boxes, batch.captions[b, c].tolist())
                )
                torch.testing.assert_close(ours[b, c], expected, rtol=0, atol=1e-5)

    def test_the_pictures_have_every_relation(self):
        _, batch = model_and_batch()
        assert (spatial_graph(batch.boxes, batch.region_mask).sum((0, 2, 3)) > 2).all()

    @pytest.mark.slow
    def test_a_hundred_regions(self):
        model, batch = model_and_batch(regions=100, real=(100,))
        expected = by_the_paper(
            model,
            batch.regions[0].tolist(),
            batch.boxes[0].tolist(),
            batch.captions[0, 0, :2].tolist(),
        )
        torch.testing.assert_close(
            probabilities(model, batch)[0, 0, :2], torch.tensor(expected), rtol=0, atol=1e-5
        )

    def test_the_lstm_is_torchs(self):
        model, batch = model_and_batch()
        cell, decoder = nn.LSTMCell(2 * D, D), model.decoder
        cell.weight_ih.data = torch.cat(
            [decoder.word_gates.weight, decoder.state_gates.weight[:, :D]], 1
        ).data
        cell.weight_hh.data, cell.bias_ih.data = (
            decoder.state_gates.weight[:, D:].data,
            decoder.word_gates.bias.data,
        )
        nn.init.zeros_(cell.bias_hh)
        memory, (h, m, c, word) = model.encode(batch), torch.randn(4, 4, 3, D)
        state = LSTMState(memory, h, m, c)
        ours = decoder.lstm_cell(decoder.word_gates(word), state)
        theirs = cell(
            torch.cat([word, memory.mean[:, None] + c], -1).flatten(0, 1),
            (h.flatten(0, 1), m.flatten(0, 1)),
        )
        torch.testing.assert_close([x.flatten(0, 1) for x in ours], list(theirs))


# ---- reductions to the plain layer


def twins(boxes: Tensor) -> tuple[GraphEncoder, Encoder, Tensor, Tensor]:
    """A graph encoder, a plain one with the neighbours' weights, regions and their graph."""
    torch.manual_seed(1)
    config = BlockConfig(D, H, 24)
    ours, plain = GraphEncoder(2, config, GraphVariant()).eval(), Encoder(2, config).eval()
    for block, twin in zip(ours.blocks, plain.blocks, strict=True):
        twin.feed_forward.load_state_dict(block.feed_forward.state_dict())
        for name in ("query", "output"):
            getattr(twin.attention, name).load_state_dict(
                getattr(block.attention, name).state_dict()
            )
        for name in ("key", "value"):
            of_neighbours = {
                key: x[D : 2 * D] for key, x in getattr(block.attention, name).state_dict().items()
            }
            getattr(twin.attention, name).load_state_dict(of_neighbours)
    return ours, plain, torch.randn(*boxes.shape[:2], D), spatial_graph(boxes)


def test_without_containment_it_is_the_plain_layer():
    apart = torch.tensor(
        [[[0, 0, 0.2, 0.2], [0.1, 0.1, 0.4, 0.3], [0.5, 0.5, 0.9, 0.9], [0.6, 0, 0.8, 0.4]]]
    ).float()
    ours, plain, x, graph = twins(apart)
    assert not graph[:, ::2].any()
    torch.testing.assert_close(ours(x, graph), plain(x), rtol=1e-5, atol=1e-5)


def test_with_equal_weights_of_the_relations_it_is_the_plain_layer():
    ours, plain, x, graph = twins(boxes_of(3, 9))
    assert graph[:, ::2].any()
    assert (ours(x, graph) - plain(x)).abs().max() > 0.01
    for block, twin in zip(ours.blocks, plain.blocks, strict=True):
        for name in ("key", "value"):
            layer, one = getattr(block.attention, name), getattr(twin.attention, name)
            layer.weight.data, layer.bias.data = (
                one.weight.data.repeat(3, 1),
                one.bias.data.repeat(3),
            )
    torch.testing.assert_close(ours(x, graph), plain(x), rtol=1e-5, atol=1e-5)


def test_without_relations_it_is_the_mean_of_three_plain_layers():
    torch.manual_seed(2)
    ours, x = SpatialGraphAttention(D, H, use_graph=False), torch.randn(3, 9, D)
    found = []
    for i in RELATIONS:
        plain = nn.MultiheadAttention(D, H, batch_first=True)
        rows = slice(i * D, (i + 1) * D)
        plain.in_proj_weight.data = torch.cat(
            [ours.query.weight, ours.key.weight[rows], ours.value.weight[rows]]
        ).data
        plain.in_proj_bias.data = torch.cat(
            [ours.query.bias, ours.key.bias[rows], ours.value.bias[rows]]
        ).data
        plain.out_proj.load_state_dict(ours.output.state_dict())
        found.append(plain(x, x, x)[0])
    torch.testing.assert_close(
        ours(x, spatial_graph(boxes_of(3, 9))), sum(found) / 3, rtol=1e-5, atol=1e-5
    )


def test_one_sub_transformer_is_torchs_attention():
    torch.manual_seed(3)
    ours, theirs = ImplicitAttention(D, H, parts=1), nn.MultiheadAttention(D, H, batch_first=True)
    theirs.in_proj_weight.data = torch.cat(
        [ours.query.weight, ours.key.weight, ours.value.weight]
    ).data
    theirs.in_proj_bias.data = torch.cat([ours.query.bias, ours.key.bias, ours.value.bias]).data
    theirs.out_proj.load_state_dict(ours.output.state_dict())
    h, regions = torch.randn(2, 5, D), torch.randn(2, 9, D)
    torch.testing.assert_close(
        ours(h, ours.project(regions)), theirs(h, regions, regions)[0], rtol=1e-5, atol=1e-5
    )


def test_parts_have_the_mean_that_the_decoder_reads():
    torch.manual_seed(4)
    for project in (True, False):
        attention, h, regions = (
            ImplicitAttention(D, H, 3, project=project),
            torch.randn(2, 5, D),
            torch.randn(2, 9, D),
        )
        kv = attention.project(regions)
        torch.testing.assert_close(attention.per_part(h, kv).mean(-2), attention(h, kv))


# ---- pictures with nothing, little and much in them


@pytest.mark.parametrize("variant", VARIANTS)
class TestEveryVariant:
    def test_regions_that_are_padding_change_nothing(self, variant):
        model, batch = model_and_batch(variant)
        real = batch.region_mask[..., None]
        loud = replace(
            batch,
            regions=torch.where(real, batch.regions, 50.0),
            boxes=torch.where(real, batch.boxes, 0.3),
        )
        ours = probabilities(model, batch)
        assert ours.isfinite().all()
        torch.testing.assert_close(probabilities(model, loud), ours)
        for b, count in enumerate((7, 5, 1)):
            cut = {
                name: getattr(batch, name)[b : b + 1, :count]
                for name in ("regions", "boxes", "region_mask")
            }
            alone = Batch(**cut, captions=batch.captions[b : b + 1])
            torch.testing.assert_close(
                probabilities(model, alone), ours[b : b + 1], rtol=1e-4, atol=1e-6
            )

    def test_word_by_word_and_learning(self, variant):
        model, batch = model_and_batch(variant)
        memory = model.encode(batch)
        state, words = model.start(memory, 3), []
        for t in range(6):
            logits, state = model.step(state, batch.captions[..., t])
            words.append(logits)
        torch.testing.assert_close(
            torch.stack(words, 2), model.decode(memory, batch.captions), rtol=1e-4, atol=1e-5
        )
        total, count = model.train().loss(batch)
        (total / count).backward()
        assert count == 4 * 3 * 5
        assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
        # the bias of keys adds the same to all scores of a query, which no softmax notices
        assert not [
            name
            for name, p in model.named_parameters()
            if not p.grad.any() and not name.endswith("key.bias")
        ]

    def test_the_order_of_regions_does_not_matter(self, variant):
        model, batch = model_and_batch(variant, real=(7, 7))
        order = torch.randperm(7)
        other = replace(batch, regions=batch.regions[:, order], boxes=batch.boxes[:, order])
        torch.testing.assert_close(
            probabilities(model, other), probabilities(model, batch), rtol=1e-4, atol=1e-6
        )


@pytest.mark.parametrize(
    ("variant", "matter"),
    [("full", True), ("layer2", True), ("baseline", False), ("unrelated", False)],
)
def test_boxes_matter_where_there_is_a_graph(variant, matter):
    model, batch = model_and_batch(variant)
    other = replace(batch, boxes=torch.tensor([[0.1, 0.1, 0.2, 0.2]]).expand(4, 7, 4))
    assert (
        (probabilities(model, other) - probabilities(model, batch)).abs().max() > 1e-3
    ) == matter


def test_nothing_at_all_in_any_picture():
    model, batch = model_and_batch(real=(0, 0))
    found = probabilities(model, batch)
    torch.testing.assert_close(found[0].sum(-1), torch.ones(3, 6))
    empty = Batch(
        regions=torch.zeros(2, 0, 6),
        boxes=torch.zeros(2, 0, 4),
        region_mask=torch.zeros(2, 0).bool(),
        captions=batch.captions,
    )
    torch.testing.assert_close(probabilities(model, empty), found)


def test_a_hundred_regions_in_a_padded_batch():
    model, batch = model_and_batch(regions=100, real=(100, 1, 0, 37))
    together = probabilities(model, batch)
    for b, count in enumerate((100, 1, 0, 37)):
        cut = {
            name: getattr(batch, name)[b : b + 1, :count]
            for name in ("regions", "boxes", "region_mask")
        }
        alone = probabilities(model, Batch(**cut, captions=batch.captions[b : b + 1]))
        torch.testing.assert_close(alone, together[b : b + 1], rtol=1e-4, atol=1e-6)


def test_captions_of_any_length_even_none():
    model, batch = model_and_batch()
    lengths = torch.tensor([[6, 2, 4], [1, 3, 0], [0, 0, 0], [5, 5, 6]])
    batch = replace(
        batch, captions=batch.captions.masked_fill(torch.arange(6) >= lengths[..., None], 0)
    )
    memory, total = model.encode(batch), 0.0
    together, state = model.decode(memory, batch.captions), model.start(memory, 3)
    for t in range(6):
        logits, state = model.step(state, batch.captions[..., t])
        real = lengths > t
        torch.testing.assert_close(together[:, :, t][real], logits[real], rtol=1e-4, atol=1e-5)
        if t < 5:
            said = logits.log_softmax(-1).gather(-1, batch.captions[..., t + 1, None])[..., 0]
            total -= said[lengths > t + 1].sum()
    loss, words = model.loss(batch)
    assert words == (lengths - 1).clamp(min=0).sum()
    torch.testing.assert_close(loss, total, rtol=1e-4, atol=1e-4)
    nothing = replace(batch, captions=torch.zeros_like(batch.captions))
    assert model.train().loss(nothing)[0] == 0


# ---- decoding


def test_captions_may_change_places_and_pictures_may_leave():
    model, batch = model_and_batch()
    memory, tokens = model.encode(batch), batch.captions
    _, state = model.step(model.start(memory, 3), tokens[..., 0])
    parents, rows = torch.tensor([[2, 0, 0], [1, 1, 1], [0, 1, 2], [2, 1, 0]]), torch.tensor([2, 0])
    taken = tokens.gather(1, parents[..., None].expand(-1, -1, 6))
    moved = model.step(state.reorder(parents), tokens[..., 1])[0]
    for b in range(4):
        for c in range(3):
            alone = model.decode(
                memory.select(torch.tensor([b])),
                torch.stack([taken[b, c, 0], tokens[b, c, 1]])[None, None],
            )
            torch.testing.assert_close(moved[b, c], alone[0, 0, 1], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        model.step(state.reorder(parents).select(rows), tokens[rows][..., 1])[0], moved[rows]
    )


def test_a_hidden_region_is_not_attended_to():
    model, batch = model_and_batch(real=(7, 5))
    state, trace = model.start(model.encode(batch), 3), defaultdict(list)
    model.step(state.mask_position(torch.tensor([6, 0])), batch.captions[..., 0], trace)
    seen = trace["cross"][0].amax((1, 2)) > 0
    assert seen.int().tolist() == [[1, 1, 1, 1, 1, 1, 0], [0, 1, 1, 1, 1, 0, 0]]


def test_keys_and_values_are_made_once_and_never_copied_for_beams():
    model, batch = model_and_batch()
    projected = []
    model.decoder.attention.key.register_forward_hook(lambda *_: projected.append(1))
    memory = model.encode(batch)
    state = model.start(memory, 5)
    for _ in range(4):
        _, state = model.step(state, torch.full((4, 5), 4))
        state = state.reorder(torch.zeros(4, 5, dtype=torch.long))
        assert state.memory is memory
    beam_search(model, memory, 5, max_length=6)
    assert projected == [1]
    assert memory.layers[0].key.shape == (4, 3 * H, 7, D // H)


def test_traces_change_nothing():
    model, batch = model_and_batch()
    trace, tokens = defaultdict(list), batch.captions[..., 0]
    with torch.no_grad():
        torch.testing.assert_close(
            model.encode_inputs(batch, trace)[0], model.encode_inputs(batch)[0]
        )
        state = model.start(model.encode(batch), 3)
        torch.testing.assert_close(
            model.step(state, tokens, trace)[0], model.step(state, tokens)[0]
        )
    assert [tuple(w.shape) for w in trace["self"]] == [(4, H, 7, 3, 7)] * 3
    cross = trace["cross"][0]
    assert cross.shape == (4, 3 * H, 3, 7)
    torch.testing.assert_close(cross[:3].sum(-1), torch.ones(3, 3 * H, 3))
    assert not cross[3].any(), "nobody attends where there is no region"


# ---- what regions attend to


class TestRelations:
    def test_shares_are_counted_region_by_region(self):
        model, batch = model_and_batch()
        graph, trace, found = (
            spatial_graph(batch.boxes, batch.region_mask),
            {},
            attention_by_relation(model, batch),
        )
        with torch.no_grad():
            model.encode_inputs(batch, trace)
        related = [
            (b, region) for b in range(4) for region in range(7) if graph[b, 0, region].any()
        ]
        for layer, weights in enumerate(trace["self"]):
            for relation in RELATIONS:
                shares = [
                    weights[b, :, region, relation].sum(-1).mean().item() for b, region in related
                ]
                assert found["layers"][layer, relation].item() == pytest.approx(
                    sum(shares) / len(shares), abs=1e-6
                )
        alike = [
            [
                graph[b, relation, region].sum().item() / graph[b, :, region].sum().item()
                for b, region in related
            ]
            for relation in RELATIONS
        ]
        assert found["regions"] == len(related) > 3
        torch.testing.assert_close(found["alike"], torch.tensor(alike).mean(1))

    def test_a_plain_layer_gives_all_it_has(self):
        model, batch = model_and_batch("baseline")
        found = attention_by_relation(model, batch)
        torch.testing.assert_close(found["layers"].sum(-1), torch.ones(3))
        assert (found["layers"][:, :2] > 0.01).all()

    @pytest.mark.parametrize(
        ("variant", "name"),
        [("full", "image_transformer-tiny-xe"), ("baseline", "image_transformer-baseline-tiny-xe")],
    )
    def test_a_split_is_measured_and_written(self, tmp_path, monkeypatch, variant, name):
        (tmp_path / "results").mkdir()
        (tmp_path / "results" / "README.md").touch()
        monkeypatch.chdir(tmp_path)
        world = scenes(train=4, val=0, test=30, novel=0)
        vocabulary, tiny = (
            Vocabulary.build(world.captions("train")),
            replace(PRESETS["tiny"], variant=variant),
        )
        metadata = {
            "model": "image_transformer",
            "variant": variant if variant != "full" else None,
            "preset_name": "tiny",
            "stage": "xe",
            "seed": 3,
            "source": "scenes",
            "command": "none",
        }
        run = Run(
            Model(tiny, len(vocabulary)).eval(),
            vocabulary,
            ImageProcessor(tiny),
            RunMetadata.from_dict(metadata),
        )
        monkeypatch.setattr("benchmarks.relations.load_dataset", lambda name: world)
        path = measure_relations(run, batch_size=7)
        assert path == tmp_path / "results" / "scenes" / f"{name}.seed3.relations.json"
        assert measure_relations(run, split="train").name == f"{name}-train.seed3.relations.json"
        said, whole = (
            json.loads(path.read_text()),
            attention_by_relation(run.model, run.processor([item.image for item in world["test"]])),
        )
        assert said["regions"] == whole["regions"] > 0
        assert said["example"]["image_id"] in {item.image_id for item in world["test"]}
        torch.testing.assert_close(torch.tensor(said["layers"]), whole["layers"], rtol=0, atol=1e-5)
        torch.testing.assert_close(torch.tensor(said["alike"]), whole["alike"], rtol=0, atol=1e-5)

    def test_a_run_that_has_nothing_to_measure_is_refused(self):
        run = SimpleNamespace(
            model=torch.nn.Identity(), metadata=RunMetadata(source="none", model="cptr")
        )
        with pytest.raises(ValueError, match="this run is of cptr: take one of image_transformer"):
            measure_relations(run)

    @torch.no_grad()
    def test_a_graph_that_tells_nothing_apart_is_summed_like_a_plain_layer(self):
        model, batch = model_and_batch("unrelated")
        found, trace = attention_by_relation(model, batch), {}
        _, boxes, mask = model.regions(batch)
        model.encode_inputs(batch, trace)
        graph = spatial_graph(boxes, mask)
        related, weights = graph[:, 0].any(-1), trace["self"][0].mean(1).sum(2)
        assert related.any()
        torch.testing.assert_close(weights.sum(-1)[mask], torch.ones(int(mask.sum())))
        torch.testing.assert_close(
            found["layers"][0, 0], (weights * graph[:, 0]).sum(-1)[related].mean()
        )

    @pytest.mark.parametrize("variant", ["full", "baseline", "unrelated"])
    def test_the_example_has_a_parent_and_a_child(self, monkeypatch, variant):
        boxes = torch.tensor(
            [
                [
                    [0, 0, 0.1, 0.1],
                    [0.2, 0.2, 0.9, 0.9],
                    [0.3, 0.3, 0.8, 0.8],
                    [0.4, 0.4, 0.5, 0.5],
                    [0, 0, 1, 1],
                ]
            ]
        )
        model, _ = model_and_batch(variant)
        batch = Batch(
            regions=torch.randn(1, 5, 6),
            boxes=boxes,
            region_mask=torch.tensor([[False, True, True, True, False]]),
        )
        monkeypatch.setattr(relations, "make_batch", lambda *rest: batch)
        found = relations.find_example(Run(model, None, None, {}), [Item("7", ())], {})
        assert found["image_id"] == 7
        assert found["query"] == 1
        assert len(found["boxes"]) == 3
        weights = torch.tensor(found["weights"])
        assert (weights > 0).int().tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]


# ---- the released program's training


class TestSampling:
    @pytest.mark.slow
    def test_starts_with_none_and_grows_by_a_twentieth(self):
        model, batch = model_and_batch("released", sampling_interval=8)
        shares = []
        model.decoder.register_forward_hook(lambda *_: shares.append(model.sampling))
        for _ in range(50):
            model.train().loss(batch)
        shares = shares[::5]  # five words a caption
        assert shares[:2] == [0.0, 0.0]
        assert shares[2] == shares[3] == 0.05
        assert max(shares) == 0.5
        assert model.sampling == 0.0
        assert model.samples_seen == 200

    def test_reads_its_own_words_in_training_only(self):
        model, batch = model_and_batch("sampling", sampling_interval=1)
        model.samples_seen += 1000
        torch.manual_seed(0)
        evaluated = model.eval().loss(batch)[0]
        trained = model.train().loss(batch)[0]
        plain = model_and_batch("full")[0]
        plain.load_state_dict(dict(model.state_dict().items()))
        torch.testing.assert_close(evaluated, plain.loss(batch)[0])
        assert (trained - evaluated).abs() > 0.1

    def test_smoothing_is_the_variants(self):
        model, batch = model_and_batch("smoothing")
        torch.testing.assert_close(model.loss(batch, 0.0)[0], model.loss(batch, 0.7)[0])
        torch.testing.assert_close(
            model.loss(batch)[0], model_and_batch("full")[0].loss(batch, 0.2)[0]
        )


def test_half_precision_learns():
    model, batch = model_and_batch()
    with torch.autocast("cpu", torch.bfloat16):
        total, words = model.train().loss(batch)
    total.backward()
    torch.testing.assert_close(
        total / words, torch.true_divide(*model.loss(batch)), rtol=0.05, atol=0.05
    )
    with torch.autocast("cpu", torch.bfloat16):
        state = model.start(model.encode(batch), 3)
        assert (
            state.m.dtype == model.step(state, batch.captions[..., 0])[1].m.dtype == torch.float32
        )


def test_cells_alone_need_no_boxes_and_nothing_is_refused():
    preset = replace(
        PRESETS["tiny"],
        inputs=replace(PRESETS["tiny"].inputs, max_boxes=0, grid=2),
        channels=6,
    )
    assert preset.inputs.fields == ("grid",)
    with pytest.raises(ValueError, match="neither regions nor cells to see"):
        replace(preset, inputs=replace(preset.inputs, grid=0))
    found = Model(preset, V).eval()
    batch = Batch(grid=torch.randn(2, 4, 6), captions=torch.randint(3, V, (2, 3, 6)))
    assert probabilities(found, batch).shape == (2, 3, 6, V)


def test_cells_are_regions_too():
    model, batch = model_and_batch(grid=2)
    with pytest.raises(ValueError, match="this model reads grid"):
        model.encode(batch)
    grid = torch.randn(4, 4, 6)
    seen, mask = model.encode_inputs(replace(batch, grid=grid))
    assert seen.shape == (4, 11, D)
    assert mask[:, 0, 0].sum(-1).tolist() == [11, 9, 5, 4]
    twin = model_and_batch()[0]
    twin.load_state_dict(model.state_dict())
    as_regions = Batch(
        regions=torch.cat([batch.regions, grid], 1),
        boxes=torch.cat([batch.boxes, regions_module._cell_boxes(model.grid).expand(4, -1, -1)], 1),
        region_mask=torch.cat([batch.region_mask, torch.ones(4, 4).bool()], 1),
    )
    torch.testing.assert_close(twin.encode_inputs(as_regions)[0], seen)


def test_unknown_variants_and_heads_are_refused():
    with pytest.raises(ValueError, match="no variant 'both': choose from full, baseline"):
        replace(PRESETS["tiny"], variant="both")
    with pytest.raises(ValueError, match="3 heads do not divide a width of 16"):
        SpatialGraphAttention(16, 3)


def test_published_sizes():
    paper = PRESETS["paper"]
    with torch.device("meta"):
        model = Model(replace(paper), 10_369)
    assert len(model.encoder.blocks) == 3
    assert model.decoder.attention.parts == 3
    assert paper.width == 1024
    assert all(isinstance(block.attention, SpatialGraphAttention) for block in model.encoder.blocks)
    config = paper.training
    assert (config.epochs, config.batch_size, config.lr, config.warmup, config.schedule) == (
        25,
        10,
        2e-4,
        2000,
        "stairs",
    )
    assert config.lr_lambda(100)(0) == 1 / 2000
    assert config.lr_lambda(1000)(3000) == 0.8
    with torch.device("meta"):
        released = Model(replace(paper, variant="released"), 10_369)
    assert released.encoder.blocks[0].attention.gate.weight.shape == (2048, 2048)
    assert released.decoder.attention.output is None
