"""A place in a group -> the group's store: where its workers find each other, and count together.

Worker 0 listens; the others connect. The store has no password: a group of one host listens on loopback only.
"""

from __future__ import annotations

import datetime
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist
from torch.distributed.distributed_c10d import Store

from pbgeval.cluster.environment import LOOPBACK, GroupPlace
from pbgeval.errors import LaunchError

TIME_TO_MEET = datetime.timedelta(minutes=10)  # hosts of a job do not all start at once

_INTERFACE_VARIABLE = "GLOO_SOCKET_IFNAME"
_LOOPBACK_INTERFACE = "lo"  # Linux; elsewhere gloo asks for the host's name
_SECONDS_FOR_SCONTROL = 30
_SECONDS_TO_CONNECT = 10.0
_SECONDS_BETWEEN_ATTEMPTS = 0.2
_PENDING_CONNECTIONS = 4096


def open_store(place: GroupPlace, time_to_meet: datetime.timedelta = TIME_TO_MEET) -> Store:
    """Return the store of a group whose launcher brings none.

    Raises:
        LaunchError: the workers do not meet: the port is taken, the host unknown, or some did not come.
    """
    listener = _listen(place) if place.rank_in_team == 0 else None
    try:
        if listener is None:
            _wait_for_listener(place, time_to_meet)
        store: Store = dist.TCPStore(  # type: ignore[attr-defined]
            place.address,
            place.port,
            place.size,
            is_master=listener is not None,
            timeout=time_to_meet,
            master_listen_fd=None if listener is None else listener.detach(),
        )
    except (dist.DistError, OSError) as error:
        raise LaunchError(
            f"{place.how}: {place.size} workers did not meet at {place.address}:{place.port} within "
            f"{time_to_meet.total_seconds():.0f} s: {str(error).splitlines()[0].rstrip('.')}; "
            "check that all workers started, or set MASTER_ADDR and MASTER_PORT"
        ) from error
    return store


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
    has_loopback = _LOOPBACK_INTERFACE in [name for _, name in socket.if_nameindex()]
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
    try:
        socket.getaddrinfo(host, None)
    except OSError:
        return _address_by_slurm(host) or host
    return host


def _address_by_slurm(host: str) -> str | None:
    scontrol = shutil.which("scontrol")
    if scontrol is None:
        return None
    try:
        done = subprocess.run(
            [scontrol, "show", "node", host, "--oneliner"],
            capture_output=True,
            text=True,
            check=False,
            timeout=_SECONDS_FOR_SCONTROL,
        )
    except subprocess.TimeoutExpired:
        return None
    found = re.search(r"\bNodeAddr=(\S+)", done.stdout)
    return found[1] if found else None


def _listen(place: GroupPlace) -> socket.socket:
    """Open worker 0's port: on loopback where the group meets there, else on all interfaces."""
    only_here = place.address in (LOOPBACK, "localhost")
    family = socket.AF_INET if only_here or not socket.has_dualstack_ipv6() else socket.AF_INET6
    where = LOOPBACK if only_here else ""
    try:
        return socket.create_server(
            (where, place.port),
            family=family,
            backlog=_PENDING_CONNECTIONS,
            dualstack_ipv6=family == socket.AF_INET6,
        )
    except OSError as error:
        raise LaunchError(
            f"{place.how}: worker 0 cannot use port {place.port} on {place.address}: "
            f"{error.strerror or error}; set MASTER_PORT to another port"
        ) from error
