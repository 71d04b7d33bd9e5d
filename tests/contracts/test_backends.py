"""What every backend does, whatever multiplies and compares: the same counts, bits that depend on two rows alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from attrs import frozen

from pbgeval.ranking.backend import Backend, backend_for
from pbgeval.ranking.block import Block, CandidateRows, NotANumberError, QueryRows
from pbgeval.ranking.exact import decided
from pbgeval.ranking.settings import Kept
from pbgeval.ranking.torch_backend import TorchBackend
from pbgeval.scoring.comparators import COMPARATORS, Comparator
from pbgeval.scoring.exact import EXACT_COMPARATORS, ExactComparator
from pbgeval.scoring.scorer import RelationScorer
from pbgeval.scoring.self_check import check_kernels
from pbgeval.scoring.true_scores import ExactTrue, TrueScores
from tests import reference
from tests.kit.loops import loops_used

MakeBackend = Callable[..., Backend]
# (rows, queries of each, candidates, columns): one of each, and more than a tile has; no block is empty.
SHAPES = ((1, 1, 1, 1), (5, 3, 40, 7), (17, 1, 40, 17))


@pytest.fixture(params=["torch", "cpu", "cpu with loops", "gpu"])
def make_backend(request: pytest.FixtureRequest) -> Iterator[MakeBackend]:
    """What makes a backend of a kind, as a run would ask for it."""
    device = torch.device(request.getfixturevalue("kernel_device") if request.param == "gpu" else "cpu")
    check_kernels(device)

    def make(name: str = "dot", *, exact: bool = False, kept: Kept = Kept.NOTHING) -> Backend:
        exactly = ExactComparator(name) if exact else None
        scorer = RelationScorer("likes", "none", {}, Comparator(name), False, "user", "user", exact_comparator=exactly)
        dtype = torch.float64 if exact else torch.float32
        if request.param == "torch":
            return TorchBackend(scorer.comparator, scorer.exact_comparator, device, dtype, kept)
        return backend_for(scorer, device, dtype, kept=kept, num_cells=1)

    with loops_used(request.param == "cpu with loops"):
        yield make


@frozen(eq=False)
class Drawn:
    """Rows before they are prepared, and the cells that are special."""

    query_KD: torch.Tensor
    candidate_CD: torch.Tensor
    row_Q: np.ndarray
    own_Q: np.ndarray  # below zero, or beyond the candidates: the true entity is none of them
    true_QD: torch.Tensor
    known: list[tuple[int, int]]  # (row, column), in order
    excluded: list[tuple[int, int]]  # (query, column), none of them known or a query's own

    def block(self, backend: Backend, *, excludes: bool = False) -> Block:
        """Prepare the rows for a backend, which reads the scores of known answers."""
        precise = backend.exact_comparator is not None
        comparator = backend.exact_comparator if precise else backend.comparator
        query_KD, candidate_CD, true_QD = (
            rows.to(backend.device, torch.float64 if precise else torch.float32)
            for rows in (self.query_KD, self.candidate_CD, self.true_QD)
        )
        query_KD = comparator.prepare_queries(query_KD)
        candidate_CD, true_QD = comparator.prepare_candidates(candidate_CD), comparator.prepare_candidates(true_QD)
        pairs = query_KD[torch.from_numpy(self.row_Q)], true_QD
        true = (
            ExactTrue.from_pairs(backend.exact_comparator, *pairs)
            if precise
            else TrueScores.from_pairs(backend.comparator, *pairs, backend.pairs)
        )
        return Block(
            QueryRows(query_KD[None], torch.from_numpy(self.row_Q), true, backend.exact_comparator),
            CandidateRows(candidate_CD[None], backend.exact_comparator),
            torch.from_numpy(self.own_Q),
            cells(self.known),
            cells(self.excluded) if excludes else None,
            cells(self.known),
        )

    def counts(self, score: Callable[[int, int], float], true: Callable[[int], float], excluded: set) -> list:
        """(better, tied, competing) of each query: of all candidates, and of the known ones; by sorting."""
        found = []
        for query, row in enumerate(self.row_Q.tolist()):
            others = [at for at in range(len(self.candidate_CD)) if at != self.own_Q[query]]
            competing = [at for at in others if (query, at) not in excluded]
            known = [at for of, at in self.known if of == row and at in others]
            for columns in (competing, known):
                scores = [score(row, at) for at in columns]
                found.append((*reference.counts_by_sorting(true(query), scores), len(scores)))
        return found


def cells(of: list[tuple[int, int]]) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor(of, dtype=torch.int64).reshape(-1, 2).unbind(1)


def drawn(shape: tuple[int, int, int, int], *, in_quarters: bool) -> Drawn:
    """Rows of quarters, whose products are exact and tie often, or of normal numbers; with duplicates."""
    num_rows, queries_of_each, num_candidates, dimension = shape
    random = np.random.default_rng(num_candidates)

    def rows(number: int) -> torch.Tensor:
        x_ND = random.standard_normal((number, dimension))
        return torch.from_numpy(np.round(4 * x_ND) / 4 if in_quarters else x_ND).float()

    candidate_CD, row_Q = rows(num_candidates), np.repeat(np.arange(num_rows), queries_of_each)
    candidate_CD[::5] = candidate_CD[:1].clone()
    own_Q = random.integers(-1, num_candidates, row_Q.size) if num_candidates else np.full(row_Q.size, -1)
    true_QD = rows(row_Q.size)
    true_QD[own_Q >= 0] = candidate_CD[own_Q[own_Q >= 0]]
    # That entity is elsewhere, or the next behind the block: every candidate with its row is a duplicate.
    own_Q[::4] = np.where(own_Q[::4] % 2, num_candidates, own_Q[::4] + num_candidates)
    every = [(row, at) for row in range(num_rows) for at in range(num_candidates)]
    known = [cell for cell in every if random.random() < 0.3]
    free = [(query, at) for query, row in enumerate(row_Q.tolist()) for at in range(num_candidates)]
    excluded = [
        (query, at)
        for query, at in free
        if at != own_Q[query] and (int(row_Q[query]), at) not in known and random.random() < 0.2
    ]
    return Drawn(rows(num_rows), candidate_CD, row_Q, own_Q, true_QD, known, excluded)


def as_tuples(counts) -> list[tuple[int, int, int]]:
    of_all, of_known = (zip(*(of.tolist() for of in one.columns), strict=True) for one in (counts.raw, counts.known))
    return [of for both in zip(of_all, of_known, strict=True) for of in both]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("exact", "kept", "excludes"),
    [
        (False, Kept.NOTHING, False),
        (False, Kept.VALUES, False),
        (False, Kept.NOTHING, True),
        (True, Kept.NOTHING, False),
        (True, Kept.SCORES, False),
        (True, Kept.VALUES, True),
    ],
)
def test_counts_are_those_by_sorting(make_backend, shape, exact, kept, excludes) -> None:
    """Scores of quarters are exact in any type of numbers, so exact and rounded counts are alike."""
    backend, of = make_backend(exact=exact, kept=kept), drawn(shape, in_quarters=True)
    block = of.block(backend, excludes=excludes)
    exact_KC, true_Q = of.query_KD @ of.candidate_CD.T, (of.query_KD[of.row_Q] * of.true_QD).sum(1)

    found = backend.count(block)

    counts = found.counts
    if exact:
        counts = decided(block, counts, found.open)
        assert torch.equal(backend.values(block).cpu(), exact_KC[cells(of.known)].double())
    excluded = set(of.excluded) if excludes else set()
    expected = of.counts(lambda row, at: float(exact_KC[row, at]), lambda query: float(true_Q[query]), excluded)
    assert as_tuples(counts.cpu()) == expected
    if kept is not Kept.NOTHING:
        assert torch.equal(found.scores_KC.cpu().double(), exact_KC.double())


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", EXACT_COMPARATORS)
def test_scores_for_a_loss_are_values_but_for_rounding_and_are_counted_alike(make_backend, shape, name) -> None:
    of, found = drawn(shape, in_quarters=False), []
    for kept in (Kept.SCORES, Kept.VALUES):
        backend = make_backend(name, exact=True, kept=kept)
        found.append(backend.count_decided(of.block(backend)))

    scores, values = found
    assert torch.allclose(scores.scores_KC.double(), values.scores_KC.double(), atol=2e-5, rtol=0)
    assert torch.equal(scores.read_P, values.read_P)
    assert as_tuples(scores.counts.cpu()) == as_tuples(values.counts.cpu())


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", COMPARATORS)
def test_a_score_has_the_same_bits_alone_read_or_kept(make_backend, shape, name) -> None:
    of = drawn(shape, in_quarters=False)
    row_P, column_P = cells(of.known)
    kept, forgotten = make_backend(name, kept=Kept.VALUES), make_backend(name)
    block = of.block(kept)

    scores_KC = kept.count(block).scores_KC
    read_P = forgotten.count(of.block(forgotten)).read_P

    of_pairs_P = kept.pairs(block.queries.rows_KD[row_P], block.candidates.rows_CD[column_P])
    assert torch.equal(scores_KC[row_P, column_P], of_pairs_P)
    assert torch.equal(read_P, of_pairs_P)


@pytest.mark.parametrize("exact", [False, True])
def test_pairs_compare_as_cells_of_blocks_do(make_backend, *, exact: bool) -> None:
    """Scores of quarters: higher ones, equal ones of other rows, and lower ones."""
    backend, of = make_backend(exact=exact), drawn(SHAPES[-1], in_quarters=True)
    block = of.block(backend)
    score_KC, true_Q = of.query_KD @ of.candidate_CD.T, (of.query_KD[of.row_Q] * of.true_QD).sum(1)
    query_P, column_P = (
        index.flatten() for index in torch.meshgrid(*map(torch.arange, (len(true_Q), 9)), indexing="ij")
    )
    row_P = torch.as_tensor(of.row_Q)[query_P]
    candidate_PD = block.candidates.rows_CD[column_P]
    pairs = candidate_PD, backend.pairs(block.queries.rows_KD[row_P], candidate_PD)

    better_P, tied_P = backend.compare(block.queries, query_P, pairs, torch.arange(query_P.numel()))

    score_P = score_KC[row_P, column_P]
    assert torch.equal(better_P.cpu(), score_P > true_Q[query_P])
    assert torch.equal(tied_P.cpu(), score_P == true_Q[query_P])
    assert min(int((score_P > true_Q[query_P]).sum()), int(tied_P.sum()), int((score_P < true_Q[query_P]).sum())) > 0


@pytest.mark.parametrize("name", COMPARATORS)
def test_duplicates_of_a_true_entity_tie_with_it_and_are_not_better(make_backend, name) -> None:
    """Whatever the last bits of the score that it is compared by."""
    backend, kept = make_backend(name), make_backend(name, kept=Kept.VALUES)
    of = drawn(SHAPES[-1], in_quarters=False)
    block = of.block(kept)
    score_QC, true_Q1 = kept.count(block).scores_KC.cpu(), block.queries.true.score_Q.cpu()[:, None]
    is_other_QC = torch.from_numpy(of.own_Q[:, None] != np.arange(len(of.candidate_CD)))
    is_same_QC = (of.true_QD[:, None] == of.candidate_CD).all(-1)
    better_QC = (score_QC > true_Q1) & ~is_same_QC & is_other_QC
    tied_QC = ((score_QC == true_Q1) | is_same_QC) & is_other_QC

    counts = backend.count(of.block(backend)).counts.cpu().raw

    assert set((is_same_QC & is_other_QC).sum(1).tolist()) >= {0, 7, 8}
    assert torch.equal(counts.better_Q, better_QC.sum(1))
    assert torch.equal(counts.tied_Q, tied_QC.sum(1))


def test_a_block_counts_alike_whether_the_scores_of_a_row_or_of_a_column_are_adjacent(make_backend) -> None:
    backend = make_backend(kept=Kept.VALUES)
    block = drawn(SHAPES[-1], in_quarters=True).block(backend)
    scores_KC, true_Q = backend.count(block).scores_KC, block.queries.true.score_Q

    def found(scores_KC: torch.Tensor) -> tuple[torch.Tensor, ...]:
        counts = backend.count_scores(block, scores_KC, true_Q, true_Q)
        return counts.rows(), *backend.cells_between(block, scores_KC, true_Q, true_Q, counts)

    assert all(map(torch.equal, found(scores_KC), found(scores_KC.T.contiguous().T)))


def test_a_score_that_is_no_number_is_named(make_backend) -> None:
    backend, of = make_backend(), drawn((5, 3, 40, 7), in_quarters=True)
    of.query_KD[3, :2] = torch.tensor([3e38, -3e38])
    of.candidate_CD[[11, 30], :2] = 3e38

    with pytest.raises(NotANumberError) as raised:
        backend.count(of.block(backend))

    assert (raised.value.row, raised.value.column) == (3, 11)


def test_a_comparator_in_exact_arithmetic_is_asked_of_exact_backends_alone(make_backend) -> None:
    assert isinstance(make_backend(exact=True).exact_comparator, ExactComparator)
    assert make_backend().exact_comparator is None
