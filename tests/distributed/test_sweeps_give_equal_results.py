"""Ranks against all entities, filtered and saved: the same for any number of processes and threads."""

from __future__ import annotations

from itertools import cycle
from pathlib import Path

import pytest

from pbgeval.notation import Bucket
from tests.distributed.test_workers_give_equal_results import evaluate
from tests.kit.case import TinyCase
from tests.saved_ranks import read_ranks

WORKERS_AND_THREADS = [(1, 2), (2, 1), (2, 2), (3, 1), (3, 2), (5, 1)]
SETTINGS = {
    "all": ["candidates=all", "topk_metrics=True", "save_topk=5"],
    "observed": ["candidates=all", "type_constraint=observed"],
    "max_memory": ["candidates=all", "max_memory=2GB"],
    "sampled": ["candidates=sampled", "num_degree_negs=3", "degree_power=0.75"],
    "partition": ["candidates=partition", "topk_metrics=True"],
}


def results(case: TinyCase, setting: str, output: Path, workers: int, threads: int) -> tuple[object, object]:
    train = case.root.parent / "other" / "edges"
    known = [f"train_paths={train}", "breakdowns=relation,cardinality,entity_frequency,popularity", "save_ranks=True"]
    numbers = evaluate(case, [*SETTINGS[setting], *known], output, workers=workers, threads=threads)
    ranks = {}
    for path in sorted((output / "ranks" / "0").iterdir()):
        lhs, rhs = map(int, path.stem.split("_")[1:])
        of_bucket = read_ranks(output, 0, Bucket(lhs, rhs))
        ranks[path.name] = {
            (side.label, name): values.tolist()
            for side, columns in of_bucket.columns.items()
            for name, values in columns.items()
        }
    assert ranks
    return numbers, ranks


def case_with_known_edges(folder: Path, *, dynamic: bool = False) -> TinyCase:
    """The edges of another case are known."""
    TinyCase.write(folder / "other", dynamic=dynamic, edges_per_bucket=60, seed=2)
    return TinyCase.write(folder / "case", dynamic=dynamic)


@pytest.mark.slow
def test_two_processes_rank_all_entities_as_one_does(tmp_path: Path) -> None:
    case = case_with_known_edges(tmp_path)

    alone = results(case, "all", tmp_path / "alone", workers=1, threads=1)

    assert alone == results(case, "all", tmp_path / "together", workers=2, threads=1)
    assert alone[0]["relations.csv"]
    assert '"popularity"' in alone[0]["metrics.json"]
    assert '"both.average_popularity_at_5"' in alone[0]["metrics.json"]


@pytest.mark.slow
@pytest.mark.parametrize(("setting", "dynamic"), list(zip(SETTINGS, cycle([False, True]))))  # a dozen processes each
def test_processes_and_threads_change_no_rank(setting: str, dynamic: bool, tmp_path: Path) -> None:
    case = case_with_known_edges(tmp_path, dynamic=dynamic)
    alone = results(case, setting, tmp_path / "alone", workers=1, threads=1)

    for workers, threads in WORKERS_AND_THREADS:
        assert alone == results(case, setting, tmp_path / f"{workers}x{threads}", workers, threads)
