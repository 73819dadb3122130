"""Differences between the rows of the papers' tables, with intervals over pictures and seeds.

Writes `all.differences.json` under `results/scenes/` and `results/flickr8k/` from the committed
captions, without training, and the papers' claims among them into `results/claims.json`:
python -m benchmarks.tables.differences [scenes|photos ...]
"""

import sys

from captionlab.files import write_json
from captionlab.runs.differences import (
    difference_to_dict,
    differences_file,
    measure_differences,
)
from captionlab.runs.paper_tables import paper_claims
from captionlab.runs.results import result_file
from captionlab.runs.tables import PROTOCOLS, find_protocol

def main(protocols: list[str]) -> None:
    for name in protocols:
        data = find_protocol(name).data
        differences = measure_differences(name)
        content = {
            "data": data,
            "split": "test",
            "scorer": {"CIDEr": "CIDEr-D after PTBTokenizer", "truth": "captionlab.scenes, exact"},
            "bootstrap": {"level": 95, "resamples": 1000, "seed": 0},
            "rows": [difference_to_dict(one) for one in differences],
        }
        write_json(differences_file(name), content)
        print(f"{len(differences)} differences of {data}: {differences_file(name)}")
    claims = [claim for name in ("photos", "scenes") for claim in paper_claims(name)]
    write_json(result_file("claims.json"), {"claims": claims})
    print(f"{len(claims)} claims")


if __name__ == "__main__":
    main(sys.argv[1:] or list(PROTOCOLS))
