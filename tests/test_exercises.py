"""Exercises: checks that tell right from wrong, records, predictions; none without a check."""

import ast
import json
import re

import numpy as np
import pytest
from conftest import ROOT

import captionlab
from captionlab.course import (
    Prediction,
    WrongAnswer,
    accept,
    add_rubric,
    assess,
    exercise,
    expect_close,
    expect_equal,
    expect_type,
    get_exercise,
    is_unanswered,
    read_records,
    refuse,
)

HINTS = ("Add.", "Add both.", "2 + 2.")
LESSONS = sorted((ROOT / "nbs").glob("[0-9]*.ipynb"))


@pytest.fixture(autouse=True)
def records(tmp_path, monkeypatch):
    """A folder for the record of each test."""
    monkeypatch.setattr("captionlab.course.records.cache_home", lambda: tmp_path / "cache")
    return tmp_path / "cache/progress.json"


@pytest.fixture
def mean():
    """An exercise, 99.1, whose answer is a function."""

    @exercise("99.1", "Mean", difficulty=1, minutes=2, hints=HINTS)
    def check_mean(answer):
        expect_close(answer([1, 2, 6]), 3, "the mean of 1, 2 and 6")

    return lambda numbers: sum(numbers) / len(numbers)


# ---- checks


def stub(numbers): ...


def documented(numbers):
    """Return the mean."""


class Unfinished:
    def mean(self, numbers):
        pass


@pytest.mark.parametrize("answer", [None, ..., (None, ...), {"a": None}, stub, documented, Unfinished])
def test_an_answer_to_be_written_is_not_wrong(answer, mean, records, capsys):
    captionlab.course.check("99.1", answer)
    assert capsys.readouterr().out == "99.1 not answered yet.\n"
    assert not records.exists()


@pytest.mark.parametrize("answer", [0, "", [], {}, False, lambda: 1, dict, [None, 1], print])
def test_other_answers_are_written(answer):
    assert not is_unanswered(answer)


@pytest.mark.parametrize(
    "answer",
    [17, "three", [1, 2], dict, lambda: 3, lambda numbers: 1 / 0, lambda numbers: "3", b"", {1, 2}],
)
def test_every_wrong_answer_gets_one_line(answer, mean, capsys):
    captionlab.course.check("99.1", answer)
    output = capsys.readouterr().out
    assert output.startswith("99.1 wrong: ")
    assert output.count("\n") == 1
    assert "Traceback" not in output


def test_a_right_answer_is_recorded_and_stays_solved(mean, capsys):
    for answer in (sum, mean, sum):
        captionlab.course.check("99.1", answer)
    assert capsys.readouterr().out.splitlines()[1] == "99.1 right."
    assert read_records()["exercises"]["99.1"] == {"tries": 3, "right": True}


def test_a_long_message_is_cut():
    @exercise("99.2", "Long", difficulty=1, minutes=2, hints=HINTS)
    def check_long(answer):
        raise WrongAnswer("word\n" * 1000)

    assert len(assess("99.2", 1).message) < 320
    assert "\n" not in assess("99.2", 1).message


@pytest.mark.parametrize("identifier", ["99.77", "11.99", "1.1", "11", 11.1, "11.p1"])
def test_an_unknown_number_is_an_error(identifier):
    with pytest.raises(ValueError, match=r"no exercise|a number such as"):
        captionlab.course.check(identifier, 1)


def test_the_error_lists_the_exercises_of_the_lesson():
    with pytest.raises(ValueError, match=r"lesson 11 has 11\.1, 11\.2, 11\.3, 11\.4, 11\.5$"):
        get_exercise("11.99")


# ---- tests of checks


def test_a_solution_that_fails_is_an_error(mean):
    accept("99.1", mean, lambda numbers: sum(numbers) / 3)
    with pytest.raises(AssertionError, match="the mean of 1, 2 and 6 is too large"):
        accept("99.1", sum)
    with pytest.raises(AssertionError, match="the mean of 1, 2 and 6 is too large"):
        accept("99.1", mean, sum)
    with pytest.raises(AssertionError, match="not answered"):
        accept("99.1", None)


@pytest.mark.parametrize(
    ("answers", "problem"),
    [
        ({"a": sum, "b": lambda numbers: 3}, "does not refuse: b"),
        ({"a": sum, "b": None}, "does not refuse: b"),
        ({"a": sum, "b": lambda numbers: 9}, "the same of 2 wrong answers"),
    ],
)
def test_wrong_answers_must_fail_each_with_its_line(answers, problem, mean):
    with pytest.raises(AssertionError, match=problem):
        refuse("99.1", answers)
    refuse("99.1", {"a": sum, "b": max})


@pytest.mark.parametrize(
    ("comparison", "arguments", "message"),
    [
        (expect_close, (0.7, 0.5), "too large: 0.7"),
        (expect_close, (0.2, 0.5), "too small: 0.2"),
        (expect_close, ("0.5", 0.5), "one number, not a str"),
        (expect_close, ([0.5, "x"], [0.5, 1]), "not a list"),
        (expect_close, ([1, 2, 3], [1, 2]), r"its shape is \(3,\)"),
        (expect_close, ([1.0, 3.0], [1, 2]), "1 of 2 numbers are wrong, the first at 1"),
        (expect_close, ([float("nan")], [1]), "NaN"),
        (expect_equal, ([1, 2, 2], {1, 3}), "lacks 1 and has 1"),
        (expect_equal, ((1, 2), [1, 3]), "from position 1"),
        (expect_equal, ((1, 2), [1]), "length 2, expected 1"),
        (expect_equal, ({"a": 1}, {"a": 2, "b": 1}), r"wrong for \['a', 'b'\]"),
        (expect_equal, ("left", "right"), "'left'"),
        (expect_equal, (1, "right"), "a str, not an int"),
        (expect_type, (True, int, "a number"), "a number, not a bool"),
    ],
)
def test_comparisons_say_what_differs(comparison, arguments, message):
    with pytest.raises(WrongAnswer, match=message):
        comparison(*arguments)


@pytest.mark.parametrize(
    ("actual", "expected"),
    [
        ("Both alike. ", "both alike"),
        (np.array([True, False]), (True, False)),
        ([["A", 1]], {("a", 1)}),
        (range(3), {0, 1, 2}),
        ("No full stop.", {"no full stop"}),
    ],
)
def test_the_form_of_an_answer_does_not_matter(actual, expected):
    expect_equal(actual, expected)


def test_a_misconception_has_its_own_line():
    with pytest.raises(WrongAnswer, match="^divide by the root$"):
        expect_close([2.0], [1.0], misconceptions={"divide by the root": [2.0]})
    expect_close([1.0], [1.0], misconceptions={"divide by the root": [2.0]})


# ---- registration


@pytest.mark.parametrize(
    "changes",
    [
        {"difficulty": 4},
        {"hints": HINTS[:2]},
        {"hints": (HINTS[0],) * 3},
        {"criteria": ()},
    ],
)
def test_an_incomplete_exercise_is_an_error(changes):
    entry = {"difficulty": 1, "minutes": 1, "hints": HINTS, "criteria": ("says why",)} | changes
    with pytest.raises(ValueError, match=r"99\.3"):
        add_rubric("99.3", "Why", **entry)


# ---- guidance and progress


def test_there_are_three_hints_one_per_call(capsys):
    for _ in range(4):
        captionlab.course.hint("11.1")
    lines = capsys.readouterr().out.splitlines()
    assert [line[:17] for line in lines if "hint" in line[:12]] == [
        f"11.1, hint {number} of 3" for number in (1, 2, 3, 1)
    ]
    assert "captionlab.course.solution" in lines[3]
    assert read_records()["exercises"]["11.1"]["hints"] == 3


def test_the_solution_is_that_of_the_exercise(capsys):
    captionlab.course.solution("11.5")
    text = capsys.readouterr().out
    assert text.startswith("## 5 · Say more")
    assert "stated |= facts_of[best]" in text
    assert "@exercise" not in text
    captionlab.course.solution("11.1")
    assert "## 2" not in capsys.readouterr().out


def test_a_rubric_lists_criteria(capsys):
    criteria = ("names commutativity", "has an example")
    add_rubric("99.4", "Why", difficulty=1, minutes=1, hints=HINTS, criteria=criteria)
    captionlab.course.check("99.4", "since sums commute")
    captionlab.course.rubric("99.4", answer="since sums commute")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == '99.4 judge it yourself: captionlab.course.rubric("99.4", answer)'
    assert lines[2:] == ["[ ] names commutativity", "[ ] has an example"]
    captionlab.course.rubric("99.4", answer=" ")
    assert "commutativity" not in capsys.readouterr().out


@pytest.mark.parametrize("content", ["{", "[]", '{"exercises": 1}', '{"exercises": [], "predictions": 3}'])
def test_a_broken_record_is_begun_anew(content, mean, records, capsys):
    records.parent.mkdir()
    records.write_text(content)
    captionlab.course.check("99.1", mean)
    assert read_records()["exercises"]["99.1"]["right"]


def test_a_record_that_cannot_be_written_does_not_stop_a_lesson(mean, records, capsys):
    records.parent.write_text("a file where the folder should be")
    captionlab.course.check("99.1", mean)
    assert capsys.readouterr().out.splitlines()[-1] == "99.1 right."


def test_progress_counts_exercises_and_predictions(capsys):
    captionlab.course.progress()
    assert "nothing yet" in capsys.readouterr().out
    captionlab.course.check("11.3", {"by hand"})
    captionlab.course.predict("11.p1", {"none": "", "two": ""}, "A", choice="B")
    capsys.readouterr()
    captionlab.course.progress()
    line = "lesson 11: 1 of 5 exercises solved, 0 of 1 predictions right\n"
    assert capsys.readouterr().out == line
    captionlab.course.progress("11")
    assert "11.3   solved  A wrong ending (difficulty 3, 15 min)" in capsys.readouterr().out


# ---- predictions

CHOICES = {"one": "It is larger.", "two": "Two & no more."}


def test_the_first_prediction_counts(capsys):
    for choice in ("A", "B"):
        captionlab.course.predict("99.p1", CHOICES, right="B", choice=choice)
    assert read_records()["predictions"]["99.p1"] == {"choice": "one", "right": False}
    shown = capsys.readouterr().out
    assert "You predict A. Not quite. It is larger." in shown
    assert "You predict B. Right. Two & no more. (Your first prediction counts: “one”.)" in shown


def test_without_interaction_the_choices_are_shown(capsys, records):
    captionlab.course.predict("99.p1", CHOICES, right="B")
    assert capsys.readouterr().out.splitlines()[:2] == ["A  one", "B  two"]
    assert not records.exists()


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"identifier": "99.1"}, "11.p1"),
        ({"right": "C"}, "the letter of the right one"),
        ({"choices": {"one": ""}}, "two choices"),
        ({"choice": "3"}, "one of A, B, not '3'"),
    ],
)
def test_a_faulty_question_is_an_error(arguments, problem):
    usual = {"identifier": "99.p1", "choices": CHOICES, "right": "A"}
    with pytest.raises(ValueError, match=problem):
        captionlab.course.predict(**(usual | arguments))


# ---- the course


def cells(path, kind):
    notebook = json.loads(path.read_text())
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == kind]


def calls(path):
    """The calls in a notebook's cells whose first argument is a string: name, string, call."""
    found = []
    for source in cells(path, "code"):
        lines = [line for line in source.splitlines() if not re.match(r"\s*[%!]", line)]
        for node in ast.walk(ast.parse("\n".join(lines))):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            first = node.args[0]
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                name = ast.unparse(node.func).removeprefix("captionlab.course.")
                found.append((name, first.value, node))
    return found


def number_of(lesson):
    """The number of a lesson by its file, as in 11 or 00b."""
    return lesson.name.split("_")[0]


def asked(lesson):
    """The numbers of the exercises that a lesson asks, as in 11.1."""
    text = "\n".join(cells(lesson, "markdown")).split("## Exercises")[-1].split("## Summary")[0]
    return [f"{number_of(lesson)}.{number}" for number in re.findall(r"^(\d+)\. ", text, re.M)]


def solutions(lesson):
    return lesson.parent / "solutions" / lesson.name


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_every_check_refuses_three_answers_and_accepts_two_other_forms(lesson):
    made = calls(solutions(lesson))
    wrong = {first: len(call.args[1].keys) for name, first, call in made if name == "refuse"}
    others = {first: len(call.args) - 2 for name, first, call in made if name == "accept"}
    rubrics = {first for name, first, _ in made if name == "add_rubric"}
    for one in asked(lesson):
        enough = wrong.get(one, 0) >= 3 and others.get(one, 0) >= 2
        assert one in rubrics or enough, f"{one}: {wrong.get(one)} wrong, {others.get(one)} right"


def with_checks():
    """The lessons whose solutions export checks."""
    files = (ROOT / "captionlab/course").glob("lesson_*.py")
    modules = {path.stem.removeprefix("lesson_") for path in files}
    return [lesson for lesson in LESSONS if number_of(lesson) in modules]


@pytest.mark.parametrize("lesson", with_checks(), ids=lambda path: path.stem)
class TestLessonWithChecks:
    def test_has_a_cell_for_each_exercise(self, lesson):
        used = {(name, first) for name, first, _ in calls(lesson)}
        made = calls(solutions(lesson))
        rubrics = {first for name, first, _ in made if name == "add_rubric"}
        wanted = {("rubric" if one in rubrics else "check", one) for one in asked(lesson)}
        assert wanted <= used

    def test_says_how_hard_and_how_long_each_is(self, lesson):
        text = "\n".join(cells(lesson, "markdown")).split("## Exercises")[1]
        stated = re.findall(r"^(\d+)\. \*.*?\* \(difficulty (\d), (\d+) minutes\)", text, re.M)
        registered = []
        for name, first, call in calls(solutions(lesson)):
            if name in ("exercise", "add_rubric"):
                options = {one.arg: ast.unparse(one.value) for one in call.keywords}
                registered.append((first.split(".")[1], options["difficulty"], options["minutes"]))
        assert stated == sorted(registered, key=lambda entry: int(entry[0]))

    def test_ends_with_the_tally(self, lesson):
        assert ("progress", number_of(lesson)) in {(name, first) for name, first, _ in calls(lesson)}


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_every_prediction_has_a_right_choice_and_a_question(lesson):
    made = [(first, call) for name, first, call in calls(lesson) if name == "predict"]
    assert [first for first, _ in made] == [
        f"{number_of(lesson)}.p{number}" for number in range(1, len(made) + 1)
    ]
    for first, call in made:
        (right,) = [one.value.value for one in call.keywords if one.arg == "right"]
        Prediction(first, ast.literal_eval(call.args[1]), right)
    previous = ""
    for cell in json.loads(lesson.read_text())["cells"]:
        source = "".join(cell["source"])
        if re.match(r"captionlab\.course\.predict\(", source):
            assert previous.strip().split("\n\n")[-1].startswith("> **Predict.**"), source
        previous = source
