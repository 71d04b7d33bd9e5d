"""What headers tell of the memory of a run, compared with `max_memory` before anything is computed or written."""

from __future__ import annotations

import math

import torch

from pbgeval.config import EvalConfig
from pbgeval.inputs.edge_sample import FIRST_ROUND_EDGES
from pbgeval.inputs.opening import Inputs
from pbgeval.inputs.partitions import (
    BYTES_OF_SORTING,
    BYTES_PER_COUNTED,
    BYTES_PER_SCORE,
    check_sample,
    plan_memory,
    plan_room,
)
from pbgeval.inputs.protocol import Protocol
from pbgeval.storage.checkpoint import num_bytes_of


def check_memory(inputs: Inputs, protocol: Protocol, resident: int, *, on_host: bool) -> None:
    """Refuse a limit that is too small for what every run of this config needs.

    What needs edges to be read (restrictions, keys, further rounds of a sample) is checked once it is known.

    Args:
        inputs: opened.
        protocol: of the run.
        resident: bytes that a worker holds before it begins, or less.
        on_host: whether partitions take the host's memory.

    Raises:
        ConfigError: the limit is too small; says how much is needed.
    """
    config = inputs.config
    limit = config.max_memory_bytes
    if limit is None:
        return
    num_edges = 0 if inputs.restrictions.drops_edges else _first_edges(inputs)
    held = bytes_of_pools(inputs, protocol) if num_edges else 0
    num_queries = num_edges * len(protocol.sides)
    if config.sample_edges is not None or config.target_error is not None:
        share = protocol.auc.share_of_round(num_queries) if config.target_error is not None else 1.0
        num_scores = math.ceil(share * protocol.auc.num_scores(num_queries))
        held = check_sample(limit, resident, num_queries, num_scores, filtered=protocol.filtered)
    if protocol.sweeps:
        plan_memory(limit, resident, num_edges, num_queries, _row_bytes(config), held=held)
    elif on_host:
        sizes = [num_bytes_of(source) for source in inputs.embeddings.values()]
        needed = [len(inputs.partitions_needed(bucket)) for bucket in {unit.bucket for unit in protocol.units}]
        fewest = max(needed, default=1)
        plan_room(limit, resident, limit, max(sizes, default=1), fewest, max(len(sizes), fewest), held)


def bytes_of_pools(inputs: Inputs, protocol: Protocol) -> int:
    """Return what the pools of scores of all edges take at most, kept or counted."""
    auc, num_queries = protocol.auc, inputs.num_edges * len(protocol.sides)
    held = auc.num_scores(num_queries) * BYTES_PER_SCORE[protocol.filtered]
    if auc.counts:
        num_groups = len(inputs.buckets) * len(protocol.sides) * (2 if protocol.filtered else 1)
        held += num_groups * (num_queries * BYTES_PER_COUNTED + BYTES_OF_SORTING)
    return held


def _first_edges(inputs: Inputs) -> int:
    """Return how many edges are evaluated at least: all, a sample, or its first round."""
    config = inputs.config
    asked = inputs.num_edges if config.target_error is None else FIRST_ROUND_EDGES
    return min(config.sample_edges or asked, inputs.num_edges)


def _row_bytes(config: EvalConfig) -> int:
    widest = max(config.dimension_of(name) for name in config.used_entity_types)
    return widest * torch.empty(0, dtype=torch.float32).element_size()
