"""Runs one evaluation, of which `noting` notes what its workers read of the model.

`python ours.py CONFIG OUTPUT WORKERS`
"""

import sys
from pathlib import Path

from noting import Noting

from pbgeval import evaluate, load_config

if __name__ == "__main__":
    config, output, workers = load_config(Path(sys.argv[1])), Path(sys.argv[2]), int(sys.argv[3])
    evaluate(config, output=output, workers=workers, device="cpu", observer=Noting())
