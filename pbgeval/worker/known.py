"""Known edges and the queries of this run -> the pairs (query key, known answer), and who has been observed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from pbgeval.candidates.constraints import CandidateSets
from pbgeval.distinct import distinct
from pbgeval.inputs.edges import ROWS_AT_A_TIME, numbered_blocks, shares_of_files
from pbgeval.known.keys import KnownBlock, QueryKeys
from pbgeval.known.observed import ObservedEntities
from pbgeval.known.pairs import PairStore
from pbgeval.known.semi_join import SemiJoin
from pbgeval.notation import Bucket, Side
from pbgeval.storage.edges import EdgeSource
from pbgeval.worker.steps import in_step
from pbgeval.worker.work import Bench


def known_files(bench: Bench) -> list[dict[Bucket, EdgeSource]]:
    """Return the buckets of every path whose edges are known: those of the evaluated edges always are."""
    return [*bench.inputs.buckets, *bench.inputs.known_buckets]


def join_all(bench: Bench, keys: Mapping[Side, QueryKeys], budget_bytes: int, known_rows: int) -> PairStore:
    """Stream this worker's part of the known edges past the keys; every worker takes part.

    Returns:
        The pairs of all workers.
    """
    alone = bench.team.size == 1
    store = PairStore(bench.numberer.numbering, budget_bytes, bench.scratch)

    def feed() -> None:
        join = SemiJoin(keys, store)
        for block in _known_blocks(bench, known_rows):
            join.feed(block)
        if not alone:
            store.flush()

    in_step(bench.team, feed)
    return store


def _known_blocks(bench: Bench, known_rows: int) -> Iterator[KnownBlock]:
    team = bench.team
    parts = shares_of_files(known_files(bench), team.rank_in_team, team.size, known_rows)
    return numbered_blocks(bench.numberer, parts)


def candidate_sets(bench: Bench, evaluated_relations: np.ndarray) -> CandidateSets:
    """Return who may compete; with observed types, known edges are read once for it. Every worker takes part."""
    restrictions = bench.inputs.restrictions
    observed: dict[Side, np.ndarray] | None = None
    if bench.inputs.config.type_constraint == "observed":
        seen = ObservedEntities(evaluated_relations, bench.numberer.numbering.num_entities)

        def feed() -> None:
            for block in _known_blocks(bench, ROWS_AT_A_TIME):
                seen.feed(block)

        in_step(bench.team, feed)
        observed = {side: _merged(bench, seen, side) for side in Side}
    return CandidateSets(
        num_entities=bench.numberer.numbering.num_entities,
        allowed=restrictions.entities,
        of_side=restrictions.of_side,
        observed=observed,
    )


def _merged(bench: Bench, seen: ObservedEntities, side: Side) -> np.ndarray:
    """Return what all workers have observed, on every worker."""
    if bench.team.size == 1:
        return seen.codes(side)
    name = f"observed-{side.name}"

    def share() -> None:
        bench.scratch.append(name, seen.codes(side))

    in_step(bench.team, share)
    return distinct(bench.scratch.read(name, np.int64))


def join_blocks(bench: Bench, hidden_keys: Mapping[Side, QueryKeys], blocks: Iterable[KnownBlock]) -> PairStore:
    """Join some known edges with some keys, in this worker's memory alone."""
    store = PairStore(bench.numberer.numbering, 1 << 62, None)
    join = SemiJoin(hidden_keys, store)
    for block in blocks:
        join.feed(block)
    return store
