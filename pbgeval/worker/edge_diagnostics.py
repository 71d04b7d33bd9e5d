"""Evaluated edges, beside each other and beside `train_paths` -> repeated edges, leaked edges, entities never trained.

Counts that no figure shows, and that change what a figure means. Every evaluated edge is held by every worker here (the
sweeps do so anyway), so other evaluations are looked at up to MOST_EDGES.
"""

from __future__ import annotations

import numpy as np
from attrs import define, field, frozen

from pbgeval.inputs.edges import ROWS_AT_A_TIME, numbered_blocks, shares_of_files
from pbgeval.known.keys import QueryKeys
from pbgeval.known.semi_join import SemiJoin
from pbgeval.notation import Side
from pbgeval.passes.query_edges import QueryEdges
from pbgeval.report.document import EdgeDiagnostics
from pbgeval.worker.query_edges import read_query_edges
from pbgeval.worker.work import Bench, in_step

MOST_EDGES = 1 << 22  # where the evaluation itself does not hold all edges: some 100 bytes each
MOST_ENTITIES = 1 << 27  # a byte each while training edges stream by


@frozen(eq=False)
class _Distinct:
    """The distinct evaluated edges."""

    keys: QueryKeys  # of tail queries
    codes_U: np.ndarray  # int64, ascending: position of the edge's key x number of entities + tail
    copies_U: np.ndarray  # int64: how many evaluated edges are this one

    @classmethod
    def of_edges(cls, edges: QueryEdges) -> _Distinct:
        num_entities = edges.numbering.num_entities
        keys = QueryKeys.of_edges(Side.RHS, edges.lhs_E, edges.rel_E, edges.rhs_E, num_entities)
        codes_E = keys.index_of(edges.rel_E, edges.lhs_E) * num_entities + edges.rhs_E
        return cls(keys, *np.unique(codes_E, return_counts=True))


@define(eq=False)
class _Leaked:
    """Marks the distinct edges that known pairs name; a sink of the semi-join."""

    edges: _Distinct
    is_leaked_U: np.ndarray = field(init=False)  # bool

    def __attrs_post_init__(self) -> None:
        self.is_leaked_U = np.zeros(len(self.edges.codes_U), bool)

    def add(self, hidden: Side, key_P: np.ndarray, answer_P: np.ndarray) -> None:
        """Take pairs (key, answer) of training edges."""
        assert hidden is Side.RHS, "only tail queries are joined"
        codes_P = key_P * self.edges.keys.num_entities + answer_P
        at_P = np.minimum(np.searchsorted(self.edges.codes_U, codes_P), len(self.edges.codes_U) - 1)
        self.is_leaked_U[at_P[self.edges.codes_U[at_P] == codes_P]] = True


def diagnose_edges(bench: Bench) -> EdgeDiagnostics | None:
    """Count what the evaluated edges share; every worker takes part.

    Returns:
        None where edges are sampled, where a type is featurized (its entities have no numbers), and where there are
        more than MOST_EDGES that the evaluation need not hold.
    """
    work = bench.work
    few = work.protocol.sweeps or work.inputs.num_edges <= MOST_EDGES
    if bench.evaluated.sample is not None or work.inputs.featurized or not few:
        return None
    edges = in_step(bench.team, lambda: read_query_edges(bench))
    distinct = _Distinct.of_edges(edges)
    entities = np.unique(np.concatenate([edges.lhs_E, edges.rhs_E]))
    leaked, is_seen = _in_training(bench, distinct, entities)
    return EdgeDiagnostics(
        num_edges=edges.num_edges,
        num_repeated=edges.num_edges - len(distinct.codes_U),
        num_in_training=None if leaked is None else int(distinct.copies_U[leaked].sum()),
        num_entities=len(entities),
        num_entities_unseen=None if is_seen is None else int((~is_seen).sum()),
    )


def _in_training(
    bench: Bench, distinct: _Distinct, entities: np.ndarray
) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Tell which distinct edges and which of some entities training edges name, bool; None where nobody looked."""
    if not bench.inputs.config.train_paths:
        return None, None
    num_entities = bench.numberer.numbering.num_entities
    marks = np.zeros(num_entities if num_entities <= MOST_ENTITIES else 0, bool)
    leaked = _Leaked(distinct)

    def look() -> None:
        join = SemiJoin({Side.RHS: distinct.keys}, leaked)
        team = bench.team
        parts = shares_of_files(bench.inputs.training_buckets, team.rank_in_team, team.size, ROWS_AT_A_TIME)
        for block in numbered_blocks(bench.numberer, parts):
            join.feed(block)
            if len(marks):
                marks[block.lhs_n] = True
                marks[block.rhs_n] = True

    in_step(bench.team, look)
    found = bench.team.gather_objects((leaked.is_leaked_U, marks[entities] if len(marks) else None))
    is_leaked_U = np.logical_or.reduce([of_worker[0] for of_worker in found])
    seen = [of_worker[1] for of_worker in found if of_worker[1] is not None]
    return is_leaked_U, np.logical_or.reduce(seen) if seen else None
