"""Numbers and ranks do not depend on how many workers and threads there are, nor on who started them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.kit.case import TinyCase
from tests.kit.commands import COMMAND, evaluated, flags, numbers_of, run_of, start_command
from tests.kit.groups import run_group
from tests.patience import PATIENCE
from tests.saved_ranks import counts_of

LOSS = "compute_loss=True"
SETTINGS = {
    "sampled": ["candidates=sampled", LOSS],
    "partition": ["candidates=partition", "topk_metrics=True", LOSS],
    "pbg_semantics": ["pbg_semantics=True", "workers=2", LOSS],
    "per relation": [LOSS],  # one relation of the tiny case has all_negs
    "by degree": ["candidates=sampled", "num_degree_negs=3", "degree_power=0.75"],
    "all": ["candidates=all", "topk_metrics=True", "save_topk=5"],
    "observed": ["candidates=all", "type_constraint=observed"],
    "max_memory": ["candidates=all", "max_memory=2GB"],
    "losses from float32": ["candidates=sampled", "metrics=rank", "comparator=l2", LOSS],
    "losses of partitions": ["candidates=partition", "metrics=rank", LOSS],
}
WORKERS_AND_THREADS = [((1, 2), (3, 1)), ((2, 2), (5, 1))]


def results(case: TinyCase, overrides: list[str], output: Path, workers: int, threads: int) -> dict[str, Any]:
    """Evaluate in a group; return the numbers, and the counts of each query where they are saved."""
    run_group(case, overrides, output, workers=workers, threads=threads)
    run = run_of(output)
    assert (workers, True) == (run["num_workers"], run["reproducible"])
    assert {threads} == {facts["threads"] for facts in run["workers"]}
    return numbers_of(output) | counts_of(output)


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
def test_two_workers_of_two_threads_and_those_of_torchrun_give_the_numbers_of_one(tmp_path: Path) -> None:
    case = TinyCase.write(tmp_path / "case")
    assert evaluated(case, LOSS, output=tmp_path / "alone")["complete"]
    arguments = ["-p", LOSS, "--workers", "2", "--quiet", "--output", str(tmp_path / "two")]
    assert start_command(case, *arguments, environment={"OMP_NUM_THREADS": "2"}).printed == ""

    for _ in range(2):  # torchrun's workers print one table, for a finished run as well
        done = join_by_torchrun(case, [LOSS], tmp_path / "torchrun", workers=2)
        assert done.returncode == 0, done.stderr
        assert (done.stdout.count("mean reciprocal rank"), done.stdout.count("metrics.json, run.json")) == (1, 1)
    alone = numbers_of(tmp_path / "alone")
    assert {*alone} == {"metrics.json", "buckets.csv", "rank_histogram.csv", "relations.csv"}
    assert alone == numbers_of(tmp_path / "two") == numbers_of(tmp_path / "torchrun")


@pytest.mark.slow
@pytest.mark.parametrize(("number", "setting"), list(enumerate(SETTINGS)))
def test_workers_and_threads_change_no_number_and_no_rank(number: int, setting: str, tmp_path: Path) -> None:
    """The edges of another case are known, but where PyTorch-BigGraph's figures are asked for.

    Every other setting has dynamic relations; the next two, the other two groups.
    """
    dynamic, groups = number % 2 == 1, WORKERS_AND_THREADS[number // 2 % 2]
    TinyCase.write(tmp_path / "other", dynamic=dynamic, edges_per_bucket=60, seed=2)
    case = TinyCase.write(tmp_path / "case", dynamic=dynamic)
    breakdowns = "breakdowns=relation,cardinality,entity_frequency,popularity"
    known = [f"train_paths={tmp_path / 'other' / 'edges'}", breakdowns, "save_ranks=True"]
    overrides = [*SETTINGS[setting], *(known if setting != "pbg_semantics" else [])]

    alone = results(case, overrides, tmp_path / "alone", 1, 1)
    others = {of: results(case, overrides, tmp_path / f"{of[0]}x{of[1]}", *of) for of in groups}

    assert [of for of, found in others.items() if found != alone] == []
    assert (setting == "pbg_semantics") or '"popularity"' in alone["metrics.json"]


@pytest.mark.slow
def test_a_fault_in_a_group_that_torchrun_started_is_no_success(tmp_path: Path) -> None:
    case = TinyCase.write(tmp_path / "case")
    case.spoil_edges(2, 2, "rel", 3, 9)

    done = join_by_torchrun(case, [], tmp_path / "output", workers=2)

    assert done.returncode != 0
    assert f"{case.edges(2, 2)}: dataset rel, row 3: expected an id in 0..3" in done.stderr
    assert "pbgeval/" not in done.stderr  # no traceback of ours
    assert not (tmp_path / "output").exists()
