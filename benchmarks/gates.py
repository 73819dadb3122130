"""What the gate of the Entangled Transformer prefers, by class of word; lesson 34 reads it.

Writes `….gate.json` beside the result of each named run: python -m benchmarks.gates RUN ...
"""

import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, pstdev
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks import artifact_path
from captionlab.blocks import Trace
from captionlab.data.batches import Batch
from captionlab.data.catalog import load_dataset
from captionlab.data.datasets import Item
from captionlab.decoding.generation import BOS
from captionlab.features.attributes import STOP_WORDS
from captionlab.features.extraction import input_transforms, open_feature_stores
from captionlab.files import write_json
from captionlab.models.entangled import VARIANTS, Model
from captionlab.runs.catalog import load
from captionlab.runs.run import Run, make_batch
from captionlab.text import pad_sequences

@torch.no_grad()
def trace_paths(model: Model, batch: Batch, captions: Tensor) -> dict[str, Tensor]:
    """Return the weights and the gate at every word of given captions, averaged over layers.

    Args:
        model: in evaluation mode.
        batch: B pictures.
        captions: ids without bos, `(B, T)`, padded with 0.

    Returns:
        For each step of each path, such as "sv", the weights `(B, T, N)`, averaged over heads as
        well; under "gate" the gate `(B, T, D)`.
    """
    state = model.start(model.encode(batch))
    by_word = defaultdict(list)
    previous_words = F.pad(captions[:, :-1], (1, 0), value=BOS)         # (B, T)
    for word in previous_words.T:
        trace: Trace = {}
        _, state = model.step(state, word[:, None], trace)
        for name, layers in trace.items():
            # Axes: layer, picture, head (or caption, for the gate), caption, N or D.
            by_word[name].append(torch.stack(layers).mean(0).mean(1)[:, 0])
    return {name: torch.stack(rows, 1) for name, rows in by_word.items()
            if name not in ("self", "cross")}

WORD_CLASSES = {
    "function": STOP_WORDS,
    "number": frozenset(
        ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "several",
         "many", "few", "group", "couple", "pair")
    ),
    "colour": frozenset(
        ("black", "white", "gray", "grey", "brown", "red", "orange", "yellow", "green", "blue",
         "purple", "pink", "tan", "golden")
    ),
}

# Words in -ing that are no actions.
_ING_NOUNS = frozenset(
    ("building", "clothing", "evening", "morning", "railing", "string", "spring", "ring", "king",
     "swing", "wing", "thing", "ceiling", "sling")
)


def word_class(word: str) -> str:
    """Return the class of a word: "function", "number", "colour", "action" or "other".

    Args:
        word: as `normalise` writes it.

    Returns:
        The class whose list has the word; "action" for other words in -ing; else "other", mostly
        nouns.
    """
    for name, words in WORD_CLASSES.items():
        if word in words:
            return name
    is_action = word.endswith("ing") and word not in _ING_NOUNS
    return "action" if is_action else "other"


def gate_by_class(run: Run, items: Sequence[Item], inputs: dict,
                  batch_size: int = 32) -> dict[str, dict]:
    """Return how far the gate leans to the visual path, by class of word.

    The captions are the run's own.

    Args:
        run: of a variant with a gate.
        items: pictures.
        inputs: of `input_transforms`, functions from an item to its tensors, such as `(N, D)`.
        batch_size: number of pictures that the model reads together.

    Returns:
        For each class, and for words that were "among the attributes" of their picture or "not
        among them": `gate`, the mean over words from 0 (semantic) to 1 (visual); `deviation`, the
        standard deviation over words; `words`, their number.
    """
    model = cast(Model, run.model)
    gates: dict[str, list[float]] = defaultdict(list)
    for first in range(0, len(items), batch_size):
        batch = make_batch(run, items[first:first + batch_size], inputs).to(run.device)
        hypotheses = run.search(batch)
        captions = pad_sequences([hypothesis.ids for hypothesis in hypotheses]).to(run.device)
        gate = trace_paths(model, batch, captions)["gate"].mean(-1)             # (B, T)
        attributes = batch.require("attributes")                                # (B, A)
        rows = zip(captions.tolist(), attributes.tolist(), gate.tolist(), strict=True)
        for ids, attribute_ids, caption_gates in rows:
            for token, value in zip(ids, caption_gates, strict=True):
                if token > run.vocabulary.eos:          # neither padding nor a special token
                    gates[word_class(run.vocabulary.tokens[token])].append(value)
                    among = "among the attributes" if token in attribute_ids else "not among them"
                    gates[among].append(value)
    return {name: {"gate": mean(values), "deviation": pstdev(values), "words": len(values)}
            for name, values in sorted(gates.items())}


def measure_gate(run: Run, data: str | None = None, split: str = "test") -> Path:
    """Write `gate_by_class` of a split beside the run's result file.

    Args:
        run: of a variant with a gate.
        data: name of the data set; the run's own if None.
        split: of the data set.

    Returns:
        The path of the file.

    Raises:
        ValueError: if the run's variant has no gate.
    """
    variant = getattr(run.processor.preset, "variant_spec", None)
    if len(getattr(variant, "paths", ())) < 2:
        gated = [name for name, variant in VARIANTS.items() if len(variant.paths) > 1]
        raise ValueError("this run has no gate: take one of the entangled variants "
                         + ", ".join(gated))
    dataset = load_dataset(data or run.metadata.source)
    stores = open_feature_stores(run.processor, dataset)
    inputs = input_transforms(run.processor, stores, cache_bytes=0)
    file = artifact_path(run, dataset.name, "gate", split)
    write_json(file, {
        "data": dataset.name,
        "split": split,
        "rule": "benchmarks.gates.word_class",
        "command": run.metadata.command,
        "classes": gate_by_class(run, dataset[split], inputs),
    })
    return file


def main() -> None:
    for name in sys.argv[1:]:
        print(measure_gate(load(name)))


if __name__ == "__main__":
    main()
