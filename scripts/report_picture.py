"""The demo's result -> the picture of README.md and docs/index.md: the top of the page of `kgeval-dist report`.

.venv/bin/kgeval-dist demo && .venv/bin/kgeval-dist run demo/eval.py --output demo/results
.venv/bin/python -m scripts.report_picture demo/results    # docs/pictures/report.png
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

PICTURE = Path(__file__).resolve().parent.parent / "docs" / "pictures" / "report.png"
WIDTH, HEIGHT = 1040, 840  # pixels: two columns, down to the first tables
COLORS = 64


def main() -> None:
    """Write the page, take a picture of its top, and keep few colors."""
    parser = argparse.ArgumentParser(description="Draw the picture of a report.")
    parser.add_argument("result", type=Path, help="folder of a finished run of the demo")
    parser.add_argument("--output", type=Path, default=PICTURE, help="PNG file to write")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        command = [sys.executable, "-m", "pbgeval", "report", str(arguments.result), "--output", folder]
        subprocess.run(command, check=True)
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
        page.goto((Path(folder) / "report.html").as_uri())
        page.screenshot(path=arguments.output)
        browser.close()
    with Image.open(arguments.output) as picture:
        picture.convert("RGB").quantize(COLORS).save(arguments.output, optimize=True)
    print(f"{arguments.output}: {arguments.output.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
