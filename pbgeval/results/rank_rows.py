"""Histograms of ranks -> the rows of `rank_histogram.csv`, of which there may be a million: made when wanted.

The file is written column by column, since row by row it takes longer than ranking the queries on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from attrs import frozen

from pbgeval.notation import Side
from pbgeval.results.csv_tables import to_csv
from pbgeval.results.result import Row
from pbgeval.stats.bins import EXACT_BINS, bin_edges
from pbgeval.stats.rank_types import RankType

if TYPE_CHECKING:
    from pbgeval.stats.groups import GroupStats

_COLUMNS = ("side", "rank_type", "lower_edge", "upper_edge", "count")


@frozen(eq=False)
class HistogramRows(Sequence[Row]):
    """How often each rank occurs: a row for each bin of each side and rank type."""

    parts: tuple[tuple[str, RankType, np.ndarray, np.ndarray], ...] = ()  # side, rank type, bins in order, counts

    @classmethod
    def from_groups(cls, groups: GroupStats, sides: Iterable[Side]) -> HistogramRows:
        """Take the histograms of all groups."""
        ranks = (
            (side.label, kind, histograms.ranks(kind))
            for side, histograms in ((side, groups.side_histograms(side)) for side in sides)
            for kind in RankType
        )
        return cls(tuple((label, kind, of.keys, of.counts) for label, kind, of in ranks))

    def __len__(self) -> int:
        return sum(len(bins_B) for _, _, bins_B, _ in self.parts)

    def __iter__(self) -> Iterator[Row]:
        return (
            dict(zip(_COLUMNS, (side, kind.value, *values), strict=True))
            for side, kind, bins_B, counts_B in self.parts
            for values in zip(*_edges(kind, bins_B), counts_B.tolist(), strict=True)
        )

    def __getitem__(self, index: Any) -> Any:  # noqa: ANN401 - a row or rows, as of a list
        return list(self)[index]

    def to_csv(self) -> bytes:
        """Return the file that `csv_tables.to_csv` makes of the rows."""
        if not len(self):
            return to_csv(()).encode()
        lines = [f"{','.join(_COLUMNS)}\n".encode()]
        for side, kind, bins_B, counts_B in self.parts:
            head = f"{side},{kind.value},"
            exact = int(np.searchsorted(bins_B, EXACT_BINS))
            lines.append(_lines_of_exact(head, _halves(kind), bins_B[:exact], counts_B[:exact]))
            low, high = _edges(kind, bins_B[exact:])
            wide = zip(low, high, counts_B[exact:].tolist(), strict=True)
            lines.append("".join(f"{head}{first!r},{last!r},{count}\n" for first, last, count in wide).encode())
        return b"".join(lines)


def _halves(kind: RankType) -> int:
    """Return what the ranks of a type's bins are divided by."""
    return 2 if kind is RankType.REALISTIC else 1


def _edges(kind: RankType, bins_B: np.ndarray) -> tuple[list[float], list[float]]:
    """Return the lowest and the highest rank of some increasing bins."""
    halves = _halves(kind)
    exact = int(np.searchsorted(bins_B, EXACT_BINS))  # bins of one rank; the others are wide
    ranks = (bins_B[:exact] / halves).tolist()
    wide = [bin_edges(of) for of in bins_B[exact:].tolist()]
    low, high = ([*ranks, *(edges[end] / halves for edges in wide)] for end in (0, 1))
    return low, high


def _lines_of_exact(head: str, halves: int, bins_B: np.ndarray, counts_B: np.ndarray) -> bytes:
    """Return the lines of bins of one rank each, as bytes in columns of which the empty places are left out."""
    whole_B, half_B = np.divmod(bins_B, halves)
    rank = [_digits(whole_B), _same(".", len(bins_B)), _digits(half_B * 5), _same(",", len(bins_B))]
    columns = [_same(head, len(bins_B)), *rank, *rank, _digits(counts_B), _same("\n", len(bins_B))]
    places = np.concatenate(columns, axis=1).reshape(-1)
    return places[places > 0].tobytes()


def _same(text: str, num_rows: int) -> np.ndarray:
    """Return a text in each row, uint8 (rows, letters)."""
    return np.broadcast_to(np.frombuffer(text.encode(), np.uint8), (num_rows, len(text)))


def _digits(values_B: np.ndarray) -> np.ndarray:
    """Return the decimal digits of whole numbers, uint8 (rows, places); 0 where a number has fewer."""
    powers = 10 ** np.arange(len(str(int(values_B.max(initial=0)))))[::-1]
    digits = (values_B[:, None] // powers % 10 + ord("0")).astype(np.uint8)
    digits[:, :-1][values_B[:, None] < powers[:-1]] = 0
    return digits
