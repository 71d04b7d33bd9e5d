"""Exact ranks of vectors made to mislead floats: every comparator, bias and operator against fractions.

With --all 22,000 queries: 88 models, 125 edges, both sides, which are 2,000 or more for each comparator and for each
operator. Rows cancel, repeat each other, differ in a last bit, hold subnormal numbers, spread over 60 binades or are
zero (cos has no zero vectors); under clamped_dot products lie at its ends.
"""

from __future__ import annotations

import itertools
import math
import random
import struct
from collections.abc import Callable
from unittest import mock

import pytest

from pbgeval.ranking import auc_sampling, cpu_counting, cpu_lists
from pbgeval.scoring.blas import find_sgemm
from tests import exact_reference
from tests.kit.graphs import (
    COMPARATORS,
    EXACT_OWN_COMPARATORS,
    EXACT_OWN_OPERATORS,
    OPERATORS,
    Edge,
    Relation,
    Row,
    RowSource,
    TinyGraph,
    user_relations,
)
from tests.kit.loops import loops_used
from tests.laws.competition import Rules, expected_cases
from tests.laws.expected import Protocol
from tests.laws.test_evaluation_equals_reference import evaluated

DIMENSION = 8
NUM_EDGES = 125
MODELS = [
    *itertools.product(COMPARATORS, (False, True), OPERATORS),
    *itertools.product(EXACT_OWN_COMPARATORS, (False, True), (*OPERATORS, *EXACT_OWN_OPERATORS)),
    *itertools.product(COMPARATORS, (False,), EXACT_OWN_OPERATORS),
]
POLICIES = ("all", "sampled", "partition")
IN_QUICK_TESTS = 12  # of so many models, one


def float32(number: float) -> float:
    return struct.unpack("f", struct.pack("f", number))[0]


def next_float32(number: float) -> float:
    """The next larger magnitude."""
    return struct.unpack("f", struct.pack("I", struct.unpack("I", struct.pack("f", number))[0] + 1))[0]


def cancelling(source: random.Random) -> list[float]:
    """Large terms that take each other away, beside small ones that decide."""
    large = [2.0 ** source.randint(10, 20) * source.choice([1, 1 + 2.0**-23]) for _ in range(DIMENSION // 4)]
    small = [source.choice([-1, 1]) * 2.0 ** source.randint(-12, 0) for _ in range(DIMENSION // 2)]
    return [of for pair in zip(large, [-of for of in large], strict=True) for of in pair] + small


def normal(source: random.Random) -> list[float]:
    return [float32(source.gauss(0, 1)) for _ in range(DIMENSION)]


def subnormal(source: random.Random) -> list[float]:
    return [source.randint(-(2**9), 2**9) * 2.0**-149 for _ in range(DIMENSION - 1)] + [2.0**-149]


def of_all_sizes(source: random.Random) -> list[float]:
    return [float32(source.gauss(0, 1) * 2.0 ** source.randint(-30, 30)) for _ in range(DIMENSION)]


def at_the_ends(source: random.Random) -> list[float]:
    """Products of such rows are -20 and 20, or a last bit or two from them, or sums of a few of these."""
    row = [source.choice([4.0, 5.0, -4.0, -5.0]), *([0.0] * (DIMENSION - 1))]
    row[0] = next_float32(row[0]) if source.random() < 0.3 else row[0]
    row[1] = source.choice([0.0, 0.0, 2.0**-20, -(2.0**-20), 4.0])
    return row


def about_the_ends(source: random.Random) -> list[Row]:
    """Rows with products of 20 and -20, but for what float32 or float64 leaves open, products beyond and within."""
    rows, scaled = [normal(source) for _ in range(4)], []
    for row, other in itertools.product(rows, rows):
        product = math.fsum(x * y for x, y in zip(row, other, strict=True))
        for share in (1 - 2.0**-25, 1 - 2.0**-24, 1 - 2.0**-23, -1, 1.2, -3):
            scaled.append([float32(20 * share / product * x) for x in row])
    to_float64 = [[4.0, 1.0], [5.0, -(2.0**-60)], [5.0, 2.0**-60], [-5.0, 2.0**-60], [6.0, 0.0]]  # 20 - 2^-60, ...
    return [*rows * 10, *scaled, *([*row, *[0.0] * (DIMENSION - 2)] for row in to_float64 * 15)]


KINDS: tuple[Callable[[random.Random], list[float]], ...] = (cancelling, normal, subnormal, of_all_sizes)


def rows_of(source: random.Random, comparator: str) -> list[Row]:
    kinds = (*KINDS, *([at_the_ends] * 3)) if comparator == "clamped_dot" else KINDS
    rows = [kind(source) for kind in kinds for _ in range(6)]
    copies = [list(row) for row in source.sample(rows, 8)]
    neighbours = [list(row) for row in source.sample(rows, 8)]
    for row in neighbours:
        at = source.randrange(DIMENSION)
        row[at] = next_float32(row[at])
    zeros = [[0.0] * DIMENSION, [-0.0] * DIMENSION] if comparator != "cos" else []
    return [*rows, *copies, *neighbours, *zeros]


def graph_of(number: int, rows: list[Row] | None = None) -> TinyGraph:
    comparator, bias, operator = MODELS[number]
    source, dynamic = random.Random(number), number % 2 == 1
    rows = rows or rows_of(source, comparator)
    source.shuffle(rows)
    edges: list[Edge] = [
        (source.randrange(len(rows)), source.randrange(2), source.randrange(len(rows))) for _ in range(NUM_EDGES)
    ]
    relations = user_relations((operator,) * 2, DIMENSION, RowSource(number, is_quarters=False), dynamic=dynamic)
    return TinyGraph(
        relations,
        {"user": [rows]},
        {},
        {(0, 0): edges},
        dynamic=dynamic,
        comparator=comparator,
        bias=bias,
    )


def num_counted(graph: TinyGraph, candidates: str) -> int:
    """Compare every count with those of fractions, and return the number of queries."""
    protocol = Protocol(candidates, num_negs=(6, 24), precision="exact")
    expected = {
        (0, case.bucket, case.row, case.side): exact_reference.counts(
            graph, case.bucket, graph.buckets[case.bucket][case.row], case.side, case.others, case.is_known
        )
        for case in expected_cases([graph], protocol, Rules())
    }
    with evaluated([graph], protocol, Rules(), False) as (_, found):
        assert found == expected
    return len(found)


@pytest.mark.one_case
@pytest.mark.parametrize(
    "number",
    [
        pytest.param(number, marks=[pytest.mark.slow] if number % IN_QUICK_TESTS != 5 else [])
        for number in range(len(MODELS))
    ],
    ids=lambda number: "-".join(map(str, MODELS[number])),
)
def test_no_query_is_ranked_wrongly(number: int) -> None:
    graph = graph_of(number)

    with loops_used(number % 3 == 0):
        assert num_counted(graph, POLICIES[number // 2 % 3]) == 2 * NUM_EDGES


@pytest.mark.parametrize("comparator", [*COMPARATORS, *EXACT_OWN_COMPARATORS])
def test_where_all_vectors_are_equal_all_candidates_tie(comparator: str) -> None:
    number = MODELS.index((comparator, False, "none"))

    assert num_counted(graph_of(number, [normal(random.Random(0))] * 12), "all") == 2 * NUM_EDGES


COUNTED_BY_A_LOOP = (
    *(("cos", "none", "sampled"), ("cos", "complex_diagonal", "sampled"), ("l2", "diagonal", "sampled")),
    ("squared_l2", "translation", "sampled"),
    *(("clamped_dot", "none", policy) for policy in POLICIES),
    ("clamped_dot", "diagonal", "sampled"),
)


@pytest.mark.one_case
@pytest.mark.parametrize("model", COUNTED_BY_A_LOOP, ids="-".join)
def test_no_query_that_a_loop_counts_is_ranked_wrongly(
    model: tuple[str, str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auc_sampling, "EXACT_CELLS", 0)  # else all scores are wanted
    monkeypatch.setattr(cpu_lists, "OPEN_PER_QUERY", 1000)
    comparator, operator, policy = model
    rows = about_the_ends(random.Random(0)) if comparator == "clamped_dot" else None
    owner, name = (cpu_lists.ExactChunks, "found") if policy == "sampled" else (cpu_counting, "count")

    with (
        loops_used(True),
        mock.patch.object(owner, name, autospec=True, side_effect=getattr(owner, name)) as called,
    ):
        assert num_counted(graph_of(MODELS.index((comparator, False, operator)), rows), policy) == 2 * NUM_EDGES

    assert called.call_count or find_sgemm() is None, "a torch on MKL has a product that loops can call"


@pytest.mark.parametrize("comparator", ["dot", "cos", "squared_l2"])
def test_no_query_is_ranked_wrongly_where_all_candidates_of_a_side_are_subnormal(
    comparator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What underflows in a product is as large as the product itself, and queries are long."""
    monkeypatch.setattr(auc_sampling, "EXACT_CELLS", 0)
    monkeypatch.setattr(cpu_lists, "OPEN_PER_QUERY", 1000)
    source = random.Random(0)
    long = [[2.0**6 * x for x in normal(source)] for _ in range(20)]
    short = [[source.randint(-3, 3) * 2.0**-149 for _ in range(DIMENSION - 1)] + [2.0**-149] for _ in range(20)]
    edges: list[Edge] = [(source.randrange(20), 0, source.randrange(20)) for _ in range(NUM_EDGES)]
    relation = Relation("relation", "user", "item", "none", {}, {})
    graph = TinyGraph([relation], {"user": [long], "item": [short]}, {}, {(0, 0): edges}, comparator=comparator)

    found = cpu_lists.ExactChunks.found
    with (
        loops_used(True),
        mock.patch.object(cpu_lists.ExactChunks, "found", autospec=True, side_effect=found) as called,
    ):
        assert num_counted(graph, "sampled") == 2 * NUM_EDGES

    assert called.call_count or find_sgemm() is None
