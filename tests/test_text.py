"""Text: round trips for any text, parity of both encoders, what may be stored."""

import json
import random
import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from captionlab.subwords import SubwordVocabulary, bpe_encode, vocabulary_from_dict
from captionlab.text import Vocabulary, normalise, pad_sequences

CAPTIONS = [
    "A man\u2019s dog runs.",
    "Two dogs run on the grass!",
    "Ein M\u00e4dchen spielt drau\u00dfen.",
    "the dog runs on grass",
] * 3
WORDS = Vocabulary.build(CAPTIONS)
PIECES = SubwordVocabulary.build(CAPTIONS, size=300)


@given(st.text())
def test_normalising_twice_changes_nothing(text):
    words = normalise(text)
    assert normalise(" ".join(words)) == words
    assert all(word and not word.isspace() for word in words)


@given(st.text())
def test_subwords_write_every_text(text):
    ids = PIECES.encode(text)
    assert PIECES.decode(ids) == text.encode(errors="replace").decode()
    assert ids[0] == 1
    assert ids[-1] == 2
    assert not {0, 1, 2, 3} & set(ids[1:-1])


@given(st.text(string.printable), st.floats(0.01, 1), st.integers(0, 9))
def test_dropout_changes_the_pieces_and_never_the_text(text, dropout, seed):
    ids = PIECES.encode(text, dropout, random.Random(seed))
    assert PIECES.decode(ids) == text
    assert ids == PIECES.encode(text, dropout, random.Random(seed))
    assert len(ids) >= len(PIECES.encode(text))


@given(st.text("\u2581abdegnorstu \u00e4\u00df\u4e2d", max_size=40))
def test_our_pieces_are_the_library_s(text):
    ranks = {pair: rank for rank, pair in enumerate(PIECES.merges)}
    names = [piece for word in PIECES.split(text) for piece in bpe_encode(word, ranks)]
    assert PIECES.encode(text) == [1, *map(PIECES.pieces.index, names), 2]


def test_tokens_can_be_read():
    spelled = SubwordVocabulary.build(["mit Äpfeln", "mit Äpfeln"], 300)
    tokens = [spelled.tokens[number] for number in spelled.encode("mit Äpfeln é")]
    assert tokens == ["<bos>", "Ġmit", "ĠÄpfeln", "Ġ", "<c3>", "<a9>", "<eos>"]


@given(st.lists(st.sampled_from(WORDS.tokens[4:]), max_size=20))
def test_words_make_the_round_trip(words):
    text = " ".join(words)
    assert WORDS.decode(WORDS.encode(text)) == text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("It\u2019s Bob's", ["it", "'s", "bob", "'s"]),
        ("MA\u0308DCHEN", ["m\u00e4dchen"]),
        ("a t-shirt \u2014 don't - 3.5 m, 1,000!", ["a", "t-shirt", "don't", "3.5", "m", "1,000"]),
        ("stra\u00dfe STRASSE", ["stra\u00dfe", "strasse"]),
        ("<pad>\u200b_x_ ...", ["pad", "x"]),
        ("\u0915\u093f\u0924\u093e\u092c", ["\u0915\u093f\u0924\u093e\u092c"]),
        ("", []),
        (" .,'-\n", []),
    ],
)
def test_what_a_word_is(text, words):
    assert normalise(text) == words


def test_minimum_count_and_order():
    built = Vocabulary.build(["b b a a c"], min_count=2)
    assert built.tokens[4:] == ["a", "b"]
    assert len(built) == 6
    assert built.encode("c a") == [1, 3, 4, 2]
    assert Vocabulary.build(["a b", "b c"]).tokens == Vocabulary.build(["b c", "a b"]).tokens


def test_learning_merges_is_repeatable():
    assert SubwordVocabulary.build(CAPTIONS, 300).to_dict() == PIECES.to_dict()


@pytest.mark.parametrize("built", [WORDS, PIECES])
def test_stored_as_json_and_back(built):
    again = vocabulary_from_dict(json.loads(json.dumps(built.to_dict())))
    assert type(again) is type(built)
    assert again.tokens == built.tokens
    assert len(again) == len(built)
    assert again.encode("the girl's dog") == built.encode("the girl's dog")


@pytest.mark.parametrize(
    "stored",
    [
        None,
        [],
        {},
        {"kind": "pickle"},
        {"kind": ["words"]},
        {"kind": "words"},
        {"kind": "subwords", "pieces": []},
    ],
)
def test_something_else_is_one_clear_line(stored):
    with pytest.raises(ValueError, match="not a stored vocabulary"):
        vocabulary_from_dict(stored)


def test_broken_vocabularies_are_refused():
    with pytest.raises(ValueError, match="twice"):
        Vocabulary(["a", "a"])
    with pytest.raises(ValueError, match="not a subword vocabulary"):
        SubwordVocabulary(["a", "b"], [])
    with pytest.raises(ValueError, match="rng"):
        PIECES.encode("dog", dropout=0.1)


@settings(max_examples=50)
@given(st.lists(st.lists(st.integers(1, 9), max_size=6), min_size=1, max_size=5))
def test_padding_keeps_every_id(rows):
    out = pad_sequences(rows)
    assert out.shape == (len(rows), max(map(len, rows)))
    assert [[number for number in row if number] for row in out.tolist()] == rows


def test_padding_pictures_with_unequal_numbers_of_captions():
    out = pad_sequences([[[1, 2], [1, 5, 2]], [], [[1, 2]]])
    assert out.shape == (3, 2, 3)
    assert out[0, 1].tolist() == [1, 5, 2]
    assert not out[1].any()
    assert not out[2, 1].any()
    assert pad_sequences([]).shape == (0,)
    assert pad_sequences([[], []]).shape == (2, 0)


def test_real_captions_make_the_round_trip(real_data):
    lines = (real_data / "flickr8k" / "Flickr8k.token.txt").read_text().splitlines()[:4000]
    captions = [line.split("\t")[1] for line in lines]
    built = SubwordVocabulary.build(captions, 2000)
    assert len(built) == 2000
    assert all(built.decode(built.encode(caption)) == caption for caption in captions)


def test_how_an_emoji_is_drawn_is_no_word():
    assert normalise("my dog \u2764\ufe0f \u0031\u20e3") == ["my", "dog", "1"]


@pytest.mark.parametrize(
    "merges",
    [[["a"]], [["a", "b", "c"]], [["x" * 9, "q"]], [[1, 2]], ["ab"], [None], [["a", "zzzz"]]],
    ids=str,
)
def test_merges_that_do_not_fit_their_tokens(merges):
    stored = SubwordVocabulary.build(["a red circle", "a red square"], 400).to_dict()
    with pytest.raises(ValueError, match="not a subword vocabulary") as fault:
        vocabulary_from_dict(stored | {"merges": merges})
    assert "\n" not in str(fault.value)
