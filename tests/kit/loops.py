"""Compiled loops that are called for any amount of work, or never."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pbgeval.jit import CompiledLoop, is_installed


def use_loops(patch: pytest.MonkeyPatch, on: bool, *loops: CompiledLoop) -> None:
    """Have some loops (none named: all) called for any amount of work, or never, in this process."""
    assert is_installed(), "numba comes with the package"
    before = CompiledLoop.is_worth_compiling

    def is_worth_compiling(self: CompiledLoop, amount: int, least: int, *, adds_up: bool = False) -> bool:
        return on if self in loops or not loops else before(self, amount, least, adds_up=adds_up)

    patch.setattr(CompiledLoop, "is_worth_compiling", is_worth_compiling)


@contextmanager
def loops_used(on: bool, *loops: CompiledLoop) -> Iterator[None]:
    """Do as `use_loops` for a while."""
    with pytest.MonkeyPatch.context() as patch:
        use_loops(patch, on, *loops)
        yield
