"""Every fast path of the package, and how a test switches some of them on and all others off.

A fast path is a second way to what the package also does in a general way, taken where it serves and pays. Here
whether it pays no longer counts: a path that is on takes inputs of any size, one that is off takes none. Whoever
adds a path adds it to `PATHS`; a test finds compiled loops that are not there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from attrs import evolve, frozen

from pbgeval.jit import CompiledLoop
from pbgeval.ranking import cpu_backend, cpu_counting, cpu_loops
from pbgeval.ranking import known_answers as semi_join
from pbgeval.scoring import block_sizes, device_scores, distances, exact, fast_products, fixed_order
from pbgeval.scoring.comparators import COMPARATORS, L1
from pbgeval.scoring.scorer import QueryGroup, query_groups
from pbgeval.scoring.self_check import check_kernels
from pbgeval.stats import cluster_sums
from pbgeval.stats import ranks as ranking
from pbgeval.worker import sweep
from tests.kit.loops import use_loops

Note = Callable[[], None]


@frozen
class FastPath:
    """How a path is switched, and how it is seen when it is taken."""

    turn_on: Callable[[pytest.MonkeyPatch], None]
    turn_off: Callable[[pytest.MonkeyPatch], None]
    watch: Callable[[pytest.MonkeyPatch, Note], None]  # calls the note whenever the path is taken
    loops: tuple[CompiledLoop, ...] = ()
    needs: tuple[str, ...] = ()  # other paths, without which it has nothing to do


def by_loops(*loops: CompiledLoop) -> FastPath:
    """A path by compiled loops, which are called for any amount of work, or never."""

    def watch(patch: pytest.MonkeyPatch, note: Note) -> None:
        call = CompiledLoop.__call__

        def watched(self: CompiledLoop, *arguments: Any) -> Any:
            if self in loops:
                note()
            return call(self, *arguments)

        patch.setattr(CompiledLoop, "__call__", watched)

    return FastPath(
        turn_on=lambda patch: use_loops(patch, True, *loops),
        turn_off=lambda patch: use_loops(patch, False, *loops),
        watch=watch,
        loops=loops,
    )


def watch_calls(
    patch: pytest.MonkeyPatch, owner: Any, name: str, note: Note, takes: Callable[..., bool] = lambda *_, **__: True
) -> None:
    """Note the calls of a function whose arguments say that a path is taken."""
    function = getattr(owner, name)

    def watched(*arguments: Any, **named: Any) -> Any:
        if takes(*arguments, **named):
            note()
        return function(*arguments, **named)

    patch.setattr(owner, name, watched)


COLUMN_DISTANCES = tuple(of.distance for of in COMPARATORS.values() if isinstance(of, L1))


# Products in bfloat16 for exact ranks. Where no routine multiplies them, float32's takes the rounded rows.


def multiply_bfloat16(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cpu_counting, "multiplies_bfloat16", lambda: True)
    patch.setattr(cpu_backend, "MAX_OPEN_SHARE", 1.0)  # never given up


def watch_bfloat16(patch: pytest.MonkeyPatch, note: Note) -> None:
    watch_calls(patch, cpu_counting, "count", note, lambda query_KD, *_, **__: query_KD.dtype is torch.bfloat16)


# Scores in float32 for exact ranks, where blocks of them are kept.


def watch_float32(patch: pytest.MonkeyPatch, note: Note) -> None:
    watch_calls(patch, fast_products.FloatProduct, "scores", note, lambda product, *_: product.dtype is torch.float32)


# The kernels of a GPU; the fixture `kernel_device` lets Triton's interpreter run them where there is none.


def count_by_kernel(patch: pytest.MonkeyPatch) -> None:
    assert "cpu" in device_scores.DEVICE_TYPES or torch.cuda.is_available(), "the fixture kernel_device comes before"
    patch.setattr(device_scores, "TILES", evolve(device_scores.TILES, rows=64, columns=64))  # fewer to interpret
    patch.setattr(block_sizes.CPU, "counted_candidates", 20)
    patch.setattr(block_sizes.CPU, "counted_queries", 30)


def watch_kernel(patch: pytest.MonkeyPatch, note: Note) -> None:
    watch_calls(patch, device_scores, "count", note)


# Operators that act on queries instead of candidates, so that relations share them.


def watch_moved(patch: pytest.MonkeyPatch, note: Note) -> None:
    of_side = sweep.query_groups

    def watched(*arguments: Any) -> list[QueryGroup]:
        found = of_side(*arguments)
        for one in found:
            if one.moved and any(scorer.acts_on_candidates(one.hidden) for scorer in one.scorers.values()):
                note()
        return found

    patch.setattr(sweep, "query_groups", watched)


# Statistics of counts that many queries share.


def look_for_repeated(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ranking, "MIN_REPEATED", 1)
    patch.setattr(ranking, "CODES_PER_QUERY", 1 << 10)


def leave_as_it_is(_: pytest.MonkeyPatch) -> None:
    """Whatever the size, the package takes the path by itself."""


PATHS: Mapping[str, FastPath] = {
    "compiled": by_loops(cpu_loops.count_rows),
    "open_cells": by_loops(cpu_loops.list_between),
    "blocks": by_loops(cpu_loops.count_block, cpu_loops.multiply),
    "lists": by_loops(cpu_loops.count_gathered),
    "exact_lists": by_loops(cpu_loops.count_gathered_exactly),
    "distances": by_loops(*(of.loop for of in COLUMN_DISTANCES), distances._absolute_of_pairs),
    "pairs": by_loops(exact._sums),
    "values": by_loops(
        fast_products._grid_sums, fast_products._grid_rows, fixed_order._directions, fixed_order._squares
    ),
    "semi_join": by_loops(semi_join._passes),
    "clusters": by_loops(cluster_sums._add_rows),
    "bfloat16": FastPath(
        turn_on=multiply_bfloat16,
        turn_off=lambda patch: patch.setattr(cpu_counting, "multiplies_bfloat16", lambda: False),
        watch=watch_bfloat16,
        needs=("blocks",),
    ),
    "float32": FastPath(
        turn_on=leave_as_it_is,
        turn_off=lambda patch: patch.setattr(fast_products, "operands_of", lambda *_: None),
        watch=watch_float32,
    ),
    "moved_operators": FastPath(
        turn_on=leave_as_it_is,
        turn_off=lambda patch: patch.setattr(sweep, "query_groups", functools.partial(query_groups, move=False)),
        watch=watch_moved,
    ),
    "repeated_counts": FastPath(
        turn_on=look_for_repeated,
        turn_off=lambda patch: patch.setattr(ranking, "MIN_REPEATED", 1 << 62),
        watch=lambda patch, note: watch_calls(patch, ranking, "RepeatedCounts", note),
    ),
    "tiles": FastPath(
        turn_on=count_by_kernel,
        turn_off=lambda patch: patch.setattr(device_scores, "DEVICE_TYPES", ()),
        watch=watch_kernel,
    ),
}
OF_A_CPU = tuple(name for name in PATHS if name != "tiles")  # where a GPU's kernels serve, the others are not asked


def with_needs(name: str) -> set[str]:
    """Return a path and those without which it has nothing to do."""
    return {name, *PATHS[name].needs}


def switch(patch: pytest.MonkeyPatch, *on: str) -> set[str]:
    """Switch some paths on, with those that they need, and all others off, in this process.

    Args:
        patch: what it undoes in the end.
        on: names of paths; before "tiles" the fixture `kernel_device` must have been asked for.

    Returns:
        The names of the paths that are taken from now on, as they are.
    """
    check_kernels(torch.device("cpu"))
    cpu_counting.product_is_callable()  # its self-check calls a loop, which is not what counts
    taken: set[str] = set()
    wanted = set().union(*map(with_needs, on))
    for name, path in PATHS.items():
        (path.turn_on if name in wanted else path.turn_off)(patch)
        path.watch(patch, functools.partial(taken.add, name))
    if "tiles" not in wanted:
        patch.setattr(torch.cuda, "is_available", lambda: False)  # the other paths are those of a CPU
    return taken
