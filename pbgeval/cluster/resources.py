"""What this process has of its host: cores, threads, device, memory."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from pbgeval.errors import LaunchError, raise_first


def cores() -> set[int]:
    """Return the numbers of the cores that this process may run on."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def num_cores() -> int:
    """Return how many cores this process may run on."""
    return len(cores())


def use_threads(local_size: int) -> None:
    """Set the threads of this worker: OMP_NUM_THREADS if set, else its share of its cores."""
    given = os.environ.get("OMP_NUM_THREADS", "")
    torch.set_num_threads(int(given) if given.isdigit() and int(given) > 0 else max(1, num_cores() // local_size))


@contextmanager
def threads_put_back() -> Iterator[None]:
    """Leave torch with as many threads as it had: the process may be somebody else's."""
    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)


def choose_device(name: str, local_rank: int) -> torch.device:
    """Return the device of this worker: `auto` takes a GPU if there is one; workers of a host take turns.

    Raises:
        LaunchError: `cuda` where there is none, or another name.
    """
    has_gpu = name != "cpu" and torch.cuda.is_available()
    raise_first(
        LaunchError,
        (name not in ("auto", "cpu", "cuda"), f"device: expected auto, cpu or cuda, got {name!r}"),
        (name == "cuda" and not has_gpu, "device cuda: torch finds no CUDA device; use device cpu"),
    )
    return torch.device("cuda", local_rank % torch.cuda.device_count()) if has_gpu else torch.device("cpu")


def host_name() -> str:
    """Return the name of this host."""
    return socket.gethostname()


def peak_memory_bytes() -> int:
    """Return the largest resident size of this process so far, mapped files included."""
    # Not ru_maxrss: on Linux it survives exec, so a spawned worker would report its launcher's.
    return _bytes_of("/proc/self/status", "VmHWM") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def available_bytes(device: torch.device) -> int:
    """Return the memory of a GPU or of this host that is free, or may be freed; 0 where the system does not tell."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return _bytes_of("/proc/meminfo", "MemAvailable") or 0


def resident_bytes() -> int:
    """Return the resident size of this process now; its peak where the system does not tell."""
    return _bytes_of("/proc/self/status", "VmRSS") or peak_memory_bytes()


def anonymous_bytes() -> int:
    """Return what this process holds in memory beside the pages of files; 0 where the system does not tell."""
    return _bytes_of("/proc/self/status", "RssAnon") or 0


def _bytes_of(path: str, name: str) -> int | None:
    if os.path.exists(path):
        for line in Path(path).read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    return None
