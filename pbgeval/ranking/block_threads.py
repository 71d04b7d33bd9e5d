"""Blocks of scores -> threads, each of which multiplies, compares and drops its own.

If threads share a product, its scores end up in the caches of several cores, and the comparing thread then misses its
cache for half of them. That took longer than comparing. So one thread does all of a block, with products of one thread.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

import torch
from attrs import frozen

from pbgeval.notation import T

MAX_THREADS = 64  # where nothing else limits them

R = TypeVar("R")


@frozen
class BlockThreads:
    """Some threads of this process."""

    num_threads: int

    @classmethod
    def of_device(cls, device: torch.device, most: int = MAX_THREADS) -> BlockThreads:
        """Return as many threads as torch uses on a CPU, but no more than `most`; a GPU gets its work from one."""
        return cls(1 if device.type != "cpu" else max(1, min(torch.get_num_threads(), most)))

    def split(self, num_items: int) -> list[tuple[int, int]]:
        """Return a range of items for each thread that gets any."""
        parts = max(min(self.num_threads, num_items), 1)
        return list(itertools.pairwise([num_items * part // parts for part in range(parts + 1)]))

    def map(self, function: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """Call a function for each item and return what it returns, in order.

        What the first failing item (in order) raises is raised, once no call is under way any more.
        """
        if min(self.num_threads, len(items)) <= 1:
            return list(map(function, items))
        futures = [_pool(self.num_threads).submit(function, item) for item in items]
        try:
            return [future.result() for future in futures]
        finally:
            for future in futures:
                future.cancel()
            wait(futures)


@functools.cache
def _pool(num_threads: int) -> ThreadPoolExecutor:
    threads_of_torch = torch.get_num_threads()
    pool = ThreadPoolExecutor(num_threads, thread_name_prefix="blocks", initializer=_prepare_thread)
    list(pool.map(lambda _: None, range(num_threads)))
    # `_prepare_thread` has changed what threads still to be made begin with
    torch.set_num_threads(threads_of_torch)
    return pool


def _prepare_thread() -> None:
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)  # each thread has its own switch, and a model in training has parameters
