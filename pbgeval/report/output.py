"""The output directory: who may write it, and what is in it.

metrics.json is written at the start with `complete: false` and replaced at the end, so an interrupted run is seen
as such. Only files that we name are ever replaced or removed.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import frozen

from pbgeval.errors import OutputError
from pbgeval.files import remove_files, write_atomically
from pbgeval.report.report import SCHEMA_VERSION, Report

METRICS, BUCKETS, HISTOGRAM = "metrics.json", "buckets.csv", "rank_histogram.csv"
OUR_FILES = [METRICS, BUCKETS, HISTOGRAM]


def digest_of(provenance: Mapping[str, Any]) -> str:
    """Return the run's digest: of all that can change a number, and of nothing else."""
    canonical = json.dumps(provenance, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:32]


@frozen
class OutputDirectory:
    """Where one run's files go."""

    path: Path

    def claim(self, provenance: Mapping[str, Any], *, overwrite: bool) -> Report | None:
        """Make the directory ours, or return the finished result of the same run that it holds.

        Raises:
            OutputError: it holds another run, an unfinished one, or files that are not ours.
        """
        digest = digest_of(provenance)
        if self.path.exists() and not self.path.is_dir():
            raise OutputError(
                f"{self.path}: expected a directory for the output, found a file; choose another --output"
            )
        if (self.path / METRICS).exists():
            found = self._found(overwrite)
            if not overwrite and found is not None:
                self._refuse_unless_same(found, digest)
                return found
        elif self.path.is_dir() and any(self.path.iterdir()) and not overwrite:
            raise OutputError(
                f"{self.path}: expected an empty directory or one of an earlier run, found other files; "
                "choose another --output, or --overwrite to put the result beside them"
            )
        marker = {"schema_version": SCHEMA_VERSION, "complete": False, "provenance": {**provenance, "digest": digest}}
        remove_files(self.path, OUR_FILES) if self.path.is_dir() else None
        write_atomically(self.path / METRICS, json.dumps(marker, sort_keys=True, indent=2) + "\n")
        return None

    def _found(self, overwrite: bool) -> Report | None:
        try:
            return Report.read(self.path)
        except OutputError:
            if overwrite:
                return None
            raise

    def _refuse_unless_same(self, found: Report, digest: str) -> None:
        its_digest = found.document.get("provenance", {}).get("digest", "unknown")
        if its_digest != digest:
            raise OutputError(
                f"{self.path}: expected this run (digest {digest[:8]}), found the output of another "
                f"(digest {its_digest[:8]}); choose another --output, or --overwrite to replace it"
            )
        if not found.document.get("complete"):
            raise OutputError(
                f"{self.path}: expected a finished run, found an unfinished one, which cannot be resumed yet; "
                "--overwrite starts it anew"
            )

    def release(self) -> None:
        """Leave nothing of a run that could not be carried out."""
        remove_files(self.path, OUR_FILES)

    def write(self, report: Report) -> None:
        """Write the result; metrics.json last, so that it vouches for the rest."""
        write_atomically(self.path / BUCKETS, _table(report.bucket_rows))
        write_atomically(self.path / HISTOGRAM, _table(report.histogram_rows))
        write_atomically(self.path / METRICS, report.to_json())


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as CSV; an undefined value is an empty cell, floats are written shortest round-trip."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
