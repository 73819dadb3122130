"""Situations that users of such tools report: what each gives here."""

import json
import re
import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import captionlab
from captionlab.cli import app
from captionlab.cli.application import format_error
from captionlab.data import CaptionDataset, load_dataset
from captionlab.metrics.files import read_results
from captionlab.metrics.translation import judge_translations
from captionlab.runs.objectives import SCST

def call(*words):
    """The result of a command."""
    return CliRunner().invoke(app, [str(word) for word in words])


def success(*words):
    """What a command prints that must succeed."""
    result = call(*words)
    assert result.exit_code == 0, result.output
    return result.output


def mistake(*words):
    """What a command prints that must fail with lines of ours, the last of them."""
    result = call(*words)
    assert result.exit_code in (1, 2), result.output
    assert "Traceback" not in result.output
    assert not result.exception or isinstance(result.exception, SystemExit), result.exception
    return result.output


@pytest.mark.slow
class TestOneDecoder:
    def test_the_page_reads_pictures_as_the_command_line_does(self, tmp_path, capfd):
        pytest.importorskip("gradio")
        from gradio_client import Client, handle_file

        from captionlab.deploy import build_app

        run = captionlab.load("scenes")
        deep = np.add.outer(np.arange(64), np.arange(64)).astype(np.uint16) * 500
        Image.fromarray(deep).save(tmp_path / "16 bits.png")
        clear = np.random.default_rng(0).integers(0, 255, (64, 64, 4), np.uint8)
        clear[..., 3] = np.arange(64) * 4
        Image.fromarray(clear).save(tmp_path / "transparent.png")
        (tmp_path / "broken.png").write_bytes(b"no picture")
        page = build_app(run)
        _, url, _ = page.launch(prevent_thread_lock=True, quiet=True)
        try:
            client = Client(url, verbose=False)
            for name in ("16 bits.png", "transparent.png"):
                shown = client.predict(handle_file(tmp_path / name), 3, api_name="/update")
                words = run.caption(tmp_path / name).split()
                assert all(word in str(shown) for word in words)
            shown = client.predict(handle_file(tmp_path / "broken.png"), 3, api_name="/update")
            assert "cannot read the file as a picture" in str(shown)
        finally:
            page.close()
        assert "Traceback" not in capfd.readouterr().err


def picture(file, number=0):
    """A picture file, its folder, too."""
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (64, 48), (number * 40 % 256, 90, 200)).save(file)
    return file


def broken(file):
    """A picture that is cut off."""
    picture(file)
    file.write_bytes(file.read_bytes()[:60])
    return file


def table(file, *rows):
    """A CSV of captions."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(["image,caption,split", *rows]) + "\n")
    return file


def load(name, **options):
    """A data set, and the warnings that came with it."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        data = load_dataset(name, **options)
    return data, [str(one.message) for one in caught]


class TestSearch:
    def test_pictures_from_elsewhere_have_a_line(self, tmp_path):
        picture(tmp_path / "old" / "0.jpg")
        data, lines = load(table(tmp_path / "new" / "captions.csv", "0.jpg,a dog,train"))
        assert data["train"][0].image.parent.name == "old"
        assert len(lines) == 1
        assert str(tmp_path / "old") in lines[0]

    def test_several_that_fit_are_an_error(self, tmp_path):
        for name in ("old", "older"):
            picture(tmp_path / name / "0.jpg")
        file = table(tmp_path / "new" / "captions.csv", "0.jpg,a dog,train")
        with pytest.raises(ValueError, match=r"0\.jpg is in .*old and .*older: write which"):
            load(file)

    def test_the_splits_own_folder_comes_first(self, tmp_path):
        for number, split in enumerate(("train", "val")):
            picture(tmp_path / split / "1.jpg", number)
        data, lines = load(table(tmp_path / "captions.csv", "1.jpg,a dog,val"))
        assert data["val"][0].image == tmp_path / "val" / "1.jpg"
        assert lines == []

    def test_without_a_split_nobody_guesses(self, tmp_path):
        for split in ("train", "val"):
            picture(tmp_path / split / "1.jpg")
        with pytest.raises(ValueError, match="write which, such as train/1.jpg"):
            load(table(tmp_path / "captions.csv", "1.jpg,a dog,"))

    def test_where_the_first_is_all_must_be(self, tmp_path):
        picture(tmp_path / "new" / "images" / "0.jpg")
        picture(tmp_path / "old" / "1.jpg")
        rows = ("0.jpg,a dog,train", "1.jpg,a cat,train")
        with pytest.raises(ValueError, match="there is no picture"):
            load(table(tmp_path / "new" / "captions.csv", *rows))

    def test_karpathys_file_is_no_exception(self, tmp_path):
        for name in ("old", "older"):
            picture(tmp_path / name / "0.jpg")
        entry = {"filename": "0.jpg", "split": "train", "sentences": [{"raw": "a dog"}]}
        (tmp_path / "new").mkdir()
        file = tmp_path / "new" / "dataset_own.json"
        file.write_text(json.dumps({"images": [entry]}))
        with pytest.raises(ValueError, match="write which"):
            load(file)

    def test_brackets_in_a_name_are_no_pattern_if_there_is_such_a_file(self, tmp_path):
        picture(tmp_path / "0.jpg")
        table(tmp_path / "a1.csv", "0.jpg,a dog,train")
        table(tmp_path / "a[1].csv", "0.jpg,a cat,train")
        assert load(str(tmp_path / "a[1].csv"))[0].captions("train") == ["a cat"]


class TestOwnFiles:
    def test_kaggles_flickr8k_is_read_as_a_file_and_as_a_folder(self, tmp_path):
        for number in range(3):
            picture(tmp_path / "Images" / f"{number}_a.jpg", number)
        lines = ["image,caption", *(f'{n}_a.jpg,"A dog , and {n} ."' for n in range(3))]
        (tmp_path / "captions.txt").write_text("\n".join(lines))
        for source in (tmp_path, tmp_path / "captions.txt"):
            assert len(load(source)[0].items) == 3

    def test_a_suffix_may_have_any_case(self, tmp_path):
        picture(tmp_path / "0.JPG")
        entry = {"filename": "0.JPG", "split": "train", "sentences": [{"raw": "a dog"}]}
        (tmp_path / "X.JSON").write_text(json.dumps({"images": [entry]}))
        assert load(tmp_path / "X.JSON")[0].captions("train") == ["a dog"]
        (tmp_path / "X.JSON").rename(tmp_path / "DATASET_X.JSON")
        assert load(tmp_path)[0].captions("train") == ["a dog"]

    def test_backslashes_separate_folders_as_on_windows(self, tmp_path):
        picture(tmp_path / "img" / "1.png")
        data, _ = load(table(tmp_path / "own.csv", r"img\1.png,a dog,train"))
        assert data["train"][0].image == tmp_path / "img" / "1.png"

    def test_data_use_says_that_own_captions_need_none(self, tmp_path):
        picture(tmp_path / "0.jpg")
        table(tmp_path / "mine.csv", "0.jpg,a dog,train")
        assert "mine.csv" in mistake("data", "use", tmp_path)
        assert "--data" in mistake("data", "use", tmp_path)


class TestPictureFiles:
    SUFFIXES = (".avif", ".jfif", ".jpe", ".ppm", ".jp2", ".HEIC", ".JPG")

    def test_one_list_of_suffixes_for_all(self, tmp_path):
        from captionlab.cli.options import find_pictures
        from captionlab.data.picture_decoding import find_images

        names = [f"{number}{suffix}" for number, suffix in enumerate(self.SUFFIXES)]
        for name in [*names, "._0.jpg", ".hidden/1.jpg", "notes.txt"]:
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).touch()
        assert [file.name for file in find_pictures([tmp_path])] == names
        assert list(find_images(tmp_path)) == names

    def test_what_cannot_be_read_has_a_line(self, tmp_path):
        picture(tmp_path / "0.avif")
        (tmp_path / "1.HEIC").write_bytes(b"\0\0\0\x18ftypheic")
        printed = mistake("caption", "scenes", tmp_path)
        assert "0.avif: " in printed
        assert "1.HEIC" in printed
        assert "save it as JPEG" in printed

    def test_two_folders_are_captioned(self, tmp_path):
        for name in ("one", "two"):
            picture(tmp_path / name / "1.jpg")
        printed = success("caption", tmp_path / "one", tmp_path / "two")
        assert all(f"{tmp_path / name / '1.jpg'}: " in printed for name in ("one", "two"))

    def test_an_item_is_decoded_as_by_the_command_line(self, tmp_path):
        deep = np.full((8, 8), 40_000, np.uint16)
        Image.fromarray(deep).save(tmp_path / "0.png")
        item = load(table(tmp_path / "own.csv", "0.png,a dog,train"))[0]["train"][0]
        assert item.picture().getpixel((0, 0)) == (156, 156, 156)


class TestUnreadable:
    @pytest.fixture
    def own(self, tmp_path):
        rows = []
        for number in range(12):
            make = broken if number in (3, 7, 11) else picture
            make(tmp_path / f"{number}.png")
            split = ("train", "val", "test")[number // 4]
            rows.append(f"{number}.png,a dog and {number} cats,{split}")
        return table(tmp_path / "own.csv", *rows)

    def test_all_are_listed_before_a_training(self, own):
        printed = mistake("train", "cptr", "--data", own, "--out", own.parent / "run")
        assert "2 of 8 pictures cannot be read" in printed
        assert all(name in printed for name in ("3.png", "7.png"))
        assert "--skip-unreadable" in printed
        assert not (own.parent / "run" / "run.json").exists()

    def test_data_check_takes_own_data(self, own):
        printed = success("data", "check", own)
        assert all(f"left out: {n}.png" in printed for n in (3, 7, 11))
        data, lines = load(own)
        assert len(data.items) == 9
        assert len(lines) == 1

    def test_load_dataset_leaves_them_out(self, own):
        data, lines = load(own, skip_unreadable=True)
        assert data.left_out == {"train": 1, "val": 1, "test": 1}
        assert lines == ["own: 3.png, 7.png, 11.png cannot be read and are left out"]

    @pytest.mark.slow
    @pytest.mark.filterwarnings("ignore")
    def test_skip_unreadable_leaves_them_out_everywhere(self, own, monkeypatch):
        monkeypatch.chdir(own.parent)
        skip = "--skip-unreadable"
        words = ("train", "cptr", "--data", "own.csv", "--out", "run", "--epochs", 1, "--warmup", 1)
        success(*words, skip)
        assert "3.png" in mistake("caption", "scenes", "0.png", "3.png")
        assert "3.png" in success("caption", "scenes", "0.png", "3.png", skip)
        words = ("faithfulness", "scenes", "--data", "own.csv", "--split", "test")
        assert "11.png" in mistake(*words)
        success(*words, skip)
        success("attributes", "train", "--data", "own.csv", "--num-words", 2, "--out", "d.st", skip)
        images = [{"id": n, "file_name": f"{n}.png"} for n in (2, 3)]
        (own.parent / "images.json").write_text(json.dumps({"images": images}))
        words = ("export-coco", "scenes", "images.json", "--name", "mine")
        mistake(*words)
        assert "1 captions written" in success(*words, skip)

    @pytest.mark.java
    @pytest.mark.slow
    @pytest.mark.filterwarnings("ignore")
    def test_evaluate_leaves_them_out_when_told_to(self, own):
        words = ("evaluate", "scenes", "--data", own, "--split", "test")
        assert "11.png" in mistake(*words)
        assert "3 pictures of own test" in success(*words, "--skip-unreadable")


class TestTranslate:
    UNCHANGED = (
        "12345", "5", "10:30", "50s", "3rd", "1,000.50", "-", "...", "😀", "猫", "$5", "50 %",
        "https://example.org/a?b=c", "www.foo.de", "me@x.org",
    )  # fmt: skip

    def test_nothing_to_translate_stays(self):
        lines = success("translate", "translation", "--", *self.UNCHANGED).splitlines()
        assert tuple(lines) == self.UNCHANGED

    @pytest.mark.parametrize("text", ["65 and 1934.", "50% of cats", "a dog at 10:30", "12 dogs"])
    def test_numbers_stay_whatever_is_around_them(self, text):
        numbers = re.findall(r"\d+", text)
        assert re.findall(r"\d+", success("translate", "translation", text)) == numbers

    def test_one_line_does_not_stop_the_others(self, tmp_path):
        (tmp_path / "lines.txt").write_text("A dog runs.\n65 and 1934.\nA cat sleeps.\n")
        lines = success("translate", "translation", "--file", tmp_path / "lines.txt").splitlines()
        assert len(lines) == 3
        assert "Hund" in lines[0]
        assert "Katze" in lines[2]

    def test_several_may_come_from_anything(self):
        run = captionlab.load("translation")
        texts = ["A dog runs.", ""]
        expected = run.translate(texts)
        assert run.translate(text for text in texts) == run.translate(tuple(texts)) == expected
        assert run.translate([]) == []
        for wrong in (None, 3, [None], {"A dog": "x"}, {"A dog"}, b"A dog", [b"A dog"]):
            with pytest.raises(ValueError, match="sentences"):
                run.translate(wrong)


def learn(folder, count=3, text="a dog and a cat", **columns):
    """A table with pictures and captions."""
    rows = []
    for number in range(count):
        picture(folder / f"{number}.png", number)
        rows.append(f"{number}.png,{text} {number},{columns.get('split', 'train')}")
    return table(folder / "own.csv", *rows)


class TestTraining:
    def test_no_word_is_an_error(self, tmp_path):
        words = ("train", "cptr", "--data", learn(tmp_path), "--out", tmp_path / "run")
        assert "no word occurs 100 times" in mistake(*words, "--min-count", 100)

    def test_scst_on_one_picture_is_an_error(self, tmp_path):
        data = load(learn(tmp_path, count=1))[0]
        run = captionlab.load("scenes")
        examples = CaptionDataset(data["train"], run.vocabulary)
        with pytest.raises(ValueError, match="with one picture the reward CIDEr-D is 0"):
            SCST().check(examples)

    @pytest.mark.slow
    def test_captions_that_are_cut_have_a_line_and_can_be_kept(self, tmp_path):
        file = learn(tmp_path, text="a dog " * 25)
        words = ("train", "--from", "photos", "--data", file, "--epochs", 1, "--warmup", 1)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            success(*words, "--out", tmp_path / "cut")
        assert any("3 of 3 captions are cut after 18 tokens" in str(one.message) for one in caught)
        success(*words, "--set", "max_length=80", "--out", tmp_path / "whole")
        assert captionlab.load(tmp_path / "whole").max_length == 79
        assert "max_length can change" in mistake(*words, "--set", "width=8", "--out", "no")


class TestScoring:
    @pytest.mark.java
    @pytest.mark.slow
    @pytest.mark.parametrize("suffix", ["json", "jsonl", "csv"])
    @pytest.mark.parametrize("scores", [(), ("--scores", "--nbest", 2)])
    def test_score_reads_what_caption_writes(self, tmp_path, suffix, scores):
        images = []
        for number in range(2):
            picture(tmp_path / f"{number}.png", number)
            images.append({"id": number + 7, "file_name": f"{number}.png"})
        out = tmp_path / f"captions.{suffix}"
        success("caption", "scenes", tmp_path / "0.png", tmp_path / "1.png", "--out", out, *scores)
        notes = [{"id": one["id"], "image_id": one["id"], "caption": "a red circle"}
                 for one in images]
        file = tmp_path / "notes.json"
        file.write_text(json.dumps({"images": images, "annotations": notes}))
        assert "2 of 2 annotated pictures" in success("score", out, file)

    def test_whole_numbers_are_ids_and_truth_is_none(self, tmp_path):
        file = tmp_path / "r.json"
        file.write_text('[{"image_id": 1.0, "caption": "a dog"}]')
        assert read_results(file) == {1: "a dog"}
        file.write_text('[{"image_id": true, "caption": "a dog"}]')
        with pytest.raises(ValueError, match="has no id"):
            read_results(file)

    def test_references_may_be_nested_as_sacrebleus(self):
        nested = judge_translations(["ein Hund"], [["ein Hund"]], ter=False)
        assert nested.corpus_scores == judge_translations(["ein Hund"], ["ein Hund"], ter=False
                                                          ).corpus_scores
        for wrong in ([["x"], ["y"]], [None], [{"x": 1}]):
            with pytest.raises(ValueError, match="references"):
                judge_translations(["ein Hund"], wrong)


class TestLines:
    def test_an_option_out_of_its_range_says_the_range(self, tmp_path):
        picture(tmp_path / "0.png")
        words = ("caption", "scenes", tmp_path / "0.png", "--sample")
        assert "take a number above 0 to 1" in mistake(*words, "--top-p", 0)
        assert "1e+308" not in mistake(*words, "--temperature", 0)
        assert "beam" in mistake("caption", "scenes", tmp_path / "0.png", "--beam", 10**20)

    def test_an_empty_value_is_no_folder(self, tmp_path):
        assert "empty value" in mistake("train", "cptr", "--data", learn(tmp_path), "--out", "")

    def test_what_may_not_be_written_says_what_to_do(self):
        error = PermissionError(13, "Permission denied", "/home/me/.cache/captionlab")
        assert "XDG_CACHE_HOME" in format_error(error)
        assert "/home/me/.cache/captionlab" in format_error(error)

    def test_features_under_another_name_are_named(self, tmp_path):
        np.savez(tmp_path / "0.npz", bbox=np.zeros((1, 4)), image_w=4, image_h=4, feat=np.ones((1, 2)))
        picture(tmp_path / "0.png")
        words = ("features", "extract", tmp_path / "0.png", "--kind", "regions", "--backbone", "file")
        printed = mistake(*words, "--boxes", tmp_path, "--out", tmp_path / "out")
        assert "bbox, feat, image_h, image_w" in printed

    def test_extras_are_installed_from_a_clone(self):
        root = Path(captionlab.__file__).parent.parent
        files = [*root.glob("*.md"), *root.glob("docs/*.md"), *root.glob("nbs/**/*.ipynb"),
                 *root.glob("captionlab/**/*.py")]
        wrong = [file for file in files if "pip install 'captionlab[" in file.read_text()]
        assert wrong == []
