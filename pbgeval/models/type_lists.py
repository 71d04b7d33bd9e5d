"""Read lists of entity types per query: the true ones, or a system's, best first.

Tab-separated lines, `query, type, type, ...` (a query alone has an empty list); or JSON (a name that ends in .json):
an object of lists by query, or a list of objects with `id` and `type`, as the SMART answer-type challenges have it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from pbgeval.errors import StorageError
from pbgeval.storage.text import MAX_RATIO, rows, text_blocks, unreadable

_JSON_RATIO = MAX_RATIO // 2  # whose text is in memory beside what it says; lists of types come to 31
_FORMS = 'an object {"QUERY": ["TYPE", ...]} or a list [{"id": "QUERY", "type": ["TYPE", ...]}, ...]'


def read_type_lists(path: Path) -> dict[str, list[str]]:
    """Return the types of each query, in the order of the file.

    Raises:
        StorageError: the file cannot be read, or is in neither form, or has a query twice; says where.
    """
    lists: dict[str, list[str]] = {}
    for where, query, types in _of_json(path) if path.suffixes[-1:] == [".json"] else _of_lines(path):
        if query in lists:
            raise StorageError(f"{where}: expected each query once, found '{query}' again; put its types in one list")
        lists[query] = types
    return lists


def _of_lines(path: Path) -> Iterator[tuple[str, str, list[str]]]:
    for number, line, columns in rows(path):
        query, types = columns[0].strip(), [column.strip() for column in islice(columns, 1, None)]
        if not query:
            raise StorageError(f"{path}:{number}: expected a query and its types, with tabs between, found {line!r}")
        yield f"{path}:{number}", query, [name for name in types if name]


def _of_json(path: Path) -> Iterator[tuple[str, str, list[str]]]:
    text = "".join(["".join(lines) for _, lines in text_blocks(path, keep_ends=True, max_ratio=_JSON_RATIO)])
    with unreadable(path, "expected JSON, found", "", (ValueError, RecursionError)):
        document = json.loads(text, object_pairs_hook=_Pairs)
    if isinstance(document, _Pairs):
        for name, types in document:
            yield f"{path}: '{name}'", name, _names(f"{path}: '{name}'", types)
        return
    if not isinstance(document, list):
        raise StorageError(f"{path}: expected {_FORMS}")
    for index, entry in enumerate(document):
        where = f"{path}: element {index}"
        fields = dict(entry) if isinstance(entry, _Pairs) else {}
        query = fields.get("id")
        if not isinstance(query, str | int) or isinstance(query, bool) or "type" not in fields:
            raise StorageError(f'{where}: expected {{"id": "QUERY", "type": ["TYPE", ...]}}')
        yield where, str(query), _names(where, fields["type"])


class _Pairs(list[tuple[str, object]]):
    """A JSON object that keeps repeated names."""


def _names(where: str, types: object) -> list[str]:
    if not isinstance(types, list) or isinstance(types, _Pairs) or not all(isinstance(name, str) for name in types):
        raise StorageError(f"{where}: expected a list of names of types, found {json.dumps(types)[:100]}")
    return [str(name) for name in types]
