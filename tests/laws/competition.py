"""A tiny graph, a protocol and rules -> who competes in each query, one entity after the other in plain Python.

Scores are the reference's. Sampled lists are its chunks too, of the edges that are evaluated; the rest, known answers,
restrictions, constraints and who is outside, is decided here, entity by entity.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import compress
from typing import NamedTuple

from pbgeval.stats.query_metrics import query_metrics
from tests import reference
from tests.kit.graphs import Bucket, Edge, Entity, KnownEdge, TinyGraph
from tests.laws.expected import UNITS, Draws, Protocol, is_in, rounding_bound
from tests.reference import Query

HITS_AT = (1, 3, 5, 10)
Buckets = Mapping[Bucket, list[Edge]]
Place = tuple[str, int, int]  # entity type, partition, row


@dataclass(frozen=True)
class Rules:
    """Which edges are evaluated and which entities compete; None where none is left out."""

    filter_edges: Sequence[Buckets] = ()
    train_edges: Sequence[Buckets] = ()
    entities: Collection[Place] | None = None
    relations: Collection[int] | None = None
    of_side: Mapping[str, Collection[Place]] = field(default_factory=dict)  # by hidden side, "lhs" or "rhs"
    observed: bool = False
    times: Sequence[Mapping[Bucket, list[int]]] = ()  # of all edges, by path: those that are evaluated, filter, train
    window: int | None = None
    until_query: bool = False

    @property
    def filtered(self) -> bool:
        return bool(self.filter_edges or self.train_edges)

    def settings(self, graph: TinyGraph, sides: Collection[str]) -> dict[str, object]:
        """The keys of the config, and the edges to be written. A list for a side that is not ranked is refused."""

        def names(places: Collection[Place] | None) -> list[str] | None:
            return None if places is None else [f"{of_type}:{part}:{row}" for of_type, part, row in places]

        relations = self.relations
        named = None if relations is None else [f"rel:{index}" for index in relations]
        return {
            "filter_edges": self.filter_edges,
            "train_edges": self.train_edges,
            "restrict_entities": names(self.entities),
            "restrict_relations": named if graph.dynamic or not named else [graph.relations[i].name for i in relations],
            "head_candidates": names(self.of_side.get("lhs") if "lhs" in sides else None),
            "tail_candidates": names(self.of_side.get("rhs") if "rhs" in sides else None),
            "type_constraint": "observed" if self.observed else "schema",
            "times": self.times,
            "time_window": self.window,
            "known_until": "query" if self.until_query else None,
        }

    def left_out(self, times: Collection[int], now: int) -> tuple[bool, bool]:
        """Whether a query of a time leaves an edge out that is known of some times: as ever, and by the window."""
        known = [time for time in times if not self.until_query or time <= now]
        near = [time for time in known if self.window is not None and abs(time - now) <= self.window]
        return bool(known), bool(near)


class Case(NamedTuple):
    """A query of an evaluated edge."""

    graph: TinyGraph
    path_index: int
    bucket: Bucket
    row: int
    side: str
    true_score: float
    others: list[Entity] | list[int]  # competitors in raw figures
    scores: list[float]
    is_known: list[bool]
    is_outside: bool  # not ranked
    precision: str
    in_time: list[bool]  # left out by the time-aware filter
    list_length: int  # as PBG's logistic loss counts it

    @property
    def rel(self) -> int:
        return self.graph.buckets[self.bucket][self.row][1]

    @property
    def ends(self) -> dict[str, Entity]:
        return reference.true_entities(self.graph, self.bucket, self.graph.buckets[self.bucket][self.row])

    @property
    def key(self) -> tuple[object, ...]:
        if self.side == "rel":
            return self.side, *_types(self.graph, self.rel).values(), *self.ends.values()
        return self.side, self.rel, self.ends["rhs" if self.side == "lhs" else "lhs"]

    @property
    def query(self) -> Query:
        return Query(self.row, self.side, self.true_score, self.scores)

    def judged(self, *, filtered: bool, in_time: bool = False) -> Case:
        """The query without competitors that a filter leaves out."""
        kept = [not (filtered and known) for known in (self.in_time if in_time else self.is_known)]
        return self._replace(others=[*compress(self.others, kept)], scores=[*compress(self.scores, kept)])

    def bounds(self, precision: str) -> tuple[float, list[float]]:
        """Bounds of the rounding errors of the true score and of the competitors' scores."""
        ends, bounds = self.ends, []
        answers = [ends.get(self.side, self.rel), *self.others]
        for answer, score in zip(answers, [self.true_score, *self.scores], strict=True):
            lhs, rel, rhs = reference.corrupt(ends, self.rel, self.side, answer)
            bounds.append(rounding_bound(self.graph, rel, self.side, lhs, rhs, score, UNITS[precision]))
        return bounds[0], bounds[1:]

    def is_copy(self) -> list[bool]:
        """Whether a competitor's row is the true entity's, bit by bit: then it must tie, whatever the rounding."""
        relation = self.graph.relations[self.rel]
        if self.side == "rel":
            acts = [
                (of.operator, of.lhs_params if self.graph.dynamic else of.rhs_params) for of in self.graph.relations
            ]
            return [acts[other] == acts[self.rel] for other in self.others]
        table = self.graph.embeddings[relation.lhs if self.side == "lhs" else relation.rhs]
        part, row = self.ends[self.side]
        return [table[other][at] == table[part][row] for other, at in self.others]

    def rank_ranges(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """The lowest and highest optimistic, and pessimistic, rank that rounding leaves possible."""
        bound, bounds = self.bounds(self.precision)
        sure = doubtful = copies = 0
        for score, of, copied in zip(self.scores, bounds, self.is_copy(), strict=True):
            gap = score - self.true_score
            copies += copied
            sure += not copied and gap > bound + of
            doubtful += not copied and abs(gap) <= bound + of
        return (1 + sure, 1 + sure + doubtful), (1 + sure + copies, 1 + sure + doubtful + copies)

    def loss(self, protocol: Protocol) -> float:
        """The weighted loss of the query."""
        length = self.list_length if protocol.pbg else max(1, len(self.others))
        of = reference.loss(protocol.loss or "", self.true_score, self.scores, length, protocol.margin)
        return of * self.graph.relations[self.rel].weight

    def loss_error(self) -> float:
        """How far the loss may be off: every loss moves at most as much as all scores together."""
        bound, bounds = self.bounds(self.precision)
        return (bound + math.fsum(bound + of for of in bounds)) * self.graph.relations[self.rel].weight + 2.0**-30

    def counts(self) -> dict[str, int]:
        """The row of a ranks file."""
        known = [score for score, known in zip(self.scores, self.is_known, strict=True) if known]
        better, tied = reference.counts_by_sorting(self.true_score, self.scores)
        known_better, known_tied = reference.counts_by_sorting(self.true_score, known)
        return {
            "better": better,
            "tied": tied,
            "num_candidates": len(self.scores) + 1,
            "excluded_better": known_better,
            "excluded_tied": known_tied,
            "num_excluded": len(known),
        }


def expected_cases(graphs: Sequence[TinyGraph], protocol: Protocol, rules: Rules) -> list[Case]:
    """All queries of all edge paths; `graphs` differ in their edges alone, one for each path."""
    every = [graph.buckets for graph in graphs] + [*rules.filter_edges, *rules.train_edges]
    known: dict[KnownEdge, list[int]] = {}  # with their times
    for path_index, buckets in enumerate(every):
        for bucket, edges in buckets.items():
            times = rules.times[path_index][bucket] if rules.times else [0] * len(edges)
            for edge, time in zip(edges, times, strict=True):
                [found] = reference.known_edges(graphs[0], {bucket: [edge]})
                known.setdefault(found, []).append(time)
    return [
        case
        for path_index, graph in enumerate(graphs)
        for bucket in graph.buckets
        for case in _of_bucket(graph, protocol, rules, known, bucket, path_index)
    ]


def _of_bucket(
    graph: TinyGraph,
    protocol: Protocol,
    rules: Rules,
    known: Mapping[KnownEdge, list[int]],
    bucket: Bucket,
    path_index: int,
) -> list[Case]:
    edges = graph.buckets[bucket]
    evaluated = [row for row, edge in enumerate(edges) if _is_evaluated(graph, rules, bucket, edge)]
    lists = _lists(graph, protocol, bucket, path_index, evaluated, rules.train_edges)
    cases = []
    for row in evaluated:
        ends = reference.true_entities(graph, bucket, edges[row])
        for side in protocol.sides:

            def competes(other: Entity | int, side: str = side, rel: int = edges[row][1]) -> bool:
                return _may_compete(graph, rules, known, side, rel, other)

            true = ends.get(side, edges[row][1])
            listed, list_length = lists[row, side]
            others = [other for other in listed if competes(other)]
            now = rules.times[path_index][bucket][row] if rules.times else 0
            times = [
                known.get(reference.corrupt(ends, edges[row][1], side, other), []) if other != true else []
                for other in others
            ]
            left_out = [rules.left_out(of, now) if rules.filtered else (False, False) for of in times]
            in_known, in_time = [static for static, _ in left_out], [near for _, near in left_out]
            true_score, scores = reference.edge_scores(graph, bucket, edges[row], side, others)
            case = (graph, path_index, bucket, row, side, true_score, others, scores, in_known, not competes(true))
            cases.append(Case(*case, protocol.precision, in_time, list_length))
    return cases


def _types(graph: TinyGraph, rel: int) -> dict[str, str]:
    return {"lhs": graph.relations[rel].lhs, "rhs": graph.relations[rel].rhs}


def _is_evaluated(graph: TinyGraph, rules: Rules, bucket: Bucket, edge: Edge) -> bool:
    ends, types = reference.true_entities(graph, bucket, edge), _types(graph, edge[1])
    if rules.relations is not None and edge[1] not in rules.relations:
        return False
    return rules.entities is None or all((types[side], *ends[side]) in rules.entities for side in ends)


def _may_compete(
    graph: TinyGraph, rules: Rules, known: Collection[KnownEdge], side: str, rel: int, other: Entity | int
) -> bool:
    if side == "rel":
        return not rules.observed or any(of == other for _, of, _ in known)
    place = (_types(graph, rel)[side], *other)
    for allowed in (rules.entities, rules.of_side.get(side)):
        if allowed is not None and place not in allowed:
            return False
    at = 0 if side == "lhs" else 2
    return not rules.observed or any(edge[at] == other and edge[1] == rel for edge in known)


def _lists(
    graph: TinyGraph,
    protocol: Protocol,
    bucket: Bucket,
    path_index: int,
    evaluated: list[int],
    training: Sequence[Buckets],
) -> dict[tuple[int, str], tuple[list[Entity], int]]:
    """Who is listed beside the true entity of each query, by row and side, and the length of PBG's list.

    Who is sampled is listed as often as drawn; copies of the true entity only under `pbg`, but for the edge's own.
    """
    edges, lists = graph.buckets[bucket], {}
    policies = {row: _policy(graph, protocol, edges[row][1]) for row in evaluated}
    for row in evaluated:
        ends, types = reference.true_entities(graph, bucket, edges[row]), _types(graph, edges[row][1])
        every = {"rel": [of for of in range(len(graph.relations)) if _types(graph, of) == types]}
        for side in ends:
            tables = graph.embeddings[types[side]]
            parts = range(len(tables)) if policies[row] == "all" else [ends[side][0]]
            every[side] = [(part, at) for part in parts for at in range(len(tables[part]))]
        for side, of_side in every.items():
            true = ends.get(side, edges[row][1])
            lists[row, side] = [other for other in of_side if other != true], len(of_side)
    sampled = [row for row in evaluated if policies[row] == "sampled"]
    if protocol.pbg:
        batches = reference.pbg_batches(edges, graph.dynamic, protocol.slices, protocol.batch_size)
    else:
        batches = reference.default_batches(edges, graph.dynamic, protocol.window)
    batches = [[row for row in batch if row in sampled] for batch in batches]
    draws = Draws(graph, protocol, bucket, path_index, training)
    cut = (edges, filter(None, batches), protocol.num_negs, draws, protocol.pbg, protocol.num_degree)
    for chunk in reference.chunks(*cut):
        for position, row in enumerate(chunk.rows):
            for side, (part, true) in reference.true_entities(graph, bucket, edges[row]).items():
                others = [
                    (part, other)
                    for place, other in enumerate(chunk.lists[side])
                    if (place != position or place >= chunk.num_own if protocol.pbg else other != true)
                ]
                lists[row, side] = others, chunk.list_length
    return lists


def _policy(graph: TinyGraph, protocol: Protocol, rel: int) -> str:
    if protocol.candidates is not None:
        return protocol.candidates
    return "partition" if graph.relations[rel].all_negs else "sampled"


# Macro averages


def rank_figures(
    cases: Sequence[Case], weights: Sequence[Fraction] | None = None, *, with_auc: bool = False
) -> dict[str, float | None]:
    """`<rank type>.<metric>` of some queries, and their AUC per query; None where there are none."""
    ranks = [case.query.ranks for case in cases]
    found = reference.rank_metrics(ranks, HITS_AT, weights) if ranks else {}
    figures: dict[str, float | None] = {
        f"{kind}.{name}": found[kind][name] if ranks else None
        for kind in ("optimistic", "realistic", "pessimistic")
        for name in ("count", *(metric.name for metric in query_metrics(HITS_AT)))
    }
    if not ranks:
        figures |= {name: 0 for name in figures if name.endswith(".count")}
    return figures | ({"query_auc": reference.query_auc(ranks, weights)} if with_auc else {})


def macro_figures(cases: Sequence[Case], label: str, *, filtered: bool) -> dict[str, float | None]:
    """Every query weighs 1 / (evaluated edges with its key), queries outside among them."""
    frequency = Counter(case.key for case in cases)
    ranked = of_label(cases, label)
    weights = [Fraction(1, frequency[case.key]) for case in ranked]
    judged = [case.judged(filtered=filtered) for case in ranked]
    return rank_figures(judged, weights, with_auc=True) | {"auc": None}


def relation_macro_figures(cases: Sequence[Case], label: str, *, filtered: bool) -> dict[str, float | None]:
    """Every relation weighs the same; for query_auc, every relation with a query that has competitors."""
    judged = [case.judged(filtered=filtered) for case in of_label(cases, label)]
    of_auc = _over_relations([case for case in judged if case.others])
    return _over_relations(judged) | {"query_auc": of_auc["query_auc"], "auc": None}


def _over_relations(cases: Sequence[Case]) -> dict[str, float | None]:
    queries = Counter(case.rel for case in cases)
    return rank_figures(cases, [Fraction(1, queries[case.rel]) for case in cases], with_auc=True)


def of_label(cases: Sequence[Case], label: str) -> list[Case]:
    """Return the queries that are ranked and that the report counts under a label."""
    return [case for case in cases if not case.is_outside and is_in(case.side, label)]
