"""Everything that only a GPU can show, in order of importance; `make gpu` runs it.

    python -m benchmarks.gpu [--out FILE] [--minutes M] [--tiny] [CHECK ...]
    python -m benchmarks.gpu pack PART PARTS        data for a machine without; 3 parts fit

A check is named by its beginning: `step` is a step of each captioner. Each result is written as it
comes, so a run that is cut short keeps what it had. Before anything else the size of the tree and
of the payload is printed: both travel. On the other machine a payload is unpacked into data/, so
that the parts can come one after the other. A sparse checkout without notebooks and results is
enough: git sparse-checkout set captionlab benchmarks data.
With --tiny all of it runs on a CPU in small, without recorded steps; the numbers mean nothing then.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
import traceback
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

from benchmarks import CAPTIONERS
from captionlab.data.batches import Batch
from captionlab.files import data_home
from captionlab.models import find_preset, model_module, random_inputs
from captionlab.rewards import CiderD, Reward
from captionlab.runs.results import provenance
from captionlab.scst import SelfCritical
from captionlab.training.config import BasePreset
from captionlab.training.loop import Trainer

ROOT = Path(__file__).resolve().parent.parent
PAYLOAD = ROOT / "payload"
V = 9_500
GOALS = {"vanilla": 12, "entangled": 20, "image_transformer": 12, "position_aware": 12}  # ms
TINY = "--tiny" in sys.argv     # of the program, since every check depends on it


def sizes() -> dict[str, float]:
    """MiB of the files that git knows and that are here, and of the payload."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True,
                            check=False).stdout.split("\n")
    tree = [path for name in listed if name and (path := ROOT / name).is_file()]
    payload = [path for path in PAYLOAD.rglob("*") if path.is_file()]
    return {"tree": sum(p.stat().st_size for p in tree) / 2**20,
            "payload": sum(p.stat().st_size for p in payload) / 2**20}


def preset_of(name: str) -> BasePreset:
    """The paper's sizes; tiny ones for a trial."""
    preset = find_preset(name, "tiny" if TINY else "paper")
    if name == "image_transformer" and not TINY:
        preset = replace(preset, inputs=replace(preset.inputs, max_boxes=36))
    return preset


def batches_of(name: str, pictures: int, count: int = 4) -> list[Batch]:
    """Random pictures with five captions each, of the lengths of COCO's."""
    made = []
    for _ in range(count):
        lengths = torch.normal(12.5, 2.4, (pictures, 5)).round().clamp(8, 18).long()
        captions = torch.randint(4, V, (pictures, 5, 18))
        captions[torch.arange(18) >= lengths[..., None]] = 0
        captions[..., 0] = 1
        made.append(Batch(captions=captions, **random_inputs(preset_of(name), pictures)))
    return made


def trainer_of(name: str, *, graphs: bool, pictures: int, reward: Callable | None = None,
               precision: str = "auto") -> tuple[Trainer, list[Batch]]:
    """A trainer of random weights, and batches."""
    torch.manual_seed(0)
    preset = preset_of(name)
    config = replace(preset.training, max_tokens=0, batch_size=pictures, lr=1e-4, warmup=20,
                     schedule="constant", graphs=graphs, precision=precision)
    model = model_module(name).Model(preset, V)
    learner = SelfCritical(model, reward, max_length=18) if reward else model
    trainer = Trainer(learner, range(10_000 * pictures), config)
    batches = [batch.to(trainer.device) for batch in batches_of(name, pictures)]
    return trainer, batches


def wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def milliseconds(call: Callable[[int], object], warm: int, steps: int) -> float:
    """Median over three rounds of the milliseconds of a call, the GPU's work included."""
    warm, steps = (2, 2) if TINY else (warm, steps)
    for number in range(warm):
        call(number)
    rounds = []
    for _ in range(3):
        wait()
        start = time.perf_counter()
        for number in range(steps):
            call(number)
        wait()
        rounds.append(1000 * (time.perf_counter() - start) / steps)
    return median(rounds)


def step_ms(name: str, **options: object) -> float:
    trainer, batches = trainer_of(name, **options)       # pyright: ignore[reportArgumentType]
    return milliseconds(lambda number: trainer.step(batches[number % len(batches)]), 12, 20)


class MeanId(Reward):
    """A reward that is never the same for all samples, although nothing was learned."""

    reads_numbers = False

    def __call__(self, captions: Tensor, references: Tensor) -> Tensor:
        return captions.float().mean(-1)


def same_training(reward: Callable | None = None) -> dict:
    """Losses of twelve recorded steps against those of plain ones: is it right at all?"""
    losses = {}
    for graphs in (False, True):
        trainer, batches = trainer_of("vanilla", graphs=graphs, pictures=4, precision="no",
                                      reward=reward)
        found = []
        for number in range(12):
            trainer.reseed(0, number)
            sums = trainer.step(batches[number % len(batches)])
            found.append((sums[0] / sums[1]).item())
        losses[graphs] = found
    gap = max(abs(a - b) / abs(a) for a, b in zip(losses[False], losses[True], strict=True))
    return {"largest_relative_gap": gap, "plain": losses[False], "recorded": losses[True]}


def step(name: str) -> dict:
    """A step of a captioner at its paper's sizes, recorded and not, beside the goal."""
    pictures = 2 if TINY else preset_of(name).training.batch_size
    return {"pictures": pictures, "goal_ms": GOALS.get(name),
            "recorded_ms": step_ms(name, graphs=True, pictures=pictures),
            "plain_ms": step_ms(name, graphs=False, pictures=pictures)}


def scst_step(name: str) -> dict:
    """A self-critical step of a captioner; its samples are long, since nothing was learned."""
    reward = CiderD([[list(range(4, 14))] * 5] * 3)
    pictures = 2 if TINY else preset_of(name).training.batch_size
    return {"pictures": pictures,
            "recorded_ms": step_ms(name, graphs=True, pictures=pictures, reward=reward)}


def peak_tflops() -> float:
    """What one large product reaches in bf16."""
    size = 256 if TINY else 8192
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x = torch.randn(size, size, dtype=torch.bfloat16, device=device)
    return 2 * size**3 / milliseconds(lambda _: x @ x, 5, 20) / 1e9


def cptr_share() -> dict:
    """CPTR at 64 pictures: the share of the peak that its matrix products reach."""
    from torch.utils.flop_counter import FlopCounterMode

    pictures = 2 if TINY else 64
    trainer, batches = trainer_of("cptr", graphs=False, pictures=pictures)
    with FlopCounterMode(display=False) as counter:
        trainer.step(batches[0])
    del trainer
    ms = step_ms("cptr", graphs=True, pictures=pictures)
    tflops = counter.get_total_flops() / ms / 1e9
    peak = peak_tflops()
    return {"ms": ms, "tflops": tflops, "peak_tflops": peak, "share": tflops / peak}


def profile() -> dict:
    """The twelve kernels that take most of a recorded step of the plain Transformer."""
    trainer, batches = trainer_of("vanilla", graphs=True, pictures=2 if TINY else 15)
    for number in range(12):
        trainer.step(batches[number % len(batches)])
    wait()
    with torch.profiler.profile() as found:
        for number in range(4):
            trainer.step(batches[number % len(batches)])
        wait()
    key = "device_time_total" if torch.cuda.is_available() else "cpu_time_total"
    events = sorted(found.key_averages(), key=lambda event: -getattr(event, key))[:12]
    return {event.key[:80]: round(getattr(event, key) / 4000, 4) for event in events}  # ms a step


def peers() -> dict:
    """Beside Hugging Face's model of the same sizes: step (compiled), greedy, beam 5; ratios."""
    from benchmarks import peers as bench
    from captionlab.decoding.beam import beam_search
    from captionlab.decoding.generation import EOS, greedy

    device = "cuda" if torch.cuda.is_available() else "cpu"
    batch = bench.make_batch().to(device)
    images: Tensor = batch.require("images")
    trainer = Trainer(bench.Model(bench.PRESET, bench.V), range(10**6),
                      replace(bench.PRESET.training, precision="no"))
    peer = bench.make_peer().to(device)
    optimizer = torch.optim.AdamW(peer.parameters(), 1e-4, fused=True)
    tokens = batch.require("captions")[:, 0]
    targets = tokens[:, 1:].masked_fill(tokens[:, 1:] == 0, -100)
    forward = peer if TINY else torch.compile(peer, mode="reduce-overhead")

    def peer_step(_: int) -> None:
        logits = forward(pixel_values=images, decoder_input_ids=tokens[:, :-1]).logits
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()).backward()
        torch.nn.utils.clip_grad_norm_(peer.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    pairs = {"step": (milliseconds(lambda _: trainer.step(batch), 12, 20),
                      milliseconds(peer_step, 8, 20))}
    model = bench.Model(bench.PRESET, bench.V).to(device).eval()
    peer.eval()
    length = 4 if TINY else bench.TOKENS
    with torch.no_grad():
        for beams in (1, 5):
            def ours(_: int, beams: int = beams) -> None:
                memory = model.encode(Batch(images=images))
                options = {"max_length": length, "suppress_tokens": [EOS]}
                if beams == 1:
                    greedy(model, memory, **options)
                else:
                    beam_search(model, memory, beams, **options)

            def theirs(_: int, beams: int = beams) -> None:
                peer.generate(images, max_new_tokens=length, num_beams=beams, do_sample=False)

            pairs[f"beam{beams}"] = (milliseconds(ours, 3, 5), milliseconds(theirs, 3, 5))
    return {name: {"ours_ms": a, "peer_ms": b, "ratio": b / a} for name, (a, b) in pairs.items()}


def course(name: str) -> dict:
    """A speedrun, in a process of its own; if it fails, the phases that it had."""
    trial = ["scenes", "--epochs", "1", "--val", "8", "--beam", "1"]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run.json"
        command = [sys.executable, "-m", "benchmarks.speedrun", "--out", str(out)]
        done = subprocess.run([*command, *(trial if TINY else [name])], cwd=ROOT, check=False)
        found = json.loads(out.read_text()) if out.exists() else {}
    return found | ({"error": f"exit status {done.returncode}"} if done.returncode else {})


CHECKS: dict[str, Callable[[], dict]] = {
    "same": same_training,
    "same-scst": partial(same_training, MeanId()),
    **{f"step-{name}": partial(step, name) for name in CAPTIONERS},
    "cptr": cptr_share,
    **{f"scst-{name}": partial(scst_step, name) for name in CAPTIONERS},
    "profile": profile,
    "flickr8k": partial(course, "flickr8k"),
    "multi30k": partial(course, "multi30k"),
    "peers": peers,
}


def pack(part: int, parts: int) -> Path:
    """Write a share of the files of Flickr8k and Multi30K, as they are, into the payload."""
    home = data_home()
    files = [path for name in ("flickr8k", "multi30k") for path in sorted((home / name).rglob("*"))
             if path.suffix in (".jpg", ".txt", ".gz")]
    PAYLOAD.mkdir(exist_ok=True)
    target = PAYLOAD / f"data-{part}-of-{parts}.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in files[part - 1 :: parts]:
            archive.write(path, path.relative_to(home))
    print(f"{target.name}: {len(files[part - 1 :: parts])} of {len(files)} files")
    return target


def main(arguments: Sequence[str] = ()) -> None:
    """Run the checks that are named by their beginning, or all."""
    if [*arguments][:1] == ["pack"]:
        pack(int(arguments[1]), int(arguments[2]))
        return
    parser = argparse.ArgumentParser(description="what only a GPU can show")
    parser.add_argument("checks", nargs="*")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "gpu.json")
    parser.add_argument("--minutes", type=float, default=9.0, help="begin nothing after these")
    parser.add_argument("--tiny", action="store_true", help="on any machine, in small")
    args = parser.parse_args([*arguments])
    print("MiB:", {name: round(size, 1) for name, size in sizes().items()}, "of 60 together")
    if not (torch.cuda.is_available() or TINY):
        print("there is no GPU here: skipped (--tiny tries all of it in small)")
        return
    for file in () if TINY else PAYLOAD.glob("*.zip"):
        zipfile.ZipFile(file).extractall(ROOT / "data")
    results: dict = {**provenance(), "tiny": TINY}
    begin = time.perf_counter()
    for name in [name for name in CHECKS if name.startswith(tuple(args.checks or [""]))]:
        if time.perf_counter() - begin > 60 * args.minutes:
            results[name] = {"left_out": "no time"}
            continue
        start = time.perf_counter()
        try:
            found = CHECKS[name]()
        except Exception as error:      # the next check may work
            traceback.print_exc()
            found = {"error": f"{type(error).__name__}: {error}"}
        results[name] = found | {"seconds": round(time.perf_counter() - start, 1)}
        print(name, json.dumps(results[name])[:600], flush=True)
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
