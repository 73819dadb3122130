"""Damage files at random and read them: our own errors, never a wrong value where it is known.

python tests/mutations.py --count 1000
"""

import argparse
import base64
import ctypes
import io
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from PIL import Image

try:
    import resource
except ImportError:  # on Windows
    resource = None

import captionlab
from captionlab.data.catalog import load_dataset
from captionlab.features.attributes import AttributeDetector, load_detector, save_detector
from captionlab.features.boxes import open_boxes, save_boxes
from captionlab.features.image_processor import ImageProcessor
from captionlab.features.preprocessing import load_image
from captionlab.features.regions import Regions
from captionlab.features.store import FeatureStore, fill_store
from captionlab.features.text_processor import TextProcessor
from captionlab.metrics import files
from captionlab.metrics.files import read_results
from captionlab.models import vanilla
from captionlab.models.translation import PRESETS as TRANSLATORS
from captionlab.models.translation import Model as Translator
from captionlab.runs.results import load_result
from captionlab.runs.run import Run
from captionlab.runs.storage import RunMetadata, unique_tensors
from captionlab.subwords import SubwordVocabulary
from captionlab.text import Vocabulary
from captionlab.training.checkpoint import read_checkpoint, write_checkpoint
from captionlab.training.config import TrainingConfig

LIMIT = 20.0  # seconds for one input
MEMORY_LIMIT = 2 * 2**30  # bytes by which reading one input may let the process grow
ODD_VALUES = (
    None, True, -1, 0, 1.5, 10**9, 10**30, float("nan"), float("inf"), "", "x", "../../x", [], {},
    [[]], [None], {"": 0}, "\x1b[2J", "ü" * 300,
)  # fmt: skip
CAPTIONS = ["a red circle left of a blue square", "a green square", "two red circles and a dog"]


class TooSlowError(BaseException):
    """A reader took longer than `LIMIT`; no reader may catch it."""


class TooMuchMemoryError(BaseException):
    """A reader took more than `MEMORY_LIMIT`, whether or not it raised an error itself."""


def _run(folder: Path) -> Callable[[], object]:
    vocabulary = Vocabulary.build(CAPTIONS)
    preset = vanilla.PRESETS["tiny"]
    torch.manual_seed(0)
    model = vanilla.Model(preset, len(vocabulary)).eval()
    metadata = RunMetadata(model="vanilla", preset_name="tiny", data="x", stage="xe", seed=0)
    Run(model, vocabulary, ImageProcessor(preset), metadata).save(folder / "run")
    return lambda: _decisive(Run.load(folder / "run"))


def _translator(folder: Path) -> Callable[[], object]:
    vocabulary = SubwordVocabulary.build(CAPTIONS, 400)
    preset = TRANSLATORS["tiny"]
    torch.manual_seed(0)
    model = Translator(preset, len(vocabulary)).eval()
    metadata = RunMetadata(model="translation", preset_name="tiny", data="x", stage="xe", seed=0)
    Run(model, vocabulary, TextProcessor(preset, vocabulary), metadata).save(folder / "run")
    return lambda: _decisive(Run.load(folder / "run"))


def _decisive(run: Run) -> list[object]:
    """Return everything that decides about the captions of a run."""
    tensors = {name: x.tolist() for name, x in unique_tensors(run.model).items()}
    spec = run.processor.describe()
    return [tensors, run.vocabulary.to_dict(), spec, run.max_length, run.processor.preset]


def _store(folder: Path) -> Callable[[], object]:
    names = [f"{number}.jpg" for number in range(10)]

    def compute(part: list[str]) -> tuple[np.ndarray, dict]:
        rows = [[[names.index(name), 1, 2]] * 2 for name in part]
        return np.array(rows, np.float32), {"3.jpg": "broken"} if "3.jpg" in part else {}

    spec = {"backbone": {"name": "own", "weights": None}}
    fill_store(folder / "s", names, compute, shape=(2, 3), spec=spec, chunk_size=4)

    def read() -> object:
        store = FeatureStore.open(folder / "s")
        return {name: store[name].tolist() for name in names if name in store}

    return read


def _detector(folder: Path) -> Callable[[], object]:
    torch.manual_seed(0)
    detector = AttributeDetector(6, ["red", "dog"], hidden=4)
    save_detector(detector, folder / "d.safetensors")
    return lambda: load_detector(folder / "d.safetensors").words


def _checkpoint(folder: Path) -> Callable[[], object]:
    config = TrainingConfig()
    state = {"config": asdict(config), "model": {"a": torch.arange(50.0)}, "epoch": 3}
    write_checkpoint(folder / "checkpoint.pt", state)
    return lambda: read_checkpoint(folder / "checkpoint.pt", config)


def _results(folder: Path) -> Callable[[], object]:
    entries = [{"image_id": n, "caption": text} for n, text in enumerate(CAPTIONS)]
    (folder / "r.json").write_text(json.dumps(entries))
    return lambda: read_results(folder / "r.json")


def _annotations(folder: Path) -> Callable[[], object]:
    entries = [{"image_id": n, "id": n, "caption": text} for n, text in enumerate(CAPTIONS)]
    content = {"images": [{"id": n, "file_name": f"{n}.jpg"} for n in range(3)]}
    (folder / "a.json").write_text(json.dumps(content | {"annotations": entries}))
    return lambda: files._read_annotations(folder / "a.json")


def _scores(folder: Path) -> Callable[[], object]:
    run = {"seed": 0, "BLEU-4": 12.5, "captionlab": captionlab.__version__}
    (folder / "x.json").write_text(json.dumps({"model": "vanilla", "runs": [run]}))
    return lambda: load_result(str(folder / "x.json"))


def _csv(folder: Path) -> Callable[[], object]:
    (folder / "photos").mkdir()
    lines = ["image,caption,split"]
    for number, text in enumerate(CAPTIONS):
        Image.new("RGB", (8, 8)).save(folder / "photos" / f"{number}.png")
        lines.append(f'photos/{number}.png,"{text}",train')
    (folder / "c.csv").write_text("\n".join(lines))
    return lambda: load_dataset(folder / "c.csv")


def _boxes(folder: Path) -> Callable[[], object]:
    boxes = torch.tensor([[0.0, 0.0, 0.5, 0.5], [0.1, 0.2, 0.9, 1.0]])
    regions = {f"{n}.jpg": Regions(boxes, features=torch.ones(2, 3) * n) for n in range(3)}
    save_boxes(folder / "b.npz", regions)
    return lambda: _regions(folder / "b.npz")


def _tsv(folder: Path) -> Callable[[], object]:
    lines = []
    for number in range(3):
        boxes = np.float32([[0, 0, 32, 24], [5, 5, 60, 40]])
        arrays = [base64.b64encode(x.tobytes()).decode() for x in (boxes, np.ones((2, 3), "f4"))]
        lines.append("\t".join([str(number), "64", "48", "2", *arrays]))
    (folder / "b.tsv").write_text("\n".join(lines) + "\n")
    return lambda: _regions(folder / "b.tsv")


def _regions(file: Path) -> object:
    opened = open_boxes(file)
    return [opened[name].boxes.tolist() for name in opened]


def _picture(folder: Path, ending: str) -> Callable[[], object]:
    draw = np.random.default_rng(0)
    Image.fromarray(draw.integers(0, 255, (40, 50, 3), np.uint8)).save(folder / f"p.{ending}")
    return lambda: load_image(folder / f"p.{ending}").size


# What is read, and whether every damage is noticed (where not, other values may come out).
KINDS: dict[str, tuple[Callable[[Path], Callable[[], object]], bool]] = {
    "run": (_run, True),
    "translator": (_translator, True),
    "store": (_store, False),
    "detector": (_detector, False),
    "checkpoint": (_checkpoint, False),
    "results": (_results, False),
    "annotations": (_annotations, False),
    "scores": (_scores, False),
    "csv": (_csv, False),
    "boxes": (_boxes, False),
    "tsv": (_tsv, False),
    "png": (lambda folder: _picture(folder, "png"), False),
    "jpg": (lambda folder: _picture(folder, "jpg"), False),
    "gif": (lambda folder: _picture(folder, "gif"), False),
}
# Files whose bytes are covered by a checksum, although not all of their folder is.
COVERED = ("features.npy", "checksums.npy", "weights-", "checkpoint")


def mutate(content: bytes, name: str, draw: random.Random) -> bytes:
    """Return damaged content: JSON with another value, changed bytes, or a part of it."""
    if name.endswith(".json") and draw.random() < 0.6:
        return swap_value(content, draw)
    damaged = bytearray(content)
    how = draw.choice(["flip", "flip", "truncate", "remove", "repeat", "zeros"])
    start = draw.randrange(len(damaged))
    end = min(len(damaged), start + draw.choice([1, 4, 64, 4096]))
    if how == "flip":
        for _ in range(draw.choice([1, 1, 3, 20])):
            damaged[draw.randrange(len(damaged))] ^= 1 << draw.randrange(8)
    elif how == "truncate":
        del damaged[start:]
    elif how == "remove":
        del damaged[start:end]
    elif how == "repeat":
        damaged[start:start] = damaged[start:end]
    else:
        damaged[start:end] = bytes(end - start)
    return bytes(damaged)


def swap_value(content: bytes, draw: random.Random) -> bytes:
    """Return JSON in which one value, anywhere in it, is an odd one or is gone."""
    parsed = json.loads(content)
    places = list(_places(parsed))
    container, key = draw.choice(places)
    if draw.random() < 0.2:
        del container[key]
    else:
        container[key] = draw.choice(ODD_VALUES)
    if draw.random() < 0.05:
        return b"[" * 100_000
    return json.dumps(parsed).encode()


def _places(value: object) -> Iterator[tuple]:
    """Yield container and key of the values in JSON; of a long list some only."""
    if isinstance(value, dict):
        pairs = list(value.items())
    elif isinstance(value, list):
        pairs = list(enumerate(value))[:4]
    else:
        return
    for key, entry in pairs:
        yield value, key
        yield from _places(entry)


@contextmanager
def time_limit(seconds: float | None = None) -> Iterator[None]:
    """Raise `TooSlowError` after so many seconds, or `LIMIT`, where the system has such a timer."""
    limit = seconds or LIMIT

    def stop(*_: object) -> None:
        raise TooSlowError(f"more than {limit:g} s")

    if not hasattr(signal, "setitimer"):
        yield
        return
    previous = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, limit)
    start = time.perf_counter()
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
        if time.perf_counter() - start > limit:  # also where a library took the signal for its own
            stop()


def _status(name: str) -> int:
    """Return an entry of Linux's status of this process in bytes, such as "VmRSS"."""
    lines = Path("/proc/self/status").read_text().splitlines()
    line = next(line for line in lines if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 2**10


def peak_memory() -> int:
    """Return the most bytes of memory that this process has had; 0 where that is not known."""
    if Path("/proc/self/status").exists():
        return _status("VmHWM")
    if not resource:
        return 0
    # In KiB, on macOS in bytes.
    unit = 1 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def reset_peak_memory() -> int:
    """Let the peak begin anew, where the system can do that; return the peak after that."""
    with suppress(OSError, AttributeError, TypeError):  # glibc alone has it
        # Memory that the allocator keeps for later would hide what the next reader takes.
        ctypes.CDLL(None).malloc_trim(0)
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:  # not on Linux, or not permitted: an earlier peak hides a lower one
        return peak_memory()
    return peak_memory()


@contextmanager
def address_space_limit() -> Iterator[None]:
    """Let allocations far above `MEMORY_LIMIT` fail, so that they do not take the machine."""
    if not resource or not Path("/proc/self/status").exists():
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = _status("VmSize") + 3 * MEMORY_LIMIT
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@contextmanager
def memory_limit() -> Iterator[None]:
    """Raise `TooMuchMemoryError` at the end if the process grew by more than `MEMORY_LIMIT`."""
    before = reset_peak_memory()
    try:
        with address_space_limit():
            yield
    finally:
        growth = peak_memory() - before
        if growth > MEMORY_LIMIT:
            raise TooMuchMemoryError(f"{growth / 2**20:,.0f} MB")


def is_ours(error: BaseException) -> bool:
    """Whether an error is one line that the package itself raised."""
    if not isinstance(error, ValueError | FileNotFoundError) or "\n" in str(error).strip():
        return False
    last = traceback.extract_tb(error.__traceback__)[-1]
    return Path(last.filename).is_relative_to(Path(captionlab.__file__).parent)


class Case:
    """One kind of input, read intact and damaged."""

    def __init__(self, kind: str, folder: Path):
        make, self.is_covered = KINDS[kind]
        self.kind = kind
        folder.mkdir()
        self.read = make(folder)
        self.files = sorted(
            file for file in folder.rglob("*") if file.is_file() and file.parent.name != "photos"
        )
        self.contents = {file: file.read_bytes() for file in self.files}
        self.expected = repr(self.read())

    def check(self, seed: int) -> tuple[str, str]:
        """Damage one file, read all and mend it; return what came of it, and a complaint or ""."""
        draw = random.Random(f"{self.kind} {seed}")
        file = draw.choice(self.files)
        damaged = mutate(self.contents[file], file.name, draw)
        file.write_bytes(damaged)
        try:
            return self._outcome(file, damaged)
        finally:
            file.write_bytes(self.contents[file])

    def _outcome(self, file: Path, damaged: bytes) -> tuple[str, str]:
        label = f"{self.kind} {file.name}"
        silent = io.StringIO()
        try:
            with (
                time_limit(), memory_limit(), redirect_stdout(silent), redirect_stderr(silent),
            ):  # fmt: skip
                result = repr(self.read())
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            if is_ours(error):
                return "refused", ""
            trace = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{Path(trace.filename).name}:{trace.lineno}"
            text = str(error)[:160]
            return "wrong error", f"{label}: {type(error).__name__} at {place}: {text!r}"
        if result == self.expected:
            return "unchanged", ""
        must_notice = self.is_covered or file.name.startswith(COVERED)
        if must_notice and damaged != self.contents[file]:
            return "silently other", f"{label}: read without a complaint, with other values"
        return "other value", ""


def run_mutations(count: int, folder: Path, first: int = 0) -> tuple[Counter, list[str]]:
    """Read `count` damaged inputs; return how often what came of it, and all complaints."""
    cases = [Case(kind, folder / kind) for kind in KINDS]
    outcomes = Counter()
    complaints = []
    with warnings.catch_warnings(action="ignore"):
        for seed in range(first, first + count):
            outcome, complaint = cases[seed % len(cases)].check(seed)
            outcomes[outcome] += 1
            if complaint:
                complaints.append(f"seed {seed}: {complaint}")
    return outcomes, complaints


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    options = parser.parse_args()
    os.environ.setdefault("TQDM_DISABLE", "1")
    folder = Path(tempfile.mkdtemp())
    start = time.perf_counter()
    try:
        outcomes, complaints = run_mutations(options.count, folder, options.first)
    finally:
        shutil.rmtree(folder)
    print("\n".join(complaints))
    summary = ", ".join(f"{number} {outcome}" for outcome, number in outcomes.most_common())
    duration = time.perf_counter() - start
    faults = f"{len(complaints)} faults"
    print(f"{options.count} damaged inputs in {duration:.0f} s, {faults}: {summary}")
    return int(bool(complaints))


if __name__ == "__main__":
    sys.exit(main())
