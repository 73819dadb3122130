"""Keep trained captioners of Flickr8k beside their results, in half precision.

python -m benchmarks.flickr8k.weights RUN...     RUN: folders of trained runs, one seed each

A run becomes `results/flickr8k/weights/NAME`, named after its model, variant, preset and stage, and
can be loaded by that name in a clone: `captionlab.load("entangled-ablation-scst")`. Prints the
size in MB.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from captionlab.runs import Run

ROOT = Path(__file__).resolve().parents[2]
WEIGHTS = ROOT / "results/flickr8k/weights"


def main(folders: Sequence[str]) -> None:
    for folder in folders:
        run = Run.load(folder).to(torch.float16)
        kept = run.save(WEIGHTS / run.metadata.result_name)
        size = sum(file.stat().st_size for file in kept.iterdir())
        print(f"{kept.name:30}  {size / 1e6:.1f} MB")


if __name__ == "__main__":
    main(sys.argv[1:])
