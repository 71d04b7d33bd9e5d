"""What a worker spends its time on, for the report: nothing depends on it."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

from attrs import define, field

COMPUTING, LOADING, READING, QUEUE, JOURNAL = "computing", "loading", "reading_edges", "queue", "journal"


@define(eq=False)
class TimeUse:
    """Seconds by what they were spent on; what is inside something else counts there alone."""

    _seconds: dict[str, float] = field(factory=lambda: defaultdict(float), init=False)
    _inside: list[float] = field(factory=list, init=False)  # of each stretch that is open: seconds of others within it

    @contextmanager
    def spent_on(self, what: str) -> Iterator[None]:
        """Count the time until the end of the context."""
        self._inside.append(0.0)
        begun = time.perf_counter()
        try:
            yield
        finally:
            seconds = time.perf_counter() - begun
            self._seconds[what] += seconds - self._inside.pop()
            if self._inside:
                self._inside[-1] += seconds

    @property
    def seconds(self) -> dict[str, float]:
        """Rounded, by what they were spent on."""
        return {what: round(seconds, 3) for what, seconds in sorted(self._seconds.items())}
