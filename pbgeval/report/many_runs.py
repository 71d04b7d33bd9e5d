"""What a comparison of any number of runs has found, as tables, a diagram, rows of CSV and JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from attrs import asdict, frozen

from pbgeval.metrics.names import UnknownMetricError, split
from pbgeval.metrics.paired import Difference
from pbgeval.report.charts import Chart
from pbgeval.report.comparison import (
    cells_of,
    conditions_in_csv,
    decimals_of_table,
    joined,
    lead_of,
    probability,
    usual_decimals,
)
from pbgeval.report.comparison_charts import Member, critical_difference_chart, letters_of
from pbgeval.report.figures import LARGE, UNDEFINED, Tile, rounded, short_title
from pbgeval.report.run_overlap import PERSISTENCE, Overlap
from pbgeval.report.tables import (
    DataTable,
    all_in_latex,
    all_in_markdown,
    to_html,
    to_terminal,
    to_text,
    unbroken,
    with_warnings,
)
from pbgeval.results.csv_tables import to_csv
from pbgeval.storage.text import json_text, listed

if TYPE_CHECKING:
    from rich.console import Group


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


@frozen(eq=False, repr=False)
class ManyRuns:
    """Which of several runs differ. It prints as the tables of the command.

    Examples:
        >>> import pbgeval
        >>> found = pbgeval.compare_runs({"one": "results/run", "two": "results/other"})
        >>> [group.name for group in found.groups]
        ['one', 'two']
    """

    side: str  # head, tail, relation, both
    rank_type: str
    filter: str  # raw, filtered
    unit: str  # edge, chunk: what was drawn together
    clusters: str  # key: queries of one key are one cluster too; edge: units alone
    settings: tuple[str, ...]  # names of those that are not the same in all runs
    left_out: tuple[str, ...]  # how many evaluated edges the imports of each run left out, if any
    num_queries: int
    groups: tuple[RunGroup, ...]  # in the order given
    pairs: tuple[GroupPair, ...]
    warnings: tuple[str, ...] = ()  # what to know before the figures are quoted, after the names of the runs

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

    def __repr__(self) -> str:
        return "\n\n".join(map(to_text, with_warnings(many_tables(self), self.warnings)))

    def __rich__(self) -> Group:
        from rich.console import Group

        return Group(*map(to_terminal, many_tables(self)))

    def _repr_html_(self) -> str:
        return "".join(map(to_html, with_warnings(many_tables(self), self.warnings)))

    def to_dict(self) -> dict[str, Any]:
        """Return all of it, ready for JSON.

        Examples:
            >>> import pbgeval
            >>> sorted(pbgeval.compare_runs(["results/run", "results/other"]).to_dict())[:3]
            ['clusters', 'filter', 'groups']
        """
        return asdict(self)


# Tables


def many_tables(found: ManyRuns) -> list[DataTable]:
    """Return the figures of all groups with their letters, how sure the main metric is, all pairs, and overlaps."""
    tables = [_figures_table(found), _spread_table(found)]
    return [*tables, _pairs_table(found), _overlap_table(found)] if found.pairs else [*tables, _overlap_table(found)]


def _title(metric: str) -> str:
    return short_title(f"both.{metric}")


def _figures_table(found: ManyRuns) -> DataTable:
    metrics = [(of.metric, of.direction) for of in found.groups[0].figures]
    ranked = [group for group, _ in found.ranked()]
    figures = [{of.metric: of for of in group.figures} for group in ranked]
    lower = [_title(metric) for metric, direction in metrics if direction < 0]
    notes = [
        "Group: two runs that share a letter do not differ significantly (paired tests, corrected for all pairs and "
        "metrics by Holm's method)."
        if found.pairs
        else "",
        f"Lower is better for {' and '.join(lower)}." if lower else "",
        f"Settings that differ: {', '.join(found.settings)}." if found.settings else "",
        *(f"{line}." for line in found.left_out),
    ]
    decimals = {metric: _decimals(found, metric) for metric, _ in metrics}
    rows = [
        (
            group.name,
            *(
                cell
                for metric, _ in metrics
                for cell in (rounded(of[metric].mean, decimals[metric]), of[metric].letters)[: 1 + bool(found.pairs)]
            ),
        )
        for group, of in zip(ranked, figures, strict=True)
    ]
    columns = [(_title(metric), "group")[: 1 + bool(found.pairs)] for metric, _ in metrics]
    return DataTable(
        f"{found.num_queries:,} queries ({found.side}), {found.filter}, {found.rank_type} ranks",
        ("run", *(name for of in columns for name in of)),
        rows,
        "\n".join(filter(None, notes)),
        "all-metrics",
        "l" + ("rl" if found.pairs else "r") * len(metrics),
        lead=sentence_of_many(found),
    )


def _decimals(found: ManyRuns, metric: str) -> int:
    """Return enough decimals to see the error of each figure, and no fewer than in other tables."""
    differences = [of.difference for pair in found.pairs for of in pair.differences if of.difference.metric == metric]
    usual = usual_decimals(metric)
    return max([usual, *decimals_of_table(differences).values()])


def _spread_table(found: ManyRuns) -> DataTable:
    metric = found.main_metric
    decimals = 1 + _decimals(found, metric)
    has_seeds = any(len(group.runs) > 1 for group in found.groups)

    def error(value: float | None) -> str:
        return UNDEFINED if value is None else rounded(value, decimals)

    rows = [
        (
            group.name,
            *([str(len(group.runs))] if has_seeds else []),
            rounded(of.mean, decimals),
            *([error(of.seed_deviation)] if has_seeds else []),
            error(of.standard_error),
        )
        for group, of in found.ranked()
    ]
    seeds = ("runs",) if has_seeds else (), ("deviation over runs",) if has_seeds else ()
    mean = "mean" if has_seeds else _title(metric)
    notes = ["The standard error over edges is that of the mean, for other edges of the same graph."]
    if has_seeds:
        notes.append("The deviation over runs is the standard deviation between seeds of one model.")
    return DataTable(
        f"How certain the {_title(metric)} is",
        ("run", *seeds[0], mean, *seeds[1], "standard error over edges"),
        rows,
        " ".join(notes),
        "spread",
    )


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
        f"Differences in {_title(metric)} between any two",
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

    def share(value: float | None) -> str:
        return UNDEFINED if value is None else rounded(value, 4)

    rows = [
        (a, b, share(of.answers), *([share(of.candidates), share(of.rank_biased)] if has_lists else []))
        for a, b, of in overlaps
    ]
    notes = [f"Answers: of those that either run ranks among the first {cutoff}, the share that both do."]
    if has_lists:
        notes.append(
            f"Candidates: of the first {depth}, known answers among them, the share in both lists. Rank-biased "
            f"overlap (p = {PERSISTENCE}) gives the first places more weight. 1: the same; 0: nothing in common."
        )
    if within:
        notes.append("A row of one name twice: seeds of one model among each other.")
    return DataTable(
        "What two runs have in common",
        ("A", "B", f"answers in the first {cutoff}", *(("candidates", "rank-biased overlap") if has_lists else ())),
        rows,
        " ".join(notes),
        "overlap",
        "ll" + "r" * (3 if has_lists else 1),
    )


def diagram_of(found: ManyRuns) -> Chart:
    """Return the critical-difference diagram of the main metric."""
    metric = found.main_metric
    members = [Member(group.name, of.mean, of.letters) for group, of in found.ranked()]
    return critical_difference_chart(_title(metric), members)


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
    title = _title(figure.metric)
    equal = equals_of_best(found, figure.metric)
    than = f"not significantly better than {joined(equal)}" if equal else "significantly better than all others"
    told = [f"{best.name} has the best {title} ({rounded(figure.mean, 2 if abs(figure.mean) > 10 else 4)})"]
    told[0] += f", {lead}, {than}" if (lead := _lead_over(found, others[0][0].name)) else f", {than}"
    for of in best.figures:
        (other, _), *_ = found.ranked(of.metric)
        if other is not best:
            told.append(f"{other.name} has the best {_title(of.metric)}")
    return f"{'; '.join(told)}."


def many_tiles(found: ManyRuns) -> list[Tile]:
    """Return the best run by MRR, hits and mean rank, or by the first metrics."""
    metrics = [of.metric for of in found.groups[0].figures]
    tiles = []
    for metric in [name for name in LARGE if name in metrics] or metrics[: len(LARGE)]:
        (best, figure), *others = found.ranked(metric)
        equal = equals_of_best(found, metric)
        told = f"not significantly better than {listed(equal)}" if equal else "significantly better than all others"
        title = _title(metric) + (" (lower is better)" if figure.direction < 0 else "")
        tiles.append(
            Tile(title, rounded(figure.mean, usual_decimals(metric)), (best.name, *([told] if others else [])))
        )
    return tiles


# Formats


def _csv_rows(found: ManyRuns) -> Iterator[dict[str, Any]]:
    """Return a row per pair and metric."""
    figures = {(group.name, of.metric): of for group in found.groups for of in group.figures}
    for pair in found.pairs:
        overlap = {f"overlap_{name}": value for name, value in asdict(pair.overlap).items()}
        for of in pair.differences:
            yield {
                "run_a": pair.a,
                "run_b": pair.b,
                **conditions_in_csv(found),
                "num_queries": found.num_queries,
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


MANY_FORMATS: Mapping[str, Callable[[ManyRuns], str]] = {
    "text": lambda found: unbroken(many_tables(found)),
    "json": lambda found: json_text(found.to_dict()),  # what is undefined is null
    "csv": lambda found: to_csv([*_csv_rows(found)]),
    "md": lambda found: all_in_markdown(many_tables(found)),
    "latex": lambda found: all_in_latex(many_tables(found)),
}
