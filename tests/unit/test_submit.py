"""Jobs before they are submitted: their times, flags and faults."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from unittest import mock

import pytest

from pbgeval.cluster import submit
from pbgeval.cluster.submit import SubmittedRun, _fault_in, flags_of, job_parameters, minutes_of, submit_run
from pbgeval.errors import EvalError, IncompleteError, LaunchError, OutputError
from tests.kit.case import TinyCase
from tests.kit.commands import lacking, run_main
from tests.kit.refusals import fault_of

RUN = SubmittedRun(partial(int, "0"), num_threads=3)


@pytest.mark.parametrize(
    ("text", "minutes"),
    [("30", 30), ("30:01", 31), ("1:30:00", 90), ("2-12", 3600), ("2-12:30", 3630), ("0-0:0:1", 1), ("00:10:00", 10)],
)
def test_times_are_read_as_slurm_reads_them(text: str, minutes: int) -> None:
    assert minutes == minutes_of(text)


@pytest.mark.parametrize(
    ("refused", "fault"),
    [
        *(
            (partial(minutes_of, text), f"--time {text}: expected minutes, H:MM:SS or D-HH:MM")
            for text in ("", "0", "1h", "-5", "1:2:3:4", "infinite")
        ),
        *(
            (partial(flags_of, [pair]), f"--slurm {pair}: expected an option of sbatch, for example")
            for pair in ("", "=x", "-A=x", "Account=x")
        ),
        (
            partial(submit_run, RUN, "local", job_parameters(nodes=2), "x", Path("y")),
            "--nodes 2: --scheduler local has one host; use --workers-per-node",
        ),
        (
            partial(submit_run, RUN, "slurm", job_parameters(), "x", Path("y")),
            "--scheduler slurm: sbatch and srun are not installed on this host",
        ),
    ],
)
def test_what_cannot_be_submitted_is_one_line(
    refused: Callable[[], object], fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submit.shutil, "which", lambda _: None)

    assert fault_of(refused, LaunchError).startswith(fault)


def test_further_flags_of_sbatch() -> None:
    assert flags_of(["account=physics", "export=A=1,B=2", "exclusive"]) == {
        "account": "physics",
        "export": "A=1,B=2",
        "exclusive": True,
    }


def test_a_run_that_is_incomplete_never_ends_as_done() -> None:
    with pytest.raises(IncompleteError, match=r"^the run ended early, with status 75; submit it again"):
        SubmittedRun(lambda: 75)()


def test_a_requeued_job_runs_the_same() -> None:
    after = pickle.loads(pickle.dumps(RUN.checkpoint())).function

    with mock.patch.dict(os.environ):
        os.environ.pop("OMP_NUM_THREADS", None)
        after()
        assert os.environ["OMP_NUM_THREADS"] == "3"
    assert after.run.args == ("0",)


@pytest.mark.parametrize(
    ("error", "kind", "lines"),
    [
        (OutputError("a: expected b", "c: expected d"), LaunchError, ("a: expected b", "c: expected d")),
        (ValueError("a bug of ours"), LaunchError, ("ValueError: a bug of ours",)),
        (IncompleteError("a: ended"), IncompleteError, ("a: ended",)),
    ],
)
def test_a_fault_of_the_users_is_found_in_a_tasks_traceback(
    error: Exception, kind: type[EvalError], lines: tuple[str, ...]
) -> None:
    found = _fault_in("".join(traceback.format_exception(error)))

    assert (kind, lines) == (type(found), found.faults)


def test_faults_of_a_config_do_not_wait_in_a_queue(tmp_path: Path) -> None:
    case = TinyCase.write(tmp_path)
    case.embeddings("user", 1).unlink()

    done = run_main("submit", "--scheduler", "local", str(case.config), "--output", "x", cwd=tmp_path)

    assert (done.status, lacking(done.err, case.embeddings("user", 1).name)) == (1, [])
    assert not (tmp_path / "x.logs").exists()


def test_help_of_submit_imports_neither_torch_nor_submitit() -> None:
    code = (
        "import sys; sys.argv = ['kgeval-dist', 'submit', '--help']\n"
        "import pbgeval.cli\n"
        "try: pbgeval.cli.main()\n"
        "except SystemExit: print({'torch', 'submitit'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.stdout.splitlines()[-1] == "set()", done.stderr
