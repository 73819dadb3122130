"""Word alignment: IBM Model 1 against plain loops, and the lexicon."""

import math
from collections import defaultdict

import pytest
from scipy.special import digamma

from captionlab.data.datasets import scenes
from captionlab.decoding.alignment import Lexicon, learn_lexicon
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


def lexicon_by_loops(sources, targets, iterations, least):
    """Expected number of links of each pair of words: the geometric mean of both directions."""
    forward = posteriors_by_loops(sources, targets, iterations)
    backward = posteriors_by_loops(targets, sources, iterations)
    counts = defaultdict(float)
    for number, (source, target) in enumerate(zip(sources, targets, strict=True)):
        for row, word in enumerate(target):
            for column, other in enumerate(source):
                link = forward[number, row, column + 1] * backward[number, column, row + 1]
                counts[other, word] += math.sqrt(link) if math.sqrt(link) > least else 0
    return {pair: count for pair, count in counts.items() if count}


@pytest.mark.parametrize("iterations", [0, 1, 4])
@pytest.mark.parametrize("least", [1e-5, 0.2])
def test_the_lexicon_is_that_of_the_definition(iterations, least):
    words = [
        ([f"s{word}" for word in source], [f"t{word}" for word in target])
        for source, target in zip(SOURCES, TARGETS, strict=True)
    ]
    lexicon = learn_lexicon(words, iterations, least)
    found = {
        (int(source[1:]), int(target[1:])): count
        for source, counts in lexicon.translations.items()
        for target, count in counts.items()
    }
    assert found == pytest.approx(lexicon_by_loops(SOURCES, TARGETS, iterations, least), rel=1e-4)
    assert lexicon.frequencies == {"s1": 2, "s2": 2, "s3": 2, "s4": 1}


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
