"""Pretrain CPTR's encoder without captions: its patches learn to predict a CNN's map.

    python -m reproduce.pretrain runs/cptr-encoder.pt
    captionlab train cptr --data flickr8k --preset small --set pretrained=runs/cptr-encoder.pt

CPTR starts from a Vision Transformer that has seen ImageNet. This one sees Flickr8k's 6,000
training photos alone, and a frozen EfficientNet-Lite2, which has seen ImageNet, is its teacher.
"""

import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import torch.nn.functional as F
import typer
from torch import Tensor, nn
from torchvision.models import VisionTransformer

from captionlab.data.catalog import load_dataset
from captionlab.data.datasets import CaptionData, Item
from captionlab.features.backbones import Backbone
from captionlab.features.preprocessing import Preprocess
from captionlab.files import write_json
from captionlab.models import find_preset
from captionlab.models.cptr import Preset, whitening
from captionlab.patches import patchify
from captionlab.positions import sinusoids
from captionlab.runs.results import provenance, result_file
from captionlab.training.config import cosine
from captionlab.training.distributed import tune_malloc

TEACHER = "timm:tf_efficientnet_lite2"
NUM_TARGETS = 256       # directions of the teacher's cells that are predicted
SIZE = 192              # pixels of the photos from which windows are cut


def teacher_maps(items: list[Item], backbone: Backbone) -> Tensor:
    """Return the backbone's maps of R pictures, `(R, D, h, w)` in half precision."""
    maps = []
    for first in range(0, len(items), 16):
        images = backbone.preprocess([item.image for item in items[first:first + 16]])
        maps.append(backbone(images).half())
    return torch.cat(maps).permute(0, 3, 1, 2)


def principal_directions(maps: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean cell `(D,)`, and directions `(D, K)` of the largest variance between cells.

    Their lengths are such that the K numbers of a cell have a variance of 1 on average.
    """
    cells = maps.permute(0, 2, 3, 1).flatten(0, 2).float()          # (R·h·w, D)
    variances, directions = torch.linalg.eigh(torch.cov(cells.T))   # smallest first
    scale = variances[-NUM_TARGETS:].mean().sqrt()
    return cells.mean(0), directions[:, -NUM_TARGETS:] / scale


def project(maps: Tensor, mean: Tensor, directions: Tensor) -> Tensor:
    """Return maps `(R, D, h, w)` along K directions, `(R, K, h, w)` in half precision."""
    parts = [(part.permute(0, 2, 3, 1).float() - mean) @ directions for part in maps.split(256)]
    return torch.cat([part.half() for part in parts]).permute(0, 3, 1, 2).contiguous()


def random_windows(number: int, generator: torch.Generator) -> Tensor:
    """Return affine maps `(B, 2, 3)` from windows, half of them mirrored, to pictures."""
    side = 0.6 + 0.4 * torch.rand(number, 2, generator=generator)
    centre = (2 * torch.rand(number, 2, generator=generator) - 1) * (1 - side)
    mirror = 1 - 2 * torch.randint(2, (number,), generator=generator)
    windows = torch.zeros(number, 2, 3)
    windows[:, 0, 0] = side[:, 0] * mirror
    windows[:, 1, 1] = side[:, 1]
    windows[:, :, 2] = centre
    return windows


def cut(pictures: Tensor, windows: Tensor, size: int) -> Tensor:
    """Return windows of pictures or maps `(B, K, h, w)`, resized to `(B, K, size, size)`."""
    grid = F.affine_grid(windows, [len(pictures), 1, size, size], align_corners=False)
    return F.grid_sample(pictures.float(), grid, padding_mode="border", align_corners=False)


class Student(nn.Module):
    """torchvision's Vision Transformer with a linear prediction from each patch.

    Args:
        preset: with the sizes.
    """

    def __init__(self, preset: Preset):
        super().__init__()
        self.vit = VisionTransformer(preset.inputs.image_size, preset.patch_size,
                                     preset.encoder_layers, preset.heads, preset.width,
                                     preset.encoder_hidden or preset.hidden)
        self.vit.heads = nn.Sequential()
        self.predict = nn.Linear(preset.width, NUM_TARGETS)

    @torch.no_grad()
    def start(self, images: Tensor) -> None:
        """Whiten the patches' projection, make positions sines, and let attention begin at home.

        Queries and keys start with products near the identity, values and outputs near its
        negative, as they come out of trainings (Trockman and Kolter 2023).

        Args:
            images: `(B, 3, size, size)`, a few hundred training pictures.
        """
        vit = self.vit
        weight, bias = whitening(patchify(images, vit.patch_size).flatten(0, 1), vit.hidden_dim)
        vit.conv_proj.weight[:len(weight)] = weight.unflatten(1, vit.conv_proj.weight.shape[1:])
        vit.conv_proj.bias[:len(bias)] = bias
        side = vit.image_size // vit.patch_size
        sines = sinusoids(side, vit.hidden_dim // 2)
        rows = torch.cat([sines.repeat_interleave(side, 0), sines.repeat(side, 1)], 1)
        vit.encoder.pos_embedding[0, 1:] = rows
        layers: list[Any] = list(vit.encoder.layers)
        for layer in layers:
            self._start_attention(layer.self_attention)

    def _start_attention(self, attention: Any) -> None:
        """Set the weights of one self-attention; the factors are those of the source."""
        width, head = attention.embed_dim, attention.head_dim
        identity = torch.eye(width)

        def factors(noise: float, share: float) -> tuple[Tensor, Tensor]:
            product = noise * torch.randn(width, width) / width ** 0.5 + share * identity
            left, sizes, right = torch.linalg.svd(product)
            return left * sizes.sqrt(), sizes.sqrt()[:, None] * right

        queries, keys, values = attention.in_proj_weight.split(width)
        attention.out_proj.weight[:], values[:] = factors(0.4, -0.4)
        for rows in torch.arange(width).split(head):
            left, right = factors(0.7, 0.7)
            queries[rows] = left[:, :head].T
            keys[rows] = right[:head]

    def forward(self, images: Tensor, kept: Tensor) -> Tensor:
        """Return predictions `(B, M, K)` of M patches; the others are not read, which saves time.

        Args:
            images: `(B, 3, size, size)`.
            kept: `(B, M)`, the numbers of the patches.
        """
        vit = self.vit
        patches = vit._process_input(images) + vit.encoder.pos_embedding[:, 1:]     # (B, N, D)
        patches = patches.gather(1, kept[..., None].expand(-1, -1, vit.hidden_dim))
        token = (vit.class_token + vit.encoder.pos_embedding[:, :1]).expand(len(images), -1, -1)
        encoded = vit.encoder.ln(vit.encoder.layers(torch.cat([token, patches], 1)))
        return self.predict(encoded[:, 1:])


class Photos:
    """Pictures of a split in memory, with the teacher's maps.

    Args:
        items: R of them.
        backbone: the teacher.
    """

    def __init__(self, items: list[Item], backbone: Backbone):
        shrink = Preprocess(SIZE)
        self.pixels = torch.from_numpy(np.stack([shrink.pixels(item.image) for item in items]))
        self.mean, self.std = (torch.tensor(x)[:, None, None] for x in shrink.byte_scale)
        self.maps = teacher_maps(items, backbone)

    def windows(self, rows: Tensor, windows: Tensor, size: int) -> tuple[Tensor, Tensor]:
        """Return windows of some pictures, `(B, 3, size, size)`, and targets `(B, N, K)`."""
        images = (self.pixels[rows].permute(0, 3, 1, 2) - self.mean) / self.std
        targets = cut(self.maps[rows], windows, self.maps.shape[-1])
        return cut(images, windows, size), targets.flatten(2).transpose(1, 2)

    def whole(self, rows: Tensor, size: int) -> tuple[Tensor, Tensor]:
        """Return some whole pictures, and targets, as `windows` does."""
        return self.windows(rows, torch.eye(2, 3).expand(len(rows), -1, -1), size)

    def __len__(self) -> int:
        return len(self.pixels)


@torch.no_grad()
def explained(student: Student, photos: Photos, mean: Tensor) -> float:
    """Return the percentage of the targets' variance that is explained, on whole photos.

    Args:
        student: whose predictions are compared.
        photos: that it has not learned from.
        mean: `(K,)`, the prediction that explains nothing.
    """
    errors, variances = [], []
    for rows in torch.arange(len(photos)).split(50):
        images, targets = photos.whole(rows, student.vit.image_size)
        every = torch.arange(targets.shape[1]).expand(len(rows), -1)
        errors.append((student(images, every) - targets).square().mean((1, 2)))
        variances.append((targets - mean).square().mean((1, 2)))
    return 100 * (1 - torch.cat(errors).sum() / torch.cat(variances).sum()).item()


def load_photos(data: CaptionData) -> tuple[Photos, Photos]:
    """Return the training photos and 300 validation photos, both with the same K targets."""
    backbone = Backbone(TEACHER)
    train, val = (Photos(items, backbone) for items in (data["train"], data["val"][:300]))
    mean, directions = principal_directions(train.maps[::6])
    for photos in (train, val):
        photos.maps = project(photos.maps, mean, directions)
    return train, val


def learn(student: Student, photos: Photos, rows: Tensor, share: float,
          generator: torch.Generator) -> Tensor:
    """Return the mean squared error of a step.

    Args:
        student: that predicts.
        photos: that it learns from.
        rows: numbers of the B photos of this step.
        share: of the patches that are read and predicted.
        generator: of windows, contrast, brightness and patches.
    """
    windows = random_windows(len(rows), generator)
    images, targets = photos.windows(rows, windows, student.vit.image_size)
    contrast, brightness = torch.rand(2, len(rows), 1, 1, 1, generator=generator)
    images = images * (0.7 + 0.6 * contrast) + (brightness - 0.5)
    shuffled = torch.rand(targets.shape[:2], generator=generator).argsort(1)
    kept = shuffled[:, :round(share * targets.shape[1])]
    wanted = targets.gather(1, kept[..., None].expand(-1, -1, NUM_TARGETS))
    return F.mse_loss(student(images, kept), wanted)


def pretrain(
    out: Annotated[Path, typer.Argument(help="File of the weights, for --set pretrained=FILE.")],
    *,
    views: Annotated[int, typer.Option(min=1, help="Windows of photos that are seen.")] = 130_000,
    batch_size: Annotated[int, typer.Option(min=1, help="Windows per step.")] = 16,
    lr: Annotated[float, typer.Option(min=0, help="Peak of the learning rate.")] = 1.5e-3,
    seed: Annotated[int, typer.Option(min=0, help="Of weights and windows.")] = 0,
    json: Annotated[bool, typer.Option(
        "--json", help="Write what it learned to results/flickr8k/cptr-encoder.json.")] = False,
) -> None:
    """Train the encoder of CPTR's preset `small`, and write it as torchvision names its weights."""
    tune_malloc()       # freed memory is used again, as in a training
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    preset = find_preset("cptr", "small")
    assert isinstance(preset, Preset)
    train, val = load_photos(load_dataset("flickr8k"))
    mean = train.maps.float().mean((0, 2, 3))
    student = Student(preset)
    student.start(train.whole(torch.arange(min(400, len(train))), student.vit.image_size)[0])
    optimizer = torch.optim.AdamW(student.parameters(), lr, betas=(0.9, 0.98), weight_decay=0.05)
    steps = views // batch_size
    order: list[Tensor] = []
    history = []
    begin = time.perf_counter()
    for step in range(steps):
        order = order or list(torch.randperm(len(train), generator=generator).split(batch_size))
        optimizer.param_groups[0]["lr"] = lr * cosine(step, 500, steps)
        # Half of the patches take half of the time; the last tenth of the steps reads all.
        share = 0.5 if step < 0.9 * steps else 1.0
        optimizer.zero_grad()
        learn(student, train, order.pop(0), share, generator).backward()
        nn.utils.clip_grad_norm_(student.parameters(), 1.0)
        optimizer.step()
        if (step + 1) % 500 == 0 or step + 1 == steps:
            history.append({
                "views": (step + 1) * batch_size,
                "seconds": round(time.perf_counter() - begin, 1),
                "explained": round(explained(student, val, mean), 2),
            })
            print(history[-1], flush=True)
    out.parent.mkdir(parents=True, exist_ok=True)
    torch.save(student.vit.state_dict(), out)
    if json:
        what = "percent of the variance of the teacher's maps explained on 300 validation photos"
        options = f"--views {views} --batch-size {batch_size} --lr {lr} --seed {seed}"
        result = {"what": what, "command": f"python -m reproduce.pretrain {out} {options}",
                  "history": history, **provenance()}
        write_json(result_file("flickr8k/cptr-encoder.json"), result)


if __name__ == "__main__":
    typer.run(pretrain)
