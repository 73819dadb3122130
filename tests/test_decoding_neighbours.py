"""Nearest neighbours: the mixed probabilities against a plain loop, retrieval, evaluation."""

from dataclasses import replace

import pytest
import torch
from test_translation import BRIEF, SMALL

from captionlab.data.batches import CaptionDataset, collate
from captionlab.data.datasets import scenes
from captionlab.decoding.beam import beam_search
from captionlab.decoding.neighbours import NeighbourTranslator, StateStore, mean_source_state
from captionlab.models.translation import Model
from captionlab.runs.evaluation import evaluate
from captionlab.runs.training import train
from captionlab.runs.views import with_neighbours
from captionlab.text import SubwordVocabulary


@pytest.fixture(scope="module")
def world():
    return scenes(train=30, val=0, test=4, novel=0, language="de", source="en")


@pytest.fixture(scope="module")
def parts(world):
    """A random translator, its training data and its store."""
    texts = {"en": [item.source for item in world["train"]], "de": world.captions("train")}
    pieces = SubwordVocabulary.joint(texts, 300)
    torch.manual_seed(0)
    model = Model(replace(SMALL, subwords=300), len(pieces["de"])).eval()
    examples = CaptionDataset(world["train"], pieces["de"], pieces["en"])
    return model, examples, StateStore.build(model, examples)


def mixed_probability(model, store, rows, hidden, k, temperature, share):
    """The probabilities after one state `(D,)`, by a loop over the stored states of some pairs."""
    listed = [
        ((state - hidden).square().mean().item(), int(token))
        for row in rows
        for state, token in zip(store.states[row], store.tokens[row], strict=True)
    ]
    nearest = sorted(listed)[:k]
    weights = torch.tensor([-distance / temperature for distance, _ in nearest]).softmax(0)
    probs = (1 - share) * model.output(hidden).softmax(-1)
    for weight, (_, token) in zip(weights, nearest, strict=True):
        probs[token] += share * weight
    return probs


@torch.no_grad()
def test_probabilities_are_those_of_the_definition(parts):
    model, examples, store = parts
    batch = collate([examples[row] for row in (3, 7)])
    translator = NeighbourTranslator(model, store, sentences=3, k=5, temperature=0.4, share=0.3)
    memory = translator.encode(batch)
    tokens = torch.randint(4, 300, (2, 2, 4))
    log_probs = translator.decode(memory, tokens)
    hidden = model.hidden_states(model.encode(batch), tokens)
    cosines = torch.nn.functional.cosine_similarity(
        (mean_source_state(model, batch) - store.centre)[:, None], store.sources[None], dim=-1
    )
    for sentence in range(2):
        rows = cosines[sentence].topk(3).indices.tolist()
        for caption, place in ((0, 0), (1, 3)):
            expected = mixed_probability(
                model, store, rows, hidden[sentence, caption, place], 5, 0.4, 0.3
            )
            found = log_probs[sentence, caption, place].exp()
            torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)


@torch.no_grad()
def test_steps_agree_with_decode_after_reordering(parts):
    model, examples, store = parts
    batch = collate([examples[row] for row in (0, 1)])
    translator = NeighbourTranslator(model, store, sentences=4, k=8).eval()
    memory = translator.encode(batch)
    tokens = torch.randint(4, 300, (2, 2, 3))
    state = translator.start(memory, 2)
    for place in range(3):
        log_probs, state = translator.step(state, tokens[..., place])
        swapped = torch.tensor([[1, 0], [0, 1]])
        state = state.reorder(swapped)
        tokens = tokens.gather(1, swapped[..., None].expand(tokens.shape))
        log_probs = log_probs.gather(1, swapped[..., None].expand(log_probs.shape))
    expected = translator.decode(memory, tokens)[:, :, -1]
    torch.testing.assert_close(log_probs, expected, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_a_sentence_finds_itself_and_its_batch_does_not_matter(parts):
    model, examples, store = parts
    batch = collate([examples[row] for row in (5, 11, 2)])
    both = store.nearest(mean_source_state(model, batch), 1)
    for place, row in enumerate((5, 11, 2)):
        length = len(store.tokens[row])
        assert both.tokens[place, :length].tolist() == store.tokens[row].tolist()
        assert store.tokens[row].tolist() == examples.token_ids["captions"][row][0][1:]
        assert (both.tokens[place, length:] == 0).all()
    translator = NeighbourTranslator(model, store, sentences=2)
    alone = collate([examples[11]])
    tokens = torch.randint(4, 300, (3, 1, 4))
    torch.testing.assert_close(
        translator.decode(translator.encode(batch), tokens)[1],
        translator.decode(translator.encode(alone), tokens[1:2])[0],
        rtol=1e-3,
        atol=1e-4,
    )


@torch.no_grad()
def test_without_a_share_it_is_the_model(parts):
    model, examples, store = parts
    batch = collate([examples[row] for row in (0, 1)])
    translator = NeighbourTranslator(model, store, share=0.0).eval()
    options = {"max_length": 12}
    assert [one.ids for one in beam_search(translator, translator.encode(batch), 3, **options)] == [
        one.ids for one in beam_search(model, model.encode(batch), 3, **options)
    ]


@pytest.mark.parametrize("options", [{"sentences": 0}, {"k": 0}, {"share": 1.5}, {"share": -0.1}])
def test_settings_out_of_range_are_one_line(parts, options):
    with pytest.raises(ValueError, match="take at least 1 of both, and a share from 0 to 1"):
        NeighbourTranslator(parts[0], parts[2], **options)


@pytest.mark.slow
def test_in_an_evaluation(world, tmp_path):
    preset = replace(BRIEF, training=replace(BRIEF.training, epochs=1))
    run = train("translation", world, preset, out=tmp_path / "run", max_val_items=0)
    found = evaluate(run, world, neighbours=8)
    assert found["metadata"]["variant"] == "neighbours"
    assert found["metadata"]["decoding"]["neighbours"] == 8
    helped = with_neighbours(run, world["train"], 8)
    texts = [item.source for item in world["test"]]
    assert [row["caption"] for row in found["captions"]] == helped.translate(
        texts, beam=3, copy=False, split=False
    )
    with pytest.raises(ValueError, match="at least 1"):
        evaluate(run, world, neighbours=-1)
