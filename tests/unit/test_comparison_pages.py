"""The sentences on top of comparisons, and where charts put their names."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from attrs import evolve

from pbgeval.metrics.paired import Difference
from pbgeval.report.comparison import Comparison, difference_tiles, sentence_of_two
from pbgeval.report.comparison_pages import sentence_of_many
from pbgeval.report.many_runs import GroupDifference, GroupFigure, GroupPair, ManyRuns, RunGroup
from pbgeval.report.run_differences import describe_difference
from pbgeval.report.run_overlap import Overlap
from pbgeval.report.suite_tables import SuiteResults, SuiteRow

MRR_ALONE = "mean_reciprocal_rank"
MRR, RANK = "both.realistic.mean_reciprocal_rank", "both.realistic.mean_rank"


def difference(
    metric: str, a: float, b: float, p: float, direction: int = 1, alone: float | None = None, width: float = 0.02
) -> Difference:
    """A difference of a known p-value, before the correction (`alone`) and after."""
    uncorrected = p if alone is None else alone
    return Difference(metric, a, b, b - a, 0.01, b - a - width, b - a + width, uncorrected, direction, p)


def comparison(*differences: Difference) -> Comparison:
    names = ("a", "b", "a_model", "b_model", "side", "rank_type", "filter", "unit", "clusters")
    values: dict[str, Any] = dict.fromkeys(names, "")
    return Comparison(**values, settings=(), left_out="", num_queries=9, differences=differences, relations=())


@pytest.mark.parametrize(
    ("differences", "sentence"),
    [
        (
            [difference("mean_reciprocal_rank", 0.25, 0.5, 0.01), difference("mean_rank", 9.0, 5.0, 0.01, -1)],
            "new is significantly ahead by 0.2500 (95% interval 0.2300 to 0.2700) in MRR (0.5000 against 0.2500); also "
            "in mean rank.",
        ),
        (
            [difference("mean_reciprocal_rank", 0.5, 0.25, 0.01), difference("mean_rank", 9.0, 5.0, 0.01, -1)],
            "old is significantly ahead by 0.2500 (95% interval 0.2300 to 0.2700) in MRR (0.5000 against 0.2500); new "
            "is significantly better in mean rank.",
        ),
        (
            [difference("mean_rank", 9.0, 5.0, 0.01, -1), difference("hits_at_1", 0.25, 0.5, 0.3)],
            "new is significantly ahead by 4.000 (95% interval 3.980 to 4.020) in mean rank (5.000 against 9.000); no "
            "significant difference in hits@1.",
        ),
        (
            [difference("mean_reciprocal_rank", 0.25, 0.5, 0.3, width=0.3), difference("hits_at_1", 0.25, 0.5, 0.01)],
            "old and new do not differ significantly in MRR: new is ahead by 0.2500 (95% interval −0.0500 to 0.5500); "
            "new is significantly better in hits@1.",
        ),
        (
            [difference("hits_at_1", 0.5, 0.5, 1.0)],
            "old and new do not differ significantly in hits@1: the difference is 0.0000 (95% interval −0.0200 to "
            "0.0200).",
        ),
        (
            [
                difference("mean_reciprocal_rank", 0.1733, 0.1894, 0.153, alone=0.031, width=0.0146),
                difference("hits_at_1", 0.1, 0.1, 1.0),
                difference("hits_at_3", 0.1, 0.2, 0.01),
            ],
            "new is ahead by 0.0161 (95% interval 0.0015 to 0.0307) in MRR (0.1894 against 0.1733), but not "
            "significantly: p is 0.0310 alone, 0.1530 corrected for 3 metrics; new is significantly better in hits@3.",
        ),
        (  # too few queries for an interval
            [evolve(difference("hits_at_1", 0.5, 0.25, 0.5), low=None, high=None, p_value=None, p_holm=None)],
            "old and new do not differ significantly in hits@1: old is ahead by 0.2500.",
        ),
        ([], ""),
    ],
)
def test_two_runs_are_compared_in_one_sentence(differences: list[Difference], sentence: str) -> None:
    assert sentence_of_two(comparison(*differences), ["old", "new"]) == sentence


def many(*means: float, p_seeds: float | None = None) -> ManyRuns:
    """Runs a, b, ... of these MRRs, of which each differs from each."""
    names = "abcdef"[: len(means)]
    same = Overlap(10, 1.0, 0, 0, None, None)
    groups = [
        RunGroup(name, (name,), ("model",), (GroupFigure(MRR_ALONE, 1, mean, None, 0.01, (mean,), name),), None)
        for name, mean in zip(names, means, strict=True)
    ]
    pairs = [
        GroupPair(a.name, b.name, (GroupDifference(of, 0.01, p_seeds),), same)
        for a, b in itertools.combinations(groups, 2)
        for of in [difference(MRR_ALONE, a.figures[0].mean, b.figures[0].mean, 0.01)]
    ]
    conditions = {"side": "both", "rank_type": "realistic", "filter": "raw", "unit": "edge", "clusters": "key"}
    return ManyRuns(**conditions, settings=(), left_out=(), num_queries=9, groups=tuple(groups), pairs=tuple(pairs))


@pytest.mark.parametrize(
    ("models", "told"),
    [
        (("TransE", "ComplEx"), "A: results/a (TransE), B: results/b (ComplEx)"),
        (("the scoring function",) * 2, "A: results/a, B: results/b; model of both: the scoring function"),
        (("", ""), "A: results/a, B: results/b"),
    ],
)
def test_the_table_of_two_runs_tells_the_models_apart_where_they_differ(models: tuple[str, str], told: str) -> None:
    two = evolve(comparison(), a="results/a", b="results/b", a_model=models[0], b_model=models[1])

    assert two.tables()[0].title.endswith(f" ranks; {told}")


def test_many_runs_are_compared_in_one_sentence() -> None:
    told = "significantly better than all others."
    lead = "ahead of c by 0.1000 (95% interval 0.0800 to 0.1200)"

    assert sentence_of_many(many(0.25, 0.5, 0.4)) == f"b has the best MRR (0.5000), {lead}, {told}"
    assert sentence_of_many(many(0.5, 0.25)) == (
        f"a has the best MRR (0.5000), ahead of b by 0.2500 (95% interval 0.2300 to 0.2700), {told}"
    )
    assert sentence_of_many(many(0.25, 0.5, p_seeds=0.01)) == f"b has the best MRR (0.5000), {told}"
    assert sentence_of_many(many(0.25)) == ""


def test_a_row_whose_interval_alone_leaves_out_0_is_marked() -> None:
    marked, significant, open_ = (
        difference(name, 0.25, b, p)
        for name, b, p in (("hits_at_1", 0.5, 0.2), ("hits_at_3", 0.5, 0.01), ("hits_at_10", 0.26, 0.6))
    )
    found = comparison(marked, significant, open_)

    assert [row[-1] for row in found.tables()[0].rows] == ["0.2000, n.s.", "0.0100", "0.6000"]
    assert [tile.name for tile in difference_tiles(found)] == ["hits@1: B − A", "hits@10: B − A"]


@pytest.mark.parametrize(
    ("figures", "sentence"),
    [
        ({"x": (0.25, 0.5), "y": (0.25, 0.125)}, "x has the best average MRR (0.3750) and is best on 2 of 2 graphs."),
        ({"x": (0.25, 0.5), "y": (0.5, 0.75)}, "y has the best average MRR (0.6250) and is best on 2 of 2 graphs."),
        ({"x": (0.25, 0.5)}, ""),
        ({"x": (0.25, 0.5), "y": (0.5, None)}, ""),
    ],
)
def test_a_suite_is_told_in_one_sentence(figures: dict[str, tuple[float | None, ...]], sentence: str) -> None:
    rows = [
        SuiteRow(f"graph {at}", model, "", "raw", "realistic", 1, {MRR: value})
        for model, values in figures.items()
        for at, value in enumerate(values)
    ]
    assert SuiteResults("many", tuple(rows)).sentence() == sentence


def test_the_lowest_mean_rank_is_the_best() -> None:
    rows = [
        SuiteRow("graph", model, "", "raw", "realistic", 1, {RANK: value}) for model, value in (("x", 3.0), ("y", 2.0))
    ]
    assert SuiteResults("many", tuple(rows)).sentence().startswith("y has the best average mean rank (2.00)")


def test_of_settings_in_lists_the_first_that_differs_is_named_by_its_keys() -> None:
    a = [{"lhs": "all", "operator": "none"}, {"lhs": "all", "operator": "none"}, {"lhs": "all", "operator": "none"}]
    b = [a[0], *({"lhs": "all", "operator": "diagonal"},) * 2]

    told = {2: "", 3: "; 1 more of relations differ"}
    for length, more in told.items():
        found = describe_difference("relations", a[:length], b[:length])
        assert found == f"relations[1].operator: A none, B diagonal{more}"
    assert describe_difference("a", [{"x": None}], [{}]) == 'a: A [{"x": null}], B [{}]'  # no key differs in value
    assert describe_difference("sides", ["lhs"], ["rhs"]) == 'sides: A ["lhs"], B ["rhs"]'
    assert describe_difference("relations", a[:1], b[:2]).startswith('relations: A [{"lhs": "all"')
