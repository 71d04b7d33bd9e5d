"""What a worker is given, what it holds while it works, and what it hands back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from attrs import frozen
from torch import Tensor

from pbgeval.distributed.ownership import Claim
from pbgeval.distributed.team import Team
from pbgeval.files import ScratchFolder
from pbgeval.inputs.edges import EdgeNumberer, EvaluatedRows
from pbgeval.inputs.opening import Inputs
from pbgeval.inputs.protocol import Protocol
from pbgeval.metrics.breakdowns import GroupClasses
from pbgeval.passes.settings import PassSettings, Relation
from pbgeval.progress import Observer
from pbgeval.report.document import EdgeDiagnostics, Estimate
from pbgeval.report.output import JOURNAL, SCRATCH, digest_of
from pbgeval.report.report import Report
from pbgeval.version import __version__
from pbgeval.worker.run_journal import RunJournal
from pbgeval.worker.time_use import TimeUse


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
        """Of all that determines a unit's result: the run, and the version of the program."""
        return digest_of({"run": self.digest, "version": __version__})

    @property
    def journal_path(self) -> Path:
        """The folder of the results of finished units."""
        return self.output / JOURNAL

    @property
    def scratch_path(self) -> Path:
        """The folder of arrays that workers share while they work."""
        return self.output / SCRATCH


@frozen(eq=False)
class Outcome:
    """What a worker hands back: faults of the user's, or (worker 0) the report."""

    faults: tuple[str, ...] = ()
    incomplete: bool = False  # what is wrong may pass, and the run can go on
    report: Report | None = None


@frozen(eq=False)
class Bench:
    """What a worker has at hand: its team, its device, the model."""

    work: Work
    team: Team
    device: torch.device
    relations: tuple[Relation, ...]
    global_embeddings: dict[str, Tensor]
    settings: PassSettings
    numberer: EdgeNumberer
    journal: RunJournal  # of the round in hand
    scratch: ScratchFolder  # shared by all workers of the run
    evaluated: EvaluatedRows  # of the round in hand, where edges are sampled
    time_use: TimeUse
    held_bytes: int = 0  # what scores and a sample of edges take beside everything else

    @property
    def inputs(self) -> Inputs:
        return self.work.inputs


@frozen(eq=False)
class Found:
    """What a worker knows at the end, besides its record."""

    num_loads: int  # partitions, or ranges of candidates, that it read
    classes: GroupClasses
    edges: EdgeDiagnostics | None = None  # None: not looked at
    estimate: Estimate | None = None  # of worker 0, where edges are sampled
