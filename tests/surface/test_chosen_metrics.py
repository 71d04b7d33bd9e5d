"""The keys `metrics` and `preset`: what a report then has, and that nothing else changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from pbgeval.metrics.classification import NAMES
from pbgeval.report.report import Report
from tests.kit.case import TinyCase
from tests.kit.commands import evaluated, lacking, metrics_of, run_command
from tests.kit.held_up import write_case
from tests.kit.reports import rows_of

CANDIDATES = ["sampled", "partition", "all"]


@pytest.mark.one_case
@pytest.mark.parametrize("candidates", CANDIDATES)
def test_single_metrics_are_those_of_the_whole_report(case: TinyCase, candidates: str) -> None:
    whole = evaluated(case, f"candidates={candidates}", "save_ranks=True")
    some = evaluated(case, f"candidates={candidates}", "metrics=mrr,head.worst.hits@3,query_auc", output="some")

    keys = [f"{side}.{rank}.mean_reciprocal_rank" for side in ("head", "tail", "both") for rank in
            ("optimistic", "realistic", "pessimistic", "expected")]  # fmt: skip
    keys += ["head.pessimistic.hits_at_3", *(f"{side}.query_auc" for side in ("head", "tail", "both"))]
    assert [
        part for part in ("metrics", "macro_metrics") if {key: whole[part][key] for key in keys} != some[part]
    ] == []
    assert {key: value for key, value in whole["relation_macro_metrics"].items() if key in keys} == some[
        "relation_macro_metrics"
    ]
    assert some["edge_paths"][0]["metrics"] == some["metrics"]
    assert [*rows_of(case.root / "some" / "buckets.csv")[0]][4:] == [
        "both.realistic.mean_reciprocal_rank",
        "both.query_auc",
        "both.optimistic.mean_reciprocal_rank",
        "both.pessimistic.mean_reciprocal_rank",
    ]
    columns = [*rows_of(case.root / "some" / "relations.csv")[0]]
    assert columns[:4] == ["relation", "relation_id", "lhs_type", "rhs_type"]
    assert set(columns[4:]) <= set(keys)
    assert some["diagnostics"] == whole["diagnostics"]


@pytest.mark.parametrize("candidates", CANDIDATES)
def test_a_classifiers_metrics_are_added_and_change_nothing(case: TinyCase, candidates: str) -> None:
    usual = evaluated(case, f"candidates={candidates}")
    more = evaluated(case, f"candidates={candidates}", "metrics=rank,auc,classification", output="more")

    added = {key: value for key, value in more["metrics"].items() if key not in usual["metrics"]}
    assert {f"{side}.{name}" for side in ("head", "tail", "both") for name in NAMES} == set(added)
    assert usual["metrics"] == {key: more["metrics"][key] for key in usual["metrics"]}
    for side in ("head", "tail", "both"):
        competitors = round(
            usual["diagnostics"][side]["num_queries"] * (usual["diagnostics"][side]["num_candidates"]["mean"] - 1)
        )
        assert added[f"{side}.num_scores"] == usual["diagnostics"][side]["num_queries"] + competitors
        assert 0 < added[f"{side}.average_precision_score"] <= 1
    assert more["intervals"] == {}


PRESET_CASES = {
    "tgb": (["time_window=0", "disable_lhs_negs=True"], {"mean_reciprocal_rank", "hits_at_10"}, "realistic"),
    "dglke": (["rank_type=pessimistic"], {"mean_rank", "mean_reciprocal_rank", "hits_at_3"}, "pessimistic"),
    "recsys": (["topk_metrics=True", "disable_lhs_negs=True"], {"mean_reciprocal_rank"}, "realistic"),
}


@pytest.mark.parametrize("preset", PRESET_CASES)
def test_other_presets_have_the_figures_that_their_settings_have(tmp_path: Path, preset: str) -> None:
    settings, names, headline = PRESET_CASES[preset]
    case = write_case(tmp_path / "case")
    overrides = ["candidates=all", f"filter_paths={case.root / 'edges'}", *settings]
    usual = evaluated(case, *overrides)
    chosen = evaluated(case, *overrides, f"preset={preset}", output=preset)

    assert names <= {key.split(".")[-1] for key in chosen["metrics"]}
    assert not any(key.endswith(("auc", "hits_at_50")) for key in chosen["metrics"])
    assert chosen["metrics"].items() <= usual["metrics"].items()
    assert headline == chosen["headline"]
    for section, of in (("time_filtered_metrics", "tgb"), ("topk_metrics", "recsys")):
        assert (preset == of) == bool(chosen.get(section))


def test_the_preset_of_ogb_has_its_figures_alone(case: TinyCase) -> None:
    usual = evaluated(case, "candidates=all")["metrics"]
    ogb = evaluated(case, "candidates=all", "preset=ogb", output="ogb")

    assert {"both.realistic.hits_at_10", "both.realistic.mean_reciprocal_rank", "both.pooled_hits_at_50",
            "tail.realistic.mean_reciprocal_rank_at_10"} <= set(ogb["metrics"])  # fmt: skip
    assert not any(key.endswith(("mean_rank", "auc", "hits_at_5")) for key in ogb["metrics"])
    assert usual == usual | {key: value for key, value in ogb["metrics"].items() if key in usual}
    listed = ogb["metrics"]["both.realistic.mean_reciprocal_rank_at_10"]
    assert 0 < listed <= ogb["metrics"]["both.realistic.mean_reciprocal_rank"]
    assert ogb["metrics"]["both.pooled_hits_at_10"] <= ogb["metrics"]["both.pooled_hits_at_100"]


def test_a_digest_knows_what_was_chosen_but_not_how_it_was_written(case: TinyCase) -> None:
    first = evaluated(case, "metrics=mrr,auc")
    again, other = (
        run_command(case, "--workers", "1", "--output", "output", "-p", f"metrics={metrics}")
        for metrics in ("auc,mean_reciprocal_rank", "auc")
    )
    assert (0, 1, first) == (again.status, other.status, metrics_of(case.root / "output"))
    assert "already complete" in again.err


def test_the_table_shows_what_there_is(case: TinyCase) -> None:
    done = run_command(case, "--workers", "1", "-p", "metrics=tail.amri,mcc,mrr")

    shown = ("adjusted mean rank index", "matthews", "mean reciprocal rank")
    assert (done.status, lacking(done.out, *shown, "hits")) == (0, ["hits"])


def test_what_was_chosen_is_what_a_recomputation_has(case: TinyCase) -> None:
    document = evaluated(case, "metrics=mrr,auc", "save_ranks=True")
    report = Report.read(case.root / "output")

    again = report.recompute().document["metrics"]
    assert set(document["metrics"]) == set(again)
    assert {key: value for key, value in document["metrics"].items() if not key.endswith(".auc")} == {
        key: value for key, value in again.items() if not key.endswith(".auc")
    }
    assert "both.realistic.hits_at_2" in report.recompute(hits_at=[2]).document["metrics"]
    only = report.recompute(metrics=["mean_rank"]).document["metrics"]
    assert {key.rpartition(".")[2] for key in only} == {"mean_rank"}
