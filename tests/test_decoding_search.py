"""N-best search, constraints and required words against lists of all captions."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_decoding import (
    PENALTIES,
    SEEDS,
    every_caption,
    grid_of,
    log_probability,
    model_of,
)

from captionlab.data.batches import Batch
from captionlab.decoding import constraints
from captionlab.decoding.beam import beam_search, nbest_search
from captionlab.decoding.constraints import (
    MinLength,
    NoRepeatNgram,
    RequiredSequences,
    SuppressSequences,
)
from captionlab.decoding.generation import BOS, EOS, generate, log_probabilities, sample

WORDS, LONGEST = 5, 4  # the words are 3 and 4
RULES = st.sampled_from(["none", "min_length", "ngram", "suppress"])
REQUIRED = st.sampled_from([(), ((3,),), ((3,), (4,)), ((3, 4),), ((4, 3), (3,)), ((3, 3, 4),)])


def contains(ids, sequence):
    size = len(sequence)
    return any(tuple(ids[i : i + size]) == sequence for i in range(len(ids) - size + 1))


def machine(sequences, words=WORDS):
    return RequiredSequences(sequences, words) if sequences else None


def ngrams_repeat(ids, size):
    grams = [tuple(ids[i : i + size]) for i in range(len(ids) - size + 1)]
    return len(grams) > len(set(grams))


CONSTRAINTS = {
    "none": [],
    "min_length": [MinLength(3)],
    "ngram": [NoRepeatNgram(2)],
    "suppress": [SuppressSequences([(4, 3)])],
}
ALLOWED = {
    "none": lambda ids: True,
    "min_length": lambda ids: len(ids) >= 3,
    "ngram": lambda ids: not ngrams_repeat(ids, 2),
    "suppress": lambda ids: not contains(ids, (4, 3)),
}


def encoded(seed, pictures=2, words=WORDS):
    model = model_of(seed, words=words)
    return model, model.encode(Batch(grid=grid_of(seed, pictures)))


@settings(deadline=None, max_examples=25)
@given(SEEDS, PENALTIES, RULES, REQUIRED, st.integers(1, 4))
def test_a_search_that_keeps_everything_finds_the_n_best_of_all_captions(
    seed, penalty, rule, required, count
):
    model, memory = encoded(seed)
    finished, _ = every_caption(WORDS, LONGEST)
    right = [
        ids
        for ids in finished
        if ALLOWED[rule](ids) and all(contains(ids, one) for one in required)
    ]
    if not right:
        return
    found = nbest_search(
        model,
        memory,
        200,
        penalty,
        num_captions=count,
        max_length=LONGEST,
        constraints=CONSTRAINTS[rule],
        required=machine(required),
    )
    for row, hypotheses in enumerate(found):
        scores = {
            ids: log_probability(model, memory, row, ids) / len(ids) ** penalty for ids in right
        }
        best = sorted(scores, key=scores.get, reverse=True)[:count]
        ended = [tuple(one.ids) for one in hypotheses if one.ids[-1] == EOS]
        assert ended == best
        assert [one.score for one in hypotheses[: len(best)]] == pytest.approx(
            [scores[ids] for ids in best], rel=1e-5
        )


@settings(deadline=None, max_examples=25)
@given(SEEDS, PENALTIES, st.integers(1, 4), st.integers(1, 9))
def test_with_one_caption_and_no_constraint_it_is_beam_search(seed, penalty, width, max_length):
    model, memory = encoded(seed, 4, 7)
    options = {"max_length": max_length, "suppress_tokens": [3]}
    found = nbest_search(model, memory, width, penalty, **options)
    assert [one for one, in found] == beam_search(model, memory, width, penalty, **options)


@settings(deadline=None, max_examples=15)
@given(SEEDS, RULES, st.integers(1, 4))
def test_narrow_searches_and_samples_obey_the_constraints(seed, rule, width):
    model, memory = encoded(seed)
    options = {"max_length": 6, "constraints": CONSTRAINTS[rule]}
    for hypotheses in nbest_search(model, memory, width, **options, required=machine([(4,)])):
        assert all(4 in one.ids and ALLOWED[rule](one.ids) for one in hypotheses)
    ids, _ = sample(model, memory, 5, **options, generator=torch.Generator().manual_seed(seed))
    for tokens in ids.flatten(0, 1).tolist():
        assert ALLOWED[rule]([token for token in tokens if token])


def test_constraints_on_a_token_that_follows_every_ended_caption():
    """A caption that has ended is no reason to complain that nothing is left."""
    model, memory = encoded(1)
    ids, _ = generate(
        model, memory, lambda x: x.argmax(-1), 4, max_length=4, constraints=[NoRepeatNgram(1)]
    )
    captions = [[token for token in one if token] for one in ids[:, 0].tolist()]
    assert not any(ngrams_repeat(one, 1) for one in captions)


def by_definition(constraint, ids):
    """Which tokens of a vocabulary of 6 may follow ids, by the definition in words."""
    allowed = []
    for token in range(6):
        longer = [*ids, token]
        if isinstance(constraint, MinLength):
            allowed.append(token != EOS or len(longer) >= constraint.min_length)
        elif isinstance(constraint, NoRepeatNgram):
            n = constraint.size
            grams = [tuple(longer[i : i + n]) for i in range(len(longer) - n + 1)]
            allowed.append(len(longer) < n or grams[-1] not in grams[:-1])
        else:
            ends = [tuple(longer[-len(one) :]) == tuple(one) for one in constraint.sequences]
            allowed.append(not any(ends))
    return allowed


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.integers(3, 5), max_size=7),
    st.sampled_from(
        [
            *(MinLength(n) for n in (1, 2, 5)),
            *(NoRepeatNgram(n) for n in (1, 2, 3, 4)),
            SuppressSequences([(3,), (4, 5)]),
            SuppressSequences([(5, 5, 5), (3, 4, 3)]),
        ]
    ),
)
def test_each_constraint_forbids_what_its_definition_forbids(ids, constraint):
    before = torch.log_softmax(torch.arange(12.0).view(1, 2, 6), -1)
    prefix = torch.tensor([BOS, *ids]).expand(1, 2, -1)
    after = constraint(prefix, before)
    expected = torch.tensor(by_definition(constraint, ids))
    expected[0] = after[0, 0, 0].isfinite()  # padding is never generated anyway
    for row in range(2):
        assert after[0, row].isfinite().tolist() == expected.tolist()
        assert torch.equal(after[0, row][expected], before[0, row][expected])


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(3, 5), max_size=8), REQUIRED)
def test_the_machine_accepts_exactly_the_captions_with_all_sequences(ids, required):
    machine = RequiredSequences(required, 6)
    state = 0
    for token in ids:
        state = machine.transitions[state, token].item()
    assert (state == len(machine) - 1) == all(contains(ids, one) for one in required)


def test_too_many_required_words_are_refused_before_their_states_are_listed(monkeypatch):
    monkeypatch.setattr(constraints, "product", None)
    with pytest.raises(ValueError, match=f"30 required words make {2**30} states of a search"):
        machine([(number,) for number in range(3, 33)], 40)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"num_captions": 4}, "beam of at least as many"),
        ({"num_captions": 1.5}, "num_captions is 1.5: take a whole number"),
        ({"max_length": 0}, "max_length is 0: take a whole number of at least 1"),
        ({"max_length": 2, "required": [(3,), (4,)]}, "do not fit"),
        ({"required": [(3,)], "constraints": [SuppressSequences([(3,)])]}, "fulfils all"),
        ({"required": [(n,) for n in range(3, 10)]}, "require fewer"),
    ],
)
def test_searches_that_cannot_be(options, line):
    model, memory = encoded(0, words=12)
    options = dict(options)
    with pytest.raises(ValueError, match=line):
        required = machine(options.pop("required", ()), 12)
        nbest_search(model, memory, 3, **{"max_length": 12, "required": required, **options})


@pytest.mark.parametrize("constraint", [MinLength, NoRepeatNgram])
@pytest.mark.parametrize("number", [0, 2.5, "3"])
def test_constraints_of_no_number_are_refused(constraint, number):
    with pytest.raises(ValueError, match="take a whole number of at least 1"):
        constraint(number)


def test_scores_are_log_probabilities_of_the_model():
    """Constraints remove captions, and do not change the probabilities of the others."""
    model, memory = encoded(5)
    (best,) = nbest_search(
        model, memory.select(torch.tensor([0])), 3, max_length=6, constraints=[MinLength(4)]
    )[0]
    assert best.score == pytest.approx(log_probability(model, memory, 0, best.ids), rel=1e-5)
    assert log_probabilities(torch.zeros(1, 5)).amax() == pytest.approx(-math.log(5))
