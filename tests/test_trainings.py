"""Trainings of lessons: how much is trained, and what is begun, resumed or loaded."""

from types import SimpleNamespace

import pytest

from captionlab.course import run_size, train_or_load

@pytest.mark.parametrize(
    ("variable", "has_gpu", "expected"),
    [
        ("smoke", True, "smoke"),
        ("full", False, "full"),
        ("", True, "full"),
        ("", False, "short"),
    ],
)
def test_the_variable_decides_before_the_machine(variable, has_gpu, expected, monkeypatch):
    monkeypatch.setenv("CAPTIONLAB_RUN", variable)
    monkeypatch.setattr("torch.cuda.is_available", lambda: has_gpu)
    assert run_size() == expected


def test_another_size_is_an_error(monkeypatch):
    monkeypatch.setenv("CAPTIONLAB_RUN", "medium")
    with pytest.raises(ValueError, match=r"CAPTIONLAB_RUN is 'medium'.* full, short, smoke"):
        run_size()


@pytest.fixture
def calls(monkeypatch):
    """What was called in a training, in order; nothing is trained."""
    made = []
    history = [{"epoch": 1, "loss": 2.0}]
    metadata = SimpleNamespace(history=history, train_seconds=3.0)

    def load(folder):
        made.append(("load", folder.name))
        return SimpleNamespace(metadata=metadata)

    def fit(start, data, objective, *, out, resume, on_epoch_end, **settings):
        made.append(("fit", start, data, objective, out.name, resume, settings))
        on_epoch_end(history)

    monkeypatch.setattr("captionlab.load", load)
    monkeypatch.setattr("captionlab.fit", fit)
    monkeypatch.setattr("captionlab.course.trainings.live_plot", lambda: made.append)
    return made


@pytest.mark.parametrize("was_begun", [False, True])
def test_a_training_is_begun_or_goes_on(was_begun, calls, tmp_path):
    out = tmp_path / "run"
    if was_begun:
        out.mkdir()
    train_or_load("start", "data", out=str(out), epochs=2)
    begun, drawn = calls
    assert begun == ("fit", "start", "data", None, "run", was_begun,
                     {"adapt": True, "epochs": 2})
    assert drawn[0]["epoch"] == 1


def test_a_finished_run_is_loaded_and_its_curve_drawn(calls, tmp_path, capsys):
    (tmp_path / "run.json").write_text("{}")
    run = train_or_load("start", "data", out=tmp_path, epochs=2)
    assert calls == [("load", tmp_path.name), run.metadata.history]
    assert "3 seconds" in capsys.readouterr().out
