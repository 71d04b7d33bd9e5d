"""A ranking file of AnyBURL or SAFRAN -> blocks of edges with their lists; the file may be larger than memory.

Three lines an edge: `head relation tail`, then `Heads: ` and `Tails: ` with `entity TAB confidence TAB ...`, best
first. A list may be empty, or shorter than others.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
from attrs import define, field
from numpy.typing import NDArray

from pbgeval.errors import StorageError
from pbgeval.reading import text_lines

_MOST_EDGES, _MOST_COLUMNS = 1 << 12, 1 << 13  # of a block, which is about a megabyte


@define(eq=False)
class RankedEdges:
    """Consecutive edges of a file; the lists of edge e are 2 * e (its heads) and 2 * e + 1 (its tails)."""

    path: Path
    line_E: list[int] = field(factory=list)
    text_E: list[str] = field(factory=list)  # head, relation and tail, with spaces or tabs between
    length_L: list[int] = field(factory=list)
    _columns: list[str] = field(factory=list)  # of all lists: entities and confidences by turns
    _text_L: list[str] = field(factory=list)
    _is_odd: bool = False

    def place_of(self, index: int) -> str:
        """Name the line of a list."""
        return f"{self.path}:{self.line_E[index // 2] + 1 + index % 2}"

    @property
    def entity_n(self) -> list[str]:
        """The entities of all lists, one after the other."""
        return self._columns[::2]

    @property
    def is_full(self) -> bool:
        return len(self.line_E) >= _MOST_EDGES or len(self._columns) >= _MOST_COLUMNS

    def add(self, line: int, text: str, lists: list[str]) -> None:
        """Add an edge and what stands behind `Heads:` and `Tails:`."""
        self.line_E.append(line)
        self.text_E.append(text)
        for of_side in lists:
            columns = _columns_of(of_side)
            self._columns += columns
            self._is_odd |= len(columns) % 2 == 1
            self.length_L.append(len(columns) // 2)
        self._text_L += lists

    def confidences(self) -> NDArray[np.float64]:
        """Return the confidences of all lists, checked: finite, and descending in each list; no entity has no name.

        Raises:
            StorageError: a list is not as it should be; says which.
        """
        texts = self._columns[1::2]
        try:
            confidence_n = np.array(list(map(float, texts)), np.float64)
        except ValueError:
            self.check()
            raise  # check has not seen what float has
        end_L = np.cumsum(self.length_L, dtype=np.int64)
        falls_n = np.diff(confidence_n) <= 0
        falls_n[end_L[(end_L > 0) & (end_L < len(confidence_n))] - 1] = True  # from the last of a list to the next
        is_sound = falls_n.all() and np.isfinite(confidence_n).all() and all(self.entity_n)
        if self._is_odd or "_" in "".join(texts) or not is_sound:
            self.check()
        return confidence_n

    def check(self) -> None:
        """Find the first list that is not as it should be.

        Raises:
            StorageError: there is one.
        """
        for index, text in enumerate(self._text_L):
            _check_list(self.place_of(index), text)


def ranked_edges(path: Path) -> Iterator[RankedEdges]:
    """Yield the edges of a ranking file in blocks; their lists have not been checked.

    Raises:
        StorageError: the file cannot be read, or a line is not as it should be; says which.
    """
    lines = text_lines(path)
    block = RankedEdges(path)
    try:
        for last, line in lines:
            if not line.strip():
                continue
            if line.startswith(("Heads:", "Tails:")) or len(line.split(None, 2)) < 3:
                raise StorageError(f"{path}:{last}: expected an edge, 'head relation tail', found {line[:100]!r}")
            block.add(last, line, _lists_behind(lines, path, last, line))
            if block.is_full:
                yield block
                block = RankedEdges(path)
    except StorageError:
        yield block  # a fault in a line before comes first
        raise
    yield block


def _lists_behind(lines: Iterator[tuple[int, str]], path: Path, edge: int, line: str) -> list[str]:
    lists: list[str] = []
    for word in ("Heads:", "Tails:"):
        number, text = next(lines, (edge + len(lists) + 1, None))
        if text is None or not text.startswith(word):
            for heads in lists:  # whose faults come first
                _check_list(f"{path}:{edge + 1}", heads)
            found = "the end of the file" if text is None else repr(text[:100])
            raise StorageError(f"{path}:{number}: expected the line '{word} ...' of edge {line!r}, found {found}")
        lists.append(text.removeprefix(word).removeprefix(" "))
    return lists


def _columns_of(text: str) -> list[str]:
    return text.removesuffix("\t").split("\t") if text and not text.isspace() else []


def _check_list(where: str, text: str) -> None:
    columns = _columns_of(text)
    entities = columns[::2]
    if len(columns) % 2 or not all(entities):
        raise StorageError(
            f"{where}: expected entities and confidences by turns, with tabs between, found {text!r:.100}"
        )
    confidences = [_number(where, column) for column in columns[1::2]]
    for before, after in pairwise(confidences):
        if after > before:
            raise StorageError(f"{where}: expected confidences in descending order, found {after} after {before}")
    if len(set(entities)) != len(entities):
        twice = next(entity for at, entity in enumerate(entities) if entity in entities[:at])
        raise StorageError(f"{where}: expected each entity once, found '{twice}' again")


def _number(where: str, text: str) -> float:
    try:
        value = math.nan if "_" in text else float(text)  # which Python takes for a separator of thousands
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise StorageError(f"{where}: expected a confidence, a finite number, found {text!r:.100}")
    return value
