"""Our training step against one on PyTorch's `nn.Transformer`.

Both have the same sizes, number of weights, batches and optimiser.
"""

from dataclasses import replace
from itertools import cycle

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks import medians, record, scaled_embedding, step_trainer
from captionlab.data.batches import Batch, batch_by_tokens
from captionlab.models.translation import PRESETS, Model
from captionlab.positions import SinusoidalPositions
from captionlab.text import pad_sequences

PRESET = PRESETS["strong"]
V, RECIPE = PRESET.subwords, PRESET.training


class Peer(nn.Module):
    """A translator as in PyTorch's tutorials: `nn.Transformer`, shared embeddings, all logits."""

    def __init__(self):
        super().__init__()
        p = PRESET
        self.words = scaled_embedding(V, p.width)
        self.positions = SinusoidalPositions(p.width)
        self.dropout = nn.Dropout(p.dropout)
        self.transformer = nn.Transformer(
            p.width,
            p.heads,
            p.encoder_layers,
            p.decoder_layers,
            p.hidden,
            p.dropout,
            batch_first=True,
        )
        self.output = nn.Linear(p.width, V)
        self.output.weight = self.words.weight

    def embed(self, ids: Tensor) -> Tensor:
        return self.dropout(self.positions(self.words(ids) * PRESET.width**0.5))

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        ahead = nn.Transformer.generate_square_subsequent_mask(target.shape[1] - 1)
        pad = source == 0
        x = self.transformer(
            self.embed(source),
            self.embed(target[:, :-1]),
            tgt_mask=ahead,
            tgt_is_causal=True,
            src_key_padding_mask=pad,
            memory_key_padding_mask=pad,
        )
        return F.cross_entropy(
            self.output(x).flatten(0, 1),
            target[:, 1:].flatten(),
            ignore_index=0,
            label_smoothing=RECIPE.label_smoothing,
        )


def batches(count: int = 8) -> list[Batch]:
    """Return batches of random ids with the lengths of Multi30K's sentences."""
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.normal(16, 4, (4000, 1)) + rng.normal(0, 2, (4000, 2)), 5, 40).astype(int)

    def text(length):
        return [1, *rng.integers(4, V, length - 2).tolist(), 2]

    return [
        Batch(
            source=pad_sequences([text(length) for length in lengths[rows, 1]]),
            captions=pad_sequences([[text(length)] for length in lengths[rows, 0]]),
        )
        for rows in batch_by_tokens(lengths, RECIPE.max_tokens)[:count]
    ]


def peer_step() -> tuple:
    """A training step of the peer, a function of a batch; and its model."""
    model = Peer().train()
    optimizer = torch.optim.AdamW(
        model.parameters(), RECIPE.lr, RECIPE.betas, weight_decay=RECIPE.weight_decay
    )

    def step(batch: Batch) -> None:
        model(batch.source, batch.captions[:, 0]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), RECIPE.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()

    return step, model


def main() -> None:
    torch.manual_seed(0)
    model, found = Model(PRESET, V), batches()
    ours = step_trainer(model, replace(RECIPE, precision="no"), steps=100)
    theirs, peer = peer_step()
    norms = 4 * PRESET.width  # nn.Transformer ends each of its stacks with one norm more
    assert (
        sum(p.numel() for p in peer.parameters())
        == sum(p.numel() for p in model.parameters()) + norms
    )
    mine, other = cycle(found), cycle(found)
    ours_s, peer_s = medians(
        lambda: ours.step(next(mine)), lambda: theirs(next(other)), 4 * len(found)
    )
    tokens = sum(
        int((b.source != 0).sum() + (b.captions[..., 1:] != 0).sum()) for b in found
    ) / len(found)
    record(
        "translation-step",
        tokens / ours_s,
        tokens / peer_s,
        peer_s / ours_s,
        "tokens/s, training step",
    )
