"""Pictures unlike the training pictures of a run are told from others."""

import warnings
from dataclasses import replace

import pytest
import torch
from PIL import Image

import captionlab
from captionlab.data import load_dataset
from captionlab.data.batches import Batch
from captionlab.data.datasets import CaptionData, Item
from captionlab.features import extraction
from captionlab.runs import (
    NoveltyDetector,
    NoveltyWarning,
    load_novelty,
    novelty,
    pooled_items,
    save_novelty,
)
from captionlab.runs.fitting import FitConfig, fit
from captionlab.scenes import generate_scene, render

def around(direction, count, width=8):
    """Vectors of length 1 near an axis."""
    centre = torch.eye(width)[direction]
    return torch.nn.functional.normalize(centre + 0.1 * torch.randn(count, width), dim=-1)


@pytest.fixture
def detector():
    torch.manual_seed(0)
    return NoveltyDetector.fit(around(0, 300), around(0, 200), clusters=3, false_alarms=0.1)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_centroids_move_towards_the_points(seed):
    torch.manual_seed(seed)
    points = torch.cat([around(axis, 50) for axis in range(4)])
    similarity = [
        (points @ novelty._spherical_kmeans(points, 4, steps, seed).T).amax(1).mean() for steps in (0, 1, 30)
    ]
    assert similarity[0] < similarity[1] <= similarity[2]
    torch.testing.assert_close(novelty._spherical_kmeans(points, 4).norm(dim=1), torch.ones(4))


def test_the_share_of_false_alarms_is_that_of_the_validation_pictures(detector):
    torch.manual_seed(1)
    flagged = detector.similarity(around(0, 2000)[:, None]) < detector.threshold
    assert 0.05 < flagged.float().mean() < 0.15
    assert (detector.similarity(around(1, 50)[:, None]) < detector.threshold).all()


def test_cells_are_averaged_before_they_are_scaled():
    grid = torch.tensor([[[3.0, 0.0], [1.0, 4.0]]])
    torch.testing.assert_close(novelty._pooled_features(grid), torch.tensor([[0.5**0.5, 0.5**0.5]]))


class TestExtended:
    """A detector that a fine-tuning extends by its own pictures."""

    NONE = torch.zeros(0, 8)

    def novel_share(self, detector, axis):
        torch.manual_seed(axis)
        similarity = detector.similarity(around(axis, 200)[:, None])
        return (similarity < detector.threshold).float().mean()

    @pytest.mark.parametrize(("count", "added"), [(8, 1), (60, 3), (4000, 32)])
    def test_it_knows_old_and_new_pictures_and_no_others(self, detector, count, added):
        extended = detector.extend(around(1, count), self.NONE)
        assert len(extended.centroids) == len(detector.centroids) + added
        assert torch.equal(extended.centroids[: len(detector.centroids)], detector.centroids)
        assert extended.threshold == detector.threshold
        assert self.novel_share(detector, 1) == 1
        assert self.novel_share(extended, 1) < 0.3
        assert self.novel_share(extended, 0) <= self.novel_share(detector, 0)
        assert self.novel_share(extended, 2) == 1

    def test_the_threshold_falls_if_validation_pictures_are_less_alike(self, detector):
        torch.manual_seed(2)
        wide = torch.nn.functional.normalize(torch.eye(8)[1] + 0.4 * torch.randn(2000, 8), dim=-1)
        train, val, test = wide[:500], wide[500:1000], wide[1000:]
        few = detector.extend(train, val[:99])
        enough = detector.extend(train, val, false_alarms=0.1)
        assert few.threshold == detector.threshold
        assert enough.threshold < detector.threshold
        flagged = [(one.similarity(test[:, None]) < one.threshold).float().mean()
                   for one in (few, enough)]
        assert flagged[0] > 0.3
        assert 0.06 < flagged[1] < 0.14

    def test_the_threshold_never_rises(self, detector):
        alike = torch.eye(8)[1].expand(200, 8)
        assert detector.extend(alike, alike).threshold == detector.threshold

    def test_of_many_pictures_some_are_read(self):
        read = []

        def transform(item):
            read.append(item)
            return torch.ones(4, 8)

        pooled = pooled_items(list(range(10)), transform, limit=4)
        assert read == [0, 3, 6, 9]
        assert pooled.shape == (4, 8)
        assert len(pooled_items([], torch.as_tensor)) == 0


def test_one_line_names_the_picture(detector):
    batch = Batch(grid=torch.stack([around(0, 1), around(1, 1), around(2, 1)]))
    with pytest.warns(NoveltyWarning, match=r"^page.png is unlike .* its caption$"):
        detector.warn(batch.select(torch.tensor([1])), ["page.png"])
    with pytest.warns(NoveltyWarning, match=r"^page.png and picture 3 are unlike"):
        detector.warn(batch, ["a.jpg", "page.png", Image.new("RGB", (8, 8))])


@pytest.mark.parametrize(
    ("count", "subject"),
    [
        (3, "1.jpg, 2.jpg and 3.jpg are"),
        (5, "1.jpg, 2.jpg, 3.jpg, 4.jpg and 5.jpg are"),
        (8, "1.jpg, 2.jpg, 3.jpg, 4.jpg and 4 others are"),
    ],
)
def test_one_line_names_up_to_five_pictures(detector, count, subject):
    batch = Batch(grid=around(1, count)[:, None])
    with pytest.warns(NoveltyWarning, match=f"^{subject} unlike .* their captions$"):
        detector.warn(batch, [f"{number}.jpg" for number in range(1, count + 1)])


def test_a_known_picture_does_not_warn(detector):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        detector.warn(Batch(grid=detector.centroids[:1, None]), ["a.jpg"])


def test_it_is_stored_with_a_run(detector, tmp_path):
    run = captionlab.load("scenes")
    assert run.novelty is None
    folder = replace(run, novelty=detector).save(tmp_path / "run")
    again = captionlab.load(folder).novelty
    assert again.threshold == detector.threshold
    assert torch.equal(again.centroids, detector.centroids)


def test_a_run_that_replaces_another_leaves_no_detector(detector, tmp_path):
    run = captionlab.load("scenes")
    replace(run, novelty=detector).save(tmp_path / "run")
    assert captionlab.load(run.save(tmp_path / "run")).novelty is None


def test_a_broken_file_is_one_clear_line(detector, tmp_path):
    save_novelty(detector, tmp_path).write_bytes(b"nonsense")
    with pytest.raises(ValueError, match=r"novelty.safetensors is broken") as caught:
        load_novelty(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_the_photo_captioner_warns_of_a_scene():
    run = captionlab.load("photos")
    with pytest.warns(NoveltyWarning, match="this picture is unlike"):
        run.caption(render(generate_scene(7), 192))


@pytest.mark.slow
def test_the_photo_captioner_knows_photos_of_its_data_set(real_data):
    run = captionlab.load("photos")
    items = load_dataset(real_data / "flickr8k")["test"][:20]
    similarity = run.novelty.similarity(run.processor([item.image for item in items]).grid)
    assert (similarity < run.novelty.threshold).sum() <= 4


@pytest.mark.slow
def test_a_fine_tuned_photo_captioner_knows_its_own_pictures_and_warns_of_others(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(extraction, "cache_home", lambda: tmp_path)
    items = [
        Item(f"{seed}", ("two shapes on grey",), render(generate_scene(seed), 64))
        for seed in range(7)
    ]
    data = CaptionData("mine", {"train": items[:6], "val": items[6:]})
    options = FitConfig(epochs=1, warmup=1)
    fit("photos", data, config=options, out=tmp_path / "run")
    run = captionlab.load(tmp_path / "run")
    assert run.novelty.threshold == captionlab.load("photos").novelty.threshold
    with warnings.catch_warnings():
        warnings.simplefilter("error", NoveltyWarning)
        run.caption([item.image for item in items])
    noise = torch.randint(0, 255, (3, 64, 64), generator=torch.Generator().manual_seed(0))
    with pytest.warns(NoveltyWarning, match="this picture is unlike"):
        run.caption(noise.byte())
