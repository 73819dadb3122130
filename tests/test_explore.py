"""The explorer, for every model of the course: traces against one pass, windows against what they
hide, controls against drawings.
"""

import builtins
import math
from dataclasses import replace
from importlib import import_module

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from typer.testing import CliRunner

import captionlab
from captionlab.cli import application, captioning
from captionlab.data.batches import Batch
from captionlab.data.datasets import scenes
from captionlab.decoding import GenerationConfig
from captionlab.explore import explorer, occlusion, tracing
from captionlab.explore.explorer import Explorer, draw_caption, draw_heads
from captionlab.explore.occlusion import occlude, pointing_hits
from captionlab.explore.tracing import (
    BoxView,
    CaptionTrace,
    GridView,
    WordView,
    surprisal,
    trace_caption,
)
from captionlab.features.attributes import AttributeDetector
from captionlab.features.image_processor import ImageProcessor
from captionlab.features.preprocessing import Preprocess
from captionlab.runs.ensembles import ensemble
from captionlab.runs.run import Run
from captionlab.runs.storage import RunMetadata
from captionlab.scenes.world import BACKGROUND, Object, Scene
from captionlab.text import Vocabulary

MODELS = [
    ("vanilla", None),
    ("cptr", None),
    ("position_aware", None),
    ("entangled", "visual"),
    ("entangled", "semantic"),
    ("entangled", "eta"),
    ("entangled", "stacked_s"),
    ("image_transformer", None),
    ("image_transformer", "released"),
]
VIEWS = {
    "vanilla": GridView,
    "cptr": GridView,
    "position_aware": GridView,
    "image_transformer": BoxView,
    "visual": BoxView,
    "eta": BoxView,
    "semantic": WordView,
    "stacked_s": WordView,
}
WORLD = scenes(train=8, val=0, test=3, novel=0)
TEST = [item.image for item in WORLD["test"]]


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def detector() -> AttributeDetector:
    """What it says is nonsense, but always the same."""
    net = AttributeDetector(12, ["red", "blue", "circle", "star", "small", "striped"]).eval()
    net.metadata = {
        "data": WORLD.name,
        "made_by": {"backbone": None, "preprocess": Preprocess(size=64).to_dict(), "grid": [8, 8]},
    }
    return net


def run_of(name: str, variant: str | None = None, **changes) -> Run:
    """A run that was never trained."""
    torch.manual_seed(0)
    module = import_module(f"captionlab.models.{name}")
    preset = module.PRESETS["tiny"]
    preset = replace(preset, inputs=replace(preset.inputs, **changes))
    if variant:
        preset = replace(preset, variant=variant)
    vocabulary = Vocabulary.build(WORLD.captions("train"))
    more = (
        {"detector": detector(), "vocabulary": vocabulary}
        if "attributes" in preset.inputs.fields
        else {}
    )
    metadata = {
        "model": name,
        "preset_name": "tiny",
        "data": "scenes",
        "source": "scenes",
        "variant": variant,
        "stage": "xe",
        "seed": 0,
        "parameters": 10,
        "train_seconds": 1.0,
        "history": [],
    }
    return Run(
        module.Model(preset, len(vocabulary)).eval(),
        vocabulary,
        ImageProcessor(preset, **more),
        RunMetadata.from_dict(metadata),
    )


@pytest.fixture(scope="module", params=MODELS, ids=lambda p: "-".join(filter(None, p)))
def run(request) -> Run:
    return run_of(*request.param)


@pytest.fixture(scope="module")
def model() -> Run:
    return captionlab.load("scenes")


@pytest.fixture(scope="module")
def translator() -> Run:
    return captionlab.load("translation")


# ---- traces


class TestEveryModel:
    def test_a_trace_says_what_one_pass_says(self, run):
        trace = trace_caption(run, TEST[0], "a red circle and a blue star")
        with torch.no_grad():
            ids = torch.tensor([run.vocabulary.encode("a red circle and a blue star")])
            logits = run.model.decode(
                run.model.encode(run.processor([TEST[0]])), ids[:, None, :-1]
            )[0, 0]
        torch.testing.assert_close(
            trace.bits,
            F.cross_entropy(logits, ids[0, 1:], reduction="none") / math.log(2),
            rtol=1e-3,
            atol=1e-4,
        )
        assert trace.words == ["a", "red", "circle", "and", "a", "blue", "star", "<eos>"]

    def test_its_own_caption_has_the_score_of_the_search(self, run):
        trace = trace_caption(run, TEST[1])
        best = run.search(run.processor([TEST[1]]))[0]
        assert trace.ids.tolist() == best.ids
        assert -trace.bits.sum().item() * math.log(2) == pytest.approx(best.score, rel=1e-3)

    def test_weights_are_those_of_the_trace_and_hold_no_padding(self, run):
        trace, (words, weights) = trace_caption(run, TEST[1]), run.trace(TEST[1])
        mine = torch.stack([trace.weights(place) for place in range(len(words))])
        there = weights.sum(0) > 0  # padding gets nothing from anybody
        torch.testing.assert_close(mine, weights[:, there])
        assert trace.attention.shape[2] == len(trace.ids)
        assert (trace.attention > 0).any((0, 1, 2)).all()

    def test_its_positions_are_what_the_model_sees(self, run):
        view = trace_caption(run, TEST[0], "a star").view
        variant = run.metadata.variant
        assert type(view) is VIEWS[variant if variant in VIEWS else run.metadata.model]
        if isinstance(view, BoxView) and not run.processor.preset.inputs.grid:
            torch.testing.assert_close(
                view.boxes, torch.from_numpy(TEST[0].boxes), rtol=0, atol=1e-3
            )
        if isinstance(view, WordView):
            assert set(view.words) <= set(run.processor.detector.words)

    @pytest.mark.slow
    def test_can_be_drawn(self, run):
        trace = trace_caption(run, TEST[0], "a red circle")
        layers, heads = trace.attention.shape[:2]
        assert len(draw_heads(trace, 1).axes) == layers * heads
        assert [ax.get_title() for ax in draw_caption(trace).axes[:3]] == ["a", "red", "circle"]
        assert "[red]" in explorer._draw_word(trace, 1, 0, heads - 1).get_suptitle()

    def test_a_window_is_missed_only_if_it_hides_something(self, run):
        """Windows over bare background, in its colour, and one over everything."""
        scene = Scene([Object("square", "blue", "large", x=140, y=140)])
        trace = trace_caption(run, scene, "a red circle")
        bare, everything = (
            occlude(run, scene, trace, grid, window_size=size, fill=BACKGROUND)
            for grid, size in (((2, 3), 0.2), ((1, 1), 1.0))
        )
        assert bare.shape == (4, 2, 3)
        assert bare[:, 0, 0].abs().max() < 1e-4
        attributes_only = "v" not in tracing._attended_streams(run)
        attributes_only &= run.processor.feature_kinds == ["attributes"]
        assert everything.abs().max() > 1e-3 or attributes_only


def test_a_trace_knows_what_was_likely(model):
    trace = trace_caption(model, TEST[0])
    for place in range(len(trace.ids)):
        _words, chances = zip(*trace.top_k(place, 3), strict=False)
        assert list(chances) == sorted(chances, reverse=True)
        assert sum(chances) <= 1 + 1e-5
        own = dict(trace.top_k(place, 74))[trace.words[place]]
        assert -math.log2(own) == pytest.approx(trace.bits[place].item(), rel=1e-4)


def test_one_head_or_their_mean(model):
    trace = trace_caption(model, TEST[0], "a star")
    assert torch.equal(trace.weights(1, 0, 2), trace.attention[0, 2, 1])
    torch.testing.assert_close(trace.weights(1), trace.attention[-1, :, 1].mean(0))
    torch.testing.assert_close(trace.attention.sum(-1), torch.ones(trace.attention.shape[:-1]))


def test_a_trace_is_a_page_that_escapes_what_it_says(model):
    trace = replace(trace_caption(model, TEST[0], "a star"), id_to_token=["<b>"] * 74)
    page = trace._repr_html_()
    assert "<b>" not in page
    assert page.count("<span") == page.count("&lt;b&gt;</span>") == 3
    assert "bits)" in repr(trace_caption(model, TEST[0], "a star"))


def test_a_translation_is_a_trace_over_words(translator):
    trace = trace_caption(translator, "a man sleeps.", beam=5)
    assert isinstance(trace.view, WordView)
    assert trace.attention.shape[-1] == len(trace.view.words)
    assert translator.vocabulary.decode(trace.ids) == translator.translate("a man sleeps.")
    assert len(explorer._draw_word(trace, 0).axes) == 2


@pytest.mark.parametrize(
    ("caption", "problem"),
    [("a yellow comet", "does not know comet"), ("?!", "holds no word"), ("", "holds no word")],
)
def test_captions_that_cannot_be_read(model, caption, problem):
    with pytest.raises(ValueError, match=problem):
        trace_caption(model, TEST[0], caption)


def test_fused_runs_are_followed_if_they_look_at_the_same():
    words, both = (run_of("entangled", variant) for variant in ("stacked_s", "eta"))
    trace = trace_caption(ensemble(words, [words]), TEST[0], "a star")
    assert isinstance(trace.view, WordView)
    assert len(trace.attention) == 2 * len(trace_caption(words, TEST[0], "a star").attention)
    with pytest.raises(ValueError, match=r"attend to different positions.*: trace one of them"):
        trace_caption(ensemble(both, [words]), TEST[0], "a star")


@pytest.mark.parametrize("variant", ["semantic", "stacked_s"])
def test_where_no_attribute_was_found_there_is_still_a_trace(variant):
    run = run_of("entangled", variant, attribute_threshold=1.0)
    trace = trace_caption(run, TEST[0], "a star")
    assert trace.view.words == []
    titles = [ax.get_title() for ax in draw_caption(trace).axes[:2]]
    assert titles == ["a", "star"]


def test_a_grid_that_is_not_square():
    run = run_of("position_aware", grid=(3, 5), fine_grid=(3, 5), backbone="squeezenet1_1")
    batch = Batch(high=torch.randn(1, 15, 12), low=torch.randn(1, 15, 12))
    view, everything = tracing._image_positions(run, TEST[0], batch, 15)
    assert view.grid == (3, 5)
    assert everything == slice(None)


@pytest.mark.slow
def test_dollars_are_drawn_as_they_are(translator):
    trace = trace_caption(translator, "a man.", "ein $ { $ mann")
    for place in range(len(trace.words)):
        explorer._draw_word(trace, place).canvas.draw()


def test_numbers_out_of_range_leave_no_figure(model):
    trace = trace_caption(model, TEST[0], "a star")
    for draw in (
        lambda: explorer._draw_word(trace, 99),
        lambda: draw_heads(trace, 99),
        lambda: draw_caption(trace, 9),
    ):
        with pytest.raises(IndexError):
            draw()
    assert not plt.get_fignums()
    assert len(explorer._draw_word(trace, 0, k=1000).axes) == 2


def test_an_empty_caption_cannot_be_drawn(model):
    trace = trace_caption(model, TEST[0], "a star")
    with pytest.raises(ValueError, match="the caption is empty"):
        draw_caption(
            CaptionTrace(
                trace.ids[-1:],
                trace.log_probs[-1:],
                trace.attention[:, :, -1:],
                trace.view,
                trace.id_to_token,
            )
        )


# ---- occlusion


def test_surprisal_is_that_of_each_picture(model):
    trace = trace_caption(model, TEST[0], "a red circle")
    bits = surprisal(model, model.processor(TEST), trace.ids)
    for one, picture in zip(bits, TEST, strict=False):
        torch.testing.assert_close(
            one, trace_caption(model, picture, "a red circle").bits, rtol=1e-3, atol=1e-4
        )


@pytest.mark.parametrize(
    ("side", "grid"), [(1 / 8, (8, 8)), (0.25, (8, 8)), (0.5, (3, 2)), (1.0, (1, 1))]
)
def test_windows_cover_what_they_say(side, grid):
    pixels = np.random.default_rng(0).integers(0, 200, (40, 48, 3), np.uint8)
    covered = list(occlusion._occluded_copies(pixels, grid, side, (255, 255, 255)))
    assert len(covered) == grid[0] * grid[1]
    assert pixels.max() < 200
    for number, one in enumerate(covered):
        assert ((one == pixels) | (one == 255)).all()
        painted = np.nonzero((one == 255).all(-1))
        for axis, count, length, cell in zip(
            painted, grid, (40, 48), divmod(number, grid[1]), strict=False
        ):
            middle, width = (cell + 0.5) / count * length, round(side * length)
            if width / 2 <= middle <= length - width / 2:  # not over the edge
                assert axis.max() - axis.min() + 1 == width
            assert (
                abs((axis.min() + axis.max() + 1) / 2 - middle)
                <= 0.5 + max(0, width / 2 - min(middle, length - middle)) / 2
            )


@pytest.mark.parametrize("pixels", range(1, 12))
def test_windows_are_as_wide_as_asked(pixels):
    widths = [window.stop - window.start for window in occlusion._window_slices(64, 8, pixels / 64)]
    assert set(widths[2:-2]) == {pixels}
    assert min(widths) >= min(pixels, 4)


def test_windows_as_large_as_cells_tile_the_picture():
    pixels = np.zeros((48, 48, 3), np.uint8)
    painted = sum(
        (one == 9).all(-1).astype(int)
        for one in occlusion._occluded_copies(pixels, (8, 8), 1 / 8, (9, 9, 9))
    )
    assert (painted == 1).all()


def test_a_word_hangs_on_its_thing(model):
    """The only yellow thing of a scene, and the word yellow."""
    star = Object("star", "yellow", "medium", x=140, y=140)
    scene = Scene([Object("square", "blue", "large", x=60, y=60), star])
    trace = trace_caption(model, scene, "a blue square and a yellow star")
    hidden = occlude(model, scene, trace, window_size=1 / 8)
    assert pointing_hits(
        hidden[trace.words.index("star")][None], torch.from_numpy(scene.boxes[1:])
    ).item()
    many = occlude(model, scene, trace, window_size=1 / 8, batch_size=7)
    torch.testing.assert_close(many, hidden, rtol=1e-3, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vanilla", "position_aware"])
def test_a_photo_with_a_window_painted_over_is_another_photo(name, real_data):
    """A real photo and a real backbone: one window against a picture painted by hand."""
    module = import_module(f"captionlab.models.{name}")
    torch.manual_seed(0)
    vocabulary = Vocabulary(["a", "dog", "in", "the", "snow"])
    run = Run(
        module.Model(module.PRESETS["squeezenet"], len(vocabulary)).eval(),
        vocabulary,
        ImageProcessor(module.PRESETS["squeezenet"]),
        {},
    )
    photo = sorted((real_data / "flickr8k/images").glob("*.jpg"))[0]
    trace = trace_caption(run, photo, "a dog in the snow")
    hidden = occlude(run, photo, trace, trace.view.grid, window_size=1 / 7, fill=(0, 0, 0))
    pixels = run.processor.pixels(photo).copy()
    side = pixels.shape[0]
    pixels[round(2 * side / 7) : round(3 * side / 7), round(4 * side / 7) : round(5 * side / 7)] = 0
    by_hand = trace_caption(run, pixels, "a dog in the snow").bits - trace.bits
    assert trace.view.grid == (7, 7)
    assert hidden.shape == (6, 7, 7)
    assert by_hand.abs().max() > 1e-3
    torch.testing.assert_close(hidden[:, 2, 4], by_hand, rtol=1e-2, atol=1e-2)


def test_occlusion_that_cannot_be(model, translator):
    with pytest.raises(ValueError, match="reads no pixels"):
        occlude(translator, "a man.", trace_caption(translator, "a man."))
    trace = trace_caption(model, TEST[0])
    for wrong, problem in (
        ({"window_size": 0.001}, "holds none of them: choose a larger window_size"),
        ({"fill": (0.5, 0.5, 0.5)}, "as whole numbers"),
        ({"fill": (300, 0, 0)}, "as whole numbers"),
        ({"fill": (1, 2)}, "red, green and blue"),
        ({"grid": (0, 8)}, "numbers from 1 on"),
        ({"batch_size": 0}, "numbers from 1 on"),
    ):
        with pytest.raises(ValueError, match=problem):
            occlude(model, TEST[0], trace, **wrong)


def test_whatever_names_a_colour_is_paint(model):
    trace = trace_caption(model, TEST[0], "a star")
    painted = [
        occlude(model, TEST[0], trace, grid=(2, 2), fill=paint)
        for paint in ((9, 8, 7), [9, 8, 7], np.array([9, 8, 7], np.uint8))
    ]
    assert torch.equal(painted[0], painted[1])
    assert torch.equal(painted[0], painted[2])


# ---- the pointing game


def test_pointing():
    maps = torch.zeros(3, 2, 4)
    maps[0, 1, 0] = maps[1, 0, 3] = maps[2, 0, 0] = 1.0
    boxes = torch.tensor([[0.0, 0.5, 0.25, 1.0], [0.0, 0.0, 0.5, 1.0], [0.125, 0.25, 0.125, 0.25]])
    assert pointing_hits(maps, boxes).tolist() == [True, False, True]


def the_only(word, scene):
    """The box of the only thing of this shape."""
    fits = [row for row, thing in enumerate(scene.objects) if thing.shape == word]
    return torch.from_numpy(scene.boxes)[fits[0]] if len(fits) == 1 else None


@pytest.mark.slow
def test_the_game_counts_what_points(model):
    """Against a plain loop over words."""
    pictures = [item.image for item in scenes(train=0, val=0, test=100, novel=0)["test"]]
    game = occlusion.pointing_game(model, pictures, the_only, window_sizes=(0.125,))
    maps, boxes = [], []
    for picture in pictures:
        trace = trace_caption(model, picture)
        for place, word in enumerate(trace.words):
            if the_only(word, picture) is not None:
                (
                    maps.append(trace.weights(place, 0).reshape(8, 8)),
                    boxes.append(the_only(word, picture)),
                )
    hits, others = 0, 0
    for number, box in enumerate(boxes):
        for map_, whose in ((maps[number], 0), (maps[number - len(maps) // 2], 1)):
            row, column = divmod(map_.argmax().item(), 8)
            hit = box[0] <= (column + 0.5) / 8 <= box[2] and box[1] <= (row + 0.5) / 8 <= box[3]
            hits, others = hits + hit * (whose == 0), others + hit * (whose == 1)
    assert game["words"] == len(boxes) > 5
    assert game["maps"]["attention, layer 0"] == pytest.approx(
        {"own": 100 * float(hits) / len(boxes), "other": 100 * float(others) / len(boxes)}, abs=0.06
    )
    assert list(game["maps"]) == [
        "attention, layer 0",
        "attention, layer 1",
        "occlusion, windows of 0.125",
    ]


def test_chance_is_the_share_of_cells_in_the_box():
    boxes = torch.tensor([[0.0, 0.0, 0.5, 0.5], [0.0, 0.0, 1.0, 1.0], [0.1, 0.1, 0.15, 0.15]])
    assert occlusion._chance_rate(boxes, (4, 6)) == pytest.approx(100 * (0.25 + 1 + 0) / 3, abs=0.05)


@pytest.mark.parametrize(
    ("name", "problem"),
    [("entangled", "this run attends to none"), ("cptr", "fewer than two words")],
)
def test_games_that_cannot_be_played(name, problem):
    everything = {"entangled": torch.tensor([0.0, 0, 1, 1]), "cptr": None}[name]
    with pytest.raises(ValueError, match=problem):
        occlusion.pointing_game(
            run_of(name, "visual" if name == "entangled" else None),
            TEST,
            lambda word, picture: everything,
        )


# ---- the explorer


class TestExplorer:
    @pytest.mark.slow
    def test_draws_what_is_chosen(self, model):
        explorer = Explorer(model, TEST)
        assert explorer.trace.ids.tolist() == trace_caption(model, TEST[0]).ids.tolist()
        drawings = {bytes(explorer.image.value)}
        for name, value in (
            ("picture", 2),
            ("word", 3),
            ("layer", 0),
            ("head", 1),
            ("caption", "a red circle"),
        ):
            explorer.controls[name].value = value
            drawn = bytes(explorer.image.value)
            assert drawn not in drawings
            assert drawn.startswith(b"\x89PNG")
            drawings.add(drawn)
        assert explorer.trace.words == ["a", "red", "circle", "<eos>"]
        assert "circle" in explorer.note.value

    @pytest.mark.slow
    def test_draws_once_for_each_choice(self, model, monkeypatch):
        shown = Explorer(model, TEST)
        drawn = []
        draw_word = explorer._draw_word

        def draw(trace, *chosen):
            drawn.append(chosen)
            return draw_word(trace, *chosen)

        monkeypatch.setattr(explorer, "_draw_word", draw)
        shown.controls["word"].value = 4
        shown.controls["picture"].value = 1
        shown.controls["caption"].value = "a star"
        assert drawn == [(4, 1, None), (0, 1, None), (0, 1, None)]
        assert not plt.get_fignums()

    @pytest.mark.slow
    def test_a_mistake_leaves_the_last_drawing(self, model):
        explorer = Explorer(model, TEST)
        before, trace = explorer.image.value, explorer.trace
        explorer.controls["caption"].value = "a <comet>"
        assert "does not know comet" in explorer.note.value
        explorer.controls["caption"].value = "<>"
        assert "&lt;&gt;" in explorer.note.value
        assert explorer.image.value == before
        assert explorer.trace is trace
        explorer.pictures[1] = "nowhere.png"
        explorer.controls["picture"].value = 1
        assert "nowhere.png" in explorer.note.value
        assert explorer.image.value == before
        explorer.controls["picture"].value = 0
        explorer.controls["caption"].value = ""
        assert explorer.trace.ids.tolist() == trace.ids.tolist()
        assert "comet" not in explorer.note.value

    def test_shows_a_picture_where_there_are_no_widgets(self, model):
        shown = Explorer(model, TEST[:1])._repr_mimebundle_()
        assert {"application/vnd.jupyter.widget-view+json", "image/png"} <= shown.keys()

    @pytest.mark.slow
    def test_explores_translations(self, translator):
        explorer = Explorer(translator, ["a man.", "a dog."], beam=5)
        explorer.controls["picture"].value = 1
        assert translator.vocabulary.decode(explorer.trace.ids) == translator.translate("a dog.")

    @pytest.mark.slow
    def test_one_picture_or_sentence_will_do(self, model, translator):
        assert (
            Explorer(model, TEST[0]).trace.ids.tolist()
            == trace_caption(model, TEST[0]).ids.tolist()
        )
        assert translator.vocabulary.decode(
            Explorer(translator, "a man.", beam=5).trace.ids
        ) == translator.translate("a man.")

    def test_needs_something_to_explore(self, model):
        with pytest.raises(ValueError, match="nothing to explore"):
            Explorer(model, [])

    def test_says_what_is_missing(self, model, monkeypatch):
        plain = builtins.__import__

        def missing(name, *rest):
            if name == "ipywidgets":
                raise ImportError(name)
            return plain(name, *rest)

        monkeypatch.setattr(builtins, "__import__", missing)
        monkeypatch.setattr(explorer, "trace_caption", None)  # it is said before the work
        with pytest.raises(ImportError, match="pip install ipywidgets"):
            Explorer(model, TEST)


@pytest.mark.parametrize(
    ("name", "variant", "changes"),
    [
        ("entangled", "visual", {}),
        ("entangled", "semantic", {}),
        ("entangled", "semantic", {"attribute_threshold": 1.0}),
        ("position_aware", None, {}),
    ],
)
def test_the_command_line_draws_where_any_model_looked(
    name, variant, changes, tmp_path, monkeypatch
):
    run_of(name, variant, **changes).save(tmp_path / "run")
    calls = []

    def trace_scene(run, image, **options):
        """Trace a scene in place of the photo, for scenes have boxes."""
        calls.append(options)
        return trace_caption(run, TEST[0], "a red circle")

    monkeypatch.setattr(captioning, "_print_captions", lambda *_, **__: [])
    monkeypatch.setattr(tracing, "trace_caption", trace_scene)
    result = CliRunner().invoke(
        application.app,
        [
            "caption",
            str(tmp_path / "run"),
            "photo.png",
            "--beam",
            "2",
            "--attention",
            str(tmp_path / "where.png"),
        ],
    )
    assert result.exit_code == 0, result.output
    assert calls == [{"config": GenerationConfig(beam=2)}]
    assert (tmp_path / "where.png").stat().st_size > 1000
