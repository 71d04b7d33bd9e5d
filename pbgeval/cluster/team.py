"""Workers that count together, or one alone: the same calls.

Statistics are int64 tensors and always travel over gloo on the host; GPUs compute, they do not reduce.
"""

from __future__ import annotations

import datetime
import os
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from attrs import define, evolve, field
from torch import Tensor

from pbgeval.cluster.environment import place_in_group
from pbgeval.cluster.liveness import Lifeline, Watch, is_lost_connection, stall_seconds
from pbgeval.cluster.meeting import address_of, on_loopback, open_store
from pbgeval.cluster.resources import cores, host_name
from pbgeval.errors import EvalError, IncompleteError, LaunchError

T = TypeVar("T")

# Workers wait for the slowest one inside a collective; a dead worker closes its connections and is noticed at once.
COLLECTIVE_TIMEOUT = datetime.timedelta(days=7)

_NONCE_LENGTH = 12


@define
class Team:
    """This worker's place among the workers, and what they do together.

    With one worker, no process group exists and every call returns at once.
    """

    rank_in_team: int = 0
    size: int = 1
    local_rank: int = 0  # among the workers of this host
    local_size: int = 1  # workers of this host that share this one's cores
    # Of this group: no other, before or beside it, has the same.
    nonce: str = field(factory=lambda: uuid.uuid4().hex[:_NONCE_LENGTH])
    _store: Any = field(default=None, repr=False)
    _counters: dict[str, int] = field(factory=dict, init=False, repr=False)  # of one worker alone

    @classmethod
    def join(cls) -> Team:
        """Join the group that the environment describes; every worker calls it.

        Raises:
            LaunchError: there is none, or its workers do not meet.
        """
        place = place_in_group(os.environ)
        if place is None:
            raise LaunchError("the environment has no variables of a launcher (torchrun, srun, mpirun)")
        place = evolve(place, address=address_of(place.address))
        # Where torchrun's agent holds the store, torch finds out by itself.
        store = None if place.has_store else open_store(place)
        rank, size = (-1, -1) if store is None else (place.rank_in_team, place.size)
        with on_loopback(place):
            dist.init_process_group("gloo", timeout=COLLECTIVE_TIMEOUT, store=store, rank=rank, world_size=size)
        # A store may outlive a group that is started anew, so each has a part of its own.
        nonce = [uuid.uuid4().hex[:_NONCE_LENGTH]]
        dist.broadcast_object_list(nonce, src=0)
        team = cls(
            rank_in_team=place.rank_in_team,
            size=place.size,
            local_rank=place.local_rank,
            nonce=nonce[0],
            store=dist.distributed_c10d.PrefixStore(f"pbgeval/{nonce[0]}", dist.distributed_c10d._get_default_store()),
        )
        team.local_size = team._num_sharing_cores()
        return team

    def _num_sharing_cores(self) -> int:
        """Return how many workers may run on this one's cores: all of the host's, unless a launcher binds them."""
        mine = (host_name(), cores())
        every = self.gather_objects(mine)
        shared = Counter(core for host, its_cores in every if host == mine[0] for core in its_cores)
        return max((shared[core] for core in mine[1]), default=1)

    def leave(self) -> None:
        """End the group; every worker calls it."""
        if self.size > 1:
            dist.barrier()
            dist.destroy_process_group()

    def sum_(self, table: Tensor) -> Tensor:
        """Add an int64 tensor over all workers, in place; every worker gets the sum."""
        if self.size > 1:
            dist.all_reduce(table)
        return table

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """Return every worker's int64 tensor (of one dimension, any length) on worker 0, an empty list elsewhere."""
        if self.size == 1:
            return [tensor]
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        dist.all_gather(lengths, torch.tensor([tensor.numel()]))
        if self.rank_in_team != 0:
            if tensor.numel():
                dist.send(tensor.contiguous(), dst=0)
            return []
        parts = [tensor]
        for worker in range(1, self.size):
            part = torch.empty(int(lengths[worker]), dtype=torch.int64)
            if part.numel():
                dist.recv(part, src=worker)
            parts.append(part)
        return parts

    def gather_objects(self, value: T) -> list[T]:
        """Return every worker's small picklable value, on every worker."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def broadcast_object(self, value: T | None) -> T:
        """Return worker 0's value on every worker."""
        values: list[Any] = [value]
        if self.size > 1:
            dist.broadcast_object_list(values, src=0)
        return values[0]  # type: ignore[no-any-return]

    @contextmanager
    def together(self) -> Iterator[None]:
        """Do what is inside on every worker, and go on only if no worker has met a fault; else the group ends.

        Raises:
            EvalError: the faults of all workers, on every worker.
            IncompleteError: one of the workers was ended; the faults of all workers.
        """
        mine: tuple[tuple[str, ...], bool] = (), False
        try:
            yield
        except EvalError as error:
            if self.size == 1:
                raise
            mine = error.faults, isinstance(error, IncompleteError)
        of_workers = self.gather_objects(mine)
        faults = dict.fromkeys(fault for of_worker, _ in of_workers for fault in of_worker)
        if faults:
            self.leave()
            raise (IncompleteError if any(incomplete for _, incomplete in of_workers) else EvalError)(*faults)

    def watch(self, name: str) -> Watch:
        """Return this worker's part in a stretch of work; every worker calls it, with a name of its own each time."""
        return Watch(self, f"watch/{name}", self.rank_in_team, self.size)

    @contextmanager
    def signs_of_life(self) -> Iterator[None]:
        """Notice within `PBGEVAL_STALL_SECONDS` that this process is cut off from its group, whatever it waits for.

        The process then ends with status 75, after a line on stderr.

        Raises:
            IncompleteError: the connection to another worker was lost in a way that this process sees by itself.
            LaunchError: the variable is no number.
        """
        # Another thread has a connection of its own to the counters.
        counters = evolve(self, store=None if self._store is None else self._store.clone())
        try:
            with Lifeline(counters, self.rank_in_team, self.size, stall_seconds()).held():
                yield
        except BaseException as error:
            if not is_lost_connection(error):
                raise
            found = str(error).partition("\n")[0]
            raise IncompleteError(f"worker {self.rank_in_team} lost the other workers: {found}") from error

    def add(self, counter: str, amount: int, /) -> int:
        """Add to a counter that all workers share and return its new value; needs no other worker to take part."""
        if self._store is None:
            self._counters[counter] = self._counters.get(counter, 0) + amount
            return self._counters[counter]
        return int(self._store.add(counter, amount))


def gather_over_processes(value: T) -> list[T]:
    """Return the value of every process of the group that the caller has started, in order; without one, this value."""
    is_grouped = dist.is_available() and dist.is_initialized()
    return Team(size=dist.get_world_size() if is_grouped else 1).gather_objects(value)
