"""One graph in any number of partitions, its entities permuted among them, has the same ranks, edge for edge.

Embeddings are random float32 numbers, so kernels round; a score must not depend on the block that it is computed in.
"""

from __future__ import annotations

import random
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from pbgeval import evaluate
from pbgeval.notation import ENDS, Side
from pbgeval.notation import Bucket as PackageBucket
from pbgeval.storage.row_files import RANK_COLUMNS
from tests.kit.graphs import OWN_COMPARATORS, Bucket, Edge, Relation, RowSource, TinyGraph, user_relations
from tests.kit.on_disk import write_graph
from tests.saved_ranks import read_ranks

Place = tuple[int, int]  # partition, row
PARTITIONS_AND_THREADS = ((2, 1), (4, 2))  # contiguous rows, and every fourth


@dataclass(frozen=True)
class Plain:
    """A graph of one entity type without partitions."""

    relations: list[Relation]
    rows: list[list[float]]
    edges: list[Edge]
    known: list[Edge]
    comparator: str
    dynamic: bool
    bias: bool = False


def plain_graph(
    seed: int,
    num_entities: int,
    dimension: int,
    operators: Sequence[str],
    comparator: str,
    dynamic: bool,
    *,
    bias: bool = False,
    num_edges: int = 20,
) -> Plain:
    """Some rows are copies of others, and some edges of others; the first entity is a hub with many known answers."""
    source, draw_row = random.Random(seed), RowSource(seed, is_quarters=False)
    relations = user_relations(operators, dimension, draw_row, dynamic=dynamic)
    rows = [draw_row(dimension) for _ in range(num_entities)]
    for _ in range(num_entities // 8):
        rows[source.randrange(num_entities)] = list(rows[source.randrange(num_entities)])

    def edge() -> Edge:
        return source.choice([0, source.randrange(num_entities)]), source.randrange(len(relations)), any_entity()

    def any_entity() -> int:
        return source.randrange(num_entities)

    edges = [edge() for _ in range(num_edges)]
    edges += edges[:3]
    of_hub = [(0, source.randrange(len(relations)), any_entity()) for _ in range(60)]
    known = of_hub + [(lhs, rel, any_entity()) for lhs, rel, _ in edges]
    return Plain(relations, rows, edges, known, comparator, dynamic, bias)


def split(plain: Plain, num_partitions: int, seed: int) -> tuple[TinyGraph, dict[Bucket, list[int]], TinyGraph]:
    """Return the graph in partitions, and which edge each row of a bucket is; the same of known edges."""
    order = list(range(len(plain.rows)))
    if num_partitions > 1:
        random.Random(seed).shuffle(order)
    tables: list[list[list[float]]] = [[] for _ in range(num_partitions)]
    places: dict[int, Place] = {}
    for position, entity in enumerate(order):
        part = position % num_partitions if seed % 2 else position * num_partitions // len(order)
        places[entity] = (part, len(tables[part]))
        tables[part].append(plain.rows[entity])
    graph, index_of = _graph(plain, tables, places, plain.edges)
    known, _ = _graph(plain, tables, places, plain.known)
    return graph, index_of, known


def _graph(
    plain: Plain, tables: list[list[list[float]]], places: dict[int, Place], edges: list[Edge]
) -> tuple[TinyGraph, dict[Bucket, list[int]]]:
    buckets: dict[Bucket, list[Edge]] = {(lhs, rhs): [] for lhs in range(len(tables)) for rhs in range(len(tables))}
    index_of: dict[Bucket, list[int]] = defaultdict(list)
    for index, (lhs, rel, rhs) in enumerate(edges):
        (lhs_part, lhs_row), (rhs_part, rhs_row) = places[lhs], places[rhs]
        buckets[lhs_part, rhs_part].append((lhs_row, rel, rhs_row))
        index_of[lhs_part, rhs_part].append(index)
    graph = TinyGraph(
        relations=plain.relations,
        embeddings={"user": tables},
        global_embeddings={},
        buckets=buckets,
        dynamic=plain.dynamic,
        comparator=plain.comparator,
        bias=plain.bias,
    )
    return graph, index_of


def ranks_of(plain: Plain, num_partitions: int, seed: int, **settings: Any) -> dict[tuple[int, Side], tuple[int, ...]]:
    """The row of the ranks file of each query, by edge and hidden side."""
    graph, index_of, known = split(plain, num_partitions, seed)
    hides_relations = settings.get("precision") != "exact"
    with tempfile.TemporaryDirectory() as folder:
        config = write_graph(
            graph,
            Path(folder) / "data",
            filter_edges=[known.buckets],
            candidates="all",
            save_ranks=True,
            relation_prediction=hides_relations,
            **settings,
        )
        evaluate(config, output=Path(folder) / "out", workers=1, device="cpu")
        found = {}
        for bucket, indices in index_of.items():
            ranks = read_ranks(Path(folder) / "out", 0, PackageBucket(*bucket))
            for side, columns in ranks.columns.items():
                rows = zip(*(columns[name].tolist() for name in RANK_COLUMNS), strict=True)
                for index, counts in zip(indices, rows, strict=True):
                    found[index, side] = counts
    assert {(index, side) for index in range(len(plain.edges)) for side in (Side if hides_relations else ENDS)} == set(
        found
    )
    return found


def assert_same_ranks(plain: Plain, among: Sequence[tuple[int, int]] = PARTITIONS_AND_THREADS, **settings: Any) -> None:
    with mock.patch.dict("os.environ", {"OMP_NUM_THREADS": "1"}):
        whole = ranks_of(plain, 1, 0, **settings)
    for seed, (num_partitions, threads) in enumerate(among):
        with mock.patch.dict("os.environ", {"OMP_NUM_THREADS": str(threads)}):
            found = ranks_of(plain, num_partitions, seed, **settings)
            assert [key for key in whole if whole[key] != found[key]] == []


MODELS = [
    ("dot", ["complex_diagonal"] * 3, True),
    ("cos", ["complex_diagonal"] * 3, True),
    ("squared_l2", ["translation"] * 3, True),
    ("l2", ["translation"] * 3, True),
    ("dot", ["affine", "diagonal", "none", "translation"], False),
    ("squared_l2", ["complex_diagonal", "translation"], False),
    ("cos", ["linear", "diagonal", "none"], False),
    ("l2", ["translation", "affine", "none"], False),
]
OWN_MODELS = [  # not for exact ranks
    ("l1", ["translation"] * 3, True),
    ("complex_l1", ["rotate"] * 3, True),
    ("dot", ["swapped_diagonal"] * 3, True),
    ("clamped_dot", ["swapped_diagonal"] * 3, True),
    ("l1", ["projected_translation"] * 3, False),
    ("l2", ["rotate", "projected_translation", "translation"], False),
    ("complex_l1", ["rotate", "translation"], False),
]
HAVE_ONE = {comparator for comparator, *_ in OWN_MODELS}
OWN_MODELS += [(name, ["translation"] * 3, True) for name in OWN_COMPARATORS if name not in HAVE_ONE]
# Entities, the dimension and whether there is a bias, by turns: few of them, and such as leave no block full.
SIZES = [(203, 100, False), (20, 50, True), (103, 34, False)]


def name_of(model: tuple[str, list[str], bool]) -> str:
    comparator, operators, dynamic = model
    return f"{comparator}-{operators[0]}-{'dynamic' if dynamic else 'static'}"


PRECISIONS = [("float32", MODELS), ("float32", OWN_MODELS), ("exact", MODELS), ("float64", MODELS + OWN_MODELS)]
CASES = [
    pytest.param(model, SIZES[(at + turn) % 3], precision, id=f"{name_of(model)}-{precision}")
    for turn, (precision, models) in enumerate(PRECISIONS)
    for at, model in enumerate(models[:: 3 if precision == "float64" else 1])
]


@pytest.mark.one_case
@pytest.mark.parametrize(("model", "size", "precision"), CASES)
def test_partitions_and_threads_change_no_rank(model, size, precision, seed):
    num_entities, dimension, bias = size
    comparator, operators, dynamic = model
    bias = bias and comparator != "complex_l1"
    plain = plain_graph(seed, num_entities, dimension, operators, comparator, dynamic, bias=bias)
    assert_same_ranks(plain, precision=precision)


@pytest.mark.slow
@pytest.mark.parametrize(("comparator", "operators", "dynamic"), MODELS[1::2], ids=map(name_of, MODELS[1::2]))
def test_partitions_and_threads_change_no_rank_of_thousands_of_entities(comparator, operators, dynamic, seed):
    """More than one block of candidates."""
    assert_same_ranks(plain_graph(seed, 5000, 50, operators, comparator, dynamic, num_edges=100), ((3, 2),))
