"""What the tests of captionlab.vision share: files of boxes, and checks of messages and folders."""

import base64
from pathlib import Path

import numpy as np
import torch

BOX = [0.1, 0.2, 0.5, 0.6]


def one_line(fault) -> str:
    assert "\n" not in str(fault.value)
    return str(fault.value)


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
