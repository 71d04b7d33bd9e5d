"""Scores of a batch of edges and known answers -> ranks of both sides -> metrics. Exclusion is by identity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from attrs import frozen
from torch import Tensor

from pbgeval.distinct import sort_distinct
from pbgeval.errors import DataError
from pbgeval.interfaces.openbiolink_scores import SideScores
from pbgeval.known.keys import QueryKeys
from pbgeval.known.pairs import KEY_BITS, AnswersByKey
from pbgeval.metrics.given_ranks import RankMetrics, from_ranks
from pbgeval.notation import Side
from pbgeval.ranking import RankCounts


@frozen(eq=False)
class KnownAnswers:
    """The answers of evaluated queries that are known, by side."""

    keys: Mapping[Side, QueryKeys]
    answers: Mapping[Side, AnswersByKey]

    @classmethod
    def of_edges(cls, evaluated_E3: Tensor, known_K3: Tensor, num_entities: int) -> KnownAnswers:
        """Keep of known edges those that share their key with an evaluated one."""
        (lhs_E, rel_E, rhs_E), known = (of.numpy().T for of in (evaluated_E3, known_K3))
        keys = {side: QueryKeys.of_edges(side, lhs_E, rel_E, rhs_E, num_entities) for side in Side}
        answers: dict[Side, AnswersByKey] = {}
        for side, of_side in keys.items():
            key_K = of_side.index_of(known[1], side.pick(known[2], known[0]))
            matters_K = key_K >= 0
            answer_K = side.pick(known[0], known[2])[matters_K]
            answers[side] = AnswersByKey(sort_distinct(key_K[matters_K] << KEY_BITS | answer_K))
        return cls(keys, answers)

    def cells(self, side: Side, batch_b3: Tensor) -> tuple[Tensor, Tensor]:
        """Return the row in the batch and the entity of every known answer of its queries."""
        batch = batch_b3.numpy().T
        key_b = self.keys[side].index_of(batch[1], side.pick(batch[2], batch[0]))
        offsets, answers = self.answers[side].of_keys(key_b)
        rows = np.repeat(np.arange(len(key_b)), np.diff(offsets))
        return torch.from_numpy(rows), torch.from_numpy(answers)


@frozen(eq=False)
class RankedBatch:
    """What competitors say of a batch's queries on each side, and what their scores were like."""

    counts: Mapping[Side, RankCounts]
    num_without_true: int  # rows that do not hold the true entity's score


def rank_batch(
    batch_b3: Tensor, scores: Mapping[Side, SideScores], known: KnownAnswers | None, *, higher_is_better: bool
) -> RankedBatch:
    """Count competitors of a batch's true entities: neither known answers compete nor the true entity itself.

    Args:
        batch_b3: edges, int64.
        scores: of each side.
        known: known answers; None: everybody competes.
        higher_is_better: False for distances and ranks.

    Raises:
        DataError: a score that is compared is not a number; names edge and entity.
    """
    counts: dict[Side, RankCounts] = {}
    for side, of_side in scores.items():
        competes_bN = torch.ones_like(of_side.scores_bN, dtype=torch.bool)
        if known is not None:
            rows, answers = (of.to(competes_bN.device) for of in known.cells(side, batch_b3))
            competes_bN[rows, answers] = False
        true_b1 = side.pick(batch_b3[:, :1], batch_b3[:, 2:]).to(competes_bN.device)
        competes_bN.scatter_(1, true_b1, False)
        _refuse_nan(side, batch_b3, of_side, competes_bN)
        true_score_b1 = of_side.true_b.unsqueeze(1)
        better_bN = of_side.scores_bN > true_score_b1 if higher_is_better else of_side.scores_bN < true_score_b1
        tied_bN = of_side.scores_bN == true_score_b1
        counts[side] = RankCounts(
            (better_bN & competes_bN).sum(1), (tied_bN & competes_bN).sum(1), competes_bN.sum(1)
        ).cpu()
    return RankedBatch(counts, sum(int((~of_side.has_true_b).sum()) for of_side in scores.values()))


def _refuse_nan(side: Side, batch_b3: Tensor, of_side: SideScores, competes_bN: Tensor) -> None:
    undefined_b = torch.isnan(of_side.true_b)
    undefined_bN = torch.isnan(of_side.scores_bN) & competes_bN
    if bool(undefined_b.any()):
        row = int(undefined_b.nonzero()[0])
        who = "the true entity"
    elif bool(undefined_bN.any()):
        row, entity = undefined_bN.nonzero()[0].tolist()
        who = f"entity {entity}"
    else:
        return
    edge = tuple(batch_b3[row].tolist())
    raise DataError(f"score_batch: expected a number for {who} as {side.label} of edge {edge}, got NaN")


@frozen(eq=False)
class RankedEdges:
    """The ranks of all test edges, in their order."""

    of_side: Mapping[Side, RankCounts]
    num_dropped: int  # test edges that have labels without a number, and are not ranked
    num_without_true: int  # queries whose candidates' scores do not hold the true entity's, as in a ranking file's rows
    num_all_tied: int  # queries whose true entity ties with every competitor, as an edge does that a file lacks

    @classmethod
    def of_batches(cls, batches: Sequence[RankedBatch], num_dropped: int) -> RankedEdges:
        """Join the batches of all edges."""
        of_side = {side: RankCounts.concatenate([batch.counts[side] for batch in batches]) for side in Side}
        all_tied = [(of.tied_Q == of.competing_Q) & (of.competing_Q > 0) for of in of_side.values()]
        without_true = sum(batch.num_without_true for batch in batches)
        return cls(of_side, num_dropped, without_true, sum(int(of.sum()) for of in all_tied))

    def metrics(self, side: Side | None = None) -> RankMetrics:
        """Return every metric of every rank type: of the queries that hide a side, or of both sides pooled."""
        parts = [self.of_side[one] for one in ([side] if side else Side)]
        counts = RankCounts.concatenate(parts)
        optimistic_Q = 1 + counts.better_Q
        return from_ranks(optimistic_Q, optimistic_Q + counts.tied_Q, 1 + counts.competing_Q)
