"""The numbers do not depend on how many workers and threads there are, nor on who started them."""

from __future__ import annotations

import os
import subprocess
from itertools import cycle
from pathlib import Path

import pytest

from tests.kit.case import TinyCase
from tests.kit.commands import COMMAND, flags, numbers_of, run_of, start_command
from tests.kit.groups import run_group
from tests.patience import PATIENCE

SETTINGS = {
    "sampled": ["candidates=sampled"],
    "partition": ["candidates=partition"],
    "pbg_semantics": ["pbg_semantics=True", "workers=2"],
    "per relation": [],  # one relation of the tiny case has all_negs
}
WORKERS_AND_THREADS = [(1, 1), (1, 2), (2, 1), (2, 2), (3, 1), (3, 2), (5, 1)]


def evaluate(case: TinyCase, overrides: list[str], output: Path, *, workers: int, threads: int) -> dict[str, str]:
    run_group(case, overrides, output, workers=workers, threads=threads)
    run = run_of(output)
    assert (workers, True) == (run["num_workers"], run["reproducible"])
    assert {threads} == {facts["threads"] for facts in run["workers"]}
    return numbers_of(output)


def join_by_torchrun(case: TinyCase, overrides: list[str], output: Path, workers: int) -> subprocess.CompletedProcess:
    torchrun = [COMMAND.parent / "torchrun", "--standalone", "--nproc-per-node", str(workers), "-m", "pbgeval"]
    return subprocess.run(
        [*torchrun, "--config", case.config, *flags(overrides), "--output", output],
        cwd=case.root,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )


@pytest.mark.slow
def test_two_workers_of_two_threads_give_the_numbers_of_one(tmp_path: Path) -> None:
    case = TinyCase.write(tmp_path / "case")
    overrides = ["compute_loss=True"]

    alone = evaluate(case, overrides, tmp_path / "alone", workers=1, threads=1)
    arguments = [*flags(overrides), "--workers", "2", "--quiet", "--output", str(tmp_path / "together")]
    done = start_command(case, *arguments, environment={"OMP_NUM_THREADS": "2"})
    together = numbers_of(tmp_path / "together")

    assert (done.status, done.out, done.err) == (0, "", "")
    assert ({"metrics.json", "buckets.csv", "rank_histogram.csv", "relations.csv"}, alone) == (set(alone), together)


@pytest.mark.slow
@pytest.mark.parametrize(("setting", "dynamic"), list(zip(SETTINGS, cycle([False, True]))))  # a dozen processes each
def test_workers_threads_and_launchers_change_no_number(setting: str, dynamic: bool, tmp_path: Path) -> None:
    case = TinyCase.write(tmp_path / "case", dynamic=dynamic)
    overrides = [*SETTINGS[setting], "compute_loss=True"]
    results = {
        (workers, threads): evaluate(
            case, overrides, tmp_path / f"{workers}x{threads}", workers=workers, threads=threads
        )
        for workers, threads in WORKERS_AND_THREADS
    }
    done = join_by_torchrun(case, overrides, tmp_path / "torchrun", workers=2)

    assert done.returncode == 0, done.stderr
    results[2, 0] = numbers_of(tmp_path / "torchrun")
    assert [key for key, numbers in results.items() if numbers != results[1, 1]] == []


@pytest.mark.slow
@pytest.mark.reference
@pytest.mark.parametrize(
    ("name", "setting"),
    [("fb237_4p_complex", "sampled"), ("fb237_het", "per relation"), ("fb237_het", "pbg_semantics")],
)
def test_workers_and_threads_change_no_number_of_a_trained_checkpoint(
    name: str, setting: str, reference_path: Path, tmp_path: Path
) -> None:
    case = TinyCase(reference_path / "golden" / name, {})
    overrides = [*SETTINGS[setting], "compute_loss=True"]
    results = {
        (workers, threads): evaluate(
            case, overrides, tmp_path / f"{workers}x{threads}", workers=workers, threads=threads
        )
        for workers, threads in ((1, 1), (1, 2), (2, 2), (3, 1))
    }

    assert [key for key, numbers in results.items() if numbers != results[1, 1]] == []


@pytest.mark.slow
def test_a_group_that_torchrun_started_prints_one_table(tmp_path: Path) -> None:
    case = TinyCase.write(tmp_path / "case")

    for _ in range(2):  # a finished run prints its table as well
        done = join_by_torchrun(case, [], tmp_path / "output", workers=2)
        assert done.returncode == 0, done.stderr
        assert (done.stdout.count("mean reciprocal rank"), done.stdout.count("metrics.json, run.json")) == (1, 1)


@pytest.mark.slow
def test_a_fault_in_a_group_that_torchrun_started_is_no_success(tmp_path: Path) -> None:
    case = TinyCase.write(tmp_path / "case")
    case.spoil_edges(2, 2, "rel", 3, 9)

    done = join_by_torchrun(case, [], tmp_path / "output", workers=2)

    assert done.returncode != 0
    assert f"{case.edges(2, 2)}: dataset rel, row 3: expected an id in 0..3" in done.stderr
    assert "pbgeval/" not in done.stderr  # no traceback of ours
    assert not (tmp_path / "output").exists()
