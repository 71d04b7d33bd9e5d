"""Tiny graph -> exact scores of prepared float32 vectors, in fractions: what exact ranks are held to.

Plain Python that shares nothing with `pbgeval`. Vectors are prepared in Python's floats (float64), in the order that
docs/decisions/0013-exact-ranks.md fixes, and rounded to float32 once; then nothing is rounded any more. A score
is a pair (number, square): number - sqrt(square), so that only l2 with a bias needs a root.
"""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Iterable, Sequence
from fractions import Fraction
from functools import lru_cache, reduce
from typing import NamedTuple

from tests.kit.graphs import Bucket, Edge, Entity, Params, Row, TinyGraph
from tests.reference import apply_operator, corrupt, true_entities

CLAMP = Fraction(20)
ON_BOTH_SIDES = "projected_translation"


class Exact(NamedTuple):
    """number - sqrt(square)."""

    number: Fraction
    square: Fraction


def compare(first: Exact, second: Exact) -> int:
    """The sign of first - second."""
    if first.square == second.square:
        return (first.number > second.number) - (first.number < second.number)
    # Roots of unlike squares by bisection of integers: enough digits are found before 4000 bits.
    bits = 64
    while True:
        low = [score.number - Fraction(_root(score.square, bits) + 1, 1 << bits) for score in (first, second)]
        high = [score.number - Fraction(_root(score.square, bits), 1 << bits) for score in (first, second)]
        if low[0] > high[1] or high[0] < low[1]:
            return 1 if low[0] > high[1] else -1
        if bits > 4000:
            return 0
        bits *= 4


def _root(square: Fraction, bits: int) -> int:
    """floor(sqrt(square) * 2^bits)."""
    return math.isqrt((square.numerator << 2 * bits) // square.denominator)


def float32(x: float) -> float:
    return struct.unpack("f", struct.pack("f", x))[0] + 0.0


def folded_sum(terms: Iterable[float]) -> float:
    """The second half is added to the first until one number is left."""
    terms = list(terms)
    while len(terms) > 1:
        half = (len(terms) + 1) // 2
        second = [*terms[half:], *([0.0] * (2 * half - len(terms)))]
        terms = [a + b for a, b in zip(terms[:half], second, strict=True)]
    return terms[0]


def running_sum(terms: Iterable[float]) -> float:
    return reduce(operator.add, terms, 0.0)  # from the first on, each sum rounded: `sum` compensates


def finished(graph: TinyGraph, entity_type: str, of: Entity) -> list[float]:
    """An entity's vector before operators: shortened to `max_norm`, then moved by the global embedding."""
    row = graph.embeddings[entity_type][of[0]][of[1]]
    if graph.max_norm is not None:
        norm = math.sqrt(folded_sum(a * a for a in row))
        row = [a * (graph.max_norm / (norm + 1e-7)) for a in row] if norm > graph.max_norm else row
    shift = graph.global_embeddings.get(entity_type)
    return [a + float32(b) for a, b in zip(row, shift, strict=True)] if shift else list(row)


def inner(x: Row, y: Row) -> float:
    return running_sum(a * b for a, b in zip(x, y, strict=True))


def operate(name: str, params: Params, x: Row, side: str = "rhs") -> list[float]:
    return apply_operator(name, params, x, side, inner=inner)


def adjoint(name: str, params: Params, q: Row) -> list[float]:
    if name in ("linear", "affine"):
        return [inner(column, q) for column in zip(*params["linear_transformation"], strict=True)]
    if name == "complex_diagonal":
        return operate(name, {"real": params["real"], "imag": [-b for b in params["imag"]]}, q)
    if name == "swapped_diagonal":
        product = operate("diagonal", params, q)
        return [*product[len(q) // 2 :], *product[: len(q) // 2]]
    return operate(name, params, q) if name == "diagonal" else list(q)


class Prepared(NamedTuple):
    vector: list[float]
    added: float = 0.0  # a candidate's bias
    weight: float = 1.0  # of a candidate's bias, in a query


def prepared(graph: TinyGraph, x: Row) -> Prepared:
    vector, bias = (list(x[1:]), x[0]) if graph.bias else (list(x), 0.0)
    if graph.comparator == "cos":
        norm = math.sqrt(folded_sum(a * a for a in vector))
        vector = [a / norm for a in vector]
    return Prepared([float32(a) for a in vector], float32(bias))


def moved_query(graph: TinyGraph, operator: str, params: Params, q: Row) -> Prepared | None:
    """The query that scores candidates as they are; None where the operator stays with the candidates."""
    if operator == "none":
        return prepared(graph, q)
    if graph.comparator == "dot":
        weight = [1.0, *q[1:]] if graph.bias else q
        moved = [float32(a) for a in adjoint(operator, params, weight)]
        return Prepared(moved[1:], weight=moved[0]) if graph.bias else Prepared(moved)
    if operator == "translation" and graph.comparator not in ("cos", "clamped_dot"):
        return prepared(graph, [a - t for a, t in zip(q, params["translation"], strict=True)])
    return None


@lru_cache(maxsize=200_000)  # graphs compare by identity
def query(graph: TinyGraph, rel: int, side: str, known: Entity) -> tuple[Prepared, bool]:
    """The prepared query that hides `side`, and whether the operator acts on candidates."""
    relation = graph.relations[rel]
    params = (relation.lhs_params, relation.rhs_params)
    x = finished(graph, relation.rhs if side == "lhs" else relation.lhs, known)
    if graph.dynamic:
        return prepared(graph, operate(relation.operator, params[side == "lhs"], x)), False
    if side == "lhs":
        return prepared(graph, operate(relation.operator, relation.rhs_params, x)), relation.operator == ON_BOTH_SIDES
    if relation.operator == ON_BOTH_SIDES:
        return prepared(graph, operate(relation.operator, relation.rhs_params, x, "lhs")), True
    moved = moved_query(graph, relation.operator, relation.rhs_params, x)
    return (prepared(graph, x), True) if moved is None else (moved, False)


@lru_cache(maxsize=200_000)
def candidate(graph: TinyGraph, rel: int, side: str, of: Entity, transformed: bool) -> Prepared:
    relation = graph.relations[rel]
    x = finished(graph, relation.lhs if side == "lhs" else relation.rhs, of)
    return prepared(graph, operate(relation.operator, relation.rhs_params, x, side) if transformed else x)


@lru_cache(maxsize=200_000)
def exact_score(graph: TinyGraph, rel: int, side: str, known: Entity, of: Entity) -> Exact:
    q, transforms = query(graph, rel, side, known)
    return exact_score_of(graph.comparator, graph.bias, q, candidate(graph, rel, side, of, transforms))


@lru_cache(maxsize=200_000)
def whole(x: float) -> int:
    """A float32 in units of 2^-149, the least there is: sums of integers take a tenth of the time of fractions."""
    numerator, denominator = x.as_integer_ratio()
    units, rest = divmod(numerator << 149, denominator)
    assert rest == 0
    return units


def of_products(units: int) -> Fraction:
    return Fraction(units, 1 << 298)


def exact_score_of(comparator: str, bias: bool, q: Prepared, c: Prepared) -> Exact:
    added = of_products(whole(q.weight) * whole(c.added)) if bias else Fraction(0)
    pairs = [*zip(map(whole, q.vector), map(whole, c.vector), strict=True)]
    if comparator in ("dot", "cos", "clamped_dot"):
        product = of_products(sum(a * b for a, b in pairs))
        return Exact(
            (min(max(product, -CLAMP), CLAMP) if comparator == "clamped_dot" else product) + added, Fraction(0)
        )
    if comparator == "l1":
        return Exact(added - Fraction(sum(abs(a - b) for a, b in pairs), 1 << 149), Fraction(0))
    square = of_products(sum((a - b) ** 2 for a, b in pairs))
    return Exact(added, square) if comparator == "l2" and bias else Exact(added - square, Fraction(0))


def counts(
    graph: TinyGraph, bucket: Bucket, edge: Edge, side: str, others: Sequence[Entity], is_known: Sequence[bool]
) -> dict[str, int]:
    """The row of a ranks file of the query that hides `side`."""
    ends, rel = true_entities(graph, bucket, edge), edge[1]
    known = ends["rhs" if side == "lhs" else "lhs"]
    assert corrupt(ends, rel, side, ends[side]) == (ends["lhs"], rel, ends["rhs"])
    true = exact_score(graph, rel, side, known, ends[side])
    signs = [compare(exact_score(graph, rel, side, known, other), true) for other in others]
    of_known = [sign for sign, known_answer in zip(signs, is_known, strict=True) if known_answer]
    return {
        "better": signs.count(1),
        "tied": signs.count(0),
        "num_candidates": len(signs) + 1,
        "excluded_better": of_known.count(1),
        "excluded_tied": of_known.count(0),
        "num_excluded": len(of_known),
    }
