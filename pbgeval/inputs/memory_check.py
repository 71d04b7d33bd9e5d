"""What headers tell of the memory of a run, compared with `max_memory` before anything is computed or written."""

from __future__ import annotations

import math

import torch
from attrs import evolve

from pbgeval.cluster.resources import available_bytes
from pbgeval.config.precision import precision_of
from pbgeval.inputs.edge_sample import FIRST_ROUND_EDGES
from pbgeval.inputs.model import dtype_of
from pbgeval.inputs.opening import Inputs
from pbgeval.inputs.partitions import (
    BLOCK_BYTES,
    BYTES_OF_SORTING,
    BYTES_OF_UNITS,
    BYTES_PER_COUNTED,
    BYTES_PER_DIAGNOSED,
    BYTES_PER_EDGE_OF_UNIT,
    BYTES_PER_SCORE,
    BYTES_PER_UNIT_THREAD,
    COPIES_IN_UNITS,
    MAX_DIAGNOSED_EDGES,
    beside_blocks,
    check_sample,
    fixed_bytes,
    least_bytes,
    least_limit,
    plan_memory,
    plan_room,
    sizes_of_sweep,
)
from pbgeval.inputs.protocol import Protocol
from pbgeval.ranking.chunks import ENTRIES_PER_BLOCK
from pbgeval.ranking.sampled import chunks_of_loss
from pbgeval.ranking.sampled_lists import CandidatePolicy, SampledLists
from pbgeval.scoring.block_sizes import CPU
from pbgeval.storage.checkpoint import num_bytes_of

BYTES_PER_LISTED = 144  # a candidate of the lists that are made together: its id, draw and copies, sorted
BYTES_PER_CELL = 5  # a score of a chunk, of which each thread has one
BYTES_PER_CELL_OF_LOSS = 24  # of the chunks whose losses are folded together


def check_memory(inputs: Inputs, protocol: Protocol, resident: int, device: torch.device) -> None:
    """Refuse a limit that is too small for what every run of this config needs.

    What needs edges to be read (restrictions, keys, further rounds of a sample) is checked once it is known.

    Args:
        inputs: opened.
        protocol: of the run.
        resident: bytes that a worker holds before it begins, or less.
        device: of the worker.

    Raises:
        ConfigError: the limit is too small; says how much is needed.
    """
    if inputs.config.max_memory_bytes is not None:
        expected_memory(inputs, protocol, resident, device)


def expected_memory(
    inputs: Inputs,
    protocol: Protocol,
    resident: int,
    device: torch.device,
    *,
    num_sharing: int = 1,
    num_threads: int = 1,
) -> int:
    """Return the `max_memory` for all that a worker holds when it holds most, as far as headers tell.

    Args:
        inputs: opened.
        protocol: of the run.
        resident: bytes that the worker holds before it begins, or less.
        device: of the worker.
        num_sharing: workers that share the memory of the device.
        num_threads: of the worker.

    Raises:
        ConfigError: `max_memory` is too small; says how much is needed.
    """
    config = inputs.config
    limit = config.max_memory_bytes
    num_edges = 0 if inputs.restrictions.drops_edges else first_edges(inputs)
    held = bytes_of_pools(inputs, protocol) if num_edges else 0
    num_queries = num_edges * len(protocol.sides)
    beside = 0
    if config.samples_edges:
        share = protocol.auc.share_of_round(num_queries) if config.target_error is not None else 1.0
        num_scores = math.ceil(share * protocol.auc.num_scores(num_queries))
        held = check_sample(limit, resident, num_queries, num_scores, filtered=protocol.filtered)
        beside = BLOCK_BYTES
    if protocol.sweeps:
        widest = max(config.dimension_of(name) for name in config.used_entity_types)
        row_bytes, most_rows = sizes_of_sweep(widest, dtype_of(config), device, num_queries)
        plan = plan_memory(limit, resident, num_edges, num_queries, row_bytes, num_threads, held, most_rows)
        plan = evolve(plan, rows_per_range=min(plan.rows_per_range, max(inputs.numbering.num_entities, 1)))
        fixed = fixed_bytes(resident, held, num_edges, num_queries)
        num_known = num_known_edges(inputs) if protocol.filtered else 0
        used = plan.bytes_used(fixed, num_queries, row_bytes, num_threads, num_known)
        return least_limit(max(used, fixed + least_bytes(row_bytes)))
    if device.type != "cpu":  # partitions on a GPU take none of the host's memory
        return least_limit(resident + held + beside)
    room, _ = room_for_partitions(inputs, protocol, resident, device, num_sharing, num_threads, held)
    at_most = bytes_of_units(inputs, protocol, num_threads)
    at_most += max(room * largest_partition(inputs), bytes_of_diagnoses(inputs))
    return least_limit(resident + held + max(at_most, beside))


def room_for_partitions(
    inputs: Inputs,
    protocol: Protocol,
    resident: int,
    device: torch.device,
    num_sharing: int,
    num_threads: int,
    held: int = 0,
) -> tuple[int, bool]:
    """Choose how many partitions a worker keeps, at least what a bucket needs, and whether it reads one more ahead.

    Args:
        inputs: opened.
        protocol: of the run.
        resident: bytes of the host that the worker holds before it begins.
        device: of the worker.
        num_sharing: workers that share the memory of the device.
        num_threads: of the worker.
        held: bytes of the host that the run holds beside partitions and units.

    Raises:
        ConfigError: `max_memory` is too small for the partitions of a bucket.
    """
    limit, available = inputs.config.max_memory_bytes, available_bytes(device) // num_sharing
    if device.type != "cpu":  # partitions on a GPU take none of the host's memory
        limit, available = None, beside_blocks(available)
    needed = (len(inputs.partitions_needed(bucket)) for bucket in {unit.bucket for unit in protocol.units})
    fewest, most = max(needed, default=1), len(inputs.embeddings)
    held += bytes_of_units(inputs, protocol, num_threads)
    at_end = bytes_of_diagnoses(inputs)
    return plan_room(limit, resident, available, largest_partition(inputs), fewest, most, held, at_end)


def bytes_of_units(inputs: Inputs, protocol: Protocol, num_threads: int) -> int:
    """Return what the units of a worker take at most beside partitions, once loops are loaded."""
    config = inputs.config
    num_edges = max((unit.num_edges for unit in protocol.units), default=0)
    num_bytes = BYTES_OF_UNITS + num_edges * BYTES_PER_EDGE_OF_UNIT
    if inputs.candidates == {CandidatePolicy.SAMPLED.value}:
        return num_bytes + bytes_of_lists(protocol.lists, num_edges, num_threads, with_loss=config.compute_loss)
    widest = max(config.dimension_of(name) for name in config.used_entity_types)
    row_bytes, _ = sizes_of_sweep(widest, dtype_of(config), torch.device("cpu"), 0)
    of_queries, of_range = COPIES_IN_UNITS[precision_of(config) == "float64"]
    num_queries = min(num_edges, config.sample_edges or num_edges)
    num_rows = max((rows.num_rows for rows in inputs.embeddings.values()), default=0)
    num_rows = min(num_rows, max(CPU.range_bytes // (4 * widest), 1))
    return (
        num_bytes
        + int((of_queries * num_queries + of_range * num_rows) * row_bytes)
        + num_threads * BYTES_PER_UNIT_THREAD
    )


def bytes_of_lists(lists: SampledLists, num_edges: int, num_threads: int, *, with_loss: bool) -> int:
    """Return what long lists of a unit take beside its edges: their candidates, and the scores of whole chunks.

    Args:
        lists: how they are made.
        num_edges: of the unit.
        num_threads: that count.
        with_loss: whether losses are folded, over the scores of several chunks.
    """
    chunk_size, length = min(lists.chunk_size, num_edges), lists.longest_list
    num_chunks = -(-num_edges // max(chunk_size, 1))
    num_listed = min(num_chunks * length, max(ENTRIES_PER_BLOCK, length))
    together = chunks_of_loss(chunk_size * length) if with_loss else num_threads
    num_cells = min(together * chunk_size, num_edges) * length
    return num_cells * (BYTES_PER_CELL_OF_LOSS if with_loss else BYTES_PER_CELL) + max(
        num_listed * BYTES_PER_LISTED - num_edges * BYTES_PER_EDGE_OF_UNIT, 0
    )


def bytes_of_diagnoses(inputs: Inputs) -> int:
    """Return what it takes to compare all evaluated edges with each other, where that is done."""
    config = inputs.config
    if config.samples_edges or inputs.num_edges > MAX_DIAGNOSED_EDGES:
        return 0
    return inputs.num_edges * BYTES_PER_DIAGNOSED


def largest_partition(inputs: Inputs) -> int:
    """Return its bytes."""
    return max(map(num_bytes_of, inputs.embeddings.values()), default=1)


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
