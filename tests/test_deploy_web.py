"""The page's functions; gradio itself and a real browser where they are installed."""

import re
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import captionlab
from captionlab.cli import app
from captionlab.deploy import PageContent, build_app, describe_picture
from captionlab.runs import NoveltyWarning
from captionlab.scenes import generate_scene, render

@pytest.fixture(scope="module")
def run():
    return captionlab.load("scenes")


@pytest.fixture(scope="module")
def pixels(run):
    return run.processor.pixels(generate_scene(7))


class TestContent:
    def test_captions_are_those_of_the_command_line(self, run, pixels, tmp_path):
        file = tmp_path / "scene.png"
        Image.fromarray(pixels).save(file)
        rows = describe_picture(run, file, count=5).rows
        command = ["caption", "scenes", str(file), "--nbest", "5"]
        lines = CliRunner().invoke(app, command).stdout.splitlines()
        assert [f"{file}: {text}" for text, *_ in rows] == lines
        assert len(lines) == 5

    def test_probabilities_are_those_of_the_model(self, run, pixels):
        captions = run.generate(pixels, num_captions=3)
        rows = describe_picture(run, pixels, count=3).rows
        for caption, (text, probability, mean) in zip(captions, rows, strict=True):
            assert text == caption.text
            assert probability == f"{np.exp(caption.log_prob):.2%}"
            assert mean == f"{np.exp(caption.log_prob / len(caption.ids)):.0%}"

    def test_each_word_of_the_first_caption_has_a_heat_map(self, run, pixels):
        content = describe_picture(run, pixels, count=2)
        assert len(content.rows) == 2
        words = [label.split()[0] for _, label in content.maps]
        assert words == content.rows[0][0].split()
        assert all(image.ndim == 3 and image.std() > 1 for image, _ in content.maps)

    def test_no_picture_empties_it(self, run):
        assert describe_picture(run, None) == PageContent([], [], "")

    @pytest.mark.slow
    def test_a_picture_unlike_the_photos_has_a_warning(self, pixels, recwarn):
        photos = captionlab.load("photos")
        line = "this picture is unlike the pictures that this model learned from"
        assert line in describe_picture(photos, pixels, count=1).warning
        lenient = replace(photos.novelty, threshold=-1.0)
        assert describe_picture(replace(photos, novelty=lenient), pixels, count=1).warning == ""
        # On the page alone, not in the terminal of the server, too.
        assert not [one for one in recwarn if one.category is NoveltyWarning]


class TestPage:
    @pytest.mark.slow
    def test_gradio_builds_it(self, run):
        pytest.importorskip("gradio")
        labels = {getattr(block, "label", None) for block in build_app(run).blocks.values()}
        assert {"Photo", "Captions"} <= labels

    def test_without_gradio_there_is_one_line(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "gradio", None)
        result = CliRunner().invoke(app, ["serve", "scenes"])
        assert result.exit_code == 1
        assert "pip install '.[web]'" in result.output
        assert len(result.output.splitlines()) == 1

    def test_a_translator_is_one_line(self):
        result = CliRunner().invoke(app, ["serve", "translation"])
        assert result.exit_code == 1
        assert "needs a captioner" in result.output


@pytest.fixture(scope="module")
def address():
    """Where the page of `photos` is served."""
    pytest.importorskip("gradio")
    page = build_app(captionlab.load("photos"))
    _, url, _ = page.launch(prevent_thread_lock=True, quiet=True)
    yield url
    page.close()


@pytest.mark.slow
class TestBrowser:
    """What a person who drops pictures on the page reads there."""

    WARNING = "unlike the pictures that this model learned from"

    def open(self, browser, address):
        tab = browser.new_page(viewport={"width": 1200, "height": 900})
        tab.goto(address, wait_until="domcontentloaded")
        tab.wait_for_selector("input[type=file]", state="attached", timeout=60_000)
        return tab

    def captions(self, tab):
        """What stands before a probability on the page, from top to bottom."""
        texts = re.split(r"\s*[\t\n]\s*", tab.locator("body").inner_text())
        return [text for text, after in pairwise(texts) if re.fullmatch(r"\d+\.\d\d%", after)]

    def test_captions_are_those_of_generate_and_a_warning_comes_and_goes(
        self, browser, address, tmp_path
    ):
        person = Path(mpl.get_data_path()) / "sample_data" / "grace_hopper.jpg"
        scene = tmp_path / "scene.png"
        Image.fromarray(render(generate_scene(7), 192)).save(scene)
        run = replace(captionlab.load("photos"), novelty=None)
        tab = self.open(browser, address)
        warning = tab.get_by_text(self.WARNING)
        assert warning.count() == 0
        for file, is_unlike in ((scene, True), (person, False)):
            expected = [caption.text for caption in run.generate(file, num_captions=3)]
            tab.locator("input[type=file]").first.set_input_files(file)
            tab.get_by_text(expected[0], exact=True).last.wait_for(timeout=60_000)
            assert self.captions(tab) == expected
            warning.wait_for(state="visible" if is_unlike else "hidden", timeout=60_000)
            tab.screenshot(path=tmp_path / f"{file.stem}.page.png", full_page=True)
            tab.get_by_label("Remove Image").first.click()
