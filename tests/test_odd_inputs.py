"""What people hand over: every function of pictures or texts on the same odd inputs, every command
on the same odd files. A result, or one line of ours."""

import io
import json
import stat
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner
from untrained_runs import untrained_captioner, untrained_translator

from captionlab.cli import app
from captionlab.data import load_image
from captionlab.metrics.translation import judge_translations, score_translations
from captionlab.subwords import SubwordVocabulary
from captionlab.text import Vocabulary

PIXELS = np.zeros((8, 8, 3), np.uint8)
# A function makes each input anew: a generator can be read once.
INPUTS = {
    "None": lambda: None,
    "nothing": list,
    "empty text": str,
    "blank": lambda: " \n",
    "text": lambda: "A dog runs.",
    "texts": lambda: ["A dog runs.", "A cat."],
    "generator": lambda: (text for text in ["A dog runs."]),
    "tuple": lambda: ("A dog runs.",),
    "dict": lambda: {"A dog runs.": 1},
    "set": lambda: {"A dog runs."},
    "bytes": lambda: b"A dog runs.",
    "None in a list": lambda: ["A dog runs.", None],
    "number": lambda: 7,
    "numbers": lambda: [1, 2.5],
    "NaN": lambda: float("nan"),
    "text of numbers": lambda: "65 and 1934.",
    "address": lambda: "https://example.org/a?b=c",
    "emoji": lambda: "😀",
    "newlines": lambda: "A dog\nruns.\r\n",
    "control characters": lambda: "A \x1b[2J dog\0.",
    "surrogate": lambda: "A dog \udcff.",
    "long": lambda: "dog " * 200,
    "path": lambda: Path("absent.jpg"),
    "paths": lambda: [Path("absent.jpg")],
    "name with NUL": lambda: "a\0.jpg",
    "array": lambda: PIXELS,
    "arrays": lambda: np.stack([PIXELS, PIXELS]),
    "array of odd shape": lambda: np.zeros((8, 8, 2), np.uint8),
    "empty array": lambda: np.zeros((0, 8, 3), np.uint8),
    "whole numbers": lambda: np.zeros((8, 8, 3), np.int64),
    "floats above 1": lambda: np.full((8, 8, 3), 7.0),
    "tensor": lambda: torch.zeros(3, 8, 8),
    "half": lambda: torch.zeros(3, 8, 8, dtype=torch.bfloat16),
    "picture": lambda: Image.new("LA", (8, 8)),
    "file": lambda: io.BytesIO(b"no picture"),
    "open text": lambda: io.StringIO("A dog runs."),
}


@pytest.fixture(scope="module")
def functions():
    """Every public function that takes pictures or texts."""
    captioner = untrained_captioner("cptr")
    translator = untrained_translator()
    words = ["ein hund"]
    return {
        "caption": captioner.caption,
        "generate": captioner.generate,
        "stream": lambda value: list(captioner.stream(value)),
        "processor": captioner.processor,
        "pixels": captioner.processor.pixels,
        "preprocess": captioner.processor.preprocess,
        "load_image": load_image,
        "translate": translator.translate,
        "text processor": translator.processor,
        "Vocabulary.build": Vocabulary.build,
        "SubwordVocabulary.build": lambda value: SubwordVocabulary.build(value, 300),
        "hypotheses": lambda value: judge_translations(value, words, ter=False),
        "references": lambda value: score_translations(words, value, ter=False),
    }


NAMES = (
    "caption", "generate", "stream", "processor", "pixels", "preprocess", "load_image", "translate",
    "text processor", "Vocabulary.build", "SubwordVocabulary.build",
    "hypotheses", "references",
)  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NAMES)
def test_every_function_on_odd_inputs(name, functions):
    complaints = []
    for label, make in INPUTS.items():
        try:
            functions[name](make())
        except (ValueError, OSError) as error:
            # A newline in a message may only be that of a name that was given.
            if not str(error) or ("\n" in str(error) and label not in ("blank", "newlines")):
                complaints.append(f"{label}: {error!r}")
        except Exception as error:
            complaints.append(f"{label}: {error!r}")
    assert complaints == []


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["translate", "Vocabulary.build", "hypotheses", "references"])
def test_a_list_is_never_the_letters_of_a_text_or_the_keys_of_a_dictionary(name, functions):
    for label in ("dict", "set", "None in a list"):
        with pytest.raises(ValueError, match=r"\w"):
            functions[name](INPUTS[label]())


FILES = (
    "a b.jpg", "a[1].jpg", "a*.jpg", "a?.jpg", "{a}.jpg", "a#b.jpg", "a%20b.jpg", "a'b.jpg",
    'a"b.jpg', "a\nb.jpg", "a\tb.jpg", "ä.jpg", "a\u0308.jpg", "猫.jpg", "😀.jpg", "-a.jpg", "--a.jpg",
    "A.JPG", "a.JPEG", "a.jpg.png", "a..jpg", "a.zip.jpg", "a;b.jpg", "a&b.jpg", "a|b.jpg", "$a.jpg",
    "~a.jpg", "a,b.jpg", "a=b.jpg", "a" * 200 + ".jpg", "readonly.jpg",
)  # fmt: skip


@pytest.fixture(scope="module")
def odd(tmp_path_factory):
    """A folder of pictures with odd names, and tables of them."""
    folder = tmp_path_factory.mktemp("odd names")
    (folder / "images").mkdir()
    rows = ["image,caption,split"]
    for number, name in enumerate(FILES):
        kind = "PNG" if name.lower().endswith("png") else "JPEG"
        Image.new("RGB", (16, 16), (8 * number, 0, 0)).save(folder / "images" / name, kind)
        quoted = name.replace('"', '""')
        rows.append(f'"{quoted}",a dog,{"train" if number % 2 else "val"}')
    (folder / "images" / "readonly.jpg").chmod(stat.S_IREAD)
    (folder / "own [1].csv").write_text("\n".join(rows) + "\n")
    entries = [{"id": n, "file_name": name} for n, name in enumerate(FILES)]
    (folder / "images.json").write_text(json.dumps({"images": entries}))
    return folder


def invoke(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
class TestCommandsOnOddNames:
    def test_caption_each(self, odd, tmp_path):
        out = tmp_path / "captions.json"
        result = invoke("caption", "scenes", *(odd / "images" / name for name in FILES),
                        "--out", out)
        assert result.exit_code == 0, result.output
        named = {Path(record["image"]).name for record in json.loads(out.read_text())}
        assert named == set(FILES)

    def test_caption_the_folder(self, odd):
        result = invoke("caption", "scenes", odd / "images")
        assert result.exit_code == 0, result.output
        assert result.stdout.count(": ") == len(FILES)

    def test_data_check_and_attributes_train(self, odd, tmp_path):
        assert "all pictures can be read" in invoke("data", "check", odd / "own [1].csv").output
        result = invoke("attributes", "train", "--data", odd / "own [1].csv", "--num-words", 1,
                        "--out", tmp_path / "d.st")
        assert result.exit_code == 0, result.output

    def test_export_coco(self, odd, tmp_path):
        result = invoke("export-coco", "scenes", odd / "images.json", "--images", odd / "images",
                        "--out", tmp_path)
        assert f"{len(FILES)} captions written" in result.output

    def test_features_extract(self, odd, tmp_path):
        result = invoke("features", "extract", odd / "images", "--out", tmp_path / "f",
                        "--weights", "none", "--size", 32, "--grid", 1)
        assert result.exit_code == 0, result.output

    @pytest.mark.java
    @pytest.mark.parametrize("name", FILES)
    def test_a_picture_is_no_run_no_data_and_no_text(self, odd, name):
        file = odd / "images" / name
        for words in (("evaluate", file), ("train", "cptr", "--data", file), ("data", "use", file),
                      ("data", "check", file), ("translate", "translation", "--file", file),
                      ("score", file, file), ("export", file, "--onnx", file)):
            result = invoke(*words)
            assert result.exit_code in (1, 2), (words, result.output)
            assert isinstance(result.exception, SystemExit), (words, result.exception)
            assert len(result.stderr.strip().splitlines()) <= 4, result.stderr
