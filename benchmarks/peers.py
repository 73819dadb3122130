"""Our captioner against Hugging Face's `VisionEncoderDecoderModel` (ViT and GPT-2) of one size.

Training step, greedy search and beam search, in 32 bits and in bf16. Seconds are CPU seconds of
one thread, so that other processes on the machine hardly change them. Both keep freed memory, as
our jobs do.
"""

import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode
from transformers import GPT2Config, VisionEncoderDecoderConfig, ViTConfig
from transformers import VisionEncoderDecoderModel as PeerModel

from benchmarks import medians, record, step_trainer
from captionlab.captioner import Captioner
from captionlab.data.batches import Batch
from captionlab.data.inputs import InputConfig
from captionlab.decoding.beam import beam_search
from captionlab.decoding.generation import EOS, greedy
from captionlab.models.cptr import Model, Preset
from captionlab.text import pad_sequences
from captionlab.training.config import TrainingConfig
from captionlab.training.distributed import tune_malloc

# 7 by 7 patches of 32 pixels and a class token are 50 positions.
IMAGE_SIZE, PATCH_SIZE = 224, 32
LAYERS, WIDTH, HEADS, V = 3, 512, 8, 9500
PICTURES, TOKENS, BEAMS = 32, 20, 5
ROUNDS = 9

PRESET = Preset(
    inputs=InputConfig(image_size=IMAGE_SIZE),
    width=WIDTH,
    heads=HEADS,
    hidden=4 * WIDTH,
    encoder_layers=LAYERS,
    decoder_layers=LAYERS,
    dropout=0.1,
    norm="pre",
    patch_size=PATCH_SIZE,
    vit=True,
    training=TrainingConfig(label_smoothing=0.0, lr=1e-4),
)


def make_peer() -> PeerModel:
    """Return Hugging Face's captioner with our sizes, dropout and activation."""
    sizes = {"num_hidden_layers": LAYERS, "hidden_size": WIDTH, "num_attention_heads": HEADS}
    encoder = ViTConfig(
        image_size=IMAGE_SIZE,
        patch_size=PATCH_SIZE,
        intermediate_size=4 * WIDTH,
        hidden_dropout_prob=PRESET.dropout,
        attention_probs_dropout_prob=PRESET.dropout,
        **sizes,
    )
    decoder = GPT2Config(
        vocab_size=V,
        n_positions=50,
        n_embd=WIDTH,
        n_layer=LAYERS,
        n_head=HEADS,
        activation_function="gelu",
        add_cross_attention=True,
        bos_token_id=1,
        eos_token_id=None,
        pad_token_id=0,
    )
    config = VisionEncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
    config.decoder_start_token_id = 1
    config.pad_token_id = 0
    peer = PeerModel(config)
    peer.generation_config.decoder_start_token_id = 1
    peer.generation_config.pad_token_id = 0
    peer.generation_config.eos_token_id = None
    return peer


def make_batch() -> Batch:
    """Return random pictures with one caption each, of the lengths of COCO's captions."""
    lengths = torch.normal(12.0, 2.5, (PICTURES,)).round().int().clamp(7, TOKENS).tolist()
    captions = [[[1, *torch.randint(4, V, (n - 2,)).tolist(), EOS]] for n in lengths]
    images = torch.randn(PICTURES, 3, IMAGE_SIZE, IMAGE_SIZE)
    return Batch(images=images, captions=pad_sequences(captions))


def autocast(bf16: bool):
    """Return the context of a forward pass in bf16, or one that changes nothing."""
    return torch.autocast("cpu", torch.bfloat16) if bf16 else nullcontext()


def our_step(batch: Batch, bf16: bool) -> Callable:
    """Return a training step of ours."""
    config = replace(PRESET.training, precision="bf16" if bf16 else "no")
    trainer = step_trainer(Model(PRESET, V), config, steps=1000)
    return lambda: trainer.step(batch)


def peer_step(batch: Batch, bf16: bool) -> Callable:
    """Return a training step of the peer: same optimiser, clipping and average of the weights."""
    model = make_peer().train()
    recipe = PRESET.training
    average = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(recipe.ema_decay)
    )
    optimizer = torch.optim.AdamW(
        model.parameters(), recipe.lr, recipe.betas, weight_decay=recipe.weight_decay, fused=True
    )
    tokens = batch.captions[:, 0]
    targets = tokens[:, 1:].masked_fill(tokens[:, 1:] == 0, -100)

    def step() -> None:
        with autocast(bf16):
            logits = model(pixel_values=batch.images, decoder_input_ids=tokens[:, :-1]).logits
        loss = nn.functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())
        loss.item()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), recipe.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()
        average.update_parameters(model)

    return step


def our_search(model: Captioner, images: Tensor, beams: int) -> Callable:
    """Return a search of ours that writes `TOKENS` tokens for each picture."""
    batch = Batch(images=images)

    @torch.no_grad()
    def search() -> None:
        memory = model.encode(batch)
        if beams == 1:
            greedy(model, memory, TOKENS, suppress_tokens=[EOS])
        else:
            beam_search(model, memory, beams, max_length=TOKENS, suppress_tokens=[EOS])

    return search


def peer_search(model: PeerModel, images: Tensor, beams: int) -> Callable:
    """Return a search of the peer that writes as many."""

    def search() -> None:
        ids = model.generate(images, max_new_tokens=TOKENS, num_beams=beams, do_sample=False)
        assert ids.shape == (len(images), TOKENS + 1)

    return search


def flops(way: Callable) -> int:
    """Return the floating-point operations of a way's matrix products."""
    with FlopCounterMode(display=False) as counter:
        way()
    return counter.get_total_flops()


def peak_flops(dtype: torch.dtype) -> float:
    """Return the operations per second that one thread reaches in one large matrix product."""
    x = torch.randn(1024, 1024, dtype=dtype)
    out = torch.empty_like(x)
    seconds = math.inf
    for _ in range(15):
        start = time.process_time()
        torch.mm(x, x, out=out)
        seconds = min(seconds, time.process_time() - start)
    return 2 * 1024**3 / seconds


def compare(name: str, ours: Callable, peer: Callable, *, operations: int, peak: float) -> None:
    """Record a row, and print how large its ratio could be if we computed products alone."""
    ours_s, peer_s = medians(ours, peer, ROUNDS, clock=time.process_time)
    record(name, ours_s, peer_s, peer_s / ours_s, "CPU s of one thread, 32 pictures")
    print(f"{'':32} ceiling {peer_s * peak / operations:.2f}: matrix products alone", flush=True)


def main() -> None:
    torch.set_num_threads(1)
    tune_malloc()
    torch.manual_seed(0)
    batch = make_batch()
    for bf16 in (False, True):
        suffix = "-bf16" if bf16 else ""
        dtype = torch.bfloat16 if bf16 else torch.float
        peak = peak_flops(dtype)
        ours = our_step(batch, bf16)
        operations = flops(ours)
        compare(
            f"xe-step-vs-transformers{suffix}",
            ours,
            peer_step(batch, bf16),
            operations=operations,
            peak=peak,
        )
        model = Model(PRESET, V).eval().to(dtype)
        peer = make_peer().eval().to(dtype)
        images = batch.images.to(dtype)
        for search, beams in (("greedy", 1), ("beam5", BEAMS)):
            compare(
                f"{search}-vs-transformers{suffix}",
                our_search(model, images, beams),
                peer_search(peer, images, beams),
                operations=flops(our_search(model, images, beams)),
                peak=peak,
            )
