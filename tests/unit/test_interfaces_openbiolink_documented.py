"""The evaluator of ranking files of OpenBioLink's documentation, corrected, on files on disk, by both contracts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pbgeval.integrations.openbiolink import DataLoader, Evaluator
from pbgeval.notation import Side
from tests.unit.test_interfaces_openbiolink import found_ranks, write

ENTITIES = [f"DOID:{number * 7 % 100}" for number in range(41)]
RELATIONS = ["DIS_DRUG", "GENE_DIS", "A", "Z"]


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
            self.predictions[key] = [self.listed(line) for line in lines[at + 1 : at + 3]]

    def listed(self, line):
        words = line.partition(":")[2].strip().split("\t")
        pairs = zip(words[::2], words[1::2], strict=False)  # of an empty line: one word, no pair
        return [(self.dl.entity_to_id[entity], float(confidence)) for entity, confidence in pairs]

    def score_batch(self, batch):
        true = torch.zeros(2, len(batch))
        rows = torch.zeros(2, len(batch), self.num_neg)
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
    write(
        tmp_path,
        *([f"{ENTITIES[h]} {RELATIONS[r]} {ENTITIES[t]}" for h, r, t in of] for of in (train, [(1, 1, 0)], LISTED)),
    )
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
    found = {side: [ranks[:2] for ranks in of_side] for side, of_side in found_ranks(ranked).items()}
    assert found == {Side.LHS: HEADS, Side.RHS: TAILS}
    assert ranked.num_all_tied == 6  # an empty list on one side, on the other, on both; both sides of a missing edge
    assert (3 if evaluator is SafranEvaluator else 0) == ranked.num_without_true  # listed: their scores stand apart
    worst = [of for _, of in HEADS + TAILS]
    assert sum(rank <= 1 for rank in worst) / 10 == mine.evaluate(batch_size, 1, filtering=False)["hits@1"]
