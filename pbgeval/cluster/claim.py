"""One run per directory: a file names the run that works there, and shows whether that run is still alive.

The file is created exclusively, so of two runs that start at the same time one owns the directory. An owner on this
host is looked up by process and start time. An owner on another host is alive as long as its heartbeat changes; the
observer measures that by its own clock, so clocks need not agree. A requeued job takes over from itself at once.
"""

from __future__ import annotations

import json
import os
import re
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from attrs import Factory, field, frozen

from pbgeval.cluster.liveness import repeated
from pbgeval.errors import IncompleteError, OutputError
from pbgeval.storage.json_files import parse_json
from pbgeval.storage.shapes import COUNT, TEXT, Keys, Leaf, OrNull, misfits
from pbgeval.storage.writing import create_exclusively, remove_files, write_atomically

OWNER = "owner.json"
HEARTBEAT = "owner.heartbeat"
HEARTBEAT_SECONDS = 10.0
MISSED_HEARTBEATS = 3
_BEGINNING = '{"host": "'  # of the file
_NONCE = Leaf("32 hex digits", lambda value: isinstance(value, str) and re.fullmatch("[0-9a-f]{32}", value) is not None)
_SHAPE = Keys(
    {
        **dict.fromkeys(("host", "boot", "namespace"), TEXT),
        "process": COUNT,
        **dict.fromkeys(("started", "job"), OrNull(TEXT)),
        "nonce": _NONCE,  # it becomes a part of a file's name
    }
)
_JOB_VARIABLES = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID", "TORCHELASTIC_RUN_ID")


def scheduler_job(environment: Mapping[str, str]) -> str | None:
    """Return what names this job over restarts and requeues: the scheduler's number, or the run id of torchrun."""
    jobs = ((name, environment.get(name, "")) for name in _JOB_VARIABLES)
    return next((f"{name}={job}" for name, job in jobs if job not in ("", "none")), None)  # torchrun's default run id


def describe_process(host: str, environment: Mapping[str, str]) -> dict[str, Any]:
    """Return what tells this process from all others, over restarts of the host too."""
    try:
        # Tells containers of one host apart: a process number of one means nothing in another.
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:  # no Linux
        namespace = ""
    return {
        "host": host,
        "boot": (_text(Path("/proc/sys/kernel/random/boot_id")) or "").strip(),
        "namespace": namespace,
        "process": os.getpid(),
        "started": _start_time(os.getpid()),
        "job": scheduler_job(environment),
        "nonce": uuid.uuid4().hex,
    }


@frozen
class Claim:
    """What tells whose a directory is, for workers of the owner's too."""

    folder: Path
    me: dict[str, Any]  # of `describe_process`
    # A file; when it has gone, so have arrays that units are computed from. Whose claim has one looks at that alone.
    lease: Path | None = field(default=None, kw_only=True)
    _place: Path = field(  # of the folder, wherever the process works later
        init=False, repr=False, default=Factory(lambda self: self.folder.absolute(), takes_self=True)
    )

    @property
    def is_held(self) -> bool:
        """Whether the directory is ours still: a host that was cut off may have been taken for dead."""
        owner = _read(self._place / OWNER)
        return owner is not None and bool(owner["nonce"] == self.me["nonce"])

    def check(self) -> None:
        """Make sure that what we work on is ours still: else results are not to be trusted, nor to be written.

        Raises:
            IncompleteError: worker 0 has ended meanwhile, another run has taken over, or the directory was removed.
        """
        if self.lease is not None and not self.lease.exists():
            raise IncompleteError(
                f"{self.lease}: the files that workers share were removed; worker 0 has ended, or another run has "
                "taken over"
            )
        if self.lease is None and not self.is_held:
            raise IncompleteError(f"{self.folder}: another run has taken over this directory")


@frozen
class Ownership(Claim):
    """A claim of the process that makes it; held from `acquire` until `release`, or until the process ends."""

    say: Callable[[str], None]  # is told that an owner on another host must be watched for a while
    _heart: ExitStack = field(factory=ExitStack, init=False, repr=False)

    def acquire(self) -> None:
        """Become the owner.

        Raises:
            OutputError: another run works here, or the directory cannot be written.
        """
        while not create_exclusively(self.folder / OWNER, json.dumps(self.me)):
            owner = _read(self.folder / OWNER)
            if owner is not None and self._is_alive(owner):
                raise OutputError(
                    f"{self.folder}: another run is writing here (process {owner['process']} on {owner['host']}); wait "
                    "for its end, or choose another output"
                )
            if is_of_others(self.folder / OWNER):
                raise OutputError(
                    f"{self.folder / OWNER}: no run wrote this file; move it away, or choose another output"
                )
            self._depose(owner)
        try:
            self._beat()
        except (OutputError, IncompleteError):
            self.release()
            raise
        self._heart.enter_context(repeated(self._beat_if_possible, HEARTBEAT_SECONDS))

    def release(self) -> None:
        """Leave the directory to others."""
        self._heart.close()
        if self.is_held:
            remove_files(self.folder, [HEARTBEAT, OWNER])

    def _is_alive(self, owner: dict[str, Any]) -> bool:
        if owner["host"] == self.me["host"] and owner["boot"] != self.me["boot"]:
            return False  # the host was started anew
        if owner["host"] == self.me["host"] and owner["namespace"] == self.me["namespace"]:
            return bool(_start_time(owner["process"]) == owner["started"])
        if owner["job"] is not None and owner["job"] == self.me["job"]:
            return False
        seconds = HEARTBEAT_SECONDS * MISSED_HEARTBEATS
        self.say(f"{self.folder} was in use on {owner['host']}; checking for {seconds:g} s whether that run is alive")
        before, until = _text(self.folder / HEARTBEAT), time.monotonic() + seconds
        while time.monotonic() < until:
            time.sleep(min(1.0, HEARTBEAT_SECONDS / 4))
            if _text(self.folder / HEARTBEAT) != before:
                return True
        return False

    def _depose(self, dead: dict[str, Any] | None) -> None:
        """Remove the file of an owner that is dead, or a damaged one; of many newcomers one does.

        Whoever makes the marker of the dead one may remove its file. A newcomer that is late finds another owner there.
        """
        marker = self.folder / f".{OWNER}.{dead['nonce'] if dead is not None else 'damaged'}"
        if not create_exclusively(marker, self.me["nonce"]):
            time.sleep(0.05)
            with suppress(OSError):  # the other one is done
                if time.time() - marker.stat().st_mtime > HEARTBEAT_SECONDS:
                    marker.unlink()  # it has died in between
            return
        try:
            if (_read(self.folder / OWNER) or {}).get("nonce") == (dead or {}).get("nonce"):
                remove_files(self.folder, [OWNER])
        finally:
            marker.unlink(missing_ok=True)

    def _beat(self) -> None:
        write_atomically(self._place / HEARTBEAT, f"{self.me['nonce']} {time.time()}", self.check)

    def _beat_if_possible(self) -> None:
        # A full disk, for example: the work itself reports it. Or the folder was removed and must not come back, or
        # another process writes heartbeats here.
        with suppress(OutputError, IncompleteError):
            self._beat()


@frozen
class SoleOwnership(Ownership):
    """Of a folder that this process has made and will remove: no other run knows of it, so nothing is written there."""

    @property
    def is_held(self) -> bool:
        return True

    def acquire(self) -> None:
        """Have nothing to do."""

    def release(self) -> None:
        """Have nothing to do."""


def leftovers_of(folder: Path) -> list[str]:
    """Return the names of files that processes were killed while they wrote, to become or to keep alive an owner.

    They are older than any process may take; the times of the file system are compared with each other.
    """
    with suppress(OSError):
        now = (folder / OWNER).stat().st_mtime
        seconds = 2 * HEARTBEAT_SECONDS * MISSED_HEARTBEATS
        return [path.name for path in folder.glob(".owner.*") if now - path.stat().st_mtime > seconds]
    return []


def is_of_others(path: Path) -> bool:
    """Tell whether a file of the owner's name is none that a run has written, not even a part of it."""
    text = _text(path)
    return text is not None and not (text.startswith(_BEGINNING) or _BEGINNING.startswith(text))


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found = parse_json(_text(path) or "")
    except ValueError:
        return None
    return None if any(misfits(found, _SHAPE)) else found


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def _start_time(process: int) -> str | None:
    """Return when a process of this host started, in the system's ticks; None if there is none (or no /proc)."""
    text = _text(Path(f"/proc/{process}/stat"))
    fields = [] if text is None else text.rpartition(")")[2].split()
    return None if not fields or fields[0] == "Z" else fields[19]
