"""The page for teachers: fills in titles, links and minutes as the lessons state them."""
import json
import re
from dataclasses import dataclass
from pathlib import Path

MARK = re.compile(r"\{\{ (lessons|exercises) ([\d. a-z]+?) \}\}")
TIME = re.compile(r"\*\*Time\*\* (\d+) minutes")
EXERCISE = re.compile(r"^(\d+)\. \*(.+?)\* \(difficulty \d, (\d+) minutes\)", re.M)


@dataclass(frozen=True)
class Lesson:
    """What a lesson says of itself: title, minutes, and of each exercise title and minutes."""
    page: str
    title: str
    minutes: int
    exercises: dict[str, tuple[str, int]]


def read_lesson(path: Path) -> Lesson:
    """A lesson by its notebook.

    Raises:
        ValueError: it does not state its minutes.
    """
    cells = json.loads(path.read_text())["cells"]
    text = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    minutes = TIME.search(text)
    if not minutes:
        raise ValueError(f"{path.name} does not say how long it takes: write **Time** N minutes")
    title = re.sub(r"^# \w+ · ", "", text.split("\n")[0])
    found = {number: (name, int(time)) for number, name, time in EXERCISE.findall(text)}
    return Lesson(path.name, title, int(minutes[1]), found)


def list_lessons(numbers: list[str], nbs: Path) -> str:
    """Links to lessons, with the minutes of each, and of all if there are several."""
    items, total = [], 0
    for number in numbers:
        lesson = read_lesson(*nbs.glob(f"{number}_*.ipynb"))
        items.append(f"[lesson {number}](course/{lesson.page}), *{lesson.title}* ({lesson.minutes} minutes)")
        total += lesson.minutes
    end = f"; {total} minutes in all" if len(items) > 1 else ""
    return "; ".join(items) + end + "."


def list_exercises(identifiers: list[str], nbs: Path) -> str:
    """Exercises with their titles, and the minutes of all.

    Raises:
        ValueError: a lesson has no exercise of this number that states its minutes.
    """
    items, total = [], 0
    for identifier in identifiers:
        number, exercise = identifier.split(".")
        lesson = read_lesson(*nbs.glob(f"{number}_*.ipynb"))
        if exercise not in lesson.exercises:
            raise ValueError(f"docs/teaching.md names exercise {identifier}; {lesson.page} has {sorted(lesson.exercises)}")
        title, minutes = lesson.exercises[exercise]
        items.append(f"{identifier} *{title}*")
        total += minutes
    return f"{', '.join(items)}; {total} minutes."


def fill(text: str, nbs: Path) -> str:
    """The page with its marks replaced."""
    makers = {"lessons": list_lessons, "exercises": list_exercises}
    return MARK.sub(lambda match: makers[match[1]](match[2].split(), nbs), text)
