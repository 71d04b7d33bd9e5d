"""The pictures of the documentation."""

from __future__ import annotations

from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
MAX_BYTES = 150_000


def test_pictures_are_small_and_each_is_shown() -> None:
    pictures = {path.name: path for path in (REPOSITORY / "docs" / "pictures").iterdir()}
    pages = {"overfits.png": "docs/monitor.md", "well_mixed.png": "docs/monitor.md", "report.png": "README.md"}

    assert pictures.keys() == pages.keys()
    for name, page in pages.items():
        assert pictures[name].stat().st_size < MAX_BYTES, name
        assert f"pictures/{name})" in (REPOSITORY / page).read_text(encoding="utf-8")
