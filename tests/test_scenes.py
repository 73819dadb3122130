"""The generated world: the same everywhere, its captions true, false ones caught."""

import hashlib
import json
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from captionlab.scenes import verification
from captionlab.scenes.generator import (
    HELD_OUT,
    SPLITS,
    describe_scene,
    generate_scene,
    generate_split,
    split_of,
)
from captionlab.scenes.language import (
    ARTICLES,
    ENDINGS,
    FORMS,
    LANGUAGES,
    NOUNS,
    NUMBERS,
    WORDS,
    Claim,
    Description,
    parse,
    phrase,
)
from captionlab.scenes.verification import coverage, truth, verify_caption
from captionlab.scenes.world import (
    COLOURS,
    SCENE_WORDS,
    SHAPES,
    VALUES,
    Object,
    Scene,
    covers,
    facts,
    render,
)

HASHES = Path(__file__).with_name("scenes.sha256")
seeds = st.integers(0, 10**9)
descriptions = st.builds(
    Description,
    **{
        name: st.sampled_from(words) | st.none()
        for name, words in VALUES.items()
        if name != "shape"
    },
    shape=st.sampled_from(SHAPES),
)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def draw(scenes: list[Scene], size: int) -> np.ndarray:
    return np.stack([render(scene, size) for scene in scenes])


def fingerprints() -> dict[str, str]:
    scenes = [generate_scene(seed) for seed in range(60)]
    hashes = {f"pixels-{size}": sha256(draw(scenes, size).tobytes()) for size in (64, 96)}
    hashes["pixels-224"] = sha256(draw(scenes[:6], 224).tobytes())
    for language in LANGUAGES:
        captions = [describe_scene(scene, language) for scene in scenes]
        hashes[language] = sha256(json.dumps(captions).encode())
    words = [[scene.attributes, scene.relations] for scene in scenes]
    hashes["words"] = sha256(json.dumps(words).encode())
    return hashes


def test_same_pixels_and_json_on_every_machine():
    recorded = dict(line.split()[::-1] for line in HASHES.read_text().splitlines())
    assert fingerprints() == recorded


@pytest.mark.parametrize(
    ("shape", "share"),
    [
        ("circle", np.pi / 4),
        ("square", 1),
        ("triangle", 1 / 2),
        ("diamond", 1 / 2),
        ("cross", 5 / 9),
        ("star", 1.1226 * 1.0515**2 / 4),
    ],
)
def test_areas_of_shapes(shape, share):
    x = 2 * np.arange(-600, 600) + 1
    assert abs(covers(shape, x[None, :], x[:, None], 1200).mean() - share) < 0.004


def test_larger_objects_are_drawn_first_whatever_their_order():
    small, large = Object("circle", "red", "small"), Object("square", "blue", "large")
    assert np.array_equal(render(Scene([small, large])), render(Scene([large, small])))
    assert tuple(render(Scene([small, large]))[32, 32]) == COLOURS["red"]


@given(seeds)
@settings(max_examples=60, deadline=None)
def test_scenes_are_as_described(seed):
    scene = generate_scene(seed)
    assert 2 <= len(scene.objects) <= 6
    assert scene == generate_scene(seed)
    assert scene.boxes.min() >= 0
    assert scene.boxes.max() <= 1
    for a, b in permutations(scene.objects, 2):  # clear of each other, or one inside the other
        apart = max(abs(a.x - b.x), abs(a.y - b.y)) > a.radius + b.radius
        nested = max(abs(a.x - b.x), abs(a.y - b.y)) < abs(a.radius - b.radius)
        assert apart or nested


@given(seeds)
@settings(max_examples=60, deadline=None)
def test_captions_parse_and_are_true_and_parallel(seed):
    scene = generate_scene(seed)
    english, german = (describe_scene(scene, language) for language in LANGUAGES)
    assert len(set(english)) == len(set(german)) == 5
    for there, here in zip(english, german, strict=False):
        assert parse(there) == parse(here) is not None
    for texts in (english, german):
        assert set(truth([texts], [scene]).values()) == {1.0}
        assert 0 < coverage([texts], [scene])["all"] <= 1


@pytest.mark.slow
@given(st.data())
@settings(max_examples=200, deadline=None)
def test_every_form_of_every_claim_parses_back(data):
    kind, word = data.draw(st.sampled_from(sorted(FORMS, key=str)))
    number = {"object": word, "count": 1, "scene": 0}.get(kind, 2)
    drawn = tuple(data.draw(descriptions) for _ in range(number))
    word = {"object": "", "count": data.draw(st.integers(2, 8))}.get(kind, word)
    claim = Claim(kind, drawn, word)
    form = data.draw(st.integers(0, len(FORMS[claim.form_key]) - 1))
    assert parse(phrase(claim, form, "en")) == parse(phrase(claim, form, "de")) == (claim,)


# Words of the grammar, in all their endings, and some that are none of it.
GERMAN_ENDINGS = {ending for row in ENDINGS.values() for ending in row.values()}
VOCABULARY = sorted(
    {word for pairs in FORMS.values() for pair in pairs for form in pair for word in form.split()}
    | {english for english, _ in WORDS.values()}
    | {german + ending for _, german in WORDS.values() for ending in GERMAN_ENDINGS}
    | {noun.lower() for nouns in NOUNS.values() for noun in nouns}
    | {article for row in ARTICLES.values() for article in row.values()}
    | {number for numbers in NUMBERS for number in numbers.values()}
    | {"a", "and", "und", "<unk>"}
)


@pytest.mark.slow
@given(st.text() | st.lists(st.sampled_from(VOCABULARY), max_size=30).map(" ".join))
@settings(max_examples=300, deadline=None)
def test_any_text_is_verified_without_an_exception(text):
    claims = verify_caption(text, generate_scene(3))
    assert claims is None or all(
        isinstance(holds, bool) for claim in claims for holds in claim.values()
    )


def test_long_nonsense_is_parsed():
    for text in (
        "and " * 5000,
        "there is a circle and " * 3000,
        "a " * 5000,
        "a red " * 5000 + "circle",
    ):
        assert parse(text) is None
    assert len(parse("there is a circle and " * 2000 + "there is a circle")) == 2001


@pytest.mark.parametrize(
    "text",
    [
        "a circle red",
        "a square red circle",
        "there is red circle",
        "there are a circle",
        "two circle can be inventories",
        "there is a shape",
        "ein rotes Kreis ist zu sehen",
        "es gibt ein roter Kreis",
        "ein Bild mit zwei rote Kreise",
        "a red circle",
        "a circle is left of",
        "a striped small circle can be inventories",
        "a medium circle can be inventories",
        "a circle is right of a square",
    ],
)
def test_what_is_not_grammatical_does_not_parse(text):
    assert parse(text) is None


@pytest.mark.parametrize(
    ("claim", "form", "german"),
    [  # written by hand: the grammar tables cannot vouch for themselves
        (Claim("object", (Description("circle", "red"),)), 0, "es gibt einen roten Kreis"),
        (
            Claim("object", (Description("diamond", "green", "large"),)),
            0,
            "es gibt eine große grüne Raute",
        ),
        (
            Claim("object", (Description("cross", "white", None, "striped"),)),
            0,
            "es gibt ein gestreiftes weißes Kreuz",
        ),
        (Claim("object", (Description("star", "yellow"),)), 2, "ein gelber Stern ist zu sehen"),
        (
            Claim("object", (Description("square", "black", "medium"),)),
            2,
            "ein mittelgroßes schwarzes Quadrat ist zu sehen",
        ),
        (
            Claim("object", (Description("diamond", "purple"),)),
            3,
            "ein Bild mit einer violetten Raute",
        ),
        (
            Claim("object", (Description("triangle", "brown"),)),
            3,
            "ein Bild mit einem braunen Dreieck",
        ),
        (Claim("count", (Description("star", "blue"),), 3), 3, "ein Bild mit drei blauen Sternen"),
        (
            Claim("count", (Description(None, None, "small"),), 2),
            2,
            "zwei kleine Formen sind zu sehen",
        ),
        (
            Claim("relation", (Description("circle"), Description("diamond", "red")), "left of"),
            1,
            "ein Kreis ist links von einer roten Raute",
        ),
        (
            Claim("relation", (Description("cross", "red"), Description("star")), "above"),
            2,
            "über einem Stern ist ein rotes Kreuz",
        ),
        (
            Claim("containment", (Description("square"), Description("star", "red")), "around"),
            0,
            "ein Quadrat enthält einen roten Stern",
        ),
        (
            Claim(
                "relation",
                (Description("cross"), Description("star", None, None, "plain")),
                "left of",
            ),
            5,
            "ein Kreuz ist zur Linken von einem einfarbigen Stern",
        ),
        (Claim("scene", (), "colourful"), 1, "ein buntes Bild"),
        (Claim("scene", (), "crowded"), 1, "ein belebtes Bild"),
        (Claim("scene", (), "sparse"), 1, "ein fast leeres Bild"),
        (Claim("scene", (), "row"), 0, "alle Formen stehen in einer Reihe"),
        (Claim("scene", (), "all square"), 0, "nur Quadrate sind zu sehen"),
    ],
)
def test_german_grammar(claim, form, german):
    assert phrase(claim, form, "de") == german


def false_kinds(claim: Claim, scene: Scene) -> set[str]:
    """The kinds that are found false, asked in the claim's own words, both languages."""
    english, german = (
        {
            fact[0]
            for result in verify_caption(phrase(claim, 0, language), scene)
            for fact, holds in result.items()
            if not holds
        }
        for language in LANGUAGES
    )
    assert english == german
    text = phrase(claim, 0, "en")
    assert (truth([[text]], [scene])["all"] == 1) == (not english)
    return english


def full_description(obj: Object, **changes: str) -> Description:
    return Description(**{name: getattr(obj, name) for name in VALUES} | changes)


@pytest.mark.parametrize("name", VALUES)
@given(seed=seeds, data=st.data())
@settings(max_examples=25, deadline=None)
def test_a_wrong_property_is_caught(name, seed, data):
    scene = generate_scene(seed)
    obj = data.draw(st.sampled_from(scene.objects))
    absent = sorted(set(VALUES[name]) - {getattr(other, name) for other in scene.objects})
    assume(absent)
    lie = Claim("object", (full_description(obj, **{name: data.draw(st.sampled_from(absent))}),))
    assert false_kinds(lie, scene) == {"object" if name == "shape" else name}


@given(seeds, st.data())
@settings(max_examples=40, deadline=None)
def test_a_wrong_count_is_caught(seed, data):
    scene = generate_scene(seed)
    right = data.draw(st.integers(2, 8))
    assert false_kinds(Claim("count", (Description(),), right), scene) == (
        set() if right == len(scene.objects) else {"count"}
    )


@given(seeds, st.data())
@settings(max_examples=80, deadline=None)
def test_a_wrong_relation_is_caught(seed, data):
    """Two different objects, any relation: verification agrees with arithmetic on their boxes."""
    scene = generate_scene(seed)
    looks = [full_description(obj) for obj in scene.objects]
    i, j = data.draw(st.sampled_from(list(permutations(range(len(looks)), 2))))
    assume(looks.count(looks[i]) == looks.count(looks[j]) == 1)
    (ax, ay, aX, aY), (bx, by, bX, bY) = (
        (o.x - o.radius, o.y - o.radius, o.x + o.radius, o.y + o.radius)
        for o in (scene.objects[i], scene.objects[j])
    )
    holds = {
        "left of": aX <= bx,
        "right of": bX <= ax,
        "above": aY <= by,
        "below": bY <= ay,
        "inside": bx < ax and by < ay and aX < bX and aY < bY,
        "around": ax < bx and ay < by and bX < aX and bY < aY,
        "near": 0 <= max(bx - aX, ax - bX, by - aY, ay - bY) <= 16,
    }
    word = data.draw(st.sampled_from(sorted(holds)))
    kind = "containment" if word in ("inside", "around") else "relation"
    assert false_kinds(Claim(kind, (looks[i], looks[j]), word), scene) == (
        set() if holds[word] else {kind}
    )


@given(seeds, st.sampled_from(sorted(SCENE_WORDS)))
@settings(max_examples=60, deadline=None)
def test_a_wrong_scene_word_is_caught(seed, word):
    scene = generate_scene(seed)
    assert false_kinds(Claim("scene", (), word), scene) == (
        set() if word in scene.attributes else {"scene"}
    )


@pytest.mark.slow
def test_what_is_called_symmetric_looks_symmetric():
    scenes = [scene for scene in map(generate_scene, range(800)) if "symmetric" in scene.attributes]
    assert any(o.texture == "striped" and o.x != 96 for scene in scenes for o in scene.objects)
    for size in (64, 96, 224):
        pictures = draw(scenes[:40], size)
        assert np.array_equal(pictures, pictures[:, :, ::-1])


@pytest.mark.slow
@given(seeds)
@settings(max_examples=60, deadline=None)
def test_joined_claims_speak_of_different_objects(seed):
    """Each claim but the first needs objects that no earlier one was about."""
    scene = generate_scene(seed)
    for text in describe_scene(scene, captions=12):
        claims = [claim for claim in parse(text) if claim.kind not in ("scene", "count")]
        together = Claim("object", tuple(obj for claim in claims for obj in claim.descriptions))
        assert all(verification._verify_claim(together, scene).values()), text


def test_a_shape_inside_another_is_not_beside_it():
    around = Object("circle", "red", "large", x=60, y=96)
    within = Object("star", "blue", "small", x=60, y=96)
    beside = Object("star", "green", "small", x=160, y=96)
    assert "row" not in Scene([around, within, beside]).attributes
    last = Object("cross", "blue", "small", x=122, y=96)
    assert "row" in Scene([around, last, beside]).attributes


ROW = [Object("star", "red", "small", x=x, y=96) for x in (30, 96, 162)]


@pytest.mark.parametrize(
    ("objects", "has", "lacks"),
    [
        (
            ROW,
            {"row", "symmetric", "all red", "all small", "all plain", "all star"},
            {"column", "sparse", "crowded", "colourful", "all striped"},
        ),
        (ROW[:2], {"sparse"}, {"row", "symmetric"}),
        (
            [
                Object("star", colour, "small", x=96, y=y)
                for colour, y in zip(
                    ("red", "green", "blue", "white"), (20, 60, 100, 140), strict=False
                )
            ],
            {"column", "colourful", "symmetric"},
            {"row", "all red"},
        ),
        (
            [
                Object("star", "red", "small", x=x, y=y)
                for x, y in ((20, 20), (60, 70), (100, 20), (140, 70), (170, 20))
            ],
            {"crowded"},
            {"row", "symmetric", "sparse"},
        ),
    ],
)
def test_scene_words(objects, has, lacks):
    words = set(Scene(objects).attributes)
    assert has <= words
    assert not lacks & words


def test_things_of_one_claim_are_different_objects():
    scene = Scene(
        [
            Object("circle", "red", "small", x=40, y=40),
            Object("square", "blue", "small", x=140, y=140),
        ]
    )
    assert all(
        verification._verify_claim(
            Claim("object", (Description("circle"), Description("square"))), scene
        ).values()
    )
    assert not all(
        verification._verify_claim(
            Claim("object", (Description("circle"), Description(None, "red"))), scene
        ).values()
    )
    assert not all(
        verification._verify_claim(
            Claim("object", (Description("circle"), Description("square"), Description("square"))),
            scene,
        ).values()
    )


def test_true_if_some_pair_is():
    scene = Scene(
        [
            Object("circle", "red", "small", x=150, y=40),
            Object("square", "blue", "small", x=100, y=40),
            Object("circle", "red", "small", x=40, y=40),
        ]
    )
    assert (
        truth(
            [
                [
                    "a red circle is left of a blue square",
                    "a red circle is to the right of a blue square",
                ]
            ],
            [scene],
        )["all"]
        == 1
    )
    assert truth([["a blue square is inside a red circle"]], [scene])["all"] == 0


def test_coverage_by_hand():
    scene = Scene(
        [
            Object("circle", "red", "small", x=20, y=20),
            Object("square", "blue", "large", x=120, y=120),
        ]
    )
    shares = coverage(
        [
            [
                "There is a red circle.",
                "A circle is left of a square.",
                "The picture is crowded.",
                "what",
            ]
        ],
        [scene],
    )
    assert (
        shares["object"],
        shares["colour"],
        shares["size"],
        shares["texture"],
        shares["count"],
    ) == (1, 0.5, 0, 0, 0)
    assert shares["relation"] == 0.5  # it is above, too
    assert coverage([["a green circle is left of a square"]], [scene])["all"] == 0


def test_captions_and_scenes_must_pair():
    with pytest.raises(ValueError, match="one list of captions"):
        truth(["a circle"], [generate_scene(0)])
    with pytest.raises(ValueError, match="one list of captions"):
        coverage([["a circle"]], [])


def inventory(scene: Scene) -> tuple:
    return tuple(sorted((o.shape, o.colour, o.size, o.texture) for o in scene.objects))


@pytest.mark.slow
def test_splits_share_no_scene_and_hold_out_pairs():
    drawn = {name: generate_split(name, 250) for name in SPLITS}
    inventories = {name: set(map(inventory, scenes)) for name, scenes in drawn.items()}
    assert all(not inventories[a] & inventories[b] for a, b in permutations(SPLITS, 2))
    pairs = {
        name: {(o.colour, o.shape) for scene in scenes for o in scene.objects}
        for name, scenes in drawn.items()
    }
    assert set(HELD_OUT) <= pairs["novel"]
    assert not set(HELD_OUT) & (pairs["train"] | pairs["val"] | pairs["test"])
    assert {colour for colour, _ in pairs["train"]} == set(COLOURS)
    assert {shape for _, shape in pairs["train"]} == set(SHAPES)
    assert all(
        {(o.colour, o.shape) for o in scene.objects} & set(HELD_OUT) for scene in drawn["novel"]
    )
    assert generate_split("val", 20) == drawn["val"][:20]


@given(seeds, st.randoms(use_true_random=False))
@settings(max_examples=30, deadline=None)
def test_the_same_objects_elsewhere_stay_in_their_split(seed, chance):
    scene = generate_scene(seed)
    moved = [
        Object(
            o.shape,
            o.colour,
            o.size,
            o.texture,
            x=chance.randint(46, 146),
            y=chance.randint(46, 146),
        )
        for o in scene.objects
    ]
    chance.shuffle(moved)
    assert split_of(Scene(moved)) == split_of(scene)


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (lambda: Object("heart", "red"), "no shape 'heart'"),
        (lambda: Object("star", "pink"), "no colour 'pink'"),
        (lambda: Object("star", "red", "large", x=5), "sticks out"),
        (lambda: Scene([]), "1 to 8 objects"),
        (lambda: generate_scene(-1), "a seed is 0 or more"),
        (lambda: generate_split("dev", 3), "no split 'dev'"),
        (lambda: describe_scene(generate_scene(0), "fr"), "no captions in 'fr'"),
    ],
)
def test_mistakes_are_one_clear_line(mistake, message):
    with pytest.raises(ValueError, match=message) as caught:
        mistake()
    assert "\n" not in str(caught.value)


def test_facts_of_one_scene_by_hand():
    scene = Scene(
        [
            Object("circle", "red", "small", x=60, y=80),
            Object("square", "blue", "large", x=60, y=80),
        ]
    )
    assert facts(scene) == {
        ("object", "circle", 0),
        ("colour", "red", 0),
        ("size", "small", 0),
        ("texture", "plain", 0),
        ("object", "square", 1),
        ("colour", "blue", 1),
        ("size", "large", 1),
        ("texture", "plain", 1),
        ("containment", "inside", 0, 1),
        ("count", 2, 0, 1),
        ("scene", "sparse"),
        ("scene", "all plain"),
    }
