"""Values -> the words of a message."""

from __future__ import annotations

from collections.abc import Sequence


def listed(names: Sequence[str], limit: int = 6) -> str:
    """Join names for a message: the first few, and how many more there are."""
    if not names:
        return "nothing"
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(one_line(name) for name in names[:limit]) + more


def one_line(value: object) -> str:
    """Text of a value without line breaks, and short enough for a message."""
    text = " ".join(str(value).split())
    return text if len(text) <= 200 else text[:197] + "..."
