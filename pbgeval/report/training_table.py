"""Records of a training run, as they come -> a table on the terminal that grows while a model trains.

    with TrainingTable() as table:
        monitor = Monitor(schema, "run/monitor", sinks=[table])

A row per pass, and under them the visit that has just ended; on stderr. Where that is no terminal, a line per pass.
"""

from __future__ import annotations

import atexit
from collections import deque
from types import TracebackType

from attrs import define, field
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from pbgeval.training_stats.records import PassDetails, PassKey, PassRecord, Values, VisitDetails, VisitRecord

NUM_PASSES_SHOWN = 12  # the last ones; all are in the records
METRIC = "mean_reciprocal_rank"


def _stderr() -> Console:
    return Console(stderr=True)


@define(eq=False)
class TrainingTable:
    """A sink of a monitor (of worker 0, where there are several)."""

    console: Console = field(factory=_stderr)
    _passes: deque[PassRecord] = field(init=False, factory=lambda: deque(maxlen=NUM_PASSES_SHOWN))
    _visit: VisitRecord | None = field(init=False, default=None)  # since the last pass
    _live: Live | None = field(init=False, default=None)

    def append(self, record: VisitRecord | PassRecord) -> None:
        """Draw a record."""
        if isinstance(record, PassRecord):
            self._passes.append(record)
            self._visit = None
        else:
            self._visit = record
        if self.console.is_terminal:
            if self._live is None:
                self._live = Live(console=self.console, auto_refresh=False)
                self._live.start()
                atexit.register(self.close)  # a trainer that ends by an exception wants its cursor back
            self._live.update(self._drawing(), refresh=True)
        elif isinstance(record, PassRecord):
            self.console.print(_line(record), soft_wrap=True, markup=False, highlight=False)

    def close(self) -> None:
        """Leave the table as it is, and the terminal to others."""
        if self._live is not None:
            self._live.stop()
            self._live = None
            atexit.unregister(self.close)

    def __enter__(self) -> TrainingTable:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _drawing(self) -> Group:
        table = Table(title="held-out edges: mean reciprocal rank", title_justify="left")
        for name in ("epoch", "buckets", "before", "after", "gap", "training edges"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("gap")
        for of_pass in self._passes:
            if of_pass.details is not None:
                table.add_row(*_cells(of_pass.key, of_pass.details))
        return Group(table) if self._visit is None else Group(table, Text(_of_visit(self._visit)))


def _cells(key: PassKey, details: PassDetails) -> list[str]:
    buckets = str(details.num_buckets)
    if details.num_diverged:
        buckets += f", {details.num_diverged} diverged"
    values = [_value(of, details) for of in (details.before, details.after, details.training)]
    verdict = details.verdict.replace("_", " ")
    return [_name(key), buckets, values[0], values[1], _gap(details), values[2], verdict]


def _line(record: PassRecord) -> str:
    if record.details is None:
        return f"epoch {_name(record.key)}"
    epoch, buckets, before, after, gap, training, verdict = _cells(record.key, record.details)
    return (
        f"epoch {epoch}: {buckets} buckets, mean reciprocal rank of held-out edges {before} before, {after} after, "
        f"gap {gap}, of training edges {training}; the gap: {verdict}"
    )


def _of_visit(record: VisitRecord) -> str:
    where = f"epoch {_name(record.key)}, bucket {tuple(record.bucket)}"
    details = record.details
    if details is None or not details.gap:
        return f"{where}: {'diverged' if details is not None and details.diverged else 'nothing held out'}"
    return f"{where}: {_value(details.before, details)} before, {_value(details.after, details)} after"


def _name(key: PassKey) -> str:
    """Return an epoch, with edge path and chunk where they are not the first."""
    if (key.edge_path, key.edge_chunk) == (0, 0):
        return str(key.epoch)
    return f"{key.epoch} (path {key.edge_path}, chunk {key.edge_chunk})"


def _headline(details: PassDetails | VisitDetails) -> str | None:
    """Return the key of the metric, of the rank type in which gaps are measured."""
    return next((key for key in details.gap if key.endswith(f".{METRIC}")), None)


def _value(values: Values | None, details: PassDetails | VisitDetails) -> str:
    key = _headline(details)
    value = None if values is None or key is None else values.get(key)
    return "-" if value is None else f"{value:.4f}"


def _gap(details: PassDetails) -> str:
    key = _headline(details)
    if key is None or details.gap[key].value is None:
        return "-"
    error = details.gap[key].standard_error
    return f"{details.gap[key].value:+.4f}" + ("" if error is None else f" ± {error:.4f}")
