"""Runs one evaluation, of which `noting` notes what its workers read and how long their steps take.

`python ours.py CONFIG OUTPUT WORKERS`
"""

import sys
import time
from pathlib import Path

from noting import Noting, note

from pbgeval import evaluate, load_config

if __name__ == "__main__":
    config = load_config(Path(sys.argv[1]))
    begun = time.perf_counter()
    evaluate(config, output=Path(sys.argv[2]), workers=int(sys.argv[3]), device="cpu", observer=Noting())
    note("evaluate", time.perf_counter() - begun)
