"""Pairs (query key, known answer) -> the distinct ones, by the slot of the answer, where candidates are ranked.

A pair is one int64: the answer's row in its slot, then the key. So the pairs of a range of candidates are one slice of
the sorted array, and a hub key with a million answers costs eight bytes for each.
"""

from __future__ import annotations

import numpy as np
from attrs import define, field, frozen

from pbgeval.distinct import sort_distinct
from pbgeval.files import ScratchFolder
from pbgeval.notation import EntityNumbering, Side

KEY_BITS = 31
_KEY_MASK = (1 << KEY_BITS) - 1
_MOST = 1 << 31  # keys, and rows of a slot


@frozen(eq=False)
class KnownPairs:
    """The known answers of the queries of one side that lie in one slot."""

    packed_P: np.ndarray  # int64, increasing: row << KEY_BITS | key

    @property
    def num_pairs(self) -> int:
        return len(self.packed_P)

    def in_rows(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Return (key_P, row_P), int64, of the answers in rows start to stop of the slot; by key, then by row."""
        first, last = np.searchsorted(self.packed_P, [start << KEY_BITS, stop << KEY_BITS])
        return _unpack(_swap(self.packed_P[first:last]))

    def by_key(self) -> AnswersByKey:
        """Return the same pairs in the order of keys: another array of the same size."""
        return AnswersByKey(_swap(self.packed_P))


@frozen(eq=False)
class AnswersByKey:
    """The pairs of one side and slot, to be asked for the answers of a key."""

    packed_P: np.ndarray  # int64, increasing: key << KEY_BITS | row

    def of_keys(self, key_U: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the known answers of keys, list after list.

        Args:
            key_U: keys, int64, in any order; a key may repeat, and -1 has no answers.

        Returns:
            Offsets, int64 (U + 1): where each key's list starts, and the number of all; and the rows of the slot,
            int64, increasing within a list.
        """
        begin_U = np.searchsorted(self.packed_P, key_U << KEY_BITS)
        length_U = np.searchsorted(self.packed_P, (key_U + 1) << KEY_BITS) - begin_U
        offsets = np.concatenate([[0], np.cumsum(length_U)])
        at = np.repeat(begin_U - offsets[:-1], length_U) + np.arange(offsets[-1])
        return offsets, self.packed_P[at] & _KEY_MASK


@define(eq=False)
class _Buffer:
    """Pairs of one side and slot that are in memory."""

    parts: list[np.ndarray] = field(factory=list)  # int64, packed
    num_pairs: int = 0
    num_distinct: int = 0  # how many of them are in order and distinct: the first part

    def add(self, packed: np.ndarray) -> None:
        self.parts.append(packed)
        self.num_pairs += len(packed)

    def compact(self) -> np.ndarray:
        """Keep each pair once, and return all of them in order; takes as much memory again while it works."""
        if len(self.parts) != 1 or self.num_pairs != self.num_distinct:
            joined = np.concatenate([np.empty(0, np.int64), *self.parts])
            self.parts.clear()
            self.parts.append(sort_distinct(joined))
            self.num_pairs = self.num_distinct = len(self.parts[0])
        return self.parts[0]

    def take(self) -> np.ndarray:
        """Return all pairs in order and empty the buffer."""
        pairs = self.compact()
        self.parts, self.num_pairs, self.num_distinct = [], 0, 0
        return pairs


class PairStore:
    """Keeps the pairs of both sides packed, in memory up to a budget and then in a scratch folder.

    Pairs that come twice count once. With a scratch folder, workers that share it share their pairs: each calls
    `flush`, and when all have (a barrier), any of them asks for `pairs`.
    """

    def __init__(self, numbering: EntityNumbering, budget_bytes: int, scratch: ScratchFolder | None) -> None:
        """Make an empty store.

        Args:
            numbering: the entities of answers.
            budget_bytes: what buffered pairs may take before they are sorted, and then spilled; sorting takes as
                much again as the pairs of one slot.
            scratch: where pairs are spilled; without it they all stay in memory.
        """
        self._numbering = numbering
        self._budget = budget_bytes // 8  # pairs
        self._scratch = scratch
        self._buffers: dict[tuple[Side, int], _Buffer] = {}
        self._num_pairs = 0

    @property
    def num_bytes(self) -> int:
        """What the pairs in memory take."""
        return 8 * self._num_pairs

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
        for slot, rows in _rows_by_slot(self._numbering, answer_P):
            row_P, key_in_slot_P = answer_P[rows] - self._numbering.range_of_slot(slot)[0], key_P[rows]
            if row_P.max() >= _MOST:
                raise ValueError(f"slot {slot}: expected rows 0 to 2^31 - 1, found {row_P.max()}")
            self._buffers.setdefault((hidden, slot), _Buffer()).add(row_P << KEY_BITS | key_in_slot_P)
        self._num_pairs += len(key_P)
        if self._num_pairs > self._budget:
            self._make_room()

    def flush(self) -> None:
        """Write all pairs in memory to the scratch folder, for other workers to read; nothing where there is none."""
        if self._scratch is not None:
            for hidden, slot in list(self._buffers):
                self._spill(hidden, slot)

    def pairs(self, hidden: Side, slot: int) -> KnownPairs:
        """Return the distinct pairs of a side and slot: this store's, and what others flushed to the same folder."""
        buffer = self._buffers.get((hidden, slot), _Buffer())
        before = buffer.num_pairs
        in_memory = buffer.compact()
        self._num_pairs += buffer.num_pairs - before
        if self._scratch is None:
            return KnownPairs(in_memory)
        spilled = self._scratch.read(_scratch_name(hidden, slot), np.int64)
        return KnownPairs(sort_distinct(np.concatenate([spilled, in_memory]) if len(in_memory) else spilled))

    def _make_room(self) -> None:
        """Drop repetitions, the largest buffers first; then spill until half of the budget is free."""
        by_size = sorted(self._buffers.items(), key=lambda item: -item[1].num_pairs)
        for _, buffer in by_size:
            if self._num_pairs <= self._budget // 2:
                return
            # Where half is in order already there is little to gain, and sorting it at every call would cost much.
            if buffer.num_pairs >= 2 * buffer.num_distinct:
                self._num_pairs -= buffer.num_pairs
                buffer.compact()
                self._num_pairs += buffer.num_pairs
        if self._scratch is None or self._num_pairs <= self._budget:
            return
        for (hidden, slot), _ in by_size:
            if self._num_pairs <= self._budget // 2:
                return
            self._spill(hidden, slot)

    def _spill(self, hidden: Side, slot: int) -> None:
        assert self._scratch is not None, "only a store with a scratch folder spills"
        buffer = self._buffers.pop((hidden, slot))
        self._num_pairs -= buffer.num_pairs
        self._scratch.append(_scratch_name(hidden, slot), buffer.take())


def _scratch_name(hidden: Side, slot: int) -> str:
    return f"pairs-{hidden.name}-{slot}"


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


def _swap(packed_P: np.ndarray) -> np.ndarray:
    """Exchange the two halves of packed pairs, and sort them anew."""
    swapped = (packed_P & _KEY_MASK) << KEY_BITS
    swapped |= packed_P >> KEY_BITS
    swapped.sort()
    return swapped


def _unpack(packed_P: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return packed_P >> KEY_BITS, packed_P & _KEY_MASK
