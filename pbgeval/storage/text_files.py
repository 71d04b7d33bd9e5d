"""Path of a small text file -> its text; values -> the words of a message; names -> cells of a table, and back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pbgeval.errors import StorageError


def read_small_text(path: Path) -> str | None:
    """Return the text of a small file, None if it (or its folder) is absent.

    Raises:
        StorageError: it exists but cannot be read as UTF-8 text.
    """
    try:
        return path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise StorageError(
            f"{path}: expected a text file that can be read, found: {one_line(error)}; check the path"
        ) from error


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
