"""Two finished runs with saved ranks -> how they differ on the same queries, with intervals and p-values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np
from attrs import asdict, frozen

from pbgeval.errors import ConfigError, Faults, OutputError, StorageError
from pbgeval.metrics.names import SIDES, UnknownMetricError, nearest_names, split
from pbgeval.metrics.paired import Difference, GroupDifferences, differences, holm, values_of
from pbgeval.metrics.registry import find_metric
from pbgeval.notation import Side, WorkUnit
from pbgeval.ranking.keys import EdgeColumns, split_mix
from pbgeval.ranking.sampled_lists import SampledLists, number_chunks
from pbgeval.report.figures import LARGE, UNDEFINED, Tile, decimals_of, model_of, rounded, short_title
from pbgeval.report.tables import (
    DataTable,
    escape_markdown,
    interval_line,
    one_line,
    to_html,
    to_latex,
    to_markdown,
    to_terminal,
    to_text,
    unbroken,
)
from pbgeval.report.unlike_runs import DIVIDED, differences_of, told_difference, told_left_out
from pbgeval.results.csv_tables import to_csv
from pbgeval.results.output import differing
from pbgeval.results.result import Result
from pbgeval.results.saved_run import SavedRun, buckets_of
from pbgeval.stats.paired import PairedEdges, PairedSide, PairedStats
from pbgeval.stats.query_metrics import QUERIES, QueryMetric, find_query_metric, query_metrics
from pbgeval.stats.rank_types import RANK_TYPE_SYNONYMS, RankType
from pbgeval.storage.text import json_text

if TYPE_CHECKING:
    from rich.console import Group

# Two runs' saved ranks and their edges -> the queries of both, block by block, which must be the same.
#
# Ranks files are aligned with the edges, so it does not matter which worker ranked an edge, or when.

_ROW_BITS = np.uint64(36)  # of an entity's row in its partition (`saved_run.MAX_ROWS`)


@frozen(eq=False)
class PairedRuns:
    """Two opened runs of the same queries, and what is asked of them."""

    a: SavedRun  # with edges, where keys or relations are wanted
    b: SavedRun
    sides: tuple[Side, ...]
    filtered: bool
    rank_type: RankType
    metrics: Sequence[QueryMetric]
    lists: SampledLists | None  # whose chunks are the units; None: edges are
    num_slices: int  # under pbg_semantics
    with_keys: bool

    def blocks(self) -> Iterator[PairedEdges]:
        """Yield all edges that are ranked.

        Raises:
            StorageError: a file is damaged, or a query of one run is not that of the other.
            DataError: an id in the edges is out of range.
        """
        lists = self.lists
        cut = None if lists is None else partial(lists.unit_rows, num_slices=self.num_slices)
        for rows in self.a.row_ranges(cut):
            counts = {side: self._counts(rows, side) for side in self.sides}
            at = np.flatnonzero(np.logical_or.reduce([of["num_candidates"] > 0 for of, _ in counts.values()]))
            if not len(at):
                continue
            edges = None if self.a.edges is None else self.a.read_edges(rows).select(at)
            group_E = np.zeros(len(at), np.int64) if edges is None else edges.rel_n
            unit_E = np.arange(len(at))
            if lists is not None:
                unit_E = number_chunks(np.zeros_like(group_E) if self.a.facts.dynamic else group_E, lists)
            sides = []
            for side, (of_a, of_b) in counts.items():
                is_ranked_E = of_a["num_candidates"][at] > 0
                a_DE, b_DE = (self._values(of, at) * is_ranked_E for of in (of_a, of_b))
                sides.append(
                    PairedSide(
                        is_ranked_E,
                        a_DE,
                        b_DE - a_DE,
                        self._keys(rows, edges, side) if self.with_keys and edges is not None else None,
                    )
                )
            yield PairedEdges(group_E, unit_E, tuple(sides))

    def _counts(self, rows: WorkUnit, side: Side) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Return the counts of both runs, once they are found to be those of the same queries."""
        of_a, of_b = (run.read_counts(rows, side) for run in (self.a, self.b))
        same = {
            "num_candidates": "ranked among as many candidates",
            **({"num_excluded": "with as many known answers among them"} if self.filtered else {}),
        }
        for name, what in same.items():
            unlike = np.flatnonzero(of_a[name] != of_b[name])
            if len(unlike):
                row = int(unlike[0])
                path = self.b.ranks[rows.path_index, rows.bucket].path
                raise StorageError(
                    f"{path}: {side.label}, row {rows.start + row}: expected the query of {self.a.folder}, {what} "
                    f"({name}: A {int(of_a[name][row])}, B {int(of_b[name][row])}); compare runs of the same queries, "
                    "filters and candidates"
                )
        return of_a, of_b

    def _values(self, columns: Mapping[str, np.ndarray], at: np.ndarray) -> np.ndarray:
        """Return the value of each metric for each edge, int64 (metrics, E)."""
        better, tied, competing = columns["better"][at], columns["tied"][at], columns["num_candidates"][at] - 1
        if self.filtered:
            better, tied = better - columns["excluded_better"][at], tied - columns["excluded_tied"][at]
            competing = competing - columns["num_excluded"][at]
        return values_of(self.metrics, (better, tied, competing), self.rank_type)

    def _keys(self, rows: WorkUnit, edges: EdgeColumns, hidden: Side) -> np.ndarray:
        """Return a hash of the key of each query, uint64 (E,)."""
        known, facts = hidden.other, self.a.facts
        if hidden is Side.REL:
            words = [crc32(repr(places).encode()) for places in facts.places(hidden, rows.bucket)]
            place_E = np.array(words, np.uint64)[np.zeros_like(edges.rel_n) if facts.dynamic else edges.rel_n]
            return split_mix(
                split_mix(split_mix(place_E) ^ edges.lhs_n.astype(np.uint64)) ^ edges.rhs_n.astype(np.uint64)
            )
        partitions = np.array(
            [rows.bucket.partition_of(known, facts.num_partitions[name]) for name in facts.types(known)]
        )
        partition_E = partitions[0] if facts.dynamic else partitions[edges.rel_n]
        place_E = edges.rel_n.astype(np.uint64) << _ROW_BITS | edges.entity(known).astype(np.uint64)
        return split_mix(split_mix(place_E) ^ np.asarray(partition_E).astype(np.uint64))


# Two runs -> how they differ.

CLUSTERS = ("key", "edge")


@frozen
class RelationDifferences:
    """The differences of one relation's queries."""

    relation: str
    relation_id: int
    num_queries: int
    differences: tuple[Difference, ...]


@frozen(eq=False, repr=False)
class Comparison:
    """How run B differs from run A. It prints as the tables of the command.

    Examples:
        >>> import pbgeval
        >>> comparison = pbgeval.compare("results/run", "results/other")
        >>> comparison["mrr"].direction, comparison["mean_rank"].direction  # 1: higher is better
        (1, -1)
    """

    a: str
    b: str
    a_model: str  # and its checkpoint and version, as far as known
    b_model: str
    side: str  # head, tail, relation, both
    rank_type: str
    filter: str  # raw, filtered
    unit: str  # edge, chunk: what was drawn together
    clusters: str  # key: queries of one key are one cluster too; edge: units alone
    settings: tuple[str, ...]  # that differ
    left_out: str  # how many evaluated edges the imports of the runs left out; empty if none
    num_queries: int
    differences: tuple[Difference, ...]  # corrected for their number
    relations: tuple[RelationDifferences, ...]  # each metric corrected for the number of relations; none without edges

    def __getitem__(self, name: str) -> Difference:
        """Return the difference in a metric, by any of its names.

        Raises:
            KeyError: it was not compared.
        """
        found, key = {difference.metric: difference for difference in self.differences}, split(name).metric
        if key not in found:
            raise UnknownMetricError(f"no metric '{name}' in this comparison: expected one of {', '.join(found)}")
        return found[key]

    def __repr__(self) -> str:
        return "\n\n".join(map(to_text, comparison_tables(self)))

    def __rich__(self) -> Group:
        from rich.console import Group

        return Group(*map(to_terminal, comparison_tables(self)))

    def _repr_html_(self) -> str:
        return "".join(map(to_html, comparison_tables(self)))

    @property
    def told_conditions(self) -> list[str]:
        """Sentences on the settings that differ, and on edges that imports left out, if there are any."""
        return [
            *([f"Settings that differ: {'; '.join(self.settings)}."] if self.settings else []),
            *([f"{self.left_out[0].upper()}{self.left_out[1:]}."] if self.left_out else []),
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return all of it, ready for JSON.

        Examples:
            >>> import pbgeval
            >>> sorted(pbgeval.compare("results/run", "results/other").to_dict())[:3]
            ['a', 'a_model', 'b']
        """
        return asdict(self)


def compare(
    a: Result | str | PathLike[str],
    b: Result | str | PathLike[str],
    *,
    edge_paths: Sequence[str | PathLike[str]] | None = None,
    metrics: Sequence[str] | None = None,
    side: str = "both",
    rank_type: str = "realistic",
    filter: str | None = None,  # noqa: A002 - the word of metrics.json
    clusters: str = "key",
) -> Comparison:
    """Compare two runs query by query; differences are B - A.

    Nothing is scored; memory does not follow the number of edges. `docs/results.md` says what the figures mean.

    Args:
        a: the output directory of a finished run with `save_ranks`, or its report.
        b: the second run, of the same queries, filters and candidates.
        edge_paths: folders or files of the evaluated edges, as the runs have them; default: where A, or B, found them.
        metrics: mean_rank, mean_reciprocal_rank, hits_at_k by any of their names; default: these, k as in either run.
        side: head, tail or both.
        rank_type: of the ranks.
        filter: "raw" or "filtered"; default: filtered if the runs are.
        clusters: "key": queries of one key depend on each other, as do those of an edge; "edge": only the latter, which
            needs no edges (unless lists are sampled) and gives no figures per relation.

    Raises:
        ConfigError: an argument is wrong in itself.
        OutputError: a run is unfinished or has no ranks, or they differ in more than the model; says in what.
        StorageError: a file is missing or damaged.

    Examples:
        >>> import pbgeval
        >>> of_mrr = pbgeval.compare("results/run", "results/other", metrics=["mrr"])["mrr"]
        >>> of_mrr.low < of_mrr.difference < of_mrr.high
        True
    """
    chosen = [_metric(name) for name in metrics or ()]
    for name, value, choices in (
        ("side", side, tuple(SIDES)),
        ("rank_type", rank_type, tuple(RANK_TYPE_SYNONYMS)),
        ("filter", filter or "raw", ("raw", "filtered")),
        ("clusters", clusters, CLUSTERS),
    ):
        if value not in choices:
            raise ConfigError(f"{name}: expected one of {', '.join(choices)}, got {value!r}")
    reports = [of if isinstance(of, Result) else Result.read(Path(of)) for of in (a, b)]
    runs = [SavedRun.open(report, None) for report in reports]
    filtered = _check_same(reports, runs, filter)
    settings, facts = reports[0].document["provenance"]["settings"], runs[0].facts
    lists = _sampled_lists(settings)
    if clusters == "key" or (lists is not None and not facts.dynamic):  # chunks are cut by relation
        runs[0] = SavedRun.open(reports[0], _edge_paths(reports, edge_paths))
    pair = PairedRuns(
        runs[0],
        runs[1],
        sides=tuple(of for of in facts.sides if of.is_in(SIDES[side])),
        filtered=filtered,
        rank_type=RANK_TYPE_SYNONYMS[rank_type],
        metrics=chosen or query_metrics(tuple(sorted({*facts.hits_at, *runs[1].facts.hits_at}))),
        lists=lists,
        num_slices=settings.get("workers") or 1,
        with_keys=clusters == "key" and not facts.featurized,
    )
    return _comparison(pair, reports, side=SIDES[side])


def _sampled_lists(settings: Mapping[str, Any]) -> SampledLists | None:
    """Return how a run's lists of candidates are made, from its settings; None where none are sampled."""
    if "num_batch_negs" not in settings:
        return None
    return SampledLists(
        settings["num_batch_negs"],
        settings["num_uniform_negs"],
        settings["pbg_semantics"],
        settings["batch_size"] if settings["pbg_semantics"] else 0,
        settings.get("num_degree_negs", 0),
    )


def _comparison(pair: PairedRuns, reports: Sequence[Result], *, side: str) -> Comparison:
    if not pair.sides:
        raise ConfigError(
            f"side: expected {' or '.join(of.label for of in pair.a.facts.sides)}, which were ranked, got {side!r}"
        )
    stats = PairedStats.zero(len(pair.metrics), len(pair.sides), with_keys=pair.with_keys)
    for block in pair.blocks():
        stats.add(block)
    whole = differences(stats, pair.metrics, by_group=False)
    settings = [of.document["provenance"]["settings"] for of in reports]
    return Comparison(
        a=str(pair.a.folder),
        b=str(pair.b.folder),
        a_model=model_of(reports[0]),
        b_model=model_of(reports[1]),
        side=side,
        rank_type=pair.rank_type.value,
        filter="filtered" if pair.filtered else "raw",
        unit="edge" if pair.lists is None else "chunk",
        clusters="key" if pair.with_keys else "edge",
        settings=tuple(told_difference(name, *(of.get(name) for of in settings)) for name in differing(*settings)),
        left_out=told_left_out(*(of.document for of in reports)),
        num_queries=sum(of.num_queries for of in whole),
        differences=tuple(holm(whole[0].differences if whole else ())),  # one group, of all queries
        relations=() if pair.a.edges is None else _relations(pair, differences(stats, pair.metrics, by_group=True)),
    )


def _relations(pair: PairedRuns, groups: Sequence[GroupDifferences]) -> tuple[RelationDifferences, ...]:
    names = pair.a.relation_names(max((of.group for of in groups), default=-1) + 1)
    columns = [holm([of.differences[number] for of in groups]) for number in range(len(pair.metrics))]
    return tuple(
        RelationDifferences(names[of.group], of.group, of.num_queries, tuple(column[place] for column in columns))
        for place, of in enumerate(groups)
    )


def _metric(name: str) -> QueryMetric:
    parts = split(name)
    metric = find_query_metric(parts.metric) if find_metric(parts.metric) is not None else None
    if not parts.side and not parts.rank_type and metric is not None and metric.per == QUERIES:
        return metric
    known, listed = ([of.name for of in query_metrics(of_k) if of.per == QUERIES] for of_k in ((1, 3, 10), ()))
    nearest = "" if metric or parts.side or parts.rank_type else nearest_names(name, parts, known)
    nearest = nearest if nearest.startswith("; nearest") else ""  # the list has others, too
    raise ConfigError(
        f"metrics: expected {', '.join(listed)} or hits_at_k, got {name!r}{nearest}; side "
        "and rank_type are arguments of their own"
    )


def _check_same(reports: Sequence[Result], runs: Sequence[SavedRun], wanted: str | None) -> bool:
    """Return whether filtered figures are compared.

    Raises:
        OutputError: the runs differ in more than the model; a line each.
    """
    of_runs = [run.facts.filtered for run in runs]
    filtered = any(of_runs) if wanted is None else wanted == "filtered"
    a, b = (report.document["provenance"] for report in reports)
    unlike = differences_of(a, b, filtered=all(of_runs) and filtered)
    what = (
        "with the same number of partitions"
        if any(line.startswith(DIVIDED) for line in unlike)
        else "on the same graph with the same settings"
    )
    advice = f"evaluate both {what}"
    if filtered and not all(of_runs):
        one, other = "AB" if of_runs[0] else "BA"
        advice = advice if unlike else 'compare with filter="raw"'  # which helps where nothing else differs
        unlike.append(f"{one} is filtered, {other} is not" if any(of_runs) else "neither run is filtered")
    faults = [*unlike[:-1], *(f"{line}; {advice}" for line in unlike[-1:])]  # the advice once
    Faults(f"{runs[1].folder}: cannot be compared with {runs[0].folder}: {of}" for of in faults).raise_any(OutputError)
    return filtered


def _edge_paths(reports: Sequence[Result], given: Sequence[str | PathLike[str]] | None) -> tuple[Path, ...]:
    """Return where the evaluated edges are: as given, or where one of the runs found them, if they are still there."""
    expected = len(reports[0].document["edge_paths"])
    if given is not None:
        if len(given) != expected:
            raise ConfigError(f"edge_paths: expected {expected}, in the order of the runs, got {len(given)}")
        return tuple(buckets_of(Path(path), reports) for path in given)
    for report in reports:
        found = tuple((report.path or Path()) / path for path in report.run.get("edge_paths") or ())
        if len(found) == expected and all(path.exists() for path in found):
            return found
    raise OutputError(
        f"{reports[0].path}: the evaluated edges are not where they were (edge_paths of run.json); give "
        'edge_paths=[...], or compare without keys and relations by clusters="edge"'
    )


# A comparison -> tables, rows of CSV, JSON.

MAX_RELATIONS = 20  # that a table shows: those with the smallest p-values
MIN_P = 1e-4  # smaller ones are written as below this
_COLUMNS = ("A", "B", "B − A", "95% interval")


def comparison_tables(comparison: Comparison) -> list[DataTable]:
    """Return the table of all metrics, and that of relations where there are any."""
    decimals = _decimals(comparison.differences)
    lower = [short_title(f"both.{of.metric}") for of in comparison.differences if of.direction < 0]
    told = [f"Lower is better for {' and '.join(lower)}."] if lower else []
    tables = [
        DataTable(
            f"{comparison.num_queries:,} queries ({comparison.side}), {comparison.filter}, {comparison.rank_type} "
            f"ranks; A: {comparison.a} ({comparison.a_model}), B: {comparison.b} ({comparison.b_model})",
            ("metric", *_COLUMNS, "p", "p (Holm)"),
            [
                (short_title(f"both.{of.metric}"), *_cells(of, decimals), *map(_probability, (of.p_value, of.p_holm)))
                for of in comparison.differences
            ],
            "\n".join([*told, *comparison.told_conditions]),
            "all-metrics",
        )
    ]
    if comparison.relations and comparison.differences:
        at, shown = relations_to_show(comparison)
        decimals = _decimals([of.differences[at] for of in shown])
        tables.append(
            DataTable(
                f"{short_title(f'both.{comparison.differences[at].metric}')} by relation",
                ("relation", "queries", *_COLUMNS, "p (Holm)"),
                [
                    (
                        of.relation,
                        f"{of.num_queries:,}",
                        *_cells(of.differences[at], decimals),
                        _probability(of.differences[at].p_holm),
                    )
                    for of in shown
                ],
                f"The {len(shown)} relations with the smallest p-values; JSON and CSV have all."
                if len(shown) < len(comparison.relations)
                else "",
                "relation-differences",
            )
        )
    return tables


def relations_to_show(comparison: Comparison) -> tuple[int, list[RelationDifferences]]:
    """Return the place of MRR, or of the first metric, and the relations with its smallest p-values."""
    names = [of.metric for of in comparison.differences]
    at = names.index("mean_reciprocal_rank") if "mean_reciprocal_rank" in names else 0

    def place(of: RelationDifferences) -> tuple[float, float]:
        p = of.differences[at].p_value
        return 2.0 if p is None else p, -abs(of.differences[at].difference)

    return at, sorted(comparison.relations, key=place)[:MAX_RELATIONS]


def difference_tiles(comparison: Comparison) -> list[Tile]:
    """Return the differences in MRR, hits and mean rank, or in the first metrics."""
    found = {of.metric: of for of in comparison.differences}
    tiles = []
    for of in [found[name] for name in LARGE if name in found] or [*found.values()][: len(LARGE)]:
        a, b, difference, interval = _cells(of, _decimals([of]))
        better = "B" if of.difference * of.direction > 0 else "A"
        told = f"{better} is significantly better" if of.is_significant else "no significant difference"
        told += "" if of.p_holm is None else f" (p {_probability(of.p_holm)}, corrected for all metrics)"
        interval = interval_line(*interval.split(" to ")) if of.low is not None else "no interval"
        title = short_title(f"both.{of.metric}") + (" (lower is better)" if of.direction < 0 else "")
        tiles.append(Tile(title, difference, (f"A\u00a0{a}, B\u00a0{b}", interval, told)))
    return tiles


def _decimals(rows: Sequence[Difference]) -> dict[int, int]:
    """Return the decimals of a table by those of other tables: enough to tell whether an end of an interval is 0."""
    found: dict[int, int] = {}
    for of in rows:
        usual = _usual_decimals(of)
        found[usual] = max(found.get(usual, usual), 1 + decimals_of(of.standard_error) if of.standard_error else 0)
    return found


def _usual_decimals(of: Difference) -> int:
    return 2 if of.metric == "mean_rank" else 4


def _cells(of: Difference, decimals_of_table: Mapping[int, int]) -> list[str]:
    decimals, interval = decimals_of_table[_usual_decimals(of)], UNDEFINED
    if of.low is not None and of.high is not None:
        interval = f"{rounded(of.low, decimals, '+')} to {rounded(of.high, decimals, '+')}"
    return [rounded(of.a, decimals), rounded(of.b, decimals), rounded(of.difference, decimals, "+"), interval]


def _probability(p: float | None) -> str:
    if p is None:
        return UNDEFINED
    return f"< {MIN_P:.4f}" if p < MIN_P else f"{p:.4f}"


def _csv_rows(comparison: Comparison) -> Iterator[dict[str, Any]]:
    """Return a row per metric, and one per relation and metric."""
    parts: list[tuple[str, int | str, Comparison | RelationDifferences]] = [
        ("", "", comparison),
        *((of.relation, of.relation_id, of) for of in comparison.relations),
    ]
    return (
        {"relation": relation, "relation_id": relation_id, "num_queries": part.num_queries, **asdict(of)}
        for relation, relation_id, part in parts
        for of in part.differences
    )


FORMATS: Mapping[str, Callable[[Comparison], str]] = {
    "text": lambda comparison: unbroken(comparison_tables(comparison)),
    "json": lambda comparison: json_text(comparison.to_dict()),  # what is undefined is null
    "csv": lambda comparison: to_csv([*_csv_rows(comparison)]),
    "md": lambda comparison: "\n".join(
        f"{escape_markdown(table.title)}\n\n{to_markdown(table, left='---')}\n"
        for table in comparison_tables(comparison)
    ),
    "latex": lambda comparison: "\n".join(
        f"% {one_line(table.title)}\n{to_latex(table)}\n" for table in comparison_tables(comparison)
    ),
}
