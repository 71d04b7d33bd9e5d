"""Saved ranks and what is asked of them -> another report of the same run, without scoring again.

Sums are made by the code that an evaluation uses, so equal questions have answers that are equal to the bit.
"""

from __future__ import annotations

import hashlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import index
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from attrs import evolve, frozen

from pbgeval.errors import OutputError
from pbgeval.metrics.breakdowns import BREAKDOWN_FILES, GroupClasses
from pbgeval.metrics.names import DEFAULT, RANK, Selection
from pbgeval.metrics.summary import AucSample
from pbgeval.notation import Bucket, Side
from pbgeval.ranking.keys import KnownBlock
from pbgeval.ranking.known_answers import KeyFrequency
from pbgeval.report.document import Evaluated, make_report
from pbgeval.report.report import Report
from pbgeval.report.saved_run import MOST_ROWS, RowRange, RunFacts, SavedRun
from pbgeval.stats.grouped import KEY_FREQUENCY, RELATION
from pbgeval.stats.groups import GroupKey
from pbgeval.stats.rank_stats import StatsLayout
from pbgeval.stats.ranks import RANK_TYPE_SYNONYMS
from pbgeval.stats.saved import SavedStats
from pbgeval.version import __version__

# (index of the edge path, bucket, lhs, rel, rhs) -> which of these edges count, bool; entities are rows
Keep = Callable[[int, Bucket, np.ndarray, np.ndarray, np.ndarray], np.ndarray]
BREAKDOWNS = ("relation", "entity_types", "groups")  # those that follow from the relation
LARGEST_CUTOFF = 1 << 40
NOT_SAVED = ("num_queries_topped_up", "num_copies_excluded", "num_undefined_losses")  # diagnostics


@frozen(eq=False, kw_only=True)
class Cut:
    """What is asked for; None: as the run had it."""

    hits_at: Iterable[int] | None = None
    filter: str | None = None
    headline: str | None = None
    edge_paths: Sequence[str | PathLike[str]] | None = None
    keep: Keep | None = None
    breakdowns: Sequence[str] = ()
    relation_groups: Mapping[str, Iterable[int]] | None = None
    metrics: Sequence[str] | None = None


def recompute(report: Report, cut: Cut) -> Report:
    """Compute the figures of a part of a run's queries, or others of all; `Report.recompute` says what and how.

    Raises:
        ValueError: an argument is wrong in itself.
        EvalError: what is on the disk does not have what is asked for.
    """
    started = time.time()
    question = _Question.of(cut)
    run = SavedRun.open(report, question.folders_for(report))
    facts = run.facts
    question.check(run)
    filtered = facts.filtered if question.filter is None else question.filter == "filtered"
    keys = [GroupKey(*of_bucket, side) for of_bucket in run.ranks for side in facts.sides]
    layout = StatsLayout(facts.hits_at if question.cutoffs is None else question.cutoffs)
    stats = SavedStats.zero(layout, keys, filtered=filtered)
    kept = _Kept.ask(run, question.keep) if question.keep is not None else None
    _add_all(run, stats, kept)
    evaluated = Evaluated(
        edge_paths=facts.edge_paths,
        buckets=facts.grid,
        sides=facts.sides,
        auc_sample=AucSample(all_true=True, all_competing=True),  # of no scores: pooled AUCs are None
        with_loss=False,
        headline=question.headline or facts.headline,
        with_macro=run.edges is not None and not facts.featurized,
        breakdowns=question.breakdowns,
        classes=_classes(run, stats, question.groups),
        selection=question.selection_for(report),
    )
    asked = {
        "digest": facts.digest,
        "edges": None if kept is None else kept.digest,
        "filter": "filtered" if filtered else "raw",
        "headline": evaluated.headline,
        "hits_at": list(layout.cutoffs),
        "metrics": evaluated.selection.names,
        "breakdowns": sorted(question.breakdowns),
    }
    its_provenance = {name: value for name, value in report.document["provenance"].items() if name != "digest"}
    made = make_report(
        stats, evaluated, {**its_provenance, "recomputed": asked}, _run(report.document.get("run"), started)
    )
    document = _without_unknown(made.document, has_edges=run.edges is not None)
    if "sample" in report.document:
        document["sample"] = report.document["sample"]  # the run's edges are still no more than a sample
    return evolve(made, document=document)


def _run(evaluation: object, started: float) -> dict[str, Any]:
    return {
        "version": __version__,
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(started)),
        "seconds": round(time.time() - started, 3),
        "evaluation": evaluation,
    }


def _without_unknown(document: Mapping[str, Any], *, has_edges: bool) -> dict[str, Any]:
    """Return the document with None for what ranks files do not tell: zeros would look like findings."""
    diagnostics = {
        label: {name: None if name in NOT_SAVED else value for name, value in diagnosis.items()}
        for label, diagnosis in document["diagnostics"].items()
    }
    known = {**document, "diagnostics": diagnostics, "edge_diagnostics": None}
    return known if has_edges else {**known, "relation_macro_metrics": None}


@frozen(eq=False)
class _Question:
    """A cut whose arguments make sense in themselves."""

    cutoffs: tuple[int, ...] | None
    filter: str | None
    headline: str | None
    folders: tuple[Path, ...] | None
    keep: Keep | None
    breakdowns: tuple[str, ...]
    groups: Mapping[str, tuple[int, ...]]
    metrics: tuple[str, ...] | None

    @classmethod
    def of(cls, cut: Cut) -> _Question:
        if cut.filter not in (None, "raw", "filtered"):
            raise ValueError(f"filter: expected 'raw' or 'filtered', got {cut.filter!r}")
        if cut.headline is not None and cut.headline not in RANK_TYPE_SYNONYMS:
            raise ValueError(f"headline: expected {' or '.join(RANK_TYPE_SYNONYMS)}, got {cut.headline!r}")
        folders = None if cut.edge_paths is None else _folders(cut.edge_paths)
        if cut.keep is not None and folders is None:
            raise ValueError("keep: needs edge_paths, as ranks files do not hold the edges; give the evaluated ones")
        return cls(
            cutoffs=None if cut.hits_at is None else _cutoffs(cut.hits_at),
            filter=cut.filter,
            headline=None if cut.headline is None else RANK_TYPE_SYNONYMS[cut.headline].value,
            folders=folders,
            keep=cut.keep,
            breakdowns=_breakdowns(cut),
            groups=_groups(cut),
            metrics=None if cut.metrics is None else _metrics(cut.metrics),
        )

    def selection_for(self, report: Report) -> Selection:
        """Return the metrics asked for: without a word those of the run, and hits at the cut-offs that are."""
        if self.metrics is not None:
            return Selection.of(self.metrics)
        of_run = report.document["provenance"].get("settings", {}).get("metrics", DEFAULT)
        of_cutoffs = [] if RANK in of_run else [f"hits_at_{cutoff}" for cutoff in self.cutoffs or ()]
        return Selection.of([*of_run, *of_cutoffs])

    def folders_for(self, report: Report) -> tuple[Path, ...] | None:
        """Return the folders of edges, of which there must be as many as the run had."""
        paths = report.document.get("edge_paths", ())
        if self.folders is not None and paths and len(self.folders) != len(paths):
            names = ", ".join(str(of_path["path"]) for of_path in paths)
            raise ValueError(
                f"edge_paths: expected {len(paths)}, in the order of the run ({names}), got {len(self.folders)}"
            )
        return self.folders

    def check(self, run: SavedRun) -> None:
        """Refuse what this run cannot answer."""
        if self.filter == "filtered" and not run.facts.filtered:
            raise OutputError(
                f"{run.folder}: expected a filtered run, found a raw one, for which no known edges were read; evaluate"
                " with filter_paths or train_paths"
            )
        num_relations = run.facts.num_relations
        for name, relations in self.groups.items():
            for relation in relations:
                if relation < 0 or (num_relations is not None and relation >= num_relations):
                    last = "" if num_relations is None else f" to {num_relations - 1}"
                    raise ValueError(
                        f"relation_groups: group {name!r}: expected ids of relations from 0{last}, got {relation}"
                    )


def _metrics(metrics: Sequence[str]) -> tuple[str, ...]:
    if isinstance(metrics, str):
        raise ValueError(f"metrics: expected a list of names, got {metrics!r}; write it in brackets")
    return tuple(metrics)


def _cutoffs(hits_at: Iterable[int]) -> tuple[int, ...]:
    given = tuple(hits_at)
    for k in given:
        if isinstance(k, bool) or not isinstance(k, int | np.integer) or not 1 <= k <= LARGEST_CUTOFF:
            raise ValueError(f"hits_at: expected ints from 1 to 2**40, got {k!r}")
    return tuple(sorted({int(k) for k in given}))


def _folders(edge_paths: Sequence[str | PathLike[str]]) -> tuple[Path, ...]:
    if isinstance(edge_paths, str | PathLike):
        raise ValueError(f"edge_paths: expected a list of folders, got {str(edge_paths)!r}; write it in brackets")
    return tuple(map(Path, edge_paths))


def _breakdowns(cut: Cut) -> tuple[str, ...]:
    if isinstance(cut.breakdowns, str):
        raise ValueError(f"breakdowns: expected a list of names, got {cut.breakdowns!r}; write it in brackets")
    names = tuple(dict.fromkeys(cut.breakdowns))
    for name in names:
        if name not in BREAKDOWN_FILES:
            raise ValueError(f"breakdowns: expected {' or '.join(BREAKDOWNS)}, got {name!r}")
        if name not in BREAKDOWNS:
            raise ValueError(
                f"breakdowns: {name!r} counts training edges, which the output directory does not hold: expected "
                f"{' or '.join(BREAKDOWNS)}; evaluate with it in breakdowns"
            )
    if names and cut.edge_paths is None:
        raise ValueError(f"breakdowns: {names[0]!r} needs edge_paths, as ranks files do not hold the relations")
    if "groups" in names and cut.relation_groups is None:
        raise ValueError("breakdowns: 'groups' needs relation_groups, got None; give the ids of each group")
    return names


def _groups(cut: Cut) -> dict[str, tuple[int, ...]]:
    if cut.relation_groups is None:
        return {}
    if "groups" not in cut.breakdowns:
        raise ValueError("relation_groups: has no effect without 'groups' in breakdowns; add it")
    try:
        return {
            str(name): tuple(sorted({index(relation) for relation in relations}))
            for name, relations in cut.relation_groups.items()
        }
    except (TypeError, AttributeError) as error:
        raise ValueError(f"relation_groups: expected {{name: ids of relations}}, got: {error}") from error


@frozen(eq=False)
class _Kept:
    """Which edges count, a bit each: `keep` is asked once, so its answer is one even if it draws lots."""

    bits: dict[RowRange, np.ndarray]
    digest: str  # of all answers, in the order of the edges

    @classmethod
    def ask(cls, run: SavedRun, keep: Keep) -> _Kept:
        bits, digest = {}, hashlib.sha256()
        for rows in run.row_ranges():
            edges = run.read_edges(rows)
            kept_E = np.asarray(keep(rows.path_index, rows.bucket, edges.lhs_n, edges.rel_n, edges.rhs_n))
            if kept_E.dtype != np.bool_ or kept_E.shape != (edges.num_edges,):
                raise ValueError(
                    f"keep: expected a bool for each of {edges.num_edges} edges, got {kept_E.dtype} of shape"
                    f" {kept_E.shape}"
                )
            digest.update(np.ascontiguousarray(kept_E).tobytes())
            bits[rows] = np.packbits(kept_E)
        return cls(bits, digest.hexdigest())

    def of(self, rows: RowRange) -> np.ndarray:
        """Return which edges of a block count, bool (E,)."""
        return np.unpackbits(self.bits[rows], count=rows.stop - rows.start).astype(bool)


@frozen(eq=False)
class _KeyTables:
    """How many of the edges that count share each query key: a table per partition of the known entities."""

    facts: RunFacts
    tables: dict[tuple[Side, str, int], KeyFrequency]  # by hidden side, type and partition of the known entity

    @classmethod
    def count(cls, run: SavedRun, kept: _Kept | None) -> _KeyTables:
        """Count, partition by partition, so that memory follows one partition's edges and the keys that repeat."""
        facts = run.facts
        tables = {}
        for hidden in facts.sides:
            known = hidden.other
            blocks_of: dict[int, list[RowRange]] = defaultdict(list)  # by partition of the known side
            for rows in run.row_ranges():
                blocks_of[rows.bucket.partition(known)].append(rows)
            for name in dict.fromkeys(facts.types(known)):
                is_split = facts.num_partitions[name] > 1
                whole = [rows for of_partition in blocks_of.values() for rows in of_partition]
                for partition, blocks in blocks_of.items() if is_split else [(0, whole)]:
                    edges = cls._edges(run, kept, blocks, known, name)
                    tables[hidden, name, partition] = KeyFrequency.of_blocks(hidden, edges, MOST_ROWS)
        return cls(facts, tables)

    @staticmethod
    def _edges(
        run: SavedRun, kept: _Kept | None, blocks: Sequence[RowRange], known: Side, name: str
    ) -> Iterator[KnownBlock]:
        """Yield the edges of some blocks that count and whose known entity is of a type."""
        for rows in blocks:
            edges = run.read_edges(rows)
            counts_E = run.ranked(rows) & _of_type(run.facts.types(known), name, edges.rel_n)
            if kept is not None:
                counts_E &= kept.of(rows)
            yield KnownBlock(*edges.columns(np.flatnonzero(counts_E)))

    def of(self, hidden: Side, bucket: Bucket, edges: KnownBlock) -> np.ndarray:
        """Return the frequency of the key of each edge, which is one that counts: int64 (E,)."""
        known = hidden.other
        types = self.facts.types(known)
        frequency_E = np.zeros(edges.num_edges, np.int64)
        for name in dict.fromkeys(types):
            at = np.flatnonzero(_of_type(types, name, edges.rel_n))
            table = self.tables[hidden, name, self.facts.partition_of(name, known, bucket)]
            frequency_E[at] = table.of(edges.rel_n[at], edges.entity(known)[at])
        return frequency_E


def _of_type(types: Sequence[str], name: str, rel_E: np.ndarray) -> np.ndarray:
    """Return which edges' relation has the type, bool (E,); `types` are a side's, by relation of the config."""
    if set(types) == {name}:
        return np.ones(len(rel_E), bool)
    of_type_E: np.ndarray = np.array([of_relation == name for of_relation in types])[rel_E]
    return of_type_E


def _add_all(run: SavedRun, stats: SavedStats, kept: _Kept | None) -> None:
    """Add the queries of all edges that count."""
    frequencies = None if run.edges is None or run.facts.featurized else _KeyTables.count(run, kept)
    for rows in run.row_ranges():
        columns = {side: run.read_counts(rows, side) for side in run.facts.sides}
        counts_E = np.logical_or.reduce([of_side["num_candidates"] > 0 for of_side in columns.values()])
        if kept is not None:
            counts_E &= kept.of(rows)
        edges = None if run.edges is None else run.read_edges(rows)
        for side, of_side in columns.items():
            at = np.flatnonzero(counts_E & (of_side["num_candidates"] > 0))
            dimensions = {}
            if edges is not None:
                of_queries = KnownBlock(*edges.columns(at))
                dimensions[RELATION] = of_queries.rel_n
                if frequencies is not None:
                    dimensions[KEY_FREQUENCY] = frequencies.of(side, rows.bucket, of_queries)
            stats.add(
                GroupKey(rows.path_index, rows.bucket, side),
                {name: values[at] for name, values in of_side.items()},
                num_outside=int(counts_E.sum()) - len(at),
                dimensions=dimensions,
            )


def _classes(run: SavedRun, stats: SavedStats, groups: Mapping[str, tuple[int, ...]]) -> GroupClasses:
    """Return what tables call relations and their types."""
    num_relations = run.facts.num_relations
    if num_relations is None:
        num_relations = max(stats.grouped.rows(RELATION), default=-1) + 1
    times = num_relations if run.facts.dynamic else 1
    return GroupClasses(
        names=run.relation_names(num_relations),
        lhs_types=run.facts.types(Side.LHS) * times,
        rhs_types=run.facts.types(Side.RHS) * times,
        groups=groups,
    )
