"""The queries of one contest, and what this worker knows of them while candidates stream past."""

from __future__ import annotations

import numpy as np
from attrs import define, field

from pbgeval.passes.cells import ScoreCollector
from pbgeval.passes.sweep_auc import SampledCells
from pbgeval.passes.sweep_pass import SweepState
from pbgeval.passes.topk import TopCandidates
from pbgeval.passes.type_gains import TypeGains
from pbgeval.worker.given import GivenCells


@define(eq=False)
class Contestants:
    """One contest while candidates stream past."""

    state: SweepState
    keys: np.ndarray  # int64: index of each of its keys among those of its side
    sample: SampledCells | None
    given: GivenCells | None = None  # what lists name, where candidates are given
    collector: ScoreCollector = field(factory=ScoreCollector)
    top: TopCandidates | None = None
    gains: TypeGains | None = None  # of its queries for types
