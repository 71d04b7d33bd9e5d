"""The interval of a sample after a round -> whether its target is met, and which round is needed if not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

from pbgeval.metrics.intervals import ERROR_RATE, Interval

MOST_SKIPPED = 3  # rounds: sixteen times as much is drawn, as the variance of a small sample is uncertain


def round_level(round_number: int) -> float:
    """Return the level of the intervals of a round, numbered from 1: errors of all rounds add up to ERROR_RATE."""
    return 1.0 - ERROR_RATE * 2.0**-round_number


def should_stop(interval: Interval | None, target_error: float) -> bool:
    """Tell whether a round's interval is narrow enough: its farther end lies within target_error of the value."""
    return interval is not None and interval.half_width <= target_error


def round_needed(interval: Interval | None, target_error: float, done: int, round_totals: Sequence[int]) -> int:
    """Return the round after `done` that is expected to meet the target, at most MOST_SKIPPED rounds further on.

    Each round visits every bucket again, and what the first rounds say of the variance is enough to see that the next
    ones will not do. Levels go by the numbers of rounds, so a round that is not judged can only be missed.

    Args:
        interval: after the round that is done, None if it has none.
        target_error: its half-width is to be at most this.
        done: number of that round, from 1.
        round_totals: units drawn after each round.
    """
    last = min(done + 1 + MOST_SKIPPED, len(round_totals))
    if interval is None:
        return done + 1
    quantile = NormalDist().inv_cdf
    for number in range(done + 1, last):
        shrunk = math.sqrt(round_totals[done - 1] / round_totals[number - 1])
        widened = quantile((1 + round_level(number)) / 2) / quantile((1 + round_level(done)) / 2)
        if interval.half_width * shrunk * widened <= target_error:
            return number
    return last
