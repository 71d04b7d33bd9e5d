"""Progress on the screen: a bar on a terminal, else a line per bucket; on stderr, so that the result can be piped."""

from __future__ import annotations

import sys
from contextlib import suppress

from attrs import define, field
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from pbgeval.progress import BucketReport, UnitReport
from pbgeval.storage.text import printable

# Steps of a long work on the screen: a bar for each on a terminal, else a line; on stderr.


@define
class ConsoleSteps:
    """Tells the user which step is on, and how far. Use as a context; the bar goes when it is left."""

    quiet: bool = False
    _console: Console = field(factory=lambda: Console(stderr=True), init=False)
    _bar: Progress | None = field(default=None, init=False)
    _task: TaskID | None = field(default=None, init=False)

    def __enter__(self) -> ConsoleSteps:
        if not self.quiet and self._console.is_terminal:
            columns = TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn()
            self._bar = Progress(*columns, TimeElapsedColumn(), console=self._console)
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.finished()

    def step(self, title: str) -> None:
        """Begin a step; the one before it is done."""
        title = printable(title)
        if self._bar is not None:
            if self._task is not None:
                self._bar.update(self._task, completed=1.0)
            self._task = self._bar.add_task(title, total=1.0)
        elif not self.quiet:
            self._console.print(title, markup=False, highlight=False, soft_wrap=True)

    def advanced(self, share: float) -> None:
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=share)

    def finished(self) -> None:
        """Leave the last bar as it is, full where the work has ended well."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


@define
class ConsoleObserver:
    """Tells the user how far the work is. Picklable: local workers get a copy each."""

    quiet: bool = False
    _bar: Progress | None = field(default=None, init=False)
    _task: TaskID | None = field(default=None, init=False)
    _tenths: int = field(default=0, init=False)  # of the candidates, where no bar is drawn

    def started(self, num_edges: int, rank_in_team: int) -> None:
        """Begin; on a terminal, worker 0 draws the bar for all."""
        if self.quiet or not _is_terminal() or rank_in_team != 0:
            return
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[speed]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self._task = self._bar.add_task("edges", total=num_edges, speed="")
        self._bar.start()

    def unit_finished(self, unit: UnitReport) -> None:
        if self.quiet:
            return
        if self._bar is not None and self._task is not None:
            elapsed = self._bar.tasks[0].elapsed or unit.seconds
            speed = f"{unit.edges_done / max(elapsed, 1e-9):,.0f} edges/s"
            self._bar.update(self._task, completed=unit.edges_done, speed=speed)
        elif unit.finished_bucket is not None and not _is_terminal():
            self._print_bucket(unit, unit.finished_bucket)

    def _print_bucket(self, unit: UnitReport, bucket: BucketReport) -> None:
        self._line(
            f"{unit.edge_path} bucket ({unit.bucket.lhs}, {unit.bucket.rhs}): {bucket.num_edges:,} edges in "
            f"{bucket.seconds:.1f} s, {bucket.num_edges / max(bucket.seconds, 1e-9):,.0f} edges/s, "
            f"MRR {bucket.mean_reciprocal_rank or 0.0:.4f}; "
            f"{100 * unit.edges_done // max(unit.edges_total, 1)} % done"
        )

    def candidates_done(self, done: int, total: int) -> None:
        """Show how much of the candidates has been met, on a terminal as a bar of all edges."""
        if self.quiet:
            return
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, total=total, completed=done, description="candidates")
            return
        tenth = 10 * done // max(total, 1)
        if not _is_terminal() and tenth > self._tenths:
            self._tenths = tenth
            self._line(f"{done:,} of {total:,} candidate rows have met all queries; {10 * tenth} % done")

    def warn(self, message: str) -> None:
        if not self.quiet:
            self._line(f"warning: {message}")

    def steps(self) -> ConsoleSteps:
        return ConsoleSteps(self.quiet)

    def finished(self) -> None:
        if self._bar is not None:
            self._bar.stop()

    @staticmethod
    def _line(text: str) -> None:
        if sys.stderr is None:  # closed before we were started
            return
        with suppress(OSError):  # a full disk, a reader that has gone: no reason to give up the work
            sys.stderr.write(printable(text) + "\n")  # one write, so that lines of several workers do not mix
            sys.stderr.flush()


def _is_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()
