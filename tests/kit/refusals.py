"""What a call that is refused says: faults of a line each; and tables of them, which are read line by line."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from pbgeval.errors import EvalError


def faults_of(call: Callable[[], object], kind: type[EvalError] = EvalError) -> list[str]:
    """Return the faults that a call raises."""
    with pytest.raises(kind) as caught:
        call()
    assert not [fault for fault in caught.value.faults if "\n" in fault]
    return list(caught.value.faults)


def fault_of(call: Callable[[], object], kind: type[EvalError] = EvalError) -> str:
    """Return the only fault that a call raises."""
    (fault,) = faults_of(call, kind)
    return fault


def rows_of(path: Path) -> list[tuple[str, str, str]]:
    """Return the rows of a table: the name of its section, what is given, and the fault that it makes."""
    sections = re.findall(r"^\[(.*)\]\n((?:.+\n)*)", path.read_text(encoding="utf-8"), re.MULTILINE)
    return [(section, *line.split(" -> ")) for section, lines in sections for line in lines.splitlines()]
