"""Decoding against exhaustive search, in other batches, and against its own probabilities."""

import math
from dataclasses import replace
from itertools import product
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from benchmarks import memory
from captionlab.attention import KeyValue
from captionlab.blocks import BlockConfig
from captionlab.captioner import Captioner, Memory, State, TransformerCaptioner
from captionlab.data.batches import Batch
from captionlab.decoding import generation
from captionlab.decoding.beam import beam_search, nbest_search
from captionlab.decoding.ensemble import Ensemble, mean_probabilities
from captionlab.decoding.generation import (
    apply_temperature,
    greedy,
    keep_top_k,
    keep_top_p,
    log_probabilities,
    sample,
    sequence_log_probs,
)
from captionlab.models import cptr

PAD, BOS, EOS, WIDTH, V = 0, 1, 2, 16, 7
SEEDS = st.integers(0, 10_000)
PENALTIES = st.sampled_from([-0.5, 0.0, 0.7, 1.0, 2.0])


class GridCaptioner(TransformerCaptioner):
    """A captioner of cells, some of which are padding: those that are all 0."""

    def __init__(self, words=V):
        super().__init__(BlockConfig(WIDTH, 2, 2 * WIDTH), 2, words, tied=False)
        self.projection = nn.Linear(3, WIDTH)

    def encode_inputs(self, batch):
        grid = batch.require("grid")
        return self.projection(grid), (grid != 0).any(-1)[:, None, None]


class Watched(GridCaptioner):
    """Keeps how many pictures and captions each step worked on."""

    def __init__(self, words=V):
        super().__init__(words)
        self.seen = []

    def step(self, state, tokens, trace=None):
        self.seen.append((len(state.memory), len(state.memory.layers[0].key), tuple(tokens.shape)))
        return super().step(state, tokens, trace)


class Table(Captioner):
    """The next word depends on the last word and how many there were, by a table `(T, V, V)`."""

    def __init__(self, table):
        super().__init__()
        self.table = nn.Parameter(table)

    def start(self, memory, captions=1):
        return State(memory, [], captions)

    def step(self, state, tokens, trace=None):
        return self.table[state.position][tokens], State(
            state.memory, [], state.captions, state.position + 1
        )


def blank(pictures):
    nothing = torch.zeros(pictures, 1, 1, 1)
    return Memory([KeyValue(nothing, nothing)])


def model_of(seed, kind=GridCaptioner, words=V, sharp=2.0):
    """A random captioner whose next token depends on all tokens before and on the picture."""
    torch.manual_seed(seed)
    model = kind(words).double().eval()
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=2 * layer.in_features**-0.5)
    nn.init.normal_(model.output.weight, std=sharp * WIDTH**-0.5)
    return model


def grid_of(seed, pictures=4, cells=5):
    return (
        torch.rand(pictures, cells, 3, generator=torch.Generator().manual_seed(seed)).double() * 4
        - 2
    )


def log_probability(model, memory, row, ids, suppress_tokens=(), renormalise=False):
    """Of one caption of picture `row`, all words at once."""
    tokens = torch.tensor([[[BOS, *ids]]])
    logits = model.decode(memory.select(torch.tensor([row])), tokens[..., :-1])
    options = log_probabilities(logits, suppress_tokens, renormalise=renormalise)
    return options.gather(-1, tokens[..., 1:, None]).sum().item()


def every_caption(words, max_length):
    """All finished captions of up to `max_length` tokens, and unfinished ones of this length."""
    others = range(3, words)
    finished = [(*start, EOS) for t in range(max_length) for start in product(others, repeat=t)]
    return finished, list(product(others, repeat=max_length))


@settings(deadline=None, max_examples=6)
@given(SEEDS, PENALTIES)
def test_a_beam_that_holds_everything_is_exhaustive_search(seed, penalty):
    words, max_length = 5, 3
    model = model_of(seed, words=words)
    memory, (finished, _) = (
        model.encode(Batch(grid=grid_of(seed, 2))),
        every_caption(words, max_length),
    )
    found = beam_search(model, memory, words**max_length, penalty, max_length=max_length)
    for row, best in enumerate(found):
        scores = {
            ids: log_probability(model, memory, row, ids) / len(ids) ** penalty for ids in finished
        }
        truth = max(scores, key=scores.get)
        assert tuple(best.ids) == truth
        assert best.score == pytest.approx(scores[truth], rel=1e-5)


@settings(deadline=None, max_examples=12)
@given(SEEDS, st.integers(1, 9))
def test_a_beam_of_one_is_greedy(seed, max_length):
    model = model_of(seed)
    memory = model.encode(Batch(grid=grid_of(seed)))
    plain = [[n for n in ids if n] for ids in greedy(model, memory, max_length).tolist()]
    assert [best.ids for best in beam_search(model, memory, 1, 0.0, max_length=max_length)] == plain


def by_lists(model, memory, row, width, penalty, max_length):
    """Beam search of one picture with lists, without cache, up to the maximum length."""
    live, best, memory = [((), 0.0)], (None, -math.inf), memory.select(torch.tensor([row]))
    for length in range(1, max_length + 1):
        nexts = [
            log_probabilities(model.decode(memory, torch.tensor([[[BOS, *ids]]])))[0, 0, -1]
            for ids, _ in live
        ]
        options = [
            ((*ids, word), sum_ + steps[word].item())
            for (ids, sum_), steps in zip(live, nexts, strict=True)
            for word in range(EOS, V)
        ]
        options.sort(key=lambda option: -option[1])
        ended = [(ids, s / length**penalty) for ids, s in options[:width] if ids[-1] == EOS]
        best = max([best, *ended], key=lambda option: option[1])
        live = [option for option in options if option[0][-1] != EOS][:width]
    return best if best[0] else (live[0][0], live[0][1] / max_length**penalty)


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(SEEDS, st.integers(1, 4), PENALTIES)
def test_beam_search_equals_its_definition_by_lists(seed, width, penalty):
    """Leaving early, reordering and the cache change nothing."""
    model = model_of(seed)
    memory = model.encode(Batch(grid=grid_of(seed, 2)))
    for row, found in enumerate(beam_search(model, memory, width, penalty, max_length=5)):
        ids, score = by_lists(model, memory, row, width, penalty, max_length=5)
        assert tuple(found.ids) == ids
        assert found.score == pytest.approx(score, rel=1e-5)


@pytest.mark.slow
@settings(deadline=None, max_examples=10)
@given(SEEDS, st.permutations(range(4)), PENALTIES)
def test_batch_order_and_padding_change_nothing(seed, order, penalty):
    model, grid = model_of(seed), grid_of(seed)
    together = beam_search(model, model.encode(Batch(grid=grid)), 3, penalty, max_length=8)
    plain = greedy(model, model.encode(Batch(grid=grid)), 8).tolist()
    padded = torch.cat([grid, torch.zeros(4, 3, 3)], 1)[list(order)]
    memory = model.encode(Batch(grid=padded))
    shuffled, stripped = (
        beam_search(model, memory, 3, penalty, max_length=8),
        lambda ids: [n for n in ids if n],
    )
    for place, row in enumerate(order):
        alone = model.encode(Batch(grid=grid[[row]]))
        (one,) = beam_search(model, alone, 3, penalty, max_length=8)
        assert one.ids == together[row].ids == shuffled[place].ids
        assert one.score == pytest.approx(together[row].score, rel=1e-5)
        assert stripped(greedy(model, alone, 8)[0].tolist()) == stripped(plain[row])
        assert stripped(greedy(model, memory, 8)[place].tolist()) == stripped(plain[row])


def test_a_score_is_the_log_probability_by_the_length():
    model = model_of(3)
    memory = model.encode(Batch(grid=grid_of(3)))
    for penalty in (0.0, 1.0):
        for row, best in enumerate(beam_search(model, memory, 3, penalty, max_length=6)):
            assert best.score == pytest.approx(
                log_probability(model, memory, row, best.ids) / len(best.ids) ** penalty, rel=1e-5
            )


def test_pictures_are_never_copied_and_leave_when_finished():
    model = model_of(2, Watched, sharp=2.0)
    memory = model.encode(Batch(grid=3 * grid_of(2, 12)))
    beam_search(model, memory, 3, max_length=12)
    counts = [pictures for pictures, _, _ in model.seen]
    assert all(keys == pictures for pictures, keys, _ in model.seen)
    # The search starts with one caption of each picture, and branches at the first step.
    assert [shape for _, _, shape in model.seen] == [(12, 1)] + [(n, 3) for n in counts[1:]]
    assert counts[0] == 12
    assert counts == sorted(counts, reverse=True)
    assert counts[-1] < 12


def always(word):
    """A table that always says one word, and never ends."""
    table = torch.full((6, 5, 5), -50.0)
    table[..., word] = 50.0
    return Table(table)


@pytest.mark.parametrize(
    ("penalty", "first", "end", "best"), [(1.0, 0.6, 5, [3] * 5 + [EOS]), (-1.0, 0.2, 1, [3, EOS])]
)
def test_a_search_goes_on_while_the_length_penalty_leaves_hope(penalty, first, end, best):
    """Ending at once is likely, but a longer caption has the better score."""
    table = torch.full((10, 5, 5), 1e-4)
    table[0, :, EOS], table[0, :, 3] = first, 0.9 - first
    table[1:, :, 3] = 0.99
    table[end:, :, 3], table[end:, :, EOS] = 1e-4, 0.99
    (found,) = beam_search(Table(table.log()), blank(1), 2, penalty, max_length=10)
    assert found.ids == best


@pytest.mark.parametrize("penalty", [0.0, 1.0])
def test_longest_reached_without_eos(penalty):
    model, memory = always(3), blank(2)
    assert greedy(model, memory, 4).tolist() == [[3] * 4] * 2
    ids, scores = sample(model, memory, captions=2, max_length=4)
    assert ids.tolist() == [[[3] * 4] * 2] * 2
    assert scores.abs().max() < 1e-5
    for best in beam_search(model, memory, 1, penalty, max_length=4):
        assert best.ids == [3] * 4
        assert best.score == pytest.approx(0, abs=1e-5)


def test_eos_at_once_and_nothing_after_it():
    model, memory = always(EOS), blank(3)
    assert greedy(model, memory, 4).tolist() == [[EOS]] * 3
    assert [best.ids for best in beam_search(model, memory, 3, max_length=4)] == [[EOS]] * 3
    model = model_of(5)
    ids = (
        sample(model, model.encode(Batch(grid=grid_of(5))), captions=20, max_length=9)[0]
        .flatten(0, 1)
        .tolist()
    )
    assert any(PAD in caption for caption in ids)
    for caption in ids:
        end = caption.index(EOS) if EOS in caption else len(caption)
        assert not any(caption[end + 1 :])
        assert not {PAD, BOS} & set(caption[:end])


def test_forbidden_words_are_never_said():
    table = torch.zeros(6, 5, 5)
    table[..., [PAD, BOS]], table[..., 3] = 40.0, 20.0
    model, memory = Table(table), blank(2)
    assert greedy(model, memory, 3).tolist() == [[3] * 3] * 2
    for suppress_tokens, said in (((), {3}), ((3,), {EOS, 4})):
        assert set(greedy(model, memory, 3, suppress_tokens).flatten().tolist()) <= said | {PAD}
        assert (
            set(beam_search(model, memory, 1, max_length=3, suppress_tokens=suppress_tokens)[0].ids)
            <= said
        )
        assert set(
            sample(model, memory, 50, max_length=3, suppress_tokens=suppress_tokens)[0]
            .flatten()
            .tolist()
        ) <= said | {PAD}


def test_suppressed_tokens_leave_the_others_their_probabilities_unless_renormalised():
    logits = torch.randn(3, 4, V)
    kept = torch.tensor([EOS, 4, 5, 6])
    plain = log_probabilities(logits, suppress_tokens=(3,))
    renormalised = log_probabilities(logits, suppress_tokens=(3,), renormalise=True)
    for log_probs in (plain, renormalised):
        assert log_probs[..., [PAD, BOS, 3]].isneginf().all()
    torch.testing.assert_close(plain[..., kept].exp(), logits.softmax(-1)[..., kept])
    torch.testing.assert_close(renormalised[..., kept].exp(), logits[..., kept].softmax(-1))


UNK, A, B = 3, 4, 5


def likely_unknown(unk=0.9):
    """After a mostly the unknown word follows, after b the end; both are as likely at first.

    `unk` is the probability of the unknown word after a.
    """
    probs = torch.zeros(6, 6)
    probs[BOS, [A, B]] = 0.5
    probs[A, EOS], probs[A, UNK] = 1 - unk, unk
    probs[B, EOS], probs[B, A] = 0.9, 0.1
    probs[UNK, EOS] = 1.0
    return Table(probs.log().expand(6, 6, 6).clone())


def likeliest_by_hand(table, penalty=0.0, max_length=4):
    """The best of all captions without unk by its probability under the model, and its score."""
    probs = table.table[0].exp().tolist()
    scores = {}
    for length in range(1, max_length + 1):
        for words in product([A, B], repeat=length - 1):
            steps = zip((BOS, *words), (*words, EOS))
            chance = math.prod(probs[last][token] for last, token in steps)
            scores[(*words, EOS)] = math.log(chance) / length**penalty if chance else -math.inf
    best = max(scores, key=scores.get)
    return list(best), scores[best]


@pytest.mark.parametrize("penalty", [0.0, 1.0])
def test_suppressing_a_token_does_not_favour_what_led_to_it(penalty):
    """Renormalised before the search, a would have 0.5 and win; the model gives it 0.05."""
    toy = likely_unknown()
    (best,) = beam_search(toy, blank(1), 3, penalty, max_length=4, suppress_tokens=[UNK])
    ids, score = likeliest_by_hand(toy, penalty)
    assert best.ids == ids == [B, EOS]
    assert best.score == pytest.approx(score, rel=1e-5)
    assert score == pytest.approx(math.log(0.45) / 2**penalty)


def test_samples_are_drawn_renormalised_and_scored_by_the_model():
    toy, memory = likely_unknown(), blank(1)
    ids, scores = sample(toy, memory, 4000, max_length=4, suppress_tokens=[UNK],
                         generator=torch.Generator().manual_seed(0))
    after_a = ids[0][ids[0, :, 0] == A]
    assert 1800 < len(after_a) < 2200 and (after_a[:, 1] == EOS).all()
    is_a = (ids[0, :, 0] == A) & (ids[0, :, 1] == EOS)
    torch.testing.assert_close(scores[0, is_a].exp(), torch.full((int(is_a.sum()),), 0.05))
    with torch.no_grad():
        logits = [toy.table[0][torch.tensor([BOS, A])]]
    plain, drawn = (log_probabilities(logits[0], [UNK], renormalise=flag) for flag in (False, True))
    assert plain[1, EOS].exp() == pytest.approx(0.1) and drawn[1, EOS].exp() == pytest.approx(1.0)


def test_a_sampler_draws_what_is_left_of_almost_nothing():
    """What is not suppressed has a probability that single precision cannot hold."""
    table = torch.full((6, 6, 6), -50.0)
    table[..., UNK], table[..., EOS] = 150.0, -49.0
    ids, scores = sample(Table(table), blank(1), 50, max_length=3, suppress_tokens=[UNK])
    assert set(ids.flatten().tolist()) <= {PAD, EOS, A, B} and scores.isfinite().all()
    assert len(ids.flatten().unique()) > 2


def test_sampling_frequencies_match_probabilities():
    """Chi-square over all captions of two pictures; a correct sampler passes in 99.9 %."""
    words, max_length, draws = 5, 2, 6000
    model = model_of(2, words=words, sharp=1.0)
    memory = model.encode(Batch(grid=grid_of(2, 2)))
    finished, cut = every_caption(words, max_length)
    ids = sample(
        model, memory, draws, max_length=max_length, generator=torch.Generator().manual_seed(0)
    )[0].tolist()
    for row in range(2):
        counts = dict.fromkeys(finished + cut, 0)
        for caption in ids[row]:
            counts[tuple(n for n in caption if n)] += 1
        expected = {c: draws * math.exp(log_probability(model, memory, row, c, renormalise=True)) for c in counts}
        assert sum(expected.values()) == pytest.approx(draws, rel=1e-4)
        assert (
            sum((counts[c] - e) ** 2 / e for c, e in expected.items()) < 22.5
        )  # 7 captions, 6 degrees of freedom


def test_sampled_log_probabilities_are_the_models_own():
    model = model_of(4)
    memory = model.encode(Batch(grid=grid_of(4)))
    ids, scores = sample(model, memory, 3, temperature=0.7, top_k=3, top_p=0.9, max_length=6)
    for row in range(4):
        for c in range(3):
            caption = [n for n in ids[row, c].tolist() if n]
            assert scores[row, c].item() == pytest.approx(
                log_probability(model, memory, row, caption), rel=1e-4
            )


def test_captions_read_again_have_cross_entropys_log_probabilities():
    torch.manual_seed(0)
    model = GridCaptioner().eval()
    memory = model.encode(Batch(grid=torch.randn(2, 4, 3)))
    said, scores = sample(model, memory, captions=3, max_length=6, suppress_tokens=[3])
    with torch.no_grad():
        found, logits = sequence_log_probs(model, memory, said, [3]), model.decode(memory, nn.functional.pad(said[..., :-1], (1, 0), value=BOS))
        renormalised = sequence_log_probs(model, memory, said, [3], renormalise=True)
    theirs = nn.functional.cross_entropy(logits.flatten(0, 2), said.flatten(), reduction="none", ignore_index=PAD)
    torch.testing.assert_close(found, -theirs.view_as(found))
    torch.testing.assert_close(found.sum(-1), scores, rtol=1e-4, atol=1e-5)
    logits[..., [PAD, BOS, 3]] = -math.inf
    theirs = nn.functional.cross_entropy(logits.flatten(0, 2), said.flatten(), reduction="none", ignore_index=PAD)
    torch.testing.assert_close(renormalised, -theirs.view_as(found))


def test_the_same_generator_gives_the_same_draw_and_cold_is_greedy():
    model = model_of(6)
    memory = model.encode(Batch(grid=grid_of(6)))
    one, two = (
        sample(model, memory, 4, generator=torch.Generator().manual_seed(1))[0] for _ in range(2)
    )
    assert one.equal(two)
    best = greedy(model, memory)
    assert sample(model, memory, 1, temperature=1e-4)[0][:, 0].equal(best)
    assert sample(model, memory, 1, top_k=1)[0][:, 0].equal(best)
    assert sample(model, memory, 1, top_p=1e-6)[0][:, 0].equal(best)


@settings(deadline=None)
@given(SEEDS, st.integers(1, 12))
def test_top_k_keeps_the_k_likeliest(seed, k):
    options = torch.log_softmax(
        torch.randn(4, 9, generator=torch.Generator().manual_seed(seed)), -1
    )
    kept = keep_top_k(options, k).exp()
    assert ((kept > 0).sum(-1) == min(k, 9)).all()
    torch.testing.assert_close(kept.sum(-1), torch.ones(4))
    least = options.masked_fill(kept == 0, math.inf).min(-1).values
    assert (options.masked_fill(kept > 0, -math.inf).max(-1).values <= least).all()


@settings(deadline=None)
@given(SEEDS, st.floats(0.01, 0.99))
def test_top_p_keeps_as_few_as_reach_p(seed, p):
    options = torch.log_softmax(
        torch.randn(4, 9, generator=torch.Generator().manual_seed(seed)) * 2, -1
    )
    for row, kept in zip(options.exp(), keep_top_p(options, p).exp(), strict=True):
        chosen = row[kept > 0].sort(descending=True).values
        assert chosen.sum() >= p - 1e-5
        assert chosen[:-1].sum() < p + 1e-5
        torch.testing.assert_close(kept[kept > 0] * chosen.sum(), row[kept > 0])


def test_cuts_with_ties_and_the_forbidden():
    even = log_probabilities(torch.zeros(8), renormalise=True)
    assert (keep_top_k(even, 2).exp() > 0).sum() == 2
    assert (keep_top_p(even, 0.45).exp() > 0).sum() == 3  # of six, two have a third together
    torch.testing.assert_close(apply_temperature(even, 2.0), even)
    torch.testing.assert_close(apply_temperature(log_probabilities(torch.zeros(8)), 1.0), even)
    assert keep_top_k(even, 8)[:2].isneginf().all()


def test_a_model_that_says_nothing_after_the_end_is_asked_for_the_others():
    table = torch.zeros(6, 5, 5)
    table[:, [0, EOS]] = -math.inf
    torch.manual_seed(1)
    ids, scores = sample(Table(table), blank(1), captions=20, max_length=6)
    assert scores.isfinite().all()
    assert len({*(ids != 0).sum(-1).flatten().tolist()}) > 1


@pytest.mark.parametrize("search", [greedy, sample, beam_search])
def test_no_word_left_is_one_line(search):
    with pytest.raises(ValueError, match="no token is left"):
        search(Table(torch.zeros(6, 5, 5)), blank(1), suppress_tokens=[2, 3, 4])


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": 0.0},
        {"temperature": -1.0},
        {"temperature": math.inf},
        {"temperature": math.nan},
        {"temperature": "hot"},
        {"top_k": -1},
        {"top_k": 2.5},
        {"top_p": 0.0},
        {"max_length": 2.5},
        {"captions": 1.5},
        {"top_p": 1.5},
    ],
)
def test_draws_that_make_no_sense_are_refused(wrong):
    (name,) = wrong
    with pytest.raises(ValueError, match=rf"^{name} is \S+: take a (whole )?number ") as error:
        sample(always(3), blank(1), **wrong)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("copies", [1, 2])
def test_an_ensemble_of_equals_is_the_model(copies):
    model, batch = (
        model_of(7),
        Batch(grid=grid_of(7), captions=torch.tensor([[[1, 4, 5, 2], [1, 6, 2, 0]]] * 4)),
    )
    together, memory = Ensemble([model] * copies).eval(), model.encode(batch)
    parts = together.encode(batch)
    for ours, theirs in zip(
        beam_search(together, parts, 3), beam_search(model, memory, 3), strict=True
    ):
        assert ours.ids == theirs.ids
        assert ours.score == pytest.approx(theirs.score, rel=1e-5)
    assert greedy(together, parts).equal(greedy(model, memory))
    logits = model.decode(memory, batch.captions)
    torch.testing.assert_close(
        together.decode(parts, batch.captions).double(),
        logits.log_softmax(-1),
        atol=1e-5,
        rtol=1e-5,
    )
    torch.testing.assert_close(
        together.loss(batch)[0].double(), model.loss(batch)[0], atol=1e-4, rtol=1e-5
    )


def test_an_ensemble_averages_probabilities_and_its_cache_is_right():
    models, tokens = [model_of(seed) for seed in (8, 9)], torch.randint(3, V, (4, 3, 5))
    together, batch = Ensemble(models).eval(), Batch(grid=grid_of(8))
    memory = together.encode(batch)
    mean = sum(m.decode(m.encode(batch), tokens).softmax(-1) for m in models) / 2
    torch.testing.assert_close(
        together.decode(memory, tokens).double().exp(), mean, atol=1e-5, rtol=1e-5
    )
    state = together.start(memory, 3)
    for t in range(5):
        logits, state = together.step(state, tokens[..., t])
        torch.testing.assert_close(logits.double().exp(), mean[:, :, t], atol=1e-5, rtol=1e-5)
    moved = state.reorder(torch.tensor([[2, 2, 0]] * 4)).select(torch.tensor([3]))
    word = torch.full((4, 3), 5)
    torch.testing.assert_close(
        together.step(moved, word[:1])[0][0, 0], together.step(state, word)[0][3, 2]
    )


def test_an_ensemble_says_what_is_wrong():
    with pytest.raises(ValueError, match="no models: give at least one"):
        Ensemble([])
    with pytest.raises(ValueError, match=r"vocabularies with \[5, 6\] words"):
        mean_probabilities([torch.zeros(2, 5), torch.zeros(2, 6)])


@pytest.mark.parametrize(
    "wrong",
    [
        {"width": 0},
        {"width": 2.5},
        {"width": True},
        {"width": None},
        {"max_length": 0},
        {"max_length": 7.5},
        {"length_penalty": math.nan},
        {"length_penalty": 1000},
        {"length_penalty": "1"},
    ],
)
@pytest.mark.parametrize("search", [beam_search, nbest_search])
def test_a_search_out_of_range_is_refused(search, wrong):
    (name,) = wrong
    name = "beam width" if name == "width" else name
    model = GridCaptioner().eval()
    with pytest.raises(ValueError, match=f"^{name} is .*: take a (whole )?number ") as error:
        search(model, model.encode(Batch(grid=torch.randn(1, 4, 3))), **wrong)
    assert "\n" not in str(error.value)


def test_numbers_of_numpy_are_numbers():
    model = GridCaptioner().eval()
    memory = model.encode(Batch(grid=torch.randn(1, 4, 3)))
    numbers = {"width": np.int64(2), "max_length": np.int32(4), "length_penalty": np.float32(1)}
    expected = beam_search(model, memory, width=2, max_length=4, length_penalty=1.0)
    assert beam_search(model, memory, **numbers) == expected


def test_weights_that_are_no_numbers_write_no_caption():
    model = GridCaptioner().eval()
    nn.init.constant_(model.projection.weight, math.nan)
    with (
        torch.no_grad(),
        pytest.raises(
            ValueError, match="is not a number: the model's weights or its inputs are broken"
        ),
    ):
        beam_search(model, model.encode(Batch(grid=torch.randn(1, 4, 3))))


def uneven_captions(words_per_check, monkeypatch):
    """Captions of different length of nine pictures: greedy, sampled, and of a beam search."""
    torch.manual_seed(3)
    model = GridCaptioner(12).eval()
    model.output.bias.data[EOS] += 0.8
    memory = model.encode(Batch(grid=3 * torch.randn(9, 4, 3)))
    monkeypatch.setattr(generation, "_words_per_check", lambda device: words_per_check)
    generators = [torch.Generator().manual_seed(seed) for seed in range(9)]
    options = {"max_length": 14, "generator": generators, "suppress_tokens": [3]}
    found = nbest_search(model, memory, 4, 1.0, num_captions=2, max_length=14)
    return greedy(model, memory, 14), *sample(model, memory, 3, **options), found


@pytest.mark.parametrize("interval", [2, 3, 5, 20])
def test_captions_are_the_same_however_often_the_end_is_looked_for(monkeypatch, interval):
    expected = uneven_captions(1, monkeypatch)
    *tensors, searched = uneven_captions(interval, monkeypatch)
    torch.testing.assert_close(tensors, list(expected[:-1]))
    for row, expected_row in zip(searched, expected[-1], strict=True):
        assert [one.ids for one in row] == [one.ids for one in expected_row]
        assert [one.score for one in row] == pytest.approx([one.score for one in expected_row])
    assert len((expected[1] != PAD).sum(-1).unique()) > 3
    assert len({len(one.ids) for row in expected[-1] for one in row}) > 3


@pytest.mark.parametrize("interval", [2, 20])
def test_what_is_no_number_is_found_however_often_it_is_looked_for(monkeypatch, interval):
    monkeypatch.setattr(generation, "_words_per_check", lambda device: interval)
    model = GridCaptioner().eval()
    nn.init.constant_(model.projection.weight, math.nan)
    with torch.no_grad():
        memory = model.encode(Batch(grid=torch.randn(2, 4, 3)))
    for search in (greedy, sample, beam_search):
        with pytest.raises(ValueError, match="is not a number"):
            search(model, memory, max_length=5)
    healthy = GridCaptioner().eval()
    with pytest.raises(ValueError, match="no token is left"):
        greedy(healthy, healthy.encode(Batch(grid=torch.randn(2, 4, 3))),
               max_length=5, suppress_tokens=range(2, V))


def test_a_model_that_has_burst_is_told_from_one_that_forbids():
    row = torch.zeros(1, 1, V)
    for broken in (math.nan, math.inf):
        with pytest.raises(ValueError, match="not a number"):
            log_probabilities(row.index_fill(-1, torch.tensor([4]), broken))
    assert log_probabilities(row.index_fill(-1, torch.tensor([4]), -math.inf))[0, 0, 4] == -math.inf


def test_captions_without_a_token_are_refused():
    model = GridCaptioner().eval()
    memory = model.encode(Batch(grid=torch.randn(1, 3, 3)))
    with pytest.raises(ValueError, match="at least 1"):
        greedy(model, memory, max_length=0)
    with pytest.raises(ValueError, match="temperature is nan"):
        sample(model, memory, temperature=math.nan)


def test_forbidden_words_given_once_are_forbidden_at_every_step():
    model = GridCaptioner().eval()
    memory = model.encode(Batch(grid=torch.randn(4, 3, 3)))
    once = greedy(model, memory, 6, (word for word in (3, 4)))
    assert torch.equal(once, greedy(model, memory, 6, [3, 4])) and not torch.isin(once, torch.tensor([3, 4])).any()


class Prefix(NamedTuple):
    """A state that holds all tokens so far, `(B, C, T)`."""

    ids: torch.Tensor

    def select(self, rows):
        return Prefix(self.ids[rows])

    def reorder(self, parents):
        return Prefix(torch.take_along_dim(self.ids, parents[..., None], 1))


class LanguageModel(Captioner):
    """A causal language model of transformers as a captioner that sees no picture."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def start(self, memory, captions=1):
        return Prefix(torch.zeros(len(memory), captions, 0, dtype=torch.long))

    def step(self, state, tokens, trace=None):
        ids = torch.cat([state.ids, tokens[..., None]], -1)
        logits = self.model(ids.flatten(0, 1)).logits[:, -1]
        return logits.unflatten(0, ids.shape[:2]), Prefix(ids)


@pytest.mark.parametrize("width, penalty", [(1, 0.0), (3, 0.0), (3, 1.0)])
def test_suppressed_tokens_equal_those_of_transformers(width, penalty):
    """Where transformers returns a finished caption; at the limit its unfinished ones compete."""
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(vocab_size=9, n_positions=16, n_embd=16, n_layer=1, n_head=2,
                                     tie_word_embeddings=False)
    compared = 0
    for seed in range(30):
        torch.manual_seed(seed)
        model = transformers.GPT2LMHeadModel(config).eval()
        nn.init.normal_(model.transformer.wte.weight)
        nn.init.normal_(model.lm_head.weight, std=0.4)
        theirs = model.generate(
            torch.tensor([[BOS]]), num_beams=width, length_penalty=penalty, early_stopping="never",
            suppress_tokens=[PAD, BOS, 3, 4], max_new_tokens=8, do_sample=False, eos_token_id=EOS,
            pad_token_id=PAD, bos_token_id=BOS, output_scores=True, return_dict_in_generate=True,
        )
        ids = [token for token in theirs.sequences[0, 1:].tolist() if token != PAD]
        if ids[-1] != EOS:
            continue
        compared += 1
        best, = beam_search(LanguageModel(model), blank(1), width, penalty, max_length=8, suppress_tokens=[3, 4])
        assert best.ids == ids
        if width > 1:
            assert best.score == pytest.approx(theirs.sequences_scores.item(), rel=1e-4)
    assert compared >= 5


def test_memory_of_beams_grows_by_less_than_a_tenth_of_the_pictures_per_beam():
    model = model_of(0).float()
    memory = model.encode(Batch(grid=torch.randn(2, 300, 3)))
    image_bytes = sum(x.nbytes for layer in memory.layers for x in layer)

    def search_bytes(beams, tokens=20):
        state = model.start(memory, beams)
        with torch.no_grad():
            for _ in range(tokens):
                _, state = model.step(state, torch.full((2, beams), 4))
                state = state.reorder(torch.zeros(2, beams, dtype=torch.long))
        layers = [*state.memory.layers, *state.past]
        return sum(x.nbytes for layer in layers for x in layer)

    growth = (search_bytes(6) - search_bytes(1)) / 5
    assert 0 < growth < 0.1 * image_bytes


@pytest.mark.slow
def test_a_whole_search_of_the_paper_s_size_grows_by_less_than_a_tenth_of_the_pictures_per_beam():
    torch.manual_seed(0)
    preset = replace(cptr.PRESETS["paper"], encoder_layers=1)
    model = cptr.Model(preset, 9500).eval()
    positions = (preset.inputs.image_size // preset.patch_size) ** 2
    image_bytes, least = memory.search_bytes(model, 1, positions, pictures=1)
    _, most = memory.search_bytes(model, 5, positions, pictures=1)
    assert 0 < (most - least) / 4 < 0.1 * image_bytes
