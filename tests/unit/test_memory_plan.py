from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pbgeval.errors import ConfigError
from pbgeval.inputs.memory_check import bytes_of_lists
from pbgeval.inputs.partitions import (
    BLOCK_BYTES,
    BYTES_PER_EDGE,
    BYTES_PER_KNOWN_ROW,
    BYTES_PER_QUERY,
    MAX_KNOWN_ROWS,
    MIN_ROWS_PER_RANGE,
    SLACK,
    MemoryPlan,
    beside_blocks,
    check_sample,
    plan_memory,
    plan_room,
)
from pbgeval.ranking.auc_sampling import AucSampling
from pbgeval.ranking.sampled_lists import SampledLists
from pbgeval.scoring.block_sizes import CPU, GPU, GPU_WORKSPACE_BYTES

MB, GB = 10**6, 10**9
sizes = st.tuples(st.integers(0, 300 * MB), st.integers(0, 10**6), st.sampled_from([8, 400, 4096, 80_000]))


def test_without_a_limit_blocks_are_as_large_as_is_useful():
    plan = plan_memory(None, 10**12, 10**9, 2 * 10**9, 4096)

    assert (
        plan.rows_per_range,
        plan.known_rows,
        plan.queries_in_memory,
    ) == (CPU.swept_rows, MAX_KNOWN_ROWS, True)


@pytest.mark.parametrize(
    ("free", "of_partitions"),
    [(100 * GB, 50 * GB), (GPU_WORKSPACE_BYTES + GB, GB), (GPU_WORKSPACE_BYTES, 0), (0, 0)],
)
def test_blocks_of_scores_leave_a_small_gpu_less_for_partitions(free: int, of_partitions: int) -> None:
    assert beside_blocks(free) // 2 == of_partitions
    num_partitions = of_partitions // GB
    room, _ = plan_room(None, 0, beside_blocks(free), GB, 1, 100)
    assert room == max(1, num_partitions - 1)


@given(sizes, st.integers(1, 4000), st.sampled_from([CPU.swept_rows, GPU.swept_rows]))
def test_a_plan_stays_below_its_limit_or_says_what_is_needed(of, megabytes, most_rows):
    resident, num_edges, row_bytes = of
    arguments = (resident, num_edges, 2 * num_edges, row_bytes, 1, 0, most_rows)
    try:
        plan = plan_memory(megabytes * MB, *arguments)
    except ConfigError as error:
        (fault,) = error.faults
        needed = int(re.search(r"at least ([0-9]+)MB", fault)[1])
        assert megabytes < needed
        assert f"got {megabytes}MB" in fault
        assert megabytes * SLACK < needed
        plan_memory(needed * MB, *arguments)
        # A tenth less is accepted: a worker may hold more the next time.
        megabytes = math.ceil(needed / SLACK)
        plan = plan_memory(megabytes * MB, *arguments)
        with pytest.raises(ConfigError):
            plan_memory((megabytes - 2) * MB, *arguments)
    held = resident + BLOCK_BYTES + num_edges * BYTES_PER_EDGE + 2 * num_edges * BYTES_PER_QUERY
    held += 2 * num_edges * row_bytes if plan.queries_in_memory else 0
    assert MIN_ROWS_PER_RANGE <= plan.rows_per_range <= most_rows
    assert MIN_ROWS_PER_RANGE <= plan.known_rows <= MAX_KNOWN_ROWS
    assert held + plan.rows_per_range * row_bytes * 3 + plan.known_rows * 24 + plan.pairs_bytes <= megabytes * MB


@given(sizes, st.integers(100, 3000), st.integers(0, 3000))
def test_a_higher_limit_makes_no_block_smaller_while_queries_stay_where_they_are(of, megabytes, more):
    resident, num_edges, row_bytes = of
    try:
        low = plan_memory(megabytes * MB, resident, num_edges, num_edges, row_bytes)
    except ConfigError:
        return
    high = plan_memory((megabytes + more) * MB, resident, num_edges, num_edges, row_bytes)

    assert high.queries_in_memory or not low.queries_in_memory
    if high.queries_in_memory == low.queries_in_memory:
        assert low.rows_per_range <= high.rows_per_range
        assert low.known_rows <= high.known_rows
        assert low.pairs_bytes <= high.pairs_bytes


@pytest.mark.parametrize(
    ("limit", "available", "expected"),
    [
        (None, 0, (2, False)),  # the system does not tell
        (None, 4 * GB, (3, True)),  # half of it: four places, one of them to read ahead
        (None, 1000 * GB, (16, True)),
        (2 * GB, 1000 * GB, (2, True)),  # 1.8 less 300 MB and what is resident: three places
        (GB + 500 * MB, 1000 * GB, (2, False)),
    ],
)
def test_partitions_in_memory(limit: int | None, available: int, expected: tuple[int, bool]) -> None:
    assert plan_room(limit, 10**6, available, GB // 2, fewest=2, most=16, held=300 * MB) == expected


def test_what_comes_after_all_units_needs_the_room_of_partitions_and_no_more() -> None:
    arguments = (2 * GB, 10**6, 1000 * GB, GB // 2)

    assert plan_room(*arguments, fewest=2, most=16, at_end=GB) == plan_room(*arguments, fewest=2, most=16)
    with pytest.raises(ConfigError, match=r"expected at least 22\d\dMB"):
        plan_room(*arguments, fewest=2, most=16, at_end=2 * GB)


def test_known_edges_are_read_before_blocks_are_made() -> None:
    plan = MemoryPlan(rows_per_range=1000, known_rows=10**6, pairs_bytes=0, queries_in_memory=True)
    fixed, blocks = 10**6, BLOCK_BYTES + 10 * 400 + 6 * 1000 * 400

    assert plan.bytes_used(fixed, 10, 400, 2, num_known=0) == fixed + blocks
    assert plan.bytes_used(fixed, 10, 400, 2, num_known=10) == fixed + blocks
    assert plan.bytes_used(fixed, 10, 400, 2, num_known=10**7) == fixed + 10**6 * BYTES_PER_KNOWN_ROW


@pytest.mark.parametrize(
    ("negatives", "with_loss", "grown"),
    [
        ((100, 100), False, 0),
        ((1000, 1000), False, 17),
        ((2000, 2000), False, 74),
        ((2000, 10_000), False, 229),
        ((100, 10_000), False, 147),
        ((5000, 5000), False, 417),
        ((0, 10_000), False, 413),
        ((1000, 1000), True, 345),
        ((5000, 5000), True, 1066),
    ],
)
def test_long_lists_take_memory_as_processes_have_grown(
    negatives: tuple[int, int], grown: int, *, with_loss: bool
) -> None:
    """Units of 12,500 edges, two threads: MB beside what a run with 100 + 100 negatives takes."""
    found = bytes_of_lists(SampledLists(*negatives), 12_500, 2, with_loss=with_loss) / MB

    assert grown <= found <= 2 * grown + 60


SAMPLE = partial(check_sample, GB, 300 * MB)
BUCKET = (10**6, 1000 * GB, GB // 2)
BEST = (2 * GB, 300 * MB, 10**6, 2 * 10**6, 400)


@pytest.mark.parametrize(
    ("refused", "needed"),
    [
        (
            lambda: plan_room(GB, *BUCKET, fewest=2, most=16),
            r"\d+MB for a bucket's partitions \(1000MB\) and lists here",
        ),
        (lambda: plan_room(GB + 500 * MB, *BUCKET, fewest=2, most=16, held=GB), r"\d+MB for a bucket's"),
        # A sample of two million edges reached 1.68 GB under a limit of 1 GB.
        (lambda: SAMPLE(4_000_000), r"\d+MB for a sample of 4000000 queries here"),
        # 80,000 sampled edges with 100 negatives each, all of whose scores are compared, reached 1.64 GB under 1 GB.
        (lambda: SAMPLE(160_000, 160_000 * 101), r"\d+MB for a sample of 160000 queries here"),
        (lambda: SAMPLE(160_000, 160_000 * 101, filtered=True), r"1[67]\d\dMB"),
        (lambda: plan_memory(*BEST, 1, 2 * GB), ""),
    ],
)
def test_a_limit_below_what_is_held_is_refused(refused: Callable[[], object], needed: str) -> None:
    with pytest.raises(ConfigError, match=f"^max_memory: expected at least {needed}"):
        refused()


@pytest.mark.parametrize(
    ("held", "advice"), [(950 * MB, "raise it"), (300 * MB, r"raise it, sample fewer edges, or leave out .*")]
)
def test_no_setting_helps_where_a_worker_holds_too_much_before_it_begins(held: int, advice: str) -> None:
    with pytest.raises(ConfigError, match=f"got 1000MB; {advice}$"):
        check_sample(GB, held, 4_000_000)


def test_what_a_sample_holds_does_not_depend_on_the_limit() -> None:
    assert check_sample(3 * GB, 300 * MB, 4_000_000) == check_sample(None, 300 * MB, 4_000_000) > 1200 * MB


def test_the_scores_that_a_sample_compares_are_counted() -> None:
    auc = AucSampling.of_size(160_000 * 100, 160_000, 100)

    assert (auc.exact, auc.num_scores(160_000)) == (True, 160_000 * 101)
    assert AucSampling.of_size(1 << 30, 1 << 20, 1 << 10).num_scores(1 << 10) == (1 << 8) + (1 << 10)


def test_what_the_best_candidates_take_counts_too() -> None:
    assert plan_memory(*BEST).pairs_bytes > plan_memory(*BEST, 1, 500 * MB).pairs_bytes
