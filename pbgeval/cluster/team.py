"""Workers that count together, or one alone: the same calls.

Statistics are int64 tensors and always travel over gloo on the host; GPUs compute, they do not reduce.
"""

from __future__ import annotations

import datetime
import os
import re
import socket
import subprocess
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from attrs import define, evolve, field
from torch import Tensor
from torch.distributed.distributed_c10d import Store
from torch.torch_version import TorchVersion

from pbgeval.cluster.environment import LOOPBACK, GroupPlace, place_in_group
from pbgeval.cluster.liveness import Lifeline, Watch, is_lost_connection, stall_seconds
from pbgeval.cluster.resources import cores, host_name
from pbgeval.errors import EvalError, IncompleteError, LaunchError

# A place in a group -> the group's store: where its workers find each other, and count together.
#
# Worker 0 listens; the others connect. The store has no password: a group of one host listens on loopback only.

TIME_TO_MEET = datetime.timedelta(minutes=10)  # hosts of a job do not all start at once

_INTERFACE_VARIABLE = "GLOO_SOCKET_IFNAME"
_LOOPBACK_INTERFACE = "lo"  # Linux; elsewhere gloo asks for the host's name
_SECONDS_FOR_SCONTROL = 30
_SECONDS_TO_CONNECT = 10.0
_SECONDS_BETWEEN_ATTEMPTS = 0.2
_PENDING_CONNECTIONS = 4096
_LIBUV_TAKES_SOCKETS = torch.__version__ >= TorchVersion("2.8")  # of the two servers of torch, the one by default


def open_store(place: GroupPlace, time_to_meet: datetime.timedelta = TIME_TO_MEET) -> Store:
    """Return the store of a group whose launcher brings none.

    Raises:
        LaunchError: the workers do not meet: the port is taken, the host unknown, or some did not come.
    """
    listener = _listen(place) if place.rank_in_team == 0 else None
    try:
        if listener is None:
            _wait_for_listener(place, time_to_meet)
        return dist.TCPStore(  # type: ignore[attr-defined]
            place.address,
            place.port,
            place.size,
            is_master=listener is not None,
            timeout=time_to_meet,
            master_listen_fd=None if listener is None else listener.detach(),
            use_libuv=_LIBUV_TAKES_SOCKETS,
        )
    except (dist.DistError, OSError) as error:
        raise LaunchError(
            f"{place.how}: {place.size} workers did not meet at {place.address}:{place.port} within "
            f"{time_to_meet.total_seconds():.0f} s: {str(error).splitlines()[0].rstrip('.')}; "
            "check that all workers started, or set MASTER_ADDR and MASTER_PORT"
        ) from error


def _wait_for_listener(place: GroupPlace, time_to_meet: datetime.timedelta) -> None:
    """Wait until worker 0 listens: torch would print a page of its own for every attempt.

    Raises:
        OSError: it does not, or its host is unknown.
    """
    until = time.monotonic() + time_to_meet.total_seconds()
    while True:
        try:
            socket.create_connection((place.address, place.port), _SECONDS_TO_CONNECT).close()
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(_SECONDS_BETWEEN_ATTEMPTS)
        else:
            return


@contextmanager
def on_loopback(place: GroupPlace) -> Iterator[None]:
    """Let gloo of a group that meets on loopback listen there; else it does at the address of the host's name."""
    has_loopback = _LOOPBACK_INTERFACE in dict(socket.if_nameindex()).values()
    if place.address not in (LOOPBACK, "localhost") or not has_loopback or _INTERFACE_VARIABLE in os.environ:
        yield
        return
    os.environ[_INTERFACE_VARIABLE] = _LOOPBACK_INTERFACE
    try:
        yield
    finally:
        del os.environ[_INTERFACE_VARIABLE]


def address_of(host: str) -> str:
    """Return the host, or its address as Slurm knows it where its name does not resolve."""
    with suppress(OSError):
        socket.getaddrinfo(host, None)
        return host
    command = ["scontrol", "show", "node", host, "--oneliner"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_SECONDS_FOR_SCONTROL)
    except (OSError, subprocess.TimeoutExpired):  # no Slurm, or none that answers
        return host
    found = re.search(r"\bNodeAddr=(\S+)", done.stdout)
    return found[1] if found else host


def _listen(place: GroupPlace) -> socket.socket:
    """Open worker 0's port: on loopback where the group meets there, else on all interfaces."""
    only_here = place.address in (LOOPBACK, "localhost")
    family = socket.AF_INET if only_here or not socket.has_dualstack_ipv6() else socket.AF_INET6
    try:
        return socket.create_server(
            (LOOPBACK if only_here else "", place.port),
            family=family,
            backlog=_PENDING_CONNECTIONS,
            dualstack_ipv6=family == socket.AF_INET6,
        )
    except OSError as error:
        raise LaunchError(
            f"{place.how}: worker 0 cannot use port {place.port} on {place.address}: "
            f"{error.strerror or error}; set MASTER_PORT to another port"
        ) from error


T = TypeVar("T")

# Workers wait for the slowest one inside a collective; a dead worker closes its connections and is noticed at once.
COLLECTIVE_TIMEOUT = datetime.timedelta(days=7)

_NONCE_LENGTH = 12


@define
class Team:
    """This worker's place among the workers, and what they do together.

    With one worker, no process group exists and every call returns at once.

    Examples:
        >>> from pbgeval import Team
        >>> team = Team()  # of one; `Team.join()` where torchrun, srun or mpirun started this process
        >>> team.rank_in_team, team.size
        (0, 1)
    """

    rank_in_team: int = 0
    size: int = 1
    local_rank: int = 0  # among the workers of this host
    local_size: int = 1  # workers of this host that share this one's cores
    host_size: int = 1  # workers of this host, which share its memory
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
        team.local_size, team.host_size = team._num_sharing()
        return team

    def _num_sharing(self) -> tuple[int, int]:
        """Return how many workers may run on this one's cores, and how many its host has: as many, or more."""
        host, mine = host_name(), cores()
        of_host = [theirs for its_host, theirs in self.gather_objects((host, mine)) if its_host == host]
        shared = Counter(core for theirs in of_host for core in theirs)
        return max((shared[core] for core in mine), default=1), len(of_host)

    def leave(self) -> None:
        """End the group; every worker calls it."""
        if self.size > 1:
            dist.barrier()
            dist.destroy_process_group()

    def sum_(self, table: Tensor) -> None:
        """Add an int64 tensor over all workers, in place; every worker gets the sum."""
        if self.size > 1:
            dist.all_reduce(table)

    def gather(self, array: np.ndarray) -> list[np.ndarray]:
        """Return every worker's array, of any length, on worker 0, an empty list elsewhere."""
        if self.size == 1:
            return [array]
        parts: list[Any] | None = [None] * self.size if self.rank_in_team == 0 else None
        dist.gather_object(array, parts, dst=0)
        return parts or []

    def gather_objects(self, value: T) -> list[T]:
        """Return every worker's small picklable value, on every worker."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def share(self, items: Sequence[T]) -> Sequence[T]:
        """Return this worker's share of items that all workers have: one in turn for each.

        Examples:
            >>> from pbgeval import Team
            >>> Team(rank_in_team=1, size=2).share(["a", "b", "c"])
            ['b']
        """
        return items[self.rank_in_team :: self.size]

    def part(self, length: int) -> tuple[int, int]:
        """Return (first, one past the last) of this worker's part of a sequence: all have equal parts."""
        return length * self.rank_in_team // self.size, length * (self.rank_in_team + 1) // self.size

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
