"""Fit and test the check of the packaged photo captioner for pictures unlike its training photos.

python -m benchmarks.flickr8k.novelty [FEATURES]     FEATURES: a store of the photos' features

Centroids come from the training split, the threshold from val. It is tested on the test split and
on pictures that are no photos. The method was chosen on other pictures of those kinds, `DESIGN`.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.flickr8k.other_pictures import KINDS
from captionlab.data.catalog import load_dataset
from captionlab.data.datasets import CaptionData
from captionlab.files import write_json
from captionlab.processors.cache import input_transforms, open_feature_stores
from captionlab.runs import (
    NoveltyDetector,
    Run,
    load,
    pooled_features,
    pooled_items,
    provenance,
    save_novelty,
)

ROOT = Path(__file__).resolve().parents[2]
RESULT = ROOT / "results/flickr8k/vanilla-photos-scst.novelty.json"
DESIGN, TEST = range(100), range(100_000, 100_100)  # seeds


def photo_features(run: Run, data: CaptionData, split: str, folders: Sequence[str]) -> Tensor:
    """Pooled features of the photos of a split."""
    part = CaptionData(data.name, {split: data[split]})
    inputs = input_transforms(run.processor, open_feature_stores(run.processor, part, folders))
    return pooled_items(data[split], inputs["grid"])


def other_features(run: Run, kind: str, seeds: range) -> Tensor:
    """Pooled features of pictures of a kind."""
    grids = [run.processor([KINDS[kind](seed)]).require("grid") for seed in seeds]
    return torch.cat([pooled_features(grid) for grid in grids])


def main(folders: Sequence[str]) -> None:
    run = load("photos")
    data = load_dataset("flickr8k")
    photos = {name: photo_features(run, data, name, folders) for name in ("train", "val", "test")}
    detector = NoveltyDetector.fit(photos["train"], photos["val"])
    file = save_novelty(detector, ROOT / "captionlab/checkpoints/photos")

    def flagged(features: Tensor) -> dict[str, int]:
        similarity = detector.similarity(features[:, None])
        return {"pictures": len(features), "flagged": int((similarity < detector.threshold).sum())}

    result = {
        "model": "photos",
        "command": "python -m benchmarks.flickr8k.novelty",
        "method": f"cosine similarity of the mean of the cells to {len(detector.centroids)} "
        "centroids of the training photos, spherical k-means, seed 0",
        "threshold": detector.threshold,
        "threshold_from": "val, 3 percent false alarms",
        "val": flagged(photos["val"]),
        "test": flagged(photos["test"]),
        "chosen_on": {kind: flagged(other_features(run, kind, DESIGN)) for kind in KINDS},
        "tested_on": {kind: flagged(other_features(run, kind, TEST)) for kind in KINDS},
        "seeds": {"chosen_on": [DESIGN.start, DESIGN.stop], "tested_on": [TEST.start, TEST.stop]},
        "bytes": file.stat().st_size,
        "machine": provenance()["machine"],
    }
    write_json(RESULT, result)
    print(result)


if __name__ == "__main__":
    main(sys.argv[1:])
