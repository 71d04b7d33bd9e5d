"""Workers, blocks and memory change neither metrics.json (but for `run`) nor the tables nor the ranks of edges.

Filtered, restricted and constrained, with every candidate policy; workers are threads of this process.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import re
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from attrs import evolve
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pbgeval import EvalConfig, evaluate, load_config
from pbgeval.errors import EvalError
from pbgeval.inputs.partitions import MemoryPlan, plan_memory
from tests.examples import examples
from tests.kit.case import TinyCase
from tests.kit.graphs import TinyGraph, tiny_graphs
from tests.kit.loops import loops_used
from tests.kit.on_disk import write_graph
from tests.kit.refusals import fault_of
from tests.laws.test_evaluation_equals_reference import (
    POLICIES,
    Ranks,
    all_rules,
    by_degree,
    protocols,
    ranks_in,
    timed,
)
from tests.laws.test_order_does_not_matter import SMALL_BLOCKS, comparable, result_in, with_constants

few = settings(max_examples=examples(3), suppress_health_check=list(HealthCheck))
some = settings(few, max_examples=examples(12, quick=2))


def result(config: EvalConfig, team_size: int, graph: TinyGraph, sides: Sequence[str]) -> tuple[str, Ranks]:
    with tempfile.TemporaryDirectory() as output:
        return comparable(result_in(config, team_size, Path(output))), ranks_in(Path(output), [graph], sides)


def spilled(*arguments: Any) -> MemoryPlan:
    """A plan that keeps little in memory."""
    return evolve(plan_memory(*arguments), rows_per_range=2, known_rows=2, pairs_bytes=8, queries_in_memory=False)


def of_unlike_workers() -> Callable[..., MemoryPlan]:
    """Return `plan_memory` of workers that each have another amount of memory left."""
    sizes = itertools.cycle([(2, 2, 8, False), (3, 5, 1 << 20, True), (100, 3, 16, True), (5, 100, 24, False)])

    def plan(*arguments: Any) -> MemoryPlan:
        return MemoryPlan(*next(sizes))

    return plan


@pytest.mark.one_case
@pytest.mark.parametrize("candidates", POLICIES)
@some
@given(st.data())
def test_workers_blocks_and_spilling_change_nothing(candidates, data):
    """With windows of a few rows at times, so that every bucket has several units, and by time."""
    graph = data.draw(tiny_graphs(max_edges=16, max_partitions=3))
    rules, protocol = data.draw(all_rules(graph, data.draw(st.booleans()))), data.draw(protocols(candidates))
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        more: dict[str, Any] = {"breakdowns": ["relation", "entity_types"]}
        draws_by_degree, by_time = data.draw(st.booleans()), data.draw(st.booleans())
        if draws_by_degree:
            rules, protocol = data.draw(by_degree(graph, rules, protocol))
        if by_time:
            rules = data.draw(timed([graph], rules, latest=9))
            rules = dataclasses.replace(rules, until_query=rules.until_query and not draws_by_degree)
            more |= {"breakdowns": [*more["breakdowns"], "time"], "time_bin": 3}
        if rules.train_edges and not rules.until_query:
            more["breakdowns"] += ["cardinality", "relation_frequency", "entity_frequency"]
        keys = protocol.settings() | rules.settings(graph, protocol.sides) | more
        with_constants(stack, {"ranking.sampled_lists.WINDOW_ROWS": protocol.window_rows})
        config = write_graph(graph, Path(folder), save_ranks=True, **keys)
        if data.draw(st.booleans()):
            with_constants(stack, {"ranking.auc_sampling.EXACT_CELLS": 0, "ranking.auc_sampling.SAMPLED_CELLS": 40})
        alone = result(config, 1, graph, protocol.sides)
        assert alone == result(config, 2, graph, protocol.sides)
        with_constants(stack, SMALL_BLOCKS)
        assert alone == result(config, 3, graph, protocol.sides)
        with mock.patch("pbgeval.worker.sweep.plan_memory", of_unlike_workers()):
            assert alone == result(config, 3, graph, protocol.sides)
        stack.enter_context(mock.patch("pbgeval.worker.sweep.plan_memory", spilled))
        assert alone == result(config, 1, graph, protocol.sides)
        stack.enter_context(mock.patch.dict(os.environ, OMP_NUM_THREADS="3"))
        stack.enter_context(loops_used(True))
        assert alone == result(config, 1, graph, protocol.sides)


@pytest.mark.parametrize("candidates", ["all", "sampled"])
@few
@given(st.data())
def test_a_memory_limit_changes_the_run_alone(candidates, data):
    graph = data.draw(tiny_graphs(max_edges=10, max_partitions=2))
    rules, protocol = data.draw(all_rules(graph, restricted=False)), data.draw(protocols(candidates))
    results = []
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch("pbgeval.evaluation.resident_bytes", return_value=0),
        mock.patch("pbgeval.worker.run.held_bytes", return_value=0),
        mock.patch("pbgeval.worker.sweep.resident_bytes", return_value=0),
        mock.patch("pbgeval.worker.buckets.resident_bytes", return_value=0),
        mock.patch("pbgeval.worker.buckets.anonymous_bytes", return_value=0),
        mock.patch("pbgeval.worker.sweep.anonymous_bytes", return_value=0),
    ):
        keys = protocol.settings() | rules.settings(graph, protocol.sides)
        config = write_graph(graph, Path(folder) / "data", save_ranks=True, **keys)
        for limit in (None, "150MB" if candidates == "all" else "350MB", "1.5GB"):
            output = Path(folder) / f"out-{limit}"
            report = evaluate(evolve(config, max_memory=limit), output=output, workers=1, device="cpu")
            tables = {path.name: path.read_bytes() for path in output.glob("*.csv")}
            results.append((comparable(report), tables, ranks_in(output, [graph], protocol.sides)))
            assert not any("scratch" in path.name for path in output.iterdir())
    assert results[0] == results[1] == results[2]


@pytest.mark.parametrize("more", [[], ["sample_edges=50"], ["target_error=0.01"], ["filter_paths=edges"]])
@pytest.mark.parametrize("candidates", ["all", "partition", "sampled"])
def test_a_limit_that_cannot_hold_is_refused_in_a_line(
    candidates: str, more: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = TinyCase.write(tmp_path / "case")
    monkeypatch.chdir(case.root)
    config = load_config(case.config, [f"candidates={candidates}", "max_memory=20MB", *more])

    monkeypatch.setattr("pbgeval.evaluation.OutputDirectory._prepare", pytest.fail)  # nothing is written before
    fault = fault_of(lambda: evaluate(config, output=tmp_path / "a" / "output", workers=1, device="cpu"))
    assert re.match(r"max_memory: expected at least \d+MB for .*, got 20MB; raise it", fault)
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("candidates", ["all", "sampled"])
def test_a_finished_result_needs_no_memory(candidates: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = TinyCase.write(tmp_path / "case")
    monkeypatch.chdir(case.root)
    reports = [
        evaluate(load_config(case.config, [f"candidates={candidates}", *more]), output=tmp_path / "output", workers=1)
        for more in ([], ["max_memory=20MB"])
    ]
    assert reports[0].document == reports[1].document


@pytest.mark.parametrize("candidates", ["all", "partition", "sampled"])
def test_a_worker_that_passes_its_limit_ends(candidates: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = TinyCase.write(tmp_path / "case")
    monkeypatch.chdir(case.root)
    module = "sweep" if candidates == "all" else "buckets"
    monkeypatch.setattr(f"pbgeval.worker.{module}.anonymous_bytes", lambda: 31 * 10**9)
    config = load_config(case.config, [f"candidates={candidates}", "max_memory=30GB"])

    with pytest.raises(
        EvalError,
        match=r"^max_memory: a worker holds 31000MB, got 30000MB; raise it, and run the same command again to resume$",
    ):
        evaluate(config, output=tmp_path / "output", workers=1, device="cpu")
