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
    "numbers": ["47291", "3.14", "1,250", "10:45", "2026-11-29", "99.9%", "€1299", "1/16"],
    "names": ["Siobhán", "Xiongnu", "Łódź", "Jean-Luc Picard", "NASA", "Ольга", "中村", "McKinsey"],
    "addresses": ["https://example.org/a/b?c=1", "www.wikipedia.org", "jane.doe@mail.com",
                  "@openai_fan", "#nofilter", "report_final.pdf", "ftp://files.net",
                  "C:/temp/x.py"],
    "emoji": ["😀", "👍🏽", "❤️", "🚲🚲", "👩‍💻", "🇩🇪", "☂", "🎉!"],
    "marks": ["…", "(?)", "***", "->", "§ 5", "a/b", "“ok”", "[x]"],
}
SENTENCES = {
    "numbers": ["A man holds a sign with {}.", "The bus number {} stands in the street.",
                "A runner with the number {} jumps.", "{}: two dogs play in the snow."],
    "names": ["A woman named {} sings on a stage.", "{} rides a bike.", "A man from {} reads.",
              "Two children and {} play in the sand."],
    "addresses": ["A man wears a shirt with {}.", "{}: a dog runs on the beach.",
                  "A girl reads {} on a screen.", "Two men sit at a table, see {}"],
    "emoji": ["A dog runs on the beach {}", "{} Two men play football.", "A boy {} jumps.",
              "A woman in a red dress dances. {}"],
    "marks": ["A man {} reads a book.", "{} Two men play football.", "A dog runs on the beach {}",
              "A girl with a sign: {}"],
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
