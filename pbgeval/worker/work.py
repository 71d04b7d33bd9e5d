"""What a worker is given, what it holds while it works, and what it hands back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
from attrs import frozen
from torch import Tensor

from pbgeval.distributed.team import Team
from pbgeval.errors import EvalError
from pbgeval.files import ScratchFolder
from pbgeval.inputs.edges import EdgeNumberer, EvaluatedRows
from pbgeval.inputs.opening import Inputs
from pbgeval.inputs.protocol import Protocol
from pbgeval.metrics.breakdowns import GroupClasses
from pbgeval.passes.settings import PassSettings, Relation
from pbgeval.progress import Observer
from pbgeval.report.document import EdgeDiagnostics, Estimate
from pbgeval.report.output import SCRATCH, digest_of
from pbgeval.report.report import Report

T = TypeVar("T")


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

    @property
    def digest(self) -> str:
        """The run's digest."""
        return digest_of(self.provenance)

    @property
    def scratch_path(self) -> Path:
        """The folder of arrays that workers share while they work."""
        return self.output / SCRATCH


@frozen(eq=False)
class Outcome:
    """What a worker hands back: faults of the user's, or (worker 0) the report."""

    faults: tuple[str, ...] = ()
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
    scratch: ScratchFolder  # shared by all workers of the run
    evaluated: EvaluatedRows  # of the round in hand, where edges are sampled

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


def in_step(team: Team, action: Callable[[], T]) -> T:
    """Do something on every worker, and go on only if no worker has met a fault of the user's.

    Every worker takes part; afterwards each knows that all have finished, so it is a barrier too.

    Raises:
        EvalError: the faults of all workers, on every worker.
    """
    result: T | None = None
    faults: tuple[str, ...] = ()
    try:
        result = action()
    except EvalError as error:
        faults = error.faults
        team.add("faults", 1)
    all_faults = [fault for of_worker in team.gather_objects(faults) for fault in of_worker]
    if all_faults:
        raise EvalError(*dict.fromkeys(all_faults))
    return result  # type: ignore[return-value]  # no fault: the action returned
