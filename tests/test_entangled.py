"""The Entangled Transformer against its equations written with PyTorch's modules."""

import json
from collections import defaultdict
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from test_models import says_the_same_word_by_word
from torch import Tensor, nn
from typer.testing import CliRunner

from benchmarks.gates import gate_by_class, measure_gate, trace_paths, word_class
from captionlab.blocks import BlockConfig, Decoder, Encoder
from captionlab.cli import application
from captionlab.data.batches import Batch
from captionlab.data.datasets import CaptionData, scenes
from captionlab.decoding.beam import beam_search
from captionlab.decoding.ensemble import Ensemble
from captionlab.decoding.generation import BOS, EOS
from captionlab.features import regions as regions_module
from captionlab.features.attributes import AttributeDetector
from captionlab.features.extraction import input_transforms
from captionlab.features.image_processor import ImageProcessor
from captionlab.features.preprocessing import Preprocess
from captionlab.models.entangled import (
    ACTIVATIONS,
    PRESETS,
    VARIANTS,
    EntangledAttention,
    EntangledBlock,
    EtaVariant,
    GatedController,
    Model,
)
from captionlab.pytorch_layers import copy_attention
from captionlab.runs.catalog import load
from captionlab.runs.ensembles import ensemble
from captionlab.runs.evaluation import evaluate
from captionlab.runs.fitting import NewModel, fit
from captionlab.runs.run import Run
from captionlab.runs.storage import RunMetadata
from captionlab.text import Vocabulary, normalise

V, CONFIG = 23, BlockConfig(16, 4, 32)


def batch_of(preset, pictures: int = 3, captions: int = 4) -> Batch:
    """Pictures with few and many regions and attributes."""
    torch.manual_seed(1)
    count = torch.arange(pictures)[:, None]
    boxes = torch.rand(pictures, preset.inputs.max_boxes, 2, 2).sort(2).values.flatten(2)
    return Batch(
        regions=torch.randn(pictures, preset.inputs.max_boxes, preset.channels),
        boxes=boxes,
        region_mask=torch.arange(preset.inputs.max_boxes) <= count,
        grid=torch.randn(pictures, preset.inputs.grid**2, preset.channels),
        attributes=torch.randint(4, V, (pictures, 5)) * (torch.arange(5) <= count),
        captions=torch.randint(4, V, (pictures, captions, 7)),
    )


def model_of(variant: str = "eta", **sizes) -> tuple[Model, Batch]:
    torch.manual_seed(0)
    inputs = {name: sizes.pop(name) for name in ("max_boxes", "grid") if name in sizes}
    preset = replace(
        PRESETS["tiny"],
        variant=variant,
        inputs=replace(PRESETS["tiny"].inputs, **inputs),
        **{"width": 16, "heads": 2, "hidden": 32} | sizes,
    )
    return Model(preset, V).eval(), batch_of(preset)


def theirs(count: int) -> list[nn.MultiheadAttention]:
    """PyTorch's attentions with weights and biases that are not zero."""
    found = [nn.MultiheadAttention(16, 4, batch_first=True) for _ in range(count)]
    for parameter in (p for one in found for p in one.parameters()):
        nn.init.normal_(parameter, std=0.3)
    return found


class TestEquations:
    """Equations (8) to (12), eq-eta-8 to eq-eta-12, with PyTorch's modules."""

    def eta_by_torch(self, block, torchs, norms, a, V, S, seen):
        hide = {name: ~mask[:, 0, 0] for name, mask in seen.items()}

        def multi_head(number, q, kv, of):
            return torchs[number](q, kv, kv, key_padding_mask=hide[of])[0]

        g_s = norms[0](a + multi_head(0, a, S, "s"))
        v = norms[1](g_s + multi_head(1, g_s, V, "v"))
        g_v = norms[2](a + multi_head(2, a, V, "v"))
        s = norms[3](g_v + multi_head(3, g_v, S, "s"))
        c = torch.sigmoid(
            nn.functional.linear(
                torch.cat([g_s, g_v, a], -1),
                block.controller.gate.weight,
                block.controller.gate.bias,
            )
        )
        return norms[4](a + v * c + s * (1 - c))

    def test_a_block_is_the_papers(self):
        torch.manual_seed(0)
        block, torchs = EntangledBlock(CONFIG, VARIANTS["eta"]).eval(), theirs(4)
        steps = ("s", "sv", "v", "vs")
        for step, source in zip(steps, torchs, strict=True):
            block.cross_attention.attentions[step] = copy_attention(source)
        for parameter in (p for name, p in block.named_parameters() if "norm" in name):
            nn.init.normal_(parameter)
        norms = [
            *(block.cross_attention.residuals[step].norm for step in steps),
            block.residuals[1].norm,
        ]
        a, memories = (
            torch.randn(3, 6, 16),
            {"v": torch.randn(3, 9, 16), "s": torch.randn(3, 5, 16)},
        )
        masks = {
            name: (torch.arange(x.shape[1]) < torch.tensor([[2], [4], [5]]))[:, None, None]
            for name, x in memories.items()
        }
        ours = block.cross_attend(a, block.project(memories), masks)
        expected = self.eta_by_torch(block, torchs, norms, a, memories["v"], memories["s"], masks)
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)

    def test_each_step_has_weights_of_its_own(self):
        attention = EntangledAttention(CONFIG, ("sv", "vs"))
        assert list(attention.attentions) == ["s", "v", "sv", "vs"]
        assert len({id(p) for p in attention.parameters()}) == 4 * 8 + 4 * 2

    @pytest.mark.parametrize("activation", ACTIVATIONS)
    @pytest.mark.parametrize(("bias", "which"), [(1e4, 0), (-1e4, 1)])
    def test_the_gate_at_0_and_1_gives_one_modality_exactly(self, bias, which, activation):
        control = GatedController(16, activation)
        nn.init.zeros_(control.gate.weight), nn.init.constant_(control.gate.bias, bias)
        ends, context, trace = torch.randn(2, 3, 7, 16), torch.randn(3, 3, 7, 16), []
        assert torch.equal(
            control(*ends, tuple(context), trace), ACTIVATIONS[activation](ends[which])
        )
        assert (trace[0] == 1 - which).all()

    def test_the_gate_sees_both_guides_and_the_words(self):
        control, parts = GatedController(16), torch.randn(3, 2, 16, requires_grad=True)
        control(torch.randn(2, 16), torch.randn(2, 16), tuple(parts)).sum().backward()
        assert (parts.grad.abs().sum((1, 2)) > 0).all()

    @pytest.mark.parametrize(
        ("activation", "most"), [("identity", 1.0), ("relu", 1.0), ("tanh", 1.0), ("sigmoid", 0.25)]
    )
    def test_equation_13(self, activation, most):
        """eq-eta-13: the gradient is scaled by 1 for the identity, by at most 1/4 for a sigmoid."""
        x = torch.randn(10_000, requires_grad=True)
        control = GatedController(1, activation)
        nn.init.zeros_(control.gate.weight), nn.init.constant_(control.gate.bias, 1e4)
        control(x[:, None], x.detach()[:, None], (x.detach()[:, None],) * 3).sum().backward()
        assert x.grad.max() <= most + 1e-6
        assert x.grad.max() > 0.99 * most
        assert (x.grad == 1).all() == (activation == "identity")


@pytest.mark.parametrize("variant", VARIANTS)
class TestVariants:
    def test_reads_what_it_says_and_nothing_else(self, variant):
        model, batch = model_of(variant)
        reads = replace(PRESETS["tiny"], variant=variant).inputs.fields
        total, words = model.loss(
            Batch(**{name: getattr(batch, name) for name in (*reads, "captions")})
        )
        assert words == 3 * 4 * 6
        assert total.isfinite()
        assert ("attributes" in reads) == (not variant.startswith("visual"))
        assert ("regions" in reads) == (not variant.startswith("semantic"))

    def test_every_weight_learns(self, variant):
        model, batch = model_of(variant)
        model.loss(batch)[0].backward()
        assert not [
            name
            for name, p in model.named_parameters()
            if p.grad is None or (not p.grad.any() and "key.bias" not in name)
        ]

    def test_word_by_word_equals_all_at_once(self, variant):
        model, batch = model_of(variant)
        says_the_same_word_by_word(model, batch)

    def test_order_and_padding_of_regions_and_attributes_change_nothing(self, variant):
        model, batch = model_of(variant)
        regions, attributes = torch.randperm(batch.regions.shape[1]), torch.randperm(5)
        wide = nn.functional.pad(batch.attributes[:, attributes], (2, 3))
        shuffled = replace(
            batch,
            regions=batch.regions[:, regions],
            boxes=batch.boxes[:, regions],
            region_mask=batch.region_mask[:, regions],
            attributes=wide,
        )
        with torch.no_grad():
            one, other = (model.decode(model.encode(x), x.captions) for x in (batch, shuffled))
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize("lacks", ["regions", "attributes", "both"])
    def test_a_photo_without_regions_or_attributes_is_captioned_all_the_same(self, variant, lacks):
        model, batch = model_of(variant)
        regions, attributes = batch.region_mask.clone(), batch.attributes.clone()
        regions[1] &= lacks == "attributes"
        attributes[1] *= lacks == "regions"
        bare = replace(batch, region_mask=regions, attributes=attributes)
        found = beam_search(model, model.encode(bare), 3, max_length=9)
        assert len(found) == 3
        assert all(len(one.ids) > 0 and one.score > -1e9 for one in found)
        total, _words = model.loss(bare)
        total.backward()
        assert total.isfinite()
        assert all(p.grad.isfinite().all() for p in model.parameters())
        with torch.no_grad():
            torch.testing.assert_close(
                model.decode(model.encode(bare), bare.captions)[2],
                model.decode(model.encode(batch), batch.captions)[2],
                rtol=1e-4,
                atol=1e-5,
            )

    def test_a_trace_changes_nothing(self, variant):
        model, batch = model_of(variant)
        memory, trace = model.encode(batch), defaultdict(list)
        with torch.no_grad():
            plain, _ = model.step(model.start(memory, 2), batch.captions[:, :2, 0])
            traced, _ = model.step(model.start(memory, 2), batch.captions[:, :2, 0], trace)
        torch.testing.assert_close(traced, plain, rtol=1e-4, atol=1e-5)
        paths, layers = VARIANTS[variant].paths, len(model.decoder.blocks)
        steps = {path[:end] for path in paths for end in (1, len(path))}
        assert set(trace) == {"self", "cross", *steps, *(["gate"] if len(paths) > 1 else [])}
        assert all(len(kept) == layers for kept in trace.values())
        for step in steps:
            seen = memory.mask[step[-1]]
            for weights in trace[step]:
                assert weights.shape == (3, 2, 2, seen.shape[-1])
                assert not weights.masked_fill(seen, 0).any()
                torch.testing.assert_close(weights.sum(-1), torch.ones(3, 2, 2))
        assert all(a is b for a, b in zip(trace["cross"], trace[paths[0]], strict=True))
        if len(paths) > 1:
            assert trace["gate"][0].shape == (3, 2, 1, 16)
            assert 0 < trace["gate"][0].min() < trace["gate"][0].max() < 1

    def test_beams_leave_as_in_any_other_model(self, variant):
        model, batch = model_of(variant)
        together = beam_search(model, model.encode(batch), 3, max_length=12)
        for row in range(3):
            alone = beam_search(
                model, model.encode(batch.select(torch.tensor([row]))), 3, max_length=12
            )[0]
            assert alone.ids == together[row].ids


def test_visual_only_is_the_plain_transformer():
    """One path of one attention is PyTorch's decoder layer, the baseline of the paper's tables."""
    torch.manual_seed(0)
    block, plain = (
        EntangledBlock(CONFIG, VARIANTS["visual"]).eval(),
        Decoder(1, CONFIG).blocks[0].eval(),
    )
    attention, residual = (
        block.cross_attention.attentions["v"],
        block.cross_attention.residuals["v"],
    )
    for ours, other in (
        (attention, plain.cross_attention),
        (residual, plain.residuals[1]),
        (block.residuals[0], plain.residuals[0]),
        (block.residuals[2], plain.residuals[2]),
        (block.self_attention, plain.self_attention),
        (block.feed_forward, plain.feed_forward),
    ):
        ours.load_state_dict(other.state_dict())
    x, memory = torch.randn(2, 3, 5, 16), torch.randn(2, 7, 16)
    ours, _ = block(x, block.project({"v": memory}), memory_mask={"v": None})
    torch.testing.assert_close(ours, plain(x, plain.project(memory))[0])


def test_keys_and_values_are_made_once_a_picture():
    model, batch = model_of()
    calls = defaultdict(int)
    for name, module in model.decoder.named_modules():
        if name.endswith((".key", ".value")) and "cross_attention.attentions" in name:
            module.register_forward_hook(
                lambda _, inputs, __, name=name: calls.__setitem__(
                    name, calls[name] + len(inputs[0])
                )
            )
    beam_search(model, model.encode(batch), 5, max_length=12)
    assert len(calls) == 2 * 4 * len(model.decoder.blocks)
    assert set(calls.values()) == {3}


def test_memory_is_never_copied_for_captions():
    model, batch = model_of()
    memory = model.encode(batch)
    assert len(memory) == 3
    assert len(memory.select(torch.tensor([2, 0, 0, 1]))) == 4
    state = model.start(memory, 50).reorder(torch.zeros(3, 50, dtype=torch.long))
    assert all(len(kept.key) == 3 for layer in state.memory.layers for kept in layer.values())
    torch.testing.assert_close(
        memory.select(torch.tensor([2])).layers[0]["sv"].key[0], memory.layers[0]["sv"].key[2]
    )


def test_attributes_share_the_decoders_words():
    model, batch = model_of()
    x, mask = model.embed_attributes(batch)
    torch.testing.assert_close(x, model.words(batch.attributes) * 4)
    assert mask.shape == (3, 1, 1, 5)
    assert mask.sum((1, 2, 3)).tolist() == [1, 2, 3]
    named = [name for name, p in model.named_parameters() if p.shape == (V, 16)]
    assert named == ["words.weight"]


def test_encoders_are_two_of_the_same_shape():
    model, _ = model_of(encoder_layers=3)
    assert sorted(model.encoders) == ["s", "v"]
    assert all(isinstance(one, Encoder) for one in model.encoders.values())
    shapes = [[p.shape for p in model.encoders[name].parameters()] for name in "sv"]
    assert shapes[0] == shapes[1]
    assert len(model.encoders["s"].blocks) == 3
    bare, _ = model_of("visual_no_encoder", encoder_layers=3)
    assert not list(bare.encoders["v"].parameters())


class TestVisualInput:
    @pytest.mark.parametrize(
        ("most", "cells", "reads"),
        [
            (4, 0, ["regions", "boxes", "region_mask"]),
            (0, 3, ["grid"]),
            (4, 3, ["regions", "boxes", "region_mask", "grid"]),
        ],
    )
    def test_regions_cells_or_both(self, most, cells, reads):
        model, batch = model_of("visual", max_boxes=most, grid=cells)
        x, mask = model.visual(batch)
        assert x.shape == (3, most + cells**2, 16)
        assert mask.shape == (3, 1, 1, most + cells**2)
        assert [
            *replace(
                PRESETS["tiny"],
                inputs=replace(PRESETS["tiny"].inputs, max_boxes=most, grid=cells),
                variant="visual",
            ).inputs.fields
        ] == reads

    def test_a_cell_is_a_region_with_its_box(self):
        model, batch = model_of("visual", max_boxes=9, grid=3)
        x, _ = model.visual(
            replace(batch, regions=batch.grid, boxes=regions_module._cell_boxes(3).expand(3, -1, -1))
        )
        torch.testing.assert_close(x[:, :9], x[:, 9:])

    def test_boxes_of_cells(self):
        assert regions_module._cell_boxes(2).tolist() == [
            [0, 0, 0.5, 0.5],
            [0.5, 0, 1, 0.5],
            [0, 0.5, 0.5, 1],
            [0.5, 0.5, 1, 1],
        ]
        assert regions_module._cell_boxes(0).shape == (0, 4)

    def test_places_matter(self):
        model, batch = model_of("visual")
        with torch.no_grad():
            moved = replace(batch, boxes=1 - batch.boxes[..., [2, 1, 0, 3]])
            assert (model.encode_inputs(moved)[0]["v"] - model.encode_inputs(batch)[0]["v"])[
                batch.region_mask
            ].abs().max() > 1e-3


def gradient_norms(activation: str, layers: int = 6) -> Tensor:
    """Return the norm of the gradient at each controller of a chain, `(layers,)`."""
    torch.manual_seed(0)
    controls, words = (
        nn.ModuleList(GatedController(32, activation) for _ in range(layers)),
        torch.randn(64, 32),
    )
    x, kept = torch.randn(64, 32, requires_grad=True), []
    for control in controls:
        x = control(x, words, (words, words, words))
        x.retain_grad()
        kept.append(x)
    x.sum().backward()
    return torch.stack([one.grad.norm() for one in kept])


def test_saturated_functions_lose_the_gradient_with_depth():
    norms = {activation: gradient_norms(activation) for activation in ACTIVATIONS}
    kept = {activation: (row[0] / row[-1]).item() for activation, row in norms.items()}
    assert kept["sigmoid"] < kept["tanh"] < kept["identity"]
    assert kept["sigmoid"] < kept["relu"] <= kept["identity"]
    assert kept["sigmoid"] < 0.25**5


def test_late_fusion_is_the_ensemble_of_two_variants():
    visual, batch = model_of("visual")
    semantic, _ = model_of("semantic")
    both = Ensemble([visual, semantic]).eval()
    with torch.no_grad():
        memory = both.encode(batch)
        parts = [
            model.decode(model.encode(batch), batch.captions).softmax(-1)
            for model in (visual, semantic)
        ]
        torch.testing.assert_close(both.decode(memory, batch.captions).exp(), sum(parts) / 2)
    assert len(beam_search(both, memory, 3, max_length=8)) == 3


def test_published_sizes():
    paper = PRESETS["paper"]
    assert (paper.width, paper.heads, paper.hidden, paper.encoder_layers, paper.decoder_layers) == (
        512,
        8,
        2048,
        6,
        6,
    )
    assert 5 * paper.training.batch_size == 75
    assert paper.training.warmup == 20000
    assert paper.training.betas == (0.9, 0.98)
    assert paper.min_count == 5
    with torch.device("meta"):
        model = Model(paper, 9487)
    assert [len(one.blocks) for one in (*model.encoders.values(), model.decoder)] == [6, 6, 6]


def test_what_cannot_be_is_refused():
    with pytest.raises(
        ValueError, match="no variant 'both': choose from visual, visual_no_encoder"
    ):
        replace(PRESETS["tiny"], variant="both")
    with pytest.raises(ValueError, match="neither regions nor cells"):
        replace(PRESETS["tiny"], inputs=replace(PRESETS["tiny"].inputs, max_boxes=0))
    with pytest.raises(ValueError, match="no attributes to read"):
        replace(PRESETS["tiny"], inputs=replace(PRESETS["tiny"].inputs, max_attributes=0))
    assert replace(
        PRESETS["tiny"],
        inputs=replace(PRESETS["tiny"].inputs, max_attributes=0),
        variant="visual",
    ).inputs.fields == ("regions", "boxes", "region_mask")


def test_forms_say_what_the_paper_says():
    assert VARIANTS["eta"] == EtaVariant(("sv", "vs"))
    assert VARIANTS["stacked_v"].paths == ("sv",)
    assert VARIANTS["stacked_s"].paths == ("vs",)
    assert VARIANTS["parallel"].paths == ("v", "s")
    assert {VARIANTS[name].activation for name in ("eta", "sigmoid", "tanh", "relu")} == set(
        ACTIVATIONS
    )


@pytest.fixture(scope="module")
def world() -> CaptionData:
    return scenes(train=8, val=0, test=5, novel=0)


def detector_of(world: CaptionData) -> AttributeDetector:
    """One that was not trained: what it says is nonsense, but always the same."""
    torch.manual_seed(0)
    detector = AttributeDetector(12, ["red", "blue", "circle", "star", "small", "striped"])
    detector.metadata = {
        "data": world.name,
        "made_by": {"backbone": None, "preprocess": Preprocess(size=64).to_dict(), "grid": [8, 8]},
    }
    return detector.eval()


def run_of(world: CaptionData, variant: str = "eta", seed: int = 0, **inputs) -> Run:
    """A run that was never trained."""
    torch.manual_seed(seed)
    preset = replace(
        PRESETS["tiny"], variant=variant, inputs=replace(PRESETS["tiny"].inputs, **inputs)
    )
    vocabulary = Vocabulary.build(world.captions("train"))
    detector = detector_of(world) if "attributes" in preset.inputs.fields else None
    model = Model(preset, len(vocabulary)).eval()
    metadata = {
        "model": "entangled",
        "preset_name": "tiny",
        "data": "scenes",
        "source": "scenes",
        "variant": None if variant == "eta" else variant,
        "stage": "xe",
        "seed": seed,
        "parameters": 10,
        "train_seconds": 1.0,
        "command": "none",
        "history": [],
    }
    return Run(
        model,
        vocabulary,
        ImageProcessor(preset, detector=detector, vocabulary=vocabulary),
        RunMetadata.from_dict(metadata),
    )


class TestRuns:
    @pytest.mark.slow
    def test_trains_with_mirrored_pictures_and_can_be_loaded_again(self, world, tmp_path):
        preset = replace(
            PRESETS["tiny"],
            inputs=replace(PRESETS["tiny"].inputs, hflip=True),
            training=replace(PRESETS["tiny"].training, epochs=1),
        )
        run = fit(
            NewModel("entangled", preset, detector=detector_of(world)), world, out=tmp_path / "run"
        )
        again = load(tmp_path / "run")
        assert again.caption([item.image for item in world["test"]]) == run.caption(
            [item.image for item in world["test"]]
        )
        processor = run.processor
        straight, turned = (
            twin([world["train"][0].image])
            for twin in (processor, processor.with_preprocess(mirror=True))
        )
        torch.testing.assert_close(
            turned.boxes[..., [0, 2]],
            (1 - straight.boxes[..., [2, 0]]) * turned.region_mask[..., None],
            rtol=0,
            atol=1e-3,
        )  # boxes are kept in half precision

    @pytest.mark.java
    @pytest.mark.slow
    def test_the_oracle_tells_what_people_say(self, world, monkeypatch):
        run, told = run_of(world, max_attributes=6), []
        plain = Run.caption_batch
        monkeypatch.setattr(
            Run,
            "caption_batch",
            lambda self, batch, *rest: told.append(batch.attributes) or plain(self, batch, *rest),
        )
        found = evaluate(run, world, beam=1, meteor=False, oracle=True)
        assert found["metadata"]["variant"] == "oracle"
        assert run.metadata.variant is None
        words = set(run.processor.detector.words)
        for item, ids in zip(world["test"], torch.cat(told), strict=True):
            assert set(run.vocabulary.decode(ids).split()) == words & {
                word for text in item.captions for word in normalise(text)
            }
        assert (
            evaluate(run_of(world, "parallel"), world, beam=1, meteor=False, oracle=True)[
                "metadata"
            ]["variant"]
            == "parallel-oracle"
        )

    @pytest.mark.java
    @pytest.mark.slow
    def test_the_oracle_tells_whichever_of_two_runs_reads_words(self, world):
        visual, semantic = run_of(world, "visual"), run_of(world, "semantic", seed=1)
        one, other = (
            evaluate(
                ensemble(first, [second]), world, beam=1, meteor=False, blind=False, oracle=True
            )["captions"]
            for first, second in ((visual, semantic), (semantic, visual))
        )
        assert one == other
        with pytest.raises(ValueError, match="reads no attributes that an oracle could give"):
            evaluate(visual, world, beam=1, meteor=False, oracle=True)

    @pytest.mark.java
    def test_a_fused_run_that_does_not_say_all_about_itself_is_one_line(self, world):
        visual, semantic = run_of(world, "visual"), run_of(world, "semantic", seed=1)
        semantic.metadata.train_seconds = None
        with pytest.raises(ValueError, match="does not say its train_seconds"):
            ensemble(visual, [semantic])

    @pytest.mark.java
    @pytest.mark.slow
    def test_fused_runs_speak_as_their_ensemble(self, world):
        visual, semantic = run_of(world, "visual"), run_of(world, "semantic", seed=1)
        found = evaluate(ensemble(visual, [semantic]), world, meteor=False)
        batch = semantic.processor([item.image for item in world["test"]])
        seen = visual.processor([item.image for item in world["test"]])
        both = replace(seen, attributes=batch.attributes)
        model = Ensemble([visual.model, semantic.model]).eval()
        said = beam_search(model, model.encode(both), 3, suppress_tokens=[visual.vocabulary.unk])
        assert [row["caption"] for row in found["captions"]] == [
            visual.vocabulary.decode(one.ids) for one in said
        ]
        assert found["metadata"]["variant"] == "visual+semantic"
        assert found["metadata"]["parameters"] == 20

    def test_runs_that_do_not_fit_are_not_fused(self, world):
        run, other = run_of(world, "visual"), run_of(world, "visual", seed=1)
        assert ensemble(run, [other]).metadata.variant == "visual+visual"
        with pytest.raises(ValueError, match="different vocabularies: train them on the same data"):
            ensemble(run, [replace(other, vocabulary=Vocabulary(["a"]))])
        with pytest.raises(ValueError, match="do not read the same regions"):
            ensemble(run, [run_of(world, "visual", max_boxes=3)])
        with pytest.raises(ValueError, match=r"read attributes by other rules .*\(2, .*\(6,"):
            ensemble(
                run_of(world, "semantic", max_attributes=2),
                [run_of(world, "semantic", max_attributes=6)],
            )

    @pytest.mark.slow
    @pytest.mark.java
    def test_a_mistake_on_the_command_line_is_one_line(self, world, tmp_path):
        run_of(world, "visual").save(tmp_path / "run")
        said = CliRunner().invoke(application.app, ["evaluate", str(tmp_path / "run"), "--oracle"])
        assert said.exit_code == 1
        assert (
            said.stderr.strip()
            == "captionlab: this run reads no attributes that an oracle could give: "
            "leave --oracle out"
        )


class TestGate:
    def test_follows_given_words(self):
        model, batch = model_of()
        captions, trace = batch.captions[:, 0], {}
        found = trace_paths(model, batch, captions)
        assert found["sv"].shape == (3, 7, 6)
        assert found["vs"].shape == (3, 7, 5)
        assert found["gate"].shape == (3, 7, 16)
        with torch.no_grad():
            model.step(model.start(model.encode(batch)), torch.ones(3, 1, dtype=torch.long), trace)
        torch.testing.assert_close(found["sv"][:, 0], torch.stack(trace["sv"]).mean((0, 2))[:, 0])
        torch.testing.assert_close(found["gate"][:, 0], torch.stack(trace["gate"]).mean(0)[:, 0, 0])
        changed = trace_paths(
            model, batch, torch.cat([captions[:, :3], captions[:, 3:].flip(1)], 1)
        )
        torch.testing.assert_close(changed["gate"][:, :4], found["gate"][:, :4])

    def test_is_measured_and_written(self, world, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        run = run_of(world)
        monkeypatch.setattr("benchmarks.gates.load_dataset", lambda name: world)
        (
            nn.init.zeros_(run.model.decoder.blocks[0].controller.gate.weight),
            nn.init.constant_(run.model.decoder.blocks[0].controller.gate.bias, 1e4),
        )
        (
            nn.init.zeros_(run.model.decoder.blocks[1].controller.gate.weight),
            nn.init.constant_(run.model.decoder.blocks[1].controller.gate.bias, -1e4),
        )
        said = json.loads(measure_gate(run).read_text())
        assert said["split"] == "test"
        assert said["classes"]
        assert all(
            row["gate"] == 0.5 and row["deviation"] == 0 and row["words"] > 0
            for row in said["classes"].values()
        )
        kinds = sum(row["words"] for name, row in said["classes"].items() if "among" not in name)
        assert kinds == sum(
            row["words"] for name, row in said["classes"].items() if "among" in name
        )

    @pytest.mark.slow
    @torch.no_grad()
    def test_each_gate_is_that_of_its_word(self, world):
        run, items, kept = run_of(world), world["test"][:4], defaultdict(list)
        for item in items:
            batch, read = run.processor([item.image]), BOS
            state = run.model.start(run.model.encode(batch))
            for number in run.search(batch)[0].ids:
                trace = {}
                _, state = run.model.step(state, torch.tensor([[read]]), trace)
                if number > EOS:
                    kept[word_class(run.vocabulary.tokens[number])].append(
                        torch.stack(trace["gate"]).mean().item()
                    )
                read = number
        found = gate_by_class(run, items, input_transforms(run.processor), batch_size=3)
        kinds = {name: row for name, row in found.items() if "among" not in name}
        assert {name: row["words"] for name, row in kinds.items()} == {
            name: len(gates) for name, gates in kept.items()
        }
        for name, row in kinds.items():
            assert row["gate"] == pytest.approx(sum(kept[name]) / len(kept[name]), abs=1e-5)

    def test_a_run_without_a_gate_is_refused(self, world):
        with pytest.raises(
            ValueError, match="no gate: take one of the entangled variants parallel, eta"
        ):
            measure_gate(run_of(world, "visual"))

    @pytest.mark.parametrize(
        ("word", "kind"),
        [
            ("the", "function"),
            ("two", "number"),
            ("red", "colour"),
            ("running", "action"),
            ("building", "other"),
            ("dog", "other"),
        ],
    )
    def test_kinds_of_words(self, word, kind):
        assert word_class(word) == kind


def test_with_the_norm_first_the_words_are_counted_once():
    """An open gate gives one path exactly, and what the path brings has the words in it already."""
    torch.manual_seed(0)
    block = EntangledBlock(BlockConfig(16, 2, 32, norm="pre"), VARIANTS["eta"])
    nn.init.zeros_(block.controller.gate.weight)
    nn.init.constant_(block.controller.gate.bias, 30.0)
    x, memory = torch.randn(2, 3, 16), {"v": torch.randn(2, 5, 16), "s": torch.randn(2, 4, 16)}
    kept = block.cross_attention.project(memory)
    found = block.cross_attention(x, kept, dict.fromkeys("vs"))
    torch.testing.assert_close(block.cross_attend(x, kept), found["sv"])


def test_semantic_attention_needs_nothing_to_see():
    assert replace(
        PRESETS["tiny"],
        inputs=replace(PRESETS["tiny"].inputs, max_boxes=0, grid=0),
        variant="semantic",
    ).inputs.fields == ("attributes",)
    with pytest.raises(ValueError, match="no activation 'gelu'"):
        GatedController(8, "gelu")
    for path in ("svs", "", "x"):
        with pytest.raises(ValueError, match=f"no path '{path}': give one step or two"):
            EntangledAttention(BlockConfig(16, 2, 32), (path, "vs"))


def test_a_model_without_paths_has_no_gate():
    from captionlab.models import image_transformer

    run = SimpleNamespace(processor=SimpleNamespace(preset=image_transformer.PRESETS["tiny"]))
    with pytest.raises(ValueError, match="this run has no gate"):
        measure_gate(run)
