"""The page's functions; gradio itself and a real browser where they are installed."""

import sys
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import captionlab
from captionlab.cli import app
from captionlab.deploy import web
from captionlab.deploy.web import build_app
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
        captions = web._describe_picture(run, file, count=5).captions
        command = ["caption", "scenes", str(file), "--nbest", "5"]
        lines = CliRunner().invoke(app, command).stdout.splitlines()
        assert [f"{file}: {caption.text}" for caption in captions] == lines
        assert len(lines) == 5

    def test_each_word_has_its_probability_and_a_heat_map(self, run, pixels):
        content = web._describe_picture(run, pixels, count=2)
        best, other = content.captions
        assert best == run.generate(pixels, num_captions=2)[0]
        html = web._content_html(content)
        for word, sure in zip(best.words, best.word_probs, strict=True):
            assert f"aria-label='{word}'></meter>{sure:.0%}" in html
        assert other.text in html
        pictures = [Image.open(BytesIO(one)).convert("L") for one in content.maps]
        assert len(pictures) == len(best.words)
        assert all(np.asarray(one).std() > 1 for one in pictures)

    def test_a_map_has_the_shape_of_the_photo(self, run):
        wide = np.asarray(Image.fromarray(render(generate_scene(7), 100)).resize((300, 100)))
        sizes = [Image.open(BytesIO(one)).size for one in web._describe_picture(run, wide).maps]
        assert all(width == pytest.approx(3 * height, rel=0.02) for width, height in sizes)

    def test_no_picture_empties_it(self, run):
        assert web._describe_picture(run, None) == web._PageContent([], [], "")
        assert "Drop a photo" in web._content_html(web._PageContent([], []))

    def test_words_of_a_model_are_no_markup(self, run, pixels):
        [caption] = run.generate(pixels, num_captions=1)
        caption = replace(caption, text="<b>a</b>", words=("<b>",), word_probs=(0.5,))
        html = web._content_html(web._PageContent([caption], [], "<i>unlike"))
        assert "<b>a" not in html
        assert "<i>" not in html

    def test_the_page_says_what_the_model_knows(self, run):
        words = web._describe_run(run)
        assert "drawn scenes" in words
        assert f"{len(run.vocabulary)} words" in words

    def test_examples_are_of_the_kind_that_a_run_knows(self, run):
        files = web._example_pictures(run, 2)
        assert [Image.open(file).size for file in files] == [(192, 192)] * 2
        photos = web._example_pictures(captionlab.load("photos"))
        assert all(Path(file).exists() for file in photos)

    @pytest.mark.slow
    def test_a_picture_unlike_the_photos_has_a_warning(self, pixels, recwarn):
        photos = captionlab.load("photos")
        line = "this picture is unlike the pictures that this model learned from"
        assert line in web._describe_picture(photos, pixels, count=1).warning
        lenient = replace(photos.novelty, threshold=-1.0)
        assert web._describe_picture(replace(photos, novelty=lenient), pixels, count=1).warning == ""
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
        """The captions on the page, the best first."""
        return tab.locator(".cl-caption, ol[start] li").all_inner_texts()

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
            tab.get_by_text(expected[0], exact=True).first.wait_for(timeout=60_000)
            assert self.captions(tab) == expected
            warning.wait_for(state="visible" if is_unlike else "hidden", timeout=60_000)
            tab.screenshot(path=tmp_path / f"{file.stem}.page.png", full_page=True)
            tab.get_by_label("Remove Image").first.click()
            tab.get_by_text("Drop a photo").wait_for(timeout=60_000)

    def test_the_caption_is_large_and_the_maps_are_not_squashed(self, browser, address):
        photo = Path(mpl.get_data_path()) / "sample_data" / "grace_hopper.jpg"
        width, height = Image.open(photo).size
        tab = self.open(browser, address)
        tab.locator("input[type=file]").first.set_input_files(photo)
        tab.locator(".cl-maps img").first.wait_for(timeout=60_000)
        size = "one => parseFloat(getComputedStyle(one).fontSize)"
        assert tab.locator(".cl-caption").evaluate(size) >= 28
        box = tab.locator(".cl-maps img").first.bounding_box()
        assert box["height"] / box["width"] == pytest.approx(height / width, rel=0.05)
        tab.close()

    def test_what_is_no_picture_is_told_in_words(self, browser, address, tmp_path):
        text = tmp_path / "notes.png"
        text.write_text("no picture")
        tab = self.open(browser, address)
        tab.locator("input[type=file]").first.set_input_files(text)
        problem = tab.get_by_role("alert").filter(has_text="the file")
        problem.wait_for(timeout=60_000)
        assert "picture" in problem.inner_text() or "image" in problem.inner_text()
        tab.close()

    def test_buttons_have_names(self, browser, address):
        tab = self.open(browser, address)
        tab.locator(".gallery-item").first.wait_for(timeout=60_000)
        named = """() => ![...document.querySelectorAll('button')].some(one =>
            one.checkVisibility() && !(one.ariaLabel || one.title || one.innerText.trim()))"""
        tab.wait_for_function(named, timeout=20_000)
        tab.close()
