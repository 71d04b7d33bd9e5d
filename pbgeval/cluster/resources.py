"""What this process has of its host: cores, threads, GPUs, memory."""

from __future__ import annotations

import os
import resource
import socket
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from attrs import frozen

from pbgeval.errors import LaunchError
from pbgeval.storage.text import plural


def cores() -> set[int]:
    """Return the numbers of the cores that this process may run on."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def num_cores() -> int:
    """Return how many cores this process may run on."""
    return len(cores())


def use_threads(local_size: int, *, is_small: bool = False) -> None:
    """Set the threads of this worker: OMP_NUM_THREADS if set, else its share of its cores, and one for small work."""
    given = os.environ.get("OMP_NUM_THREADS", "")
    share = 1 if is_small else max(1, num_cores() // local_size)
    torch.set_num_threads(int(given) if given.isdigit() and int(given) > 0 else share)


@contextmanager
def kept_thread_count() -> Iterator[None]:
    """Leave torch with as many threads as it had: the process may belong to another program."""
    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)


NO_CUDA = "device cuda: torch finds no CUDA device; use device cpu"


def num_gpus(device: str) -> int:
    """Return how many GPUs of this host a run may use: those that torch sees, or 0 for the device `cpu`.

    torch obeys CUDA_VISIBLE_DEVICES. This starts no CUDA context, so a launcher may ask.
    """
    return torch.cuda.device_count() if device != "cpu" and torch.cuda.is_available() else 0


def choose_device(name: str, local_rank: int) -> torch.device:
    """Return the device of this worker: `auto` takes a GPU if there is one; workers of a host take turns.

    Raises:
        LaunchError: `cuda` where there is none, or another name.
    """
    gpus = num_gpus(name)
    if name not in ("auto", "cpu", "cuda"):
        raise LaunchError(f"device: expected auto, cpu or cuda, got {name!r}")
    if name == "cuda" and not gpus:
        raise LaunchError(NO_CUDA)
    return torch.device("cuda", local_rank % gpus) if gpus else torch.device("cpu")


def torch_device(name: torch.device | str) -> torch.device:
    """Return the device that torch calls by this name, for what a caller's model is on.

    Raises:
        LaunchError: a CUDA device where there is none or not as many, or no name of a device.
    """
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        raise LaunchError(f"device: expected the name of a torch device, such as cpu or cuda, got {name!r}") from None
    gpus = num_gpus(device.type)
    is_missing = device.type == "cuda" and (device.index or 0) >= gpus
    if is_missing and not gpus:
        raise LaunchError(NO_CUDA)
    if is_missing:
        raise LaunchError(f"device {device}: torch finds cuda:0 to cuda:{gpus - 1}")
    return device


@frozen
class WorkerDevice:
    """The device of one worker, comparable over all workers of a run."""

    host: str
    gpu: str | None  # its UUID; None: the CPU
    name: str
    cores: frozenset[int]  # that the worker may run on

    @classmethod
    def from_device(cls, device: torch.device) -> WorkerDevice:
        """Describe a device of this process."""
        mine = frozenset(cores())
        if device.type == "cpu":
            return cls(host_name(), None, "CPU", mine)
        properties = torch.cuda.get_device_properties(device)
        # Two processes may see one GPU under two indices. torch before 2.5 knows no UUID.
        visible = f"{os.environ.get('CUDA_VISIBLE_DEVICES', '')}:{device.index}"
        return cls(host_name(), str(getattr(properties, "uuid", visible)), properties.name, mine)


def describe_devices(devices: Sequence[WorkerDevice], asked_for: str) -> str:
    """Return one line about the devices of all workers: "2 x NVIDIA H200", or "CPU, 2 cores: no GPU found by torch".

    Args:
        devices: of each worker.
        asked_for: auto, cpu or cuda.
    """
    num_hosts = len({device.host for device in devices})
    on_hosts = f" on {num_hosts} hosts" if num_hosts > 1 else ""
    gpus = Counter(name for _, _, name in {(at.host, at.gpu, at.name) for at in devices if at.gpu is not None})
    parts = [f"{count} x {name}" for name, count in sorted(gpus.items())]
    cores_on_hosts = {(device.host, core) for device in devices if device.gpu is None for core in device.cores}
    if cores_on_hosts:
        parts.append(f"CPU, {plural(len(cores_on_hosts), 'core')}")
    found_none = asked_for == "auto" and not gpus and not torch.cuda.is_available()
    return ", ".join(parts) + on_hosts + (": no GPU found by torch" if found_none else "")


def num_sharing_gpu(devices: Sequence[WorkerDevice], mine: WorkerDevice) -> int:
    """Return how many workers use this worker's GPU, or 1 on a CPU."""
    return sum((device.host, device.gpu) == (mine.host, mine.gpu) for device in devices) if mine.gpu else 1


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
        own = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # that torch gives out again
        return int(torch.cuda.mem_get_info(device)[0]) + own
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
