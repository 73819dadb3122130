"""Word alignment: IBM Model 1 against plain loops, and the lexicon."""

import math
from collections import defaultdict

import pytest
import torch
from scipy.special import digamma

from captionlab.data.datasets import scenes
from captionlab.processors.alignment import (
    Lexicon,
    _cells,
    _mutual_links,
    _posteriors,
    _word_pairs,
    learn_lexicon,
)
from captionlab.text import split_words

SOURCES = [[1, 2], [1, 3, 2], [4, 3]]
TARGETS = [[1, 2, 2], [1], [3, 4]]


def prior(row, column, rows, columns):
    """The probability of a source word by its place: column 0 is none, row and column from 1."""
    if column == 0:
        return 0.08
    nearness = [math.exp(-4 * abs(row / rows - place / columns)) for place in range(1, columns + 1)]
    return 0.92 * nearness[column - 1] / sum(nearness)


def posteriors_by_loops(sources, targets, iterations):
    """A dictionary from (sentence, row, column), column 0 for none, to a probability."""
    table = defaultdict(lambda: 1.0)
    for iteration in range(iterations + 1):
        found = {}
        counts = defaultdict(float)
        for number, (source, target) in enumerate(zip(sources, targets, strict=True)):
            for row, word in enumerate(target):
                weights = [
                    table[other, word] * prior(row + 1, column, len(target), len(source))
                    for column, other in enumerate([0, *source])
                ]
                for column, other in enumerate([0, *source]):
                    found[number, row, column] = weights[column] / sum(weights)
                    counts[other, word] += found[number, row, column]
        if iteration == iterations:
            return found
        for other, word in counts:
            partners = [count for (source, _), count in counts.items() if source == other]
            table[other, word] = math.exp(
                digamma(counts[other, word] + 0.01)
                - digamma(sum(partners) + 0.01 * len(partners))
            )
    raise AssertionError


@pytest.mark.parametrize("iterations", [0, 1, 4])
def test_posteriors_are_those_of_the_definition(iterations):
    pairs = _word_pairs(SOURCES, TARGETS)
    found = _posteriors(pairs, iterations)
    expected = posteriors_by_loops(SOURCES, TARGETS, iterations)
    lengths = torch.tensor([[3, 3], [1, 4], [2, 3]])
    cells = zip(*(part.tolist() for part in _cells(lengths[:, 0], lengths[:, 1])), strict=True)
    for cell, value, source, target in zip(
        cells, found.tolist(), pairs.sources.tolist(), pairs.targets.tolist(), strict=True
    ):
        number, row, column = cell
        assert value == pytest.approx(expected[cell], rel=1e-4)
        assert source == [0, *SOURCES[number]][column]
        assert target == TARGETS[number][row]


def test_links_are_the_geometric_mean_of_both_directions():
    sources, targets, probs = _mutual_links(SOURCES, TARGETS, 3)
    forward = posteriors_by_loops(SOURCES, TARGETS, 3)
    backward = posteriors_by_loops(TARGETS, SOURCES, 3)
    expected = [
        (source, target, math.sqrt(forward[n, row, column + 1] * backward[n, column, row + 1]))
        for n, (sentence, translation) in enumerate(zip(SOURCES, TARGETS, strict=True))
        for row, target in enumerate(translation)
        for column, source in enumerate(sentence)
    ]
    assert sources.tolist() == [source for source, _, _ in expected]
    assert targets.tolist() == [target for _, target, _ in expected]
    torch.testing.assert_close(
        probs, torch.tensor([prob for _, _, prob in expected]), rtol=1e-4, atol=1e-5
    )


def test_words_of_the_scenes_are_learned():
    world = scenes(train=200, val=0, test=0, novel=0, language="de", source="en")
    pairs = [
        (split_words(item.source, "en"), split_words(item.captions[0], "de"))
        for item in world["train"]
    ]
    lexicon = learn_lexicon(pairs)
    best = {word: next(iter(lexicon.translate(word)), None) for word in lexicon.frequencies}
    expected = {"red": "rot", "blue": "blau", "green": "grün", "circle": "kreis"}
    for word, stem in expected.items():
        assert stem in best[word], (word, best[word])
    assert lexicon.frequencies["red"] == sum(source.count("red") for source, _ in pairs)


def test_translations_are_cut_and_sum_to_1():
    lexicon = Lexicon({"bank": 10}, {"bank": {"bank": 6.0, "ufer": 3.9, "bänke": 0.1}})
    assert lexicon.translate("bank") == pytest.approx({"bank": 6 / 9.9, "ufer": 3.9 / 9.9})
    assert lexicon.translate("bank", top=1) == {"bank": 1.0}
    assert list(lexicon.translate("bank", min_share=0.0)) == ["bank", "ufer", "bänke"]
    assert lexicon.translate("unknown") == {}


def test_without_pairs_it_is_one_line():
    with pytest.raises(ValueError, match="give at least one with words on both sides"):
        learn_lexicon([([], ["haus"]), (["house"], [])])
