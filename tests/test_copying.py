"""Unknown words are copied into translations; everything else stays as it was."""

import json
from dataclasses import replace

import pytest
import torch

import captionlab
from captionlab.copying import (
    COPY_MARKS,
    Copier,
    MarkedText,
)
from captionlab.data.datasets import CaptionData, Item, multi30k
from captionlab.models import find_preset
from captionlab.runs import results
from captionlab.runs import translation as translation_module
from captionlab.runs.fitting import NewModel, fit
from captionlab.runs.run import Run
from captionlab.subwords import SubwordVocabulary

WORDS = [
    "a", "man", "woman", "named", "from", "in", "of", "the", "reads", "is", "'s", ".", ",", '"',
    "café", "t-shirt", "looking", "asian", "and", "12", "7", "london", "japan",
]  # fmt: skip


@pytest.fixture(scope="module")
def translator() -> Run:
    return captionlab.load("translation")


@pytest.fixture
def copier() -> Copier:
    return Copier(WORDS, ["london", "japan"], ["12"], "en")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("A man named Xiongnu.", ["Xiongnu"]),
        ("A man reads 中文, 47291.", ["中文", "47291"]),
        ("A man named Ana Đặng is from Łódź.", ["Ana Đặng", "Łódź"]),
        ('The "Xiongnu\'s" man', ["Xiongnu"]),
        ("Lynyrd Skynyrd and a man.", ["Lynyrd Skynyrd"]),
        ("łódź is the café.", ["łódź"]),
        ("A man reads https://a.org/b?c=d.", ["https://a.org/b?c=d"]),
        ("A man 🎉, J.P. and NATO.", ["🎉", "J.P."]),
        ("NATO is from London.", ["NATO"]),
        ("A man. Xiongnu reads.", []),
        ("Xiongnu reads.", []),
        ("The Asian-looking man of the 50s and the 3rd.", []),
        ("The man jumps from the T-Shirt of 12.", []),
        ("A MAN NAMED XIONGNU.", []),
        ("", []),
    ],
)
def test_which_words_are_unknown(copier, text, words):
    marked = copier.mark(text)
    assert marked.words == words
    assert len(set(marked.stand_ins)) == len(words)
    restored = marked.text
    for stand_in, word in zip(marked.stand_ins, words, strict=True):
        assert restored.count(stand_in) == 1
        restored = restored.replace(stand_in, word)
    assert restored == text


def test_a_stand_in_is_no_word_of_the_text(copier):
    assert copier.mark("A man from London named Xiongnu.").stand_ins == ["japan"]
    text = "A man from LONDON, Japan, named Xiongnu."
    assert copier.mark(text) == MarkedText(text, [], [])  # no stand-in is left


def test_words_come_back_in_their_places():
    marked = MarkedText("", ["london", "12"], ["Łódź", "47291"])
    assert marked.restore(f"{COPY_MARKS[1]} aus {COPY_MARKS[0]}.") == "47291 aus Łódź."
    assert marked.restore("nichts") == "nichts"


def test_names_are_learned_where_translations_copy_them():
    pairs = [("A man from London in New York.", "Ein Mann aus London in New York.")] * 3
    pairs += [("A man reads the German Bible.", "Ein Mann liest die deutsche Bibel.")] * 3
    pairs += [("A person has 12 dogs.", "Eine Person hat 12 Hunde.")] * 3 + [("7 men.", "7.")]
    vocabulary = SubwordVocabulary.build([target for _, target in pairs], 300, "de")
    copier = Copier.learn(pairs, ("en", "de"), vocabulary)
    assert (copier.names, copier.numbers) == (["london"], ["12"])
    assert {"bible", "7", "person"} <= set(copier.words)


def test_folder_round_trip(copier, tmp_path):
    assert Copier.load(tmp_path) is None
    copier.save(tmp_path)
    again = Copier.load(tmp_path)
    assert again is not None
    assert vars(again) == vars(copier)


@pytest.mark.parametrize(
    "change",
    [{"words": 1}, {"words": [1]}, {"names": None}, {"numbers": "12"}, {"language": ["en"]}, None],
)
def test_a_broken_file_is_one_line(copier, tmp_path, change):
    file = copier.save(tmp_path)
    content = json.loads(file.read_text())
    file.write_text("[]" if change is None else json.dumps(content | change))
    with pytest.raises(ValueError, match=Copier.file) as caught:
        Copier.load(tmp_path)
    assert "\n" not in str(caught.value)


def test_stand_ins_are_whole_words_and_stand_once():
    constraint = translation_module._WholeWords([[5, 6], [4]], [6, 7])

    def forbidden(*ids: int) -> list[int]:
        log_probs = constraint(torch.tensor([[[1, *ids]]]), torch.zeros(1, 1, 9))
        return log_probs[0, 0].isinf().nonzero()[:, 0].tolist()

    assert forbidden() == forbidden(5) == forbidden(8, 5) == []
    assert forbidden(5, 6) == [5, 6, 7]
    assert forbidden(5, 6, 8) == [5]
    assert forbidden(5, 6, 8, 4) == [4, 5, 6, 7]


@pytest.mark.slow
def test_known_words_are_translated_as_without_a_copier(translator):
    sentences = ["A man in a blue shirt plays with two dogs.", "Women dance in London."]
    for truecase in (False, True):
        plain = translator.translate(sentences, truecase=truecase, copy=False)
        assert translator.translate(sentences, truecase=truecase) == plain


@pytest.mark.slow
def test_unknown_words_are_copied(translator):
    for sentence, words in [
        ("A man named Xiongnu plays in Łódź.", ["Xiongnu", "Łódź"]),
        ("The number 47291 is on his shirt.", ["47291"]),
        ("A sign that says 中文.", ["中文"]),
        ("A woman from Kraków and a man from Đà Nẵng visit Reykjavík.",
         ["Kraków", "Đà Nẵng", "Reykjavík"]),
    ]:
        for truecase in (False, True):
            translation = translator.translate(sentence, truecase=truecase)
            places = [translation.find(word) for word in words]
            assert -1 not in places
            assert places == sorted(places)
            assert all(translation.count(word) == 1 for word in words)
            assert not set(translation) & set(COPY_MARKS)
        plain = translator.translate(sentence, copy=False)
        assert not any(word.lower() in plain for word in words)


@pytest.mark.slow
def test_a_copied_word_at_the_start_keeps_its_case(translator):
    cased = translator.translate("łódź is a city. A man plays.", truecase=True)
    assert cased == "łódź ist eine Stadt. Ein Mann spielt."
    assert translator.translate("", truecase=True) == ""


@pytest.mark.slow
def test_more_unknown_words_than_stand_ins(translator):
    names = "Łódź, Kraków, Đặng, Nguyễn, Bjørn, Žižek, Çelik, Ōsaka and Ūla"
    translation = translator.translate(f"A man visits {names}.", truecase=True)
    assert translation.startswith("Ein Mann")
    assert not set(translation) & set(COPY_MARKS)


@pytest.mark.slow
def test_evaluation_copies_nothing(translator, real_data):
    items = multi30k(real_data / "multi30k")["test"]
    unknown = [n for n, item in enumerate(items) if translator.copier.mark(item.source).words]
    assert len(unknown) > 10
    name = "multi30k/translation-truecased-strong-distilled-scst"
    stored = results.result_file(f"{name}.seed0.captions.json").read_text()
    captions = [entry["caption"] for entry in json.loads(stored)]
    sources = [items[n].source for n in unknown]
    options = {"length_penalty": 1.0, "truecase": True, "split": False}
    assert translator.translate(sources, copy=False, **options) == [captions[n] for n in unknown]
    for n, text in zip(unknown, translator.translate(sources, **options), strict=True):
        assert all(word in text for word in translator.copier.mark(items[n].source).words)


@pytest.mark.slow
def test_training_a_translator_learns_a_copier(tmp_path):
    pair = {"captions": ("Ein Hund im Schnee.",), "source": "A dog in the snow."}
    items = [Item(f"train-{number}", **pair) for number in range(4)]
    data = CaptionData("mine", {"train": items, "val": items[:1]}, "de", "en")
    tiny = find_preset("translation", "tiny")
    preset = replace(tiny, subwords=250, training=replace(tiny.training, epochs=1))
    fit(NewModel("translation", preset), data, out=tmp_path / "run")
    run = captionlab.load(tmp_path / "run")
    assert run.copier.words == sorted(["a", "dog", "in", "the", "snow", "."])
    assert run.copier.mark("A dog.").words == []
    run.copier = None
    run.save(tmp_path / "run")
    assert not (tmp_path / "run" / Copier.file).exists()
