"""One configuration goes everywhere; rules and metrics of one's own, as CONTRIBUTING makes them."""

import re
import subprocess
import sys
from copy import deepcopy
from pathlib import Path

import pytest
import torch

import captionlab
from captionlab.course.toys import BigramCaptioner, empty_memory
from captionlab.data import scenes
from captionlab.decoding import (
    GenerationConfig,
    find_rule,
    generate_hypotheses,
    register_rule,
)
from captionlab.metrics import registry
from captionlab.runs import ensemble, evaluate
from captionlab.text import Vocabulary

WORLD = scenes(train=1, val=1, test=6, novel=0)
PICTURES = [item.image for item in WORLD["test"]]


@pytest.fixture
def mine(monkeypatch):
    """The code of CONTRIBUTING that makes a metric and a rule."""
    monkeypatch.setattr(registry, "_SCORERS", dict(registry._SCORERS))
    monkeypatch.setattr("captionlab.decoding.constraints._RULES", {})
    text = (Path(__file__).parent.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = text.partition("## Add a metric or a decoding rule")[2]
    return re.search(r"```python\n(.*?)```", section, re.DOTALL)[1]


def num_long(captions):
    return sum(len(word) > 6 for caption in captions for word in caption.split())


@pytest.mark.java
def test_a_rule_and_a_metric_of_ones_own(mine):
    exec(mine, {})
    run = captionlab.load("scenes")
    assert num_long(run.caption(PICTURES)) > 0
    for settings in ({}, {"sample": True, "seed": 1}, {"required_words": ["small"]}):
        assert num_long(run.caption(PICTURES, rules=["short_words"], **settings)) == 0
    found = evaluate(run, WORLD, meteor=False, rules=["short_words"])
    captions = [row["caption"] for row in found["captions"]]
    assert num_long(captions) == 0
    words = sum(len(caption.split()) for caption in captions) / len(captions)
    assert found["run"]["metrics"]["words"] == found["run"]["blind"]["words"] == words
    assert found["metadata"]["decoding"]["rules"] == ["short_words"]


@pytest.mark.java
@pytest.mark.slow
def test_commands_run_a_plugin_first(mine, tmp_path):
    (tmp_path / "mine.py").write_text(mine)
    command = [sys.executable, "-m", "captionlab.cli", "--plugin", "mine.py"]
    evaluation = [*command, "evaluate", "scenes", "--rule", "short_words", "--data", "scenes"]
    found = subprocess.run(evaluation, cwd=tmp_path, capture_output=True, text=True)
    assert re.search(r"^words +\d", found.stdout, re.MULTILINE), found.stderr


def test_a_plugin_that_is_not_there_is_one_line(tmp_path):
    command = [sys.executable, "-m", "captionlab.cli", "--plugin", str(tmp_path / "none.py"), "doctor"]
    found = subprocess.run(command, capture_output=True, text=True)
    assert found.returncode == 1
    assert "none.py is no Python file" in found.stderr and "Traceback" not in found.stderr


@pytest.mark.parametrize(
    "settings",
    [
        {"length_penalty": 99.0},
        {"length_penalty": float("nan")},
        {"length_penalty": "1"},
        {"sample": True, "length_penalty": -11},
        {"sample": True, "temperature": -1.0},
        {"sample": True, "top_p": 1.5},
    ],
)
def test_a_number_out_of_its_range_is_found_before_the_work(settings):
    with pytest.raises(ValueError, match=f"{list(settings)[-1]} is .*: take a number"):
        GenerationConfig(**settings)


def test_an_unknown_rule_is_found_before_the_work():
    with pytest.raises(ValueError, match="no rule 'rhyme': registered are .*register_rule"):
        GenerationConfig(rules=["rhyme"])
    with pytest.raises(ValueError, match="rules is a string"):
        GenerationConfig(rules="rhyme")
    with pytest.raises(ValueError, match="no rule 'rhyme'"):
        find_rule("rhyme")


def test_an_empty_list_is_the_default():
    config = GenerationConfig(rules=[], required_words=[], suppress_words=["dog"])
    assert config.to_dict() == {"beam": 3, "length_penalty": 0.0, "suppress_words": ["dog"]}
    assert hash(config) == hash(GenerationConfig(suppress_words=("dog",)))


def test_a_seed_decides_what_is_sampled():
    vocabulary = Vocabulary.build(["a red circle", "a blue square"], min_count=1)
    toy = BigramCaptioner(torch.zeros(len(vocabulary), len(vocabulary))).eval()
    config = GenerationConfig(sample=True, seed=3, num_captions=4)

    def ids(pictures, numbers=None):
        memory = empty_memory(pictures)
        found = generate_hypotheses(
            toy, memory, vocabulary, config, max_length=9, numbers=numbers
        )
        return [[one.ids for one in captions] for captions in found]

    first, second = ids(2)
    assert first != second
    assert ids(2) == [first, second]
    assert ids(1, numbers=[1]) == [second]


def test_a_rule_that_returns_no_log_probabilities_is_named(mine):
    register_rule("lost", lambda vocabulary: lambda ids, log_probs: None)
    for settings in ({}, {"sample": True, "seed": 1}):
        with pytest.raises(ValueError, match="the rule 'lost' returned NoneType instead of"):
            captionlab.load("scenes").caption(PICTURES[:1], rules=["lost"], **settings)


SETTINGS = [
    {"beam": 5, "length_penalty": 0.7},
    {"no_repeat_ngram": 2},
    {"required_words": ["small"]},
    {"suppress_words": ["circle"], "min_length": 9},
    {"sample": True, "seed": 3, "top_p": 0.9, "num_captions": 2},
]


@pytest.mark.java
@pytest.mark.parametrize("settings", SETTINGS)
def test_evaluation_scores_what_the_run_captions(settings):
    run = captionlab.load("scenes")
    expected = run.caption(PICTURES, **settings)
    found = evaluate(run, WORLD, meteor=False, blind=False, **settings)
    assert [row["caption"] for row in found["captions"]] == expected
    assert found["metadata"]["decoding"] == {"beam": 3, "length_penalty": 0.0} | settings
    config = GenerationConfig(**settings)
    assert run.caption(PICTURES, config) == expected
    assert [rows[0].text for rows in run.generate(PICTURES, config)] == expected
    batch = run.processor(PICTURES)
    assert [run.vocabulary.decode(one.ids) for one in run.search(batch, config)] == expected


def test_translations_obey_the_same_configuration():
    run = captionlab.load("translation")
    text = "A man rides a bike."
    assert "straße" in run.translate(text, required_words=["straße"])
    assert "mann" not in run.translate([text], suppress_words=["mann"])[0]
    texts = [text, "A dog runs.", text]
    samples = run.translate(texts, sample=True, seed=1, temperature=2.0)
    assert samples == run.translate(texts, sample=True, seed=1, temperature=2.0, batch_size=1)
    assert samples[0] != samples[2]
    assert run.translate(text) == run.translate(text, GenerationConfig(beam=5))


def test_a_config_and_settings_are_one_too_many():
    run = captionlab.load("scenes")
    with pytest.raises(ValueError, match="give a config, or beam, not both"):
        run.caption(PICTURES[0], GenerationConfig(), beam=5)
    with pytest.raises(TypeError, match="width"):
        run.caption(PICTURES[0], width=5)


def test_an_ensemble_is_a_run_like_any_other(tmp_path):
    run = captionlab.load("scenes")
    twice = ensemble(run, [run])
    assert twice.caption(PICTURES) == run.caption(PICTURES)
    texts = [[one.text for one in row] for row in twice.generate(PICTURES, num_captions=2)]
    assert texts == [[one.text for one in row] for row in run.generate(PICTURES, num_captions=2)]
    assert twice.caption(PICTURES[0]) == run.caption(PICTURES[0])
    with pytest.raises(ValueError, match="an ensemble is not saved"):
        twice.save(tmp_path / "twice")
    assert not [*tmp_path.iterdir()]


def test_an_ensemble_can_be_copied():
    run = captionlab.load("scenes")
    copied = deepcopy(ensemble(run, [run]))
    assert copied.caption(PICTURES[0]) == run.caption(PICTURES[0])


def test_an_ensemble_reads_what_its_members_read():
    """The mean of the probabilities, of members that see the same pictures."""
    run = captionlab.load("scenes")
    twice = ensemble(run, [run])
    batch = twice.processor(PICTURES)
    other = run.processor(PICTURES)
    for name, value in vars(other).items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(getattr(batch, name), value)
