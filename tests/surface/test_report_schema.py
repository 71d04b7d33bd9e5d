"""metrics.json and the tables: their metrics and rows, and what changes them."""

from __future__ import annotations

import itertools
import json
import math
import shutil
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from pbgeval import load_config
from pbgeval.inputs.opening import open_inputs
from pbgeval.inputs.provenance import provenance_of
from pbgeval.metrics.registry import known_rank_metrics
from pbgeval.results.output import digest_of
from tests.kit import pbg_files
from tests.kit.case import TinyCase
from tests.kit.commands import evaluated, metrics_of, numbers_of, run_command
from tests.kit.faults import MODEL, Damage, data
from tests.kit.reports import rows_of

RANK_TYPES = ("optimistic", "realistic", "pessimistic")


def metric_keys(sides: tuple[str, ...], cutoffs: tuple[int, ...], *, loss: bool = False) -> set[str]:
    ranked = {
        f"{side}.{rank_type}.{metric.name}"
        for side, rank_type, metric in product(sides, (*RANK_TYPES, "expected"), known_rank_metrics(cutoffs))
        if metric.has_rank_type(rank_type)
    }
    return ranked | {".".join(of) for of in product(sides, ("auc", "query_auc"))} | ({"both.loss"} if loss else set())


def leaves(value: object) -> Iterator[object]:
    if isinstance(value, dict | list):
        for inner in itertools.chain(*value.items()) if isinstance(value, dict) else value:
            yield from leaves(inner)
    else:
        yield value


def test_counts_are_ints_and_other_metrics_floats(case: TinyCase) -> None:
    metrics = evaluated(case, "compute_loss=True")["metrics"]

    assert {(key.endswith(".count"), type(value)) for key, value in metrics.items()} == {(True, int), (False, float)}


@pytest.mark.parametrize(
    ("overrides", "sides", "cutoffs", "loss"),
    [
        ((), ("head", "tail", "both"), (1, 3, 5, 10, 50), False),
        (("hits_at=7",), ("head", "tail", "both"), (7,), False),
        (("hits_at=2,1,2",), ("head", "tail", "both"), (1, 2), False),
        (("disable_lhs_negs=True",), ("tail", "both"), (1, 3, 5, 10, 50), False),
        (("disable_rhs_negs=True",), ("head", "both"), (1, 3, 5, 10, 50), False),
        (("compute_loss=True",), ("head", "tail", "both"), (1, 3, 5, 10, 50), True),
    ],
)
def test_settings_choose_the_metrics(
    case: TinyCase, overrides: tuple[str, ...], sides: tuple[str, ...], cutoffs: tuple[int, ...], loss: bool
) -> None:
    document = evaluated(case, *overrides)

    assert metric_keys(sides, cutoffs, loss=loss) == set(document["metrics"])
    assert {*sides} == {*document["diagnostics"]}
    assert [{*document["metrics"]}] == [{*of_path["metrics"]} for of_path in document["edge_paths"]]
    assert document["num_edges"] * (len(sides) - 1) == document["num_queries"]
    assert document["num_queries"] == document["metrics"]["both.realistic.count"]


def test_the_text_has_sorted_keys_and_no_nan_and_reads_back_to_itself(case: TinyCase) -> None:
    evaluated(case)
    text = (case.root / "output" / "metrics.json").read_text(encoding="utf-8")

    assert json.dumps(json.loads(text), sort_keys=True, indent=2, allow_nan=False) + "\n" == text
    assert not any(isinstance(leaf, float) and not math.isfinite(leaf) for leaf in leaves(json.loads(text)))


def test_no_absolute_path_stands_in_the_result(case: TinyCase) -> None:
    document = evaluated(case, f"edge_paths={case.root / 'edges'}")
    tables = "".join(path.read_text(encoding="utf-8") for path in (case.root / "output").glob("*.csv"))

    assert [leaf for leaf in leaves(document) if isinstance(leaf, str) and leaf.startswith("/")] == []
    assert str(case.root) not in json.dumps(document) + tables
    assert [of_path["path"] for of_path in document["edge_paths"]] == ["edges"]


# What the digest covers; of settings: tests/unit/test_config_explained.py


def digest(case: TinyCase, *overrides: str) -> str:
    """Return the digest that a run would have."""
    return digest_of(provenance_of(open_inputs(load_config(case.config, overrides))))


def test_the_digest_is_that_of_the_result(case: TinyCase) -> None:
    assert digest(case, "seed=5") == evaluated(case, "seed=5")["provenance"]["digest"]


def test_a_copy_of_the_data_elsewhere_gives_the_same_numbers_and_digest(case: TinyCase, tmp_path: Path) -> None:
    copy = TinyCase(tmp_path / "a copy", case.settings)
    shutil.copytree(case.root, copy.root)

    evaluated(case)
    evaluated(copy)

    assert numbers_of(case.root / "output") == numbers_of(copy.root / "output")


@pytest.mark.parametrize(
    "change",
    [
        data("edges/edges_1_0.h5", "lhs", slice(2), [0, 5]),
        data("checkpoint/embeddings_tag_0.v3.h5", "embeddings", (2, 3), 0.125),
        data(MODEL, "model/relations/1/operator/rhs/diagonal", 0, 0.125),
    ],
    ids=["edges", "embeddings", "model"],
)
def test_a_changed_value_changes_the_digest(case: TinyCase, change: Damage) -> None:
    before = digest(case)
    change(case.root)
    assert before != digest(case)


# Nothing to evaluate


def test_an_evaluation_without_edges_is_complete_and_undefined(case: TinyCase) -> None:
    for lhs, rhs in product(range(2), range(2)):
        pbg_files.write_edges(case.root / "edges", (lhs, rhs), [], [], [])

    done = run_command(case, "--workers", "1", "--output", "output", "-p", "compute_loss=True")

    assert done.status == 0
    assert "no queries" in done.out
    document = metrics_of(case.root / "output")
    assert (document["num_edges"], document["num_queries"], document["complete"]) == (0, 0, True)
    assert {(key.endswith(".count"), value) for key, value in document["metrics"].items()} == {(True, 0), (False, None)}
    assert {row["num_edges"] for row in rows_of(case.root / "output" / "buckets.csv")} == {"0"}
    assert rows_of(case.root / "output" / "rank_histogram.csv") == []
