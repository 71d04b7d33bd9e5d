"""One worker's part of a run: its units, one after the other, then one sum over all workers.

Numerics never see the config and distribution never sees numerics: this module and `driver` join them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from attrs import frozen

from pbgeval.distributed.resources import choose_device, host_name, peak_memory_bytes, use_threads
from pbgeval.distributed.team import Team
from pbgeval.errors import EvalError
from pbgeval.inputs.model import PRECISIONS, read_relations
from pbgeval.inputs.opening import Inputs
from pbgeval.inputs.partitions import PartitionHolder
from pbgeval.inputs.protocol import Protocol
from pbgeval.metrics.rank import rank_metrics
from pbgeval.metrics.summary import AucSample
from pbgeval.notation import Side, WorkUnit
from pbgeval.passes.bucket_pass import bucket_pass
from pbgeval.passes.settings import EdgeOrigin
from pbgeval.plan.assignment import share_of_worker
from pbgeval.progress import Observer, UnitReport
from pbgeval.ranking import RankType
from pbgeval.report.document import Evaluated, make_report
from pbgeval.report.report import Report
from pbgeval.scoring.self_check import KernelReport, check_kernels
from pbgeval.stats.groups import GroupKey, GroupStats, SideStats
from pbgeval.version import __version__


@frozen(eq=False)
class Work:
    """All that a worker needs, picklable."""

    inputs: Inputs
    protocol: Protocol
    provenance: dict[str, Any]
    device: str  # auto, cpu or cuda
    observer: Observer
    started: float  # seconds since the epoch


@frozen(eq=False)
class Outcome:
    """What a worker hands back: faults of the user's, or (worker 0) the report."""

    faults: tuple[str, ...] = ()
    report: Report | None = None


def work_as_local_worker(work: Work) -> Outcome:
    """Be one of the processes that the launcher started on this host."""
    team = Team.join()
    outcome = do_work(work, team)
    team.leave()
    return outcome


def do_work(work: Work, team: Team) -> Outcome:
    """Do this worker's units, then add up over all workers. A user's fault is returned, not raised, by all of them."""
    groups = GroupStats.zero(work.protocol.layout, work.protocol.groups)
    facts: dict[str, Any] = {}
    faults: tuple[str, ...] = ()
    try:
        num_threads = use_threads(team.local_size)
        device = choose_device(work.device, team.local_rank)
        kernels = check_kernels(device, PRECISIONS[work.inputs.config.precision])
        num_loads = _do_units(work, team, device, groups)
        facts = _facts(kernels, num_threads, num_loads, device)
    except EvalError as error:
        faults = error.faults
        team.add("faults", 1)
    finally:
        work.observer.finished()
    all_faults = [fault for of_worker in team.gather_objects(faults) for fault in of_worker]
    if all_faults:
        return Outcome(tuple(dict.fromkeys(all_faults)))
    team.sum_(groups.table_GF)
    parts = team.gather(groups.pack_sparse())
    facts_of_workers = team.gather_objects({**facts, "peak_memory_bytes": peak_memory_bytes()})
    if team.rank_in_team != 0:
        return Outcome()
    for part in parts[1:]:
        groups.add_sparse(part)
    return Outcome(report=_report(work, groups, facts_of_workers))


def _do_units(work: Work, team: Team, device: torch.device, groups: GroupStats) -> int:
    """Evaluate this worker's share of the units; return how many partitions it loaded."""
    inputs, config = work.inputs, work.inputs.config
    relations, global_embeddings = read_relations(config, inputs.checkpoint_version, inputs.num_relations, device)
    settings = work.protocol.settings(config, inputs.num_relations, relations)
    partitions = PartitionHolder(inputs, global_embeddings, device)
    units = share_of_worker(work.protocol.units, team.rank_in_team, team.size)
    work.observer.started(inputs.num_edges, team.rank_in_team)
    for number, unit in enumerate(units):
        begun = time.perf_counter()
        file = inputs.bucket_file(unit)
        origin = EdgeOrigin(str(file.path), unit.path_index, unit.bucket)
        # No variable keeps the tables: those of the last bucket must go before new ones are loaded.
        results = bucket_pass(file.read(unit.start, unit.stop), origin, partitions.of_bucket(unit.bucket), settings)
        for side, stats in results.items():
            groups.add(GroupKey(unit.path_index, unit.bucket, side), stats)
        work.observer.unit_finished(
            _unit_report(work, units, number, results, begun, team.add("edges", unit.num_edges))
        )
        if team.add("faults", 0):
            break  # another worker has met a fault: there will be no result
    return partitions.num_loads


def _unit_report(
    work: Work,
    units: Sequence[WorkUnit],
    number: int,
    results: dict[Side, SideStats],
    begun: float,
    edges_done: int,
) -> UnitReport:
    unit = units[number]
    config = work.inputs.config
    first, *others = results.values()
    metrics = rank_metrics(sum((other.stats for other in others), first.stats), RankType(config.headline))
    following = units[number + 1] if number + 1 < len(units) else None
    return UnitReport(
        edge_path=Path(config.edge_paths[unit.path_index]).name,
        bucket=unit.bucket,
        num_edges=unit.num_edges,
        seconds=time.perf_counter() - begun,
        mean_reciprocal_rank=metrics["mean_reciprocal_rank"],
        edges_done=edges_done,
        edges_total=work.inputs.num_edges,
        bucket_is_finished=following is None or following[:2] != unit[:2],
    )


def _facts(kernels: KernelReport, num_threads: int, num_loads: int, device: torch.device) -> dict[str, Any]:
    """Return what the report says about one worker."""
    return {
        "host": host_name(),
        "device": str(device),
        "threads": num_threads,
        "kernels": kernels.fingerprint,
        "self_check_passed": kernels.passed,
        "partition_loads": num_loads,
    }


def _report(work: Work, groups: GroupStats, facts_of_workers: list[dict[str, Any]]) -> Report:
    config, protocol = work.inputs.config, work.protocol
    alike = len({str(facts["kernels"]) for facts in facts_of_workers}) == 1
    if not alike:
        work.observer.warn(
            "workers have unlike kernels: the last bits of scores may differ (run.reproducible is false)"
        )
    if not all(facts["self_check_passed"] for facts in facts_of_workers):
        work.observer.warn("the kernel self-check failed: one thread and one block shape are used, which is slow")
    evaluated = Evaluated(
        edge_paths=[Path(path).name for path in config.edge_paths],
        buckets=work.inputs.all_buckets(),
        sides=protocol.sides,
        auc_sample=AucSample(all_true=protocol.auc.true_rate >= 1, all_competing=protocol.auc.exact),
        with_loss=config.compute_loss,
        headline=config.headline,
    )
    run = {
        "version": __version__,
        "num_workers": len(facts_of_workers),
        "workers": facts_of_workers,
        "reproducible": alike,
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(work.started)),
        "seconds": round(time.time() - work.started, 3),
    }
    return make_report(groups, evaluated, work.provenance, run)
