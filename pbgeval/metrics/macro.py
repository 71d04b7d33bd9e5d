"""Statistics of groups of queries -> macro averages: every query key, or every relation, counts alike.

Both are weighted means over queries: a query weighs 1 / (how many evaluated edges share its key), as in PyKEEN's
MacroRankBasedEvaluator, or 1 / (queries of its relation). Queries of one weight are added up before they are weighed,
and weights enter as exact fractions; each metric is rounded once. Definitions are in docs/metrics.md.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from math import lcm

from pbgeval.metrics.merged import ExactSums, all_weighted_metrics
from pbgeval.metrics.rank import by_label, ratio
from pbgeval.metrics.summary import Metrics
from pbgeval.notation import Side
from pbgeval.ranking import RankType
from pbgeval.stats.grouped import KEY_FREQUENCY, RELATION, GroupedStats
from pbgeval.stats.rank_stats import FRACTION_BITS, RankStats, StatsLayout


def macro_over_keys(grouped: GroupedStats, sides: Sequence[Side]) -> Metrics:
    """Return the metrics where each query weighs 1 / (frequency of its key).

    Keys are those of metrics.json. `both` pools the queries of the enabled sides, so a side counts in proportion to
    its distinct keys. `count` is the number of queries. `<side>.query_auc` leaves out queries without competitors;
    `<side>.auc` is None: the pools of scores do not know the keys.
    """
    rows = [(frequency, by_label(of_side, sides)) for frequency, of_side in grouped.rows(KEY_FREQUENCY).items()]
    metrics: Metrics = {}
    for label in by_label({side: RankStats.zero(grouped.layout) for side in Side}, sides):
        of_label = [(frequency, of_labels[label]) for frequency, of_labels in rows]
        metrics |= _metrics(label, grouped.layout, of_label, of_label)
        sums = _weighted_sums(of_label, *_columns(grouped.layout))
        exact = ExactSums(sums["num_queries"], sums.__getitem__, sums.__getitem__, grouped.layout.cutoffs)
        of_sides = tuple(side for side in sides if label in ("both", side.label))
        weighted = all_weighted_metrics(exact, grouped.key_histograms, of_sides)
        metrics |= {f"{label}.{name}": value for name, value in weighted.items()}
    return metrics


def macro_over_relations(grouped: GroupedStats, sides: Sequence[Side]) -> Metrics:
    """Return the unweighted means over relations of each relation's metrics.

    Relations without queries of the side are left out, for `query_auc` those without competitors. `both` pools the
    queries of a relation's sides. `count` is the number of queries.
    """
    rows = [by_label(of_side, sides) for of_side in grouped.rows(RELATION).values()]
    metrics: Metrics = {}
    for label in by_label({side: RankStats.zero(grouped.layout) for side in Side}, sides):
        of_label = [of_labels[label] for of_labels in rows]
        by_queries, by_competing = (
            [(stats.count(column), stats) for stats in of_label if stats.count(column)]
            for column in ("num_queries", "num_competing_queries")
        )
        metrics |= _metrics(label, grouped.layout, by_queries, by_competing)
    return metrics


Divided = Sequence[tuple[int, RankStats]]  # (divisor, queries of which each weighs 1 / divisor)


def _metrics(label: str, layout: StatsLayout, queries: Divided, competing: Divided) -> Metrics:
    """Return the weighted means; those over queries with competitors have divisors of their own."""
    sums = _weighted_sums(queries, *_columns(layout))
    weight = sums["num_queries"]
    num_queries = sum(stats.count("num_queries") for _, stats in queries)
    metrics: Metrics = {}
    for rank_type in RankType:
        of_type, key = f"{rank_type.value}.", f"{label}.{rank_type.value}."
        metrics[f"{key}count"] = num_queries
        metrics[f"{key}mean_rank"] = ratio(sums[f"{of_type}doubled_rank"], 2 * weight)
        metrics[f"{key}mean_reciprocal_rank"] = ratio(sums[f"{of_type}reciprocal_rank"], weight << FRACTION_BITS)
        for cutoff in layout.cutoffs:
            metrics[f"{key}hits_at_{cutoff}"] = ratio(sums[f"{of_type}hits_at_{cutoff}"], weight)
    of_competing = _weighted_sums(competing, ["num_competing_queries"], ["query_auc"])
    weight_of_competing = of_competing["num_competing_queries"] << FRACTION_BITS
    metrics[f"{label}.query_auc"] = ratio(of_competing["query_auc"], weight_of_competing)
    metrics[f"{label}.auc"] = None
    return metrics


def _columns(layout: StatsLayout) -> tuple[list[str], list[str]]:
    """Return the columns that means of ranks follow from: plain ones, and those kept in two limbs."""
    plain = ["num_queries", *(f"{of.value}.hits_at_{cutoff}" for of in RankType for cutoff in layout.cutoffs)]
    limbs = [f"{of.value}.{name}" for of in RankType for name in ("doubled_rank", "reciprocal_rank")]
    return plain, limbs + [f"expected_below_optimistic.{name}" for name in layout.tied_metrics]


def _weighted_sums(rows: Divided, plain: Iterable[str], limbs: Iterable[str]) -> dict[str, int]:
    """Return the sum of each column over its rows' divisors, times one common multiple of the divisors.

    Args:
        rows: to add up.
        plain: names of columns.
        limbs: names of columns kept in two limbs.
    """
    by_divisor: dict[int, list[RankStats]] = defaultdict(list)  # few: the multiple has many digits
    for divisor, stats in rows:
        by_divisor[divisor].append(stats)
    multiple = lcm(*by_divisor)
    sums = dict.fromkeys([*plain, *limbs], 0)
    for divisor, parts in by_divisor.items():
        weight = multiple // divisor
        total = sum(parts[1:], parts[0])
        for name in plain:
            sums[name] += weight * total.count(name)
        for name in limbs:
            sums[name] += weight * total.total(name)
    return sums
