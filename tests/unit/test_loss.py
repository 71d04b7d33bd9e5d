from __future__ import annotations

import math

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from pbgeval.scoring.loss import LOSSES
from tests import reference

OUT = -math.inf  # the score of a cell that does not compete


def loss_of(name, true_Q, blocks, lengths, margin=0.1) -> torch.Tensor:
    """Fold blocks of scores."""
    state_Q = torch.full_like(true_Q, LOSSES[name].start)
    for scores_QC in blocks:
        state_Q = LOSSES[name].fold(state_Q, true_Q, scores_QC, margin)
    return LOSSES[name].finish(state_Q, true_Q, lengths)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("name", "of_nothing"), [("logistic", math.log(2)), ("ranking", 0.0), ("softmax", 0.0)])
def test_the_loss_of_an_infinite_score_is_no_finite_number_and_the_worst_competitor_costs_nothing(
    name, of_nothing, dtype
):
    true_Q = torch.tensor([-math.inf, 0.0, 0.0], dtype=torch.float64)
    scores_QC = torch.tensor([[0.0], [math.inf], [-math.inf]], dtype=dtype)

    first, second, third = loss_of(name, true_Q, [scores_QC], torch.ones(3, dtype=torch.float64)).tolist()

    assert (math.isfinite(first), math.isfinite(second), third) == (False, False, pytest.approx(of_nothing))


@pytest.mark.parametrize("name", LOSSES)
def test_large_scores_do_not_overflow(name):
    true_Q = torch.tensor([-800.0, 800.0], dtype=torch.float64)
    scores_QC = torch.full((2, 3), 300.0)

    found = loss_of(name, true_Q, [scores_QC], torch.full((2,), 3.0, dtype=torch.float64)).tolist()

    expected = [reference.loss(name, true, [300.0] * 3, 3) for true in true_Q.tolist()]
    assert expected == pytest.approx(found, rel=1e-6, abs=1e-12)  # scores and the sum of two are float32


def test_a_violation_by_the_margin_alone_keeps_its_digits_beside_large_scores():
    true_Q, scores_QC = torch.tensor([1000.25], dtype=torch.float64), torch.tensor([[1000.25, 1000.0]])

    assert loss_of("ranking", true_Q, [scores_QC], torch.ones(1)).item() == pytest.approx(0.1, rel=1e-5)


scores = st.one_of(st.sampled_from([-2.0, 0.0, 0.5]), st.floats(-20, 20))


@given(
    st.sampled_from(sorted(LOSSES)),
    scores,
    st.lists(st.tuples(scores, st.booleans()), min_size=1, max_size=9),
    st.integers(0, 9),
    st.sampled_from([0.0, 0.1, 3.0]),
    st.sampled_from([0, 2]),
)
@example("logistic", 0.5, [(0.25, True)], 0, 0.0, 0)
def test_any_cut_into_blocks_gives_the_references_loss(name, true, cells, cut, margin, more):
    scores_QC = torch.tensor([[score if competes else OUT for score, competes in cells]], dtype=torch.float64)
    blocks = [scores_QC[:, :cut], scores_QC[:, cut:]]
    competitors = [score for score, competes in cells if competes]
    length = len(cells) + more

    true_Q = torch.tensor([true], dtype=torch.float64)
    found = loss_of(name, true_Q, blocks, torch.tensor([float(length)], dtype=torch.float64), margin)

    assert found.item() == pytest.approx(reference.loss(name, true, competitors, length, margin), rel=1e-9, abs=1e-9)
