"""The model card of the packaged photo captioner holds what readers judged."""

import json
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
CARD = (ROOT / "captionlab/checkpoints/photos/README.md").read_text()
FOLDER = ROOT / "results/flickr8k"
JUDGED = json.loads((FOLDER / "vanilla-small-scst.judged.json").read_text())
OTHER = json.loads((FOLDER / "position_aware-small-scst.judged.json").read_text())


def test_the_card_counts_every_verdict():
    counts = Counter(row["verdict"] for row in JUDGED["captions"])
    assert sum(counts.values()) == 100
    for verdict, count in counts.items():
        line = next(line for line in CARD.splitlines() if line.startswith(f"| {verdict}: "))
        assert line.endswith(f"| {count} |")


@pytest.mark.parametrize("judged", [JUDGED, OTHER], ids=lambda judged: judged["run"])
def test_judged_captions_are_those_of_the_run(judged):
    file = FOLDER / f"{judged['run']}.seed0.captions.json"
    captions = {row["image_id"]: row["caption"] for row in json.loads(file.read_text())}
    assert all(captions[row["image_id"]] == row["caption"] for row in judged["captions"])


def test_the_card_has_what_the_later_readers_judged():
    verdicts = list(JUDGED["verdicts"])                     # correct, minor error, wrong
    first = [verdicts.index(row["verdict"]) for row in JUDGED["captions"]]
    again = [[[verdicts.index(row["again"][reader]) for row in judged["captions"]]
              for reader in (0, 1)] for judged in (JUDGED, OTHER)]
    ours, theirs = again
    for reader, name in enumerate(("second", "third")):
        cells = [", ".join(str(run[reader].count(verdict)) for verdict in range(3))
                 for run in again]
        assert f"| {name} | {cells[0]} | {cells[1]} |" in CARD

    def same(one, other):
        return sum(a == b for a, b in zip(one, other, strict=True))

    assert f"the same verdict to {same(*ours)} of the 100 captions" in CARD
    assert f"of them to {same(first, ours[0])} and {same(first, ours[1])}." in CARD
    pairs = [list(zip(theirs[reader], ours[reader], strict=True)) for reader in (0, 1)]
    (better, worse), (better2, worse2) = (
        (sum(a < b for a, b in one), sum(a > b for a, b in one)) for one in pairs)
    assert f"caption of {better} photos and the worse one of {worse} " in CARD
    assert f"{better2} and {worse2} for the third" in CARD


@pytest.mark.parametrize("row", JUDGED["captions"], ids=lambda row: row["image_id"])
def test_judgement_is_whole(row):
    """A caption has errors if and only if it is not correct, and every one has a remark."""
    assert bool(row["kinds"]) == (row["verdict"] != "correct")
    assert len(set(row["kinds"])) == len(row["kinds"])
    assert row["remark"].strip()
