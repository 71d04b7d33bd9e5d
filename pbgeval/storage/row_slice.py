"""Consecutive rows of vectors that lie somewhere, of which any range is such rows again."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self

from attrs import evolve, field, frozen
from torch import Tensor


@frozen
class RowSlice(ABC):
    """Rows that `read_rows` reads from wherever they lie."""

    num_rows: int
    dimension: int
    first: int = field(default=0, kw_only=True)  # the place of row 0 among all rows that lie there

    def part(self, start: int, stop: int) -> Self:
        """Return rows start to stop (exclusive), which are not read."""
        return evolve(self, first=self.first + start, num_rows=stop - start)

    def load(self) -> Tensor:
        """Return all rows."""
        return self.read_rows(0, self.num_rows)

    @abstractmethod
    def read_rows(self, start: int, stop: int) -> Tensor:
        """Return a copy of rows start to stop (exclusive)."""
