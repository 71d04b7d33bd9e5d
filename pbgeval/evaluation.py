"""The whole run: config -> inputs -> units -> statistics -> report. Read this first.

open_inputs                          every file's header, checked: most faults end here, before anything starts
make_protocol                        lists of candidates, work units, their order
claim                                the output directory is ours, or already holds this very result
do_work, on each worker              worker/run.py, to be read next: the loops over rounds and units are there
    for each round:                  worker/rounds.py: all edges at once, or a sample round by round
        for each unit claimed:       worker/buckets.py
            read_edges               rows of one bucket
            load_partitions          that these edges touch
            bucket_pass              ranking/bucket_pass.py: counts of each query
            add                      to this worker's statistics and, now and then, to the journal
        or do_sweep                  worker/sweep.py: where all entities compete, ranges of candidates
    sum_over                         one sum over all workers: int64, so order does not matter
    make_result, on worker 0         results/document.py
write                                the result, once
report_of                            what the caller gets
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from attrs import evolve, frozen

from pbgeval.cluster.claim import Claim, Ownership, SoleOwnership, describe_process
from pbgeval.cluster.environment import advice_on_restarts, check_workers
from pbgeval.cluster.launch import WorkerServer, is_worker_of_a_group, start_local_workers
from pbgeval.cluster.resources import (
    WorkerDevice,
    choose_device,
    describe_devices,
    host_name,
    num_cores,
    num_gpus,
    resident_bytes,
)
from pbgeval.cluster.signals import ended_by_signals
from pbgeval.cluster.team import Team
from pbgeval.config import EvalConfig, check_config, config_of_dict, config_of_keys, load_config
from pbgeval.config.loading import SCORER
from pbgeval.errors import (
    MAX_MEMORY,
    OVERWRITE,
    ConfigError,
    DataError,
    EvalError,
    IncompleteError,
    LaunchError,
    OutputError,
    workers_option,
)
from pbgeval.inputs.memory_check import check_memory
from pbgeval.inputs.object_storage import local_copies, urls_of
from pbgeval.inputs.opening import (
    EDGE_PATHS,
    GivenModel,
    InMemory,
    Inputs,
    Model,
    check_in_memory,
    files_of_edges,
    open_inputs,
)
from pbgeval.inputs.protocol import Protocol, make_protocol
from pbgeval.inputs.provenance import can_be_resumed, provenance_of, startup_warnings
from pbgeval.models.labels import has_labels
from pbgeval.models.model import EmbeddingModel
from pbgeval.progress import Observer
from pbgeval.report.conditions import warnings_of
from pbgeval.report.report import Report, report_of
from pbgeval.report.run_differences import names_of_unlike
from pbgeval.report.summary import summary_of
from pbgeval.results.output import (
    DEFAULT_OUTPUTS,
    IMPORTED,
    OutputDirectory,
    digest_in,
    kept_edges_path,
    result_in,
    send_to_tensorboard,
)
from pbgeval.results.recompute import with_sections
from pbgeval.results.result import METRICS, Result
from pbgeval.results.sending import check_url, refuse_another_result, send_result
from pbgeval.storage.edges import Array, Edges
from pbgeval.storage.json_files import digest_of
from pbgeval.storage.objects import read_object
from pbgeval.storage.text import is_url, listed, names_file_of_edges, path_text
from pbgeval.storage.writing import make_folder, output_faults, temporary_folder
from pbgeval.version import __version__
from pbgeval.worker.context import Work
from pbgeval.worker.plan import RunPlan
from pbgeval.worker.run import do_work, plan_alone, what_is_saved, work_as_local_worker

ROWS_PER_PROCESS = 1 << 17  # candidates for which a further process is started by default
DIGEST_LENGTHS = (4, 8, 32)  # hex digits of a run's digest in the name of its folder: the first that is free


@frozen
class Launch:
    """How a run is carried out; none of it changes a number."""

    output: Path | None
    url: str | None  # to which the result is copied
    workers: int | None
    device: str
    overwrite: bool
    observer: Observer
    started: float  # seconds since the epoch
    server: WorkerServer | None  # forks local workers; None: they are spawned
    is_kept: bool = True  # False: `output` goes away with this call, so the result is not written into it

    @classmethod
    def from_arguments(
        cls,
        output: str | PathLike[str] | None,
        workers: int | None,
        device: str,
        overwrite: bool,
        observer: Observer | None,
        server: WorkerServer | None = None,
    ) -> Launch:
        """Read the arguments of `evaluate`, and note the time."""
        url = output if isinstance(output, str) and is_url(output) else None
        folder = None if output is None or url is not None else Path(path_text(output, "output"))
        return cls(folder, url, workers, device, overwrite, observer or Observer(), time.time(), server)


def evaluate(
    config: EvalConfig | Mapping[str, Any] | str | PathLike[str],
    *,
    overrides: Iterable[str] = (),
    model: GivenModel | None = None,
    edges: Edges | Array | None = None,
    output: str | PathLike[str] | None = None,
    workers: int | None = None,
    device: str = "auto",
    overwrite: bool = False,
    observer: Observer | None = None,
) -> Report:
    """Evaluate a checkpoint, or a model in memory, and write the result.

    Started by torchrun, srun or mpirun, this process is one worker of its group. Otherwise it starts local workers.

    Args:
        config: a config file, a dict of its keys, or an `EvalConfig`.
        overrides: `KEY=VALUE` texts that change a config file or a dict, as `-p` does on the command line.
        model: a model to use instead of a checkpoint: a path that the key `model` could have, or a `Scorer`, for
            example from `edge_scorer`.
        edges: edges to use instead of `edge_paths` (`Edges`: with known ones).
        output: folder for the result. Default: a folder in results/ in the working directory, named after the config
            and what was done, for example results/eval-all-filtered-3627; for a model or edges in memory, nothing is
            written. A URL of object storage: the result is copied there when it is complete, from the default folder.
        workers: number of local processes. Default: one for each GPU that torch sees; without a GPU, as many as cores,
            the config's `workers` and the work allow.
        device: auto, cpu or cuda.
        overwrite: replace an earlier result in `output`. Its folder is renamed to `<output>.earlier`, where other files
            than the result's stay.
        observer: is told of progress, by each worker for itself: for several, its class is in a module, not in the
            main program, which workers do not run.

    Raises:
        EvalError: all errors in the input, one per line; the output folder is left as it was. If memory runs out, or
            `max_memory` is passed, what is finished stays, and the next run goes on from it.

    Examples:
        >>> import pbgeval
        >>> report = pbgeval.evaluate("eval.py", overrides=["hits_at=1,10"], output="results/hits", workers=1)
        >>> 0 < report["mrr"] <= report["hits@10"] <= 1
        True
    """
    return run_evaluation(
        config, Launch.from_arguments(output, workers, device, overwrite, observer), overrides, model, edges
    )


def run_evaluation(
    config: EvalConfig | Mapping[str, Any] | str | PathLike[str],
    launch: Launch,
    overrides: Iterable[str] = (),
    model: GivenModel | None = None,
    edges: Edges | Array | None = None,
) -> Report:
    """Evaluate as `evaluate` does, launched as said."""
    url = launch.url
    if url is not None:
        check_url(url)
        read_object(f"{url.rstrip('/')}/{METRICS}")  # faults of address and credentials do not wait for the end
    check_workers("workers", launch.workers)
    if isinstance(config, Mapping):
        config = config_of_dict(config, overrides)
    elif not isinstance(config, EvalConfig):
        config = load_config(config, overrides)
    elif tuple(overrides):
        raise ConfigError("overrides change a config file; to change an EvalConfig use attrs.evolve(config, key=value)")
    if model is not None or edges is not None:
        return _evaluate_in_memory(check_in_memory(config, model, edges), launch)
    checked = check_config(config)  # that of a file, too: it may have been changed since
    if config.source is None or checked != config:
        config = checked
    if is_worker_of_a_group() and (urls_of(config) or files_of_edges(config)):
        with _inputs_of_group(config, launch.output, launch.observer) as (inputs, team):
            report = _evaluate(inputs, launch, team)
    else:
        with local_copies(config) as local, in_buckets(local, launch.output, launch.observer) as split:
            report = _evaluate(open_inputs(split), launch)
    if url is not None and report.path is not None:  # this process has written the result
        send_result(report, url, overwrite=launch.overwrite)
    return report


def evaluate_triples(
    model: GivenModel,
    test: Array,
    *,
    known: Sequence[Array] = (),
    train: Sequence[Array] = (),
    labels: str | PathLike[str] | None = None,
    output: str | PathLike[str] | None = None,
    device: str = "auto",
    overwrite: bool = False,
    observer: Observer | None = None,
    **settings: Any,  # noqa: ANN401 - keys of a config
) -> Report:
    """Rank the triples of an array, by default against all entities.

    Args:
        model: a `Scorer`, for example from `edge_scorer` or `batch_scorer`, or a path that the key `model` could have.
        test: integers of shape (edges, 3): head, relation, tail; or (edges, 4): then the time. An array, a tensor or a
            list.
        known: a list of such arrays, for example [valid]. Their triples, those of `train` and of `test` are filtered
            out. Default: nothing is filtered.
        train: the same. Leaked edges, unseen entities and frequencies are counted from these.
        labels: a folder with the names of ids, for tables, lists and restrictions; as in `evaluate_files`.
        output: as in `evaluate`; by default nothing is written.
        device: as in `evaluate`.
        overwrite: as in `evaluate`.
        observer: as in `evaluate`.
        settings: keys of `EvalConfig`, for example hits_at=[1, 10]. `candidates` is "all" by default.

    Raises:
        EvalError: all errors in the input, one per line.

    Examples:
        >>> import pbgeval
        >>> def score(lhs, rel, rhs):
        ...     return -(lhs + 1 - rhs).abs().float()  # the tail is the next entity
        ...
        >>> model = pbgeval.edge_scorer(score, num_entities=5, num_relations=1)
        >>> report = pbgeval.evaluate_triples(model, [(0, 0, 1), (1, 0, 3)])
        >>> report["mrr"], report["tail.mean_rank"]
        (0.7, 1.75)
    """
    for key in sorted({"filtered", "filter", "valid", "validation"} & settings.keys()):
        raise ConfigError(f"{key}: unknown key; give the triples to filter out, train=[train] and known=[valid]")
    if 0 in np.shape(test):
        raise DataError("test: there are no edges to evaluate")
    if labels is not None:
        folder = _folder_of_labels(labels)
        if "entity_path" in settings:
            raise ConfigError("labels: give either labels or entity_path")
        if not (is_url(folder) or has_labels(Path(folder))):
            raise ConfigError(f"labels: {folder}: this folder has neither entities.tsv nor relations.tsv")
        settings = {"entity_path": folder, **settings}
    return evaluate(
        config_of_keys({"candidates": "all", **settings}, ("test", *(evaluate_triples.__kwdefaults__ or ()))),
        model=model,
        edges=Edges(test, known=known, train=train),
        output=output,
        device=device,
        overwrite=overwrite,
        observer=observer,
    )


def evaluate_files(
    model: GivenModel,
    test: str | PathLike[str],
    *,
    train: str | PathLike[str] | Sequence[str | PathLike[str]] = (),
    valid: str | PathLike[str] | Sequence[str | PathLike[str]] = (),
    labels: str | PathLike[str] | None = None,
    output: str | PathLike[str] | None = None,
    device: str = "auto",
    overwrite: bool = False,
    observer: Observer | None = None,
    **settings: Any,  # noqa: ANN401 - keys of a config
) -> Report:
    r"""Rank the edges of a file by name, by default against all entities.

    Args:
        model: a path that the key `model` could have, or a `Scorer`, for example from `edge_scorer`.
        test: a file of edges, for example test.tsv: head, relation, tail, by name. TSV, CSV or Parquet, as in
            `edge_paths`.
        train: a file, or several. Its edges are filtered out, and leaked edges, unseen entities and frequencies are
            counted from it.
        valid: the same, but only filtered out.
        labels: a folder with the names of ids: entities.tsv and relations.tsv, a name per line or `id<TAB>name`, or
            files as PyKEEN and others write them. Default: beside the model's files.
        output: as in `evaluate`; by default nothing is written.
        device: as in `evaluate`.
        overwrite: as in `evaluate`.
        observer: as in `evaluate`.
        settings: keys of `EvalConfig`, for example hits_at=[1, 10]. `candidates` is "all" by default.

    Raises:
        EvalError: all errors in the input, one per line.

    Examples:
        >>> import pbgeval
        >>> from pathlib import Path
        >>> Path("names").mkdir()
        >>> _ = Path("names/entities.tsv").write_text("ann\nbob\ncid\n")
        >>> _ = Path("names/relations.tsv").write_text("knows\n")
        >>> _ = Path("test.tsv").write_text("ann\tknows\tbob\n")
        >>> def score(lhs, rel, rhs):
        ...     return -(lhs + 1 - rhs).abs().float()  # the tail is the next entity
        ...
        >>> model = pbgeval.edge_scorer(score, num_entities=3, num_relations=1)
        >>> pbgeval.evaluate_files(model, "test.tsv", labels="names")["mrr"]
        1.0
    """
    paths = {"edge_paths": ("test", test), "train_paths": ("train", train), "filter_paths": ("valid", valid)}
    given = {
        key: [path_text(path, argument, "evaluate_triples takes arrays of ids") for path in _each(of_argument)]
        for key, (argument, of_argument) in paths.items()
    }
    is_function = not isinstance(model, EmbeddingModel | str | PathLike)
    if labels is not None:
        folder = _folder_of_labels(labels)
        settings = {"entity_path": folder, **({} if is_function else {"dictionary_path": folder}), **settings}
    elif is_function and not {"entity_path", "dictionary_path"} & settings.keys():
        raise ConfigError("labels: give the folder with the names of ids: entities.tsv and relations.tsv")
    return evaluate(
        config_of_keys({"candidates": "all", **given, **settings}, evaluate_files.__kwdefaults__ or ()),
        model=model,
        output=output,
        device=device,
        overwrite=overwrite,
        observer=observer,
    )


def _folder_of_labels(labels: str | PathLike[str]) -> str:
    folder = path_text(labels, "labels", "give a folder with entities.tsv and relations.tsv")
    if not (is_url(folder) or Path(folder).is_dir()):
        raise ConfigError(f"labels: no such directory: {folder}")
    return folder


def _each(paths: object) -> Iterable[object]:
    """Return several paths as they are, and one, or what is none, in a list."""
    is_one = isinstance(paths, str | bytes | PathLike) or hasattr(paths, "__array__")
    return [paths] if is_one or not isinstance(paths, Iterable) else paths


def check_before_training(config: EvalConfig, output: Path | None, device: str, *, overwrite: bool) -> None:
    """Refuse what no model's evaluation in memory can be done with, before the model is trained.

    Args:
        config: what all evaluations have in common; not checked yet.
        output: as in `evaluate`. A result there is refused, as it is not known yet what will be evaluated.
        device: as in `evaluate`.
        overwrite: as in `evaluate`.

    Raises:
        EvalError: faults of settings, the device or the output folder.
    """
    checked = check_config(config, evolve(SCORER), {key: [key] for key in EDGE_PATHS})
    _refuse_unkept(checked, is_kept=output is not None)
    choose_device(device, 0)
    if output is None:
        return
    with output_faults(output, "write into this directory", "; choose another output"):
        found = result_in(output)
    if found is not None and not overwrite:
        raise OutputError(
            f"{output}: this folder has the result of an earlier evaluation; choose another output, or {OVERWRITE} to "
            "replace it"
        )


def _refuse_unkept(config: EvalConfig, *, is_kept: bool) -> None:
    """Refuse settings that only have an effect in a folder, if there is none."""
    if config.sinks and not is_kept:
        raise LaunchError("sinks: give output=..., the folder that they write into")
    if config.save_topk is not None and not config.topk_metrics and not is_kept:
        raise LaunchError("save_topk: give output=..., the folder that the lists go to")


def _evaluate_in_memory(given: InMemory, launch: Launch) -> Report:
    config, in_group, is_kept = given.config, is_worker_of_a_group(), bool(launch.output or launch.url)
    if launch.workers not in (None, 1):  # what is in memory may not be sent to other processes
        raise LaunchError(
            "workers: a model or edges in memory are evaluated by one process; leave out workers, or start a group with"
            " torchrun"
        )
    if in_group and launch.output is None:
        raise LaunchError("output: give a folder that all workers of the group share")
    if in_group and files_of_edges(config):
        raise LaunchError(
            "edge_paths: a group reads edges by name only with a model on disk; import them with import-graph"
        )
    _refuse_unkept(config, is_kept=is_kept)
    if not in_group:
        launch = evolve(launch, workers=1)
    if launch.output is not None:
        with in_buckets(config, launch.output, launch.observer, given.model) as split:
            return _evaluate(given.open(split), launch)
    if not is_kept and config.save_ranks is None and not config.needs_ranks:
        config = evolve(config, save_ranks=False)  # they would go with the folder
    with temporary_folder() as folder, in_buckets(config, folder / "result", launch.observer, given.model) as split:
        report = _evaluate(given.open(split), evolve(launch, output=folder / "result", is_kept=is_kept))
        if launch.url is not None:
            send_result(report, launch.url, overwrite=launch.overwrite, is_kept=False)
        return evolve(report, path=None)


def _evaluate(inputs: Inputs, launch: Launch, team: Team | None = None) -> Report:
    """Plan, claim, work, report: with workers that this process starts, or as one worker of a group.

    Worker 0 owns the output directory, and tells the others what it has found there and what it has written.
    """
    in_group = is_worker_of_a_group()
    team = team or (Team.join() if in_group else Team())
    is_first = team.rank_in_team == 0
    with team.signs_of_life() if in_group else nullcontext():
        with team.together():
            protocol = make_protocol(inputs)
            provenance = provenance_of(inputs)
        if in_group:
            provenance = _agreed(team, inputs, protocol, provenance)
    path = launch.output or _default_output(inputs.config, provenance)
    me = describe_process(host_name(), os.environ)
    owner = (Ownership if launch.is_kept else SoleOwnership)(path, me, launch.observer.warn)
    claim = Claim(path, me) if launch.is_kept else owner
    output = OutputDirectory(path, owner)
    work = Work(inputs, protocol, provenance, launch.device, launch.observer, launch.started, path, claim)
    try:
        with team.signs_of_life() if in_group else nullcontext():
            with team.together():
                claimed = _claim(work, launch, output, team) if is_first else None
            result = team.broadcast_object(claimed)
            if result is None:
                with team.together():
                    result = _work(work, launch, output, team)
                result = team.broadcast_object(result)
            team.leave()
    except BaseException:  # what is done must not be lost; where a fault has been dealt with, the directory is not held
        if in_group:
            output.suspend()  # by worker 0; others may be writing their results
        else:
            _keep_or_release(output)
        raise
    report = report_of(result)
    if not is_first:
        return evolve(report, path=None)
    for warning in warnings_of(report.document):
        launch.observer.warn(warning)
    return report


def _agreed(team: Team, inputs: Inputs, protocol: Protocol, provenance: dict[str, Any]) -> dict[str, Any]:
    """Return worker 0's provenance, after checking that all workers of a group have opened the same inputs.

    Raises:
        EvalError: some have not. Each takes its share of the work from what it has opened.
    """
    data = provenance["data"]
    if not can_be_resumed(inputs):  # a function has another digest in each process
        data = {**data, "model": {**data["model"], "digest": None}}
    found = {
        **provenance,
        "data": data,
        "save_topk": inputs.config.save_topk,
        "save_ranks": protocol.saves_ranks,
        "version": __version__,
    }
    digests = team.gather_objects(digest_of(found))
    with team.together():
        if len({*digests}) > 1:
            of_first = team.broadcast_object(found)
            if digests[team.rank_in_team] != digests[0]:
                what = listed([*names_of_unlike([of_first, found])]) or "provenance"
                me = f"worker {team.rank_in_team} on {host_name()}"
                raise ConfigError(
                    f"{me} has found inputs that differ from worker 0's ({what}); "
                    "start all workers with the same config, options, files and version, once all hosts see the files"
                )
    return team.broadcast_object(provenance)


def _claim(work: Work, launch: Launch, output: OutputDirectory, team: Team) -> Result | None:
    """Make the output directory ours; return the finished result of this very run that it may hold."""
    in_group = is_worker_of_a_group()
    for message in [*startup_warnings(work.inputs), *(advice_on_restarts(os.environ) if in_group else ())]:
        work.observer.warn(message)
    if in_group and launch.workers not in (None, team.size):
        raise LaunchError(
            f"{workers_option(launch.workers or 0)}: the group has {team.size} workers; leave the number out"
        )
    if launch.url is not None:
        refuse_another_result(launch.url, digest_of(work.provenance), overwrite=launch.overwrite)
    check = partial(_check_memory, work, _num_workers(work, launch))
    if not launch.is_kept:
        check()
        make_folder(output.path)
        return None
    finished = output.claim(work.provenance, check, overwrite=launch.overwrite)
    if finished is not None:
        work.observer.note(f"{output.path}: already complete; showing the saved result; {OVERWRITE} recomputes it")
    elif output.can_go_on:
        work.observer.note(f"{output.path}: resuming an earlier run ({what_is_saved(work)})")
    return finished


def _check_memory(work: Work, num_workers: int) -> None:
    """Refuse a limit that is known to be too small; workers check again with what they hold themselves."""
    held = resident_bytes() if num_workers == 1 else 0
    check_memory(work.inputs, work.protocol, held, torch.device("cuda" if num_gpus(work.device) else "cpu"))


def _num_workers(work: Work, launch: Launch) -> int:
    """Return how many workers this process is or starts."""
    return 1 if is_worker_of_a_group() else launch.workers or _default_workers(work.inputs, work.protocol, work.device)


def _work(work: Work, launch: Launch, output: OutputDirectory, team: Team) -> Result | None:
    """Do this worker's part, or start local workers and wait for them; return the report on worker 0."""
    num_workers = _num_workers(work, launch)
    goes_on = output.can_go_on
    try:
        with nullcontext() if is_worker_of_a_group() else ended_by_signals():
            if num_workers == 1:
                outcome = do_work(work, team)
            else:
                warn = work.observer.warn
                outcome = start_local_workers(work_as_local_worker, (work,), num_workers, warn, launch.server)[0]
        return _conclude(outcome, output, work, launch.is_kept) if team.rank_in_team == 0 else None
    except EvalError as error:
        if not isinstance(error, IncompleteError):
            # What was done before this command is not lost, nor what a run can go on from with more memory.
            if goes_on or all(fault.startswith(MAX_MEMORY) for fault in error.faults):
                _keep_or_release(output)
            else:
                output.release()
            raise error from None
        raise IncompleteError(*error.faults, _left(work, output)) from None
    except KeyboardInterrupt:
        if not launch.is_kept or is_worker_of_a_group():  # others may be writing their results
            raise
        raise KeyboardInterrupt(f"Interrupted. {_left(work, output)}") from None


def _left(work: Work, output: OutputDirectory) -> str:
    """Leave the directory of a run that has ended before its end, and return what is in it and what to do."""
    left = f"{work.output}: the run is incomplete ({what_is_saved(work)}; the rest is repeated)."
    left += f" {_advice_on_rest(work.inputs)}"
    if output.owner.is_held and not output.can_go_on:  # so nothing is kept
        left = f"{work.output}: nothing was finished yet; the same command begins again."
    _keep_or_release(output)
    return left


def _advice_on_rest(inputs: Inputs) -> str:
    """Return what to do about a run that is incomplete."""
    if can_be_resumed(inputs):
        return "Run the same command again to resume."
    return f"Runs of functions are not resumed; {OVERWRITE} starts anew."


def _default_workers(inputs: Inputs, protocol: Protocol, device: str) -> int:
    """Return one worker for each GPU; without one, as many as the cores, the config and the work allow."""
    gpus = num_gpus(device)
    if gpus:  # more would take turns on the GPUs, and each needs room there
        return gpus
    num_shares = inputs.numbering.num_entities // ROWS_PER_PROCESS + 1 if protocol.sweeps else len(protocol.units)
    return max(1, min(num_cores(), inputs.config.workers or num_cores(), num_shares))


def _keep_or_release(output: OutputDirectory) -> None:
    """Leave the directory, if it is ours, to a run that goes on from what is done, or as it was if nothing is."""
    if output.owner.is_held and output.can_go_on:
        output.suspend()
    else:
        output.release()


def _conclude(outcome: Result | EvalError | None, output: OutputDirectory, work: Work, is_kept: bool) -> Result:
    """Write the result if it is kept, and then what the config's sinks want of it; or raise the faults."""
    if isinstance(outcome, EvalError):
        raise (IncompleteError if isinstance(outcome, IncompleteError) else EvalError)(*outcome.faults)
    if outcome is None:
        raise RuntimeError("the evaluation ended without a result")
    result = evolve(outcome, path=output.path)
    result = with_sections(result, work.inputs.buckets, work.inputs.training_buckets)
    if not is_kept:
        output.owner.release()
        return result
    if work.protocol.saves_ranks:
        for path_index, edges in work.inputs.edges_in_memory().items():
            edges.save(kept_edges_path(output.path, path_index), output.owner.check)
    output.write(result, summary_of(result.document))
    try:
        if work.inputs.config.sinks:
            earlier = output.files_of_sinks()
            send_to_tensorboard(result, work.observer.warn)
            output.list_files(output.files_of_sinks() - earlier)
    except OutputError as error:
        work.observer.warn(f"{error}; the result itself is complete")
    finally:
        output.owner.release()
    return result


def output_of(config: EvalConfig, output: Path | None = None) -> Path:
    """Return where the result of a config goes, given or not, after checking all that is read.

    Raises:
        EvalError: errors of the user's, found in headers and in files of edges by name.
    """
    with inputs_of_config(config, output) as inputs:
        default = _default_output(config, provenance_of(inputs))
    return output or default


def plan_evaluation(
    config: EvalConfig,
    workers: int | None = None,
    device: str = "auto",
    observer: Observer | None = None,
    output: str | PathLike[str] | None = None,
    server: WorkerServer | None = None,
) -> tuple[str, RunPlan]:
    """Return the devices that a run of a config on this host uses, and what it takes; nothing is kept of it.

    As many workers as the run has measure at the same time; a `server` forks them.

    Files of edges by name are converted, as in the run, unless an earlier run to the same place has done it. What is
    converted here is not kept.

    Raises:
        EvalError: as `output_of`; or `max_memory` is too small.
    """
    launch = Launch.from_arguments(output, workers, device, overwrite=False, observer=observer, server=server)
    places = [DEFAULT_OUTPUTS] if launch.output is None else [launch.output, launch.output.parent]
    with ExitStack() as stack:
        folder = stack.enter_context(temporary_folder())
        local = stack.enter_context(local_copies(config, read_in_place=True))
        begun = time.perf_counter()
        made = [place / IMPORTED for place in places]
        buckets = stack.enter_context(in_buckets(local, folder / "output", launch.observer, made_by_others=made))
        converting = time.perf_counter() - begun if files_of_edges(config) else 0.0
        inputs = open_inputs(buckets)
        protocol = make_protocol(inputs)
        num_workers = workers or _default_workers(inputs, protocol, device)
        plan = plan_alone(inputs, protocol, device, num_workers, launch.observer, server)
        devices = [WorkerDevice.from_device(choose_device(device, rank)) for rank in range(num_workers)]
        return describe_devices(devices, device), evolve(plan, converting_seconds=converting)


@contextmanager
def inputs_of_config(
    config: EvalConfig, output: Path | None = None, made_by_others: Sequence[Path] = ()
) -> Iterator[Inputs]:
    """Open what a config names, objects in place.

    Args:
        config: checked.
        output: the output directory, which buckets of files of edges go to; None: the default one.
        made_by_others: further folders `imported`, whose buckets are used if they are of these files.

    Raises:
        EvalError: as `output_of`.
    """
    with ExitStack() as stack:
        local = stack.enter_context(local_copies(config, read_in_place=True))
        yield open_inputs(stack.enter_context(in_buckets(local, output, Observer(), made_by_others=made_by_others)))


def in_buckets(
    config: EvalConfig,
    output: Path | None,
    observer: Observer,
    model: Model | None = None,
    *,
    made_by_others: Sequence[Path] = (),
) -> AbstractContextManager[EvalConfig]:
    """Give the config with folders of buckets in place of files of edges. Importers are imported only here."""
    if not files_of_edges(config):
        return nullcontext(config)
    from pbgeval.inputs.edge_files import buckets_of_files

    return buckets_of_files(config, output, observer, model, made_by_others=made_by_others)


def _default_output(config: EvalConfig, provenance: Mapping[str, Any]) -> Path:
    """Return where a run goes by default: the folder that it has, or one that no other run has.

    The digest makes the name unique. It is short, for people; where another run has the name, it is longer.
    """
    digest, done = digest_of(provenance), f"{_policy_of(config)}-{'filtered' if config.filtered else 'raw'}"
    if config.samples_edges:
        done += f"-sample{config.sample_edges or ''}"
    folders = [DEFAULT_OUTPUTS / f"{config.name}-{done}-{digest[:length]}" for length in DIGEST_LENGTHS]
    held = [digest_in(folder) for folder in folders]
    own = [folder for folder, its_digest in zip(folders, held, strict=True) if its_digest == digest]
    free = [folder for folder, its_digest in zip(folders, held, strict=True) if its_digest is None]
    return [*own, *free, *folders][0]


def _policy_of(config: EvalConfig) -> str:
    """Return which candidates compete, in a word."""
    if config.candidate_path is not None:
        return "lists"
    policies = {config.candidates_of(relation) for relation in config.relations}
    return policies.pop() if len(policies) == 1 else "mixed"


# URLs and files of edges by name in a group: each host copies objects once, worker 0 makes buckets of the files.


@contextmanager
def _inputs_of_group(config: EvalConfig, output: Path | None, observer: Observer) -> Iterator[tuple[Inputs, Team]]:
    """Join the group; yield the inputs, with folders in place of URLs and files, to every worker.

    Raises:
        EvalError: the faults of any worker, on every worker; the group has ended then.
    """
    team = Team.join()
    with ExitStack() as stack:
        with team.signs_of_life():  # the evaluation gives its own
            mine = stack.enter_context(local_copies(config, team))
            buckets = in_buckets(mine, output, observer)
            with team.together():
                made = stack.enter_context(buckets) if team.rank_in_team == 0 else None
            of_worker_0 = team.broadcast_object(made)
            # Worker 0's folders stand for files of edges; copies of objects are this host's own.
            paths: dict[str, Any] = {
                key: [b if names_file_of_edges(a) else a for a, b in zip(getattr(mine, key), theirs, strict=True)]
                for key in EDGE_PATHS
                for theirs in [getattr(of_worker_0, key)]
            }
            paths |= {"entity_path": mine.entity_path, "checkpoint_path": mine.checkpoint_path}
            with team.together():
                inputs = open_inputs(evolve(of_worker_0, **paths))
        yield inputs, team
