"""Helpers for tests of images and features: pictures, region files, one-line errors."""

import base64
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from typer.testing import CliRunner

from captionlab.cli import app

BOX = [0.1, 0.2, 0.5, 0.6]


def one_line(fault) -> str:
    assert "\n" not in str(fault.value)
    return str(fault.value)


def extract(words: str) -> str:
    """What `captionlab features extract` says."""
    result = CliRunner().invoke(app, ["features", "extract", *words.split()])
    return result.stdout + result.stderr


def boxes_of(count: int, seed: int = 0) -> torch.Tensor:
    """Some boxes (N, 4) in shares of the picture."""
    draw = np.random.default_rng(seed).random((count, 2, 2))
    return torch.from_numpy(np.sort(draw, 1)).float().flatten(1)


def content(folder: Path) -> dict[str, bytes]:
    return {
        file.name: file.read_bytes() for file in folder.iterdir() if not file.name.endswith(".part")
    }


def one_for_all(file: Path, names, counts, boxes, **more) -> Path:
    np.savez(
        file,
        names=np.array(names, dtype=str),
        counts=counts,
        boxes=np.array(boxes).reshape(-1, 4),
        **more,
    )
    return file


def per_picture(folder: Path, name: str, boxes, width=640, height=480, **more) -> None:
    """Write a file of bottom-up-attention.pytorch: boxes in pixels, an `info` of pickle's."""
    folder.mkdir(exist_ok=True)
    pixels = np.float32(boxes).reshape(-1, 4) * np.float32([width, height] * 2)
    np.savez_compressed(
        folder / name, bbox=pixels, image_w=width, image_h=height, info={"objects_id": [1]}, **more
    )


def tsv_line(name, boxes, features, width=640, height=480) -> bytes:
    """One line as bottom-up-attention's generate_tsv.py writes it."""
    pixels = np.float32(boxes).reshape(-1, 4) * np.float32([width, height] * 2)
    texts = [base64.b64encode(np.float32(part).tobytes()).decode() for part in (pixels, features)]
    return (
        "\t".join([str(name), str(width), str(height), str(len(boxes)), *texts]).encode() + b"\r\n"
    )


def features_of(count, number, width=7):
    return np.full((count, width), number, np.float32)


def write_pictures(folder: Path, count: int) -> Path:
    """Write small pictures of random dots; the last two of them are broken."""
    draw = np.random.default_rng(0)
    for number in range(count - 2):
        dots = Image.fromarray(draw.integers(0, 256, (5, 7, 3), dtype=np.uint8))
        name = f"{number:03}.{'jpg' if number % 2 else 'png'}"
        dots.resize((70 + number, 50)).save(folder / name)
    (folder / "011b.jpg").write_text("Dear diary")
    (folder / "042b.png").write_bytes((folder / "042.png").read_bytes()[:300])
    return folder


# Start as a process of its own. It forks a job and kills it after a moment, again and again,
# until one finishes; it prints the number of chunks each time. `{start}` makes `job` and `out`.
KILLED_JOBS = """
import os, random, signal, sys, time
from pathlib import Path
import numpy as np
from captionlab.features import store
{start}
def count_rows():
    file = out / "checksums.npy"
    return int((np.load(file) > 0).sum()) if file.exists() else 0
chance = random.Random()
done = 0
for attempt in range(60):
    before, child = done, os.fork()
    if not child:
        write_rows = store._write_rows
        def slowly(*arguments):     # or a fast machine is done before it can be killed
            time.sleep(0.02)
            write_rows(*arguments)
        store._write_rows = slowly
        job()
        os._exit(0)
    # Wait until it has made something new.
    while done == before and os.waitpid(child, os.WNOHANG) == (0, 0):
        time.sleep(0.001)
        done = count_rows()
    time.sleep(chance.uniform(0, {seconds}))
    try:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    except (ProcessLookupError, ChildProcessError):
        pass
    done = count_rows()
    print(done, flush=True)
    if '"complete":true' in (out / "manifest.json").read_text():
        break
else:
    sys.exit("never finished")
"""
