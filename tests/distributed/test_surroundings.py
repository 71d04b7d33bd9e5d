"""What a shell leaves of a process that it starts: one right line, or a run as any other."""

from __future__ import annotations

import errno
import os
import shlex
import shutil
import signal
import sys
from pathlib import Path

import pytest

from pbgeval import cli
from pbgeval.cluster import launch
from pbgeval.cluster.surroundings import MAX_THREADS_PER_CORE, NUMBERS_OF_THREADS, check_threads
from pbgeval.errors import IncompleteError, LaunchError
from tests.kit.case import TinyCase
from tests.kit.commands import COMMAND, REPOSITORY, ending_at_import, numbers_of, run_main, start, undisturbed_numbers
from tests.kit.names import write_edges_by_name
from tests.kit.refusals import fault_of

MOST = MAX_THREADS_PER_CORE * (os.cpu_count() or 1)


@pytest.mark.parametrize("name", NUMBERS_OF_THREADS)
@pytest.mark.parametrize("given", [str(MOST + 1), f"2, {MOST + 1}", "9" * 5000])
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


@pytest.mark.parametrize(("said", "expected"), [({}, "20"), ({"OPENBLAS_THREAD_TIMEOUT": "26"}, "26")])
def test_threads_of_numpy_sleep_soon_unless_the_user_says_otherwise(
    said: dict[str, str], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = ending_at_import("numpy", "OPENBLAS_THREAD_TIMEOUT", "pbgeval.__main__")
    monkeypatch.delenv("OPENBLAS_THREAD_TIMEOUT", raising=False)

    done = start([sys.executable, "-c", program, "metrics"], tmp_path, **said)

    assert done.printed == f"{expected}\n"


def test_a_working_directory_that_was_removed_is_one_line(tmp_path: Path) -> None:
    shell = f'mkdir gone; cd gone; rmdir "$PWD"; exec {COMMAND} --config eval.py'
    done = start(["sh", "-c", shell], tmp_path)

    assert done.fault == (
        "the working directory cannot be used: No such file or directory; change to a folder that exists"
    )


@pytest.mark.one_case
@pytest.mark.parametrize("before", ["trap '' CHLD;", "exec <&-;"])
def test_a_run_is_as_any_other_where_the_shell_ignores_children_or_has_closed_its_input(
    before: str, tmp_path: Path
) -> None:
    case = TinyCase.write(tmp_path / "case", partition_sizes=(9, 8))
    arguments = "--config eval.py --workers 2 --quiet --output output"
    done = start(["sh", "-c", f"{before} exec {COMMAND} {arguments}"], case.root)

    assert (done.status, done.out, done.err) == (0, "", "")


# What a shell does before it starts the command. /proc takes no file, not even from root.
SHELLS = {
    "no standard output": "exec >&-;",
    "no standard errors": "exec 2>&-;",
    "no standard files": "exec <&- >&- 2>&-;",
    "no home": "unset HOME;",
    "a home that is not there": "export HOME=/nowhere/home;",
    "a home where nothing can be written": "export HOME=/proc;",
    "no folder for temporary files": "export TMPDIR=/nowhere/tmp;",
    "the C locale": "export LANG=C LC_ALL=C;",
}


@pytest.fixture(scope="module")
def named_case(tmp_path_factory: pytest.TempPathFactory) -> tuple[TinyCase, dict[str, str]]:
    """A case whose path, settings and names are not ASCII, and what a run writes that nothing disturbs."""
    root = tmp_path_factory.mktemp("named") / "Prüfung"
    case = TinyCase.write(root, dynamic=True, partition_sizes=(9, 8), edge_paths=["Kanten_für_alle.tsv"])
    write_edges_by_name(case)
    for path in [root / "edges.tsv", *(root / "entity").glob("entity_names_*")]:
        path.write_text(path.read_text(encoding="utf-8").replace("user/", "Künstler/"), encoding="utf-8")
    (root / "edges.tsv").rename(root / "Kanten_für_alle.tsv")
    return case, undisturbed_numbers(case, root / "undisturbed")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "workers"), [*((of, 1) for of in SHELLS), *((of, 2) for of in SHELLS if of.startswith("no standard"))]
)
def test_a_run_has_the_same_numbers_whatever_the_shell_has_left_of_it(
    before: str, workers: int, named_case: tuple[TinyCase, dict[str, str]], tmp_path: Path
) -> None:
    case, undisturbed = named_case
    output = tmp_path / "Übersicht"
    arguments = f"--config eval.py --workers {workers} --quiet --output {shlex.quote(str(output))}"
    done = start(["sh", "-c", f"{SHELLS[before]} exec {COMMAND} {arguments}"], case.root)

    assert (done.status, done.out, done.err) == (0, "", "")
    assert numbers_of(output) == undisturbed


@pytest.mark.one_case
@pytest.mark.parametrize("before", ["exec >&-;", "exec 2>&-;", "export LANG=C LC_ALL=C;", ""])
def test_a_fault_is_one_line_on_standard_errors_or_nowhere(
    before: str, named_case: tuple[TinyCase, dict[str, str]]
) -> None:
    command = f"{before} exec {COMMAND} --config eval.py --output x -p edge_paths=Köln.tsv"
    done = start(["sh", "-c", command], named_case[0].root)

    lines = [line.partition("Köln.tsv: ")[0] for line in done.err.splitlines()]
    assert (done.status, done.out, lines) == (1, "", [] if "2>&-" in before else ["-p edge_paths="])


@pytest.mark.one_case
@pytest.mark.parametrize("path", ["Kanten_für_alle.tsv", "edges.tsv"])
def test_a_locale_whose_names_of_files_are_ascii_is_one_line(
    path: str, named_case: tuple[TinyCase, dict[str, str]]
) -> None:
    """Names with other letters could not be found, though they are there."""
    command = [COMMAND, "--config", "eval.py", "--output", "x", "-p", f"edge_paths={path}"]
    done = start(command, named_case[0].root, LC_ALL="C", PYTHONUTF8="0")

    assert done.fault == (
        "the locale allows ASCII letters alone in names of files; unset PYTHONUTF8, or set LC_ALL=C.UTF-8"
    )


AS_ANOTHER = ["setpriv", "--reuid=54321", "--regid=54321", "--clear-groups"]  # the capability: to read the checkout
AS_ANOTHER += [f"--{of}=-all,+dac_override" for of in ("inh-caps", "ambient-caps", "bounding-set")]


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None or start([*AS_ANOTHER, "true"], Path("/")).status != 0,
    reason="needs root and setpriv, to be a user who has no other processes",
)
@pytest.mark.slow
@pytest.mark.parametrize(("workers", "threads"), [(1, 3), (2, 1)])
def test_a_small_limit_on_processes_is_one_line_or_large_enough(workers: int, threads: int, tmp_path: Path) -> None:
    case = TinyCase.write(tmp_path / "case", partition_sizes=(9, 8))
    undisturbed = undisturbed_numbers(case, case.root / "undisturbed")
    tmp_path.chmod(0o755)
    ends = {}
    for limit in (1, 8, 11, 40):
        output = case.root / f"output-{limit}"
        command = f"ulimit -u {limit}; exec {COMMAND} --config eval.py --workers {workers} --quiet --output {output}"
        done = start([*AS_ANOTHER, "bash", "-c", command], case.root, OMP_NUM_THREADS=str(threads))
        ends[limit] = done.status
        if done.status == 0:
            assert (done.out, done.err, numbers_of(output)) == ("", "", undisturbed)
        else:
            (line,) = done.err.splitlines()
            assert line.startswith(("this user can start ", "cannot start a thread or process; ")), line
            assert "(ulimit -u)" in line

    assert (ends[1], ends[40]) == (1, 0)


@pytest.mark.slow
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
