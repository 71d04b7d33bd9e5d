"""Units of a few edges, counted several at a time: every figure, and every refusal, of each alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import h5py
import pytest
from attrs import evolve

from benchmarks.many_buckets.graph import Parts, make_graph
from pbgeval import evaluate, load_config
from pbgeval.errors import EvalError
from pbgeval.ranking import auc_sampling, unit_passes
from tests.kit.commands import numbers_of
from tests.kit.loops import loops_used
from tests.saved_ranks import counts_of

SETTINGS: dict[str, dict[str, Any]] = {
    "dot": {},
    "cosines": {"comparator": "cos"},
    "distances of tails": {"comparator": "squared_l2", "disable_lhs_negs": True, "num_uniform_negs": 0},
    "full chunks": {"num_batch_negs": 2},
    "ranks alone": {"metrics": ["rank"]},
}


@pytest.fixture
def config(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return that of a graph whose buckets have one to three edges, of one relation or several."""
    parts = Parts("sampled", num_partitions=4, num_buckets=16, num_relations=3, edges_per_bucket=3)
    config = make_graph(tmp_path, parts)
    for number, path in enumerate(sorted((tmp_path / "edges_0").iterdir())):
        with h5py.File(path, "r+") as file:
            for name in ("lhs", "rel", "rhs"):
                kept = file[name][: 1 + number % 3]
                del file[name]
                file[name] = kept
    return config


def found(config: Path, output: str, **settings: Any) -> object:
    """Evaluate; return all figures and counts, or what was refused."""
    folder = config.parent / output
    try:
        asked = evolve(load_config(config), save_ranks=True, **settings)
        evaluate(asked, output=folder, workers=1, device="cpu")
    except EvalError as error:
        return str(error)
    return numbers_of(folder), counts_of(folder)


def both_ways(config: Path, **settings: Any) -> tuple[object, object, int]:
    """Return what is found of units together and of each alone, and how many were counted together."""
    together = unit_passes._count_together
    num_units = 0

    def counted(units: Any, *arguments: Any) -> Any:
        nonlocal num_units
        results = together(units, *arguments)
        num_units += 0 if results is None else len(units)
        return results

    with loops_used(True), mock.patch.object(unit_passes, "_count_together", counted):
        first = found(config, "together", **settings)
    with loops_used(False), mock.patch.object(unit_passes, "_may_wait", return_value=False):
        return first, found(config, "alone", **settings), num_units


@pytest.mark.parametrize("name", SETTINGS)
def test_small_units_together_give_the_figures_of_each_alone(name: str, config: Path) -> None:
    first, second, num_units = both_ways(config, **SETTINGS[name])

    assert first == second
    assert num_units == (11 if name == "full chunks" else 16)  # three edges are two chunks there


def test_a_sample_of_the_scores_has_those_of_each_alone(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of more than 2^24 scores, as a million buckets have, each query draws its own."""
    monkeypatch.setattr(auc_sampling, "EXACT_CELLS", 0)
    monkeypatch.setattr(auc_sampling, "SAMPLED_CELLS", 200)
    monkeypatch.setattr(auc_sampling, "SAMPLED_TRUE", 30)

    first, second, num_units = both_ways(config)

    assert first == second
    assert num_units == 16


def test_a_query_without_a_direction_is_named_as_in_its_unit_alone(config: Path) -> None:
    with h5py.File(config.parent / "checkpoint" / "model.v1.h5") as file:
        translation_RD = file["model/relations/0/operator/rhs/translation"][:]
    with h5py.File(config.parent / "checkpoint" / "embeddings_type_0_2.v1.h5", "r+") as file:
        file["embeddings"][:3] = -translation_RD

    first, second, _ = both_ways(config, comparator="cos")

    assert "after operator 'translation'" in str(first)
    assert first == second
