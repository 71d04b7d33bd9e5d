"""Read a text file of edges: head, relation and tail by label."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat
from pathlib import Path

from pbgeval.errors import StorageError
from pbgeval.storage.text import text_blocks

Triple = tuple[str, str, str]


def triples_of(path: Path) -> Iterator[Triple]:
    """Yield the edges of a file, one after the other.

    Raises:
        StorageError: as `triple_columns`.
    """
    for columns in triple_columns(path):
        yield from zip(*columns, strict=True)


def triple_columns(path: Path) -> Iterator[tuple[Sequence[str], Sequence[str], Sequence[str]]]:
    """Yield heads, relations and tails: the first three tab-separated columns, or three words.

    Raises:
        StorageError: the file cannot be read, or a line is no edge; says which. Edges before it are yielded.
    """
    for number, lines in text_blocks(path):
        words = "\t".join(lines).split("\t")
        if is_plain(lines, words):
            yield words[::3], words[1::3], words[2::3]
        else:
            triples, fault = _triples(path, number, lines)
            if triples:
                heads, relations, tails = zip(*triples, strict=True)
                yield heads, relations, tails
            if fault is not None:
                raise fault


def is_plain(lines: list[str], words: list[str]) -> bool:
    """Return whether each line is three columns, none of them blank, so that none needs a closer look."""
    return set(map(str.count, lines, repeat("\t"))) == {2} and all(map(str.strip, words))


def _triples(path: Path, first: int, lines: list[str]) -> tuple[list[Triple], StorageError | None]:
    """Return the edges before the first error, and that error."""
    triples: list[Triple] = []
    for number, line in enumerate(lines, first):
        if line.strip():
            columns = line.split("\t")
            words = line.split() if len(columns) == 1 else columns[:3]
            if len(words) != 3 or not all(words):
                return triples, StorageError(
                    f"{path}:{number}: expected head, relation and tail, with tabs between, found {line[:100]!r}"
                )
            triples.append((words[0], words[1], words[2]))
    return triples, None
