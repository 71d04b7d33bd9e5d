"""Hypothesis strategies of the domain: scores that tie, tiny graphs with every kind of bucket.

Sizes and choices are drawn by Hypothesis, so they shrink; long tables come from one drawn seed.
"""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from hypothesis import assume
from hypothesis import strategies as st

from pbgeval.scoring.comparators import COMPARATORS as ALL_COMPARATORS

T = TypeVar("T")
Row = Sequence[float]
Params = Mapping[str, Any]  # the checkpoint's names for one relation; a matrix is a list of its rows
Bucket = tuple[int, int]  # partition of the lhs, partition of the rhs
Edge = tuple[int, int, int]  # row of the lhs, relation, row of the rhs
Entity = tuple[int, int]  # partition, row
KnownEdge = tuple[Entity, int, Entity]

OPERATORS = ("none", "diagonal", "translation", "linear", "affine", "complex_diagonal")
COMPARATORS = ("dot", "cos", "l2", "squared_l2")
# Beyond PyTorch-BigGraph's: of other systems' models.
OWN_OPERATORS = ("rotate", "swapped_diagonal", "projected_translation")
OWN_COMPARATORS = tuple(name for name in ALL_COMPARATORS if name not in COMPARATORS)
# Of these, those with exact ranks.
EXACT_OWN_OPERATORS = ("projected_translation", "swapped_diagonal")
EXACT_OWN_COMPARATORS = ("l1", "clamped_dot")
EMBEDDING_KINDS = ("quarters", "identical", "normal")


@dataclass(frozen=True)
class Relation:
    name: str
    lhs: str  # entity type
    rhs: str
    operator: str
    rhs_params: Params
    lhs_params: Params  # empty unless the graph is dynamic
    weight: float = 1.0
    all_negs: bool = False


@dataclass(frozen=True, eq=False)
class TinyGraph:
    """Everything an evaluation reads, as plain lists.

    In a dynamic graph all relations belong to one schema entry: they agree in types, operator, weight and
    `all_negs`, and a checkpoint stacks their parameters.
    """

    relations: list[Relation]
    embeddings: dict[str, list[list[list[float]]]]  # entity type -> partition -> row; every value is a float32
    global_embeddings: dict[str, list[float]]  # empty when they are off
    buckets: dict[Bucket, list[Edge]]  # every bucket of the grid, empty ones too
    dynamic: bool = False
    comparator: str = "dot"
    bias: bool = False
    max_norm: float | None = None
    is_quarters: bool = False  # every value is a small multiple of 1/4

    @property
    def dimension(self) -> int:
        return len(next(iter(self.embeddings.values()))[0][0])

    @property
    def num_partitions(self) -> dict[str, int]:
        return {entity_type: len(tables) for entity_type, tables in self.embeddings.items()}

    @property
    def num_edges(self) -> int:
        return sum(map(len, self.buckets.values()))

    @property
    def is_exact(self) -> bool:
        """Whether float32 scores are exact, so that every correct evaluation finds the same integers.

        The one rounding left is the square root of l2, and it keeps order and ties of such small grids, unless a
        bias is added to it.
        """
        rounds = self.comparator in ("cos", "complex_l1") or any(of.operator == "rotate" for of in self.relations)
        rounds = rounds or self.max_norm is not None or (self.comparator == "l2" and self.bias)
        return self.is_quarters and not rounds


def score_values() -> st.SearchStrategy[float]:
    """A coarse grid with negatives, zeros of both signs and infinities: most draws tie."""
    return st.sampled_from([-math.inf, -2.5, -1.0, -0.25, -0.0, 0.0, 0.25, 1.0, 2.5, math.inf])


def some_of(*numbers: int, limit: int | None = None) -> st.SearchStrategy[int]:
    """One of some numbers up to a limit.

    Of a range of integers hypothesis draws the least in half of its examples, and first of all: graphs without edges.
    """
    return st.sampled_from([number for number in numbers if limit is None or number <= limit])


class RowSource:
    """Rows of one kind: multiples of 1/4 in [-1, 1], or normal numbers rounded to float32."""

    def __init__(self, seed: int, is_quarters: bool) -> None:
        self.random = random.Random(seed)
        self.is_quarters = is_quarters

    def __call__(self, dimension: int) -> list[float]:
        if self.is_quarters:
            return [self.random.randint(-4, 4) / 4 for _ in range(dimension)]
        return [struct.unpack("f", struct.pack("f", self.random.gauss(0, 1)))[0] for _ in range(dimension)]


# The checkpoint's names of an operator's parameters, and the shapes of these: matrices, vectors, halves of vectors.
PARAMETERS = {
    "linear": {"linear_transformation": "matrix"},
    "affine": {"linear_transformation": "matrix", "translation": "vector"},
    "translation": {"translation": "vector"},
    "diagonal": {"diagonal": "vector"},
    "swapped_diagonal": {"diagonal": "vector"},
    "rotate": {"phase": "half"},
    "projected_translation": {"projection": "matrix", "translation": "vector"},
    "complex_diagonal": {"real": "half", "imag": "half"},
}


def operator_params(operator: str, dimension: int, draw_row: RowSource) -> Params:
    """Parameters of one relation on one side, under the checkpoint's names."""
    params: dict[str, Any] = {}
    for name, shape in PARAMETERS.get(operator, {}).items():
        size = dimension // 2 if shape == "half" else dimension
        params[name] = [draw_row(size) for _ in range(size)] if shape == "matrix" else draw_row(size)
    return params


def user_relations(operators: Sequence[str], dimension: int, draw_row: RowSource, *, dynamic: bool) -> list[Relation]:
    """Draw a relation among users for each operator; dynamic ones have parameters on both sides."""
    return [
        Relation(
            f"relation{index}",
            "user",
            "user",
            operator,
            operator_params(operator, dimension, draw_row),
            operator_params(operator, dimension, draw_row) if dynamic else {},
        )
        for index, operator in enumerate(operators)
    ]


@st.composite
def tables_of_rows(
    draw: st.DrawFn, dimension: int, kind: str, max_partitions: int
) -> dict[str, list[list[list[float]]]]:
    """Embeddings of 1 to 3 types; a type has one partition or as many as the other partitioned ones."""
    draw_row = RowSource(draw(st.integers(0, 2**32 - 1)), kind != "normal")
    num_partitions = draw(st.integers(1, max_partitions))
    embeddings = {}
    for entity_type in ["user", "item", "tag"][: draw(st.integers(1, 3))]:
        parts = draw(st.sampled_from([1, num_partitions]))
        sizes = draw(st.lists(some_of(5, 1, 2, 7, 10, 14, 20, limit=20 // parts), min_size=parts, max_size=parts))
        shared = draw_row(dimension)
        embeddings[entity_type] = [
            [list(shared) if kind == "identical" else draw_row(dimension) for _ in range(size)] for size in sizes
        ]
    return embeddings


@st.composite
def relation_lists(
    draw: st.DrawFn,
    entity_types: list[str],
    dimension: int,
    draw_row: RowSource,
    dynamic: bool,
    among: Sequence[str] = OPERATORS,
) -> list[Relation]:
    types, operators = st.sampled_from(entity_types), st.sampled_from(among)
    relations: list[Relation] = []
    for index in range(draw(some_of(2, 1, 3, 5))):
        first = relations[0] if dynamic and relations else None
        operator = first.operator if first else draw(operators)
        relations.append(
            Relation(
                name=f"relation{index}",
                lhs=first.lhs if first else draw(types),
                rhs=first.rhs if first else draw(types),
                operator=operator,
                rhs_params=operator_params(operator, dimension, draw_row),
                lhs_params=operator_params(operator, dimension, draw_row) if dynamic else {},
                weight=first.weight if first else draw(st.sampled_from([1.0, 0.5, 2.0])),
                all_negs=first.all_negs if first else draw(st.booleans()),
            )
        )
    return relations


@st.composite
def edge_lists(
    draw: st.DrawFn, bucket: Bucket, relations: list[Relation], sizes: Mapping[str, list[int]], max_edges: int
) -> list[Edge]:
    """Edges of one bucket, few, one or none too, about a third of them copies of another."""
    num_edges = draw(some_of(3, 1, 0, max_edges // 4, max_edges // 2, max_edges, limit=max_edges))
    source = random.Random(draw(st.integers(0, 2**32 - 1)))
    edges: list[Edge] = []
    for _ in range(num_edges):
        rel = source.randrange(len(relations))
        lhs_sizes, rhs_sizes = sizes[relations[rel].lhs], sizes[relations[rel].rhs]
        lhs = source.randrange(lhs_sizes[bucket[0] if len(lhs_sizes) > 1 else 0])
        rhs = source.randrange(rhs_sizes[bucket[1] if len(rhs_sizes) > 1 else 0])
        edges.append(source.choice(edges) if edges and source.random() < 0.3 else (lhs, rel, rhs))
    return edges


def has_zero_vector(graph: TinyGraph) -> bool:
    """Whether some row, before or after some operator, has no direction, so that cos cannot rank it."""
    from tests.reference import vector

    start = 1 if graph.bias else 0
    for rel, relation in enumerate(graph.relations):
        for side, entity_type in (("lhs", relation.lhs), ("rhs", relation.rhs)):
            variants = (False, True) if graph.dynamic else (side == "rhs",)
            for part, table in enumerate(graph.embeddings[entity_type]):
                for row in range(len(table)):
                    vectors = [vector(graph, rel, side, (part, row), transformed) for transformed in variants]
                    if not all(any(x[start:]) for x in vectors):
                        return True
    return False


@st.composite
def tiny_graphs(
    draw: st.DrawFn,
    *,
    dynamic: bool | None = None,
    comparator: str | None = None,
    kind: str | None = None,
    exact: bool = False,
    max_partitions: int = 4,
    max_edges: int = 60,
    own: bool = False,
) -> TinyGraph:
    """Any graph that can be ranked; what is given is fixed, and `exact` asks for `is_exact`.

    `own`: with operators and comparators that PyTorch-BigGraph lacks; else with its own alone.
    """

    def pick(given: T | None, strategy: st.SearchStrategy[T]) -> T:
        return draw(strategy) if given is None else given

    is_dynamic = pick(dynamic, st.booleans())
    known = (*COMPARATORS, *OWN_COMPARATORS) if own else COMPARATORS
    by = pick(comparator, st.sampled_from([name for name in known if not exact or name not in ("cos", "complex_l1")]))
    of_kind = pick(kind, st.sampled_from([name for name in EMBEDDING_KINDS if not exact or name != "normal"]))
    dimension = draw(st.sampled_from([4, 6, 8] if by == "cos" else [2, 4, 6, 8]))
    embeddings = draw(tables_of_rows(dimension, of_kind, max_partitions))
    draw_row = RowSource(draw(st.integers(0, 2**32 - 1)), of_kind != "normal")
    among = [*OPERATORS, *OWN_OPERATORS * 2] if own else list(OPERATORS)
    among = [name for name in among if not (exact and name == "rotate")]
    among = [name for name in among if not (is_dynamic and name == "projected_translation")]
    relations = draw(relation_lists(list(embeddings), dimension, draw_row, is_dynamic, among))
    sizes = {entity_type: [len(table) for table in tables] for entity_type, tables in embeddings.items()}
    num_lhs = max(len(sizes[relation.lhs]) for relation in relations)
    num_rhs = max(len(sizes[relation.rhs]) for relation in relations)
    grid = [(lhs, rhs) for lhs in range(num_lhs) for rhs in range(num_rhs)]
    has_global = not is_dynamic and draw(st.booleans())
    graph = TinyGraph(
        relations=relations,
        embeddings=embeddings,
        global_embeddings={entity_type: draw_row(dimension) for entity_type in embeddings} if has_global else {},
        buckets={bucket: draw(edge_lists(bucket, relations, sizes, max_edges)) for bucket in grid},
        dynamic=is_dynamic,
        comparator=by,
        bias=draw(st.just(False) if (exact and by == "l2") or by == "complex_l1" else st.booleans()),
        max_norm=None if exact else draw(st.sampled_from([None, None, 1.0])),
        is_quarters=of_kind != "normal",
    )
    if by == "cos":
        assume(not has_zero_vector(graph))
    return graph
