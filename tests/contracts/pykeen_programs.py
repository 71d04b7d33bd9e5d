"""Runs what the tests want of PyKEEN in one process of the peer's Python: its import takes longer than most parts.

Its command line: `.venv-peers/pykeen/bin/python pykeen_programs.py FOLDER`. Each part writes to a folder of its name.
"""

import gc
import sys
from pathlib import Path

from tests.contracts import pykeen_monitored, pykeen_pipeline, pykeen_trained

if __name__ == "__main__":
    gc.freeze()  # PyKEEN collects garbage at the end of each epoch, and what is imported is much
    parts = {"pipeline": pykeen_pipeline, "trained": pykeen_trained, "monitored": pykeen_monitored}
    for name, part in parts.items():
        folder = Path(sys.argv[1]) / name
        folder.mkdir()
        part.main(folder)
