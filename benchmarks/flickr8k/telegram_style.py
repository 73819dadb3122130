"""Fine-tune the packaged photo captioner on 100 captions in telegram style, and score the style.

python -m benchmarks.flickr8k.telegram_style dev     tries settings on the dev split
python -m benchmarks.flickr8k.telegram_style test    scores the chosen settings on test, once

A caption in telegram style has no articles and no auxiliaries. A rule makes such captions of those
of Flickr8k, and the same rule decides whether a caption has the style.
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

RESULT = Path(__file__).resolve().parents[2] / "results/flickr8k/vanilla-photos-scst.telegram.json"
LEFT_OUT = frozenset(
    ("a", "an", "the", "is", "are", "was", "were", "am", "be", "been", "being", "has", "have",
     "had", "does", "do", "did")
)  # fmt: skip
CAPTIONS, SEED = 100, 0
BEFORE = {"beam": 3, "length_penalty": 1.5}  # as decided on val for this model
PENALTIES = (0.0, 0.7)  # tried after fine-tuning
TRIALS = (
    {},  # the defaults of `finetune`
    {"epochs": 30},
    {"lr": 8e-4},
    {"all_weights": True},
)


def telegram(caption: str) -> str:
    """The caption without articles and auxiliaries."""
    words = caption.split()
    return " ".join(word for word in words if word.lower().strip(".,") not in LEFT_OUT)


def is_telegram(caption: str) -> bool:
    return LEFT_OUT.isdisjoint(word.strip(".,") for word in caption.lower().split())


def own_captions(data: CaptionData) -> CaptionData:
    """One telegram of each of 100 training photos, chosen at random."""
    chance = random.Random(SEED)
    photos = chance.sample(data["train"], CAPTIONS)
    items = [
        Item(item.name, (telegram(chance.choice(item.captions)),), item.image) for item in photos
    ]
    return CaptionData("telegrams", {"train": items})


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
    data: CaptionData, split: str, trial: dict, penalties: Sequence[float], features: Sequence[str]
) -> dict:
    """Fine-tune with the settings of a trial, and score its captions for each length penalty."""
    options = {name: value for name, value in trial.items() if name != "all_weights"}
    with tempfile.TemporaryDirectory() as folder:
        run = finetune(
            "photos",
            own_captions(data),
            f"{folder}/run",
            seed=SEED,
            features=features,
            options=TrainingOptions(**options),
            all_weights=trial.get("all_weights", False),
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
    """The best CIDEr in the style among what changes at least 95 % of the captions."""
    choices = [
        (scores["in_style"] >= 95, scores["CIDEr_telegram"], row["trial"], float(penalty))
        for row in rows
        for penalty, scores in row["by_length_penalty"].items()
    ]
    _, _, trial, penalty = max(choices, key=lambda choice: choice[:2])
    return {"trial": trial, "length_penalty": penalty}


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
        "decoding_before": BEFORE,
        "machine": provenance()["machine"],
    }
    decision = result.get("decision", {})
    trials = TRIALS if split == "dev" else [decision["trial"]]
    penalties = PENALTIES if split == "dev" else [decision["length_penalty"]]
    rows = []
    for trial in trials:
        rows.append(tuned_scores(data, name, trial, penalties, features))
        print(rows[-1], flush=True)
    result[split] = {
        "command": f"python -m benchmarks.flickr8k.telegram_style {split}",
        "pictures": len(data[name]),
        "before": before,
        "before_shortened_by_the_rule": by_rule,
        "after": rows,
    }
    if split == "dev":
        result["decision"] = decide(rows)
    write_json(RESULT, result)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
