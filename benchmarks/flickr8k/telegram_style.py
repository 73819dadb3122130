"""Fine-tune the packaged photo captioner on 100 captions in telegram style, and score the style.

python -m benchmarks.flickr8k.telegram_style dev     tries settings on the dev split
python -m benchmarks.flickr8k.telegram_style test    scores the chosen settings on test, once

A caption in telegram style has no articles and no auxiliaries. A rule shortens captions to it, and
the same rule decides whether a caption has the style. The 100 captions come from one of two
sources: `people`, one of the five that Flickr8k has of each photo, or `model`, what the captioner
writes of the photo, as somebody would edit it.
"""

import json
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from captionlab.data.catalog import load_dataset
from captionlab.data.datasets import CaptionData, Item
from captionlab.files import write_json
from captionlab.metrics import score
from captionlab.processors.cache import input_transforms, open_feature_stores
from captionlab.runs import Run, caption_split, finetune, load, provenance
from captionlab.training import TrainingOptions

RESULT = Path(__file__).resolve().parents[2] / "results/flickr8k/vanilla-small-scst.telegram.json"
LEFT_OUT = frozenset(
    ("a", "an", "the", "is", "are", "was", "were", "am", "be", "been", "being", "has", "have",
     "had", "does", "do", "did")
)  # fmt: skip
CAPTIONS, SEED = 100, 0
BEFORE = {"beam": 3, "length_penalty": 1.5}  # as decided on val for this model
PENALTIES = (0.0, 0.7)  # tried after fine-tuning
TRIALS = {  # by source; options of `finetune`, its defaults first
    "people": ({}, {"epochs": 30}, {"lr": 8e-4}, {"lr": 8e-4, "epochs": 30}),
    "model": ({}, {"epochs": 10}),
}


def telegram(caption: str) -> str:
    """The caption without articles and auxiliaries."""
    words = caption.split()
    return " ".join(word for word in words if word.lower().strip(".,") not in LEFT_OUT)


def is_telegram(caption: str) -> bool:
    return LEFT_OUT.isdisjoint(word.strip(".,") for word in caption.lower().split())


def own_captions(data: CaptionData, captions: Sequence[str] | None = None) -> CaptionData:
    """One telegram of each of 100 training photos, chosen at random.

    Args:
        data: with the training photos.
        captions: to shorten, one of each photo; by default one of those of the data set.
    """
    chance = random.Random(SEED)
    photos = chance.sample(data["train"], CAPTIONS)
    captions = captions or [chance.choice(item.captions) for item in photos]
    items = [
        Item(item.name, (telegram(caption),), item.image)
        for item, caption in zip(photos, captions, strict=True)
    ]
    return CaptionData("telegrams", {"train": items})


def training_captions(data: CaptionData, source: str, features: Sequence[str]) -> CaptionData:
    """The 100 captions of a source."""
    telegrams = own_captions(data)
    if source == "people":
        return telegrams
    return own_captions(data, captions_of(load("photos"), telegrams, "train", features, BEFORE))


def captions_of(
    run: Run, data: CaptionData, split: str, features: Sequence[str], search: dict
) -> list[str]:
    part = CaptionData(data.name, {split: data[split]})
    stores = open_feature_stores(run.processor, part, features)
    return caption_split(run, data[split], input_transforms(run.processor, stores), **search)


def judged(captions: Sequence[str], items: Sequence[Item]) -> dict:
    """Share of captions in the style, and CIDEr against both kinds of references, in percent."""
    candidates = {item.name: caption for item, caption in zip(items, captions, strict=True)}
    original = {item.name: list(item.captions) for item in items}
    telegrams = {name: [telegram(x) for x in texts] for name, texts in original.items()}
    in_style = sum(map(is_telegram, captions))

    def cider(references: dict) -> float:
        return round(score(candidates, references, meteor=False).corpus_scores["CIDEr"], 2)

    return {
        "in_style": round(100 * in_style / len(captions), 1),
        "CIDEr": cider(original),
        "CIDEr_telegram": cider(telegrams),
    }


def tuned_scores(
    data: CaptionData,
    split: str,
    trial: dict,
    penalties: Sequence[float],
    *,
    features: Sequence[str],
    telegrams: CaptionData,
) -> dict:
    """Fine-tune with the settings of a trial, and score its captions for each length penalty."""
    with tempfile.TemporaryDirectory() as folder:
        run = finetune(
            "photos",
            telegrams,
            f"{folder}/run",
            seed=SEED,
            features=features,
            options=TrainingOptions(**trial),
        )
        scores = {}
        for penalty in penalties:
            search = {"beam": 3, "length_penalty": penalty}
            captions = captions_of(run, data, split, features, search)
            scores[str(penalty)] = judged(captions, data[split]) | {"examples": captions[:5]}
    config = run.processor.preset.training
    return {
        "trial": trial,
        "settings": {
            name: getattr(config, name)
            for name in ("epochs", "lr", "warmup", "batch_size", "ema_decay")
        },
        "new_words": len(run.vocabulary) - len(load("photos").vocabulary),
        "loss": [round(run.metadata.history[row]["loss"], 3) for row in (0, -1)],
        "train_seconds": run.metadata.train_seconds,
        "by_length_penalty": scores,
    }


def decide(rows: Sequence[dict]) -> dict:
    """The best CIDEr in the style among what changes at least 95 % of the captions.

    If nothing does, what changes most of them.
    """
    choices = [
        (scores["in_style"], scores["CIDEr_telegram"], row["trial"], float(penalty))
        for row in rows
        for penalty, scores in row["by_length_penalty"].items()
    ]
    changing = [choice for choice in choices if choice[0] >= 95]
    best = max(changing, key=lambda x: x[1]) if changing else max(choices, key=lambda x: x[0])
    return {"trial": best[2], "length_penalty": best[3]}


def trial_rows(
    data: CaptionData, split: str, features: Sequence[str], decisions: dict | None
) -> dict[str, list[dict]]:
    """The scores of each trial by source; of the decisions alone if there are any."""
    rows = {}
    for source in TRIALS:
        telegrams = training_captions(data, source, features)
        decision = decisions[source] if decisions else None
        trials = [decision["trial"]] if decision else TRIALS[source]
        penalties = [decision["length_penalty"]] if decision else PENALTIES
        rows[source] = []
        for trial in trials:
            scores = tuned_scores(
                data, split, trial, penalties, features=features, telegrams=telegrams
            )
            rows[source].append(scores)
            print(source, scores, flush=True)
    return rows


def main(split: str, features: Sequence[str]) -> None:
    data = load_dataset("flickr8k")
    name = "val" if split == "dev" else split
    captions = captions_of(load("photos"), data, name, features, BEFORE)
    before = judged(captions, data[name])
    by_rule = judged([telegram(caption) for caption in captions], data[name])
    print("before", before, "by rule", by_rule, flush=True)
    result = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    result |= {
        "model": "photos",
        "captions": CAPTIONS,
        "seed": SEED,
        "style": f"captions without {' '.join(sorted(LEFT_OUT))}",
        "sources": "people: a caption of Flickr8k, model: the captioner's own, both shortened",
        "decoding_before": BEFORE,
        "machine": provenance()["machine"],
    }
    decisions = None if split == "dev" else result["decision"]
    rows = trial_rows(data, name, features, decisions)
    result[split] = {
        "command": f"python -m benchmarks.flickr8k.telegram_style {split}",
        "pictures": len(data[name]),
        "before": before,
        "before_shortened_by_the_rule": by_rule,
        "after": rows,
    }
    if split == "dev":
        result["decision"] = {source: decide(trials) for source, trials in rows.items()}
    write_json(RESULT, result)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
