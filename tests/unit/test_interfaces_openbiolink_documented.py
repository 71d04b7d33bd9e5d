"""The two evaluators of OpenBioLink's documentation, corrected, on datasets and files on disk, by both contracts."""

from __future__ import annotations

import json
import random
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

from pbgeval.errors import ScorerError
from pbgeval.integrations.openbiolink import DataLoader, Evaluator
from pbgeval.models.topk import read_topk
from pbgeval.notation import Side
from tests.reference import rank_by_sorting
from tests.systems_reference import DglkeFolder, write_labels

NUM_ENTITIES, NUM_RELATIONS = 41, 4
ENTITIES = [f"DOID:{number * 7 % 100}" for number in range(NUM_ENTITIES)]
RELATIONS = ["DIS_DRUG", "GENE_DIS", "A", "Z"]
SOURCE = random.Random(8)


def some_edges(number):
    return [
        (SOURCE.randrange(NUM_ENTITIES), SOURCE.randrange(NUM_RELATIONS), SOURCE.randrange(NUM_ENTITIES))
        for _ in range(number)
    ]


TRAIN, VALID, TEST = some_edges(80), some_edges(9), some_edges(13)


def write_dataset(folder, train, valid, test):
    """Splits of labels, three columns and three more."""
    data = folder / "HQ_DIR" / "train_test_data"
    data.mkdir(parents=True)
    for name, edges in (("train", train), ("val", valid), ("test", test)):
        lines = ("\t".join([ENTITIES[h], RELATIONS[r], ENTITIES[t], "917", "TP", "STRING"]) for h, r, t in edges)
        (data / f"{name}_sample.csv").write_text("".join(f"{line}\n" for line in lines))
    return folder / "HQ_DIR"


class DglkeEvaluator(Evaluator):
    """A saved model: true scores edge by edge, all others by products and distances of tables."""

    def __init__(self, dataset, model_path, entity_to_id_path, relation_to_id_path):
        dl = DataLoader(dataset, entity_to_id_path=entity_to_id_path, relation_to_id_path=relation_to_id_path)
        super().__init__(dl)
        config = json.loads((Path(model_path) / "config.json").read_text())
        stem = f"{model_path}/{config['dataset']}_{config['model_name']}"
        entities, relations = (torch.from_numpy(np.load(f"{stem}_{of}.npy")) for of in ("entity", "relation"))
        self.kind, self.gamma = config["model_name"], config["gamma"]
        self.entity_emb = entities[self.entities.long()].share_memory_()
        self.relation_emb = relations[self.relations.long()].share_memory_()

    def score_batch(self, batch):
        head, rel, tail = self.entity_emb[batch[:, 0]], self.relation_emb[batch[:, 1]], self.entity_emb[batch[:, 2]]
        if self.kind == "ComplEx":
            head, rel, tail = (torch.complex(*of.chunk(2, -1)) for of in (head, rel, tail))
            every = torch.complex(*self.entity_emb.chunk(2, -1))
            true = (head * rel * tail.conj()).sum(-1).real
            heads, tails = (rel * tail.conj()) @ every.T, (head * rel) @ every.conj().T
            return true, heads.real, true, tails.real
        if self.kind == "DistMult":
            true = (head * rel * tail).sum(-1)
            return true, (rel * tail) @ self.entity_emb.T, true, (head * rel) @ self.entity_emb.T
        true = self.gamma - (head + rel - tail).abs().sum(-1)
        queries = tail - rel, head + rel
        heads, tails = (self.gamma - torch.cdist(query, self.entity_emb, p=1) for query in queries)
        return true, heads, true, tails


class DglkeEvaluatorOfTwo(DglkeEvaluator):
    """By the later contract."""

    def score_batch(self, batch):
        _, heads, _, tails = super().score_batch(batch)
        return heads, tails


def found_ranks(ranked):
    return {
        side: [
            (1 + better, 1 + better + tied)
            for better, tied in zip(of.better_Q.tolist(), of.tied_Q.tolist(), strict=True)
        ]
        for side, of in ranked.of_side.items()
    }


@pytest.mark.parametrize("evaluator", [DglkeEvaluator, DglkeEvaluatorOfTwo])
@pytest.mark.parametrize("name", ["TransE_l1", "DistMult", "ComplEx"])
def test_a_model_of_dglke_has_the_ranks_of_its_definition(evaluator, name, tmp_path):
    """Multiples of 1/4, so that nothing is rounded; batches of one, a last one that is short, and one for all."""
    model = DglkeFolder(tmp_path / "model", name)
    write_labels(tmp_path / "entities.tsv", ENTITIES)
    write_labels(tmp_path / "relations.tsv", RELATIONS)
    dataset = write_dataset(tmp_path, TRAIN, VALID, TEST)
    known, expected = {*TRAIN, *VALID, *TEST}, {}
    for side in Side:
        expected[side] = []
        for h, r, t in TEST:
            others = [side.pick((e, r, t), (h, r, e)) for e in range(NUM_ENTITIES)]
            scores = [model.score(*edge) for edge in others if edge not in known]
            expected[side].append(rank_by_sorting(model.score(h, r, t), scores))
    mine = evaluator(dataset, tmp_path / "model", tmp_path / "entities.tsv", tmp_path / "relations.tsv")

    for batch_size in (1, 4, 100):
        ranked = mine.rank(batch_size)
        assert expected == found_ranks(ranked)
        assert (0, 0) == (ranked.num_dropped, ranked.num_without_true)

    worst = [of for of_side in expected.values() for _, of in of_side]
    metrics = {f"hits@{k}": sum(rank <= k for rank in worst) / len(worst) for k in (1, 3, 10)}
    metrics["mrr"] = float(sum(Fraction(1, rank) for rank in worst) / len(worst))
    assert metrics == pytest.approx(mine.evaluate(100, -1), rel=1e-14)


# Edges that share no key with another, so that the file's own filter and ours leave the same entities.
LISTED = [(0, 0, 1), (2, 1, 3), (4, 2, 5), (6, 3, 7), (8, 0, 9)]
FILE = """DOID:0 DIS_DRUG DOID:7
Heads: DOID:28\t0.9\tDOID:0\t0.9\tDOID:14\t0.5\t
Tails: 
DOID:14 GENE_DIS DOID:21
Heads: 
Tails: DOID:35\t0.75\tDOID:21\t0.000001\t
DOID:28 A DOID:35
Heads: DOID:28\t0.25\t
Tails: DOID:0\t0.5\tDOID:7\t0.25\tDOID:35\t0.0\t
DOID:42 Z DOID:49
Heads:
Tails:
"""  # the last edge is missing


class SafranEvaluator(Evaluator):
    """A ranking file in memory; each side stands for itself, and a batch has as many rows as edges."""

    def __init__(self, dataset, path):
        super().__init__(DataLoader(dataset))
        lines = [line.strip() for line in Path(path).read_text().splitlines()]
        self.predictions = {}
        for at in range(0, len(lines), 3):
            head, rel, tail = lines[at].split(" ")
            key = self.dl.entity_to_id[head], self.dl.relation_to_id[rel], self.dl.entity_to_id[tail]
            self.predictions[key] = self.read(lines[at + 1], lines[at + 2])

    def read(self, *of_sides):
        return [self.listed(line) for line in of_sides]

    def listed(self, line):
        words = line.partition(":")[2].strip().split("\t")
        pairs = zip(words[::2], words[1::2], strict=False)  # of an empty line: one word, no pair
        return [(self.dl.entity_to_id[entity], float(confidence)) for entity, confidence in pairs]

    def num_rows(self, batch):
        return len(batch)

    def score_batch(self, batch):
        true = torch.zeros(2, len(batch))
        rows = torch.zeros(2, self.num_rows(batch), self.num_neg)
        for row, (head, rel, tail) in enumerate(batch.tolist()):
            of_sides = self.predictions.get((head, rel, tail), ([], []))
            for side, (answer, listed) in enumerate(zip((head, tail), of_sides, strict=True)):
                for entity, confidence in listed:
                    if entity == answer:
                        true[side, row] = confidence
                    else:
                        rows[side, row, entity] = confidence
        return true[0], rows[0], true[1], rows[1]


class SafranEvaluatorOfTwo(SafranEvaluator):
    """By the later contract: the true entity's confidence stands in its row."""

    def score_batch(self, batch):
        of_head, heads, of_tail, tails = super().score_batch(batch)
        return heads.scatter(1, batch[:, :1], of_head[:, None]), tails.scatter(1, batch[:, 2:], of_tail[:, None])


class HundredRows(SafranEvaluator):
    """As it is published: 100 rows whatever the batch."""

    def num_rows(self, batch):
        return 100


class SkipsBoth(SafranEvaluator):
    """As it is published: an empty line of one side drops the other side too."""

    def read(self, *of_sides):
        lists = super().read(*of_sides)
        return lists if all(lists) else ([], [])


@pytest.fixture
def listed(tmp_path):
    """A dataset of ten entities and four relations, and a ranking file of its test edges."""
    train = [
        (0, 3, 5),
        (2, 0, 7),
        (4, 1, 9),
        (6, 1, 1),
        (8, 2, 3),
        (1, 0, 6),
        (3, 0, 8),
        (5, 0, 0),
        (7, 0, 2),
        (9, 0, 4),
    ]
    write_dataset(tmp_path, train, [(1, 1, 0)], LISTED)
    (tmp_path / "ranking.txt").write_text(FILE)
    return tmp_path / "HQ_DIR", tmp_path / "ranking.txt"


HEADS = [(1, 2), (1, 10), (1, 1), (1, 10), (1, 10)]
TAILS = [(1, 10), (2, 2), (3, 10), (1, 10), (1, 10)]  # listed with 0.0: as if it were not


@pytest.mark.parametrize("batch_size", [1, 2, 3, 100])
@pytest.mark.parametrize("evaluator", [SafranEvaluator, SafranEvaluatorOfTwo])
def test_a_ranking_file_has_its_ranks_and_bounds(evaluator, batch_size, listed):
    mine = evaluator(*listed)

    ranked = mine.rank(batch_size, filtering=False)

    assert [(mine.dl.entity_to_id[ENTITIES[h]], mine.dl.entity_to_id[ENTITIES[t]]) for h, _, t in LISTED] == [
        (h, t) for h, _, t in mine.dl.testing.tolist()
    ]
    assert {Side.LHS: HEADS, Side.RHS: TAILS} == found_ranks(ranked)
    assert 6 == ranked.num_all_tied  # an empty list on one side, on the other, on both; both sides of a missing edge
    assert (3 if evaluator is SafranEvaluator else 0) == ranked.num_without_true  # listed: their scores stand apart
    worst = [of for _, of in HEADS + TAILS]
    assert sum(rank <= 1 for rank in worst) / 10 == mine.evaluate(batch_size, 1, filtering=False)["hits@1"]


def test_the_command_for_ranking_files_says_the_same_and_tells_zero_from_absent(listed):
    folder, path = listed
    test = folder / "train_test_data" / "test_sample.csv"

    found = read_topk(path, test, [test.with_name("train_sample.csv"), test.with_name("val_sample.csv")])

    of_side = {}
    for side in Side:
        ranks = found.of_side(side)
        of_side[side] = list(zip(ranks.optimistic_Q.tolist(), ranks.pessimistic_Q.tolist(), strict=True))
    expected = {Side.LHS: HEADS[:4], Side.RHS: [*TAILS[:2], (3, 3), TAILS[3]]}
    assert expected == of_side
    assert 1 == found.counts["num_missing"]


@pytest.mark.parametrize("batch_size", [1, 3, 100])
def test_a_hundred_rows_for_fewer_edges_are_refused_by_name(batch_size, listed):
    fault = (
        rf"^HundredRows\.score_batch: head scores: expected shape .* for a batch of {min(batch_size, 5)}, got \(100, "
    )
    with pytest.raises(ScorerError, match=fault):
        HundredRows(*listed).evaluate(batch_size, 1, filtering=False)


def test_an_empty_line_that_drops_the_other_side_shows_in_the_count(listed):
    ranked = SkipsBoth(*listed).rank(filtering=False)

    assert 8 == ranked.num_all_tied
    assert found_ranks(ranked)[Side.LHS][0] == (1, 10) != HEADS[0]


def test_a_dataset_is_found_by_either_order_of_name_and_root(listed):
    """The documentation has the name first, release 0.1.4 the root."""
    folder, _ = listed
    for arguments in ((folder,), ("HQ_DIR", folder.parent), (folder.parent, "HQ_DIR")):
        assert 5 == len(DataLoader(*arguments).testing)
