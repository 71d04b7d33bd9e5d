"""A ranking file of AnyBURL or SAFRAN -> an edge and its two lists at a time; the file may be larger than memory.

Three lines an edge: `head relation tail`, then `Heads: ` and `Tails: ` with `entity TAB confidence TAB ...`, best
first. A list may be empty, or shorter than others.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from attrs import frozen

from pbgeval.errors import StorageError
from pbgeval.notation import Side
from pbgeval.reading import text_lines


@frozen(eq=False)
class TopKList:
    """The best candidates of a query."""

    where: str  # file and line
    entities: list[str]  # each once
    confidences: list[float]  # finite, descending


@frozen(eq=False)
class RankedEdge:
    """An edge as the file has it."""

    where: str  # file and line
    text: str  # head, relation and tail, with spaces or tabs between
    heads: TopKList
    tails: TopKList

    def of(self, hidden: Side) -> TopKList:
        """Return the candidates for one side."""
        return hidden.pick(self.heads, self.tails)


def ranked_edges(path: Path) -> Iterator[RankedEdge]:
    """Yield the edges of a ranking file.

    Raises:
        StorageError: the file cannot be read, or a line is not as it should be; says which.
    """
    lines = text_lines(path)
    for last, line in lines:
        if not line.strip():
            continue
        if line.startswith(("Heads:", "Tails:")) or len(line.split()) < 3:
            raise StorageError(f"{path}:{last}: expected an edge, 'head relation tail', found {line[:100]!r}")
        lists: list[TopKList] = []
        for word in ("Heads:", "Tails:"):
            number, text = next(lines, (last + len(lists) + 1, None))
            if text is None or not text.startswith(word):
                found = "the end of the file" if text is None else repr(text[:100])
                raise StorageError(f"{path}:{number}: expected the line '{word} ...' of edge {line!r}, found {found}")
            lists.append(_list(f"{path}:{number}", text.removeprefix(word).removeprefix(" ")))
        yield RankedEdge(f"{path}:{last}", line, *lists)


def _list(where: str, text: str) -> TopKList:
    columns = text.removesuffix("\t").split("\t") if text.strip() else []
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
    return TopKList(where, entities, confidences)


def _number(where: str, text: str) -> float:
    try:
        value = math.nan if "_" in text else float(text)  # which Python takes for a separator of thousands
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise StorageError(f"{where}: expected a confidence, a finite number, found {text!r:.100}")
    return value
