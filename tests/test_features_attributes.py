"""The noisy-OR is its product, the detector finds what was planted, ids fit a captioner."""

import json
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from feature_helpers import extract
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from captionlab.attention import MultiHeadAttention
from captionlab.cli import application
from captionlab.data import datasets
from captionlab.data.batches import Batch
from captionlab.data.datasets import CaptionData, Item
from captionlab.features import attributes, extraction
from captionlab.features.attributes import (
    STOP_WORDS,
    AttributeDetector,
    average_precision,
    detect,
    detector_file,
    evaluate_detector,
    frequent_words,
    load_detector,
    oracle_attributes,
    predict_proba,
    save_detector,
    to_ids,
    train_detector,
    word_frequencies,
)
from captionlab.features.backbones import Backbone
from captionlab.features.extraction import (
    extract_attributes,
    extract_features,
)
from captionlab.features.preprocessing import Preprocess
from captionlab.features.noisy_or_pooling import POOLINGS, noisy_or
from captionlab.features.store import FeatureStore
from captionlab.masks import padding_mask
from captionlab.runs.results import load_result
from captionlab.text import Vocabulary

# ---- words


def test_words_are_counted_without_stop_words():
    said = ["A dog, a dog and a ball.", "The BALL is on the grass", "Dogs run"]
    assert frequent_words(said) == ["ball", "dog", "dogs", "grass", "run"]
    assert frequent_words(said, 2) == ["ball", "dog"]
    assert frequent_words(said, 2, stop_words=()) == ["a", "ball"]
    assert not {word for word in STOP_WORDS if word != word.lower()}
    assert "two" not in STOP_WORDS


def test_mentions_count_captions_and_not_repetitions():
    shares = word_frequencies(
        [["dog dog ball", "a dog", "snow", "Dog!"], ["fog"]], ["dog", "ball", "cat"]
    )
    torch.testing.assert_close(shares, torch.tensor([[0.75, 0.25, 0], [0, 0, 0]]))


# ---- judging


def test_the_example_of_scikit_learn():
    """From the documentation of `sklearn.metrics.average_precision_score`: 0.83."""
    found = average_precision(
        torch.tensor([[0.1], [0.4], [0.35], [0.8]]), torch.tensor([[0], [0], [1], [1]])
    )
    assert round(found.item(), 2) == 0.83


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=1, max_size=40))
def test_average_precision_is_its_definition_with_ties(rows):
    scores, truth = (torch.tensor(column) for column in zip(*rows, strict=False))
    scores = scores / 5
    expected = [truth[scores >= own].double().mean() for own in scores[truth]]
    found = average_precision(scores[:, None], truth[:, None])[0]
    if expected:
        torch.testing.assert_close(found, torch.stack(expected).mean())
        torch.testing.assert_close(
            average_precision(scores[:, None] ** 3, truth[:, None])[0], found
        )
    else:
        assert found.isnan()


def test_best_worst_and_undecided():
    truth = torch.tensor([1, 0, 1, 0, 0]).bool()[:, None].expand(5, 3)
    scores = torch.stack([truth[:, 0] * 1.0, torch.zeros(5), truth[:, 0] * -1.0], 1)
    best, undecided, worst = average_precision(scores, truth).tolist()
    assert best == 1
    assert undecided == pytest.approx(0.4)
    assert worst == pytest.approx(2 / 5)
    by_hand = average_precision(torch.tensor([[0.9], [0.5], [0.4]]), torch.tensor([[1], [0], [1]]))
    assert by_hand.item() == pytest.approx((1 + 2 / 3) / 2)


# ---- a world in which a pattern in one cell means a word

WORDS = ["spark", "glow", "haze"]


@pytest.fixture(scope="module")
def planted():
    """Pictures of 9 cells of 4 numbers: "spark" and "glow" are one cell each, "haze" is random."""
    draw = torch.Generator().manual_seed(0)
    grids, splits, places = {}, {}, {}
    for split, count in (("train", 300), ("val", 80), ("test", 80)):
        splits[split] = []
        for number in range(count):
            grid, said = 0.3 * torch.randn(9, 4, generator=draw), ["a picture"]
            for word, axis in (("spark", 0), ("glow", 1)):
                if torch.rand(1, generator=draw) < 0.4:
                    place = int(torch.randint(9, (1,), generator=draw))
                    grid[place, axis] += 4
                    said.append(f"there is a {word}")
                    places[f"{split}{number}", word] = place
            said += ["some haze"] * (torch.rand(1, generator=draw) < 0.3).item()
            grids[f"{split}{number}"] = grid
            splits[split].append(Item(f"{split}{number}", tuple(said)))
    return CaptionData("planted", splits), lambda item: grids[item.name], places


@pytest.fixture(scope="module")
def trained(planted):
    data, see, _ = planted
    return train_detector(data, see, num_words=10, epochs=12, batch_size=20, lr=0.02, seed=3)


def test_what_was_planted_is_found(planted, trained):
    data, see, _ = planted
    found = evaluate_detector(trained, data["test"], see)
    assert set(trained.words) == {"picture", *WORDS}
    assert not trained.training
    assert found["words"]["spark"]["AP"] > 95
    assert found["words"]["glow"]["AP"] > 95
    assert found["words"]["picture"]["AP"] == 100
    assert abs(found["words"]["haze"]["AP"] - found["words"]["haze"]["prevalence"]) < 20
    assert found["mAP"] == pytest.approx(
        np.mean([row["AP"] for row in found["words"].values()]), abs=0.1
    )
    assert found["chance"] == pytest.approx(
        np.mean([row["prevalence"] for row in found["words"].values()]), abs=0.1
    )
    assert list(found["words"]) == sorted(
        found["words"], key=lambda word: -found["words"][word]["AP"]
    )


def test_it_is_found_where_it_was_planted(planted, trained):
    data, see, places = planted
    hits = [
        trained.cells(see(item)[None])[0, :, trained.words.index(word)].argmax().item()
        == places[item.name, word]
        for item in data["test"]
        for word in ("spark", "glow")
        if (item.name, word) in places
    ]
    assert len(hits) > 40
    assert np.mean(hits) > 0.95


@pytest.mark.slow
def test_a_seed_is_a_detector(planted, trained):
    data, see, _ = planted
    again, other = (
        train_detector(data, see, num_words=10, epochs=12, batch_size=20, lr=0.02, seed=seed)
        for seed in (3, 4)
    )
    assert again.fingerprint == trained.fingerprint != other.fingerprint
    assert [r["score"] for r in again.metadata["history"]] == [
        r["score"] for r in trained.metadata["history"]
    ]


def test_the_best_epoch_is_kept_and_patience_ends(planted):
    data, see, _ = planted
    net = train_detector(data, see, num_words=10, epochs=30, batch_size=20, lr=0.5, patience=2)
    scores = [record["score"] for record in net.metadata["history"]]
    assert len(scores) < 30
    assert len(scores) == scores.index(max(scores)) + 3
    assert evaluate_detector(net, data["val"], see)["mAP"] == pytest.approx(max(scores))


def test_training_begins_at_what_one_would_say_blindly():
    prevalence = torch.tensor([0.04, 0.3, 0.9])
    for pool in POOLINGS:
        net = AttributeDetector(4, WORDS, pool=pool)
        net.init_bias(prevalence, 49)
        assert (net(torch.randn(2, 49, 4)).sigmoid() - prevalence).abs().max() < 0.05


def test_nothing_to_learn_from(planted):
    data, see, _ = planted
    for missing in ("train", "val"):
        with pytest.raises(ValueError, match="planted needs pictures in train and val"):
            train_detector(replace(data, splits={**data.splits, missing: []}), see)
    with pytest.raises(ValueError, match="no pool 'sum': choose from noisy-or, max, mean"):
        AttributeDetector(4, WORDS, pool="sum")


def test_shapes():
    net, grid = AttributeDetector(6, WORDS, hidden=5), torch.randn(2, 9, 6)
    assert net.cells(grid).shape == (2, 9, 3)
    assert net(grid).shape == (2, 3)
    torch.testing.assert_close(net(grid), noisy_or(net.cells(grid)))
    torch.testing.assert_close(net(grid[1:]), net(grid)[1:])
    assert net(torch.zeros(1, 9, 6)).isfinite().all()
    assert net(torch.full((1, 9, 6), 1e4)).isfinite().all()


# ---- ids

WORDBOOK = Vocabulary(["dog", "snow", "ball", "runs"])


def test_ids_are_sorted_known_and_padded():
    sure = torch.tensor([[0.2, 0.9, 0.95, 0.5], [0.1, 0.1, 0.1, 0.1]])
    ids = to_ids(sure, ["dog", "snow", "yeti", "ball"], WORDBOOK, max_attributes=6, threshold=0.15)
    assert ids.dtype == torch.long
    assert ids.tolist() == [[5, 6, 4, 0, 0, 0], [0] * 6]
    assert to_ids(
        sure, ["dog", "snow", "yeti", "ball"], WORDBOOK, max_attributes=1, threshold=0.15
    ).tolist() == [[5], [0]]
    assert WORDBOOK.decode(ids[0]) == "snow ball dog"
    assert (
        to_ids(sure[:, :1], ["yeti"], WORDBOOK, threshold=0).eq(0).all()
    )  # the unknown word is never told


def test_an_empty_row_attends_to_nothing_and_gives_zeros():
    ids = to_ids(torch.zeros(2, 2), ["dog", "snow"], WORDBOOK, max_attributes=3)
    ids[0, 0] = 4
    attend, table = MultiHeadAttention(8, 2, bias=False), torch.nn.Embedding(len(WORDBOOK), 8)
    seen = attend(torch.randn(2, 5, 8), table(ids), mask=padding_mask(ids))
    assert seen.isfinite().all()
    assert seen[0].abs().sum() > 0
    assert seen[1].abs().sum() == 0


def test_oracle_says_what_most_captions_say():
    said = [["a dog in snow", "the dog runs", "dog and ball"], ["fog"]]
    assert oracle_attributes(
        said, ["ball", "dog", "runs", "fog"], WORDBOOK, max_attributes=3
    ).tolist() == [[4, 6, 7], [0, 0, 0]]


def test_detect_is_the_chances_as_ids(planted, trained):
    data, see, _ = planted
    book = Vocabulary(["glow", "spark"])
    grid = torch.stack([see(item) for item in data["test"]])
    ids = detect(trained, grid, book, max_attributes=3, threshold=0.5)
    assert ids.shape == (80, 3)
    assert torch.equal(
        ids,
        to_ids(
            predict_proba(trained, data["test"], see),
            trained.words,
            book,
            max_attributes=3,
            threshold=0.5,
        ),
    )
    assert (ids == 0).all(1).any()
    assert {4, 5, 0} == set(ids.unique().tolist())
    assert torch.equal(detect(trained, grid[:7], book, max_attributes=3, threshold=0.5), ids[:7])


def test_a_batch_carries_them():
    batch = Batch(attributes=torch.tensor([[4, 0], [5, 6]]))
    assert batch.select(torch.tensor([1])).attributes.tolist() == [[5, 6]]
    assert len(batch) == 2
    with pytest.raises(
        ValueError, match=r"reads attributes, and the batch has none: .*--kind attributes"
    ):
        Batch(grid=torch.zeros(1, 1, 1)).require("attributes")


# ---- files


def test_a_detector_comes_back(planted, trained, tmp_path):
    data, see, _ = planted
    save_detector(trained, tmp_path / "new" / "a.safetensors")
    again = load_detector(tmp_path / "new" / "a.safetensors")
    assert again.words == trained.words
    assert again.fingerprint == trained.fingerprint
    assert again.metadata == json.loads(json.dumps(trained.metadata))
    assert torch.equal(
        predict_proba(again, data["test"], see), predict_proba(trained, data["test"], see)
    )


def test_a_detector_is_found_by_its_name(trained, tmp_path, monkeypatch):
    monkeypatch.setattr(attributes, "cache_home", lambda: tmp_path)
    save_detector(trained, detector_file("mine"))
    assert (tmp_path / "attributes" / "mine.safetensors").exists()
    assert load_detector("mine").words == trained.words
    with pytest.raises(
        FileNotFoundError, match="there is no detector yours: captionlab attributes train makes one"
    ):
        load_detector("yours")


class Bomb:
    def __reduce__(self):
        return (pytest.fail, ("code of the file was executed",))


def test_what_is_no_detector_is_refused_in_one_line(trained, tmp_path):
    save_detector(trained, good := tmp_path / "good")
    (tmp_path / "pickle").write_bytes(pickle.dumps(Bomb()))
    (tmp_path / "half").write_bytes(good.read_bytes()[:-40])
    (tmp_path / "text").write_text("I am a text")
    save_file({"weight": torch.zeros(2)}, tmp_path / "other")
    save_file(
        {"weight": torch.zeros(2)},
        tmp_path / "short",
        {"captionlab attributes 1": json.dumps({"sizes": trained.config, "about": {}})},
    )
    for name in ("pickle", "half", "text", "other", "short"):
        with pytest.raises(
            ValueError, match=f"{name} holds no attribute detector, or a broken one"
        ) as fault:
            load_detector(tmp_path / name)
        assert "\n" not in str(fault.value)


@pytest.mark.parametrize(
    "header",
    [
        {"sizes": {"channels": 10**9, "words": ["a"], "hidden": 10**5}, "about": {}},
        {"sizes": {"channels": 3, "words": 5}, "about": {}},
        {"sizes": [], "about": {}},
        {"sizes": {"channels": 0, "words": []}, "about": {}},
        {"about": {}},
        [],
        "[" * 100_000,
    ],
    ids=lambda header: str(header)[:40],
)
def test_sizes_of_a_stranger_take_no_memory(trained, tmp_path, monkeypatch, header):
    save_detector(trained, tmp_path / "a")
    tensors = load_file(tmp_path / "a")
    text = header if isinstance(header, str) else json.dumps(header)
    save_file(tensors, tmp_path / "a", {"captionlab attributes 1": text})
    with pytest.raises(ValueError, match="a holds no attribute detector, or a broken one"):
        load_detector(tmp_path / "a")


@pytest.mark.parametrize("sizes", [{"channels": 5000, "hidden": 2000}, {"hidden": 3}, {}], ids=str)
def test_sizes_are_compared_before_memory_is_taken(trained, tmp_path, monkeypatch, sizes):
    """Sizes that would fit into memory, too."""
    devices = []

    class Recorded(AttributeDetector):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            devices.append(next(self.parameters()).device.type)

    save_detector(trained, tmp_path / "a")
    header = {"sizes": trained.config | sizes, "about": {}}
    metadata = {"captionlab attributes 1": json.dumps(header)}
    save_file(load_file(tmp_path / "a"), tmp_path / "a", metadata)
    monkeypatch.setattr(attributes, "AttributeDetector", Recorded)
    if trained.config == header["sizes"]:
        load_detector(tmp_path / "a")
        assert devices == ["meta", "cpu"]
        return
    with pytest.raises(ValueError, match="its tensors have other sizes than it says"):
        load_detector(tmp_path / "a")
    assert devices == ["meta"]


def test_a_failed_write_leaves_the_old_one(trained, tmp_path, monkeypatch):
    save_detector(trained, file := tmp_path / "a")
    before = file.read_bytes()

    def breaks(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr("captionlab.files.os.fsync", breaks)
    with pytest.raises(OSError, match="no space left"):
        save_detector(AttributeDetector(2, ["x"]), file)
    assert file.read_bytes() == before


# ---- into a store


@pytest.fixture(scope="module")
def on_a_net(tmp_path_factory):
    """A detector on a small random network, its file, and pictures, one of which is none."""
    folder, net = tmp_path_factory.mktemp("net"), Backbone("squeezenet1_1", None, size=48)
    torch.manual_seed(0)
    detector = AttributeDetector(512, WORDS)
    detector.metadata = {
        "made_by": {
            "backbone": net.describe(),
            "preprocess": net.preprocess.to_dict(),
            "grid": [2, 2],
        }
    }
    save_detector(detector, folder / "d.safetensors")
    (folder / "pictures").mkdir()
    draw = np.random.default_rng(0)
    for number in range(5):
        Image.fromarray(draw.integers(0, 256, (40, 60, 3), dtype=np.uint8)).save(
            folder / "pictures" / f"{number}.png"
        )
    (folder / "pictures" / "odd.png").write_text("I am a text")
    return folder, net, detector


@pytest.mark.slow
def test_the_store_holds_what_the_detector_says(on_a_net, tmp_path):
    folder, net, detector = on_a_net
    weights = folder / "d.safetensors"
    out = tmp_path / "s"
    told = extract(f"{folder / 'pictures'} --kind attributes --weights {weights} --out {out}")
    store = FeatureStore.open(out)
    assert store.shape == {"chances": (3,)}
    assert set(store.skipped) == {"odd.png"}
    assert "chances of 3 words" in told
    with torch.no_grad():
        for name in ("0.png", "4.png"):
            grid = net(net.preprocess([folder / "pictures" / name]), 2).flatten(1, 2)
            chances = store[name]["chances"]
            torch.testing.assert_close(
                chances, detector(grid).sigmoid()[0], rtol=2e-3, atol=1e-4
            )
    (tmp_path / "s" / "manifest.json").write_text(
        (tmp_path / "s" / "manifest.json")
        .read_text()
        .replace('"complete":true', '"complete":false')
    )
    with pytest.raises(
        ValueError,
        match=r"not complete .*: run captionlab features extract IMAGES --kind attributes "
        r"--weights \S+/d.safetensors --out",
    ):
        FeatureStore.open(tmp_path / "s")
    again = extract_features(
        [folder / "pictures"],
        tmp_path / "s",
        kind="attributes",
        weights=str(folder / "d.safetensors"),
    )
    assert again["0.png"]["chances"].equal(store["0.png"]["chances"])


def test_interrupted_it_ends_with_the_same_bytes(on_a_net, tmp_path, monkeypatch):
    folder, _, detector = on_a_net
    images = {f"{k}": folder / "pictures" / f"{k % 5}.png" for k in range(12)}
    whole = extract_attributes(images, detector, tmp_path / "whole", chunk_size=2, num_workers=2)
    pixels = Preprocess.pixels
    numbers = iter(range(12))

    def stop(preprocess, picture):
        if next(numbers) == 7:
            raise KeyboardInterrupt
        return pixels(preprocess, picture)

    with monkeypatch.context() as patch:
        patch.setattr(Preprocess, "pixels", stop)
        with pytest.raises(KeyboardInterrupt):
            extract_attributes(images, detector, tmp_path / "again", chunk_size=2, num_workers=1)
    made = (np.load(tmp_path / "again" / "checksums.npy") > 0).sum()
    extract_attributes(images, detector, tmp_path / "again", chunk_size=2, num_workers=1)
    assert 0 < made < 12
    assert all(
        (tmp_path / "again" / file.name).read_bytes() == file.read_bytes()
        for file in whole.folder.iterdir()
    )


def test_another_detector_is_another_store(on_a_net, tmp_path):
    folder, _, detector = on_a_net
    extract_features(
        [folder / "pictures"],
        tmp_path / "s",
        kind="attributes",
        weights=str(folder / "d.safetensors"),
    )
    other = load_detector(folder / "d.safetensors")
    other.output.bias.data += 1
    save_detector(other, tmp_path / "other")
    with pytest.raises(ValueError, match=r"holds other features .*fingerprint"):
        extract_features(
            [folder / "pictures"],
            tmp_path / "s",
            kind="attributes",
            weights=str(tmp_path / "other"),
        )
    assert FeatureStore.open(tmp_path / "s").spec["backbone"]["fingerprint"] == detector.fingerprint


def test_what_cannot_be_extracted(on_a_net, trained):
    folder, _, _detector = on_a_net
    with pytest.raises(ValueError, match="looks at pixels"):
        extract_attributes({}, trained, folder / "none")
    changed = load_detector(folder / "d.safetensors")
    changed.metadata["made_by"]["backbone"]["fingerprint"] = "000000000000"
    with pytest.raises(ValueError, match="weights None of squeezenet1_1 are others"):
        extract_attributes({}, changed, folder / "none")


# ---- the command


@pytest.fixture
def alone(tmp_path, monkeypatch):
    """Empty folders, and a small data set of scenes with picture files."""
    (tmp_path / "data").mkdir()
    monkeypatch.setenv("CAPTIONLAB_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(attributes, "cache_home", lambda: tmp_path / "cache")
    monkeypatch.setattr(extraction, "cache_home", lambda: tmp_path / "cache")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "README.md").touch()
    rows = ["image,caption,split"]
    world = datasets.scenes(train=40, val=10, test=10, novel=0)
    for split in ("train", "val", "test"):
        for item in world[split]:
            item.picture(32).save(tmp_path / f"{item.name}.png")
            rows += [f'{item.name}.png,"{caption}",{split}' for caption in item.captions]
    (tmp_path / "few.csv").write_text("\n".join(rows))
    return tmp_path


@pytest.mark.slow
def test_train_by_command(alone):
    def call(*words):
        return CliRunner().invoke(
            application.app, ["attributes", "train", "--data", "few.csv", *words]
        )

    first = call("--num-words", "20", "--json")
    assert first.exit_code == 0, first.output
    assert "20 words" in first.output
    assert "mean average precision" in first.output
    detector = load_detector("few")
    assert detector.metadata["data"] == "few"
    assert detector.metadata["made_by"]["backbone"] is None
    assert len(detector.words) == 20
    result = load_result("few/attributes-tiny")
    run = result["runs"][0]
    assert result["model"] == "attributes"
    assert result["words"] == 20
    assert result["split"] == "test"
    assert run["seed"] == 0
    assert 0 < run["metrics"]["mAP"] <= 100
    assert 0 < run["blind"]["mAP"] < 100
    assert len(run["best"]) == len(run["worst"]) == 10
    assert (alone / "results" / "few" / "attributes-tiny.seed0.history.json").exists()
    second = call("--num-words", "20")
    assert second.exit_code == 1
    assert "exists already: choose another file with --out" in second.output
    third = call(
        "--num-words", "20", "--pool", "max", "--seed", "1", "--out", "max.safetensors", "--json"
    )
    assert third.exit_code == 0, third.output
    assert load_result("few/attributes-max-tiny")["variant"] == "max"
    wrong = call("--pool", "sum", "--out", "x")
    assert wrong.exit_code == 1
    assert "no pool 'sum'" in wrong.output
    assert not (alone / "x").exists()


@pytest.mark.slow
def test_a_detector_of_the_name_that_learnt_from_test_pictures_is_refused(alone):
    made = CliRunner().invoke(
        application.app, ["attributes", "train", "--data", "few.csv", "--num-words", "20"]
    )
    assert made.exit_code == 0, made.output

    def call(*words):
        return CliRunner().invoke(
            application.app,
            ["train", "entangled", "--data", "few.csv", "--variant", "semantic", *words],
        )

    lines = (alone / "few.csv").read_text().splitlines()
    swapped = [
        line[:-5] + "test"
        if line.endswith("train")
        else line[:-4] + "train"
        if line.endswith("test")
        else line
        for line in lines
    ]
    (alone / "few.csv").write_text("\n".join(swapped))
    found = call("--out", "run")
    assert found.exit_code == 1, found.output
    assert "'few' learnt from other pictures than these" in found.output
    for words in (
        ["vanilla", "--data", "scenes", "--detector", "few"],
        ["translation", "--data", "scenes", "--boxes", "x"],
    ):
        refused = CliRunner().invoke(application.app, ["train", *words, "--out", "run"])
        assert refused.exit_code == 1, refused.output
        assert "out" in refused.output
        assert len(refused.output.strip().splitlines()) == 1
    assert not (alone / "run").exists()


@pytest.mark.parametrize("preset", ["squeezenet", "small"])
def test_the_result_on_photos_beats_chance(preset):
    run = load_result(f"flickr8k/attributes-{preset}")["runs"][0]
    assert run["metrics"]["mAP"] > 4 * run["blind"]["mAP"]
    assert all(row["AP"] > row["prevalence"] for row in run["best"].values())


def test_captions_without_words_to_detect_are_refused():
    items = [Item(str(row), ("a",), None) for row in range(3)]
    with pytest.raises(ValueError, match="no words but stop words"):
        train_detector(
            CaptionData("mine", {"train": items, "val": items}), lambda item: torch.zeros(4, 3)
        )
    with pytest.raises(ValueError, match="says one of the detector's words"):
        evaluate_detector(AttributeDetector(3, ["dog"]), items, lambda item: torch.zeros(4, 3))
