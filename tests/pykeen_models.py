"""Modules with the methods of PyKEEN's models that we call, made without PyKEEN; they count the rows asked for."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

NUM_ENTITIES, NUM_RELATIONS, DIMENSION = 23, 3, 4
SOURCE = np.random.default_rng(8)
ENTITIES = SOURCE.integers(-3, 4, (NUM_ENTITIES, DIMENSION)) / 4
ENTITIES[17:20] = ENTITIES[2]  # identical entities tie
RELATIONS = SOURCE.integers(-3, 4, (2 * NUM_RELATIONS, DIMENSION)) / 4


class Diagonal(torch.nn.Module):
    """DistMult on all entities, whose methods take ids as PyKEEN's do and leave the module in evaluation mode."""

    num_entities, num_relations, use_inverse_triples = NUM_ENTITIES, NUM_RELATIONS, False
    device = torch.device("cpu")

    def __init__(self) -> None:
        super().__init__()
        self.entities, self.relations = (torch.tensor(of, dtype=torch.float32) for of in (ENTITIES, RELATIONS))
        self.dropout = torch.nn.Dropout(0.5)
        self.num_rows = 0  # that were asked for

    def predict_h(self, rt_batch: Tensor, *, slice_size: int | None = None) -> Tensor:
        self.eval()
        return self._sliced(self.relations[rt_batch[:, 0]] * self.entities[rt_batch[:, 1]], slice_size)

    def predict_t(self, hr_batch: Tensor, *, slice_size: int | None = None) -> Tensor:
        self.eval()
        return self._sliced(self.entities[hr_batch[:, 0]] * self.relations[hr_batch[:, 1]], slice_size)

    def _sliced(self, query_BD: Tensor, slice_size: int | None) -> Tensor:
        self.num_rows += len(query_BD)
        parts = torch.split(self.entities, slice_size or NUM_ENTITIES)
        return torch.cat([self.dropout(query_BD @ part.T) for part in parts], dim=1)


class WithInverses(Diagonal):
    """Twice as many relations: head queries are tail queries of the inverse relation, changed in place."""

    num_relations, use_inverse_triples = 2 * NUM_RELATIONS, True

    def predict_h(self, rt_batch: Tensor, *, slice_size: int | None = None) -> Tensor:
        rt_batch[:, 0] = 2 * rt_batch[:, 0] + 1
        self.eval()
        return self._sliced(self.relations[rt_batch[:, 0]] * self.entities[rt_batch[:, 1]], slice_size)

    def predict_t(self, hr_batch: Tensor, *, slice_size: int | None = None) -> Tensor:
        hr_batch[:, 1] *= 2
        return super().predict_t(hr_batch, slice_size=slice_size)


class Representation:
    """A table of vectors, as a model of PyKEEN has them."""

    def __init__(self, table: Tensor) -> None:
        self.table = table

    def __call__(self, indices: Tensor | None = None) -> Tensor:
        return self.table if indices is None else self.table[indices]


class DistMultInteraction:
    """By its name, we know its formula."""


class ClampedInteraction:
    """Leaves scores as they are where `clamp_score` is None."""

    def __init__(self, clamp_score: tuple[float, float] | None) -> None:
        self.base, self.clamp_score = DistMultInteraction(), clamp_score


def with_vectors(model: Diagonal, interaction: object | None = None) -> Diagonal:
    """Give a model what an `ERModel` of PyKEEN has: an interaction and representations."""
    model.interaction = DistMultInteraction() if interaction is None else interaction
    model.entity_representations = [Representation(model.entities)]
    model.relation_representations = [Representation(model.relations[: model.num_relations])]
    return model


def slow_score(lhs: int, rel: int, rhs: int) -> float:
    """The score of one edge by `Diagonal`, in float64."""
    return math.fsum(ENTITIES[lhs] * RELATIONS[rel] * ENTITIES[rhs])
