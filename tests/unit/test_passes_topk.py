from __future__ import annotations

import math

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from pbgeval.ranking.topk import TopCandidates
from tests.kit.graphs import score_values


@st.composite
def scored(draw: st.DrawFn):
    """Scores of keys x candidates, which are known, k, and borders of blocks of keys and of candidates."""
    num_keys, num_candidates = draw(st.integers(1, 4)), draw(st.integers(1, 9))
    values = score_values() | st.just(draw(score_values()))
    row = st.lists(values, min_size=num_candidates, max_size=num_candidates)
    scores = draw(st.lists(row, min_size=num_keys, max_size=num_keys))
    cell = st.tuples(st.integers(0, num_keys - 1), st.integers(0, num_candidates - 1))
    cuts = [sorted({0, size, *draw(st.sets(st.integers(0, size)))}) for size in (num_keys, num_candidates)]
    blocks = [
        (key, next_key, column, next_column)
        for key, next_key in zip(cuts[0], cuts[0][1:], strict=False)
        for column, next_column in zip(cuts[1], cuts[1][1:], strict=False)
    ]
    return scores, draw(st.sets(cell)), draw(st.integers(1, 6)), draw(st.permutations(blocks))


@given(scored(), st.booleans())
def test_the_best_are_those_of_sorting_whatever_the_blocks_and_their_order(of, filtered):
    scores, known, k, blocks = of
    numbers = [10 * place + 3 for place in range(len(scores[0]))]
    top = TopCandidates(len(scores), k)

    for first_key, stop_key, first, stop in blocks:
        cells = sorted(
            (key - first_key, place - first)
            for key, place in known
            if first_key <= key < stop_key and first <= place < stop
        )
        block = torch.tensor([row[first:stop] for row in scores[first_key:stop_key]])
        indices = torch.tensor(cells, dtype=torch.int64).reshape(-1, 2).unbind(1)
        top.add(first_key, block, np.array(numbers[first:stop]), indices if filtered else None)

    for key, row in enumerate(scores):
        best = sorted(range(len(row)), key=lambda place, row=row: (-row[place], place))[:k]
        missing = k - len(best)
        assert [numbers[place] for place in best] + [-1] * missing == top.number_Kk[key].tolist()
        assert [row[place] for place in best] + [-math.inf] * missing == top.score_Kk[key].tolist()
        assert [filtered and (key, place) in known for place in best] + [False] * missing == top.known_Kk[key].tolist()


def test_a_key_without_candidates_has_an_empty_list():
    top = TopCandidates(2, 3)
    top.add(1, torch.tensor([[0.5]]), np.array([4]), None)

    assert [[-1, -1, -1], [4, -1, -1]] == top.number_Kk.tolist()
