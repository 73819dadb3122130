"""CHAIR, exact on scenes."""

import pytest

from captionlab.metrics.chair import chair_scores, shapes_in_caption
from captionlab.scenes import Object, Scene, describe_scene, generate_split, verify_caption

class TestScenes:
    def test_both_languages_any_case_and_text_that_is_no_sentence(self):
        assert shapes_in_caption("Two STARS, a circle") == {"star", "circle"}
        assert shapes_in_caption("ein Bild mit einem Kreis und drei Sternen") == {"circle", "star"}
        assert shapes_in_caption("square square of of") == {"square"}
        assert (
            shapes_in_caption("")
            == shapes_in_caption("eine rote Form")
            == shapes_in_caption("собака")
            == set()
        )

    def test_a_true_caption_never_names_an_absent_shape(self):
        scenes = generate_split("val", 60)
        for language in ("en", "de"):
            captions = [describe_scene(scene, language)[0] for scene in scenes]
            assert all(map(verify_caption, captions, scenes))
            assert chair_scores(scenes, captions).sum() == 0

    def test_a_wrong_colour_is_no_absent_object(self):
        scene = Scene([Object("circle", "red")])
        captions = ["A blue circle.", "A red star.", "A circle and a star.", ""]
        assert chair_scores([scene] * 4, captions).tolist() == [0, 1, 0.5, 0]

    def test_wrong_input(self):
        scene = Scene([Object("circle", "red")])
        with pytest.raises(ValueError):
            chair_scores([scene], [])
