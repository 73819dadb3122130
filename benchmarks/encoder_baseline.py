"""What explains the maps that teach the encoder of CPTR, if it sees nothing, or each patch alone?

The maps and their principal components are those of `python -m reproduce.pretrain`, here of fewer
photos. Without a look at the photo, the best prediction is the mean cell at each place. A linear
map of each whitened patch, fitted by least squares, knows no place.
"""

import json

import torch
import torch.nn.functional as F
from torch import Tensor

from captionlab.data.catalog import load_dataset
from captionlab.features.backbones import Backbone
from captionlab.models import find_preset
from captionlab.models.cptr import Preset, whitening
from captionlab.patches import patchify
from captionlab.runs.results import provenance, result_file
from reproduce.pretrain import NUM_TARGETS, TEACHER, Photos, principal_directions, project

NUM_TRAIN, NUM_VAL = 500, 150       # photos


def share_held(maps: Tensor) -> float:
    """Return the percentage of the variance of cells that the principal components hold.

    Args:
        maps: of the teacher, `(R, D, h, w)`.
    """
    cells = maps.permute(0, 2, 3, 1).flatten(0, 2).float()          # (R·h·w, D)
    variances = torch.linalg.eigvalsh(torch.cov(cells.T))           # smallest first
    return 100 * (variances[-NUM_TARGETS:].sum() / variances.sum()).item()


def linear_prediction(patches: Tensor, targets: Tensor, others: Tensor, width: int) -> Tensor:
    """Return what a linear map of each patch predicts of other photos, `(R, N, K)`.

    Args:
        patches: `(R, N, P)`, from which the map is fitted.
        targets: `(R, N, K)`, likewise.
        others: `(R, N, P)`, patches of the other photos.
        width: number of directions of a whitened patch.
    """
    weight, bias = whitening(patches.flatten(0, 1), width)
    read, asked = (F.pad(F.linear(x, weight, bias), (0, 1), value=1.0) for x in (patches, others))
    return asked @ torch.linalg.lstsq(read.flatten(0, 1), targets.flatten(0, 1)).solution


def main() -> None:
    torch.set_num_threads(1)
    data, backbone = load_dataset("flickr8k"), Backbone(TEACHER)
    preset = find_preset("cptr", "small")
    assert isinstance(preset, Preset)
    step = len(data["train"]) // NUM_TRAIN
    train, val = Photos(data["train"][::step], backbone), Photos(data["val"][:NUM_VAL], backbone)
    held = share_held(train.maps)
    mean, directions = principal_directions(train.maps)
    patches, targets = [], []
    for photos in (train, val):
        photos.maps = project(photos.maps, mean, directions)
        images, cells = photos.whole(torch.arange(len(photos)), preset.inputs.image_size)
        patches.append(patchify(images, preset.patch_size))         # (R, N, P)
        targets.append(cells)                                       # (R, N, K)
    known, wanted = targets
    variance = (wanted - known.mean((0, 1))).square().mean()
    predictions = {
        "place": known.mean(0),
        "patch": linear_prediction(patches[0], known, patches[1], preset.width),
    }
    shares = {name: 100 * (1 - (each - wanted).square().mean() / variance).item()
              for name, each in predictions.items()}
    result = {
        "what": "percent of the variance of 256 principal components of the teacher's cells that "
                "the mean cell of each place and a linear map of each patch explain on validation "
                "photos; percent of the variance of cells that these components hold",
        "photos": {"train": len(train), "val": len(val)},
        "explained": {name: round(share, 2) for name, share in shares.items()},
        "held": round(held, 2),
        "command": "python -m benchmarks encoder_baseline",
        **provenance(),
    }
    file = result_file("flickr8k/cptr-encoder.baseline.json")
    file.write_text(json.dumps(result, indent=1) + "\n")
    print(file.read_text())


if __name__ == "__main__":
    main()
