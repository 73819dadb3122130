"""Write `results/claims.json`: published differences of CIDEr that our runs may decide, and ours.

The committed captions are scored again, nothing is trained: python -m reproduce.claims
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain, combinations
from math import sqrt
from statistics import mean, stdev
from typing import Any

import numpy as np

from captionlab.data.catalog import load_dataset
from captionlab.files import load_json, write_json
from captionlab.metrics.captions import score_runs
from captionlab.metrics.files import read_results
from captionlab.metrics.statistics import bootstrap_counts
from captionlab.runs.results import (
    published_tables,
    repeated_results,
    result_file,
    results_home,
    seed_deviation,
    seed_spread,
)

from .rows import Settings, load_row, plan_row, result_name

PAPERS = {"position_aware": "Position-Aware", "entangled": "Entangled",
          "image_transformer": "Image Transformer"}
# Presets whose results count where a pair of rows has none of the protocol's own.
OTHER_PRESETS = {"scenes": (), "photos": ("small", "squeezenet")}
# A run with fewer different captions, as a share of the pictures, has collapsed: a difference
# from it speaks of a training that failed.
LEAST_VARIETY = 0.05


def in_words(paper: str, rows: list[dict[str, Any]]) -> str:
    """Return a difference in words, such as "Entangled: both − regions alone"."""
    first, second = (row["label"] for row in rows)
    stages = [row.get("stage") == "scst" for row in rows]
    if all(stages):
        return f"{PAPERS[paper]}: {first} − {second} (self-critical)"
    first, second = (f"{label}, self-critical" * scst or label
                     for label, scst in zip((first, second), stages, strict=True))
    return f"{PAPERS[paper]}: {first} − {second}"


def preset_of(rows: list[dict[str, Any]], protocol: str) -> str | None:
    """Return the preset with which all rows have runs, None if there is no such preset."""
    chosen = published_tables()["protocols"][protocol]
    for preset in (chosen["preset"], *OTHER_PRESETS[protocol]):
        if all(load_row(row, chosen, preset)["runs"] for row in rows):
            return preset
    return None


def paper_tables() -> dict[str, dict[str, Any]]:
    """Return the tables of CIDEr that are of one paper: not the comparison of its captioners."""
    tables = published_tables()["tables"]
    return {name: table for name, table in tables.items()
            if table["metric"] == "CIDEr" and table["paper"] in PAPERS}


def decidable(protocol: str) -> Iterator[tuple[str, dict[str, Any], list[dict], str]]:
    """Yield the chosen differences that we can measure: table, its content, rows and preset.

    Chosen are the `comparisons` of `tables.json`. Both rows need a published CIDEr and runs.
    """
    for name, table in paper_tables().items():
        for pair in table["comparisons"]:
            rows = [table["rows"][row] for row in pair]
            preset = preset_of(rows, protocol)
            if preset and all("CIDEr" in row["published"] for row in rows):
                yield name, table, rows, preset


def count_pairs(protocol: str) -> int:
    """Return how many pairs of rows the tables have that could have been chosen."""
    return sum("CIDEr" in first["published"] and "CIDEr" in second["published"]
               and preset_of([first, second], protocol) is not None
               for table in paper_tables().values()
               for first, second in combinations(table["rows"].values(), 2))


def training_marks(row: dict[str, Any], chosen: dict[str, Any], preset: str,
                   run: dict[str, Any]) -> set[Any]:
    """Return marks of the trainings behind a run: two runs with a mark in common share one.

    A mark is a command of training (with its seed) at a commit, or the losses of the last stage:
    the same command at another commit may have given the same model.
    """
    steps, _ = plan_row(row, chosen | {"preset": preset}, run["seed"], Settings())
    commit = run.get("trained", run)["commit"]
    name = result_name(row, chosen, preset)
    history = load_json(results_home() / f"{name}.seed{run['seed']}.history.json")
    return {(step.command, commit) for step in steps
            if step.command.startswith("captionlab train ")} | {
                tuple(epoch["loss"] for epoch in history)}


def shared_trainings(rows: list[dict[str, Any]], chosen: dict[str, Any], preset: str) -> bool:
    """Return whether a training stands behind runs of both rows."""
    first, second = (
        set().union(*(training_marks(row, chosen, preset, run)
                      for run in load_row(row, chosen, preset)["runs"]))
        for row in rows)
    return bool(first & second)


def machines_of(runs: list[dict[str, Any]]) -> list[str]:
    """Return the kinds of machine that trained these runs: "CPU", "GPU" or both."""
    machines = [run.get("trained", run)["machine"] for run in runs]
    return sorted({"GPU" if "NVIDIA" in machine else "CPU" for machine in machines})


def paired_spread(first: dict[int, float], second: dict[int, float]) -> float | None:
    """Return the half width of the 95 % interval of a mean difference whose seeds are paired.

    Args:
        first: scores of one row by seed.
        second: of the other row; a seed stands for the same training in both.

    Returns:
        Percentage points, by Student's t; None where it is unknown: with a single seed, or if the
        rows have different ones.
    """
    if first.keys() != second.keys() or len(first) < 2:
        return None
    # The deviation of a difference is that of one row times the root of 2.
    deviation = stdev(first[seed] - second[seed] for seed in first) / sqrt(2)
    return seed_spread((deviation, len(first) - 1), len(first), len(first))


def half_width(values: np.ndarray) -> float:
    """Return half the width of the interval that holds 95 % of the values."""
    low, high = np.percentile(values, (2.5, 97.5))
    return float(high - low) / 2


def own_errors(scores: Sequence[np.ndarray], draws: np.ndarray) -> float:
    """Return the squared half width over pictures that is one training's own.

    Two trainings of a row have nothing but their own errors between them: half of the mean square
    belongs to each. Other seeds exchange these errors, so the chance of seeds has them, too.

    Args:
        scores: of each picture, for each of several trainings of a row, (B,).
        draws: how often each draw of pictures has each, (R, B).
    """
    squares = [half_width(draws @ (first - second) / len(first)) ** 2
               for first, second in combinations(scores, 2)]
    return mean(squares) / 2


def pooled_errors(groups: Sequence[Sequence[np.ndarray]], draws: np.ndarray) -> float:
    """Return `own_errors` over several rows, weighted by degrees of freedom."""
    errors = [own_errors(scores, draws) for scores in groups]
    return float(np.average(errors, weights=[len(scores) - 1 for scores in groups]))


def caption_files(name: str, runs: list[dict[str, Any]]) -> list[str]:
    """Return the files with the captions of a result's runs."""
    return [f"{name}.seed{run['seed']}.captions.json" for run in runs]


def measure_claims(protocol: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the claims on a data set, with half widths of 95 % intervals, and those left out.

    `common` is what is left of `pictures` without the trainings' own errors, which `seeds` has,
    too. Both are None where they are unknown: the rows share a training, with a single seed.
    """
    chosen = published_tables()["protocols"][protocol]
    found = list(decidable(protocol))
    files = {}      # by the name of a result, those of its runs
    for _, _, rows, preset in found:
        for row in rows:
            name = result_name(row, chosen, preset)
            files[name] = caption_files(name, load_row(row, chosen, preset)["runs"])
    repeated = {}   # by stage, the files of each row with several seeds
    for stage in {row["stage"] for _, _, rows, _ in found for row in rows}:
        repeated[stage] = [caption_files(name, runs)
                           for name, runs in repeated_results(chosen["data"], stage).items()]
    captions = {file: read_results(results_home() / file)
                for group in chain(files.values(), *repeated.values()) for file in group}
    items = load_dataset(chosen["data"])["test"]
    references = {item.image_id: list(item.captions) for item in items}
    scored = score_runs(captions, references, meteor=False)
    cider = {file: scores.per_image["CIDEr"] for file, scores in scored.items()}    # each (B,)
    draws = bootstrap_counts(len(items))            # (1000, B)
    of_one_run = {stage: pooled_errors([[cider[file] for file in group] for group in groups], draws)
                  for stage, groups in repeated.items()}
    claims = []
    left_out = []
    for name, table, rows, preset in found:
        claim = {
            "claim": in_words(table["paper"], rows),
            "table": name,
            "rows": [key for row in rows for key in table["rows"] if table["rows"][key] is row],
            "data": protocol,
        }
        names = [result_name(row, chosen, preset) for row in rows]
        if any(len(set(captions[file].values())) < LEAST_VARIETY * len(items)
               for one in names for file in files[one]):
            left_out.append(claim)
            continue
        scores = [{run["seed"]: run["metrics"]["CIDEr"]
                   for run in load_row(row, chosen, preset)["runs"]} for row in rows]
        means = [mean(group.values()) for group in scores]
        pictures = [[cider[file] for file in files[one]] for one in names]
        averages = [np.mean(group, 0) for group in pictures]            # each (B,)
        of_pictures = half_width(draws @ (averages[0] - averages[1]) / len(items))
        seeds = [len(group) for group in scores]
        shared = shared_trainings(rows, chosen, preset)
        if shared:
            spread = paired_spread(*scores)
            own = None if spread is None else own_errors(
                [first - second for first, second in zip(*pictures, strict=True)], draws) / seeds[0]
        else:
            spread = seed_spread(seed_deviation(chosen["data"], rows[0]["stage"]), *seeds)
            own = sum((own_errors(group, draws) if len(group) > 1 else of_one_run[row["stage"]])
                      / len(group) for row, group in zip(rows, pictures, strict=True))
        claims.append({
            **claim,
            "paper": round(rows[0]["published"]["CIDEr"] - rows[1]["published"]["CIDEr"], 2),
            "ours": round(means[0] - means[1], 2),
            "pictures": round(of_pictures, 2),
            "common": None if own is None else round(sqrt(max(0, of_pictures**2 - own)), 2),
            "seeds": None if spread is None else round(spread, 2),
            "shared": shared,
            "runs": seeds,
            "machines": machines_of([run for row in rows
                                     for run in load_row(row, chosen, preset)["runs"]]),
        })
    return claims, left_out


if __name__ == "__main__":
    claims = []
    left_out = []       # a run of theirs has collapsed
    for protocol in ("photos", "scenes"):
        measured, collapsed = measure_claims(protocol)
        claims += measured
        left_out += collapsed
    pairs = {protocol: count_pairs(protocol) for protocol in OTHER_PRESETS}
    write_json(result_file("claims.json"),
               {"claims": claims, "left_out": left_out, "pairs": pairs})
    print(f"{len(claims)} claims {dict(Counter(claim['data'] for claim in claims))} of {pairs} "
          f"pairs, {len(left_out)} left out")
