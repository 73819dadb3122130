"""Keep trained captioners of Flickr8k beside their results, in half precision.

python -m benchmarks.flickr8k.weights RUN...     RUN: folders of trained runs, one seed each

A run becomes `results/flickr8k/weights/NAME`, named after its model, variant, preset and stage, and
can be loaded by that name in a clone: `captionlab.load("entangled-ablation-xe")`. Prints the bytes.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from captionlab.files import data_home
from captionlab.runs import Run

ROOT = Path(__file__).resolve().parents[2]
WEIGHTS = ROOT / "results/flickr8k/weights"


def kept_name(run: Run) -> str:
    """Return the name of a run's result file, such as position_aware-fpn-ablation-xe."""
    made = run.metadata
    variant = () if made.variant is None else (made.variant,)
    return "-".join((made.model, *variant, made.preset_name, made.stage))


def name_boxes_from_data_home(run: Run) -> None:
    """Make the name of a file of boxes relative to the data folder, where `load` looks, too."""
    boxes = run.processor.trained_spec.get("boxes")
    if boxes is not None:
        boxes["source"] = str(Path(boxes["source"]).relative_to(data_home()))


def main(folders: Sequence[str]) -> None:
    for folder in folders:
        run = Run.load(folder).to(torch.float16)
        name_boxes_from_data_home(run)
        kept = run.save(WEIGHTS / kept_name(run))
        size = sum(file.stat().st_size for file in kept.iterdir())
        print(f"{kept.name:30}  {size / 1e6:.1f} MB")


if __name__ == "__main__":
    main(sys.argv[1:])
