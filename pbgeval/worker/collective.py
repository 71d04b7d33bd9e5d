"""Steps that all workers take together: the fault of one stops all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pbgeval.cluster.liveness import Watch
from pbgeval.cluster.team import Team
from pbgeval.errors import EvalError, IncompleteError, OutputError, StorageError

_MORE_MEMORY = "expected enough memory (set max_memory, or use fewer --workers)"


@contextmanager
def collectively(team: Team, watch: Watch | None = None) -> Iterator[None]:
    """Do what is inside on every worker, and go on only if no worker has met a fault of the user's.

    Every worker takes part; afterwards each knows that all have finished, so it is a barrier too.

    Args:
        team: of all workers.
        watch: to which the step reports its progress, so that finished workers notice one that stalls.

    Raises:
        StalledWorkerError: a worker has made no progress for too long.
        IncompleteError: the faults of all workers, on every worker, where all of them may pass.
        EvalError: the faults of all workers, on every worker, where some are faults of the input.
    """
    faults: tuple[str, ...] = ()
    passes = True
    try:
        yield
    except EvalError as error:
        faults, passes = error.faults, _may_pass(error)
    except (MemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise
        found = str(error).partition("\n")[0] or type(error).__name__
        faults = (f"worker {team.rank_in_team}: {_MORE_MEMORY}, got: {found}",)
    if faults:
        team.add("faults", 1)
    if watch is not None:
        watch.wait_for_all()
    of_workers = team.gather_objects((faults, passes))
    all_faults = dict.fromkeys(fault for of_worker, _ in of_workers for fault in of_worker)
    if all_faults:
        raise (IncompleteError if all(passing for _, passing in of_workers) else EvalError)(*all_faults)


def _may_pass(error: EvalError) -> bool:
    """Whether nothing is wrong with the run, so that it can go on later: a full disk, a file that has gone for now."""
    cause = error.__cause__
    # HDF5 reports damaged data as an error of the system too, but without its number.
    is_of_system = isinstance(cause, OSError) and cause.errno is not None
    return isinstance(error, IncompleteError | OutputError) or (isinstance(error, StorageError) and is_of_system)


def _is_out_of_memory(error: Exception) -> bool:
    """Whether the system, torch on the CPU or torch on a GPU had no more memory to give."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return any(words in str(error) for words in ("can't allocate memory", "not enough memory", "out of memory"))
