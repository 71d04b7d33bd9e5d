"""An estimate: a value, the standard error that its sample leaves, and whether it is biased."""

from __future__ import annotations

from statistics import NormalDist

from attrs import frozen


@frozen
class Estimate:
    """A metric estimated from a sample."""

    value: float | None  # None: undefined on this sample
    standard_error: float | None  # None: the sample does not tell; 0.0: the value is exact
    is_biased: bool = False  # the value's expectation is not the metric; the standard error does not hold the bias

    def interval(self, level: float = 0.95) -> tuple[float, float] | None:
        """Return the ends of the normal interval at a level, not cut at the metric's range.

        None without a standard error, and for biased estimates: theirs would not cover at that level.
        """
        if self.value is None or self.standard_error is None or self.is_biased:
            return None
        reach = NormalDist().inv_cdf((1.0 + level) / 2) * self.standard_error
        return self.value - reach, self.value + reach
