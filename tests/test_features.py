"""Processors: a photo gives the same inputs from a store and on the spot."""

import os
import re
from collections import Counter
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torchvision
from PIL import Image, ImageOps
from torch import nn
from torchvision.ops import roi_align

import captionlab
from captionlab import models
from captionlab.captioner import TransformerCaptioner
from captionlab.data.batches import Batch
from captionlab.data.datasets import CaptionData, Item, scenes
from captionlab.data.inputs import InputConfig
from captionlab.features import extraction, image_processor
from captionlab.features.attributes import AttributeDetector
from captionlab.features.backbones import Backbone, Pyramid
from captionlab.features.base import Processor, reads_images
from captionlab.features.boxes import open_boxes, save_boxes
from captionlab.features.detectors import Detector
from captionlab.features.extraction import (
    extract_attributes,
    extract_features,
    extract_maps,
    extract_regions,
    input_transforms,
    open_feature_stores,
)
from captionlab.features.image_processor import ImageProcessor
from captionlab.features.mean_colours import pixel_regions
from captionlab.features.regions import Regions, scene_regions
from captionlab.features.text_processor import TextProcessor
from captionlab.files import short_hash
from captionlab.runs import catalog as runs_catalog
from captionlab.runs import evaluation, fitting, preparation, storage
from captionlab.runs import run as run_module
from captionlab.runs.ensembles import ensemble
from captionlab.runs.evaluation import evaluate
from captionlab.runs.fitting import NewModel, fit
from captionlab.runs.objectives import SCST
from captionlab.runs.run import Run, caption_split
from captionlab.scenes.generator import generate_scene
from captionlab.scenes.world import render
from captionlab.subwords import SubwordVocabulary
from captionlab.text import Vocabulary
from captionlab.training.config import BasePreset, TrainingConfig

os.environ["TQDM_DISABLE"] = "1"
PYRAMID, REGIONS = ("low", "high"), ("regions", "boxes", "region_mask")
READS = {
    "pyramid": PYRAMID,
    "regions": REGIONS,
    "attributes": ("attributes",),
    "all": ("grid", *PYRAMID, *REGIONS, "attributes"),
}


@dataclass(frozen=True, kw_only=True)
class Preset(BasePreset):
    """Of a model that reads whatever `inputs.fields` says."""


class Model(TransformerCaptioner):
    """All that it reads as one row of cells."""

    def __init__(self, preset, size):
        super().__init__(preset.config, preset.decoder_layers, size, tied=False)
        self.reads, self.project, self.known = (
            preset.inputs.fields,
            nn.Linear(512, preset.width),
            nn.Embedding(size, preset.width),
        )
        for part in (
            self.project,
            self.output,
        ):  # what it says hangs on what it sees, after however little training
            nn.init.normal_(part.weight)
        nn.init.normal_(self.known.weight, std=3)

    def encode_inputs(self, batch: Batch):
        seen = {
            name: batch.require(name)
            for name in self.reads
            if name not in ("attributes", "region_mask")
        }
        rows = [self.project(F.pad(x, (0, 512 - x.shape[-1]))) for x in seen.values()]
        masks = [
            batch.region_mask if name in REGIONS else torch.ones(x.shape[:2]).bool()
            for name, x in seen.items()
        ]
        if "attributes" in self.reads:
            rows, masks = (
                [*rows, self.known(batch.require("attributes"))],
                [*masks, batch.attributes != 0],
            )
        return torch.cat(rows, 1), torch.cat(masks, 1)[:, None, None]


def preset(kind, backbone="pixels", **inputs) -> Preset:
    """A preset that reads fields of some kind; `inputs` are of `InputConfig`."""
    small = {"image_size": 64, "grid": 2, "fine_grid": 4, "max_boxes": 5, "max_attributes": 4}
    return Preset(
        inputs=InputConfig(fields=READS[kind], backbone=backbone, **small | inputs),
        width=16, heads=2, hidden=32, encoder_layers=1, decoder_layers=1, dropout=0.0,
        training=TrainingConfig(epochs=1, batch_size=4, lr=1e-3, warmup=1),
    )  # fmt: skip


def with_inputs(preset, **inputs) -> Preset:
    return replace(preset, inputs=replace(preset.inputs, **inputs))


@pytest.fixture(autouse=True)
def _alone(tmp_path, monkeypatch):
    """Give each test a cache, our model, and random weights in place of a download."""
    for module in (runs_catalog, extraction):
        monkeypatch.setattr(module, "cache_home", lambda: tmp_path / "cache")
    module = SimpleNamespace(Model=Model, Preset=Preset, PRESETS={})
    for user in (models, storage, fitting):
        monkeypatch.setattr(user, "model_module", lambda name: module)
    monkeypatch.setattr(image_processor, "find_weights", lambda _: "0")
    for make in (Backbone, Pyramid):
        monkeypatch.setattr(
            image_processor,
            make.__name__,
            lambda name, weights, size, make=make: make(name, None, size, seed=int(weights)),
        )


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Scenes as picture files, their boxes in a file."""
    folder = tmp_path_factory.mktemp("photos")
    world = scenes(train=12, val=2, test=6, novel=0)
    splits, boxes = {}, {}
    for split in ("train", "val", "test"):
        splits[split] = []
        for item in world[split]:
            name = f"{item.name}.png"
            Image.fromarray(render(item.image, 80)).save(folder / name)
            splits[split].append(Item(name, item.captions, folder / name))
            boxes[name] = scene_regions(item.image)
    save_boxes(folder / "boxes.npz", boxes)
    return CaptionData("photos", splits), str(folder / "boxes.npz")


def detector(photos, size=64, backbone="pixels") -> AttributeDetector:
    """One that has learnt nothing, but has its opinions."""
    torch.manual_seed(
        2 if backbone == "pixels" else 1
    )  # no two words so alike that rounding swaps them
    words = Vocabulary.build(photos[0].captions("train")).tokens[4:20]
    made = AttributeDetector(12 if backbone == "pixels" else 512, words)
    nn.init.normal_(made.output.weight, std=1 if backbone == "pixels" else 512**-0.5)
    processor = ImageProcessor(preset("pyramid", backbone, fine_grid=2))
    processor.feature_kinds = ["grid"]
    made.metadata = {
        "made_by": {
            "backbone": processor.backbone.describe() if processor.needs_network else None,
            "preprocess": processor.preprocess.to_dict() | {"size": size},
            "grid": [2, 2],
        }
    }
    return made.eval()


def trained(kind, backbone, photos, out):
    data, boxes = photos
    own = preset(kind, backbone, boxes=boxes)
    words = detector(photos, backbone=backbone) if "attributes" in own.inputs.fields else None
    return fit(NewModel("any", own, detector=words), data, out=out)


def as_photos(world):
    """The same pictures, about which no more is known than about photos."""
    return CaptionData(
        "photos",
        {
            split: [replace(item, image=item.picture(64)) for item in items]
            for split, items in world.splits.items()
        },
    )


def one_line(fault) -> str:
    assert "\n" not in str(fault.value)
    return str(fault.value)


@pytest.mark.parametrize("backbone", ["pixels", "squeezenet1_1"])
@pytest.mark.parametrize("kind", READS)
class TestAPhoto:
    @pytest.mark.slow
    def test_is_captioned_as_in_the_data_set(self, photos, kind, backbone, tmp_path):
        data, _ = photos
        run = trained(kind, backbone, photos, tmp_path / "run")
        again = captionlab.load(tmp_path / "run")
        stores = open_feature_stores(run.processor, data)
        assert [store.folder.parent for store in stores] == [tmp_path / "cache" / "features"] * (
            backbone != "pixels"
        )
        stored = caption_split(run, data["test"], input_transforms(run.processor, stores))
        alone = [again.caption(item.image) for item in data["test"]]
        opened = (
            again.caption([Image.open(item.image) for item in data["test"]])
            if kind in ("pyramid", "attributes")
            else alone
        )
        assert stored == alone == opened
        assert len({*alone}) > 1

    def test_looks_as_in_the_store(self, photos, kind, backbone):
        data, boxes = photos
        processor = ImageProcessor(
            preset(kind, backbone, boxes=boxes),
            detector=detector(photos, backbone=backbone),
            vocabulary=Vocabulary.build(data.captions("train")),
        )
        inputs = input_transforms(processor, open_feature_stores(processor, data))
        assert list(inputs) == list(READS[kind])
        for item in data["test"]:
            alone = processor([item.image])
            for name, see in inputs.items():
                seen, want = see(item), alone.require(name)[0]
                assert seen.dtype == want.dtype
                torch.testing.assert_close(seen.float(), want.float(), rtol=2e-3, atol=2e-3)


class TestViews:
    def test_inputs_are_those_of_a_mirrored_corner(self, photos):
        data, _ = photos
        processor = ImageProcessor(preset("pyramid", "squeezenet1_1"))
        view = processor.with_preprocess(window=(0.1, 0.1, 1, 1), mirror=True)
        inputs = input_transforms(view, open_feature_stores(view, data))
        assert list(inputs) == list(PYRAMID)
        for item in data["test"]:
            photo = Image.open(item.image).convert("RGB")
            width, height = photo.size
            corner = photo.crop((round(width / 10), round(height / 10), width, height))
            batch = processor([np.asarray(ImageOps.mirror(corner))])
            for name, transform in inputs.items():
                expected = batch.require(name)[0].float()
                torch.testing.assert_close(transform(item).float(), expected, rtol=2e-2, atol=2e-2)


class TestOneLook:
    def test_evaluation_looks_at_a_picture_once_for_all_fields(self, photos, monkeypatch):
        data, boxes = photos
        processor, looks, look = (
            ImageProcessor(preset("regions", boxes=boxes)),
            [],
            ImageProcessor.extract,
        )
        monkeypatch.setattr(
            ImageProcessor,
            "extract",
            lambda self, read, *rest: looks.append(len(read)) or look(self, read, *rest),
        )
        seen = run_module.make_batch(
            SimpleNamespace(processor=processor),
            data["test"][:3],
            input_transforms(processor, cache_bytes=0),
        )
        assert sum(looks) == 3
        assert len(seen.boxes) == len(seen.regions) == 3

    def test_the_network_looks_once_for_all_fields(self, photos, monkeypatch):
        data, boxes = photos
        processor = ImageProcessor(
            preset("all", "squeezenet1_1", boxes=boxes),
            detector=detector(photos, backbone="squeezenet1_1"),
            vocabulary=Vocabulary(["a"]),
        )
        looks, stages = Counter(), Backbone.stages
        monkeypatch.setattr(
            Backbone,
            "stages",
            lambda net, images, only=None: (
                looks.update(all=len(images)) or stages(net, images, only)
            ),
        )
        processor([item.image for item in data["test"]])
        assert looks["all"] == 6
        look = input_transforms(processor)
        for see in look.values():
            see(data["test"][0])
        assert looks["all"] == 7

    def test_fields_are_what_the_parts_make(self, photos):
        """Each field by the functions of its own lesson."""
        data, boxes = photos
        found, words = open_boxes(boxes), detector(photos, backbone="squeezenet1_1")
        processor = ImageProcessor(
            preset("all", "squeezenet1_1", boxes=boxes),
            detector=words,
            vocabulary=Vocabulary(words.words),
        )
        net, paths = Pyramid("squeezenet1_1", None, 64), [item.image for item in data["test"]]
        batch, images = processor(paths), net.preprocess(paths)
        maps = net(images, (4, 2))
        for name, want in (("low", maps["low"]), ("high", maps["high"]), ("grid", maps["high"])):
            torch.testing.assert_close(
                batch.require(name), want.flatten(1, 2), rtol=1e-4, atol=1e-5
            )
        chances = words(maps["high"].flatten(1, 2)).sigmoid()
        surest = torch.where(chances > 0.2, chances, 0).topk(4).indices
        assert batch.attributes[0, 0] == processor.vocabulary.encode(words.words[surest[0, 0]])[1]
        for row, item in enumerate(data["test"]):
            count = min(5, len(found[item.name]))
            assert batch.region_mask[row].sum() == count
            torch.testing.assert_close(
                batch.boxes[row, :count], found[item.name].boxes[:count].half().float()
            )


class TestStoresOfTheCommand:
    @pytest.fixture
    def folder(self, photos):
        return photos[0]["test"][0].image.parent

    def processor(self, kind, photos, **more):
        return ImageProcessor(
            preset(kind, "squeezenet1_1", boxes=photos[1], **more),
            detector=detector(photos, backbone="squeezenet1_1"),
            vocabulary=Vocabulary.build(photos[0].captions("train")),
        )

    def test_pyramid(self, photos, folder, tmp_path):
        extract_features(
            [folder], tmp_path / "p", weights="none", grid=(4, 2), size=64, kind="pyramid"
        )
        processor = self.processor("pyramid", photos)
        stores = open_feature_stores(processor, photos[0], tmp_path / "p")
        own = open_feature_stores(processor, photos[0])
        assert [store.folder for store in stores] == [tmp_path / "p"]
        assert own[0].folder != stores[0].folder
        for item in photos[0]["test"]:
            for one, other in zip(
                input_transforms(processor, stores).values(),
                input_transforms(processor, own).values(),
                strict=True,
            ):
                torch.testing.assert_close(one(item), other(item), rtol=2e-3, atol=2e-3)
        with pytest.raises(
            ValueError,
            match=r"grid low is .*captionlab features extract .*--kind pyramid .*--grid 3x3,2x2",
        ) as fault:
            open_feature_stores(
                self.processor("pyramid", photos, fine_grid=3), photos[0], tmp_path / "p"
            )
        one_line(fault)
        with pytest.raises(
            ValueError, match="holds features of kind pyramid, and this model reads regions"
        ) as fault:
            open_feature_stores(self.processor("regions", photos), photos[0], tmp_path / "p")
        one_line(fault)

    def test_weights_of_a_file(self, photos, folder, tmp_path, monkeypatch):
        """What `--weights FILE` made can be trained on without naming the file again."""
        monkeypatch.setattr(image_processor, "Backbone", Backbone)
        monkeypatch.setattr(image_processor, "find_weights", lambda _: "DEFAULT")
        file = tmp_path / "own.pth"
        torch.manual_seed(7)
        torch.save(torchvision.models.squeezenet1_1().state_dict(), file)
        monkeypatch.setitem(READS, "grid", ("grid",))
        options = {"grid": 2, "size": 64, "backbone": "squeezenet1_1"}
        extract_features([folder], tmp_path / "g", weights=str(file), **options)
        processor = ImageProcessor(preset("grid", "squeezenet1_1"))
        stores = open_feature_stores(processor, photos[0], tmp_path / "g")
        assert [store.folder for store in stores] == [tmp_path / "g"]
        assert processor.describe()["backbone"]["weights"] == str(file)
        other = ImageProcessor(preset("grid", "squeezenet1_1"))
        other.weights = str(tmp_path / "other.pth")
        torch.save(torchvision.models.squeezenet1_1().state_dict(), other.weights)
        with pytest.raises(ValueError, match="were made another way .*backbone fingerprint"):
            open_feature_stores(other, photos[0], tmp_path / "g")

    def test_regions_and_what_is_missing(self, photos, tmp_path):
        data, boxes = photos
        images = {item.name: item.image for items in data.splits.values() for item in items}
        made = extract_regions(
            images,
            open_boxes(boxes),
            tmp_path / "r",
            Backbone("squeezenet1_1", None, 64),
            max_boxes=5,
        )
        processor = self.processor("all", photos)
        stores = open_feature_stores(processor, data, [tmp_path / "r"])
        assert [store.spec["kind"] for store in stores] == ["regions", "grid+pyramid+attributes"]
        inputs, own = (
            input_transforms(processor, stores),
            input_transforms(processor, open_feature_stores(processor, data)),
        )
        for item in data["test"]:
            for name in READS["all"]:
                torch.testing.assert_close(
                    inputs[name](item), own[name](item), rtol=2e-3, atol=2e-3
                )
        with pytest.raises(ValueError, match=r"most is 5, not 4.*--max-boxes 4") as fault:
            open_feature_stores(self.processor("regions", photos, max_boxes=4), data, made.folder)
        one_line(fault)

    def test_attributes(self, photos, tmp_path):
        data = photos[0]
        images = {item.name: item.image for items in data.splits.values() for item in items}
        processor = self.processor("attributes", photos)
        extract_attributes(images, processor.detector, tmp_path / "a")
        stores = open_feature_stores(processor, data, [tmp_path / "a"])
        assert [store.folder for store in stores] == [tmp_path / "a"]
        one, other = (
            input_transforms(processor, some)["attributes"]
            for some in (stores, open_feature_stores(processor, data))
        )
        assert all(one(item).equal(other(item)) for item in data["test"])
        nn.init.zeros_(processor.detector.output.bias)
        with pytest.raises(
            ValueError,
            match=r"made another way .by another detector.: run captionlab .* --kind attributes",
        ) as fault:
            open_feature_stores(processor, data, tmp_path / "a")
        one_line(fault)

    def test_what_a_model_has_no_use_for_is_refused(self, photos):
        with pytest.raises(ValueError, match="reads pyramid, no regions: leave boxes out"):
            ImageProcessor(preset("pyramid"), boxes=photos[1])
        with pytest.raises(ValueError, match="takes no features: leave them out"):
            open_feature_stores(ImageProcessor(preset("pyramid")), photos[0], photos[1])

    def test_two_data_sets_of_one_name_share_nothing(self, tmp_path):
        """Somebody's captions.csv, and somebody else's, with pictures of the same names."""
        processor, seen = ImageProcessor(preset("pyramid", "squeezenet1_1")), {}
        for colour in ("red", "blue"):
            file = tmp_path / colour / "0.png"
            file.parent.mkdir()
            Image.new("RGB", (64, 64), colour).save(file)
            data = CaptionData("captions", {"train": [Item("0.png", (colour,), file)]})
            (store,) = open_feature_stores(processor, data)
            assert open_feature_stores(processor, data)[0].folder == store.folder
            seen[colour] = input_transforms(processor, [store])["low"](data["train"][0])
        assert not seen["red"].allclose(seen["blue"], atol=0.1)

    def test_grid_from_either_side(self, photos, tmp_path):
        """What `extract_maps` makes and what a processor makes can go on where the other stopped."""
        data = photos[0]
        processor = self.processor("pyramid", photos)
        images = {item.name: item.image for items in data.splits.values() for item in items}
        made = extract_maps(images, Pyramid("squeezenet1_1", None, 64), tmp_path / "p", (4, 2))
        theirs = {file.name: file.read_bytes() for file in made.folder.iterdir()}
        ours = {
            file.name: file.read_bytes()
            for file in open_feature_stores(processor, data)[0].folder.iterdir()
        }
        assert ours == theirs

    def test_pictures_with_ids_are_found_by_their_files_names(self, photos):
        """COCO has numbers for pictures; features and boxes made of a folder have file names."""
        by_name, processor = (
            photos[0],
            ImageProcessor(preset("regions", "squeezenet1_1", boxes=photos[1])),
        )
        split = [
            Item(f"photo {number}", item.captions, item.image)
            for number, item in enumerate(by_name["test"])
        ]
        by_id = CaptionData("numbered", {"train": split, "val": [], "test": []})
        theirs = input_transforms(
            processor,
            open_feature_stores(
                processor, by_id, open_feature_stores(processor, by_name)[0].folder
            ),
        )
        ours, cached = (
            input_transforms(processor),
            input_transforms(processor, open_feature_stores(processor, by_id)),
        )
        for item in split:
            for name, see in ours.items():
                torch.testing.assert_close(theirs[name](item), cached[name](item))
                torch.testing.assert_close(
                    theirs[name](item).float(), see(item).float(), rtol=2e-3, atol=2e-3
                )


class TestBoxes:
    def run(self, photos, tmp_path, backbone="pixels"):
        return trained("regions", backbone, photos, tmp_path / "run")

    @pytest.mark.slow
    def test_of_a_photo_without_any(self, photos, tmp_path, monkeypatch):
        self.run(photos, tmp_path)
        me = tmp_path / "me.png"
        Image.fromarray(render(generate_scene(7), 90)).save(me)
        for picture in (me, Image.open(me), np.asarray(Image.open(me))):
            with pytest.raises(
                ValueError,
                match=r"no regions of .*; name a detector or a file .* --boxes fasterrcnn",
            ) as fault:
                captionlab.load(tmp_path / "run").caption(picture)
            one_line(fault)
        save_boxes(tmp_path / "mine.npz", {"me.png": scene_regions(generate_scene(7))})
        with_file = captionlab.load(tmp_path / "run", boxes=tmp_path / "mine.npz")
        assert with_file.caption(me)
        assert re.fullmatch(r"mine.npz \(\w+\)", with_file.processor.other_boxes)
        assert with_file.processor([me]).region_mask.sum() == min(5, len(generate_scene(7).objects))
        found = Detector("fasterrcnn_mobilenet_v3_large_320_fpn", None, min_boxes=3)
        monkeypatch.setattr(image_processor, "open_boxes", lambda source: found)
        with_detector = captionlab.load(tmp_path / "run", boxes=found.name)
        assert with_detector.caption(me) == with_detector.caption(Image.open(me))
        assert with_detector.processor([me]).region_mask.sum() == min(5, len(found(me)))

    @pytest.mark.slow
    def test_of_the_training_are_found_again(self, photos, tmp_path):
        self.run(photos, tmp_path)
        assert captionlab.load(tmp_path / "run").processor.boxes_source == photos[1]
        assert captionlab.load(tmp_path / "run", boxes=photos[1]).processor.other_boxes is None
        os.rename(photos[1], photos[1] + ".away")
        try:
            with pytest.raises(FileNotFoundError, match=r"no boxes .*boxes.npz") as fault:
                captionlab.load(tmp_path / "run").caption(photos[0]["test"][0].image)
            one_line(fault)
        finally:
            os.rename(photos[1] + ".away", photos[1])

    def test_of_scenes_are_their_own(self, tmp_path):
        world = scenes(train=8, val=0, test=2, novel=0)
        run = fit(NewModel("any", preset("regions")), world, out=tmp_path / "run")
        said = run.caption([item.image for item in world["test"]])
        assert all(said)
        assert said == captionlab.load(tmp_path / "run").caption(
            [item.image for item in world["test"]]
        )
        with pytest.raises(ValueError, match="scenes, which bring their own") as fault:
            run.caption(world["test"][0].picture(64))
        one_line(fault)

    def test_a_photo_without_boxes_among_others_is_named(self, photos, tmp_path):
        data, _ = photos
        save_boxes(
            tmp_path / "some.npz",
            {item.name: scene_regions(generate_scene(1)) for item in data["train"]},
        )
        processor = ImageProcessor(
            preset("regions", "squeezenet1_1", boxes=str(tmp_path / "some.npz"))
        )
        see = input_transforms(processor, open_feature_stores(processor, data))["regions"]
        assert see(data["train"][0]).shape == (5, 512)
        with pytest.raises(
            ValueError, match=f"no features of {data['test'][0].name} .*no regions of"
        ) as fault:
            see(data["test"][0])
        one_line(fault)

    @pytest.mark.parametrize("count", [0, 1, 100])
    def test_any_number(self, photos, tmp_path, count):
        corners = torch.rand(count, 2, 2).sort(1).values.flatten(1)
        save_boxes(tmp_path / "n.npz", {photos[0]["test"][0].name: Regions(corners)})
        for backbone in ("pixels", "squeezenet1_1"):
            seen = ImageProcessor(
                preset("regions", backbone, boxes=str(tmp_path / "n.npz"), max_boxes=100)
            )([photos[0]["test"][0].image])
            assert seen.region_mask.sum() == count
            assert seen.regions.isfinite().all()
            assert seen.regions.shape[1] == 100

    def test_without_pixels_and_network_when_the_file_has_features(self, photos, tmp_path):
        folder = tmp_path / "npz"
        folder.mkdir()
        for item in photos[0]["test"]:
            x = np.random.default_rng(0).random((3, 6)).astype(np.float32)
            np.savez(
                folder / item.name.replace("png", "npz"),
                bbox=[[0, 0, 10, 20], [5, 5, 30, 40], [1, 1, 2, 2]],
                image_w=64,
                image_h=64,
                num_bbox=3,
                x=x,
            )
        processor = ImageProcessor(preset("regions", "file", boxes=str(folder), max_boxes=3))
        seen = processor([photos[0]["test"][0].image])
        torch.testing.assert_close(seen.regions[0], torch.from_numpy(x))
        data = CaptionData("some", {"test": photos[0]["test"]})
        stored = input_transforms(processor, open_feature_stores(processor, data))["regions"](
            photos[0]["test"][0]
        )
        torch.testing.assert_close(stored, torch.from_numpy(x), rtol=1e-3, atol=1e-3)


class TestMirrored:
    @pytest.mark.parametrize("backbone", ["pixels", "squeezenet1_1"])
    def test_regions_are_those_of_the_mirrored_picture(self, backbone):
        scene = generate_scene(3)
        processor = ImageProcessor(preset("regions", backbone))
        seen = processor.with_preprocess(mirror=True)([scene])
        left, top, right, bottom = torch.from_numpy(scene.boxes).unbind(-1)
        flipped = Regions(torch.stack([1 - right, top, 1 - left, bottom], -1))
        with_boxes = ImageProcessor(preset("regions", backbone))
        want = with_boxes.to_inputs(
            with_boxes.extract([(np.ascontiguousarray(render(scene, 64)[:, ::-1]), flipped)])
        )
        for name in REGIONS:
            torch.testing.assert_close(seen.require(name).float(), want[name].float())
        assert not seen.boxes.allclose(processor([scene]).boxes, atol=0.01)

    def test_stores_are_apart(self, photos):
        processor = ImageProcessor(preset("regions", "squeezenet1_1", boxes=photos[1]))
        plain, mirrored = (
            open_feature_stores(one, photos[0])[0]
            for one in (processor, processor.with_preprocess(mirror=True))
        )
        name = photos[0]["test"][0].name
        assert plain.folder != mirrored.folder
        assert not plain[name]["boxes"].equal(mirrored[name]["boxes"])


class TestWindows:
    @pytest.mark.parametrize("backbone", ["pixels", "squeezenet1_1"])
    def test_what_is_seen_is_what_a_picture_of_the_window_shows(self, backbone):
        pixels = np.asarray(render(generate_scene(3), 128))
        window = Image.fromarray(pixels[:64, 64:])
        processor = ImageProcessor(preset("pyramid", backbone, image_size=128))
        seen, want = (
            processor.with_preprocess(window=(0.5, 0, 1, 0.5))([Image.fromarray(pixels)]),
            processor([window]),
        )
        for name in PYRAMID:
            near = (seen.require(name) - want.require(name)).abs().mean() / want.require(
                name
            ).abs().mean()
            far = (
                processor([Image.fromarray(pixels)]).require(name) - want.require(name)
            ).abs().mean() / want.require(name).abs().mean()
            assert near < 0.1
            assert near < far / 3

    def test_boxes_of_a_file_come_along(self, photos, tmp_path):
        name, boxes = (
            photos[0]["test"][0].name,
            torch.tensor([[0.1, 0.1, 0.2, 0.2], [0.8, 0.8, 0.9, 0.9]]),
        )
        save_boxes(tmp_path / "n.npz", {name: Regions(boxes)})
        processor = ImageProcessor(
            preset("regions", boxes=str(tmp_path / "n.npz"))
        ).with_preprocess(window=(0.5, 0.5, 1, 1))
        seen = processor([photos[0]["test"][0].image])
        assert seen.region_mask.sum() == 1
        torch.testing.assert_close(
            seen.boxes[0, 0], torch.tensor([0.6, 0.6, 0.8, 0.8]), atol=1e-3, rtol=0
        )

    @pytest.mark.slow
    def test_stores_are_apart(self, photos):
        processor = ImageProcessor(preset("regions", "squeezenet1_1", boxes=photos[1]))
        windows = [
            {},
            {"mirror": True},
            {"window": (0, 0, 0.8, 0.8)},
            {"window": (0.2, 0, 1, 0.8)},
            {"window": (0.2, 0, 1, 0.8), "mirror": True},
        ]
        assert (
            len(
                {
                    open_feature_stores(processor.with_preprocess(**changes), photos[0])[0].folder
                    for changes in windows
                }
            )
            == 5
        )

    @pytest.mark.parametrize(
        ("flips", "zoom", "ways"),
        [(False, 1.0, 1), (True, 1.0, 2), (False, 0.5, 5), (True, 0.8, 6)],
    )
    def test_training_draws_among_all_ways_of_looking(self, flips, zoom, ways):
        data = as_photos(scenes(train=1, val=1, test=1))
        changed = preset("pyramid", hflip=flips, corner_crop=zoom)
        examples = preparation._training_set(
            data,
            Vocabulary.build(data.captions("train")),
            ImageProcessor(changed),
            input_transforms(ImageProcessor(changed)),
        )
        torch.manual_seed(0)
        seen = [examples[0]["high"] for _ in range(60)]
        different = [x for i, x in enumerate(seen) if not any(x.equal(y) for y in seen[:i])]
        assert len(examples.input_variants) == len(different) == ways

    def test_scst_sees_whole_pictures_mirrored_or_not(self, tmp_path, monkeypatch):
        world, looks = as_photos(scenes(train=4, val=0, test=1, novel=0)), []
        fit(
            NewModel("any", preset("pyramid", hflip=True, corner_crop=0.8)),
            world,
            out=tmp_path / "xe",
        )

        def stop(learner, examples, *_, **__):
            looks.append(len(examples.input_variants))
            raise InterruptedError

        monkeypatch.setattr(fitting, "Trainer", stop)
        with pytest.raises(InterruptedError):
            fit(tmp_path / "xe", world, SCST(), out=tmp_path / "scst")
        assert looks == [2]

    def test_scenes_are_seen_as_their_captions_say(self):
        """Mirrored, *left of* would be wrong; in a window, a count would."""
        data, changed = (
            scenes(train=2, val=1, test=1),
            preset("pyramid", hflip=True, corner_crop=0.8),
        )
        assert (
            len(
                preparation._training_set(
                    data,
                    Vocabulary.build(data.captions("train")),
                    ImageProcessor(changed),
                    input_transforms(ImageProcessor(changed)),
                ).input_variants
            )
            == 1
        )

    def test_corners_stay_inside(self):
        for zoom in (0.7, 0.8, 0.9, 1 / 3):
            views = preparation._augmentations(preset("pyramid", corner_crop=zoom))
            seen = [
                ImageProcessor(preset("pyramid")).with_preprocess(**changes).preprocess.window
                for changes in views
            ]
            assert len({*seen}) == 4
            assert all(right - left == pytest.approx(zoom) for left, _, right, _ in seen)

    @pytest.mark.slow
    def test_a_zoom_that_cannot_be_is_one_line(self):
        for zoom in (0.0, 1.5):
            with pytest.raises(ValueError, match="window"):
                preparation._augmented_inputs(
                    ImageProcessor(preset("pyramid", corner_crop=zoom)),
                    as_photos(scenes(train=1, val=1, test=1)),
                    {},
                    with_extras=True,
                )


class TestPixelRegions:
    def test_as_roi_align_with_bins(self):
        pixels, corners = (
            torch.randn(2, 20, 30, 3),
            torch.rand(2, 7, 2, 2).sort(2).values.flatten(2),
        )
        ours = pixel_regions(pixels, corners, parts=4)
        in_pixels = list(corners * torch.tensor([30.0, 20, 30, 20]))
        theirs = roi_align(
            pixels.permute(0, 3, 1, 2), in_pixels, 4, 1.0, 3, aligned=True
        )  # (14, 3, 4, 4)
        torch.testing.assert_close(
            ours.flatten(0, 1), theirs.permute(0, 2, 3, 1).flatten(1), rtol=1e-4, atol=1e-5
        )

    def test_a_red_box_is_red(self):
        picture = torch.zeros(1, 40, 40, 3)
        picture[:, 10:20, 20:40, 0] = 1
        red, black = pixel_regions(
            picture, torch.tensor([[[0.55, 0.3, 0.95, 0.45], [0, 0, 0.4, 0.4]]])
        )[0].unflatten(-1, (16, 3))
        assert red[:, 0].eq(1).all()
        assert red[:, 1:].eq(0).all()
        assert black.eq(0).all()


class TestAttributes:
    def test_the_detector_travels_with_the_run(self, photos, tmp_path):
        run = trained("attributes", "pixels", photos, tmp_path / "run")
        again = captionlab.load(tmp_path / "run")
        assert again.processor.detector.fingerprint == run.processor.detector.fingerprint
        file = next((tmp_path / "run").glob("attributes-*.safetensors"))
        run.save(tmp_path / "run")
        assert sorted(
            path.name.split("-")[0] for path in (tmp_path / "run").glob("*.safetensors")
        ) == ["attributes", "weights"]
        content = file.read_bytes()
        file.write_bytes(content[:-1])
        with pytest.raises(ValueError, match="no attribute detector, or a broken one") as fault:
            captionlab.load(tmp_path / "run")
        one_line(fault)
        file.unlink()
        with pytest.raises(FileNotFoundError, match="is missing: copy the whole folder") as fault:
            captionlab.load(tmp_path / "run")
        one_line(fault)

    def test_another_detector_in_its_place(self, photos, tmp_path):
        for seed, name in enumerate("ab"):
            made = detector(photos)
            nn.init.constant_(made.output.bias, seed)
            fit(
                NewModel("any", preset("attributes"), detector=made),
                photos[0],
                out=tmp_path / name,
            )
        files = [next((tmp_path / name).glob("attributes-*.safetensors")) for name in "ab"]
        files[0].write_bytes(files[1].read_bytes())
        with pytest.raises(ValueError, match="another detector than its name says") as fault:
            captionlab.load(tmp_path / "a")
        one_line(fault)

    def test_none_or_one_that_looks_another_way(self, photos, tmp_path):
        data = photos[0]
        with pytest.raises(
            FileNotFoundError, match="no detector photos: captionlab attributes train"
        ) as fault:
            fit(NewModel("any", preset("attributes")), data, out=tmp_path / "x")
        one_line(fault)
        with pytest.raises(
            ValueError, match="captionlab attributes train makes a detector"
        ) as fault:
            ImageProcessor(preset("attributes"))([data["test"][0].image])
        one_line(fault)
        for other in (detector(photos, size=65), detector(photos, backbone="squeezenet1_1")):
            with pytest.raises(
                ValueError, match="made another way than those of this model"
            ) as fault:
                ImageProcessor(preset("attributes"), detector=other, vocabulary=Vocabulary(["a"]))(
                    [data["test"][0].image]
                )
            one_line(fault)
        assert not (tmp_path / "x").exists()


def test_unknown_fields(photos):
    with pytest.raises(
        ValueError, match="nothing makes the field smell: choose from images, grid, low"
    ) as fault:
        ImageProcessor(with_inputs(preset("pyramid"), fields=("smell", "grid")))
    one_line(fault)


@pytest.mark.java
@pytest.mark.slow
def test_evaluated_with_and_without_stores(photos, tmp_path):
    data, boxes = photos
    run = trained("regions", "squeezenet1_1", photos, tmp_path / "run")
    images = {item.name: item.image for items in data.splits.values() for item in items}
    extract_regions(
        images, open_boxes(boxes), tmp_path / "r", Backbone("squeezenet1_1", None, 64), max_boxes=5
    )
    one, other = (
        evaluate(run, data, features=folders, meteor=False)["captions"]
        for folders in ((), [tmp_path / "r"])
    )
    assert one == other


@pytest.mark.java
@pytest.mark.slow
def test_stores_go_to_those_of_several_runs_that_read_them(photos, tmp_path):
    data, _boxes = photos
    visual, _pixels = (
        trained("regions", backbone, photos, tmp_path / backbone)
        for backbone in ("squeezenet1_1", "pixels")
    )
    (store,) = open_feature_stores(visual.processor, data)
    first, both = (
        evaluate(one, data, meteor=False, blind=False, features=folders)["captions"]
        for one, folders in ((visual, ()), (ensemble(visual, [visual]), store.folder))
    )
    assert first == both  # a run beside itself
    handed = evaluation._assign_stores(
        store.folder,
        [SimpleNamespace(processor=SimpleNamespace(feature_kinds=["attributes"])), visual],
    )
    assert handed == [[], [store.folder]]
    handed = evaluation._assign_stores(
        [store.folder],
        [visual, SimpleNamespace(processor=SimpleNamespace(feature_kinds=["attributes"]))],
    )
    assert handed == [[store.folder], []]
    nobody = [SimpleNamespace(processor=SimpleNamespace(feature_kinds=["attributes"]))] * 2
    assert evaluation._assign_stores(store.folder, nobody) == [[store.folder], []]


def test_boxes_without_features_for_a_model_that_wants_theirs(photos):
    for boxes in (photos[1], "scene"):
        with pytest.raises(
            ValueError, match=r"features that come with the boxes, and .* brings none"
        ) as fault:
            _ = ImageProcessor(preset("regions", "file", boxes=boxes)).boxes
        one_line(fault)


def test_a_pictures_own_file_comes_before_another_ones_number():
    there = {f"{number:06}.jpg": number for number in range(9)}
    assert image_processor.match_name(there, "7", "/photos/000006.jpg") == "000006.jpg"
    assert image_processor.match_name({"train/a.jpg"}, "42", "/photos/train/a.jpg") == "train/a.jpg"
    assert image_processor.match_name({"42", "a.jpg"}, "42", "/photos/train/a.jpg") == "42"
    assert image_processor.match_name(set(), "42", "/photos/a.jpg") == "42"
    found = image_processor.match_name({"rex.png"}, "dogs/rex.png", "/photos/dogs/rex.png")
    assert found == "rex.png"


class TestProtocol:
    MEMBERS = [name for name in vars(Processor) if not name.startswith("_")] + ["__call__"]

    def both(self):
        english = SubwordVocabulary.build(["a red circle", "a blue square"], 300)
        return ImageProcessor(preset("pyramid")), TextProcessor(preset("pyramid"), english)

    def test_both_processors_have_all_of_it(self):
        assert {"preset", "modality", "feature_kinds", "describe"} <= set(self.MEMBERS)
        for processor in self.both():
            assert all(hasattr(processor, name) for name in self.MEMBERS)

    def test_only_one_reads_images(self):
        pictures, sentences = self.both()
        assert reads_images(pictures)
        assert not reads_images(sentences)
        assert sentences.feature_spec() == {}
        assert sentences.feature_kinds == []
        assert pictures.source_vocabulary is None
        assert pictures.other_boxes is None

    def test_another_processor_can_caption(self):
        """Nothing has to be inherited, and no class is asked for."""

        class Constant:
            preset = preset("pyramid")
            modality = "image"
            feature_kinds: ClassVar = []
            source_vocabulary = None
            needs_network = False
            other_boxes = None

            def __call__(self, pictures):
                return Batch(
                    low=torch.zeros(len(pictures), 16, 12), high=torch.ones(len(pictures), 4, 12)
                )

            def describe(self):
                return {}

            def feature_spec(self, kinds=None):
                return {}

        words = Vocabulary(["a", "red", "circle"])
        run = Run(Model(Constant.preset, len(words)).eval(), words, Constant())
        assert len(run.caption(["x", "y", "z"], beam=1)) == 3


def test_a_store_keeps_the_name_that_it_had():
    """Stores made before a change of names are found again."""
    world = scenes(train=2, val=1, test=1, novel=0)
    names = [item.name for items in world.splits.values() for item in items]
    processor = ImageProcessor(preset("pyramid", "squeezenet1_1")).with_preprocess(mirror=True)
    (store,) = open_feature_stores(processor, world)
    assert store.folder.name == f"scenes-{short_hash(names)}-squeezenet1_1-64-4x4-2x2-mirrored"
    regions = ImageProcessor(preset("regions", "squeezenet1_1"))
    (store,) = open_feature_stores(regions, world)
    assert store.folder.name == f"scenes-{short_hash(names)}-squeezenet1_1-64-regions-5-scene"
