"""How many of 200 lines does a translator give with their names, numbers or addresses whole?

    python -m benchmarks.copied_lines [RUN]

Eight values of each of five kinds stand in five sentences each; the last of these is the value
alone. A line counts if its value stands in the translation as it is, and a value without letters
alone if it is the whole translation. None of the values is in Multi30K's training sentences, and
none was made by `captionlab.data.copied_words`, from which a translator learns to copy.
"""

import sys
from collections.abc import Iterator

import captionlab

VALUES = {
    "numbers": ["80316", "2.718", "12,500", "23:59", "1984-06-04", "7.5%", "£399", "3/4"],
    "names": ["Zoë", "Ouagadougou", "Škoda", "Anne-Marie Dubois", "UNESCO", "Мария", "東京",
              "O'Connor"],
    "addresses": ["http://www.bbc.co.uk/news", "github.com/python", "info@museum.org",
                  "@the_big_dog", "#streetphotography", "holiday_photos.zip",
                  "ftp://ftp.gnu.org/old", "/home/user/notes.md"],
    "emoji": ["😂", "👋🏿", "✌️", "🌊🌊🌊", "👨‍🍳", "🇧🇷", "★", "🔥?"],
    "marks": ["»", "(!!)", "~~~", "=>", "§ 12", "and/or", "«bonjour»", "{y}"],
}
SENTENCES = {
    "numbers": ["A taxi with the number {} waits.", "A boy in a shirt with {} on it kicks a ball.",
                "The clock on the wall shows {}.", "A woman sells fruit for {} at a market."],
    "names": ["{} is playing the guitar.", "A dog named {} catches a ball.",
              "People from {} dance in the street.", "A man talks to {} in a kitchen."],
    "addresses": ["A poster with {} hangs on a wall.", "A man types {} on his laptop.",
                  "Photo of two girls by {}", "{} - a child sleeps on a couch."],
    "emoji": ["A child eats ice cream {}", "{} A cyclist rides down a hill.",
              "Two girls {} laugh.", "The man in the hat sings. {} Good!"],
    "marks": ["A child {} eats an apple.", "{} A man rides a horse.",
              "People wait for a bus {}", "A man holds a sign that says {}."],
}


def lines() -> Iterator[tuple[str, str, str]]:
    """Yield the kind, the value and the line of each of the 200."""
    for kind, values in VALUES.items():
        for value in values:
            for sentence in [*SENTENCES[kind], "{}"]:
                yield kind, value, sentence.format(value)


def is_whole(value: str, line: str, translation: str) -> bool:
    """Return whether a translation has the value of its line as it is."""
    if line == value and not any(map(str.isalpha, value)):
        return translation == value
    return value in translation


def main(name: str = "translation") -> None:
    """Print the lines that a run fails, and how many of each kind come through."""
    rows = list(lines())
    translations = captionlab.load(name).translate([line for _, _, line in rows], beam=5)
    whole = dict.fromkeys(VALUES, 0)
    for (kind, value, line), translation in zip(rows, translations, strict=True):
        if is_whole(value, line, translation):
            whole[kind] += 1
        else:
            print(f"{line}  →  {translation}")
    print(whole, "together", sum(whole.values()), "of", len(rows))


if __name__ == "__main__":
    main(*sys.argv[1:2])
