"""Record what captionlab computes, and compare with it after a change that must not alter results.

    python tests/behaviour.py record FILE [--only SECTION ...]
    python tests/behaviour.py compare FILE [--only SECTION ...] [--tolerance T]

Sections: captions, translations, training, stores, results. `record` with --only replaces these
sections of a file and keeps the others. `compare` prints a line for each difference and exits with
1 if there is any. Figures are compared exactly, on one thread; on another
processor or with another torch the last digits differ, so give a relative --tolerance such as 1e-4
there. CAPTIONLAB_DATA must name Flickr8k, Multi30K and SqueezeNet's weights. Everything that calls
captionlab stands in the first part of this file; when a name of the library changes, only that part
has to follow.
"""

import argparse
import hashlib
import json
import os
import sys
import tempfile
import time
from pathlib import Path

os.environ |= {"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true", "TQDM_DISABLE": "1"}
os.environ.pop("CAPTIONLAB_CACHE", None)
ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

# Parts of the names of result files that changed since the recording: old to new.
RENAMED: dict[str, str] = {"-small-": "-squeezenet-"}


# ---- Calls of captionlab: when names change, adapt these functions and nothing below them


def caption_scenes(count: int, beam: int, length_penalty: float) -> list[dict]:
    """Caption the first test scenes with the packaged run: text, score, log prob of each token."""
    import captionlab
    from captionlab.data import scenes

    run = captionlab.load("scenes")
    items = scenes(train=0, val=0, test=count, novel=0)["test"]
    return _searched(run, run.processor([item.image for item in items]), beam, length_penalty)


def translate(sentences: list[str], beam: int, length_penalty: float) -> list[dict]:
    """Translations of English sentences by the packaged run, in the same form."""
    import captionlab

    run = captionlab.load("translation")
    return _searched(run, run.processor(sentences), beam, length_penalty)


def _searched(run, batch, beam: int, length_penalty: float) -> list[dict]:
    import torch

    from captionlab.decoding import sequence_log_probs
    from captionlab.text import pad_sequences

    hypotheses = run.search(batch, beam, length_penalty=length_penalty)
    ids = pad_sequences([hypothesis.ids for hypothesis in hypotheses])[:, None]  # (B, 1, T)
    with torch.no_grad():
        memory = run.model.encode(batch)
        log_probs = sequence_log_probs(run.model, memory, ids, [run.vocabulary.unk])[:, 0]
    return [
        {
            "text": run.vocabulary.decode(hypothesis.ids),
            "score": hypothesis.score,
            "log_probs": row[: len(hypothesis.ids)].tolist(),
        }
        for hypothesis, row in zip(hypotheses, log_probs, strict=True)
    ]


def english_sentences(count: int) -> list[str]:
    """English sentences of Multi30K's test split."""
    from captionlab.data import load_dataset

    return [item.source for item in load_dataset("multi30k")["test"][:count]]


def training_losses(folder: Path) -> dict:
    """Train `vanilla tiny` on scenes, seed 0, in full: the loss of each step, history, weights."""
    from captionlab.runs import train
    from captionlab.training import Trainer

    losses = []
    plain_step = Trainer.step

    def recorded_step(self, batch):
        sums = plain_step(self, batch)
        total, words = sums.tolist()
        losses.append(total / words)
        return sums

    Trainer.step = recorded_step
    try:
        run = train(
            "vanilla", "scenes", "tiny", seed=0, out=folder, device="cpu", max_val_items=40
        )
    finally:
        Trainer.step = plain_step
    history = [
        {"loss": record["loss"], "lr": record["rate"], "score": record["score"]}
        for record in run.metadata.history
    ]
    return {"losses": losses, "history": history, "tensors": tensor_hashes(run.model)}


def fill_stores(cache: Path) -> Path:
    """Extract features of a few scenes, as training does; returns the folder of the stores.

    `cache` is the user's cache folder for this process: XDG_CACHE_HOME.
    """
    from dataclasses import replace

    from captionlab.data import scenes
    from captionlab.files import cache_home
    from captionlab.models import find_preset
    from captionlab.processors import ImageProcessor, open_feature_stores

    assert cache in cache_home().parents
    data = scenes(train=9, val=2, test=2, novel=0)
    for model, boxes in (
        ("vanilla", None),
        ("position_aware", None),
        ("image_transformer", "scene"),
    ):
        preset = find_preset(model, "squeezenet")
        open_feature_stores(ImageProcessor(preset, boxes=boxes), data)
    preset = find_preset("vanilla", "squeezenet")
    preset = replace(preset, inputs=replace(preset.inputs, grid=4))
    processor = ImageProcessor(preset)
    mirrored = processor.with_preprocess(mirror=True, window=(0.0, 0.0, 0.8, 0.8))
    open_feature_stores(mirrored, data)
    return cache_home() / "features"


def rescored_captions(
    data: str, split: str, captions: dict[str, list[dict]], seeds: dict[str, int]
) -> dict[str, dict]:
    """Score stored caption files of one split of a data set again.

    Args:
        data: name of the data set.
        split: of it.
        captions: by file name, entries in COCO's result format.
        seeds: by file name, the seed of the blind control.

    Returns:
        By file name: `metrics` and `blind`, as in result files.
    """
    from captionlab.data import load_dataset, scenes
    from captionlab.metrics import score_runs, score_translations
    from captionlab.runs import derangement

    first = next(iter(captions.values()))
    items = (scenes(train=0) if data == "scenes" else load_dataset(data))[split]
    assert [item.image_id for item in items] == [entry["image_id"] for entry in first]
    texts = {}
    for name, entries in captions.items():
        own = [entry["caption"] for entry in entries]
        texts[name, "metrics"] = own
        texts[name, "blind"] = [own[other] for other in derangement(len(own), seeds[name])]
    if data == "multi30k":
        references = [item.captions[0] for item in items]
        scores = {key: score_translations(value, references) for key, value in texts.items()}
    else:
        references = {item.image_id: list(item.captions) for item in items}
        candidates = {}
        for key, value in texts.items():
            candidates[key] = dict(zip(references, value, strict=True))
        results = score_runs(candidates, references)
        scores = {key: result.corpus_scores for key, result in results.items()}
    if data == "scenes":
        worlds = [item.image for item in items]
        scores = {key: scores[key] | _checked(value, worlds) for key, value in texts.items()}
    return {name: {kind: scores[name, kind] for kind in ("metrics", "blind")} for name in captions}


def _checked(texts: list[str], worlds: list) -> dict[str, float]:
    from captionlab.scenes import FACT_KINDS, coverage, truth

    shares = truth([[text] for text in texts], worlds)
    stated = coverage([[text] for text in texts], worlds)
    kinds = {f"truth, {kind}": 100 * shares[kind] for kind in FACT_KINDS if kind in shares}
    return {"truth": 100 * shares["all"], "coverage": 100 * stated["all"]} | kinds


def rescored_people() -> dict:
    """The row of `flickr8k/human.json` again: figures and their intervals."""
    from captionlab.data import load_dataset
    from captionlab.metrics import confidence_intervals, leave_one_out, score

    captions = {item.image_id: list(item.captions) for item in load_dataset("flickr8k")["test"]}
    scores = score(*leave_one_out(captions))
    return {
        "metrics": scores.corpus_scores,
        "intervals": {name: list(pair) for name, pair in confidence_intervals(scores).items()},
    }


# ---- The sections; nothing here knows captionlab


def tensor_hashes(model) -> list[str]:
    """Short hashes of a model's tensors, sorted, so that a tensor may change its name."""
    contents = (
        tensor.detach().cpu().contiguous().numpy() for tensor in model.state_dict().values()
    )
    return sorted(hashlib.sha256(content.tobytes()).hexdigest()[:16] for content in contents)


SETTINGS = {"greedy": (1, 0.0), "beam 3": (3, 0.0), "beam 3, length penalty 1": (3, 1.0)}


def captions_section() -> dict:
    return {name: caption_scenes(32, *setting) for name, setting in SETTINGS.items()}


def translations_section() -> dict:
    sentences = english_sentences(24)
    return {name: translate(sentences, *setting) for name, setting in SETTINGS.items()}


def training_section() -> dict:
    with tempfile.TemporaryDirectory() as folder:
        return training_losses(Path(folder) / "run")


def stores_section() -> dict:
    """The files of feature stores: chunks as hashes, manifests without this machine's folders."""
    home = fill_stores(Path(os.environ["XDG_CACHE_HOME"]))
    return {
        store.name: {file.name: store_file(file) for file in sorted(store.iterdir())}
        for store in sorted(home.iterdir())
    }


def store_file(file: Path) -> object:
    if file.suffix == ".json":
        return without_folders(json.loads(file.read_text(encoding="utf-8")))
    return hashlib.sha256(file.read_bytes()).hexdigest()


def without_folders(value: object) -> object:
    """Plain values, with absolute paths cut to their last part."""
    if isinstance(value, dict):
        return {key: without_folders(part) for key, part in value.items()}
    if isinstance(value, list):
        return [without_folders(part) for part in value]
    return Path(value).name if isinstance(value, str) and value.startswith("/") else value


def results_section() -> dict:
    """Figures of all stored captions, computed again, and where `results/` has others."""
    groups: dict[tuple, dict] = {}
    stored = {}
    for file in sorted((ROOT / "results").glob("*/*.seed*.captions.json")):
        stem, seed = file.name.removesuffix(".captions.json").rsplit(".seed", 1)
        result = json.loads((file.parent / f"{stem}.json").read_text(encoding="utf-8"))
        name = f"{file.parent.name}/{stem}.seed{seed}"
        group = groups.setdefault((result["data"], result["split"]), {"captions": {}, "seeds": {}})
        group["captions"][name] = json.loads(file.read_text(encoding="utf-8"))
        group["seeds"][name] = int(seed)
        stored[name] = next(run for run in result["runs"] if run["seed"] == int(seed))
    figures = {}
    for (data, split), group in groups.items():
        figures |= rescored_captions(data, split, **group)
    figures["flickr8k/human"] = rescored_people()
    stored["flickr8k/human"] = json.loads(
        (ROOT / "results/flickr8k/human.json").read_text(encoding="utf-8")
    )["runs"][0]
    unmet = []
    for name, computed in figures.items():
        written = {kind: stored[name][kind] for kind in computed if kind in stored[name]}
        for kind in computed.keys() - written.keys():
            del computed[kind]  # that result has no blind control
        shared = {
            kind: {metric: computed[kind].get(metric) for metric in written[kind]}
            for kind in written
        }
        unmet += [f"{name} {line}" for line in differences(written, shared, tolerance=1e-9)]
    return {
        "figures": {name: rounded(figures[name]) for name in sorted(figures)},
        "not as stored": unmet,
    }


SECTIONS = {
    "captions": captions_section,
    "translations": translations_section,
    "training": training_section,
    "stores": stores_section,
    "results": results_section,
}


# ---- Recording and comparing


def read_record(file: Path) -> dict:
    """What was recorded, with today's names of the result files."""
    recorded = json.loads(file.read_text(encoding="utf-8"))
    if "results" in recorded:
        figures = recorded["results"]["figures"]
        recorded["results"]["figures"] = {new_name(name): value for name, value in figures.items()}
    return recorded


def new_name(name: str) -> str:
    for old, new in RENAMED.items():
        name = name.replace(old, new)
    return name


def rounded(value: object) -> object:
    """Figures in percent with nine digits after the point: scorers add up in floating point."""
    if isinstance(value, dict):
        return {key: rounded(part) for key, part in value.items()}
    if isinstance(value, list):
        return [rounded(part) for part in value]
    return round(value, 9)


def differences(old: object, new: object, tolerance: float = 0.0, where: str = "") -> list[str]:
    """A line for each place where two JSON values differ."""
    if isinstance(old, dict) and isinstance(new, dict):
        lines = []
        for key in [*old, *(key for key in new if key not in old)]:
            if key not in old or key not in new:
                lines.append(f"{where} {key}: {'is new' if key not in old else 'is gone'}".strip())
            else:
                lines += differences(old[key], new[key], tolerance, f"{where} {key}".strip())
        return lines
    if isinstance(old, list) and isinstance(new, list):
        lines = (
            [] if len(old) == len(new) else [f"{where}: had {len(old)} entries and has {len(new)}"]
        )
        for number, (one, other) in enumerate(zip(old, new, strict=False)):
            lines += differences(one, other, tolerance, f"{where} [{number}]")
        return lines
    if both_numbers(old, new) and abs(old - new) <= tolerance * max(abs(old), abs(new)):
        return []
    return [] if old == new else [f"{where}: was {old!r} and is {new!r}"]


def both_numbers(*values: object) -> bool:
    return all(isinstance(value, int | float) for value in values)


def compute(names: list[str]) -> dict:
    values = {}
    for name in names:
        start = time.perf_counter()
        values[name] = json.loads(json.dumps(SECTIONS[name]()))
        print(f"{name:14} {time.perf_counter() - start:6.1f} s", flush=True)
    return values


def as_text(values: dict) -> str:
    """JSON with a line for each entry of a section's parts, so that git can show what changed."""
    sections = []
    for name, section in values.items():
        parts = [
            f"  {json.dumps(key, ensure_ascii=False)}: {part_text(part)}"
            for key, part in section.items()
        ]
        sections.append(f" {json.dumps(name)}: {{\n" + ",\n".join(parts) + "\n }")
    return "{\n" + ",\n".join(sections) + "\n}\n"


def part_text(part: object) -> str:
    compact = {"ensure_ascii": False, "separators": (",", ":")}
    if isinstance(part, list):
        entries = [f"   {json.dumps(entry, **compact)}" for entry in part]
    elif isinstance(part, dict):
        entries = [
            f"   {json.dumps(key, ensure_ascii=False)}: {json.dumps(entry, **compact)}"
            for key, entry in part.items()
        ]
    else:
        return json.dumps(part, **compact)
    left, right = "[]" if isinstance(part, list) else "{}"
    return f"{left}\n" + ",\n".join(entries) + f"\n  {right}" if entries else f"{left}{right}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", choices=["record", "compare"])
    parser.add_argument("file", type=Path)
    parser.add_argument(
        "--only", nargs="+", choices=SECTIONS, default=list(SECTIONS), metavar="SECTION"
    )
    parser.add_argument("--tolerance", type=float, default=0.0, help="relative; 0 by default")
    options = parser.parse_args()
    if options.action == "compare":
        recorded = read_record(options.file)  # a missing file is found before the work
    with tempfile.TemporaryDirectory() as cache:
        os.environ["XDG_CACHE_HOME"] = cache
        values = compute(options.only)
    if options.action == "record":
        if options.file.exists():  # sections that were not computed stay as they are
            values = json.loads(options.file.read_text(encoding="utf-8")) | values
        options.file.write_text(as_text(values), encoding="utf-8")
        return 0
    lines = []
    for name in options.only:
        lines += differences(recorded.get(name, {}), values[name], options.tolerance, name)
    print("\n".join([*lines, f"{len(lines)} differences"]))
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
