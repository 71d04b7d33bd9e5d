"""Ranks -> a row of named int64 sums per group of queries.

A metric is not additive, but its statistics are. Everything is int64, so + is exact and order does not matter.
A mean over all orders of the ties is stored as the optimistic value minus the mean, which is 0 without ties.
Reals (1/rank, shares, losses) are rounded once, per query, to fixed point with FRACTION_BITS and summed in two limbs
of LIMB_BITS: exact for 2^34 queries (decision 0001). Rows add only if their columns are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, reduce
from operator import add

import numpy as np
import torch
from attrs import frozen
from torch import Tensor

from pbgeval.notation import Side, T
from pbgeval.stats.query_metrics import (
    MEAN_RANK,
    QUERY_AUC,
    QueryMetric,
    fixed_point,
    keyed_metrics,
    query_metrics,
    ratio,
)
from pbgeval.stats.rank_types import RankType
from pbgeval.stats.ranks import RankCounts

FRACTION_BITS = 58  # of 1/rank and of shares: values up to 1
LOSS_FRACTION_BITS = 30  # of losses: values below 2^28
LIMB_BITS = 29
MAX_QUERIES = 1 << 34  # sums of limbs stay below 2^63
MAX_LOSS = 2.0 ** (FRACTION_BITS - LOSS_FRACTION_BITS)


@frozen
class StatsLayout:
    """The columns of a row of statistics."""

    cutoffs: tuple[int, ...]  # K of hits at K, increasing

    @cached_property
    def columns(self) -> tuple[str, ...]:
        names = [
            "num_queries",
            "num_competing_queries",
            "num_tied_queries",
            "num_short_lists",
            "num_excluded",
            "num_undefined_losses",
            "num_outside",
        ]
        limbs = [
            "num_competitors",
            "known",
            "loss",
            QUERY_AUC.name,
            *(f"expected_below_optimistic.{metric.name}" for metric in self.tied_metrics),
        ]
        for rank_type in RankType:
            for metric in self.metrics:
                (names if metric.units == 1 else limbs).append(f"{rank_type.value}.{metric.name}")
        return tuple(names + [f"{name}.{part}" for name in limbs for part in ("low", "high")])

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of all sums; a sum in two limbs has one name."""
        return (*(name for name in self.columns if not name.endswith((".low", ".high"))), *self.limbs)

    @cached_property
    def metrics(self) -> tuple[QueryMetric, ...]:
        """The metrics that are added up for every rank type."""
        return query_metrics(self.cutoffs)

    @cached_property
    def tied_metrics(self) -> tuple[QueryMetric, ...]:
        """Metrics whose mean over the orders of ties differs from the realistic rank's."""
        return tuple(metric for metric in self.metrics if metric.over_ties is not None and metric.units != 2)

    @cached_property
    def index(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.columns)}

    @cached_property
    def limbs(self) -> dict[str, tuple[int, int]]:
        """The columns of each sum in two limbs: (low, high)."""
        names = [name.removesuffix(".low") for name in self.columns if name.endswith(".low")]
        return {name: (self.index[f"{name}.low"], self.index[f"{name}.high"]) for name in names}


@frozen(eq=False)
class RankStats:
    """Sums over the queries of one group."""

    layout: StatsLayout
    sums: Tensor  # int64, one per column

    @classmethod
    def zero(cls, layout: StatsLayout) -> RankStats:
        return cls(layout, torch.zeros(len(layout.columns), dtype=torch.int64))

    @classmethod
    def from_queries(
        cls,
        layout: StatsLayout,
        counts: RankCounts,
        *,
        numbers: Mapping[str, int] | None = None,
        known_Q: Tensor | None = None,
        loss_Q: Tensor | None = None,
    ) -> RankStats:
        """Return the statistics of queries whose counts are complete.

        Args:
            layout: the columns.
            counts: competitors of each query, over all its candidates.
            numbers: num_short_lists, how many of the queries have a list that was topped up; num_excluded, candidates
                dropped because they are the true entity again; num_outside, further queries that are not ranked,
                because their true entity may not compete.
            known_Q: how many known answers were taken out of each query's competitors, int64.
            loss_Q: the loss of each query, float64.
        """
        size_G = np.array([counts.num_queries])
        [sums_D] = sums_of_groups(layout, counts, size_G, numbers=[numbers or {}], known_Q=known_Q, loss_Q=loss_Q)
        return cls(layout, torch.from_numpy(sums_D))

    def __add__(self, other: RankStats) -> RankStats:
        if self.layout != other.layout:
            raise ValueError(f"statistics of unlike columns do not add: {self.layout} and {other.layout}")
        return RankStats(self.layout, self.sums + other.sums)

    @cached_property
    def total(self) -> Sums:
        """Function from the name of a sum to its value; two limbs are joined in one Python integer."""
        integers: list[int] = self.sums.tolist()  # at once, because reading one tensor element takes microseconds
        totals = dict(zip(self.layout.columns, integers, strict=True)) | {
            name: integers[low] + (integers[high] << LIMB_BITS) for name, (low, high) in self.layout.limbs.items()
        }
        return totals.__getitem__


def sums_of_groups(
    layout: StatsLayout,
    counts: RankCounts,
    size_G: np.ndarray,
    *,
    numbers: Sequence[Mapping[str, int]],
    known_Q: Tensor | None = None,
    loss_Q: Tensor | None = None,
) -> np.ndarray:
    """Return a row of all sums for each group of queries, int64 (G, columns).

    Args:
        layout: the columns.
        counts: of queries whose counts are complete; those of one group stand next to each other.
        size_G: each group's number of queries, which may be 0.
        numbers: of each group, as in `RankStats.from_queries`.
        known_Q: as in `RankStats.from_queries`.
        loss_Q: as in `RankStats.from_queries`.
    """
    table_GD = np.zeros((len(size_G), len(layout.columns)), np.int64)
    has_queries = np.flatnonzero(size_G)
    starts_G = (np.cumsum(size_G) - size_G)[has_queries]
    columns = {} if known_Q is None else _limbs("known", known_Q)
    if loss_Q is not None:
        defined_Q = torch.isfinite(loss_Q) & (loss_Q.abs() < MAX_LOSS)
        columns |= _limbs("loss", fixed_point(loss_Q.masked_fill(~defined_Q, 0.0), LOSS_FRACTION_BITS))
        columns["num_undefined_losses"] = ~defined_Q
    if len(has_queries):
        each, times = counts.each_once() if len(has_queries) == 1 else (counts, None)
        table_GD[has_queries] = sum_groups(layout, each, starts_G, times)
        for name, values_Q in columns.items():
            table_GD[has_queries, layout.index[name]] = _sums(values_Q, starts_G)
    for sums_D, group_numbers in zip(table_GD, numbers, strict=True):
        for name, value in group_numbers.items():
            sums_D[layout.index[name]] = value
    return table_GD


def sum_groups(
    layout: StatsLayout, counts: RankCounts, starts_G: np.ndarray, times_Q: np.ndarray | None = None
) -> np.ndarray:
    """Return a row of sums for each group of queries, int64 (G, columns).

    Args:
        layout: the columns; those that do not follow from the counts are zero.
        counts: of queries whose counts are complete; those of one group stand next to each other.
        starts_G: where each group begins, int64, increasing from 0; no group is empty.
        times_Q: how many queries each entry stands for, int64; None: one.
    """
    table_GD = np.zeros((len(starts_G), len(layout.columns)), np.int64)
    num_rows_G = np.diff(starts_G, append=counts.better_Q.numel())
    table_GD[:, layout.index["num_queries"]] = num_rows_G if times_Q is None else np.add.reduceat(times_Q, starts_G)
    columns = {
        "num_competing_queries": counts.num_competitors_Q > 0,
        "num_tied_queries": counts.tied_Q > 0,
        **_limbs("num_competitors", counts.num_competitors_Q),
        **_limbs(QUERY_AUC.name, QUERY_AUC.numerators(counts, RankType.REALISTIC, FRACTION_BITS)),
    }
    for name, values_Q in columns.items():
        table_GD[:, layout.index[name]] = _sums(values_Q, starts_G, times_Q)
    # Rank types differ only in the few tied queries, so start from the optimistic sums and correct them for ties.
    names, optimistic_GD = _rank_sums(layout, counts, RankType.OPTIMISTIC, starts_G, times_Q)
    places = {rank_type: [layout.index[f"{rank_type.value}.{name}"] for name in names] for rank_type in RankType}
    for type_columns in places.values():
        table_GD[:, type_columns] = optimistic_GD
    rows_Q = (counts.tied_Q > 0).nonzero().squeeze(1)
    if not rows_Q.numel():
        return table_GD
    tied, tied_times_Q = counts.select(rows_Q), None if times_Q is None else times_Q[rows_Q.numpy()]
    num_tied_G = _sums(counts.tied_Q > 0, starts_G)
    has_ties = np.flatnonzero(num_tied_G)  # groups
    starts_of_tied = (np.cumsum(num_tied_G) - num_tied_G)[has_ties]
    for name, below_Q in _expected_below_optimistic(layout, tied).items():
        for part, limbs_Q in _limbs(f"expected_below_optimistic.{name}", below_Q).items():
            table_GD[has_ties, layout.index[part]] = _sums(limbs_Q, starts_of_tied, tied_times_Q)
    as_optimistic_GD = _rank_sums(layout, tied, RankType.OPTIMISTIC, starts_of_tied, tied_times_Q)[1]
    for rank_type in (RankType.REALISTIC, RankType.PESSIMISTIC):
        tied_GD = _rank_sums(layout, tied, rank_type, starts_of_tied, tied_times_Q)[1]
        table_GD[has_ties[:, None], places[rank_type]] += tied_GD - as_optimistic_GD
    return table_GD


def _expected_below_optimistic(layout: StatsLayout, tied: RankCounts) -> dict[str, Tensor]:
    """Return each tied metric's optimistic values minus its means over all orders of ties, fixed point (Q,).

    Each is the difference of two rounded values, so that sums of both add up.
    """
    best_Q, tied_Q, competitors_Q = (
        counts_Q.double().numpy() for counts_Q in (tied.better_Q + 1, tied.tied_Q, tied.num_competitors_Q)
    )
    below = {}
    for metric in layout.tied_metrics:
        assert metric.over_ties is not None, "tied metrics have a mean over ties"
        units = (1 << FRACTION_BITS) // metric.denominator(FRACTION_BITS)
        mean_Q = torch.from_numpy(metric.over_ties(best_Q, best_Q + tied_Q, competitors_Q))
        optimistic_Q = metric.numerators(tied, RankType.OPTIMISTIC, FRACTION_BITS) * units
        below[metric.name] = optimistic_Q - fixed_point(mean_Q, FRACTION_BITS)
    return below


def _rank_sums(
    layout: StatsLayout, counts: RankCounts, rank_type: RankType, starts_G: np.ndarray, times_Q: np.ndarray | None
) -> tuple[list[str], np.ndarray]:
    """Return a rank type's columns, and their sums for each group, (G, columns)."""
    columns: dict[str, Tensor] = {}
    doubled_Q = counts.doubled_rank(rank_type)
    for metric in layout.metrics:
        values_Q = metric.numerators_of_doubled(doubled_Q, counts.num_competitors_Q, FRACTION_BITS)
        columns |= {metric.name: values_Q} if metric.units == 1 else _limbs(metric.name, values_Q)
    return list(columns), np.stack([_sums(values_Q, starts_G, times_Q) for values_Q in columns.values()], axis=1)


def _sums(values_Q: Tensor, starts_G: np.ndarray, times_Q: np.ndarray | None = None) -> np.ndarray:
    each_Q = values_Q.numpy() if times_Q is None else values_Q.numpy() * times_Q
    return np.asarray(np.add.reduceat(each_Q, starts_G, dtype=np.int64))


def _limbs(name: str, values: Tensor) -> dict[str, Tensor]:
    """Split integers into low and high limbs, by the names of their columns."""
    return {f"{name}.low": values & ((1 << LIMB_BITS) - 1), f"{name}.high": values >> LIMB_BITS}


# Sums -> the metrics that are ratios of them, and the loss. Definitions are in docs/metrics.md.


Sums = Callable[[str], int]  # name of a sum -> value: `RankStats.total`, or weighted sums


def query_mean(sums: Sums, metric: QueryMetric, rank_type: RankType) -> float | None:
    """Return a metric from its sums, rounded once; None if nothing is counted."""
    return metric.mean(metric.numerator(sums, rank_type), sums(metric.per), FRACTION_BITS)


def rank_metrics(sums: Sums, cutoffs: tuple[int, ...], *, adjusted: bool = False) -> dict[str, float | int | None]:
    """Return `<rank type>.<metric>` and `query_auc`; None where it is undefined.

    Args:
        sums: of some queries.
        cutoffs: K of hits at K.
        adjusted: whether to include the adjusted mean rank index.
    """
    metrics: dict[str, float | int | None] = {}
    for key, metric, rank_type in keyed_metrics(cutoffs, adjusted=adjusted):
        if metric is MEAN_RANK:  # the first metric of each rank type
            metrics[f"{rank_type.value}.count"] = sums("num_queries")
        metrics[key] = query_mean(sums, metric, rank_type)
    return metrics


def mean_loss(stats: RankStats, num_edges: int) -> float | None:
    """Return PBG's loss: both sides' sum per edge. None unless every query's loss is finite and below 2^28."""
    return None if stats.total("num_undefined_losses") else ratio(stats.total("loss"), num_edges << LOSS_FRACTION_BITS)


def by_label(by_side: Mapping[Side, T], sides: Sequence[Side]) -> dict[str, T]:
    """Return the values of the enabled sides by label, and `both`: heads plus tails."""
    return {
        **{side.label: by_side[side] for side in sides},
        "both": reduce(add, (by_side[side] for side in sides if side.is_in("both"))),
    }
