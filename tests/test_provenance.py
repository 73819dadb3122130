"""Can each result be made again? What the files in results/ say of themselves is checked.

A run's commit is in the history, its command is one that the command line of that commit reads,
what it starts from is packaged or the output of another recorded command, its seconds cover every
stage, and captions of Flickr8k test have been judged by SPICE.
"""

import json
import shlex
import subprocess
import sys
import tarfile
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from io import BytesIO
from itertools import pairwise
from pathlib import Path

import pytest

import captionlab

ROOT = Path(__file__).resolve().parent.parent
PACKAGED = {"photos", "scenes", "translation"}

# Older runs that stay until they are made again, and why they cannot be made from what is recorded.
COMMIT_LOST = {"multi30k/translation-strong-xe.json"}
START_LOST = {
    "flickr8k/vanilla-small-scst.json",  # seeds 1 and 2: the first eight epochs of rewards
    "multi30k/translation-pupil-distilled.json",  # a teacher with dropout 0.3
    "multi30k/translation-strong-distilled.json",  # its teachers' folders had other names
}

# Runs in the folder of the commit: reads argument lists, prints the first error of each or "".
PARSE = """
import json, sys
import click, typer
from captionlab import cli

def read(command, arguments):
    context = command.make_context("captionlab", list(arguments), resilient_parsing=False)
    while isinstance(context.command, click.Group) or hasattr(context.command, "commands"):
        rest = [*getattr(context, "_protected_args", []), *context.args]
        name, command, rest = context.command.resolve_command(context, rest)
        context = command.make_context(name, rest, parent=context)

app = typer.main.get_command(cli.app)
errors = []
for arguments in json.load(sys.stdin):
    try:
        read(app, arguments)
        errors.append("")
    except Exception as error:
        errors.append(getattr(error, "message", "") or repr(error))
print(json.dumps(errors))
"""


@dataclass(frozen=True)
class RecordedRun:
    """One trained and judged model of a result file."""

    file: str  # flickr8k/vanilla-small-xe.json
    result: dict
    run: dict

    def __str__(self) -> str:
        return f"{self.file}, seed {self.run.get('seed')}"

    @property
    def commit(self) -> str:
        """The commit at which the command was typed: the training's, if it has one of its own."""
        trained = self.run.get("trained")
        return (trained or self.run)["commit"]

    @property
    def arguments(self) -> list[str] | None:
        """The command's arguments, None if it is no command of captionlab."""
        words = shlex.split(self.run["command"])
        if words[:3] == ["python", "-m", "captionlab"]:
            return words[3:]
        return words[1:] if words[0] == "captionlab" else None


def recorded_runs(folder: Path = ROOT / "results") -> list[RecordedRun]:
    """Return every run of every result file."""
    runs = []
    for file in sorted(folder.glob("*/*.json")):
        if ".seed" in file.name:
            continue
        result = json.loads(file.read_text())
        if isinstance(result, dict) and isinstance(result.get("runs"), list):
            name = str(file.relative_to(folder))
            runs += [RecordedRun(name, result, run) for run in result["runs"]]
    return runs


def git(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=False)


def parse_at(commit: str, commands: list[list[str]]) -> list[str]:
    """Return for each argument list the error of a commit's command line, "" where it reads it."""
    with tempfile.TemporaryDirectory() as folder:
        archive = git("archive", commit, "captionlab")
        if archive.returncode:
            return [archive.stderr.decode().strip()] * len(commands)
        with tarfile.open(fileobj=BytesIO(archive.stdout)) as files:
            code = [file for file in files if not file.name.startswith("captionlab/checkpoints")]
            files.extractall(folder, code, filter="data")
        done = subprocess.run(
            [sys.executable, "-c", PARSE],
            input=json.dumps(commands),
            cwd=folder,
            env={"PYTHONPATH": folder, "PATH": ""},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        return [done.stderr.strip().splitlines()[-1]] * len(commands)
    return json.loads(done.stdout.splitlines()[-1])


def option(arguments: list[str], name: str) -> list[str]:
    """Return all values that an option has in a command."""
    return [value for flag, value in pairwise(arguments) if flag == name]


def made(run: RecordedRun) -> str | None:
    """Return the name of the run that a recorded command writes; None for other commands."""
    arguments = run.arguments
    if not arguments or arguments[0] != "train":
        return None
    if out := option(arguments, "--out"):
        return Path(out[0]).name
    if start := option(arguments, "--from"):
        return f"{Path(start[0]).name}-scst"
    result = run.result
    variant = option(arguments, "--variant")
    parts = [result["data"], result["model"], *variant, result["preset"], str(run.run["seed"])]
    return "-".join(parts) + ("-distilled" if "--teacher" in arguments else "")


RUNS = recorded_runs()
TRAINED = [run for run in RUNS if run.arguments]

pytestmark = pytest.mark.skipif(
    git("rev-parse", "--is-shallow-repository").stdout.strip() != b"false",
    reason="the history is not here: git fetch --unshallow",
)


def test_commits_are_in_the_history():
    commits = {commit: str(run) for run in RUNS for commit in (run.commit, run.run["commit"])}
    lost = {c for c in commits if git("cat-file", "-e", f"{c}^{{commit}}").returncode}
    files = {run.file for run in RUNS if {run.commit, run.run["commit"]} & lost}
    assert files == COMMIT_LOST


def by_commit() -> dict[str, list[RecordedRun]]:
    groups = defaultdict(list)
    for run in TRAINED:
        if run.file not in COMMIT_LOST:
            groups[run.commit].append(run)
    return groups


@pytest.mark.slow
@pytest.mark.parametrize("commit", sorted(by_commit()))
def test_commands_are_read_by_their_commit(commit):
    runs = by_commit()[commit]
    errors = parse_at(commit, [run.arguments for run in runs])
    assert not [f"{run}: {error}" for run, error in zip(runs, errors, strict=True) if error]


def test_starts_and_teachers_can_be_made():
    known = {made(run) for run in TRAINED} | PACKAGED
    lost = set()
    for run in TRAINED:
        needed = option(run.arguments, "--from") + option(run.arguments, "--teacher")
        if not {Path(name).name for name in needed} <= known:
            lost.add(run.file)
    assert lost == START_LOST


def test_seconds_cover_every_stage():
    """A run that starts from another took longer than that one."""
    seconds = {made(run): run.run.get("train_seconds") for run in TRAINED if made(run)}
    seconds |= {name: captionlab.load(name).metadata.train_seconds for name in PACKAGED}
    for run in TRAINED:
        if run.result.get("stage", "").endswith("scst") and "train_seconds" in run.run:
            start = Path(option(run.arguments, "--from")[0]).name
            assert run.run["train_seconds"] > seconds[start] > 0, run


def test_photos_have_spice():
    for run in RUNS:
        if run.file.startswith("flickr8k/") and "CIDEr" in run.run["metrics"]:
            assert run.run["metrics"]["SPICE"] > 0, run
