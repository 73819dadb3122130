"""Review questions: the form of the bank, which five a lesson asks, answers, the lessons' cells."""

import json
import re
from collections import Counter

import pytest
from conftest import ROOT

import captionlab
from captionlab.course import read_questions, read_records, spaced_questions

LESSONS = sorted((ROOT / "nbs").glob("[0-9]*.ipynb"))
BANK = read_questions()
QUESTIONS = [question for questions in BANK.values() for question in questions]
ORDER = list(BANK)
OPTIONAL = {"00b"}  # nobody has to read it, so nobody is asked about it


@pytest.fixture(autouse=True)
def records(tmp_path, monkeypatch):
    """A folder for the record of each test."""
    monkeypatch.setattr("captionlab.course.records.cache_home", lambda: tmp_path)


def number_of(lesson):
    """The number of a lesson by its file, as in 11 or 00b."""
    return lesson.name.split("_")[0]


def headings(lesson):
    """The headings of a lesson's sections, without their numbers and without optional parts."""
    found, skipped = [], 7
    for cell in json.loads(lesson.read_text())["cells"]:
        if cell["cell_type"] != "markdown":
            continue
        for marks, title in re.findall(r"^(##+) (.*)$", "".join(cell["source"]), re.M):
            skipped = 7 if len(marks) <= skipped else skipped
            if "optional" in title.lower():
                skipped = min(skipped, len(marks))
            if skipped == 7:
                found.append(re.sub(r"^\d+(\.| ·)? ", "", title).strip())
    return found


# ---- the bank


def test_the_bank_has_the_lessons_in_their_order():
    lessons = {number_of(lesson) for lesson in LESSONS} - OPTIONAL
    assert lessons <= set(ORDER)
    assert sorted(BANK) == ORDER


@pytest.mark.parametrize("lesson", ORDER)
def test_a_lesson_has_four_to_six_questions(lesson):
    assert 4 <= len(BANK[lesson]) <= 6


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.identifier)
def test_a_question_has_its_form(question):
    assert question.question.endswith("?")
    assert len(question.choices) in (3, 4)
    assert len(set(question.choices)) == len(question.choices)
    assert 1 <= question.right <= len(question.choices)
    assert re.fullmatch(r"[^\n]+\.", question.because)
    assert not re.search(r"[.!?] ", question.because), "more than one sentence"
    assert len({choice.endswith(".") for choice in question.choices}) == 1


def test_questions_name_sections_that_nobody_skips():
    stale = []
    for lesson in LESSONS:
        there = headings(lesson)
        own = BANK.get(number_of(lesson), ())
        stale += [(one.identifier, one.section) for one in own if one.section not in there]
    assert not stale


def test_the_right_choice_is_not_given_away():
    for count in (3, 4):
        own = [question.right for question in QUESTIONS if len(question.choices) == count]
        assert max(Counter(own).values()) < 1.4 * len(own) / count
        assert min(Counter(own).values()) > 0.6 * len(own) / count
    longest = [
        max(question.choices, key=len) == question.choices[question.right - 1]
        for question in QUESTIONS
    ]
    assert sum(longest) < 0.55 * len(longest)


# ---- which five


@pytest.mark.parametrize("lesson", ORDER[1:])
def test_five_different_questions_on_earlier_lessons(lesson):
    asked = spaced_questions(lesson)
    assert len({question.identifier for question in asked}) == 5
    assert all(ORDER.index(question.lesson) < ORDER.index(lesson) for question in asked)


def test_no_question_is_asked_twice():
    asked = [question.identifier for lesson in ORDER for question in spaced_questions(lesson)]
    assert len(asked) == 5 * (len(ORDER) - 1)
    assert len(set(asked)) == len(asked)


def test_the_first_lesson_asks_nothing():
    assert spaced_questions(ORDER[0]) == []


@pytest.mark.parametrize("lesson", ORDER[20:])
def test_distances_grow(lesson):
    place = ORDER.index(lesson)
    distances = [place - ORDER.index(question.lesson) for question in spaced_questions(lesson)]
    assert distances[:3] == [1, 2, 4]
    assert min(distances[3:]) >= 6


# ---- answers


def answer(lesson, wrong=()):
    """The right numbers of a lesson's questions, with other ones at some places."""
    return [
        question.right % len(question.choices) + 1 if place in wrong else question.right
        for place, question in enumerate(spaced_questions(lesson))
    ]


def test_without_answers_the_questions_are_shown(capsys):
    captionlab.course.review("05")
    text = capsys.readouterr().out
    for question in spaced_questions("05"):
        assert question.question in text
        assert all(choice in text for choice in question.choices)
        assert question.because not in text
    assert text.count("\nQuestion") == 4
    assert not read_records()["reviews"]


def test_each_answer_is_judged_and_explained(capsys):
    captionlab.course.review("05", answer("05", wrong=(1, 3)))
    lines = capsys.readouterr().out.splitlines()
    assert [line[3:8] for line in lines[:5]] == ["Right", "Not 2", "Right", "Not 1", "Right"]
    for line, question in zip(lines, spaced_questions("05"), strict=False):
        assert question.because in line
        assert f"(lesson {question.lesson}, {question.section})" in line
    assert lines[5] == "3 of 5 right"


def test_the_first_answers_count_and_are_in_the_progress(capsys):
    captionlab.course.review("05", answer("05", wrong=(0,)))
    captionlab.course.review("05", answer("05"))
    entry = read_records()["reviews"]["05"]
    assert entry["right"] == 4
    assert list(entry["answers"]) == [question.identifier for question in spaced_questions("05")]
    capsys.readouterr()
    captionlab.course.progress()
    assert capsys.readouterr().out.endswith("4 of 5 review questions right\n")


@pytest.mark.parametrize(
    ("answers", "problem"),
    [
        ([1, 1, 1, 1], r"lesson 05 asks 5 questions: give a list of as many numbers, not of 4"),
        ([], r"not of 0"),
        ("11111", r"not '11111'"),
        (3, r"not 3"),
        ({1, 2}, r"not \{1, 2\}"),
        ([1, 0, 1, 1, 1], r"answer 2 is a number from 1 to \d, not 0"),
        ([1, 1, 1, 1, 5], r"answer 5 is a number from 1 to \d, not 5"),
        ([1, 1.0, 1, 1, 1], r"not 1\.0"),
        ([1, 1, True, 1, 1], r"not True"),
        ([1, 1, None, 1, 1], r"not None"),
    ],
)
def test_answers_of_another_form_are_one_line(answers, problem):
    with pytest.raises(ValueError, match=problem) as raised:
        captionlab.course.review("05", answers)
    assert "\n" not in str(raised.value)
    assert not read_records()["reviews"]


@pytest.mark.parametrize(
    ("lesson", "problem"), [("00", "is the first"), ("00b", "only for 01"), ("99", "only for 01")]
)
def test_a_lesson_that_asks_nothing_says_so(lesson, problem):
    with pytest.raises(ValueError, match=problem):
        captionlab.course.review(lesson)


# ---- the lessons


def review_cells(lesson):
    """The cells that ask, each with the number of sections before it."""
    found, sections = [], 0
    for cell in json.loads(lesson.read_text())["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            sections += bool(re.search(r"^## ", source, re.M))
        elif "captionlab.course.review(" in source:
            found.append((sections, source, cell["outputs"]))
    return found


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_a_lesson_opens_with_its_five_questions(lesson, capsys):
    number, cells = number_of(lesson), review_cells(lesson)
    if number in OPTIONAL or not spaced_questions(number):
        assert not cells
        return
    [(sections, source, outputs)] = cells
    assert sections == 0, "the questions come before the first section"
    assert source == f'captionlab.course.review("{number}")'
    captionlab.course.review(number)
    shown = "".join("".join(output["data"]["text/plain"]) for output in outputs)
    assert shown == capsys.readouterr().out.rstrip("\n"), "run the cell again"
    html = "".join("".join(output["data"]["text/html"]) for output in outputs)
    rights = [int(right) for right in re.findall(r'data-right="(\d)"', html)]
    assert rights == [question.right for question in spaced_questions(number)], "run it again"
