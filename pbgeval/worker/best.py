"""The best candidates that each worker has met -> those of all candidates, written query by query (`save_topk`)."""

from __future__ import annotations

import numpy as np
import torch

from pbgeval.notation import EntityNumbering
from pbgeval.passes.query_edges import QueryEdges
from pbgeval.passes.topk import TopCandidates
from pbgeval.stats.groups import GroupKey
from pbgeval.storage.topk import TopK
from pbgeval.worker.contestants import Contestants
from pbgeval.worker.per_edge import PerEdgeFiles
from pbgeval.worker.steps import in_step
from pbgeval.worker.work import Bench


def merge_best(bench: Bench, contestants: list[Contestants]) -> None:
    """Give every worker the best candidates of all; every worker takes part."""
    if bench.team.size == 1 or not any(one.top is not None for one in contestants):
        return

    def share() -> None:
        for number, one in enumerate(contestants):
            if one.top is not None:
                bench.scratch.append(f"top-{number}", one.top.packed())

    def merge() -> None:
        for number, one in enumerate(contestants):
            if one.top is not None:
                merged = TopCandidates(one.top.num_keys, one.top.k)
                merged.merge_packed(bench.scratch.read(f"top-{number}", np.int64))
                one.top = merged

    in_step(bench.team, share)
    in_step(bench.team, merge)


def write_best(
    edges: QueryEdges, contestants: list[Contestants], key: GroupKey, start: int, stop: int, files: PerEdgeFiles
) -> None:
    """Write the best candidates of the queries of consecutive edges of a bucket."""
    for one in contestants:
        top, queries = one.top, one.state.queries
        if top is None or one.state.hidden is not key.side:
            continue
        inside = np.flatnonzero((queries.edge_Q >= start) & (queries.edge_Q < stop))
        inside = inside[np.argsort(queries.edge_Q[inside])]
        best = top.of_keys(queries.key_Q[inside])
        listed = best.number_Kk >= 0
        real = one.state.comparator.real_scores(torch.from_numpy(best.score_Kk)).numpy()
        entity, partition = _places(edges.numbering, best.number_Kk)
        files.write_best(
            key,
            edges.row_E[queries.edge_Q[inside]],
            TopK(
                np.where(listed, entity, -1),
                np.where(listed, partition, -1),
                np.where(listed, real, np.nan),
                best.known_Kk & listed & (best.number_Kk != queries.true_Q[inside][:, None]),
            ),
        )


def _places(numbering: EntityNumbering, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return row and partition of entities; of no meaning where the number is negative."""
    slot = numbering.slot_of(np.maximum(numbers, 0))
    partition_of_slot = np.array([partition for _, partition in numbering.slots], np.int64)
    return numbers - numbering.boundaries[slot], partition_of_slot[slot]
