"""Translation with a lexicon: the mixed probabilities by the definition, states, evaluation."""

from collections import defaultdict
from dataclasses import replace

import pytest
import torch
from test_translation import BRIEF, SMALL

from captionlab.data.batches import CaptionDataset, collate
from captionlab.data.datasets import scenes
from captionlab.decoding.alignment import Lexicon, learn_lexicon
from captionlab.decoding.beam import beam_search
from captionlab.decoding.lexicon import LexiconTranslator, PieceTrie, continuations
from captionlab.models.translation import Model
from captionlab.runs.evaluation import evaluate
from captionlab.runs.training import train
from captionlab.runs.views import with_lexicon
from captionlab.text import SubwordVocabulary

@pytest.fixture(scope="module")
def world():
    return scenes(train=30, val=0, test=4, novel=0, language="de", source="en")


@pytest.fixture(scope="module")
def pieces(world):
    texts = {"en": [item.source for item in world["train"]], "de": world.captions("train")}
    return SubwordVocabulary.joint(texts, 300)


@pytest.fixture(scope="module")
def model(pieces):
    torch.manual_seed(0)
    return Model(replace(SMALL, subwords=300), len(pieces["de"])).eval()


@pytest.fixture(scope="module")
def pairs(world, pieces):
    return [
        (pieces["en"].split(item.source), pieces["de"].split(item.captions[0]))
        for item in world["train"]
    ]


@pytest.fixture(scope="module")
def examples(world, pieces):
    return CaptionDataset(world["train"], pieces["de"], pieces["en"])


def make_translator(model, pieces, pairs, **options):
    known_words = {word for _, translation in pairs for word in translation}
    options = {"layer": 0, "half_frequency": 5.0, **options}
    return LexiconTranslator(
        model, pieces["de"], pieces["en"], learn_lexicon(pairs), known_words, **options
    ).eval()


def lexicon_shares(vocabulary, translations, prefix):
    """Each next piece after a prefix by the words that begin so, and how probable those are."""
    sums = defaultdict(float)
    for word, prob in translations.items():
        ids = vocabulary.encode(word)[1:-1]
        if tuple(ids[: len(prefix)]) == prefix and len(ids) > len(prefix):
            sums[ids[len(prefix)]] += prob
    total = sum(sums.values())
    return {piece: prob / total for piece, prob in sums.items()}, total


def mixed_probabilities(model, pieces, pairs, batch, tokens, prefix, trust, half_frequency):
    """The probabilities after the tokens of one translation, `(T,)`, by loops over words."""
    vocabulary = pieces["de"]
    lexicon = learn_lexicon(pairs)
    state = model.start(model.encode(batch))
    for token in tokens.tolist():
        trace = defaultdict(list)
        logits, state = model.step(state, torch.tensor([[token]]), trace)
    probs = logits[0, 0].softmax(-1)
    starts = torch.tensor([token.startswith("▁") for token in vocabulary.tokens])
    begins = float(probs[starts].sum())
    continues = 1 - begins - float(probs[vocabulary.eos])
    attention = trace["cross"][0][0].mean(0)[0]
    expected = probs.clone()
    place = 1
    for word in pieces["en"].words(batch.source[0].tolist()):
        count = len(pieces["en"].encode([word])) - 2
        weight = float(attention[place : place + count].sum())
        weight *= trust * half_frequency / (half_frequency + lexicon.frequencies[word])
        place += count
        for given, mass in (((), begins), (prefix, continues)):
            shares, total = lexicon_shares(vocabulary, lexicon.translate(word), given)
            if total <= (0.05 if given else 0) or (given == () and mass is continues):
                continue
            changed = starts if given == () else ~starts
            changed = changed.clone()
            changed[vocabulary.eos] = False
            expected[changed] -= weight * probs[changed]
            for piece, share in shares.items():
                expected[piece] += weight * mass * share
    return expected


@torch.no_grad()
@pytest.mark.parametrize("cut", [0, 1, 2, 3, 5])
def test_probabilities_are_those_of_the_definition(model, pieces, pairs, examples, cut):
    batch = collate([examples[4]])
    tokens = batch.captions[0, 0, : 1 + cut]
    prefix = ()
    for token in tokens.tolist()[1:]:
        begins = pieces["de"].tokens[token].startswith("▁")
        prefix = (token,) if begins else (*prefix, token)
    translator = make_translator(model, pieces, pairs, trust=0.7, penalty=0.0)
    found = translator.decode(translator.encode(batch), tokens[None, None])[0, 0, -1].exp()
    expected = mixed_probabilities(model, pieces, pairs, batch, tokens, prefix, 0.7, 5.0)
    torch.testing.assert_close(found, expected.clamp_min(1e-12), rtol=1e-3, atol=1e-6)
    assert float(found.sum()) == pytest.approx(1, abs=1e-4)


@torch.no_grad()
def test_without_trust_and_penalty_it_is_the_model(model, pieces, pairs, examples):
    batch = collate([examples[row] for row in (0, 1)])
    translator = make_translator(model, pieces, pairs, trust=0.0, penalty=0.0)
    options = {"max_length": 12}
    assert [one.ids for one in beam_search(translator, translator.encode(batch), 3, **options)] == [
        one.ids for one in beam_search(model, model.encode(batch), 3, **options)
    ]


@torch.no_grad()
def test_steps_follow_reordered_and_selected_translations(model, pieces, pairs, examples):
    batch = collate([examples[row] for row in (0, 1, 2)])
    translator = make_translator(model, pieces, pairs)
    memory = translator.encode(batch)
    tokens = torch.stack([batch.captions[:, 0, :3], batch.captions[:, 0, 1:4]], 1)  # (3, 2, 3)
    state = translator.start(memory, 2)
    for place in range(3):
        log_probs, state = translator.step(state, tokens[..., place])
        swapped = torch.tensor([[1, 0], [0, 1], [1, 1]])
        state = state.reorder(swapped)
        tokens = tokens.gather(1, swapped[..., None].expand(tokens.shape))
        log_probs = log_probs.gather(1, swapped[..., None].expand(log_probs.shape))
    expected = translator.decode(memory, tokens)
    torch.testing.assert_close(log_probs, expected[:, :, -1], rtol=1e-4, atol=1e-4)
    rows = torch.tensor([2, 0])
    torch.testing.assert_close(
        translator.decode(memory.select(rows), tokens[rows]), expected[rows], rtol=1e-4, atol=1e-4
    )
    alone = translator.encode(collate([examples[1]]))
    torch.testing.assert_close(
        translator.decode(alone, tokens[1:2])[0], expected[1], rtol=1e-3, atol=1e-4
    )
    with_state, _ = translator.step(state.select(rows), tokens[rows, :, -1])
    torch.testing.assert_close(
        with_state, translator.step(state, tokens[..., -1])[0][rows], rtol=1e-4, atol=1e-4
    )


@torch.no_grad()
def test_a_large_penalty_leaves_known_words_only(model, pieces, pairs, examples):
    known_words = {"ein", "kreis", "rot", "quadrat"}
    batch = collate([examples[row] for row in range(6)])
    translator = LexiconTranslator(
        model, pieces["de"], pieces["en"], Lexicon({}, {}), known_words, layer=0, penalty=1e4
    ).eval()
    state = translator.start(translator.encode(batch))
    tokens = torch.full((6, 1), 1)
    ids = []
    for _ in range(12):
        log_probs, state = translator.step(state, tokens)
        log_probs[..., pieces["de"].eos] = -torch.inf       # a random model would end at once
        tokens = log_probs.argmax(-1)
        ids.append(tokens[:, 0])
    words = [word for row in torch.stack(ids, 1).tolist() for word in pieces["de"].words(row)[:-1]]
    assert words
    assert set(words) <= known_words


def test_trie_allows_pieces_of_known_words(pieces):
    vocabulary = pieces["de"]
    ids = vocabulary.encode(["kreise"])[1:-1]
    trie = PieceTrie(vocabulary, ["kreise", "rot"])
    starts = {ids[0], vocabulary.encode(["rot"])[1], vocabulary.eos}
    assert set(trie.mask(()).nonzero()[:, 0].tolist()) == starts
    assert set(trie.mask(tuple(ids)).nonzero()[:, 0].tolist()) == starts        # a whole word
    other = vocabulary.encode(["x"])[1:-1]
    assert set(trie.mask(tuple(other)).nonzero()[:, 0].tolist()) == starts      # no known word
    if len(ids) > 1:
        assert trie.mask((ids[0],)).nonzero()[:, 0].tolist() == [ids[1]]


def test_continuations_share_prefixes(pieces):
    vocabulary = pieces["de"]
    found = continuations(vocabulary, {"rot": 0.75, "blau": 0.25})
    first, second = (vocabulary.encode([word])[1] for word in ("rot", "blau"))
    assert found[()].probability == pytest.approx(1)
    assert found[()].pieces == pytest.approx(
        {first: 0.75, second: 0.25} if first != second else {first: 1.0}
    )
    assert continuations(vocabulary, {}) == {}


@pytest.mark.parametrize("options", [{"trust": 1.5}, {"trust": -0.1}, {"half_frequency": 0.0}])
def test_settings_out_of_range_are_one_line(model, pieces, pairs, options):
    with pytest.raises(ValueError, match="take a trust from 0 to 1 and a frequency above 0"):
        make_translator(model, pieces, pairs, **options)


@pytest.mark.slow
def test_in_an_evaluation(world, tmp_path):
    preset = replace(BRIEF, encoder_layers=1, decoder_layers=3,
                     training=replace(BRIEF.training, epochs=1))
    run = train("translation", world, preset, out=tmp_path / "run", max_val_items=0)
    found = evaluate(run, world, neighbours=8, lexicon=True)
    assert found["metadata"]["variant"] == "neighbours-lexicon"
    assert found["metadata"]["decoding"]["lexicon"] is True
    alone = evaluate(run, world, lexicon=True)
    helped = with_lexicon(run, world["train"])
    texts = [item.source for item in world["test"]]
    assert [row["caption"] for row in alone["captions"]] == helped.translate(
        texts, beam=3, copy=False, split=False
    )
