"""The saved list of a query -> its table, and the answers' ranks below it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pbgeval.report.tables import DataTable, clipped
from pbgeval.storage.text import plural

MAX_ANSWERS = 3  # of a query, below its list


def answers_note(
    rows: Sequence[Mapping[str, Any]],
    ranks: Mapping[str, tuple[float, int, int] | None],
    num_answers: int,
    *,
    is_filtered: bool,
) -> str:
    """Return the answers of a query, with their ranks.

    Args:
        rows: the candidates that are shown.
        ranks: the first answers -> rank, among how many, and with how many it ties, where known.
        num_answers: how many there are.
        is_filtered: whether known answers do not compete.
    """
    listed = {row["candidate"] for row in rows}
    told = []
    for name, rank in ranks.items():
        place = ""
        if rank is not None:
            number, num_candidates, num_tied = rank
            ties = f", tied with {plural(num_tied, 'other')}" if num_tied else ""
            place = f", rank {number:,.10g} of {num_candidates:,}{ties}"
        told.append(f"{clipped(name)}{place}{'' if name in listed else ' (not in this list)'}")
    others = f"; and {num_answers - len(ranks):,} more" if num_answers > len(ranks) else ""
    first = f"{'Answer' if num_answers == 1 else 'Answers'}: {'; '.join(told)}{others}."
    return f"{first} Known answers do not compete." if is_filtered else first


def candidates_table(title: str, rows: Sequence[Mapping[str, Any]], note: str) -> DataTable:
    """Return the best candidates of a query."""
    marks = ("true" if row["is_true"] else "known" if row["known"] else "" for row in rows)
    cells = [
        (str(row["place"]), row["candidate"], f"{row['score']:.6g}", mark)
        for row, mark in zip(rows, marks, strict=True)
    ]
    return DataTable(title, ("place", "candidate", "score", "answer"), cells, note, kinds="rlrl")
