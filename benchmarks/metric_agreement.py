"""How well metrics rank captions of 150 test scenes by what is true of them.

Writes `results/scenes/all.metric-agreement.json`, which lesson 17 reads. It takes three minutes on
one core, most of them for SPICE, which `captionlab metrics install-spice` brings.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from captionlab.data import datasets
from captionlab.data.datasets import Item
from captionlab.files import write_json
from captionlab.metrics.agreement import caption_targets, kendall_tau, known_captions
from captionlab.metrics.captions import score_runs
from captionlab.metrics.spice import find_spice, score_spice
from captionlab.metrics.statistics import bootstrap_counts
from captionlab.runs.catalog import load
from captionlab.scenes import describe_scene

RESULTS = Path(__file__).resolve().parents[1] / "results"
SCENES, REFERENCES = 150, 5
RESAMPLES, SEED = 1000, 0
CAPTION_FILES = {
    model: f"scenes/{model}-tiny-xe.seed0.captions.json"
    for model in ("position_aware", "entangled", "image_transformer")
}
PACKAGED = "scenes"                         # a run that comes with the package
WORSE = ("one fact changed", "shuffled", "short and safe")

Captions = dict[str, dict[str, str]]        # by kind and name of the scene


def collect_known_captions() -> tuple[list[Item], Captions]:
    """Return the first test scenes whose facts can be changed, and four captions of each.

    The true caption is the sixth that the grammar writes, after the five references.
    """
    items = []
    kinds: Captions = {}
    for item in datasets.scenes()["test"]:
        texts = describe_scene(item.image, captions=REFERENCES + 1)
        if len(texts) <= REFERENCES or tuple(texts[:REFERENCES]) != tuple(item.captions):
            continue
        known = known_captions(texts[REFERENCES], item.image, seed=int(item.name))
        if known is None:
            continue
        items.append(item)
        for kind, text in known.items():
            kinds.setdefault(kind, {})[item.name] = text
        if len(items) == SCENES:
            break
    return items, kinds


def collect_model_captions(items: list[Item]) -> Captions:
    """Return the captions of trained models, from their files and by the packaged run."""
    kinds = {}
    for model, file in CAPTION_FILES.items():
        rows = json.loads((RESULTS / file).read_text(encoding="utf-8"))
        texts = {str(row["image_id"]): row["caption"] for row in rows}
        kinds[model] = {item.name: texts[item.name] for item in items}
    run = load(PACKAGED)
    kinds[f"packaged {PACKAGED}"] = {item.name: run.caption(item.image) for item in items}
    return kinds


def score_kinds(kinds: Captions, items: list[Item]) -> tuple[dict, dict]:
    """Return for each kind of caption its scores by metric, and what they should rank by."""
    references = {item.name: list(item.captions) for item in items}
    judged = score_runs(kinds, references)
    spice = score_spice(kinds, references)
    pictures = [item.image for item in items]
    scores = {}
    targets = {}
    for kind, texts in kinds.items():
        targets[kind] = caption_targets([texts[item.name] for item in items], pictures)
        scores[kind] = {
            **judged[kind].per_image,
            "SPICE": spice[kind].per_image["SPICE"],
            "CHAIR": targets[kind]["CHAIR"],
        }
    return scores, targets


POOLS = {
    "trained models": (),                       # all kinds that are not among the known ones
    "one fact changed": ("true", "one fact changed"),
    "shuffled words": ("true", "shuffled"),
    "short and safe": ("one fact changed", "short and safe"),
}
_KNOWN = ("true", "one fact changed", "shuffled", "short and safe")


def measure_agreement(
    scores: Mapping[str, Mapping[str, np.ndarray]],
    targets: Mapping[str, Mapping[str, np.ndarray]],
    *,
    resamples: int = 1000,
    seed: int = 0,
) -> dict:
    """Return Kendall's τ of metrics with truth and coverage, in pools of captions.

    Args:
        scores: for each kind of caption the scores by metric, each `(B,)` for the same B scenes.
        targets: for each kind "truth" and "coverage", `(B,)`.
        resamples: draws of B scenes.
        seed: of the draws.

    Returns:
        By pool, target and metric the τ and its 95 % interval; None where all are equal.
    """
    models = tuple(kind for kind in scores if kind not in _KNOWN)
    scenes = len(next(iter(targets.values()))["truth"])
    drawn = np.vstack([np.ones((1, scenes)), bootstrap_counts(scenes, resamples, seed)])
    table = {}
    for pool, kinds in POOLS.items():
        members = kinds or models
        weights = np.tile(drawn, len(members))
        table[pool] = {
            target: {
                metric: _interval(kendall_tau(
                    _join(scores, members, metric), _join(targets, members, target), weights
                ))
                for metric in scores[members[0]]
            }
            for target in ("truth", "coverage")
        }
    return table


def _join(values: Mapping, kinds: Sequence[str], name: str) -> np.ndarray:
    """One array of all kinds, rounded so that sums in another order are still ties."""
    return np.concatenate([values[kind][name] for kind in kinds]).round(9)


def _interval(taus: np.ndarray) -> dict | None:
    """The first of the values, and where the middle 95 % of the others lie."""
    defined = taus[1:][~np.isnan(taus[1:])]
    if np.isnan(taus[0]) or not len(defined):
        return None
    low, high = np.percentile(defined, (2.5, 97.5))
    return {"tau": float(taus[0]), "interval": [float(low), float(high)]}


def compare_pairs(better: np.ndarray, worse: np.ndarray) -> dict[str, int]:
    """Return in how many scenes the better caption scores above, equal to and below the worse.

    Args:
        better: scores of the better captions, shape `(N,)`.
        worse: scores of the worse captions of the same scenes, likewise.
    """
    gaps = (better - worse).round(9)
    return {
        "above": int((gaps > 0).sum()),
        "equal": int((gaps == 0).sum()),
        "below": int((gaps < 0).sum()),
    }


def mean_scores(scores: dict[str, np.ndarray], targets: dict[str, np.ndarray]) -> dict[str, float]:
    """Return means of one kind of caption in percent; CHAIR is the share of absent objects."""
    shares = {name: 100 * targets[name].mean() for name in ("truth", "coverage")}
    metrics = {name: values.mean() for name, values in scores.items()}
    metrics["CHAIR"] = 100 * abs(targets["CHAIR"].mean())
    return {name: float(value) for name, value in (shares | metrics).items()}


def main() -> None:
    find_spice()                            # its absence shows before the work begins
    items, known = collect_known_captions()
    kinds = known | collect_model_captions(items)
    scores, targets = score_kinds(kinds, items)
    metrics = scores["true"]
    report = {
        "data": "scenes",
        "split": "test",
        "scenes": len(items),
        "references": REFERENCES,
        "trained models": [*CAPTION_FILES.values(), f"packaged run {PACKAGED}"],
        "bootstrap": {"level": 95, "resamples": RESAMPLES, "seed": SEED, "unit": "scenes"},
        "kendall_tau_b": measure_agreement(scores, targets, resamples=RESAMPLES, seed=SEED),
        "true_above_changed": {
            kind: {name: compare_pairs(metrics[name], scores[kind][name]) for name in metrics}
            for kind in WORSE
        },
        "safe_above_changed": {
            name: compare_pairs(scores["short and safe"][name], scores["one fact changed"][name])
            for name in metrics
        },
        "means_in_percent": {kind: mean_scores(scores[kind], targets[kind]) for kind in kinds},
    }
    file = RESULTS / "scenes" / "all.metric-agreement.json"
    write_json(file, report)
    print(f"{file}: {len(items)} scenes, {len(kinds)} kinds of caption")


if __name__ == "__main__":
    main()
