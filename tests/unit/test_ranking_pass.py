"""One pass over a range of candidates: the kernel that it takes, and what it makes outside of kernels."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pbgeval.notation import Side
from pbgeval.ranking import blocks, fused, kernels, ranking_pass
from pbgeval.ranking.block_threads import BlockThreads
from pbgeval.ranking.contest_state import CellSample, ContestState, SampledCells
from pbgeval.ranking.kernels import Kernel, choose_kernel
from pbgeval.ranking.known_answers import KnownAnswers
from pbgeval.ranking.query_edges import CompetingEntities, queries_by_key
from pbgeval.ranking.ranking_pass import rank
from pbgeval.scoring.comparators import COMPARATORS, Comparator
from pbgeval.scoring.entities import EntityTable
from pbgeval.scoring.scorer import RelationScorer, SharedCandidates
from pbgeval.scoring.self_check import check_kernels
from pbgeval.scoring.true_scores import DuplicateRows, row_hashes
from pbgeval.stats.groups import sortable_int32
from pbgeval.storage.rows import MemoryRows
from tests.kit.case import TinyCase
from tests.kit.commands import flags, run_command
from tests.laws.test_order_does_not_matter import with_constants

CPU = torch.device("cpu")
NUM_ENTITIES, NUM_QUERIES, DIMENSION = 120, 40, 33
KNOWN = (np.array([0, 0, 5]), np.array([3, 4, 117]))


@pytest.fixture(autouse=True)
def _rule_of_this_machine() -> None:
    check_kernels(CPU)


def scorer_of(comparator: Comparator) -> RelationScorer:
    return RelationScorer("likes", "none", {}, comparator, False, "user", "user")


def ranked(kernel: Kernel, comparator: str, monkeypatch: pytest.MonkeyPatch) -> tuple[ContestState, torch.Tensor]:
    """Rank queries against entities in two ranges, of which every third is one vector; return that of each."""
    monkeypatch.setattr(kernels, "CANDIDATES_PER_BLOCK", 50)
    monkeypatch.setattr(kernels, "QUERIES_PER_BLOCK", 7)
    random = torch.Generator().manual_seed(2)
    x_ND = torch.randn((NUM_ENTITIES, DIMENSION), generator=random)
    x_ND[::3] = x_ND[0]
    known_E, true_E = (torch.randint(NUM_ENTITIES, (NUM_QUERIES,), generator=random).numpy() for _ in range(2))
    scorer = scorer_of(Comparator(comparator))
    contest = SharedCandidates(Side.RHS, "user", {0: scorer}, moved=False, has_constant=False)
    nothing_E = np.zeros(NUM_QUERIES, np.int64)
    columns = nothing_E, known_E % 20, true_E
    queries = queries_by_key(contest, np.arange(NUM_QUERIES), columns, nothing_E, 20, 7, by_relation=False)
    cells = np.stack([np.arange(90) % NUM_QUERIES, np.arange(90)])
    source: Any = SimpleNamespace(vectors=lambda scorer, side, ids: x_ND[ids])
    state = ContestState(
        queries,
        CompetingEntities(0, NUM_ENTITIES, lambda _: None),
        kernel,
        source,
        MemoryRows(queries.num_keys, contest.width(DIMENSION), torch.float32),
        MemoryRows(NUM_QUERIES, contest.true_width(DIMENSION, torch.float32), torch.float32),
        torch.float32,
        CPU,
        SampledCells(CellSample.by_number(*cells), np.ones(NUM_QUERIES, bool)),
    )
    state.prepare((0, queries.num_keys))
    for start, stop in ((0, 70), (70, NUM_ENTITIES)):
        known = KnownAnswers(*KNOWN).between(start, stop)
        rank(state, EntityTable("user", 0, x_ND[start:stop]), start, known, BlockThreads(2))
    return state, x_ND


@pytest.mark.parametrize("kernel", [Kernel.SCORES, Kernel.COMPILED])
@pytest.mark.parametrize("comparator", ["dot", "cos", "l2"])
def test_candidates_with_a_true_entitys_vector_tie_with_it(
    kernel: Kernel, comparator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever its score is compared with: a sum that need not have the last bits of the kernel's."""
    state, x_ND = ranked(kernel, comparator, monkeypatch)

    queries, counts = state.queries, state.counts()
    true = state.true(0, NUM_QUERIES)
    assert (true.score_Q != true.kernel_Q).any()
    scores_KC = state.comparator.scores(state.prepared.read(0, queries.num_keys)[None], prepared(state, x_ND)[None])[0]
    for query, (key, own) in enumerate(zip(queries.key_Q, queries.true_Q, strict=True)):
        is_twin = (x_ND == x_ND[own]).all(1)
        better = (scores_KC[key] > true.score_Q[query]) & ~is_twin
        tied = (scores_KC[key] == true.score_Q[query]) | is_twin
        better[own] = tied[own] = False
        assert [int(better.sum()), int(tied.sum())] == [int(counts.raw.better_Q[query]), int(counts.raw.tied_Q[query])]
        of_key = [number for of, number in zip(*KNOWN, strict=True) if of == key and number != own]
        assert [int(better[of_key].sum()), int(tied[of_key].sum()), len(of_key)] == [
            int(of[query]) for of in (counts.known.better_Q, counts.known.tied_Q, counts.known.num_competitors_Q)
        ]


@pytest.mark.parametrize("kernel", [Kernel.SCORES, Kernel.COMPILED])
def test_sampled_cells_have_the_bits_of_the_blocks_that_hold_them(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, x_ND = ranked(kernel, "l2", monkeypatch)

    queries = state.queries
    scores_KC = state.comparator.scores(state.prepared.read(0, queries.num_keys)[None], prepared(state, x_ND)[None])[0]
    expected = [
        (
            query,
            int(sortable_int32(scores_KC[key : key + 1, number])[0]),
            (key, number) in set(zip(*KNOWN, strict=True)),
        )
        for number in range(90)
        for query, key in [(number % NUM_QUERIES, int(queries.key_Q[number % NUM_QUERIES]))]
        if number != queries.true_Q[query]
    ]
    assert sorted(expected) == sorted(zip(*(column.tolist() for column in state.result.scores.images()), strict=True))


def prepared(state: ContestState, x_ND: torch.Tensor) -> torch.Tensor:
    return state.prepared_candidates(x_ND, np.arange(NUM_ENTITIES))


def chosen(
    name: str = "dot", device: str = "cpu", dtype: torch.dtype = torch.float32, wants_scores: bool = False, **more: Any
) -> Kernel:
    scorer = scorer_of(Comparator(name, **more))
    return choose_kernel(scorer, torch.device(device), dtype, wants_scores=wants_scores, num_cells=1)


def test_streams_take_inner_products_in_float32_of_which_nobody_wants_the_scores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(blocks, "JIT_MIN_CELLS", 0)
    monkeypatch.setattr(fused, "is_installed", lambda: True)
    for device, streaming in (("cpu", Kernel.COMPILED), ("cuda", Kernel.FUSED), ("meta", Kernel.SCORES)):
        assert [streaming] * 3 == [chosen(name, device) for name in ("dot", "cos", "l2")]
        assert Kernel.SCORES is chosen("l1", device)
        assert Kernel.SCORES is chosen("l2", device, bias=True)
        assert Kernel.SCORES is chosen("dot", device, torch.float64)
        assert Kernel.SCORES is chosen("dot", device, wants_scores=True)
    monkeypatch.setattr(blocks.blas, "find_sgemm", lambda: None)
    assert Kernel.SCORES is chosen()


def test_every_cell_but_the_true_entities_is_handed_over() -> None:
    generator = torch.Generator().manual_seed(0)
    scores_QC, own_Q = torch.randn((3, 5), generator=generator), torch.tensor([4, -2, 7])
    row_Q, known = torch.tensor([0, 0, 1]), (torch.tensor([0, 0]), torch.tensor([1, 4]))
    added: list[tuple[Any, ...]] = []
    sink = SimpleNamespace(add=lambda *arguments: added.append(arguments))
    state: Any = SimpleNamespace(result=SimpleNamespace(scores=sink))
    block: Any = SimpleNamespace(first=10, stop=13)

    ranking_pass._add_all(state, block, scores_QC, own_Q, ranking_pass._by_query(row_Q, known))

    [(query, score, is_known)] = added
    cells = [(row, column) for row in range(3) for column in range(5) if (row, column) != (0, 4)]
    assert ([10 + row for row, _ in cells], [scores_QC[cell] for cell in cells]) == (query.tolist(), score.tolist())
    assert [cell in ((0, 1), (1, 1), (1, 4)) for cell in cells] == is_known.tolist()


@pytest.mark.parametrize("name", COMPARATORS)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_cell_of_a_block_has_the_bits_of_the_pair_scored_by_itself(name: str, bias: bool, dtype: torch.dtype) -> None:
    """So it does not matter whether sampled scores come from the blocks or from pairs."""
    generator = torch.Generator().manual_seed(1)
    query_KD, candidate_CD = (torch.randn(size, 50, generator=generator).to(dtype) for size in (83, 205))
    comparator = Comparator(name, bias)
    query_KD, candidate_CD = comparator.prepare_queries(query_KD), comparator.prepare_candidates(candidate_CD)
    row, column = (torch.randint(size, (300,), generator=generator) for size in (83, 205))

    scores_KC = comparator.scores(query_KD.unsqueeze(0), candidate_CD.unsqueeze(0))[0]

    assert torch.equal(comparator.paired_scores(query_KD[row], candidate_CD[column]), scores_KC[row, column])


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=6),
    st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=5),
)
def test_duplicates_of_a_true_entity_are_all_candidates_with_its_row_but_itself(rows, trues):
    vectors = torch.eye(4)
    candidates = DuplicateRows.from_rows(vectors[torch.tensor(rows, dtype=torch.int64)])
    own_Q = np.array([rows.index(true) if is_here and true in rows else -1 for true, is_here in trues], np.int64)
    hash_Q = row_hashes(vectors[torch.tensor([true for true, _ in trues], dtype=torch.int64)]).numpy()

    expected = [
        (query, column)
        for query, (true, _) in enumerate(trues)
        for column, row in enumerate(rows)
        if row == true and column != own_Q[query]
    ]

    assert expected == sorted(zip(*(found.tolist() for found in candidates.of_queries(hash_Q, own_Q)), strict=True))


@pytest.mark.parametrize("candidates", ["sampled", "partition"])
def test_the_edge_of_a_vector_without_a_direction_is_named_by_its_row_of_the_file(
    candidates: str, tmp_path: Path
) -> None:
    case = TinyCase.write(tmp_path, partition_sizes=(9,), comparator="cos", global_emb=False, seed=6)
    with h5py.File(tmp_path / "checkpoint" / "model.v3.h5", "r+") as file:
        for name in ("real", "imag"):
            file[f"model/relations/3/operator/rhs/{name}"][:] = 0.0
    with h5py.File(tmp_path / "edges" / "edges_0_0.h5") as file:
        row_E, rhs_E = np.flatnonzero(file["rel"][:] == 3), file["rhs"][:]
    assert row_E.min() > 3
    with ExitStack() as stack:
        with_constants(stack, {"ranking.chunks.WINDOW_ROWS": 3})
        done = run_command(case, "--workers", "1", *flags([f"candidates={candidates}", "batch_size=3"]))
    assert any(
        f"for entity {rhs_E[row]} after operator 'complex_diagonal' of relation 'marks', used by row {row} of "
        in done.err
        for row in row_E
    )
