"""What long work reports to: an observer that the command line draws and everything else ignores."""

from __future__ import annotations

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
    edges_done: int  # by all workers, as far as known here
    edges_total: int
    mean_reciprocal_rank: float | None  # of all units that are done, headline rank type
    half_width: float | None  # of its 95% interval, from how units differ; None: too few units, or a sample of edges
    finished_bucket: BucketReport | None  # if this was the last unit of its bucket


class Observer:
    """Is told what happens; must not change it. This one says nothing: subclasses say what they want to.

    Examples:
        >>> import pbgeval
        >>> class Titles(pbgeval.Observer):
        ...     def phase(self, title):
        ...         print(title)
        ...
        >>> report = pbgeval.evaluate("eval.py", output="results/observed", workers=1, observer=Titles())
        scoring
    """

    @property
    def wants_estimates(self) -> bool:
        """Whether a run of more than some seconds may measure up to half a second first, to tell how long it takes."""
        return False

    def warn(self, message: str) -> None:
        """Take note of something the user should know that is not an error."""

    def note(self, message: str) -> None:
        """Take note of something the user should know that is no reason to worry."""

    def step(self, title: str) -> None:
        """Begin the next step of what comes before the evaluation, or of an import."""

    def advanced(self, share: float) -> None:
        """Take note of how much of the step is done, 0 to 1; called from any thread."""

    def phase(self, title: str) -> None:
        """Take note of what the evaluation does until the next report."""

    def round_started(self, earlier: int, num_edges: int, *, is_last: bool) -> None:
        """Begin a round of a sample.

        Args:
            earlier: edges of the rounds before.
            num_edges: edges of this one.
            is_last: whether no later round is foreseen.
        """

    def started(self, num_edges: int, rank_in_team: int) -> None:
        """Begin the work on all edges; this process is one of a team."""

    def unit_finished(self, unit: UnitReport) -> None:
        """Take note of one more unit that is done."""

    def candidates_done(self, done: int, total: int) -> None:
        """Take note of how many entities all queries are scored against (`candidates = "all"`).

        All workers count together.
        """

    def finished(self) -> None:
        """End the steps, or the work: nothing more of them is reported."""
