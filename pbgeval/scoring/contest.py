"""Relations whose queries meet the same prepared candidates -> one contest, for ranks against all entities.

Where an operator acts on the candidates (PBG's relations that are not dynamic), each relation would need candidates of
its own. The operator moves to the query where that is exact algebra, and all those relations share one contest:

    dot                q . (M x + t) = (M^T q) . x + q . t      every operator; the constant is a column of its own
    distances          |q - (x + t)| = |(q - t) - x|            translations
    cos                                                         none but the identity: M changes |M x|

Elsewhere a relation is its own contest, and candidates are transformed block by block. Moving changes no score but in
its last bits: sums are taken in another order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from attrs import frozen
from torch import Tensor

from pbgeval.notation import Side
from pbgeval.scoring.comparators import Comparator, check_finite
from pbgeval.scoring.operators import OPERATORS, moves_to_query
from pbgeval.scoring.scorer import EdgeScorer
from pbgeval.scoring.true_scores import TrueScores


@frozen(eq=False)
class Contest:
    """Queries of some relations that hide one side, and the candidates that they all meet."""

    hidden: Side
    candidate_type: str
    scorers: Mapping[int, EdgeScorer]  # by index in the config's relations
    moved: bool  # the candidates' operators act on the queries
    has_constant: bool  # a column for what a moved translation adds to every score of a query

    @property
    def scorer(self) -> EdgeScorer:
        """One of them, for what they have in common: the comparator, and how candidates are prepared."""
        return next(iter(self.scorers.values()))

    def queries(self, relation: int, known_KD: Tensor, rel_K: Tensor | None) -> Tensor:
        """Return prepared queries (K, D') of one relation of the config.

        Raises:
            ZeroVectorError: a row has no direction under cos.
        """
        scorer = self.scorers[relation]
        if not self.moved:
            return scorer.queries(self.hidden, known_KD, rel_K)
        return self._moved_queries(scorer, known_KD)

    def candidates(self, x_CD: Tensor) -> Tensor:
        """Return prepared candidates (C, D').

        Raises:
            ZeroVectorError: likewise.
        """
        if not self.moved:
            return self.scorer.candidates(self.hidden, x_CD)
        prepared_CD = _vectors(self.scorer).prepare_candidates(x_CD)
        if not self.has_constant:
            return prepared_CD
        return torch.cat([prepared_CD, torch.ones_like(prepared_CD[:, :1])], dim=1)

    def width(self, dimension: int) -> int:
        """Return D', the number of columns of prepared queries, for rows of `dimension` columns."""
        if self.scorer.certified is not None:
            return self.scorer.certified.query_width(dimension)
        return self.scorer.comparator.width(dimension) + int(self.has_constant)

    def true_width(self, dimension: int, dtype: torch.dtype) -> int:
        """Return the number of columns that hold a query's true score, or what it is computed from."""
        if self.scorer.certified is not None:
            return self.scorer.certified.candidate_width(dimension) + 1
        return TrueScores.width(dtype)

    def _moved_queries(self, scorer: EdgeScorer, q_KD: Tensor) -> Tensor:
        operator, comparator = OPERATORS[scorer.operator], _vectors(scorer)
        parameters = scorer.parameters[self.hidden]
        translation_D = operator.translation(parameters)
        if comparator.name != "dot":
            return comparator.prepare_queries(check_finite(_translated_back(q_KD, translation_D, bias=comparator.bias)))
        weight_KD = q_KD
        constant_K1 = torch.zeros_like(q_KD[:, :1])
        if comparator.bias:  # q[1:] . y[1:] + q[0] + y[0] = w . y + q[0] with w = (1, q[1:])
            weight_KD = torch.cat([torch.ones_like(q_KD[:, :1]), q_KD[:, 1:]], dim=1)
            constant_K1 = q_KD[:, :1]
        if translation_D is not None:
            products_KD = weight_KD.double() * translation_D.double()
            constant_K1 = (constant_K1.double() + products_KD.sum(1, keepdim=True)).to(q_KD.dtype)
        moved_KD = operator.adjoint(parameters, weight_KD)
        if comparator.bias:  # as `prepare_candidates` lays them out: the rest, a one, column 0
            return check_finite(torch.cat([moved_KD[:, 1:], constant_K1, moved_KD[:, :1]], dim=1))
        return check_finite(torch.cat([moved_KD, constant_K1], dim=1) if self.has_constant else moved_KD.contiguous())


def _vectors(scorer: EdgeScorer) -> Comparator:
    """Return the comparator of vectors, which alone have operators that move."""
    assert isinstance(scorer.comparator, Comparator)
    return scorer.comparator


def _translated_back(q_KD: Tensor, translation_D: Tensor | None, *, bias: bool) -> Tensor:
    """Return q - t; under bias column 0 is added to the score, so there it is q + t."""
    if translation_D is None:
        return q_KD
    moved_KD = q_KD - translation_D
    if bias:
        moved_KD[:, 0] = q_KD[:, 0] + translation_D[0]
    return moved_KD


def contests(scorers: Sequence[EdgeScorer], hidden: Side, *, move: bool = True) -> list[Contest]:
    """Group the relations of a config for queries that hide one side.

    Args:
        scorers: of all relations; one if they are dynamic.
        hidden: the side that is asked for.
        move: False keeps every operator where it is (the general path that the moved one is tested against).
    """
    shared: dict[str, list[int]] = {}
    own: list[int] = []
    for relation, scorer in enumerate(scorers):
        if scorer.acts_on_candidates(hidden) and not (move and moves_to_query(scorer.operator, scorer.comparator.name)):
            own.append(relation)
        else:
            shared.setdefault(scorer.entity_type(hidden), []).append(relation)
    # A scorer for certified ranks moves its operator itself, by the same rule.
    moved = not scorers[0].dynamic and hidden is Side.RHS and scorers[0].certified is None
    return [
        *(_shared_contest(scorers, hidden, entity_type, of, moved) for entity_type, of in shared.items()),
        *(Contest(hidden, scorers[i].entity_type(hidden), {i: scorers[i]}, False, False) for i in own),
    ]


def _shared_contest(
    scorers: Sequence[EdgeScorer], hidden: Side, entity_type: str, relations: list[int], moved: bool
) -> Contest:
    of = {relation: scorers[relation] for relation in relations}
    comparator = scorers[relations[0]].comparator
    has_constant = (
        moved
        and comparator.name == "dot"
        and not comparator.bias  # its candidates have a column of ones already
        and any(OPERATORS[s.operator].translation(s.parameters.get(hidden, {})) is not None for s in of.values())
    )
    return Contest(hidden, entity_type, of, moved, has_constant)
