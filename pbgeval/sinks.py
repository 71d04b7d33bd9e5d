"""Named values by step -> a line of JSON, or a run of TensorBoard in a folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

from attrs import field, frozen

from pbgeval.errors import OutputError, install

Log = Callable[[int, Mapping[str, float]], None]  # takes the values of a step; steps do not decrease


@frozen
class LoggedRun:
    """What a sink says of a run beside its figures."""

    name: str
    settings: Mapping[str, str | int | float | bool | None] = field(factory=dict)


def line_of(run: LoggedRun, step: int, values: Mapping[str, float]) -> str:
    """Return the line of a step, which every result has."""
    return json.dumps(
        {"run": run.name, "settings": dict(run.settings), "step": step, "values": dict(values)},
        sort_keys=True,
        allow_nan=False,
    )


TENSORBOARD = "tensorboard"  # the sink, its package and its folder


def missing_tensorboard() -> str | None:
    """Return what is wrong if TensorBoard is not installed, None if it is."""
    if find_spec(TENSORBOARD) is not None:
        return None
    return f"{TENSORBOARD} is required for the sink {TENSORBOARD}: {install(TENSORBOARD)}"


@contextmanager
def open_tensorboard(folder: Path, run: LoggedRun) -> Iterator[Log]:
    """Open an event file in a folder; yield what takes the values of a step.

    At the end everything is on the disk, and no thread of the library runs on, even after a fault.

    Raises:
        OutputError: the file cannot be written; says what came first.
    """
    stack, what = ExitStack(), "an event file of TensorBoard"

    def log(step: int, values: Mapping[str, float]) -> None:
        with library_faults(TENSORBOARD, what, folder):
            for name, value in values.items():
                writer.add_scalar(name, value, step)
            writer.flush()

    with library_faults(TENSORBOARD, what, folder):
        from torch.utils.tensorboard import SummaryWriter

        try:
            # Each process writes a file of its own. A thread writes later, wherever the process is then.
            writer = SummaryWriter(str(folder.absolute()))
            stack.callback(writer.close)
            if run.settings:
                rows = "".join(f"| {name} | {value} |\n" for name, value in run.settings.items())
                writer.add_text("run", f"| {run.name} | |\n|---|---|\n{rows}", 0)
            yield log
        except BaseException:
            with suppress(Exception):
                stack.close()
            raise
        stack.close()


@contextmanager
def library_faults(package: str, what: str, folder: Path) -> Iterator[None]:
    """Turn what a library says is wrong with what is written into a fault of one line; anything else is a bug."""
    try:
        yield
    except Exception as error:
        is_of_library = type(error).__module__.partition(".")[0] == package
        if not is_of_library and not isinstance(error, OSError | RuntimeError | ValueError):
            raise
        text = getattr(error, "strerror", None) or f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise OutputError(f"{folder}: cannot write {what}: {text}") from error
