"""Sampled candidates by compiled loops, gathered or as blocks: the integers and scores of the general path.

Over operators, comparators, relations that are dynamic or not, sides, lists, filters, constraints, ties, infinities.
"""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from attrs import define, evolve
from hypothesis import event, example, given, settings
from hypothesis import strategies as st

from pbgeval.errors import UnrankableError
from pbgeval.notation import ENDS, Bucket, Side
from pbgeval.ranking import blocks, gathered_chunks, sampled
from pbgeval.ranking.auc_sampling import AucSampling
from pbgeval.ranking.bucket_pass import bucket_pass
from pbgeval.ranking.chunks import CandidatePolicy, SampledLists
from pbgeval.ranking.known_answers import KnownAnswers, KnownOfEdges
from pbgeval.ranking.settings import CandidateSets, Competition, EdgeOrigin, PassSettings, Relation
from pbgeval.ranking.tally import SideResult
from pbgeval.scoring.comparators import Comparator
from pbgeval.scoring.entities import EntityTable
from pbgeval.scoring.operators import OPERATORS
from pbgeval.scoring.scorer import RelationScorer
from pbgeval.scoring.self_check import check_kernels
from pbgeval.stats.rank_stats import StatsLayout
from pbgeval.stats.ranks import RankCounts
from pbgeval.storage.edges import EdgeBlock
from tests.examples import examples

NUM_RELATIONS = 3


@define(eq=False)
class Case:
    """A pass over some edges."""

    seed: int
    num_edges: int = 70
    num_entities: int = 23
    dimension: int = 6
    operator: str = "complex_diagonal"
    comparator: str = "dot"
    bias: bool = False
    is_dynamic: bool = True
    num_batch: int = 12
    num_uniform: int = 20
    sides: tuple[Side, ...] = (Side.LHS, Side.RHS)
    has_ties: bool = True
    has_global: bool = False
    max_norm: float | None = None
    filtered: bool = False
    constrained: bool = False
    largest: float = 1.0
    pbg_semantics: bool = False

    def run(self) -> dict[Side, SideResult] | str:
        """Return what the pass found, or the error that a score is no number."""
        random = np.random.default_rng(self.seed)
        numbers = {"lhs": self.num_entities, "rel": NUM_RELATIONS, "rhs": self.num_entities}
        edges = EdgeBlock(
            0, **{name: torch.from_numpy(random.integers(0, of, self.num_edges)) for name, of in numbers.items()}
        )
        tables = {("all", side): self._table(random) for side in ENDS}
        lists = SampledLists(self.num_batch, self.num_uniform, self.pbg_semantics, batch_size=30)
        relations = tuple(self._relation(random) for _ in range(1 if self.is_dynamic else NUM_RELATIONS))
        protocol = PassSettings(StatsLayout((10,)), relations, NUM_RELATIONS, lists, 5, self.sides, AUC)
        try:
            return bucket_pass(edges, EdgeOrigin("edges", 0, Bucket(0, 0)), tables, protocol, self._competition(random))
        except UnrankableError as error:
            return str(error)

    def _table(self, random: np.random.Generator) -> EntityTable:
        x_ND = random.standard_normal((self.num_entities, self.dimension))
        if self.has_ties:
            x_ND = random.integers(-2, 3, x_ND.shape) / 2
        x_ND = x_ND * self.largest
        of_type = torch.linspace(-1, 1, self.dimension) if self.has_global else None
        return EntityTable("all", 0, torch.from_numpy(x_ND).float(), of_type, self.max_norm)

    def _relation(self, random: np.random.Generator) -> Relation:
        operator = OPERATORS[self.operator]
        leading = (NUM_RELATIONS,) if self.is_dynamic else ()

        def of_side() -> dict[str, torch.Tensor]:
            shapes = operator.shapes(self.dimension)
            return {
                name: torch.from_numpy(random.integers(-2, 3, leading + shape) / 2).float()
                for name, shape in shapes.items()
            }

        parameters = {side: of_side() for side in (ENDS if self.is_dynamic else (Side.RHS,))}
        comparator = Comparator(self.comparator, self.bias)
        scorer = RelationScorer("all", self.operator, parameters, comparator, self.is_dynamic, "all", "all")
        return Relation(scorer, CandidatePolicy.SAMPLED)

    def _competition(self, random: np.random.Generator) -> Competition:
        known = sets = None
        if self.filtered:
            known = {}
            for side in ENDS:
                key_P = np.sort(random.integers(0, self.num_edges, 120))
                codes = np.unique(key_P * self.num_entities + random.integers(0, self.num_entities, 120))
                answers = KnownAnswers(codes // self.num_entities, codes % self.num_entities)
                known[side] = KnownOfEdges(answers, np.arange(self.num_edges))
        if self.constrained:
            sets = CandidateSets(self.num_entities, np.flatnonzero(random.random(self.num_entities) < 0.7))
        return Competition(known=known, in_time=known, sets=sets, first_number=lambda *_: 0)


AUC = AucSampling(0.3, 0.5, 12)


def found(case: Case, way: str) -> tuple[dict[Side, SideResult] | str, int]:
    """Return what a way finds, and how often the compiled loop has been called."""
    count = gathered_chunks.GatheredChunks.count
    with (
        mock.patch.object(gathered_chunks, "JIT_MIN_CELLS", 0),
        mock.patch.object(sampled, "supports", gathered_chunks.supports if way == "gathered" else lambda *_: False),
        mock.patch.object(sampled, "CELLS_AT_A_TIME", 500),
        mock.patch.object(gathered_chunks.GatheredChunks, "count", autospec=True, side_effect=count) as counted,
    ):
        return case.run(), counted.call_count


def as_lists(counts: RankCounts) -> list[list[int]]:
    return [counts.better_Q.tolist(), counts.tied_Q.tolist(), counts.num_competitors_Q.tolist()]


def plain(result: dict[Side, SideResult] | str) -> Any:
    """Return all that was found as lists, each query's at the place of its edge."""
    if isinstance(result, str):
        return result
    return {
        side: {
            "rows": of.rows_Q.tolist(),
            "raw": as_lists(of.counts.raw),
            "known": as_lists(of.counts.known),
            "in time": as_lists(of.counts.in_time or of.counts.raw),
            "pools": [
                sorted(np.concatenate(parts).tolist()) if parts else []
                for pool in (of.raw_pool, of.filtered_pool)
                for parts in (pool.true, pool.competing)
            ],
            "numbers": (of.num_short_lists, of.num_excluded, of.num_outside),
        }
        for side, of in result.items()
    }


def compare(case: Case) -> int:
    """Return how often the loop has been called."""
    check_kernels(torch.device("cpu"))
    expected, num_calls = found(case, "general")
    assert not num_calls
    result, num_calls = found(case, "gathered")
    assert plain(expected) == plain(result)
    return num_calls


anything = {
    "seed": st.integers(0, 1 << 30),
    "num_edges": st.sampled_from([1, 2, 11, 40, 70]),
    "num_entities": st.sampled_from([1, 2, 23]),
    "dimension": st.sampled_from([2, 6, 34, 300]),
    "operator": st.sampled_from(["none", "diagonal", "translation", "complex_diagonal", "linear", "affine"]),
    "comparator": st.sampled_from(["dot", "cos", "l2", "squared_l2", "l1"]),
    "bias": st.booleans(),
    "is_dynamic": st.booleans(),
    "num_batch": st.sampled_from([0, 1, 5, 12, 40]),
    "num_uniform": st.sampled_from([1, 20]),
    "sides": st.sampled_from([(Side.LHS, Side.RHS), (Side.LHS,), (Side.RHS,)]),
    "has_ties": st.booleans(),
    "has_global": st.booleans(),
    "max_norm": st.sampled_from([None, 1.5]),
    "filtered": st.booleans(),
    "constrained": st.booleans(),
    "largest": st.sampled_from([1.0, 1.0, 1.0, 1e18, 1e25]),
    "pbg_semantics": st.booleans(),
}
usual = anything | {  # what is gathered as well
    "operator": st.sampled_from(["none", "diagonal", "translation", "complex_diagonal"]),
    "comparator": st.just("dot"),
    "bias": st.just(False),
    "num_batch": st.sampled_from([1, 5, 12, 40]),
    "max_norm": st.none(),
    "constrained": st.just(False),
}
cases = st.one_of(st.builds(Case, **anything), st.builds(Case, **usual))


@pytest.mark.slow
@settings(max_examples=examples(250), deadline=None)
@given(case=cases)
@example(case=Case(0))
@example(case=Case(1, operator="none", is_dynamic=False, has_global=True))
@example(case=Case(2, operator="translation", is_dynamic=False, filtered=True))
@example(case=Case(3, operator="diagonal", largest=1e25, dimension=300))
def test_compiled_loops_find_what_the_general_path_finds(case: Case) -> None:
    event(f"gathered: {compare(case) > 0}")


@pytest.mark.parametrize("operator", ["none", "diagonal", "translation", "complex_diagonal"])
@pytest.mark.parametrize("is_dynamic", [False, True])
@pytest.mark.parametrize(
    "other", [{}, {"filtered": True}, {"sides": (Side.LHS,)}, {"has_global": True, "dimension": 300}]
)
def test_the_usual_settings_are_counted_without_blocks_of_scores(
    operator: str, is_dynamic: bool, other: dict[str, Any]
) -> None:
    assert compare(Case(7, operator=operator, is_dynamic=is_dynamic, **other))


def test_threads_share_a_block() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        assert compare(Case(11, num_edges=700, filtered=True)) >= 3
    finally:
        torch.set_num_threads(before)


def test_a_score_that_is_no_number_is_named() -> None:
    case = Case(3, operator="diagonal", has_ties=False, largest=1e25, dimension=300)

    assert compare(case)
    assert "got NaN: finite embeddings overflow" in str(found(case, "gathered")[0])


def test_without_the_routine_of_torch_the_general_path_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks.blas, "find_sgemm", lambda: None)

    assert not compare(Case(5))


def test_other_bits_than_those_of_products_are_not_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks._agrees.cache_clear()
    other = blocks.product
    monkeypatch.setattr(blocks, "product", lambda q, c: torch.nextafter(other(q, c), torch.tensor(9.0)))
    try:
        assert not blocks.product_is_callable()
    finally:
        blocks._agrees.cache_clear()


def test_loss_and_exact_pools_want_all_scores() -> None:
    whole = evolve(AUC, competing_rate=1.0, true_rate=1.0, words_per_row=0)
    with mock.patch(f"{__name__}.AUC", whole):
        assert not compare(Case(13))
