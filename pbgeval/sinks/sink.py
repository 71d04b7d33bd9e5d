"""What every place where figures go has in common: a run is opened, values are logged by step, it is closed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

from attrs import field, frozen

from pbgeval.errors import OutputError


@frozen
class RunFacts:
    """What a sink says of a run beside its figures."""

    name: str
    settings: Mapping[str, str | int | float | bool | None] = field(factory=dict)


class Sink(Protocol):
    """Where figures go. One process writes; each method raises OutputError if it cannot."""

    def open(self, run: RunFacts) -> None:
        """Begin a run; before that nothing is written."""
        ...

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Take the values of a step; steps do not decrease."""
        ...

    def close(self) -> None:
        """Wait until everything is on the disk; nothing follows.

        Also where opening or logging failed: what the library runs beside us (threads, processes) ends here.
        """
        ...


@contextmanager
def closed_on_failure(sink: Sink) -> Iterator[None]:
    """Close a sink that cannot be written, so that nothing of it runs on; the first fault is the one that is told."""
    try:
        yield
    except OutputError:
        with suppress(OutputError):
            sink.close()
        raise


@contextmanager
def library_faults(what: str, folder: Path, *of_library: type[Exception]) -> Iterator[None]:
    """Turn what a library says is wrong into a fault of one line; anything else is a bug.

    Args:
        what: is written.
        folder: where it is.
        of_library: the library's own exceptions, which need not be those of Python.
    """
    expected: tuple[type[Exception], ...] = (OSError, RuntimeError, ValueError, *of_library)
    try:
        yield
    except expected as error:
        text = getattr(error, "strerror", None) or f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise OutputError(f"{folder}: expected to write {what}, got: {text}") from error
