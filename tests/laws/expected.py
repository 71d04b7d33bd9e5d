"""The settings that decide who competes, what is drawn, and how far rounded scores may be from a query's.

Only the random words are the package's: they are an input. Their addresses are computed here, from the rule that
`ranking/chunks.py` documents.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

from pbgeval.notation import Bucket as PackageBucket
from pbgeval.notation import Side
from pbgeval.ranking.draws import DrawStream
from tests import reference
from tests.kit.graphs import Bucket, Edge, Entity, Row, TinyGraph

SIDES = {"lhs": Side.LHS, "rhs": Side.RHS, "rel": Side.REL}
LABELS = {"lhs": "head", "rhs": "tail", "rel": "relation"}
# Relative error of a rounding; the reference's own is float64's too. Exact: of the vectors, when they are prepared.
UNITS = {"float32": 2.0**-24, "float64": 2.0**-50, "exact": 2.0**-24}


@dataclass(frozen=True)
class Protocol:
    """The settings that decide who competes."""

    candidates: str | None = "sampled"
    num_negs: tuple[int, int] = (3, 2)  # batch, uniform
    pbg: bool = False
    slices: int = 1  # under pbg
    batches_of: int = 2  # chunks in a batch, under pbg
    seed: int = 0
    sides: tuple[str, ...] = ("lhs", "rhs")
    window_rows: int = 1 << 17
    loss: str | None = None
    margin: float = 0.1
    precision: str = "float32"
    num_degree: int = 0  # negatives drawn by degree, which the training edges of `Draws` tell
    degree_power: float = 1.0

    @property
    def chunk_size(self) -> int:
        return self.num_negs[0] or self.num_negs[1] or self.num_degree

    @property
    def batch_size(self) -> int:
        return self.batches_of * max(self.num_negs[0], 1)

    @property
    def window(self) -> int:
        """Rows of a window: the least multiple of the chunk that is long enough."""
        return math.ceil(self.window_rows / self.chunk_size) * self.chunk_size

    def settings(self) -> dict[str, object]:
        """The keys of the config."""
        return {
            "candidates": self.candidates,
            "num_batch_negs": self.num_negs[0],
            "num_uniform_negs": self.num_negs[1],
            "num_degree_negs": self.num_degree,
            "degree_power": self.degree_power,
            "pbg_semantics": self.pbg,
            "workers": self.slices if self.pbg else None,
            "batch_size": self.batch_size,
            "seed": self.seed,
            "disable_lhs_negs": "lhs" not in self.sides,
            "disable_rhs_negs": "rhs" not in self.sides,
            "relation_prediction": "rel" in self.sides,
            "compute_loss": self.loss is not None,
            "loss_fn": self.loss or "ranking",
            "margin": self.margin,
            "hits_at": [1, 3, 5, 10],
            "precision": self.precision,
        }


def is_in(side: str, label: str) -> bool:
    """Whether the report counts the queries of a side under a label."""
    return label == LABELS[side] or (label == "both" and side != "rel")


def degrees_of(graph: TinyGraph, training: Sequence[Mapping[Bucket, list[Edge]]]) -> Counter[tuple[str, Entity]]:
    """How many ends of training edges each (entity type, entity) is."""
    degrees: Counter[tuple[str, Entity]] = Counter()
    for buckets in training:
        for bucket, edges in buckets.items():
            for edge in edges:
                ends, relation = reference.true_entities(graph, bucket, edge), graph.relations[edge[1]]
                degrees.update([(relation.lhs, ends["lhs"]), (relation.rhs, ends["rhs"])])
    return degrees


def weight_of(degree: int, power: float) -> int:
    """A degree to a power; a root is rounded to the nearest 2^-24."""
    return (math.isqrt(degree << 50) + 1) >> 1 if power == 0.5 else degree ** int(power)


class Draws:
    """Draws by address: a window's words begin at its first row times a bound, its chunks' words follow.

    A chunk's words are those of its uniform draws, then those of its draws by degree.
    """

    def __init__(
        self,
        graph: TinyGraph,
        protocol: Protocol,
        bucket: Bucket,
        path_index: int,
        training: Sequence[Mapping[Bucket, list[Edge]]] = (),
    ) -> None:
        self.graph, self.bucket, self.protocol = graph, bucket, protocol
        self.degrees = degrees_of(graph, training)
        self.streams = {
            side: DrawStream.of(protocol.seed, path_index, PackageBucket(*bucket), of) for side, of in SIDES.items()
        }
        self.used: Counter[tuple[str, int]] = Counter()

    def __call__(self, side: str, rows: Sequence[int], count: int) -> list[int]:
        edges = self.graph.buckets[self.bucket]
        window = math.ceil(len(edges) / self.protocol.slices) if self.protocol.pbg else self.protocol.window
        start = rows[0] // window * window
        per_row = self.protocol.chunk_size + self.protocol.num_negs[1] + self.protocol.num_degree
        address = start * per_row + self.used[side, start]
        self.used[side, start] += count + self.protocol.num_degree
        partition, _ = reference.true_entities(self.graph, self.bucket, edges[rows[0]])[side]
        relation = self.graph.relations[edges[rows[0]][1]]
        entity_type = relation.lhs if side == "lhs" else relation.rhs
        size = len(self.graph.embeddings[entity_type][partition])
        words = self.streams[side].words(address, count + self.protocol.num_degree).tolist()
        weights = [
            weight_of(self.degrees[entity_type, (partition, row)], self.protocol.degree_power) for row in range(size)
        ]
        sums = list(accumulate(weights))
        by_degree = [bisect_right(sums, word * sums[-1] >> 64) for word in words[count:]]
        return [word * size >> 64 for word in words[:count]] + by_degree


# How far rounding may lead. Norms stand for vectors, so the bounds are wide, and still far below the gaps of scores.


def norm(x: Row) -> float:
    return math.hypot(*x)


@lru_cache(maxsize=200_000)  # graphs compare by identity
def reach(graph: TinyGraph, rel: int, side: str, of: Entity, transformed: bool) -> float:
    """An upper bound of every intermediate result's norm on the way from a row to what the comparator sees."""
    relation = graph.relations[rel]
    entity_type, params = (relation.lhs, relation.lhs_params) if side == "lhs" else (relation.rhs, relation.rhs_params)
    x = norm(graph.embeddings[entity_type][of[0]][of[1]]) + norm(graph.global_embeddings.get(entity_type, [0.0]))
    if relation.operator == "projected_translation":  # acts on both sides
        params, transformed = relation.rhs_params, True
    if not transformed:
        return x
    for matrix in ("linear_transformation", "projection"):
        if matrix in params:
            x *= max(1.0, math.sqrt(math.fsum(norm(row) ** 2 for row in params[matrix])))
    if "diagonal" in params:
        x *= max(1.0, norm(params["diagonal"]))
    if "real" in params:
        x *= max(1.0, 2 * norm([*params["real"], *params["imag"]]))
    if "phase" in params:
        x *= 2.0
    return x + norm(params.get("translation", [0.0]))


def rounding_bound(
    graph: TinyGraph, rel: int, hidden: str, lhs: Entity, rhs: Entity, score: float, unit: float
) -> float:
    """A bound of |rounded score - score|: so many roundings of the size of the largest intermediate result."""
    moves_lhs = graph.dynamic and hidden != "lhs"
    ends = (("lhs", lhs, moves_lhs), ("rhs", rhs, not moves_lhs))
    x, y = (reach(graph, rel, side, of, moved) for side, of, moved in ends)
    unit *= 8 * graph.dimension + 32
    of_bias = unit * (x + y) if graph.bias else 0.0
    if graph.comparator in ("dot", "clamped_dot"):
        return unit * x * y + of_bias
    if graph.comparator == "squared_l2":
        return unit * (x + y) ** 2 + of_bias
    if graph.comparator not in ("cos", "l2"):  # no more than a sum of magnitudes
        return unit * math.sqrt(graph.dimension) * (x + y) + of_bias
    vectors = [reference.vector(graph, rel, side, of, moved)[int(graph.bias) :] for side, of, moved in ends]
    if graph.comparator == "cos":
        return unit * (1 + x / norm(vectors[0]) + y / norm(vectors[1])) + of_bias
    distance = norm([a - b for a, b in zip(*vectors, strict=True)])
    of_square = unit * (x + y) ** 2
    of_root = min(math.sqrt(of_square), of_square / distance) if distance else math.sqrt(of_square)
    return of_root + unit * distance + of_bias + 1e-15
