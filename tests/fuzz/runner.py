"""Run cases: each in a forked child of this process, which has imported everything.

    python -m tests.fuzz.runner KIND SEED INDEX...      run cases, say what is wrong with each, keep their folders
    python -m tests.fuzz.runner                         a line "KIND SEED INDEX" on stdin, a line of JSON on stdout

A case fails where the command ends by a traceback or a signal, does not end within 20 s, takes more than 1.5 GB,
prints more than 10 lines or what a terminal obeys, or ends with status 0 and figures that are not right.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import hashlib
import json
import os
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

from attrs import frozen

from pbgeval.cli import main
from pbgeval.errors import INCOMPLETE_STATUS
from tests.fuzz.mutations import ANY, KINDS, READ, REFUSED, Case
from tests.fuzz.originals import contents_of, write_originals
from tests.kit.commands import command_of, run_main

REPOSITORY = Path(__file__).resolve().parents[2]
SECONDS = 20
MAX_BYTES = 3 << 29
MAX_LINES, MAX_CHARACTERS = 10, 10_000
DIE_WITH_PARENT = 1  # of prctl
HARNESS_STATUS, TRACEBACK_STATUS = 97, 98
FIGURES = ("metrics", "raw_metrics", "macro_metrics", "relation_macro_metrics", "intervals", "num_edges", "queries")


@frozen
class End:
    """How a child ended."""

    status: int  # negative: the signal
    output: str
    max_bytes: int
    is_late: bool


def in_child(work: Callable[[], int], output: Path) -> End:
    """Fork; call a function, whose status is the child's, with its output in a file; watch time and memory."""
    pid = os.fork()
    if pid == 0:
        os.setsid()
        ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)
        for descriptor, path in ((0, "/dev/null"), (1, f"{output}.out"), (2, str(output))):
            os.dup2(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600), descriptor)
        os.closerange(3, 64)
        status = HARNESS_STATUS
        try:
            status = work()
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    most, is_late = _watch(pid)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    _, status, usage = os.wait4(pid, 0)
    text = output.read_bytes().decode("utf-8", "backslashreplace")
    return End(os.waitstatus_to_exitcode(status), text, max(most, usage.ru_maxrss << 10), is_late)


def _watch(pid: int) -> tuple[int, bool]:
    """Wait until a child ends, takes too much memory or too long; return its memory, and whether it was the time."""
    ended, most, until = os.pidfd_open(pid), 0, time.monotonic() + SECONDS
    while (
        not (is_late := time.monotonic() > until) and most <= MAX_BYTES and not select.select([ended], [], [], 0.02)[0]
    ):
        most = max(most, int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize())
    os.close(ended)
    return most, is_late


def _run_command(case: Case) -> int:
    """Run a case's command within its limits; write its figures where it has succeeded."""
    out = Path("out")
    out.mkdir()
    if case.disk_bytes is not None:
        _mount_disk(out, case.disk_bytes)
    limits = {resource.RLIMIT_FSIZE: case.file_bytes, resource.RLIMIT_NOFILE: case.num_descriptors}
    before = {number: resource.getrlimit(number) for number in limits}
    for number, limit in limits.items():
        if limit is not None:
            resource.setrlimit(number, (limit, before[number][1]))
    status: object = TRACEBACK_STATUS
    try:
        sys.argv = ["kgeval-dist", *case.arguments]
        main()
    except SystemExit as exit_:
        status = exit_.code
    except BaseException:
        traceback.print_exc()
    for number, limit in before.items():
        resource.setrlimit(number, limit)
    if status == 0:
        Path("figures").write_text(json.dumps(_figures(out / "result")), encoding="utf-8")
    return status if isinstance(status, int) else TRACEBACK_STATUS


def _mount_disk(path: Path, num_bytes: int) -> None:
    """Mount a small disk that this child alone sees; without the right to, limit the files instead."""
    libc = ctypes.CDLL(None, use_errno=True)
    new_mounts, private = 0x20000, 0x44000
    if libc.unshare(new_mounts) or libc.mount(b"none", b"/", None, private, None):
        resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, resource.RLIM_INFINITY))
    else:
        libc.mount(b"tmpfs", os.fsencode(path), b"tmpfs", 0, b"size=%d" % num_bytes)


def _figures(result: Path) -> Any:
    """The numbers of a report, or a digest of every file of a folder."""
    report = result / "metrics.json" if result.is_dir() else result
    if report.is_file():
        document = json.loads(report.read_text(encoding="utf-8"))
        return {key: value for key, value in document.items() if key in FIGURES or "gain" in document}
    files = sorted(path for path in result.rglob("*") if path.is_file() and path.name != "import.json")
    return {str(path.relative_to(result)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


class Runner:
    """Runs cases in folders below one folder."""

    def __init__(self, root: Path) -> None:
        self.root, self._undamaged = root, dict[tuple[str, tuple[str, ...]], str]()
        write_originals(root / "originals")
        mock.patch("os.fsync", os.fstat).start()  # no case stops the machine
        mock.patch("typer.main.get_command", command_of).start()  # half of the time of a refusal
        import duckdb  # noqa: F401
        import rich.console  # noqa: F401

        for original in ("static", "dynamic"):
            for policy in ("sampled", "partition", "all"):
                folder = shutil.copytree(root / "originals" / original, root / f"warm_{original}_{policy}")
                done = run_main("--config", "eval.py", "--workers=1", f"-pcandidates={policy}", cwd=folder)
                assert done.status == 0, done.err
        assert len(os.listdir("/proc/self/task")) == 1, "threads do not survive a fork"
        gc.collect()
        gc.freeze()

    def run(self, kind: str, seed: int, index: int, *, keep: bool = False) -> dict[str, Any]:
        """Run one case; return what is wrong with it, None where nothing is, and what it printed."""
        random = Random(f"{kind} {seed} {index}")
        original = random.choice(KINDS[kind].originals)
        place = self.root / f"{kind}_{seed}_{index}"
        shutil.rmtree(place, ignore_errors=True)
        end = self._in_copy(place, original, lambda: KINDS[kind].mutate(random))
        done = json.loads((place / "case").read_text()) if (place / "case").exists() else ["", [], "", ""]
        later = {
            f"a refusal that does not say {done[3]!r}: {end.output[:300]}": end.status and done[3] not in end.output,
            f"begun, though it can never be done: {end.output[:300]}": [end.status, done[0]]
            == [INCOMPLETE_STATUS, REFUSED],
        }
        fault = _fault_of(end) or self._fault_of_figures(place, original, *done[:2])
        fault = fault or next((fault for fault, is_so in later.items() if is_so), None)
        if not keep:
            shutil.rmtree(place)
        return {"fault": fault, "status": end.status, "input": original, "case": done, "stderr": end.output}

    def _fault_of_figures(self, place: Path, original: str, end: str, arguments: list[str]) -> str | None:
        figures = place / "input" / "figures"
        if not figures.exists() or end == ANY:
            return None
        if end == REFUSED:
            return "a figure: exit status 0 where data is not there, or has no rank"
        is_same = figures.read_text() == self._figures_of(original, tuple(arguments))
        if is_same or (
            end == READ and in_child(lambda: self._compare(place / "input", original), place / "read").status == 0
        ):
            return None
        return "a figure that differs from the undamaged one"

    def _compare(self, damaged: Path, original: str) -> int:
        """Return 0 where a plain reader finds other data, all of it."""
        (damaged / "figures").unlink()
        return int(contents_of(damaged) == contents_of(self.root / "originals" / original))

    def _figures_of(self, original: str, arguments: tuple[str, ...]) -> str:
        if (original, arguments) not in self._undamaged:
            place = self.root / "undamaged"
            end = self._in_copy(place, original, lambda: Case(arguments))
            assert end.status == 0, (original, arguments, end)
            self._undamaged[original, arguments] = (place / "input" / "figures").read_text()
            shutil.rmtree(place)
        return self._undamaged[original, arguments]

    def _in_copy(self, place: Path, original: str, make_case: Callable[[], Case]) -> End:
        """Run the command of a case in a copy of an original; the case is made, and written, there."""
        folder = shutil.copytree(self.root / "originals" / original, place / "input")

        def work() -> int:
            os.chdir(folder)
            case = make_case()
            said = [case.end, case.arguments, case.note, case.reason]
            (place / "case").write_text(json.dumps(said), encoding="utf-8")
            return _run_command(case)

        return in_child(work, place / "stderr")


def _fault_of(end: End) -> str | None:
    """Return what is wrong with the end of a child whatever its figures are."""
    lines = end.output.splitlines()
    last = lines[-1][:300] if lines else ""
    controls = [
        letter for letter in end.output if (ord(letter) < 32 and letter not in "\n\t") or "\x7f" <= letter < "\xa0"
    ]
    faults = {
        f"a hang: still running after {SECONDS} s": end.is_late,
        f"memory: {end.max_bytes / 2**30:.1f} GB": end.max_bytes > MAX_BYTES,
        f"ended by signal {-end.status}": end.status < 0,
        f"a mutation that failed: {last}": end.status == HARNESS_STATUS,
        f"a traceback: {last}": end.status not in (0, 1, 75) or "Traceback" in end.output,
        f"{len(lines)} lines, {len(end.output)} characters": len(lines) > MAX_LINES or len(end.output) > MAX_CHARACTERS,
        f"control characters: {end.output[:200]!r}": controls,
        f"status {end.status} without a line": end.status and not lines,
    }
    return next((fault for fault, is_so in faults.items() if is_so), None)


def run_cases() -> None:
    """Run the cases named by the arguments, or those named on stdin."""
    root = Path(tempfile.mkdtemp(prefix="pbgeval-fuzz-"))
    lines = sys.stdin if len(sys.argv) == 1 else [" ".join([*sys.argv[1:3], index]) for index in sys.argv[3:]]
    try:
        runner = Runner(root)
        for line in lines:
            kind, seed, index = line.split()
            done = runner.run(kind, int(seed), int(index), keep=len(sys.argv) > 1)
            sys.stdout.write(json.dumps(done, indent=None if lines is sys.stdin else 1) + "\n")
            sys.stdout.flush()
    finally:
        if lines is sys.stdin:
            shutil.rmtree(root, ignore_errors=True)
    sys.stdout.write(f"{root}\n")
    sys.stdout.flush()
    os._exit(0)  # libraries that were loaded and not used complain at the end


if __name__ == "__main__":
    run_cases()
