"""Captions with their probabilities, and what becomes of the others if a picture is broken."""

import math

import pytest
import torch
from PIL import Image

import captionlab
from captionlab.course.toys import BigramCaptioner, empty_memory
from captionlab.decoding import (
    EOS,
    GenerationConfig,
    generate_hypotheses,
    sequence_log_probs,
)
from captionlab.runs import (
    CaptioningError,
    collect_results,
    make_captions,
    stream_results,
)
from captionlab.scenes import generate_scene
from captionlab.subwords import SubwordVocabulary

SCENES = [generate_scene(number) for number in range(1, 5)]


@pytest.fixture(scope="module")
def run():
    return captionlab.load("scenes")


def texts(rows):
    return [[caption.text for caption in captions] for captions in rows]


@pytest.mark.parametrize("penalty", [0.0, 0.7])
def test_the_best_caption_is_that_of_the_search(run, penalty):
    rows = run.generate(SCENES, length_penalty=penalty)
    assert [captions[0].text for captions in rows] == run.caption(SCENES, length_penalty=penalty)
    searched = run.search(run.processor(SCENES), length_penalty=penalty)
    assert [captions[0].ids for captions in rows] == [tuple(one.ids) for one in searched]
    for captions, one in zip(rows, searched, strict=True):
        assert captions[0].score == pytest.approx(one.score, abs=1e-4)


def test_probabilities_are_those_of_the_model(run):
    for caption in run.generate(SCENES[0], num_captions=3):
        memory = run.model.encode(run.processor(SCENES[:1]))
        expected = sequence_log_probs(run.model, memory, torch.tensor([[caption.ids]]))
        assert caption.token_log_probs == pytest.approx(expected[0, 0].tolist(), abs=1e-4)
        assert caption.log_prob == pytest.approx(expected.sum().item(), abs=1e-3)
        assert caption.probability == pytest.approx(math.exp(caption.log_prob))
        assert " ".join(caption.words) == caption.text == str(caption)
        # A word is a token here; the end, which a caption of the largest length lacks, is none.
        has_end = caption.ids[-1] == run.vocabulary.eos
        assert len(caption.words) == len(caption.ids) - has_end
        pairs = zip(caption.word_probs, caption.token_log_probs, strict=False)
        assert all(prob == pytest.approx(math.exp(value)) for prob, value in pairs)
        assert caption.to_dict()["words"] == caption.text.split()


@pytest.mark.parametrize("sample", [False, True])
def test_a_caption_of_pieces_may_be_empty(sample):
    vocabulary = SubwordVocabulary.build(["a red circle", "a blue square"], 300)
    logits = torch.full((len(vocabulary), len(vocabulary)), -1e4)
    logits[:, EOS] = 0.0
    config = GenerationConfig(sample=sample, beam=1)
    toy = BigramCaptioner(logits).eval()
    found = generate_hypotheses(toy, empty_memory(1), vocabulary, config, max_length=5)
    ((caption,),) = make_captions(toy, empty_memory(1), vocabulary, found)
    assert (caption.text, caption.words, caption.word_probs) == ("", (), ())
    assert caption.ids == (EOS,)


def test_several_captions_differ_and_the_best_comes_first(run):
    for captions in run.generate(SCENES, num_captions=3):
        assert len({caption.text for caption in captions}) == 3
        scores = [caption.score for caption in captions]
        assert scores == sorted(scores, reverse=True)


def test_constraints_hold(run):
    plain = run.generate(SCENES[0])[0]
    word = next(word for word in plain.words if len(word) > 3)
    without = run.generate(SCENES, suppress_words=[word], num_captions=2)
    assert all(word not in caption.words for captions in without for caption in captions)
    with_words = run.generate(SCENES, required_words=["blue", "below the"], beam=4)
    for (caption,) in with_words:
        assert "blue" in caption.words
        assert "below the" in caption.text
    length = len(plain.ids) + 3
    assert len(run.generate(SCENES[0], min_length=length)[0].ids) >= length
    assert len(run.generate(SCENES[0], max_length=3)[0].ids) == 3
    unique = run.generate(SCENES[0], min_length=8, no_repeat_ngram=1)[0]
    assert len(set(unique.ids)) == len(unique.ids)


def test_samples_follow_from_their_seed(run):
    settings = {"sample": True, "num_captions": 4, "temperature": 1.5, "top_p": 0.95}
    first = texts(run.generate(SCENES, seed=1, **settings))
    assert first == texts(run.generate(SCENES, seed=1, **settings))
    assert first != texts(run.generate(SCENES, seed=2, **settings))
    # Neither the size of a batch nor a picture that cannot be read changes the others' draws.
    assert first == texts(run.generate(SCENES, seed=1, batch_size=3, **settings))
    gap = list(run.stream([SCENES[0], "absent.jpg", *SCENES[2:]], seed=1, **settings))
    assert isinstance(gap.pop(1), FileNotFoundError)
    assert texts(gap) == [first[0], *first[2:]]
    rest = run.stream(SCENES[2:], seed=1, numbers=[2, 3], **settings)
    assert texts(rest) == first[2:]
    same = run.generate([SCENES[0]] * 3, seed=1, **settings)
    assert len({tuple(captions) for captions in texts(same)}) == 3
    sharp = run.generate(SCENES, sample=True, top_k=1, num_captions=2)
    greedy = run.caption(SCENES, beam=1)
    assert texts(sharp) == [[text, text] for text in greedy]


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"num_captions": 4}, "beam of at least as many"),
        ({"beam": 0}, "beam is 0"),
        ({"seed": 1}, "sample=True"),
        ({"sample": True, "required_words": ["red"]}, "leave out sampling"),
        ({"required_words": "red"}, "list of words"),
        ({"min_length": 5, "max_length": 4}, "max_length is 4"),
    ],
)
def test_settings_that_contradict_are_one_line(settings, line):
    with pytest.raises(ValueError, match=line) as caught:
        GenerationConfig(**settings)
    assert "\n" not in str(caught.value)


def test_words_that_the_model_does_not_know(run):
    with pytest.raises(ValueError, match="does not know zebra"):
        run.generate(SCENES[0], required_words=["zebra"])
    with pytest.raises(ValueError, match="holds no word"):
        run.generate(SCENES[0], required_words=["  "])
    # It is never generated anyway.
    assert run.generate(SCENES[0], suppress_words=["zebra"]) == run.generate(SCENES[0])


def test_a_config_or_settings(run):
    config = GenerationConfig(num_captions=2)
    assert run.generate(SCENES[0], config) == run.generate(SCENES[0], num_captions=2)
    with pytest.raises(ValueError, match="not both"):
        run.generate(SCENES[0], config, beam=4)
    with pytest.raises(ValueError, match="translates"):
        captionlab.load("translation").generate("photo.jpg")


@pytest.fixture
def fifty(tmp_path):
    """Fifty pictures, of which the 20th is broken and the 33rd absent."""
    files = [tmp_path / f"{number:02}.png" for number in range(50)]
    for number, file in enumerate(files):
        Image.new("RGB", (8, 8), (5 * number, 0, 0)).save(file)
    files[19].write_text("no picture")
    files[32].unlink()
    return files


def test_one_bad_picture_does_not_lose_the_others(run, fifty):
    good = [file for number, file in enumerate(fifty) if number not in (19, 32)]
    expected = run.caption(good, batch_size=4)
    expected.insert(19, "")
    expected.insert(32, "")
    with pytest.raises(CaptioningError, match=r"^2 of 50 .*19.png.*32.png") as caught:
        run.caption(iter(fifty), batch_size=8)
    assert caught.value.captions == expected
    assert list(caught.value.errors) == [19, 32]
    with pytest.warns(UserWarning, match="gets no caption") as warned:
        assert run.caption(fifty, on_error="warn", batch_size=8) == expected
    assert [one.filename for one in warned] == [__file__] * 2      # the line that asked for them
    with pytest.warns(UserWarning, match="gets no caption"):
        rows = run.generate(fifty, on_error="warn")
    assert [row[0].text if row else "" for row in rows] == expected
    with pytest.raises(ValueError, match="take 'raise' or 'warn'"):
        run.caption(fifty[:2], on_error="ignore")


def test_one_picture_raises_its_own_error(run, fifty):
    for call in (run.caption, run.generate):
        with pytest.raises(FileNotFoundError, match=r"no picture .*32.png"):
            call(fifty[32])


def test_a_stream_reads_only_a_few_pictures_ahead(run):
    read = []

    def pictures():
        for number in range(1, 100):
            read.append(number)
            yield generate_scene(number)

    stream = run.stream(pictures(), batch_size=2)
    assert len(next(stream)) == 1
    assert len(read) < 10
    stream.close()
    assert len(read) < 10


def test_an_error_of_the_model_is_no_error_of_a_picture(run):
    def fail(*_):
        raise ValueError("broken weights")

    with pytest.raises(ValueError, match="broken weights"):
        list(stream_results(run.processor, SCENES, fail, batch_size=2))
    with pytest.raises(ValueError, match="batch_size is 0"):
        run.caption(SCENES, batch_size=0)
    assert collect_results(["a", "b"], "raise", missing=str) == ["a", "b"]
