"""One worker's part of a run: its units, one after the other, then one sum over all workers.

Numerics never see the config and distribution never sees numerics: this module and `evaluation` join them.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from attrs import define, evolve

from pbgeval.cluster.journal import Journal, writer_name
from pbgeval.cluster.launch import WorkerServer, start_local_workers
from pbgeval.cluster.resources import (
    WorkerDevice,
    choose_device,
    describe_devices,
    host_name,
    kept_thread_count,
    num_sharing_gpu,
    peak_memory_bytes,
    use_threads,
)
from pbgeval.cluster.team import Team
from pbgeval.config import EvalConfig
from pbgeval.config.precision import precision_of, why_not_exact
from pbgeval.errors import ConfigError, EvalError
from pbgeval.inputs.edges import EdgeNumberer, EvaluatedRows
from pbgeval.inputs.model import paths_of_training
from pbgeval.inputs.opening import Inputs
from pbgeval.inputs.protocol import Protocol
from pbgeval.jit import announced_compiling
from pbgeval.notation import WorkUnit
from pbgeval.progress import Observer
from pbgeval.ranking.settings import UnitOfEdges
from pbgeval.ranking.unit_passes import UnitPasses
from pbgeval.results.document import ReportContext, make_result
from pbgeval.results.output import IMPORTED, kept_edges_path
from pbgeval.results.result import Result
from pbgeval.scoring.block_scorer import (
    CONSISTENT,
    INCONSISTENT,
    ScorerRelation,
    device_of,
    scorer_state,
    title_of_scorer,
)
from pbgeval.scoring.full_precision import CallerSettings, full_precision
from pbgeval.scoring.self_check import KernelReport, check_kernels
from pbgeval.storage.json_files import digest_of
from pbgeval.storage.objects import read_object_folder
from pbgeval.storage.text import plural
from pbgeval.storage.writing import ScratchFolder, make_folder, remove_scratch, write_new
from pbgeval.version import __version__
from pbgeval.worker.buckets import ClaimedUnits, UnitEdges, claimed_units, num_edges_of_name
from pbgeval.worker.collective import collectively
from pbgeval.worker.context import TimeUse, Work, WorkerContext, WorkSummary
from pbgeval.worker.diagnostics import diagnose_edges
from pbgeval.worker.journal import RunJournal
from pbgeval.worker.per_edge import open_per_edge_files
from pbgeval.worker.plan import (
    MEASURED_SECONDS,
    Measurement,
    RunPlan,
    can_measure,
    held_bytes,
    load_loops,
    measure,
    plan_of,
    with_estimate,
    with_memory,
)
from pbgeval.worker.record import Record
from pbgeval.worker.rounds import Rounds
from pbgeval.worker.sweep import do_sweep, range_of_name

MAX_MULTIPLICATIONS_OF_ONE_THREAD = 1 << 25  # some milliseconds
MULTIPLICATIONS_PER_OWN_SCORE = 1 << 10  # a guess for models that are asked for their scores
LEASE = "lease"  # a file of the scratch folder, which is there as long as the others are
SECONDS_TO_SEE = 60.0  # from a file's making on one host until all others see it
BYTES_OF_RUN = 16 << 20  # that a worker holds before it begins and a process that plans does not: it was up to 6 MB


def work_as_local_worker(work: Work) -> Result | EvalError | None:
    """Work as one of the processes that the launcher started on this host."""
    team = Team.join()
    outcome = do_work(work, team)
    team.leave()
    return outcome


def do_work(work: Work, team: Team) -> Result | EvalError | None:
    """Rank this worker's part of the edges, then add up over all workers.

    Returns:
        The result from worker 0, None from the others; from all of them a user's error, which they do not raise.
    """
    with kept_thread_count(), full_precision() as caller_settings, announced_compiling(work.observer.phase):
        with _fault_kept(work) as kept, _set_up(work, team, caller_settings) as worker:
            statistics = Record.empty(work.protocol)
            rounds = Rounds.plan(worker, statistics)
            files = open_per_edge_files(worker)
            for context in rounds:  # one, unless a sample of edges grows until its target is met
                if work.protocol.sweeps:  # all entities compete: ranges of them stream past all edges
                    num_loads, classes = do_sweep(context, statistics, files)
                    continue
                with claimed_units(context, statistics, files) as units:
                    _rank_units(context, units)
                num_loads, classes = units.num_loads, units.group_classes()
                del units  # and the partitions that it holds
            files.finish(rounds.context)
            summary = WorkSummary(num_loads, classes, diagnose_edges(rounds.context), rounds.estimate())
            statistics.sum_over(team)  # one all-reduce of integers
        if kept.fault is not None:
            return kept.fault
        facts_of_workers = team.gather_objects(_facts(worker, summary))
        return _result(worker, statistics, summary, facts_of_workers) if team.rank_in_team == 0 else None


def _rank_units(context: WorkerContext, units: ClaimedUnits) -> None:
    """Rank the rows of buckets that this worker claims; no other worker ranks them."""
    passes = UnitPasses[tuple[WorkUnit, UnitEdges]](context.settings, units.relations)

    def rank(unit: WorkUnit) -> None:  # what it holds is dropped before the next unit's edges are read
        edges = units.results.read(unit)
        part = UnitOfEdges(edges.block, edges.origin, units.load_partitions(unit), edges.competition)
        for ranked, found in passes.rank((unit, edges), part):
            units.add(*ranked, found)

    for unit in units:
        rank(unit)
    for ranked, found in passes.finish():
        units.add(*ranked, found)


@define
class _Kept:
    fault: EvalError | None = None


@contextmanager
def _fault_kept(work: Work) -> Iterator[_Kept]:
    """Keep a user's error that ends the work."""
    kept = _Kept()
    try:
        yield kept
    except EvalError as error:
        error.__traceback__ = error.__context__ = error.__cause__ = None  # their frames hold the whole run
        kept.fault = error
    finally:
        work.observer.finished()


def _facts(context: WorkerContext, summary: WorkSummary) -> dict[str, Any]:
    """Return what `run.json` says of this worker."""
    kernels = context.kernels
    exact = context.settings.relations[0].scorer.exact_comparator
    return {
        **({} if exact is None else {"open_candidates": dict(exact.tally)}),
        "host": host_name(),
        "device": str(context.device),
        "threads": kernels.num_threads,
        "block_rule": kernels.rule.value,
        "kernels": kernels.fingerprint,
        "self_check_passed": kernels.passed,
        "partition_loads": summary.num_loads,
        "seconds": context.time_use.seconds,
        "peak_memory_bytes": peak_memory_bytes(),
    }


def what_is_saved(work: Work) -> str:
    """Return how much of the run its journal holds; of a sample with a target, of the rounds begun."""
    units = _saved_units(work)
    found = _num_done(work, units)
    if found is None:
        return f"{plural(len(units), 'unit')} of the sample saved"
    done, total = found
    percent = 100 * done // max(total, 1)
    share = "less than 1% is saved" if done and not percent else f"{percent}% is saved"
    if work.protocol.sweeps:
        return f"{share}: all queries are scored against {done:,} of {total:,} entities"
    return f"{share}: {len(units):,} of {len(work.protocol.units):,} units"


def _saved_units(work: Work) -> set[tuple[str, str]]:
    """Return (round, name) of each unit that the journal holds."""
    journal = Journal(work.journal_path, work.journal_digest, writer="reader")
    return {unit.partition("/")[::2] for units, _ in journal.readable(journal.entries()) for unit in units}


def _num_done(work: Work, units: Iterable[tuple[str, str]]) -> tuple[int, int] | None:
    """Return how many entities, or edges, some units have, and all units; None: of a sample, this is not known."""
    config = work.inputs.config
    if work.protocol.sweeps and config.target_error is None:  # else each round sweeps all entities
        return sum(range_of_name(name).num_rows for _, name in units), work.inputs.numbering.num_entities
    if config.samples_edges:
        return None
    return sum(num_edges_of_name(name) for _, name in units), sum(unit.num_edges for unit in work.protocol.units)


def _share_left(work: Work) -> float | None:
    """Return the share of the work that the journal does not hold; None: of a sample, this is not known."""
    units = _saved_units(work)
    found = _num_done(work, units) if units else (0, 1)
    return None if found is None else 1 - found[0] / max(found[1], 1)


@contextmanager
def _set_up(work: Work, team: Team, caller_settings: CallerSettings) -> Iterator[WorkerContext]:
    """Give what a worker needs for its part: its device and the model, and a folder that all workers share."""
    work.observer.started(work.inputs.num_edges, team.rank_in_team)
    with collectively(team):
        context = _context(work, team, caller_settings)
    with collectively(team):
        if team.rank_in_team == 0:
            # Make the folder that workers share, without what an earlier group left there.
            work.claim.check()
            remove_scratch(work.scratch_path)
            make_folder(context.scratch.path)
            make_folder(work.journal_path)
            write_new(context.scratch.path / LEASE, [team.nonce.encode()])
            work.claim.check()  # before anybody trusts the lease
    with collectively(team):
        _wait_for(context.scratch.path / LEASE)
    context = _with_devices(_with_kernels(context), caller_settings)
    try:
        yield context
    except FileNotFoundError:
        context.journal.journal.check()  # what workers share has been removed by others: no bug
        raise


def _context(work: Work, team: Team, caller_settings: CallerSettings) -> WorkerContext:
    inputs, config = work.inputs, work.inputs.config
    use_threads(team.local_size, is_small=_is_small(work))
    device = choose_device(work.device, team.local_rank)
    if inputs.scorer is not None and work.device == "auto":
        device = device_of(inputs.scorer)  # where its scores are, they are counted
    kernels = _check_kernels(device, config)
    relations, global_embeddings = inputs.read_relations(device, caller_settings)
    load_loops(inputs, work.protocol, relations[0], device)
    scorer = relations[0].scorer
    if isinstance(scorer, ScorerRelation):
        num_queries = inputs.num_edges * len(work.protocol.sides)
        times = (inputs.some_times(),) if inputs.takes_time else ()
        kernels.fingerprint["scorer"] = scorer_state(scorer, work.protocol.sides, num_queries, *times)
    scratch = work.scratch_path / team.nonce
    claim = evolve(work.claim, lease=scratch / LEASE)
    return WorkerContext(
        work=work,
        team=team,
        device=device,
        global_embeddings=global_embeddings,
        kernels=kernels,
        settings=work.protocol.settings(config, inputs.num_relations, relations),
        numberer=EdgeNumberer(inputs),
        journal=RunJournal(
            Journal(work.journal_path, work.journal_digest, writer_name(host_name()), claim.check), part=""
        ),
        scratch=ScratchFolder(scratch, team.rank_in_team, team.size),
        evaluated=EvaluatedRows(inputs.restrictions),
        time_use=TimeUse(),
    )


def _wait_for(lease: Path) -> None:
    """Wait until this host sees what worker 0 has made; a file system that hosts share may take a while.

    Raises:
        ConfigError: it does not.
    """
    until = time.monotonic() + SECONDS_TO_SEE
    while not lease.exists():
        if time.monotonic() > until:
            raise ConfigError(
                f"{lease.parent}: {host_name()} does not see this folder of worker 0; give all workers the same "
                "output, on a file system that all hosts share"
            )
        time.sleep(0.1)


def _with_kernels(context: WorkerContext) -> WorkerContext:
    """Take units that other kernels have scored out of the journal, unless ranks are exact. Every worker calls it."""
    if precision_of(context.inputs.config) == "exact":
        return context
    kernels = {*context.team.gather_objects(json.dumps(context.kernels.fingerprint, sort_keys=True))}
    scored_by = f"-{digest_of({'kernels': sorted(kernels)})[:8]}"
    with collectively(context.team):
        journal, num_units = context.journal.journal, 0
        for entry in journal.entries() if context.team.rank_in_team == 0 else ():
            for units, _ in journal.readable([entry]):
                if not units[0].partition("/")[0].endswith(scored_by):
                    journal.remove(entry)
                    num_units += len(units)
        if num_units:
            context.work.observer.warn(
                f"{plural(num_units, 'unit')} of the earlier run had scores of other kernels (another processor, GPU "
                "or version of torch), whose last bits may differ; computed again"
            )
    return evolve(context, scored_by=scored_by)


def _is_small(work: Work) -> bool:
    """Tell whether one thread is done before several have met: on a busy host they spin at the end of each product."""
    inputs, config = work.inputs, work.inputs.config
    of_vectors = max(map(config.dimension_of, config.used_entity_types))
    cost = of_vectors if inputs.scorer is None else MULTIPLICATIONS_PER_OWN_SCORE
    num_queries = inputs.num_edges * len(work.protocol.sides)
    return num_queries * inputs.numbering.num_entities * cost <= MAX_MULTIPLICATIONS_OF_ONE_THREAD


def _check_kernels(device: torch.device, config: EvalConfig) -> KernelReport:
    precision = precision_of(config)
    dtype = torch.float64 if precision == "float64" else torch.float32
    return check_kernels(device, dtype, exact=precision == "exact")


def _with_devices(context: WorkerContext, caller_settings: CallerSettings) -> WorkerContext:
    """Tell the user devices, precision and plan, and each worker how many share its GPU. Every worker calls it."""
    work, team = context.work, context.team
    mine = WorkerDevice.from_device(context.device)
    devices = team.gather_objects(mine)
    line = describe_devices(devices, work.device)
    plan = _plan(context, caller_settings)
    if team.rank_in_team == 0:
        reason = why_not_exact(work.inputs.config)
        told = f"{line}; precision {precision_of(work.inputs.config)}"
        told += "" if reason is None else f": {reason}"
        work.observer.note(f"{told}; {plan.line}")
        num_gpus = len({(device.host, device.gpu) for device in devices if device.gpu is not None})
        on_gpus = sum(device.gpu is not None for device in devices)
        if on_gpus > num_gpus:
            work.observer.warn(
                f"{plural(on_gpus, 'worker')} on {plural(num_gpus, 'GPU')}: workers that share a GPU take turns and "
                "divide its memory; start one worker for each GPU"
            )
    return evolve(context, devices=line, num_sharing_gpu=num_sharing_gpu(devices, mine))


def _plan(context: WorkerContext, caller_settings: CallerSettings) -> RunPlan:
    """Return what the run will take. Every worker calls it: they measure at the same time, as they will compute."""
    work, team = context.work, context.team
    speed, num_threads = None, torch.get_num_threads()
    with context.collectively():
        left = _share_left(work) if work.observer.wants_estimates and team.rank_in_team == 0 else None
    left = team.broadcast_object(left)
    with context.collectively():
        plan = plan_of(work.inputs, work.protocol, context.device, team.size, num_threads, team.local_size)
        if left is not None:
            plan = plan.of_rest(left)
            if not plan.is_small:
                speed = measure(work.inputs, work.protocol, context.device, caller_settings, plan.measured_seconds)
    found = team.gather_objects(Measurement(speed, held_bytes(context.device)))
    with context.collectively():
        resident = max(one.held_bytes for one in found)
        plan = with_memory(plan, work.inputs, work.protocol, context.device, resident, team.host_size, num_threads)
    return with_estimate(plan, work.inputs, work.protocol, [one.speed for one in found])


def plan_alone(
    inputs: Inputs,
    protocol: Protocol,
    device: str,
    num_workers: int,
    observer: Observer,
    server: WorkerServer | None = None,
) -> RunPlan:
    """Return what a run of local workers will take; as many as it has measure at the same time, as they will compute.

    Args:
        inputs: opened.
        protocol: of the run.
        device: auto, cpu or cuda.
        num_workers: of the run.
        observer: is told what goes on.
        server: forks workers; None: they are spawned.
    """
    with kept_thread_count():
        use_threads(num_workers)
        chosen, num_threads = choose_device(device, local_rank=0), torch.get_num_threads()
        plan = plan_of(inputs, protocol, chosen, num_workers, num_threads, num_workers)
    arguments = inputs, protocol, device, observer
    if plan.needs_no_trial or not can_measure(inputs):
        found = [Measurement(None, held_bytes(chosen))]
    elif num_workers == 1:
        found = measure_together(*arguments, Team())
    else:
        found = start_local_workers(measure_as_local_worker, arguments, num_workers, observer.warn, server)[0]
    resident = max(one.held_bytes for one in found) + BYTES_OF_RUN
    plan = with_memory(plan, inputs, protocol, chosen, resident, num_workers, num_threads)
    return with_estimate(plan, inputs, protocol, [one.speed for one in found])


def measure_as_local_worker(inputs: Inputs, protocol: Protocol, device: str, observer: Observer) -> list[Measurement]:
    """Measure as one of the processes that the launcher started on this host."""
    team = Team.join()
    found = measure_together(inputs, protocol, device, observer, team)
    team.leave()
    return found


def measure_together(
    inputs: Inputs, protocol: Protocol, device: str, observer: Observer, team: Team
) -> list[Measurement]:
    """Return what all workers have measured at the same time; every worker calls it."""
    told = observer if team.rank_in_team == 0 else Observer()  # once
    with kept_thread_count(), full_precision() as caller_settings, announced_compiling(told.note):
        use_threads(team.local_size)
        chosen = choose_device(device, team.local_rank)
        _check_kernels(chosen, inputs.config)
        team.gather_objects(None)  # all begin now
        speed = measure(inputs, protocol, chosen, caller_settings, MEASURED_SECONDS)
        return team.gather_objects(Measurement(speed, held_bytes(chosen)))


def _places(inputs: Iterable[str | None]) -> list[str]:
    """Return the paths of inputs, or their URLs; skip those in memory."""
    paths = [Path(path) for path in inputs if path is not None and Path(path).is_absolute()]
    folders = [read_object_folder(path) for path in paths]
    return [str(path) if of is None else of.url for path, of in zip(paths, folders, strict=True)]


def _edge_paths_from_output(work: Work) -> list[str]:
    """Return where the evaluated edges are, relative to the output directory: those in memory are kept in it."""
    paths: list[str | None] = [*work.inputs.config.edge_paths]
    for path_index in work.inputs.edges_in_memory():
        paths[path_index] = str(kept_edges_path(work.output.absolute(), path_index))
    return [os.path.relpath(path, work.output) if Path(path).is_absolute() else path for path in _places(paths)]


def _names(work: Work) -> dict[str, Any]:
    """Return what the model and the folders of the evaluated edges are called now, as the result may be moved."""
    config, in_memory = work.inputs.config, work.inputs.edges_in_memory()
    on_disk = [path for index, path in enumerate(config.edge_paths) if index not in in_memory]
    model, edges = (list(map(Path, _places(paths))) for paths in ([config.model or config.checkpoint_path], on_disk))
    # The folder of an imported file is called by a digest.
    folders = dict.fromkeys(path.parent.name for path in edges if path.parent.parent.name != IMPORTED)
    return {
        **({"model_place": "/".join([part for part in model[0].parts if part != "/"][-2:])} if model else {}),
        **({"edge_folders": list(folders)} if folders else {}),
    }


def _warnings(facts_of_workers: Iterable[dict[str, Any]], states: set[str], *, alike: bool) -> list[str]:
    """Return what users should know of the kernels that have computed, and of the scores of their own models."""
    warnings = [
        f"scores of the model depend on the block that they are asked for in: {state}"
        for state in states - {CONSISTENT}
    ]
    checks = (
        (not alike, "workers have unlike kernels: the last bits of scores may differ (run.reproducible is false)"),
        (
            not all(facts["self_check_passed"] for facts in facts_of_workers),
            "the kernel self-check: scores depend on the shape of their block with as many threads as there are; "
            "fewer threads, one shape or, on a GPU, other kernels are used, which is slow (run.workers says which)",
        ),
    )
    return [warning for applies, warning in checks if applies] + sorted(warnings)


def _places_of_training(config: EvalConfig) -> list[int]:
    """Return the index of each evaluated path that the checkpoint was trained on."""
    trained = paths_of_training(config)
    return [index for index, path in enumerate(config.edge_paths) if path in trained]


def _result(
    worker: WorkerContext, record: Record, summary: WorkSummary, facts_of_workers: list[dict[str, Any]]
) -> Result:
    work, config, protocol = worker.work, worker.inputs.config, worker.work.protocol
    # Exact ranks are the same whatever the kernels.
    is_exact = precision_of(config) == "exact"
    alike = is_exact or len({str(facts["kernels"]) for facts in facts_of_workers}) == 1
    states = {facts["kernels"].get("scorer", CONSISTENT) for facts in facts_of_workers}
    for warning in _warnings(facts_of_workers, states, alike=alike):
        work.observer.warn(warning)
    sample = None if summary.estimate is None or summary.estimate.design.is_population else summary.estimate
    context = ReportContext(
        edge_paths=[Path(path).name for path in config.edge_paths],
        trained_on=[] if work.inputs.model is not None else _places_of_training(config),
        sides=protocol.sides,
        auc_samples=protocol.auc_samples(
            None if sample is None else sample.design,
            0.95 if sample is None else sample.level,
            1.0 if summary.estimate is None else summary.estimate.pool_share,
        ),
        with_loss=config.compute_loss,
        headline=config.headline,
        with_macro=protocol.counts_keys or summary.estimate is not None,
        breakdowns=config.breakdowns,
        classes=summary.classes,
        edges=summary.edges,
        estimate=summary.estimate,
        evaluated_edges=None
        if work.inputs.featurized
        else record.digests.section(len(config.edge_paths), filtered=protocol.filtered),
        selection=config.selection,
        num_edges_before_restrictions=work.inputs.num_edges if work.inputs.restrictions.drops_edges else None,
    )
    # How many candidates the fast products of all workers left open, and how they were decided.
    tallies = [facts.pop("open_candidates") for facts in facts_of_workers if is_exact]
    decided = {name: sum(tally[name] for tally in tallies) for name in ("in_float64", "exactly")}
    reason = why_not_exact(config)
    run = {
        "version": __version__,
        "num_workers": len(facts_of_workers),
        "devices": worker.devices,
        "workers": facts_of_workers,
        "reproducible": alike and INCONSISTENT not in states,
        **({"open_candidates": decided} if is_exact else {}),
        **({} if reason is None else {"why_not_exact": reason}),
        **({"edge_paths": _edge_paths_from_output(work)} if protocol.saves_ranks else {}),
        **({} if work.inputs.scorer is None else {"model": title_of_scorer(work.inputs.scorer)}),
        **_names(work),
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(work.started)),
        "seconds": round(time.time() - work.started, 3),
    }
    return make_result(record, context, work.provenance, run)
