"""Translation: parity with nn.Transformer, batches, R-Drop, runs, the command line."""

import os
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from typer.testing import CliRunner

import captionlab
from captionlab import text
from captionlab.cli.application import app
from captionlab.data.batches import Batch, CaptionDataset
from captionlab.data.datasets import scenes
from captionlab.features import image_processor
from captionlab.features.text_processor import TextProcessor
from captionlab.metrics.registry import score_rows
from captionlab.metrics.translation import moses
from captionlab.models import vanilla
from captionlab.models.translation import PRESETS, Model, Preset, RDropped, symmetric_kl
from captionlab.pytorch_layers import copy_decoder, copy_encoder
from captionlab.runs.evaluation import derangement, evaluate
from captionlab.runs.fitting import NewModel, fit
from captionlab.runs.objectives import RDrop
from captionlab.runs.run import Run
from captionlab.subwords import (
    SubwordVocabulary,
)
from captionlab.text import pad_sequences
from captionlab.training import loop
from captionlab.training.config import TrainingConfig

os.environ["TQDM_DISABLE"] = "1"
BRIEF = replace(PRESETS["tiny"], training=replace(PRESETS["tiny"].training, epochs=2))
SMALL = Preset(
    width=16,
    heads=2,
    hidden=32,
    encoder_layers=2,
    decoder_layers=2,
    dropout=0.0,
    subwords=60,
    training=TrainingConfig(),
)


@pytest.fixture(scope="module")
def world():
    return scenes(train=40, val=4, test=6, novel=0, language="de", source="en")


@pytest.fixture(scope="module")
def trained(world, tmp_path_factory):
    """A run of two epochs on 200 pairs, and its folder."""
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    return fit(NewModel("translation", BRIEF), world, seed=1, out=folder), folder


def some(rows=5, seed=0):
    """A batch of sentences and translations of unequal length."""
    draw = torch.Generator().manual_seed(seed)

    def text():
        return [
            1,
            *torch.randint(
                4, 60, (int(torch.randint(1, 9, (), generator=draw)),), generator=draw
            ).tolist(),
            2,
        ]

    return Batch(
        source=pad_sequences([text() for _ in range(rows)]),
        captions=pad_sequences([[text()] for _ in range(rows)]),
    )


def model_of(preset=SMALL, train=False):
    torch.manual_seed(0)
    return Model(preset, preset.subwords).train(train)


class TestModel:
    @pytest.mark.filterwarnings("ignore:enable_nested_tensor")
    @pytest.mark.parametrize("norm_first", [False, True])
    def test_is_nn_transformer(self, norm_first):
        theirs = nn.Transformer(
            16, 2, 2, 2, 32, 0.0, batch_first=True, norm_first=norm_first
        ).eval()
        model, batch = model_of(), some()
        model.encoder, model.decoder = copy_encoder(theirs.encoder), copy_decoder(theirs.decoder)
        words, pad = batch.captions[:, 0, :-1], batch.source == 0
        theirs.encoder.use_nested_tensor = False
        with torch.no_grad():
            x, y = model.embed_tokens(batch.source, 0), model.embed_tokens(words, 0)
            ahead = nn.Transformer.generate_square_subsequent_mask(words.shape[1])
            wanted = theirs(
                x, y, tgt_mask=ahead, src_key_padding_mask=pad, memory_key_padding_mask=pad
            )
            found = model.hidden_states(model.encode(batch), words[:, None])[:, 0]
        torch.testing.assert_close(found[words != 0], wanted[words != 0])

    def test_loss_is_that_of_all_logits(self):
        model, batch = model_of(), some()
        logits = model.decode(model.encode(batch), batch.captions[..., :-1]).flatten(0, 2)
        wanted = F.cross_entropy(
            logits,
            batch.captions[..., 1:].flatten(),
            ignore_index=0,
            label_smoothing=0.1,
            reduction="sum",
        )
        total, count = model.loss(batch, 0.1)
        torch.testing.assert_close(total, wanted)
        assert count == (batch.captions[..., 1:] != 0).sum()

    def test_padding_and_order_change_nothing(self):
        model, batch = model_of(), some()
        padded = Batch(source=F.pad(batch.source, (0, 4)), captions=F.pad(batch.captions, (0, 3)))
        shuffled = batch.select(torch.tensor([3, 0, 4, 2, 1]))
        for other in (padded, shuffled):
            torch.testing.assert_close(model.loss(other), model.loss(batch))
        alone = model.decode(model.encode(batch.select(torch.tensor([2]))), batch.captions[[2]])
        torch.testing.assert_close(alone[0], model.decode(model.encode(batch), batch.captions)[2])

    def test_a_source_of_nothing_is_finite(self):
        model = model_of(train=True)
        total, _ = model.loss(
            Batch(source=torch.zeros(1, 3, dtype=torch.long), captions=torch.tensor([[[1, 5, 2]]]))
        )
        total.backward()
        assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)

    def test_sharing(self):
        shared, apart = model_of(), model_of(replace(SMALL, shared=False))
        assert shared.source_words is shared.words
        assert shared.output.weight is shared.words.weight

        def count(model):
            return sum(p.numel() for p in model.parameters())

        assert apart.output.weight is apart.words.weight
        assert count(apart) - count(shared) == 60 * 16

    def test_another_dropout_inside(self):
        def inside(preset):
            return {
                Model(preset, 60).encoder.blocks[0].attention.dropout.p,
                Model(preset, 60).decoder.blocks[0].feed_forward.dropout.p,
            }

        assert inside(replace(SMALL, dropout=0.5)) == {0.5}
        assert inside(replace(SMALL, dropout=0.5, inner_dropout=0.0)) == {0.0}


class TestConsistency:
    def test_without_dropout_nothing_is_added(self):
        batch, model = some(), RDropped(model_of(SMALL), 5.0)
        total, count = model.eval().loss(batch, 0.1)
        torch.testing.assert_close(model.train().loss(batch, 0.1), (2 * total, 2 * count))

    def test_with_dropout_both_divergences_are(self):
        batch, model = some(), model_of(replace(SMALL, dropout=0.3), train=True)
        twice = batch.select(torch.arange(5).repeat(2))
        torch.manual_seed(5)
        hidden, words = model.target_hidden_states(twice)
        logits = model.output(hidden)
        first, second = (part.log_softmax(-1) for part in logits.chunk(2))
        divergence = (
            sum(
                F.kl_div(a, b, reduction="sum", log_target=True)
                for a, b in ((first, second), (second, first))
            )
            / 2
        )
        torch.manual_seed(5)
        found = RDropped(model, 5.0).loss(batch)[0]
        torch.testing.assert_close(
            found, F.cross_entropy(logits, words, reduction="sum") + 5 * divergence
        )
        assert divergence > 0.1

    def test_disagreement_is_never_negative(self):
        x, y = torch.randn(2, 50, 9) * 20
        assert symmetric_kl(x, y) > 0
        assert symmetric_kl(x, x) == 0


class TestText:
    def test_too_small_a_size_is_one_line(self):
        with pytest.raises(ValueError, match="too few"):
            SubwordVocabulary.build(["a dog"], 100)

    def test_references_have_as_many_tokens_as_published(self, real_data):
        """The README of Wu et al.'s program prints reflen=12103 for the test sentences of 2016."""
        from captionlab.data.datasets import multi30k

        references = multi30k(real_data / "multi30k").captions("test")
        assert sum(len(moses(text).split()) for text in references) == 12103

    def test_pieces_drop_anew_and_repeatably(self, world):
        sources = [item.source for item in world["train"]]
        built = SubwordVocabulary.build([*sources, *world.captions("train")], 400)
        data = CaptionDataset(world["train"], built, built, dropout=0.3)
        torch.manual_seed(0)
        first, second = data[0], data[0]
        torch.manual_seed(0)
        assert data[0] == first != second
        plain = CaptionDataset(world["train"], built, built)
        assert (data.lengths == plain.lengths).all()
        assert len(first["source"]) >= len(plain[0]["source"])
        assert built.decode(first["captions"][0]) == built.decode(plain[0]["captions"][0])

    def test_sources_alone_drop_where_captions_are_fixed(self, world):
        pieces = SubwordVocabulary.build(world.captions("train"), 300)
        data = CaptionDataset(
            world["train"], pieces, pieces, dropout=0.3, fixed_captions=True
        )
        torch.manual_seed(0)
        reads = [data[0] for _ in range(5)]
        assert {tuple(read["captions"][0]) for read in reads} == {
            tuple(data.token_ids["captions"][0][0])
        }
        assert len({tuple(read["source"]) for read in reads}) > 1


class TestRun:
    @pytest.mark.slow
    def test_it_learns(self, trained):
        history = trained[0].metadata.history
        assert history[1]["loss"] < history[0]["loss"] - 0.3
        assert "score" in history[0]

    @pytest.mark.slow
    def test_comes_back_with_both_vocabularies(self, trained, world):
        run, folder = trained
        again, said = captionlab.load(folder), [item.source for item in world["test"]][:8]
        assert isinstance(again.processor, TextProcessor)
        assert again.translate(said) == run.translate(said)
        assert (
            again.processor.source_vocabulary.to_dict() == run.processor.source_vocabulary.to_dict()
        )

    @pytest.mark.slow
    def test_vocabularies_apart(self, world, tmp_path):
        apart = replace(BRIEF, shared=False, training=replace(BRIEF.training, epochs=1))
        run = fit(NewModel("translation", apart), world, out=tmp_path / "run", max_val_items=0)
        assert run.vocabulary.tokens != run.processor.source_vocabulary.tokens
        assert Run.load(tmp_path / "run").translate("A red circle.") == run.translate(
            "A red circle."
        )

    @pytest.mark.slow
    def test_resumes_to_the_bit(self, trained, world, tmp_path, monkeypatch):
        """Killed in the second epoch, with BPE-dropout and two passes: all that is random."""
        preset = replace(BRIEF, dropout=0.1, bpe_dropout=0.1)
        new = NewModel("translation", preset)
        training = (new, world, RDrop(consistency=1.0))
        whole = fit(*training, out=tmp_path / "whole", max_val_items=2)
        assert whole.metadata.stage == "rdrop"
        assert whole.metadata.overrides == {"consistency": 1.0}
        plain, calls = loop.Trainer._train_epoch, []

        def dying(self):
            calls.append(1)
            if len(calls) == 2:
                raise KeyboardInterrupt
            plain(self)

        monkeypatch.setattr(loop.Trainer, "_train_epoch", dying)
        with pytest.raises(KeyboardInterrupt):
            fit(*training, out=tmp_path / "killed", max_val_items=2)
        monkeypatch.undo()
        resumed = fit(*training, out=tmp_path / "killed", resume=True, max_val_items=2)
        torch.testing.assert_close(
            resumed.model.state_dict(), whole.model.state_dict(), rtol=0, atol=0
        )

    @pytest.mark.slow
    def test_empty_lines_and_order(self, trained):
        run = trained[0]
        said = [
            "A red circle.",
            "",
            "A small blue square is above a green star.",
            " \t ",
            "A \u2603 star.",
        ]
        found = run.translate(said, beam=2, batch_size=2)
        assert len(found) == 5
        assert found[1] == found[3] == ""
        assert found[0] == run.translate(said[0], beam=2)
        assert run.translate([]) == []
        assert run.translate("") == ""

    @pytest.mark.slow
    def test_pictures_and_sentences_are_not_mixed_up(self, trained, tmp_path):
        with pytest.raises(ValueError, match="use translate"):
            trained[0].caption("photo.jpg")
        preset = vanilla.PRESETS["tiny"]
        vocabulary = text.Vocabulary(["a"])
        sees = Run(
            vanilla.Model(preset, len(vocabulary)).eval(),
            vocabulary,
            image_processor.ImageProcessor(preset),
            {},
        )
        with pytest.raises(ValueError, match="use caption"):
            sees.translate("A dog.")
        with pytest.raises(ValueError, match="no sentences to translate"):
            fit(
                NewModel("translation"),
                scenes(train=2, val=0, test=0, novel=0),
                out=tmp_path / "x",
            )

    @pytest.mark.slow
    def test_evaluation(self, trained, world):
        run = trained[0]
        found = evaluate(run, world, beam=2)
        assert {"BLEU", "TER", "sacreBLEU", "truth"} <= set(found["run"]["metrics"])
        assert set(found["run"]["blind"]) == set(found["run"]["metrics"])
        assert found["metadata"]["scorer"].keys() == {
            name for name in found["run"]["metrics"] if ", " not in name
        }
        assert [one["caption"] for one in found["captions"]] == run.translate(
            [item.source for item in world["test"]], beam=2
        )

    def test_a_perfect_translator_scores_100_and_blind_it_does_not(self, world):
        items = world["test"]
        captions = [item.captions[0].lower() for item in items]
        others = derangement(len(items))
        rows = {"metrics": captions, "blind": [captions[other] for other in others]}
        scores = score_rows(rows, items, translates=True)
        assert scores["metrics"]["BLEU"] == pytest.approx(100)
        assert scores["metrics"]["truth"] == 100
        assert scores["blind"]["BLEU"] < 50

    @pytest.mark.slow
    def test_trace(self, trained):
        run = trained[0]
        words, weights = run.trace("A red circle.")
        assert weights.shape == (
            len(words),
            len(run.processor.source_vocabulary.encode("A red circle.")),
        )
        torch.testing.assert_close(weights.sum(1), torch.ones(len(words)))


class TestCommand:
    LINES = "A red circle.\n\nA \u2603 star.\n"

    @pytest.mark.slow
    @pytest.mark.parametrize("how", ["file", "pipe"])
    def test_as_many_lines_out_as_in(self, trained, tmp_path, how):
        (tmp_path / "lines.txt").write_text(self.LINES, encoding="utf-8")
        source = ["--file", str(tmp_path / "lines.txt")] if how == "file" else ["-"]
        told = CliRunner().invoke(app, ["translate", str(trained[1]), *source], input=self.LINES)
        assert told.exit_code == 0
        assert told.stdout.split("\n")[:-1] == trained[0].translate(self.LINES.split("\n")[:-1])

    @pytest.mark.slow
    def test_a_sentence(self, trained):
        told = CliRunner().invoke(app, ["translate", str(trained[1]), "A red circle."])
        assert told.stdout == trained[0].translate("A red circle.") + "\n"

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("arguments", "line"),
        [
            ([], "give sentences"),
            (["A dog.", "--file", "x.txt"], "give sentences"),
            (["--file", "absent.txt"], "no file"),
        ],
    )
    def test_mistakes_are_one_line(self, trained, arguments, line):
        told = CliRunner().invoke(app, ["translate", str(trained[1]), *arguments])
        assert told.exit_code == 1
        assert line in told.output
        assert "Traceback" not in told.output


@pytest.mark.parametrize("name", PRESETS)
def test_presets_take_a_step(name):
    preset = replace(PRESETS[name], subwords=60)
    total, count = Model(preset, 60).train().loss(some(), preset.training.label_smoothing)
    (total / count).backward()
    assert torch.isfinite(total)


def test_paper_to_the_digit():
    paper = PRESETS["paper"]
    assert (paper.width, paper.hidden, paper.heads, paper.encoder_layers, paper.decoder_layers) == (
        128,
        512,
        2,
        2,
        2,
    )
    assert (
        paper.subwords,
        paper.training.batch_size,
        paper.training.epochs,
        paper.training.max_tokens,
    ) == (8192, 64, 28, 0)
    assert paper.norm == "post"
    assert paper.training.schedule == "noam"
    assert not paper.training.label_smoothing
