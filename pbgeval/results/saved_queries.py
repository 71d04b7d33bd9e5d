"""The ranks and lists of an output directory -> its queries one by one, with the names of their candidates.

Names are those of the tables that `save_topk` writes, so nothing but the output directory is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from attrs import define, field, frozen

from pbgeval.errors import OVERWRITE, OutputError
from pbgeval.notation import ENDS, Side, WorkUnit, grouped
from pbgeval.results.result import Result
from pbgeval.results.saved_run import SavedRun, folder_of
from pbgeval.stats.rank_types import RankType, doubled_rank
from pbgeval.storage.row_files import RANK_COLUMNS, query_path
from pbgeval.storage.text import open_input, reason_of
from pbgeval.storage.topk import TABLE_COLUMNS, TIMED_COLUMNS, unescaped

_HEADERS = [("\t".join(columns) + "\n").encode() for columns in (TABLE_COLUMNS, TIMED_COLUMNS)]


@frozen
class Candidate:
    """A line of a saved list."""

    place: int  # 1 is the best
    name: str
    score: float
    is_known: bool  # a known answer other than the true entity
    is_true: bool


@frozen
class SavedQuery:
    """The names of a query and its list."""

    head: str
    relation: str
    tail: str
    candidates: Sequence[Candidate]  # the best first
    time: str = ""  # where queries of different times differ


@frozen(eq=False)
class SavedQueries:
    """The ranked queries of head and tail, an element each, in the order of edge paths, buckets, sides and rows.

    Where figures are filtered, known answers are left out of the counts.
    """

    tables: Sequence[Path]  # lists with names, one for each bucket
    relations: Sequence[str]
    winners: Sequence[str]  # names of entities
    table_Q: np.ndarray  # int64, as all of these: an index in `tables`
    side_Q: np.ndarray  # the side that is hidden: 0 head, 1 tail
    better_Q: np.ndarray  # candidates that score higher than the true entity
    tied_Q: np.ndarray
    competing_Q: np.ndarray  # candidates without the true entity
    known_Q: np.ndarray  # known answers that do not compete
    known_better_Q: np.ndarray  # of these, those that score higher
    offset_Q: np.ndarray  # where the query's lines begin in the table
    relation_Q: np.ndarray  # an index in `relations`
    winner_Q: np.ndarray  # an index in `winners`: the first listed candidate that competes; -1: the answer, or none
    is_own_Q: np.ndarray  # bool: the winner is the known entity of the query itself

    @classmethod
    def read(cls, result: Result, *, filtered: bool | None = None, sides: Sequence[Side] = ENDS) -> SavedQueries:
        """Read all ranks and lists once; memory follows the queries, not their lists.

        Args:
            result: of a finished run with an output directory.
            filtered: whether known answers are left out; None: as in the run's figures.
            sides: of head and tail.

        Raises:
            OutputError: there are no ranks or no lists, or those of another run, or a file is not as it was written.
            StorageError: a file is damaged.
        """
        folder = folder_of(result)
        if not any((folder / "topk").glob("*/*.tsv")):
            raise OutputError(
                f"{folder}: this result has no saved lists; evaluate again with candidates=all save_ranks=True "
                f"save_topk=10 (-p in front of each), and {OVERWRITE}"
            )
        run = SavedRun.open(result, None)
        index = _ListIndex(run.facts.filtered if filtered is None else filtered)
        tables, columns = list[Path](), list[tuple[np.ndarray, ...]]()
        for place, blocks in grouped(((rows.path_index, rows.bucket), rows) for rows in run.row_ranges()).items():
            tables.append(query_path(folder, "topk", *place).with_suffix(".tsv"))
            lists = index.read(tables[-1], run.ranks[place].num_rows)
            for rows in blocks:
                for side in (side for side in ENDS if side in sides and side in run.facts.sides):
                    at, counts = competing_counts(run, rows, side, filtered=index.filtered)
                    of_lists = [of[side][rows.start + at] for of in lists]
                    _check_listed(tables[-1], side, rows.start + at, of_lists[0])
                    number_Q, side_Q = np.full_like(at, len(tables) - 1), np.full_like(at, ENDS.index(side))
                    columns.append((number_Q, side_Q, *counts, *of_lists))
        joined = [np.concatenate(of) for of in zip(*columns, strict=True)] or [np.zeros(0, np.int64)] * 11
        return cls(tables, index.names(index.relations), index.names(index.winners), *joined)

    def __len__(self) -> int:
        return len(self.side_Q)

    def reciprocal_ranks(self, rank_type: RankType) -> np.ndarray:
        """Return 1 / rank of each query, float64 (Q,)."""
        return 2.0 / doubled_rank(self.better_Q, self.tied_Q, rank_type)

    def lists(self, numbers: Iterable[int]) -> Iterator[SavedQuery]:
        """Yield the names and lists of some queries.

        Raises:
            OutputError: a file is not as it was written.
        """
        for number in numbers:
            path = self.tables[int(self.table_Q[number])]
            with _readable(path), open_input(path) as file:
                file.seek(int(self.offset_Q[number]))
                lines = list[list[str]]()
                for line in file:
                    cells = line.decode().rstrip("\n").split("\t")
                    if lines and cells[:2] != lines[0][:2]:
                        break
                    lines.append(cells)
                head, relation, tail = map(unescaped, lines[0][2:5])
                [time] = lines[0][5:-5] or [""]
                candidates = [
                    Candidate(int(place), unescaped(name), float(score), known == "1", is_true == "1")
                    for *_, place, name, score, known, is_true in lines
                ]
            yield SavedQuery(head, relation, tail, candidates, time)


def competing_counts(
    run: SavedRun, rows: WorkUnit, side: Side, *, filtered: bool
) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
    """Return which rows were ranked, and their better, tied, competing, known and known better candidates."""
    counts = run.read_counts(rows, side)
    at = np.flatnonzero(counts["num_candidates"] > 0)
    better, tied, candidates, known_better, known_tied, known = (counts[name][at] for name in RANK_COLUMNS)
    if not filtered:
        known_better, known_tied, known = np.zeros((3, len(at)), np.int64)
    return at, (better - known_better, tied - known_tied, candidates - 1 - known, known, known_better)


def _check_listed(path: Path, side: Side, row_Q: np.ndarray, offset_Q: np.ndarray) -> None:
    missing = np.flatnonzero(offset_Q < 0)
    if len(missing):
        raise OutputError(
            f"{path}: expected the list of row {row_Q[missing[0]]}, {side.label}, found none; evaluate again"
        )


@define(eq=False)
class _ListIndex:
    """Where each query's list begins, its relation, and who leads it; names are numbered as they come."""

    filtered: bool
    relations: dict[bytes, int] = field(factory=dict)
    winners: dict[bytes, int] = field(factory=dict)

    @staticmethod
    def names(numbered: dict[bytes, int]) -> list[str]:
        return [unescaped(cell.decode()) for cell in numbered]

    def read(self, path: Path, num_rows: int) -> tuple[dict[Side, np.ndarray], ...]:
        """Return offset, relation, winner (-1: none) and whether it is the query's own entity, by side and row."""
        offset, relation, winner = ({side: np.full(num_rows, -1, np.int64) for side in ENDS} for _ in range(3))
        is_own = {side: np.zeros(num_rows, bool) for side in ENDS}
        sides = {side.label.encode(): side for side in ENDS}
        with _readable(path), open_input(path) as file:
            if (header := file.readline()) not in _HEADERS:
                raise ValueError("other columns")
            position, query, is_decided = len(header), b"\n", True
            for line in file:
                if not line.startswith(query):
                    row_cell, side_cell, head, relation_cell, tail, _ = line.split(b"\t", 5)
                    query, side, row = b"%s\t%s\t" % (row_cell, side_cell), sides[side_cell], int(row_cell)
                    known_entity = side.pick(tail, head)
                    offset[side][row] = position
                    relation[side][row] = self.relations.setdefault(relation_cell, len(self.relations))
                    is_decided = False
                if not is_decided:
                    *_, candidate, _, is_known, is_true = line.split(b"\t")
                    is_decided = is_true == b"1\n" or is_known == b"0" or not self.filtered
                    if is_decided and is_true != b"1\n":
                        winner[side][row] = self.winners.setdefault(candidate, len(self.winners))
                        is_own[side][row] = candidate == known_entity
                position += len(line)
        return offset, relation, winner, is_own


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, KeyError, IndexError) as error:
        raise OutputError(f"{path}: expected saved lists, got: {reason_of(error)}; evaluate again") from error
