"""Values by step -> a run of Weights & Biases, offline: files in a folder, which `wandb sync` may send later."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from attrs import define, field

from pbgeval.sinks.sink import RunFacts, library_faults

PROJECT = "pbgeval"


@define(eq=False)
class WeightsAndBiases:
    """A sink; nothing leaves the machine, whatever the environment says."""

    folder: Path
    _run: Any = field(default=None, init=False)

    def open(self, run: RunFacts) -> None:
        import wandb

        with self._faults():
            self.folder.mkdir(parents=True, exist_ok=True)
            settings = wandb.Settings(
                console="off",  # our own output is not its business
                disable_code=True,
                disable_git=True,
                silent=True,
                x_disable_stats=True,
                x_disable_machine_info=True,
            )
            self._run = wandb.init(
                project=PROJECT,
                name=run.name,
                config=dict(run.settings),
                dir=str(self.folder),
                mode="offline",
                reinit="create_new",
                settings=settings,
            )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        with self._faults():
            self._run.log(dict(values), step=step)

    def close(self) -> None:
        if self._run is None:
            return
        with self._faults():
            self._run.finish()

    def _faults(self) -> AbstractContextManager[None]:
        from wandb.errors import Error

        return library_faults("a run of Weights & Biases", self.folder, Error)
