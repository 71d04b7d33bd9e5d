from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pbgeval import edge_scorer, evaluate_triples
from pbgeval.report.figures import final_table, tiles_of, time_aware_sentence
from pbgeval.report.page import markdown, page_of, publish, read_source
from pbgeval.report.report import Report
from pbgeval.report.summary import FIGURES, chance_verdict, sentence_of, summary_of
from tests.kit.case import TinyCase
from tests.kit.commands import evaluated
from tests.kit.reports import rows_of

MRR = "realistic.mean_reciprocal_rank"


def document(**changes: Any) -> dict[str, Any]:
    """A finished result whose heads are easier, and which has nothing to distrust."""
    return {
        "filter": "filtered",
        "headline": "realistic",
        "num_edges": 2123,
        "metrics": {f"both.{MRR}": 0.16379, f"head.{MRR}": 0.18892, f"tail.{MRR}": 0.13866},
        "standard_errors": {f"both.{MRR}": 0.00714, f"head.{MRR}": 0.012, f"tail.{MRR}": 0.006},
        "diagnostics": {"both": {"num_candidates": {"min": 34, "mean": 8022.0, "max": 12306}, "mean_num_ties": 0.0}},
        "edge_diagnostics": {"num_in_training": 0, "num_entities_unseen": 0},
        "provenance": {"digest": "0" * 32, "settings": {"relations": [{"candidates": "all"}]}},
    } | changes


HEADLINE = "Filtered MRR 0.164 ± 0.007 on 2,123 edges"
SIDES = "; heads are easier than tails (0.189 and 0.139)"
SAMPLE = {"unit": "edge", "num_units": 2123, "population": 9000}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({}, HEADLINE + SIDES),
        ({"standard_errors": {f"both.{MRR}": 0.00714, f"head.{MRR}": 0.04, f"tail.{MRR}": 0.03}}, HEADLINE),
        ({"standard_errors": {}}, "Filtered MRR 0.1638 on 2,123 edges"),
        ({"metrics": {"both.realistic.hits_at_3": 0.25}}, "Filtered hits@3 0.2500 on 2,123 edges"),
        ({"metrics": {}}, "Filtered metrics on 2,123 edges"),
        ({"metrics": {f"both.{MRR}": None}, "num_edges": 0}, "Filtered MRR is undefined on 0 edges"),
        (
            {"edge_diagnostics": {"num_in_training": 1200, "num_entities_unseen": 1}},
            f"{HEADLINE}{SIDES}; 1,200 edges are also training edges; 1 entity was never trained",
        ),
        (
            {"edge_paths": [{"path": "train", "num_edges": 2000, "trained_on": True}, {"path": "a", "num_edges": 123}]},
            f"{HEADLINE}{SIDES}; the checkpoint was trained on 2,000 of these edges",
        ),
        (
            {"diagnostics": {"both": {"num_candidates": {"mean": 101.0}, "mean_num_ties": 5.0}}},
            f"{HEADLINE}{SIDES}; many candidates tie with the true entity",
        ),
        (
            {"filter": "raw", "provenance": {"settings": {"relations": [{"candidates": "sampled"}]}}},
            f"Unfiltered MRR 0.164 ± 0.007 on 2,123 edges{SIDES}; candidates were sampled",
        ),
        (
            {"sample": SAMPLE, "intervals": {f"both.{MRR}": {"low": 0.1, "high": 0.2, "standard_error": 0.02}}},
            f"Filtered MRR 0.16 ± 0.02 on a sample of 2,123 of 9,000 edges{SIDES}",
        ),
        (  # near the figures of all edges, which other test edges may turn
            {
                "sample": SAMPLE,
                "intervals": {
                    f"{side}.{MRR}": {"low": 0.1, "high": 0.2, "standard_error": 0.0002}
                    for side in ("both", "head", "tail")
                },
                "standard_errors": {f"head.{MRR}": 0.04, f"tail.{MRR}": 0.03},
            },
            "Filtered MRR 0.1638 ± 0.0002 on a sample of 2,123 of 9,000 edges",
        ),
        (  # a target that was not reached: all edges were evaluated
            {
                "sample": SAMPLE | {"num_units": 9000},
                "intervals": {f"both.{MRR}": {"low": 0.16379, "high": 0.16379, "standard_error": 0.0}},
            },
            HEADLINE + SIDES,
        ),
    ],
)
def test_the_sentence_says_the_headline_how_sides_differ_and_what_to_distrust(
    changes: dict[str, Any], sentence: str
) -> None:
    assert sentence_of(document(**changes)) == f"{sentence}."


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        ({}, "Time-aware filter, window 1,000: MRR 0.7500, hits@1 0.5000, hits@10 1.0000."),
        ({"hits_at": [1]}, "Time-aware filter, window 1,000: MRR 0.7500, hits@1 0.5000."),
        ({"metrics": ["mean_rank"]}, "Time-aware filter, window 1,000: mean rank 1.50."),
        ({"time_window": None}, ""),
    ],
)
def test_the_time_aware_filter_has_a_line_wherever_the_headline_is(
    keys: dict[str, Any], line: str, tmp_path: Path
) -> None:
    """The answer of (0, 0, ?) is second: entity 5 is known at another time; that of (1, 0, ?) first: at its own."""
    scorer = edge_scorer(lambda lhs, rel, rhs: (lhs * 0 + rhs).float(), num_entities=6, num_relations=1)
    test, known = [[0, 0, 4, 3000], [1, 0, 4, 5000]], [[0, 0, 5, 1000], [1, 0, 5, 5000]]
    output = tmp_path / "result"

    report = evaluate_triples(
        scorer, test, known=[known], disable_lhs_negs=True, output=output, **{"time_window": 1000} | keys
    )

    source = read_source(output, None, "mrr", pytest.fail)
    assert time_aware_sentence(report.document) == line
    [card] = [
        path
        for path in publish(report, tmp_path / "card", "a/b", metric=keys.get("metrics", ["mrr"])[0])
        if path.suffix == ".md"
    ]
    found = {
        "table": final_table(report.document).note,
        "text": repr(report),
        "sentence": sentence_of(report.document),
        "page": page_of(source).lead,
        "markdown": markdown(source),
        "card": card.read_text(encoding="utf-8"),
    }
    in_time = [[told for told in tile.lines if told.startswith("time-aware\u00a0")] for tile in tiles_of(report)]
    assert {len(told) for told in in_time} == {int(bool(line))}
    assert not line or float(in_time[0][0].partition("\u00a0")[2]) in (0.75, 0.8, 1.5)
    told = line or "ime-aware"
    assert [name for name, text in found.items() if told in " ".join(text.replace("\\", "").split())] == (
        [*found] if line else []
    )


AMRI, ADJUSTED_MRR = "both.realistic.adjusted_mean_rank_index", "both.realistic.adjusted_inverse_harmonic_mean_rank"


@pytest.mark.parametrize(
    ("metrics", "errors", "told"),
    [
        ({AMRI: 0.01}, {AMRI: 0.02}, "no better than chance (AMRI 0.01 ± 0.02)"),
        ({AMRI: 0.05}, {AMRI: 0.02}, ""),
        ({AMRI: 0.3}, {AMRI: 0.2}, "too few edges to tell from chance (AMRI 0.3 ± 0.2)"),
        ({AMRI: 0.0}, {}, "no better than chance (AMRI 0.0000)"),  # all candidates tie
        ({AMRI: -0.3}, {}, ""),  # one edge: no error
        ({AMRI: 0.01, ADJUSTED_MRR: 0.1}, {AMRI: 0.02}, ""),  # some good ranks beside many bad ones
        ({AMRI: 0.01, ADJUSTED_MRR: 0.001}, {AMRI: 0.02}, "no better than chance (AMRI 0.01 ± 0.02)"),
        (
            {AMRI: None, "both.query_auc": 0.51},
            {"both.query_auc": 0.01},
            "no better than chance (AUC per query 0.510 ± 0.010)",
        ),
        ({"both.auc": 0.497}, {"both.auc": 0.004}, "no better than chance (AUC pooled 0.497 ± 0.004)"),
        ({"both.auc": 0.51}, {"both.auc": 0.004}, ""),
    ],
)
def test_a_model_that_is_no_better_than_chance_is_said_to_be(
    metrics: dict[str, float | None], errors: dict[str, float], told: str
) -> None:
    of_intervals = {key: {"standard_error": error, "low": 0.0, "high": 1.0} for key, error in errors.items()}
    mrr = {f"both.{MRR}": 0.01}
    found = document(metrics=mrr | metrics, standard_errors={f"both.{MRR}": 0.003} | errors, intervals={})

    assert chance_verdict(found) == told
    assert sentence_of(found) == f"Filtered MRR 0.010 ± 0.003 on 2,123 edges{f', {told}' if told else ''}."
    if "both.auc" in metrics:  # its error is that of comparing a part of the scores
        found = document(metrics=metrics, standard_errors={}, intervals=of_intervals)
        assert chance_verdict(found) == told


def test_the_summary_has_ten_numbers_in_the_order_of_reading() -> None:
    metrics = {"both.query_auc": 0.87, **{f"both.realistic.{name}": 0.5 for name in ("hits_at_1", "hits_at_10")}}
    whole = document() | {"metrics": document()["metrics"] | metrics | {"both.realistic.mean_rank": 1026.1}}

    summary = summary_of(whole)

    assert list(summary) == ["sentence", "filter", "ranks", "edges", "candidates", *FIGURES, "digest"]
    assert len([value for value in summary.values() if isinstance(value, int | float)]) == 10
    assert (summary["head_mrr"], summary["mrr_standard_error"]) == (0.18892, 0.00714)
    assert "hits_at_1" not in summary_of(document())  # not computed


@pytest.mark.parametrize("headline", ["realistic", "pessimistic"])
def test_a_run_writes_it_and_its_tables_in_the_order_of_reading(tmp_path: Path, headline: str) -> None:
    case = TinyCase.write(tmp_path / "case")
    evaluated(case, f"rank_type={headline}", "hits_at=1,10")
    output = case.root / "output"
    report, summary = Report.read(output), json.loads((output / "summary.json").read_text(encoding="utf-8"))

    assert summary == summary_of(report.document)
    assert {name: summary[name] for name in ("mrr", "head_mrr", "mean_rank", "ranks")} == {
        "mrr": report["mrr"],
        "head_mrr": report["head.mrr"],
        "mean_rank": report["mean_rank"],
        "ranks": headline,
    }
    assert page_of(read_source(output, None, "mrr", pytest.fail)).lead == summary["sentence"]
    columns = list(rows_of(output / "relations.csv")[0])
    assert columns[4:8] == [
        f"both.{headline}.{name}" for name in ("count", "mean_reciprocal_rank", "hits_at_1", "hits_at_10")
    ]
    types = [column.split(".")[1] for column in columns if column.count(".") == 2]
    assert types == sorted(types, key=[headline, "optimistic", "realistic", "pessimistic"].index)
    sides = [column.partition(".")[0] for column in columns if f".{headline}." in column or "query_auc" in column]
    assert sides == sorted(sides, key=["both", "head", "tail"].index)
    buckets = list(rows_of(output / "buckets.csv")[0])
    assert buckets[4:6] == [f"both.{headline}.mean_reciprocal_rank", f"both.{headline}.hits_at_1"]
