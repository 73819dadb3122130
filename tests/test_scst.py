"""SCST: rewards against pycocoevalcap, the gradient against the exact one, and runs."""

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from nltk.translate.gleu_score import sentence_gleu
from pycocoevalcap.cider.cider import Cider
from torch import nn

from captionlab import rewards as rewards_module
from captionlab import scst
from captionlab.blocks import BlockConfig
from captionlab.captioner import TransformerCaptioner
from captionlab.course.toys import BigramCaptioner
from captionlab.data.batches import Batch
from captionlab.data.datasets import scenes
from captionlab.decoding.generation import log_probabilities, sample, sequence_log_probs
from captionlab.models import translation, vanilla
from captionlab.rewards import CiderD, Gleu
from captionlab.runs import catalog
from captionlab.runs.evaluation import evaluate
from captionlab.runs.fitting import NewModel, fit
from captionlab.runs.objectives import SCST
from captionlab.scst import SelfCritical, advantages
from captionlab.subwords import SubwordVocabulary

PAD, BOS, EOS = 0, 1, 2
similarity = Gleu.similarity
CAPTION = st.lists(st.integers(2, 8), min_size=1, max_size=9)
SPLIT = st.lists(
    st.tuples(st.lists(CAPTION, min_size=1, max_size=4), st.lists(CAPTION, min_size=2, max_size=2)),
    min_size=2,
    max_size=6,
)


def text(ids):
    return " ".join(map(str, ids))


def padded(rows, width=12):
    return torch.tensor(
        [[ids + [PAD] * (width - len(ids)) for ids in captions] for captions in rows]
    )


class Table(BigramCaptioner):
    """The next word depends on the last one alone; a share of the table may be dropped."""

    def __init__(self, words=6, dropout=0.0):
        torch.manual_seed(1)
        super().__init__(torch.randn(words, words))
        self.dropout = nn.Dropout(dropout)

    def step(self, state, tokens, trace=None):
        return self.decode(None, tokens), state

    def decode(self, memory, tokens):
        return self.dropout(self.table)[tokens]


def likes(word):
    """Rewards 1 for every caption that has the word."""
    return lambda said, references: (said == word).any(-1).float()


class TestReward:
    def test_each_picture_is_scored_with_its_own_references(self):
        reward = CiderD([[[3, 4, 2]], [[5, 6, 2]], [[7, 2]]])
        said = padded([[[3, 4, 2], [5, 6, 2]], [[5, 6, 2], [7, 2]]])
        told = padded([[[3, 4, 2], []], [[5, 6, 2], [7, 2]]])
        rewards = reward(said, told)
        alone = torch.cat([reward(said[row : row + 1], told[row : row + 1]) for row in range(2)])
        torch.testing.assert_close(rewards, alone)
        assert rewards[0, 0] > 5
        assert rewards[0, 1] == 0
        assert (rewards[1] > 2).all()

    @pytest.mark.slow
    @given(SPLIT)
    @settings(max_examples=60, deadline=None)
    def test_equals_pycocoevalcap(self, split):
        told = {row: [text(ids) for ids in references] for row, (references, _) in enumerate(split)}
        ours = CiderD([references for references, _ in split])
        for place in range(2):
            said = {row: [text(captions[place])] for row, (_, captions) in enumerate(split)}
            _, each = Cider().compute_score(told, said)
            mine = [ours.score([captions[place]], references)[0] for references, captions in split]
            np.testing.assert_allclose(mine, each, rtol=1e-9, atol=1e-12)

    def test_no_pictures_and_no_references(self):
        reward = CiderD([[[3, 4, 2]], [[5, 6, 2]]])
        assert reward(padded([[[3, 4, 2]]]), padded([[[]]])).tolist() == [[0.0]]
        empty = torch.zeros(0, 5, 12, dtype=torch.long)
        assert reward(empty, empty).shape == (0, 5)

    def test_padding_and_missing_references_count_for_nothing(self):
        reward = CiderD([[[3, 4, 2]], [[5, 6, 2]], [[7, 2]]])
        said, told = padded([[[3, 4, 2], [3, 2]]]), padded([[[3, 4, 2], [5, 4, 2], []]])
        assert reward(said, told)[0].tolist() == pytest.approx(
            reward.score([[3, 4, 2], [3, 2]], [[3, 4, 2], [5, 4, 2]])
        )
        assert reward(said, padded([[[]]])).tolist() == [[0.0, 0.0]]

    def test_what_is_in_every_picture_weighs_nothing(self):
        reward = CiderD([[[3, 4, 2]], [[3, 5, 2]]])
        idf = reward._idf_of(torch.tensor([3, 4, 9, PAD]))
        assert idf.tolist() == pytest.approx([0, math.log(2), math.log(2), 0])
        assert reward.score([[3]], [[3]]) == [0.0]

    @given(CAPTION)
    def test_each_n_gram_has_a_number(self, ids):
        numbers = rewards_module._number_grams(torch.tensor([*ids, PAD, PAD])).flatten().tolist()
        counts = Counter(number for number in numbers if number)
        assert sorted(counts.values()) == sorted(rewards_module._count_grams(ids).values())

    def test_counts(self):
        assert rewards_module._count_grams([3, 3, 4]) == {(3,): 2, (4,): 1, (3, 3): 1, (3, 4): 1, (3, 3, 4): 1}


@given(st.lists(st.lists(st.floats(0, 10), min_size=3, max_size=3), min_size=1, max_size=4))
def test_advantages_compare_with_the_others(rewards):
    found = advantages(torch.tensor(rewards, dtype=torch.float64))
    for row, gained in zip(rewards, found.tolist(), strict=True):
        for place, gain in enumerate(gained):
            assert gain == pytest.approx(row[place] - (sum(row) - row[place]) / 2, abs=1e-9)


class TestGradient:
    def test_equals_the_exact_one(self):
        toy, max_length = Table(), 3

        def everything(said=(), chance=1.0):
            if len(said) == max_length or (said and said[-1] == EOS):
                return chance * float(4 in said)
            row = log_probabilities(toy.table, renormalise=True).exp()[said[-1] if said else BOS]
            return sum(everything((*said, word), chance * row[word]) for word in range(2, 6))

        (exact,) = torch.autograd.grad(everything(), toy.table)
        torch.manual_seed(0)
        total, words = SelfCritical(toy, likes(4), samples=20_000, max_length=max_length).loss(
            Batch(captions=padded([[[BOS, 4, 2]]]))
        )
        (found,) = torch.autograd.grad(-total / 20_000, toy.table)
        assert 20_000 <= words <= 60_000
        torch.testing.assert_close(
            found, exact, rtol=0, atol=0.02 * exact.abs().max().item() + 0.003
        )

    @pytest.mark.parametrize("renormalise", [True, False])
    def test_suppressed_tokens_leave_the_gradient_exact(self, renormalise, monkeypatch):
        """Captions are drawn without unk; the model's own log-probabilities would be wrong here."""
        toy, unk, a, b = Table(), 3, 4, 5
        with torch.no_grad():
            toy.table[a, unk] += 3.0        # how likely unk is depends on the words before

        def expected_reward(said=(), chance=1.0):
            if len(said) == 3 or EOS in said:
                return chance * float(a in said)
            last = said[-1] if said else BOS
            row = log_probabilities(toy.table[last], [unk], renormalise=True).exp()
            return sum(expected_reward((*said, token), chance * row[token]) for token in (EOS, a, b))

        exact, = torch.autograd.grad(expected_reward(), toy.table)
        if not renormalise:
            monkeypatch.setattr(scst, "sequence_log_probs",
                                lambda *args, **_: sequence_log_probs(*args))
        torch.manual_seed(0)
        critic = SelfCritical(toy, likes(a), samples=20_000, max_length=3, suppress_tokens=[unk])
        total, _ = critic.loss(Batch(captions=padded([[[BOS, 4, 2]]])))
        found, = torch.autograd.grad(-total / 20_000, toy.table)
        error = (found - exact).abs().max() / exact.abs().max()
        assert error < 0.05 if renormalise else error > 0.2

    def test_equal_marks_teach_nothing(self):
        toy = Table()
        total, _ = SelfCritical(toy, lambda said, told: torch.ones(said.shape[:2])).loss(
            Batch(captions=padded([[[1, 4, 2]]]))
        )
        total.backward()
        assert total == 0
        assert not toy.table.grad.any()

    def test_it_learns_what_is_rewarded(self):
        torch.manual_seed(0)
        critic = SelfCritical(Table(), likes(4), samples=50, max_length=4)
        learn, batch = (
            torch.optim.Adam(critic.parameters(), 0.1),
            Batch(captions=padded([[[1, 4, 2]]] * 4)),
        )
        before = critic.reward(critic.sample_captions(critic.encode(batch)), None).mean()
        for _ in range(40):
            learn.zero_grad(), critic.loss(batch)[0].backward(), learn.step()
        assert critic.reward(critic.sample_captions(critic.encode(batch)), None).mean() > max(
            0.95, before + 0.1
        )


class TestSelfCritical:
    def test_log_probabilities_are_those_of_the_draw(self):
        class GridCaptioner(TransformerCaptioner):
            def encode_inputs(self, batch):
                return batch.require("grid"), None

        torch.manual_seed(0)
        model, pictures = GridCaptioner(BlockConfig(16, 2, 32, dropout=0.1), 2, 9).eval(), 21
        model.output.bias.data[EOS] += 1.0  # some captions end soon, some go on
        batch = Batch(grid=torch.randn(pictures, 5, 16), captions=padded([[[1, 4, 2]]] * pictures))
        memory = model.encode(batch)
        said, scores = sample(model, memory, 4, max_length=24, suppress_tokens=[3])
        found = SelfCritical(model, likes(4), 4, 24, suppress_tokens=[3]).token_log_probs(memory, said)
        with torch.no_grad():
            drawn, plain = (sequence_log_probs(model, memory, said, [3], renormalise=flag) for flag in (True, False))
        torch.testing.assert_close(found, drawn, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(plain.sum(-1), scores, rtol=1e-4, atol=1e-5)
        assert (found[said != PAD] > plain[said != PAD]).all()
        assert not (said == 3).any() and not found[said == PAD].any()
        assert len((said != PAD).sum(-1).amax(-1).unique()) > 2      # so the groups are not equally long

    def test_a_process_without_a_picture_of_a_batch_learns_nothing(self):
        toy = Table()
        total, words = SelfCritical(toy, likes(4), samples=3, max_length=4).loss(
            Batch(captions=torch.zeros(0, 1, 3, dtype=torch.long))
        )
        total.backward()
        assert total == words == 0
        assert not toy.table.grad.any()

    @pytest.mark.parametrize("learning", [True, False])
    def test_nothing_is_dropped_while_it_learns(self, learning):
        """The gradient is that of the network that drew."""
        toy, batch, found = Table(dropout=0.9), Batch(captions=padded([[[1, 4, 2]]])), []
        for net in (
            SelfCritical(toy.train(), likes(4), samples=30, max_length=4).train(learning),
            SelfCritical(toy.eval(), likes(4), samples=30, max_length=4),
        ):
            torch.manual_seed(3)
            found.append(torch.autograd.grad(net.loss(batch)[0], toy.table)[0])
        assert found[0].equal(found[1])
        assert found[0].any()
        assert not toy.training

    def test_one_sample_has_nothing_to_be_compared_with(self):
        with pytest.raises(ValueError, match="sample 2 or more"):
            SelfCritical(Table(), likes(4), samples=1)


@pytest.fixture(scope="module")
def world():
    return scenes(train=40, val=4, test=6, novel=0)


@pytest.fixture(scope="module")
def learned(world, tmp_path_factory):
    """A run of one epoch whose preset has one more of SCST."""
    small = vanilla.PRESETS["tiny"]
    preset = replace(
        small,
        training=replace(small.training, epochs=1),
        scst=replace(small.scst, epochs=1, lr=1e-4),
    )
    folder = tmp_path_factory.mktemp("runs") / "xe"
    return fit(NewModel("vanilla", preset), world, seed=5, out=folder), folder


class TestRun:
    @pytest.mark.java
    @pytest.mark.slow
    def test_it_goes_on_from_a_run_and_resumes(self, learned, world, tmp_path):
        start, folder = learned
        made = fit(folder, world, SCST(), out=tmp_path / "scst")
        again = fit(folder, world, SCST(), out=tmp_path / "scst", resume=True)
        metadata = catalog.load(str(tmp_path / "scst")).metadata
        assert (metadata.stage, metadata.seed, metadata.parameters) == (
            "scst",
            5,
            start.metadata.parameters,
        )
        assert [set(record) >= {"loss", "score"} for record in metadata.history] == [True]
        torch.testing.assert_close(
            again.model.state_dict(), made.model.state_dict(), rtol=0, atol=0
        )
        assert not torch.equal(made.model.words.weight, start.model.words.weight)
        assert evaluate(made, world, meteor=False)["metadata"]["stage"] == "scst"

    def test_refusals(self, learned, world, tmp_path):
        with pytest.raises(ValueError, match="SCST goes on from a trained run"):
            fit(NewModel("vanilla"), world, SCST(), out=tmp_path / "x")
        with pytest.raises(ValueError, match="--resume"):
            fit(learned[1], world, SCST(), out=learned[1])
        with pytest.raises(
            ValueError,
            match=f"learned from {world.name} and goes on with that: leave another out",
        ):
            fit(learned[1], replace(world, name="another"), SCST(), out=tmp_path / "x")


class TestTranslations:
    @given(st.lists(CAPTION, min_size=1, max_size=4), CAPTION)
    def test_equals_nltk(self, references, said):
        theirs = 10 * sentence_gleu(references, said)
        assert Gleu(list).score([said], references) == [pytest.approx(theirs)]

    def test_words_are_judged_and_not_their_pieces(self):
        german = SubwordVocabulary.build(
            ["ein roter kreis", "ein rotes quadrat"], 300
        )
        told, near, far = (
            german.encode(words)[1:]
            for words in ("ein roter kreis", "ein rotes kreis", "ein quadrat kreis")
        )
        assert set(near) & set(told) > set(far) & set(told)
        rewards = Gleu(german.words)(padded([[told, near, far]], 40), padded([[told]], 40))
        torch.testing.assert_close(rewards, torch.tensor([[10.0, 10 * 2 / 6, 10 * 2 / 6]]))

    def test_without_reference_nothing_is_worth_anything(self):
        assert Gleu(list)(padded([[[3, 4], []]]), padded([[[]]])).tolist() == [[0.0, 0.0]]

    @pytest.mark.slow
    def test_a_translator_goes_on_by_gleu(self, tmp_path, monkeypatch):
        small, calls = translation.PRESETS["tiny"], []

        def count_calls(self, *sentences):
            calls.append(1)
            return similarity(self, *sentences)

        monkeypatch.setattr(Gleu, "similarity", count_calls)
        preset = replace(
            small,
            training=replace(small.training, epochs=1),
            scst=replace(small.scst, epochs=1, lr=1e-4),
        )
        pairs = scenes(train=8, val=2, test=0, novel=0, language="de", source="en")
        start = fit(NewModel("translation", preset), pairs, out=tmp_path / "run")
        made = fit(tmp_path / "run", pairs, SCST(), out=tmp_path / "scst")
        assert len(calls) == 5 * len(pairs["train"])
        assert made.metadata.stage == "scst"
        assert not torch.equal(made.model.words.weight, start.model.words.weight)


def test_a_process_without_a_picture_has_no_rewards():
    reward = CiderD([[[5, 6]], [[7]]])
    assert reward(
        torch.zeros(0, 5, 4, dtype=torch.long), torch.zeros(0, 3, 6, dtype=torch.long)
    ).shape == (0, 5)
