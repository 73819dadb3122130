"""Whether trained models find a true caption more probable than a false one, by kind of fact.

Of two captions of a scene, a true one and the same with one word exchanged that makes it false,
which is more probable? Asks the runs `runs/scenes-position_aware*-scenes-SEED` about 600 test
scenes and writes `results/scenes/position_aware-choices.json`, which lesson 33 reads.
"""

import re
from collections import defaultdict
from pathlib import Path

import torch

from captionlab.data import datasets
from captionlab.data.datasets import Item
from captionlab.files import write_json
from captionlab.runs.catalog import load
from captionlab.runs.results import provenance
from captionlab.runs.run import Run
from captionlab.scenes.verification import verify_caption
from captionlab.scenes.world import SHAPES, Scene
from captionlab.text import pad_sequences

ROOT = Path(__file__).resolve().parents[2]
SCENES = 600
OPPOSITES = (("left", "right"), ("right", "left"), ("above", "below"), ("below", "above"))
NEXT_SHAPE = dict(zip(SHAPES, (*SHAPES[1:], SHAPES[0]), strict=True))

# By kind of fact: patterns of a word, and what takes its place.
EXCHANGES = {"relation": {rf"\b{word}\b": other for word, other in OPPOSITES}}
for _size in ("small", "large"):
    EXCHANGES[f"{_size} shape"] = {
        rf"\b({_size}(?: \w+){{0,2}}) {shape}\b": rf"\1 {other}"
        for shape, other in NEXT_SHAPE.items()
    }


def holds(caption: str, scene: Scene) -> bool | None:
    """Return whether a caption is wholly true of a scene; None if the grammar cannot read it."""
    claims = verify_caption(caption, scene)
    if not claims:
        return None
    return all(all(claim.values()) for claim in claims)


def caption_pairs(item: Item, exchanges: dict[str, str]) -> list[tuple[str, str]]:
    """Return true captions of a scene, each with a false one that differs in one word."""
    pairs = []
    for caption in item.captions:
        for pattern, other in exchanges.items():
            changed = re.sub(pattern, other, caption, count=1)
            if holds(caption, item.image) and holds(changed, item.image) is False:
                pairs.append((caption, changed))
    return pairs


@torch.no_grad()
def caption_log_probs(run: Run, scene: Scene, captions: list[str]) -> torch.Tensor:
    """Return the log-probability of each of C captions of a scene, `(C,)`."""
    ids = pad_sequences([[run.vocabulary.encode(caption) for caption in captions]])
    memory = run.model.encode(run.processor([scene]))
    log_probs = run.model.decode(memory, ids[..., :-1]).log_softmax(-1)
    targets = ids[..., 1:]
    by_word = log_probs.gather(-1, targets[..., None]).squeeze(-1).masked_fill(targets == 0, 0.0)
    return by_word.sum(-1)[0]


def measure_choices(run: Run, items: list[Item]) -> dict[str, dict[str, float]]:
    """Return by kind in how many pairs of a hundred the true caption is more probable.

    Under "own" the model is shown the scene itself, under "blind" the next one.
    """
    chosen = defaultdict(list)
    for item, other in zip(items, items[1:] + items[:1], strict=True):
        for kind, exchanges in EXCHANGES.items():
            captions = [caption for pair in caption_pairs(item, exchanges) for caption in pair]
            if not captions:
                continue
            right = []
            for shown in (item, other):
                log_probs = caption_log_probs(run, shown.image, captions).unflatten(0, (-1, 2))
                right.append(log_probs[:, 0] > log_probs[:, 1])
            chosen[kind].append(torch.stack(right))
    shares = {}
    for kind, parts in chosen.items():
        right = torch.cat(parts, 1).double()
        own, blind = (100 * right.mean(1)).tolist()
        shares[kind] = {"pairs": right.shape[1], "own": own, "blind": blind}
    return shares


def main() -> None:
    folders = sorted((ROOT / "runs").glob("scenes-position_aware*-scenes-[0-9]"))
    if not folders:
        raise SystemExit("no runs to ask: captionlab train position_aware --data scenes --preset "
                         "scenes --seed 0, and the same with --variant fpn and --variant vanilla")
    items = datasets.scenes(train=0, val=0, test=SCENES, novel=0)["test"]
    rows = []
    for run in map(load, folders):
        variant = run.metadata.variant or "position_aware"
        choices = measure_choices(run, items)
        rows.append({"variant": variant, "seed": run.metadata.seed, "choices": choices})
    file = ROOT / "results/scenes/position_aware-choices.json"
    about = {"data": "scenes", "split": "test", "scenes": len(items)}
    write_json(file, about | {"rows": rows} | provenance())
    print(f"{file}: {len(rows)} runs")


if __name__ == "__main__":
    main()
