"""A text file of edges -> (head, relation, tail) by label, line by line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pbgeval.errors import StorageError
from pbgeval.storage.text import rows

Triple = tuple[str, str, str]


def triples_of(path: Path) -> Iterator[Triple]:
    """Yield the edges of a file: three columns with tabs between (further ones are ignored), or three words.

    Raises:
        StorageError: the file cannot be read, or a line is no edge; says which.
    """
    for number, line, columns in rows(path, by_words=True):
        words = columns[:3] if "\t" in line else columns
        if len(words) != 3 or not all(words):
            expected = "head, relation and tail, with tabs between"
            raise StorageError(f"{path}:{number}: expected {expected}, found {line[:100]!r}")
        yield words[0], words[1], words[2]
