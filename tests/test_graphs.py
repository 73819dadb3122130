"""Steps that are recorded and replayed, and data on the device: what of it needs no GPU."""

import math
from contextlib import nullcontext
from dataclasses import replace

import pytest
import tiny_training
import torch

from captionlab import captioner, distillation
from captionlab.data import resident
from captionlab.data.batches import Batch, CaptionDataset, collate
from captionlab.data.datasets import Item
from captionlab.data.loading import BatchLoader
from captionlab.data.resident import ResidentLoader, fits_on
from captionlab.distillation import Distilled
from captionlab.models import find_preset, model_module
from captionlab.rewards import CiderD, Gleu
from captionlab.scst import SelfCritical
from captionlab.text import Vocabulary
from captionlab.training.config import TrainingConfig
from captionlab.training.graphs import ReplayedStep
from captionlab.training.loop import Trainer

def called_again(calls):
    """Records as a GPU does, which computes nothing meanwhile; a replay calls the function."""

    def record(call):
        calls.append("record")

        def replay():
            calls.append("replay")
            return call()

        return replay

    return record


def weights_after(replayed, lengths=(7, 7, 7, 10, 7, 10, 10), most_shapes=24):
    run = tiny_training.trainer(dropout=0.1)
    calls = []
    if replayed:
        run.perform_step = ReplayedStep(run._step, called_again(calls), most_shapes)
    for number, length in enumerate(lengths):
        words = torch.Generator().manual_seed(number)
        captions = torch.randint(4, 9, (2, 2, length), generator=words)
        run.reseed(0, number)
        run.step(Batch(grid=torch.full((2, 2, 3), number / 7), captions=captions))
    return run.model.state_dict(), run.ema_model.state_dict(), calls


def test_every_batch_is_trained_on_once():
    *plain, _ = weights_after(False)
    *replayed, calls = weights_after(True)
    torch.testing.assert_close(replayed, plain, rtol=0, atol=0)
    # Of each length the first takes the step itself; the second is recorded, then replayed.
    assert calls == ["record", *3 * ["replay"], "record", "replay", "replay"]


def test_a_recording_that_fails_half_way_leaves_no_gradient():
    def record(call):
        for parameter in run.model.parameters():
            parameter.grad = torch.full_like(parameter, 1e3)  # memory that nothing has filled
        raise RuntimeError("no copy while a stream is captured")

    trained = []
    for replayed in (False, True):
        run = tiny_training.trainer(dropout=0.0)
        if replayed:
            run.perform_step = ReplayedStep(run._step, record)
        with pytest.warns(UserWarning, match="no copy") if replayed else nullcontext():
            for _ in range(2):
                run.step(Batch(grid=torch.ones(2, 2, 3), captions=torch.full((2, 2, 7), 5)))
        trained.append(run.model.state_dict())
    torch.testing.assert_close(*trained, rtol=0, atol=0)


def test_further_shapes_are_not_recorded():
    *plain, _ = weights_after(False)
    *replayed, calls = weights_after(True, most_shapes=1)
    torch.testing.assert_close(replayed, plain, rtol=0, atol=0)
    assert calls.count("record") == 1


def test_a_cpu_records_nothing():
    run = tiny_training.trainer()
    assert run.config.graphs
    assert not run.graphs
    assert not fits_on(run.data, run.device)


@pytest.mark.parametrize(
    ("name", "change"),
    [("image_transformer", {"variant": "sampling"}), ("image_transformer", {}), ("vanilla", {})],
)
def test_models_that_read_numbers_say_so(name, change):
    model = model_module(name).Model(replace(find_preset(name, "tiny"), **change), 50)
    reads = any(getattr(module, "reads_numbers", False) for module in model.modules())
    assert reads == bool(change)


def views():
    """Rows with captions of several lengths, in two views."""
    captions = [("a red circle",) * (1 + n % 2) + ("red " * (n % 4 + 1),) for n in range(9)]
    items = [Item(str(number), texts) for number, texts in enumerate(captions)]
    vocabulary = Vocabulary.build(text for item in items for text in item.captions)

    def numbered(sign):
        return {"grid": lambda item: torch.full((2, 3), sign * float(item.name) + sign)}

    return CaptionDataset(items, vocabulary, inputs=numbered(1), augmentations=[numbered(-1)])


def test_resident_batches_are_those_that_are_read():
    data = views()
    sampler = TrainingConfig(batch_size=4).batch_sampler(data)
    seen = set()
    for epoch in range(8):
        sampler.set_epoch(epoch)
        pairs = zip(ResidentLoader(data, sampler, "cpu"), BatchLoader(data, sampler), strict=True)
        for ours, read in pairs:
            captions = read.captions.shape[1]       # ours are padded to those of all rows
            assert ours.captions[:, :captions].equal(read.captions)
            assert not ours.captions[:, captions:].any()
            assert ours.grid.abs().equal(read.grid.abs())
            seen |= set(ours.grid[:, 0, 0].tolist())
    assert len(seen) == 18      # each row in both views
    first, again = (list(ResidentLoader(data, sampler, "cpu")) for _ in range(2))
    assert all(a.grid.equal(b.grid) for a, b in zip(first, again, strict=True))
    assert resident._resident_bytes(data) == 9 * (2 * 2 * 6 + 8 * 3 * data.lengths.max())


def test_a_training_takes_resident_data():
    run = tiny_training.trainer(config=replace(tiny_training.RECIPE, epochs=2))
    run.loader = ResidentLoader(run.data, run.sampler, "cpu")
    run._train_epoch()
    assert run.state.step == len(run.sampler)
    assert math.isfinite(run.state.loss)


def test_padded_texts_have_the_same_loss():
    run = tiny_training.trainer(dropout=0.0)
    batch = collate([run.data[row] for row in range(4)])
    padded = batch.padded(6)
    assert padded.captions.shape[-1] % 6 == 0
    torch.testing.assert_close(run.model.loss(padded), run.model.loss(batch))


def test_a_larger_batch_averages_over_as_many_pictures():
    recipe = TrainingConfig(max_tokens=144, lr=8e-4, warmup=1000, ema_decay=0.998)
    large = recipe.with_batch_size(64, usual=8)
    assert (large.batch_size, large.max_tokens, large.warmup) == (64, 0, 125)
    assert large.ema_decay == pytest.approx(0.998**8)
    assert large.lr == pytest.approx(8e-4 * math.sqrt(8))


@pytest.mark.parametrize("length", [6, 13])
def test_teachers_count_the_same_with_padding(monkeypatch, length):
    model = Distilled(model_module("vanilla").Model(find_preset("vanilla", "tiny"), 50), 0.5)
    torch.manual_seed(0)
    captions = torch.randint(4, 50, (3, 2, length))
    captions[1, :, 4:] = 0
    batch = Batch(
        captions=captions,
        grid=torch.rand(3, 64, 12),
        teacher_words=torch.randint(4, 50, (3, 2, length - 1, 5)),
        teacher_chances=torch.rand(3, 2, length - 1, 5),
    )
    plain = model.loss(batch, 0.1)
    for module in (captioner, distillation):
        monkeypatch.setattr(module, "rows_to_score", lambda x, ids: x.flatten(0, ids.ndim - 1))
    torch.testing.assert_close(model.loss(batch.padded(6), 0.1), plain)


def self_critical_losses(calls):
    torch.manual_seed(0)
    model = model_module("vanilla").Model(find_preset("vanilla", "tiny"), 50)
    captions = torch.randint(4, 50, (3, 2, 9))
    model = SelfCritical(model, CiderD(captions.tolist()), samples=3, max_length=8)
    run = Trainer(model, range(9), TrainingConfig(batch_size=3, epochs=1, warmup=1))
    if calls is not None:
        run.perform_step = ReplayedStep(run._step, called_again(calls))
    losses = []
    for number in range(3):
        run.reseed(0, number)
        losses.append(run.step(Batch(captions=captions, grid=torch.full((3, 64, 12), number / 3))))
    return torch.stack(losses)


def test_a_self_critical_training_is_recorded_with_samples_and_rewards():
    calls = []
    losses = self_critical_losses(calls)
    assert calls == ["record", "replay", "replay"]
    assert losses.equal(self_critical_losses(None))
    assert losses.isfinite().all() and losses.all()


def test_rewards_that_read_numbers_say_so():
    model = model_module("vanilla").Model(find_preset("vanilla", "tiny"), 50)
    rewards = [CiderD([[[5, 6]], [[7]]]), Gleu(list), lambda captions, references: captions]
    assert [SelfCritical(model, reward).reads_numbers for reward in rewards] == [False, True, True]


def test_what_cannot_be_recorded_goes_on_without():
    def record(call):
        raise RuntimeError("operation not permitted when stream is capturing\nand more")

    step = ReplayedStep(lambda batch: batch.captions + 1, record)
    batch = Batch(captions=torch.arange(6).view(1, 1, 6))
    with pytest.warns(UserWarning, match="cannot be recorded.* stream is capturing$"):
        found = [step(batch) for _ in range(3)]
    assert all(one.equal(batch.captions + 1) for one in found)
