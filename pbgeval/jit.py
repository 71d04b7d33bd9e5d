"""Loops over numbers -> machine code, by numba.

Compiling takes seconds once per machine (numba keeps the result beside the loop's file or in the user's cache folder),
and importing numba takes half a second per process. So every caller of a compiled loop also has a way without it.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FunctionType
from typing import Any

from attrs import define, field

BYTES_OF_LOOPS = 128 << 20  # what a process grows by that loads numba, LLVM and the loops that count
_COMPILING = threading.Lock()


@define(eq=False)
class _Announcer:
    """The function to call before a loop is compiled; None: no function."""

    say: Callable[[str], None] | None = None


@functools.cache
def _announcer() -> _Announcer:
    """Return that of this process.

    Each process has one, because it compiles a loop once for all its runs. Loops are called deep inside passes, also in
    threads, which inherit no context variable of a run.
    """
    return _Announcer()


@contextmanager
def announced_compiling(say: Callable[[str], None]) -> Iterator[None]:
    """Call `say` once, before the first loop is compiled that no earlier process has compiled."""
    announcer = _announcer()
    before, announcer.say = announcer.say, say
    try:
        yield
    finally:
        announcer.say = before


@functools.cache
def is_installed() -> bool:
    """Tell whether numba can be imported."""
    return importlib.util.find_spec("numba") is not None


def bytes_to_load() -> int:
    """Return how much the first loop will take that is called in this process; 0 once one has been."""
    return BYTES_OF_LOOPS if is_installed() and "numba" not in sys.modules else 0


@define(eq=False)
class CompiledLoop:
    """A function of arrays and numbers that is compiled when it is first called; it releases Python's lock.

    Products and sums are rounded one by one, as in torch; only where `may_reorder` says so are sums taken in any order.
    """

    loop: Callable[..., Any]
    may_reorder: bool = False
    _compiled: Any = field(default=None, init=False)
    _done_without: int = field(default=0, init=False)  # work of this process that adds up

    def is_worth_compiling(self, amount: int, least: int, *, adds_up: bool = False) -> bool:
        """Return whether numba is installed, and the loop has been called before or there is so much work for it.

        Args:
            amount: of work.
            least: that makes up for loading the loop.
            adds_up: whether earlier amounts of this process count as well: many small ones are expected.
        """
        if adds_up and self._compiled is None:
            self._done_without += amount
            amount = self._done_without
        return is_installed() and (self._compiled is not None or amount >= least)

    def __call__(self, *arguments: Any) -> Any:  # noqa: ANN401 - whatever the loop takes and returns
        with _COMPILING:
            if self._compiled is None:
                self._compiled = self._compile()
        return self._compiled(*arguments)

    def _compile(self) -> Any:  # noqa: ANN401 - numba has no types
        try:
            compiled = _compile(self.loop, may_reorder=self.may_reorder, cache=True)
            line = self.loop.__code__.co_firstlineno
            kept = Path(compiled.stats.cache_path).glob(f"*.{self.loop.__name__}-{line}.*.nbi")
            announcer = _announcer()
            if announcer.say is not None and not any(kept):
                announcer.say(
                    "compiling loops, about 10 s each; later runs with such settings on this machine skip this"
                )
                announcer.say = None  # once for all loops of a run
            return compiled
        except RuntimeError:  # neither this folder nor the user's can be written: compiled anew in each process
            return _compile(self.loop, may_reorder=self.may_reorder)


@define(eq=False)
class InnerLoop:
    """A function that compiled loops of the same file call; it becomes part of them.

    It lies in their file because numba compiles a loop anew when its own file has changed, and only then.
    """

    make: Callable[[], Any]  # returns what numba calls

    def __call__(self, *arguments: Any) -> Any:  # noqa: ANN401 - whatever the function takes and returns
        """Stand for the call in a loop's code; Python never runs it."""
        raise NotImplementedError

    @functools.cached_property
    def compiled(self) -> Any:  # noqa: ANN401 - numba has no types
        return self.make()


def inner_loop(*, may_reorder: bool = False) -> Callable[[Callable[..., Any]], InnerLoop]:
    """Mark a function that compiled loops of the same file call."""
    return lambda loop: InnerLoop(lambda: _compile(loop, may_reorder=may_reorder, no_cpython_wrapper=True))


def compiled_call(num_arguments: int) -> Any:  # noqa: ANN401 - numba has no types
    """Return `call(routine, *arguments)` for a compiled loop: all are addresses, int64, and nothing is returned."""
    from llvmlite import ir
    from numba import types
    from numba.extending import intrinsic

    def generate(context, builder, signature, values):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
        pointer = ir.IntType(8).as_pointer()
        routine = builder.inttoptr(values[0], ir.FunctionType(ir.VoidType(), [pointer] * num_arguments).as_pointer())
        addresses = [builder.extract_value(values[1], at) for at in range(num_arguments)]
        builder.call(routine, [builder.inttoptr(address, pointer) for address in addresses])
        return context.get_dummy_value()

    def call(typing, routine, *arguments):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN002, ANN202
        tuple_of: Any = types.UniTuple  # numba has no types
        return types.void(types.int64, tuple_of(types.int64, num_arguments)), generate

    return intrinsic(call)


def compiled_prefetch() -> Any:  # noqa: ANN401 - numba has no types
    """Return `prefetch(address)` for a compiled loop: the cache line there is fetched meanwhile."""
    from llvmlite import ir
    from numba import types
    from numba.core import cgutils
    from numba.extending import intrinsic

    def generate(context, builder, signature, values):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
        pointer, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        signature_type = ir.FunctionType(ir.VoidType(), [pointer, number, number, number])
        find: Any = cgutils.get_or_insert_function  # numba has no types
        function = find(builder.module, signature_type, "llvm.prefetch.p0i8")
        to_read, keep_near, is_data = number(0), number(2), number(1)
        builder.call(function, [builder.inttoptr(values[0], pointer), to_read, keep_near, is_data])
        return context.get_dummy_value()

    def prefetch(typing, address):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
        return types.void(types.int64), generate

    return intrinsic(prefetch)


def _compile(loop: Callable[..., Any], *, may_reorder: bool, **options: Any) -> Any:  # noqa: ANN401 - numba has no types
    """Compile a function with the inner loops that it names."""
    import numba

    names = {
        name: value.compiled
        for name in loop.__code__.co_names
        if isinstance(value := loop.__globals__.get(name), InnerLoop)
    }
    if names:
        loop = functools.update_wrapper(FunctionType(loop.__code__, {**loop.__globals__, **names}, loop.__name__), loop)
    # Sums of ones may be reordered, so that they are done many at once; infinities stay what they are. Loops make no
    # arrays, so references need not be counted: that took twice as long as comparing a row of a hundred scores. C does
    # not call them, nor Python inner ones: without code for that they compile in four fifths of the time.
    options |= {"nogil": True, "boundscheck": False, "_nrt": False, "no_cfunc_wrapper": True}
    options["fastmath"] = {"reassoc"} if may_reorder else False
    return numba.njit(**options)(loop)
