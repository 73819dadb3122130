"""Distillation: its loss against PyTorch's, stored predictions of teachers, its place in the runs."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from captionlab.blocks import BlockConfig
from captionlab.captioner import TransformerCaptioner
from captionlab.data.batches import CaptionDataset, collate
from captionlab.data.datasets import CaptionData, scenes
from captionlab.decoding.ensemble import Ensemble
from captionlab.distillation import Distilled, soft_targets, top_k_probs
from captionlab.models import find_preset
from captionlab.runs.catalog import load
from captionlab.runs.ensembles import ensemble
from captionlab.runs.evaluation import evaluate
from captionlab.runs.fitting import FitConfig, NewModel, fit
from captionlab.runs.objectives import Distillation
from captionlab.subwords import SubwordVocabulary
from captionlab.text import Vocabulary

class Blind(TransformerCaptioner):
    """Sees one number of a picture: how many things are in it."""

    def __init__(self, words, dropout=0.0):
        super().__init__(BlockConfig(16, 2, 32, dropout=dropout), 1, words)
        self.projection = torch.nn.Linear(1, 16)

    def encode_inputs(self, batch):
        return self.projection(batch.require("grid")), None


def number(item):
    return torch.tensor([[float(len(item.image.objects))]])


@pytest.fixture(scope="module")
def world():
    data = scenes(train=12, val=4, test=0, novel=0)
    return data, Vocabulary.build(data.captions("train"))


@pytest.fixture(scope="module")
def pair(world):
    torch.manual_seed(0)
    return [Blind(len(world[1]), dropout=0.2).eval() for _ in range(2)]


def batch_of(world, fields=None, rows=range(12), max_length=None):
    data, vocabulary = world
    examples = CaptionDataset(
        data["train"], vocabulary, inputs={"grid": number} | (fields or {}), max_length=max_length
    )
    return examples, collate([examples[row] for row in rows])


class TestTopK:
    def test_the_largest_in_order_and_summing_to_one(self):
        logits = torch.randn(3, 5, 30)
        ids, chances = top_k_probs(logits, 4)
        assert ids.shape == chances.shape == (3, 5, 4)
        torch.testing.assert_close(chances.sum(-1), torch.ones(3, 5))
        torch.testing.assert_close(logits.gather(-1, ids), logits.topk(4).values)
        torch.testing.assert_close(
            (chances[..., 1] / chances[..., 0]).log(),
            logits.gather(-1, ids)[..., :2].diff(dim=-1)[..., 0].abs() * -1,
        )

    def test_a_small_vocabulary_is_kept_whole(self):
        logits = torch.randn(2, 6)
        ids, chances = top_k_probs(logits, 16)
        torch.testing.assert_close(torch.zeros(2, 6).scatter(-1, ids, chances), logits.softmax(-1))


class TestLoss:
    def test_all_of_the_share_is_cross_entropy_with_probabilities(self, world, pair):
        teacher, pupil = pair
        examples, _ = batch_of(world)
        _, batch = batch_of(world, soft_targets(teacher, examples, k=10**6))
        with torch.no_grad():
            ours, count = Distilled(pupil, 1.0).loss(batch, 0.1)
            p, q = (
                model.decode(model.encode(batch), batch.captions[..., :-1])
                for model in (pupil, teacher)
            )
        real = batch.captions[..., 1:] != 0
        torch.testing.assert_close(
            ours, F.cross_entropy(p[real], q[real].softmax(-1), reduction="sum"), rtol=1e-3, atol=0
        )
        assert count == real.sum()

    @pytest.mark.parametrize("smoothing", [0.0, 0.1])
    def test_none_of_the_share_is_the_plain_loss_with_its_gradient(self, world, pair, smoothing):
        _, pupil = pair
        examples, _ = batch_of(world)
        _, batch = batch_of(world, soft_targets(pair[0], examples))
        slopes = []
        for model in (pupil, Distilled(pupil, 0.0)):
            total, _ = model.loss(batch, smoothing)
            slopes.append(torch.autograd.grad(total, pupil.words.weight)[0])
        torch.testing.assert_close(*slopes, rtol=1e-4, atol=1e-4)

    def test_the_gradient_for_logits_is_p_minus_the_mixture(self, world, pair):
        teacher, pupil = pair
        examples, _ = batch_of(world)
        _, batch = batch_of(world, soft_targets(teacher, examples, k=10**6))
        total, _ = Distilled(pupil, 0.7).loss(batch)
        found = torch.autograd.grad(total, pupil.output.bias)[0]
        real = batch.captions[..., 1:] != 0
        p, q = (
            model.decode(model.encode(batch), batch.captions[..., :-1])[real].softmax(-1)
            for model in (pupil, teacher)
        )
        y = F.one_hot(batch.captions[..., 1:][real], p.shape[-1])
        torch.testing.assert_close(found, (p - 0.3 * y - 0.7 * q).sum(0), rtol=1e-2, atol=1e-2)

    def test_a_batch_of_shorter_captions_gives_the_same_sum(self, world, pair):
        examples, _ = batch_of(world)
        fields = soft_targets(pair[0], examples)
        parts = [Distilled(pair[1]).loss(batch_of(world, fields, [row])[1]) for row in range(12)]
        whole = Distilled(pair[1]).loss(batch_of(world, fields)[1])
        torch.testing.assert_close(sum(total for total, _ in parts), whole[0])
        assert sum(count for _, count in parts) == whole[1]

    def test_without_a_teacher_it_says_what_is_missing(self, world, pair):
        with pytest.raises(ValueError, match="--teacher"):
            Distilled(pair[0]).loss(batch_of(world)[1])


class TestTargets:
    def test_dropout_is_off_and_batches_do_not_matter(self, world, pair):
        examples, batch = batch_of(world)
        one, other = (
            soft_targets(pair[0].train(), examples, batch_size=size)["teacher_chances"]
            for size in (16, 5)
        )
        for item, captions in zip(examples.items, batch.captions, strict=True):
            real = captions[:, 1:] != 0
            torch.testing.assert_close(one(item)[real], other(item)[real], rtol=1e-3, atol=1e-3)

    def test_pieces_that_are_cut_anew_are_refused(self, world, pair):
        pieces = SubwordVocabulary.build(world[0].captions("train"), 400)
        with pytest.raises(ValueError, match="tokenises captions anew: set it to 0, or fixed"):
            soft_targets(
                pair[0],
                CaptionDataset(world[0]["train"], pieces, inputs={"grid": number}, dropout=0.1),
            )

    def test_other_items_and_longer_captions_are_one_line(self, world, pair):
        examples, _ = batch_of(world, max_length=6)
        fields = soft_targets(pair[0], examples)
        with pytest.raises(ValueError, match="fewer or shorter captions"):
            Distilled(pair[1]).loss(batch_of(world, fields)[1])
        with pytest.raises(ValueError, match="no predictions for"):
            fields["teacher_words"](world[0]["val"][0])

    def test_cut_captions_and_an_ensemble(self, world, pair):
        examples, batch = batch_of(world, max_length=6)
        fields = soft_targets(Ensemble(pair), examples, k=3)
        words = fields["teacher_words"](world[0]["train"][0])
        assert words.shape == (5, 5, 3)
        with torch.no_grad():
            together = (
                Ensemble(pair)
                .eval()
                .decode(Ensemble(pair).eval().encode(batch), batch.captions[..., :-1])
            )
        assert words[0, 0].tolist() == together[0, 0, 0].topk(3).indices.tolist()


class TestRuns:
    @pytest.fixture(scope="class")
    @classmethod
    def runs(cls, tmp_path_factory):
        folder, data = tmp_path_factory.mktemp("taught"), scenes(train=40, val=4, test=4, novel=0)
        for seed in (1, 2):
            fit(NewModel("vanilla"), data, seed=seed, out=folder / str(seed))
        fit(
            NewModel("position_aware"),
            data,
            Distillation([folder / "1", folder / "2"]),
            seed=0,
            out=folder / "pupil",
        )
        return folder, data

    @pytest.mark.java
    @pytest.mark.slow
    def test_the_pupil_is_a_run_like_any_other(self, runs):
        pupil = load(runs[0] / "pupil")
        assert pupil.metadata.stage == "distilled"
        assert pupil.metadata.model == "position_aware"
        assert pupil.metadata.teachers == ["1", "2"]
        assert evaluate(pupil, runs[1], meteor=False)["metadata"]["teachers"] == ["1", "2"]
        assert not any(name.startswith("model.") for name in pupil.model.state_dict())
        assert pupil.caption(runs[1]["test"][0].image)

    @pytest.mark.slow
    def test_killed_it_goes_on_to_the_same_weights(self, runs, tmp_path):
        folder, data = runs

        def stop(history):
            if len(history) == 2:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            fit(
                NewModel("position_aware"),
                data,
                Distillation([folder / "1", folder / "2"]),
                seed=0,
                out=tmp_path / "p",
                on_epoch_end=stop,
            )
        again = fit(
            NewModel("position_aware"),
            data,
            Distillation([folder / "1", folder / "2"]),
            seed=0,
            out=tmp_path / "p",
            resume=True,
        )
        for name, x in load(folder / "pupil").model.state_dict().items():
            torch.testing.assert_close(again.model.state_dict()[name], x)

    @pytest.mark.slow
    @pytest.mark.parametrize("other", [[], ["1"]])
    def test_it_goes_on_with_the_same_teachers_only(self, runs, other):
        folder, data = runs
        with pytest.raises(ValueError, match=r"begun with something else .objective was"):
            fit(
                NewModel("position_aware"),
                data,
                Distillation([folder / name for name in other]) if other else None,
                seed=0,
                out=folder / "pupil",
                resume=True,
            )

    @pytest.mark.slow
    def test_mirrored_pictures_are_taught_as_well(self, runs, tmp_path):
        folder, data = runs
        preset = find_preset("vanilla", "tiny")
        data = CaptionData(
            data.name,
            {
                split: [replace(item, image=item.picture(64)) for item in items]
                for split, items in data.splits.items()
            },
        )
        pupil = fit(
            NewModel("vanilla", replace(preset, inputs=replace(preset.inputs, hflip=True))),
            data,
            Distillation([folder / "1"]),
            out=tmp_path / "p",
        )
        assert pupil.caption(data["test"][0].image)

    @pytest.mark.slow
    def test_three_teachers_must_see_alike_two_by_two(self, runs):
        folder, _ = runs
        one, other = load(folder / "1"), load(folder / "2")
        other.processor.preprocess = replace(other.processor.preprocess, size=32)
        with pytest.raises(ValueError, match="do not read the same grid"):
            ensemble(load(folder / "pupil"), [one, other])

    @pytest.mark.slow
    def test_a_translator_teaches_a_translator(self, tmp_path):
        data = scenes(train=30, val=2, test=2, novel=0, language="de", source="en")
        fit(NewModel("translation"), data, seed=0, out=tmp_path / "teacher")
        pupil = fit(
            NewModel("translation"),
            data,
            Distillation([tmp_path / "teacher"]),
            seed=1,
            out=tmp_path / "pupil",
        )
        again = load(tmp_path / "pupil")
        assert again.metadata.stage == "distilled"
        assert again.translate("A red circle.") == pupil.translate("A red circle.")

    @pytest.mark.slow
    def test_a_pupil_with_bpe_dropout_reads_its_sources_in_other_pieces(self, tmp_path):
        """Its captions keep the tokens that the teacher predicted."""
        data = scenes(train=30, val=2, test=2, novel=0, language="de", source="en")
        fit(NewModel("translation"), data, seed=0, out=tmp_path / "teacher")
        losses = set()
        for dropout in (0, 0.2):
            pupil = fit(
                NewModel("translation", settings=[f"bpe_dropout={dropout}"]),
                data,
                Distillation([tmp_path / "teacher"]),
                seed=1,
                out=tmp_path / f"pupil{dropout}",
            )
            losses.add(pupil.metadata.history[-1]["loss"])
        assert len(losses) == 2

    @pytest.mark.slow
    def test_distilled_further_it_begins_with_its_weights(self, runs, tmp_path):
        folder, data = runs
        teachers = [folder / "2", folder / "pupil"]
        options = FitConfig(epochs=1, lr=1e-9, warmup=1)
        further = fit(
            folder / "1", data, Distillation(teachers), config=options, out=tmp_path / "p", seed=5
        )
        assert further.metadata.stage == "distilled"
        assert further.metadata.start is None
        assert further.metadata.teachers == ["2", "pupil"]
        assert further.metadata.seed == 5
        assert further.metadata.overrides["distilled"] == {"epochs": 1, "lr": 1e-9, "warmup": 1}
        start = load(folder / "1").model.state_dict()
        for name, value in load(tmp_path / "p").model.state_dict().items():
            torch.testing.assert_close(value, start[name], atol=1e-6, rtol=1e-5)
        with pytest.raises(ValueError, match="holds a run"):
            fit(folder / "1", data, Distillation(teachers), out=tmp_path / "p")

    @pytest.mark.slow
    def test_distilled_further_it_learns_from_the_teachers(self, runs, tmp_path):
        folder, data = runs
        further = fit(
            folder / "1", data, Distillation([folder / "2"]), epochs=3, lr=1e-3, out=tmp_path / "p"
        )
        losses = [record["loss"] for record in further.metadata.history]
        assert losses[-1] < losses[0]
        assert len(losses) == 3

    def test_without_teachers_it_is_one_line(self, tmp_path):
        with pytest.raises(ValueError, match="name at least one"):
            fit(tmp_path / "start", objective=Distillation([]), out=tmp_path / "p")

    @pytest.mark.slow
    def test_a_teacher_with_other_words_is_refused_before_anything_is_made(self, runs, tmp_path):
        other = scenes(train=25, val=0, test=0, novel=0)
        with pytest.raises(ValueError, match="has another vocabulary"):
            fit(
                NewModel("vanilla"),
                other,
                Distillation([runs[0] / "1"]),
                seed=0,
                out=tmp_path / "p",
            )
        assert not (tmp_path / "p").exists()
