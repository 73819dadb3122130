"""An exported captioner writes what the run writes, without PyTorch."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import captionlab
from captionlab.cli import app
from captionlab.data.batches import Batch
from captionlab.data.catalog import load_dataset
from captionlab.decoding import GenerationConfig
from captionlab.deploy import OnnxCaptioner, export_onnx, runtime
from captionlab.deploy.onnx import OLDEST_TORCH
from captionlab.features import Preprocess
from captionlab.features.image_processor import ImageProcessor
from captionlab.models import find_preset, model_module
from captionlab.runs.run import Run
from captionlab.scenes import generate_scene
from captionlab.text import Vocabulary

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
VERSION = tuple(int(number) for number in torch.__version__.split(".")[:2])
if VERSION < OLDEST_TORCH:
    pytest.skip("the exporter of this PyTorch is too old", allow_module_level=True)


def random_run(name: str) -> Run:
    torch.manual_seed(0)
    preset = find_preset(name, "tiny")
    vocabulary = Vocabulary([f"word{number}" for number in range(30)])
    model = model_module(name).Model(preset, len(vocabulary)).eval()
    return Run(model, vocabulary, ImageProcessor(preset, vocabulary=vocabulary))


@pytest.fixture(scope="module")
def scenes_run() -> Run:
    return captionlab.load("scenes", device="cpu")


@pytest.fixture(scope="module")
def exported_scenes(scenes_run, tmp_path_factory):
    return export_onnx(scenes_run, tmp_path_factory.mktemp("scenes"))


@pytest.mark.slow
class TestScenes:
    def test_a_hundred_greedy_captions_are_equal(self, scenes_run, exported_scenes):
        pictures = [scenes_run.processor.pixels(generate_scene(seed)) for seed in range(100)]
        captions = OnnxCaptioner(exported_scenes).caption(pictures)
        assert captions == scenes_run.caption(pictures, beam=1)
        assert len(set(captions)) > 50

    def test_one_picture_and_any_batch_give_the_same(self, scenes_run, exported_scenes):
        pictures = [scenes_run.processor.pixels(generate_scene(seed)) for seed in range(7)]
        captioner = OnnxCaptioner(exported_scenes)
        together = captioner.caption(pictures)
        assert [captioner.caption(picture) for picture in pictures] == together
        assert captioner.caption(pictures, batch_size=3) == together

    def test_a_generation_config_decides_the_length(self, scenes_run, exported_scenes):
        captioner = OnnxCaptioner(exported_scenes)
        pictures = [scenes_run.processor.pixels(generate_scene(seed)) for seed in range(3)]
        config = GenerationConfig(beam=1, max_length=4)
        short = scenes_run.caption(pictures, config)
        assert captioner.caption(pictures, config) == short
        assert captioner.caption(pictures[0], max_length=4) == short[0]
        for settings, line in (({"beam": 3}, "greedily"), ({"sample": True}, "'sample': True"),
                               ({"max_length": 99}, "take 1 to")):
            with pytest.raises(ValueError, match=line):
                captioner.caption(pictures, **settings)
        with pytest.raises(ValueError, match="'min_length': 3"):
            captioner.caption(pictures, GenerationConfig(beam=1, min_length=3))

    def test_it_captions_a_file_without_torch(self, scenes_run, exported_scenes, tmp_path):
        pixels = scenes_run.processor.pixels(generate_scene(3))
        Image.fromarray(pixels).save(tmp_path / "scene.png")
        code = (
            "import sys; from captionlab.deploy import OnnxCaptioner; "
            "print(OnnxCaptioner(sys.argv[1]).caption(sys.argv[2])); "
            "assert 'torch' not in sys.modules"
        )
        command = [sys.executable, "-c", code, str(exported_scenes), str(tmp_path / "scene.png")]
        result = subprocess.run(command, capture_output=True, text=True, check=True)
        assert result.stdout.strip() == scenes_run.caption(pixels, beam=1)

    def test_the_json_file_says_what_a_reader_needs(self, scenes_run, exported_scenes):
        spec = json.loads((exported_scenes / "captioner.json").read_text())
        assert spec["vocabulary"] == scenes_run.vocabulary.tokens
        assert spec["max_length"] == scenes_run.max_length
        assert spec["preprocess"]["size"] == 48
        assert spec["encoder"]["inputs"][0]["shape"] == ["rows", 3, 48, 48]
        lengths = {tuple(entry["shape"]) for entry in spec["step"]["state"]}
        assert lengths == {("rows", 4, "length", 24)}


@pytest.mark.slow
def test_weights_of_16_bits_write_the_same_and_attention_comes_with_them(scenes_run, tmp_path):
    captioner = OnnxCaptioner(export_onnx(scenes_run, tmp_path, half=True, attention=True))
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 1.3e6
    pictures = [scenes_run.processor.pixels(generate_scene(seed)) for seed in range(50)]
    assert captioner.caption(pictures) == scenes_run.caption(pictures, beam=1)
    inputs = {"tokens": np.array([1]), **captioner.encode(captioner.prepare(pictures[:1]))}
    session = onnxruntime.InferenceSession(tmp_path / "step.onnx")
    (attention,) = session.run(["attention"], inputs | captioner.start(1))
    trace = {"cross": []}
    memory = scenes_run.encode(scenes_run.processor(pictures[:1]))
    model = scenes_run.model
    model.step(model.start(memory), torch.tensor([[1]]), trace)
    expected = torch.stack(trace["cross"], 1)[..., 0, :].detach().numpy()       # (1, L, H, N)
    np.testing.assert_allclose(attention, expected, atol=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vanilla", "position_aware"])
def test_captioners_of_whole_pictures_get_pictures(name, tmp_path):
    run = random_run(name)
    pictures = [run.processor.pixels(generate_scene(seed)) for seed in range(3)]
    captioner = OnnxCaptioner(export_onnx(run, tmp_path))
    inputs = captioner.prepare(pictures)
    memory = captioner.encode(inputs)
    first, state = captioner.step(np.array([1, 1, 1]), memory, captioner.start(3))
    second, _ = captioner.step(np.array([5, 6, 7]), memory, state)
    with torch.no_grad():
        tokens = torch.tensor([[[1, 5]], [[1, 6]], [[1, 7]]])
        logits = run.model.decode(run.model.encode(run.processor(pictures)), tokens)[:, 0]
    expected = logits.log_softmax(-1).numpy()
    np.testing.assert_allclose(np.stack([first, second], 1), expected, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["entangled", "image_transformer"])
def test_a_captioner_of_regions_gets_the_fields_of_a_batch(name, tmp_path):
    run = random_run(name)
    captioner = OnnxCaptioner(export_onnx(run, tmp_path))
    with pytest.raises(ValueError, match=r"reads .*regions.* and no pictures"):
        captioner.prepare([np.zeros((8, 8, 3), np.uint8)])
    names = [entry["name"] for entry in captioner.spec["encoder"]["inputs"]]
    assert names == list(run.processor.preset.inputs.fields)
    inputs = {entry["name"]: torch.rand(3, *entry["shape"][1:])
              for entry in captioner.spec["encoder"]["inputs"]}
    inputs["boxes"] = inputs["boxes"].unflatten(2, (2, 2)).sort(2).values.flatten(2)
    inputs["region_mask"] = torch.ones_like(inputs["region_mask"], dtype=torch.bool)
    inputs["region_mask"][1, 2:] = False
    if "attributes" in inputs:
        inputs["attributes"] = torch.full_like(inputs["attributes"], 4, dtype=torch.long)
    memory = captioner.encode({field: value.numpy() for field, value in inputs.items()})
    found, _ = captioner.step(np.array([1, 1, 1]), memory, captioner.start(3))
    with torch.no_grad():
        tokens = torch.tensor([[[1]]] * 3)
        logits = run.model.decode(run.model.encode(Batch(**inputs)), tokens)[:, 0, 0]
    np.testing.assert_allclose(found, logits.log_softmax(-1).numpy(), atol=1e-4)


@pytest.mark.data
@pytest.mark.slow
def test_a_hundred_photos_get_equal_captions(tmp_path):
    run = captionlab.load("photos", device="cpu")
    photos = [item.image for item in load_dataset("flickr8k").splits["test"][:100]]
    captions = OnnxCaptioner(export_onnx(run, tmp_path)).caption(photos)
    assert captions == run.caption(photos, beam=1)


@pytest.mark.parametrize("resize", ["stretch", "crop"])
def test_pictures_are_prepared_as_in_training(resize, tmp_path):
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (150, 210, 4), dtype=np.uint8)
    preprocess = Preprocess(size=32, resize=resize, interpolation="bicubic")
    Image.fromarray(pixels, "RGBA").save(tmp_path / "alpha.png")
    Image.fromarray(pixels[..., :3]).save(tmp_path / "large.jpg")
    for file in (tmp_path / "alpha.png", tmp_path / "large.jpg"):
        ours = runtime._prepare_picture(file, preprocess.to_dict())
        np.testing.assert_allclose(ours, preprocess([file])[0].numpy(), atol=1e-5)


class TestMistakes:
    def test_a_translator_is_one_line(self):
        result = CliRunner().invoke(app, ["export", "translation", "--onnx", "folder"])
        assert result.exit_code == 1
        assert "translates sentences" in result.output
        assert len(result.output.splitlines()) == 1

    def test_a_missing_package_is_one_line(self, monkeypatch, tmp_path):
        monkeypatch.setattr("captionlab.deploy.onnx.find_spec", lambda name: None)
        command = ["export", "scenes", "--onnx", str(tmp_path / "folder")]
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 1
        assert "pip install '.[export]'" in result.output
        assert not (tmp_path / "folder").exists()

    def test_a_gpu_is_not_in_the_way(self, monkeypatch, tmp_path):
        """`load` takes the fastest device, and only a run on the CPU can be exported."""
        monkeypatch.setattr("captionlab.runs.catalog.best_device", lambda: "cuda")
        monkeypatch.setattr("captionlab.deploy.onnx.find_spec", lambda name: None)
        result = CliRunner().invoke(app, ["export", "scenes", "--onnx", str(tmp_path / "folder")])
        assert "pip install '.[export]'" in result.output       # the check after that of the device

    def test_another_precision_says_how_to_load(self, tmp_path):
        run = captionlab.load("scenes", device="cpu", precision="bf16")
        with pytest.raises(ValueError, match='load it with device="cpu", without a precision'):
            export_onnx(run, tmp_path)

    def test_a_folder_without_an_export_says_so(self, tmp_path):
        with pytest.raises(FileNotFoundError, match="captionlab export RUN --onnx"):
            OnnxCaptioner(tmp_path)

    def test_an_old_pytorch_is_one_line(self, scenes_run, tmp_path, monkeypatch):
        monkeypatch.setattr(torch, "__version__", "2.6.0+cu124")
        with pytest.raises(ImportError, match=r"needs PyTorch 2\.8 or newer, this is 2\.6\.0"):
            export_onnx(scenes_run, tmp_path / "new")
        assert not (tmp_path / "new").exists()

    def test_a_model_that_the_exporter_does_not_know_is_one_line(self, scenes_run, tmp_path, monkeypatch):
        def unknown(*_, **__):
            raise RuntimeError("data-dependent branch\nand much more")

        monkeypatch.setattr(torch.export, "export", unknown)
        with pytest.raises(ValueError, match="cannot write this model as encoder.onnx: data-dep") as fault:
            export_onnx(scenes_run, tmp_path)
        assert "\n" not in str(fault.value)


def test_what_holds_no_captioner_is_one_line(tmp_path):
    folder = tmp_path / "my export"
    folder.mkdir()
    with pytest.raises(FileNotFoundError, match=r"--onnx '.*/my export' writes one"):
        OnnxCaptioner(folder)
    for text in ("{", "[]", "[" * 200_000, "9" * 6000):
        (folder / "captioner.json").write_text(text)
        with pytest.raises(ValueError, match=r"captioner\.json is broken: export") as fault:
            OnnxCaptioner(folder)
        assert "\n" not in str(fault.value)
