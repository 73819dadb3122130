"""Forms of position-aware attention: forward and backward, time and peak memory, same weights.

Ours never builds E. The literal form adds it to keys and values of each picture. Three forms build
it once for the whole batch: `looked_up` looks up each pair's vectors in the tables, as the paper's
Algorithm 1 does; `edges` adds pairs of rows and pairs of columns; `einsum` also lays them out head
by head, and is the best that we found. It is timed once more with freed memory kept, as the trainer
keeps it (`einsum_kept`). `plain` has no positions: no form with positions can be faster than it.
"""

import math
import sys
from collections.abc import Callable

import psutil
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from benchmarks import medians, record
from captionlab.attention import merge_heads, split_heads
from captionlab.models.position_aware import PositionAwareAttention, RelativePositions
from captionlab.training.distributed import tune_malloc

B, D, H, SIDES = 8, 256, 4, (7, 10, 14, 18, 24)
# Waiting for fresh pages of memory doubles some rounds of the einsum form: few are not enough.
ROUNDS = 31


def literal(attention: PositionAwareAttention, x: Tensor) -> Tensor:
    """Equations (4) and (5): keys and values plus E, `(B, N, N, D)` each."""
    E = attention.positions.edges()
    query = attention.query(x).unflatten(-1, (H, -1))
    keys, values = ((part[:, None] + E).unflatten(-1, (H, -1)) for part in (attention.key(x), x))
    scores = torch.einsum("bihk,bijhk->bhij", query, keys) / math.sqrt(D / H)
    return torch.einsum("bhij,bijhk->bihk", scores.softmax(-1), values).flatten(-2)


def shared(attention: PositionAwareAttention, x: Tensor, E: Tensor) -> Tensor:
    """Attention of all pictures over one E, `(H, N, N, K)`."""
    query, key, value = (split_heads(part, H) for part in (attention.query(x), attention.key(x), x))
    scores = (query @ key.mT + torch.einsum("bhik,hijk->bhij", query, E)) / math.sqrt(D / H)
    weights = scores.softmax(-1)
    return merge_heads(weights @ value + torch.einsum("bhij,hijk->bhik", weights, E))


def by_head(E: Tensor) -> Tensor:
    """From `(N, N, D)` to a view `(H, N, N, K)`."""
    return E.unflatten(-1, (H, -1)).permute(2, 0, 1, 3)


def looked_up(attention: PositionAwareAttention, x: Tensor) -> Tensor:
    """E as Algorithm 1 makes it, pair by pair, `(N, N, D)`."""
    positions = attention.positions
    cells = torch.arange(x.shape[1])
    row, column = cells // positions.columns, cells % positions.columns
    from_row, from_column = (place[:, None] - place + place[-1] for place in (row, column))
    E = positions.row[from_row] + positions.column[from_column]
    return shared(attention, x, by_head(E))


def edges(attention: PositionAwareAttention, x: Tensor) -> Tensor:
    """E from pairs of rows and pairs of columns, `(N, N, D)`."""
    return shared(attention, x, by_head(attention.positions.edges()))


def einsum(attention: PositionAwareAttention, x: Tensor) -> Tensor:
    """E from pairs of rows and of columns, laid out head by head, as the products read it."""
    by_row, by_column = map(by_head, attention.positions.pair_tables())
    return shared(
        attention,
        x,
        (by_row[:, :, None, :, None] + by_column[:, None, :, None, :]).flatten(3, 4).flatten(1, 2),
    )


def plain(attention: PositionAwareAttention, x: Tensor) -> Tensor:
    """The same projections and PyTorch's own attention, without positions."""
    query, key, value = (split_heads(part, H) for part in (attention.query(x), attention.key(x), x))
    return merge_heads(F.scaled_dot_product_attention(query, key, value))


def peak(way: Callable) -> float:
    """The most memory, in MB, that PyTorch held at once beyond what it held before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        way()
    events = [e for e in seen.profiler.kineto_results.events() if e.name() == "[memory]"]
    held = torch.tensor([e.nbytes() for e in sorted(events, key=lambda e: e.start_ns())]).cumsum(0)
    return held.max().item() / 1e6


def fits(cells: int) -> bool:
    """Whether the literal form has room: two sums, their gradients, and one to spare."""
    return 5 * B * cells**2 * D * 4 < psutil.virtual_memory().available


def steps(side: int, way: Callable) -> tuple[Callable, Callable]:
    """Return forward and backward of one map, ours and another `way`, after comparing both."""
    torch.manual_seed(0)
    attention, x = (
        PositionAwareAttention(D, H, RelativePositions(side, side, D)),
        torch.randn(B, side**2, D, requires_grad=True),
    )
    for table in attention.positions.parameters() if way is plain else ():
        nn.init.zeros_(table)  # as if there were no positions
    torch.testing.assert_close(attention(x), way(attention, x), rtol=1e-4, atol=1e-5)
    return lambda: attention(x).sum().backward(), lambda: way(attention, x).sum().backward()


def measure(name: str, cells: int, ours: Callable, peer: Callable, rounds: int = ROUNDS) -> None:
    """The row of both, timed in turns."""
    mine, theirs = medians(ours, peer, rounds)
    record(
        f"position-vs-{name}-time-{cells}",
        mine * 1e3,
        theirs * 1e3,
        theirs / mine,
        "ms, forward and backward",
    )


def compare(side: int, way: Callable) -> None:
    """Both rows of one size of map."""
    name, cells = way.__name__, side**2
    if way is literal and not fits(cells):
        print(f"the literal form has no room for {cells} cells here: left out", file=sys.stderr)
        return
    ours, peer = steps(side, way)
    measure(name, cells, ours, peer, 3 if way is literal and side > 14 else ROUNDS)
    mine, theirs = peak(ours), peak(peer)
    record(
        f"position-vs-{name}-memory-{cells}",
        mine,
        theirs,
        theirs / mine,
        "MB, forward and backward",
    )


def main() -> None:
    for side in SIDES:
        for way in (literal, looked_up, edges, einsum, plain):
            compare(side, way)
    tune_malloc()  # as in training; from here on nobody waits for fresh pages
    for side in SIDES:
        measure("einsum_kept", side**2, *steps(side, einsum))


if __name__ == "__main__":
    main()
