"""Run every cell of every notebook, from an empty folder; without data unless `--data` is given.

`--wheel` runs against the package as it is installed by pip, not against the clone. Lessons and
solutions run in kernels of their own, library notebooks in forks of one process that has imported
what they need. Cells of five lessons run once more after the end, last one first. Without data the
trainings of six lessons, which take minutes, are cut to one epoch, those of two to few steps.
"""

import argparse
import contextlib
import io
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parent.parent
AGAIN = {"00b", "01", "03", "05", "13"}
SHORT = {"25", "31", "32", "33", "34", "35"}
SHORTEN = """
import dataclasses as _dataclasses
from captionlab.training.loop import Trainer as _Trainer

def _start(trainer, model, data, config, folder=None, *, _start=_Trainer.__init__, **options):
    folder = folder and folder / "short"        # beside the checkpoint of a whole training
    _start(trainer, model, data, _dataclasses.replace(config, epochs=1), folder, **options)

_Trainer.__init__ = _start
"""
FEWER_STEPS = {"07": ("steps=2000", "steps=400"), "43": ("steps=500", "steps=50")}
MINUTES = 20  # after which a cell hangs
PRELOADED = ("captionlab.cli", "captionlab.models", "captionlab.runs", "captionlab.training",
             "captionlab.scenes", "captionlab.deploy", "captionlab.visualise", "nbformat")


def install_wheel(folder: Path) -> None:
    """Build a wheel of the clone and install it, without what it needs, into a folder."""
    source = folder / "source"  # a build in the clone would find modules of an earlier one
    for part in ("captionlab", "results"):
        shutil.copytree(ROOT / part, source / part)
    for part in ("LICENSE", "README.md", "pyproject.toml", "setup.py"):
        shutil.copy(ROOT / part, source)
    pip = [sys.executable, "-m", "pip", "--quiet"]
    build = ["wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder / "wheel", source]
    subprocess.run([*pip, *build], check=True)
    (wheel,) = (folder / "wheel").glob("*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", folder / "site", wheel], check=True)


def run_in_kernel(path: Path, folder: Path) -> None:
    """Run a lesson or its solutions in a fresh kernel; raises at the first cell that fails."""
    notebook = nbformat.read(path, 4)
    client = NotebookClient(notebook, timeout=60 * MINUTES, kernel_name="python3",
                            extra_arguments=["--log-level=ERROR"],
                            resources={"metadata": {"path": str(folder)}})
    numbered = [pair for pair in enumerate(notebook.cells) if pair[1].cell_type == "code"]
    number = path.stem.split("_")[0]
    again = path.parent.name == "nbs" and number in AGAIN
    smoke = os.environ["CAPTIONLAB_RUN"] == "smoke"
    if smoke and number in FEWER_STEPS and path.parent.name == "nbs":
        before, after = FEWER_STEPS[number]
        if not any(before in cell.source for _, cell in numbered):
            raise ValueError(f"no {before} here: its training would run whole")
        for _, cell in numbered:
            cell.source = cell.source.replace(before, after)
    with client.setup_kernel():
        if smoke and number in SHORT:
            client.execute_cell(nbformat.v4.new_code_cell(SHORTEN), 0)
        for place, cell in [*numbered, *(reversed(numbered) if again else ())]:
            client.execute_cell(cell, place)


def run_in_fork(path: Path, folder: Path) -> None:
    """Run a library notebook in a fork of this process; for `python run_all.py --forks`."""
    from IPython.core.interactiveshell import InteractiveShell

    import captionlab

    os.chdir(folder)
    shell = InteractiveShell.instance()
    # Cells that need data print a line where there are none, as in lessons.
    captionlab.course.start_lesson("library", captionlab.__version__, "flickr8k multi30k")
    for place, cell in enumerate(nbformat.read(path, 4).cells):
        if cell.cell_type == "code" and "#| eval: false" not in cell.source:
            result = shell.run_cell(cell.source, store_history=False)
            if not result.success:
                raise RuntimeError(f"cell {place}: {result.error_in_exec or result.error_before_exec!r}")


def serve_forks() -> None:
    """Read lines "notebook, tab, folder", run each in a fork, and answer with a line for each."""
    import importlib

    import matplotlib

    matplotlib.use("agg")
    for name in PRELOADED:
        importlib.import_module(name)
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    sys.stdout = sys.stderr = io.StringIO()
    for line in sys.stdin:
        path, folder = line.rstrip("\n").split("\t")
        child = os.fork()
        if child == 0:
            status = 0
            try:
                run_in_fork(Path(path), Path(folder))
            except BaseException as error:  # noqa: BLE001 - SystemExit of a notebook, too
                Path(folder, "error").write_text(f"{type(error).__name__}: {error}")
                status = 1
            os._exit(status)
        answers.write(f"{os.waitpid(child, 0)[1]}\n")


class Forks:
    """A process that runs library notebooks one after another."""

    def __init__(self) -> None:
        command = [sys.executable, __file__, "--forks"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True, cwd=tempfile.gettempdir())

    def run(self, path: Path, folder: Path) -> None:
        self.process.stdin.write(f"{path}\t{folder}\n")
        self.process.stdin.flush()
        status = self.process.stdout.readline().strip()
        if status != "0":
            error = folder / "error"
            raise RuntimeError(error.read_text() if error.exists() else f"ended with {status!r}")


def run_one(path: Path, forks: Forks) -> tuple[Path, float, str]:
    """Run a notebook; returns it, its seconds, and what went wrong."""
    start = time.perf_counter()
    problem = ""
    with tempfile.TemporaryDirectory() as folder:
        try:
            if "library" in path.parts:
                forks.run(path, Path(folder))
            else:
                run_in_kernel(path, Path(folder))
        except Exception as error:  # noqa: BLE001 - of any cell
            problem = str(error)
    seconds = time.perf_counter() - start
    print(f"{'FAILED' if problem else 'ok':7}{seconds:6.0f} s  {path.relative_to(ROOT / 'nbs')}",
          flush=True)
    return path, seconds, problem


def run_share(paths: list[Path]) -> list[tuple[Path, float, str]]:
    """Take notebooks from a list that others take from, too, until none is left."""
    forks = Forks()
    done = []
    while True:
        try:
            path = paths.pop(0)
        except IndexError:
            forks.process.stdin.close()
            return done
        done.append(run_one(path, forks))


def main() -> int:
    """Run all notebooks, or those whose path contains one of the given words."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--wheel", action="store_true")
    parser.add_argument("--data", action="store_true")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    paths = sorted((ROOT / "nbs").rglob("*.ipynb"), key=lambda path: "library" in path.parts)
    paths = [path for path in paths if ".ipynb_checkpoints" not in path.parts
             and (not options.words or any(word in str(path) for word in options.words))]
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        home = Path(folder)
        os.environ |= {"PYTHONPATH": str(ROOT), "MPLBACKEND": "agg", "TQDM_DISABLE": "1",
                       "IPYTHONDIR": folder}
        # With data the trainings of the last lessons are short, without they are a smoke test.
        os.environ.setdefault("CAPTIONLAB_RUN", "short" if options.data else "smoke")
        if options.wheel:
            install_wheel(home)
            os.environ["PYTHONPATH"] = str(home / "site")
        if not options.data:
            (home / "data").mkdir()
            os.environ["CAPTIONLAB_DATA"] = str(home / "data")
        pool = stack.enter_context(ThreadPoolExecutor(options.jobs))
        done = sum(pool.map(run_share, [paths] * options.jobs), [])
    failed = [(path, problem) for path, _, problem in done if problem]
    for path, problem in failed:
        print(f"\n{path}\n{problem}")
    print(f"{len(done)} notebooks, {len(failed)} failed")
    return int(bool(failed) or not done)


if __name__ == "__main__":
    if sys.argv[1:] == ["--forks"]:
        serve_forks()
    else:
        sys.exit(main())
