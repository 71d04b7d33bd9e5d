"""What a shell leaves of a process that it starts: one right line, or a run as any other."""

from __future__ import annotations

import errno
import os
import signal
import sys
from pathlib import Path

import pytest

from pbgeval import cli
from pbgeval.cluster import launch
from pbgeval.cluster.surroundings import MAX_THREADS_PER_CORE, NUMBERS_OF_THREADS, check_threads
from pbgeval.errors import IncompleteError, LaunchError
from tests.kit.case import TinyCase
from tests.kit.commands import COMMAND, REPOSITORY, run_main, start
from tests.kit.refusals import fault_of

MOST = MAX_THREADS_PER_CORE * (os.cpu_count() or 1)


@pytest.mark.parametrize("name", NUMBERS_OF_THREADS)
@pytest.mark.parametrize("given", [str(MOST + 1), "1000000", f"2, {MOST + 1}", "9" * 5000])
def test_more_threads_than_a_host_bears_are_refused(name: str, given: str) -> None:
    fault = fault_of(lambda: check_threads({name: given}), LaunchError)

    assert fault.startswith(
        f"{name}: expected at most {MOST:,} threads on this host with {os.cpu_count():,} cores, got "
    )


@pytest.mark.parametrize("given", ["", "0", "-1", "many", str(MOST), f"2,{MOST}"])
def test_fewer_threads_and_what_libraries_ignore_are_not(given: str) -> None:
    check_threads(dict.fromkeys(NUMBERS_OF_THREADS, given))


def test_the_command_refuses_numbers_of_threads_before_it_loads_what_starts_them(tmp_path: Path) -> None:
    barred = "import sys; sys.modules.update(dict.fromkeys(('torch', 'numpy', 'numba', 'pbgeval.cli')))"
    program = f"{barred}; from pbgeval.__main__ import main; main()"
    done = start([sys.executable, "-c", program], tmp_path, OMP_NUM_THREADS="1000000", PYTHONPATH=str(REPOSITORY))

    assert done.fault.startswith("OMP_NUM_THREADS: expected at most ")


def test_a_working_directory_that_was_removed_is_one_line(tmp_path: Path) -> None:
    shell = f'mkdir gone; cd gone; rmdir "$PWD"; exec {COMMAND} --config eval.py'
    done = start(["sh", "-c", shell], tmp_path)

    assert done.fault == (
        "the working directory cannot be used: No such file or directory; change to a folder that exists"
    )


@pytest.mark.parametrize("before", ["trap '' CHLD;", "exec <&-;"])
def test_a_run_is_as_any_other_where_the_shell_ignores_children_or_has_closed_its_input(
    before: str, tmp_path: Path
) -> None:
    case = TinyCase.write(tmp_path / "case", partition_sizes=(9, 8))
    arguments = "--config eval.py --workers 2 --quiet --output output"
    done = start(["sh", "-c", f"{before} exec {COMMAND} {arguments}"], case.root)

    assert (done.status, done.out, done.err) == (0, "", "")


def test_workers_are_spawned_where_the_script_has_no_standard_input(tmp_path: Path) -> None:
    case = TinyCase.write(tmp_path / "case", partition_sizes=(9, 8))
    (case.root / "script.py").write_text(
        "import pbgeval\nif __name__ == '__main__':\n"
        "    pbgeval.evaluate('eval.py', output='output', workers=2)\n    print('done')\n"
    )
    done = start(
        ["sh", "-c", f"exec <&-; exec {sys.executable} script.py"],
        case.root,
        PYTHONPATH=str(REPOSITORY),
        OMP_NUM_THREADS="1",
    )

    assert (done.status, done.out, done.err) == (0, "done\n", "")


def test_workers_are_not_started_where_their_ends_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        fault = fault_of(lambda: launch.start_local_workers(print, (), 2, print), LaunchError)
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert fault.startswith("workers: this process ignores SIGCHLD, so it cannot learn how its workers end; ")


LACK = [RuntimeError("can't start new thread"), BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")]


@pytest.mark.parametrize("error", LACK, ids=["thread", "fork"])
def test_a_limit_on_processes_is_one_line(error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(cli, "app", fail)
    done = run_main("inspect", ".", cwd=tmp_path)
    kind, raised = launch._answer(fail, (), "worker-1")

    advice = "raise the limit on processes and threads (ulimit -u), and run the same command again"
    assert (done.status, done.err) == (75, f"cannot start a thread or process; {advice}\n")
    assert (kind, type(raised), str(raised)) == (
        "raised",
        IncompleteError,
        f"worker-1: cannot start a thread or process; {advice}",
    )
