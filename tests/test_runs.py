"""Runs: what is saved comes back, in a fresh process; bad folders are refused in one line."""

import json
import os
import pickle
import shutil
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from filelock import FileLock
from PIL import Image

import captionlab
from benchmarks import artifact_path
from captionlab.data.batches import CaptionDataset
from captionlab.data.catalog import load_dataset
from captionlab.data.datasets import CaptionData, Item, scenes
from captionlab.decoding import GenerationConfig
from captionlab.explore.faithfulness import evaluate_faithfulness
from captionlab.features import extraction, image_processor
from captionlab.features.extraction import input_transforms, open_feature_stores
from captionlab.features.image_processor import ImageProcessor
from captionlab.features.store import FeatureStore
from captionlab.features.text_processor import TextProcessor
from captionlab.metrics import score, score_rows, score_translations
from captionlab.models import cptr, find_preset, vanilla
from captionlab.runs import catalog as runs_catalog
from captionlab.runs import (
    ensembles,
    evaluation,
    fitting,
    folder,
    preparation,
    results,
    storage,
)
from captionlab.runs.evaluation import (
    derangement,
    evaluate,
    merge_result,
    result_name,
)
from captionlab.runs.fitting import NewModel, fit
from captionlab.runs.objectives import SCST
from captionlab.runs.preparation import TrainingSetup
from captionlab.runs.results import merge_run, provenance
from captionlab.runs.run import Run
from captionlab.runs.storage import RunMetadata
from captionlab.scenes.verification import truth
from captionlab.scenes.world import render
from captionlab.subwords import SubwordVocabulary
from captionlab.text import Vocabulary

SEARCH = GenerationConfig()
os.environ["TQDM_DISABLE"] = "1"
BRIEF = replace(
    vanilla.PRESETS["tiny"], training=replace(vanilla.PRESETS["tiny"].training, epochs=1)
)
MODELS = {"vanilla": (vanilla, BRIEF), "cptr": (cptr, cptr.PRESETS["tiny"])}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    for module in (runs_catalog, extraction):
        monkeypatch.setattr(module, "cache_home", lambda: tmp_path / "cache")


@pytest.fixture(scope="module")
def world():
    return scenes(train=40, val=4, test=8, novel=0)


@pytest.fixture(scope="module")
def trained(world, tmp_path_factory):
    """A run of one epoch on 40 scenes, and its folder."""
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    return fit(NewModel("vanilla", BRIEF), world, seed=3, out=folder), folder


def fresh(name, vocabulary=None):
    """An untrained run."""
    module, preset = MODELS[name]
    vocabulary = vocabulary or Vocabulary(["a", "red", "circle"])
    torch.manual_seed(0)
    metadata = RunMetadata(
        model=name, preset_name="tiny", data="scenes", stage="xe", seed=0, history=[]
    )
    return Run(
        module.Model(preset, len(vocabulary)).eval(), vocabulary, ImageProcessor(preset), metadata
    )


def replace_preset(processor, **more):
    """Eyes of another preset of one's own."""
    return ImageProcessor(replace(processor.preset, **more))


def refusal(folder):
    with pytest.raises((ValueError, FileNotFoundError)) as caught:
        Run.load(folder)
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)
    return str(caught.value)


class TestSavedAndLoaded:
    @pytest.mark.parametrize("name", MODELS)
    def test_everything_comes_back(self, name, tmp_path):
        run = fresh(name, SubwordVocabulary.build(["a red circle", "a blue square"], 300))
        again = Run.load(run.save(tmp_path / "run"))
        for key, x in run.model.state_dict().items():
            torch.testing.assert_close(again.model.state_dict()[key], x, rtol=0, atol=0)
        assert again.processor.preset == run.processor.preset
        assert again.metadata == run.metadata
        assert not again.model.training
        assert again.vocabulary.to_dict() == run.vocabulary.to_dict()
        assert again.processor.preprocess == run.processor.preprocess

    @pytest.mark.parametrize("part", ["model", "decoder"])
    def test_a_compiled_model_is_saved_as_any_other(self, tmp_path, part):
        run = fresh("vanilla")
        plain = run.save(tmp_path / "plain")
        if part == "model":
            run.model = torch.compile(run.model, backend="eager")
        else:
            run.model.decoder = torch.compile(run.model.decoder, backend="eager")
        compiled = run.save(tmp_path / "compiled")
        assert Run.load(compiled).metadata == run.metadata
        files = [sorted(path.name for path in folder.iterdir()) for folder in (plain, compiled)]
        assert files[0] == files[1]  # the name of weights is a hash of their content
        storage._load_weights(run.model, next(plain.glob("*.safetensors")))

    def test_tied_weights_are_stored_once_and_stay_tied(self, tmp_path):
        run = fresh("vanilla")
        again = Run.load(run.save(tmp_path)).model
        assert again.output.weight is again.words.weight
        assert "output.weight" not in storage.unique_tensors(again)

    @pytest.mark.slow
    def test_a_fresh_process_captions_a_file_as_we_do(self, trained, world, tmp_path):
        run, folder = trained
        picture = render(world["test"][0].image, 64)
        Image.fromarray(picture).save(tmp_path / "p.png")
        file = str(tmp_path / "p.png")
        code = f"import captionlab; print(captionlab.load({str(folder)!r}).caption({file!r}))"
        said = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.strip()
        assert said
        assert said == run.caption(picture) == run.caption([world["test"][0].image])[0]

    def test_by_name(self, trained, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        shutil.copytree(trained[1], tmp_path / "cache" / "runs" / "mine")
        assert captionlab.load("mine").metadata.seed == 3
        with pytest.raises(FileNotFoundError, match=r"known by name are .*mine"):
            captionlab.load("yours")

        assert captionlab.list_runs() == ["mine", "photos", "scenes", "translation"]

    def test_loading_nothing_heavy_until_asked(self):
        code = (
            "import sys, captionlab; assert 'torch' not in sys.modules; "
            "assert not hasattr(captionlab, 'lead')"
        )
        subprocess.run([sys.executable, "-c", code], check=True)

    def test_the_first_names_that_one_needs_are_listed(self):
        assert {"load", "list_runs"} <= set(dir(captionlab))
        assert "list_models" in dir(captionlab.models)

    def test_the_package_is_a_program(self):
        command = [sys.executable, "-m", "captionlab", "--version"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stdout.startswith("captionlab ")


class TestFormats:
    """Hashes of settings in result files, and keys of other versions in runs."""

    def test_a_packaged_run_has_the_hash_of_its_result_file(self):
        run = captionlab.load("translation")
        result = results.load_result("multi30k/translation-small-xe")
        row = next(row for row in result["runs"] if row["seed"] == run.metadata.seed)
        assert evaluation._result_run(run)["made"] == row["made"]

    @pytest.mark.slow
    @pytest.mark.parametrize("split", ["test_2017_flickr", "test_2017_mscoco"])
    def test_the_packaged_translator_on_the_later_test_sets(self, real_data, split):
        """The stored translations score what the row says, searched as decided for `test`."""
        name = "multi30k/translation-small-xe"
        result = results.load_result(f"{name}-{split}")
        stored = results.result_file(f"{name}-{split}.seed0.captions.json").read_text()
        items = load_dataset("multi30k")[split]
        texts = {entry["image_id"]: entry["caption"] for entry in json.loads(stored)}
        scores = score_translations(
            [texts[item.name] for item in items], [item.captions[0] for item in items], ter=False
        )
        row = result["runs"][0]
        assert scores == pytest.approx({key: row["metrics"][key] for key in scores})
        assert row["blind"]["BLEU"] < 1
        assert result["decoding"] == results.load_result(name)["decoding"]

    @pytest.mark.parametrize(
        ("model", "fingerprint"),
        [
            ("cptr", "c6354f36"),
            ("image_transformer", "dca3b56f"),
            ("position_aware", "990b40dc"),
            ("vanilla", "7ddda26d"),
        ],
    )
    def test_fingerprints_of_processors(self, model, fingerprint):
        processor = ImageProcessor(find_preset(model, "tiny"))
        assert fitting._processor_fingerprint(processor) == fingerprint

    def test_keys_of_other_versions_are_kept(self, tmp_path):
        run = fresh("vanilla")
        run.metadata.extra["mood"] = "good"
        again = Run.load(run.save(tmp_path))
        assert again.metadata == run.metadata
        assert again.metadata.to_dict()["mood"] == "good"


class TestRefused:
    @pytest.fixture
    def folder(self, tmp_path):
        return fresh("vanilla").save(tmp_path / "run")

    def weights(self, folder):
        return next(folder.glob("weights-*.safetensors"))

    def edit(self, folder, **changes):
        said = json.loads((folder / "run.json").read_text())
        (folder / "run.json").write_text(json.dumps(said | changes))

    def test_a_pickle_is_not_executed(self, folder, tmp_path):
        class Bomb:
            def __reduce__(self):
                return os.mkdir, (str(tmp_path / "exploded"),)

        for dump in (
            pickle.dumps,
            lambda bomb: (
                torch.save(bomb, self.weights(folder)) or self.weights(folder).read_bytes()
            ),
        ):
            self.weights(folder).write_bytes(dump(Bomb()))
            assert "nothing in it was executed" in refusal(folder)
        assert not (tmp_path / "exploded").exists()

    def test_missing_files(self, folder, tmp_path):
        self.weights(folder).unlink()
        assert "copy the whole folder" in refusal(folder)
        (folder / "run.json").unlink()
        assert "captionlab train makes one" in refusal(folder)

    def test_broken_files(self, folder):
        whole = self.weights(folder).read_bytes()
        for content in (b"", whole[:-1], whole[:100], b"\xff" * 1000):
            self.weights(folder).write_bytes(content)
            assert "safetensors" in refusal(folder)
        for text in ("", "{", "[]", '{"format": 3}', '{"format": 2}', '{"format": 1}'):
            (folder / "run.json").write_text(text)
            assert "run.json" in refusal(folder)

    @pytest.mark.parametrize("key", ["variant", "preset_name", "stage", "data"])
    @pytest.mark.parametrize("name", ["xe/../../planted", "/planted", "..", "a\\b", "a\nb", "", 3])
    def test_a_name_that_could_be_a_path(self, folder, key, name):
        self.edit(folder, **{key: name})
        assert f"its {key} is" in refusal(folder)

    @pytest.mark.parametrize("seed", ["0/../../planted", "0", 1.5, True, [0]])
    def test_a_seed_that_is_no_whole_number(self, folder, seed):
        self.edit(folder, seed=seed)
        assert "not a whole number" in refusal(folder)

    @pytest.mark.parametrize(
        ("changes", "line"),
        [
            ({"width": 20000}, "does not fit"),
            ({"decoder_layers": 900}, "does not fit"),
            ({"decoder_layers": 1_000_000}, "decoder_layers is 1000000: it may be from 1 to 1,000"),
            ({"encoder_layers": 1001}, "encoder_layers is 1001"),
            ({"max_length": 10_000_000}, "max_length is 10000000"),
            ({"width": 0}, "width is 0"),
            ({"width": 10**30}, "width is 1000"),
            ({"hidden": -1}, "hidden is -1"),
            ({"channels": 12.0}, "not of the right type"),
            ({"heads": True}, "heads is 'True', which is not of the right type"),
            ({"heads": [1, [2]]}, "not of the right type"),
            ({"dropout": float("nan")}, "dropout is 'nan'"),
            ({"norm": None}, "norm is 'None'"),
            ({"activation": "tanh"}, "tanh"),
            ({"inputs": {"grid": [8, 65]}}, "grid is (8, 65)"),
            ({"inputs": {"image_size": 10**9}}, "image_size is 1000000000"),
            ({"inputs": 3}, "'3' stands where"),
            ({"training": {"epochs": "4"}}, "epochs is '4'"),
            ({"max_length": 10_000_000}, "max_length is 10000000"),
            ({"depth": 3}, "no value 'depth'"),
        ],
        ids=str,
    )
    def test_sizes_are_checked_before_anything_is_built(self, folder, monkeypatch, changes, line):
        built = []

        class Recorded(vanilla.Model):
            def __init__(self, *arguments):
                built.append(torch.empty(0).device.type)
                super().__init__(*arguments)

        monkeypatch.setattr(vanilla, "Model", Recorded)
        preset = json.loads((folder / "run.json").read_text())["preset"]
        self.edit(folder, preset=preset | changes)
        assert line in refusal(folder)
        assert set(built) <= {"meta"}, "memory was taken before the sizes were compared"

    def test_a_preset_that_is_not_complete(self, folder):
        preset = json.loads((folder / "run.json").read_text())["preset"]
        del preset["width"]
        self.edit(folder, preset=preset)
        assert "'width'" in refusal(folder)

    @pytest.mark.parametrize("text", ["[" * 200_000, '{"seed": ' + "9" * 6000 + "}", "\xff{}"])
    def test_json_that_pythons_reader_trips_over(self, folder, text):
        (folder / "run.json").write_text(text, encoding="latin-1")
        assert "cannot be read as JSON" in refusal(folder)

    @pytest.mark.parametrize(
        ("key", "value", "line"),
        [
            ("mean", [0.485, 0.9, 0.406], "its preprocessing has the fingerprint"),
            ("size", 63, "its preprocessing has the fingerprint"),
            ("mean", "abc", "mean and std are three numbers each"),
            ("mean", [0.5, None, 0.5], "mean and std are three numbers each"),
            ("std", [1, 1, float("nan")], "mean and std are three numbers each"),
            ("size", True, "size is a whole number from 1 to 4,096"),
            ("size", 10**6, "size is a whole number from 1 to 4,096"),
            ("interpolation", ["bilinear"], "no such preprocessing"),
            ("window", [0, 0, 1], "a window is left, top, right, bottom"),
        ],
    )
    def test_a_changed_preprocessing(self, folder, key, value, line):
        processor = json.loads((folder / "run.json").read_text())["processor"]
        processor["preprocess"][key] = value
        self.edit(folder, processor=processor)
        assert line in refusal(folder)

    @pytest.mark.parametrize("key", ["preprocess", "backbone", "boxes"])
    def test_a_processor_that_is_none(self, folder, key):
        processor = json.loads((folder / "run.json").read_text())["processor"]
        self.edit(folder, processor=processor | {key: [3]})
        assert f"{key} of its processor" in refusal(folder) or "not complete" in refusal(folder)

    def test_an_unknown_backbone(self, folder):
        preset = json.loads((folder / "run.json").read_text())["preset"]
        preset["inputs"]["backbone"] = "squeezenet9"
        self.edit(folder, preset=preset)
        assert "no backbone squeezenet9: there are" in refusal(folder)

    def test_a_changed_word(self, folder):
        vocabulary = json.loads((folder / "run.json").read_text())["vocabulary"]
        vocabulary["words"][1] = "rod"
        self.edit(folder, vocabulary=vocabulary)
        assert "its checksum is another" in refusal(folder)

    @pytest.mark.parametrize(
        "changes",
        [
            {"words": "abc"},
            {"words": [1, 2, 3]},
            {"words": ["a", "a", "b"]},
            {"kind": "subwords"},
            {"kind": "subwords", "tokens": ["a"], "merges": []},
        ],
        ids=str,
    )
    def test_an_odd_vocabulary(self, folder, changes):
        vocabulary = json.loads((folder / "run.json").read_text())["vocabulary"]
        self.edit(folder, vocabulary=vocabulary | changes)
        assert "vocabulary" in refusal(folder)

    def test_a_data_set_named_after_a_file_with_a_blank(self, folder):
        self.edit(folder, data="my photos (new)")
        assert Run.load(folder).metadata.data == "my photos (new)"

    @pytest.mark.parametrize("data", ["../planted", "/planted", "a/../../planted"])
    def test_results_stay_below_their_folder(self, tmp_path, monkeypatch, data):
        monkeypatch.setattr(results, "results_home", lambda: tmp_path / "in" / "results")
        with pytest.raises(ValueError, match="would not lie below"):
            merge_run(f"{data}/x", {"data": data}, {"seed": 0})
        with pytest.raises(ValueError, match="would not lie below"):
            artifact_path(fresh("vanilla"), data, "gate")
        assert list(tmp_path.iterdir()) == []

    def test_a_result_is_no_path_of_its_own(self):
        metadata = {"data": "a", "model": "m", "stage": "xe.json", "split": "test"}
        with pytest.raises(ValueError, match="cannot be called"):
            result_name(metadata)

    def test_another_models_weights(self, folder, tmp_path):
        other = fresh("vanilla", Vocabulary(["one"])).save(tmp_path / "other")
        self.weights(folder).write_bytes(self.weights(other).read_bytes())
        assert "words.weight does not fit" in refusal(folder) or "output" in refusal(folder)

    @pytest.mark.parametrize("model", ["os", "..os", "../models/vanilla", "vanilla.Model", ""])
    def test_only_our_models_are_imported(self, folder, model):
        self.edit(folder, model=model)
        with pytest.raises(ValueError, match="no model"):
            Run.load(folder)

    def test_weights_outside_of_the_folder_are_not_read(self, folder):
        name = self.weights(folder).name
        self.weights(folder).rename(folder.parent / name)
        self.edit(folder, weights=f"../{name}")
        assert "is missing" in refusal(folder)


class TestNeverHalf:
    def test_dying_between_the_files_keeps_the_old_run(self, tmp_path, monkeypatch):
        old, new = fresh("vanilla"), fresh("vanilla", Vocabulary(["x", "y", "z"]))
        torch.nn.init.ones_(new.model.words.weight)
        old.save(tmp_path)
        for module, step in ((storage, "write_atomically"), (storage, "write_json")):
            with monkeypatch.context() as patch:
                patch.setattr(module, step, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
                with pytest.raises(KeyboardInterrupt):
                    new.save(tmp_path)
            again = Run.load(tmp_path)
            assert again.vocabulary.to_dict() == old.vocabulary.to_dict()
            assert torch.equal(again.model.words.weight, old.model.words.weight)
        new.save(tmp_path)
        assert torch.equal(Run.load(tmp_path).model.words.weight, new.model.words.weight)
        assert sorted(file.suffix for file in tmp_path.iterdir()) == [".json", ".safetensors"]

    def test_dying_before_there_was_one_leaves_none(self, tmp_path, monkeypatch):
        monkeypatch.setattr(
            storage, "write_json", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)
        )
        with pytest.raises(KeyboardInterrupt):
            fresh("vanilla").save(tmp_path)
        with pytest.raises(FileNotFoundError, match="holds no run"):
            Run.load(tmp_path)


class TestTraining:
    @pytest.mark.slow
    def test_seeds_and_resuming(self, trained, world, tmp_path):
        run, folder = trained
        with pytest.raises(ValueError, match="--resume"):
            fit(NewModel("vanilla", BRIEF), world, seed=3, out=folder)
        same = fit(NewModel("vanilla", BRIEF), world, seed=3, out=tmp_path / "same")
        resumed = fit(NewModel("vanilla", BRIEF), world, seed=3, out=folder, resume=True)
        other = fit(NewModel("vanilla", BRIEF), world, seed=4, out=tmp_path / "other")
        for again in (same, resumed):
            torch.testing.assert_close(
                again.model.state_dict(), run.model.state_dict(), rtol=0, atol=0
            )
        assert not torch.equal(other.model.words.weight, run.model.words.weight)

    def test_what_it_notes(self, trained):
        metadata = trained[0].metadata
        assert metadata.seed == 3
        seconds = sum(record["seconds"] for record in metadata.history)
        assert metadata.train_seconds == pytest.approx(seconds, abs=0.1)
        assert metadata.parameters > 1000
        assert [set(record) >= {"loss", "rate", "score"} for record in metadata.history] == [True]

    def test_unknown_names(self, world, tmp_path):
        for model, preset, line in (
            ("vanila", "tiny", "no model 'vanila': choose from"),
            ("vanilla", "huge", "no preset"),
        ):
            with pytest.raises(ValueError, match=line):
                fit(NewModel(model, preset), world, out=tmp_path / "x")
        assert not (tmp_path / "x").exists()

    @pytest.mark.parametrize(
        ("model", "line"),
        [
            ("vanilla", "has no variant 'fpn': leave --variant out"),
            ("position_aware", "has no variant 'spn': choose from vanilla, fpn"),
        ],
    )
    def test_unknown_variants(self, world, tmp_path, model, line):
        with pytest.raises(ValueError, match=line):
            fit(
                NewModel(model, variant="fpn" if model == "vanilla" else "spn"),
                world,
                out=tmp_path / "x",
            )
        assert not (tmp_path / "x").exists()

    def test_a_preset_of_ones_own_has_its_variant(self, world, tmp_path):
        preset = find_preset("position_aware", "tiny")
        with pytest.raises(ValueError, match="leave variant out"):
            fit(NewModel("position_aware", preset, variant="fpn"), world, out=tmp_path / "x")

    def test_a_variant_is_named_unless_it_is_the_presets_own(self):
        fpn, full = (find_preset("position_aware", "tiny", variant) for variant in ("fpn", None))
        assert fpn == replace(full, variant="fpn")
        assert full.variant == "position_aware"
        assert fitting._preset_variant("position_aware", "tiny", fpn) == "fpn"
        assert (
            fitting._preset_variant("position_aware", "tiny", full)
            is None
            is fitting._preset_variant("vanilla", "tiny", find_preset("vanilla", "tiny"))
        )


class TestEvaluation:
    @pytest.mark.java
    @pytest.mark.slow
    def test_result_as_it_is_written(self, trained, world, tmp_path, monkeypatch):
        (tmp_path / "results").mkdir()
        (tmp_path / "results" / "README.md").touch()
        monkeypatch.chdir(tmp_path)
        run = trained[0]
        found = evaluate(run, world, beam=2, length_penalty=0.5, meteor=False)
        path = merge_result(run, found)
        assert path == tmp_path / "results" / "scenes" / "vanilla-own-xe.json"
        result = json.loads(path.read_text())
        assert {
            "data",
            "split",
            "model",
            "preset",
            "sizes",
            "stage",
            "decoding",
            "scorer",
            "parameters",
            "runs",
        } == set(result)
        row = result["runs"][0]
        assert {
            "seed",
            "metrics",
            "blind",
            "train_seconds",
            "command",
            "trained",
            "made",
            "commit",
            "machine",
        } == set(row)
        assert row["trained"] == provenance()
        assert result["decoding"] == {"beam": 2, "length_penalty": 0.5}
        assert "truth" in row["blind"]
        with pytest.raises(ValueError, match=r"its decoding is .*move that one away"):
            evaluate(run, world, beam=1, meteor=False, check_output=True)
        wider = replace(run, processor=replace_preset(run.processor, hidden=64))
        with pytest.raises(ValueError, match="its sizes is"):
            evaluate(wider, world, beam=2, length_penalty=0.5, meteor=False, check_output=True)
        later = replace(
            run,
            processor=replace_preset(
                run.processor, training=replace(run.processor.preset.training, lr=1.0)
            ),
            metadata=replace(run.metadata, seed=4),
        )
        with pytest.raises(ValueError, match="trained with other settings"):
            evaluate(later, world, beam=2, length_penalty=0.5, meteor=False, check_output=True)
        captions = json.loads(path.with_name("vanilla-own-xe.seed3.captions.json").read_text())
        assert [one["caption"] for one in captions] == run.caption(
            [item.image for item in world["test"]], beam=2, length_penalty=0.5
        )

    def test_what_was_not_used_is_no_other_setting(self, trained):
        """A recipe for SCST tells runs of SCST apart, not those that have yet to come to it."""
        run, marks = trained[0], {}
        other = replace(
            run,
            processor=replace_preset(
                run.processor, scst=replace(run.processor.preset.scst, lr=1.0)
            ),
        )
        for stage in ("xe", "distilled", "scst", "distilled-scst"):
            marks[stage] = {
                evaluation._result_run(
                    replace(one, metadata=replace(one.metadata, stage=stage))
                )["made"]
                for one in (run, other)
            }
        assert {stage: len(found) for stage, found in marks.items()} == {
            "xe": 1,
            "distilled": 1,
            "scst": 2,
            "distilled-scst": 2,
        }

    @pytest.mark.java
    def test_a_perfect_captioner_sees_and_blind_it_does_not(self, world):
        items = world["test"]
        captions = [item.captions[0] for item in items]
        others = derangement(len(items))
        rows = {"metrics": captions, "blind": [captions[other] for other in others]}
        scores = score_rows(rows, items, without=["METEOR"])
        own, blind = scores["metrics"], scores["blind"]
        assert own["truth"] == 100
        assert own["BLEU-1"] == pytest.approx(100)
        assert blind["truth"] < 50
        assert blind["CIDEr"] < own["CIDEr"] / 2

    @pytest.mark.java
    def test_nothing_to_judge_is_said_before_the_work(self, trained, world, monkeypatch):
        monkeypatch.setattr(
            evaluation, "caption_split", lambda *_, **__: pytest.fail("it has begun to caption")
        )
        with pytest.raises(ValueError, match="the split test of scenes is empty"):
            evaluate(trained[0], replace(world, splits=world.splits | {"test": []}))
        with pytest.raises(ValueError, match="two pictures"):
            evaluate(trained[0], replace(world, splits=world.splits | {"test": world["test"][:1]}))

    def test_the_quick_score_judges_each_caption_by_its_picture(self, world, monkeypatch):
        items = world["test"]
        captions = [item.captions[0] for item in items]
        monkeypatch.setattr(preparation, "caption_split", lambda *_, **__: captions)
        own = preparation._quick_cider(None, items, {})
        monkeypatch.setattr(
            preparation, "caption_split", lambda *_, **__: captions[1:] + captions[:1]
        )
        assert own > 2 * preparation._quick_cider(None, items, {})

    def test_results_are_filed_by_data_and_split(self, trained):
        metadata = evaluation.result_metadata(
            trained[0], CaptionData("photos", {"val": []}), "val", SEARCH
        )
        assert metadata["trained_on"] == "scenes"
        assert evaluation.result_name(metadata) == "photos/vanilla-own-xe-val"

    @pytest.mark.parametrize("rows", [2, 3, 10, 101])
    def test_derangement(self, rows):
        for seed in range(5):
            other = derangement(rows, seed)
            assert (other != np.arange(rows)).all()
            assert sorted(other) == list(range(rows))
        assert rows < 4 or any(
            (derangement(rows, 0) != derangement(rows, seed)).any() for seed in range(1, 5)
        )

    def test_one_picture_cannot_be_deranged(self):
        with pytest.raises(ValueError, match="two pictures"):
            derangement(1)

    def test_trace(self, trained, world):
        run = trained[0]
        words, weights = run.trace(world["test"][0].image)
        assert " ".join(words) == run.caption(world["test"][0].image)
        assert weights.shape == (
            len(words),
            64,
        )
        torch.testing.assert_close(weights.sum(1), torch.ones(len(words)))


@pytest.mark.parametrize(("cut", "targets"), [(9, 8), (18, 17), (None, 30)])
def test_decoding_writes_as_many_tokens_as_training_predicts(world, cut, targets, monkeypatch):
    """bos is one of the ids to which training cuts a caption, but no target."""
    run = fresh("vanilla", Vocabulary.build(world.captions("train")))
    run.processor = replace_preset(run.processor, max_length=cut)
    examples = CaptionDataset(world["train"], run.vocabulary, max_length=cut)
    if cut:
        assert max(len(ids) - 1 for row in examples.token_ids["captions"] for ids in row) == targets
    step = run.model.step

    def endless_step(*args):
        logits, state = step(*args)
        logits[..., run.vocabulary.eos] = -100.0
        return logits, state

    monkeypatch.setattr(run.model, "step", endless_step)
    batch = run.processor([world["test"][0].image])
    for beam in (1, 3):
        assert len(run.search(batch, beam=beam)[0].ids) == targets
    critic = SCST().learner(run, TrainingSetup(world, {}, [], examples))
    captions = critic.sample_captions(run.model.encode(batch))
    assert captions.shape[-1] == targets


class TestEyes:
    NET = replace(
        BRIEF,
        inputs=replace(BRIEF.inputs, backbone="squeezenet1_1", image_size=64, grid=2),
        channels=512,
    )

    @pytest.fixture
    def photos(self, world, tmp_path):
        """Scenes as picture files, in a data set."""
        items = []
        for number, item in enumerate(world["test"]):
            Image.fromarray(render(item.image, 80)).save(tmp_path / f"{number}.png")
            items.append(Item(f"{number}.png", item.captions, tmp_path / f"{number}.png"))
        return CaptionData("photos", {"train": items[:6], "val": [], "test": items[6:]})

    @pytest.fixture
    def net(self, monkeypatch):
        """Random weights in place of a download."""
        plain = image_processor.Backbone
        monkeypatch.setattr(
            image_processor,
            "Backbone",
            lambda name, weights, size: plain(name, None, size, seed=int(weights)),
        )

    def test_a_photo_looks_as_in_the_store(self, photos, net):
        processor = ImageProcessor(self.NET, weights="0")
        stores = open_feature_stores(processor, photos)
        item = photos["test"][0]
        assert [type(store) for store in stores] == [FeatureStore]
        assert len(stores[0]) == 8
        torch.testing.assert_close(
            input_transforms(processor, stores)["grid"](item),
            processor([item.image]).grid[0],
            rtol=2e-3,
            atol=2e-3,
        )

    def test_only_what_is_read_is_computed(self, photos, net, monkeypatch):
        seen = []
        load = ImageProcessor.load
        monkeypatch.setattr(
            ImageProcessor, "load",
            lambda self, picture, name: seen.append(name) or load(self, picture, name),
        )
        many = [replace(item, name=f"{number}-{item.name}") for number in range(50)
                for item in photos["train"]]         # more than a chunk
        world = CaptionData("many", {"train": many, "test": photos["test"]})
        processor = ImageProcessor(self.NET, weights="0")
        (store,) = open_feature_stores(processor, world, items=world["test"])
        assert {item.name for item in world["test"]} <= set(seen) and len(seen) < 128
        (whole,) = open_feature_stores(processor, world, items=world.items)
        assert whole.folder == store.folder and sorted(seen) == sorted(x.name for x in world.items)

    def test_scenes_seen_by_a_network_are_stored_apart_for_each_number_of_them(self, net):
        """Training reads more scenes than evaluation, both under the name of the data set."""
        processor = ImageProcessor(self.NET, weights="0")
        one, other = (
            open_feature_stores(processor, scenes(train=some, val=1, test=2, novel=0))[0]
            for some in (3, 0)
        )
        name = scenes(train=0, val=0, test=2, novel=0)["test"][0].name
        torch.testing.assert_close(one[name], other[name])
        assert len(one) == 6
        assert len(other) == 3

    def test_a_picture_without_features_is_named_before_training(self, net):
        processor = ImageProcessor(self.NET, weights="0")
        few, more = (scenes(train=some, val=1, test=1, novel=0) for some in (2, 3))
        open_feature_stores(processor, few, items=few["train"])
        with pytest.raises(ValueError, match="1 of 3 pictures have no features"):
            open_feature_stores(processor, few, items=more["train"])
        item = few["train"][0]
        with pytest.raises(ValueError, match=f"two pictures are both {item.name}"):
            elsewhere = Path("elsewhere") / item.name
            other = replace(few["train"][1], name="", image=elsewhere)
            open_feature_stores(processor, few, items=[item, other])

    def test_other_weights_are_noticed(self, photos, net):
        made = ImageProcessor(self.NET, weights="0").describe()
        with pytest.raises(ValueError, match="are others"):
            ImageProcessor(self.NET, made, weights="1")([photos["test"][0].image])

    def test_another_store_is_noticed(self, photos, net):
        (store,) = open_feature_stores(ImageProcessor(self.NET, weights="0"), photos)
        open_feature_stores(ImageProcessor(self.NET, weights="0"), photos, store.folder)
        for other in (
            ImageProcessor(self.NET, weights="1"),
            ImageProcessor(replace(self.NET, inputs=replace(self.NET.inputs, grid=3)), weights="0"),
        ):
            with pytest.raises(ValueError, match="another way"):
                open_feature_stores(other, photos, store.folder)

    def test_trains_and_captions_with_a_backbone(self, photos, tmp_path, net, monkeypatch):
        monkeypatch.setattr(image_processor, "find_weights", lambda _: "0")
        run = fit(NewModel("vanilla", self.NET), photos, out=tmp_path / "run")
        again = captionlab.load(tmp_path / "run")
        assert again.caption(photos["test"][0].image) == run.caption(photos["test"][0].image)
        assert "val" in photos.splits
        assert "score" not in run.metadata.history[0]

    def test_pictures_that_are_none(self):
        with pytest.raises(ValueError, match="not a picture"):
            ImageProcessor(BRIEF)([np.zeros((3, 8, 8))])
        with pytest.raises(FileNotFoundError, match="no picture"):
            ImageProcessor(BRIEF)(["absent.jpg"])

    def test_pixels_are_read_once_within_the_limit(self, photos, monkeypatch):
        processor, item = ImageProcessor(BRIEF), photos["test"][0]
        frugal, free = (
            input_transforms(processor, cache_bytes=0)["grid"],
            input_transforms(processor)["grid"],
        )
        first = free(item)
        frugal(item), frugal(photos["test"][1])  # the picture before is still at hand
        item.image.unlink()
        assert torch.equal(free(item), first)
        with pytest.raises(FileNotFoundError):
            frugal(item)


@pytest.fixture(scope="module")
def shipped():
    """The run that comes with the package."""
    return captionlab.load("scenes")


class TestShipped:
    @pytest.mark.parametrize(("name", "megabytes"), [("scenes", 2), ("translation", 8), ("photos", 12)])
    def test_is_small_and_has_a_card(self, name, megabytes):
        folder = Path(captionlab.__file__).parent / "checkpoints" / name
        assert sum(file.stat().st_size for file in folder.iterdir()) < megabytes * 1e6
        card, command = (folder / "README.md").read_text(), captionlab.load(name).metadata.command
        assert all(word in card for word in ("Data", "Command", "seed", "Licence", "blind"))
        assert command in card

    def test_translates(self):
        """Words that no translation of these could do without."""
        said = captionlab.load("translation").translate(
            ["A man is riding a bicycle.", "Two dogs run through the snow."]
        )
        assert "Mann" in said[0]
        assert "Fahrrad" in said[0]
        assert "Hunde" in said[1]
        assert "Schnee" in said[1]

    def test_sees(self, shipped):
        items = scenes(train=0, val=0, test=60, novel=0)["test"]
        said, shown = (
            [[text] for text in shipped.caption([item.image for item in items])],
            [item.image for item in items],
        )
        sight, blind = (truth(said, worlds)["all"] for worlds in (shown, shown[1:] + shown[:1]))
        assert sight > 0.35
        assert sight > 2 * blind

    @pytest.mark.slow
    @pytest.mark.java
    @pytest.mark.slow
    def test_photos_sees_what_is_in_a_photo(self, real_data):
        """Captions of 40 test photos fit these much better than the next photos."""
        photos = load_dataset("flickr8k")["test"][:40]
        captions = captionlab.load("photos").caption([item.image for item in photos])
        references = {item.image_id: list(item.captions) for item in photos}
        ciders = []
        for shift in (0, 1):
            candidates = dict(zip(references, np.roll(captions, shift).tolist(), strict=True))
            scores = score(candidates, references, meteor=False)
            ciders.append(scores.corpus_scores["CIDEr"])
        assert ciders[0] > 40
        assert ciders[1] < ciders[0] / 2

    @pytest.mark.slow
    def test_is_in_the_wheel_and_works_from_there(self, tmp_path):
        """A fresh process that knows only the folder of the unpacked wheel captions a scene."""
        root = Path(__file__).resolve().parent.parent
        for name in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(root / name, tmp_path)
        shutil.copytree(
            root / "captionlab",
            tmp_path / "captionlab",
            ignore=shutil.ignore_patterns("__pycache__"),
        )
        build = "from setuptools.build_meta import build_wheel; print(build_wheel('.'))"
        made = subprocess.run(
            [sys.executable, "-c", build],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert made.returncode == 0, made.stderr
        with zipfile.ZipFile(tmp_path / made.stdout.split()[-1]) as wheel:
            wheel.extractall(tmp_path / "there")
        code = (
            "import captionlab; from captionlab.scenes.generator import generate_scene; "
            "print(captionlab.__file__); "
            "print(captionlab.load('scenes').caption(generate_scene(7)))"
        )
        said = subprocess.run(
            [sys.executable, "-c", code],
            cwd=tmp_path / "there",
            capture_output=True,
            text=True,
            env=os.environ | {"PYTHONPATH": str(tmp_path / "there")},
            check=False,
        )
        where, text = said.stdout.strip().splitlines()
        assert str(tmp_path / "there") in where, said.stderr
        assert len(text.split()) > 3


@pytest.mark.slow
def test_a_training_goes_on_with_what_it_was_begun_with(world, tmp_path):
    """Other captions make other words, even if as many: the weights would mean other things."""
    fit(NewModel("vanilla", BRIEF), world, out=tmp_path / "run")
    kept = {file.name: file.read_bytes() for file in (tmp_path / "run").iterdir()}
    other = CaptionData(
        "scenes",
        {
            split: [
                replace(item, captions=tuple(c.replace("red", "rouge") for c in item.captions))
                for item in items
            ]
            for split, items in world.splits.items()
        },
    )
    with pytest.raises(
        ValueError,
        match=r"was begun with something else .words was .* go on with the same, or choose another",
    ):
        fit(NewModel("vanilla", BRIEF), other, out=tmp_path / "run", resume=True)
    with pytest.raises(ValueError, match="heads was 4 and is now 2"):
        fit(NewModel("vanilla", replace(BRIEF, heads=2)), world, out=tmp_path / "run", resume=True)
    assert kept == {file.name: file.read_bytes() for file in (tmp_path / "run").iterdir()}


@pytest.mark.slow
def test_one_that_goes_on_was_called_as_at_first(world, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["captionlab", "train", "vanilla"])
    first = fit(NewModel("vanilla", BRIEF), world, out=tmp_path / "run").metadata
    monkeypatch.setattr(sys, "argv", ["captionlab", "train", "vanilla", "--resume"])
    monkeypatch.setattr(folder, "provenance", lambda: {"commit": "another", "machine": "another"})
    assert fit(
        NewModel("vanilla", BRIEF), world, out=tmp_path / "run", resume=True
    ).metadata == first
    assert first.command == "captionlab train vanilla"
    assert first.trained == provenance()


def test_translators_that_read_other_pieces_are_not_fused():
    one = captionlab.load("translation")
    other = replace(
        one,
        processor=TextProcessor(
            one.processor.preset, SubwordVocabulary.build(["a dog runs"], 280)
        ),
    )
    with pytest.raises(ValueError, match="different vocabularies"):
        ensembles.ensemble(one, [other])


def test_a_file_is_no_folder_for_a_run(world, tmp_path):
    (tmp_path / "mine.csv").write_text("x")
    with pytest.raises(ValueError, match=r"mine.csv is a file: name a folder for the run"):
        fit(NewModel("vanilla", BRIEF), world, out=tmp_path / "mine.csv")


def test_a_folder_of_ones_own_does_not_hide_a_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scenes").mkdir()
    assert captionlab.load("scenes").metadata.model == "cptr"


def test_a_model_is_asked_for_what_the_data_has(trained):
    pairs = CaptionData(
        "pairs",
        {split: [Item("0", ("ein Hund",), source="a dog")] for split in ("train", "val", "test")},
    )
    with pytest.raises(ValueError, match="pairs has no pictures: take scenes"):
        evaluate(trained[0], pairs, meteor=False)
    with pytest.raises(ValueError, match="has no sentences to translate: take multi30k"):
        evaluate(
            captionlab.load("translation"), scenes(train=1, val=1, test=2, novel=0), meteor=False
        )
    with pytest.raises(ValueError, match="pairs has no pictures"):
        evaluate_faithfulness(trained[0], pairs)


def test_without_git_the_commit_is_unknown(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert provenance()["commit"] == "unknown"


def test_provenance_names_the_gpu(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "a GPU")
    assert ", a GPU, torch" in provenance()["machine"]


def test_a_command_is_noted_without_the_folders_of_a_machine(monkeypatch):
    monkeypatch.setattr(
        sys,
        "argv",
        ["/opt/bin/captionlab", "train", "vanilla", "--out", "/home/me/run", "--data", "runs/x"],
    )
    assert folder.run_command_line() == "captionlab train vanilla --out run --data runs/x"


def test_saving_leaves_other_files_alone(trained, tmp_path):
    others = [
        tmp_path / name for name in ("my-detector.safetensors", "model-00001-of-00002.safetensors")
    ]
    for file in others:
        file.write_text("not ours")
    trained[0].save(tmp_path)
    kept = trained[0].save(tmp_path)
    assert all(file.read_text() == "not ours" for file in others)
    assert len(list(kept.glob("weights-*"))) == 1


def test_a_finished_run_without_its_checkpoint_is_not_trained_over(trained, tmp_path):
    run = trained[0].save(tmp_path / "run")
    before = (run / "run.json").read_text()
    with pytest.raises(ValueError, match="no checkpoint to go on from"):
        fit(
            NewModel("vanilla", BRIEF),
            scenes(train=4, val=2, test=2, novel=0),
            out=run,
            resume=True,
        )
    assert (run / "run.json").read_text() == before


def test_a_device_by_number_is_refused(world, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(ValueError, match="CUDA_VISIBLE_DEVICES"):
        fit(NewModel("vanilla", BRIEF), world, out=tmp_path / "run", device="cuda:1")


@pytest.mark.slow
def test_scst_goes_on_from_the_run_that_it_began_from(trained, world, tmp_path):
    run, _folder = trained
    other = replace(run, metadata=replace(run.metadata, history=[])).save(tmp_path / "other")
    small = replace(BRIEF, scst=replace(BRIEF.scst, epochs=1, batch_size=20))
    begun = replace(run, processor=ImageProcessor(small)).save(tmp_path / "begun")
    fit(begun, world, SCST(), out=tmp_path / "tuned")
    with pytest.raises(ValueError, match=r"begun with something else .start was"):
        fit(other, world, SCST(), out=tmp_path / "tuned", resume=True)


def test_a_device_is_chosen_for_one_training_only(monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_CPU", "before")
    said = []
    for device in (None, "cpu", None):
        folder.set_device(device)
        said.append(os.environ["ACCELERATE_USE_CPU"])
    assert said == [said[0], "true", said[0]]
    assert said[0] != "before"


@pytest.mark.parametrize("rank", ["0", "1"])
def test_one_process_of_a_training_notes_how_it_began(rank, tmp_path, monkeypatch):
    """The first one removes half-written files of the folder, which another may be writing."""
    monkeypatch.setenv("RANK", rank)
    folder.check_resume_config(tmp_path, {"heads": 4})
    assert (tmp_path / "begun.json").exists() == (rank == "0")


def test_without_java_nothing_is_captioned_in_vain(monkeypatch):
    def missing():
        raise RuntimeError("no Java found")

    monkeypatch.setattr(evaluation, "find_java", missing)
    monkeypatch.setattr(
        evaluation,
        "caption_split",
        lambda *_, **__: pytest.fail("captioned before Java was looked for"),
    )
    with pytest.raises(RuntimeError, match="no Java found"):
        evaluation.evaluate(captionlab.load("scenes"), scenes(train=0, val=0, test=3, novel=0))


@pytest.fixture(scope="module")
def german(tmp_path_factory):
    world = scenes(train=20, val=2, test=4, novel=0, language="de")
    return fit(NewModel("vanilla", BRIEF), world, out=tmp_path_factory.mktemp("german") / "run")


class TestLanguages:
    def test_a_run_is_held_to_captions_in_its_language(self, german, monkeypatch):
        asked = []
        monkeypatch.setattr(
            preparation,
            "scenes",
            lambda **how: (
                asked.append(how)
                or scenes(train=0, val=1, test=1, novel=0, language=how["language"])
            ),
        )
        assert preparation.load_run_data(german, None, train=False).language == "de"
        assert asked == [{"train": 0, "language": "de", "source": None}]

    @pytest.mark.parametrize("act", [evaluate, evaluate_faithfulness])
    def test_captions_in_another_are_refused(self, german, world, act):
        with pytest.raises(
            ValueError,
            match="trained on captions in de, and those of scenes are in en: give a data set",
        ):
            act(german, world)

    def test_so_are_other_sentences_to_translate(self, tmp_path):
        run = fresh("vanilla")
        run.metadata.languages = ["en", "de"]
        with pytest.raises(ValueError, match="in en from de, and those of pairs are in en: give"):
            preparation.load_run_data(run, CaptionData("pairs", {"test": []}))


def test_results_on_another_data_set_of_the_same_name_are_told_apart(
    trained, tmp_path, monkeypatch
):
    run, _ = trained
    found = scenes(train=0, val=0, test=6, novel=0)["test"]
    one, other = (CaptionData("mine", {"test": items}) for items in (found[:3], found[3:]))
    monkeypatch.chdir(tmp_path)
    abouts = [evaluation.result_metadata(run, data, "test", SEARCH) for data in (one, other)]
    merge_run("mine/a", abouts[0], {"seed": 0, "metrics": {}})
    with pytest.raises(ValueError, match=r"mine/a.json: its judged_on is .*write to another file"):
        merge_run("mine/a", abouts[1], {"seed": 1, "metrics": {}})
    assert "judged_on" not in evaluation.result_metadata(
        run, scenes(train=0, val=0, test=1, novel=0), "test", SEARCH
    )


@pytest.mark.slow
def test_two_trainings_do_not_share_a_folder(world, tmp_path):
    (tmp_path / "run").mkdir()
    with (
        FileLock(tmp_path / "run/.lock"),
        pytest.raises(ValueError, match=r"another training is writing into .*run: wait"),
    ):
        fit(NewModel("vanilla", BRIEF), world, out=tmp_path / "run")
    assert [file.name for file in (tmp_path / "run").iterdir()] in ([".lock"], [])
    fit(NewModel("vanilla", BRIEF), world, out=tmp_path / "run")


@pytest.mark.slow
def test_a_training_does_not_go_on_with_other_pictures_of_the_same_words(world, tmp_path):
    fit(NewModel("vanilla", BRIEF), world, out=tmp_path / "run")
    items = world["train"]
    moved = [
        replace(item, captions=other.captions)
        for item, other in zip(items, items[1:] + items[:1], strict=True)
    ]
    with pytest.raises(ValueError, match=r"begun with something else .pictures was"):
        fit(
            NewModel("vanilla", BRIEF),
            CaptionData("scenes", {**world.splits, "train": moved}),
            out=tmp_path / "run",
            resume=True,
        )


def test_a_picture_that_cannot_be_judged_is_found_before_training(tmp_path, monkeypatch):
    for name in ("a", "b"):
        Image.new("RGB", (64, 64)).save(tmp_path / f"{name}.png")
    (tmp_path / "b.png").write_bytes((tmp_path / "b.png").read_bytes()[:60])
    data = CaptionData(
        "mine",
        {
            split: [Item(name, ("a dog",), tmp_path / f"{name}.png")]
            for split, name in (("train", "a"), ("val", "b"))
        },
    )
    monkeypatch.setattr(fitting, "Trainer", lambda *_, **__: pytest.fail("it has begun to train"))
    with pytest.raises(ValueError, match="1 of 2 pictures cannot be read"):
        fit(NewModel("vanilla", BRIEF), data, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_damaged_weights_are_not_used(trained, tmp_path):
    shutil.copytree(trained[1], tmp_path / "run")
    file = next((tmp_path / "run").glob("weights-*"))
    content = bytearray(file.read_bytes())
    content[-8:] = bytes(8)
    file.write_bytes(content)
    assert "holds other weights than its name says" in refusal(tmp_path / "run")


def test_a_run_that_does_not_say_all_is_not_judged(trained, world):
    run, _ = trained
    for name in ("seed", "source", "history"):
        with pytest.raises(
            ValueError, match=f"does not say its {name}: its run.json is not complete"
        ):
            evaluate(replace(run, metadata=replace(run.metadata, **{name: None})), world)


@pytest.mark.slow
@pytest.mark.parametrize("text", ["", "[1]", "null"])
def test_a_broken_note_of_how_a_training_began(text, world, tmp_path):
    fit(NewModel("vanilla", BRIEF), world, out=tmp_path / "run")
    (tmp_path / "run/begun.json").write_text(text)
    with pytest.raises(ValueError, match=r"begun.json is broken: delete it to go on"):
        fit(NewModel("vanilla", BRIEF), world, out=tmp_path / "run", resume=True)


def test_the_data_that_a_run_learnt_from_is_named_if_it_is_gone(trained):
    run, _ = trained
    lost = replace(run, metadata=replace(run.metadata, source="gone/mine.csv"))
    with pytest.raises(
        FileNotFoundError,
        match=r"trained on gone/mine.csv, and there is no file .*; or name the data set",
    ):
        preparation.load_run_data(lost, None)


def test_how_a_program_was_called_keeps_no_folders(monkeypatch):
    monkeypatch.setattr(
        sys,
        "argv",
        [
            "/opt/bin/captionlab",
            "train",
            "--data=/home/me/mine.csv",
            "--out",
            "/home/me/run",
            "--seed=1",
        ],
    )
    assert folder.run_command_line() == "captionlab train --data=mine.csv --out run --seed=1"


def test_a_program_that_was_run_as_a_module_is_named_as_a_shell_needs_it(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/opt/captionlab/__main__.py", "train", "vanilla"])
    assert folder.run_command_line() == "python -m captionlab train vanilla"


def test_a_kernel_is_no_command_that_anybody_could_repeat(monkeypatch):
    kernel = ["/opt/lib/ipykernel_launcher.py", "-f", "/tmp/kernel-1.json"]
    monkeypatch.setattr(sys, "argv", kernel)
    assert folder.run_command_line() == "captionlab.fit in a notebook"


def test_a_folder_that_has_a_data_sets_name_does_not_replace_its_results(trained):
    run, _ = trained
    few = CaptionData("flickr8k", {"test": [Item("a", ("a dog",))]})
    assert "judged_on" in evaluation.result_metadata(run, few, "test", SEARCH)
    assert "judged_on" not in evaluation.result_metadata(
        run, CaptionData("flickr8k", {"test": few["test"] * 1000}), "test", SEARCH
    )
