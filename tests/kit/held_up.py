"""Small runs that write all there is, and something that happens before each call by which they write."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import h5py
import numpy as np
import pytest

from pbgeval.storage.writing import System
from pbgeval.worker import journal as run_journal
from tests.kit.case import TinyCase
from tests.kit.commands import Done, flags, run_command

CANDIDATES = ["sampled", "partition", "all"]


def write_case(folder: Path) -> TinyCase:
    case = TinyCase.write(folder, partition_sizes=(5, 4), num_tags=3, edges_per_bucket=4)
    for path in sorted((case.root / "edges").iterdir()):
        with h5py.File(path, "r+") as file:
            file["time"] = np.arange(len(file["rel"])) % 3
    return case


def evaluate(case: TinyCase, output: Path, candidates: str) -> Done:
    by_time = ["time_window=1", "time_bin=2"]
    more = {
        "all": ["breakdowns=relation,popularity,time", "topk_metrics=True", "save_topk=2", *by_time],
        "partition": ["topk_metrics=True"],
        "sampled": ["num_degree_negs=2", "breakdowns=time", "known_until=query", *by_time],
    }
    train = [f"train_paths={case.root / 'edges'}", *more[candidates]]
    hidden = f"relation_prediction={candidates != 'sampled'}"
    known = flags([f"candidates={candidates}", hidden, "save_ranks=True", *train])
    return run_command(case, "--workers", "1", "--quiet", "--output", str(output), *known)


@contextmanager
def entries_after_each_unit() -> Iterator[None]:
    """Let the journal get an entry after each unit, whatever that costs."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("MIN_SECONDS", "SECONDS_PER_SECOND", "MIN_SECONDS_AT_END"):
            patch.setattr(run_journal, name, 0.0)
        yield


class SteppingSystem(System, ABC):
    """Calls `step` before each open, write, fsync, rename and link, with the name of the call."""

    @abstractmethod
    def step(self, call: str) -> None:
        """Happens before a call, and may raise."""

    def open(self, path: Path, flags: int) -> int:
        self.step("open")
        return super().open(path, flags)

    def write(self, descriptor: int, data: memoryview) -> int:
        self.step("write")
        return super().write(descriptor, data)

    def write_at(self, descriptor: int, data: memoryview, offset: int) -> int:
        self.step("write")
        return super().write_at(descriptor, data, offset)

    def sync(self, descriptor: int) -> None:
        self.step("sync")
        super().sync(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        self.step("rename")
        super().rename(source, target)

    def link(self, source: Path, target: Path) -> None:
        self.step("link")
        super().link(source, target)
