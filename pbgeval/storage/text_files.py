"""Values -> the words of a message; names -> cells of a table, and back."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

MOST_LETTERS = 2000  # of a line for a terminal


# What a spreadsheet takes for the beginning of a formula (OWASP, "CSV Injection"), and the mark of a text itself.
_MARKED = tuple("=+-@\t\r\n\uff1d\uff0b\uff0d\uff20'")


def cell_of(name: str) -> str:
    """Return a name as a cell of CSV or TSV: an apostrophe in front makes a text of what could be a formula."""
    return f"'{name}" if name.startswith(_MARKED) else name


def name_of(cell: str) -> str:
    """Return the name that `cell_of` made a cell of."""
    return cell.removeprefix("'")


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


def printable(text: str) -> str:
    """Text for a terminal, on one line and not too long: what would control it is written as an escape.

    Names in files and configs may hold anything; printed as they are, they could move the cursor, recolour or hide
    what stands around them, or be no text at all. The middle of a text that is too long is left out.
    """
    if len(text) > MOST_LETTERS:
        text = f"{text[: MOST_LETTERS - 500]} ... {text[-495:]}"
    if text.isprintable():
        return text
    return "".join(letter if _is_shown(letter) else letter.encode("unicode_escape").decode() for letter in text)


def _is_shown(letter: str) -> bool:
    return letter.isprintable() or unicodedata.category(letter) == "Zs"
