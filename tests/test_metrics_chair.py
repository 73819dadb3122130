"""CHAIR: by its definition, and exact on scenes."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from captionlab.metrics.chair import chair_scenes, count_objects, shapes_in_caption
from captionlab.scenes import Object, Scene, describe_scene, generate_split, verify_caption

SETS = st.lists(
    st.tuples(st.sets(st.sampled_from("abcd")), st.sets(st.sampled_from("abcd"))),
    min_size=1,
    max_size=9,
)


class TestCounting:
    @given(SETS)
    def test_equals_the_definition(self, pairs):
        named, present = zip(*pairs, strict=True)
        chair = count_objects(named, present)
        mentioned = [(word, word not in there) for words, there in pairs for word in words]
        if mentioned:
            assert chair.chair_i == pytest.approx(
                100 * sum(wrong for _, wrong in mentioned) / len(mentioned)
            )
        else:
            assert math.isnan(chair.chair_i)
        assert chair.chair_s == pytest.approx(
            100 * sum(bool(words - there) for words, there in pairs) / len(pairs)
        )

    def test_no_caption_and_wrong_numbers(self):
        assert math.isnan(count_objects([], []).chair_i)
        with pytest.raises(ValueError, match="1 captions and 2 pictures"):
            count_objects([{"dog"}], [{"dog"}, {"cat"}])

    def test_intervals_hold_the_value_and_repeat(self):
        chair = count_objects([{"dog", "cat"}, {"dog"}] * 20, [{"dog"}] * 40)
        low, high = chair.intervals(200)["CHAIRs"]
        assert low < chair.chair_s < high
        assert chair.intervals(200) == chair.intervals(200) != chair.intervals(200, seed=1)


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
            captions = [describe_scene(scene, language) for scene in scenes]
            assert all(
                verify_caption(text, scene)
                for texts, scene in zip(captions, scenes, strict=True)
                for text in texts
            )
            assert chair_scenes(captions, scenes).absent.sum() == 0

    def test_a_wrong_colour_is_no_absent_object(self):
        scene = Scene([Object("circle", "red")])
        chair = chair_scenes([["A blue circle.", "A red star."]], [scene])
        assert chair.absent.tolist() == [0, 1]

    def test_wrong_input(self):
        scene = Scene([Object("circle", "red")])
        for captions in (["a circle"], []):
            with pytest.raises(ValueError, match="one list of captions for each scene"):
                chair_scenes(captions, [scene])
