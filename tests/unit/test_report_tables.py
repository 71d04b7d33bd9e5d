from __future__ import annotations

from typing import Any

import pytest

from pbgeval.report.figures import (
    MAX_ENTRIES,
    diagnostics_of,
    edges_of,
    flat,
    headline_of,
    headline_rows,
    name_of,
    origin_of,
    ties_of,
    tiles_of,
    with_error,
)
from pbgeval.report.report import Report, cutoffs_of
from pbgeval.report.tables import MAX_CHARACTERS, clipped
from pbgeval.results.result import Result

DIAGNOSIS = {
    "num_candidates": {"min": 3, "mean": 1234.5678, "max": 20_000},
    "num_queries": 7,
    "num_tied_queries": 0,
    "tied_share": 0.25,
    "mean_num_ties": 0.0,
    "num_copies_excluded": None,
}


def document(**others: Any) -> dict[str, Any]:
    metrics = {
        f"both.{rank_type}.{name}": value
        for rank_type, values in {
            "optimistic": (1.5, 0.75),
            "realistic": (2.0, 0.5),
            "pessimistic": (2.5, None),
        }.items()
        for name, value in zip(("mean_rank", "hits_at_1"), values, strict=True)
    }
    return {"headline": "realistic", "metrics": metrics, "diagnostics": {"both": DIAGNOSIS}} | others


@pytest.mark.parametrize(
    ("value", "leaves"),
    [
        ({"a": {"b": 1, "c": None}, "d": []}, [("a.b", "1"), ("a.c", "none"), ("d", "none")]),
        ({"a": [1, 3, 10]}, [("a", "1, 3, 10")]),
        ({"a": [{"b": "x"}, {"b": "<y>"}]}, [("a.0.b", "x"), ("a.1.b", "<y>")]),
        ({"a": True, "b": 0.1, "c": {}}, [("a", "true"), ("b", "0.1"), ("c", "none")]),
        ({"a": list(range(MAX_ENTRIES))}, [("a", ", ".join(map(str, range(MAX_ENTRIES))))]),
        ({"a": [{}] * 10_000, "b": dict.fromkeys(range(65))}, [("a", "10,000 entries"), ("b", "65 entries")]),
    ],
)
def test_leaves_of_json_have_dotted_names_and_long_parts_are_counted(value: object, leaves: object) -> None:
    assert leaves == list(flat(value))


@pytest.mark.parametrize(("dynamic", "shown"), [(False, "relations.1.lhs (likes)"), (True, "relations.1.lhs")])
def test_a_setting_of_a_relation_has_its_name_unless_one_is_for_all(dynamic: bool, shown: str) -> None:
    settings = {"relations": [{"lhs": "user"}, {"lhs": "tag"}], "dynamic_relations": dynamic}
    rows = {"relations": [{"relation_id": 1, "relation": "likes"}]}  # 0 has no queries
    table = origin_of(Report({"provenance": {"settings": settings}}, rows=rows), {})[0]

    assert [name for name, *_ in table.rows[:2]] == ["relations.0.lhs", shown]


def test_a_name_is_clipped_to_what_can_be_read() -> None:
    assert clipped("x" * MAX_CHARACTERS) == "x" * MAX_CHARACTERS
    assert clipped("x" * (MAX_CHARACTERS + 1)) == "x" * MAX_CHARACTERS + "…"


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (0.52021, 0.0043, "0.520 ± 0.004"),
        (8.27, 0.31, "8.3 ± 0.3"),
        (497_274.12, 2_034.0, "497,000 ± 2,000"),
        (3.1e-06, 4.2e-06, "0.000003 ± 0.000004"),
        (0.99996, 0.00996, "1.000 ± 0.010"),
        (15_553.4, 146.3, "15,550 ± 150"),
        (0.4, 0.1949, "0.40 ± 0.19"),
        (0.4, 0.195, "0.4 ± 0.2"),
        (-0.0001, 0.002, "0.000 ± 0.002"),
        (-0.04, 0.002, "−0.040 ± 0.002"),
        (0.25, 1e-12, "0.25000000 ± 0.00000000"),
    ],
)
def test_a_figure_is_rounded_to_its_error(value: float, error: float, text: str) -> None:
    assert with_error(value, error) == text


@pytest.mark.parametrize(
    ("operators", "comparator", "folders", "splits", "name"),
    [
        (["complex_diagonal"], "dot", ["wn18"], ["edges_test"], "ComplEx on wn18, edges_test"),
        (["translation"], "l2", ["data"], ["valid", "test"], "TransE on data, valid, test"),
        (["none", "linear"], "dot", [], ["edges"], "RESCAL and none (dot) on 5 edges in memory"),
        (["rotate"], "complex_l1", ["a"], ["b"], "RotatE on a, b"),
        (["swapped_diagonal"], "clamped_dot", ["a"], ["b"], "SimplE or CP on a, b"),
        (["projected_translation"], "squared_l2", ["a"], ["b"], "TransR on a, b"),
        (["none", "linear", "diagonal"], "dot", ["fb"], ["edges"], "Model with 3 operators on fb, edges"),
        (["none"], "scorer", [], ["test"], "DistMult on test"),
    ],
)
def test_a_title_has_the_model_the_data_set_and_the_split(
    operators: list[str], comparator: str, folders: list[str], splits: list[str], name: str
) -> None:
    settings = {"relations": [{"operator": of} for of in operators], "comparator": comparator}
    provenance = {"settings": settings, "data": {"model": {"scorer": "EdgeFunctionScorer"}}}
    document = {"provenance": provenance, "edge_paths": [{"path": path, "num_edges": 5} for path in splits]}
    assert name_of(Report(document, run={"edge_folders": folders, "model": "DistMult"})) == name


def test_a_title_without_the_facts_of_a_run_calls_no_edges_those_in_memory() -> None:
    settings = {"relations": [{"operator": "none"}], "comparator": "dot"}
    document = {"provenance": {"settings": settings}, "edge_paths": [{"path": "edges", "num_edges": 5}]}
    assert name_of(Report(document)).endswith(" on edges")


def test_ties_compare_the_rank_types_and_what_is_undefined_is_a_dash() -> None:
    table = ties_of(document())

    assert table.columns == ("both sides", "optimistic", "realistic", "pessimistic")
    assert table.rows == [("mean rank", "1.50", "2.00", "2.50"), ("hits@1", "0.7500", "0.5000", "–")]


def test_diagnostics_have_counts_in_full_and_shares_in_short() -> None:
    rows = dict(diagnostics_of(document()).rows)

    assert tuple(rows[name] for name in ("fewest candidates", "mean number of candidates", "most candidates")) == (
        "3",
        "1,234.6",
        "20,000",
    )
    assert tuple(
        rows[name] for name in ("ranked queries", "share of queries with ties", "copies of the true entity excluded")
    ) == ("7", "25.00%", "–")


def test_leakage_that_was_not_checked_is_reported_as_unknown() -> None:
    edges = {"num_edges": 9, "num_repeated": 1, "num_in_training": None, "num_entities": 5, "num_entities_unseen": None}
    unknown, known = (
        edges_of(document(edge_diagnostics=edges | more))
        for more in ({}, {"num_in_training": 0, "num_entities_unseen": 2})
    )

    assert edges_of(document(edge_diagnostics=None)).rows == []
    assert dict(unknown.rows)["that are also in train_paths"] == "–"
    assert "the config has no train_paths" in unknown.note
    assert (dict(known.rows)["that are also in train_paths"], known.note) == ("0", "")


def test_a_name_that_only_begins_like_hits_at_a_number_is_a_row_among_the_others() -> None:
    keys = [f"both.realistic.{name}" for name in ("mean_rank", "hits_at_k", "hits_at_3", "hits_at_", "hits_at_½")]
    rows = headline_rows(keys, "realistic")

    assert [name for name, _ in rows] == ["mean rank", "hits@3", "hits at k", "hits at ", "hits at ½"]
    assert cutoffs_of(dict.fromkeys(keys, 0.5)) == [3]


def test_the_sides_of_a_row_and_its_tile_have_the_decimals_of_its_smallest_error() -> None:
    values = {"both": 0.1638, "head": 0.1886, "tail": 0.1391}
    errors = {"both": 0.0071, "head": 0.0114, "tail": 0.02}
    made = {
        "headline": "realistic",
        "metrics": {f"{side}.realistic.mean_reciprocal_rank": value for side, value in values.items()},
        "standard_errors": {f"{side}.realistic.mean_reciprocal_rank": error for side, error in errors.items()},
        "intervals": {},
        "provenance": {"settings": {}},
    }

    [row] = headline_of(made).rows
    [tile] = tiles_of(Result(made))
    assert row[1:] == ("0.164 ± 0.007", "0.189 ± 0.011", "0.139 ± 0.020")
    assert (tile.value, tile.lines) == ("0.164 ± 0.007", ["head\u00a00.189, tail\u00a00.139"])
