"""A result as people use it: its figures by any of their names, its tables, other figures from its saved ranks."""

from __future__ import annotations

import json
import operator
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from itertools import product
from os import PathLike
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeAlias, cast

import numpy as np
from attrs import evolve, frozen

from pbgeval.errors import OutputError
from pbgeval.metrics.breakdown_names import BREAKDOWN_FILES
from pbgeval.metrics.names import resolve
from pbgeval.metrics.registry import Value, metric_key
from pbgeval.notation import Bucket, Side
from pbgeval.report.conditions import warnings_of
from pbgeval.report.figures import final_table, headline_of, popularity_of, rows_table, topk_of
from pbgeval.report.query_lists import MAX_ANSWERS, answers_note, candidates_table
from pbgeval.report.tables import DataTable, Printed, Table, data_frame, to_text, with_warnings
from pbgeval.results.result import HISTOGRAM, Result, errors_of
from pbgeval.results.shape import SIDES
from pbgeval.stats.rank_types import RankType

if TYPE_CHECKING:
    import pandas


# Figures of a report -> (side, rank type, metric, value) by PyKEEN's keys, and the data frame of them.
COLUMNS = ("Side", "Rank_type", "Metric", "Value")
# PyKEEN's own keys, but for those of a k. It has one key for adjusted hits at any k, and so the last one's value.
PYKEEN_METRICS = (
    "arithmetic_mean_rank",
    "inverse_arithmetic_mean_rank",
    "geometric_mean_rank",
    "inverse_geometric_mean_rank",
    "harmonic_mean_rank",
    "inverse_harmonic_mean_rank",
    "median_rank",
    "inverse_median_rank",
    "standard_deviation",
    "variance",
    "median_absolute_deviation",
    "count",
    "adjusted_arithmetic_mean_rank",
    "adjusted_arithmetic_mean_rank_index",
    "adjusted_geometric_mean_rank_index",
    "adjusted_inverse_harmonic_mean_rank",
    "z_arithmetic_mean_rank",
    "z_geometric_mean_rank",
    "z_inverse_harmonic_mean_rank",
)
OF_LAST_CUTOFF = ("adjusted_hits_at_", "z_hits_at_")
_HITS = "both.realistic.hits_at_"

Item: TypeAlias = tuple[tuple[str, str, str], float]


def cutoffs_of(figures: Mapping[str, Value]) -> list[int]:
    """Return the k of hits at k that a report has, in order."""
    digits = (key.removeprefix(_HITS) for key in figures if key.startswith(_HITS))
    return sorted(map(int, filter(str.isdecimal, digits)))


def items_of(figures: Mapping[str, Value], hits_at: Sequence[int]) -> Iterator[Item]:
    """Yield (side, rank type, metric) and value, of the sides that were evaluated; NaN where one is undefined.

    Args:
        figures: by the report's own keys.
        hits_at: the k of hits at k, the last of which stands for adjusted hits.
    """
    names = {
        **{metric: metric_key(metric) for metric in PYKEEN_METRICS},
        **{name: name for prefix in ("hits_at_", *OF_LAST_CUTOFF) for name in (f"{prefix}{k}" for k in hits_at)},
        **{f"{prefix}k": f"{prefix}{k}" for prefix in OF_LAST_CUTOFF for k in hits_at[-1:]},  # the last, if any
    }
    for (name, ours), rank_type, side in product(names.items(), RankType, SIDES):
        key = f"{side}.{rank_type.value}.{ours}"
        if key in figures:
            value = figures[key]
            yield (side, rank_type.value, name), float("nan") if value is None else value


def frame_of(items: Iterable[Item]) -> pandas.DataFrame:
    """Return a row per figure: Side, Rank_type, Metric, Value.

    Raises:
        OutputError: pandas is not installed.
    """
    return data_frame([(*key, value) for key, value in items], COLUMNS)


_TITLES = {
    **dict.fromkeys(("metrics", "raw_metrics"), "Unfiltered"),  # the former print as such where nothing is filtered
    "time_filtered_metrics": "Time-aware filter",
    **dict.fromkeys(("macro_metrics", "topk_metrics"), "Macro average over query keys"),
    "relation_macro_metrics": "Macro average over relations",
}
_REASONS = {
    **dict.fromkeys(("metrics", "raw_metrics"), " yet: the run is not complete; run the same command again to resume"),
    "time_filtered_metrics": "; evaluate with time_window",
    "topk_metrics": "; evaluate with topk_metrics",
    "macro_metrics": ", because query keys were not counted",
    "relation_macro_metrics": ", because relations were not counted",
}


@frozen(eq=False, repr=False)
class Figures(Mapping[str, Value]):
    """Figures by the report's keys, and by any other name: `figures["mrr"]`, `figures["both.realistic.hits@10"]`.

    They print as the table of the usual ones.
    """

    by_key: Mapping[str, Value]
    headline: str  # the rank type that a name without one means
    title: str = "Figures"
    others: Collection[str] = ()  # keys that may have no figure here: theirs is None

    def __getitem__(self, name: str) -> Value:
        """Return a figure; None where it is undefined.

        Raises:
            KeyError: no such metric; the message names the nearest.
        """
        return self.by_key.get(resolve(name, self.headline, {*self.by_key, *self.others}))

    def __iter__(self) -> Iterator[str]:
        return iter(self.by_key)

    def __len__(self) -> int:
        return len(self.by_key)

    def __repr__(self) -> str:
        table = headline_of({"metrics": self.by_key, "headline": self.headline, "intervals": {}})
        shown = f"{len(table.rows) * (len(table.columns) - 1)} of {len(self)} figures"
        return to_text(evolve(table, title=f"{self.title}: {shown}, {self.headline} ranks"))


@frozen(eq=False, repr=False)
class Report(Result, Printed):
    """A finished evaluation. It prints as the table of its headline metrics, in a notebook too.

    Examples:
        >>> import pbgeval
        >>> report = pbgeval.evaluate("eval.py", output="results/run", workers=1)
        >>> report["mrr"] == report["both.realistic.mean_reciprocal_rank"]
        True
    """

    def __getitem__(self, name: str) -> Value:
        """Return a metric: `report["mrr"]`, `report["both.realistic.hits@10"]`; None where it is undefined.

        Raises:
            KeyError: no such metric; the message names the nearest.
        """
        return self._figures("metrics")[name]

    @property
    def raw(self) -> Figures:
        """The metrics without a filter: those of the report itself where nothing is filtered.

        Examples:
            >>> report.raw["mrr"] <= report["mrr"]  # known answers compete
            True
        """
        return self._figures("raw_metrics" if "raw_metrics" in self.document else "metrics")

    @property
    def time_filtered(self) -> Figures:
        """The metrics of the time-aware filter.

        Raises:
            OutputError: this report has none.

        Examples:
            >>> import pbgeval
            >>> def score(lhs, rel, rhs):
            ...     return -(lhs + 1 - rhs).abs().float()
            ...
            >>> model = pbgeval.edge_scorer(score, num_entities=5, num_relations=1)
            >>> test = [(1, 0, 3, 2020), (1, 0, 2, 2021)]  # the second edge is of another year, so 2 competes with 3
            >>> report = pbgeval.evaluate_triples(model, test, known=[test], time_window=0)
            >>> report["tail.mean_rank"], report.time_filtered["tail.mean_rank"]
            (1.25, 1.75)
        """
        return self._figures("time_filtered_metrics")

    @property
    def macro(self) -> Figures:
        """The averages in which every query key weighs the same.

        Raises:
            OutputError: this report has none.

        Examples:
            >>> 0 < report.macro["mrr"] <= 1
            True
        """
        return self._figures("macro_metrics")

    @property
    def relation_macro(self) -> Figures:
        """The averages in which every relation weighs the same.

        Raises:
            OutputError: this report has none.

        Examples:
            >>> 0 < report.relation_macro["mrr"] <= 1
            True
        """
        return self._figures("relation_macro_metrics")

    @property
    def topk(self) -> Figures:
        """The means over query keys of `topk_metrics`: `report.topk["recall@10"]`.

        Raises:
            OutputError: this report has none.

        Examples:
            >>> import pbgeval
            >>> def score(lhs, rel, rhs):
            ...     return -(lhs + 1 - rhs).abs().float()
            ...
            >>> model = pbgeval.edge_scorer(score, num_entities=5, num_relations=1)
            >>> train = [(0, 0, 1)]
            >>> report = pbgeval.evaluate_triples(model, [(1, 0, 2)], train=[train], topk_metrics=True, hits_at=[1])
            >>> report.topk["recall@1"]
            1.0
        """
        return self._figures("topk_metrics")

    def _figures(self, key: str) -> Figures:
        figures = self.document.get(key)
        if figures is None:
            raise OutputError(f"{key}: this report has none{_REASONS[key]}")
        return Figures(figures.get("macro_metrics", figures), self.document["headline"], _TITLES[key])

    @property
    def intervals(self) -> Mapping[str, Mapping[str, float]]:
        """Standard error and 95% interval of the metrics that are estimated.

        Examples:
            >>> report.intervals  # all edges were evaluated and all scores kept, so nothing is estimated
            {}
        """
        return dict(self.document["intervals"])

    @property
    def standard_errors(self) -> Figures:
        """Standard errors by metric, over draws of the test edges; of a sample of edges, those of the estimates.

        Edges are drawn independently of each other, but queries of one key, and of one edge, depend on each other.
        A metric has None where all queries agree, or no error is computed.

        Examples:
            >>> 0 < report.standard_errors["mrr"] < report["mrr"]
            True
        """
        document = self.document
        return Figures(errors_of(document), document["headline"], "Standard errors", document["metrics"].keys())

    @property
    def tables(self) -> tuple[str, ...]:
        """The names that `table` takes.

        Examples:
            >>> report.tables
            ('buckets', 'rank_histogram', 'relations')
        """
        return tuple(self.rows)

    def table(self, name: str) -> Table:
        """Return a table: buckets, rank_histogram, relations, and those of other `breakdowns`.

        Raises:
            OutputError: there is no such table, or its file is not as it was written.

        Examples:
            >>> rows = list(report.table("buckets"))
            >>> rows[0]["edge_path"], rows[0]["lhs_partition"], rows[0]["rhs_partition"]
            ('edges', 0, 0)
            >>> 0 < rows[0]["mrr"] <= 1
            True
        """
        if name not in self.rows:
            near = BREAKDOWN_FILES.get(name, name).removesuffix(".csv")
            near = near if near in self.rows else next(iter(get_close_matches(name, self.tables, n=1)), "")
            hint = f"; did you mean {near!r}?" if near else ""
            known = ", ".join(self.tables) or "none, as the run is not complete"
            raise OutputError(f"no table {name!r} in this report: expected one of {known}{hint}")
        rows = self.rows[name]
        headline = self.document["headline"]
        return Table(rows, partial(rows_table, name, rows, headline), "" if name == HISTOGRAM else headline)

    def top(
        self,
        *,
        relation: str | SupportsIndex,
        head: str | SupportsIndex | None = None,
        tail: str | SupportsIndex | None = None,
        time: SupportsIndex | None = None,
        k: int | None = None,
    ) -> Table:
        """Return the best candidates of a query by name or id, from the lists of `save_topk`.

        Args:
            relation: its name or id.
            head: the known entity: tails are listed. Its name; its id where entities have no names.
            tail: the same: heads are listed. Give one of both.
            time: the query's time, where queries of different times differ (the model takes times, or
                `known_until`); needed if the query has several.
            k: how many candidates, at most `save_topk`; None: 10, if there are as many.

        Raises:
            ValueError: not one of head and tail is given, or what is neither a name nor an id.
            OutputError: there are no lists, or none of this query: only queries of evaluated edges have one. Or it has
                several times, and none is given.

        Examples:
            >>> import pbgeval
            >>> def score(lhs, rel, rhs):
            ...     return -(lhs + 1 - rhs).abs().float()  # the tail is the next entity
            ...
            >>> model = pbgeval.edge_scorer(score, num_entities=5, num_relations=1)
            >>> report = pbgeval.evaluate_triples(model, [(0, 0, 1)], save_topk=2, output="results/lists")
            >>> [row["candidate"] for row in report.top(head=0, relation=0)]  # these have no names
            ['all:0:1', 'all:0:0']
        """
        from pbgeval.results.saved_lists import saved_list  # here: it imports torch, which pages do not need

        if (head is None) == (tail is None):
            raise ValueError("give the known entity: head or tail" if head is None else "give head or tail, not both")
        if self.path is None:
            raise OutputError("this report has no folder, so no saved lists; evaluate with save_topk=10 and output=...")
        known = _named("head", head) if tail is None else _named("tail", tail)
        if time is not None and not isinstance(time, SupportsIndex):
            raise ValueError(f"time: expected an integer, got {time!r}")
        when = None if time is None else operator.index(time)
        found = saved_list(self, "tail" if tail is None else "head", known, _named("relation", relation), when)
        rows = found.candidates[: 10 if k is None else k]
        if k is not None and len(rows) < k:
            warnings.warn(f"this list has {len(rows)} candidates, not {k}; save_topk sets how many", stacklevel=2)
        ends = (found.known, "?") if tail is None else ("?", found.known)
        title = f", {found.relation}, ".join(ends) + (f" at time {found.time}" if found.time else "")
        ranks = found.ranks(self, Side.RHS if tail is None else Side.LHS, MAX_ANSWERS)
        told = answers_note(rows, ranks, len(found.answers), is_filtered=self.document["filter"] == "filtered")
        return Table(rows, partial(candidates_table, title, rows, told))

    def shown(self) -> list[DataTable]:
        """Return the tables that are printed: the headline metrics and the sections that were asked for.

        Examples:
            >>> [table.columns for table in report.shown()]
            [('realistic ranks', 'both', 'head', 'tail')]
        """
        return [final_table(self.document), *popularity_of(self.document), *topk_of(self.document)]

    def _printed(self) -> list[DataTable]:
        return with_warnings(self.shown(), warnings_of(self.document))

    def __repr__(self) -> str:
        return super().__repr__() if "metrics" in self.document else "a report without figures yet"

    def to_dict(self) -> dict[str, Any]:
        """Return a copy of the content of metrics.json.

        Examples:
            >>> report.to_dict()["complete"]
            True
        """
        return dict(json.loads(self.to_json()))

    def to_df(self, *, macro: bool = False) -> pandas.DataFrame:
        """Return the rank metrics that PyKEEN knows as its data frame: Side, Rank_type, Metric (its keys), Value.

        Args:
            macro: the averages in which every query key weighs the same.

        Raises:
            OutputError: pandas is not installed, or there are no macro averages.

        Examples:
            >>> report.to_df().columns.tolist()
            ['Side', 'Rank_type', 'Metric', 'Value']
        """
        figures = self._figures("macro_metrics" if macro else "metrics")
        return frame_of(items_of(figures.by_key, cutoffs_of(figures)))

    def recompute(
        self,
        *,
        hits_at: Iterable[int] | None = None,
        filter: str | None = None,  # noqa: A002 - the word of metrics.json
        headline: str | None = None,
        edge_paths: Sequence[str | PathLike[str]] | None = None,
        train_paths: Sequence[str | PathLike[str]] | None = None,
        keep: Callable[[int, Bucket, np.ndarray, np.ndarray, np.ndarray], np.ndarray] | None = None,
        breakdowns: Sequence[str] = (),
        relation_groups: Mapping[str, Iterable[int]] | None = None,
        metrics: Sequence[str] | None = None,
        topk_metrics: bool = False,
    ) -> Report:
        """Compute other figures of this run, or those of a part of its edges, from the ranks of `save_ranks`.

        Nothing is scored. Without arguments the metrics are this report's to the bit, but for what needs scores:
        `auc` is None, `loss` and `intervals` are left out, and so are diagnostics that ranks files do not hold (None).
        An edge counts if it was ranked on at least one side: files do not tell edges that may not be ranked on either
        side from edges that the run dropped, so `num_edges`, `num_queries_outside` and frequencies of query keys
        leave out the former too.

        Args:
            hits_at: cut-offs of hits at k; default: those of the run.
            filter: "raw" or "filtered"; default: as here. Filtered figures have raw ones beside them.
            headline: a rank type; default: as here.
            edge_paths: folders or files of the evaluated edges, as the run has them. What follows needs them, and so do
                the macro averages, which are None without.
            train_paths: folders of training edges, for popularity and topk_metrics: those of the run, if it had any.
            keep: (index of the edge path, bucket, lhs, rel, rhs) -> bool, all arrays with an element per edge, int64,
                entities as rows of their partitions: only edges where it is true count. It is asked once per edge.
            breakdowns: of relation, entity_types, groups, popularity. Relations are called as in relations.csv of the
                run; those that it does not have, by their ids.
            relation_groups: ids of the relations of each group.
            metrics: families or names, as the key of the config; default: as here, and hits at `hits_at`.
            topk_metrics: also the section `topk_metrics` of filtered lists, without what follows from `save_topk`.

        Raises:
            ValueError: an argument is wrong in itself, or lacks another.
            OutputError: there is no output directory, it has no ranks, those of another run, or no filtered ones.
            StorageError: a file is missing or damaged, or edges are not those of the run.
            DataError: an id in the edges is out of range.

        Examples:
            >>> other = report.recompute(hits_at=[5], metrics=["hits@5", "mrr"])
            >>> other["mrr"] == report["mrr"], 0 <= other["hits@5"] <= 1
            (True, True)
        """
        # Here: it imports torch, which pages do not need.
        from pbgeval.results.recompute import ReportQuery, recompute

        query = ReportQuery(
            hits_at=hits_at,
            filter=filter,
            headline=headline,
            edge_paths=edge_paths,
            train_paths=train_paths,
            keep=keep,
            breakdowns=breakdowns,
            relation_groups=relation_groups,
            metrics=metrics,
            topk_metrics=topk_metrics,
        )
        return report_of(recompute(self, query))


def _named(what: str, given: str | SupportsIndex | None) -> str | int:
    """Return a name or an id as plain Python has it: arrays and tensors hold other types."""
    try:
        return str(given) if isinstance(given, str) else operator.index(cast("SupportsIndex", given))
    except TypeError:
        raise ValueError(f"{what}: expected a name or an id, got {given!r}") from None


def report_of(result: Result) -> Report:
    """Return a result as a report."""
    return Report(result.document, result.run, result.rows, result.path)
