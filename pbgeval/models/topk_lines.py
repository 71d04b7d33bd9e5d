"""Read a ranking file of AnyBURL or SAFRAN in blocks of edges with their lists.

Three lines an edge: `head relation tail`, then `Heads: ` and `Tails: ` with `entity TAB confidence TAB ...`, best
first. A list may be empty, or shorter than others.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import chain, pairwise, repeat
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pbgeval.errors import EvalError, StorageError
from pbgeval.notation import sort_distinct
from pbgeval.storage.edge_columns import ColumnForm
from pbgeval.storage.edge_text import EdgeText
from pbgeval.storage.text import text_blocks

_HEADS, _TAILS = "Heads:", "Tails:"


class RankedEdges:
    """Consecutive edges of a file; the lists of edge e are 2 * e (its heads) and 2 * e + 1 (its tails)."""

    def __init__(self, path: Path, line_E: list[int], text_E: list[str], text_N: list[str]) -> None:
        """Split the lists.

        Args:
            path: the file.
            line_E: the line of each edge.
            text_E: head, relation and tail, with spaces or tabs between.
            text_N: what stands behind Heads: and Tails:

        Raises:
            StorageError: a list has the wrong form; the message names the line.
        """
        self.path, self.line_E, self.text_E, self._text_N = path, line_E, text_E, text_N
        filled_N = ["" if text.isspace() else text for text in text_N]
        ended_N = [text if not text or text.endswith("\t") else f"{text}\t" for text in filled_N]
        columns_N = np.fromiter(map(str.count, ended_N, repeat("\t")), np.int64, len(ended_N))
        columns = "".join(ended_N).split("\t")[:-1]
        texts = columns[1::2]
        try:
            confidence_n = np.fromiter(map(float, texts), np.float64, len(texts))
        except ValueError:
            confidence_n = np.array([math.nan])  # some list is wrong
        self.entity_n = columns[::2]
        self.length_N = columns_N // 2  # of all lists, one after the other
        self.confidence_n = confidence_n  # finite, and descending in each list
        is_sound = not (columns_N % 2).any() and all(self.entity_n) and "_" not in "".join(texts)
        if not (is_sound and self._descends()):
            self.check_lists()

    def check_lists(self) -> None:
        """Check one list after the other.

        Raises:
            StorageError: a list has the wrong form; the message names the line.
        """
        for index, text in enumerate(self._text_N):
            _check_list(f"{self.path}:{self.line_E[index // 2] + 1 + index % 2}", text)

    def check_distinct(self, id_n: NDArray[np.int64]) -> None:
        """Check that no list holds an entity twice.

        Args:
            id_n: a number for each entity's name, from 0 to 2**32 - 1.

        Raises:
            StorageError: a list holds an entity twice; the message names the line.
        """
        of_list_n = np.repeat(np.arange(len(self.length_N)) << 32, self.length_N) | id_n
        if len(sort_distinct(of_list_n)) < len(id_n):
            self.check_lists()

    def _descends(self) -> bool:
        if len(self.confidence_n) != len(self.entity_n):
            return False
        end_N = np.cumsum(self.length_N)
        falls_n = np.diff(self.confidence_n) <= 0
        falls_n[end_N[(end_N > 0) & (end_N < len(self.confidence_n))] - 1] = True  # from a list to the next
        return bool(falls_n.all() and np.isfinite(self.confidence_n).all())


def ranked_edges(path: Path) -> Iterator[RankedEdges]:
    """Yield the edges of a ranking file in blocks.

    Raises:
        StorageError: the file cannot be read, or a line is of the wrong form; says which.
    """
    form = ColumnForm(delimiter="\t", flag="")
    by_tabs = EdgeText(path, form, places=form.places())
    first = 1
    rest = list[str]()  # lines that have not been taken; `first` is the number of the first
    for block in chain(text_blocks(path), [None]):
        rest += block[1] if block else []
        at_E: list[int] = []
        at, fault = 0, None
        while at < len(rest) and (at + 3 <= len(rest) or block is None) and fault is None:
            if rest[at].strip():
                fault = _fault(by_tabs, first + at, rest[at : at + 3])
                at_E += [] if fault else [at]
                at += 3
            else:  # between edges
                at += 1
        if at_E:
            texts = [_behind(rest[edge + line]) for edge in at_E for line in (1, 2)]
            yield RankedEdges(path, [first + edge for edge in at_E], [rest[edge] for edge in at_E], texts)
        if fault is not None:
            raise fault
        first = first + at
        rest = rest[at:]


def _behind(line: str) -> str:
    return line[7:] if line[6:7] == " " else line[6:]  # the words are as long as each other


def _fault(by_tabs: EdgeText, number: int, lines: list[str]) -> EvalError | None:
    """Return the error in an edge's three lines, fewer at the end of the file."""
    path, edge = by_tabs.path, lines[0]
    if "\t" in edge and not edge.startswith((_HEADS, _TAILS)):
        fault = by_tabs.fault_in(number, edge.split("\t"))
        if fault is not None:
            return fault
    elif len(edge.split(None, 2)) < 3 or edge.startswith((_HEADS, _TAILS)):
        return StorageError(f"{path}:{number}: expected an edge, 'head relation tail', found {edge[:100]!r}")
    for place, word in ((1, _HEADS), (2, _TAILS)):
        if place >= len(lines) or not lines[place].startswith(word):
            for heads in lines[1:place]:  # whose faults come first
                _check_list(f"{path}:{number + 1}", _behind(heads))
            found = repr(lines[place][:100]) if place < len(lines) else "the end of the file"
            where = f"{path}:{number + place}"
            return StorageError(f"{where}: expected the line '{word} ...' of edge {edge!r}, found {found}")
    return None


def _check_list(where: str, text: str) -> None:
    columns = text.removesuffix("\t").split("\t") if text.strip() else []
    entities = columns[::2]
    if len(columns) % 2 or not all(entities):
        raise StorageError(
            f"{where}: expected entities and confidences by turns, with tabs between, found {text!r:.100}"
        )
    for before, after in pairwise([_number(where, column) for column in columns[1::2]]):
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
