"""Runs on other devices and in 16 bits: captions stay, scores move little, files do not change."""

from unittest.mock import Mock

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from PIL import Image
from typer.testing import CliRunner
from untrained_runs import CAPTIONERS, untrained_captioner

import captionlab
from captionlab.cli import app
from captionlab.data.datasets import CaptionData, Item, scenes
from captionlab.decoding.generation import sequence_log_probs
from captionlab.explore.tracing import trace_caption
from captionlab.features import extraction
from captionlab.runs import catalog
from captionlab.runs.folder import set_device
from captionlab.runs.run import Run
from captionlab.scenes import generate_scene, render
from captionlab.training import devices

HALVES = [torch.bfloat16, torch.float16]
# Largest change of one token's log-probability, in nats. Numbers have 8 binary digits in bf16 and
# 11 in fp16; every layer rounds.
TOLERANCE = {torch.bfloat16: 0.25, torch.float16: 0.03}
PICTURES = [item.image for item in scenes(train=0, val=0, test=6, novel=0)["test"]]


@torch.no_grad()
def log_probs(run: Run, pictures: list, ids: list[int]) -> torch.Tensor:
    """Log-probabilities of one caption's tokens for each picture, `(B, T)`."""
    memory = run.encode(run.processor(pictures))
    captions = torch.tensor(ids).expand(len(pictures), 1, -1)
    return sequence_log_probs(run.model, memory, captions)[:, 0]


def own_log_probs(run: Run, pictures: list, captions: list) -> torch.Tensor:
    """Log-probabilities of the tokens of each picture's first caption, one after the other."""
    rows = [log_probs(run, [picture], list(row[0].ids))[0]
            for picture, row in zip(pictures, captions, strict=True)]
    return torch.cat(rows)


def photos() -> list[np.ndarray]:
    """The two photos of scikit-learn, and two parts of each."""
    datasets = pytest.importorskip("sklearn.datasets")
    images = datasets.load_sample_images().images
    return [part for image in images for part in (image, image[:, :320], image[:, 320:])]


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("name", CAPTIONERS)
class TestEveryCaptioner:
    def test_scores_in_16_bits_are_nearly_those_of_32(self, name, dtype):
        run = untrained_captioner(name)
        ids = run.search(run.processor(PICTURES))[0].ids
        full = log_probs(run, PICTURES, ids)
        assert run.to(dtype=dtype) is run
        assert run.dtype == dtype
        half = log_probs(run, PICTURES, ids)
        difference = (full - half).abs().max()
        assert 0 < difference < TOLERANCE[dtype]

    def test_captions_samples_and_traces_come(self, name, dtype):
        run = untrained_captioner(name).to(dtype=dtype)
        captions = run.caption(PICTURES[:2])
        assert [row[0].text for row in run.generate(PICTURES[:2])] == captions
        assert len(run.generate(PICTURES[0], sample=True, seed=0, num_captions=2)) == 2
        assert trace_caption(run, PICTURES[0]).attention.dtype == torch.float32
        assert run.trace(PICTURES[0])[1].dtype == torch.float32


class TestPackagedRuns:
    def test_scenes_are_captioned_alike(self):
        run = captionlab.load("scenes")
        full = run.caption(PICTURES)
        half = captionlab.load("scenes", precision="bf16").caption(PICTURES)
        assert sum(one == other for one, other in zip(full, half, strict=True)) >= 4

    def test_photos_are_captioned_alike_with_a_backbone_in_bf16(self):
        pictures = photos()
        run = captionlab.load("photos")
        run.novelty = None
        full = run.generate(pictures)
        spec = run.processor.describe()
        before = own_log_probs(run, pictures, full)
        run.to(dtype=torch.bfloat16)
        assert next(run.processor.backbone.parameters()).dtype == torch.bfloat16
        # The backbone's many layers round more than the captioner: the mean over tokens counts.
        difference = (own_log_probs(run, pictures, full) - before).abs()
        assert 0 < difference.mean() < 0.08
        pairs = zip(full, run.generate(pictures), strict=True)
        assert sum(one[0].text == other[0].text for one, other in pairs) >= 4
        assert run.processor.describe() == spec

    def test_a_translator_translates(self):
        run = captionlab.load("translation")
        sentence = "a red circle is above a blue square"
        assert run.to(dtype=torch.bfloat16).translate(sentence).split()


class TestFiles:
    def test_moving_leaves_the_stored_files_and_saving_keeps_the_precision(self, tmp_path):
        folder = untrained_captioner("vanilla").save(tmp_path / "run")
        stored = {file.name: file.read_bytes() for file in folder.iterdir()}
        run = Run.load(folder, precision="bf16")
        assert {file.name: file.read_bytes() for file in folder.iterdir()} == stored
        again = Run.load(run.save(tmp_path / "half"))
        assert again.dtype == torch.float32
        weights = run.model.state_dict()
        for key, tensor in again.model.state_dict().items():
            torch.testing.assert_close(weights[key].float(), tensor, rtol=0, atol=0)

    def test_features_are_stored_as_32_bits_make_them(self, tmp_path, monkeypatch):
        monkeypatch.setattr(extraction, "cache_home", lambda: tmp_path)
        processor = captionlab.load("photos").processor
        picture = np.random.default_rng(0).integers(0, 255, (90, 120, 3), np.uint8)
        data = CaptionData("mine", {"train": [Item("a", ("a dog",), picture)]})
        expected = processor([picture]).grid.half()
        (store,) = extraction.open_feature_stores(processor.to(dtype=torch.bfloat16), data)
        stored = torch.as_tensor(store["a"]).half()
        torch.testing.assert_close(stored, expected[0], rtol=1e-3, atol=1e-3)
        assert not torch.equal(processor([picture]).grid.half(), expected)


class TestWrongInput:
    def test_whole_numbers_are_no_weights(self):
        with pytest.raises(ValueError, match=r"weights cannot be torch.int8: take torch.float32"):
            untrained_captioner("vanilla").to(dtype=torch.int8)

    @pytest.mark.parametrize(("device", "line"), [("cuda", "no CUDA device"), ("mps", "Apple")])
    def test_an_absent_device_is_one_line(self, device, line, monkeypatch):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
        move = untrained_captioner("vanilla").to
        for action in (move, lambda name: captionlab.load("scenes", device=name)):
            with pytest.raises(ValueError, match=line) as caught:
                action(device)
            assert "\n" not in str(caught.value)

    def test_an_unknown_precision_is_one_line(self):
        with pytest.raises(ValueError, match=r"no precision 'fp8': take fp32, bf16, fp16 or auto"):
            captionlab.load("scenes", precision="fp8")

    def test_a_precision_alone_may_come_first_as_in_pytorch(self):
        assert untrained_captioner("vanilla").to(torch.bfloat16).dtype == torch.bfloat16


@pytest.fixture
def loaded(monkeypatch):
    """The runs that commands load, in their order."""
    runs = []
    original = catalog.load

    def load(*args, **options):
        runs.append(original(*args, **options))
        return runs[-1]

    monkeypatch.setattr(catalog, "load", load)
    return runs


@pytest.fixture
def picture(tmp_path):
    file = tmp_path / "scene.png"
    Image.fromarray(render(generate_scene(7), 64)).save(file)
    return str(file)


def command_line(name: str, picture: str) -> list[str]:
    """A command that loads a run."""
    return {
        "caption": ["caption", "scenes", picture],
        "evaluate": ["evaluate", "scenes"],
        "serve": ["serve", "scenes"],
        "translate": ["translate", "translation", "a red circle"],
    }[name]


def call(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def line_of(result) -> str:
    """The one line of a mistake."""
    assert result.exit_code == 1, result.output
    (line,) = result.stderr.strip().splitlines()
    assert line.startswith("captionlab: ")
    return line


COMMANDS = ["caption", "evaluate", "serve", "translate"]
PRECISIONS = {"fp32": torch.float32, "no": torch.float32, "bf16": torch.bfloat16,
              "fp16": torch.float16}


@pytest.fixture
def cut(monkeypatch):
    """Commands end where they have loaded their runs."""
    stop = Mock(side_effect=ValueError("loaded"))
    monkeypatch.setattr(Run, "stream", stop)
    monkeypatch.setattr(Run, "translate", stop)
    monkeypatch.setattr("captionlab.runs.evaluation.evaluate", stop)
    monkeypatch.setattr("captionlab.deploy.web.build_app", stop)


class TestCommands:
    @pytest.mark.parametrize("precision", PRECISIONS)
    @pytest.mark.parametrize("name", COMMANDS)
    def test_a_run_has_the_precision(self, name, precision, picture, loaded, cut):
        result = call(*command_line(name, picture), "--precision", precision)
        assert line_of(result) == "captionlab: loaded"
        assert [run.dtype for run in loaded] == [PRECISIONS[precision]]

    @pytest.mark.parametrize("chosen", ["no", "bf16"])
    def test_auto_is_what_the_device_is_fast_with(
        self, chosen, picture, loaded, cut, monkeypatch
    ):
        monkeypatch.setattr(devices, "_has_fast_bf16", lambda: chosen == "bf16")
        for name in COMMANDS:
            call(*command_line(name, picture), "--precision", "auto")
        assert {run.dtype for run in loaded} == {PRECISIONS[chosen]}
        assert len(loaded) == len(COMMANDS)

    def test_each_run_of_an_ensemble_has_it(self, loaded, cut):
        call("evaluate", "scenes", "--ensemble", "scenes", "--precision", "bf16")
        assert [run.dtype for run in loaded] == 2 * [torch.bfloat16]

    @pytest.mark.parametrize("precision", PRECISIONS)
    def test_a_caption_comes_in_each(self, precision, picture):
        result = call("caption", "scenes", picture, "--precision", precision)
        assert result.exit_code == 0, result.output
        assert "triangle" in result.stdout

    @pytest.mark.parametrize("name", COMMANDS)
    def test_an_unknown_one_is_one_line(self, name, picture):
        line = line_of(call(*command_line(name, picture), "--precision", "half"))
        assert "no precision 'half': take fp32, bf16, fp16 or auto" in line

    @pytest.mark.parametrize("name", [*COMMANDS, "train", "features"])
    @pytest.mark.parametrize(("device", "cause"), [
        ("mps", "there is no mps device here, it needs a Mac with Apple silicon"),
        ("cuda", "there is no CUDA device here"),
        ("tpu", "no device 'tpu': take cpu, cuda or mps"),
    ])  # fmt: skip
    def test_an_absent_device_is_one_line(
        self, name, device, cause, picture, monkeypatch, tmp_path
    ):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
        others = {
            "train": ["train", "vanilla", "--out", tmp_path / "run"],
            "features": ["features", "extract", tmp_path, "--out", tmp_path / "f"],
        }
        words = others[name] if name in others else command_line(name, picture)
        assert cause in line_of(call(*words, "--device", device))


class TestAppleDevice:
    """There is none here: whether one is chosen shows in what PyTorch is asked for."""

    @pytest.fixture
    def moved(self, monkeypatch):
        """Where modules were moved to."""
        places = []

        def move(module, *args, **options):
            places.append((options.get("device"), options.get("dtype")))
            return module

        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
        monkeypatch.setattr(torch.nn.Module, "to", move)
        return places

    @pytest.mark.parametrize("name", COMMANDS)
    def test_runs_are_moved_to_it(self, name, picture, moved, cut):
        result = call(*command_line(name, picture), "--device", "mps")
        assert line_of(result) == "captionlab: loaded"
        assert moved == [("mps", torch.float32)]

    @pytest.mark.parametrize(("speedup", "dtype"), [(1.5, torch.float16), (1.0, torch.float32)])
    def test_auto_measures_it(self, speedup, dtype, moved, monkeypatch):
        measured = []
        monkeypatch.setattr(
            devices, "_half_speedup", lambda *choice: measured.append(choice) or speedup
        )
        captionlab.load("scenes", device="mps", precision="auto")
        assert moved == [("mps", dtype)]
        assert measured == [("mps", torch.float16)]

    def test_the_backbone_follows(self, moved):
        processor = captionlab.load("photos", device="mps").processor
        assert processor.device == "mps"

    def test_it_trains_there(self, monkeypatch):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
        monkeypatch.setattr("accelerate.state.is_mps_available", lambda *_, **__: True)
        try:
            set_device("mps")
            assert Accelerator().device.type == "mps"
            set_device("cpu")
            assert Accelerator().device.type == "cpu"
        finally:
            set_device(None)
