"""The family `estimates` of the key `metrics`: its section of metrics.json, and where it is refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pbgeval.report.report import Report
from tests.kit.case import TinyCase
from tests.kit.commands import evaluated, flags, metrics_of, run_command

UNIFORM = ("candidates=sampled", "num_batch_negs=0", "num_uniform_negs=15")
ASKED = (*UNIFORM, "metrics=rank,auc,estimates")
RANK_TYPES = ("optimistic", "realistic", "pessimistic")
METRICS = ("mean_rank", "adjusted_arithmetic_mean_rank", "adjusted_mean_rank_index")


@pytest.fixture
def case(tmp_path: Path) -> TinyCase:
    return TinyCase.write(tmp_path / "case", partition_sizes=(9, 8), edges_per_bucket=40)


def keys(*sides: str) -> set[str]:
    ranked = [f"{rank_type}.{metric}" for rank_type in RANK_TYPES for metric in METRICS]
    return {f"{side}.{name}" for side in sides for name in [*ranked, "query_auc"]}


def test_the_section_has_the_documented_keys_and_values_inside_their_intervals(case: TinyCase) -> None:
    section = evaluated(case, *ASKED)["estimates"]

    assert set(section) == {"candidates", "metrics", "intervals", "num_queries_without_draws"}
    assert (section["candidates"], section["num_queries_without_draws"]) == ("partition", 0)
    assert keys("head", "tail", "both") == set(section["metrics"]) == set(section["intervals"])
    lowest = {"query_auc": 0, "adjusted_mean_rank_index": -1, "mean_rank": 1}
    for key, interval in section["intervals"].items():
        assert set(interval) == {"standard_error", "low", "high"}
        low, value = lowest.get(key.rpartition(".")[2], 0), section["metrics"][key]
        assert low <= interval["low"] <= value <= interval["high"]


def test_a_filtered_run_estimates_filtered_and_raw_figures(case: TinyCase) -> None:
    shutil.copytree(case.root / "edges", case.root / "known")
    section = evaluated(case, *ASKED, "filter_paths=known", "disable_lhs_negs=True")["estimates"]
    assert keys("tail", "both") == set(section["metrics"]) == set(section["raw"]["metrics"])
    assert set(section["raw"]) == {"metrics", "intervals", "num_queries_without_draws"}
    key = "tail.pessimistic.mean_rank"
    assert section["metrics"][key] < section["raw"]["metrics"][key]


def test_it_changes_nothing_else(case: TinyCase) -> None:
    usual, asked = evaluated(case, *UNIFORM), evaluated(case, *ASKED, output="asked")

    assert usual["estimates"] is None
    assert {key for key in usual if usual[key] != asked[key]} == {"estimates", "provenance"}
    assert asked["provenance"]["settings"]["metrics"] == ["auc", "estimates", "rank"]
    assert usual["provenance"]["digest"] != asked["provenance"]["digest"]


def test_it_may_stand_alone(case: TinyCase) -> None:
    document = evaluated(case, *UNIFORM, "metrics=estimates")
    assert ({}, keys("head", "tail", "both")) == (document["metrics"], set(document["estimates"]["metrics"]))


def test_a_recomputation_does_not_have_it(case: TinyCase) -> None:
    document = evaluated(case, *ASKED, "save_ranks=True")
    again = Report.read(case.root / "output").recompute().document

    assert again["estimates"] is None
    assert set(document["metrics"]) == set(again["metrics"])


def test_a_side_with_a_query_without_draws_has_no_estimates(case: TinyCase) -> None:
    done = run_command(
        case, "--workers", "1", "--output", "output", *flags((*ASKED, "num_uniform_negs=1", "head_candidates=user:0:1"))
    )  # of the heads only one may compete, so those of tags have no query, and others no competitor: exact

    section = metrics_of(case.root / "output")["estimates"]
    tails = [value for key, value in section["metrics"].items() if key.startswith("tail.")]
    assert section["num_queries_without_draws"] > 0
    assert (set(tails), section["metrics"]["head.realistic.mean_rank"]) == ({None}, 1.0)
    assert section["intervals"]["head.realistic.mean_rank"] == {"standard_error": 0.0, "low": 1.0, "high": 1.0}
    assert {value for key, value in section["metrics"].items() if key.startswith("both.")} == {None}
    assert (
        f"{section['num_queries_without_draws']} queries have no estimate because none of their competitors was drawn"
        in done.err
    )
