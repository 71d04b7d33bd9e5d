"""Progress on the screen: a bar on a terminal, else a line per step or bucket; on stderr, so results can be piped."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any

from attrs import define, field
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from pbgeval.progress import Observer, UnitReport
from pbgeval.storage.text import plural, printable, without_secrets

CLEAR_LINE = "\r\x1b[2K"


@define
class ConsoleObserver(Observer):
    """Tells the user how far the work is. Picklable: local workers get a copy each."""

    quiet: bool = False
    _warned: set[str] = field(factory=set, init=False)
    _bar: Progress | None = field(default=None, init=False)
    _is_first: bool = field(default=True, init=False)  # worker 0 of its team
    _tenth: int = field(default=0, init=False)  # of the entities that all queries are scored against
    _earlier: int = field(default=0, init=False)  # edges of the rounds of a sample before the one in hand
    _in_round: int = field(default=0, init=False)  # edges of this round; 0: there is no sample
    _is_last: bool = field(default=True, init=False)  # whether no later round is foreseen
    # Edges that were done before the first unit that is seen here.
    _before: int | None = field(default=None, init=False)

    @property
    def wants_estimates(self) -> bool:
        return not self.quiet

    def warn(self, message: str) -> None:
        """Print a warning; the same one, of a second evaluation, only once."""
        if message not in self._warned:
            self._warned.add(message)
            self.note(f"warning: {message}")

    def step(self, title: str) -> None:
        self._begin(printable(without_secrets(title)), 1)
        if self._bar is None:
            self.note(title)

    def advanced(self, share: float) -> None:
        self._show(share)

    def phase(self, title: str) -> None:
        """Name what is being done; only on a terminal."""
        if self._bar is not None and self._earlier:  # one bar for all rounds
            self._show(description=title)
        elif self._bar is not None:
            self._bar.reset(self._bar.task_ids[-1], description=title)
        elif self._is_first and not self.quiet and _is_terminal():
            self._write(f"{CLEAR_LINE}{title} ...\r")

    def round_started(self, earlier: int, num_edges: int, *, is_last: bool) -> None:
        self._earlier, self._in_round, self._is_last, self._tenth = earlier, num_edges, is_last, 0

    def started(self, num_edges: int, rank_in_team: int) -> None:
        """Begin; on a terminal, worker 0 draws the bar for all."""
        self._is_first = rank_in_team == 0
        if self._is_first:
            self._begin("preparing", None)

    def unit_finished(self, unit: UnitReport) -> None:
        bucket = unit.finished_bucket
        done, total = self._earlier + unit.edges_done, self._earlier + unit.edges_total
        if self._before is None:  # a run that is resumed has edges that cost it no time
            self._before = done - unit.num_edges
        if self._bar is not None:
            speed = (done - self._before) / max(self._bar.tasks[-1].elapsed or unit.seconds, 1e-9)
            told = f"{done:,}{f'/{total:,}' if self._is_last else ''} {speed:,.0f} edges/s"
            if unit.mean_reciprocal_rank is not None:
                told += f" MRR {unit.mean_reciprocal_rank:.4f}"
                told += "" if unit.half_width is None else f" ± {unit.half_width:.4f}"
            self._show(done, told=told, total=total if self._is_last else None)
        elif bucket is not None and not _is_terminal():
            # Lines of several workers may swap on their way here: one worker's shares alone never step back.
            share = f"; {100 * done // max(total, 1)}% done" if self._is_first and self._is_last else ""
            self.note(
                f"{unit.edge_path} bucket ({unit.bucket.lhs}, {unit.bucket.rhs}): "
                f"{plural(bucket.num_edges, 'edge')} in {bucket.seconds:.1f} s, "
                f"{bucket.num_edges / max(bucket.seconds, 1e-9):,.0f} edges/s, "
                f"MRR {bucket.mean_reciprocal_rank or 0.0:.4f}{share}"
            )

    def candidates_done(self, done: int, total: int) -> None:
        """Show how many entities all queries are scored against; off a terminal, worker 0 has a line for each tenth."""
        in_round, before = self._in_round or 1, self._earlier if self._is_last else 0
        share = (before + in_round * done / max(total, 1)) / (before + in_round)
        self._show(share, total=1.0 if self._is_last else None, told=f"{done:,}/{total:,} entities")
        earlier, self._tenth = self._tenth, int(10 * share)
        if self._is_first and self._tenth > earlier and not _is_terminal():
            percent = f"{int(round(100 * share, 6))}%: " if self._is_last else ""
            self.note(f"{percent}all queries scored against {done:,} of {total:,} entities")

    def finished(self) -> None:
        """Leave the last bar as it is, full where the work has ended well."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _begin(self, title: str, total: float | None) -> None:
        """Draw another bar on a terminal; those before are done."""
        if self.quiet or not _is_terminal():
            return
        if self._bar is None:
            self._write(CLEAR_LINE)
            console = Console(stderr=True, force_jupyter=False)
            self._bar = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=max(4, min(20, console.width - 90))),
                TaskProgressColumn(),
                TextColumn("{task.fields[told]}"),
                TimeRemainingColumn(compact=True),
                TextColumn("remaining"),
                console=console,
            )
            self._bar.start()
        for task in self._bar.tasks:
            self._bar.update(task.id, completed=task.total)
        self._bar.add_task(title, total=total, told="")

    def _show(self, done: float | None = None, **fields: Any) -> None:  # noqa: ANN401 - of `Progress.update`
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[-1], completed=done, **fields)

    def note(self, message: str) -> None:
        """Print a line."""
        if not self.quiet:
            clear = CLEAR_LINE if self._bar is None and _is_terminal() else ""
            self._write(
                f"{clear}{printable(without_secrets(message))}\n"
            )  # one write, so that lines of several workers do not mix

    def _write(self, text: str) -> None:
        if sys.stderr is None:  # closed before we were started
            return
        with suppress(OSError):  # a full disk, a reader that has gone: no reason to give up the work
            sys.stderr.write(text)
            sys.stderr.flush()


def _is_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()
