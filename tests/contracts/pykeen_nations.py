"""Evaluates DistMult on PyKEEN's bundled Nations data with PyKEEN's own evaluators.

A part of pykeen_programs.py. Writes the triples and the model as the tests read them (train.npy, valid.npy, test.npy:
head, relation, tail; distmult.entity.npy, distmult.relation.npy), and the metrics of both rank-based evaluators as
rank_based.json and macro.json.
"""

import json
from pathlib import Path

import numpy as np
import torch
from pykeen.datasets import Nations
from pykeen.evaluation import MacroRankBasedEvaluator, RankBasedEvaluator
from pykeen.models import DistMult

DIMENSION = 8


def main(folder: Path) -> None:
    """Write data, model and metrics."""
    nations = Nations()
    splits = {"train": nations.training, "valid": nations.validation, "test": nations.testing}
    triples = {name: factory.mapped_triples for name, factory in splits.items()}
    generator = torch.Generator().manual_seed(7)
    model = DistMult(triples_factory=nations.training, embedding_dim=DIMENSION)
    for name, representations in (
        ("entity", model.entity_representations),
        ("relation", model.relation_representations),
    ):
        parameter = next(representations[0].parameters())
        # Multiples of 1/4 between -1 and 1: scores are exact in float32, and many of them tie.
        values = torch.randint(-4, 5, parameter.shape, generator=generator) / 4
        with torch.no_grad():
            parameter.copy_(values)
        np.save(folder / f"distmult.{name}.npy", values.view(len(values), DIMENSION).numpy())
    for name, of_split in triples.items():
        np.save(folder / f"{name}.npy", of_split.numpy())
    for name, evaluator in (("rank_based", RankBasedEvaluator()), ("macro", MacroRankBasedEvaluator())):
        results = evaluator.evaluate(
            model, triples["test"], additional_filter_triples=[triples["train"], triples["valid"]], use_tqdm=False
        )
        (folder / f"{name}.json").write_text(json.dumps(results.to_flat_dict()), encoding="ascii")
