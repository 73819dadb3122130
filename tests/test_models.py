"""Models against PyTorch's and torchvision's, and what every model must keep."""

import json
import pickle
from collections import defaultdict
from dataclasses import asdict, dataclass, fields, replace
from types import SimpleNamespace

import numpy as np
import pytest
import timm
import torch
from examples import example_module
from torch import nn
from torchvision import models as torchvision_models
from torchvision.models import VisionTransformer

from captionlab import models
from captionlab.data.batches import OWN_INPUTS, Batch, register_input
from captionlab.data.datasets import scenes
from captionlab.decoding.beam import beam_search
from captionlab.features import ImageProcessor, Preprocess, backbone_preprocess, backbone_spec
from captionlab.features.mean_colours import pixel_grid
from captionlab.models import (
    cptr,
    find_preset,
    list_models,
    model_module,
    preset_from_dict,
    random_inputs,
    register,
    unregister,
    vanilla,
)
from captionlab.pytorch_layers import copy_decoder, copy_encoder
from captionlab.runs.catalog import load
from captionlab.runs.fitting import NewModel, fit
from captionlab.training.config import override_preset

# All models that look at pictures; test_translation.py tests the one that does not.
PACKAGE_MODELS = [
    name
    for name in list_models()
    if "source" not in model_module(name).PRESETS["tiny"].inputs.fields
]
EXAMPLE_MODELS = ["prefix_captioner"]  # outside the package, registered while these tests run
MODELS = [*PACKAGE_MODELS, *EXAMPLE_MODELS]
V = 23


@pytest.fixture(scope="module", autouse=True)
def registered_examples():
    for name in EXAMPLE_MODELS:
        register(name, example_module(name))
    yield
    for name in EXAMPLE_MODELS:
        unregister(name)


def small_preset(name: str):
    """Sizes of few weights."""
    return replace(model_module(name).PRESETS["tiny"], width=16, heads=2, hidden=32)


def small(name: str):
    """A model of few weights, and a batch for it: 3 pictures with 4 captions of 7 tokens."""
    preset = small_preset(name)
    torch.manual_seed(0)

    def rows(sides, channels):
        return torch.randn(3, sides**2, getattr(preset, channels))

    inputs = {
        "images": lambda: torch.randn(3, 3, preset.inputs.image_size, preset.inputs.image_size),
        "grid": lambda: rows(preset.inputs.grid, "channels"),
        "high": lambda: rows(preset.inputs.grid, "channels"),
        "low": lambda: rows(preset.inputs.fine_grid, "fine_channels"),
        "regions": lambda: torch.randn(3, preset.inputs.max_boxes, preset.channels),
        "boxes": lambda: torch.rand(3, preset.inputs.max_boxes, 2, 2).sort(2).values.flatten(2),
        "region_mask": lambda: (
            torch.arange(preset.inputs.max_boxes)
            < torch.tensor([[2], [4], [preset.inputs.max_boxes]])
        ),
        "attributes": lambda: (
            torch.randint(3, V, (3, 5)) * (torch.arange(5) < torch.tensor([[5], [3], [1]]))
        ),
    }
    batch = Batch(
        **{field: inputs[field]() for field in preset.inputs.fields},
        captions=torch.randint(3, V, (3, 4, 7)),
    )
    return model_module(name).Model(preset, V).eval(), batch


def model_fields(batch: Batch) -> list[str]:
    """The fields that hold something."""
    return [field.name for field in fields(batch) if getattr(batch, field.name) is not None]


def says_the_same_word_by_word(model: nn.Module, batch: Batch) -> None:
    """`step` after `step` gives what `decode` gives at once."""
    with torch.no_grad():
        memory = model.encode(batch)
        at_once, state, one_by_one = (
            model.decode(memory, batch.captions),
            model.start(memory, 4),
            [],
        )
        for t in range(7):
            out, state = model.step(state, batch.captions[..., t])
            one_by_one.append(out)
    torch.testing.assert_close(torch.stack(one_by_one, 2), at_once, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
class TestEveryModel:
    def test_has_its_presets_and_json_can_hold_all(self, name):
        presets = model_module(name).PRESETS
        assert {*presets} >= (
            {"paper", "squeezenet", "tiny"} if name in PACKAGE_MODELS else {"tiny"}
        )
        for preset in presets.values():
            assert preset_from_dict(name, json.loads(json.dumps(asdict(preset)))) == preset
            assert set(preset.inputs.fields) <= {field.name for field in fields(Batch)}

    def test_presets_have_the_width_of_their_backbone(self, name):
        for preset in model_module(name).PRESETS.values():
            if hasattr(preset, "channels") and preset.inputs.backbone not in ("pixels", "file"):
                assert preset.channels == backbone_spec(preset.inputs.backbone).width

    def test_word_by_word_equals_all_at_once(self, name):
        model, batch = small(name)
        says_the_same_word_by_word(model, batch)

    def test_neither_neighbours_nor_padding_change_a_picture(self, name):
        model, batch = small(name)
        alone = batch.select(torch.tensor([1]))
        longer = replace(
            alone, captions=torch.cat([alone.captions, torch.zeros(1, 4, 5, dtype=torch.long)], -1)
        )
        with torch.no_grad():
            together = model.decode(model.encode(batch), batch.captions)[1]
            padded = model.decode(model.encode(longer), longer.captions)[0, :, :7]
        torch.testing.assert_close(padded, together, rtol=1e-4, atol=1e-5)

    @pytest.mark.slow
    def test_learns_two_pictures_by_heart(self, name):
        model, batch = small(name)
        batch, optimizer = (
            batch.select(torch.tensor([0, 1])),
            torch.optim.Adam(model.parameters(), 3e-3),
        )
        same_but_for_the_last = torch.tensor([[[1, 4, 5, 6, 7]], [[1, 4, 5, 6, 8]]])
        batch = replace(batch, captions=same_but_for_the_last)
        for _ in range(150):
            total, words = model.loss(batch)
            optimizer.zero_grad(), (total / words).backward(), optimizer.step()
        shuffled = batch.select(torch.tensor([1, 0]))
        blind = model.loss(replace(shuffled, captions=batch.captions))[0] / words
        assert total / words < 0.1
        assert blind > 0.5, "it must know which caption belongs to which picture"

    def test_a_hidden_place_is_attended_to_no_more(self, name):
        """So that `captionlab faithfulness` works for it."""
        model, batch = small(name)
        with torch.no_grad():
            state, places = model.start(model.encode(batch)), torch.tensor([0, 1, 0])
            looked = []
            for one in (state, state.mask_position(places)):
                trace = defaultdict(list)
                model.step(one, batch.captions[:, :1, 0], trace)
                looked.append(trace["cross"][-1].mean((1, 2)).gather(1, places[:, None]))
        assert (looked[0] > 0).all()
        assert (looked[1] == 0).all()

    def test_speaks_and_learns_with_all_weights_in_16_bits(self, name):
        model, batch = small(name)
        sums = [model.loss(batch)[0]]
        model.bfloat16()
        coarse = replace(
            batch,
            **{
                field: value.bfloat16()
                for field in model_fields(batch)
                if (value := getattr(batch, field)).is_floating_point()
            },
        )
        sums.append(model.loss(coarse)[0])
        sums[1].backward()
        assert all(x.grad is None or x.grad.isfinite().all() for x in model.parameters())
        torch.testing.assert_close(*sums, rtol=0.03, atol=0, check_dtype=False)
        with torch.no_grad():
            assert model.decode(model.encode(coarse), batch.captions).dtype == torch.bfloat16

    def test_weights_may_come_after_a_model_without_numbers(self, name):
        model, batch = small(name)
        with torch.device("meta"):
            empty = type(model)(small_preset(name), V).eval()
        empty.to_empty(device="cpu").load_state_dict(model.state_dict())
        with torch.no_grad():
            said = [one.decode(one.encode(batch), batch.captions) for one in (model, empty)]
        assert torch.equal(*said)

    def test_goes_through_pickle(self, name):
        model, batch = small(name)
        again = pickle.loads(pickle.dumps(model))
        with torch.no_grad():
            assert torch.equal(
                *(one.decode(one.encode(batch), batch.captions) for one in (model, again))
            )

    def test_no_words_predict_none(self, name):
        model, batch = small(name)
        with torch.no_grad():
            assert model.decode(model.encode(batch), batch.captions[..., :0]).shape == (3, 4, 0, V)

    def test_says_what_it_lacks(self, name):
        model, batch = small(name)
        with pytest.raises(ValueError, match="this model reads"):
            model.encode(Batch(captions=batch.captions))


def from_torch(activation: str = "gelu") -> tuple[nn.Module, nn.Module]:
    """An encoder and a decoder of PyTorch's layers, in evaluation mode."""
    layer = {
        "d_model": 32,
        "nhead": 4,
        "dim_feedforward": 64,
        "dropout": 0.1,
        "activation": activation,
        "batch_first": True,
    }
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(**layer), 3, enable_nested_tensor=False
    )
    return encoder.eval(), nn.TransformerDecoder(nn.TransformerDecoderLayer(**layer), 2).eval()


class TestCPTR:
    @pytest.mark.slow
    def test_every_shape_of_the_article(self):
        with torch.device("meta"):
            model = cptr.Model(cptr.PRESETS["paper"], 10_000)
            images, tokens = torch.empty(1, 3, 384, 384), torch.ones(1, 1, 30, dtype=torch.long)
            memory, x = model.encode(Batch(images=images)), model.embed_tokens(tokens, 0)
            look_back, trace = torch.ones(1, 1, 30, 30, dtype=torch.bool), {}
            patches = model.patch_encoder.pos_embed(model.patch_encoder.patches(images))
            model.patch_encoder.encoder(patches, trace=trace)
            model.decoder(x, memory.layers, look_back, trace=trace)
            logits = model.decode(memory, tokens)
        assert patches.shape == model.encode_inputs(Batch(images=images))[0].shape == (1, 576, 768)
        assert x[:, 0].shape == (1, 30, 768)
        assert logits[:, 0].shape == (1, 30, 10_000)
        averaged = {
            name: [tuple(w.mean(1).shape) for w in weights] for name, weights in trace.items()
        }
        assert averaged == {
            "self": [(1, 576, 576)] * 12 + [(1, 30, 30)] * 4,
            "cross": [(1, 30, 576)] * 4,
        }
        assert model.output.weight is not model.words.weight
        assert model.patch_encoder.encoder.blocks[0].feed_forward.up_proj.out_features == 3072

    @pytest.mark.parametrize(("activation", "agree"), [("gelu", True), ("relu", False)])
    def test_equals_the_one_of_torchs_layers_with_gelu_only(self, activation, agree):
        torch.manual_seed(0)
        encodes, decodes = from_torch(activation)
        sizes = {
            "width": 32,
            "heads": 4,
            "hidden": 64,
            "encoder_layers": 3,
            "decoder_layers": 2,
            "patch_size": 8,
        }
        inputs = replace(cptr.PRESETS["paper"].inputs, image_size=32)
        ours = cptr.Model(replace(cptr.PRESETS["paper"], inputs=inputs, **sizes), V).eval()
        ours.patch_encoder.encoder, ours.decoder = copy_encoder(encodes), copy_decoder(decodes)
        for block in (*ours.patch_encoder.encoder.blocks, *ours.decoder.blocks):
            block.feed_forward.activation = (
                nn.functional.gelu
            )  # ours is always as the article builds it by hand
        images, tokens = torch.randn(2, 3, 32, 32), torch.randint(3, V, (2, 9))
        ahead = torch.ones(9, 9, dtype=torch.bool).triu(1)
        with torch.no_grad():
            words = ours.positions(ours.words(tokens) * 32**0.5)
            theirs = ours.output(
                decodes(
                    words,
                    encodes(ours.patch_encoder.pos_embed(ours.patch_encoder.patches(images))),
                    tgt_mask=ahead,
                )
            )
            mine = ours.decode(ours.encode(Batch(images=images)), tokens[:, None])[:, 0]
        assert torch.allclose(mine, theirs, rtol=1e-4, atol=1e-5) == agree

    def test_features_are_torchvisions(self):
        torch.manual_seed(0)
        vit = VisionTransformer(
            image_size=48, patch_size=16, num_layers=3, num_heads=4, hidden_dim=64, mlp_dim=128
        ).eval()
        for parameter in vit.parameters():
            nn.init.normal_(
                parameter, std=0.2
            )  # biases, class token and norms, too: zeros and ones would hide a slip
        seen, images = {}, torch.randn(2, 3, 48, 48)
        vit.encoder.register_forward_hook(lambda _, __, out: seen.update(rows=out))
        with torch.no_grad():
            vit(images)
            torch.testing.assert_close(
                cptr.copy_vit(vit)(images), seen["rows"], rtol=1e-4, atol=1e-4
            )

    def test_a_models_own_eyes_fit_those_of_torchvision(self):
        vit = VisionTransformer(
            image_size=32, patch_size=8, num_layers=2, num_heads=2, hidden_dim=16, mlp_dim=32
        )
        preset = replace(
            cptr.PRESETS["tiny"],
            inputs=replace(cptr.PRESETS["tiny"].inputs, image_size=32),
            width=16,
            heads=2,
            hidden=32,
            patch_size=8,
            encoder_layers=2,
            encoder_hidden=32,
            vit=True,
        )
        model = cptr.Model(preset, V)
        model.patch_encoder.load_state_dict(cptr.copy_vit(vit).state_dict())
        assert model.patch_encoder.encoder.norm.eps == 1e-6
        assert model.encode_inputs(Batch(images=torch.randn(2, 3, 32, 32)))[0].shape == (
            2,
            16,
            16,
        ), "the class token is left out"

    def test_whitened_patches_vary_alike_and_independently(self):
        torch.manual_seed(0)
        patches = torch.randn(5000, 12) @ torch.randn(12, 12) + 3
        for width, kept in ((5, 5), (12, 12), (30, 12)):
            weight, bias = cptr.whitening(patches, width, eps=0.0)
            white = patches @ weight.T + bias
            assert weight.shape == (kept, 12)
            torch.testing.assert_close(torch.cov(white.T), torch.eye(kept), rtol=0, atol=1e-3)
            torch.testing.assert_close(white.mean(0), torch.zeros(kept), rtol=0, atol=1e-3)

    def test_the_directions_kept_are_those_of_the_svd(self):
        patches = torch.randn(200, 9) @ torch.randn(9, 9)
        weight, _ = cptr.whitening(patches, 4, eps=0.0)
        expected = torch.linalg.svd(patches - patches.mean(0), full_matrices=False).Vh[:4]
        alike = torch.nn.functional.cosine_similarity(weight, expected).abs()
        torch.testing.assert_close(alike, torch.ones(4), rtol=0, atol=1e-3)

    @pytest.mark.parametrize("whiten", [True, False])
    def test_begins_whitened_if_the_preset_says_so(self, whiten):
        preset = replace(cptr.PRESETS["tiny"], width=16, heads=2, encoder_hidden=32, whiten=whiten)
        torch.manual_seed(0)
        model, images = (
            cptr.Model(preset, V),
            torch.rand(60, 3, preset.inputs.image_size, preset.inputs.image_size)
            * torch.tensor([4.0, 1.0, 0.2])[:, None, None],
        )
        before = model.patch_encoder.patches.projection.weight.clone()
        model.init_from_data(Batch(images=images))
        spread = torch.cov(model.patch_encoder.patches(images).flatten(0, 1).T)
        assert torch.equal(before, model.patch_encoder.patches.projection.weight) != whiten
        assert torch.allclose(spread, torch.eye(16), atol=0.05) == whiten
        assert model.patch_encoder.patches.projection.weight.requires_grad, "it is only a start"

    def test_a_picture_of_another_size_is_refused(self):
        model, _ = small("cptr")
        with pytest.raises(ValueError, match="resize them"):
            model.encode(Batch(images=torch.randn(1, 3, 96, 96)))


class TestVanilla:
    def test_published_size(self):
        with torch.device("meta"):
            model = vanilla.Model(vanilla.PRESETS["paper"], 37_000)
        assert (
            62e6 < sum(p.numel() for p in model.parameters()) < 66e6
        )  # Vaswani et al., Table 3, base: 65 million

    def test_pixel_grid_is_in_reading_order(self):
        picture = torch.zeros(1, 3, 16, 16)
        picture[:, 1, 8:12, 4:8] = 1  # green in row 2, column 1 of 4 x 4 cells
        assert pixel_grid(picture, 4)[0].sum(-1).nonzero().tolist() == [[9]]
        assert pixel_grid(picture, 4)[0, 9].tolist() == [0] * 4 + [1] * 4 + [0] * 4

    @pytest.mark.parametrize("seed", range(3))
    def test_places_tell_cells_apart(self, seed):
        model, batch = small("vanilla")
        torch.manual_seed(seed)
        shuffled = replace(batch, grid=batch.grid[:, torch.randperm(batch.grid.shape[1])])
        with torch.no_grad():
            difference = (
                (
                    model.decode(model.encode(batch), batch.captions)
                    - model.decode(model.encode(shuffled), batch.captions)
                )
                .abs()
                .max()
            )
            model.pos_embed.table.zero_()
            torch.testing.assert_close(
                model.decode(model.encode(batch), batch.captions),
                model.decode(model.encode(shuffled), batch.captions),
                rtol=1e-4,
                atol=1e-5,
            )
        assert difference > 1e-3


def test_a_grid_or_a_picture_of_another_shape_is_refused():
    """Fewer places would find places of their own, and be others."""
    model = vanilla.Model(vanilla.PRESETS["tiny"], 9)
    with pytest.raises(
        ValueError, match="a map of 25 cells, and this model was made for 8 x 8 = 64"
    ):
        model.encode(Batch(grid=torch.randn(1, 25, vanilla.PRESETS["tiny"].channels)))
    size = cptr.PRESETS["tiny"].inputs.image_size
    with pytest.raises(ValueError, match=f"pictures of {size // 2} x {2 * size} pixels"):
        cptr.Model(cptr.PRESETS["tiny"], 9).encode(
            Batch(images=torch.randn(1, 3, size // 2, 2 * size))
        )


def test_the_count_of_words_is_exact_in_half_precision():
    """481 is no number of 16 bits' precision."""
    model = vanilla.Model(vanilla.PRESETS["tiny"], 9).bfloat16().eval()
    batch = Batch(
        grid=torch.randn(1, 64, vanilla.PRESETS["tiny"].channels).bfloat16(),
        captions=torch.full((1, 37, 14), 4),
    )
    with torch.no_grad():
        assert model.loss(batch)[1].item() == 37 * 13 == 481


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_the_prefix_captioner_is_torchs_encoder_on_cells_and_words(norm):
    """With a mask: cells see cells, words see cells and earlier words."""
    module = example_module("prefix_captioner")
    preset = replace(small_preset("prefix_captioner"), norm=norm, activation="gelu")
    torch.manual_seed(0)
    model = module.Model(preset, V).eval()
    layer = nn.TransformerEncoderLayer(
        16, 2, 32, 0.0, "gelu", batch_first=True, norm_first=norm == "pre"
    )
    last = nn.LayerNorm(16) if norm == "pre" else None
    theirs = nn.TransformerEncoder(layer, 3, last, enable_nested_tensor=False).eval()
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.3)
    weights = copy_encoder(theirs).state_dict()
    model.decoder.load_state_dict(
        {name.replace("attention", "self_attention"): value for name, value in weights.items()}
    )
    batch, tokens = Batch(grid=torch.randn(2, 64, 12)), torch.randint(3, V, (2, 3, 7))
    hidden = torch.ones(71, 71, dtype=torch.bool).triu(1)
    hidden[:64, :64] = False
    with torch.no_grad():
        ours = model.hidden_states(model.encode(batch), tokens)
        cells = model.pos_embed(model.project(batch.grid))
        for caption in range(3):
            joined = torch.cat([cells, model.embed_tokens(tokens[:, caption], 0)], 1)
            expected = theirs(joined, mask=hidden)[:, 64:]
            torch.testing.assert_close(ours[:, caption], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_beam_search_keeps_the_captions_of_a_picture_apart(name):
    """Pictures that are searched together get what each gets alone."""
    model, batch = small(name)
    with torch.no_grad():
        together = beam_search(model, model.encode(batch), width=3, max_length=8)
        for row in range(3):
            memory = model.encode(batch.select(torch.tensor([row])))
            alone = beam_search(model, memory, width=3, max_length=8)[0]
            assert alone.ids == together[row].ids
            assert alone.score == pytest.approx(together[row].score, rel=1e-4)


class NoPositions(vanilla.Model):
    """A captioner from outside the package: the vanilla one without positions of cells."""

    def __init__(self, preset, vocabulary_size: int):
        super().__init__(preset, vocabulary_size)
        self.pos_embed = nn.Identity()


@pytest.fixture
def registered():
    """The name of a model that is registered for one test."""
    register("no_positions", NoPositions, presets=vanilla.PRESETS)
    yield "no_positions"
    unregister("no_positions")


@dataclass(frozen=True, kw_only=True)
class TintedPreset(vanilla.Preset):
    """Of a captioner that reads a field of its own."""

    def input_fields(self):
        return "grid", "mean_colour"


class Tinted(vanilla.Model):
    """The vanilla captioner with the mean colour of the picture in each cell."""

    def __init__(self, preset, vocabulary_size: int):
        super().__init__(preset, vocabulary_size)
        self.colour = nn.Linear(3, preset.width)

    def encode_inputs(self, batch):
        cells, mask = super().encode_inputs(batch)
        return cells + self.colour(batch.require("mean_colour"))[:, None], mask


@pytest.fixture
def tinted(monkeypatch):
    """The preset of a model that is registered for one test, with its input."""
    monkeypatch.setitem(OWN_INPUTS, "mean_colour", None)       # taken away after the test
    register_input("mean_colour", lambda pixels: pixels.mean((0, 1)) / 255)
    tiny = vanilla.PRESETS["tiny"]
    preset = TintedPreset(**{field.name: getattr(tiny, field.name) for field in fields(tiny)})
    preset = replace(preset, training=replace(preset.training, epochs=1))
    register("tinted", Tinted, presets={"tiny": preset})
    yield preset
    unregister("tinted")


class TestOwnInput:
    def test_a_batch_keeps_it(self, tinted):
        batch = Batch.of(random_inputs(tinted, pictures=3))
        assert batch.own.keys() == {"mean_colour"}
        assert len(batch) == 3
        assert batch.require("mean_colour").shape == (3, 3)
        assert batch.select(torch.tensor([2])).require("mean_colour").shape == (1, 3)
        halved = batch.to(dtype=torch.bfloat16)
        assert {x.dtype for x in halved.tensors().values()} == {torch.bfloat16}
        with pytest.raises(TypeError, match="smell"):
            Batch.of({"smell": torch.zeros(3)})

    @pytest.mark.parametrize("name", ["grid", "own", "mean colour"])
    def test_names_that_are_taken_or_none_are_refused(self, name):
        with pytest.raises(ValueError, match=f"a field cannot be called '{name}'"):
            register_input(name, len)

    def test_stored_features_are_of_its_code(self, tinted):
        before = ImageProcessor(tinted).feature_spec()
        register_input("mean_colour", lambda pixels: pixels.max((0, 1)) / 255)
        assert before["kind"] == "grid+mean_colour"
        assert ImageProcessor(tinted).feature_spec()["own"] != before["own"]

    @pytest.mark.slow
    def test_a_model_that_reads_it_is_trained_saved_and_loaded(
        self, tinted, tmp_path, monkeypatch
    ):
        world = scenes(train=8, val=0, test=2, novel=0)
        run = fit(NewModel("tinted", "tiny"), world, out=tmp_path / "run")
        pictures = [item.image for item in world["test"]]
        assert load(tmp_path / "run").caption(pictures) == run.caption(pictures)
        monkeypatch.delitem(OWN_INPUTS, "mean_colour")
        with pytest.raises(ValueError, match=r"makes the field mean_colour.*register_input"):
            load(tmp_path / "run")


class TestRegistry:
    def test_a_registered_class_is_found_like_the_librarys(self, registered):
        module = model_module(registered)
        assert registered in list_models()
        assert module.Model is NoPositions
        assert module.Preset is vanilla.Preset
        preset = find_preset(registered, "tiny")
        assert preset_from_dict(registered, json.loads(json.dumps(asdict(preset)))) == preset
        with pytest.raises(
            ValueError, match="no_positions has no variant 'fpn': leave --variant out"
        ):
            find_preset(registered, "tiny", "fpn")

    @pytest.mark.slow
    def test_a_registered_class_is_trained_saved_and_loaded(self, registered, tmp_path):
        preset = replace(
            vanilla.PRESETS["tiny"], training=replace(vanilla.PRESETS["tiny"].training, epochs=1)
        )
        world = scenes(train=8, val=0, test=2, novel=0)
        run = fit(NewModel(registered, preset), world, out=tmp_path / "run")
        again = load(tmp_path / "run")
        pictures = [item.image for item in world["test"]]
        assert isinstance(again.model, NoPositions)
        assert again.caption(pictures) == run.caption(pictures)

    def test_modules_and_their_paths_can_be_registered(self):
        for definition in (vanilla, "captionlab.models.vanilla"):
            register("second_vanilla", definition)
            assert model_module("second_vanilla") is vanilla
            unregister("second_vanilla")

    @pytest.mark.parametrize(
        ("name", "model", "presets", "error"),
        [
            ("vanilla", NoPositions, vanilla.PRESETS, "there is a model 'vanilla' already"),
            ("not a name", NoPositions, vanilla.PRESETS, "not a Python name"),
            ("bare", NoPositions, None, "NoPositions comes without presets"),
            ("twice", vanilla, vanilla.PRESETS, "a module has its own PRESETS"),
        ],
    )
    def test_mistakes_are_refused(self, name, model, presets, error):
        before = list_models()
        with pytest.raises(ValueError, match=error):
            register(name, model, presets)
        assert list_models() == before

    def test_a_module_without_a_model_is_refused(self):
        with pytest.raises(TypeError, match="json lacks Model, Preset, PRESETS"):
            register("from_json", json)
        with pytest.raises(ValueError, match="no model 'from_json': choose from"):
            unregister("from_json")

    def test_public_names_are_listed_and_importable(self):
        assert {"register", "list_models", "find_preset", "vanilla", "translation"} <= set(
            dir(models)
        )
        assert models.position_aware is model_module("position_aware")
        with pytest.raises(AttributeError, match="has no attribute 'resnet'"):
            models.resnet  # noqa: B018


class TestPretrainedVit:
    """CPTR's encoder with the weights of torchvision's Vision Transformer."""

    SETTINGS = ("vit=true", "width=32", "heads=4", "hidden=64", "encoder_layers=2",
                "decoder_layers=1", "inputs.image_size=48")

    def preset(self, *settings):
        return override_preset(find_preset("cptr", "paper"), [*self.SETTINGS, *settings])

    @pytest.fixture
    def network(self, tmp_path):
        torch.manual_seed(1)
        network = VisionTransformer(48, 16, 2, 4, 32, 64).eval()
        file = tmp_path / "vit.pth"
        torch.save(network.state_dict(), file)
        return network, file

    def test_sees_what_torchvisions_sees(self, network):
        vit, file = network
        preset = self.preset(f"pretrained={file}")
        images = torch.randn(2, 3, 48, 48)
        model = cptr.Model(preset, 9).eval()
        before = model.encode_inputs(Batch(images=images))[0]
        model.init_from_data(Batch(images=images))
        after = model.encode_inputs(Batch(images=images))[0]
        outputs = {}
        handle = vit.encoder.register_forward_hook(lambda *args: outputs.update(rows=args[2]))
        vit(images)
        handle.remove()
        torch.testing.assert_close(after, outputs["rows"][:, 1:])
        assert not torch.allclose(before, after, atol=0.1)

    def test_dropout_stays_that_of_the_preset(self, network):
        model = cptr.Model(self.preset(f"pretrained={network[1]}"), 9)
        model.init_from_data(Batch(images=torch.randn(1, 3, 48, 48)))
        assert model.patch_encoder.dropout.p == model.preset.dropout > 0

    @pytest.mark.parametrize(
        ("setting", "message"),
        [
            ("width=64", r"do not fit this preset: .* \(1, 10, 32\), and .* need \(1, 10, 64\)"),
            ("inputs.image_size=64", r"\(1, 10, 32\), and 64 pixels .* need \(1, 17, 32\)"),
            ("vit=false", "set vit=True"),
            ("pretrained=nowhere.pth", "no weights nowhere.pth.*IMAGENET1K_SWAG_E2E_V1"),
        ],
    )
    def test_weights_that_do_not_fit_are_one_line(self, network, setting, message):
        preset = self.preset(f"pretrained={network[1]}", setting)
        with pytest.raises((ValueError, FileNotFoundError), match=message) as error:
            cptr._pretrained_vit(preset)
        assert "\n" not in str(error.value)

    @pytest.mark.parametrize("name", ["deit_tiny_patch16_224", "vit_tiny_patch16_224"])
    def test_a_vit_of_timm_sees_what_timms_sees(self, name, monkeypatch):
        """The two expect pictures that are normalised in different ways."""
        with torch.random.fork_rng():
            torch.manual_seed(2)
            network = timm.create_model(name, img_size=48, num_classes=0).eval()
            for parameter in network.parameters():
                nn.init.normal_(parameter, std=0.1)     # zeros and ones would hide a slip
        monkeypatch.setattr(cptr, "Backbone", lambda *_, **__: SimpleNamespace(trunk=network))
        preset = override_preset(
            find_preset("cptr", "squeezenet"), [f"pretrained=timm:{name}", "inputs.image_size=48"])
        assert (preset.width, preset.heads, preset.encoder_layers) == (192, 3, 12)
        model = cptr.Model(preset, 9).eval()
        pixels = np.random.default_rng(0).integers(0, 256, (2, 48, 48, 3), np.uint8)
        images = Preprocess(48).normalise(pixels)
        model.init_from_data(Batch(images=images))
        with torch.no_grad():
            theirs = network.forward_features(
                backbone_preprocess(f"timm:{name}", 48).normalise(pixels))
            ours, _ = model.encode_inputs(Batch(images=images))
        torch.testing.assert_close(ours, theirs[:, 1:], rtol=1e-3, atol=1e-3)

    @pytest.mark.parametrize("name", ["resnet18", "vit_small_patch14_dinov2", "vit_none"])
    def test_other_networks_of_timm_are_one_line(self, name):
        with pytest.raises(ValueError, match="no plain ViT|no backbone") as error:
            self.preset(f"pretrained=timm:{name}")
        assert "\n" not in str(error.value)

    def test_the_published_weights_have_the_sizes_of_the_paper(self):
        preset = override_preset(find_preset("cptr", "paper"), ["vit=true"])
        entry = torchvision_models.get_model_weights("vit_b_16")["IMAGENET1K_SWAG_E2E_V1"]
        assert entry.meta["min_size"] == (preset.inputs.image_size,) * 2
        with torch.device("meta"):
            network = torchvision_models.vit_b_16(image_size=384)
            encoder = cptr.Model(preset, 9).patch_encoder
        assert sum(x.numel() for x in encoder.parameters()) == sum(
            x.numel() for name, x in network.named_parameters() if not name.startswith("heads")
        )
