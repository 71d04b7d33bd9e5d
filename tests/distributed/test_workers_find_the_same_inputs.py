"""Workers of a group read config and files each for itself: they work only on what all of them have found."""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path

import numpy as np
import pytest

from pbgeval import edge_scorer, evaluate, evaluate_triples, evaluation
from pbgeval.config import load_config
from pbgeval.errors import EvalError, StorageError
from pbgeval.worker import journal, run
from tests.kit import pbg_files
from tests.kit.case import TinyCase
from tests.kit.commands import metrics_of
from tests.kit.groups import join, start_workers

SEEDS, VERSIONS = "settings.seed", "checkpoint_version"


def _told(case: TinyCase, output: Path, what: str) -> None:
    """Evaluate as a worker whose inputs may be its own; write down what is refused."""
    os.chdir(case.root)
    rank = os.environ["RANK"]
    try:
        if what == "shards":
            scorer = edge_scorer(lambda lhs, rel, rhs: (lhs * 7 + rel + rhs).float(), num_entities=9, num_relations=2)
            evaluate_triples(scorer, [[0, 0, 1 + int(rank)], [2, 1, 3]], output=output, device="cpu")
        else:
            if what == VERSIONS:
                pbg_files.write_checkpoint_version(case.root / rank, 3 + int(rank))
            overrides = {SEEDS: f"seed={rank}", VERSIONS: f"checkpoint_path={rank}", "filter": f"filter_paths={rank}"}
            evaluate(load_config(case.config, [overrides[what]]), output=output, device="cpu")
    except EvalError as error:
        (case.root / f"told-{rank}").write_text(str(error), encoding="utf-8")
    except BaseException:
        traceback.print_exc()
        raise
    else:
        sys.exit(2)


def _copied(case: TinyCase, what: str) -> None:
    for rank in "01":
        source = case.root / ("checkpoint" if what == VERSIONS else "edges")
        (case.root / rank).mkdir()
        for path in source.iterdir():
            (case.root / rank / path.name).write_bytes(path.read_bytes())
        if what == VERSIONS:
            for path in source.glob("*.v3.h5"):
                (case.root / rank / path.name.replace("v3", "v4")).write_bytes(path.read_bytes())
    if what == "filter":  # a file that one of the hosts does not see yet
        next((case.root / "1").glob("edges_*.h5")).unlink()


@pytest.mark.parametrize(
    ("what", "named"),
    [(SEEDS, SEEDS), (VERSIONS, VERSIONS), ("filter", "data.filter"), ("shards", "data.edges")],
)
def test_workers_that_have_found_other_inputs_refuse_to_begin(tmp_path: Path, what: str, named: str) -> None:
    case = TinyCase.write(tmp_path / "case")
    _copied(case, what)

    join(start_workers(2, 1, _told, case, tmp_path / "output", what))

    told = [(case.root / f"told-{rank}").read_text(encoding="utf-8") for rank in "01"]
    assert told[0] == told[1]
    assert told[0].startswith("worker 1 on ")
    assert f" has found inputs that differ from worker 0's ({named}" in told[0]
    assert not (tmp_path / "output" / "metrics.json").exists()


def _with_own_folder(case: TinyCase, output: Path) -> None:
    os.chdir(case.root)
    rank = os.environ["RANK"]
    run.SECONDS_TO_SEE = 0.5
    try:
        evaluate(load_config(case.config), output=output / rank, device="cpu")
    except EvalError as error:
        (case.root / f"told-{rank}").write_text(f"{type(error).__name__}: {error}", encoding="utf-8")


def test_workers_that_do_not_share_the_output_are_refused(tmp_path: Path) -> None:
    case = TinyCase.write(tmp_path / "case")

    join(start_workers(2, 1, _with_own_folder, case, tmp_path))

    told = [(case.root / f"told-{rank}").read_text(encoding="utf-8") for rank in "01"]
    assert told[0] == told[1]
    assert told[0].startswith(f"EvalError: {tmp_path / '1'}/")  # no run that would go on
    assert (
        "does not see this folder of worker 0; give all workers the same output, on a file system that all" in told[0]
    )


def _alone_damaged(case: TinyCase, output: Path) -> None:
    os.chdir(case.root)
    rank = os.environ["RANK"]
    if rank == "1":
        evaluation.provenance_of = lambda _: (_ for _ in ()).throw(StorageError("edges_0_0.h5: damaged here"))
    try:
        evaluate(load_config(case.config), output=output, device="cpu")
    except EvalError as error:
        (case.root / f"told-{rank}").write_text(f"{type(error).__name__}: {error}", encoding="utf-8")


def test_a_fault_of_one_worker_is_told_by_all(tmp_path: Path) -> None:
    case = TinyCase.write(tmp_path / "case")

    join(start_workers(2, 1, _alone_damaged, case, tmp_path / "output"))

    told = [(case.root / f"told-{rank}").read_text(encoding="utf-8") for rank in "01"]
    assert told == ["EvalError: edges_0_0.h5: damaged here"] * 2


def _sampled(output: Path) -> None:
    for name in ("MIN_SECONDS", "SECONDS_PER_SECOND", "MIN_SECONDS_AT_END"):
        setattr(journal, name, 0.0)  # as if units took seconds
    scorer = edge_scorer(
        lambda lhs, rel, rhs: -((lhs * 7 + rel * 3 - rhs) % 101).abs().float(), num_entities=101, num_relations=2
    )
    generator = np.random.default_rng(0)
    edges = np.stack([generator.integers(size, size=9000) for size in (101, 2, 101)], axis=1)
    lists = {"candidates": "sampled", "num_uniform_negs": 20, "num_batch_negs": 20}
    evaluate_triples(scorer, edges, target_error=0.002, output=output, device="cpu", **lists)


def test_a_function_is_one_model_in_all_workers_over_all_rounds_of_a_sample(tmp_path: Path) -> None:
    """Its digest is drawn; workers with unlike ones would not know each other's entries in the journal."""
    for workers in (1, 2):
        join(start_workers(workers, 1, _sampled, tmp_path / str(workers)))

    one, two = (metrics_of(tmp_path / str(workers)) for workers in (1, 2))
    assert one["sample"]["rounds"] > 1
    assert one["metrics"] == two["metrics"]
