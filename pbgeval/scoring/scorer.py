"""Entity rows and relations -> prepared queries and candidates of one relation schema.

Which side an operator acts on (PBG.md section 2.5), for a query whose side S is hidden and whose other side is O:

    not dynamic   the relation's one operator acts on rhs rows, whether they are the known side or the candidates
                  (one of ours acts on lhs rows as well; so does any that has parameters for lhs rows too)
    dynamic       side O's operators act on the known row, candidates stay as they are

For exact ranks an operator that would act on the candidates acts on the query wherever that is exact algebra, in
all passes alike: rows are rounded once they are prepared, so the two ways would be two orders.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
import torch.nn.functional as F
from attrs import frozen
from torch import Tensor

from pbgeval.notation import Side
from pbgeval.scoring.block_scorer import ScorerRelation
from pbgeval.scoring.comparators import Comparator, check_finite
from pbgeval.scoring.entities import EntityTable
from pbgeval.scoring.exact import ExactComparator
from pbgeval.scoring.operators import FIXED_ORDER_OPERATORS, OPERATORS, Parameters, move_to_query, moves_to_query
from pbgeval.storage.transfers import sent


@frozen(eq=False)
class RelationScorer:
    """How the edges of one relation (of all relations, when they are dynamic) are scored."""

    name: str
    operator: str
    parameters: Mapping[Side, Parameters]  # by the side that the operator acts on; dynamic: leading dimension R
    comparator: Comparator
    dynamic: bool
    lhs_type: str
    rhs_type: str
    weight: float = 1.0  # of the relation, in the loss only
    exact_comparator: ExactComparator | None = None  # prepares rows for exact ranks, from vectors in float64

    takes_time: ClassVar = False  # vectors have none

    def entity_type(self, side: Side) -> str:
        return side.pick(self.lhs_type, self.rhs_type)

    def queries(self, hidden: Side, known_ED: Tensor, rel_E: Tensor | None, time_E: Tensor | None = None) -> Tensor:
        """Return the prepared query rows (E, D') made of the known side's rows.

        Args:
            hidden: the side that is asked for.
            known_ED: rows of the entities of the other side.
            rel_E: the relation of each row, when relations are dynamic.
            time_E: for models that take times.
        """
        known_ED = self.transformed(hidden.other, known_ED, rel_E)
        if self.exact_comparator is None:
            return self.comparator.prepare_queries(known_ED)
        if self.acts_on_candidates(hidden) and moves_to_query(self.operator, self.comparator.name):
            return self.exact_comparator.prepare_moved_queries(self.operator, self.parameters[hidden], known_ED)
        return self.exact_comparator.prepare_queries(known_ED)

    def candidates(self, hidden: Side, x_ED: Tensor) -> Tensor:
        """Return the prepared candidate rows (E, D') of the hidden side."""
        if self.transforms_candidates(hidden):
            x_ED = self.transformed(hidden, x_ED, None)
        return (self.exact_comparator or self.comparator).prepare_candidates(x_ED)

    def acts_on_candidates(self, hidden: Side) -> bool:
        """Return whether relations transform candidates, each in its own way."""
        acts = hidden in self.parameters or hidden is Side.RHS or OPERATORS[self.operator].acts_on_both_sides
        return acts and not self.dynamic and self.operator != "none"

    def transforms_candidates(self, hidden: Side) -> bool:
        """Return whether candidates are transformed here, because their operator does not move to the query."""
        moved = self.exact_comparator is not None and moves_to_query(self.operator, self.comparator.name)
        return self.acts_on_candidates(hidden) and not moved

    def transformed(self, side: Side, x_ED: Tensor, rel_E: Tensor | None) -> Tensor:
        """Return the rows of one side as its operator makes them."""
        operator = (OPERATORS if self.exact_comparator is None else FIXED_ORDER_OPERATORS)[self.operator]
        if not self.dynamic and side is Side.LHS and side not in self.parameters:
            transformed_ED = operator.apply_to_lhs(self.parameters.get(Side.RHS, {}), x_ED)
            return check_finite(transformed_ED) if operator.acts_on_both_sides else transformed_ED
        if rel_E is not None:
            rel_E = sent(rel_E, x_ED.device)
        transformed_ED = operator.apply(self.parameters.get(side, {}), x_ED, rel_E)
        # Exact ranks check rows when they have rounded them.
        return transformed_ED if self.operator == "none" or self.exact_comparator else check_finite(transformed_ED)


EdgeScorer = RelationScorer | ScorerRelation  # what passes know of a relation


def dtype_of_candidates(scorer: EdgeScorer, hidden: Side, table: EntityTable, dtype: torch.dtype) -> torch.dtype:
    """Return in which type a table's vectors are made into candidates: float32 where that holds them, else as asked."""
    is_kept = scorer.exact_comparator is not None and table.has_only_embeddings
    return torch.float32 if is_kept and not scorer.transforms_candidates(hidden) else dtype


# Relations whose queries meet the same prepared candidates -> one query group, for ranks against all entities.
#
# Where an operator acts on the candidates (PBG's relations that are not dynamic), each relation would need candidates
# of its own. The operator moves to the query where that is exact algebra, and all those relations share one group:
#
#     dot                q . (M x + t) = (M^T q) . x + q . t      every operator; the constant is a column of its own
#     distances          |q - (x + t)| = |(q - t) - x|            translations
#     cos                                                         none but the identity: M changes |M x|
#
# Elsewhere a relation is its own group, and candidates are transformed block by block. Moving changes no score but in
# its last bits: sums are taken in another order.


@frozen(eq=False)
class QueryGroup:
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

    def queries(self, relation: int, known_KD: Tensor, rel_K: Tensor | None, time_K: Tensor | None = None) -> Tensor:
        """Return prepared queries (K, D') of one relation of the config.

        Raises:
            ZeroVectorError: a row has no direction under cos.
        """
        scorer = self.scorers[relation]
        if not self.moved:
            return scorer.queries(self.hidden, known_KD, rel_K, time_K)
        assert isinstance(scorer, RelationScorer), "only vectors have operators"
        q_KD = scorer.transformed(self.hidden.other, known_KD, rel_K)
        parameters = scorer.parameters.get(self.hidden)
        comparator = scorer.comparator
        operator = OPERATORS["none" if parameters is None else scorer.operator]  # this one may act on the other side
        moved_KD, constant_K1 = move_to_query(
            operator, parameters or {}, comparator.name, comparator.bias, q_KD, lambda x_KD: x_KD.sum(-1)
        )
        if constant_K1 is None:
            return comparator.prepare_queries(check_finite(moved_KD))
        if comparator.bias:  # as `prepare_candidates` lays them out: the rest, a one, column 0
            return check_finite(torch.cat([moved_KD[:, 1:], constant_K1, moved_KD[:, :1]], dim=1))
        return check_finite(torch.cat([moved_KD, constant_K1], dim=1) if self.has_constant else moved_KD.contiguous())

    def candidates(self, x_CD: Tensor) -> Tensor:
        """Return prepared candidates (C, D').

        Raises:
            ZeroVectorError: a row has no direction under cos.
        """
        if not self.moved:
            return self.scorer.candidates(self.hidden, x_CD)
        assert isinstance(self.scorer, RelationScorer), "only vectors have operators"
        prepared_CD = self.scorer.comparator.prepare_candidates(x_CD)
        return F.pad(prepared_CD, (0, 1), value=1.0) if self.has_constant else prepared_CD

    def width(self, dimension: int) -> int:
        """Return D', the number of columns of prepared queries, for rows of `dimension` columns."""
        return (
            self.scorer.comparator.width(dimension) + int(self.has_constant)
            if self.scorer.exact_comparator is None
            else dimension + 1
        )


def query_groups(scorers: Sequence[EdgeScorer], hidden: Side, *, move: bool = True) -> list[QueryGroup]:
    """Group the relations of a config for queries that hide one side.

    Args:
        scorers: of all relations; one if they are dynamic.
        hidden: the side that is asked for.
        move: False keeps every operator where it is (the general path that the moved one is tested against).
    """
    shared: dict[str, dict[int, EdgeScorer]] = {}
    own = []
    for relation, scorer in enumerate(scorers):
        entity_type = scorer.entity_type(hidden)
        if scorer.acts_on_candidates(hidden) and not (move and moves_to_query(scorer.operator, scorer.comparator.name)):
            own.append(QueryGroup(hidden, entity_type, {relation: scorer}, moved=False, has_constant=False))
        else:
            shared.setdefault(entity_type, {})[relation] = scorer
    grouped = []
    for entity_type, members in shared.items():
        # A scorer for exact ranks moves its operator itself, by the same rule.
        moved = (
            not scorers[0].dynamic
            and scorers[0].exact_comparator is None
            and (hidden is Side.RHS or any(one.acts_on_candidates(hidden) for one in members.values()))
        )
        comparator = next(iter(members.values())).comparator
        has_constant = (
            moved
            and comparator.name == "dot"
            and not comparator.bias  # its candidates have a column of ones already
            and any("translation" in one.parameters.get(hidden, {}) for one in members.values())
        )
        grouped.append(QueryGroup(hidden, entity_type, members, moved, has_constant))
    return grouped + own
