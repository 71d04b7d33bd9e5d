"""Counters of one process, as workers share them."""

from __future__ import annotations

from threading import Lock

from attrs import define, field


@define(eq=False)
class LocalCounter:
    """Counters of one process, safe for its threads."""

    num_calls: int = field(default=0, init=False)
    _values: dict[str, int] = field(factory=dict, init=False)
    _lock: Lock = field(factory=Lock, init=False, repr=False)

    def add(self, counter: str, amount: int, /) -> int:
        """Add at once for all threads, and return the new value."""
        with self._lock:
            self.num_calls += 1
            self._values[counter] = self._values.get(counter, 0) + amount
            return self._values[counter]
