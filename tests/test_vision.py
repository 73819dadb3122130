"""Any picture file comes through or is one clear line; features are torchvision's own."""
import io
import json
import warnings
from dataclasses import replace
from urllib.error import URLError

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torchvision import models, transforms

from captionlab.vision.backbones import BACKBONES, Backbone, Pyramid, find_weights, pool_cells
from captionlab.vision.images import Preprocess, load_image

WIDTH, HEIGHT = 64, 40


@pytest.fixture(scope="module")
def picture() -> Image.Image:
    """Red on the left, blue on the right, a gradient from top to bottom."""
    pixels = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    pixels[:, : WIDTH // 2, 0], pixels[:, WIDTH // 2:, 2] = 220, 220
    pixels[..., 1] = np.linspace(0, 200, HEIGHT)[:, None]
    return Image.fromarray(pixels)


def written(picture, path, **how):
    picture.save(path, **how)
    return path


def apart(one, other) -> float:
    """Mean difference of two pictures, in levels of 255."""
    return np.abs(np.asarray(one, float) - np.asarray(other, float)).mean()


def one_line(fault) -> str:
    text = str(fault.value)
    assert "\n" not in text
    return text


class TestLoadImage:
    @pytest.mark.parametrize("mode, name", [("RGB", "a.png"), ("CMYK", "a.jpg"), ("CMYK", "a.tif"), ("P", "a.gif"), ("P", "a.png"),
                                            ("YCbCr", "a.jpg"), ("RGBA", "a.png"), ("RGB", "a.webp"), ("RGB", "a.bmp")])
    def test_colour_survives(self, picture, tmp_path, mode, name):
        path = written(picture.convert(mode), tmp_path / name)
        assert load_image(path).mode == "RGB" and apart(load_image(path), picture) < 13

    @pytest.mark.parametrize("mode", ["L", "1", "LA"])
    def test_grey(self, picture, tmp_path, mode):
        grey = picture.convert("L").convert(mode)
        assert apart(load_image(written(grey, tmp_path / "a.png")), grey.convert("L").convert("RGB")) == 0

    @pytest.mark.parametrize("name", ["a.png", "a.tif"])
    def test_sixteen_bits(self, picture, tmp_path, name):
        deep = Image.fromarray(np.asarray(picture.convert("L")).astype(np.uint16) * 257)
        assert apart(load_image(written(deep, tmp_path / name)), picture.convert("L").convert("RGB")) == 0

    def test_dark_sixteen_bits_stay_dark(self, tmp_path):
        path = written(Image.fromarray(np.full((4, 4), 200, np.uint16)), tmp_path / "a.png")
        assert np.asarray(load_image(path)).max() == 1

    def test_floats_are_stretched_and_nan_is_black(self, tmp_path):
        path = written(Image.fromarray(np.array([[0, 0.5], [np.nan, 1]], np.float32)), tmp_path / "a.tif")
        assert np.asarray(load_image(path))[..., 0].tolist() == [[0, 128], [0, 255]]

    def test_transparent_stands_on_white(self, tmp_path):
        clear = Image.new("RGBA", (8, 8), (0, 0, 0, 0))
        palette = Image.new("RGB", (8, 8), "red").quantize(4)
        for path in (written(clear, tmp_path / "a.png"), written(palette, tmp_path / "b.png", transparency=palette.getpixel((0, 0)))):
            assert np.asarray(load_image(path)).min() == 255

    @pytest.mark.parametrize("turned", range(1, 9))
    def test_exif_note_is_honoured(self, picture, tmp_path, turned):
        note, undo = Image.Exif(), {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}      # Pillow's names of the ways to turn
        note[274] = turned
        stored = picture.transpose(undo[turned]) if turned in undo else picture
        assert apart(load_image(written(stored, tmp_path / "a.png", exif=note)), picture) == 0

    def test_one_pixel(self, tmp_path):
        path = written(Image.new("RGB", (1, 1), "red"), tmp_path / "a.png")
        assert Preprocess(size=5, resize="crop").pixels(path).tolist() == [[[255, 0, 0]] * 5] * 5

    @pytest.mark.parametrize("name", ["a.jpg", "a.png"])
    @pytest.mark.parametrize("resize", ["stretch", "crop"])
    def test_twenty_thousand_wide(self, picture, tmp_path, name, resize):
        wide = picture.resize((20_000, 300), Image.Resampling.NEAREST)
        pixels = Preprocess(size=32, resize=resize).pixels(written(wide, tmp_path / name))
        ours = np.asarray(picture.resize((32, 32), Image.Resampling.BILINEAR), float)
        assert pixels.shape == (32, 32, 3)
        assert resize == "crop" or apart(pixels, ours) < 5

    def test_large_jpeg_is_not_decoded_in_full(self, picture, tmp_path):
        path = written(picture.resize((3200, 2000)), tmp_path / "a.jpg")
        assert load_image(path, min_size=400).size == (800, 500) and load_image(path).size == (3200, 2000)
        assert load_image(path, min_size=1500).size == (3200, 2000)

    def test_bomb_is_one_line(self, picture, tmp_path, monkeypatch):
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
        with pytest.raises(ValueError, match="a.png.*MAX_IMAGE_PIXELS") as fault:
            load_image(written(picture, tmp_path / "a.png"))
        one_line(fault)

    @pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.gif", "a.tif", "a.webp"])
    def test_cut_off(self, picture, tmp_path, name):
        path = written(picture.resize((300, 300)), tmp_path / name)
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        with pytest.raises(ValueError, match=name) as fault:
            load_image(path)
        one_line(fault)

    @pytest.mark.parametrize("content", [b"", b"Dear diary,\nit rained.\n", b"\xff\xd8\xff", b"GIF89a", bytes(5000)])
    def test_not_a_picture(self, tmp_path, content):
        (tmp_path / "holiday.jpg").write_bytes(content)
        with pytest.raises(ValueError, match="holiday.jpg") as fault:
            load_image(tmp_path / "holiday.jpg")
        one_line(fault)

    def test_missing_file_and_folder(self, tmp_path):
        with pytest.raises(FileNotFoundError, match="gone.jpg") as fault:
            load_image(tmp_path / "gone.jpg")
        one_line(fault)
        with pytest.raises(ValueError):
            load_image(tmp_path)

    @settings(max_examples=150, deadline=None)
    @given(kind=st.sampled_from(["JPEG", "PNG", "GIF", "TIFF", "BMP"]), where=st.floats(0, 1), byte=st.integers(0, 255))
    def test_any_damage_is_a_picture_or_a_line(self, tmp_path_factory, kind, where, byte):
        file = io.BytesIO()
        Image.linear_gradient("L").resize((24, 24)).save(file, kind)
        data = bytearray(file.getvalue())
        data[int(where * (len(data) - 1))] = byte
        path = tmp_path_factory.mktemp("damaged") / "a"
        path.write_bytes(data)
        with warnings.catch_warnings(action="ignore"):
            try:
                assert load_image(path).mode == "RGB"
            except ValueError as fault:
                assert "\n" not in str(fault) and str(path) in str(fault)

    def test_original_is_left_alone(self, picture):
        load_image(picture).putpixel((0, 0), (1, 2, 3))
        assert picture.getpixel((0, 0)) != (1, 2, 3)


class TestPreprocess:
    @pytest.mark.parametrize("size", [(640, 480), (333, 500), (227, 227), (100, 900)])
    def test_equals_torchvision(self, picture, size):
        photo = picture.resize(size, Image.Resampling.BICUBIC)
        mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
        finish = [transforms.ToTensor(), transforms.Normalize(mean, std)]
        stretch = transforms.Compose([transforms.Resize((96, 96)), *finish])(photo)
        torch.testing.assert_close(Preprocess(size=96)([photo])[0], stretch, rtol=0, atol=1e-5)
        crop = transforms.Compose([transforms.Resize(96), transforms.CenterCrop(96), *finish])(photo)
        assert (Preprocess(size=96, resize="crop")([photo])[0] - crop).abs().mean() < 0.03

    @pytest.mark.parametrize("window", [(0, 0, 0.8, 0.8), (0.2, 0.25, 1, 1), (0.5, 0.5, 0.75, 0.55)])
    def test_window_equals_torchvisions_crop(self, picture, window):
        photo = picture.resize((400, 600), Image.Resampling.BICUBIC)
        left, top, right, bottom = (round(share * side) for share, side in zip(window, photo.size * 2))
        theirs = transforms.functional.resized_crop(photo, top, left, bottom - top, right - left, [64, 64])
        ours = Preprocess(size=64, window=window)
        assert np.abs(ours.pixels(photo).astype(float) - np.array(theirs)).mean() < 2
        assert (replace(ours, mirror=True).pixels(photo) == ours.pixels(photo)[:, ::-1]).all()

    def test_crop_takes_the_middle_of_the_window(self, picture):
        photo = picture.resize((400, 600), Image.Resampling.BICUBIC)
        middle = Preprocess(size=64, resize="crop", window=(0, 0.5, 1, 1)).pixels(photo)
        assert (middle == Preprocess(size=64, window=(0.125, 0.5, 0.875, 1)).pixels(photo)).all()

    @pytest.mark.slow
    def test_small_windows_of_large_jpegs_are_sharp(self, picture, tmp_path):
        picture.resize((4000, 4000), Image.Resampling.BICUBIC).save(tmp_path / "large.jpg", quality=95)
        ours = Preprocess(size=64, window=(0.4, 0.4, 0.42, 0.42))
        with Image.open(tmp_path / "large.jpg") as whole:
            assert np.abs(ours.pixels(tmp_path / "large.jpg").astype(float) - ours.pixels(whole.copy())).mean() < 1

    def test_survives_json(self):
        choices = Preprocess(size=99, resize="crop", interpolation="bicubic", mean=(0.5, 0.5, 0.5), mirror=True, window=(0, 0, 0.5, 1))
        assert Preprocess.from_dict(json.loads(json.dumps(choices.to_dict()))) == choices

    def test_every_choice_changes_the_fingerprint(self):
        other = dict(size=99, resize="crop", interpolation="bicubic", mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
        assert other.keys() == Preprocess().to_dict().keys()        # those that came later are told only if they are not plain
        other |= {"mirror": True, "window": (0, 0, 1, 0.9)}
        prints = {Preprocess(**{name: value}).fingerprint for name, value in other.items()} | {Preprocess().fingerprint}
        assert len(prints) == 8

    @pytest.mark.parametrize("wrong", [{"size": 0}, {"resize": "squash"}, {"interpolation": "nearest"}, {"std": (1, 0, 1)}, {"mean": (1, 1)},
                                       {"window": (0, 0, 227, 227)}, {"window": (0.5, 0, 0.5, 1)}, {"window": (0, 0.6, 1, 0.4)}])
    def test_wrong_choice_is_one_line(self, wrong):
        with pytest.raises(ValueError) as fault:
            Preprocess(**wrong)
        one_line(fault)


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
        torch.testing.assert_close(ours, net(images), rtol=1e-4, atol=1e-4 * ours.abs().max().item())

    @pytest.mark.slow
    @torch.no_grad()
    def test_vit_patches_are_torchvisions(self, images, tmp_path):
        net = models.vit_b_16(weights=None, image_size=96).eval()
        torch.save(net.state_dict(), tmp_path / "vit.pth")
        ours = Backbone("vit_b_16", str(tmp_path / "vit.pth"), size=96)
        torch.nn.init.normal_(net.heads.head.weight, generator=torch.Generator().manual_seed(0))      # zero before training
        tokens = ours.trunk(images)
        torch.testing.assert_close(net.heads(tokens[:, 0]), net(images), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(ours(images).flatten(1, 2), tokens[:, 1:])

        positions = net.encoder.pos_embedding
        larger = Backbone("vit_b_16", str(tmp_path / "vit.pth"), size=160)
        assert larger(images.repeat(1, 1, 2, 2)[..., :160, :160]).shape == (2, 10, 10, 768)
        assert larger.trunk.tokens.positions[:, 0].equal(positions[:, 0])
        with pytest.raises(ValueError, match="160x160"):
            larger(images)

    def test_shapes(self, images):
        net = Backbone("squeezenet1_1", None)
        assert net.preprocess == Preprocess(size=227)
        assert net(images, grid=7).shape == (2, 7, 7, 512) and net(images, grid=(2, 3)).shape == (2, 2, 3, 512)
        stages = net.stages(net.preprocess([Image.new("RGB", (9, 9))]))
        assert stages["fire5"].shape == (1, 28, 28, 256) and stages["fire9"].shape == (1, 14, 14, 512)

    @pytest.mark.slow
    def test_stays_frozen(self, images):
        net = Backbone("resnet50", None)
        before = net(images)
        torch.nn.Sequential(net).train()
        assert not net(images).requires_grad and not any(p.requires_grad for p in net.parameters())
        torch.testing.assert_close(net(images)[:1], before[:1])

    def test_seed_and_surroundings(self):
        torch.manual_seed(5)
        expected = torch.rand(1)
        torch.manual_seed(5)
        prints = [Backbone("squeezenet1_1", None, seed=seed).fingerprint for seed in (0, 0, 1)]
        assert prints[0] == prints[1] != prints[2] and torch.rand(1).equal(expected)

    def test_file_has_the_fingerprint_of_what_it_holds(self, tmp_path):
        torch.manual_seed(0)
        torch.save(models.squeezenet1_1(weights=None).state_dict(), tmp_path / "w.pth")
        assert Backbone("squeezenet1_1", str(tmp_path / "w.pth")).fingerprint == Backbone("squeezenet1_1", None).fingerprint

    def test_unknown_name(self):
        with pytest.raises(ValueError, match="no backbone vgg: there are squeezenet1_1"):
            Backbone("vgg")

    def test_a_size_that_patches_do_not_fill_is_one_line(self):
        with pytest.raises(ValueError, match="vit_b_16 does not see pictures of size 225") as fault:
            Backbone("vit_b_16", None, size=225)
        one_line(fault)

    @pytest.mark.slow
    def test_wrong_weights_are_one_line(self, tmp_path):
        torch.save({"a": torch.zeros(1)}, tmp_path / "other.pth")
        torch.save([1], tmp_path / "list.pth")
        (tmp_path / "text.pth").write_text("hello")
        for name, file in [("squeezenet1_1", "other"), ("squeezenet1_1", "list"), ("squeezenet1_1", "text"), ("vit_b_16", "other")]:
            with pytest.raises(ValueError, match=f"{file}.pth") as fault:
                Backbone(name, str(tmp_path / f"{file}.pth"), size=32)
            one_line(fault)

    def test_missing_weights_are_one_line(self):
        with pytest.raises(FileNotFoundError, match="no weights gone.pth: .* DEFAULT") as fault:
            Backbone("squeezenet1_1", "gone.pth")
        one_line(fault)

    def test_no_network_is_one_line(self, monkeypatch):
        def offline(*args, **kwargs):
            raise URLError("Name or service not known")
        monkeypatch.setattr("torch.hub.download_url_to_file", offline)
        monkeypatch.setattr("torch.hub.get_dir", lambda: "/nonexistent-hub")
        monkeypatch.setattr("os.makedirs", lambda *args, **kwargs: None)
        with pytest.raises(FileNotFoundError, match="could not download .* fetch https://.*squeezenet1_1.* elsewhere") as fault:
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
        net = models.detection.maskrcnn_resnet50_fpn(weights=None, weights_backbone=None).requires_grad_(False)
        for part in net.modules():
            if isinstance(part, torch.nn.BatchNorm2d):
                part.running_mean.normal_(0, 0.1), part.running_var.uniform_(0.5, 2), part.weight.uniform_(0.5, 1)
        return net.eval()

    @pytest.fixture(scope="class")
    @classmethod
    def released(cls, detector, tmp_path_factory):
        """Its weights as torchvision releases them: batch norms without their counters."""
        file = tmp_path_factory.mktemp("weights") / "maskrcnn.pth"
        torch.save({name: x for name, x in detector.state_dict().items() if "num_batches" not in name}, file)
        return str(file)

    @pytest.mark.slow
    def test_levels_are_torchvisions(self, detector, released, images):
        ours = Backbone("maskrcnn_resnet50_fpn", released).stages(images)
        for level, theirs in parents_pyramid(detector, images).items():
            torch.testing.assert_close(ours[level], theirs, rtol=1e-3, atol=1e-3 * theirs.abs().max().item())
        assert [tuple(ours[f"P{level}"].shape[1:]) for level in (2, 3, 4, 5)] == [(24, 24, 256), (12, 12, 256), (6, 6, 256), (3, 3, 256)]

    @pytest.mark.slow
    def test_levels_are_those_of_the_net_that_torchvision_loads(self, released, images, monkeypatch):
        """With trained weights torchvision freezes the batch norms and changes their eps: to rounding, equal."""
        weights = models.detection.MaskRCNN_ResNet50_FPN_Weights.COCO_V1
        monkeypatch.setattr(type(weights), "get_state_dict", lambda *_, **__: torch.load(released))
        theirs = parents_pyramid(models.detection.maskrcnn_resnet50_fpn(weights=weights).eval(), images)
        by_name = Backbone("maskrcnn_resnet50_fpn", "COCO_V1")
        ours = by_name.stages(images)
        for level in theirs:
            torch.testing.assert_close(ours[level], theirs[level], rtol=1e-4, atol=1e-5 * theirs[level].abs().max().item())
        from_file = Backbone("maskrcnn_resnet50_fpn", released)
        assert by_name.fingerprint == from_file.fingerprint != Backbone("maskrcnn_resnet50_fpn", None).fingerprint

    @pytest.mark.slow
    def test_the_way_down_belongs_to_the_fingerprint(self):
        net = Backbone("maskrcnn_resnet50_fpn", None)
        changed = Backbone("maskrcnn_resnet50_fpn", None)
        next(changed.neck.parameters()).data[0] += 1
        assert net.fingerprint != changed.fingerprint

    @pytest.mark.slow
    def test_papers_sizes(self, images):
        for name, size, widths in (("squeezenet1_1", 227, (256, 512)), ("maskrcnn_resnet50_fpn", 448, (256, 256))):
            net = Pyramid(name, None)
            assert net.size == size
            maps = net(torch.zeros(1, 3, size, size), (28, 14))
            assert [tuple(maps[level].shape) for level in ("low", "high")] == [(1, 28, 28, widths[0]), (1, 14, 14, widths[1])]

    @pytest.mark.slow
    @pytest.mark.parametrize("name, sizes", [("squeezenet1_1", (11, 5)), ("resnet50", (12, 3)), ("vit_b_16", (6, 6))])
    def test_two_stages_of_a_plain_net(self, images, name, sizes):
        net = Pyramid(name, None, size=96)
        own, stages = net(images), net.stages(images)
        assert [own[level].shape[1] for level in ("low", "high")] == list(sizes)
        for level, stage in zip(("low", "high"), BACKBONES[name].levels):
            assert own[level].equal(stages[stage])
        assert own["high"].equal(Backbone(name, None, size=96)(images))

    def test_pooled_as_torch_pools(self, images):
        net = Pyramid("squeezenet1_1", None, levels=("fire2", "fire9"))
        maps, own = net(images, ((3, 2), 5)), net(images)
        for level, grid in (("low", (3, 2)), ("high", (5, 5))):
            pooled = torch.nn.functional.adaptive_avg_pool2d(own[level].permute(0, 3, 1, 2), grid)
            torch.testing.assert_close(maps[level].permute(0, 3, 1, 2), pooled)
        assert pool_cells(own["low"], None) is own["low"] and net.describe()["levels"] == ["fire2", "fire9"]

    @pytest.mark.parametrize("levels", [("fire5", "P5"), ("fire5",), ("fire5", "fire8", "fire9")])
    def test_wrong_levels_are_one_line(self, levels):
        with pytest.raises(ValueError, match="squeezenet1_1 has no levels .*choose two of conv1, pool1") as fault:
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
    assert 151 <= best <= 268      # ImageNet's classes of dogs


@pytest.mark.parametrize("name, network, found", [
    ("squeezenet1_1.pth", "squeezenet1_1", True), ("squeezenet1_1-b8a52dc0.pth", "squeezenet1_1", True),
    ("squeezenet1_1.pth", "squeezenet1_0", False), ("maskrcnn_resnet50_fpn_coco-bf2d0c1e.pth", "maskrcnn_resnet50_fpn", True),
    ("maskrcnn_resnet50_fpn_v2_coco-73cbd019.pth", "maskrcnn_resnet50_fpn", False)])
def test_weights_in_the_data_folder_are_found_by_torchvisions_name(tmp_path, monkeypatch, name, network, found):
    monkeypatch.setenv("CAPTIONLAB_DATA", str(tmp_path))
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / name).touch()
    assert find_weights(network) == (f"weights/{name}" if found else "DEFAULT")
