"""Every exception that pbgeval raises on purpose.

An `EvalError` is the user's fault: it becomes one line per fault on stderr and exit status 1 (75: incomplete).
Anything else that escapes is a bug of ours and keeps its traceback.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

_OUT_OF_MEMORY = re.compile("can't allocate memory|not enough memory|out of memory")
_TORCH_ADVICE = re.compile(r"( of which \S+ \w+ is free)\..*")  # torch appends advice about its own settings

INCOMPLETE_STATUS = 75  # EX_TEMPFAIL: run again to go on
OVERWRITE = "--overwrite (in Python: overwrite=True)"  # what messages of both interfaces advise
MAX_MEMORY = "max_memory:"  # how faults begin that more memory mends: what a run has finished is kept
FEWER_WORKERS = "fewer --workers (in Python: workers)"
TRAIN_PATHS = "train_paths (for arrays: train=[...])"  # the same


def workers_option(number: int) -> str:
    """Name a number of workers, for users of the command and of Python."""
    return f"--workers {number} (in Python: workers={number})"


class EvalError(Exception):
    """One or more faults of the user's: each line says where, what was expected, what was found.

    Examples:
        >>> import pbgeval
        >>> try:
        ...     pbgeval.evaluate("eval.py", overrides=["hits_at=0"])
        ... except pbgeval.EvalError as error:
        ...     print(error.faults[0])
        ...
        -p hits_at=0: hits_at[0]: expected an int >= 1, got 0
    """

    def __init__(self, *faults: str) -> None:
        super().__init__("\n".join(faults))
        self.faults: tuple[str, ...] = faults

    def __reduce__(self) -> tuple[type[EvalError], tuple[str, ...]]:
        return type(self), self.faults


def lack_of_memory(error: BaseException) -> str | None:
    """Return what an exception says of a lack of memory, here or on a GPU; None: it is about something else."""
    is_named = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    if not is_named and not (isinstance(error, RuntimeError) and _OUT_OF_MEMORY.search(str(error))):
        return None
    return _TORCH_ADVICE.sub(r"\1", str(error).partition("\n")[0]) or type(error).__name__


class ConfigError(EvalError):
    """The configuration file, an override or a combination of settings is wrong."""


class StorageError(EvalError):
    """A data file is missing, unreadable, or does not hold what it should."""


class MismatchError(StorageError):
    """The files of a checkpoint are not those that the config describes."""


class DataError(EvalError):
    """A data file is readable but what it holds cannot be ranked: ids out of range, NaN, zero vectors."""


class UnrankableError(DataError):
    """What a model holds has no rank: NaN, infinity, zero vectors under cos, scores that overflow."""


class ScorerError(EvalError):
    """A model that was handed in does not score as it should: another shape, no numbers, another score each time."""


class LowPrecisionError(EvalError):
    """This machine's libraries have been told to multiply in a lower precision than the numbers have."""


class OutputError(EvalError):
    """The output directory belongs to another run, is unfinished, or cannot be written."""


class JournalError(EvalError):
    """The journal of an unfinished run is not one that this program can go on from."""


class LaunchError(EvalError):
    """Workers could not be started, or do not fit together."""


class IncompleteError(EvalError):
    """The run is incomplete; the same command resumes it. Exit status 75."""


def install(package: str) -> str:
    """Return the command that adds a missing package, in any folder; extras of pbgeval itself need its clone."""
    return f"pip install {package}"


@contextmanager
def required(kind: type[EvalError], purpose: str, package: str) -> Iterator[None]:
    """Name the package of the library which the context imports, if it is not installed."""
    try:
        yield
    except ImportError:
        raise kind(f"{purpose}: {install(package)}") from None


class Faults(list[str]):
    """Faults that are raised together, once all have been found."""

    @contextmanager
    def noted(self, kind: type[EvalError] = EvalError, most: int | None = None) -> Iterator[None]:
        """Add the faults of an error that the context raises: all, or the first ones."""
        try:
            yield
        except kind as error:
            self.extend(error.faults[:most])

    def raise_any(self, kind: type[EvalError]) -> None:
        """Raise all faults, if there are any."""
        if self:
            raise kind(*self)
