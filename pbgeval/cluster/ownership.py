"""One run per directory: a file that says who works there, and whether that one still lives.

The file is made exclusively, so of two that start at the same time one owns the directory. An owner on this host is
looked up by process and start time; one on another host is alive as long as its heartbeat changes, by the clock of
whoever watches, so clocks need not agree. The same scheduler's job, requeued, takes over from itself at once.
"""

from __future__ import annotations

import json
import os
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from attrs import define, field, frozen

from pbgeval.errors import IncompleteError, OutputError
from pbgeval.storage.writing import create_exclusively, remove_files, write_atomically

OWNER = "owner.json"
HEARTBEAT = "owner.heartbeat"
HEARTBEAT_SECONDS = 10.0
MISSED_HEARTBEATS = 3
_KEYS = ("host", "boot", "namespace", "process", "started", "job", "nonce")
_BEGINNING = f'{{"{_KEYS[0]}": "'  # of the file
_JOB_VARIABLES = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID", "TORCHELASTIC_RUN_ID")


def scheduler_job(environment: Mapping[str, str]) -> str | None:
    """Return what names this job over restarts and requeues: the scheduler's number, or the run id of torchrun."""
    for name in _JOB_VARIABLES:
        value = environment.get(name, "")
        if value and value != "none":  # torchrun's default run id
            return f"{name}={value}"
    return None


def describe_process(host: str, environment: Mapping[str, str]) -> dict[str, Any]:
    """Return what tells this process from all others, over restarts of the host too."""
    return {
        "host": host,
        "boot": _boot_id(),
        "namespace": _process_namespace(),
        "process": os.getpid(),
        "started": _start_time(os.getpid()),
        "job": scheduler_job(environment),
        "nonce": uuid.uuid4().hex,
    }


@frozen
class Claim:
    """What tells whose a directory is, for workers of the owner's too."""

    folder: Path  # absolute
    nonce: str

    @property
    def is_held(self) -> bool:
        """Whether the directory is ours still: a host that was cut off may have been taken for dead."""
        owner = _read(self.folder / OWNER)
        return owner is not None and bool(owner["nonce"] == self.nonce)

    def check(self) -> None:
        """Make sure that the directory is ours still.

        Raises:
            IncompleteError: another run has taken over, or the directory was removed.
        """
        if not self.is_held:
            raise IncompleteError(f"{self.folder}: expected to own this directory, but another run has taken it over")


@define
class Ownership:
    """A claim to a directory; held until `release`, or until the process ends."""

    folder: Path
    me: dict[str, Any]
    say: Callable[[str], None]  # is told that an owner on another host must be watched for a while
    _place: Path = field(init=False, repr=False)  # of the folder, wherever the process works later
    _stop: threading.Event = field(factory=threading.Event, init=False, repr=False)
    _thread: threading.Thread | None = field(default=None, init=False, repr=False)

    @_place.default
    def _absolute(self) -> Path:
        return self.folder.absolute()

    def acquire(self) -> None:
        """Become the owner.

        Raises:
            OutputError: somebody else works here, or the directory cannot be written.
        """
        while not self._create():
            owner = _read(self.folder / OWNER)
            if owner is not None and self._is_alive(owner):
                raise OutputError(
                    f"{self.folder}: expected no other run here, found one that is alive (process {owner['process']} "
                    f"on {owner['host']}); wait for its end, or choose another --output"
                )
            if is_of_others(self.folder / OWNER):
                raise OutputError(
                    f"{self.folder / OWNER}: this file is not of a run; move it away, or choose another --output"
                )
            self._depose(owner)
        try:
            self._beat()
        except (OutputError, IncompleteError):
            self.release()
            raise
        self._thread = threading.Thread(target=self._keep_beating, name="heartbeat", daemon=True)
        self._thread.start()

    def _create(self) -> bool:
        try:
            return create_exclusively(self.folder / OWNER, json.dumps(self.me))
        except OutputError as error:
            raise OutputError(f"{error}; choose another --output") from error

    @property
    def claim(self) -> Claim:
        """What others may check by; it holds from `acquire` on."""
        return Claim(self._place, self.me["nonce"])

    @property
    def is_held(self) -> bool:
        """Whether the directory is ours still."""
        return self.claim.is_held

    def check(self) -> None:
        """Raise IncompleteError if it is not."""
        self.claim.check()

    def release(self) -> None:
        """Leave the directory to others."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
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
        self.say(f"{self.folder}: was in use on {owner['host']}; watching for {seconds:g} s whether that run is alive")
        before, until = self._heartbeat(), time.monotonic() + seconds
        while time.monotonic() < until:
            time.sleep(min(1.0, HEARTBEAT_SECONDS / 4))
            if self._heartbeat() != before:
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
            found = _read(self.folder / OWNER)
            if (found or {}).get("nonce") == (dead or {}).get("nonce"):
                remove_files(self.folder, [OWNER])
        finally:
            marker.unlink(missing_ok=True)

    def _heartbeat(self) -> str | None:
        try:
            return (self.folder / HEARTBEAT).read_text(encoding="utf-8")
        except OSError:
            return None

    def _beat(self) -> None:
        write_atomically(self._place / HEARTBEAT, f"{self.me['nonce']} {time.time()}", check=self.check)

    def _keep_beating(self) -> None:
        while not self._stop.wait(HEARTBEAT_SECONDS):
            try:
                self._beat()
            except (OutputError, IncompleteError):
                # A full disk, say: the work itself will say so. Or the folder was removed, and must not come back, or
                # somebody else's heart beats here.
                continue


def is_of_others(path: Path) -> bool:
    """Tell whether a file of the owner's name is none that a run has written, not even a part of it."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return not (text.startswith(_BEGINNING) or _BEGINNING.startswith(text))


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and set(_KEYS) <= set(found) else None


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:  # no Linux
        return ""


def _process_namespace() -> str:
    """Return what tells containers of one host apart: a process number of one means nothing in another."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _start_time(process: int) -> str | None:
    """Return when a process of this host started, in the system's ticks; None if there is none (or no /proc)."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else fields[19]
