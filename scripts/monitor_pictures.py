"""Runs under the monitor -> the pictures of docs/monitor.md, from the page of `kgeval-dist monitor`.

    .venv/bin/python -m scripts.monitor_pictures    # overfits.png and well_mixed.png

They are the runs of tests/laws/test_overfitting_is_noticed.py with seed 0.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from tests.kit.training import MIXED, OVERFIT, train

PICTURES = Path(__file__).resolve().parent.parent / "docs" / "pictures"
WIDTH = 1040  # pixels: room for two columns


def draw(records: Path, picture: Path) -> None:
    """Write the page of records by the command, and take a picture of it."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        command = [sys.executable, "-m", "pbgeval", "monitor", str(records), "--output", folder]
        print(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": 600})
        page.goto((Path(folder) / "report.html").as_uri())
        page.locator("section").first.screenshot(path=picture)
        browser.close()
    print(f"{picture}: {picture.stat().st_size:,} bytes")


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
