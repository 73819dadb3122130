"""Batches read in worker processes: the same ones, the same weights, and nobody left behind."""

import os
import random
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import tiny_training
import torch
from operators import WaitCounter
from PIL import Image

from captionlab.data import (
    SMALL_DATA,
    BatchLoader,
    CaptionDataset,
    Item,
    PixelInput,
    ResidentLoader,
    ResumableBatchSampler,
    batch_by_count,
    datasets,
    default_workers,
    loading,
    resident,
)
from captionlab.features import ImageProcessor, input_transforms
from captionlab.features.preprocessing import Preprocess
from captionlab.models import find_preset
from captionlab.runs import preparation
from captionlab.runs.fitting import NewModel, fit
from captionlab.subwords import SubwordVocabulary
from captionlab.text import Vocabulary
from captionlab.training.loop import Trainer

# More workers than cores are slow, and right.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

SCRIPT = Path(__file__).with_name("tiny_training.py")
TEXTS = ["a red circle", "the blue square is large", "green", "a small red triangle below"]


def number_of(item):
    """A tensor from all three generators that an augmentation might use."""
    return torch.tensor([float(item.name), float(torch.rand(())), random.random()])


def noisy_rows(count=11):
    """Rows with two views, subword dropout and noise: everything that draws random numbers."""
    items = [Item(str(n), (TEXTS[n % 4], TEXTS[(n + 1) % 4])) for n in range(count)]
    pieces = SubwordVocabulary.build(TEXTS * 3, 320)
    views = [{"grid": number_of}, {"grid": lambda item: -number_of(item)}]
    return CaptionDataset(items, pieces, inputs=views[0], augmentations=views[1:], dropout=0.3)


def batches(data, *, workers=0, epochs=2, **more):
    """Every tensor of some epochs, in order."""
    sampler = ResumableBatchSampler(partial(batch_by_count, len(data), 4, 0))
    loader = BatchLoader(data, sampler, seed=3, workers=workers, **more)
    read = []
    with closing(loader):
        for epoch in range(epochs):
            sampler.set_epoch(epoch)
            read += [(batch.grid, batch.captions) for batch in loader]
    return read


def equal(one, other):
    flat = [[tensor for tensors in read for tensor in tensors] for read in (one, other)]
    return len(one) == len(other) and all(map(torch.equal, *flat))


def test_batches_are_the_same_with_any_number_of_workers():
    data = noisy_rows()
    alone = batches(data)
    first, second = alone[:3], alone[3:]
    assert not equal(first, second), "another epoch draws other numbers"
    for workers in (1, 4):
        assert equal(batches(data, workers=workers), alone)


def test_batches_are_the_same_after_others_were_skipped():
    data = noisy_rows()
    alone = batches(data, epochs=1)
    sampler = ResumableBatchSampler(partial(batch_by_count, len(data), 4, 0))
    sampler.set_epoch(0, done=2)
    (rest,) = BatchLoader(data, sampler, seed=3)
    assert equal([(rest.grid, rest.captions)], alone[2:])


def test_reading_leaves_the_generators_of_the_process_alone():
    torch.manual_seed(0)
    random.seed(0)
    expected = torch.rand(3), random.random()
    torch.manual_seed(0)
    random.seed(0)
    batches(noisy_rows())
    assert torch.equal(torch.rand(3), expected[0])
    assert random.random() == expected[1]


def test_processes_share_the_rows_of_a_batch():
    data = noisy_rows(9)        # the last batch has one row: for one of two processes
    whole = batches(data, epochs=1)
    shares = [batches(data, epochs=1, rank=rank, processes=2) for rank in (0, 1)]
    for number, (grid, _) in enumerate(whole):
        for rank in (0, 1):
            assert torch.equal(shares[rank][number][0], grid[rank::2])
    assert [len(grid) for grid, _ in shares[1]] == [2, 2, 0]


def child_processes():
    """The processes of this test: PyTorch's compiler may have left some of its own."""
    return set(psutil.Process().children())


@pytest.mark.parametrize("workers", [0, 2])
def test_a_row_that_cannot_be_read_is_its_own_error(workers):
    before = child_processes()

    def broken(item):
        if item.name == "5":
            raise ValueError("cannot read 5.jpg as a picture: it is cut off")
        return torch.zeros(1)

    items = [Item(str(n), ("a red circle",)) for n in range(9)]
    data = CaptionDataset(items, Vocabulary.build(TEXTS, 1), inputs={"grid": broken})
    with pytest.raises(ValueError, match=r"^cannot read 5.jpg as a picture: it is cut off$"):
        batches(data, workers=workers)
    assert child_processes() <= before


def test_fewer_than_no_workers_are_refused():
    with pytest.raises(ValueError, match="-1 workers: give 0 or more"):
        batches(noisy_rows(), workers=-1)


def test_workers_are_for_many_pictures_and_a_gpu(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(16), raising=False)
    small, words = noisy_rows(4), noisy_rows(4)
    large = noisy_rows(4)
    for data in (large, words):
        monkeypatch.setattr(data, "items", [None] * SMALL_DATA)
    words.input_variants = [{}]
    assert [default_workers(data, "cuda") for data in (small, large, words)] == [0, 8, 0]
    assert default_workers(large, "cpu") == 0
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert default_workers(large, "cuda") == 3
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "16")
    assert default_workers(large, "cuda") == 0


# ------------------------------------------------------------------------------- whole trainings

BRIEF = replace(tiny_training.RECIPE, epochs=2, batch_size=4)


def weights_of(folder, workers, steps=None):
    """Train, stopping after some steps if that is given; return the final weights."""
    data, words = tiny_training.examples()
    # Noise in the inputs: augmentation whose random numbers the weights depend on.
    cells = data.input_variants[0]["grid"]
    data.input_variants[0]["grid"] = lambda item: cells(item) + torch.rand(2, 3)
    torch.manual_seed(0)
    model = tiny_training.GridCaptioner(words, 0.1)
    trainer = Trainer(model, data, BRIEF, folder, save_every=0, workers=workers)
    if steps is not None:
        counter = iter(range(steps))
        reseed = trainer.reseed
        trainer.reseed = lambda *place: (next(counter), reseed(*place))
        with pytest.raises(StopIteration):
            trainer.fit()
        return None
    return trainer.fit().state_dict()


def test_weights_are_the_same_with_any_number_of_workers_and_interruptions(tmp_path):
    before = child_processes()
    whole = weights_of(None, 0)
    for workers in (1, 4):
        folder = tmp_path / str(workers)
        for _ in range(2):      # interrupted in the first epoch, then in the second
            weights_of(folder, workers, steps=7)
        resumed = weights_of(folder, 0 if workers == 1 else 2)
        assert all(torch.equal(resumed[name], x) for name, x in whole.items())
        assert child_processes() <= before


def photos(folder, count):
    """Random photos with a caption each, as a CSV beside them."""
    chance = np.random.default_rng(0)
    lines = ["image,caption,split"]
    for number in range(count):
        pixels = chance.integers(0, 256, (30, 40, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.jpg")
        lines.append(f"{number}.jpg,a picture of the number {number % 5},train")
    (folder / "captions.csv").write_text("\n".join(lines))
    return datasets.from_files(folder / "captions.csv")


def test_jpegs_are_decoded_and_augmented_in_the_workers(tmp_path):
    """Mirrored or not: the same pictures, and none of them is decoded in the training process."""
    data = photos(tmp_path, 12)
    preset = find_preset("cptr", "tiny")
    preset = replace(preset, inputs=replace(preset.inputs, hflip=True))
    vocabulary = Vocabulary.build(data.captions("train"), 1)
    decoded = []

    def read(workers):
        processor = ImageProcessor(preset, vocabulary=vocabulary)
        examples = preparation._training_set(data, vocabulary, processor, input_transforms(processor))
        sampler = ResumableBatchSampler(partial(batch_by_count, len(examples), 4, 0))
        loader = BatchLoader(examples, sampler, workers=workers)
        images = torch.cat([batch.images for batch in loader])
        loader.close()
        return images

    plain = Image.open

    def counted(*args, **more):
        decoded.append(args)
        return plain(*args, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Image, "open", counted)
        alone = read(0)
        here = len(decoded)
        beside = [read(workers) for workers in (1, 4)]
    assert here == 12
    assert len(decoded) == 12
    assert all(torch.equal(images, alone) for images in beside)
    preset = replace(preset, inputs=replace(preset.inputs, hflip=False))
    assert not torch.equal(read(0), alone)


def pixel_rows(count, side=5):
    """Rows whose pictures are random bytes, scaled as a model reads them."""
    chance = np.random.default_rng(0)
    pictures = torch.from_numpy(chance.integers(0, 256, (count, side, side, 3), np.uint8))
    preprocess = Preprocess(side)
    scaled = preprocess.normalise(pictures.numpy())
    function = PixelInput(lambda item: pictures[int(item.name)], *preprocess.byte_scale)
    items = [Item(str(number), (TEXTS[number % 4],)) for number in range(count)]
    data = CaptionDataset(items, Vocabulary.build(TEXTS, 1), inputs={"images": function})
    assert all(data[row]["images"].equal(picture) for row, picture in enumerate(scaled))
    return data


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_bytes_are_scaled_to_the_same_bits(workers):
    data = pixel_rows(47)
    sampler = ResumableBatchSampler(partial(batch_by_count, len(data), 2, 0))
    expected = [torch.stack([data[row]["images"] for row in rows]) for rows in sampler]
    with closing(BatchLoader(data, sampler, workers=workers)) as loader:
        for _ in range(2):      # more batches than slots, and the same workers again
            batches = []
            for batch in loader:
                batches.append(batch.images)
                time.sleep(0.002)       # workers are ahead
            assert all(map(torch.equal, batches, expected))
            assert batches[0].stride() == expected[0].stride()
            assert len(batches) == 24
    resident = [batch.images for batch in ResidentLoader(data, sampler, "cpu")]
    assert all(map(torch.equal, resident, expected))


def test_few_pictures_wait_for_the_device(monkeypatch):
    class FastThreads(ThreadPoolExecutor):
        """Threads that have read all they were given before the first copy."""

        def map(self, function, places):
            return [function(place) for place in places]

    def pixels(item):
        read.append(item)
        return torch.zeros(5, 5, 3, dtype=torch.uint8)

    monkeypatch.setattr(resident, "ThreadPoolExecutor", FastThreads)
    data = pixel_rows(9)
    inputs = data.input_variants[0]
    inputs["images"] = replace(inputs["images"], source=pixels)
    read = []
    next(resident._rows(data, [(0, 0)] * 3000))
    assert len(read) == 1024


@pytest.mark.parametrize(("parent", "ends"), [(77, True), (1, False)])
def test_a_worker_knows_its_parent_though_it_is_the_first_process(monkeypatch, parent, ends):
    """As that of a container is; an orphan of any other has that one as its new parent."""
    ended = []
    library = SimpleNamespace(prctl=lambda *_: None)
    monkeypatch.setattr(loading.ctypes, "CDLL", lambda _: library)
    monkeypatch.setattr(loading.sys, "platform", "linux")
    monkeypatch.setattr(loading.os, "getppid", lambda: 1)
    monkeypatch.setattr(loading.os, "_exit", ended.append)
    loading._end_with_parent(parent, 0)
    assert ended == [1] * ends


def test_an_epoch_may_break_off_and_a_share_may_have_no_pictures():
    data = pixel_rows(9)
    sampler = ResumableBatchSampler(partial(batch_by_count, len(data), 4, 0))
    with closing(BatchLoader(data, sampler, workers=1, rank=1, processes=2)) as loader:
        for _ in loader:
            break
        shares = [rows[1::2] for rows in sampler]
        for batch, rows in zip(loader, shares, strict=True):
            assert batch.images.shape == (len(rows), 3, 5, 5)
            for picture, row in zip(batch.images, rows, strict=True):
                assert torch.equal(picture, data[row]["images"])


def test_views_that_are_scaled_differently_are_not_sent_as_bytes():
    data = pixel_rows(4)
    first = data.input_variants[0]["images"]
    assert data.pixel_inputs == {"images": first}
    data.input_variants.append({"images": replace(first, mean=(0.0, 0.0, 0.0))})
    assert data.pixel_inputs == {}
    data.input_variants[1] = {"images": first.pixels}
    assert data.pixel_inputs == {}


def test_pictures_on_a_device_are_mirrored_there(tmp_path):
    """They equal those that are read and mirrored alone in every bit, and each is kept once."""
    data = photos(tmp_path, 6)
    preset = find_preset("cptr", "tiny")
    preset = replace(preset, inputs=replace(preset.inputs, hflip=True, corner_crop=0.8))
    vocabulary = Vocabulary.build(data.captions("train"), 1)
    processor = ImageProcessor(preset, vocabulary=vocabulary)
    examples = preparation._training_set(data, vocabulary, processor, input_transforms(processor))
    sampler = ResumableBatchSampler(partial(batch_by_count, len(examples), 4, 0))
    loader = ResidentLoader(examples, sampler, "cpu")
    assert len(loader.inputs["images"]) == 6 * 5    # whole, and four corners
    views = [{}, *preparation._augmentations(preset)]
    assert len(views) == 6
    rows = [4, 0, 5]
    for view, changes in enumerate(views):
        seen = processor.with_preprocess(**changes)([data["train"][row].image for row in rows])
        with WaitCounter([*loader.inputs.values(), *loader.ids.values()]) as waits:
            batch = loader.batch(rows, np.full(3, view))
        assert not waits.counts
        read = [examples.input_variants[view]["images"](data["train"][row]) for row in rows]
        assert batch.images.equal(seen.images)
        assert torch.stack(read).equal(seen.images)


@pytest.mark.slow
def test_train_takes_workers(tmp_path):
    data = photos(tmp_path, 20)
    preset = find_preset("cptr", "tiny")
    preset = replace(preset, training=replace(preset.training, epochs=1))
    runs = [
        fit(
            NewModel("cptr", preset),
            data,
            out=tmp_path / str(workers),
            device="cpu",
            workers=workers,
        )
        for workers in (0, 2)
    ]
    one, two = (run.model.state_dict() for run in runs)
    assert all(torch.equal(one[name], x) for name, x in two.items())


def is_running(pid):
    """Whether a process runs; one that has ended may not be waited for yet."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGINT])
def test_no_worker_outlives_a_training_that_is_killed(sent, tmp_path):
    env = os.environ | {"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    command = [sys.executable, SCRIPT, "workers", tmp_path]
    # A shell starts background jobs deaf to SIGINT, and tests in them pass that on.
    training = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    training.stdout.readline()      # it is in its steps
    workers = [child.pid for child in psutil.Process(training.pid).children(recursive=True)]
    training.send_signal(sent)
    training.wait(3600)
    assert len(workers) == 2
    deadline = time.monotonic() + 3600
    while any(map(is_running, workers)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(map(is_running, workers))
