"""Our attention against PyTorch's module and its own loop form: forward and backward."""

import torch
from torch import Tensor, nn

from benchmarks import medians, record
from captionlab.attention import MultiHeadAttention, attend, merge_heads, split_heads
from captionlab.pytorch_layers import copy_attention

B, T, D, H = 8, 196, 256, 4


def by_loop(attention: MultiHeadAttention, x: Tensor) -> Tensor:
    """The loop form: one picture, one head, one query at a time."""
    query, kv = split_heads(attention.query(x), H), attention.project(x)
    rows = [
        attend(query[b, h, t : t + 1], kv.key[b, h], kv.value[b, h])[0]
        for b in range(B)
        for h in range(H)
        for t in range(T)
    ]
    return attention.output(merge_heads(torch.cat(rows).reshape(B, H, T, -1)))


def main() -> None:
    torch.manual_seed(0)
    peer = nn.MultiheadAttention(D, H, batch_first=True)
    ours, x = copy_attention(peer), torch.randn(B, T, D, requires_grad=True)
    torch.testing.assert_close(ours(x), by_loop(ours, x))
    peers = {
        "torch": lambda: peer(x, x, x, need_weights=False)[0],
        "loop": lambda: by_loop(ours, x),
    }
    for name, rounds in (("torch", 60), ("loop", 5)):
        ours_s, peer_s = medians(
            lambda: ours(x).sum().backward(), lambda way=peers[name]: way().sum().backward(), rounds
        )
        record(
            f"attention-vs-{name}",
            ours_s * 1000,
            peer_s * 1000,
            peer_s / ours_s,
            "ms, forward and backward",
        )
