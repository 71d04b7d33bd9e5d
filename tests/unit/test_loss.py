from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pbgeval.scoring.loss import LOSSES
from tests import reference

SCORES = torch.tensor([[0.0, 1.0, -1.0, 5.0], [2.0, 2.0, 2.0, -math.inf]], dtype=torch.float64)
COMPETES = torch.tensor([[True, True, True, False], [True, True, False, True]])
TRUE = torch.tensor([0.5, 2.0], dtype=torch.float64)


def loss_of(name, true_Q, blocks, lengths, margin=0.1) -> torch.Tensor:
    """Fold blocks of (scores, competes)."""
    state_Q = LOSSES[name].start(true_Q)
    for scores_QC, competes_QC in blocks:
        state_Q = LOSSES[name].fold(state_Q, true_Q, scores_QC, competes_QC, margin)
    return LOSSES[name].finish(state_Q, true_Q, lengths)


def softplus(x: float) -> float:
    return math.log1p(math.exp(x))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "logistic",
            [softplus(-0.5) + (softplus(0) + softplus(1) + softplus(-1)) / 4, softplus(-2) + 2 * softplus(2) / 4],
        ),
        ("ranking", [0.6, 0.2]),  # only 1.0 violates the margin of 0.5; two ties of 0.1 each
        ("softmax", [math.log(1 + (1 + math.e + 1 / math.e) / math.exp(0.5)), math.log(3)]),
    ],
)
def test_by_hand_with_masked_and_infinite_cells(name, expected):
    lengths = torch.tensor([4.0, 4.0], dtype=torch.float64)

    assert expected == pytest.approx(loss_of(name, TRUE, [(SCORES, COMPETES)], lengths).tolist(), rel=1e-12)


@pytest.mark.parametrize(("name", "expected"), [("logistic", math.log(2)), ("ranking", 0.0), ("softmax", 0.0)])
def test_without_competitors(name, expected):
    true_Q, nothing = torch.zeros(1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    masked = (torch.ones(1, 3, dtype=torch.float64), torch.zeros(1, 3, dtype=torch.bool))

    for blocks in ([], [masked]):
        assert pytest.approx(expected) == loss_of(name, true_Q, blocks, nothing).item()


def test_infinite_scores_give_an_infinite_loss_or_none():
    true_Q = torch.tensor([-math.inf, 0.0, 0.0], dtype=torch.float64)
    scores_QC = torch.tensor([[0.0], [math.inf], [-math.inf]], dtype=torch.float64)
    block = [(scores_QC, torch.ones(3, 1, dtype=torch.bool))]
    lengths = torch.ones(3, dtype=torch.float64)

    assert [math.inf, math.inf, math.log(2)] == pytest.approx(loss_of("logistic", true_Q, block, lengths).tolist())
    assert [math.inf, math.inf, 0.0] == loss_of("ranking", true_Q, block, lengths).tolist()
    assert [math.inf, math.inf, 0.0] == loss_of("softmax", true_Q, block, lengths).tolist()


@pytest.mark.parametrize("name", LOSSES)
def test_large_scores_do_not_overflow(name):
    true_Q = torch.tensor([-800.0, 800.0], dtype=torch.float64)
    block = [(torch.full((2, 3), 300.0, dtype=torch.float64), torch.ones(2, 3, dtype=torch.bool))]

    found = loss_of(name, true_Q, block, torch.full((2,), 3.0, dtype=torch.float64)).tolist()

    expected = [reference.loss(name, true, [300.0] * 3, 3) for true in true_Q.tolist()]
    assert expected == pytest.approx(found, rel=1e-12, abs=1e-12)


scores = st.one_of(st.sampled_from([-2.0, 0.0, 0.5]), st.floats(-20, 20))


@given(
    st.sampled_from(sorted(LOSSES)),
    scores,
    st.lists(st.tuples(scores, st.booleans()), min_size=1, max_size=9),
    st.integers(0, 9),
    st.sampled_from([0.0, 0.1, 3.0]),
)
def test_any_cut_into_blocks_gives_the_references_loss(name, true, cells, cut, margin):
    scores_QC = torch.tensor([[score for score, _ in cells]], dtype=torch.float64)
    competes_QC = torch.tensor([[competes for _, competes in cells]])
    blocks = [(scores_QC[:, part], competes_QC[:, part]) for part in (slice(0, cut), slice(cut, None))]
    blocks = [block for block in blocks if block[0].numel()]
    competitors = [score for score, competes in cells if competes]
    length = len(cells) + 2

    true_Q = torch.tensor([true], dtype=torch.float64)
    found = loss_of(name, true_Q, blocks, torch.tensor([float(length)], dtype=torch.float64), margin)

    assert pytest.approx(reference.loss(name, true, competitors, length, margin), rel=1e-9, abs=1e-9) == found.item()
