"""Finished runs with saved ranks -> the figures of two of them, or of two groups of them, on the same queries.

Ranks files are aligned with the edges, so it does not matter which worker ranked an edge, or when.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from attrs import evolve, frozen

from pbgeval.errors import ConfigError, Faults, OutputError, StorageError
from pbgeval.metrics.names import SIDES, nearest_names, split
from pbgeval.metrics.paired import VALUE_BITS, values_of
from pbgeval.metrics.registry import find_metric
from pbgeval.notation import Bucket, Side, WorkUnit
from pbgeval.ranking.keys import EdgeColumns, split_mix
from pbgeval.ranking.sampled_lists import SampledLists, number_chunks
from pbgeval.report.conditions import joint_warnings, warnings_of
from pbgeval.report.run_differences import DIVIDED, differences_of
from pbgeval.results.result import Result
from pbgeval.results.saved_run import ROW_BITS, RunFacts, SavedRun, folder_of, recorded_edges, require_ranks
from pbgeval.stats.paired import PairedEdges, PairedSide, PairedStats
from pbgeval.stats.query_metrics import QUERIES, QueryMetric, find_query_metric, query_metrics
from pbgeval.stats.rank_types import RANK_TYPE_SYNONYMS, RankType
from pbgeval.storage.edges import EdgeSource

CLUSTERS = ("key", "edge")

Counts = Mapping[str, np.ndarray]  # columns of a block of a ranks file
Edges = Mapping[tuple[int, Bucket], EdgeSource] | None  # of a run, by edge path and bucket


@frozen
class CompareOptions:
    """How runs are to be compared: the arguments of `compare`, which describes them."""

    edge_paths: Sequence[str | PathLike[str]] | None = None
    metrics: Sequence[str] | None = None
    side: str = "both"
    rank_type: str = "realistic"
    filter: str | None = None
    clusters: str = "key"


@frozen(eq=False)
class PairedRuns:
    """Opened runs of the same queries, and what is asked of them."""

    runs: Sequence[SavedRun]  # the first with edges, where keys or relations are wanted
    reports: Sequence[Result]
    side: str
    sides: tuple[Side, ...]
    filtered: bool
    rank_type: RankType
    metrics: Sequence[QueryMetric]
    lists: SampledLists | None  # whose chunks are the units; None: edges are
    num_slices: int  # under pbg_semantics
    with_keys: bool

    @classmethod
    def open(cls, given: Sequence[Result | str | PathLike[str]], options: CompareOptions) -> PairedRuns:
        """Open runs, once they are found to have the same queries.

        Raises:
            ConfigError: an argument is wrong in itself.
            OutputError: a run is unfinished or has no ranks, or they differ in more than the model; says in what.
            StorageError: a file is missing or damaged.
        """
        chosen = [_metric(name) for name in options.metrics or ()]
        for name, value, choices in (
            ("side", options.side, tuple(SIDES)),
            ("rank_type", options.rank_type, tuple(RANK_TYPE_SYNONYMS)),
            ("filter", options.filter or "raw", ("raw", "filtered")),
            ("clusters", options.clusters, CLUSTERS),
        ):
            if value not in choices:
                raise ConfigError(f"{name}: expected one of {', '.join(choices)}, got {value!r}")
        reports = [of if isinstance(of, Result) else Result.read(Path(of)) for of in given]
        of_runs = [RunFacts.from_result(report) for report in reports]
        filtered = of_runs[0].filtered if options.filter is None else options.filter == "filtered"
        faults = Faults()  # what differs comes first: a run that is repeated for its ranks alone may still differ
        for number in range(1, len(reports)):
            faults += _differences((reports[0], reports[number]), (of_runs[0], of_runs[number]), options.filter)
        for report in reports:
            with faults.noted(OutputError):
                require_ranks(folder_of(report))
        faults.raise_any(OutputError)
        runs = [SavedRun.open(report, None) for report in reports]
        settings, facts = reports[0].document["provenance"]["settings"], of_runs[0]
        lists = _sampled_lists(settings)
        if options.clusters == "key" or (lists is not None and not facts.dynamic):  # chunks are cut by relation
            runs[0] = evolve(runs[0], edges=_edges(reports, options.edge_paths))
        side = SIDES[options.side]
        sides = tuple(of for of in facts.sides if of.is_in(side))
        if not sides:
            raise ConfigError(
                f"side: expected {' or '.join(of.label for of in facts.sides)}, which were ranked, got {side!r}"
            )
        return cls(
            runs,
            reports,
            side=side,
            sides=sides,
            filtered=filtered,
            rank_type=RANK_TYPE_SYNONYMS[options.rank_type],
            metrics=chosen or query_metrics(tuple(sorted({k for run in runs for k in run.facts.hits_at}))),
            lists=lists,
            num_slices=settings.get("workers") or 1,
            with_keys=options.clusters == "key" and not facts.featurized,
        )

    @property
    def has_edges(self) -> bool:
        """Whether relations are known."""
        return self.runs[0].edges is not None

    @property
    def conditions(self) -> dict[str, str]:
        """What is said of all figures of a comparison."""
        return {
            "side": self.side,
            "rank_type": self.rank_type.value,
            "filter": "filtered" if self.filtered else "raw",
            "unit": "edge" if self.lists is None else "chunk",
            "clusters": "key" if self.with_keys else "edge",
        }

    def warnings(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return what to know before figures are quoted, after the names of the runs that it holds for."""
        named = [  # seeds share a name
            name if name and names.count(name) == 1 else str(run.folder)
            for name, run in zip(names, self.runs, strict=True)
        ]
        found = [(name, warnings_of(report.document)) for name, report in zip(named, self.reports, strict=True)]
        return tuple(joint_warnings(found))

    def stats(self, a: Sequence[int], b: Sequence[int], *, by_relation: bool = True) -> PairedStats:
        """Return the sums of all queries, of which each has the mean over some runs; `scale_of(a, b)` is their unit.

        Args:
            a: numbers of the runs of the first group; none: its figures are 0.
            b: of the second group.
            by_relation: whether sums of relations are wanted.

        Raises:
            ConfigError: the groups are too large for exact sums.
            DataError: an id in the edges is out of range.
            StorageError: a file is damaged, or a query of one run is not that of the others.
        """
        scale = scale_of(a, b)
        num_queries = len(self.sides) * sum(file.num_rows for file in self.runs[0].ranks.values())
        if scale > 1 and scale * num_queries >= 1 << (63 - VALUE_BITS):
            raise ConfigError(
                f"groups of {len(a)} and {len(b)} runs of {num_queries:,} queries are too large to be compared; "
                "compare groups of the same number of runs"
            )
        stats = PairedStats.zero(len(self.metrics), len(self.sides), with_keys=self.with_keys)
        for block in self.blocks(a, b):
            stats.add(block if by_relation else evolve(block, group_E=np.zeros_like(block.group_E)))
        return stats

    def blocks(self, a: Sequence[int], b: Sequence[int]) -> Iterator[PairedEdges]:
        """Yield all edges that are ranked, as `stats` adds them."""
        lists, base = self.lists, self.runs[0]
        cut = None if lists is None else partial(lists.unit_rows, num_slices=self.num_slices)
        for rows in base.row_ranges(cut):
            counts = {side: self.counts(rows, side, [*a, *b]) for side in self.sides}
            at = np.flatnonzero(np.logical_or.reduce([of[0]["num_candidates"] > 0 for of in counts.values()]))
            if not len(at):
                continue
            edges = None if base.edges is None else base.read_edges(rows).select(at)
            group_E = np.zeros(len(at), np.int64) if edges is None else edges.rel_n
            unit_E = np.arange(len(at))
            if lists is not None:
                unit_E = number_chunks(np.zeros_like(group_E) if base.facts.dynamic else group_E, lists)
            sides = []
            for side, of_runs in counts.items():
                is_ranked_E = of_runs[0]["num_candidates"][at] > 0
                scale = scale_of(a, b)
                b_DE = self._mean(of_runs[len(a) :], at, scale) * is_ranked_E
                a_DE = self._mean(of_runs[: len(a)], at, scale) * is_ranked_E if a else np.zeros_like(b_DE)
                keys = self._keys(rows, edges, side) if self.with_keys and edges is not None else None
                sides.append(PairedSide(is_ranked_E, a_DE, b_DE - a_DE, keys))
            yield PairedEdges(group_E, unit_E, tuple(sides))

    def counts(self, rows: WorkUnit, side: Side, numbers: Sequence[int]) -> list[Counts]:
        """Return the counts of some runs, once they are found to be those of the same queries."""
        first, *others = [self.runs[number] for number in numbers]
        found: list[Counts] = [first.read_counts(rows, side)]
        same = {
            "num_candidates": "ranked among as many candidates",
            **({"num_excluded": "with as many known answers among them"} if self.filtered else {}),
        }
        for run in others:
            counts = run.read_counts(rows, side)
            for name, what in same.items():
                unlike = np.flatnonzero(found[0][name] != counts[name])
                if len(unlike):
                    row = int(unlike[0])
                    path = run.ranks[rows.path_index, rows.bucket].path
                    raise StorageError(
                        f"{path}: {side.label}, row {rows.start + row}: expected the query of {first.folder}, {what} "
                        f"({name}: A {int(found[0][name][row])}, B {int(counts[name][row])}); compare runs of the same "
                        "queries, filters and candidates"
                    )
            found.append(counts)
        return found

    def values(self, metrics: Sequence[QueryMetric], columns: Counts, at: np.ndarray) -> np.ndarray:
        """Return the value of each metric for some edges of a block, int64 (metrics, E)."""
        better, tied, competing = columns["better"][at], columns["tied"][at], columns["num_candidates"][at] - 1
        if self.filtered:
            better, tied = better - columns["excluded_better"][at], tied - columns["excluded_tied"][at]
            competing = competing - columns["num_excluded"][at]
        return values_of(metrics, (better, tied, competing), self.rank_type)

    def _mean(self, of_runs: Sequence[Counts], at: np.ndarray, scale: int) -> np.ndarray:
        """Return the mean over runs of each metric for each edge, in parts of a unit, int64 (metrics, E)."""
        total_DE = self.values(self.metrics, of_runs[0], at)
        for columns in of_runs[1:]:
            total_DE = total_DE + self.values(self.metrics, columns, at)
        return total_DE * (scale // len(of_runs))

    def _keys(self, rows: WorkUnit, edges: EdgeColumns, hidden: Side) -> np.ndarray:
        """Return a hash of the key of each query, uint64 (E,)."""
        known, facts = hidden.other, self.runs[0].facts
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
        place_E = edges.rel_n.astype(np.uint64) << np.uint64(ROW_BITS) | edges.entity(known).astype(np.uint64)
        return split_mix(split_mix(place_E) ^ np.asarray(partition_E).astype(np.uint64))


def scale_of(a: Sequence[int], b: Sequence[int]) -> int:
    """Return into how many parts a unit of a metric is divided, so that the means over both groups are whole."""
    return math.lcm(max(len(a), 1), len(b))


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


def _differences(reports: Sequence[Result], of_runs: Sequence[RunFacts], wanted: str | None) -> Iterator[str]:
    """Yield what two runs differ in besides the model, a fault each."""
    is_filtered = [facts.filtered for facts in of_runs]
    filtered = any(is_filtered) if wanted is None else wanted == "filtered"
    a, b = (report.document["provenance"] for report in reports)
    unlike = differences_of(a, b, filtered=all(is_filtered) and filtered)
    what = (
        "with the same number of partitions"
        if any(line.startswith(DIVIDED) for line in unlike)
        else "on the same graph with the same settings"
    )
    advice = f"evaluate both {what}"
    if filtered and not all(is_filtered):
        one, other = "AB" if is_filtered[0] else "BA"
        advice = advice if unlike else 'compare with filter="raw"'  # which helps where nothing else differs
        unlike.append(f"{one} is filtered, {other} is not" if any(is_filtered) else "neither run is filtered")
    first, second = map(folder_of, reports)
    for number, line in enumerate(unlike, 1):
        last = f"; {advice}" if number == len(unlike) else ""  # the advice once
        yield f"{second}: cannot be compared with {first}: {line}{last}"


def _edges(reports: Sequence[Result], given: Sequence[str | PathLike[str]] | None) -> Edges:
    """Open the evaluated edges, which have the same rows in all runs: as given, or where one of the runs found them."""
    expected = len(reports[0].document["edge_paths"])
    if given is not None:
        if len(given) != expected:
            raise ConfigError(f"edge_paths: expected {expected}, in the order of the runs, got {len(given)}")
        return _edges_of_any(reports, [Path(path) for path in given])
    for report in reports:
        found = recorded_edges(report)
        if len(found) == expected and all(path.exists() for path in found):
            return _edges_of_any([report], found)
    raise OutputError(
        f"{reports[0].path}: the evaluated edges are no longer at the edge_paths of run.json; copy them there (for "
        'edges by name, copy the folder imported), pass edge_paths=[...], or clusters="edge", which ignores keys and '
        "relations"
    )


def _edges_of_any(reports: Sequence[Result], paths: Sequence[Path]) -> Edges:
    """Open edges that one of the runs has evaluated: the same edges may be in files of several forms."""
    faults: list[StorageError] = []
    for report in reports:
        try:
            return SavedRun.open(report, paths).edges
        except StorageError as error:
            faults.append(error)
    raise faults[0]
