"""The lists of an output directory (`topk/`), by name: the best candidates of a query."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from io import TextIOWrapper
from pathlib import Path

from pbgeval.errors import OutputError
from pbgeval.results.result import Row
from pbgeval.storage.text import open_input, reason_of
from pbgeval.storage.topk import TABLE_COLUMNS, unescaped


def saved_list(folder: Path, hidden: str, known: str, relation: str) -> list[Row]:
    """Return the best candidates of a query, the best first: place, candidate, score, known, is_true.

    Several evaluated edges may ask this query: each of their answers is true.

    Args:
        folder: the output directory.
        hidden: the side that is asked for, head or tail.
        known: the name of the entity at the other side.
        relation: the name of the relation.

    Raises:
        OutputError: there are no lists, none of this query, or a file is not as it was written.
    """
    files = sorted((folder / "topk").glob("*/*.tsv"))
    if not files:
        raise OutputError(f"{folder}: no saved lists; evaluate with save_topk=10 and an output folder")
    of_known = "head" if hidden == "tail" else "tail"
    found: list[dict[str, object]] = []
    true, asked = set(), set()
    row = None  # of the edge file, whose list is taken
    for path in files:
        for line in _lines(path):
            if line["side"] != hidden:
                continue
            query = unescaped(line[of_known]), unescaped(line["relation"])
            asked.add(query)
            if query != (known, relation):
                continue
            true.add(unescaped(line[hidden]))
            row = row or (path, line["row"])
            if row == (path, line["row"]):
                score, is_known = float(line["score"]), line["known"] == "1"
                candidate = unescaped(line["candidate"])
                found.append({"place": int(line["place"]), "candidate": candidate, "score": score, "known": is_known})
    if not found:
        raise OutputError(f"no evaluated edge has {of_known} {known!r} and relation {relation!r}{_hint(asked, known)}")
    return [{**of, "is_true": of["candidate"] in true} for of in found]


def _hint(asked: set[tuple[str, str]], known: str) -> str:
    relations = sorted(relation for name, relation in asked if name == known)
    if relations:
        return f"; it has {relations[0]!r}"
    near = get_close_matches(known, {name for name, _ in asked}, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _lines(path: Path) -> Iterator[dict[str, str]]:
    try:
        with TextIOWrapper(open_input(path), encoding="utf-8", newline="\n") as file:
            rows = (line.rstrip("\n").split("\t") for line in file)
            if tuple(next(rows, [])) != TABLE_COLUMNS:
                raise ValueError("other columns")
            yield from (dict(zip(TABLE_COLUMNS, cells, strict=True)) for cells in rows)
    except (OSError, ValueError) as error:
        raise OutputError(f"{path}: expected saved lists, got: {reason_of(error)}; evaluate again") from error
