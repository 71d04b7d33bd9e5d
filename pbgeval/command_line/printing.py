"""What several commands print: tables and warnings."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from pbgeval.storage.text import printable, without_secrets

if TYPE_CHECKING:
    from pbgeval.report.tables import DataTable


def show(*tables: DataTable) -> None:
    """Print tables that are as wide as the terminal."""
    from pbgeval.report.tables import console_of, to_terminal

    console_of().print(*map(to_terminal, tables))


def warn(message: str) -> None:
    """Print a warning on stderr."""
    print(printable(without_secrets(f"warning: {message}")), file=sys.stderr)
