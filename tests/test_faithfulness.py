"""Faithfulness of attention: erasing a position, against masks and a known model."""

import json
import os
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from captionlab.attention import KeyValue
from captionlab.captioner import Captioner, Memory, State
from captionlab.data.datasets import scenes
from captionlab.decoding.ensemble import Ensemble
from captionlab.explore import faithfulness
from captionlab.explore.faithfulness import (
    draw_others,
    evaluate_faithfulness,
    read_captions,
    write_faithfulness,
)
from captionlab.features.image_processor import ImageProcessor
from captionlab.models import cptr, vanilla
from captionlab.runs.fitting import NewModel, fit
from captionlab.runs.run import Run
from captionlab.text import Vocabulary

os.environ["TQDM_DISABLE"] = "1"
BRIEF = replace(
    vanilla.PRESETS["tiny"], training=replace(vanilla.PRESETS["tiny"].training, epochs=1)
)
MODELS = {"vanilla": (vanilla, BRIEF), "cptr": (cptr, cptr.PRESETS["tiny"])}


@pytest.fixture(scope="module")
def world():
    return scenes(train=40, val=4, test=8, novel=0)


@pytest.fixture(scope="module")
def trained(world, tmp_path_factory):
    """A run of one epoch on 40 scenes."""
    return fit(
        NewModel("vanilla", BRIEF), world, seed=3, out=tmp_path_factory.mktemp("runs") / "tiny"
    )


def fresh(name):
    """An untrained run."""
    module, preset = MODELS[name]
    vocabulary = Vocabulary(["a", "red", "circle"])
    torch.manual_seed(0)
    return Run(module.Model(preset, len(vocabulary)).eval(), vocabulary, ImageProcessor(preset))


class TestErasure:
    @pytest.mark.parametrize("name", ["vanilla", "cptr"])
    def test_each_word_alone_loses_sight(self, name, world):
        """Against all words at once, with a mask that hides one cell from the last word alone."""
        run, T, N = fresh(name), 4, 64
        memory = run.model.encode(run.processor([item.image for item in world["test"]]))
        ids = torch.randint(4, 7, (len(memory), T))
        p_full, attention = read_captions(run.model, memory, ids)
        hidden = attention.argmax(-1)
        p_hidden, attention_hidden = read_captions(run.model, memory, ids, hidden)
        assert (attention_hidden.gather(-1, hidden[..., None]) == 0).all()
        rows = torch.arange(len(memory))
        before = torch.cat([torch.ones(len(ids), 1, dtype=torch.long), ids], 1)
        for t in range(T):
            last = run.model.decode(memory, before[:, None, : t + 1])[:, 0, -1].softmax(-1)[
                rows, ids[:, t]
            ]
            torch.testing.assert_close(p_full[:, t], last)
            mask = torch.ones(len(memory), 1, t + 1, N, dtype=torch.bool)
            mask[rows, 0, -1, hidden[:, t]] = False
            last = run.model.decode(replace(memory, mask=mask), before[:, None, : t + 1])[
                :, 0, -1
            ].softmax(-1)[rows, ids[:, t]]
            torch.testing.assert_close(p_hidden[:, t], last)
        assert not torch.equal(p_hidden, p_full)

    def test_returns_the_attention_of_each_word(self, trained, world):
        run, item = trained, world["test"][0]
        words, weights = run.trace(item.image, beam=1)
        seen = run.processor([item.image])
        ids = torch.tensor([run.search(seen, beam=1)[0].ids])
        _, attention = read_captions(run.model, run.model.encode(seen), ids)
        torch.testing.assert_close(attention[0, : len(words)], weights)

    def test_a_model_that_reads_one_cell(self):
        """Its t-th word depends on cell t alone: without it the word is as likely as any."""

        class Points(Captioner):
            def start(self, memory, captions=1):
                return State(memory, [], captions)

            def step(self, state, tokens, trace=None):
                weights = torch.full((3, 1, 1, 5), 0.1)
                weights[..., state.position] = 0.6
                if trace is not None:
                    trace["cross"].append(weights)
                seen = (
                    torch.ones(3, 5)
                    if state.memory.mask is None
                    else state.memory.mask[:, 0, 0].float()
                )
                logits = torch.zeros(3, 1, 9)
                logits[:, 0, 4] = 10 * seen[:, state.position]
                return logits, replace(state, position=state.position + 1)

        memory = Memory([KeyValue(torch.zeros(3, 1, 5, 1), torch.zeros(3, 1, 5, 1))])
        ids = torch.tensor([[4, 4, 2], [4, 2, 0], [4, 4, 4]])
        p_full, attention = read_captions(Points(), memory, ids)
        attended = attention.argmax(-1)
        assert attended.tolist() == [[0, 1, 2]] * 3
        p_erased, _ = read_captions(Points(), memory, ids, attended)
        p_random, _ = read_captions(Points(), memory, ids, draw_others(attention > 0, attended))
        words = ids == 4
        assert (p_full[words] > 0.99).all()
        assert torch.equal(p_random[words], p_full[words])
        torch.testing.assert_close(p_erased[words], torch.full((6,), 1 / 9))

    @pytest.mark.slow
    def test_one_model_twice_is_explained_as_the_model(self, trained, world):
        model, seen = trained.model, trained.processor([world["test"][0].image])
        twice = Ensemble([model, model]).eval()
        ids = torch.tensor([trained.search(seen, beam=1)[0].ids])
        one_full, one_attention = read_captions(model, model.encode(seen), ids)
        both_full, both_attention = read_captions(twice, twice.encode(seen), ids)
        torch.testing.assert_close(both_full, one_full)
        torch.testing.assert_close(both_attention, one_attention)

    def test_other_positions_are_allowed_and_not_the_attended_one(self):
        allowed = torch.tensor([[[True, True, False, True], [False, True, False, True]]])
        attended = torch.tensor([[0, 2]])
        drawn = [draw_others(allowed, attended, seed)[0].tolist() for seed in range(40)]
        assert {one for one, _ in drawn} == {other for _, other in drawn} == {1, 3}

    def test_a_single_position_has_no_control(self):
        with pytest.raises(ValueError, match="no other position is allowed"):
            draw_others(torch.ones(1, 2, 1, dtype=torch.bool), torch.zeros(1, 2, dtype=torch.long))

    @pytest.mark.slow
    def test_over_a_split_and_as_a_file(self, trained, world, own_results):
        run = trained
        found = evaluate_faithfulness(run, world, batch_size=3)
        said = run.caption([item.image for item in world["test"]])
        assert found["words"] == sum(len(text.split()) for text in said)
        assert sum(word["times"] for word in found["by_word"].values()) == found["words"]
        total = (
            sum(word["times"] * word["own"] for word in found["by_word"].values()) / found["words"]
        )
        assert abs(total - found["own"]) < 0.02
        vocabulary = SimpleNamespace(decode=lambda ids: {5: "es", 6: "es", 7: "hund"}[ids[0]])
        rows = [(5, 0.8, 0.6, 0.7), (6, 0.4, 0.4, 0.4), (7, 0.5, 0.4, 0.5)]
        by_word = faithfulness._probability_drops(vocabulary, rows)["by_word"]
        assert by_word == {
            "es": {"times": 2, "own": 10.0, "control": 5.0},
            "hund": {"times": 1, "own": 10.0, "control": 0.0},
        }
        file = write_faithfulness(found)
        assert file == own_results / "scenes" / "vanilla-own-xe.seed3.explain.json"
        assert json.loads(file.read_text()) == found


class TestFile:
    def test_explained_words_of_another_run_are_not_overwritten(
        self, trained, world, tmp_path, monkeypatch
    ):
        (tmp_path / "results").mkdir()
        (tmp_path / "results" / "README.md").touch()
        monkeypatch.chdir(tmp_path)
        result = evaluate_faithfulness(trained, world)
        path = write_faithfulness(result)
        with pytest.raises(ValueError, match=r"its boxes is None, that of this run is 'mine.npz'"):
            write_faithfulness(result | {"boxes": "mine.npz"})
        assert write_faithfulness(result | {"own": 1.0}) == path
        monkeypatch.setattr(
            faithfulness,
            "read_captions",
            lambda *_, **__: pytest.fail("the work was done before the refusal"),
        )
        with pytest.raises(ValueError, match="decoding"):
            evaluate_faithfulness(trained, world, beam=2, check_output=True)
