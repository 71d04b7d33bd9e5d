"""Files that would take years or gigabytes to read, opened by a process of its own that limits itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType


def opened(bombs: ModuleType, folder: Path) -> tuple[subprocess.CompletedProcess[str], list[list[str]]]:
    """Run a module of bombs in a folder; return how it ended, and the columns of its lines."""
    done = subprocess.run(
        [sys.executable, "-m", bombs.__name__, str(folder)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    return done, [line.split("\t") for line in done.stdout.splitlines()]
