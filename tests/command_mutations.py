"""Damage command lines at random and run them: no traceback, no file changed that was not named.

python tests/command_mutations.py --count 300
"""

import argparse
import hashlib
import json
import os
import random
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from contextlib import chdir
from pathlib import Path

from mutations import TooSlowError, time_limit
from PIL import Image
from typer.testing import CliRunner

from captionlab.cli import app

COMMANDS = (
    "caption scenes 0.png --beam 2 --nbest 2 --scores",
    "caption scenes photos --out captions.json --length-penalty 0.5",
    "caption scenes 1.png --sample --top-p 0.9 --top-k 3 --temperature 0.8 --seed 1",
    "caption scenes 0.png --require red --suppress blue --max-length 9 --no-repeat-ngram 2",
    "translate translation two-dogs --beam 2",
    "translate translation --file lines.txt --device cpu --precision fp32",
    "train cptr --data own.csv --out run --epochs 1 --warmup 1 --set width=16 --lr 0.001",
    "train --from scenes --data own.csv --out tuned --epochs 1 --warmup 1 --batch-size 2",
    "train cptr --data own.csv --out other --min-count 1 --patience 0 --seed 3 --skip-unreadable",
    "attributes train --data own.csv --num-words 2 --out d.safetensors --pool max",
    "features extract photos --out features --weights none --size 32 --grid 1",
    "data check own.csv",
    "data use photos",
    "data list",
    "export scenes --onnx exported",
    "export-coco scenes images.json --images . --out . --name mine --beam 2",
    "evaluate scenes --data own.csv --split test --beam 2",
    "faithfulness scenes --data own.csv --split test",
    "score results.json notes.json --json report.json",
)
MINUTES = 3  # after which a command hangs; Java alone takes seconds to start
ODD_WORDS = (
    "", "-1", "0", "nan", "inf", "1e400", "10" * 12, "1.5", "--", "-", ".", "..", "/", "/dev/null",
    "/proc/self/mem", "absent", "no/such/place", "0.png", "own.csv", "photos", "a b", "a\nb", "ü",
    "😀", "*", "[", "~", "$HOME", "--beam", "--out", "x" * 300, "true", "None", "scenes", "{}",
)  # fmt: skip


def prepare(folder: Path) -> None:
    """Write the files that the commands read."""
    (folder / "photos").mkdir()
    rows = ["image,caption,split"]
    for number in range(6):
        image = Image.new("RGB", (24, 24), (40 * number, 80, 160))
        image.save(folder / f"{number}.png")
        image.save(folder / "photos" / f"{number}.png")
        split = ("train", "val", "test")[number % 3]
        rows.append(f"{number}.png,a red circle left of {number} squares,{split}")
    (folder / "own.csv").write_text("\n".join(rows) + "\n")
    (folder / "lines.txt").write_text("A dog runs.\nTwo cats.\n")
    images = [{"id": number, "file_name": f"{number}.png"} for number in range(2)]
    (folder / "images.json").write_text(json.dumps({"images": images}))
    entries = [{"id": n, "image_id": n, "caption": "a red circle"} for n in range(2)]
    (folder / "results.json").write_text(json.dumps(entries))
    (folder / "notes.json").write_text(json.dumps({"images": images, "annotations": entries}))


def mutate(words: list[str], draw: random.Random) -> list[str]:
    """Return a command with words swapped, gone, repeated or odd; the command itself stays."""
    words = list(words)
    for _ in range(draw.choice([1, 1, 2, 3])):
        place = draw.randrange(1, len(words))
        other = draw.randrange(1, len(words))
        how = draw.choice(["swap", "remove", "repeat", "odd", "odd", "odd"])
        if how == "swap":
            words[place], words[other] = words[other], words[place]
        elif how == "remove" and len(words) > 2:
            del words[place]
        elif how == "repeat":
            words.insert(other, words[place])
        else:
            words[place] = draw.choice(ODD_WORDS)
    return words


def state(folder: Path) -> dict[str, str]:
    """Return the content of every file that was there before, as a checksum."""
    files = [file for file in folder.rglob("*") if file.is_file()]
    return {str(file): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def complaint(words: list[str]) -> tuple[str, str]:
    """Run a command in a new folder; return what came of it, and what is wrong with that or ""."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "one", "work")  # ".." is a folder of its own, too
        folder.mkdir(parents=True)
        return complaint_in(folder, words)


def complaint_in(folder: Path, words: list[str]) -> tuple[str, str]:
    """Run a command in an empty folder; see `complaint`."""
    with chdir(folder):
        prepare(folder)
        before = state(folder)
        try:
            with time_limit(MINUTES * 60):
                result = CliRunner().invoke(app, words)
        except TooSlowError as error:
            return "slow", f"{error}"
        changed = [file for file, value in state(folder).items() if before.get(file, value) != value]
        gone = [file for file in before if not Path(file).exists()]
        if changed or gone:
            return "changed", f"{(changed + gone)[0]} is another or gone"
    error = result.exception
    if error is not None and not isinstance(error, SystemExit):
        where = traceback.extract_tb(error.__traceback__)[-1]
        return "traceback", f"{type(error).__name__} at {where.filename}:{where.lineno}: {error}"
    if result.exit_code not in (0, 1, 2):
        return "exit code", str(result.exit_code)
    if result.exit_code and not result.stderr.strip():
        return "silent", "an error without a line"
    return ("done" if result.exit_code == 0 else "refused"), ""


def run(count: int, first: int = 0) -> list[str]:
    """Run that many damaged commands; print and return the complaints."""
    outcomes: Counter[str] = Counter()
    complaints = []
    for seed in range(first, first + count):
        draw = random.Random(f"command {seed}")
        words = mutate(COMMANDS[seed % len(COMMANDS)].split(), draw)
        outcome, problem = complaint(words)
        outcomes[outcome] += 1
        if problem:
            complaints.append(f"seed {seed}: {words}: {problem}")
            print(complaints[-1], flush=True)
    print(f"{count} damaged commands, {len(complaints)} faults: {dict(outcomes)}")
    return complaints


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    options = parser.parse_args()
    os.environ["TQDM_DISABLE"] = "1"
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as cache:
        os.environ |= {"XDG_CACHE_HOME": cache, "CAPTIONLAB_DATA": cache}
        return int(bool(run(options.count, options.first)))


if __name__ == "__main__":
    sys.exit(main())
