"""A block of queries and candidates, multiplied and counted by one thread: as float32 does it, and certified."""

import statistics
import time
from collections.abc import Callable

import torch

from pbgeval.ranking.certified import CertifiedQueries, UndecidedCells, count_by_bounds
from pbgeval.ranking.counting import count as count_scores
from pbgeval.scoring.certified import CertifiedComparator
from pbgeval.scoring.comparators import Comparator
from pbgeval.scoring.fast_products import PreparedRows, fast_scores
from pbgeval.scoring.true_scores import CertifiedTrue, TrueScores

NUM_BLOCKS = 4


def block_seconds(name: str, shape: tuple[int, int, int], agreement: float, repeats: int) -> tuple[float, float, float]:
    """Return the medians of CPU seconds of a block, in float32 and certified, and the median ratio of turns."""
    num_queries, num_candidates, dimension = shape
    generator = torch.Generator().manual_seed(0)
    query_QD, candidate_CD, noise_QD = (
        torch.randn((size, dimension), generator=generator)
        for size in (num_queries, NUM_BLOCKS * num_candidates, num_queries)
    )
    true_QD = agreement * query_QD + (1 - agreement**2) ** 0.5 * noise_QD
    ways = (
        _in_float32(Comparator(name), query_QD, candidate_CD, true_QD, num_candidates),
        _certified(CertifiedComparator(name), query_QD, candidate_CD, true_QD, num_candidates),
    )
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats + 1):
        for of_way, way in zip(seconds, ways, strict=True):
            begun = time.thread_time()
            way()
            of_way.append((time.thread_time() - begun) / NUM_BLOCKS)
    ratio = statistics.median(after / before for before, after in zip(seconds[0][1:], seconds[1][1:], strict=True))
    return statistics.median(seconds[0][1:]), statistics.median(seconds[1][1:]), ratio


def _in_float32(
    comparator: Comparator, query_QD: torch.Tensor, candidate_CD: torch.Tensor, true_QD: torch.Tensor, columns: int
) -> Callable[[], None]:
    queries_QD = comparator.prepare_queries(query_QD)
    blocks = [comparator.prepare_candidates(block) for block in candidate_CD.split(columns)]
    true = TrueScores.from_pairs(comparator, queries_QD, comparator.prepare_candidates(true_QD))
    row_Q = torch.arange(len(query_QD))

    def count() -> None:
        for block_CD in blocks:
            scores_QC = comparator.scores(queries_QD.unsqueeze(0), block_CD.unsqueeze(0))[0]
            count_scores(scores_QC, true.score_Q, row_Q=row_Q)

    return count


def _certified(
    comparator: CertifiedComparator,
    query_QD: torch.Tensor,
    candidate_CD: torch.Tensor,
    true_QD: torch.Tensor,
    columns: int,
) -> Callable[[], None]:
    query_QL = comparator.prepare_queries(query_QD.double())
    prepared = PreparedRows(comparator, query_QL, of_queries=True)
    blocks = [
        PreparedRows(comparator, comparator.prepare_candidates(block.double()), of_queries=False)
        for block in candidate_CD.split(columns)
    ]
    true = CertifiedTrue.from_pairs(comparator, query_QL, comparator.prepare_candidates(true_QD.double()))
    queries = CertifiedQueries(prepared, torch.arange(len(query_QD)), true)
    own_Q = torch.full((len(query_QD),), -1)

    def count() -> None:
        for block in blocks:
            undecided = UndecidedCells(queries, block.rows_NL)
            undecided.add(*count_by_bounds(queries, fast_scores(prepared, block), own_Q, None), 0, None)
            undecided.decide()

    return count
