"""scripts/monitor_pictures.py: it draws the runs that the tests judge, small enough for the documentation."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.kit.commands import run_program

REPOSITORY = Path(__file__).resolve().parents[2]
MAX_BYTES = 150_000


@pytest.mark.slow  # it trains for some minutes
@pytest.mark.browser
def test_the_pictures_of_the_documentation_are_those_that_the_program_draws(tmp_path: Path) -> None:
    printed = run_program(sys.executable, "-m", "scripts.monitor_pictures", "--output", tmp_path, cwd=REPOSITORY)

    overfits, well_mixed = " ".join(printed.split()).split("well_mixed: ")  # lines are cut for the terminal
    assert "overfits: epoch 2: bucket overfitting: " in overfits
    assert "Bucket overfitting: held-out edges lose before the next visit what they gain in a visit." in overfits
    assert well_mixed.startswith("no warning ")
    assert "No bucket overfitting: held-out edges keep what they gain in a visit until the next one." in well_mixed
    for name in ("overfits.png", "well_mixed.png"):
        drawn, shown = ((folder / name).read_bytes() for folder in (tmp_path, REPOSITORY / "docs" / "pictures"))
        assert drawn[:24] == shown[:24], "width and height are in the first bytes of a PNG"


def test_pictures_are_small_and_each_is_shown() -> None:
    pictures = {path.name: path for path in (REPOSITORY / "docs" / "pictures").iterdir()}
    pages = {"overfits.png": "docs/monitor.md", "well_mixed.png": "docs/monitor.md", "report.png": "README.md"}

    assert pictures.keys() == pages.keys()
    for name, page in pages.items():
        assert pictures[name].stat().st_size < MAX_BYTES, name
        assert f"pictures/{name})" in (REPOSITORY / page).read_text(encoding="utf-8")
