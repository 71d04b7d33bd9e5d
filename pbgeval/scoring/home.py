"""What a GPU has found -> the host, once for much work: the host waits for one copy, not for each answer.

Results are handed on when they are there. What only a fault makes false - rows are finite, no product overflows - is
taken for granted until then. If some of it turns out to be false, nothing is handed on, and the work is done again with
a look at each, which names the fault. On a CPU there is nothing to wait for: everything is looked at and handed on at
once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

import torch
from attrs import define, field
from torch import Tensor

from pbgeval.storage.transfers import on_the_host

T = TypeVar("T")
Fact = tuple[Callable[..., bool], tuple[Tensor, ...]]
Result = tuple[Callable[..., None], tuple[Tensor | None, ...]]

# The facts that work of this thread takes for granted. Rows are checked deep inside operators, which know of no unit.
_granted: ContextVar[list[Fact] | None] = ContextVar("granted", default=None)


def holds(fact: Callable[..., bool], *numbers: Tensor) -> bool:
    """Tell whether something holds of some numbers, or take it for granted where work on a GPU looks at its end."""
    granted = _granted.get()
    if granted is None or numbers[0].device.type == "cpu":
        return fact(*(number.item() for number in numbers))
    granted.append((fact, numbers))
    return True


@define(eq=False)
class Home:
    """Where results of some work come together."""

    device: torch.device
    _results: list[Result] = field(factory=list, init=False)

    def bring(self, then: Callable[..., None], *values: Tensor | None) -> None:
        """Hand values on, on the host, those that there are: at once on a CPU, else when all come home."""
        if self.device.type == "cpu":
            then(*values)
        else:
            self._results.append((then, values))

    @property
    def num_waiting(self) -> int:
        return len(self._results)

    def forget(self, first: int) -> None:
        """Forget the results from the one with a number on: they are found again."""
        del self._results[first:]

    def come(self, granted: Sequence[Fact]) -> bool:
        """Bring all results home and hand them on; return whether all facts hold, without which none is."""
        values = [value for _, of_one in (*granted, *self._results) for value in of_one if value is not None]
        on_host = iter(on_the_host(values))
        for fact, numbers in granted:
            if not fact(*(next(on_host).item() for _ in numbers)):
                return False
        for then, of_one in self._results:
            then(*(value if value is None else next(on_host) for value in of_one))
        return True


def come_home(device: torch.device, work: Callable[..., T], undo: Callable[[], None] = lambda: None) -> T:
    """Do work, and hand on what it brings home.

    Args:
        device: of the work.
        work: is given `home`. It may be done twice.
        undo: takes back what else it has done, before the second time.
    """
    if device.type != "cpu":
        home = Home(device)
        with _taken_for_granted() as granted:
            found = work(home=home)
        if home.come(granted):
            return found
        undo()
    home = Home(device)
    found = work(home=home)
    home.come(())
    return found


@contextmanager
def _taken_for_granted() -> Iterator[list[Fact]]:
    granted: list[Fact] = []
    before = _granted.set(granted)
    try:
        yield granted
    finally:
        _granted.reset(before)
