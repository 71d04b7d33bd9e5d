"""What evaluated edges share with each other and with training edges."""

from __future__ import annotations

import pytest

from pbgeval import edge_scorer, evaluate_triples

SCORER = edge_scorer(lambda lhs, rel, rhs: (lhs + rel - rhs).float(), num_entities=6, num_relations=2)
TEST = [(0, 0, 1), (0, 0, 1), (1, 0, 0), (4, 1, 5)]


@pytest.mark.parametrize(
    ("train", "num_in_training", "num_entities_unseen"),
    [
        ([(2, 1, 3)], 0, 4),
        ([(0, 1, 1)], 0, 2),  # another relation
        ([(0, 0, 1), (2, 0, 5)], 2, 1),
        ([*TEST, (3, 1, 2)], 4, 0),
    ],
)
def test_edges_and_entities_of_training_are_counted(
    train: list[tuple[int, int, int]], num_in_training: int, num_entities_unseen: int
) -> None:
    report = evaluate_triples(SCORER, TEST, train=[train])

    assert report.document["edge_diagnostics"] == {
        "num_edges": 4,
        "num_repeated": 1,
        "num_in_training": num_in_training,
        "num_entities": 4,
        "num_entities_unseen": num_entities_unseen,
    }
