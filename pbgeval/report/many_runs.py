"""What a comparison of any number of runs has found, as tables, a diagram, rows of CSV and JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from attrs import asdict, frozen

from pbgeval.metrics.names import UnknownMetricError, split
from pbgeval.metrics.paired import Difference
from pbgeval.report.charts import Chart
from pbgeval.report.comparison import (
    KEYS_IGNORED,
    RunComparison,
    cells_of,
    decimals_of_table,
    joined,
    lead_of,
    probability,
)
from pbgeval.report.comparison_charts import Member, critical_difference_chart, letters_of
from pbgeval.report.figures import LARGE, Tile, rounded, short_title, usual_decimals
from pbgeval.report.run_overlap import PERSISTENCE, Overlap
from pbgeval.report.tables import DataTable, without
from pbgeval.storage.text import listed


@frozen
class GroupFigure:
    """A metric of a group of runs; None: too few of what it is over."""

    metric: str
    direction: int  # 1: higher is better; -1: lower
    mean: float  # over seeds
    seed_deviation: float | None  # standard deviation over seeds
    standard_error: float | None  # of the mean, over edges
    of_seeds: tuple[float, ...]  # the figure of each run
    letters: str  # shared with the groups that do not differ significantly


@frozen
class RunGroup:
    """Runs of one name: seeds of one model, or a single run."""

    name: str
    runs: tuple[str, ...]  # folders
    models: tuple[str, ...]  # and their checkpoints and versions, as far as known
    figures: tuple[GroupFigure, ...]
    overlap: Overlap | None  # of every two of its runs, their mean


@frozen
class GroupDifference:
    """How group B differs from group A in a metric."""

    difference: Difference  # over edges; its p-value is the larger one of the two below
    p_edges: float | None
    p_seeds: float | None  # Welch's test on the figures of seeds; None: a group has a single run


@frozen
class GroupPair:
    """How two groups differ."""

    a: str
    b: str
    differences: tuple[GroupDifference, ...]  # corrected for all pairs and metrics
    overlap: Overlap  # of every run of A and every run of B, their mean


@frozen(eq=False, repr=False, kw_only=True)
class ManyRuns(RunComparison):
    """Which of several runs differ.

    Examples:
        >>> import pbgeval
        >>> found = pbgeval.compare_runs({"one": "results/run", "two": "results/other"})
        >>> [group.name for group in found.groups]
        ['one', 'two']
    """

    settings: tuple[str, ...]  # names of those that are not the same in all runs
    left_out: tuple[str, ...]  # how many evaluated edges the imports of each run left out, if any
    groups: tuple[RunGroup, ...]  # in the order given
    pairs: tuple[GroupPair, ...]

    @property
    def main_metric(self) -> str:
        """MRR, or the first metric."""
        names = [of.metric for of in self.groups[0].figures]
        return "mean_reciprocal_rank" if "mean_reciprocal_rank" in names else names[0]

    def ranked(self, metric: str | None = None) -> list[tuple[RunGroup, GroupFigure]]:
        """Return all groups with their figure of a metric, the best first; None: the main metric.

        Raises:
            KeyError: it was not compared.
        """
        key = self.main_metric if metric is None else split(metric).metric
        found = [(group, figure) for group in self.groups for figure in group.figures if figure.metric == key]
        if not found:
            known = listed([of.metric for of in self.groups[0].figures])
            raise UnknownMetricError(f"no metric '{metric}' in this comparison: expected one of {known}")
        return sorted(found, key=lambda one: -one[1].direction * one[1].mean)

    def tables(self) -> list[DataTable]:
        """Return the figures of all groups with letters, how sure the main metric is, all pairs, and overlaps."""
        pairs = [_pairs_table(self)] if self.pairs else []
        return [_figures_table(self), _spread_table(self), *pairs, _overlap_table(self)]

    def _csv_rows(self) -> Iterator[dict[str, Any]]:
        """Return a row per pair and metric."""
        figures = {(group.name, of.metric): of for group in self.groups for of in group.figures}
        for pair in self.pairs:
            overlap = {f"overlap_{name}": value for name, value in asdict(pair.overlap).items()}
            for of in pair.differences:
                yield {
                    "run_a": pair.a,
                    "run_b": pair.b,
                    **self.conditions,
                    "num_queries": self.num_queries,
                    **asdict(of.difference),
                    "p_edges": of.p_edges,
                    "p_seeds": of.p_seeds,
                    **{
                        f"{end}_{name}": getattr(figures[group, of.difference.metric], name)
                        for end, group in (("a", pair.a), ("b", pair.b))
                        for name in ("seed_deviation", "standard_error", "letters")
                    },
                    **overlap,
                }


# Tables


def _figures_table(found: ManyRuns) -> DataTable:
    metrics = [(of.metric, of.direction) for of in found.groups[0].figures]
    ranked = [group for group, _ in found.ranked()]
    figures = [{of.metric: of for of in group.figures} for group in ranked]
    lower = [short_title(metric) for metric, direction in metrics if direction < 0]
    notes = [
        "Group: two runs that share a letter do not differ significantly (paired tests, corrected for all pairs and "
        "metrics by Holm's method)."
        if found.pairs
        else "",
        f"Lower is better for {' and '.join(lower)}." if lower else "",
        f"Settings that differ: {', '.join(found.settings)}." if found.settings else "",
        KEYS_IGNORED if found.clusters == "edge" else "",
        *(f"{line}." for line in found.left_out),
    ]
    decimals = {metric: _decimals(found, metric) for metric, _ in metrics}
    rows = [
        (
            group.name,
            *(
                cell
                for metric, _ in metrics
                for cell in (rounded(of[metric].mean, decimals[metric]), of[metric].letters)
            ),
        )
        for group, of in zip(ranked, figures, strict=True)
    ]
    table = DataTable(
        found.title,
        ("run", *(name for metric, _ in metrics for name in (short_title(metric), "group"))),
        rows,
        "\n".join(filter(None, notes)),
        "all-metrics",
        "l" + "rl" * len(metrics),
        lead=sentence_of_many(found),
    )
    return table if found.pairs else without(table, ["group"])


def _decimals(found: ManyRuns, metric: str) -> int:
    """Return enough decimals to see the error of each figure, and no fewer than in other tables."""
    differences = [of.difference for pair in found.pairs for of in pair.differences if of.difference.metric == metric]
    usual = usual_decimals(metric)
    return max([usual, *decimals_of_table(differences).values()])


def _spread_table(found: ManyRuns) -> DataTable:
    metric = found.main_metric
    decimals = 1 + _decimals(found, metric)
    has_seeds = any(len(group.runs) > 1 for group in found.groups)

    rows = [
        (
            group.name,
            str(len(group.runs)),
            rounded(of.mean, decimals),
            rounded(of.seed_deviation, decimals),
            rounded(of.standard_error, decimals),
        )
        for group, of in found.ranked()
    ]
    mean = "mean" if has_seeds else short_title(metric)
    notes = ["The standard error over edges is that of the mean, for other edges of the same graph."]
    if has_seeds:
        notes.append("The deviation over runs is the standard deviation between seeds of one model.")
    of_seeds = ("runs", "deviation over runs")
    table = DataTable(
        f"How certain the {short_title(metric)} is",
        ("run", of_seeds[0], mean, of_seeds[1], "standard error over edges"),
        rows,
        " ".join(notes),
        "spread",
    )
    return table if has_seeds else without(table, of_seeds)


def _pairs_table(found: ManyRuns) -> DataTable:
    metric = found.main_metric
    pairs = [(pair, of) for pair in found.pairs for of in pair.differences if of.difference.metric == metric]
    decimals = decimals_of_table([of.difference for _, of in pairs])
    has_seeds = any(of.p_seeds is not None for _, of in pairs)
    rows = [
        (
            pair.a,
            pair.b,
            *cells_of(of.difference, decimals)[2:],
            *map(probability, (of.p_edges, of.p_seeds) if has_seeds else (of.p_edges,)),
            probability(of.difference.p_holm),
        )
        for pair, of in sorted(pairs, key=lambda one: -abs(one[1].difference.difference))
    ]
    note = "The larger p counts." if has_seeds else ""
    return DataTable(
        f"Differences in {short_title(metric)} between any two",
        ("A", "B", "B − A", "95% interval", *(("p, edges", "p, seeds") if has_seeds else ("p",)), "p (Holm)"),
        rows,
        f"{note} Intervals are of other edges, and not corrected.".strip(),
        "pairs",
        "ll" + "r" * (5 if has_seeds else 4),
    )


def _overlap_table(found: ManyRuns) -> DataTable:
    within = [(group.name, group.name, group.overlap) for group in found.groups if group.overlap is not None]
    overlaps = [*within, *((pair.a, pair.b, pair.overlap) for pair in found.pairs)]
    has_lists = any(of.num_lists for _, _, of in overlaps)
    cutoff, depth = overlaps[0][2].cutoff, max(of.depth for _, _, of in overlaps)

    rows = [
        (a, b, *(rounded(value, 4) for value in (of.answers, of.candidates, of.rank_biased))) for a, b, of in overlaps
    ]
    notes = [f"Answers: of those that either run ranks among the first {cutoff}, the share that both do."]
    if has_lists:
        notes.append(
            f"Candidates: of the first {depth}, known answers among them, the share in both lists. Rank-biased "
            f"overlap (p = {PERSISTENCE}) gives the first places more weight. 1: the same; 0: nothing in common."
        )
    if within:
        notes.append("A row of one name twice: seeds of one model among each other.")
    of_lists = ("candidates", "rank-biased overlap")
    columns = ("A", "B", f"answers in the first {cutoff}", *of_lists)
    table = DataTable("What two runs have in common", columns, rows, " ".join(notes), "overlap", "llrrr")
    return table if has_lists else without(table, of_lists)


def diagram_of(found: ManyRuns) -> Chart:
    """Return the critical-difference diagram of the main metric."""
    metric = found.main_metric
    members = [Member(group.name, of.mean, of.letters) for group, of in found.ranked()]
    return critical_difference_chart(short_title(metric), members)


def equals_of_best(found: ManyRuns, metric: str) -> list[str]:
    """Return the runs that do not differ significantly from the best one."""
    (_, best), *others = found.ranked(metric)
    return [group.name for group, of in others if {*letters_of(of.letters)} & {*letters_of(best.letters)}]


def _lead_over(found: ManyRuns, second: str) -> str:
    """Return by how much the best run is ahead of the next; empty for seeds, as the interval is of edges alone."""
    best = found.ranked()[0][0].name
    [of] = (
        of
        for pair in found.pairs
        if {pair.a, pair.b} == {best, second}
        for of in pair.differences
        if of.difference.metric == found.main_metric
    )
    return f"ahead of {second} by {lead_of(of.difference)}" if of.p_seeds is None else ""


def sentence_of_many(found: ManyRuns) -> str:
    """Return which run is best by the main metric, by how much, whether that is certain, and where others are best."""
    (best, figure), *others = found.ranked()
    if not others:
        return ""
    title = short_title(figure.metric)
    equal = equals_of_best(found, figure.metric)
    than = f"not significantly better than {joined(equal)}" if equal else "significantly better than all others"
    told = [f"{best.name} has the best {title} ({rounded(figure.mean, 2 if abs(figure.mean) > 10 else 4)})"]
    told[0] += f", {lead}, {than}" if (lead := _lead_over(found, others[0][0].name)) else f", {than}"
    for of in best.figures:
        (other, _), *_ = found.ranked(of.metric)
        if other is not best:
            told.append(f"{other.name} has the best {short_title(of.metric)}")
    return f"{'; '.join(told)}."


def many_tiles(found: ManyRuns) -> list[Tile]:
    """Return the best run by MRR, hits and mean rank, or by the first metrics."""
    metrics = [of.metric for of in found.groups[0].figures]
    tiles = []
    for metric in [name for name in LARGE if name in metrics] or metrics[: len(LARGE)]:
        (best, figure), *others = found.ranked(metric)
        equal = equals_of_best(found, metric)
        told = f"not significantly better than {listed(equal)}" if equal else "significantly better than all others"
        title = short_title(metric) + (" (lower is better)" if figure.direction < 0 else "")
        tiles.append(
            Tile(title, rounded(figure.mean, usual_decimals(metric)), (best.name, *([told] if others else [])))
        )
    return tiles
