"""The result of an evaluation, as `metrics.json` holds it, with metrics by any of their names."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import field, frozen

from pbgeval.errors import OutputError
from pbgeval.metrics.names import resolve

SCHEMA_VERSION = 1


@frozen(eq=False)
class Report:
    """A finished evaluation."""

    document: Mapping[str, Any]  # the content of metrics.json
    bucket_rows: tuple[Mapping[str, Any], ...] = ()  # of buckets.csv; empty when read back from a file
    histogram_rows: tuple[Mapping[str, Any], ...] = ()  # of rank_histogram.csv; likewise
    tables: Mapping[str, tuple[Mapping[str, Any], ...]] = field(factory=dict)  # of breakdowns, by file name; likewise
    path: Path | None = None  # the output directory

    def __getitem__(self, name: str) -> float | int | None:
        """Return a metric: `report["mrr"]`, `report["both.realistic.hits@10"]`; None where it is undefined.

        Raises:
            KeyError: no such metric; the message names the nearest.
        """
        metrics: Mapping[str, float | int | None] = self.document["metrics"]
        return metrics[resolve(name, self.document["headline"], metrics.keys())]

    @property
    def intervals(self) -> Mapping[str, Mapping[str, float]]:
        """Standard error and 95 % interval of the metrics that are estimated."""
        intervals: Mapping[str, Mapping[str, float]] = self.document["intervals"]
        return intervals

    def to_dict(self) -> dict[str, Any]:
        """Return a copy of the content of metrics.json."""
        copy: dict[str, Any] = json.loads(self.to_json())
        return copy

    def to_json(self) -> str:
        """Return the content of metrics.json: sorted keys, shortest round-trip floats, no NaN."""
        return json.dumps(self.document, sort_keys=True, indent=2, allow_nan=False) + "\n"

    @classmethod
    def read(cls, folder: Path | str) -> Report:
        """Read a result back from its output directory.

        Raises:
            OutputError: there is no metrics.json, or it is not one of ours.
        """
        path = Path(folder) / "metrics.json"
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise OutputError(f"{path}: expected a result of pbgeval, got: {error.strerror or error}") from error
        except ValueError as error:
            raise OutputError(f"{path}: expected a result of pbgeval, got no JSON: {error}") from error
        if not isinstance(document, dict) or "schema_version" not in document:
            raise OutputError(f"{path}: expected a result of pbgeval, got other JSON")
        version = document["schema_version"]
        if version != SCHEMA_VERSION:
            raise OutputError(f"{path}: expected schema_version {SCHEMA_VERSION}, got {version}")
        return cls(document, path=Path(folder))
