"""What headers tell of the memory of a run, compared with `max_memory` before anything is computed or written."""

from __future__ import annotations

import math

import torch
from attrs import evolve

from pbgeval.config import EvalConfig
from pbgeval.inputs.edge_sample import FIRST_ROUND_EDGES
from pbgeval.inputs.opening import Inputs
from pbgeval.inputs.partitions import (
    BYTES_OF_SORTING,
    BYTES_OF_UNITS,
    BYTES_PER_COUNTED,
    BYTES_PER_SCORE,
    check_sample,
    fixed_bytes,
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
    limit = inputs.config.max_memory_bytes
    if limit is not None:
        expected_memory(inputs, protocol, resident, on_host=on_host, available=limit)


def expected_memory(
    inputs: Inputs, protocol: Protocol, resident: int, *, on_host: bool, available: int, num_threads: int = 1
) -> int:
    """Return about how many bytes a worker holds when it holds most, as far as headers tell.

    Args:
        inputs: opened.
        protocol: of the run.
        resident: bytes that the worker holds before it begins, or less.
        on_host: whether partitions take the host's memory.
        available: bytes of the host that are free for the worker.
        num_threads: of the worker.

    Raises:
        ConfigError: `max_memory` is too small; says how much is needed.
    """
    config = inputs.config
    limit = config.max_memory_bytes
    num_edges = 0 if inputs.restrictions.drops_edges else first_edges(inputs)
    held = bytes_of_pools(inputs, protocol) if num_edges else 0
    num_queries = num_edges * len(protocol.sides)
    if config.sample_edges is not None or config.target_error is not None:
        share = protocol.auc.share_of_round(num_queries) if config.target_error is not None else 1.0
        num_scores = math.ceil(share * protocol.auc.num_scores(num_queries))
        held = check_sample(limit, resident, num_queries, num_scores, filtered=protocol.filtered)
    if protocol.sweeps:
        row_bytes = _row_bytes(config)
        plan = plan_memory(limit, resident, num_edges, num_queries, row_bytes, num_threads, held)
        plan = evolve(plan, rows_per_range=min(plan.rows_per_range, max(inputs.numbering.num_entities, 1)))
        fixed = fixed_bytes(resident, held, num_edges, num_queries)
        num_known = num_known_edges(inputs) if protocol.filtered else 0
        return plan.bytes_used(fixed, num_queries, row_bytes, num_threads, num_known)
    if not on_host:
        return resident + held
    partition_bytes, room = partitions_held(inputs, protocol, limit, resident, available, held)
    return resident + held + BYTES_OF_UNITS + room * partition_bytes


def partitions_held(
    inputs: Inputs, protocol: Protocol, limit: int | None, resident: int, available: int, held: int = 0
) -> tuple[int, int]:
    """Return the bytes of the largest partition, and how many a worker keeps, at least what a bucket needs."""
    sizes = [num_bytes_of(source) for source in inputs.embeddings.values()]
    needed = [len(inputs.partitions_needed(bucket)) for bucket in {unit.bucket for unit in protocol.units}]
    largest, fewest = max(sizes, default=1), max(needed, default=1)
    room, _ = plan_room(limit, resident, available, largest, fewest, max(len(sizes), fewest), held)
    return largest, room


def num_known_edges(inputs: Inputs) -> int:
    """Return how many edges are known beside those that are evaluated."""
    return sum(file.num_edges for files in inputs.known.values() for file in files.values())


def bytes_of_pools(inputs: Inputs, protocol: Protocol) -> int:
    """Return what the pools of scores of all edges take at most, kept or counted."""
    auc, num_queries = protocol.auc, inputs.num_edges * len(protocol.sides)
    held = auc.num_scores(num_queries) * BYTES_PER_SCORE[protocol.filtered]
    if auc.counts:
        num_groups = len(inputs.buckets) * len(protocol.sides) * (2 if protocol.filtered else 1)
        held += num_groups * (num_queries * BYTES_PER_COUNTED + BYTES_OF_SORTING)
    return held


def first_edges(inputs: Inputs) -> int:
    """Return how many edges are evaluated at least: all, a sample, or its first round."""
    config = inputs.config
    asked = inputs.num_edges if config.target_error is None else FIRST_ROUND_EDGES
    return min(config.sample_edges or asked, inputs.num_edges)


def _row_bytes(config: EvalConfig) -> int:
    widest = max(config.dimension_of(name) for name in config.used_entity_types)
    return widest * torch.empty(0, dtype=torch.float32).element_size()
