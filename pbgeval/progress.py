"""What long work reports to: an observer that the command line draws and tests ignore."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from attrs import frozen

from pbgeval.notation import Bucket


@frozen
class BucketReport:
    """A bucket of which all units are done, by whichever workers."""

    num_edges: int
    seconds: float  # of all workers together
    mean_reciprocal_rank: float | None  # headline rank type, the mean of the units by their edges


@frozen
class UnitReport:
    """A work unit that has just been finished by this process."""

    edge_path: str
    bucket: Bucket
    num_edges: int
    seconds: float
    mean_reciprocal_rank: float | None  # of the unit, headline rank type
    edges_done: int  # by all workers, as far as known here
    edges_total: int
    finished_bucket: BucketReport | None  # if this was the last unit of its bucket


class Observer(Protocol):
    """Is told what happens; must not change it."""

    def started(self, num_edges: int, rank_in_team: int) -> None:
        """Work begins on all edges; this process is one of a team."""

    def unit_finished(self, unit: UnitReport) -> None:
        """One more unit is done."""

    def candidates_done(self, done: int, total: int) -> None:
        """So many of this process's candidate rows have met all queries (`candidates = "all"`)."""

    def warn(self, message: str) -> None:
        """Something the user should know that is not an error."""

    def steps(self) -> AbstractContextManager[StepObserver]:
        """Watch what comes before the evaluation, files of edges becoming buckets say; ends with the context."""

    def finished(self) -> None:
        """Nothing more will be reported."""


class Silence:
    """An observer that says nothing."""

    def started(self, num_edges: int, rank_in_team: int) -> None:
        pass

    def unit_finished(self, unit: UnitReport) -> None:
        pass

    def warn(self, message: str) -> None:
        pass

    def finished(self) -> None:
        pass

    def candidates_done(self, done: int, total: int) -> None:
        pass

    def steps(self) -> AbstractContextManager[StepObserver]:
        return nullcontext(SilentSteps())


class StepObserver(Protocol):
    """Is told how a work of several steps goes, an import say; called from more than one thread."""

    def step(self, title: str) -> None:
        """The next step begins."""

    def advanced(self, share: float) -> None:
        """So much of the step is done, 0 to 1."""

    def finished(self) -> None:
        """Nothing more will be reported."""


class SilentSteps:
    """An observer of steps that says nothing."""

    def step(self, title: str) -> None:
        pass

    def advanced(self, share: float) -> None:
        pass

    def finished(self) -> None:
        pass
