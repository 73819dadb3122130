"""Untrained runs of every model, for tests that need no sensible captions."""

import torch

from captionlab.features.attributes import AttributeDetector
from captionlab.features.image_processor import ImageProcessor
from captionlab.features.text_processor import TextProcessor
from captionlab.models import list_models, model_module
from captionlab.runs.run import Run
from captionlab.runs.storage import RunMetadata
from captionlab.subwords import SubwordVocabulary
from captionlab.text import Vocabulary

CAPTIONERS = sorted(set(list_models()) - {"translation"})


def untrained_captioner(name: str) -> Run:
    """Return a captioner of the sizes of `tiny`, with a detector if it reads attributes."""
    preset = model_module(name).PRESETS["tiny"]
    vocabulary = Vocabulary(["a", "red", "circle", "square", "blue", "above", "small"])
    torch.manual_seed(0)
    detector = None
    if "attributes" in preset.inputs.fields:
        detector = AttributeDetector(12, ["red", "blue", "circle", "small"]).eval()
        preprocess = ImageProcessor(preset).preprocess.to_dict()
        detector.metadata["made_by"] = {
            "backbone": None, "grid": [8, 8], "preprocess": preprocess,
        }  # fmt: skip
    model = model_module(name).Model(preset, len(vocabulary)).eval()
    processor = ImageProcessor(preset, vocabulary=vocabulary, detector=detector)
    return Run(model, vocabulary, processor, RunMetadata(model=name, preset_name="tiny"))


def untrained_translator() -> Run:
    """Return a translator of the sizes of `tiny`."""
    preset = model_module("translation").PRESETS["tiny"]
    vocabulary = SubwordVocabulary.build(["a red circle", "a blue square"], 300)
    torch.manual_seed(0)
    model = model_module("translation").Model(preset, len(vocabulary)).eval()
    metadata = RunMetadata(model="translation", preset_name="tiny")
    return Run(model, vocabulary, TextProcessor(preset, vocabulary), metadata)
