"""Blocks of scores of one query group -> counts of all its competitors against every true score, by edge path."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Self

import numpy as np
from attrs import define, field
from torch import Tensor

from pbgeval.notation import distinct
from pbgeval.stats.groups import sortable_int32
from pbgeval.stats.pooled_counts import PooledCounts

SCORES_AT_A_TIME = 1 << 21  # of a path, sorted together; changes no number


@define(eq=False)
class PooledScores:
    """The competitors of a query group's queries, counted from any thread."""

    path_Q: np.ndarray  # edge path of each query
    nothing: PooledCounts  # against the true scores of all query groups
    filtered: bool
    _counts: dict[tuple[int, bool], PooledCounts] = field(init=False)  # by edge path, raw and filtered
    _waiting: dict[tuple[int, bool], list[np.ndarray]] = field(init=False)  # order images
    _lock: threading.Lock = field(factory=threading.Lock, init=False)

    def __attrs_post_init__(self) -> None:
        kinds = (False, True) if self.filtered else (False,)
        keys = [(path, is_filtered) for path in distinct(self.path_Q).tolist() for is_filtered in kinds]
        self._counts, self._waiting = {key: self.nothing for key in keys}, {key: [] for key in keys}

    def empty(self) -> Self:
        """Return the same before any competitor."""
        return type(self)(self.path_Q, self.nothing, self.filtered)

    def copy(self) -> Self:
        """Return the same with all competitors added so far."""
        copy = self.empty()
        copy._counts, copy._waiting = dict(self._counts), {key: [*parts] for key, parts in self._waiting.items()}
        return copy

    def add(self, query_P: np.ndarray, score_P: Tensor, known_P: np.ndarray | None) -> None:
        """Add scores of competitors; arguments are those of `ScoreCollector.add`."""
        image_P = sortable_int32(score_P.float().cpu())
        paths = {path for path, _ in self._counts}
        for path in paths:
            of_path = slice(None) if len(paths) == 1 else self.path_Q[query_P] == path
            image_C = image_P[of_path]
            self._add_to((path, False), image_C)
            if self.filtered:
                self._add_to((path, True), image_C if known_P is None else image_C[~known_P[of_path]])

    def _add_to(self, key: tuple[int, bool], image_P: np.ndarray) -> None:
        with self._lock:
            parts = self._waiting[key]
            parts.append(image_P)
            if sum(map(len, parts)) < SCORES_AT_A_TIME:
                return
            self._waiting[key] = []
        found = self.nothing.plus(_sorted(parts))  # beside other threads
        with self._lock:
            self._counts[key] += found

    def counts(self) -> dict[tuple[int, bool], PooledCounts]:
        """Return the counts of all competitors added, by edge path, raw and filtered; no other thread may add."""
        for key, parts in self._waiting.items():
            if parts:
                self._counts[key] = self._counts[key].plus(_sorted(parts))
                self._waiting[key] = []
        return self._counts

    def pack(self) -> list[np.ndarray]:
        """Return everything as arrays of integers (n,), for `add_packed`."""
        return [array for of_key in self.counts().values() for array in of_key.pack()]

    def add_packed(self, arrays: Iterator[np.ndarray]) -> None:
        """Add what another one of the same queries packed; further arrays are left."""
        for key in self._counts:
            self._counts[key] += PooledCounts.unpack(arrays)


def _sorted(parts: list[np.ndarray]) -> np.ndarray:
    joined: np.ndarray = np.concatenate(parts)
    joined.sort()
    return joined
