from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from pbgeval.stats.ranks import RANK_TYPE_SYNONYMS, RankCounts, RankType
from tests import reference
from tests.kit.graphs import score_grids


def counts(better, tied, competing) -> RankCounts:
    return RankCounts(torch.tensor(better), torch.tensor(tied), torch.tensor(competing))


def as_lists(of: RankCounts) -> list[list[int]]:
    return [of.better_Q.tolist(), of.tied_Q.tolist(), of.competing_Q.tolist()]


@given(score_grids())
def test_ranks_of_counts_are_the_references(grid):
    expected = [reference.rank_by_sorting(true, row) for true, row in zip(*grid, strict=True)]
    better, tied = zip(*[reference.counts_by_sorting(true, row) for true, row in zip(*grid, strict=True)], strict=True)

    of = counts(better, tied, [len(row) for row in grid[1]])

    assert [2 * low for low, _ in expected] == of.doubled_rank(RankType.OPTIMISTIC).tolist()
    assert [low + high for low, high in expected] == of.doubled_rank(RankType.REALISTIC).tolist()
    assert [2 * high for _, high in expected] == of.doubled_rank(RankType.PESSIMISTIC).tolist()


triples = st.tuples(*[st.integers(0, 1 << 40)] * 3)


@given(st.lists(st.tuples(triples, triples), min_size=1, max_size=5))
def test_counts_of_disjoint_blocks_add(pairs):
    first, second = (counts(*zip(*side, strict=True)) for side in zip(*pairs, strict=True))

    expected = [
        [a + b for a, b in zip(x, y, strict=True)] for x, y in zip(as_lists(first), as_lists(second), strict=True)
    ]
    assert expected == as_lists(first + second) == as_lists(second + first)
    assert as_lists(first) == as_lists(first + RankCounts.zero(len(pairs)))


def test_counts_of_disjoint_queries_are_joined():
    joined = RankCounts.concatenate([counts([1], [2], [3]), RankCounts.zero(0), counts([4, 7], [5, 8], [6, 9])])

    assert [[1, 4, 7], [2, 5, 8], [3, 6, 9]] == as_lists(joined) == as_lists(joined.cpu())
    assert [[], [], []] == as_lists(RankCounts.concatenate([]))


def test_rank_types_have_the_names_of_other_systems():
    assert {
        "best": "optimistic",
        "worst": "pessimistic",
        "avg": "realistic",
        "average": "realistic",
        "optimistic": "optimistic",
        "realistic": "realistic",
        "pessimistic": "pessimistic",
    } == {name: rank_type.value for name, rank_type in RANK_TYPE_SYNONYMS.items()}
