"""A complete evaluation of the reference data -> the counts of its queries, and the metrics that are expected."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from pbgeval.notation import ENDS, Side
from pbgeval.stats.ranks import RankCounts

SETTINGS = ("raw", "filtered", "filtered_train_and_test_only", "filtered_restricted", "filtered_type_constrained")
MODELS = (
    *("distmult", "distmult_exact_ties", "complex", "transe_l1", "transe_l1_exact_ties"),
    *("transe_l2", "rotate_moduli", "rotate_l2"),
)
CUTOFFS = (1, 3, 5, 10, 50)


class FullEvaluation(NamedTuple):
    """One setting of one model."""

    test_E3: np.ndarray  # head, relation, tail of the edges that are evaluated
    counts: dict[Side, RankCounts]  # of each edge
    index: dict[str, Any]  # of all models: relation types among others
    document: dict[str, Any]  # of the model: expected metrics

    @classmethod
    def read(cls, vectors: Path, model: str, setting: str) -> FullEvaluation:
        """Read it from the folder of vectors."""
        folder = vectors / "full_nations"
        index, document = (json.loads((folder / f"{name}.json").read_text()) for name in ("index", model))
        test_E3 = np.load(folder / "test.npy")
        if setting == "filtered_restricted":
            has_entities = np.isin(test_E3[:, [0, 2]], index["restrict_entities_to"]).all(1)
            test_E3 = test_E3[has_entities & np.isin(test_E3[:, 1], index["restrict_relations_to"])]
        counts = {}
        with np.load(folder / f"{model}.ranks.npz") as arrays:
            for side in ENDS:
                optimistic, pessimistic, num_candidates = (
                    torch.from_numpy(arrays[f"{setting}.{side.label}.{name}"].astype(np.int64))
                    for name in ("optimistic", "pessimistic", "num_candidates")
                )
                counts[side] = RankCounts(optimistic - 1, pessimistic - optimistic, num_candidates - 1)
        return cls(test_E3, counts, index, document)

    def relations(self) -> torch.Tensor:
        """Return the relation of each edge, int64."""
        return torch.from_numpy(self.test_E3[:, 1].copy())

    def key_frequencies(self, hidden: Side) -> torch.Tensor:
        """Return how many evaluated edges have the key of each edge's query, int64."""
        keys = [(edge[1], hidden.pick(edge[2], edge[0])) for edge in self.test_E3.tolist()]
        return torch.tensor([keys.count(key) for key in keys])
