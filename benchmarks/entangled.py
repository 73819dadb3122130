"""Training step of the Entangled Transformer against the same step on PyTorch's attention modules.

Both have the same sizes, number of weights and batches.
"""

from dataclasses import replace
from itertools import cycle

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks import medians, record, scaled_embedding, step_trainer
from captionlab.data.batches import Batch
from captionlab.models.entangled import PRESETS, Model, VisualInput
from captionlab.positions import SinusoidalPositions

PRESET, V = PRESETS["squeezenet"], 2500
B, C, T = 16, 5, 17


class PeerBlock(nn.Module):
    """A decoder block of the paper's equations (7) to (12), from PyTorch's attention and norms."""

    def __init__(self):
        super().__init__()
        p = PRESET

        def attention():
            return nn.MultiheadAttention(p.width, p.heads, p.dropout, batch_first=True)

        self.back = attention()
        self.looks = nn.ModuleDict({step: attention() for step in ("s", "v", "sv", "vs")})
        self.norms = nn.ModuleList(nn.LayerNorm(p.width) for _ in range(7))
        self.gate, self.dropout = nn.Linear(3 * p.width, p.width), nn.Dropout(p.dropout)
        self.think = nn.Sequential(
            nn.Linear(p.width, p.hidden),
            nn.ReLU(),
            nn.Dropout(p.dropout),
            nn.Linear(p.hidden, p.width),
        )

    def forward(
        self, x: Tensor, memories: dict[str, Tensor], hidden: dict[str, Tensor], ahead: Tensor
    ) -> Tensor:
        """Words `(B·C, T, D)`; captions are folded into the queries of a picture, as ours are."""

        def join(place, x, y):
            return self.norms[place](x + self.dropout(y))

        a = join(
            0, x, self.back(x, x, x, attn_mask=ahead, is_causal=True, need_weights=False)[0]
        ).view(B, -1, x.shape[-1])

        def look(step, q):
            return self.looks[step](
                q,
                memories[step[-1]],
                memories[step[-1]],
                key_padding_mask=hidden[step[-1]],
                need_weights=False,
            )[0]

        g_s, g_v = join(1, a, look("s", a)), join(2, a, look("v", a))
        v, s = join(3, g_s, look("sv", g_s)), join(4, g_v, look("vs", g_v))
        c = torch.sigmoid(self.gate(torch.cat([g_s, g_v, a], -1)))
        e = join(5, a, v * c + s * (1 - c))
        return join(6, e, self.think(e)).view_as(x)


class Peer(nn.Module):
    """The whole model, with PyTorch's encoder layers and logits at every place."""

    def __init__(self):
        super().__init__()
        p = PRESET
        self.words = scaled_embedding(V, p.width)
        self.positions = SinusoidalPositions(p.width)
        self.visual, self.dropout = VisualInput(p), nn.Dropout(p.dropout)
        layer = nn.TransformerEncoderLayer(p.width, p.heads, p.hidden, p.dropout, batch_first=True)
        self.encoders = nn.ModuleDict(
            {
                name: nn.TransformerEncoder(layer, p.encoder_layers, enable_nested_tensor=False)
                for name in "sv"
            }
        )
        self.blocks, self.output = (
            nn.ModuleList(PeerBlock() for _ in range(p.decoder_layers)),
            nn.Linear(p.width, V),
        )
        self.output.weight = self.words.weight

    def forward(self, batch: Batch) -> Tensor:
        tokens, scale = batch.captions.flatten(0, 1), PRESET.width**0.5
        inputs = {
            "v": self.visual(batch),
            "s": (self.words(batch.attributes) * scale, (batch.attributes != 0)[:, None, None]),
        }
        hidden = {name: ~mask[:, 0, 0] for name, (_, mask) in inputs.items()}
        memories = {
            name: self.encoders[name](self.dropout(x), src_key_padding_mask=hidden[name])
            for name, (x, _) in inputs.items()
        }
        x = self.dropout(self.positions(self.words(tokens[:, :-1]) * scale))
        ahead = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        for block in self.blocks:
            x = block(x, memories, hidden, ahead)
        return F.cross_entropy(
            self.output(x).flatten(0, 1),
            tokens[:, 1:].flatten(),
            ignore_index=0,
            label_smoothing=PRESET.training.label_smoothing,
        )


def batches(count: int = 4) -> list[Batch]:
    """Return random batches with as many regions, attributes and words as Flickr8k's."""
    torch.manual_seed(0)

    def kept(rows, least):
        return torch.arange(rows) < torch.randint(least, rows + 1, (B, 1))

    def words(*shape):
        return torch.randint(4, V, shape)

    return [
        Batch(
            regions=torch.randn(B, PRESET.inputs.max_boxes, PRESET.channels),
            boxes=torch.rand(B, PRESET.inputs.max_boxes, 2, 2).sort(2).values.flatten(2),
            region_mask=kept(PRESET.inputs.max_boxes, 10),
            grid=torch.randn(B, PRESET.inputs.grid**2, PRESET.channels),
            attributes=words(B, PRESET.inputs.max_attributes)
            * kept(PRESET.inputs.max_attributes, 10),
            captions=words(B, C, T) * (torch.arange(T) < torch.randint(8, T + 1, (B, C, 1))),
        )
        for _ in range(count)
    ]


def main() -> None:
    torch.manual_seed(0)
    model, peer, found, config = Model(PRESET, V), Peer().train(), batches(), PRESET.training
    assert sum(p.numel() for p in peer.parameters()) == sum(p.numel() for p in model.parameters())
    ours = step_trainer(model, replace(config, precision="no"), steps=100)
    optimizer = torch.optim.AdamW(
        peer.parameters(), config.lr, config.betas, weight_decay=config.weight_decay
    )

    def theirs(batch: Batch) -> None:
        peer(batch).backward()
        nn.utils.clip_grad_norm_(peer.parameters(), config.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()

    mine, other = cycle(found), cycle(found)
    ours_s, peer_s = medians(
        lambda: ours.step(next(mine)), lambda: theirs(next(other)), 5 * len(found)
    )
    record(
        "entangled-step",
        B * C / ours_s,
        B * C / peer_s,
        peer_s / ours_s,
        "captions/s, training step",
    )


if __name__ == "__main__":
    main()
