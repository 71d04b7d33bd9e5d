"""What the second sweep has counted: since the last entry of the journal, and in all."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from attrs import define, field
from torch import Tensor

from pbgeval.inputs.protocol import CandidateRange
from pbgeval.passes.cells import ScoreCollector
from pbgeval.passes.topk import TopCandidates
from pbgeval.passes.type_gains import TypeGains
from pbgeval.worker.contestants import Contestants

_ARRAYS = 8  # per contest: counts; query, bits and mark of each score; best candidates; three of queries for types


@define(eq=False)
class SweepResults:
    """The results of all contests; ranges of candidates add to the contestants themselves, which start at zero."""

    contestants: list[Contestants]
    _counts: list[Tensor] = field(init=False)
    _collectors: list[ScoreCollector] = field(init=False)
    _tops: list[TopCandidates | None] = field(init=False)
    _gains: list[TypeGains | None] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._counts = [torch.zeros_like(one.state.counts_6Q) for one in self.contestants]
        self._collectors = [ScoreCollector() for _ in self.contestants]
        self._tops = [
            None if one.top is None else TopCandidates(one.top.num_keys, one.top.k) for one in self.contestants
        ]
        self._gains = [None if one.gains is None else one.gains.empty() for one in self.contestants]

    def pack(self) -> list[np.ndarray]:
        """Return what was counted since `clear`, as arrays of integers (n,)."""
        arrays = []
        for one in self.contestants:
            nothing = np.empty(0, np.int64)
            best = nothing if one.top is None else one.top.packed()
            gains = [nothing] * 3 if one.gains is None else one.gains.pack()
            arrays += [one.state.counts_6Q.numpy().reshape(-1), *one.collector.pack(), best, *gains]
        return arrays

    def add_packed(self, arrays: Sequence[np.ndarray]) -> None:
        """Add to the total what was packed."""
        for number in range(len(self.contestants)):
            counts, query, bits, known, best, *of_gains = arrays[_ARRAYS * number : _ARRAYS * (number + 1)]
            self._counts[number] += torch.from_numpy(counts).view_as(self._counts[number])
            self._collectors[number].add_packed(query, bits, known)
            top = self._tops[number]
            if top is not None:
                top.merge_packed(best)
            gains = self._gains[number]
            if gains is not None:
                gains.add_packed(of_gains)

    def clear(self) -> None:
        """Begin anew: what was counted is in an entry, and in the total."""
        for one in self.contestants:
            one.state.counts_6Q.zero_()
            one.collector = ScoreCollector()
            if one.top is not None:
                one.top = TopCandidates(one.top.num_keys, one.top.k)
            if one.gains is not None:
                one.gains = one.gains.empty()

    def finish(self) -> None:
        """Give the contestants the total, what was counted since `clear` included."""
        for one, counts, collector, top, gains in zip(
            self.contestants, self._counts, self._collectors, self._tops, self._gains, strict=True
        ):
            one.state.counts_6Q += counts
            one.collector.extend(collector)
            if top is not None and one.top is not None:
                one.top.merge_packed(top.packed())
            if gains is not None and one.gains is not None:
                one.gains.add_packed(gains.pack())


def range_name(part: CandidateRange) -> str:
    """Return a range of candidates as the journal calls it."""
    return f"{part.slot}:{part.start}-{part.stop}"


def range_of_name(name: str) -> CandidateRange:
    """Return the range that the journal calls so."""
    slot, _, rows = name.partition(":")
    start, _, stop = rows.partition("-")
    return CandidateRange(int(slot), int(start), int(stop))


def share_rows(done: Sequence[str], units: Sequence[str]) -> bool:
    """Whether some ranges have rows in common with those that are done."""
    ranges = [range_of_name(name) for name in done]
    return any(
        one.slot == part.slot and one.start < part.stop and part.start < one.stop
        for one in map(range_of_name, units)
        for part in ranges
    )
