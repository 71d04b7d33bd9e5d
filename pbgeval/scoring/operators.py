"""Entity vectors and relation parameters -> transformed entity vectors: PyTorch-BigGraph's operators, and our own.

Each operator maps rows x to rows of the same width; rows may have several leading dimensions, here E. Its parameters
come either for one relation (PBG's relations list) or, with dynamic relations, for all of them with a leading
dimension R; then `rel_E` says which one each row takes. Source: PBG.md section 2 and torchbiggraph/operators.py;
of ours (rotate, swapped_diagonal, projected_translation), other systems' models (decision 0015).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

import numpy as np
import torch
from attrs import frozen
from torch import Tensor

from pbgeval.scoring.comparators import COMPARATORS
from pbgeval.scoring.fixed_order import transform_in_order
from pbgeval.scoring.product import transform

Parameters = Mapping[str, Tensor]


class Operator:
    """A transformation of entity vectors that depends on the relation; of itself none: rows stay as they are."""

    parts: ClassVar[Mapping[str, tuple[int, ...]]] = {}  # axes of each parameter: 1 is the dimension, 2 half of it
    acts_on_both_sides = False  # of relations that are not dynamic: on lhs rows too, by `apply_to_lhs`

    def shapes(self, dimension: int) -> dict[str, tuple[int, ...]]:
        """Return the shape of each parameter of one relation."""
        return {name: tuple(dimension // part for part in parts) for name, parts in self.parts.items()}

    def apply(self, parameters: Parameters, x_ED: Tensor, rel_E: Tensor | None) -> Tensor:
        """Return the transformed rows (E, D); `rel_E` is None when the parameters are those of one relation."""
        return x_ED

    def prepared(self, parameters: Parameters) -> Parameters:
        """Return what `apply` takes, made of the parameters as a checkpoint has them; of one type of numbers."""
        return parameters

    def apply_to_lhs(self, parameters: Parameters, x_ED: Tensor) -> Tensor:
        """Return the transformed rows of the left side of a relation that is not dynamic: in PBG as they are."""
        return x_ED

    def adjoint(self, parameters: Parameters, q_ED: Tensor) -> Tensor:
        """Return the rows q' with q . M x = q' . x for every x, M being the linear part of one relation's operator."""
        return q_ED

    def features(self, q_ED: Tensor, x_ED: Tensor) -> Mapping[str, Tensor] | None:
        """Return by what each parameter is multiplied in q . (M x + t), and under "" the rest; None: by D^2 numbers.

        So one product of rows of parameters and rows of features scores many pairs of vectors with all relations.
        """
        return None


def _of_rows(parameter: Tensor, rel_E: Tensor | None) -> Tensor:
    """Return the parameter of each row, or the one parameter that all rows share (it broadcasts)."""
    if rel_E is None:
        return parameter
    return parameter.index_select(0, rel_E.flatten()).view(*rel_E.shape, *parameter.shape[1:])


class Diagonal(Operator):
    """d * x, elementwise (DistMult)."""

    parts: ClassVar = {"diagonal": (1,)}

    def apply(self, parameters: Parameters, x_ED: Tensor, rel_E: Tensor | None) -> Tensor:
        return _of_rows(parameters["diagonal"], rel_E) * x_ED

    def adjoint(self, parameters: Parameters, q_ED: Tensor) -> Tensor:
        return parameters["diagonal"] * q_ED

    def features(self, q_ED: Tensor, x_ED: Tensor) -> Mapping[str, Tensor]:
        return {"diagonal": q_ED * x_ED}


class Translation(Operator):
    """x + t (TransE)."""

    parts: ClassVar = {"translation": (1,)}

    def apply(self, parameters: Parameters, x_ED: Tensor, rel_E: Tensor | None) -> Tensor:
        return x_ED + _of_rows(parameters["translation"], rel_E)

    def features(self, q_ED: Tensor, x_ED: Tensor) -> Mapping[str, Tensor]:
        return {"translation": q_ED, "": (q_ED.double() * x_ED.double()).sum(-1, keepdim=True).to(q_ED.dtype)}


@frozen
class Linear(Operator):
    """M x (RESCAL)."""

    # Rows (E, D) and a matrix (D, D) -> matrix @ x for each row x.
    transform: Callable[[Tensor, Tensor], Tensor] = transform
    matrix: str = "linear_transformation"

    parts: ClassVar = {"linear_transformation": (1, 1)}

    def apply(self, parameters: Parameters, x_ED: Tensor, rel_E: Tensor | None) -> Tensor:
        matrices = parameters[self.matrix]
        rows_ED = x_ED.flatten(0, -2)
        if rel_E is None:
            return self.transform(rows_ED, matrices).view(x_ED.shape)
        transformed_ED = torch.empty_like(rows_ED)
        for relation in torch.unique(rel_E).tolist():
            rows = (rel_E.flatten() == relation).nonzero().squeeze(1)
            transformed_ED[rows] = self.transform(rows_ED[rows], matrices[relation])
        return transformed_ED.view(x_ED.shape)

    def adjoint(self, parameters: Parameters, q_ED: Tensor) -> Tensor:
        return self.transform(q_ED.flatten(0, -2), parameters[self.matrix].t().contiguous()).view(q_ED.shape)


@frozen
class Affine(Linear):
    """M x + t."""

    parts: ClassVar = {"linear_transformation": (1, 1), "translation": (1,)}

    def apply(self, parameters: Parameters, x_ED: Tensor, rel_E: Tensor | None) -> Tensor:
        return super().apply(parameters, x_ED, rel_E) + _of_rows(parameters["translation"], rel_E)


class ComplexDiagonal(Operator):
    """(a + ib)(c + id), the first half of a row real, the second imaginary (ComplEx)."""

    parts: ClassVar = {"real": (2,), "imag": (2,)}

    def apply(self, parameters: Parameters, x_ED: Tensor, rel_E: Tensor | None) -> Tensor:
        real_ED, imag_ED = _of_rows(parameters["real"], rel_E), _of_rows(parameters["imag"], rel_E)
        x_E2d = x_ED.view(*x_ED.shape[:-1], 2, x_ED.shape[-1] // 2)
        # Separate products and sums: a fused multiply-add rounds differently on different hardware.
        product_E2d = x_E2d * real_ED.unsqueeze(-2)
        product_E2d[..., 0, :].sub_(x_E2d[..., 1, :] * imag_ED)
        product_E2d[..., 1, :].add_(x_E2d[..., 0, :] * imag_ED)
        return product_E2d.reshape(x_ED.shape)

    def adjoint(self, parameters: Parameters, q_ED: Tensor) -> Tensor:
        return self.apply({"real": parameters["real"], "imag": -parameters["imag"]}, q_ED, None)

    def features(self, q_ED: Tensor, x_ED: Tensor) -> Mapping[str, Tensor]:
        (a_ED, b_ED), (c_ED, d_ED) = (x.chunk(2, dim=-1) for x in (q_ED, x_ED))
        return {"real": a_ED * c_ED + b_ED * d_ED, "imag": b_ED * c_ED - a_ED * d_ED}


class Rotate(ComplexDiagonal):
    """e^(i phase) x, elementwise (RotatE)."""

    parts: ClassVar = {"phase": (2,)}

    def prepared(self, parameters: Parameters) -> Parameters:
        """Return cosines and sines, computed in float64 by one thread and rounded once, so that layouts share bits."""
        phase = parameters["phase"]
        radians = phase.double().cpu().numpy()
        parts = {"real": np.cos(radians), "imag": np.sin(radians)}
        return {name: torch.from_numpy(part).to(phase.device, phase.dtype) for name, part in parts.items()}


class SwappedDiagonal(Operator):
    """d * (x2, x1), for rows x = (x1, x2) of two halves (SimplE, CP: an entity's vectors as subject and as object)."""

    parts: ClassVar = {"diagonal": (1,)}

    def apply(self, parameters: Parameters, x_ED: Tensor, rel_E: Tensor | None) -> Tensor:
        return _of_rows(parameters["diagonal"], rel_E) * _swapped(x_ED)

    def adjoint(self, parameters: Parameters, q_ED: Tensor) -> Tensor:
        return _swapped(parameters["diagonal"] * q_ED)

    def features(self, q_ED: Tensor, x_ED: Tensor) -> Mapping[str, Tensor]:
        return {"diagonal": q_ED * _swapped(x_ED)}


def _swapped(x_ED: Tensor) -> Tensor:
    return x_ED.roll(x_ED.shape[-1] // 2, dims=-1)


@frozen
class ProjectedTranslation(Linear):
    """P x on the right side, P x + t on the left (TransR); not of dynamic relations, whose candidates stay as is."""

    matrix: str = "projection"
    acts_on_both_sides = True

    parts: ClassVar = {"projection": (1, 1), "translation": (1,)}

    def apply_to_lhs(self, parameters: Parameters, x_ED: Tensor) -> Tensor:
        return self.apply(parameters, x_ED, None) + parameters["translation"]


OPERATORS: dict[str, Operator] = {
    "none": Operator(),
    "diagonal": Diagonal(),
    "translation": Translation(),
    "linear": Linear(),
    "affine": Affine(),
    "complex_diagonal": ComplexDiagonal(),
    "rotate": Rotate(),
    "swapped_diagonal": SwappedDiagonal(),
    "projected_translation": ProjectedTranslation(),
}
HALVED = ("complex_diagonal", "rotate", "swapped_diagonal")  # they take rows apart: dimensions must be even

# With the same bits on any hardware, which a matrix kernel does not have.
FIXED_ORDER_OPERATORS: dict[str, Operator] = {
    **OPERATORS,
    "linear": Linear(transform_in_order),
    "affine": Affine(transform_in_order),
    "projected_translation": ProjectedTranslation(transform_in_order),
}


def moves_to_query(operator: str, comparator: str) -> bool:
    """Return whether an operator on the candidates can act on the query instead."""
    shifts = operator == "translation" and comparator in COMPARATORS and COMPARATORS[comparator].is_distance
    return not OPERATORS[operator].acts_on_both_sides and (operator == "none" or comparator == "dot" or shifts)


def move_to_query(
    operator: Operator,
    parameters: Parameters,
    comparator: str,
    bias: bool,
    q_ED: Tensor,
    add_up: Callable[[Tensor], Tensor],
) -> tuple[Tensor, Tensor | None]:
    """Return rows that score candidates as they are as `q` scores transformed candidates: see `moves_to_query`.

    Args:
        operator: acts on the candidates of one relation.
        parameters: of the relation.
        comparator: its name.
        bias: whether column 0 is added to the score.
        q_ED: queries.
        add_up: takes the sums of the last axis.

    Returns:
        Of distances, rows that take the place of queries. Under dot, what the columns of a candidate are multiplied
        by, and what is added to a query's scores, (E, 1).
    """
    translation_D = parameters.get("translation")  # the constant part; None: the operator is linear
    if comparator != "dot":
        if translation_D is None:
            return q_ED, None
        moved_ED = q_ED - translation_D
        if bias:
            moved_ED[..., 0] = q_ED[..., 0] + translation_D[0]
        return moved_ED, None
    weight_ED, constant_E1 = q_ED, torch.zeros_like(q_ED[..., :1])
    if bias:  # q[1:] . y[1:] + q[0] + y[0] = w . y + q[0] with w = (1, q[1:])
        weight_ED = torch.cat([torch.ones_like(constant_E1), q_ED[..., 1:]], dim=-1)
        constant_E1 = q_ED[..., :1]
    if translation_D is not None:
        sum_E1 = add_up(weight_ED.double() * translation_D.double()).unsqueeze(-1)
        constant_E1 = (constant_E1.double() + sum_E1).to(q_ED.dtype)
    return operator.adjoint(parameters, weight_ED), constant_E1
