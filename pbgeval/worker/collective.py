"""Steps that all workers take together: the fault of one stops all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pbgeval.cluster.liveness import Watch
from pbgeval.cluster.team import Team
from pbgeval.errors import FEWER_WORKERS, EvalError, IncompleteError, OutputError, StorageError, lack_of_memory

_ADVICE = f"set max_memory, or use {FEWER_WORKERS}"


@contextmanager
def collectively(team: Team, watch: Watch | None = None) -> Iterator[None]:
    """Do what is inside on every worker, and go on only if no worker has met a fault of the user's.

    Every worker takes part; afterwards each knows that all have finished, so it is a barrier too.

    Args:
        team: of all workers.
        watch: to which the step reports its progress, so that finished workers notice one that stalls.

    Raises:
        StalledWorkerError: a worker has made no progress for too long.
        IncompleteError: the faults of all workers, on every worker, where all of them are transient.
        EvalError: the faults of all workers, on every worker, where some are faults of the input.
    """
    faults: tuple[str, ...] = ()
    is_transient = True
    try:
        yield
    except EvalError as error:
        faults, cause = error.faults, error.__cause__
        # Nothing is wrong with the run where a disk is full or a file has gone for now. HDF5 reports damaged data as
        # an error of the system too, but without its number.
        is_of_system = isinstance(cause, OSError) and cause.errno is not None
        is_transient = isinstance(error, IncompleteError | OutputError) or (
            isinstance(error, StorageError) and is_of_system
        )
    except (MemoryError, RuntimeError) as error:
        found = lack_of_memory(error)
        if found is None:
            raise
        on_gpu = "CUDA" in str(error)
        advice = f"stop other programs that use the GPU, use {FEWER_WORKERS}, or use device cpu" if on_gpu else _ADVICE
        faults = (
            f"worker {team.rank_in_team}: expected enough memory{' on its GPU' * on_gpu} ({advice}), got: {found}",
        )
    if faults:
        team.add("faults", 1)
    if watch is not None:
        watch.wait_for_all()
    of_workers = team.gather_objects((faults, is_transient))
    all_faults = dict.fromkeys(fault for of_worker, _ in of_workers for fault in of_worker)
    if all_faults:
        raise (IncompleteError if all(transient for _, transient in of_workers) else EvalError)(*all_faults)
