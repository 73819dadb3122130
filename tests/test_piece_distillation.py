"""Distillation into larger pieces: parts, copied weights, the loss against a plain loop."""

import pytest
import torch

from captionlab.blocks import BlockConfig
from captionlab.captioner import TransformerCaptioner
from captionlab.data.batches import Batch
from captionlab.data.datasets import scenes
from captionlab.distillation import Distilled
from captionlab.piece_distillation import (
    PieceDistilled,
    copy_into_larger,
    piece_parts,
    rows_at_pieces,
)
from captionlab.runs.catalog import load
from captionlab.runs.pieces import change_settings, piece_targets
from captionlab.runs.training import distil_further, train
from captionlab.text import SubwordVocabulary, Vocabulary
from captionlab.training.options import TrainingOptions

TEXTS = ["ein hund rennt", "ein hund springt", "ein hundert hunde rennen"] * 3


class Constant(TransformerCaptioner):
    """Attends to one vector that is the same for all pictures."""

    def __init__(self, words):
        super().__init__(BlockConfig(16, 2, 32), 1, words)
        self.vector = torch.nn.Parameter(torch.ones(16))

    def encode_inputs(self, batch):
        return self.vector.expand(len(batch.require("captions")), 1, 16), None


@pytest.fixture(scope="module")
def pieces():
    smaller = SubwordVocabulary.build(TEXTS, 168)
    larger = SubwordVocabulary.build(TEXTS, 180)
    return smaller, larger, piece_parts(larger, smaller)


class TestPieceParts:
    @pytest.mark.parametrize("text", [*TEXTS[:3], "rennhund", "Ü springe"])
    def test_the_parts_of_the_pieces_are_the_smaller_pieces(self, pieces, text):
        smaller, larger, parts = pieces
        joined = [part for piece in larger.encode(text) for part in parts[piece]]
        assert joined == smaller.encode(text)

    def test_some_pieces_have_several_parts(self, pieces):
        assert max(map(len, pieces[2])) > 1

    def test_other_merges_are_one_line(self, pieces):
        other = SubwordVocabulary.build(["zwei katzen", "zwei katzen"], 168)
        with pytest.raises(ValueError, match="the same texts"):
            piece_parts(pieces[1], other)

    def test_whole_words_are_one_line(self, pieces):
        with pytest.raises(ValueError, match="whole words have no parts"):
            piece_parts(pieces[1], Vocabulary.build(TEXTS))


def test_old_pieces_keep_their_weights_and_new_ones_have_the_mean(pieces):
    smaller, larger, parts = pieces
    torch.manual_seed(0)
    old, new = Constant(len(smaller)), Constant(len(larger))
    copy_into_larger(new, old, parts)
    assert new.output.weight is new.words.weight
    torch.testing.assert_close(new.vector, old.vector)
    for number, ids in enumerate(parts):
        mean = torch.stack([old.words.weight[part] for part in ids]).mean(0)
        torch.testing.assert_close(new.words.weight[number], mean)
        bias = torch.stack([old.output.bias[part] for part in ids]).mean() - int(len(ids) > 1)
        torch.testing.assert_close(new.output.bias[number], bias)


def test_rows_are_those_of_the_first_parts(pieces):
    smaller, larger, parts = pieces
    text = "ein hund springt"
    small_ids = smaller.encode(text)[1:]
    large_ids = larger.encode(text)[1:]
    rows = rows_at_pieces(torch.tensor(small_ids)[:, None], large_ids, parts)
    assert rows[:, 0].tolist() == [parts[piece][0] for piece in large_ids]


class TestLoss:
    def batch_of(self, pieces, count=3):
        smaller, larger, _ = pieces
        torch.manual_seed(1)
        captions = [larger.encode(text) for text in TEXTS[:3]]
        width = max(map(len, captions))
        ids = torch.zeros(3, 1, width, dtype=torch.long)
        for row, caption in enumerate(captions):
            ids[row, 0, : len(caption)] = torch.tensor(caption)
        words = torch.stack([torch.randperm(len(smaller))[:count] for _ in range(3 * (width - 1))])
        chances = torch.rand(3 * (width - 1), count).softmax(-1)
        shape = (3, 1, width - 1, count)
        return Batch(captions=ids, teacher_words=words.reshape(shape).int(),
                     teacher_chances=chances.reshape(shape))

    @pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
    def test_it_is_that_of_a_plain_loop(self, pieces, share):
        _, larger, parts = pieces
        batch = self.batch_of(pieces)
        model = Constant(len(larger)).eval()
        loss, count = PieceDistilled(model, parts, share).loss(batch, 0.1)
        logits = model.decode(model.encode(batch), batch.captions[..., :-1])
        expected = 0.0
        tokens = 0
        for row in range(3):
            for position, target in enumerate(batch.captions[row, 0, 1:].tolist()):
                if target == 0:
                    continue
                tokens += 1
                probs = logits[row, 0, position].softmax(-1)
                log_probs = probs.log()
                expected -= (1 - share) * (0.9 * log_probs[target] + 0.1 * log_probs.mean())
                words = batch.teacher_words[row, 0, position].tolist()
                for word, chance in zip(words, batch.teacher_chances[row, 0, position],
                                        strict=True):
                    members = [number for number, ids in enumerate(parts) if ids[0] == word]
                    expected -= share * chance * probs[members].sum().log()
        assert count == tokens
        torch.testing.assert_close(loss, torch.as_tensor(expected), rtol=1e-4, atol=1e-4)

    def test_with_the_same_pieces_it_is_plain_distillation(self, pieces):
        smaller, _, _ = pieces
        batch = self.batch_of((smaller, smaller, None))
        model = Constant(len(smaller)).eval()
        same = piece_parts(smaller, smaller)
        first = PieceDistilled(model, same, 0.5).loss(batch, 0.1)
        second = Distilled(model, 0.5).loss(batch, 0.1)
        torch.testing.assert_close(first, second)


@pytest.mark.slow
class TestRuns:
    @pytest.fixture(scope="class")
    def translator(self, tmp_path_factory):
        data = scenes(train=40, val=2, test=2, novel=0, language="de", source="en")
        folder = tmp_path_factory.mktemp("runs")
        run = train("translation", data, "tiny", seed=0, out=folder / "teacher",
                    settings=["subwords=260"], options=TrainingOptions(epochs=1))
        return run, data, folder

    def test_it_gets_more_pieces_and_learns_from_teachers_with_fewer(self, translator):
        run, data, folder = translator
        settings = ["subwords=300", "dropout=0.05"]
        student = distil_further(folder / "teacher", [folder / "teacher"], folder / "student",
                                 data=data, settings=settings, options=TrainingOptions(epochs=3))
        assert len(student.vocabulary) > len(run.vocabulary)
        assert student.metadata.overrides["settings"] == settings
        losses = [record["loss"] for record in student.metadata.history]
        assert losses[-1] < losses[0]
        again = load(folder / "student")
        sentence = str(data["test"][0].source)
        assert again.translate(sentence) == student.translate(sentence)
        further = distil_further(folder / "student", [folder / "teacher"], folder / "further",
                                 data=data, options=TrainingOptions(epochs=1))
        assert further.vocabulary.to_dict() == student.vocabulary.to_dict()

    def test_before_training_it_is_the_same_but_for_the_new_pieces(self, translator):
        run, data, _ = translator
        larger = change_settings(run, data, ["subwords=300"])
        count = len(run.vocabulary)
        assert larger.metadata.parameters > run.metadata.parameters
        torch.testing.assert_close(larger.model.words.weight[:count], run.model.words.weight)
        tokens = torch.tensor([[[1, 200, 201]]])
        batch = Batch(source=torch.tensor([[1, 200, 2]]))
        before = run.model.decode(run.model.encode(batch), tokens)
        after = larger.model.decode(larger.model.encode(batch), tokens)
        torch.testing.assert_close(after[..., :count], before)

    def test_the_targets_are_those_of_the_first_parts(self, translator):
        run, data, _ = translator
        larger = change_settings(run, data, ["subwords=300"])
        parts = piece_parts(larger.vocabulary, run.vocabulary)
        item = data["train"][0]
        ids = run.vocabulary.encode(item.captions[0])[1:]
        table = torch.zeros(1, 60, 1, dtype=torch.int)
        table[0, : len(ids), 0] = torch.tensor(ids)
        targets = piece_targets({"teacher_words": lambda item: table}, parts, larger.vocabulary,
                                100)
        pieces = larger.vocabulary.encode(item.captions[0])[1:]
        rows = targets["teacher_words"](item)[0, : len(pieces), 0].tolist()
        assert rows == [parts[piece][0] for piece in pieces]

    def test_other_settings_are_one_line(self, translator):
        run, data, _ = translator
        with pytest.raises(ValueError, match="may change subwords, dropout, bpe_dropout"):
            change_settings(run, data, ["width=64"])
