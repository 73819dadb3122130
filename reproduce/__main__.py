"""Train and judge the rows of a paper's table, and print them beside the committed ones.

python -m reproduce                                       lists tables and rows
python -m reproduce eta-2 --row visual [--data photos]    trains with each seed of the protocol
python -m reproduce eta-2 --commands                      prints the steps instead of running them
"""

from pathlib import Path
from statistics import mean
from typing import Annotated, Any

import typer

from captionlab.runs.results import published_tables

from .rows import Settings, compare, judge_row, load_row, plan_row

def find(kind: str, name: str, choices: dict[str, Any]) -> Any:
    """Return what has a name; a `ValueError` lists the names if nothing has it."""
    if name not in choices:
        raise ValueError(f"no {kind} {name!r}: choose from {', '.join(choices)}")
    return choices[name]


def number(value: float | None) -> str:
    """Return a number in seven columns, a dash for none."""
    return f"{'–':>7}" if value is None else f"{value:7.1f}"


def reproduce(
    table: Annotated[str | None, typer.Argument(metavar="TABLE")] = None,
    row: Annotated[str | None, typer.Option(help="One row; all by default.")] = None,
    data: Annotated[str, typer.Option(help="scenes or photos")] = "scenes",
    *,
    seed: Annotated[list[int] | None, typer.Option(
        min=0, help="Of the runs; repeatable; all of the protocol by default.")] = None,
    runs: Annotated[Path, typer.Option(
        help="Folder of the runs; those that are there are not trained again.")]
    = Path("runs/reproduced"),
    device: Annotated[str | None, typer.Option(help="cpu, cuda or mps")] = None,
    detector: Annotated[Path | None, typer.Option(
        help="Of attributes; one is trained by default.")] = None,
    change: Annotated[list[str] | None, typer.Option(
        "--set", metavar="NAME=VALUE", help="Another value of the presets; repeatable.")] = None,
    commands: Annotated[bool, typer.Option(
        "--commands", help="Print the commands of each step instead of running them.")] = False,
    json: Annotated[bool, typer.Option(
        "--json", help="Write result files under results/.")] = False,
) -> None:
    """Train and judge rows of a paper's table, and compare them with the committed ones."""
    published = published_tables()
    if table is None:
        for name, one in published["tables"].items():
            print(f"{name:10} {one['title']}\n{'':10} rows: {', '.join(one['rows'])}")
        return
    plan = find("table", table, published["tables"])
    protocol = find("protocol", data, published["protocols"])
    rows = {row: find(f"row of {table}", row, plan["rows"])} if row else plan["rows"]
    seeds = seed or protocol["seeds"]
    where = Settings(runs, device, detector, change or ())
    if commands:
        steps = [step.command for one in rows.values() if row or "model" in one
                 for number in seeds for step in plan_row(one, protocol, number, where)[0]]
        print("\n".join(dict.fromkeys(steps)))
        return
    print(f"{plan['title']}; CIDEr on {protocol['data']}, preset {protocol['preset']}\n"
          f"{'row':20} {'paper':>7} {'committed':>9} {'ours':>7} {'± seeds':>7}")
    differing = 0
    for name, one in rows.items():
        paper = number(one["published"].get("CIDEr"))
        if "model" not in one and not row:
            print(f"{name:20} {paper}   not run: captionlab has no such model")
            continue
        committed = [run["metrics"]["CIDEr"] for run in load_row(one, protocol)["runs"]]
        measured = [judge_row(one, protocol, number, where, write=json) for number in seeds]
        allowed, verdict = compare(measured, committed)
        print(f"{name:20} {paper}   {number(mean(committed) if committed else None)} "
              f"{number(mean(measured))} {number(allowed)}   {verdict}", flush=True)
        differing += verdict == "differs"
    if differing:
        raise SystemExit(f"rows that differ by more than their seeds: {differing}")


if __name__ == "__main__":
    try:
        typer.run(reproduce)
    except (ValueError, OSError, RuntimeError) as error:
        raise SystemExit(f"reproduce: {error}") from None
