"""Texts are split before a translator reads them, and put together again."""

import warnings

import pytest

import captionlab
from captionlab.runs import translation as translation_module

STORY = (
    "An old man sits on a bench in the park. A small brown dog sleeps in the grass. "
    "Two children with red balloons run past a fountain."
)


def words(text: str) -> int:
    return len(text.split())


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("A dog runs. A cat sleeps!", ["A dog runs.", "A cat sleeps!"]),
        ("Dr. Lee and Mrs. Poe sing.", ["Dr. Lee and Mrs. Poe sing."]),
        ("The J.P. Morgan run.", ["The J.P. Morgan run."]),
        ("It costs 3.50 at 9 p.m. in town.", ["It costs 3.50 at 9 p.m. in town."]),
        ('He asks: "Why?" She smiles.', ['He asks: "Why?" She smiles.']),
        (" A dog?  A cat. ", ["A dog?", "A cat."]),
        ("", [""]),
    ],
)
def test_sentence_ends(text, parts):
    assert translation_module._split_text(text, words, 20) == parts


def test_a_long_sentence_is_split_near_its_middle_and_nothing_is_lost():
    text = "a dog runs, a cat sleeps in the sun, and a very old man reads"
    parts = translation_module._split_text(text, words, 6)
    assert parts[0] == "a dog runs,"
    assert all(words(part) <= 6 for part in parts)
    assert " ".join(parts) == text
    assert translation_module._split_text("word" * 50, len, 10) == ["word" * 50]


def test_one_warning_for_all_long_sentences():
    texts = ["one two three four", "five six seven eight", "nine. Ten."]
    with pytest.warns(UserWarning, match="2 of 3 texts have a sentence of more than 3") as caught:
        parts = translation_module._split_texts(texts, words, 3)
    assert len(caught) == 1
    assert parts == [["one two", "three four"], ["five six", "seven eight"], ["nine.", "Ten."]]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert translation_module._split_texts(["A dog. A cat."], words, 3) == [["A dog.", "A cat."]]


def test_results_come_back_in_the_order_of_the_sentences():
    upper = lambda part, *_: [text.upper() for text in part]  # noqa: E731
    assert translation_module._map_by_length(["ccc", " ", "a"], 1, upper) == ["CCC", "", "A"]
    numbers = ["12:30 – 14:45", "🎉", "me@x.org", "3rd", "it's"]     # only the last has a word
    assert translation_module._map_by_length(numbers, 2, upper) == [*numbers[:-1], "IT'S"]
    assert translation_module._map_by_length(["ccc", " ", "a"], 2, lambda _, places: [*map(str, places)]) == ["0", "", "2"]


@pytest.mark.slow
def test_every_sentence_of_a_real_text_is_translated():
    run = captionlab.load("translation")
    translation = run.translate(STORY)
    for word in ("Mann", "Bank", "Hund", "Gras", "Kinder", "Ballons"):
        assert word in translation
    assert translation.count(".") == 3
    long = STORY.replace(". ", ", and ") + " " + STORY.replace(". ", ", and ")
    long = long.replace(". An", ", and an").replace(". ", ", ") * 2
    with pytest.warns(UserWarning, match="longer than those of the training"):
        parts = run.translate(long)
    assert parts.lower().count("hund") >= 2
