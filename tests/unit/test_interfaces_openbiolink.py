"""Evaluators called as OpenBioLink's are, by both of its contracts, against ranks by sorting."""

from __future__ import annotations

import math
import random
from fractions import Fraction

import numpy as np
import pytest
import torch

from pbgeval import EvalConfig, evaluate, side_scorer
from pbgeval.errors import DataError, EvalError, ScorerError
from pbgeval.integrations.openbiolink import DataLoader, Evaluator
from pbgeval.notation import ENDS, Side
from tests.reference import rank_by_sorting

NUM_ENTITIES, NUM_RELATIONS = 13, 3
DRAW = random.Random(4)


def some_edges(number):
    return [
        (DRAW.randrange(NUM_ENTITIES), DRAW.randrange(NUM_RELATIONS), DRAW.randrange(NUM_ENTITIES))
        for _ in range(number)
    ]


TRAIN, VALID, TEST = some_edges(60), some_edges(9), some_edges(11)
TEST += TEST[:1]  # an edge twice
# Few values, so that many tie; negative and infinite ones among them.
SCORES = {
    (h, r, t): DRAW.choice([-math.inf, -2.5, -1.0, 0.0, 0.25, 3.0, math.inf])
    for h in range(NUM_ENTITIES)
    for r in range(NUM_RELATIONS)
    for t in range(NUM_ENTITIES)
}


def loader(train=TRAIN, valid=VALID, test=TEST, num_entities=NUM_ENTITIES, num_dropped=0):
    """A data set in memory, with the methods that an evaluator asks for."""
    of_files = DataLoader.__new__(DataLoader)
    splits = {"training": train, "validation": valid, "testing": test}
    tensors = {name: torch.tensor(edges, dtype=torch.int64).reshape(-1, 3) for name, edges in splits.items()}
    numbers = {"num_entities": num_entities, "num_relations": NUM_RELATIONS}
    of_files.__dict__.update(tensors, **numbers, num_dropped={"testing": num_dropped})
    return of_files


def rows(batch, scores=SCORES, num_entities=NUM_ENTITIES):
    """Head scores and tail scores of a batch."""
    edges = batch.tolist()
    heads = [[scores[e, r, t] for e in range(num_entities)] for _, r, t in edges]
    tails = [[scores[h, r, e] for e in range(num_entities)] for h, r, _ in edges]
    return torch.tensor(heads), torch.tensor(tails)


class OfTwo(Evaluator):
    """The later contract."""

    def score_batch(self, batch):
        return rows(batch)


class OfFour(Evaluator):
    """The documented contract, with true scores of another kernel: rounded otherwise than among the candidates'."""

    rounding = 1 + 2.0**-22

    def score_batch(self, batch):
        heads, tails = rows(batch)
        true = torch.tensor([SCORES[tuple(edge)] for edge in batch.tolist()]) * self.rounding
        return true, heads, true, tails


class OfFourWithoutTrue(OfFour):
    """The documented contract, with anything at all where the true entity stands."""

    rounding = 1.0

    def score_batch(self, batch):
        true, heads, _, tails = super().score_batch(batch)
        for row, (head, _, tail) in enumerate(batch.tolist()):
            heads[row, head], tails[row, tail] = -77.0, math.nan
        return true, heads, true, tails


class Distances(Evaluator):
    """Lower is better; arrays of numpy are scores too."""

    def score_batch(self, batch):
        return [-of.numpy() for of in rows(batch)]


def expected_ranks(known, scores=SCORES, test=TEST, num_entities=NUM_ENTITIES):
    """(optimistic, pessimistic, candidates) of head queries, then of tail queries."""
    found = {side: [] for side in ENDS}
    for h, r, t in test:
        for side, true in ((Side.LHS, h), (Side.RHS, t)):
            edges = [side.pick((e, r, t), (h, r, e)) for e in range(num_entities) if e != true]
            others = [scores[edge] for edge in edges if edge not in known]
            found[side].append((*rank_by_sorting(scores[h, r, t], others), len(others) + 1))
    return found


def found_ranks(ranked):
    return {
        side: [
            (1 + better, 1 + better + tied, 1 + competing)
            for better, tied, competing in zip(
                of.better_Q.tolist(), of.tied_Q.tolist(), of.num_competitors_Q.tolist(), strict=True
            )
        ]
        for side, of in ranked.of_side.items()
    }


@pytest.mark.parametrize("filtering", [True, False])
@pytest.mark.parametrize("batch_size", [1, 5, 12, 100])
@pytest.mark.parametrize("contract", [OfTwo, OfFour, OfFourWithoutTrue])
def test_ranks_are_those_of_the_slow_reference_for_any_batch(contract, batch_size, filtering):
    """12 edges: batches of one, a short last one, one that is whole, one that is never full."""
    known = {*TRAIN, *VALID, *TEST} if filtering else set()

    ranked = contract(loader()).rank(batch_size, filtering)

    assert expected_ranks(known) == found_ranks(ranked)
    assert (2 * len(TEST) if contract is OfFourWithoutTrue else 0) == ranked.num_without_true
    expected = [rank for of_side in expected_ranks(known).values() for rank in of_side]
    assert sum((1, size) == (best, worst) for best, worst, size in expected) == ranked.num_all_tied


@pytest.mark.parametrize("filtering", [True, False])
def test_metrics_are_openbiolinks_of_pessimistic_ranks_and_both_sides(filtering):
    known = {*TRAIN, *VALID, *TEST} if filtering else set()
    ranks = [worst for of_side in expected_ranks(known).values() for _, worst, _ in of_side]

    found = OfTwo(loader()).evaluate(batch_size=5, cpu=1, filtering=filtering)

    expected = {f"hits@{k}": sum(rank <= k for rank in ranks) / len(ranks) for k in (1, 3, 10)}
    expected["mrr"] = float(sum(Fraction(1, rank) for rank in ranks) / len(ranks))
    assert expected == pytest.approx(found, rel=1e-14)
    assert [(name, type(value)) for name, value in found.items()] == [(name, float) for name in expected]


def test_lower_may_be_better():
    assert OfTwo(loader()).evaluate() == Distances(loader(), higher_is_better=False).evaluate()
    assert OfTwo(loader()).evaluate() != Distances(loader()).evaluate()


def test_every_other_metric_is_there_for_each_side():
    ranked = OfTwo(loader(num_dropped=4)).rank()

    heads = [Fraction(best + worst, 2) for best, worst, _ in expected_ranks({*TRAIN, *VALID, *TEST})[Side.LHS]]
    assert float(sum(heads) / len(heads)) == pytest.approx(ranked.metrics(Side.LHS)["mean_rank"], rel=1e-14)
    assert (ranked.metrics()["count"], ranked.num_dropped) == (24, 4)


def zeros(*shape):
    return torch.zeros(shape)


@pytest.mark.parametrize(
    ("scores", "fault"),
    [
        (
            lambda b: (zeros(100, 13), zeros(100, 13)),
            r"head scores of a batch of 5: expected shape \(5, 13\), got \(100, 13\)",
        ),
        (lambda b: (zeros(b, 13), zeros(b, 12)), r"tail scores .*: expected shape \(5, 13\), got \(5, 12\)"),
        (
            lambda b: (zeros(b), zeros(b, 13), zeros(b, 1), zeros(b, 13)),
            r"true scores of tails .*: expected shape \(5,\)",
        ),
        (lambda b: zeros(b, 13), r"expected \(head scores, tail scores\) or four of them, got Tensor"),
        (lambda b: (zeros(b, 13),) * 3, "or four of them, got a tuple of 3"),
        (
            lambda b: (zeros(b, 13), None),
            r"tail scores .*: expected a tensor or array of shape \(5, 13\), got NoneType",
        ),
        (lambda b: (zeros(b, 13) > 0, zeros(b, 13)), "head scores .*: expected real numbers, got torch.bool"),
    ],
)
def test_scores_of_the_wrong_shape_are_refused_by_name(scores, fault):
    class Wrong(Evaluator):
        def score_batch(self, batch):
            return scores(len(batch))

    with pytest.raises(ScorerError, match=rf"^Wrong\.score_batch: {fault}|^Wrong\.score_batch.*{fault}"):
        Wrong(loader()).evaluate(5)


def test_a_score_that_is_not_a_number_is_refused_with_its_edge_where_it_is_compared():
    class NaN(Evaluator):
        def score_batch(self, batch):
            heads, tails = zeros(len(batch), 13), zeros(len(batch), 13)
            tails[:, 7] = math.nan
            return heads, tails

    with pytest.raises(DataError, match=r"for entity 7 as tail of edge \(0, 0, 1\), got NaN"):
        NaN(loader(test=[(0, 0, 1)], train=[], valid=[])).evaluate()
    assert {"mrr"} < set(NaN(loader(test=[(0, 0, 1)], train=[(0, 0, 7)], valid=[])).evaluate())
    with pytest.raises(DataError, match=r"for the true entity as tail of edge \(0, 0, 7\), got NaN"):
        NaN(loader(test=[(0, 0, 7)])).evaluate()
    with pytest.raises(EvalError, match="testing: no edges to rank"):
        NaN(loader(test=[])).evaluate()


# the loader


def write(folder, train, valid, test):
    data = folder / "HQ_DIR" / "train_test_data"
    data.mkdir(parents=True)
    for name, lines in (("train", train), ("val", valid), ("test", test)):
        text = "".join("\t".join([*line.split(), "917", "1", "STRING"]) + "\n" for line in lines)
        (data / f"{name}_sample.csv").write_text(text)
    return folder / "HQ_DIR"


def test_labels_are_numbered_by_training_edges_alone_and_what_is_dropped_is_counted(tmp_path):
    folder = write(tmp_path, ["b R a", "c Q b", "b R a"], ["a R new"], ["c Q a", "c new a", "x R y", "a R c"])

    with pytest.warns(UserWarning, match=r"no number were dropped: 1 of validation, 2 of testing; they are neither"):
        found = DataLoader("HQ_DIR", root=tmp_path)

    assert {name: of.tolist() if isinstance(of, torch.Tensor) else of for name, of in vars(found).items()} == {
        "entity_to_id": {"a": 0, "b": 1, "c": 2},
        "relation_to_id": {"Q": 0, "R": 1},
        "num_entities": 3,
        "num_relations": 2,
        "training": [[1, 1, 0], [2, 0, 1], [1, 1, 0]],
        "validation": [],
        "testing": [[2, 0, 0], [0, 1, 2]],
        "num_dropped": {"training": 0, "validation": 1, "testing": 2},
    }
    assert (tuple(found.validation.shape), len(found.all)) == ((0, 3), 5)
    for arguments in ((folder,), (tmp_path, "HQ_DIR")):  # the documentation has the name first, release 0.1.4 the root
        with pytest.warns(UserWarning, match="dropped"):
            assert found.testing.tolist() == DataLoader(*arguments).testing.tolist()


def test_labels_of_files_have_their_numbers(tmp_path):
    folder = write(tmp_path, ["b R a"], ["a R c"], ["c R a"])
    (tmp_path / "entities.tsv").write_text("1\ta\n2\tb b\n0\tc\n3\tb\n")
    (tmp_path / "relations.tsv").write_text("0\tQ\n1\tR\n")

    found = DataLoader(
        folder, entity_to_id_path=tmp_path / "entities.tsv", relation_to_id_path=tmp_path / "relations.tsv"
    )

    assert torch.cat([found.training, found.validation, found.testing]).tolist() == [[3, 1, 1], [1, 1, 0], [0, 1, 1]]
    assert (found.num_entities, found.num_relations) == (4, 2)
    number, batches = found.get_test_batches(2)
    assert (number, [batch.tolist() for batch in batches]) == (1, [[[0, 1, 1]]])


@pytest.mark.parametrize(
    ("file", "text", "fault"),
    [
        ("entities.tsv", "0\ta\n1\ta\n", "expected each label once, found 'a' again"),
        ("entities.tsv", "0\ta\n2\tb\n", "entities.tsv:2: expected ids from 0 to 1, found 2; .* none for id 1"),
        ("entities.tsv", "a\t0\n", "entities.tsv:1: expected id<TAB>label"),
        (
            "HQ_DIR/train_test_data/test_sample.csv",
            "a\tR\n",
            "test_sample.csv:1: expected 3 columns separated by tabs, found 2$",
        ),
        ("HQ_DIR/train_test_data/val_sample.csv", "", "val_sample.csv: there are no edges in this file"),
        ("HQ_DIR/train_test_data/val_sample.csv", None, "val_sample.csv: expected a file of OpenBioLink's dataset"),
        ("HQ_DIR/train_test_data", None, "HQ_DIR: expected a dataset of OpenBioLink, a folder with train_test_data"),
    ],
)
def test_a_file_that_is_not_as_in_a_dataset_is_refused(tmp_path, file, text, fault):
    folder = write(tmp_path, ["a R b"], ["a R b"], ["a R b"])
    (tmp_path / file).rename(tmp_path / "away") if text is None else (tmp_path / file).write_text(text)
    labels = {"entity_to_id_path": tmp_path / file} if file == "entities.tsv" else {}

    with pytest.raises(EvalError, match=fault):
        DataLoader(folder, **labels)


def test_the_edges_of_a_dataset_are_evaluated_with_any_model(tmp_path):
    """The report's pessimistic figures are those of an evaluator with the same scores."""
    names = [f"{h} {r} {t}" for h, r, t in TRAIN]
    every = [f"{e} 0 {e}" for e in range(NUM_ENTITIES)] + [f"0 {r} 0" for r in range(NUM_RELATIONS)]
    data = DataLoader(write(tmp_path, names + every, names[:1], [f"{h} {r} {t}" for h, r, t in TEST]))
    numbers = np.arange(NUM_ENTITIES) * 7 % 5
    scores = {edge: float(numbers[edge[0]] - numbers[edge[2]] * edge[1]) for edge in SCORES}

    class Mine(Evaluator):
        def score_batch(self, batch):
            return rows(batch, scores)

    scorer = side_scorer(
        lambda hidden, batch: hidden.pick(*rows(batch, scores)),
        num_entities=NUM_ENTITIES,
        num_relations=NUM_RELATIONS,
    )
    report = evaluate(EvalConfig(candidates="all", hits_at=[1, 3, 10]), model=scorer, edges=data.edges)

    for name, value in Mine(data).evaluate().items():
        assert value == pytest.approx(report[f"both.pessimistic.{name}"], rel=1e-9)
