"""Judge captions of the packaged photo captioner by eye, and measure its biases.

python -m benchmarks.flickr8k.judgement sheets FOLDER    photos and captions to look at
python -m benchmarks.flickr8k.judgement biases           counts words against the references
python -m benchmarks.flickr8k.judgement card             writes all into the model card

`sheets` draws 100 of the 1,000 test photos, ten on a sheet. A reader writes the verdicts into
`vanilla-small-scst.judged.json`, and those about photos of other sources into `….outside.json`.
"""

import json
import random
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from matplotlib import font_manager
from PIL import Image, ImageDraw, ImageFont

from captionlab.data.catalog import load_dataset
from captionlab.files import write_json
from captionlab.text import normalise

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "results/flickr8k"
CAPTIONS = RESULTS / "vanilla-small-scst.seed0.captions.json"
JUDGED = RESULTS / "vanilla-small-scst.judged.json"
BIASES = RESULTS / "vanilla-small-scst.biases.json"
OUTSIDE = RESULTS / "vanilla-small-scst.outside.json"
CARD = ROOT / "captionlab/checkpoints/photos/README.md"
SEED, PHOTOS, PER_SHEET = 0, 100, 10
VERDICTS = {
    "correct": "nothing in it is wrong, and it names what the photo mainly shows",
    "minor error": "right subject and right kind of scene, with wrong details",
    "wrong": "another subject, activity or scene, or many wrong details",
}
KINDS = {
    "object": "wrong object",
    "action": "wrong action",
    "number": "wrong number of people or animals",
    "person": "wrong gender or age",
    "colour": "wrong colour",
    "place": "wrong place",
    "missing": "the main thing is missing",
    "grammar": "grammar or repetition",
    "invented": "invented object or person",
}
MALE = {"man", "men", "boy", "boys", "guy", "guys", "male", "gentleman", "father"}
FEMALE = {"woman", "women", "girl", "girls", "lady", "ladies", "female", "mother"}
CHILD = {"boy", "boys", "girl", "girls", "child", "children", "kid", "kids", "baby", "toddler"}
ADULT = {"man", "men", "woman", "women", "lady", "ladies", "guy", "guys", "adult", "adults"}
DOG = {"dog", "dogs", "puppy", "puppies", "greyhound", "greyhounds"}
OTHER_ANIMAL = {"cat", "cats", "horse", "horses", "bird", "birds", "cow", "cows", "goat", "goats"}
COLOURS = ("black", "white", "red", "blue", "brown", "yellow", "green", "pink", "orange", "purple")
WordTest = Callable[[set[str]], bool]


def sample() -> list[dict]:
    """Photo and caption of 100 test photos, in the order of the sheets."""
    captions = {row["image_id"]: row["caption"] for row in json.loads(CAPTIONS.read_text())}
    names = random.Random(SEED).sample(sorted(captions), PHOTOS)
    return [{"image_id": name, "caption": captions[name]} for name in names]


def sheet(rows: Sequence[dict], first: int, images: dict[str, Path]) -> Image.Image:
    """Draw photos at most 300 px wide in two rows, with number and caption below."""
    font = ImageFont.truetype(font_manager.findfont("DejaVu Sans"), 15)
    columns = PER_SHEET // 2
    picture = Image.new("RGB", (320 * columns, 780), "white")
    draw = ImageDraw.Draw(picture)
    for place, row in enumerate(rows):
        photo = Image.open(images[row["image_id"]]).convert("RGB")
        photo.thumbnail((300, 300))
        left, top = 320 * (place % columns) + 10, 390 * (place // columns) + 5
        picture.paste(photo, (left, top))
        text = textwrap.wrap(f"{first + place}. {row['caption']}", 36)
        draw.multiline_text((left, top + photo.height + 4), "\n".join(text), "black", font)
    return picture


def write_sheets(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    images = {item.name: item.image for item in load_dataset("flickr8k")["test"]}
    rows = sample()
    for start in range(0, PHOTOS, PER_SHEET):
        picture = sheet(rows[start : start + PER_SHEET], start + 1, images)
        picture.save(folder / f"sheet-{start // PER_SHEET:02}.png")


def share(captions: Iterable[set[str]], test: WordTest) -> float:
    """Share of captions that pass a test of their words, in percent."""
    results = [test(words) for words in captions]
    return round(100 * sum(results) / len(results), 1)


def names_any(words: Iterable[str]) -> WordTest:
    wanted = set(words)
    return lambda caption: not wanted.isdisjoint(caption)


def agreed(references: list[set[str]], ours: set[str], others: set[str]) -> bool:
    """Whether at least three of five references name one group, and none the other."""
    votes = sum(map(names_any(ours), references))
    return votes >= 3 and not any(map(names_any(others), references))


def confusion(
    captions: dict[str, set[str]], references: dict[str, list[set[str]]], groups: dict[str, set]
) -> dict:
    """What the model calls the people in photos on which the references agree.

    Args:
        captions: words of the model's caption of each photo.
        references: words of the references of each photo.
        groups: two names of groups of people, and the words for each.

    Returns:
        For each group photos, and how many captions name the group, the other, both or neither.
    """
    table = {}
    for name, ours in groups.items():
        [(other, others)] = [(key, words) for key, words in groups.items() if key != name]
        photos = [photo for photo in captions if agreed(references[photo], ours, others)]
        outcomes = {(True, True): "both", (True, False): name, (False, True): other}
        counts: Counter = Counter()
        for photo in photos:
            named = names_any(ours)(captions[photo]), names_any(others)(captions[photo])
            counts[outcomes.get(named, "neither")] += 1
        table[name] = {"photos": len(photos)} | dict(counts)
    return table


def dogs(captions: dict[str, set[str]], references: dict[str, list[set[str]]]) -> dict:
    """How often a caption names a dog, by what the references name."""
    is_dog, is_other = names_any(DOG), names_any(OTHER_ANIMAL)
    groups: dict[str, list[str]] = {"a dog": [], "another animal and no dog": [], "no animal": []}
    for photo, texts in references.items():
        if any(map(is_dog, texts)):
            groups["a dog"].append(photo)
        elif sum(map(is_other, texts)) >= 3:
            groups["another animal and no dog"].append(photo)
        elif not any(map(is_other, texts)):
            groups["no animal"].append(photo)
    return {
        name: {"photos": len(photos), "dog": sum(is_dog(captions[photo]) for photo in photos)}
        for name, photos in groups.items()
    }


def measure_biases() -> dict:
    """Count words of the 1,000 test captions and of their references."""
    items = load_dataset("flickr8k")["test"]
    texts = {row["image_id"]: row["caption"] for row in json.loads(CAPTIONS.read_text())}
    captions = {name: set(normalise(text)) for name, text in texts.items()}
    references = {item.name: [set(normalise(text)) for text in item.captions] for item in items}
    people = [words for rows in references.values() for words in rows]
    tests = {
        "man, boy, ...": names_any(MALE),
        "woman, girl, ...": names_any(FEMALE),
        "boy, girl, child, ...": names_any(CHILD),
        "dog, puppy, ...": names_any(DOG),
        "group": names_any({"group"}),
        "two": names_any({"two"}),
        "three to five": names_any({"three", "four", "five"}),
    } | {colour: names_any({colour}) for colour in COLOURS}
    used = {
        name: {"model": share(captions.values(), test), "people": share(people, test)}
        for name, test in tests.items()
    }
    return {
        "captions": CAPTIONS.name,
        "pictures": len(captions),
        "command": "python -m benchmarks.flickr8k.judgement biases",
        "captions_that_name": used,
        "distinct_words": len(set().union(*captions.values())),
        "distinct_captions": len(set(texts.values())),
        "in_front_of": sum("in front of" in text for text in texts.values()),
        "gender": confusion(captions, references, {"male": MALE, "female": FEMALE}),
        "age": confusion(captions, references, {"adult": ADULT, "child": CHILD}),
        "dogs_by_references": dogs(captions, references),
    }


def judged_table(judged: dict) -> str:
    """Markdown: verdicts and kinds of error, and three examples."""
    rows = judged["captions"]
    verdicts = Counter(row["verdict"] for row in rows)
    kinds = Counter(kind for row in rows for kind in row["kinds"])
    lines = ["| verdict | captions |", "|---|---|"]
    lines += [f"| {name}: {text} | {verdicts[name]} |" for name, text in VERDICTS.items()]
    lines += ["", "| kind of error (a caption can have several) | captions |", "|---|---|"]
    lines += [f"| {KINDS[name]} | {count} |" for name, count in kinds.most_common()]
    lines += ["", "Three of them:", ""]
    examples = [rows[number - 1] for number in judged["examples"]]
    lines += [
        f'- "{row["caption"]}": {row["verdict"]}. The photo shows {row["remark"]}.'
        for row in examples
    ]
    return "\n".join(lines)


def bias_table(biases: dict) -> str:
    """Markdown: words of the model beside those of people, confusions, and three sentences."""
    lines = ["| captions that name | model, % | people, % |", "|---|---|---|"]
    for name, row in biases["captions_that_name"].items():
        lines.append(f"| {name} | {row['model']} | {row['people']} |")
    header = "| the references agree on | photos | model: the same | the other | both | neither |"
    lines += ["", header, "|---|---|---|---|---|---|"]
    for table in (biases["gender"], biases["age"]):
        for name, row in table.items():
            [other] = [key for key in table if key != name]
            cells = [row.get(key, 0) for key in ("photos", name, other, "both", "neither")]
            lines.append(f"| {name} | " + " | ".join(map(str, cells)) + " |")
    return "\n".join([*lines, "", *bias_sentences(biases)])


def bias_sentences(biases: dict) -> list[str]:
    """Markdown: a list of what the tables do not hold."""
    counts = biases["gender"]
    errors = {
        name: f"{row.get(other, 0) / row['photos']:.0%}"
        for other, (name, row) in zip(["female", "male"], counts.items(), strict=True)
    }
    without, with_other = (
        biases["dogs_by_references"][name] for name in ("no animal", "another animal and no dog")
    )
    return [
        f"- Photos of females are called male in {errors['female']} of cases, photos of males "
        f"female in {errors['male']}.",
        f"- It names a dog in {without['dog']} of {without['photos']} photos without an animal, "
        f"and in {with_other['dog']} of {with_other['photos']} photos of another animal.",
        f"- It repeats itself: {biases['distinct_captions']} different captions of "
        f"{biases['pictures']:,} photos, from {biases['distinct_words']} words; "
        f'{biases["in_front_of"]} say "in front of".',
    ]


def outside_table(outside: dict) -> str:
    """Markdown: photos that are in no data set, with what is right and wrong in their captions."""
    lines = ["| photo, from | caption | right | wrong | warning |", "|---|---|---|---|---|"]
    lines += [
        f"| {row['file']}, {row['comes_with']} | {row['caption']} | {row['right']} "
        f"| {row['wrong']} | {'yes' if row['warning'] else 'no'} |"
        for row in outside["photos"]
    ]
    return "\n".join(lines)


def with_section(text: str, name: str, section: str) -> str:
    """The text with what stands between the marks of a section replaced."""
    begin, end = f"<!-- {name} begins -->", f"<!-- {name} ends -->"
    if begin not in text or end not in text:
        raise ValueError(f"the card has no lines {begin} and {end}: write them where it belongs")
    head, rest = text.split(begin)
    _, tail = rest.split(end)
    return f"{head}{begin}\n\n{section}\n\n{end}{tail}"


def sections() -> dict[str, str]:
    """The generated sections of the model card."""
    return {
        "judged": judged_table(json.loads(JUDGED.read_text())),
        "outside": outside_table(json.loads(OUTSIDE.read_text())),
        "biases": bias_table(json.loads(BIASES.read_text())),
    }


def write_card() -> None:
    text = CARD.read_text()
    for name, section in sections().items():
        text = with_section(text, name, section)
    CARD.write_text(text)


def main(command: str, *arguments: str) -> None:
    if command == "sheets":
        write_sheets(Path(arguments[0]))
    elif command == "biases":
        write_json(BIASES, measure_biases())
    elif command == "card":
        write_card()
    else:
        raise SystemExit(f"no command {command}: choose sheets, biases or card")


if __name__ == "__main__":
    main(*sys.argv[1:])
