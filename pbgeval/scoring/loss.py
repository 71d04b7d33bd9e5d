"""True scores and competitors' scores -> PBG's loss of each query: blocks summed in float32, added up in float64.

Blocks of competitors are folded into a running state, so a query never needs all its scores at once. A cell that does
not compete has the score -inf, which adds nothing to any of the losses. A query's list may be longer than its
competitors: PBG counts masked cells among the N of the logistic loss.
Source: PBG.md section 2.12 and torchbiggraph/losses.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor


class Loss(ABC):
    """A loss of one query that is a fold over its competitors."""

    start = 0.0  # the state of a query before any competitor

    @abstractmethod
    def fold(self, state_Q: Tensor, true_Q: Tensor, scores_QC: Tensor, margin: float) -> Tensor:
        """Return the state with a block of competitors added."""

    def finish(self, state_Q: Tensor, true_Q: Tensor, list_length_Q: Tensor) -> Tensor:
        """Return the loss of each query, float64 (Q,)."""
        return state_Q


class Logistic(Loss):
    """BCE(true, 1) + the mean of BCE(competitor, 0) over the list."""

    def fold(self, state_Q: Tensor, true_Q: Tensor, scores_QC: Tensor, margin: float) -> Tensor:
        return state_Q + F.softplus(scores_QC).sum(1).double()

    def finish(self, state_Q: Tensor, true_Q: Tensor, list_length_Q: Tensor) -> Tensor:
        return F.softplus(-true_Q) + state_Q / list_length_Q.clamp(min=1)


class Ranking(Loss):
    """The sum of max(0, margin - true + competitor)."""

    def fold(self, state_Q: Tensor, true_Q: Tensor, scores_QC: Tensor, margin: float) -> Tensor:
        return state_Q + (scores_QC - true_Q.to(scores_QC.dtype).unsqueeze(1) + margin).clamp_(min=0).sum(1).double()


class Softmax(Loss):
    """The cross-entropy of the true entity among itself and its competitors."""

    start = -torch.inf

    def fold(self, state_Q: Tensor, true_Q: Tensor, scores_QC: Tensor, margin: float) -> Tensor:
        if not scores_QC.shape[1]:
            return state_Q
        largest_Q1 = scores_QC.amax(1, keepdim=True).clamp_(min=torch.finfo(scores_QC.dtype).min)  # -inf - -inf is NaN
        sums_Q = (scores_QC - largest_Q1).exp_().sum(1).double()
        return torch.logaddexp(state_Q, sums_Q.log() + largest_Q1.squeeze(1).double())

    def finish(self, state_Q: Tensor, true_Q: Tensor, list_length_Q: Tensor) -> Tensor:
        return F.softplus(state_Q - true_Q, threshold=50)


LOSSES: dict[str, Loss] = {"logistic": Logistic(), "ranking": Ranking(), "softmax": Softmax()}
