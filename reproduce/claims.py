"""Write `results/claims.json`: the papers' differences of CIDEr that our runs may decide, and ours.

The committed captions are scored again, nothing is trained: python -m reproduce.claims
"""

from collections.abc import Iterator
from statistics import mean
from typing import Any

import numpy as np

from captionlab.data.catalog import load_dataset
from captionlab.files import write_json
from captionlab.metrics.captions import score_runs
from captionlab.metrics.files import read_results
from captionlab.metrics.statistics import bootstrap_counts
from captionlab.runs.results import (
    published_tables,
    result_file,
    results_home,
    seed_deviation,
    seed_spread,
)

from .rows import load_row, result_name

PAPERS = {"position_aware": "Position-Aware", "entangled": "Entangled",
          "image_transformer": "Image Transformer", "captioners": "captioners"}
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


def decidable(protocol: str) -> Iterator[tuple[str, dict[str, Any], list[dict], str]]:
    """Yield the published differences whose rows we have: table, its content, rows and preset.

    Left out are rows that read other kinds of inputs: on scenes some captioners get the true boxes
    and others a grid; on photos CPTR alone has no pretrained backbone.
    """
    published = published_tables()
    chosen = published["protocols"][protocol]
    for name, table in published["tables"].items():
        if table["metric"] != "CIDEr" or (name == "captioners" and protocol == "scenes"):
            continue
        for pair in table["comparisons"]:
            rows = [table["rows"][row] for row in pair]
            if not all("CIDEr" in row["published"] for row in rows):
                continue
            if name == "captioners" and rows[0]["model"] == "cptr":
                continue
            for preset in (chosen["preset"], *OTHER_PRESETS[protocol]):
                if all(load_row(row, chosen, preset)["runs"] for row in rows):
                    yield name, table, rows, preset
                    break


def measure_claims(protocol: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the claims on a data set, with half widths of 95 % intervals, and those left out."""
    chosen = published_tables()["protocols"][protocol]
    found = list(decidable(protocol))
    files = {}      # by the name of a result, those of its runs
    for _, _, rows, preset in found:
        for row in rows:
            name = result_name(row, chosen, preset)
            runs = load_row(row, chosen, preset)["runs"]
            files[name] = [f"{name}.seed{run['seed']}.captions.json" for run in runs]
    captions = {file: read_results(results_home() / file)
                for group in files.values() for file in group}
    items = load_dataset(chosen["data"])["test"]
    references = {item.image_id: list(item.captions) for item in items}
    scored = score_runs(captions, references, meteor=False)
    draws = bootstrap_counts(len(items))            # (1000, B)
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
        means = [mean(run["metrics"]["CIDEr"] for run in load_row(row, chosen, preset)["runs"])
                 for row in rows]
        pictures = [np.mean([scored[file].per_image["CIDEr"] for file in files[one]], 0)
                    for one in names]               # each (B,)
        low, high = np.percentile(draws @ (pictures[0] - pictures[1]) / len(items), (2.5, 97.5))
        seeds = [len(files[one]) for one in names]
        spread = seed_spread(seed_deviation(chosen["data"], rows[0]["stage"]), *seeds)
        claims.append({
            **claim,
            "paper": round(rows[0]["published"]["CIDEr"] - rows[1]["published"]["CIDEr"], 2),
            "ours": round(means[0] - means[1], 2),
            "pictures": round(float(high - low) / 2, 2),
            "seeds": round(spread, 2),
            "runs": seeds,
        })
    return claims, left_out


if __name__ == "__main__":
    claims = []
    left_out = []       # a run of theirs has collapsed
    for protocol in ("photos", "scenes"):
        measured, collapsed = measure_claims(protocol)
        claims += measured
        left_out += collapsed
    write_json(result_file("claims.json"), {"claims": claims, "left_out": left_out})
    print(f"{len(claims)} claims")
