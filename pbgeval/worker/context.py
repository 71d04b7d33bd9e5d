"""What a worker is given, what it holds while it works, and where its time goes."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import torch
from attrs import define, field, frozen
from torch import Tensor

from pbgeval.cluster.claim import Claim
from pbgeval.cluster.liveness import Watch
from pbgeval.cluster.team import Team
from pbgeval.inputs.edges import EdgeNumberer, EvaluatedRows
from pbgeval.inputs.opening import Inputs
from pbgeval.inputs.protocol import Protocol
from pbgeval.metrics.breakdowns import GroupClasses
from pbgeval.progress import Observer
from pbgeval.ranking.settings import PassSettings
from pbgeval.results.document import SampleEstimate
from pbgeval.results.output import JOURNAL, SCRATCH
from pbgeval.scoring.self_check import KernelReport
from pbgeval.storage.json_files import digest_of
from pbgeval.storage.writing import ScratchFolder
from pbgeval.version import __version__
from pbgeval.worker.collective import collectively
from pbgeval.worker.journal import RunJournal

COMPUTING, LOADING, READING, QUEUE, WRITING = "computing", "loading", "reading_edges", "queue", "journal"


@define(eq=False)
class TimeUse:
    """Seconds by activity, for the report; a nested activity counts only as itself."""

    _seconds: dict[str, float] = field(factory=lambda: defaultdict(float), init=False)
    _inside: list[float] = field(factory=list, init=False)  # of each stretch that is open: seconds of others within it

    @contextmanager
    def spent_on(self, what: str) -> Iterator[None]:
        """Count the time until the end of the block."""
        self._inside.append(0.0)
        begun = time.perf_counter()
        try:
            yield
        finally:
            seconds = time.perf_counter() - begun
            self._seconds[what] += seconds - self._inside.pop()
            if self._inside:
                self._inside[-1] += seconds

    @property
    def seconds(self) -> dict[str, float]:
        """Rounded, by what they were spent on."""
        return {what: round(seconds, 3) for what, seconds in sorted(self._seconds.items())}


@frozen(eq=False)
class Work:
    """All that a worker needs, picklable."""

    inputs: Inputs
    protocol: Protocol
    provenance: dict[str, Any]
    device: str  # auto, cpu or cuda
    observer: Observer
    started: float  # seconds since the epoch
    output: Path  # where per-edge files go, and the scratch folder
    claim: Claim  # to the output directory

    @property
    def digest(self) -> str:
        """The run's digest."""
        return digest_of(self.provenance)

    @property
    def journal_digest(self) -> str:
        """Of all that determines a unit's result: the run, how many best candidates it keeps, and the program."""
        return digest_of({"run": self.digest, "save_topk": self.inputs.config.save_topk, "version": __version__})

    @property
    def journal_path(self) -> Path:
        """The folder of the results of finished units."""
        return self.output / JOURNAL

    @property
    def scratch_path(self) -> Path:
        """The folder of arrays that workers share while they work."""
        return self.output / SCRATCH


@frozen(eq=False)
class WorkerContext:
    """What a worker has at hand: its team, its device, the model."""

    work: Work
    team: Team
    device: torch.device
    global_embeddings: dict[str, Tensor]
    kernels: KernelReport  # what the self-check has found of the device's
    settings: PassSettings
    numberer: EdgeNumberer
    journal: RunJournal  # of the round in hand
    scratch: ScratchFolder  # shared by all workers of the run
    evaluated: EvaluatedRows  # of the round in hand, where edges are sampled
    time_use: TimeUse
    # A digest of all workers' kernels, which decide the last bits of scores; empty if ranks are exact. Names of rounds
    # in the journal end in it: units that other kernels have scored are computed again.
    scored_by: str = ""
    devices: str = ""  # of all workers, in a line
    num_sharing_gpu: int = 1  # workers on this worker's GPU
    pool_share: float = 1.0  # of the scores of the round in hand that enter the pools
    held_bytes: int = 0  # bytes reserved for AUC scores and the edge sample

    @property
    def inputs(self) -> Inputs:
        return self.work.inputs

    def collectively(self, watch: Watch | None = None) -> AbstractContextManager[None]:
        """Do what is inside on every worker of the team; a fault of one stops all."""
        return collectively(self.team, watch)


@frozen(eq=False)
class WorkSummary:
    """What a worker knows at the end, besides its record."""

    num_loads: int  # partitions, or ranges of candidates, that it read
    classes: GroupClasses
    edges: Mapping[str, int | None] | None  # what they share with each other; None: not looked at
    estimate: SampleEstimate | None  # of worker 0, where edges are sampled
