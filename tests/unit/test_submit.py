"""Jobs before they are submitted: their times, flags and faults."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import traceback
from functools import partial
from pathlib import Path
from unittest import mock

import pytest

from pbgeval.cluster import submit
from pbgeval.cluster.submit import SubmittedRun, _fault_in, flags_of, job_parameters, minutes_of, submit_run
from pbgeval.errors import EvalError, IncompleteError, LaunchError, OutputError
from tests.kit.case import TinyCase
from tests.kit.commands import run_main


@pytest.mark.parametrize(
    ("text", "minutes"),
    [("30", 30), ("30:01", 31), ("1:30:00", 90), ("2-12", 3600), ("2-12:30", 3630), ("0-0:0:1", 1), ("00:10:00", 10)],
)
def test_times_are_read_as_slurm_reads_them(text: str, minutes: int) -> None:
    assert minutes == minutes_of(text)


@pytest.mark.parametrize("text", ["", "0", "1h", "-5", "1:2:3:4", "infinite"])
def test_other_times_are_refused(text: str) -> None:
    with pytest.raises(LaunchError, match=f"^--time {text}: expected minutes, H:MM:SS or D-HH:MM"):
        minutes_of(text)


def test_further_flags_of_sbatch() -> None:
    assert flags_of(["account=physics", "export=A=1,B=2", "exclusive"]) == {
        "account": "physics",
        "export": "A=1,B=2",
        "exclusive": True,
    }


@pytest.mark.parametrize("pair", ["", "=x", "-A=x", "Account=x"])
def test_what_is_no_flag_of_sbatch_is_refused(pair: str) -> None:
    with pytest.raises(LaunchError, match=f"^--slurm {pair}: expected an option of sbatch, for example"):
        flags_of([pair])


def test_a_run_that_is_incomplete_never_ends_as_done() -> None:
    with pytest.raises(IncompleteError, match=r"^the run ended early, with status 75; submit it again"):
        SubmittedRun(lambda: 75)()


def test_a_requeued_job_runs_the_same() -> None:
    after = pickle.loads(pickle.dumps(SubmittedRun(partial(int, "0"), num_threads=3).checkpoint())).function

    with mock.patch.dict(os.environ):
        os.environ.pop("OMP_NUM_THREADS", None)
        after()
        assert os.environ["OMP_NUM_THREADS"] == "3"
    assert after.run.args == ("0",)


def test_a_fault_of_the_users_is_found_in_a_tasks_traceback() -> None:
    def traceback_of(error: EvalError | ValueError) -> str:
        try:
            raise error
        except (EvalError, ValueError):
            return traceback.format_exc()

    fault, bug = OutputError("a: expected b", "c: expected d"), ValueError("a bug of ours")
    for error, kind, lines in (
        (fault, LaunchError, ("a: expected b", "c: expected d")),
        (bug, LaunchError, ("ValueError: a bug of ours",)),
        (IncompleteError("a: ended"), IncompleteError, ("a: ended",)),
    ):
        found = _fault_in(traceback_of(error))
        assert (kind, lines) == (type(found), found.faults)


def test_a_local_job_has_one_host(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"^--nodes 2: --scheduler local has one host; use --workers-per-node$"):
        submit_run(SubmittedRun(partial(int, "0")), "local", job_parameters(nodes=2), "x", tmp_path)


def test_a_host_without_slurm_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submit.shutil, "which", lambda _: None)

    with pytest.raises(LaunchError, match=r"^--scheduler slurm: sbatch and srun are not installed on this host"):
        submit_run(SubmittedRun(partial(int, "0")), "slurm", job_parameters(), "x", tmp_path)


def test_faults_of_a_config_do_not_wait_in_a_queue(tmp_path: Path) -> None:
    case = TinyCase.write(tmp_path)
    case.embeddings("user", 1).unlink()

    done = run_main("submit", "--scheduler", "local", str(case.config), "--output", "x", cwd=tmp_path)

    assert done.status == 1
    assert str(case.embeddings("user", 1)) in done.err or case.embeddings("user", 1).name in done.err
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
