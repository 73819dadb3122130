"""Everything CI checks, in order: `make test`.

Time budgets are printed; whether it passes depends on what the phases find alone.
"""

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parent.parent
LIMIT = 10  # a phase that takes so many times its budget hangs, and is stopped
GRACE = 5  # seconds between the request to end and the kill


@dataclass(frozen=True)
class Phase:
    """A command that checks something, and the minutes it should take on two cores."""

    name: str
    minutes: float
    command: list[str]


@dataclass(frozen=True)
class Outcome:
    """What became of a phase: "ok", "FAILED" or "STOPPED", after so many minutes."""

    phase: Phase
    minutes: float
    verdict: str

    def __str__(self) -> str:
        over = self.verdict == "ok" and self.minutes > self.phase.minutes
        return (
            f"{self.phase.name:32} {self.minutes:5.1f} of {self.phase.minutes:2} minutes   "
            f"{self.verdict}{', over its budget' if over else ''}"
        )


PHASES = [
    Phase("library in step with notebooks", 1, [sys.executable, "tests/in_step.py"]),
    Phase("every notebook without data", 20, [sys.executable, "tests/run_all.py", "--wheel"]),
    Phase("docs", 3, ["make", "docs"]),
    Phase(  # after the site: its tests read it, and fail if it or a browser is missing
        "pytest", 10, [sys.executable, "-m", "pytest", "--numprocesses", "2", "--dist", "loadfile"]
    ),
]


def run_phase(phase: Phase) -> Outcome:
    """Run one phase in a session of its own; no process of it survives, however this ends."""
    print(f"== {phase.name}: {' '.join(phase.command)}", flush=True)
    start = time.perf_counter()
    # Two processes run side by side, on two cores.
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CAPTIONLAB_BROWSER": "required"}
    process = subprocess.Popen(phase.command, cwd=ROOT, env=environment, start_new_session=True)
    try:
        verdict = "ok" if process.wait(60 * LIMIT * phase.minutes) == 0 else "FAILED"
    except subprocess.TimeoutExpired:
        verdict = "STOPPED"
    finally:
        stop(process)
    return Outcome(phase, (time.perf_counter() - start) / 60, verdict)


def stop(process: subprocess.Popen) -> None:
    """End a process, its group, and descendants with a group of their own, as kernels have."""
    processes = descendants(process.pid)
    for sent in (signal.SIGTERM, signal.SIGKILL):
        processes += group(process.pid)
        for one in processes:
            try:
                one.send_signal(sent)
            except psutil.NoSuchProcess:
                continue
        processes = psutil.wait_procs(processes, timeout=GRACE)[1]
    process.wait()


def descendants(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def group(leader: int) -> list[psutil.Process]:
    """The processes of a group, without those that are dead and only wait to be collected."""
    members = []
    for process in psutil.process_iter():
        try:
            if os.getpgid(process.pid) == leader and process.status() != psutil.STATUS_ZOMBIE:
                members.append(process)
        except (ProcessLookupError, PermissionError, psutil.Error):
            continue
    return members


def interrupt(number: int, frame: object) -> None:
    """A signal ends the program as an exception would, so that its phase is stopped first."""
    signal.signal(number, signal.SIG_IGN)  # a second one must not break off the clearing up
    print(f"\nstopped by {signal.Signals(number).name}", flush=True)
    sys.exit(128 + number)


def main(phases: list[Phase]) -> int:
    """Run all phases; returns the exit status, 0 if each came to its end and found nothing."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)
    outcomes = [run_phase(phase) for phase in phases]
    print("\nTime budget, for information")
    for outcome in outcomes:
        print(f"  {outcome}")
    return int(any(outcome.verdict != "ok" for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main(PHASES))
