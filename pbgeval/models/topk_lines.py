"""A ranking file of AnyBURL or SAFRAN -> blocks of edges with their lists; the file may be larger than memory.

Three lines an edge: `head relation tail`, then `Heads: ` and `Tails: ` with `entity TAB confidence TAB ...`, best
first. A list may be empty, or shorter than others.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise, repeat
from pathlib import Path

import numpy as np
from attrs import define, field, frozen
from numpy.typing import NDArray

from pbgeval.errors import StorageError
from pbgeval.notation import sort_distinct
from pbgeval.storage.text import text_blocks

_HEADS, _TAILS = "Heads:", "Tails:"


@frozen(eq=False)
class RankedEdges:
    """Consecutive edges of a file; the lists of edge e are 2 * e (its heads) and 2 * e + 1 (its tails)."""

    path: Path
    line_E: list[int]
    text_E: list[str]  # head, relation and tail, with spaces or tabs between
    _text_L: list[str]  # what stands behind Heads: and Tails:
    entity_n: list[str] = field(init=False)  # of all lists, one after the other
    length_L: NDArray[np.int64] = field(init=False)
    confidence_n: NDArray[np.float64] = field(init=False)  # finite, and descending in each list

    def __attrs_post_init__(self) -> None:
        """Split the lists.

        Raises:
            StorageError: a list has the wrong form; the message names the line.
        """
        ended_L = self._text_L
        if not all(map(str.endswith, ended_L, repeat("\t"))):
            ended_L = [text if text.endswith("\t") else f"{text}\t" for text in ended_L]
        if any(map(str.isspace, ended_L)):
            ended_L = ["" if text.isspace() else text for text in ended_L]  # an empty list
        columns_L = np.fromiter(map(str.count, ended_L, repeat("\t")), np.int64, len(ended_L))
        columns = "".join(ended_L).split("\t")[:-1]
        texts = columns[1::2]
        object.__setattr__(self, "entity_n", columns[::2])
        object.__setattr__(self, "length_L", columns_L // 2)
        try:
            confidence_n = np.fromiter(map(float, texts), np.float64, len(texts))
        except ValueError:
            confidence_n = np.array([math.nan])  # some list is wrong
        object.__setattr__(self, "confidence_n", confidence_n)
        is_sound = not (columns_L % 2).any() and all(self.entity_n) and "_" not in "".join(texts)
        if not (is_sound and self._descends()):
            self.check_lists()

    def check_lists(self) -> None:
        """Look at one list after the other.

        Raises:
            StorageError: a list has the wrong form; the message names the line.
        """
        for index, text in enumerate(self._text_L):
            _check_list(f"{self.path}:{self.line_E[index // 2] + 1 + index % 2}", text)

    def check_distinct(self, id_n: NDArray[np.int64]) -> None:
        """Check that no list holds an entity twice.

        Args:
            id_n: a number for each entity's name, from 0 to 2**32 - 1.

        Raises:
            StorageError: a list holds an entity twice; the message names the line.
        """
        of_list_n = np.repeat(np.arange(len(self.length_L)) << 32, self.length_L) | id_n
        if len(sort_distinct(of_list_n)) < len(id_n):
            self.check_lists()

    def _descends(self) -> bool:
        if len(self.confidence_n) != len(self.entity_n):
            return False
        end_L = np.cumsum(self.length_L)
        falls_n = np.diff(self.confidence_n) <= 0
        falls_n[end_L[(end_L > 0) & (end_L < len(self.confidence_n))] - 1] = True  # from a list to the next
        return bool(falls_n.all() and np.isfinite(self.confidence_n).all())


def ranked_edges(path: Path) -> Iterator[RankedEdges]:
    """Yield the edges of a ranking file in blocks.

    Raises:
        StorageError: the file cannot be read, or a line is of the wrong form; says which.
    """
    number, rest = 1, list[str]()
    for _, lines in text_blocks(path):
        rest += lines
        num_lines = len(rest) // 3 * 3
        heads, tails = rest[1:num_lines:3], rest[2:num_lines:3]
        if all(map(_is_edge, rest[:num_lines:3])) and _all_begin(heads, _HEADS) and _all_begin(tails, _TAILS):
            behind = [_behind(text) for lists in zip(heads, tails, strict=True) for text in lists]
            yield RankedEdges(path, list(range(number, number + num_lines, 3)), rest[:num_lines:3], behind)
        else:
            edges = _Edges(path, number)
            yield from edges.take(rest)
            num_lines = edges.number - number
        number, rest = number + num_lines, rest[num_lines:]
    yield from _Edges(path, number).take(rest, is_end=True)


def _is_edge(line: str) -> bool:
    return len(line.split(None, 2)) > 2 and not line.startswith((_HEADS, _TAILS))


def _all_begin(lines: list[str], word: str) -> bool:
    return {line[: len(word)] for line in lines} <= {word}


def _behind(line: str) -> str:
    return line[7:] if line[6:7] == " " else line[6:]  # the words are as long as each other


@define(eq=False)
class _Edges:
    """Lines of any kind, edge by edge: there may be blank ones between edges, and faults."""

    path: Path
    number: int  # of the first line that has not been taken

    def take(self, lines: list[str], *, is_end: bool = False) -> Iterator[RankedEdges]:
        """Yield the edges that are whole, those before a fault too.

        Raises:
            StorageError: a line is of the wrong form.
        """
        first = self.number
        at_E: list[int] = []
        at = 0
        fault = None
        while at < len(lines) and fault is None:
            if not lines[at].strip():
                at += 1
                continue
            if at + 3 > len(lines) and not is_end:
                break
            fault = self._fault(first + at, lines[at : at + 3])
            if fault is None:
                at_E.append(at)
                at += 3
        self.number = first + at
        texts = [_behind(lines[at + place]) for at in at_E for place in (1, 2)]
        if at_E:
            yield RankedEdges(self.path, [first + at for at in at_E], [lines[at] for at in at_E], texts)
        if fault is not None:
            raise fault

    def _fault(self, number: int, lines: list[str]) -> StorageError | None:
        """Say what is wrong with three lines, or those that there are before the end of the file."""
        edge = lines[0]
        if not _is_edge(edge):
            return StorageError(f"{self.path}:{number}: expected an edge, 'head relation tail', found {edge[:100]!r}")
        for place, word in ((1, _HEADS), (2, _TAILS)):
            text = lines[place] if place < len(lines) else None
            if text is None or not text.startswith(word):
                for heads in lines[1:place]:  # whose faults come first
                    _check_list(f"{self.path}:{number + 1}", _behind(heads))
                found = "the end of the file" if text is None else repr(text[:100])
                return StorageError(
                    f"{self.path}:{number + place}: expected the line '{word} ...' of edge {edge!r}, found {found}"
                )
        return None


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
