"""What a GPU finds is delivered at the end of much work, unless something that is taken for granted is false."""

from __future__ import annotations

import functools

import pytest
import torch

from pbgeval.ranking.groups import no_overflow
from pbgeval.scoring import deferred
from pbgeval.scoring.deferred import Deferred, holds, pass_on, run_deferred
from tests.pretend_device import DEVICE, PretendDevice


def test_what_was_false_once_is_looked_at_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work is done again once; numbers that are told arrive once for each work that counts."""
    monkeypatch.setattr(deferred, "_doubted", functools.cache(set))
    seen: list[bool] = []
    told: list[int] = []

    def is_one(number: int) -> bool:
        return number == 1

    def work(deferred: Deferred) -> None:
        number = torch.zeros(1, dtype=torch.int64, device=DEVICE)
        seen.append(holds(is_one, number))
        pass_on(told.append, number + 7)

    with PretendDevice():
        run_deferred(DEVICE, work)
        run_deferred(DEVICE, work)

    assert seen == [True, False, False]
    assert told == [7, 7]


def test_that_products_may_overflow_is_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Later units with such rows are not ranked twice."""
    monkeypatch.setattr(deferred, "_doubted", functools.cache(set))
    seen: list[bool] = []

    def work(deferred: Deferred) -> None:
        ends = torch.full((2,), 1e30, device=DEVICE).unbind()
        seen.append(no_overflow(ends, ends, 4))

    with PretendDevice():
        run_deferred(DEVICE, work)
        run_deferred(DEVICE, work)

    assert seen == [True, False, False]
