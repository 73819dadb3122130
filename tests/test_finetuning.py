"""Training options, recipes adapted to little data, and fine-tuning on other captions."""

import math
import os
from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from captionlab.data.datasets import CaptionData, Item, scenes
from captionlab.features.image_processor import ImageProcessor
from captionlab.models import find_preset, list_models, model_module, vanilla
from captionlab.runs import (
    Run,
    RunMetadata,
    catalog,
    extend_model,
    extend_vocabulary,
    extension,
    fitting,
    load,
)
from captionlab.runs.fitting import FitConfig, NewModel, fit
from captionlab.runs.objectives import SCST, CrossEntropy, Distillation, RDrop
from captionlab.subwords import SubwordVocabulary
from captionlab.text import Vocabulary
from captionlab.training import TrainingConfig, adapt_min_count
from captionlab.training import config as config_module

os.environ["TQDM_DISABLE"] = "1"
TINY = vanilla.PRESETS["tiny"]
BRIEF = replace(TINY, training=replace(TINY.training, epochs=1))


@pytest.fixture(scope="module")
def world():
    return scenes(train=40, val=4, test=8, novel=0)


@pytest.fixture(scope="module")
def trained(world, tmp_path_factory):
    """A run of one epoch on 40 scenes, and its folder."""
    folder = tmp_path_factory.mktemp("runs") / "start"
    return fit(NewModel("vanilla", BRIEF), world, seed=3, out=folder), folder


@pytest.fixture(scope="module")
def shouting(world):
    """The same pictures under captions that end in a word of their own."""
    splits = {
        split: [
            replace(item, captions=tuple(f"{x} hooray" for x in item.captions))
            for item in world[split][:20]
        ]
        for split in ("train", "val", "test")
    }
    return CaptionData("shouting", splits)


def metadata_of(name):
    return RunMetadata(
        model=name,
        preset_name="tiny",
        data="scenes",
        source="scenes",
        stage="xe",
        seed=0,
        parameters=1,
        history=[],
        train_seconds=0.0,
    )


class TestConfig:
    def test_what_is_not_given_stays_as_the_preset_has_it(self):
        preset = FitConfig(lr=1e-3, min_count=2).change_preset(TINY)
        assert preset.training == replace(TINY.training, lr=1e-3)
        assert preset == replace(TINY, training=preset.training, min_count=2)
        assert FitConfig().change_preset(TINY) == TINY

    def test_pictures_per_step_replace_tokens_per_step(self):
        config = FitConfig(batch_size=3).change_recipe(TrainingConfig(max_tokens=144))
        assert (config.batch_size, config.max_tokens) == (3, 0)

    @pytest.mark.parametrize("wrong", [
        {"epochs": 0}, {"lr": 0.0}, {"lr": -1.0}, {"lr": math.nan}, {"lr": 7.0}, {"warmup": 0},
        {"batch_size": -3}, {"min_count": 0}, {"patience": -1}, {"accumulation": 1.5},
        {"workers": -1}, {"max_val_items": -5},
    ])  # fmt: skip
    def test_nonsense_is_one_clear_line(self, wrong):
        with pytest.raises(ValueError, match=next(iter(wrong))) as caught:
            FitConfig(**wrong)
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize(("objective", "wrong"), [
        (RDrop, {"consistency": -1.0}), (SCST, {"samples": 1}), (SCST, {"samples": 2.5}),
        (partial(Distillation, ["a run"]), {"share": 9}),
        (partial(Distillation, ["a run"]), {"share": math.nan}),
    ])  # fmt: skip
    def test_nor_does_an_objective_take_it(self, objective, wrong):
        with pytest.raises(ValueError, match=next(iter(wrong))) as caught:
            objective(**wrong)
        assert "\n" not in str(caught.value)

    def test_a_translator_has_no_words_to_count(self):
        with pytest.raises(ValueError, match="leave min_count"):
            FitConfig(min_count=2).change_preset(find_preset("translation", "tiny"))

    def test_a_run_records_them(self, world, tmp_path):
        options = FitConfig(epochs=1, lr=1e-3, batch_size=20)
        fit(NewModel("vanilla"), world, config=options, out=tmp_path / "run")
        run = load(tmp_path / "run")
        assert run.metadata.overrides == {"epochs": 1, "lr": 1e-3, "batch_size": 20}
        assert run.processor.preset.training.lr == 1e-3
        assert len(run.metadata.history) == 1


class TestAdapted:
    @given(st.integers(1, 50), st.integers(1, 3000), st.integers(1, 3000))
    def test_a_recipe_is_left_alone_or_can_warm_up(self, epochs, warmup, steps):
        config = TrainingConfig(epochs=epochs, warmup=warmup)
        adapted = config_module._adapt_config(config, steps)
        assert 3 * adapted.warmup <= max(3, adapted.epochs * steps)
        if 3 * warmup <= epochs * steps:
            assert adapted == config
        assert adapted.epochs >= epochs
        assert adapted.warmup <= warmup
        assert adapted.ema_decay <= config.ema_decay

    def test_settings_that_are_given_stay(self):
        config = TrainingConfig(epochs=16, warmup=1000)
        adapted = config_module._adapt_config(config, 6, fixed=["epochs", "warmup"])
        assert (adapted.epochs, adapted.warmup) == (16, 1000)

    def test_the_vocabulary_covers_small_data(self):
        captions = ["a dog runs on the grass"] * 20 + ["a zebra sleeps"]
        assert adapt_min_count(captions, 5) == 5
        assert adapt_min_count(["a dog runs", "a cat sleeps", "a cat"], 5) == 1

    @pytest.mark.parametrize(("preset", "steps"), [
        (TINY, 125),                                                    # 1,000 scenes
        (model_module("position_aware").PRESETS["squeezenet"], 750),    # Flickr8k
        (model_module("translation").PRESETS["paper"], 29_000 // 64),   # Multi30K
    ])  # fmt: skip
    def test_presets_fit_the_data_they_were_made_for(self, preset, steps):
        assert config_module._adapt_config(preset.training, steps) == preset.training

    @pytest.mark.slow
    def test_sixty_pictures_are_learned_from(self, tmp_path):
        world = scenes(train=60, val=0, test=30, novel=0)
        # Drawn once, since drawing them in every epoch takes most of the time.
        few = [
            replace(item, image=item.picture(64), captions=item.captions[:2])
            for item in world["train"]
        ]
        data = CaptionData("few", {"train": few, "test": world["test"]})
        hard = replace(TINY.training, epochs=16, warmup=1000, ema_decay=0.998, max_tokens=144)
        losses = {}
        captions = {}
        preset = replace(TINY, width=48, training=hard)
        for adapt in (False, True):
            folder = tmp_path / str(adapt)
            if adapt:
                with pytest.warns(UserWarning, match="60 pictures and is adapted: epochs 16 -> "):
                    run = fit(NewModel("vanilla", preset), data, out=folder, adapt=True)
            else:
                run = fit(NewModel("vanilla", preset), data, out=folder)
            losses[adapt] = run.metadata.history[-1]["loss"]
            captions[adapt] = run.caption([item.image for item in data["test"]])
        assert losses[True] < 0.6 * losses[False]
        assert len(set(captions[True])) > 5 > len(set(captions[False]))


class TestExtended:
    def test_old_words_keep_their_ids(self):
        old = Vocabulary(["a", "dog"])
        new = extend_vocabulary(old, ["the cat", "a cat", "the dog", "once"], min_count=2)
        assert new.tokens == [*old.tokens, "cat", "the"]

    def test_subwords_spell_every_word_already(self):
        vocabulary = SubwordVocabulary.build(["a red circle"], 300)
        assert extend_vocabulary(vocabulary, ["zebra"]) is vocabulary

    def test_new_words_share_what_the_unknown_word_had(self):
        logits = torch.tensor([0.3, -1.0, 2.0, 1.0, 0.5])
        extended = extension._extend_rows(logits, 9)
        assert torch.equal(extended[:5], logits)
        torch.testing.assert_close(extended[5:].exp().sum(), logits[Vocabulary.unk].exp())
        assert torch.equal(extension._extend_rows(logits, 5), logits)

    @pytest.mark.parametrize("name", sorted(set(list_models()) - {"translation"}))
    def test_every_captioner_can_be_extended(self, name):
        module = model_module(name)
        preset = module.PRESETS["tiny"]
        old = Vocabulary(["a", "red", "circle"])
        torch.manual_seed(0)
        run = Run(
            module.Model(preset, len(old)).eval(),
            old,
            ImageProcessor(preset, vocabulary=old),
            metadata_of(name),
        )
        new = extend_vocabulary(old, ["a blue square"])
        model = extend_model(run, new)
        for key, x in run.model.state_dict().items():
            rows = model.state_dict()[key]
            torch.testing.assert_close(rows[: len(x)] if x.ndim else rows, x, rtol=0, atol=0)

    def test_only_the_language_part_learns(self, trained, shouting, tmp_path):
        options = FitConfig(epochs=1, warmup=1)
        run = fit(trained[1], shouting, config=options, out=tmp_path / "language")
        whole = fit(trained[1], shouting, config=options, out=tmp_path / "all", all_weights=True)
        old = trained[0].model.state_dict()
        changed = {
            name
            for name, x in run.model.state_dict().items()
            if not torch.equal(x[: len(old[name])] if x.ndim else x, old[name])
        }
        assert {name for name in changed if not name.startswith("decoder.")} == {"output.bias"}
        assert changed
        assert not any("cross_attention" in name for name in changed)
        same = whole.model.state_dict()["project.1.weight"]
        assert not torch.equal(same, old["project.1.weight"])

    def test_new_words_learn_an_embedding(self, trained, shouting, tmp_path):
        options = FitConfig(epochs=1, warmup=1)
        run = fit(trained[1], shouting, config=options, out=tmp_path / "run")
        start = extend_model(trained[0], run.vocabulary)
        row = run.vocabulary.tokens.index("hooray")
        assert not torch.equal(run.model.words.weight[row], start.words.weight[row])

    def test_another_vocabulary_is_refused(self, trained):
        with pytest.raises(ValueError, match="does not start with that of the run"):
            extend_model(trained[0], Vocabulary(["other"] * 1))


class TestFinetuned:
    def test_a_new_word_is_learned_and_the_run_loads(self, trained, shouting, tmp_path):
        options = FitConfig(epochs=14, lr=5e-3, warmup=2, batch_size=4)
        run = fit(
            trained[1], shouting, config=options, out=tmp_path / "run", seed=1, all_weights=True
        )
        again = load(tmp_path / "run")
        picture = shouting["test"][0].image
        assert "hooray" not in trained[0].vocabulary.tokens
        assert again.vocabulary.tokens[: len(trained[0].vocabulary)] == trained[0].vocabulary.tokens
        assert run.caption(picture).split()[-1] == "hooray"
        assert again.caption(picture) == run.caption(picture)
        assert again.metadata.stage == "finetuned"
        assert again.metadata.start == "start"
        assert again.metadata.overrides == options.given

    def test_an_objective_of_ones_own_prepares_every_training(self, trained, shouting, tmp_path,
                                                              monkeypatch):
        asked = []

        def prepare(*arguments, **settings):
            asked.append((settings["fixed_captions"], settings["with_extras"]))
            raise InterruptedError

        monkeypatch.setattr(fitting, "prepare_training", prepare)
        for keeps_data, start in ((False, NewModel("vanilla", BRIEF)), (False, trained[1]),
                                  (True, trained[1])):
            mine = type("Mine", (CrossEntropy,), {"fixed_captions": True, "with_extras": False,
                                                  "keeps_data": keeps_data})
            data = None if keeps_data else shouting
            with pytest.raises(InterruptedError):
                fit(start, data, mine(), out=tmp_path / "run")
        assert asked == [(True, False)] * 3

    @pytest.mark.parametrize("kind", ["captions", "scst", "teachers"])
    def test_runs_are_read_on_the_cpu(self, trained, world, shouting, kind, tmp_path, monkeypatch):
        """The trainer moves them to its device, which may be the CPU although there is a GPU."""
        def stop(*_, **__):
            raise InterruptedError

        monkeypatch.setattr(catalog, "best_device", lambda: "cuda")
        monkeypatch.setattr(fitting, "Trainer", stop)
        chosen = {"captions": None, "scst": SCST(), "teachers": Distillation([trained[1]])}[kind]
        data = shouting if kind == "captions" else world
        with pytest.raises(InterruptedError):
            fit(trained[1], data, chosen, out=tmp_path / "run", epochs=1, warmup=1)

    def test_settings_of_a_new_model_belong_to_it(self, world, tmp_path):
        with pytest.raises(ValueError, match=r"give them to NewModel\(settings=...\)"):
            fit(NewModel("vanilla"), world, settings=["width=64"], out=tmp_path / "run")

    @pytest.mark.slow
    def test_interrupted_it_goes_on_to_the_same_weights(self, trained, shouting, tmp_path):
        options = FitConfig(epochs=3, warmup=1)

        def stop(history):
            if len(history) == 2:
                raise KeyboardInterrupt

        whole = fit(trained[1], shouting, config=options, out=tmp_path / "whole")
        with pytest.raises(KeyboardInterrupt):
            fit(trained[1], shouting, config=options, out=tmp_path / "cut", on_epoch_end=stop)
        resumed = fit(trained[1], shouting, config=options, out=tmp_path / "cut", resume=True)
        for name, x in whole.model.state_dict().items():
            torch.testing.assert_close(resumed.model.state_dict()[name], x, rtol=0, atol=0)

    @pytest.mark.parametrize(("before", "after"), [
        ("xe", "scst"), ("scst", "scst"), ("distilled-scst", "distilled-scst"),
        ("rdrop", "rdrop-scst"), ("finetuned", "finetuned-scst"),
    ])  # fmt: skip
    def test_rewards_leave_the_name_of_what_was_before(self, before, after):
        assert SCST().note(RunMetadata(stage=before)).stage == after

    def test_it_is_not_resumed_from_another_run(self, trained, world, shouting, tmp_path):
        options = FitConfig(epochs=1, warmup=1)
        fit(trained[1], shouting, config=options, out=tmp_path / "tuned")
        fit(NewModel("vanilla", BRIEF), world, seed=4, out=tmp_path / "other")
        with pytest.raises(ValueError, match="start was"):
            fit(tmp_path / "other", shouting, config=options, out=tmp_path / "tuned", resume=True)

    def test_pictures_without_captions_for_validation_will_do(self, trained, shouting, tmp_path):
        only = CaptionData("only", {"train": shouting["train"][:3]})
        with pytest.warns(UserWarning, match="3 pictures and is adapted"):
            run = fit(trained[1], only, epochs=2, out=tmp_path / "run")
        assert "score" not in run.metadata.history[-1]

    def test_a_translator_is_told_that_there_is_nothing_to_translate(self, trained, tmp_path):
        words = CaptionData(
            "words", {"train": [Item("1", ("a dog",), source="ein Hund")]}, source="de"
        )
        with pytest.raises(ValueError, match="no pictures"):
            fit(trained[1], words, out=tmp_path / "run")
