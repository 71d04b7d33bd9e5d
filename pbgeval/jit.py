"""Loops over numbers -> machine code, by numba.

Compiling takes seconds once per machine (numba keeps the result beside the loop's file or in the user's cache folder)
and importing numba half a second per process, so whoever has a loop compiled also has a way without it.
"""

from __future__ import annotations

import functools
import importlib.util
import threading
from collections.abc import Callable
from typing import Any

from attrs import define, field

_COMPILING = threading.Lock()


@functools.cache
def is_installed() -> bool:
    """Tell whether numba can be imported."""
    return importlib.util.find_spec("numba") is not None


@define(eq=False)
class CompiledLoop:
    """A function of arrays and numbers that is compiled when it is first called; it releases Python's lock.

    Products and sums are rounded one by one, as in torch; only where `may_reorder` says so are sums taken in any order.
    """

    loop: Callable[..., Any]
    may_reorder: bool = False
    _compiled: Any = field(default=None, init=False)

    @property
    def is_loaded(self) -> bool:
        """Whether it has been called before."""
        return self._compiled is not None

    def __call__(self, *arguments: Any) -> Any:  # noqa: ANN401 - whatever the loop takes and returns
        with _COMPILING:
            if self._compiled is None:
                self._compiled = _compile(self.loop, may_reorder=self.may_reorder)
        return self._compiled(*arguments)


def _compile(loop: Callable[..., Any], *, may_reorder: bool) -> Any:  # noqa: ANN401 - numba has no types
    import numba

    # Sums of ones may be reordered, so that they are done many at once; infinities stay what they are.
    options: dict[str, Any] = {"nogil": True, "boundscheck": False, "fastmath": {"reassoc"} if may_reorder else False}
    try:
        return numba.njit(cache=True, **options)(loop)
    except RuntimeError:  # neither this folder nor the user's can be written: compiled anew in each process
        return numba.njit(**options)(loop)
