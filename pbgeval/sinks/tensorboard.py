"""Values by step -> a folder of TensorBoard's event files, of which each process writes its own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import define, field

from pbgeval.sinks.sink import RunFacts, library_faults


@define(eq=False)
class TensorBoard:
    """A sink; settings of the run are a text."""

    folder: Path
    _writer: Any = field(default=None, init=False)

    def open(self, run: RunFacts) -> None:
        from torch.utils.tensorboard import SummaryWriter

        with library_faults("an event file of TensorBoard", self.folder):
            # Its thread writes later, wherever the process is then.
            self._writer = SummaryWriter(str(self.folder.absolute()))
            if run.settings:
                rows = "".join(f"| {name} | {value} |\n" for name, value in run.settings.items())
                self._writer.add_text("run", f"| {run.name} | |\n|---|---|\n{rows}", 0)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        with library_faults("an event file of TensorBoard", self.folder):
            for name, value in values.items():
                self._writer.add_scalar(name, value, step)
            self._writer.flush()

    def close(self) -> None:
        if self._writer is None:
            return
        with library_faults("an event file of TensorBoard", self.folder):
            self._writer.close()
