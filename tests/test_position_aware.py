"""Position-aware attention against its equations written out."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from captionlab.blocks import BlockConfig, Encoder
from captionlab.data.batches import Batch
from captionlab.models.position_aware import (
    PRESETS,
    VARIANTS,
    FeatureFusion,
    Model,
    PositionAwareAttention,
    PositionAwareEncoder,
    RelativePositions,
)

V = 23


def edges_one_by_one(positions: RelativePositions) -> Tensor:
    """E, `(N, N, D)`, from Figure 6 (eq-pat-edge): differences of rows and columns, i minus j."""
    m, n = positions.rows, positions.columns
    cells = [(row, column) for row in range(m) for column in range(n)]
    return torch.stack(
        [
            torch.stack(
                [positions.row[r - a + m - 1] + positions.column[c - b + n - 1] for a, b in cells]
            )
            for r, c in cells
        ]
    )


def equation_5(attention: PositionAwareAttention, x: Tensor) -> Tensor:
    """Equations (4) and (5), eq-pat-4 and eq-pat-5, without the residual."""
    E, mixed = edges_one_by_one(attention.positions), []
    for q, k, v, e in zip(
        *(part.chunk(attention.heads, -1) for part in (attention.query(x), attention.key(x), x, E)),
        strict=True,
    ):
        keys, values = k[:, None] + e, v[:, None] + e
        weights = (torch.einsum("bik,bijk->bij", q, keys) / math.sqrt(q.shape[-1])).softmax(-1)
        mixed.append((weights[..., None] * values).sum(2))
    return torch.cat(mixed, -1)


def attention_of(
    rows: int, columns: int, dtype: torch.dtype, dropout: float = 0.0
) -> tuple[PositionAwareAttention, Tensor]:
    """An attention with tables that are not small, and two maps."""
    torch.manual_seed(rows + columns)
    positions = RelativePositions(rows, columns, 16)
    nn.init.normal_(positions.row), nn.init.normal_(positions.column)
    x = torch.randn(2, rows * columns, 16, dtype=dtype, requires_grad=True)
    return PositionAwareAttention(16, 4, positions, dropout).to(dtype), x


@pytest.mark.parametrize(("dtype", "within"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
@pytest.mark.parametrize(("rows", "columns"), [(2, 3), (5, 4), (1, 7), (6, 1), (1, 1), (7, 7)])
class TestAttention:
    def test_never_building_edges_changes_neither_values_nor_gradients(
        self, rows, columns, dtype, within
    ):
        attention, x = attention_of(rows, columns, dtype)
        inputs, found = (x, *attention.parameters()), []
        for way in (
            lambda: attention(x),
            lambda: attention(x, trace=[]),
            lambda: equation_5(attention, x),
        ):
            out = way()
            found.append((out, *torch.autograd.grad(out.tanh().mean(), inputs)))
        for ours in found[:2]:
            torch.testing.assert_close(ours, found[2], rtol=within, atol=within)

    def test_with_a_mask(self, rows, columns, dtype, within):
        attention, x = attention_of(rows, columns, dtype)
        mask = torch.rand(2, 1, rows * columns, rows * columns) < 0.6
        mask[0, 0, 0] = False
        fused, traced = attention(x, mask), attention(x, mask, trace=[])
        torch.testing.assert_close(fused, traced, rtol=within, atol=within)
        assert not traced[0, 0].any(), "a cell that may attend to nothing gets nothing"


def test_edges_are_those_of_the_figure():
    positions = RelativePositions(12, 9, 3)
    i, j = 10 * 9 + 2, 7 * 9 + 4  # coordinates (2, n) and (4, n - 3) of Figure 6, with n = 10
    torch.testing.assert_close(
        positions.edges()[i, j], positions.row[3 + 11] + positions.column[-2 + 8]
    )
    torch.testing.assert_close(positions.edges(), edges_one_by_one(positions))
    assert positions.row.shape[0] + positions.column.shape[0] == 2 * (12 + 9 - 1)


def test_dropout_drops_edges_with_their_weights():
    attention, x = attention_of(3, 4, torch.float64, dropout=0.5)
    torch.manual_seed(3)
    out = attention(x)
    torch.manual_seed(3)
    trace = []
    torch.testing.assert_close(attention(x, trace=trace), out)
    torch.manual_seed(3)
    dropped, E = attention.dropout(trace[0]), edges_one_by_one(attention.positions)
    parts = zip(dropped.unbind(1), x.chunk(4, -1), E.chunk(4, -1), strict=True)
    literal = torch.cat([torch.einsum("bij,bijk->bik", w, v[:, None] + e) for w, v, e in parts], -1)
    torch.testing.assert_close(out, literal)
    assert (attention.eval()(x) - out).abs().max() > 0.1


@pytest.mark.parametrize("way", ["fused", "traced", "masked", "dropping"])
def test_half_precision_of_training_changes_little(way):
    attention, x = attention_of(5, 4, torch.float32, dropout=0.25 if way == "dropping" else 0.0)
    mask = torch.rand(2, 1, 20, 20) < 0.6 if way == "masked" else None
    found = []
    for enabled in (False, True):
        torch.manual_seed(1)
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            out = attention(x, mask, trace=[] if way == "traced" else None)
        found.append(
            (
                out.float(),
                *torch.autograd.grad(out.float().tanh().sum(), (x, *attention.parameters())),
            )
        )
    for whole, half in zip(*found, strict=True):
        assert half.dtype == torch.float32
        assert (whole - half).norm() < 0.03 * whole.norm()
        assert not torch.equal(whole, half), "autocast was not on"


def test_nothing_as_large_as_the_edges_is_made():
    attention, x = attention_of(14, 14, torch.float32)
    sizes, weights = [], len(x) * attention.heads * 196**2

    def note_size(tensor):
        sizes.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note_size, lambda tensor: tensor):
        attention(x).sum().backward()
    assert max(sizes) < weights < 196**2 * 16, "not even the weights, let alone the edges"


class TestGradients:
    @pytest.mark.parametrize(("dtype", "within"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
    def test_a_mask_without_effect_changes_none(self, dtype, within):
        attention, x = attention_of(23, 23, dtype)
        found = []
        for mask in (None, torch.ones(529, 529).bool()):
            out = attention(x, mask)
            found.append(
                (
                    out,
                    *torch.autograd.grad(
                        (out * out.detach().cos()).mean(), (x, *attention.parameters())
                    ),
                )
            )
        torch.testing.assert_close(*found, rtol=within, atol=within)

    @pytest.mark.slow
    def test_gradients_are_those_of_finite_differences(self):
        attention, x = attention_of(2, 3, torch.float64)
        assert torch.autograd.gradcheck(attention, x)

    @pytest.mark.parametrize("pictures", [0, 1])
    def test_any_number_of_pictures(self, pictures):
        attention, x = attention_of(2, 3, torch.float32)
        some = x.detach()[:pictures].requires_grad_()
        attention(some).sum().backward()
        assert some.grad.shape == some.shape
        assert attention.query.weight.grad.isfinite().all()


def test_a_block_adds_its_input_once():
    torch.manual_seed(0)
    encoder, x = PositionAwareEncoder(2, BlockConfig(16, 4, 32), 3, 5), torch.randn(2, 15, 16)
    expected = x
    for block in encoder.blocks:
        attended = block.residuals[0].norm(equation_5(block.attention, expected) + expected)
        expected = block.residuals[1].norm(attended + block.feed_forward(attended))
    torch.testing.assert_close(encoder(x), expected, rtol=1e-5, atol=1e-5)
    assert sum(name.endswith("positions.row") for name, _ in encoder.named_parameters()) == 1, (
        "one pair of tables for all layers"
    )


def test_fusion_is_torchs_attention_without_values():
    torch.manual_seed(0)
    ours, theirs = FeatureFusion(8), nn.MultiheadAttention(8, 1, bias=False, batch_first=True)
    theirs.in_proj_weight.data = torch.cat(
        [ours.query.weight, ours.key.weight, torch.eye(8)]
    ).detach()
    theirs.out_proj.weight.data = torch.eye(8)
    high, low = torch.randn(3, 6, 8), torch.randn(3, 20, 8)
    taken, weights = theirs(high, low, low)
    trace = []
    torch.testing.assert_close(ours(high, low), taken + high)
    torch.testing.assert_close(ours(high, low, trace), taken + high)
    torch.testing.assert_close(trace[0], weights)


def model_and_batch(
    variant: str, cells: int | tuple = (3, 5), fine: int = 24
) -> tuple[Model, Batch]:
    torch.manual_seed(0)
    preset = replace(
        PRESETS["tiny"],
        inputs=replace(PRESETS["tiny"].inputs, grid=cells),
        width=16,
        heads=2,
        hidden=32,
        variant=variant,
    )
    high = math.prod(preset.grid)
    batch = Batch(
        low=torch.randn(3, fine, 12),
        high=torch.randn(3, high, 12),
        captions=torch.randint(3, V, (3, 4, 7)),
    )
    return Model(preset, V).eval(), batch


@pytest.mark.parametrize("variant", VARIANTS)
class TestVariants:
    def test_reads_what_it_says(self, variant):
        model, batch = model_and_batch(variant)
        reads = replace(PRESETS["tiny"], variant=variant).inputs.fields
        alone = Batch(**{name: getattr(batch, name) for name in (*reads, "captions")})
        total, words = model.loss(alone)
        assert words == 3 * 4 * 6
        assert total.isfinite()
        changed = replace(batch, low=batch.low + 1)
        with torch.no_grad():
            same = torch.equal(model.encode_inputs(batch)[0], model.encode_inputs(changed)[0])
        assert same == (variant == "vanilla")

    @pytest.mark.parametrize("cells", [(3, 5), (5, 3), 1, (1, 6), 4])
    def test_maps_of_any_shape_and_fine_maps_of_any_size(self, variant, cells):
        model, batch = model_and_batch(variant, cells, fine=7)
        assert model.encode_inputs(batch)[0].shape == (3, batch.high.shape[1], 16)

    @pytest.mark.parametrize("cells", [14, 16, 64])
    def test_a_map_of_another_size_is_refused(self, variant, cells):
        model, batch = model_and_batch(variant)
        with pytest.raises(
            ValueError, match=rf"{cells} cells, and this model was made for 3 x 5 = 15"
        ):
            model.encode_inputs(replace(batch, high=torch.randn(3, cells, 12)))

    def test_knows_where_cells_are(self, variant):
        model, batch = model_and_batch(variant)
        shuffle = torch.randperm(15)
        shuffled = replace(batch, high=batch.high[:, shuffle])
        with torch.no_grad():
            assert (
                model.encode_inputs(shuffled)[0] - model.encode_inputs(batch)[0][:, shuffle]
            ).abs().max() > 1e-3

    def test_traces_change_nothing(self, variant):
        model, batch = model_and_batch(variant)
        trace = {"fusion": [], "self": []}
        with torch.no_grad():
            torch.testing.assert_close(
                model.encode_inputs(batch, trace)[0], model.encode_inputs(batch)[0]
            )
        for weights in (*trace["fusion"], *trace["self"]):
            torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))
        assert len(trace["fusion"]) == (variant != "vanilla")


def test_attention_refuses_a_map_of_another_size():
    attention = PositionAwareAttention(16, 4, RelativePositions(14, 14, 16))
    with pytest.raises(
        ValueError, match="49 cells, but relative positions were made for 14 x 14 = 196"
    ):
        attention(torch.randn(1, 49, 16))


def test_unknown_variants_and_heads_are_refused():
    with pytest.raises(
        ValueError, match="no variant 'both': choose from vanilla, fpn, position_aware"
    ):
        replace(PRESETS["tiny"], variant="both")
    with pytest.raises(ValueError, match="3 heads do not divide a width of 16"):
        PositionAwareAttention(16, 3, RelativePositions(2, 2, 16))


def test_without_positions_and_projections_it_is_plain_attention():
    """Tables of zeros leave scaled dot-product attention whose values are the input."""
    attention, x = attention_of(3, 5, torch.float32)
    nn.init.zeros_(attention.positions.row), nn.init.zeros_(attention.positions.column)
    plain = nn.MultiheadAttention(16, 4, bias=False, batch_first=True)
    plain.in_proj_weight.data = torch.cat(
        [attention.query.weight, attention.key.weight, torch.eye(16)]
    ).detach()
    plain.out_proj.weight.data = torch.eye(16)
    torch.testing.assert_close(attention(x), plain(x, x, x)[0], rtol=1e-5, atol=1e-5)


def test_published_sizes():
    paper = PRESETS["paper"]
    with torch.device("meta"):
        model = Model(paper, 9487)
    assert len(model.encoder.blocks) == len(model.decoder.blocks) == 6
    assert paper.width // paper.heads == 64
    assert paper.hidden == 1024
    assert paper.training.warmup == 20000
    assert (
        model.encoder.positions.row.numel() + model.encoder.positions.column.numel()
        == 2 * (14 + 14 - 1) * 256
    )
    assert isinstance(model.encoder, Encoder)
