"""The words and letters used everywhere.

Tensor names end in their letters, one per dimension:

    Q queries            C candidates        D dimension of an embedding
    B chunks             N entities          R ranks
    E edges              K cut-offs          G groups of statistics

An edge is (lhs, rel, rhs). A query is an edge with one side hidden: `Side.LHS` hides the left entity
(PyKEEN's *head* prediction), `Side.RHS` the right one (*tail*).
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple, TypeVar

T = TypeVar("T")


class Side(Enum):
    """One end of an edge; as the side of a query, the end that is hidden."""

    LHS = 0
    RHS = 1

    def pick(self, lhs: T, rhs: T) -> T:
        """Return the argument that belongs to this side."""
        return lhs if self is Side.LHS else rhs

    @property
    def other(self) -> Side:
        return self.pick(Side.RHS, Side.LHS)

    @property
    def label(self) -> str:
        """The word used in reports: `head` for queries whose lhs is hidden, else `tail`."""
        return self.pick("head", "tail")


class Bucket(NamedTuple):
    """The edges between one partition of the left and one of the right entity types."""

    lhs: int  # partition of the left side
    rhs: int  # partition of the right side

    def partition(self, side: Side) -> int:
        return side.pick(self.lhs, self.rhs)


class WorkUnit(NamedTuple):
    """What one worker is handed: a range of the rows of one bucket file."""

    path_index: int  # index in `edge_paths`
    bucket: Bucket
    start: int  # first row of the bucket file
    stop: int  # one past the last row

    @property
    def num_edges(self) -> int:
        return self.stop - self.start
