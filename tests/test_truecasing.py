"""Truecasing: German words get their case back."""

import json
from dataclasses import replace

import pytest

import captionlab
from captionlab.data.datasets import CaptionData, Item, multi30k
from captionlab.metrics import score_translations
from captionlab.models import find_preset
from captionlab.runs import results
from captionlab.runs.fitting import NewModel, fit
from captionlab.runs.run import Run
from captionlab.truecasing import (
    Truecaser,
)

@pytest.fixture(scope="module")
def translator() -> Run:
    return captionlab.load("translation")


def test_the_most_frequent_case_counts_and_sentence_starts_do_not():
    sentences = ["Rot ist der Ball.", "Der Ball ist rot.", "Das Rot.", "Ein Ball, rot."]
    truecaser = Truecaser.learn(sentences, "de")
    assert truecaser.words == ["Ball"]
    assert truecaser("der ball ist rot. ein ball?") == "Der Ball ist rot. Ein Ball?"


def test_words_that_were_not_learned_stay_as_they_are():
    truecaser = Truecaser(["Hund", "T-Shirt", "USA"], "de")
    text = 'ein hund im t-shirt aus den usa heißt "Bello" & mag 犬 <b>, 3,5 | 4.'
    expected = 'Ein Hund im T-Shirt aus den USA heißt "Bello" & mag 犬 <b>, 3,5 | 4.'
    assert truecaser(text) == expected
    assert truecaser("") == ""


def test_folder_round_trip(tmp_path):
    assert Truecaser.load(tmp_path) is None
    Truecaser(["Hund", "Äpfel"], "de").save(tmp_path)
    again = Truecaser.load(tmp_path)
    assert again is not None
    assert (again.words, again.language) == (["Hund", "Äpfel"], "de")


@pytest.mark.parametrize(
    "content",
    ["[", "[]", '{"words": ["Hund"]}', '{"words": ["hund"], "language": "de"}',
     '{"words": ["HUND", "Hund"], "language": "de"}', '{"words": [1], "language": "de"}',
     '{"words": "Hund", "language": "de"}'],
)
def test_a_broken_file_is_one_line(tmp_path, content):
    (tmp_path / Truecaser.file).write_text(content)
    with pytest.raises(ValueError, match=Truecaser.file) as caught:
        Truecaser.load(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_the_packaged_translator_writes_german(translator, tmp_path):
    sentence = "A man in a blue shirt plays with two dogs."
    cased = translator.translate(sentence, truecase=True)
    assert cased == "Ein Mann in einem blauen Hemd spielt mit zwei Hunden."
    assert translator.translate(sentence) == cased.lower()
    assert translator.translate([sentence, ""], truecase=True) == [cased, ""]
    again = captionlab.load(translator.save(tmp_path / "run"))
    assert again.truecaser.words == translator.truecaser.words
    plain = replace(translator, truecaser=None)
    with pytest.raises(ValueError, match="this run has no truecaser"):
        plain.translate(sentence, truecase=True)
    plain.save(tmp_path / "run")
    assert not (tmp_path / "run" / Truecaser.file).exists()


@pytest.mark.slow
def test_cased_translations_score_what_their_row_says(translator, real_data):
    items = multi30k(real_data / "multi30k")["test"]
    references = [item.captions[0] for item in items]
    name = "multi30k/translation-truecased-strong-distilled-scst"
    row = results.load_result(name)["runs"][0]
    plain = results.load_result(name.replace("-truecased", ""))["runs"][0]
    stored = results.result_file(f"{name}.seed0.captions.json").read_text()
    cased = [entry["caption"] for entry in json.loads(stored)]
    assert cased == [translator.truecaser(text.lower()) for text in cased]
    scores = score_translations(cased, references, ter=False)
    assert scores == pytest.approx({key: row["metrics"][key] for key in scores})
    assert row["metrics"]["BLEU"] == pytest.approx(plain["metrics"]["BLEU"], abs=0.1)
    assert row["metrics"]["sacreBLEU"] > plain["metrics"]["sacreBLEU"] + 30


@pytest.mark.slow
def test_training_a_translator_learns_a_truecaser(tmp_path):
    pair = {"captions": ("Ein Hund im Schnee.",), "source": "A dog in the snow."}
    items = [Item(f"train-{number}", **pair) for number in range(4)]
    data = CaptionData("mine", {"train": items, "val": items[:1]}, "de", "en")
    tiny = find_preset("translation", "tiny")
    preset = replace(tiny, subwords=250, training=replace(tiny.training, epochs=1))
    fit(NewModel("translation", preset), data, out=tmp_path / "run")
    assert captionlab.load(tmp_path / "run").truecaser.words == ["Hund", "Schnee"]
