"""The model card of the packaged photo captioner holds what a person judged."""

import json
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
CARD = (ROOT / "captionlab/checkpoints/photos/README.md").read_text()
JUDGED = json.loads((ROOT / "results/flickr8k/vanilla-small-scst.judged.json").read_text())


def test_the_card_counts_every_verdict():
    counts = Counter(row["verdict"] for row in JUDGED["captions"])
    assert sum(counts.values()) == 100
    for verdict, count in counts.items():
        line = next(line for line in CARD.splitlines() if line.startswith(f"| {verdict}: "))
        assert line.endswith(f"| {count} |")


def test_judged_captions_are_those_of_the_run():
    file = ROOT / "results/flickr8k/vanilla-small-scst.seed0.captions.json"
    captions = {row["image_id"]: row["caption"] for row in json.loads(file.read_text())}
    assert all(captions[row["image_id"]] == row["caption"] for row in JUDGED["captions"])


@pytest.mark.parametrize("row", JUDGED["captions"], ids=lambda row: row["image_id"])
def test_judgement_is_whole(row):
    """A caption has errors if and only if it is not correct, and every one has a remark."""
    assert bool(row["kinds"]) == (row["verdict"] != "correct")
    assert len(set(row["kinds"])) == len(row["kinds"])
    assert row["remark"].strip()
