"""Which spatial relations the Image Transformer attends by; lesson 35 reads it.

Writes `….relations.json` beside the result of each named run:
python -m benchmarks.relations RUN ...
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from benchmarks import artifact_path
from captionlab.data.batches import Batch
from captionlab.data.catalog import load_dataset
from captionlab.data.datasets import Item
from captionlab.features.extraction import input_transforms, open_feature_stores
from captionlab.features.region_pooling import spatial_graph
from captionlab.files import write_json
from captionlab.models.image_transformer import Model
from captionlab.runs.catalog import load
from captionlab.runs.run import Run, make_batch

def _split_by_relation(weights: Tensor, graph: Tensor, use_graph: bool) -> Tensor:
    """Split a layer's weights by relation.

    Args:
        weights: `(B, N, 3, N)` of a graph layer, `(B, N, N)` of a plain one.
        graph: `(B, 3, N, N)`.
        use_graph: whether the graph layer masks its weights by the graph.

    Returns:
        `(B, N, 3, N)`.
    """
    if weights.ndim == 4 and use_graph:
        return weights
    if weights.ndim == 4:
        # Three averaged softmaxes over all regions are one plain attention.
        weights = weights.sum(2)
    return weights[:, :, None] * graph.transpose(1, 2)


@torch.no_grad()
def attention_by_relation(model: Model, batch: Batch) -> dict:
    """Return how much attention regions with a parent give to parents, neighbours and children.

    Args:
        model: in evaluation mode.
        batch: B pictures, with the fields that the model reads.

    Returns:
        Under "layers", `(L, 3)`, the shares in each encoder layer, means over heads and regions;
        under "alike", `(3,)`, the shares if all regions got the same; under "regions", the number
        of regions with a parent.
    """
    trace: dict[str, list] = {}
    _, boxes, mask = model.regions(batch)
    model.encode_inputs(batch, trace)
    graph = spatial_graph(boxes, mask)                                  # (B, 3, N, N)
    has_parent = graph[:, 0].any(-1)                                    # (B, N)
    counts = graph.sum(-1).mT[has_parent].float()                       # (regions, 3)
    layers = []
    for weights in trace["self"]:
        by_relation = _split_by_relation(weights.mean(1), graph, model.variant.use_graph)
        layers.append(by_relation[has_parent].sum(-1).mean(0))
    alike = (counts / counts.sum(-1, keepdim=True)).mean(0)
    return {"layers": torch.stack(layers), "alike": alike, "regions": len(counts)}


def _mean_shares(parts: list[dict]) -> dict[str, Tensor]:
    """Average `attention_by_relation` of batches, weighted by their regions."""
    regions = torch.tensor([float(part["regions"]) for part in parts])
    weights = regions / regions.sum()
    shares = {}
    for name in ("layers", "alike"):
        values = torch.stack([part[name].cpu() for part in parts])
        shares[name] = torch.einsum("b,b...->...", weights, values)
    return shares


@torch.no_grad()
def find_example(run: Run, items: Sequence[Item], inputs: dict) -> dict:
    """Return the first region that has a parent and a child, for a figure.

    Args:
        run: of any variant of the Image Transformer.
        items: pictures, looked through in order.
        inputs: of `input_transforms`, functions from an item to its tensors, such as `(N, D)`.

    Returns:
        `image_id` of the picture, its `boxes`, the number of the region as `query`, and its
        `weights`, 3 lists of N, in the first layer; empty if there is no such region.
    """
    model = cast(Model, run.model)
    for item in items:
        batch = make_batch(run, [item], inputs).to(run.device)
        _, boxes, mask = model.regions(batch)
        graph = spatial_graph(boxes, mask)[0]                           # (3, N, N)
        candidates = (graph[0].any(-1) & graph[2].any(-1)).nonzero()
        if not len(candidates):
            continue
        query = candidates[0, 0]
        trace: dict[str, list] = {}
        model.encode_inputs(batch, trace)
        first_layer = trace["self"][0].mean(1)
        by_relation = _split_by_relation(first_layer, graph[None], model.variant.use_graph)
        weights = by_relation[0, query]                                 # (3, N)
        real = mask[0].nonzero()[:, 0]
        return {
            "image_id": item.image_id,
            "query": real.tolist().index(query),
            "boxes": boxes[0, real].tolist(),
            "weights": weights[:, real].tolist(),
        }
    return {}


def measure_relations(run: Run, data: str | None = None, split: str = "test",
                      batch_size: int = 50) -> Path:
    """Write `attention_by_relation` of a split, and one example, beside the run's result file.

    Args:
        run: of any variant of the Image Transformer.
        data: name of the data set; the run's own if None.
        split: of the data set.
        batch_size: number of pictures that the model reads together.

    Returns:
        The path of the file.

    Raises:
        ValueError: if the run is of another model, or no region of the split has a parent.
    """
    if not isinstance(run.model, Model):
        raise ValueError("only the Image Transformer attends by relation, and this run is of "
                         f"{run.metadata.model}: take one of image_transformer")
    dataset = load_dataset(data or run.metadata.source)
    items = dataset[split]
    stores = open_feature_stores(run.processor, dataset)
    inputs = input_transforms(run.processor, stores, cache_bytes=0)
    parts = []
    for first in range(0, len(items), batch_size):
        batch = make_batch(run, items[first:first + batch_size], inputs).to(run.device)
        part = attention_by_relation(run.model, batch)
        if part["regions"]:             # without any there is no mean
            parts.append(part)
    if not parts:
        raise ValueError(f"no region of {dataset.name} {split} has a parent: there is nothing to "
                         "measure")
    shares = {name: share.tolist() for name, share in _mean_shares(parts).items()}
    file = artifact_path(run, dataset.name, "relations", split)
    write_json(file, {
        "data": dataset.name,
        "split": split,
        "regions": sum(part["regions"] for part in parts),
        "command": run.metadata.command,
        **shares,
        "example": find_example(run, items, inputs),
    })
    return file


def main() -> None:
    for name in sys.argv[1:]:
        print(measure_relations(load(name)))


if __name__ == "__main__":
    main()
