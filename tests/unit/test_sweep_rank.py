from __future__ import annotations

from collections import Counter
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pbgeval.ranking.cells import CellSample, ScoreCollector
from pbgeval.ranking.query_edges import QueryBlock
from pbgeval.ranking.sweep_cells import CellsByBlock, KnownAnswers
from pbgeval.scoring.comparators import COMPARATORS, Comparator
from pbgeval.stats.groups import order_image

NUMBERS = 14  # of all entities


@st.composite
def samples(draw: st.DrawFn):
    """Keys of queries, their true entities, sampled cells, known answers, who competes, borders of query blocks."""
    key_Q = sorted(draw(st.lists(st.integers(0, 4), min_size=1, max_size=8)))
    key_Q = [sorted(set(key_Q)).index(key) for key in key_Q]
    number = st.integers(0, NUMBERS - 1)
    true_Q = draw(st.lists(number, min_size=len(key_Q), max_size=len(key_Q)))
    competing = draw(st.sets(number, min_size=1))
    cell = st.tuples(st.integers(0, len(key_Q) - 1), st.sampled_from(sorted(competing)))
    known = draw(st.none() | st.sets(st.tuples(st.integers(0, max(key_Q)), number)))
    borders = sorted(draw(st.sets(st.integers(0, len(key_Q)), min_size=2, max_size=4)) if len(key_Q) > 1 else {0, 1})
    return key_Q, true_Q, draw(st.lists(cell, max_size=25)), known, sorted(competing), borders


@given(samples(), st.integers(1, 5))
def test_sampled_cells_are_read_from_the_block_of_scores_that_holds_them(sample, columns_per_block):
    """Cells may repeat; those of true entities, and of queries outside the blocks, are left out."""
    key_Q, true_Q, cells, known, competing, borders = sample
    blocks = [QueryBlock(first, stop, key_Q[first], key_Q[stop - 1] + 1, -1) for first, stop in pairwise(borders)]
    score = {(key, number): 100 * key + number - 150.0 for key in set(key_Q) for number in competing}
    answers = None
    if known is not None:
        key_P, number_P = np.array(sorted(known), np.int64).reshape(-1, 2).T
        answers = KnownAnswers(key_P, number_P)
    queries = SimpleNamespace(num_queries=len(key_Q), key_Q=np.array(key_Q), true_Q=np.array(true_Q))
    query_P, number_P = np.array(cells, np.int64).reshape(-1, 2).T
    by_number = CellSample.by_number(query_P, number_P)

    state = SimpleNamespace(queries=queries)
    arranged = CellsByBlock.arrange(by_number, np.array(competing), state, blocks, answers, columns_per_block)
    for block in blocks:
        for part, start in enumerate(range(0, len(competing), columns_per_block)):
            columns = competing[start : start + columns_per_block]
            keys = range(block.first_key, block.stop_key)
            scores_KC = torch.tensor([[score[key, number] for number in columns] for key in keys])
            arranged.read(part, block, scores_KC)
    collector = ScoreCollector()
    collector.add(arranged.query_P, torch.from_numpy(arranged.score_P), arranged.known_P)

    expected: Counter[tuple[int, int, bool]] = Counter()
    for query, number in cells:
        if borders[0] <= query < borders[-1] and number != true_Q[query]:
            image = int(order_image(torch.tensor([score[key_Q[query], number]]))[0])
            expected[query, image, known is not None and (key_Q[query], number) in known] += 1
    assert expected == Counter(zip(*(column.tolist() for column in collector.images()), strict=True))


@pytest.mark.parametrize("name", COMPARATORS)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_cell_of_a_block_has_the_bits_of_the_pair_scored_by_itself(name, bias, dtype):
    """So it does not matter whether sampled scores come from the blocks or from pairs."""
    generator = torch.Generator().manual_seed(1)
    query_KD, candidate_CD = (torch.randn(size, 50, generator=generator).to(dtype) for size in (83, 205))
    comparator = Comparator(name, bias)
    query_KD, candidate_CD = comparator.prepare_queries(query_KD), comparator.prepare_candidates(candidate_CD)
    row, column = (torch.randint(size, (300,), generator=generator) for size in (83, 205))

    scores_KC = comparator.scores(query_KD.unsqueeze(0), candidate_CD.unsqueeze(0))[0]

    assert torch.equal(comparator.paired_scores(query_KD[row], candidate_CD[column]), scores_KC[row, column])
