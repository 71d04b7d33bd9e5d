"""Values of a step -> a line of JSON, which every result has beside what its sinks write."""

from __future__ import annotations

import json
from collections.abc import Mapping

from pbgeval.sinks.sink import RunFacts


def line_of(run: RunFacts, step: int, values: Mapping[str, float]) -> str:
    """Return the line of a step: `run`, `settings`, `step`, `values`."""
    record = {"run": run.name, "settings": dict(run.settings), "step": step, "values": dict(values)}
    return json.dumps(record, sort_keys=True, allow_nan=False)
