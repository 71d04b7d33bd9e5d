from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pbgeval.metrics.breakdown_names import BREAKDOWN_FILES, GROUP_COLUMNS
from pbgeval.metrics.breakdowns import GroupClasses, breakdown_rows
from pbgeval.notation import ENDS, Side
from pbgeval.stats.grouped import ENTITY_FREQUENCY, RELATION, TIME, GroupedStats
from pbgeval.stats.rank_stats import RankStats, StatsLayout, rank_metrics
from tests.kit.counts import counts_of

LAYOUT = StatsLayout((1, 3, 10))
SIDES = tuple(ENDS)
NAMES, LHS_TYPES, RHS_TYPES = ["likes", "is a", "near", "of"], ["user", "user", "item", "item"], ["item"] * 4
CARDINALITY, QUANTILES = [4, 1, 4, 0], [1, 4, 4, 0]
GROUPS = {"both": [2, 0, 1], "alone": [1], "unseen": [3], "empty": []}
CLASSES = GroupClasses(
    NAMES, list(zip(LHS_TYPES, RHS_TYPES, strict=True)), np.array(CARDINALITY), np.array(QUANTILES), GROUPS, time_bin=7
)
LABELS_OF_QUANTILES = ("unseen", "25", "50", "75", "100")

sizes = st.integers(0, 9)
# (side, relation, class of the lhs entity, class of the rhs entity, better, tied, beaten); relation 3 has no queries
queries = st.lists(
    st.tuples(st.sampled_from(ENDS), st.integers(0, 2), *[st.integers(0, 4)] * 2, sizes, sizes, sizes), max_size=12
)


def grouped_of(of) -> GroupedStats:
    grouped = GroupedStats(LAYOUT)
    for side, relation, lhs_class, rhs_class, better, tied, beaten in of:
        counts = counts_of([(better, tied, beaten)])
        grouped.add(RELATION, side, torch.tensor([relation]), counts)
        grouped.add(ENTITY_FREQUENCY[Side.LHS], side, torch.tensor([lhs_class]), counts)
        grouped.add(ENTITY_FREQUENCY[Side.RHS], side, torch.tensor([rhs_class]), counts)
        grouped.add(TIME, side, torch.tensor([lhs_class]), counts)
    return grouped


def groups_of(name, query) -> list[tuple]:
    """The groups of a query, in a form that sorts as the table does, with their columns."""
    _, rel, lhs_class, rhs_class, *_ = query
    return {
        "relation": [((rel,), (NAMES[rel], rel, LHS_TYPES[rel], RHS_TYPES[rel]))],
        "entity_types": [((LHS_TYPES[rel], RHS_TYPES[rel]), (LHS_TYPES[rel], RHS_TYPES[rel]))],
        "cardinality": [((CARDINALITY[rel],), (["unseen", "1-1", "1-N", "M-1", "M-N"][CARDINALITY[rel]],))],
        "relation_frequency": [((QUANTILES[rel],), (LABELS_OF_QUANTILES[QUANTILES[rel]],))],
        "entity_frequency": [
            (("lhs", lhs_class), ("lhs", LABELS_OF_QUANTILES[lhs_class])),
            (("rhs", rhs_class), ("rhs", LABELS_OF_QUANTILES[rhs_class])),
        ],
        "time": [((lhs_class,), (lhs_class * 7, (lhs_class + 1) * 7))],
        "groups": [((group,), (group,)) for group, relations in GROUPS.items() if rel in relations],
    }[name]


def metrics_of(of, sides) -> dict[str, float | None]:
    metrics = {}
    for label, own in [*((side.label, [side]) for side in sides), ("both", sides)]:
        stats = RankStats.from_queries(LAYOUT, counts_of([query[4:] for query in of if query[0] in own]))
        found = rank_metrics(stats.total, LAYOUT.cutoffs, adjusted=True)
        metrics |= {f"{label}.{name}": value for name, value in found.items()}
    return metrics


@pytest.mark.slow
@given(queries, st.sampled_from([SIDES, (Side.LHS,), (Side.RHS,)]), st.sampled_from(list(BREAKDOWN_FILES)))
def test_each_group_has_the_metrics_of_its_own_queries(of, sides, name):
    members = defaultdict(list)
    for query in of:
        if query[0] in sides:
            for group in groups_of(name, query):
                members[group].append(query)

    rows = breakdown_rows(name, grouped_of(of), CLASSES, sides)

    assert [dict(row) for row in rows] == [
        dict(zip(GROUP_COLUMNS[name], columns, strict=True)) | metrics_of(members[place, columns], sides)
        for place, columns in sorted(members)
    ]


def test_queries_that_are_not_ranked_make_a_group_without_metrics():
    grouped = GroupedStats(LAYOUT)
    grouped.count(RELATION, Side.LHS, torch.tensor([1, 1]), "num_outside")

    (row,) = breakdown_rows("relation", grouped, CLASSES, SIDES)

    assert tuple(row[name] for name in GROUP_COLUMNS["relation"]) == ("is a", 1, "user", "item")
    assert tuple(row[f"head.realistic.{name}"] for name in ("count", "mean_rank", "adjusted_mean_rank_index")) == (
        0,
        None,
        None,
    )
    assert breakdown_rows("relation", grouped, CLASSES, (Side.RHS,)) == []
