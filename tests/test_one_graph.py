"""Losses, decoding steps and scores of samples are one graph each, of fixed shapes."""

from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from captionlab.data.batches import Batch
from captionlab.decoding.beam import BestHypotheses, nbest_search
from captionlab.decoding.generation import Checks, generate, sequence_log_probs
from captionlab.models import find_preset, list_models, model_module, random_inputs
from captionlab.rewards import CiderD
from captionlab.runs.extension import freeze_vision
from captionlab.scst import SelfCritical

V = 1000
LENGTHS = (7, 12)


def batch_of(name, length, pictures=3):
    """Pictures, or sentences, with captions of very different length, the longest of `length`."""
    torch.manual_seed(length)
    captions = torch.randint(4, V, (pictures, 2, length))
    for number, row in enumerate(captions.flatten(0, 1)):
        row[length - number % 3 :] = 0
    captions[0, 1] = 0  # a picture with a single caption
    if name == "translation":
        return Batch(source=captions[:, 0].clone(), captions=captions)
    return Batch(captions=captions, **random_inputs(find_preset(name, "tiny"), pictures))


def model_of(name, dropout=0.0):
    torch.manual_seed(0)
    preset = replace(find_preset(name, "tiny"), dropout=dropout)
    if name == "translation":
        preset = replace(preset, subwords=V)
    return model_module(name).Model(preset, V).train()


def one_graph(function):
    """A function that fails where it is not one graph."""
    torch._dynamo.reset()
    return torch.compile(function, fullgraph=True, backend="eager")


def gradients(model):
    found = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return found


@pytest.mark.parametrize("name", list_models())
def test_a_loss_is_one_graph(name):
    model = model_of(name)
    compiled = one_graph(model.loss)
    for length in LENGTHS:
        batch = batch_of(name, length)
        found = []
        for loss in (model.loss, compiled):
            total, tokens = loss(batch, 0.1)
            total.backward()
            found.append((total.detach(), tokens, gradients(model)))
        assert found[0][1] == found[1][1] == (batch.captions[..., 1:] != 0).sum()
        torch.testing.assert_close(*found, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", list_models())
def test_a_decoding_step_is_one_graph(name):
    model = model_of(name).eval()
    batch = batch_of(name, 9)
    with torch.no_grad():
        compiled = one_graph(model.step)
        plain_state = state = model.start(model.encode(batch), 2)
        for tokens in batch.captions[..., :4].unbind(-1):
            expected, plain_state = model.step(plain_state, tokens)
            logits, state = compiled(state, tokens)
            torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", list_models())
def test_all_words_of_samples_are_one_graph(name):
    model = model_of(name).eval()
    batch = batch_of(name, 9)
    points = torch.rand(3, 2, 5)

    def words(batch, wait):
        return generate(
            model, model.encode(batch), lambda log_probs, points: log_probs.argmax(-1), 2,
            max_length=5, suppress_tokens=[3], points=points, wait=wait,
        )  # fmt: skip

    ids, log_probs = one_graph(lambda batch: words(batch, wait=False))(batch)
    expected_ids, expected = words(batch, wait=True)
    assert ids[..., : expected_ids.shape[-1]].equal(expected_ids)
    assert not ids[..., expected_ids.shape[-1] :].any()
    torch.testing.assert_close(log_probs, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", list_models())
def test_the_scores_of_samples_are_one_graph(name):
    """As self-critical training takes them: with a gradient, dropout off."""
    model = model_of(name).eval()

    def score(batch):
        ids = batch.captions[..., 1:]
        log_probs = sequence_log_probs(
            model, model.encode(batch), ids, [3], renormalise=True, check=False
        )
        return log_probs.masked_fill(ids == 3, 0.0)

    compiled = one_graph(score)
    for length in LENGTHS:
        batch = batch_of(name, length)
        found = []
        for function in (score, compiled):
            log_probs = function(batch)
            log_probs.sum().backward()
            found.append((log_probs.detach(), gradients(model)))
        torch.testing.assert_close(*found, rtol=1e-5, atol=1e-5)


# Their answers, or the shapes of their answers, depend on numbers, for which a GPU is waited for.
WAITS = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "_unique2"}


class Waits(TorchDispatchMode):
    """A context in which an operator that would wait for a GPU is an error."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.name().removeprefix("aten::").partition(".")[0]
        assert name not in WAITS, f"{name} waits for the device"
        result = func(*args, **(kwargs or {}))
        if name in ("_to_copy", "copy_") and getattr(result, "is_meta", False):
            # Tables of positions are floats; a GPU gets them once, "meta" each time.
            lists = [x for x in args if isinstance(x, torch.Tensor) and not x.is_floating_point()]
            assert all(x.is_meta for x in lists), f"{name} sends numbers to the device"
        if name in ("index", "index_put", "index_put_"):
            assert not any(x is not None and x.dtype == torch.bool for x in args[1]), name
        return result


@pytest.mark.parametrize("name", list_models())
@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_a_step_reads_nothing_from_the_device(name, dropout):
    """PyTorch's device "meta" has shapes without numbers, so what reads one cannot go on."""
    model = model_of(name, dropout=dropout).to("meta")
    batch = batch_of(name, 9).to("meta")
    with Waits():
        total, tokens = model(batch, 0.1)
        (total / tokens).backward()
    assert total.device.type == tokens.device.type == "meta"


@pytest.mark.parametrize("name", list_models())
def test_a_self_critical_step_reads_nothing_from_the_device(name):
    reward = CiderD([[[5, 6, 7]], [[8, 9]]])
    model = SelfCritical(model_of(name), reward, max_length=5, suppress_tokens=[3]).to("meta")
    batch = batch_of(name, 9).to("meta")
    reward(batch.captions, batch.captions)      # takes its n-grams to the device, once
    with Waits():
        total, tokens = model(batch)
        (total / tokens).backward()
    assert total.device.type == tokens.device.type == "meta"


@pytest.mark.parametrize("name", list_models())
def test_a_beam_search_asks_after_every_fifth_word_alone(name, monkeypatch):
    model = model_of(name).eval().to("meta")
    batch = batch_of(name, 9).to("meta")
    answers = []

    def all_go_on(_, is_unfinished):
        answers.append(torch.arange(len(is_unfinished), device="meta"))
        return answers[-1]

    monkeypatch.setattr(Checks, "unfinished", all_go_on)
    monkeypatch.setattr(BestHypotheses, "hypotheses", lambda found: [[found.ids]] * len(found.ids))
    with Waits(), torch.no_grad():
        found = nbest_search(model, model.encode(batch), 3, 1.0, max_length=12, num_captions=2)
    assert [ids.shape for ids, _ in found] == [(3, 2, 12)] * 3
    assert len(answers) == 3


def test_what_waits_is_found():
    mask = torch.ones(3, dtype=torch.bool)
    for read in (mask.all().item, mask.nonzero, lambda: mask[mask], lambda: mask.to("meta")):
        with pytest.raises(AssertionError), Waits():
            read()


class OnTheDevice(TorchDispatchMode):
    """A context in which a tensor from elsewhere, other than a number, is an error."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        tensors = [x for x in args if isinstance(x, torch.Tensor) and x.ndim > 0]
        assert all(x.is_meta for x in tensors), f"{func.name()} reads from elsewhere"
        return func(*args, **(kwargs or {}))


def test_frozen_weights_learn_from_what_lies_on_the_device():
    model = model_of("vanilla").to("meta")
    freeze_vision(model, V // 2)
    total, _ = model(batch_of("vanilla", 9).to("meta"), 0.1)
    with OnTheDevice():
        total.backward()
    assert any(parameter.grad is not None for parameter in model.parameters())
