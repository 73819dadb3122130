"""Everything CI checks, in order, each within its time budget: `make test`."""
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PHASES = [
    # name, minutes it may take, command
    ("library in step with notebooks", 1, [sys.executable, "tests/in_step.py"]),
    ("notebooks", 10, ["nbdev_test", "--n_workers", "2", "--do_print"]),
    ("pytest", 6, [sys.executable, "-m", "pytest", "--numprocesses", "2", "--dist", "loadfile"]),
    ("docs", 3, ["make", "docs"]),
]


def timed(name: str, minutes: float, command: list[str]) -> tuple[str, float, float, bool]:
    """Run one phase, and stop it at twice its budget; one thread a process, for two run side by side."""
    print(f"== {name}: {' '.join(command)}", flush=True)
    start = time.perf_counter()
    try:
        green = subprocess.run(command, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}, timeout=120 * minutes).returncode == 0
    except subprocess.TimeoutExpired:
        green = False
    return name, minutes, (time.perf_counter() - start) / 60, green


def verdict(minutes: float, taken: float, green: bool) -> str:
    if not green:
        return "FAILED"
    return "ok" if taken <= minutes else "OVER BUDGET"


def main() -> int:
    rows = [timed(*phase) for phase in PHASES]
    print("\nTime budget")
    verdicts = [verdict(minutes, taken, green) for _, minutes, taken, green in rows]
    for (name, minutes, taken, _), word in zip(rows, verdicts):
        print(f"  {name:32} {taken:5.1f} of {minutes:2} minutes   {word}")
    return int(any(word != "ok" for word in verdicts))


if __name__ == "__main__":
    sys.exit(main())
