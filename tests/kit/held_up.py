"""Small runs that write all there is, and something that happens before each call by which they write."""

from __future__ import annotations

import errno
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import h5py
import numpy as np
import pytest

from pbgeval.storage.writing import System
from pbgeval.worker import journal as run_journal
from tests.examples import every, is_quick
from tests.kit.case import TinyCase
from tests.kit.commands import Done, flags, run_command

CANDIDATES = ["sampled", "partition", "all"]


def write_case(folder: Path) -> TinyCase:
    case = TinyCase.write(folder, partition_sizes=(5, 4), num_tags=3, edges_per_bucket=4)
    for path in sorted((case.root / "edges").iterdir()):
        with h5py.File(path, "r+") as file:
            file["time"] = np.arange(len(file["rel"])) % 3
    return case


def evaluate(case: TinyCase, output: Path, candidates: str, *overrides: str, is_quiet: bool = True) -> Done:
    by_time = ["time_window=1", "time_bin=2"]
    more = {
        "all": ["breakdowns=relation,time", "save_topk=2", "known_until=query", *by_time],
        "partition": ["topk_metrics=True"],
        "sampled": ["num_degree_negs=2", "breakdowns=time", *by_time],
    }
    train = [f"train_paths={case.root / 'edges'}", *more[candidates]]
    hidden = f"relation_prediction={candidates != 'sampled'}"
    known = flags([f"candidates={candidates}", hidden, "save_ranks=True", *train, *overrides])
    return run_command(case, "--workers", "1", *["--quiet"] * is_quiet, "--output", str(output), *known)


@contextmanager
def entries_after_each_unit() -> Iterator[None]:
    """Let the journal get an entry after each unit, whatever that costs."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("MIN_SECONDS", "SECONDS_PER_SECOND", "MIN_SECONDS_AT_END"):
            patch.setattr(run_journal, name, 0.0)
        yield


@contextmanager
def short_of_memory(module: Any, name: str, k: int) -> Iterator[mock.Mock]:
    """Let the k-th call of a function find too little memory; yield what counts the calls."""
    whole = getattr(module, name)

    def call(*arguments: Any, **named: Any) -> Any:
        if counted.call_count == k:
            raise MemoryError
        return whole(*arguments, **named)

    with mock.patch.object(module, name, side_effect=call) as counted:
        yield counted


def full_disk() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class SteppingSystem(System):
    """Lets something happen just before the k-th open, write, fsync, rename or link, and notes the kind of each."""

    def __init__(self, k: int = 0, then: Callable[[], object] = list) -> None:
        self.kinds: list[str] = []
        self.k, self.then = k, then

    def step(self, call: str, file: Path | int) -> None:
        name = (file if isinstance(file, Path) else Path(f"/proc/self/fd/{file}").readlink()).name
        self.kinds.append(f"{call} {re.sub('[0-9a-f]*[0-9][0-9a-f]*', '#', name)}")
        if len(self.kinds) == self.k:
            self.then()

    def __getattribute__(self, name: str) -> Any:
        call = super().__getattribute__(name)
        if name not in ("open", "write", "write_at", "sync", "rename", "link"):
            return call

        def stepping(file: Path | int, *arguments: Any) -> Any:
            self.step(name.removesuffix("_at"), file)
            return call(file, *arguments)

        return stepping


def steps_of_each_kind(kinds: list[str]) -> list[int]:
    """Of steps of one kind one in twenty; of those that are taken once, which write a file in four, one in three.

    Fewer where the profile asks for a share of all that there is to try.
    """
    steps = defaultdict(list)
    for k, kind in enumerate(kinds, 1):
        steps[kind].append(k)
    of_many = [k for found in steps.values() if len(found) > 1 for k in found[len(found) // 2 :: every(20)]]
    return sorted([*of_many, *[found[0] for found in steps.values() if len(found) == 1][:: every(3)]])


def share_of(steps: list[int], share: str, candidates: str) -> list[int]:
    """Four of all, or a third: then as tests that may run beside each other.

    Where the profile asks for a share, one step in three of that: most steps are alike whatever the candidates are, so
    other candidates have the others.
    """
    if share == "a few":
        return steps[:: len(steps) // 4]
    third = steps[int(share[0]) - 1 :: 3]
    return third if every(1) == 1 else third[CANDIDATES.index(candidates) :: 3]


SHARES = pytest.mark.parametrize("share", ["a few"] if is_quick() else ["1 of 3", "2 of 3", "3 of 3"])
