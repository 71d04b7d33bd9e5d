"""What a GPU has found -> the host, once for much work: the host waits for one copy, not for each answer.

Results are passed on when they are there. What is nearly always true - rows are finite, no product overflows, float64
decides - is taken for granted until then. If some of it turns out to be false, nothing is passed on, and the work is
done again with a look at each, which names a fault. Later work looks at what has been false. On a CPU there is nothing
to wait for: everything is looked at and passed on at once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextvars import ContextVar
from typing import TypeVar

import torch
from attrs import define, field
from torch import Tensor

from pbgeval.storage.transfers import on_the_host

T = TypeVar("T")
Fact = tuple[Callable[..., bool], tuple[Tensor, ...]]
Result = tuple[Callable[..., None], tuple[Tensor | None, ...]]

# Where results of this thread's work wait. Rows are checked deep inside operators, which know of no unit.
_working: ContextVar[Deferred | None] = ContextVar("working", default=None)


@functools.cache
def _doubted() -> set[Callable[..., bool]]:
    """Return the facts that have been false, which are looked at, one set for each process.

    Facts are assumed deep inside operators and backends, which are made anew for each unit.
    """
    return set()


def holds(fact: Callable[..., bool], *numbers: Tensor) -> bool:
    """Tell whether something holds of some numbers, or take it for granted where work on a GPU looks at its end."""
    deferred = _working.get()
    if deferred is None or numbers[0].device.type == "cpu" or fact in _doubted():
        return fact(*(number.item() for number in numbers))
    deferred.assumed.append((fact, numbers))
    return True


def pass_on(then: Callable[..., None], *numbers: Tensor) -> None:
    """Pass numbers on, once they are on the host: at once, or with the other results of work on a GPU."""
    deferred = _working.get()
    if deferred is None:
        then(*(number.item() for number in numbers))
    else:
        deferred.add(lambda *values: then(*(value.item() for value in values)), *numbers)


@define(eq=False)
class Deferred:
    """Results of some work that wait on a GPU, and facts that it assumes."""

    device: torch.device
    assumed: list[Fact] = field(factory=list, init=False)
    _results: list[Result] = field(factory=list, init=False)

    def add(self, then: Callable[..., None], *values: Tensor | None) -> None:
        """Pass values on, once they are on the host: at once on a CPU, else with all others; `None` stays `None`."""
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

    def deliver(self) -> bool:
        """Copy all results to the host and pass them on, unless a fact does not hold; return whether all do."""
        values = [value for _, of_one in (*self.assumed, *self._results) for value in of_one if value is not None]
        on_host = iter(on_the_host(values))
        for fact, numbers in self.assumed:
            if not fact(*(next(on_host).item() for _ in numbers)):
                _doubted().add(fact)
                return False
        for then, of_one in self._results:
            then(*(value if value is None else next(on_host) for value in of_one))
        return True


def run_deferred(device: torch.device, work: Callable[..., T], undo: Callable[[], None] = lambda: None) -> T:
    """Do work, and pass on its deferred results.

    Args:
        device: of the work.
        work: is given `deferred`. It may be done twice.
        undo: takes back what else it has done, before the second time.
    """
    if device.type != "cpu":
        deferred = Deferred(device)
        before = _working.set(deferred)
        try:
            found = work(deferred=deferred)
        finally:
            _working.reset(before)
        if deferred.deliver():
            return found
        undo()
    deferred = Deferred(device)
    found = work(deferred=deferred)
    deferred.deliver()
    return found
