"""Captions with a known error: always false, always one word apart, always the same for a seed."""

import pytest

from captionlab.metrics.perturbations import change_fact, shuffle_words
from captionlab.scenes import Object, Scene, describe_scene, generate_split, verify_caption

SCENE = Scene([Object("circle", "red", x=60, y=40), Object("star", "blue", x=60, y=140)])
CAPTION = "A red circle is above a blue star."


def one_word_apart(one, other):
    """Do two captions differ in one run of words alone?"""
    first, second = one.lower().split(), other.lower().split()
    while first and second and first[0] == second[0]:
        first, second = first[1:], second[1:]
    while first and second and first[-1] == second[-1]:
        first, second = first[:-1], second[:-1]
    return 0 < len(first) <= 4 and 0 < len(second) <= 4


def test_every_change_makes_a_true_caption_false():
    kinds = set()
    for scene in generate_split("val", 40):
        for caption in describe_scene(scene):
            changed = change_fact(caption, scene, seed=1)
            if changed:
                text, kind = changed
                kinds.add(kind)
                claims = verify_caption(text, scene)
                assert claims
                assert not all(all(claim.values()) for claim in claims)
                assert one_word_apart(caption, text)
    assert kinds >= {"colour", "object", "size", "relation", "count"}


def test_the_same_seed_gives_the_same_change():
    changes = [change_fact(CAPTION, SCENE, seed) for seed in range(20)]
    assert changes == [change_fact(CAPTION, SCENE, seed) for seed in range(20)]
    assert {kind for _, kind in changes} == {"colour", "object", "relation"}


@pytest.mark.parametrize("caption", ["A green circle.", "a dog", ""])
def test_only_true_captions_can_be_made_false(caption):
    with pytest.raises(ValueError, match="not a true caption of this scene"):
        change_fact(caption, SCENE)


def test_none_if_no_word_can_be_changed():
    assert change_fact("The picture is sparse.", SCENE) is None


def test_shuffled_words_stay_the_same_words():
    shuffled = shuffle_words(CAPTION, seed=3)
    assert sorted(shuffled.split()) == sorted(CAPTION.rstrip(".").split())
    assert shuffled != shuffle_words(CAPTION, seed=4)
    assert shuffle_words("") == ""
