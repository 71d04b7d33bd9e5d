"""A directory that a run works in -> a call whenever its result changes, until the run is complete."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path

from pbgeval.distributed.ownership import HEARTBEAT, HEARTBEAT_SECONDS, MISSED_HEARTBEATS, OWNER
from pbgeval.errors import OutputError
from pbgeval.report.output import METRICS

SECONDS = 1.0  # between two looks
PATIENCE = HEARTBEAT_SECONDS * (MISSED_HEARTBEATS + 1)  # seconds without a sign of life


def follow(folder: Path, draw: Callable[[], bool], *, seconds: float = SECONDS, patience: float = PATIENCE) -> bool:
    """Draw now, and again whenever the result changes; return whether it has become complete.

    False: nobody has worked here for `patience` seconds: no owner's heart beats, and nothing changes.

    Args:
        folder: an output directory.
        draw: draws the result as it is; returns whether it is complete.
        seconds: between two looks.
        patience: in seconds.

    Raises:
        OutputError: what is there is no result.
    """
    drawn, alive, last_sign = _state(folder, [METRICS]), _state(folder, [OWNER, HEARTBEAT]), time.monotonic()
    if draw():
        return True
    while time.monotonic() - last_sign < patience:
        time.sleep(seconds)
        result, owner = _state(folder, [METRICS]), _state(folder, [OWNER, HEARTBEAT])
        if (result, owner) == (drawn, alive):
            continue
        last_sign, alive = time.monotonic(), owner
        if result != drawn and _draw_if_there(folder, draw):
            return True
        drawn = result
    return False


def _draw_if_there(folder: Path, draw: Callable[[], bool]) -> bool:
    """Draw, unless the run puts the file aside meanwhile, to begin anew, or has another in its place again."""
    before = _state(folder, [METRICS])
    try:
        return draw()
    except OutputError:
        if before == _state(folder, [METRICS]) != [None]:
            raise
        return False


def _state(folder: Path, names: Iterable[str]) -> list[tuple[int, int, int] | None]:
    """Return what changes when a file is replaced; None for one that is not there."""
    found: list[tuple[int, int, int] | None] = []
    for name in names:
        try:
            status = (folder / name).stat()
        except OSError:
            found.append(None)
        else:
            found.append((status.st_ino, status.st_mtime_ns, status.st_size))
    return found
