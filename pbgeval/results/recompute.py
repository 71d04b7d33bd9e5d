"""Saved ranks and what is asked of them -> another result of the same run, without scoring again.

Sums are made by the code that an evaluation uses, so equal questions have answers that are equal to the bit.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import index
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from attrs import Attribute, evolve, field, frozen
from attrs.converters import optional

from pbgeval.errors import OutputError
from pbgeval.metrics.auc import AucSample
from pbgeval.metrics.breakdown_names import ANSWER_HALF_LINK, BREAKDOWN_FILES, POPULARITY, QUERY_HALF_LINK
from pbgeval.metrics.breakdowns import GroupClasses
from pbgeval.metrics.names import DEFAULT, RANK, Selection
from pbgeval.metrics.popularity import popularity_groups, popularity_section
from pbgeval.metrics.topk_metrics import TOPK_METRICS, AnswerPlaces, TopkSums
from pbgeval.notation import Bucket, Side, WorkUnit
from pbgeval.ranking.keys import CodeCounts, EdgeColumns, key_codes
from pbgeval.ranking.known_answers import key_frequency, repeated_keys
from pbgeval.ranking.tally import SideResult
from pbgeval.results.document import ReportContext, RunStats, SideOfEdges, make_result
from pbgeval.results.result import Result
from pbgeval.results.saved_run import MAX_ROWS, Places, RunFacts, SavedRun, TrainingCounts, in_places
from pbgeval.stats.cluster_sums import ClusterSums
from pbgeval.stats.grouped import KEY_FREQUENCY, RELATION, TIME, GroupedStats
from pbgeval.stats.groups import GroupKey, GroupStats, ScorePool
from pbgeval.stats.keyed_sums import begins
from pbgeval.stats.query_metrics import ratio
from pbgeval.stats.rank_stats import StatsLayout, by_label
from pbgeval.stats.rank_types import RANK_TYPE_SYNONYMS
from pbgeval.stats.ranks import QueryCounts, RankCounts
from pbgeval.storage.edges import EdgeFiles, fingerprints_of
from pbgeval.storage.row_files import open_query_file
from pbgeval.version import __version__

# (index of the edge path, bucket, lhs, rel, rhs) -> which of these edges count, bool; entities are rows
Keep = Callable[[int, Bucket, np.ndarray, np.ndarray, np.ndarray], np.ndarray]
BREAKDOWNS = ("relation", "entity_types", "groups", POPULARITY)  # those that follow from saved ranks and edges
NOT_SAVED = ("num_queries_topped_up", "num_copies_excluded", "num_undefined_losses")  # diagnostics


def _cutoffs(hits_at: Iterable[int]) -> tuple[int, ...]:
    if isinstance(hits_at, int):
        raise ValueError(f"hits_at: expected a list, got {hits_at}")
    given = tuple(hits_at)
    for k in given:
        if isinstance(k, bool) or not isinstance(k, int | np.integer) or not 1 <= k <= 1 << 40:
            raise ValueError(f"hits_at: expected ints from 1 to 2**40, got {k!r}")
    return tuple(sorted(map(int, set(given))))


def _folders(paths: Sequence[str | PathLike[str]]) -> tuple[Path, ...]:
    if isinstance(paths, str | PathLike):
        raise ValueError(f"edge_paths, train_paths: expected a list of folders, got {str(paths)!r}; add brackets")
    return tuple(map(Path, paths))


def _groups(groups: Mapping[str, Iterable[int]]) -> dict[str, tuple[int, ...]]:
    try:
        return {str(name): tuple(sorted({index(relation) for relation in groups[name]})) for name in groups}
    except (TypeError, AttributeError) as error:
        raise ValueError(f"relation_groups: expected {{name: ids of relations}}, got: {error}") from error


def _not_a_text(_: object, attribute: Attribute[Any], value: object) -> None:
    if isinstance(value, str):
        raise ValueError(f"{attribute.name}: expected a list of names, got {value!r}; write it in brackets")


def _known(_: object, attribute: Attribute[Any], names: Sequence[str]) -> None:
    expected = " or ".join(BREAKDOWNS)
    for name in names:
        if name in BREAKDOWNS:
            continue
        if name not in (*BREAKDOWN_FILES,):
            raise ValueError(f"{attribute.name}: expected {expected}, got {name!r}")
        counted = "groups edges by time" if name == TIME else "counts training edges"
        raise ValueError(
            f"{attribute.name}: {name!r} {counted}, which the output directory does not hold: expected {expected}; "
            "evaluate with it in breakdowns"
        )


@frozen(eq=False, kw_only=True)
class ReportQuery:
    """What is asked for, and makes sense in itself; None: as the run had it."""

    hits_at: tuple[int, ...] | None = field(default=None, converter=optional(_cutoffs))
    filter: str | None = None
    headline: str | None = None
    edge_paths: tuple[Path, ...] | None = field(default=None, converter=optional(_folders))
    train_paths: tuple[Path, ...] | None = field(default=None, converter=optional(_folders))
    keep: Keep | None = None
    breakdowns: Sequence[str] = field(default=(), validator=[_not_a_text, _known])
    relation_groups: Mapping[str, tuple[int, ...]] | None = field(default=None, converter=optional(_groups))
    metrics: Sequence[str] | None = field(default=None, validator=_not_a_text)
    topk_metrics: bool = False

    def __attrs_post_init__(self) -> None:
        popularity, groups = (name in self.breakdowns for name in (POPULARITY, "groups"))
        lacks_edges, has_training = self.edge_paths is None, self.train_paths is not None
        needed = "needs edge_paths, as ranks files do not hold the edges"
        names = ", ".join(map(repr, self.breakdowns[:1]))
        if self.headline not in (None, *RANK_TYPE_SYNONYMS):
            raise ValueError(f"headline: expected {' or '.join(RANK_TYPE_SYNONYMS)}, got {self.headline!r}")
        if self.filter not in (None, "raw", "filtered"):
            raise ValueError(f"filter: expected 'raw' or 'filtered', got {self.filter!r}")
        if self.keep is not None and lacks_edges:
            raise ValueError(f"keep: {needed}; give the evaluated ones")
        if names and lacks_edges:
            raise ValueError(f"breakdowns: {names} {needed}")
        if popularity and not self.train_paths:
            raise ValueError(f"breakdowns: {POPULARITY!r} needs train_paths; give the folders of the training edges")
        if has_training and not (popularity or self.topk_metrics):
            raise ValueError(
                f"train_paths: has no effect without {POPULARITY!r} in breakdowns or topk_metrics=True; add one"
            )
        if self.topk_metrics and lacks_edges:
            raise ValueError(f"topk_metrics: {needed}")
        if groups and self.relation_groups is None:
            raise ValueError("breakdowns: 'groups' needs relation_groups, got None; give the ids of each group")
        if not groups and self.relation_groups is not None:
            raise ValueError("relation_groups: has no effect without 'groups' in breakdowns; add it")

    def check(self, run: SavedRun) -> None:
        """Refuse what this run cannot answer."""
        if self.filter == "filtered" and not run.facts.filtered:
            raise OutputError(
                f"{run.folder}: expected a filtered run, found a raw one, for which no known edges were read; evaluate"
                " with filter_paths or train_paths"
            )
        if self.topk_metrics and not run.facts.has_whole_lists:
            raise OutputError(
                f"{run.folder}: topk_metrics needs a filtered run of all edges, without known_until, against candidates"
                " all or partition, or against given ones with topk_metrics = True; evaluate again"
            )
        if POPULARITY in self.breakdowns and run.facts.knows_past_alone:
            raise OutputError(
                f"{run.folder}: {POPULARITY!r} counts training edges of all times, but this run has known_until, so no"
                " edge later than a query may count; leave it out"
            )
        if POPULARITY in self.breakdowns and run.facts.featurized:
            raise ValueError(f"breakdowns: {POPULARITY!r} needs entities with ids, but some of this run are featurized")
        num_relations = run.facts.num_relations
        last = "" if num_relations is None else f" to {num_relations - 1}"
        for name, relations in (self.relation_groups or {}).items():
            wrong = [of for of in relations if of < 0 or (num_relations is not None and of >= num_relations)]
            if wrong:
                raise ValueError(
                    f"relation_groups: group {name!r}: expected ids of relations from 0{last}, got {wrong[0]}"
                )


def _result_of(columns: Mapping[str, np.ndarray], num_outside: int) -> SideResult:
    """Return what ranks files say of some ranked queries of one side; pools of scores stay empty, losses zero.

    Args:
        columns: those of `storage.row_files.RANK_COLUMNS`, int64 (Q,); `num_candidates` is positive.
        num_outside: further queries of this side, which are not ranked.
    """
    of = {name: torch.from_numpy(np.ascontiguousarray(values)) for name, values in columns.items()}
    return SideResult(
        torch.arange(len(of["better"])),
        QueryCounts(
            RankCounts(of["better"], of["tied"], of["num_candidates"] - 1),
            RankCounts(of["excluded_better"], of["excluded_tied"], of["num_excluded"]),
        ),
        ScorePool(),
        ScorePool(),
        numbers={"num_outside": num_outside},
    )


def recompute(result: Result, query: ReportQuery, run: SavedRun | None = None) -> Result:
    """Compute the figures of a part of a run's queries, or others of all; `Report.recompute` says what and how.

    Args:
        result: the run's.
        query: what is asked for.
        run: what has been opened; None: what result and query name.

    Raises:
        ValueError: an argument does not fit the run.
        EvalError: what is on the disk does not have what is asked for.
    """
    paths = result.document.get("edge_paths", ())
    given = query.edge_paths
    if run is None and given is not None and paths and len(given) != len(paths):
        raise ValueError(
            f"edge_paths: expected {len(paths)}, in the order of the run "
            f"({', '.join(str(of_path['path']) for of_path in paths)}), got {len(given)}"
        )
    run = run or SavedRun.open(result, given)
    query.check(run)
    training = run.open_training(query.train_paths or ())
    started, facts = time.time(), run.facts
    filtered = facts.filtered if query.filter is None else query.filter == "filtered"
    layout = StatsLayout(facts.hits_at if query.hits_at is None else query.hits_at)
    kept = None if query.keep is None else _Kept.ask(run, query.keep)
    run = run if kept is None else evolve(run, kept=kept.select)
    counts = TrainingCounts.count(run, training, {}) if training else None
    popularity = counts if POPULARITY in query.breakdowns else None
    stats = _statistics(run, layout, popularity, filtered=filtered)
    context = _context(result, query, run, stats)
    made = make_result(
        stats,
        context,
        {
            **{
                name: value
                for name, value in result.document["provenance"].items()
                if name not in ("digest", "evaluated")
            },
            "recomputed": {
                "digest": facts.digest,
                "edges": None if kept is None else kept.digest,
                "filter": "filtered" if filtered else "raw",
                "headline": context.headline,
                "hits_at": list(layout.cutoffs),
                "metrics": context.selection.names,
                "breakdowns": sorted(set(query.breakdowns)),
                **({"training": [fingerprints_of(files) for files in training]} if training else {}),
                **({TOPK_METRICS: True} if query.topk_metrics else {}),
            },
        },
        {
            "version": __version__,
            "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(started)),
            "seconds": round(time.time() - started, 3),
            "evaluation": result.run,
        },
    )
    if not made.document["metrics"]:
        raise ValueError(
            f"metrics: nothing of {', '.join(context.selection.names)} follows from saved ranks; evaluate again"
        )
    of_sides, topk = made.document["diagnostics"].items(), query.topk_metrics
    document = {
        **made.document,
        # Ranks files do not tell these: zeros would look like findings.
        "diagnostics": {label: {**of, **dict.fromkeys(NOT_SAVED)} for label, of in of_sides},
        "edge_diagnostics": None,
        **({"relation_macro_metrics": None} if run.edges is None else {}),
        **({POPULARITY: popularity_section(stats.grouped, facts.sides, context.headline)} if popularity else {}),
        **({TOPK_METRICS: _topk_section(run, counts, layout.cutoffs)} if topk else {}),
        # The run's edges are still no more than a sample, if they were one.
        **{key: value for key, value in result.document.items() if key == "sample"},
    }
    return evolve(made, document=document)


def with_sections(result: Result, edges: Sequence[EdgeFiles], training: Sequence[EdgeFiles]) -> Result:
    """Return the result of a run with the sections that it asks for and that follow from saved ranks.

    Args:
        result: with the output directory.
        edges: evaluated edges, by edge path.
        training: those of `train_paths`.
    """
    settings = result.document["provenance"]["settings"]
    popularity, topk_metrics = POPULARITY in settings["breakdowns"], settings.get(TOPK_METRICS, False)
    if not (popularity or topk_metrics):
        return result
    run = evolve(
        SavedRun.open(result, None),
        edges={(index, bucket): file for index, of in enumerate(edges) for bucket, file in of.items()},
    )
    found = {}
    length = settings["save_topk"] if topk_metrics else None
    lists = None if length is None else _Recommended.read(run, length)
    counts = TrainingCounts.count(run, training, lists.codes() if lists else {}) if training else None
    if popularity:
        stats = _statistics(run, StatsLayout(run.facts.hits_at), counts, filtered=run.facts.filtered)
        found[POPULARITY] = popularity_section(stats.grouped, run.facts.sides, run.facts.headline)
    if topk_metrics:
        found[TOPK_METRICS] = _topk_section(run, counts, run.facts.hits_at, lists)
    return evolve(result, document={**result.document, **found})


@frozen(eq=False)
class _Kept:
    """Which edges count, a bit each: `keep` is asked once, so its answer is one even if it draws lots."""

    bits: dict[WorkUnit, np.ndarray]
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

    def select(self, rows: WorkUnit) -> np.ndarray:
        """Return which edges of a block count, bool (E,)."""
        return np.unpackbits(self.bits[rows], count=rows.num_edges).astype(bool)


def _num_rows(hidden: Side) -> int:
    """Return what a key's row is below, so that it is one int64 with a relation, or with another row."""
    return MAX_ROWS if hidden is not Side.REL else 1 << 31


# How many of the edges that count share each query key: a table per hidden side and place of the known entities
KeyTables = dict[tuple[Side, Places], CodeCounts]


def _count_keys(run: SavedRun) -> KeyTables:
    """Count, place by place, so that memory follows one partition's edges and the keys that repeat."""
    return {
        (hidden, places): repeated_keys(
            hidden,
            (_edges_in(run, rows, hidden, places, run.ranked(rows))[1] for rows in blocks),
            _num_rows(hidden),
        )
        for hidden in run.facts.sides
        for places, blocks in run.blocks_by_place(hidden).items()
    }


def _key_frequencies(tables: KeyTables, of_schemas: Sequence[Places], hidden: Side, edges: EdgeColumns) -> np.ndarray:
    """Return the frequency of the key of each edge, which is one that counts: int64 (E,).

    Args:
        tables: those of the run.
        of_schemas: places of the known entities in the bucket of the edges, by relation of the config.
        hidden: side.
        edges: of one bucket.
    """
    frequency_E = np.zeros(edges.num_edges, np.int64)
    for places in dict.fromkeys(of_schemas):
        at = np.flatnonzero(in_places(of_schemas, places, edges.rel_n))
        frequency_E[at] = key_frequency(tables[hidden, places], hidden, edges.select(at), _num_rows(hidden))
    return frequency_E


def _edges_in(
    run: SavedRun, rows: WorkUnit, hidden: Side, places: Places, ranked_E: np.ndarray
) -> tuple[np.ndarray, EdgeColumns]:
    """Return the edges of a block that count and whose known entities are in a place, and their rows in it."""
    edges = run.read_edges(rows)
    at = np.flatnonzero(ranked_E & in_places(run.facts.places(hidden, rows.bucket), places, edges.rel_n))
    return at, edges.select(at)


def _statistics(run: SavedRun, layout: StatsLayout, popularity: TrainingCounts | None, *, filtered: bool) -> RunStats:
    """Return the statistics of all edges that count."""
    keys = [GroupKey(*of_bucket, side) for of_bucket in run.ranks for side in run.facts.sides]
    raw, of_known = (GroupStats.zero(layout, keys) for _ in range(2))
    stats = RunStats(raw, of_known if filtered else None, GroupedStats(layout), ClusterSums(layout))
    key_tables = None if run.edges is None or run.facts.featurized else _count_keys(run)
    for rows in run.row_ranges():
        columns = {side: run.read_counts(rows, side) for side in run.facts.sides}
        counts_E = np.logical_or.reduce([of_side["num_candidates"] > 0 for of_side in columns.values()])
        edges = None if run.edges is None else run.read_edges(rows)
        for side, of_side in columns.items():
            at = np.flatnonzero(of_side["num_candidates"] > 0)
            dimensions = {}
            if edges is not None:
                of_queries = edges.select(at)
                dimensions[RELATION] = of_queries.rel_n
                if key_tables is not None:
                    frequency_Q = dimensions[KEY_FREQUENCY] = _key_frequencies(
                        key_tables, run.facts.places(side, rows.bucket), side, of_queries
                    )
                    if popularity is not None and side is not Side.REL:  # it is of entities
                        for name, count_Q in popularity.of(side, rows.bucket, of_queries).items():
                            dimensions |= popularity_groups(name, count_Q, frequency_Q)
            part = SideOfEdges(
                GroupKey(rows.path_index, rows.bucket, side),
                _result_of({name: values[at] for name, values in of_side.items()}, int(counts_E.sum()) - len(at)),
                {name: torch.from_numpy(np.ascontiguousarray(group_Q)) for name, group_Q in dimensions.items()},
            )
            stats.add([part])
    return stats


NO_SCORES = "ranks are saved, scores are not"


def _context(result: Result, query: ReportQuery, run: SavedRun, stats: RunStats) -> ReportContext:
    facts, num_relations = run.facts, run.facts.num_relations
    if num_relations is None:
        num_relations = max(stats.grouped.rows(RELATION), default=-1) + 1
    times = num_relations if facts.dynamic else 1
    of_run = result.document["provenance"].get("settings", {}).get("metrics", DEFAULT)
    # Unless others are asked for, those of the run, and hits at the cut-offs that are asked for.
    usual = [*of_run, *(f"hits_at_{cutoff}" for cutoff in (() if RANK in of_run else query.hits_at or ()))]
    return ReportContext(
        edge_paths=facts.edge_paths,
        sides=facts.sides,
        auc_samples=dict.fromkeys(Side, AucSample(all_true=False, all_competing=False, reason=NO_SCORES)),
        with_loss=False,
        headline=facts.headline if query.headline is None else RANK_TYPE_SYNONYMS[query.headline].value,
        with_macro=run.edges is not None and not facts.featurized,
        breakdowns=tuple(dict.fromkeys(query.breakdowns)),
        classes=GroupClasses(
            names=run.relation_names(num_relations),
            types=list(zip(facts.types(Side.LHS), facts.types(Side.RHS), strict=True)) * times,
            groups=query.relation_groups or {},
        ),
        selection=Selection.from_names(usual if query.metrics is None else query.metrics),
        num_edges_before_restrictions=result.document.get("num_edges_before_restrictions"),
        trained_on=[index for index, of in enumerate(result.document["edge_paths"]) if of.get("trained_on")],
    )


# The saved ranks of all evaluated answers of each query key -> the section `topk_metrics`.


def _ends(run: SavedRun) -> list[tuple[Side, Places]]:
    """Return the sides of entities that are hidden, each with every place of the known ones."""
    return [(side, places) for side in run.facts.ends for places in run.blocks_by_place(side)]


_SORTED_BY = ("key", "list", "better", "tied", "among", "answer")


def _read_answers(run: SavedRun, hidden: Side, places: Places, counts: TrainingCounts | None) -> dict[str, np.ndarray]:
    """Return the ranked answers of the keys of one place, int64 (P,) by column, each once and in order.

    `list` is the partition of an answer's candidates, 0 where there is one list. `better` and `tied` leave known
    candidates out; `among` are known ones that are better than an answer without ties, and put those in order.
    `row` is block and row of its edge. The last two columns count training edges, 0 where they are not counted.
    """
    facts = run.facts
    tables = []
    of_partition, is_given = np.array(facts.candidates) == "partition", "given" in facts.candidates
    for block, rows in enumerate(run.blocks_by_place(hidden)[places]):
        columns = run.read_counts(rows, hidden)
        at, edges = _edges_in(run, rows, hidden, places, columns["num_candidates"] > 0)
        of = {name: values[at] for name, values in columns.items()}
        schema_E = np.zeros_like(at) if facts.dynamic else edges.rel_n
        partition_E = np.array(
            [rows.bucket.partition_of(hidden, facts.num_partitions[name]) for name in facts.types(hidden)]
        )[schema_E]
        tied = of["tied"] - of["excluded_tied"]
        seen = {} if counts is None else counts.of(hidden, rows.bucket, edges)
        tables.append(
            {
                "key": key_codes(*edges.key(hidden), MAX_ROWS),
                "list": np.where(of_partition[schema_E], partition_E, 0),
                "better": of["better"] - of["excluded_better"],
                "tied": tied,
                # Of given lists it is how many answers they happen to name: another number for a copy of the edge.
                "among": np.where((tied == 0) & ~is_given, of["excluded_better"], 0),
                "answer": partition_E * MAX_ROWS + edges.entity(hidden),
                "row": block * MAX_ROWS + at,
                "num_candidates": of["num_candidates"],
                **{name: seen.get(name, np.zeros_like(at)) for name in (QUERY_HALF_LINK, ANSWER_HALF_LINK)},
            }
        )
    found = {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}
    order = np.lexsort([found[name] for name in reversed(_SORTED_BY)])
    order = order[begins(*(found[name][order] for name in _SORTED_BY))]
    return {name: values[order] for name, values in found.items()}


def _topk_section(
    run: SavedRun,
    counts: TrainingCounts | None,
    cutoffs: tuple[int, ...],
    lists: _Recommended | None = None,
) -> dict[str, Any]:
    sums = TopkSums(cutoffs)
    for hidden, places in _ends(run):
        of = _read_answers(run, hidden, places, counts)
        is_first = begins(of["key"], of["list"])
        answers, runs = AnswerPlaces.of_counts(np.cumsum(is_first) - 1, of["better"], of["tied"], of["among"])
        sums.add(hidden, answers, runs, of[QUERY_HALF_LINK][is_first], of[ANSWER_HALF_LINK])
    # Given lists may lack other answers, so their order is not known where no candidate stands between them.
    kinds = (QUERY_HALF_LINK,) if "given" in run.facts.candidates else (QUERY_HALF_LINK, ANSWER_HALF_LINK)
    return {
        **sums.section(run.facts.ends, kinds if counts is not None else ()),
        "recommended": None if lists is None else lists.section(run.facts.ends, counts),
    }


Cutoffs = dict[int, CodeCounts]  # by k: how often each (relation, row) is among the first k


@frozen(eq=False)
class _Recommended:
    """How often which entity is among the first k of the lists that were saved, each list once."""

    times: dict[tuple[str, int, Side], Cutoffs]  # by type and partition of the entities, and hidden side
    num_candidates: dict[tuple[Side, int], int]  # by hidden side and relation

    @classmethod
    def read(cls, run: SavedRun, length: int) -> _Recommended:
        """Read the lists, of which all queries of a key have the same."""
        found, cutoffs = cls({}, {}), [k for k in run.facts.hits_at if k <= length]
        for hidden, places in _ends(run):
            of = _read_answers(run, hidden, places, None)
            is_first = begins(of["key"])
            rel = of["key"][is_first] // MAX_ROWS
            row = of["row"][is_first]
            numbers = zip(rel.tolist(), of["num_candidates"][is_first].tolist(), strict=True)
            found.num_candidates.update({(hidden, relation): number for relation, number in numbers})
            for block, rows in enumerate(run.blocks_by_place(hidden)[places]):
                at = np.flatnonzero(row // MAX_ROWS == block)
                best = open_query_file(run.folder, "topk", *rows[:2]).read_side(hidden, *rows[2:])
                found._add(
                    run.facts,
                    hidden,
                    cutoffs,
                    rel[at],
                    {name: best[name][row[at] % MAX_ROWS] for name in ("entity", "partition")},
                )
        return found

    def _add(
        self, facts: RunFacts, hidden: Side, cutoffs: Sequence[int], rel: np.ndarray, lists: Mapping[str, np.ndarray]
    ) -> None:
        code_Qk = rel[:, None] * MAX_ROWS + lists["entity"]
        for name in dict.fromkeys(facts.types(hidden)):
            of_type = in_places(facts.types(hidden), name, rel)
            for partition in range(facts.num_partitions[name]):
                is_here_Qk = of_type[:, None] & (lists["partition"] == partition)
                times = self.times.setdefault((name, partition, hidden), {k: CodeCounts.zero() for k in cutoffs})
                for k in cutoffs:
                    times[k] += CodeCounts.of_codes(code_Qk[:, :k][is_here_Qk[:, :k]])

    def codes(self) -> dict[tuple[str, int, Side], np.ndarray]:
        """Return all (relation, row) that are recommended."""
        return {place: times[max(times)].keys.copy() for place, times in self.times.items() if times}

    def section(self, sides: Sequence[Side], counts: TrainingCounts | None) -> dict[str, float | None]:
        """Return the share of the candidates that any user is recommended, and their mean popularity."""
        found = {}
        for label, among in by_label({side: [side] for side in sides}, sides).items():
            of_label = {place: times for place, times in self.times.items() if place[2] in among}
            total = sum(number for (side, _), number in self.num_candidates.items() if side in among)
            for k in sorted({k for times in of_label.values() for k in times}):
                of_k = {place: times[k] for place, times in of_label.items()}
                found[f"{label}.coverage_at_{k}"] = ratio(sum(len(of.keys) for of in of_k.values()), total)
                if counts is not None:
                    seen = [of.counts @ counts.half_links[place].of(of.keys) for place, of in of_k.items()]
                    found[f"{label}.average_popularity_at_{k}"] = ratio(
                        sum(map(int, seen)), sum(int(of.counts.sum()) for of in of_k.values())
                    )
        return found
