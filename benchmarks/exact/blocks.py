"""A block of queries and candidates, multiplied and counted by one thread: as float32 does it, and exact."""

import statistics
import time
from collections.abc import Callable

import torch

from pbgeval.ranking.block import Block, CandidateRows, QueryRows
from pbgeval.ranking.cpu_backend import CpuBackend
from pbgeval.ranking.exact import decided
from pbgeval.ranking.settings import Kept
from pbgeval.scoring.comparators import Comparator
from pbgeval.scoring.exact import ExactComparator
from pbgeval.scoring.true_scores import ExactTrue, TrueScores

NUM_BLOCKS = 4
CPU = torch.device("cpu")


def block_seconds(name: str, shape: tuple[int, int, int], agreement: float, repeats: int) -> tuple[float, float, float]:
    """Return the medians of CPU seconds of a block, in float32 and exact, and the median ratio of turns."""
    num_queries, num_candidates, dimension = shape
    generator = torch.Generator().manual_seed(0)
    query_QD, candidate_CD, noise_QD = (
        torch.randn((size, dimension), generator=generator)
        for size in (num_queries, NUM_BLOCKS * num_candidates, num_queries)
    )
    true_QD = agreement * query_QD + (1 - agreement**2) ** 0.5 * noise_QD
    ways = (
        _in_float32(Comparator(name), query_QD, candidate_CD, true_QD, num_candidates),
        _exact(ExactComparator(name), query_QD, candidate_CD, true_QD, num_candidates),
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
    query_QD = comparator.prepare_queries(query_QD)
    true = TrueScores.from_pairs(comparator, query_QD, comparator.prepare_candidates(true_QD), comparator.paired_scores)
    backend = CpuBackend(comparator, None, CPU, torch.float32, kept=Kept.VALUES, counts_products=False)
    parts = [comparator.prepare_candidates(part_CD) for part_CD in candidate_CD.split(columns)]
    return _counting(backend, QueryRows(query_QD[None], torch.arange(len(query_QD)), true), parts)


def _exact(
    comparator: ExactComparator,
    query_QD: torch.Tensor,
    candidate_CD: torch.Tensor,
    true_QD: torch.Tensor,
    columns: int,
) -> Callable[[], None]:
    query_QL = comparator.prepare_queries(query_QD.double())
    true = ExactTrue.from_pairs(comparator, query_QL, comparator.prepare_candidates(true_QD.double()))
    scores = Comparator(comparator.name, comparator.bias)
    backend = CpuBackend(scores, comparator, CPU, torch.float64, kept=Kept.NOTHING, counts_products=False)
    parts = [comparator.prepare_candidates(part_CD.double()) for part_CD in candidate_CD.split(columns)]
    return _counting(backend, QueryRows(query_QL[None], torch.arange(len(query_QD)), true, comparator), parts)


def _counting(backend: CpuBackend, queries: QueryRows, parts: list[torch.Tensor]) -> Callable[[], None]:
    of_parts = [CandidateRows(part_CD[None], queries.exact_comparator) for part_CD in parts]
    own_Q = torch.full((queries.num_queries,), -1)

    def count() -> None:
        for candidates in of_parts:
            block = Block(queries, candidates, own_Q, None)
            found = backend.count(block)
            if queries.exact_comparator is not None:
                assert found.open is not None, "blocks of scores list all of them"
                decided(block, found.counts, found.open)

    return count
