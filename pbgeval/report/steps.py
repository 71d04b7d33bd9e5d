"""Steps of a long work on the screen: a bar for each on a terminal, else a line; on stderr."""

from __future__ import annotations

from attrs import define, field
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn

from pbgeval.storage.text_files import printable


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
