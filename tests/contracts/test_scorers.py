"""Functions and modules of users as scorers: each satisfies the contract; what does not score is refused by name."""

from __future__ import annotations

import functools
import math
import re
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor

from pbgeval import (
    Edges,
    EntitySchema,
    EvalConfig,
    batch_scorer,
    edge_scorer,
    evaluate,
    evaluate_triples,
    side_scorer,
)
from pbgeval.errors import EvalError, IncompleteError, OutputError
from pbgeval.models import functions
from pbgeval.models.formulas import Formula
from pbgeval.models.model import of_one_type
from pbgeval.notation import ENDS, Side
from pbgeval.scoring import block_scorer
from pbgeval.scoring.block_scorer import (
    CONSISTENT,
    INCONSISTENT,
    MIN_CHECKED_ROWS,
    TILED,
    ScorerComparator,
    ScorerRelation,
    scorer_state,
)
from pbgeval.storage.arrays import TensorRows
from pbgeval.worker import sweep
from tests.contracts.scorer_contract import ScorerContract, some_edges
from tests.kit.held_up import entries_after_each_unit, short_of_memory
from tests.saved_ranks import counts_of

NUM_ENTITIES, NUM_RELATIONS, DIMENSION = 53, 3, 6
SOURCE = np.random.default_rng(0)
QUARTERS = SOURCE.integers(-4, 5, (NUM_ENTITIES, DIMENSION)) / 4
QUARTERS[40:44] = QUARTERS[3]  # identical entities tie
OF_RELATIONS = SOURCE.integers(-4, 5, (NUM_RELATIONS, DIMENSION)) / 4
ENTITIES, RELATIONS = (torch.tensor(values, dtype=torch.float32) for values in (QUARTERS, OF_RELATIONS))
EDGES = [(0, 0, 1), (2, 1, 3), (3, 2, 0)]


class OfQuarters(ScorerContract):
    num_entities, num_relations = NUM_ENTITIES, NUM_RELATIONS

    def score(self, lhs: int, rel: int, rhs: int) -> float:
        return math.fsum(QUARTERS[lhs] * OF_RELATIONS[rel] * QUARTERS[rhs])


def score_cells(lhs: Tensor, rel: Tensor, rhs: Tensor) -> Tensor:
    return (ENTITIES[lhs] * RELATIONS[rel] * ENTITIES[rhs]).sum(-1)


def score_side(hidden: Side, batch: Tensor) -> Tensor:
    known, rel = batch[:, 2 if hidden is Side.LHS else 0], batch[:, 1]
    return (RELATIONS[rel] * ENTITIES[known]) @ ENTITIES.T


class TestAFunctionThatBroadcasts(OfQuarters):
    def make(self):
        return edge_scorer(score_cells, num_entities=NUM_ENTITIES, num_relations=NUM_RELATIONS, cells_per_call=300)


class TestAFunctionOfVectors(OfQuarters):
    def make(self):
        def score(lhs: Tensor, rel: Tensor, rhs: Tensor) -> Tensor:
            assert lhs.shape == rel.shape == rhs.shape == (lhs.numel(),)
            return score_cells(lhs, rel, rhs)

        return edge_scorer(score, num_entities=NUM_ENTITIES, num_relations=NUM_RELATIONS, broadcasts=False)


class TestABatchFunction(OfQuarters):
    def make(self):
        def score_batch(batch: Tensor) -> tuple[Tensor, Tensor]:
            return score_side(Side.LHS, batch), score_side(Side.RHS, batch)

        return batch_scorer(score_batch, num_entities=NUM_ENTITIES, num_relations=NUM_RELATIONS, batch_size=4)


class TestAFunctionOfASide(OfQuarters):
    def make(self):
        return side_scorer(score_side, num_entities=NUM_ENTITIES, num_relations=NUM_RELATIONS, batch_size=4)


class TestAnObjectOfTheUsers(OfQuarters):
    def make(self):
        class Mine:
            num_entities, num_relations = NUM_ENTITIES, NUM_RELATIONS

            def scores(self, hidden, known_Q, relation_Q, candidate_C):
                query_QD = QUARTERS[known_Q.numpy()] * OF_RELATIONS[relation_Q.numpy()]
                return query_QD @ QUARTERS[candidate_C.numpy()].T  # an array of numpy, float64

        return Mine()


class TestAModuleWithUnlikeSides(ScorerContract):
    """TransE in float32, whose head scores are not the tail scores: rounded, negative, and none is a product."""

    num_entities, num_relations, error = 31, 2, 1e-5

    def make(self):
        return edge_scorer(TransE().eval(), num_entities=31, num_relations=2)

    def score(self, lhs: int, rel: int, rhs: int) -> float:
        of_entities, of_relations = tables_of_transe()
        return -math.dist(of_entities[lhs] + of_relations[rel], of_entities[rhs]) - 0.25 * lhs


class TransE(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.of_e, self.of_r = torch.nn.Embedding(31, 5), torch.nn.Embedding(2, 5)
        self.dropout = torch.nn.Dropout(0.5)

    def forward(self, lhs: Tensor, rel: Tensor, rhs: Tensor) -> Tensor:
        return self.dropout(-(self.of_e(lhs) + self.of_r(rel) - self.of_e(rhs)).square().sum(-1).sqrt() - 0.25 * lhs)


@functools.cache
def tables_of_transe() -> list[np.ndarray]:
    module = TransE()
    return [table.weight.detach().double().numpy() for table in (module.of_e, module.of_r)]


class TestOneEntity(ScorerContract):
    """No candidate competes."""

    num_entities, num_relations = 1, 1

    def make(self):
        return edge_scorer(lambda lhs, rel, rhs: (lhs + rel + rhs).double(), num_entities=1, num_relations=1)

    def score(self, lhs: int, rel: int, rhs: int) -> float:
        return float(lhs + rel + rhs)


class TestInfiniteScores(ScorerContract):
    """They compare as numbers."""

    num_entities, num_relations = 9, 2

    def make(self):
        def score(lhs, rel, rhs):
            number = (lhs * 3 + rhs + rel).double()
            return torch.where(number % 4 == 0, torch.inf, torch.where(number % 4 == 1, -torch.inf, number))

        return edge_scorer(score, num_entities=9, num_relations=2)

    def score(self, lhs: int, rel: int, rhs: int) -> float:
        number = lhs * 3 + rhs + rel
        # the contract subtracts scores: these finite ones have the same order and ties
        return 1e6 if number % 4 == 0 else -1e6 if number % 4 == 1 else float(number)

    def block(self, *arguments):
        return super().block(*arguments).clamp(-1e6, 1e6)


def evaluation(scorer, edges=EDGES, **settings):
    return evaluate(EvalConfig(**{"candidates": "all"} | settings), model=scorer, edges=edges)


def scorer_of(score, **named):
    return edge_scorer(score, num_entities=NUM_ENTITIES, num_relations=NUM_RELATIONS, **named)


def zeros(lhs, rel, rhs):
    return torch.zeros(torch.broadcast_shapes(lhs.shape, rhs.shape))


def named_score(lhs, rel, rhs):
    return {}["nothing"]


def of_batches(score_batch, **more):
    return batch_scorer(score_batch, num_entities=NUM_ENTITIES, num_relations=NUM_RELATIONS, **more)


class Returning:
    """A scorer that returns what a function makes of a block of zeros."""

    num_entities, num_relations = NUM_ENTITIES, NUM_RELATIONS

    def __init__(self, make) -> None:
        self.make = make

    def scores(self, hidden, known_Q, relation_Q, candidate_C):
        return self.make(torch.zeros(len(known_Q), len(candidate_C)))


class ReturningPairs(Returning):
    """The same of pairs, of a scorer that keeps rows."""

    queries_per_block = 1

    def paired_scores(self, hidden, known_Q, relation_Q, candidate_Q):
        return self.make(torch.zeros(len(known_Q), 1))

    def forget(self) -> None:
        pass


class WithoutForward(torch.nn.Module):
    def not_implemented(self, lhs, rel, rhs):
        raise NotImplementedError("on this device")


class OfZeros:
    def score(self, lhs, rel, rhs):
        return zeros(lhs, rel, rhs)


NO_TUPLE = r"the scoring function: expected a tuple \(head scores, tail scores\).*"
REFUSED = [
    *(
        (lambda score=score: evaluation(scorer_of(score)), fault)
        for score, fault in (
            (
                lambda lhs, rel, rhs: torch.zeros(3)[rhs],
                r"^the scoring function: IndexError in test_scorers.py:\d+: index .* out of bounds.*; asked for head "
                r"scores with int64 tensors: \(1, \d+\) of ids 0 to 52, \(\d+, 1\) of ids 0 to 2, .* of ids 0 to \d+; "
                r"is num_entities or num_relations larger than the model's tables\?$",
            ),
            (named_score, r"^named_score: KeyError in test_scorers.py:\d+: 'nothing'; asked for head scores"),
            (lambda lhs, rel, rhs: 1.0, r"expected \(\d+, \d+\) scores of ids .*, got float; return a torch tensor$"),
            (
                lambda lhs, rel, rhs: zeros(lhs, rel, rhs).numpy(),
                "got ndarray; return a torch tensor$",
            ),
            (
                lambda lhs, rel, rhs: zeros(lhs, rel, rhs)[..., None].expand(-1, -1, 24),
                r"got \(\d+, \d+, 24\); one score per edge is expected; sum over the last dimension, .sum\(-1\)\?$",
            ),
            (
                lambda lhs, rel, rhs: zeros(lhs, rel, rhs).sum(),
                r"got \(\); one score per edge is expected, but this is one for all; sum over the last .* only, .sum",
            ),
            (lambda lhs, rel, rhs: torch.zeros(3), r"got \(3,\); if it takes vectors only, set broadcasts=False$"),
            (lambda lhs, rel, rhs: zeros(lhs, rel, rhs) > 0, r"expected real numbers, got torch.bool"),
            (lambda lhs, rel, rhs: zeros(lhs, rel, rhs) + 1j, r"expected real numbers, got torch.complex64"),
            (
                lambda lhs, rel, rhs: torch.rand_like(zeros(lhs, rel, rhs)),
                r"the same score .* each time.*model.eval\(\)",
            ),
        )
    ),
    *(
        (lambda score=score: evaluation(of_batches(score)), NO_TUPLE + found)
        for score, found in (
            (lambda batch: torch.zeros(len(batch), NUM_ENTITIES), "got Tensor"),
            (lambda batch: (torch.zeros(len(batch)),) * 4, "got a tuple of 4"),
            (
                lambda batch: (torch.zeros(100, NUM_ENTITIES),) * 2,
                rf"got \(100, {NUM_ENTITIES}\) and .* for a batch of",
            ),
            (
                lambda batch: (torch.zeros(len(batch), NUM_ENTITIES, 4),) * 2,
                r"for a batch of \d+; one score per edge is expected; sum over the last dimension, .sum\(-1\)\?$",
            ),
        )
    ),
    (
        lambda: evaluation(scorer_of(lambda lhs, rel, rhs: torch.zeros(len(lhs), 24), broadcasts=False)),
        r"expected \(\d+,\) .* per edge is expected; sum over",
    ),
    (
        lambda: evaluation(Returning(lambda block: block[..., None].expand(-1, -1, 4))),
        r"got \(\d+, \d+, 4\); one score per edge is expected; sum over the last dimension",
    ),
    (
        lambda: side_scorer(zeros, num_entities=3, num_relations=1, batch_size=0),
        "batch_size: expected a number from 1, got 0",
    ),
    (
        lambda: edge_scorer(zeros, num_entities=3, num_relations=1, cells_per_call=0),
        "cells_per_call: expected a number from 1, got 0",
    ),
    (
        lambda: batch_scorer(WithoutForward().eval(), num_entities=3, num_relations=1),
        "^WithoutForward: the module has no forward; pass the method that scores, such as model.score$",
    ),
    (
        lambda: evaluation(scorer_of(WithoutForward().eval().not_implemented)),
        r"^WithoutForward.not_implemented: NotImplementedError in .* ids 0 to \d+$",
    ),
    (
        lambda: edge_scorer(TransE(), num_entities=31, num_relations=2),
        r"TransE: the module is in training mode; call model.eval",
    ),
    *(
        (
            lambda make=make: evaluation(Returning(make)),
            rf"^Returning.scores: head scores \(queries, candidates\): {fault}",
        )
        for make, fault in (
            (lambda block: block[:, 1:], r"expected shape \(\d+, \d+\), got \(\d+, \d+\)"),
            (lambda block: block.numpy() > 0, "expected real numbers, got torch.bool"),
            (lambda block: block.numpy().astype(object), "expected real numbers, got object"),
            (lambda block: block.tolist(), r"expected a tensor or array of shape \(\d+, \d+\), got list"),
        )
    ),
    (lambda: evaluation(ReturningPairs(lambda block: block)), r"head scores of pairs: expected shape \(\d+,\), got "),
    (lambda: evaluation(zeros), r"expected a path, or an object with num_entities.*got function without"),
    (
        lambda: evaluation(scorer_of(zeros), [(0, NUM_RELATIONS, 0)]),
        r"edges: row 0, relation: expected an id in 0..2 .* got 3; columns are head, relation, tail",
    ),
    *(
        (lambda settings=settings: evaluation(scorer_of(zeros), **settings), fault)
        for settings, fault in (
            (
                {"precision": "exact"},
                "precision: 'exact' is not defined for a model that is asked for scores, which .*; use",
            ),
            ({"comparator": "l2"}, "comparator: the model has 'dot', but the config says 'l2'; remove the key"),
            ({"edge_paths": ["x"]}, r"edge_paths: edges are passed in memory, but the key is \['x'\]; remove it"),
            ({"model": "x"}, "model: a model is passed in memory, but the key is 'x'; remove it"),
            (
                {"entities": {"all": EntitySchema(num_partitions=2)}},
                "edges: edges in memory need num_partitions = 1",
            ),
        )
    ),
    (
        lambda: evaluate(EvalConfig(candidates="all"), workers=2, model=scorer_of(zeros), edges=EDGES),
        "workers: a model or edges in memory are evaluated by one process; leave out workers",
    ),
]


@pytest.mark.parametrize(("act", "fault"), REFUSED)
def test_what_does_not_fit_is_refused_by_name(act, fault):
    with pytest.raises(EvalError, match=fault):
        act()


NO_MEMORY = [
    MemoryError(),
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    RuntimeError("[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate memory"),
]


OPTIONS = [
    (partial(edge_scorer, cells_per_call=40), r"\d+ at once \(lower cells_per_call of edge_scorer, now 40\)"),
    (partial(batch_scorer, batch_size=7), rf"\(\d, {NUM_ENTITIES}\) at once \(lower .* batch_size, now 7\)"),
    (partial(side_scorer, batch_size=7), rf"\(\d, {NUM_ENTITIES}\) at once \(lower .* batch_size, now 7\)"),
]


@pytest.mark.parametrize(
    ("error", "make", "option"), [(error, *of) for error, of in zip(NO_MEMORY, OPTIONS, strict=True)]
)
def test_a_function_without_memory_is_told_the_option_that_takes_less(error, make, option):
    def score(*of: object) -> Tensor:
        raise error

    with pytest.raises(EvalError) as raised:
        evaluation(make(score, num_entities=NUM_ENTITIES, num_relations=NUM_RELATIONS))
    found = re.escape(str(error) or "MemoryError")
    expected = rf"score: expected enough memory in test_scorers.py:\d+ for head scores, {option}, got: {found}"
    (fault,) = raised.value.faults
    assert re.fullmatch(expected, fault)


def test_reports_name_a_method_with_its_class():
    report = evaluation(scorer_of(OfZeros().score))
    assert report.run["model"] == "OfZeros.score"


def test_no_call_asks_for_more_cells_than_are_allowed():
    asked = []

    def score(lhs: Tensor, rel: Tensor, rhs: Tensor) -> Tensor:
        scores = score_cells(lhs, rel, rhs)
        asked.append(scores.numel())
        return scores

    sizes = {"num_entities": NUM_ENTITIES, "num_relations": NUM_RELATIONS}
    assert (
        evaluation(edge_scorer(score, **sizes, cells_per_call=40))["mrr"] == evaluation(scorer_of(score_cells))["mrr"]
    )
    assert max(asked) == 40 < NUM_ENTITIES


@pytest.mark.parametrize("candidates", ["all", "partition", "sampled"])
def test_a_score_that_is_not_a_number_is_refused_with_its_edge(candidates):
    def score(lhs, rel, rhs):
        return torch.where((rhs == 7) & (lhs == 2), torch.nan, zeros(lhs, rel, rhs))

    settings = {"num_batch_negs": 0, "num_uniform_negs": 2000} if candidates == "sampled" else {}
    with pytest.raises(
        EvalError, match=r"score of lhs 2, rel \d, rhs 7 \((tail candidate 7|head candidate 2)\), got NaN"
    ):
        evaluation(scorer_of(score), [(2, 0, 3)], candidates=candidates, **settings)


class Rounded:
    """Scores whose last digit depends on the shape of the block, or on the column."""

    num_entities, num_relations = NUM_ENTITIES, NUM_RELATIONS

    def __init__(self, by_column: bool) -> None:
        self.by_column = by_column

    def scores(self, hidden, known_Q, relation_Q, candidate_C):
        scores_QC = (known_Q.unsqueeze(1) + candidate_C).double()
        noise = torch.arange(len(candidate_C)) % 2 if self.by_column else torch.tensor(len(candidate_C))
        return scores_QC + noise * 1e-9


def test_where_shapes_disagree_blocks_are_cut_in_tiles_of_one_shape():
    relation = ScorerRelation(ScorerComparator(Rounded(by_column=False)), "all", "all")

    assert scorer_state(relation, tuple(ENDS)) == TILED
    assert relation.comparator.one_block_shape
    assert scorer_state(relation, tuple(ENDS)) == CONSISTENT


def test_tiles_are_put_together_right(monkeypatch):
    monkeypatch.setattr(block_scorer, "TILE_ROWS", 5)
    monkeypatch.setattr(block_scorer, "TILE_COLUMNS", 7)
    of_tiles, whole = (
        ScorerComparator(TestAFunctionThatBroadcasts().make(), one_block_shape=tiled) for tiled in (True, False)
    )
    relation = ScorerRelation(whole, "all", "all")
    ids_N1 = torch.arange(NUM_ENTITIES, dtype=torch.float64).unsqueeze(1)
    query_QD = relation.queries(Side.RHS, ids_N1[:23], torch.arange(23) % NUM_RELATIONS)
    candidate_CD = relation.candidates(Side.RHS, ids_N1)

    scores, of_pairs = (
        (of.scores(query_QD[None], candidate_CD[None]), of.paired_scores(query_QD, candidate_CD[:23]))
        for of in (whole, of_tiles)
    )
    assert [*map(torch.equal, scores, of_pairs)] == [True, True]


def test_where_even_tiles_disagree_the_report_says_so():
    report = evaluation(Rounded(by_column=True))

    assert report.run["reproducible"] is False
    assert report.run["workers"][0]["kernels"]["scorer"] == INCONSISTENT


def test_a_result_of_another_function_is_never_taken_for_this_ones(tmp_path):
    evaluate(EvalConfig(candidates="all"), output=tmp_path / "out", model=scorer_of(zeros), edges=EDGES)

    with pytest.raises(EvalError, match="overwrite"):
        evaluate(EvalConfig(candidates="all"), output=tmp_path / "out", model=scorer_of(zeros), edges=EDGES)


class Module(torch.nn.Module):
    def __init__(self, table):
        super().__init__()
        self.table = torch.nn.Parameter(table)

    def forward(self, lhs, rel, rhs):
        return (self.table[lhs] * RELATIONS[rel] * self.table[rhs]).sum(-1)


class Batch:
    def __init__(self, table):
        self.table = table

    def __call__(self, edges):
        relation = RELATIONS[edges[:, 1]]
        return (self.table[edges[:, 2]] * relation) @ self.table.T, (self.table[edges[:, 0]] * relation) @ self.table.T


class OwnScorer:
    num_entities, num_relations = NUM_ENTITIES, NUM_RELATIONS

    def __init__(self, table):
        self.table = table

    def scores(self, hidden, known_Q, relation_Q, candidate_C):
        return (self.table[known_Q] * RELATIONS[relation_Q]) @ self.table[candidate_C].T


SIZES = {"num_entities": NUM_ENTITIES, "num_relations": NUM_RELATIONS}
MODELS_OF_A_TABLE = {
    "module": lambda table: edge_scorer(Module(table).eval(), **SIZES),
    "function": lambda table: edge_scorer(
        lambda lhs, rel, rhs: (table[lhs] * RELATIONS[rel] * table[rhs]).sum(-1), **SIZES
    ),
    "batches": lambda table: batch_scorer(Batch(table), **SIZES),
    "own": OwnScorer,
    "vectors": lambda table: of_one_type(
        "mine", "arrays", Formula("distmult"), TensorRows(table), {"relations": TensorRows(RELATIONS)}
    ),
}


@pytest.mark.parametrize("kind", MODELS_OF_A_TABLE)
def test_a_model_that_was_changed_in_place_never_gets_its_earlier_figures(kind, tmp_path):
    table, output = ENTITIES.clone(), tmp_path / "out"
    model = MODELS_OF_A_TABLE[kind](table)
    before = evaluate_triples(model, MANY_EDGES, output=output)
    table.copy_(ENTITIES.flip(0))

    with pytest.raises(OutputError, match=r"differs in .*model.*; choose another output, or --overwrite"):
        evaluate_triples(model, MANY_EDGES, output=output)
    after = evaluate_triples(model, MANY_EDGES, output=output, overwrite=True)

    expected = evaluate_triples(MODELS_OF_A_TABLE[kind](table), MANY_EDGES)
    assert after.document["metrics"] == expected.document["metrics"]
    assert after["mrr"] != before["mrr"]


@pytest.mark.parametrize("kind", ["function", "vectors"])
def test_a_run_that_was_interrupted_at_its_begin_begins_again(kind, tmp_path):
    model, output = MODELS_OF_A_TABLE[kind](ENTITIES), tmp_path / "out"
    with short_of_memory(sweep, "rank", 1), pytest.raises(IncompleteError, match="the same command begins again"):
        evaluate_triples(model, MANY_EDGES, output=output)

    again = evaluate_triples(model, MANY_EDGES, output=output)

    assert again.document["metrics"] == evaluate_triples(model, MANY_EDGES).document["metrics"]


@pytest.mark.parametrize(("kind", "resumes"), [("function", False), ("vectors", True)])
def test_an_interrupted_run_of_a_function_is_not_resumed(kind, resumes, tmp_path):
    model = MODELS_OF_A_TABLE[kind](ENTITIES)
    with (
        entries_after_each_unit(),
        short_of_memory(sweep._SweepResults, "finish", 1),
        pytest.raises(IncompleteError) as interrupted,
    ):
        evaluate_triples(model, MANY_EDGES, output=tmp_path)

    advice = "Run the same command again to resume." if resumes else "Runs of functions are not resumed; --overwrite"
    assert advice in str(interrupted.value)


def counting_scorer(rows: list[int]):
    """Return a scorer of all entities at once, which writes down how many rows it is asked for."""

    def noted(hidden: Side, batch: Tensor) -> Tensor:
        rows.append(len(batch))
        return score_side(hidden, batch)

    return side_scorer(noted, num_entities=NUM_ENTITIES, num_relations=NUM_RELATIONS, batch_size=7)


MANY_EDGES = some_edges(NUM_ENTITIES, NUM_RELATIONS, 120, 9)
NUM_KEYS = len({edge[:2] for edge in MANY_EDGES}) + len({edge[1:] for edge in MANY_EDGES})
NUM_CHECKED = 2 * 2 * MIN_CHECKED_ROWS


@pytest.mark.parametrize(
    "settings",
    [
        {"candidates": "all"},
        {"candidates": "all", "save_topk": 4, "topk_metrics": True},
        {"candidates": "all", "type_constraint": "observed", "breakdowns": ["relation"]},
        {"candidates": "partition"},
        {"candidates": "sampled", "num_batch_negs": 50},
        {"candidates": "sampled", "num_batch_negs": 50, "num_uniform_negs": 40},
        {"candidates": "sampled", "num_batch_negs": 0, "num_uniform_negs": 40},
    ],
    ids=str,
)
def test_a_model_that_scores_all_entities_is_asked_once_for_each_query(settings):
    rows: list[int] = []

    evaluation(counting_scorer(rows), Edges(MANY_EDGES, train=[EDGES]), **settings)

    if settings["candidates"] == "sampled":  # chunks of other sizes are scored apart
        assert NUM_KEYS < sum(rows) <= 2 * len(MANY_EDGES) + NUM_CHECKED
    else:
        assert sum(rows) == NUM_KEYS + NUM_CHECKED


@pytest.mark.parametrize("candidates", ["all", "partition", "sampled"])
def test_rows_that_do_not_fit_in_the_cache_change_no_rank(candidates, tmp_path, monkeypatch):
    found = []
    for cached_cells in (functions.CACHED_CELLS, 5 * NUM_ENTITIES):
        monkeypatch.setattr(functions, "CACHED_CELLS", cached_cells)
        config = EvalConfig(candidates=candidates, save_ranks=True, num_batch_negs=10)
        rows: list[int] = []
        report = evaluate(config, output=tmp_path / str(cached_cells), model=counting_scorer(rows), edges=MANY_EDGES)
        found.append((counts_of(report.path), report.document["metrics"]))

    assert found[0] == found[1]
    if candidates != "sampled":
        assert max(rows) <= 5
        assert sum(rows) <= 2 * len(MANY_EDGES) + NUM_CHECKED


def test_true_scores_of_queries_without_competitors_are_those_of_the_model():
    """Of relations whose one candidate is the true entity."""
    edges = [(0, 0, 1), (2, 1, 3), (2, 1, 4)]
    known = Edges(edges, known=[edges])
    by_rows = evaluation(counting_scorer([]), known, type_constraint="observed", breakdowns=["relation"])
    by_cells = evaluation(TestAFunctionThatBroadcasts().make(), known, type_constraint="observed")

    assert by_rows.document["metrics"] == by_cells.document["metrics"]


def test_true_scores_are_asked_for_once():
    cells: list[int] = []

    def score(lhs, rel, rhs):
        cells.append(torch.broadcast_shapes(lhs.shape, rhs.shape).numel())
        return zeros(lhs, rel, rhs)

    evaluation(scorer_of(score), MANY_EDGES, candidates="all")
    with_check = sum(cells)
    scorer_state(ScorerRelation(ScorerComparator(scorer_of(score)), "all", "all"), tuple(ENDS), 2 * len(MANY_EDGES))

    padded = -(-NUM_ENTITIES // 32) * 32
    of_queries = sum(-(-len({edge[part] for edge in MANY_EDGES}) // 32) * 32 for part in (slice(2), slice(1, 3)))
    assert 2 * with_check - sum(cells) == of_queries * padded + (2 * -(-len(MANY_EDGES) // 32) * 32 * 32)
