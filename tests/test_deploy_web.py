"""The page's functions, without a browser; gradio itself where it is installed."""

import sys

import numpy as np
import pytest
from typer.testing import CliRunner

import captionlab
from captionlab.cli import app
from captionlab.deploy import build_app, caption_candidates, describe_picture
from captionlab.scenes import generate_scene

@pytest.fixture(scope="module")
def run():
    return captionlab.load("scenes")


@pytest.fixture(scope="module")
def pixels(run):
    return run.processor.pixels(generate_scene(7))


class TestCandidates:
    def test_the_most_probable_comes_first_and_none_twice(self, run, pixels):
        candidates = caption_candidates(run, pixels, count=5)
        probs = [prob for _, prob, _ in candidates]
        assert probs == sorted(probs, reverse=True)
        assert len({text for text, _, _ in candidates}) == len(candidates) > 1
        assert all(0 < prob <= mean <= 1 for _, prob, mean in candidates)

    def test_the_probability_is_that_of_the_model(self, run, pixels):
        candidates = caption_candidates(run, pixels, count=5)
        hypothesis = run.search(run.processor([pixels]), beam=3)[0]
        probs = {text: prob for text, prob, _ in candidates}
        assert probs[run.vocabulary.decode(hypothesis.ids)] == pytest.approx(
            np.exp(hypothesis.score), rel=1e-4)


class TestPage:
    def test_a_picture_gets_rows_and_a_heat_map_for_each_word(self, run, pixels):
        rows, gallery = describe_picture(run, pixels, count=2)
        assert len(rows) == 2
        words = run.caption(pixels).split()
        assert [label.split()[0] for _, label in gallery] == words
        assert all(image.ndim == 3 and image.std() > 1 for image, _ in gallery)

    def test_no_picture_empties_it(self, run):
        assert describe_picture(run, None) == ([], [])

    @pytest.mark.slow
    def test_gradio_builds_it(self, run):
        pytest.importorskip("gradio")
        labels = {getattr(block, "label", None) for block in build_app(run).blocks.values()}
        assert {"Photo", "Captions", "Where each word looked"} <= labels

    def test_without_gradio_there_is_one_line(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "gradio", None)
        result = CliRunner().invoke(app, ["serve", "scenes"])
        assert result.exit_code == 1
        assert "pip install 'captionlab[web]'" in result.output
        assert len(result.output.splitlines()) == 1

    def test_a_translator_is_one_line(self):
        result = CliRunner().invoke(app, ["serve", "translation"])
        assert result.exit_code == 1
        assert "needs a captioner" in result.output
