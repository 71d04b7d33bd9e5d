"""Edges whose relation is hidden -> counts of the relations that compete with their own.

All relations are in memory, so an edge is ranked where both of its vectors are at hand. Its candidates are the
relations between the types of its two entities, and (lhs, r, rhs) has the score of the tail query (lhs, r, ?).

Where it is exact algebra, one product scores many edges with all relations (see `scoring/scorer`):

    dot                 q . (M x + t) = f(q, x) . parameters of M + q . t    see `Operator.features`
    distances           |q - (x + t)| = |(q - x) - t|                        translations

Elsewhere each relation acts on the vectors: some at a time if they are dynamic, else in turn. Sums are taken in another
order there, so the last bits differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from attrs import define, field, frozen
from torch import Tensor

from pbgeval.errors import UnrankableError
from pbgeval.notation import ENDS, Bucket, Side, distinct
from pbgeval.ranking.auc_sampling import AucSampling
from pbgeval.ranking.counting import CellIndex, count, count_cells
from pbgeval.ranking.groups import first_nan
from pbgeval.ranking.known_answers import KnownOfEdges, positions
from pbgeval.ranking.tally import SideTally
from pbgeval.scoring import device_lists, device_scores
from pbgeval.scoring.block_scorer import ScorerRelation
from pbgeval.scoring.block_sizes import sizes_on
from pbgeval.scoring.comparators import UnrankableRowsError, check_finite
from pbgeval.scoring.deferred import holds
from pbgeval.scoring.operators import OPERATORS
from pbgeval.scoring.scorer import EdgeScorer, RelationScorer
from pbgeval.stats.ranks import QueryCounts
from pbgeval.storage.transfers import on_the_host, sent, sent_together

EDGES_PER_BLOCK = 1 << 11  # scored together by a user's model, which may round otherwise in another company


@frozen(eq=False)
class CompetingRelations:
    """The relations between two entity types."""

    ids: np.ndarray  # int64, ascending
    scorers: Sequence[EdgeScorer]  # of each; one if they are dynamic
    _rows_CD: Tensor | None = field(init=False)  # prepared candidates of a product; None: each relation in turn

    @_rows_CD.default
    def _made_of_parameters(self) -> Tensor | None:
        first = self.scorers[0]
        if isinstance(first, ScorerRelation) or {one.operator for one in self.scorers} != {first.operator}:
            return None
        if first.dynamic:
            ids_C, of_all = torch.from_numpy(self.ids), first.parameters.get(Side.LHS, {})
            parameters = {name: value[sent(ids_C, value.device)] for name, value in of_all.items()}
        elif any(Side.LHS in one.parameters for one in self.scorers):
            return None
        else:
            of_each = [one.parameters.get(Side.RHS, {}) for one in self.scorers]
            parameters = {name: torch.stack([of[name] for of in of_each]) for name in of_each[0]}
        comparator = first.comparator
        if comparator.base.is_distance:
            return comparator.prepare_candidates(parameters["translation"]) if first.operator == "translation" else None
        pair_1D = torch.zeros((1, 2), dtype=torch.float32)
        features = OPERATORS[first.operator].features(pair_1D, pair_1D) if comparator.name == "dot" else None
        if features is None:
            return None
        one_C1 = next(iter(parameters.values())).new_ones((len(self.ids), 1))
        parts = [parameters.get(name, one_C1) for name in features]
        return torch.cat([*parts, one_C1] if comparator.bias else parts, dim=1)

    def scores(self, lhs_QD: Tensor, rhs_QD: Tensor, time_Q: Tensor | None = None) -> Tensor:
        """Return the score (Q, C) of each pair of vectors with each relation, NaN where it is not a number.

        Raises:
            UnrankableRowsError: a row cannot be prepared; its relation is unknown.
        """
        scorer = self.scorers[0]
        if isinstance(scorer, ScorerRelation):  # vectors are numbers
            query_QD = scorer.queries(Side.REL, lhs_QD, rhs_QD[:, 0], time_Q)
            candidate_CD = scorer.candidates(Side.REL, torch.from_numpy(self.ids).to(lhs_QD).unsqueeze(1))
            return scorer.comparator.scores(query_QD.unsqueeze(0), candidate_CD.unsqueeze(0))[0]
        if self._rows_CD is None:
            return self._scores_of_pairs(lhs_QD, rhs_QD)
        fixed_QD, acted_QD = (rhs_QD, lhs_QD) if scorer.dynamic else (lhs_QD, rhs_QD)
        query_1QD = check_finite(_query(scorer, fixed_QD, acted_QD)).unsqueeze(0)
        rows_1CD = self._rows_CD.unsqueeze(0)
        scores_1QC = scorer.comparator.scores(query_1QD, rows_1CD)
        bad = first_nan(scorer.comparator, query_1QD, rows_1CD, scores_1QC)
        if bad is not None:
            scores_1QC[bad] = torch.nan
        return scores_1QC[0]

    def _scores_of_pairs(self, lhs_QD: Tensor, rhs_QD: Tensor) -> Tensor:
        """Return the scores (Q, C) as those of true entities are computed, of some relations at a time."""
        found, num_pairs, is_dynamic = [], len(lhs_QD), self.scorers[0].dynamic
        step = sizes_on(lhs_QD.device).rows(len(self.ids), lhs_QD.numel()) if is_dynamic else 1
        for at, ids in enumerate(torch.split(torch.from_numpy(self.ids), step)):
            one = self.scorers[0 if is_dynamic else at]
            assert isinstance(one, RelationScorer), "models that score by number are asked for all at once"
            relation_P = ids.repeat_interleave(num_pairs) if is_dynamic else None
            query_PD = one.queries(Side.RHS, lhs_QD.repeat(len(ids), 1), relation_P)
            candidate_PD = one.candidates(Side.RHS, rhs_QD).repeat(len(ids), 1)
            found.append(one.comparator.pbg_true_scores(query_PD, candidate_PD))
        return torch.cat(found).view(-1, num_pairs).t().contiguous()


def _query(scorer: RelationScorer, fixed_QD: Tensor, acted_QD: Tensor) -> Tensor:
    """Return the rows (Q, D') that relations' rows are compared with; relations act on one vector of each pair."""
    comparator = scorer.comparator
    if comparator.base.is_distance:
        shift_QD = fixed_QD - acted_QD
        if comparator.bias:
            shift_QD[:, 0] = fixed_QD[:, 0] + acted_QD[:, 0]
        return comparator.prepare_queries(shift_QD)
    constant = [fixed_QD[:, :1]] if comparator.bias else []
    if comparator.bias:  # q[1:] . y[1:] + q[0] + y[0] = (1, q[1:]) . y + q[0]
        fixed_QD = torch.cat([torch.ones_like(fixed_QD[:, :1]), fixed_QD[:, 1:]], dim=1)
    features = OPERATORS[scorer.operator].features(fixed_QD, acted_QD)
    assert features is not None, "the relations have rows"
    return torch.cat([*features.values(), *constant], dim=1)


@define(eq=False)
class RelationCandidates:
    """All relations that may compete, and what the pooled AUC compares of them."""

    scorers: Sequence[EdgeScorer]  # of all relations; one if they are dynamic
    ids: np.ndarray  # int64, ascending: of the relations that may compete
    auc: AucSampling
    seed: int
    device: torch.device  # of vectors
    _of_types: dict[tuple[str, str], CompetingRelations] = field(factory=dict, init=False)

    @property
    def edges_per_block(self) -> int:
        """How many edges are scored together; changes no number of our own models."""
        return EDGES_PER_BLOCK if isinstance(self.scorers[0], ScorerRelation) else sizes_on(self.device).prepared_rows

    def split(self, rel_E: np.ndarray) -> Iterator[tuple[CompetingRelations, np.ndarray]]:
        """Yield the candidates of some edges' relations, and which edges they are, for each pair of entity types."""
        types = [(one.lhs_type, one.rhs_type) for one in self.scorers]
        relation_E = rel_E if len(types) > 1 else np.zeros_like(rel_E)
        for pair in dict.fromkeys(types[relation] for relation in distinct(relation_E).tolist()):
            if pair not in self._of_types:
                ids = self.ids if self.scorers[0].dynamic else [one for one in self.ids.tolist() if types[one] == pair]
                scorers = self.scorers if self.scorers[0].dynamic else [self.scorers[one] for one in ids]
                self._of_types[pair] = CompetingRelations(np.array(ids, np.int64), scorers)
            yield self._of_types[pair], np.flatnonzero(np.array([of == pair for of in types])[relation_E])


def _is_number(total: float) -> bool:
    return not math.isnan(total)


def _without(own_Q: Tensor, cells: CellIndex) -> CellIndex:
    """Return cells (query, column) but for those of the queries' own columns."""
    others = (cells[1] != own_Q[cells[0]]).nonzero().squeeze(1)
    return cells[0][others], cells[1][others]


def _read(
    scores_QC: Tensor, own_Q: Tensor, left_out: Sequence[CellIndex], compared: CellIndex
) -> tuple[Tensor, Tensor, Tensor]:
    """Return on the host the true scores, the rows of `QueryCounts`, and the scores of the cells that are compared.

    Args:
        scores_QC: of a block, on any device.
        own_Q: the column of each true score.
        left_out: by filter, the cells that it leaves out, none of them own ones.
        compared: cells.
    """
    (num_queries, num_columns), device = scores_QC.shape, scores_QC.device
    cells = [index for of in (*left_out, compared) for index in of]
    own_Q, number_n, *cells = sent_together(device, own_Q, torch.arange(max(num_queries, num_columns)), *cells)
    *filtered, compared = zip(cells[::2], cells[1::2], strict=True)
    true_Q = scores_QC.gather(1, own_Q.unsqueeze(1)).squeeze(1)
    if device_scores.supports(device):  # relations are a list that all queries share
        filters = [device_lists.KnownEntities(number_n[:num_queries], *of) for of in filtered]
        lists = number_n[None, :num_columns], own_Q[None], filters, None
        marks = device_lists.marks(*lists, begins_with_own=False, skips_copies=True)
        counts_NQ = device_lists.count(scores_QC.contiguous(), marks, (true_Q, true_Q), num_queries).count_NQ
    else:
        raw = count(scores_QC, true_Q, own_Q=own_Q).raw
        known = (count_cells(scores_QC[of], of[0], true_Q, true_Q) for of in filtered)
        counts = QueryCounts(raw, *known) if filtered else QueryCounts.unfiltered(raw)
        counts_NQ = counts.rows(filtered=bool(filtered))
    true_Q, counts_NQ, score_P = on_the_host([true_Q, counts_NQ, scores_QC[compared]])
    return true_Q, counts_NQ, score_P


@frozen(eq=False)
class HiddenRelations:
    """Edges of one bucket whose relation is asked for."""

    place: tuple[int, Bucket]  # edge path and bucket
    row_E: np.ndarray  # int64, ascending: row in the bucket's file
    rel_E: np.ndarray  # int64: id
    time_E: np.ndarray | None  # int64; None: the model takes no times
    filters: Sequence[KnownOfEdges]  # ids of relations that each leaves out, as in `Competition`
    vectors: Callable[[EdgeScorer, Side, np.ndarray], Tensor]  # (relation, end, edges) -> the entities' vectors
    label: Callable[[int], str]  # what an error calls an edge

    def rank(self, candidates: RelationCandidates, tally: SideTally, position_E: np.ndarray) -> None:
        """Count the edges' queries, which a tally knows by other positions.

        Raises:
            UnrankableError: a score is not a number, or vectors cannot be prepared.
        """
        for first in range(0, len(self.rel_E), candidates.edges_per_block):
            for competing, of_types in candidates.split(self.rel_E[first : first + candidates.edges_per_block]):
                step = max(sizes_on(candidates.device).related_cells // len(competing.ids), 1)
                for start in range(0, len(of_types), step):
                    edges = first + of_types[start : start + step]
                    self._count(competing, candidates, edges, tally, torch.from_numpy(position_E[edges]))

    def _count(
        self,
        competing: CompetingRelations,
        candidates: RelationCandidates,
        edges: np.ndarray,
        tally: SideTally,
        position_Q: Tensor,
    ) -> None:
        own_Q = torch.from_numpy(positions(competing.ids, self.rel_E[edges]))
        left_out = [_without(own_Q, self._known_cells(known, competing, edges)) for known in self.filters]
        kept_Q, compared = self._compared(candidates, edges, len(competing.ids))
        query, column = _without(own_Q, compared)
        scores_QC = self._scores(competing, edges)
        true_Q, counts_NQ, score_P = _read(scores_QC, own_Q, left_out, (query, column))
        tally.add_queries(position_Q, QueryCounts.of_rows(counts_NQ))
        tally.add_true_scores(true_Q[kept_Q], position_Q[kept_Q])
        is_known = None
        if left_out:
            known_QC = torch.zeros(scores_QC.shape, dtype=torch.bool)
            known_QC[left_out[0]] = True
            is_known = known_QC[query, column]
        tally.add_scores(score_P, position_Q[query], is_known)

    def _known_cells(self, known: KnownOfEdges, competing: CompetingRelations, edges: np.ndarray) -> CellIndex:
        """Return (query, column) of the known answers of some edges."""
        answers = known.of(edges)
        column_P = positions(competing.ids, answers.entity_id_P)
        query_P, column_P = answers.key_P[column_P >= 0], column_P[column_P >= 0]
        return torch.from_numpy(query_P), torch.from_numpy(column_P)

    def _compared(
        self, candidates: RelationCandidates, edges: np.ndarray, num_columns: int
    ) -> tuple[Tensor, CellIndex]:
        """Return what the pooled AUC compares of some edges: which true scores, bool, and (query, column)."""
        auc = candidates.auc
        words_QD = auc.words(candidates.seed, self.place, Side.REL, self.row_E[edges])
        if words_QD is not None:
            return auc.true_is_kept(words_QD), auc.cells(words_QD, num_columns)
        query, column = torch.ones((len(edges), num_columns), dtype=torch.bool).nonzero(as_tuple=True)
        return torch.ones(len(edges), dtype=torch.bool), (query, column)

    def _scores(self, competing: CompetingRelations, edges: np.ndarray) -> Tensor:
        """Return the scores (Q, C) of some edges with all candidates, none of them NaN."""
        lhs_QD, rhs_QD = (self.vectors(competing.scorers[0], side, edges) for side in ENDS)
        time_Q = None if self.time_E is None else torch.from_numpy(self.time_E[edges])
        refused = "this model cannot be ranked"
        try:
            scores_QC = competing.scores(lhs_QD, rhs_QD, time_Q)
        except UnrankableRowsError as error:
            where = self.label(int(edges[error.rows[0] % len(edges)]))  # they are repeated for each relation
            expected = f"expected {error.expected}, got {error.found} after the operator of a relation"
            raise UnrankableError(f"{where}: {expected}; {refused}") from error
        # A sum takes less time.
        if not holds(_is_number, scores_QC.sum()) and bool(torch.isnan(scores_QC).any()):
            query, column = torch.isnan(scores_QC).nonzero()[0].tolist()
            expected = f"expected a number as the score of relation candidate {competing.ids[column]}, got NaN"
            raise UnrankableError(f"{self.label(int(edges[query]))}: {expected}: finite embeddings overflow; {refused}")
        return scores_QC
