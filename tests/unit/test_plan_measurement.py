"""The trials from which a plan extends a line: more and more edges, within a limit of seconds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from pbgeval.worker import plan

EDGES_OF_RUN = 1_000_000.0


class Trial:
    """What ranks edges, in 0.1 s and 1 ms for each edge."""

    cells_per_edge = 1.0
    edges_of_work = EDGES_OF_RUN

    def __init__(self, num_edges: int) -> None:
        self.file = SimpleNamespace(num_edges=num_edges)
        self.protocol = SimpleNamespace(lists=SimpleNamespace(window_rows=lambda: 1 << 20), units=())
        self.ran: list[int] = []

    def run(self, num_edges: int) -> Any:
        self.ran.append(num_edges)
        seconds = 0.1 + 1e-3 * num_edges
        return SimpleNamespace(num_edges=num_edges, seconds=seconds, cpu_seconds=seconds, own_seconds=seconds)


@pytest.mark.parametrize(
    ("limit", "ran"),
    [
        (0.1, [400, 100, 25]),  # the first loads what is loaded once, and does not count; one alone tells little
        (0.9, [400, 100, 25]),  # 0.2 s, and 0.8 s as far as one trial tells
        (1.1, [400, 100, 400]),
        (2.3, [400, 100, 400]),  # 0.2 + 0.5 + 1.7 s, as two trials tell
        (2.5, [400, 100, 400, 1600]),
        (60.0, [400, 100, 400, 1600, 6400, 10_000]),  # all edges there are
    ],
)
def test_trials_grow_as_long_as_the_next_is_expected_within_the_limit(
    limit: float, ran: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "FIRST_EDGES", 100)
    monkeypatch.setattr(plan, "FIRST_CELLS", 1)
    trial = Trial(10_000)

    speed = plan._measured(cast("Any", trial), limit)

    assert trial.ran == ran
    assert speed.seconds == speed.cpu_seconds == speed.own_seconds == pytest.approx(0.1 + 1e-3 * EDGES_OF_RUN)
