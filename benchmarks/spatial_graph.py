"""Our spatial graph against torchvision's pairwise overlaps: the same edges, time of one core."""

import time
from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor
from torchvision.ops import box_area, box_iou

from benchmarks import record
from captionlab.vision.region_geometry import spatial_graph

PHOTOS, BOXES, ROUNDS = 1000, 100, 15


def by_torchvision(boxes: Tensor, threshold: float = 0.9) -> Tensor:
    """Equation (5) from torchvision's intersection over union, which gives the shared area."""
    graph = torch.empty(len(boxes), 3, BOXES, BOXES, dtype=torch.bool)
    for photo, out in zip(boxes, graph, strict=True):
        iou, area = box_iou(photo, photo), box_area(photo)
        shared = iou / (1 + iou) * (area[:, None] + area)
        out[0] = (shared >= threshold * area[:, None]) & (area[:, None] < area)
        out[2] = out[0].T
        out[1] = ~(out[0] | out[2])
    return graph


def core_ms(way: Callable) -> float:
    """Milliseconds that one core works on it, whatever else the machine does."""
    start = time.thread_time()
    way()
    return 1000 * (time.thread_time() - start)


def main() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        torch.manual_seed(0)
        boxes = torch.rand(PHOTOS, BOXES, 2, 2).sort(2).values.flatten(2)
        differ = (spatial_graph(boxes) != by_torchvision(boxes)).float().mean().item()
        assert differ < 1e-5, f"{differ:.1e} of the edges differ, more than rounding explains"
        pairs = [
            (core_ms(lambda: spatial_graph(boxes)), core_ms(lambda: by_torchvision(boxes)))
            for _ in range(ROUNDS)
        ]
        ours, peer = (median(times) for times in zip(*pairs, strict=True))
        record(
            "spatial-graph", ours, peer, peer / ours, "ms of one core, 1,000 photos of 100 boxes"
        )
    finally:
        torch.set_num_threads(threads)


if __name__ == "__main__":
    main()
