"""Record what captionlab computes, and compare with it after a change that must not alter results.

    python tests/behaviour.py record FILE [--only SECTION ...]
    python tests/behaviour.py compare FILE [--only SECTION ...] [--tolerance T]

Sections: photos, scenes, translations, training, stores, scores. `record` with --only replaces
these sections of a file and keeps the others. `compare` prints a line for each difference and exits
with 1 if there is any. Figures are compared exactly, on one thread; on another processor or with
another torch the last digits differ, so give a relative --tolerance such as 1e-4 there.
CAPTIONLAB_DATA must name Flickr8k, Multi30K and SqueezeNet's weights. Everything that calls
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
from dataclasses import replace
from pathlib import Path

os.environ |= {"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true", "TQDM_DISABLE": "1"}
os.environ.pop("CAPTIONLAB_CACHE", None)
ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))


# ---- Calls of captionlab: when names change, adapt these functions and nothing below them


def load_run(name: str):
    import captionlab

    return captionlab.load(name)


def load_data(name: str, **sizes: int):
    """A data set; `sizes` keep so many items of a split and leave out the splits not named."""
    from captionlab.data import load_dataset, scenes

    sizes = {"train": 0, "val": 0, "test": 0} | sizes
    if name == "scenes":
        return scenes(**sizes, novel=0)
    if name == "pairs":
        return scenes(**sizes, novel=0, language="de", source="en")
    data = load_dataset(name)
    return replace(data, splits={split: data[split][:count] for split, count in sizes.items()})


def generate(run, pictures: list, **settings) -> list[list]:
    """[text, score] of each caption of each picture."""
    captions = run.generate(pictures, **settings)
    return [[part for one in several for part in (one.text, one.score)] for several in captions]


def search_translations(run, sentences: list[str], **settings) -> list[list]:
    """[text, score] of each sentence's best hypothesis."""
    hypotheses = run.search(run.processor(sentences), **settings)
    return [[run.vocabulary.decode(best.ids), best.score] for best in hypotheses]


def translate(run, sentences: list[str], **settings) -> list[str]:
    return run.translate(sentences, **settings)


def train(model: str, data, out: Path, *, dropout: float, teachers: list = (), resume=False):
    """Train a `tiny` preset for two epochs."""
    from captionlab.runs import CrossEntropy, Distillation, NewModel, fit

    detector = attribute_detector() if model == "entangled" else None
    new = NewModel(model, "tiny", settings=[f"dropout={dropout}"], detector=detector)
    objective = Distillation(teachers) if teachers else CrossEntropy()
    return fit(
        new, data, objective, out=out, resume=resume, epochs=2, max_val_items=16, device="cpu"
    )


def attribute_detector():
    """A detector that was not trained: what it says is nonsense, but always the same."""
    import torch

    from captionlab.features import AttributeDetector, Preprocess

    torch.manual_seed(0)
    detector = AttributeDetector(12, ["red", "blue", "circle", "star", "small", "striped"])
    made_by = {"backbone": None, "preprocess": Preprocess(size=64).to_dict(), "grid": [8, 8]}
    detector.metadata = {"data": "scenes", "made_by": made_by}
    return detector.eval()


def train_by_reward(start: Path, data, out: Path):
    """Train a run of `vanilla` further by SCST for one epoch."""
    from captionlab.runs import SCST, fit

    return fit(start, data, SCST(), out=out, epochs=1, max_val_items=16, device="cpu")


def record_steps(tell):
    """Let `tell` know the loss per token of each training step; returns what ends that."""
    from captionlab.training import Trainer

    plain_step = Trainer.step

    def recorded_step(self, batch):
        sums = plain_step(self, batch)
        loss, tokens = sums.tolist()
        tell(loss / tokens)
        return sums

    Trainer.step = recorded_step
    return lambda: setattr(Trainer, "step", plain_step)


def evaluate(run, data) -> dict:
    """Scores of a run on a test split: `metrics`, and `blind` on shuffled pictures."""
    from captionlab.runs import evaluate

    row = evaluate(run, data)["run"]
    return {kind: row[kind] for kind in ("metrics", "blind")}


def score_people(data) -> dict[str, float]:
    """Scores of the first caption of each picture against the others."""
    from captionlab.metrics import leave_one_out, score

    captions = {item.image_id: list(item.captions) for item in data["test"]}
    return score(*leave_one_out(captions)).corpus_scores


def fill_stores(cache: Path) -> Path:
    """Extract features of a few scenes, as training does; returns the folder of the stores.

    `cache` is the user's cache folder for this process: XDG_CACHE_HOME.
    """
    from captionlab.features import ImageProcessor, open_feature_stores
    from captionlab.files import cache_home
    from captionlab.models import find_preset

    assert cache in cache_home().parents
    data = load_data("scenes", train=9, val=2, test=2)
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


# ---- The sections; nothing here knows captionlab


CAPTIONS = {
    "beam 3": {"beam": 3},
    "beam 5, length penalty 1": {"beam": 5, "length_penalty": 1.0},
    "three of beam 5": {"beam": 5, "num_captions": 3},
    "two samples": {"sample": True, "num_captions": 2, "top_p": 0.9, "seed": 1},
    "constraints": {"no_repeat_ngram": 2, "min_length": 8, "required_words": ["a"]},
}
TRANSLATIONS = {
    "greedy": {"beam": 1},
    "beam 3": {"beam": 3},
    "beam 5, length penalty 1": {"beam": 5, "length_penalty": 1.0},
}
MODELS = ["vanilla", "cptr", "position_aware", "entangled", "image_transformer", "translation"]


def captions_section(name: str, data) -> dict:
    run = load_run(name)
    pictures = [item.image for item in data["test"]]
    return {
        key: generate(run, pictures[: 40 if key == "constraints" else None], **settings)
        for key, settings in CAPTIONS.items()
    }


def photos_section() -> dict:
    return captions_section("photos", load_data("flickr8k", test=200))


def scenes_section() -> dict:
    return captions_section("scenes", load_data("scenes", test=200))


def translations_section() -> dict:
    run = load_run("translation")
    sentences = [item.source for item in load_data("multi30k", test=200)["test"]]
    found = {
        name: search_translations(run, sentences, **settings)
        for name, settings in TRANSLATIONS.items()
    }
    return found | {"as translated": translate(run, sentences, beam=3)}


def trained(training, *arguments, **options) -> tuple:
    """Losses of each step and a hash of the weights; and the run."""
    losses = []
    end = record_steps(losses.append)
    try:
        run = training(*arguments, **options)
    finally:
        end()
    return {"losses": losses, "weights": weights_hash(run.model)}, run


def weights_hash(model) -> str:
    """One hash of a model's tensors, sorted by content, so that a tensor may change its name."""
    contents = (
        tensor.detach().cpu().contiguous().numpy().tobytes()
        for tensor in model.state_dict().values()
    )
    hashes = sorted(hashlib.sha256(content).hexdigest() for content in contents)
    return hashlib.sha256("".join(hashes).encode()).hexdigest()[:16]


def training_section() -> dict:
    scenes = load_data("scenes", train=192, val=16)
    pairs = load_data("pairs", train=60, val=4)
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        for model in MODELS:
            data = pairs if model == "translation" else scenes
            for dropout in (0.0, 0.1):
                name = f"{model}, dropout {dropout}"
                found[name], _ = trained(train, model, data, out / name, dropout=dropout)
        start = out / "vanilla, dropout 0.1"
        found["scst"], _ = trained(train_by_reward, start, scenes, out / "scst")
        found["distillation"], _ = trained(
            train, "vanilla", scenes, out / "distilled", dropout=0.1, teachers=[start]
        )
        found["resumed"] = resumed(scenes, out / "resumed")
        whole = found["vanilla, dropout 0.1"]
        found["resumed as whole"] = found["resumed"]["weights"] == whole["weights"]
    return found


def resumed(data, out: Path) -> dict:
    """A training that is interrupted in its second epoch and goes on."""
    steps = iter(range(40))

    def interrupt(loss: float) -> None:
        if next(steps, None) is None:
            raise KeyboardInterrupt

    end = record_steps(interrupt)
    try:
        train("vanilla", data, out, dropout=0.1)
    except KeyboardInterrupt:
        pass
    finally:
        end()
    return trained(train, "vanilla", data, out, dropout=0.1, resume=True)[0]


def scores_section() -> dict:
    people = load_data("flickr8k", test=1000)
    return {
        "photos": evaluate(load_run("photos"), load_data("flickr8k", test=100)),
        "scenes": evaluate(load_run("scenes"), load_data("scenes", test=200)),
        "translation": evaluate(load_run("translation"), load_data("multi30k", test=200)),
        "people": score_people(people),
    }


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


SECTIONS = {
    "photos": photos_section,
    "scenes": scenes_section,
    "translations": translations_section,
    "training": training_section,
    "stores": stores_section,
    "scores": scores_section,
}


# ---- Recording and comparing


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
        text = options.file.read_text(encoding="utf-8")  # a missing file is found before the work
        recorded = json.loads(text)
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
