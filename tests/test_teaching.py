"""The page for teachers: ten sessions whose titles and minutes are those of the lessons."""

import json
import re
import sys

import pytest
from conftest import ROOT

sys.path.insert(0, str(ROOT / "docs"))
import teaching

PAGE = teaching.fill((ROOT / "docs/teaching.md").read_text(), ROOT / "nbs")
SESSIONS = re.findall(r"^### (\d+) · .*?\n(.*?)(?=^##)", PAGE, re.M | re.S)
LESSON = """# 07 · A sample: with a title

**Time** 40 minutes without the exercises. **Needs** nothing.

## Exercises

1. *By hand* (difficulty 1, 5 minutes). Compute.
2. *Count* (difficulty 2, 10 minutes). Count.
"""


@pytest.fixture
def nbs(tmp_path):
    """A course of two lessons."""
    for number, text in {"07": LESSON, "08": LESSON.replace("40", "20")}.items():
        cells = [{"cell_type": "markdown", "source": text.splitlines(keepends=True)}]
        (tmp_path / f"{number}_sample.ipynb").write_text(json.dumps({"cells": cells}))
    return tmp_path


def test_there_are_ten_sessions():
    assert [number for number, _ in SESSIONS] == [str(number) for number in range(1, 11)]


@pytest.mark.parametrize(("number", "text"), SESSIONS, ids=[number for number, _ in SESSIONS])
class TestSession:
    def test_says_what_to_read_to_do_to_assign_and_to_watch_for(self, number, text):
        for part in ("Read before", "In class", "Assign", "Watch for"):
            assert text.count(f"**{part}:**") == 1

    def test_can_be_prepared_in_an_evening(self, number, text):
        reading, assigned = (
            re.search(rf"\*\*{part}:\*\*(.*)", text)[1] for part in ("Read before", "Assign")
        )
        asked_of_all = reading.split("For those who")[0]
        assert 30 <= sum(map(int, re.findall(r"\((\d+) minutes\)", asked_of_all))) <= 150
        assert 15 <= int(re.search(r"; (\d+) minutes\.", assigned)[1]) <= 60


def test_every_mark_and_link_of_the_page_is_resolved():
    assert "{{" not in PAGE
    pages = re.findall(r"\(course/([^)]+)\)", PAGE)
    assert len(pages) > 15
    assert [page for page in pages if not (ROOT / "nbs" / page).exists()] == []


def test_the_front_page_links_to_it():
    front = (ROOT / "docs/index.md").read_text()
    assert "(teaching.md)" in front
    assert "\nteaching\n```" in front


def test_minutes_and_titles_come_from_the_lessons(nbs):
    text = teaching.fill("{{ lessons 07 08 }} {{ exercises 07.2 08.1 }}", nbs)
    assert text == (
        "[lesson 07](course/07_sample.ipynb), *A sample: with a title* (40 minutes); "
        "[lesson 08](course/08_sample.ipynb), *A sample: with a title* (20 minutes); "
        "60 minutes in all. 07.2 *Count*, 08.1 *By hand*; 15 minutes."
    )


def test_a_wrong_exercise_and_a_lesson_without_minutes_are_errors(nbs):
    with pytest.raises(ValueError, match=r"names exercise 07\.3; 07_sample.ipynb has \['1', '2'\]"):
        teaching.fill("{{ exercises 07.3 }}", nbs)
    cells = [{"cell_type": "markdown", "source": ["# 09 · Sample"]}]
    (nbs / "09_sample.ipynb").write_text(json.dumps({"cells": cells}))
    with pytest.raises(ValueError, match=r"09_sample\.ipynb does not say how long it takes"):
        teaching.fill("{{ lessons 09 }}", nbs)
