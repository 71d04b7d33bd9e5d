"""Sizes of buckets, a seed and a number of draws -> which units of each bucket are evaluated.

A unit is what is drawn whole: an edge, or a chunk of edges where candidates are sampled; its caller numbers the units
of a bucket from 0. Everything follows from (seed, sizes, draws), so each worker computes the same for the buckets
that it is handed. Every unit is drawn with the same probability, so the plain mean over the units drawn is unbiased:

    strata       neighbouring buckets, joined until each expects at least LEAST_DRAWS draws
    allocation   proportional, rounded at random by one offset for all strata (systematic rounding)
    selection    the first units of a fixed random order of the stratum: without replacement, and later rounds only add
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np
import torch
from attrs import define, field

from pbgeval.metrics.intervals import SampleDesign
from pbgeval.notation import Bucket
from pbgeval.ranking.draws import HOST, DrawStream, uniform_below

LEAST_DRAWS = 2  # expected in a stratum: with fewer its variance cannot be estimated
FIRST_ROUND_EDGES = 2_000  # each later round of the plan doubles what was drawn before
SHUFFLE_ROUNDS = 12  # of the Feistel network: even on ten units all subsets are equally likely (tested)
_POSITIONS_PER_BLOCK = 1 << 16  # keeps the temporaries in cache; changes no number


BucketUnits = tuple[int, Bucket, int]  # index in `edge_paths`, bucket, how many units it holds


def make_strata(sizes: Sequence[int], num_draws: int) -> tuple[range, ...]:
    """Join neighbouring buckets until the proportional share of each stratum is at least LEAST_DRAWS.

    Args:
        sizes: units of each bucket, in the fixed order of the buckets.
        num_draws: units to draw from all of them.

    Returns:
        The buckets of each stratum; together all of them, in order. One stratum if there are too few draws for more.
    """
    total, size, borders = sum(sizes), 0, [0]
    for stop, bucket_size in enumerate(sizes, 1):
        size += bucket_size
        if total and size * num_draws >= LEAST_DRAWS * total:
            borders.append(stop)
            size = 0
    # The last stratum reaches to the end: what is left joins it.
    return tuple(range(*ends) for ends in pairwise([*(borders[:-1] or borders), len(sizes)]))


def allocate(sizes: Sequence[int], num_draws: int, offset_word: int) -> tuple[int, ...]:
    """Share out draws proportionally: floor(C_h n/N + u) - floor(C_(h-1) n/N + u), with C the cumulative sizes.

    The total is exact, each share is off by less than 1, and its mean over the offset is the proportional one; so each
    unit is drawn with probability exactly n/N.

    Args:
        sizes: units of each stratum.
        num_draws: n; as many as there are units or more: all.
        offset_word: u as a 64-bit fraction.
    """
    total = sum(sizes)
    if num_draws >= total:
        return tuple(sizes)
    cumulative = accumulate(sizes, initial=0)
    drawn = [(units * num_draws * (1 << 64) + offset_word * total) // (total << 64) for units in cumulative]
    return tuple(after - before for before, after in pairwise(drawn))


def doubling_rounds(num_units: int, first_units: int) -> tuple[int, ...]:
    """Return how many units have been drawn after each round: first_units, then twice as many, at last all.

    Raises:
        ValueError: a first round of no units.
    """
    if first_units < 1:
        raise ValueError(f"the first round draws at least 1 unit, got {first_units}")
    rounds = [first_units]
    while rounds[-1] < num_units:
        rounds.append(2 * rounds[-1])
    return (*rounds[:-1], num_units)


def random_positions(stream: DrawStream, size: int, first: int, stop: int) -> np.ndarray:
    """Return the numbers at places first to stop of a random order of range(size), int64, all different.

    They are computed where they are asked for: nothing of that size is ever kept. The order is a Feistel network on the
    pairs (x // columns, x % columns), whose round functions are tables of Philox draws as long as the square root of
    the size; numbers beyond the size walk on along their cycle.
    """
    rows = max(1, math.isqrt(max(size, 1) - 1) + 1)  # the square root, rounded up
    columns = max(1, -(-size // rows))
    shapes = [(columns, rows), (rows, columns)] * (SHUFFLE_ROUNDS // 2)  # length of the table, range of its entries
    stops = np.cumsum([length for length, _ in shapes]).tolist()
    words = torch.split(stream.words_on(HOST, 0, stops[-1]), [length for length, _ in shapes])
    tables = [uniform_below(of_table, modulus).numpy() for of_table, (_, modulus) in zip(words, shapes, strict=True)]
    found = np.arange(first, stop, dtype=np.int64)
    for start in range(0, len(found), _POSITIONS_PER_BLOCK):
        block = found[start : start + _POSITIONS_PER_BLOCK]
        block[:] = _shuffled(block, rows, columns, tables)
        while (outside := np.nonzero(block >= size)[0]).size:
            block[outside] = _shuffled(block[outside], rows, columns, tables)
    return found


def _shuffled(numbers: np.ndarray, rows: int, columns: int, tables: Sequence[np.ndarray]) -> np.ndarray:
    row, column = np.divmod(numbers, columns)
    for of_columns, of_rows in zip(tables[::2], tables[1::2], strict=True):
        row += of_columns[column]
        row -= np.where(row >= rows, rows, 0)
        column += of_rows[row]
        column -= np.where(column >= columns, columns, 0)
    return np.asarray(row * columns + column)


@define(eq=False)
class EdgeSample:
    """Which units of each bucket each round draws. Rounds are numbered from 1; `sample_edges` has only one."""

    population: tuple[BucketUnits, ...]  # in the fixed order of the buckets
    seed: int
    round_totals: tuple[int, ...]  # units drawn after each round, increasing; the last at most all
    strata: tuple[range, ...]  # buckets of each; of the first round: they stay, so that rounds only add
    _sizes_G: np.ndarray = field(init=False, repr=False)  # units of each stratum
    _drawn_NG: np.ndarray = field(init=False, repr=False)  # units drawn from each stratum: before round 1, after each
    _clusters_NG: np.ndarray = field(init=False, repr=False)  # the first cluster of each stratum in each round
    # Stratum of each bucket, its first unit there, and one past its last.
    _places: dict[tuple[int, Bucket], tuple[int, int, int]] = field(init=False, repr=False)
    _latest: tuple[tuple[int, int], np.ndarray] | None = field(init=False, default=None, repr=False)

    def __attrs_post_init__(self) -> None:
        before = [*accumulate((num_units for _, _, num_units in self.population), initial=0)]
        self._places = {
            self.population[at][:2]: (index, before[at] - before[of.start], before[at + 1] - before[of.start])
            for index, of in enumerate(self.strata)
            for at in of
        }
        sizes = [before[of.stop] - before[of.start] for of in self.strata]
        if len(self._places) < len(self.population):
            raise ValueError("a bucket stands twice in the population")
        offset = int(DrawStream.named(f"edge sample {self.seed} offset").words(0, 1)[0])
        self._sizes_G = np.array(sizes, dtype=np.int64)
        self._drawn_NG = np.array([allocate(sizes, total, offset) for total in (0, *self.round_totals)], dtype=np.int64)
        added_NG = np.diff(self._drawn_NG, axis=0)
        self._clusters_NG = np.cumsum(added_NG).reshape(added_NG.shape) - added_NG  # round by round, stratum by stratum

    @classmethod
    def of_size(cls, population: Sequence[BucketUnits], num_draws: int, seed: int) -> EdgeSample:
        """Draw a number of units in one round; all of them, exactly, if there are no more than that.

        Args:
            population: (index in `edge_paths`, bucket, number of units), in a fixed order.
            num_draws: units to draw.
            seed: the evaluation's.

        Raises:
            ValueError: fewer than one draw, or a bucket stands twice in the population.
        """
        if num_draws < 1:
            raise ValueError(f"a sample has at least 1 unit, got {num_draws}")
        sizes = [num_units for _, _, num_units in population]
        drawn = min(num_draws, sum(sizes))
        return cls(tuple(population), seed, (drawn,), make_strata(sizes, drawn))

    @classmethod
    def of_rounds(
        cls, population: Sequence[BucketUnits], seed: int, first_units: int = FIRST_ROUND_EDGES
    ) -> EdgeSample:
        """Draw in rounds that double the sample until it is the population.

        Args:
            population: (index in `edge_paths`, bucket, number of units), in a fixed order.
            seed: the evaluation's.
            first_units: units of the first round. Where units are chunks: those that hold FIRST_ROUND_EDGES.

        Raises:
            ValueError: a first round of no units, or a bucket stands twice in the population.
        """
        sizes = [num_units for _, _, num_units in population]
        totals = doubling_rounds(sum(sizes), first_units)
        return cls(tuple(population), seed, totals, make_strata(sizes, totals[0]))

    @property
    def num_rounds(self) -> int:
        return len(self.round_totals)

    @property
    def num_units(self) -> int:
        """The units of the population."""
        return int(self._sizes_G.sum())

    def draw(self, path_index: int, bucket: Bucket, round_number: int = 1) -> tuple[np.ndarray, int]:
        """Return the units of a bucket that a round adds, and the cluster of the first in the whole sample.

        Units are int64 and increasing; the others' clusters follow the first one's.
        Costs time and memory in proportion to what the round draws from the bucket's stratum.
        """
        stratum, first, stop = self._places[path_index, bucket]
        if self._latest is None or self._latest[0] != (stratum, round_number):  # the latest positions are kept
            before, after = self._drawn_NG[round_number - 1 : round_number + 1, stratum].tolist()
            size = int(self._sizes_G[stratum])
            path, its_first, _ = self.population[self.strata[stratum].start]
            stream = DrawStream.named(f"edge sample {self.seed} order {path} {its_first.lhs} {its_first.rhs}")
            is_whole = after - before == size
            added = np.arange(size) if is_whole else np.sort(random_positions(stream, size, before, after))
            self._latest = (stratum, round_number), added
        drawn = self._latest[1]  # positions in the stratum that the round adds, increasing
        start, end = np.searchsorted(drawn, [first, stop]).tolist()
        return drawn[start:end] - first, int(self._clusters_NG[round_number - 1, stratum]) + start

    def design(self, round_number: int = 1) -> SampleDesign:
        """Return what the standard errors need to know of the whole sample after a round."""
        added_NG = np.diff(self._drawn_NG[: round_number + 1], axis=0)
        strata_NG = np.broadcast_to(np.arange(len(self.strata)), added_NG.shape)
        return SampleDesign(np.repeat(strata_NG.ravel(), added_NG.ravel()), self._sizes_G)
