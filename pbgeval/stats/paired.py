"""Two runs' figures of the same queries -> sums from which their differences, errors and tests follow.

A unit is what was drawn together: an edge with its two queries or, where candidates are sampled, a chunk. Queries of
one key share a query vector and known answers, so their differences depend on each other too. Sums of values are
int64; squares are float64, added in the order of the files, so the same files give the same bits.
Memory does not follow the edges: units are whole within a block, and of keys at most MAX_KEYS are kept apart. Beyond,
keys are joined by a hash, which leaves the variance that they give unbiased.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import numpy as np
from attrs import Factory, define, evolve, field, frozen

from pbgeval.stats.keyed_sums import begins

MAX_KEYS = 1 << 19  # of a side, of which sums are kept; more are joined
MAX_FLIPPED = 14  # edges with a difference that are kept one by one, for each group and metric
_PENDING_ROWS = 1 << 18  # of keys that wait to be added up
_FEWER_BITS = (16, 12, 8, 4, 0)  # of a hash, by which the keys of a group are joined


@frozen(eq=False)
class PairedSide:
    """The queries of some edges that hide one side."""

    is_ranked_E: np.ndarray  # bool: in both runs
    value_DE: np.ndarray  # int64: each metric of the first run's query, in units of the metric; 0 where not ranked
    change_DE: np.ndarray  # int64: the second run's value minus the first's; 0 where not ranked
    key_E: np.ndarray | None  # uint64: a hash of the query's key; None: every query has a key of its own


@frozen(eq=False)
class PairedEdges:
    """Some edges; all those of a unit are among them."""

    group_E: np.ndarray  # int64, from 0: for example the relation
    unit_E: np.ndarray  # int64: the unit, within these edges
    sides: tuple[PairedSide, ...]  # one or two


@define(eq=False)
class PairedKeys:
    """Sums by key that grow; few enough keys are kept apart."""

    num_metrics: int
    bits: int = field(default=64, init=False)  # of the hash that tell keys of a group apart
    # Groups, keys, and rows of sums
    _pending: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = field(
        default=Factory(
            lambda self: [(np.empty(0, np.int64), np.empty(0, np.uint64), np.empty((1 + self.num_metrics, 0), int))],
            takes_self=True,
        ),
        init=False,
    )
    _num_pending: int = field(default=0, init=False)

    def add(self, group_Q: np.ndarray, key_Q: np.ndarray, change_DQ: np.ndarray) -> None:
        """Add queries; the key determines the group."""
        self._pending.append((group_Q, key_Q, np.concatenate([np.ones((1, len(group_Q)), np.int64), change_DQ])))
        self._num_pending += len(group_Q)
        if self._num_pending > max(_PENDING_ROWS, len(self._pending[0][0])):
            self._join()

    def sums(self, group: int | None = None) -> np.ndarray:
        """Return the numbers of queries and the changes, (1 + metrics, K), of the keys of a group, None: of all."""
        if len(self._pending) > 1:
            self._join()
        group_K, _, rows = self._pending[0]
        return rows if group is None else rows[:, slice(*np.searchsorted(group_K, [group, group + 1]))]

    def _join(self) -> None:
        joined = self._added_up(*(np.concatenate(parts, axis=-1) for parts in zip(*self._pending, strict=True)))
        for bits in _FEWER_BITS:
            if len(joined[0]) > MAX_KEYS and self.bits > bits:
                self.bits = bits
                joined = self._added_up(*joined)
        self._pending, self._num_pending = [joined], 0

    def _added_up(
        self, group_Q: np.ndarray, key_Q: np.ndarray, rows: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        key_Q = key_Q >> np.uint64(64 - self.bits) << np.uint64(64 - self.bits) if self.bits else np.zeros_like(key_Q)
        order, starts = runs_of(group_Q, key_Q)
        first = order[starts]
        return group_Q[first], key_Q[first], summed(rows[:, order], starts)


def runs_of(*keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return a lexicographic order of some keys, and where runs of equal keys start."""
    is_new = np.zeros(max(len(keys[0]) - 1, 0), bool)
    falls = False
    for key in keys:
        falls |= bool((~is_new & (key[1:] < key[:-1])).any())
        is_new |= key[1:] != key[:-1]
    if not falls:  # edges are often in order already
        return np.arange(len(keys[0])), np.flatnonzero(np.append(True, is_new)[: len(keys[0])])
    order = np.lexsort(keys[::-1])
    return order, np.flatnonzero(begins(*(key[order] for key in keys)))


def summed(rows: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Return the sums of runs along the last axis."""
    return np.asarray(np.add.reduceat(rows, starts, axis=-1)) if len(starts) else rows[..., :0]


def _columns(num_sides: int, num_metrics: int) -> np.dtype[np.void]:
    """Return the sums of each group, by side and by metric."""
    sides, metrics, both = (num_sides,), (num_metrics,), (num_sides, num_metrics)
    return np.dtype(
        [
            ("num", np.int64, sides),  # ranked queries
            ("value", np.int64, both),
            ("change", np.int64, both),
            ("num_differing", np.int64, metrics),  # edges with a difference
            ("num_units", np.float64),
            ("size", np.float64, (num_sides, num_sides)),  # over units: products of two sides' numbers of queries
            ("square", np.float64, metrics),  # over units: squared change
            ("size_change", np.float64, both),  # over units: queries of a side x change
            ("cell_sizes", np.float64, sides),  # over the queries of one key in one unit: squared number
            ("cell_square", np.float64, both),  # over the queries of one key in one unit: squared change
            ("cell_size_change", np.float64, both),  # over the queries of one key in one unit: number x change
        ]
    )


@define(eq=False)
class PairedSums:
    """Sums by group. Blocks are added in the order of the files."""

    table: np.ndarray  # (G,): `_columns`
    # By metric: rows of group, unit, side, key, change
    _few: dict[int, list[np.ndarray]] = field(factory=lambda: defaultdict(list), init=False)
    _num_units: int = field(default=0, init=False)  # of all blocks so far
    _num_edges: int = field(default=0, init=False)

    @property
    def groups(self) -> list[int]:
        """Those that have ranked queries, increasing."""
        return list(np.flatnonzero(self.table["num"].any(1)).tolist())

    def few(self, metric: int) -> Mapping[int, np.ndarray]:
        """Return, for each group, the edges that differ in a metric; only groups with 1 to MAX_FLIPPED of them.

        Rows are unit, side, key (a uint64 as int64) and change of each query, int64 (4, Q).
        """
        rows = np.concatenate([np.empty((5, 0), np.int64), *self._few[metric]], axis=1)
        rows = rows[:, self.table["num_differing"][rows[0], metric] <= MAX_FLIPPED]
        order, starts = runs_of(rows[0])
        parts = np.split(rows[:, order], starts[1:], axis=1) if len(order) else []
        return {int(of[0, 0]): np.ascontiguousarray(of[1:]) for of in parts}

    def add(self, edges: PairedEdges) -> None:
        """Add the edges of a block that are ranked."""
        if not len(edges.group_E):
            return
        more = max(int(edges.group_E.max()) + 1 - len(self.table), 0)
        self.table = np.concatenate([self.table, np.zeros(more, self.table.dtype)])
        order, starts = runs_of(edges.group_E, edges.unit_E)
        group_N = edges.group_E[order[starts]]
        at = np.flatnonzero(np.diff(group_N, prepend=-1))  # where each group's units start
        group_G = group_N[at]
        sizes = np.stack([summed(side.is_ranked_E[order].astype(np.int64), starts) for side in edges.sides])
        side_changes = np.stack([summed(side.change_DE[:, order], starts) for side in edges.sides])
        change_DN: np.ndarray = side_changes.sum(0).astype(np.float64)
        float_sizes: np.ndarray = sizes.astype(np.float64)
        for name, values in {
            "num": sizes,
            "value": np.stack([summed(side.value_DE[:, order], starts) for side in edges.sides]),
            "change": side_changes,
            "num_units": np.asarray(np.logical_or.reduce(sizes > 0, axis=0), np.float64),
            "square": change_DN * change_DN,
            "size": float_sizes[:, None] * float_sizes[None],
            "size_change": float_sizes[:, None] * change_DN[None],
        }.items():
            self.table[name][group_G] += np.moveaxis(summed(values, at), -1, 0)
        for number, side in enumerate(edges.sides):
            self._add_cells(number, side, edges)
        self._keep_few(edges)
        self._num_units += int(edges.unit_E.max()) + 1
        self._num_edges += len(edges.unit_E)

    def _add_cells(self, number: int, side: PairedSide, edges: PairedEdges) -> None:
        """Add what queries of one key within one unit add up to."""
        ranked = np.flatnonzero(side.is_ranked_E)
        group_Q, unit_Q = edges.group_E[ranked], edges.unit_E[ranked]
        order, starts = runs_of(group_Q, unit_Q, ranked.view(np.uint64) if side.key_E is None else side.key_E[ranked])
        group_P = group_Q[order[starts]]
        num_P = np.diff(starts, append=len(order)).astype(np.float64)
        change_DP = summed(side.change_DE[:, ranked[order]], starts).astype(np.float64)
        at = np.flatnonzero(np.diff(group_P, prepend=-1))
        for name, values in {
            "cell_sizes": num_P**2,
            "cell_square": change_DP**2,
            "cell_size_change": num_P * change_DP,
        }.items():
            self.table[name][group_P[at], number] += np.moveaxis(summed(values, at), -1, 0)

    def _keep_few(self, edges: PairedEdges) -> None:
        """Keep the edges that differ in a metric while a group has but few of them."""
        for metric in range(self.table["num_differing"].shape[1]):
            at = np.flatnonzero(np.logical_or.reduce([side.change_DE[metric] != 0 for side in edges.sides]))
            num_differing_G = self.table["num_differing"][:, metric]
            num_differing_G += np.bincount(edges.group_E[at], minlength=len(self.table))
            at = at[num_differing_G[edges.group_E[at]] <= MAX_FLIPPED]
            for number, side in enumerate(edges.sides):
                here = at[side.is_ranked_E[at]]
                key_Q = (here + self._num_edges).view(np.uint64) if side.key_E is None else side.key_E[here]
                columns = [edges.group_E[here], edges.unit_E[here] + self._num_units, np.full(len(here), number)]
                self._few[metric].append(np.stack([*columns, key_Q.view(np.int64), side.change_DE[metric, here]]))


@define(eq=False)
class PairedStats:
    """The sums of all edges and of each group, and those of keys."""

    all: PairedSums
    by_group: PairedSums
    keys: list[PairedKeys]  # of each side; none without keys

    @classmethod
    def zero(cls, num_metrics: int, num_sides: int, *, with_keys: bool) -> PairedStats:
        of_all, by_group = (PairedSums(np.zeros(0, _columns(num_sides, num_metrics))) for _ in range(2))
        return cls(of_all, by_group, [PairedKeys(num_metrics) for _ in range(num_sides if with_keys else 0)])

    def add(self, edges: PairedEdges) -> None:
        """Add a block, in the order of the files."""
        self.all.add(evolve(edges, group_E=np.zeros_like(edges.group_E)))
        self.by_group.add(edges)
        for table, side in zip(self.keys, edges.sides, strict=False):
            if side.key_E is not None:
                ranked = np.flatnonzero(side.is_ranked_E)
                table.add(edges.group_E[ranked], side.key_E[ranked], side.change_DE[:, ranked])
