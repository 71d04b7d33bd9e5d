"""Times of queries and of known edges -> the known answers that a filter leaves out.

A filter goes by the query's key alone, or by its key and its time: then known edges of some times around the query's
count. Scores are shared by the queries of one key all the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
from attrs import frozen

from pbgeval.notation import Side, distinct
from pbgeval.ranking.keys import LARGEST_INT64, EdgeColumns, QueryKeys
from pbgeval.ranking.known_answers import PairStore, positions_of_lists

NONE = np.empty(0, np.int64)
PAIRS_AT_A_TIME = 1 << 20  # of a known edge and a query's time; changes no number


@frozen
class TimeWindow:
    """How far from a query's time known edges may be that it leaves out; None: as far as they like."""

    past: int | None
    future: int | None


@frozen(eq=False)
class FilterKeys:
    """What the known answers of queries that hide one side go by: positions in `codes_T`, or in `keys`."""

    keys: QueryKeys
    window: TimeWindow | None = None  # None: times do not count
    times_U: np.ndarray = NONE  # int64, increasing: of the queries
    codes_T: np.ndarray = NONE  # int64, increasing: position in `keys` x number of times + place of the time

    @classmethod
    def of_queries(cls, keys: QueryKeys, window: TimeWindow | None, blocks: Iterable[EdgeColumns]) -> FilterKeys:
        """Collect the keys of evaluated edges; those that have none of `keys` are passed over."""
        if window is None:
            return cls(keys)
        parts = [np.empty((2, 0), np.int64)]
        for block in blocks:
            assert block.time_n is not None, "the config asks for times"
            index_n = keys.index_in_range(*block.key(keys.hidden))
            parts.append(np.stack([index_n, block.time_n])[:, index_n >= 0])
        index_E, time_E = np.concatenate(parts, axis=1)
        times_U = distinct(time_E)
        return cls(keys, window, times_U, distinct(index_E * len(times_U) + np.searchsorted(times_U, time_E)))

    def index_of(self, edges: EdgeColumns) -> np.ndarray:
        """Return the position of each edge's query, int64, -1 where it is none of these."""
        index_E = self.keys.index_in_range(*edges.key(self.keys.hidden))
        if self.window is None or not len(self.codes_T):
            return index_E
        assert edges.time_n is not None, "the config asks for times"
        place_E = np.minimum(np.searchsorted(self.times_U, edges.time_n), len(self.times_U) - 1)
        code_E = index_E * len(self.times_U) + place_E
        at_E = np.minimum(np.searchsorted(self.codes_T, code_E), len(self.codes_T) - 1)
        found_E = (index_E >= 0) & (self.times_U[place_E] == edges.time_n) & (self.codes_T[at_E] == code_E)
        return np.where(found_E, at_E, -1)

    def pairs(
        self, key_P: np.ndarray, answer_P: np.ndarray, time_P: np.ndarray | None
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield (position, answer) of the pairs (key, known answer) that a join finds; one may come again."""
        if self.window is None:
            yield key_P, answer_P
            return
        assert time_P is not None, "the config asks for times"
        past, future = self.window.past, self.window.future
        earliest_P = np.zeros_like(time_P) if future is None else np.maximum(time_P - future, 0)
        latest_P = np.full_like(time_P, LARGEST_INT64)
        if past is not None:
            latest_P = np.minimum(time_P, LARGEST_INT64 - past) + past
        number = len(self.times_U)
        low_P = key_P * number + np.searchsorted(self.times_U, earliest_P)
        high_P = key_P * number + np.searchsorted(self.times_U, latest_P, "right")
        first_P, stop_P = (np.searchsorted(self.codes_T, code_P) for code_P in (low_P, high_P))
        for place, at in positions_of_lists(first_P, stop_P - first_P, PAIRS_AT_A_TIME):
            yield at, answer_P[place]


@frozen(eq=False)
class KnownFilter:
    """The known answers that one filter leaves out."""

    of_side: Mapping[Side, FilterKeys]
    store: PairStore

    def add(self, hidden: Side, key_P: np.ndarray, answer_P: np.ndarray, time_P: np.ndarray | None = None) -> None:
        """Take pairs (see `PairSink`) by their positions in the keys that were joined."""
        for at_P, answers_P in self.of_side[hidden].pairs(key_P, answer_P, time_P):
            self.store.add(hidden, at_P, answers_P)
