"""docs/pictures: small, and shown; scripts/monitor_pictures.py draws them."""

from __future__ import annotations

from tests.kit.commands import REPOSITORY

MAX_BYTES = 150_000


def test_pictures_are_small_and_each_is_shown() -> None:
    pictures = sorted((REPOSITORY / "docs" / "pictures").iterdir())
    text = (REPOSITORY / "docs" / "monitor.md").read_text(encoding="utf-8")

    assert {path.name for path in pictures} == {"overfits.png", "well_mixed.png"}
    for path in pictures:
        assert path.stat().st_size < MAX_BYTES, path
        assert f"pictures/{path.name})" in text
