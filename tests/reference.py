"""Tiny graph -> scores, ranks, metrics: the slow truth that every fast path is held to.

Plain Python in float64 that shares nothing with `pbgeval` but the names of metrics, or a fault of one would hide in the
other. Where float32 is exact too (`TinyGraph.is_exact`), ranks must agree as integers; elsewhere only up to rounding.

An entity is (partition, row); an edge (lhs row, relation, rhs row) lies in a bucket (lhs partition, rhs partition).
A query hides one side, "lhs" or "rhs", of an edge, or "rel"; its competitors never include what is hidden.
"""

from __future__ import annotations

import cmath
import math
from bisect import bisect_left, bisect_right
from fractions import Fraction
from functools import lru_cache
from itertools import chain
from operator import mul
from typing import TYPE_CHECKING, NamedTuple

from pbgeval.stats.query_metrics import query_metrics
from tests import rank_metrics_reference

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from tests.kit.graphs import Bucket, Edge, Entity, KnownEdge, Params, Row, TinyGraph

    Draw = Callable[[str, list[int], int], list[int]]  # side, rows of a chunk's edges, how many -> uniform draws


class Ranks(NamedTuple):
    optimistic: int  # 1 + better
    pessimistic: int  # 1 + better + tied
    num_candidates: int  # competitors and the true entity itself


def rank_by_sorting(true_score: float, competitor_scores: Iterable[float]) -> tuple[int, int]:
    """The first and the last place, from 1, that the true score can take among all scores, best first."""
    order = sorted([true_score, *competitor_scores], reverse=True)
    if any(map(math.isnan, order)):
        raise ValueError("NaN cannot be ranked")
    return order.index(true_score) + 1, len(order) - order[::-1].index(true_score)


def counts_by_sorting(true_score: float, competitor_scores: Iterable[float]) -> tuple[int, int]:
    """How many competitors are (better, tied)."""
    optimistic, pessimistic = rank_by_sorting(true_score, competitor_scores)
    return optimistic - 1, pessimistic - optimistic


def realistic(optimistic: int, pessimistic: int) -> Fraction:
    return Fraction(optimistic + pessimistic, 2)


def inner(x: Row, y: Row) -> float:
    return math.fsum(map(mul, x, y))


def prepare_row(x: Row, max_norm: float | None = None, global_embedding: Row | None = None) -> list[float]:
    """The row as an operator sees it: shortened to `max_norm`, then moved by its type's global embedding."""
    norm = math.hypot(*x)
    scale = 1.0 if max_norm is None or norm <= max_norm else max_norm / (norm + 1e-7)
    return [scale * a + b for a, b in zip(x, global_embedding or [0.0] * len(x), strict=True)]


def apply_operator(
    name: str, params: Params, x: Row, side: str = "rhs", inner: Callable[[Row, Row], float] = inner
) -> list[float]:
    """Apply an operator; `inner` multiplies a row of its matrix."""
    half = len(x) // 2
    y = list(x)
    if name == "projected_translation":  # acts on both sides
        y = [inner(matrix_row, x) for matrix_row in params["projection"]]
    if name in ("linear", "affine"):
        y = [inner(matrix_row, x) for matrix_row in params["linear_transformation"]]
    if name in ("translation", "affine") or (name == "projected_translation" and side == "lhs"):
        return [a + t for a, t in zip(y, params["translation"], strict=True)]
    if name in ("diagonal", "swapped_diagonal"):
        y = [*x[half:], *x[:half]] if name == "swapped_diagonal" else y
        return [d * a for d, a in zip(params["diagonal"], y, strict=True)]
    if name == "rotate":
        phases = zip(complex_numbers(x), params["phase"], strict=True)
        turned = [complex(*z) * cmath.exp(1j * phase) for z, phase in phases]
        return [z.real for z in turned] + [z.imag for z in turned]
    if name == "complex_diagonal":
        quads = list(zip(x[:half], x[half:], params["real"], params["imag"], strict=True))
        return [a * c - b * d for a, b, c, d in quads] + [a * d + b * c for a, b, c, d in quads]
    if name not in ("none", "linear", "projected_translation"):
        raise ValueError(f"unknown operator {name!r}")
    return y


def complex_numbers(x: Row) -> list[tuple[float, float]]:
    """The first half of a row has the real parts."""
    return list(zip(x[: len(x) // 2], x[len(x) // 2 :], strict=True))


def score(comparator: str, x: Row, y: Row, bias: bool = False) -> float:
    """Higher is better. A zero vector under cos is a ZeroDivisionError: it cannot be ranked."""
    if bias:
        return math.fsum([score(comparator, x[1:], y[1:]), x[0], y[0]])
    if comparator == "dot":
        return inner(x, y)
    if comparator == "cos":
        x_norm, y_norm = math.hypot(*x), math.hypot(*y)
        return inner([a / x_norm for a in x], [b / y_norm for b in y])
    if comparator == "clamped_dot":
        return min(max(inner(x, y), -20.0), 20.0)
    if comparator == "l1":
        return -math.fsum(abs(a - b) for a, b in zip(x, y, strict=True))
    if comparator == "complex_l1":
        pairs = zip(complex_numbers(x), complex_numbers(y), strict=True)
        return -math.fsum(abs(complex(*z) - complex(*w)) for z, w in pairs)
    if comparator not in ("l2", "squared_l2"):
        raise ValueError(f"unknown comparator {comparator!r}")
    squared = math.fsum((a - b) ** 2 for a, b in zip(x, y, strict=True))
    return -squared if comparator == "squared_l2" else -math.sqrt(max(squared, 1e-30))


def true_entities(graph: TinyGraph, bucket: Bucket, edge: Edge) -> dict[str, Entity]:
    """Both ends of an edge. A type with one partition is in partition 0, whatever the bucket's index says."""
    types = graph.relations[edge[1]].lhs, graph.relations[edge[1]].rhs
    parts = [part if len(graph.embeddings[name]) > 1 else 0 for name, part in zip(types, bucket, strict=True)]
    return {"lhs": (parts[0], edge[0]), "rhs": (parts[1], edge[2])}


@lru_cache(maxsize=200_000)  # graphs compare by identity
def vector(graph: TinyGraph, rel: int, side: str, of: Entity, transformed: bool) -> list[float]:
    """One end of an edge, with the operator of that side of the relation if `transformed`."""
    relation = graph.relations[rel]
    entity_type, params = (relation.lhs, relation.lhs_params) if side == "lhs" else (relation.rhs, relation.rhs_params)
    row = graph.embeddings[entity_type][of[0]][of[1]]
    prepared = prepare_row(row, graph.max_norm, graph.global_embeddings.get(entity_type))
    if relation.operator == "projected_translation":
        return apply_operator(relation.operator, relation.rhs_params, prepared, side)
    return apply_operator(relation.operator, params, prepared) if transformed else prepared


def corrupt(ends: dict[str, Entity], rel: int, side: str, other: Entity | int) -> KnownEdge:
    if side == "rel":
        return ends["lhs"], other, ends["rhs"]
    return (other, rel, ends["rhs"]) if side == "lhs" else (ends["lhs"], rel, other)


def edge_scores(
    graph: TinyGraph, bucket: Bucket, edge: Edge, side: str, others: Iterable[Entity | int]
) -> tuple[float, list[float]]:
    """The true score of the query that hides `side`, and the scores of the others in its place."""
    ends, rel = true_entities(graph, bucket, edge), edge[1]
    moves_lhs = graph.dynamic and side != "lhs"  # else the operator acts on the rhs
    scores = []
    for lhs, of, rhs in [corrupt(ends, rel, side, other) for other in (ends.get(side, rel), *others)]:
        x, y = vector(graph, of, "lhs", lhs, moves_lhs), vector(graph, of, "rhs", rhs, not moves_lhs)
        scores.append(score(graph.comparator, x, y, graph.bias))
    return scores[0], scores[1:]


class Query(NamedTuple):
    row: int  # of the edge in its bucket
    side: str
    true_score: float
    competitors: list[float]

    @property
    def ranks(self) -> Ranks:
        return Ranks(*rank_by_sorting(self.true_score, self.competitors), len(self.competitors) + 1)


def known_edges(graph: TinyGraph, buckets: Mapping[Bucket, Iterable[Edge]]) -> set[KnownEdge]:
    """The edges as pairs of entities, so that they compare across buckets."""
    ends = [(true_entities(graph, bucket, edge), edge[1]) for bucket, edges in buckets.items() for edge in edges]
    return {(true["lhs"], rel, true["rhs"]) for true, rel in ends}


class Chunk(NamedTuple):
    """Edges that share one list per side; each entry is a row of the bucket's partition, batch negatives first."""

    rows: list[int]  # of the edges in their bucket
    lists: dict[str, list[int]]
    num_own: int  # leading entries of a list that are the chunk's own edges, in their order
    list_length: int  # with PBG's padding, which only its loss sees


def cut(rows: Sequence[int], size: int) -> list[list[int]]:
    return [list(rows[start : start + size]) for start in range(0, len(rows), size)]


def by_relation(edges: Sequence[Edge], rows: Sequence[int]) -> list[list[int]]:
    return [[row for row in rows if edges[row][1] == rel] for rel in sorted({edges[row][1] for row in rows})]


def default_batches(edges: Sequence[Edge], dynamic: bool, window: int) -> list[list[int]]:
    """Rows that may share chunks: those within `window` consecutive rows, unless `dynamic` of one relation."""
    parts = cut(range(len(edges)), window)
    return parts if dynamic else [batch for part in parts for batch in by_relation(edges, part)]


def pbg_batches(edges: Sequence[Edge], dynamic: bool, slices: int, batch_size: int) -> list[list[int]]:
    """`slices` contiguous slices, each (unless dynamic) sorted by relation, then cut into batches."""
    parts = cut(range(len(edges)), max(1, -(-len(edges) // slices)))
    groups = parts if dynamic else [group for part in parts for group in by_relation(edges, part)]
    return [batch for group in groups for batch in cut(group, batch_size)]


def chunks(
    edges: Sequence[Edge],
    batches: Iterable[Sequence[int]],
    num_negs: tuple[int, int],
    draw: Draw,
    pbg: bool = False,
    size: int = 0,
) -> list[Chunk]:
    """Cut batches into chunks; `num_negs` are `num_batch_negs` and `num_uniform_negs`, `size` where both are 0."""
    num_batch_negs, num_uniform_negs = num_negs
    result = []
    for batch in batches:
        for rows in cut(batch, num_batch_negs or num_uniform_negs or size):
            own = {"lhs": [edges[row][0] for row in rows], "rhs": [edges[row][2] for row in rows]}
            num_own = len(rows) if num_batch_negs else 0
            num_draws = num_uniform_negs + (0 if pbg else num_batch_negs - num_own)
            lists = {side: own[side][:num_own] + draw(side, rows, num_draws) for side in own}
            padded = min(num_batch_negs, len(batch)) if pbg else num_batch_negs
            result.append(Chunk(rows, lists, num_own, padded + num_uniform_negs))
    return result


def rank_metrics(
    ranks: Collection[Ranks], hits_at: Collection[int], weights: Sequence[Fraction] | None = None
) -> dict[str, dict[str, float]]:
    """Rank type -> metric -> value, rounded once from an exact fraction."""
    metrics: dict[str, dict[str, float]] = {}
    for rank_type, low, high in (("optimistic", 0, 0), ("realistic", 0, 1), ("pessimistic", 1, 1)):
        of = [realistic(r[low], r[high]) for r in ranks]
        queries = rank_metrics_reference.Queries(of, [r.num_candidates for r in ranks], weights)
        names = [metric.name for metric in query_metrics(tuple(hits_at))]
        metrics[rank_type] = {"count": len(of)} | {name: rank_metrics_reference.value(name, queries) for name in names}
    return metrics


def query_auc(ranks: Collection[Ranks], weights: Sequence[Fraction] | None = None) -> float | None:
    """Mean share of a query's competitors that the true entity beats, ties one half; None without competitors."""
    weighted = [(r, weight) for r, weight in zip(ranks, weights or [1] * len(ranks), strict=True) if r[2] > 1]
    shares = [w * (1 - (realistic(r.optimistic, r.pessimistic) - 1) / (r.num_candidates - 1)) for r, w in weighted]
    return float(sum(shares) / sum(weight for _, weight in weighted)) if shares else None


def auc(queries: Collection[Query]) -> float | None:
    """P(a true score > a competitor's score) + P(equal) / 2, each drawn from the pool of all queries."""
    pool = sorted(chain.from_iterable(query.competitors for query in queries))
    twice = sum(bisect_left(pool, query.true_score) + bisect_right(pool, query.true_score) for query in queries)
    return float(Fraction(twice, 2 * len(queries) * len(pool))) if pool else None


def softplus(x: float) -> float:
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def loss(name: str, true_score: float, competitors: Collection[float], list_length: int, margin: float = 0.1) -> float:
    """PBG's loss of one query; `list_length` counts the masked entries too."""
    if name == "logistic":
        return softplus(-true_score) + math.fsum(map(softplus, competitors)) / list_length
    if name == "ranking":
        return math.fsum(max(0.0, margin - true_score + other) for other in competitors)
    if name != "softmax":
        raise ValueError(f"unknown loss {name!r}")
    best = max(competitors, default=0.0)
    total = math.fsum(math.exp(other - best) for other in competitors)
    return softplus(best + math.log(total) - true_score) if total else 0.0
