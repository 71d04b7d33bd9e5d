"""CoDEx's triples, true and false, scores for them, and the thresholds that the paper chooses. Needs numpy alone."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.published.graphs import made_graph, numbered, read

FILES = ("train", "valid", "valid_negatives", "test", "test_negatives")


class Classified(NamedTuple):
    """Triples of one split, the true ones first."""

    relation_T: np.ndarray
    score_T: np.ndarray
    is_true_T: np.ndarray


def splits(folder: Path | None) -> tuple[Classified, Classified]:
    """Return the validation and the test triples of a folder, or of a made graph, scored by how often ends occur.

    The score is log(1 + n) of the training edges that have the relation and the head, plus that of the tail. It needs
    no training, and it ties often.
    """
    if folder is None:
        train_E3, *others = made_graph(200, 40, 40, 40, 40)
    else:
        train_E3, *others = numbered([read(folder / f"{name}.txt") for name in FILES])
    heads, tails = (np.unique(train_E3[:, [1, end]], axis=0, return_counts=True) for end in (0, 2))
    of_head, of_tail = (
        {(int(r), int(e)): int(n) for (r, e), n in zip(*found, strict=True)} for found in (heads, tails)
    )

    def classified(true_E3: np.ndarray, false_E3: np.ndarray) -> Classified:
        edges_T3 = np.concatenate([true_E3, false_E3])
        counts = [(of_head.get((r, h), 0), of_tail.get((r, t), 0)) for h, r, t in edges_T3.tolist()]
        is_true_T = np.arange(len(edges_T3)) < len(true_E3)
        return Classified(edges_T3[:, 1], np.log1p(np.array(counts)).sum(axis=1).astype(np.float32), is_true_T)

    return classified(*others[:2]), classified(*others[2:])


def predicted(valid: Classified, test: Classified) -> np.ndarray:
    """Return which test triples are predicted true, bool (T,).

    Each relation has the threshold with the best accuracy on its validation triples, of equal ones the lowest. A
    relation without validation triples has that of all of them.
    """
    thresholds = {}
    for relation in np.unique(valid.relation_T).tolist():
        of_relation = valid.relation_T == relation
        thresholds[relation] = best_threshold(valid.score_T[of_relation], valid.is_true_T[of_relation])
    of_all = best_threshold(valid.score_T, valid.is_true_T)
    least_T = np.array([thresholds.get(relation, of_all) for relation in test.relation_T.tolist()])
    return test.score_T >= least_T


def best_threshold(score_T: np.ndarray, is_true_T: np.ndarray) -> float:
    """Return the lowest of the scores that classify best as a threshold."""
    options = np.unique(score_T)
    right = [int(((score_T >= option) == is_true_T).sum()) for option in options]
    return float(options[int(np.argmax(right))])
