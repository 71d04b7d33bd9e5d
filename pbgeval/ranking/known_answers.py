"""Known edges, block after block -> the pairs (query key, known answer) of the queries that are evaluated.

Of billions of known edges few share (relation, entity) with an evaluated edge. So all are tested against a table of
bits by a cheap hash, which errs on one side only; what passes is looked up exactly. Rows are taken in steps whose
intermediate arrays stay in cache, and matches are handed on many steps at a time.
One thread works here; numpy releases the interpreter's lock, so another can read the next block meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from attrs import define, field, frozen
from torch import Tensor

from pbgeval.jit import CompiledLoop
from pbgeval.notation import ENDS, EntityNumbering, Side, distinct, is_among, sort_distinct, values_between
from pbgeval.ranking.keys import (
    LARGEST_INT64,
    CodeCounts,
    DistinctCodes,
    EdgeColumns,
    QueryKeys,
    check_codes_fit,
    checked_key_codes,
    key_codes,
)
from pbgeval.storage.transfers import sent
from pbgeval.storage.writing import ScratchFolder

ROWS_PER_STEP = 1 << 16
STEPS_PER_HANDOVER = 16  # so a sink is handed at most 2^20 pairs of a side
_CELLS_PER_KEY = 32  # at most one edge in 32 passes the sieve without reason, while the sieve stays below its limit
_MIN_CELLS, _MAX_CELLS = 1 << 14, 1 << 22  # of a sieve, bytes; beyond, two cells per key
JIT_MIN_ROWS = 1 << 22  # of those fed before: loading numba takes as long as numpy takes for them
_SPREAD = np.int64(0x9E3779B97F4A7C15 - (1 << 64))  # odd, without structure: relations of one entity fall apart


# Takes (hidden side, key_P, answer_P) of pairs that a semi-join finds: positions in the side's `QueryKeys`, and numbers
# of entities that answer them, int64; then, where edges have times, time_P. One pair may come any number of times.
PairSink = Callable[..., None]


class SemiJoin:
    """Joins known edges with the keys of the evaluated ones."""

    def __init__(self, keys: Mapping[Side, QueryKeys], sink: PairSink) -> None:
        self._sides = [(of_side, _sieve(of_side)) for of_side in keys.values()]
        self._sink = sink
        self._num_rows = 0  # fed so far

    def feed(self, block: EdgeColumns) -> None:
        """Hand the pairs of a block of known edges to the sink.

        Args:
            block: known edges, of any order and number; their entities are within the keys' `num_entities`.
        """
        rows_per_handover = ROWS_PER_STEP * STEPS_PER_HANDOVER
        for start in range(0, block.num_edges, rows_per_handover):
            self._feed_rows(block.select(slice(start, start + rows_per_handover)))

    def _feed_rows(self, block: EdgeColumns) -> None:
        self._num_rows += block.num_edges
        compiled = _passes.is_worth_compiling(self._num_rows, JIT_MIN_ROWS)
        found: list[list[tuple[np.ndarray, ...]]] = [[] for _ in self._sides]
        for start in range(0, block.num_edges, ROWS_PER_STEP):
            rows = block.select(slice(start, start + ROWS_PER_STEP))
            for (keys, is_marked), pairs in zip(self._sides, found, strict=True):
                first_n, known_n = rows.key(keys.hidden)
                if compiled:  # writes no array but this one: a third of the time
                    passed_P = np.empty(len(first_n), np.int64)
                    passed_P = passed_P[: _passes(first_n, known_n, _SPREAD, is_marked, passed_P)]
                else:
                    passed_P = np.flatnonzero(is_marked[(first_n * _SPREAD + known_n) & (len(is_marked) - 1)])
                key_P = keys.index_in_range(first_n[passed_P], known_n[passed_P])
                is_key = np.flatnonzero(key_P >= 0)  # positions: a mask costs more where hits are mixed with misses
                times = [] if rows.time_n is None else [rows.time_n]
                pairs.append((key_P[is_key], *(of[passed_P[is_key]] for of in (rows.entity(keys.hidden), *times))))
        for (keys, _), pairs in zip(self._sides, found, strict=True):
            key_P, *columns = (np.concatenate(parts) for parts in zip(*pairs, strict=True))
            if len(key_P):
                self._sink(keys.hidden, key_P, *columns)


def _sieve(keys: QueryKeys) -> np.ndarray:
    """Return a table of marks, bool, a power of two of them: whether some key has a hash."""
    cells = max(_MIN_CELLS, min(_CELLS_PER_KEY * len(keys.codes_K), _MAX_CELLS), 2 * len(keys.codes_K))
    is_marked = np.zeros(1 << (cells - 1).bit_length(), bool)
    rel_K, entity_K = np.divmod(keys.codes_K, max(keys.num_entities, 1))
    is_marked[(rel_K * _SPREAD + entity_K) & (len(is_marked) - 1)] = True
    return is_marked


@CompiledLoop
def _passes(rel_n, known_n, spread, is_marked, row_P):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
    mask, num_passed = np.int64(is_marked.size - 1), 0
    for row in range(rel_n.size):
        row_P[num_passed] = row  # overwritten unless it passes: no branch that is hard to foresee
        num_passed += 1 if is_marked[(rel_n[row] * spread + known_n[row]) & mask] else 0
    return num_passed


# Known answers, and those of each block of scores.


@frozen(eq=False)
class KnownAnswers:
    """The known answers of some keys within one range of candidates."""

    key_P: np.ndarray  # int64, ascending: index of the answer's key
    entity_id_P: np.ndarray  # int64, ascending within a key: number of the answer, or its row in a partition
    _on_devices: dict[torch.device, tuple[Tensor, Tensor]] = field(factory=dict, init=False)

    def on_device(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return the keys and the entities on a device, copied once."""
        if device not in self._on_devices:
            self._on_devices[device] = _copied(self.key_P, device), _copied(self.entity_id_P, device)
        return self._on_devices[device]

    def select(self, keys_K: np.ndarray) -> KnownAnswers:
        """Return the answers of some keys, each numbered by its place among them.

        Args:
            keys_K: int64, in any order; a key may repeat, and -1 has no answers.
        """
        if np.array_equal(keys_K, np.arange(keys_K.size)):  # the first keys, usually all
            return self.of_keys(0, keys_K.size)
        first_K, length_K = self.lists(keys_K)
        return KnownAnswers(
            np.repeat(np.arange(keys_K.size), length_K), self.entity_id_P[concatenated_ranges(first_K, length_K)]
        )

    def lists(self, keys_K: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return where the answers of each of some keys begin, and how many they are."""
        first_K = np.searchsorted(self.key_P, keys_K)
        return first_K, np.searchsorted(self.key_P, keys_K, "right") - first_K

    def of_keys(self, first: int, stop: int) -> KnownAnswers:
        """Return those of consecutive keys, as views."""
        part = slice(*np.searchsorted(self.key_P, [first, stop]))
        return KnownAnswers(self.key_P[part], self.entity_id_P[part])

    def between(self, first: int, stop: int) -> KnownAnswers:
        """Return those that are consecutive entities."""
        inside_P = (self.entity_id_P >= first) & (self.entity_id_P < stop)
        return self if inside_P.all() else KnownAnswers(self.key_P[inside_P], self.entity_id_P[inside_P])

    def are_known(self, key: np.ndarray, entity_id: np.ndarray) -> np.ndarray:
        """Tell of each (key, entity) whether it is a known answer, bool."""
        if not self.entity_id_P.size or not entity_id.size:
            return np.zeros(entity_id.shape, bool)
        low = min(int(self.entity_id_P.min()), int(entity_id.min()))
        width = max(int(self.entity_id_P.max()), int(entity_id.max())) - low + 1
        return is_among(key * width + entity_id - low, self.key_P * width + self.entity_id_P - low)


@frozen(eq=False)
class KnownOfEdges:
    """Known answers, and whose are those of some edges' queries."""

    answers: KnownAnswers
    key_E: np.ndarray  # int64: position of each edge's key; -1: it has none
    _keys_on: dict[torch.device, Tensor] = field(factory=dict, init=False)

    def on_device(self, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        """Return the key of each edge, and of each answer its key and its entity, copied once."""
        if device not in self._keys_on:
            self._keys_on[device] = _copied(self.key_E, device)
        return self._keys_on[device], *self.answers.on_device(device)

    def of(self, edges: np.ndarray) -> KnownAnswers:
        """Return those of some edges, each numbered by its place among them."""
        return self.answers.select(self.key_E[edges])


def _copied(values: np.ndarray, device: torch.device) -> Tensor:
    return sent(torch.from_numpy(np.require(values, requirements=("C", "W"))), device)


def concatenated_ranges(begins: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Concatenate range(begin, begin + length) of each pair, int64."""
    before = np.cumsum(lengths) - lengths
    shifts: np.ndarray = np.repeat(begins - before, lengths)
    return shifts + np.arange(int(lengths.sum()), dtype=np.int64)


def positions_of_lists(
    first_N: np.ndarray, length_N: np.ndarray, at_a_time: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield (list, position) of all members of lists that are runs of one array, so many at a time."""
    stop_N = np.cumsum(length_N)
    before_N, total = stop_N - length_N, int(stop_N[-1]) if stop_N.size else 0
    for start in range(0, total, at_a_time):
        member = np.arange(start, min(start + at_a_time, total))
        of_list = np.searchsorted(stop_N, member, "right")
        yield of_list, first_N[of_list] + member - before_N[of_list]


def positions(sorted_ids: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return where each id is in a sorted array; far below zero where it is not."""
    first, last = int(sorted_ids[0]), int(sorted_ids[-1])
    if last - first + 1 == sorted_ids.size:  # none is left out, so nothing need be searched for
        return np.where((wanted >= first) & (wanted <= last), wanted - first, np.int64(-(1 << 62)))
    at = np.searchsorted(sorted_ids, wanted)
    return np.where(sorted_ids[np.minimum(at, sorted_ids.size - 1)] == wanted, at, np.int64(-(1 << 62)))


def known_by_run(known: KnownAnswers, entity_ids_C: np.ndarray, width: int) -> list[KnownAnswers]:
    """Return the known answers in each run of `width` candidates, by their columns within it."""
    column_P = positions(entity_ids_C, known.entity_id_P)
    competes_P = column_P >= 0
    key_P, column_P = known.key_P[competes_P], column_P[competes_P]
    if width >= entity_ids_C.size:
        return [KnownAnswers(key_P, column_P)]
    order = np.argsort(column_P // width, kind="stable")  # keys stay in order within a run
    key_P, column_P = key_P[order], column_P[order]
    borders = np.searchsorted(column_P // width, np.arange(-(-entity_ids_C.size // width) + 1)).tolist()
    return [KnownAnswers(key_P[low:high], column_P[low:high] % width) for low, high in pairwise(borders)]


# Pairs (query key, known answer) -> the distinct ones, by the slot of the answer, where candidates are ranked.
#
# A pair is one int64: the answer's row in its slot, then the key. So the pairs of a range of candidates are one slice
# of the sorted array, and a hub key with a million answers costs eight bytes for each.

KEY_BITS = 31
_KEY_MASK = (1 << KEY_BITS) - 1
_MOST = 1 << 31  # keys, and rows of a slot


@frozen(eq=False)
class KnownPairs:
    """The known answers of the queries of one side that lie in one slot."""

    packed_P: np.ndarray  # int64, increasing: row << KEY_BITS | key

    def in_rows(self, start: int = 0, stop: int = _MOST) -> KnownAnswers:
        """Return the answers in rows start to stop of the slot, each by its row."""
        packed_P = values_between(self.packed_P, start << KEY_BITS, stop << KEY_BITS)
        by_key_P = (packed_P & _KEY_MASK) << KEY_BITS
        by_key_P |= packed_P >> KEY_BITS
        by_key_P.sort()
        return KnownAnswers(by_key_P >> KEY_BITS, by_key_P & _KEY_MASK)


@define(eq=False)
class PairStore:
    """Keeps the pairs of both sides packed, in memory up to a budget and then in a scratch folder.

    Pairs that come twice count once. With a scratch folder, workers that share it share their pairs: each calls
    `flush`, and when all have (a barrier), any of them asks for `pairs`.
    """

    _numbering: EntityNumbering  # of answers
    # What buffered pairs may take before they are sorted, and then spilled; sorting takes as much again as the pairs of
    # one slot.
    _budget_bytes: int
    _scratch: ScratchFolder | None  # where pairs are spilled; without it they all stay in memory
    _name: str = "pairs"  # what files there begin with
    _buffers: dict[tuple[Side, int], DistinctCodes] = field(factory=dict, init=False)

    @property
    def num_bytes(self) -> int:
        """What the pairs in memory take."""
        return 8 * sum(buffer.num_held for buffer in self._buffers.values())

    def add(self, hidden: Side, key_P: np.ndarray, answer_P: np.ndarray) -> None:
        """Take pairs (see `PairSink`).

        Raises:
            ValueError: a key or an answer's row in its slot is 2^31 or more, or negative.
            OutputError: the scratch folder cannot be written.
        """
        if not len(key_P):
            return
        if key_P.min() < 0 or key_P.max() >= _MOST:
            raise ValueError(f"expected keys 0 to 2^31 - 1, found {key_P.min()} to {key_P.max()}")
        # Relations are no entities: all of them lie in slot 0, each in the row of its id.
        for slot, rows in [(0, slice(None))] if hidden is Side.REL else _rows_by_slot(self._numbering, answer_P):
            row_P, key_in_slot_P = answer_P[rows] - self._numbering.range_of_slot(slot)[0], key_P[rows]
            if row_P.max() >= _MOST:
                raise ValueError(f"slot {slot}: expected rows 0 to 2^31 - 1, found {row_P.max()}")
            self._buffers.setdefault((hidden, slot), DistinctCodes()).add(row_P << KEY_BITS | key_in_slot_P)
        if self._scratch is not None and self.num_bytes > self._budget_bytes:
            # Repetitions go first; if that frees less than half of the budget, all pairs are spilled.
            for buffer in self._buffers.values():
                buffer.sorted()
            if self.num_bytes > self._budget_bytes // 2:
                self.flush()

    def flush(self) -> None:
        """Write all pairs in memory to the scratch folder, for other workers to read; nothing where there is none."""
        if self._scratch is not None:
            for (hidden, slot), buffer in self._buffers.items():
                self._scratch.append(self._scratch_name(hidden, slot), buffer.sorted())
            self._buffers = {}

    def pairs(self, hidden: Side, slot: int) -> KnownPairs:
        """Return the distinct pairs of a side and slot: this store's, and what others flushed to the same folder."""
        in_memory = self._buffers.get((hidden, slot), DistinctCodes()).sorted()
        if self._scratch is None:
            return KnownPairs(in_memory)
        spilled = self._scratch.read(self._scratch_name(hidden, slot), np.int64)
        return KnownPairs(sort_distinct(np.concatenate([spilled, in_memory]) if len(in_memory) else spilled))

    def _scratch_name(self, hidden: Side, slot: int) -> str:
        return f"{self._name}-{hidden.name}-{slot}"


def _rows_by_slot(numbering: EntityNumbering, answer_P: np.ndarray) -> list[tuple[int, slice | np.ndarray]]:
    """Return (slot, which of the answers lie in it) of every slot that has some."""
    first, last = numbering.slot_of(np.array([answer_P.min(), answer_P.max()])).tolist()
    if first < 0 or last >= len(numbering.slots):
        found = f"{answer_P.min()} to {answer_P.max()}"
        raise ValueError(f"expected entities 0 to {numbering.num_entities - 1}, found {found}")
    if first == last:
        return [(first, slice(None))]
    slot_P = numbering.slot_of(answer_P).astype(np.min_scalar_type(last))  # small numbers are sorted by their digits
    order = np.argsort(slot_P, kind="stable")
    slots, begins = np.unique(slot_P[order], return_index=True)
    return list(zip(slots.tolist(), np.split(order, begins[1:]), strict=True))


# Times of queries and of known edges -> the known answers that a filter leaves out.
#
# A filter goes by the query's key alone, or by its key and its time: then known edges of some times around the query's
# count. Scores are shared by the queries of one key all the same.

PAIRS_AT_A_TIME = 1 << 20  # of a known edge and a query's time; changes no number
_NOTHING = np.empty(0, np.int64)


class TimeWindow(NamedTuple):
    """How far from a query's time known edges may be that it leaves out; None: as far as they like."""

    past: int | None
    future: int | None


@frozen(eq=False)
class FilterKeys:
    """What the known answers of queries that hide one side go by: positions in `codes_K`, or in `keys`."""

    keys: QueryKeys
    window: TimeWindow | None = None  # None: times do not count
    times_K: np.ndarray = _NOTHING  # int64, increasing: of the queries
    codes_K: np.ndarray = _NOTHING  # int64, increasing: position in `keys` x number of times + place of the time

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
        times_K = distinct(time_E)
        return cls(keys, window, times_K, distinct(index_E * len(times_K) + np.searchsorted(times_K, time_E)))

    def index_of(self, edges: EdgeColumns) -> np.ndarray:
        """Return the position of each edge's query, int64, -1 where it is none of these."""
        index_E = self.keys.index_in_range(*edges.key(self.keys.hidden))
        if self.window is None or not len(self.codes_K):
            return index_E
        assert edges.time_n is not None, "the config asks for times"
        place_E = positions(self.times_K, edges.time_n)
        code_E = np.where((index_E >= 0) & (place_E >= 0), index_E * len(self.times_K) + place_E, -1)
        return np.asarray(np.maximum(positions(self.codes_K, code_E), -1))

    def pairs(
        self, key_P: np.ndarray, answer_P: np.ndarray, time_P: np.ndarray | None
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield (position, answer) of the pairs (key, known answer) that a join finds; one may come again."""
        if self.window is None:
            yield key_P, answer_P
            return
        assert time_P is not None, "the config asks for times"
        past, future = (LARGEST_INT64 if limit is None else limit for limit in self.window)
        latest_P = np.minimum(time_P, LARGEST_INT64 - past) + past
        number = len(self.times_K)
        low_P = key_P * number + np.searchsorted(self.times_K, np.maximum(time_P - future, 0))
        high_P = key_P * number + np.searchsorted(self.times_K, latest_P, "right")
        first_P, stop_P = (np.searchsorted(self.codes_K, code_P) for code_P in (low_P, high_P))
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


# Known edges -> the entities seen at each side of the relations that are evaluated (`type_constraint = "observed"`).
#
# Memory follows the distinct (relation, entity) pairs, not the edges.

_ROWS_AT_ONCE = 1 << 20  # of a block: what is copied of it at a time


def observed_entities(
    relations: np.ndarray, num_entities: int, blocks: Iterable[EdgeColumns]
) -> dict[Side, np.ndarray]:
    """Return relation x num_entities + entity of the entities seen at each side, int64, increasing.

    Args:
        relations: the relations that matter, int64; edges of others are passed over.
        num_entities: entities of all types and partitions.
        blocks: known edges, of any order and number.

    Raises:
        ValueError: relations x entities do not fit in int64.
    """
    matters = np.bincount(relations) > 0
    check_codes_fit(len(matters), num_entities)
    matters = np.append(matters, False)  # stands for all beyond
    seen = {side: DistinctCodes() for side in ENDS}
    for block in blocks:
        for start in range(0, block.num_edges, _ROWS_AT_ONCE):
            edges = block.select(slice(start, start + _ROWS_AT_ONCE))
            rows = np.flatnonzero(np.take(matters, edges.rel_n, mode="clip"))
            if len(rows) < edges.num_edges:
                edges = edges.select(rows)
            for side in ENDS if edges.num_edges else ():
                seen[side].add(key_codes(edges.rel_n, edges.entity(side), num_entities))
    return {side: codes.sorted() for side, codes in seen.items()}


# Evaluated edges of one slot of known entities -> how often each query key occurs.
#
# Most keys of a large graph occur once, so only the others are kept. A key belongs to the slot of its known entity, so
# the slots of a side are counted one after another, and their tables hold different keys.


def repeated_keys(hidden: Side, blocks: Iterable[EdgeColumns], num_entities: int) -> CodeCounts:
    """Count the keys of evaluated edges that occur at least twice; takes 16 bytes for each edge while it works.

    Args:
        hidden: the side that the queries hide.
        blocks: all evaluated edges whose entity at the other side is in the slot, each once.
        num_entities: entities of all types and partitions.

    Raises:
        ValueError: relations x entities do not fit in int64.
    """
    parts = (checked_key_codes(*block.key(hidden), num_entities) for block in blocks)
    counted = CodeCounts.of_codes(np.concatenate([np.empty(0, np.int64), *parts]))
    return counted.select(counted.counts > 1)


def key_frequency(repeated: CodeCounts, hidden: Side, edges: EdgeColumns, num_entities: int) -> np.ndarray:
    """Return how many evaluated edges have the key of each of these evaluated edges, int64 (E,)."""
    return np.asarray(np.maximum(repeated.of(key_codes(*edges.key(hidden), num_entities)), 1))
