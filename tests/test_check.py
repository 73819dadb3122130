"""`make test` itself: what its verdict depends on, and that no process of it survives."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from check import Phase, main, run_phase, stop

PATIENCE = 300  # seconds after which a test gives up, far above what even a busy machine needs
# Starts a child in its group and one in a session of its own, notes their ids, and waits for ever.
HANGS = """
import pathlib, subprocess, sys, time
wait = [sys.executable, "-c", "import time; time.sleep(3600)"]
children = [subprocess.Popen(wait), subprocess.Popen(wait, start_new_session=True)]
file = pathlib.Path(sys.argv[1])
file.with_suffix(".new").write_text(" ".join(str(child.pid) for child in children))
file.with_suffix(".new").rename(file)
time.sleep(3600)
"""

# Takes no notice of the request to end.
DEAF = """
import pathlib, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path(sys.argv[1]).touch()
time.sleep(3600)
"""
# Ends, and leaves a child behind.
LEAVES = """
import pathlib, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
pathlib.Path(sys.argv[1]).write_text(str(child.pid))
"""
DRIVER = """
import sys
from check import Phase, main
sys.exit(main([Phase("hangs", 60, sys.argv[1:])]))
"""


def python(code: str, *arguments: object, minutes: float = 60) -> Phase:
    return Phase("a phase", minutes, [sys.executable, "-c", code, *map(str, arguments)])


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_until(condition) -> bool:
    end = time.monotonic() + PATIENCE
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


def children_of(file: Path) -> list[int]:
    assert wait_until(file.exists)
    return [int(pid) for pid in file.read_text().split()]


@pytest.fixture
def handlers():
    """Puts back the handlers that `main` replaces."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.mark.parametrize(("minutes", "over"), [(1e-9, True), (60, False)])
def test_a_phase_over_its_budget_passes(minutes, over, handlers, monkeypatch, capfd):
    monkeypatch.setattr("check.LIMIT", 1e12)
    assert main([python("pass", minutes=minutes)]) == 0
    assert ("ok, over its budget" in capfd.readouterr().out) is over


def test_a_failing_phase_fails_and_the_others_still_run(handlers, capfd):
    assert main([python("raise SystemExit(3)"), python("print('second')")]) == 1
    text = capfd.readouterr().out
    assert "FAILED" in text
    assert "second" in text


def test_a_phase_at_its_limit_is_stopped(handlers, capfd):
    assert main([python("import time; time.sleep(3600)", minutes=0.0005)]) == 1
    assert "STOPPED" in capfd.readouterr().out


@pytest.mark.slow
def test_stop_ends_group_and_other_sessions(tmp_path):
    phase = python(HANGS, tmp_path / "pids")
    process = subprocess.Popen(phase.command, start_new_session=True)
    pids = [process.pid, *children_of(tmp_path / "pids")]
    assert all(is_running(pid) for pid in pids)
    stop(process)
    assert not any(is_running(pid) for pid in pids)


@pytest.mark.slow
def test_stop_ends_what_does_not_listen(tmp_path, monkeypatch):
    monkeypatch.setattr("check.GRACE", 0.1)
    process = subprocess.Popen(python(DEAF, tmp_path / "deaf").command, start_new_session=True)
    assert wait_until((tmp_path / "deaf").exists)
    stop(process)
    assert not is_running(process.pid)


@pytest.mark.slow
def test_workers_left_by_a_phase_that_ends_are_ended(tmp_path):
    assert run_phase(python(LEAVES, tmp_path / "pids")).verdict == "ok"
    assert not any(is_running(pid) for pid in children_of(tmp_path / "pids"))


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_everything(tmp_path, number):
    command = [sys.executable, "-c", DRIVER, *python(HANGS, tmp_path / "pids").command]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    pids = children_of(tmp_path / "pids")
    process.send_signal(number)
    assert process.wait(PATIENCE) == 128 + number
    assert not any(is_running(pid) for pid in pids)
