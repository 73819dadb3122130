"""How many photos a second does each captioner of the preset `small` caption on a CPU?

From the files to the captions, with the backbone, in batches of 16 and a beam of 3. The weights are
random, so every caption gets 12 tokens, about the mean of trained captioners. Finding boxes is not
counted: they are those of a file.
"""

import json
from statistics import median

import torch

import captionlab
from benchmarks import CAPTIONERS, timed
from captionlab.data.catalog import load_dataset
from captionlab.decoding.config import GenerationConfig
from captionlab.features.attributes import AttributeDetector
from captionlab.features.image_processor import ImageProcessor
from captionlab.models import find_preset, model_module
from captionlab.runs.results import provenance, result_file
from captionlab.runs.run import Run

NUM_PHOTOS = 48
ROUNDS = 3
TOKENS = 12


def untrained(name: str) -> Run:
    """Return a captioner with random weights and the vocabulary of the packaged one."""
    trained = captionlab.load("photos")
    preset = find_preset(name, "small")
    detector = None
    if "attributes" in preset.inputs.fields:
        words = trained.vocabulary.tokens[4 : 4 + 300]
        detector = AttributeDetector(preset.channels, words)
        grids = ImageProcessor(preset)
        detector.metadata = {"made_by": {
            "backbone": grids.backbone.describe(),
            "preprocess": grids.preprocess.to_dict(),
            "grid": [preset.inputs.grid] * 2,
        }}
    processor = ImageProcessor(preset, detector=detector, vocabulary=trained.vocabulary)
    torch.manual_seed(0)
    model = model_module(name).Model(preset, len(trained.vocabulary)).eval()
    return Run(model, trained.vocabulary, processor, trained.metadata)


def main() -> None:
    torch.set_num_threads(1)
    files = [item.image for item in load_dataset("flickr8k")["test"][:NUM_PHOTOS]]
    config = GenerationConfig(beam=3, min_length=TOKENS, max_length=TOKENS)
    runs = {name: untrained(name) for name in CAPTIONERS}
    for run in runs.values():
        run.caption(files[:16], config)         # warm-up
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(ROUNDS):                     # in turns: all see the same machine
        for name, run in runs.items():
            seconds[name].append(timed(lambda run=run: run.caption(files, config)))
    speeds = {name: NUM_PHOTOS / median(times) for name, times in seconds.items()}
    result = {
        "what": "photos captioned per second, preset small, beam 3, 12 tokens, one thread, "
                "known boxes",
        "photos": NUM_PHOTOS,
        "speeds": {name: round(speed, 2) for name, speed in speeds.items()},
        **provenance(),
    }
    file = result_file("flickr8k/captions-per-second.json")
    file.write_text(json.dumps(result, indent=1) + "\n")
    print(file.read_text())


if __name__ == "__main__":
    main()
