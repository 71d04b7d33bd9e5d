"""Entity rows and relations -> prepared queries and candidates of one relation schema.

Which side an operator acts on (PBG.md section 2.5), for a query whose side S is hidden and whose other side is O:

    not dynamic   the relation's one operator acts on rhs rows, whether they are the known side or the candidates
                  (one of ours acts on lhs rows as well; so does any that has parameters for lhs rows too)
    dynamic       side O's operators act on the known row, candidates stay as they are

For certified ranks an operator that would act on the candidates acts on the query wherever that is exact algebra, in
all passes alike: rows are rounded once they are prepared, so the two ways would be two orders.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen
from torch import Tensor

from pbgeval.notation import Side
from pbgeval.scoring.block_scorer import ScorerRelation
from pbgeval.scoring.certified import CertifiedComparator
from pbgeval.scoring.comparators import Comparator, check_finite
from pbgeval.scoring.operators import FIXED_ORDER_OPERATORS, OPERATORS, Parameters, moves_to_query


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
    certified: CertifiedComparator | None = None  # prepares rows for certified ranks, from vectors in float64

    def entity_type(self, side: Side) -> str:
        return side.pick(self.lhs_type, self.rhs_type)

    def queries(self, hidden: Side, known_ED: Tensor, rel_E: Tensor | None) -> Tensor:
        """Return the prepared query rows (E, D') made of the known side's rows.

        Args:
            hidden: the side that is asked for.
            known_ED: rows of the entities of the other side.
            rel_E: the relation of each row, when relations are dynamic.
        """
        known_ED = self.transformed(hidden.other, known_ED, rel_E)
        if self.certified is None:
            return self.comparator.prepare_queries(known_ED)
        if self.acts_on_candidates(hidden) and moves_to_query(self.operator, self.comparator.name):
            return self.certified.prepare_moved_queries(self.operator, self.parameters[hidden], known_ED)
        return self.certified.prepare_queries(known_ED)

    def candidates(self, hidden: Side, x_ED: Tensor) -> Tensor:
        """Return the prepared candidate rows (E, D') of the hidden side."""
        moved = self.certified is not None and moves_to_query(self.operator, self.comparator.name)
        if self.acts_on_candidates(hidden) and not moved:
            x_ED = self.transformed(hidden, x_ED, None)
        return (self.certified or self.comparator).prepare_candidates(x_ED)

    def acts_on_candidates(self, hidden: Side) -> bool:
        """Tell whether candidates are transformed, so that relations have candidates of their own."""
        if self.dynamic or self.operator == "none":
            return False
        return hidden in self.parameters or hidden is Side.RHS or OPERATORS[self.operator].acts_on_both_sides

    def transformed(self, side: Side, x_ED: Tensor, rel_E: Tensor | None) -> Tensor:
        """Return the rows of one side as its operator makes them."""
        operator = (OPERATORS if self.certified is None else FIXED_ORDER_OPERATORS)[self.operator]
        if not self.dynamic and side is Side.LHS and side not in self.parameters:
            transformed_ED = operator.apply_to_lhs(self.parameters.get(Side.RHS, {}), x_ED)
            return check_finite(transformed_ED) if operator.acts_on_both_sides else transformed_ED
        if rel_E is not None:
            rel_E = rel_E.to(x_ED.device)
        transformed_ED = operator.apply(self.parameters.get(side, {}), x_ED, rel_E)
        return transformed_ED if self.operator == "none" else check_finite(transformed_ED)


EdgeScorer = RelationScorer | ScorerRelation  # what passes know of a relation
