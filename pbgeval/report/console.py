"""Progress on the screen: a bar on a terminal, else a line per step or bucket; on stderr, so results can be piped."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any

from attrs import define, field
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from pbgeval.progress import Observer, UnitReport
from pbgeval.storage.text import printable


@define
class ConsoleObserver(Observer):
    """Tells the user how far the work is. Picklable: local workers get a copy each."""

    quiet: bool = False
    _bar: Progress | None = field(default=None, init=False)
    _tenths: int = field(default=0, init=False)  # of the candidates, where no bar is drawn

    def warn(self, message: str) -> None:
        self._line(f"warning: {message}")

    def note(self, message: str) -> None:
        self._line(message)

    def step(self, title: str) -> None:
        self._begin(printable(title), 1)
        if self._bar is None:
            self._line(title)

    def advanced(self, share: float) -> None:
        self._show(share)

    def started(self, num_edges: int, rank_in_team: int) -> None:
        """Begin; on a terminal, worker 0 draws the bar for all."""
        if rank_in_team == 0:
            self._begin("edges", num_edges)

    def unit_finished(self, unit: UnitReport) -> None:
        bucket = unit.finished_bucket
        if self._bar is not None:
            elapsed = self._bar.tasks[-1].elapsed or unit.seconds
            speed = f"{unit.edges_done / max(elapsed, 1e-9):,.0f} edges/s"
            self._show(unit.edges_done, told=f"{unit.edges_done:,}/{unit.edges_total:,} {speed}")
        elif bucket is not None and not _is_terminal():
            self._line(
                f"{unit.edge_path} bucket ({unit.bucket.lhs}, {unit.bucket.rhs}): {bucket.num_edges:,} edges in "
                f"{bucket.seconds:.1f} s, {bucket.num_edges / max(bucket.seconds, 1e-9):,.0f} edges/s, "
                f"MRR {bucket.mean_reciprocal_rank or 0.0:.4f}; "
                f"{100 * unit.edges_done // max(unit.edges_total, 1)} % done"
            )

    def candidates_done(self, done: int, total: int) -> None:
        """Show how much of the candidates has been met, on a terminal in place of the edges."""
        self._show(done, total=total, description="candidates", told=f"{done:,}/{total:,}")
        tenth = 10 * done // max(total, 1)
        if not _is_terminal() and tenth > self._tenths:
            self._tenths = tenth
            self._line(f"{done:,} of {total:,} candidate rows have met all queries; {10 * tenth} % done")

    def finished(self) -> None:
        """Leave the last bar as it is, full where the work has ended well."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _begin(self, title: str, total: float) -> None:
        """Draw another bar on a terminal; those before are done."""
        if self.quiet or not _is_terminal():
            return
        if self._bar is None:
            title_column = TextColumn("{task.description}", markup=False)
            columns = BarColumn(), TaskProgressColumn(), TextColumn("{task.fields[told]}"), TimeRemainingColumn()
            self._bar = Progress(title_column, *columns, console=Console(stderr=True))
            self._bar.start()
        for task in self._bar.tasks:
            self._bar.update(task.id, completed=task.total)
        self._bar.add_task(title, total=total, told="")

    def _show(self, done: float, **fields: Any) -> None:  # noqa: ANN401 - of `Progress.update`
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[-1], completed=done, **fields)

    def _line(self, text: str) -> None:
        if self.quiet or sys.stderr is None:  # closed before we were started
            return
        with suppress(OSError):  # a full disk, a reader that has gone: no reason to give up the work
            sys.stderr.write(printable(text) + "\n")  # one write, so that lines of several workers do not mix
            sys.stderr.flush()


def _is_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()
