"""A system's relation vectors -> parameters of our operators on either side (decision 0015).

A score is c(g(lhs), rhs) where the right side is asked for, and c(lhs, h(rhs)) where the left is: g and h are one
operator with other parameters. Reciprocal relations are twice as many: both sides use g, left queries the second half.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import torch
import torch.nn.functional as F
from attrs import frozen
from torch import Tensor

from pbgeval.errors import StorageError
from pbgeval.notation import ENDS, Side

SideParameters = Mapping[Side, Mapping[str, Tensor]]  # by side; each with a leading dimension of relations

OPERATORS = {
    "distmult": "diagonal",
    "complex": "complex_diagonal",
    "transe": "translation",
    "rotate": "rotate",
    "rescal": "linear",
    "simple": "swapped_diagonal",
    "cp": "swapped_diagonal",
    "transr": "projected_translation",
    "dot": "none",
}
DISTANCES = {"rotate": ("complex_l1", "l2"), "transe": ("l1", "l2"), "transr": ("l1", "l2")}  # of norm 1, and of 2


@frozen
class Formula:
    """How a model scores, by its name in lower case."""

    kind: str  # of OPERATORS
    norm: int = 1  # of transe, transr and (over moduli) rotate
    phase_unit: float = 1.0  # rotate: radians of 1
    clamped: bool = False  # simple
    reciprocal: bool = False

    @property
    def operator(self) -> str:
        return OPERATORS[self.kind]

    @property
    def comparator(self) -> str:
        if self.kind in DISTANCES:
            return DISTANCES[self.kind][self.norm - 1]
        return "clamped_dot" if self.clamped else "dot"

    @property
    def dynamic(self) -> bool:
        """Whether relations are dynamic: all but those whose operator acts on candidates too."""
        return self.kind != "transr"

    def num_relations(self, rows: int) -> int:
        """Return the number of relations of a table of so many rows."""
        return rows // 2 if self.reciprocal else rows

    def relation_columns(self, dimension: int) -> int:
        """Return the columns that relation vectors have, for entities of some dimension."""
        halved = {"rotate": dimension // 2, "cp": dimension // 2, "dot": 0}
        return halved.get(self.kind, dimension**2 if self.kind == "rescal" else dimension)

    def check(self, where: str, dimension: int, columns: int, rows: int) -> None:
        """Check that the tables fit together.

        Raises:
            StorageError: they do not.
        """
        halves = "real parts, then imaginary parts" if self.kind in ("complex", "rotate") else "two halves"
        expected = self.relation_columns(dimension)
        if self.kind in ("complex", "rotate", "simple", "cp") and dimension % 2:
            raise StorageError(
                f"{where}: {self.kind} needs an even number of entity columns ({halves}), found {dimension}"
            )
        if columns != expected and self.kind != "transr":
            raise StorageError(
                f"{where}: {self.kind} with entity vectors of {dimension} columns needs relation vectors of {expected}"
                f" columns, found {columns}; check that both files are of one model"
            )
        if self.reciprocal and rows % 2:
            raise StorageError(
                f"{where}: a reciprocal model needs two rows per relation (first those of right-hand queries), found"
                f" {rows} rows"
            )

    def parameters(self, tables: Mapping[str, Tensor], dimension: int, num_relations: int) -> SideParameters:
        """Return the operators' parameters, float32.

        Args:
            tables: `relations`, a row per relation; of reciprocal ones those of right queries, then those of left
                queries. Of transr also `projection`: (entity columns, relation columns) row by row.
            dimension: of the entities; of transr as they are padded.
            num_relations: the rows of a formula without such tables.
        """
        relation_RD = tables.get("relations", torch.empty(num_relations, 0))
        if self.kind == "transr":
            size, flat = relation_RD.shape[1], tables["projection"]
            # As DGL-KE has it, a row vector is multiplied from the left: transposed, it is a matrix times a column.
            projection = flat.view(flat.shape[0], -1, size).transpose(1, 2).contiguous()
            missing = [dimension - projection.shape[2], dimension - size]
            return {
                Side.RHS: {
                    "projection": F.pad(projection, (0, missing[0], 0, missing[1])),
                    "translation": F.pad(relation_RD, (0, missing[1])),
                }
            }
        if self.reciprocal:
            half = relation_RD.shape[0] // 2
            return {
                Side.LHS: self._query(Side.LHS, relation_RD[:half]),
                Side.RHS: self._query(Side.LHS, relation_RD[half:]),
            }
        return {side: self._query(side, relation_RD) for side in ENDS}

    def _query(self, known: Side, r_RD: Tensor) -> Mapping[str, Tensor]:
        """Return what makes the entity of the known side a query: g's parameters of the left one, h's of the right."""
        sign = known.pick(1, -1)
        match self.kind:
            case "dot":
                return {}
            case "distmult":
                return {"diagonal": r_RD}
            case "transe":
                return {"translation": r_RD if known is Side.LHS else -r_RD}
            case "rotate":
                return {"phase": sign * (r_RD.double() * self.phase_unit).float()}
            case "rescal":  # M of lhs . M rhs, written row by row
                matrices_RDD = _square(r_RD)
                return {"linear_transformation": known.pick(matrices_RDD.transpose(1, 2).contiguous(), matrices_RDD)}
            case "cp":
                zeros = torch.zeros_like(r_RD)
                return {"diagonal": torch.cat(known.pick([zeros, r_RD], [r_RD, zeros]), dim=1)}
        first_RD, second_RD = r_RD.chunk(2, dim=1)
        if self.kind == "complex":
            return {"real": first_RD.contiguous(), "imag": sign * second_RD}
        return {"diagonal": known.pick(torch.cat([second_RD, first_RD], dim=1), r_RD) / 2}  # simple: forward, backward


def _square(rows_RD: Tensor) -> Tensor:
    """Return matrices (R, n, n) that are written row by row."""
    size = math.isqrt(rows_RD.shape[1])
    return rows_RD.reshape(-1, size, size)


SIMILARITIES = {"dot": "dot", "cosine": "cos", "euclidean": "squared_l2"}  # GiGL's names -> our comparators
SIDE_OPERATORS = {
    "identity": "none",
    "translation": "translation",
    "diagonal": "diagonal",
    "complex_diagonal": "complex_diagonal",
    "linear": "linear",
}


@frozen
class TwoOperators:
    """How a model scores that has an operator for either side: c(source(lhs), destination(rhs))."""

    dynamic: ClassVar = False
    source: str  # of SIDE_OPERATORS
    destination: str
    similarity: str  # of SIMILARITIES

    @property
    def operator(self) -> str:
        """One operator of ours for both sides; of unlike ones, matrices and translations."""
        ours = {SIDE_OPERATORS[self.source], SIDE_OPERATORS[self.destination]} - {"none"}
        return (ours.pop() if len(ours) == 1 else "affine") if ours else "none"

    @property
    def comparator(self) -> str:
        return SIMILARITIES[self.similarity]

    def check(self, where: str, dimension: int, columns: Mapping[str, int]) -> None:
        """Check that the tables of parameters fit the entities.

        Raises:
            StorageError: they do not.
        """
        expected = {side: dimension**2 if getattr(self, side) == "linear" else dimension for side in columns}
        if "complex_diagonal" in (self.source, self.destination) and dimension % 2:
            raise StorageError(f"{where}: complex_diagonal needs an even number of entity columns, found {dimension}")
        for side, found in columns.items():
            if found != expected[side]:
                raise StorageError(
                    f"{where}: the {side} operator {getattr(self, side)} needs {expected[side]} numbers per relation "
                    f"for vectors of {dimension} columns, found {found}"
                )

    def parameters(self, tables: Mapping[str, Tensor], dimension: int, num_relations: int) -> SideParameters:
        """Return the operators' parameters, float32.

        Args:
            tables: of `source` and `destination`, a row per relation; an identity has none.
            dimension: of the entities.
            num_relations: how many rows there are.
        """
        neutral = {
            "none": torch.empty(num_relations, 0),
            "translation": torch.zeros(num_relations, dimension),
            "diagonal": torch.ones(num_relations, dimension),
            "complex_diagonal": torch.cat(
                [torch.ones(num_relations, dimension // 2), torch.zeros(num_relations, dimension // 2)], dim=1
            ),
            "linear": torch.eye(dimension).flatten().expand(num_relations, -1),
        }
        sides = (Side.LHS, "source", self.source), (Side.RHS, "destination", self.destination)
        if self.operator == "affine":
            return {
                side: _affine(name, tables.get(word, neutral[SIDE_OPERATORS[name]]), neutral)
                for side, word, name in sides
            }
        return {side: _parameters(self.operator, tables.get(word, neutral[self.operator])) for side, word, _ in sides}


def _parameters(operator: str, rows_RD: Tensor) -> Mapping[str, Tensor]:
    """Return the parameters of one of our operators, written as rows by GiGL."""
    match operator:
        case "none":
            return {}
        case "complex_diagonal":
            real_RD, imag_RD = rows_RD.chunk(2, dim=1)
            return {"real": real_RD.contiguous(), "imag": imag_RD.contiguous()}
        case "linear":  # a row vector is multiplied from the left: transposed, it is a matrix times a column
            return {"linear_transformation": _square(rows_RD).transpose(1, 2).contiguous()}
    return {operator: rows_RD}


def _affine(name: str, rows_RD: Tensor, neutral: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Return an operator of one side as a matrix and a translation: exact, as what is added are zeros."""
    parameters = {**_parameters("linear", neutral["linear"]), "translation": neutral["translation"]}
    match name:
        case "translation" | "linear":
            parameters |= _parameters(name, rows_RD)
        case "diagonal":
            parameters["linear_transformation"] = torch.diag_embed(rows_RD)
        case "complex_diagonal":
            real_RDD, imag_RDD = (torch.diag_embed(half_RD) for half_RD in rows_RD.chunk(2, dim=1))
            rows = [torch.cat([real_RDD, -imag_RDD], dim=2), torch.cat([imag_RDD, real_RDD], dim=2)]
            parameters["linear_transformation"] = torch.cat(rows, dim=1)
    return parameters
