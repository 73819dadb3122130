"""Made-up pairs share words that nobody has seen."""

import re

import pytest

from captionlab.data.copied_words import copied_pairs
from captionlab.data.datasets import Item

ITEMS = [
    Item("0", ("Ein Mann aus London liest.",), source="A man from London reads."),
    Item("1", ("Zwei Hunde rennen.",), source="Two dogs run."),
    Item("2", ("Die Nummer 12 springt.",), source="Number 12 jumps."),
]


@pytest.fixture(scope="module")
def pairs() -> list[Item]:
    return copied_pairs(ITEMS, 300)


def test_words_inside_stand_at_the_same_place_in_both_sentences(pairs):
    words = set()
    for pair in pairs[::2]:
        source = re.fullmatch(r"A man from (.+) reads\.|Number (.+) jumps\.", pair.source)
        if not source:      # the other pair, or an exchange of its first word
            continue
        target = re.fullmatch(r"Ein Mann aus (.+) liest\.|Die Nummer (.+) springt\.",
                              pair.captions[0])
        assert target and target.groups() == source.groups()
        words |= set(source.groups())
    assert len(words) > 40


def test_framed_sentences_are_whole(pairs):
    for pair in pairs[1::4]:
        [item] = [item for item in ITEMS if item.source in pair.source]
        assert item.captions[0] in pair.captions[0]
        [target] = pair.captions
        assert pair.source.replace(item.source, "") == target.replace(item.captions[0], "")


def test_words_alone_stay_as_they_are(pairs):
    assert all(pair.source == pair.captions[0] for pair in pairs[3::4])


def test_pairs_depend_on_the_seed_alone(pairs):
    assert copied_pairs(ITEMS, 300) == pairs != copied_pairs(ITEMS, 300, seed=1)


def test_without_known_words_the_sentences_stay():
    [pair] = copied_pairs(ITEMS[1:2], 1)
    assert (pair.source, pair.captions[0]) == ("Two dogs run.", "Zwei Hunde rennen.")
