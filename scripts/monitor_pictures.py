"""Runs under the monitor -> the pictures of docs/monitor.md, as `kgeval-dist monitor` draws them.

    .venv/bin/python -m scripts.monitor_pictures    # overfits.png and well_mixed.png

They are the runs of tests/laws/test_overfitting_is_noticed.py with seed 0.
"""

from __future__ import annotations

import argparse
import io
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

from tests.kit.training import MIXED, OVERFIT, train

NUM_COLORS = 128  # lines and text on white need no more
PICTURES = Path(__file__).resolve().parent.parent / "docs" / "pictures"


def draw(records: Path, picture: Path) -> None:
    """Draw records by the command; keep the picture with few colours."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pbgeval", "monitor", str(records), "--output", folder]
        print(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        with Image.open(Path(folder) / "training_curves.png") as drawn:
            small = io.BytesIO()
            drawn.convert("RGB").quantize(NUM_COLORS).save(small, format="png", optimize=True)
    picture.write_bytes(small.getvalue())
    print(f"{picture}: {len(small.getvalue()):,} bytes")


def main() -> None:
    """Train, draw."""
    parser = argparse.ArgumentParser(description="Draw the pictures of the documentation.")
    parser.add_argument("--output", type=Path, default=PICTURES, help="folder of the pictures")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    for name, settings in (("overfits", OVERFIT), ("well_mixed", MIXED)):
        with tempfile.TemporaryDirectory() as records:
            run = train(0, **settings, output=Path(records))
            print(f"{name}: {run.warnings[0] if run.warnings else 'no warning'}")
            draw(Path(records), arguments.output / f"{name}.png")


if __name__ == "__main__":
    main()
