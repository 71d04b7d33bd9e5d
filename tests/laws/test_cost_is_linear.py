"""Twice as many partitions, buckets, types or relations take at most about twice the work: counted, not timed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from attrs import evolve

from benchmarks.many_buckets.graph import Parts, make_graph
from pbgeval import evaluate, load_config
from pbgeval.ranking.cpu_loops import count_gathered_exactly
from tests.kit.loops import loops_used

MOST_GROWTH = 2.4  # of the calls that each doubling adds; 2 where they are linear, 4 where they are quadratic
SMALLEST = 24

KINDS: Mapping[str, Callable[[int], Parts]] = {
    "partitions": lambda number: Parts("all", num_partitions=number, num_buckets=number),
    "sampled partitions": lambda number: Parts("sampled", num_partitions=number, num_buckets=number),
    "buckets": lambda number: Parts("sampled", num_partitions=10, num_buckets=number),
    "types": lambda number: Parts(
        "sampled", num_types=number, num_relations=number, edges_per_bucket=2 * number, dynamic=False
    ),
    "relations": lambda number: Parts("all", num_relations=number, edges_per_bucket=2 * number, dynamic=False),
    "paths": lambda number: Parts("sampled", num_paths=number),
}


def num_calls(folder: Path, parts: Parts) -> int:
    """Evaluate a graph in this process, filtered by its own edges; return how many functions were called."""
    config = make_graph(folder, parts)
    settings = evolve(load_config(config), filter_paths=[str(path) for path in sorted(folder.glob("edges_*"))])
    calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        evaluate(settings, output=folder / "output", workers=1, device="cpu")
    finally:
        sys.setprofile(before)
    return calls


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_work_grows_with_the_number_of_parts_alone(kind: str, tmp_path: Path) -> None:
    with loops_used(True, count_gathered_exactly):  # after many small blocks it is loaded, which takes many calls
        num_calls(tmp_path / "first", KINDS[kind](4))  # imports, caches
        few, more, most = (
            num_calls(tmp_path / str(number), KINDS[kind](number)) for number in (SMALLEST, 2 * SMALLEST, 4 * SMALLEST)
        )

    assert most - more <= MOST_GROWTH * (more - few), (few, more, most)
