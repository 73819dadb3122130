"""CIDEr-D of 10,000 captions with 5 references each, against two that count in dictionaries."""

import time
from collections.abc import Callable
from statistics import median

import numpy as np
from pycocoevalcap.cider.cider import Cider
from pycocoevalcap.cider.cider_scorer import CiderScorer

from benchmarks import record
from captionlab.metrics.ciderd import CiderDScorer

PICTURES, REFERENCES, VOCABULARY, ROUNDS = 10_000, 5, 8_000, 5


class CachedCider(CiderScorer):
    """CIDEr-D with document frequencies from an earlier pass, as SCST usually computes it."""

    def __init__(self, references: list[list[str]]):
        super().__init__(n=4, sigma=6.0)
        for captions in references:
            self += (None, captions)
        self.compute_doc_freq()
        self.pictures = len(references)

    def score_again(self, references: list[list[str]], candidates: list[str]) -> np.ndarray:
        self.crefs = []
        self.ctest = []
        for caption, captions in zip(candidates, references, strict=True):
            self += (caption, captions)
        assert len(self.crefs) == self.pictures  # compute_cider takes the corpus size from here
        return np.array(self.compute_cider())


def core_seconds(work: Callable) -> float:
    """Seconds that one core works on it, whatever else the machine does."""
    start = time.thread_time()
    work()
    return time.thread_time() - start


def made_up_captions() -> tuple[list, list]:
    """References and candidates: variants of a sentence per picture, in Zipf's frequencies."""
    rng = np.random.default_rng(0)
    chances = 1 / np.arange(3, VOCABULARY + 3)
    chances /= chances.sum()

    def variants(sentence: np.ndarray, number: int) -> list[list[int]]:
        other = rng.choice(VOCABULARY, (number, len(sentence)), p=chances) + 4
        return np.where(rng.random(other.shape) < 0.5, other, sentence).tolist()

    sentences = [
        rng.choice(VOCABULARY, rng.integers(8, 15), p=chances) + 4 for _ in range(PICTURES)
    ]
    pictures = [variants(sentence, REFERENCES + 1) for sentence in sentences]
    return [captions[1:] for captions in pictures], [captions[0] for captions in pictures]


def main() -> None:
    references, candidates = made_up_captions()
    texts = [[" ".join(map(str, ids)) for ids in captions] for captions in references]
    spoken = [" ".join(map(str, ids)) for ids in candidates]
    gts, res = dict(enumerate(texts)), {row: [caption] for row, caption in enumerate(spoken)}
    scorer = CiderDScorer(references)
    index, rows = scorer.index(references), np.arange(PICTURES)
    cached = CachedCider(texts)
    ways = {
        "ours": lambda: scorer.score(candidates, rows, index),
        "index": lambda: scorer.index(references),
        "pycocoevalcap": lambda: Cider().compute_score(gts, res)[1],
        "cached": lambda: cached.score_again(texts, spoken),
    }
    for peer in ("pycocoevalcap", "cached"):
        apart = abs(ways[peer]() - ways["ours"]()).max()
        assert apart < 1e-9, f"{peer} and ours differ by {apart:.1e}"
    times = {name: [] for name in ways}
    for _ in range(ROUNDS):  # in turns, so that all see the same machine
        for name, work in ways.items():
            times[name].append(core_seconds(work))
    ours, once, *peers = (PICTURES / median(seconds) for seconds in times.values())
    print(f"indexing the references, once: {PICTURES / once:.2f} s")
    for name, peer in zip(("cider", "cider-vs-cached-frequencies"), peers, strict=True):
        record(name, ours, peer, ours / peer, "captions/s of one core, 5 references")


if __name__ == "__main__":
    main()
