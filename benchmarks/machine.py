"""What a benchmark says of the machine, the versions and the command; the speed of a bare product."""

import contextlib
import os
import platform
import re
import resource
import shlex
import subprocess
import sys
import time
from pathlib import Path

import torch

REPOSITORY = Path(__file__).resolve().parents[1]
PRODUCT_ROWS = 2048
# Python is to keep bytecode, and threads of torch and numpy to wait, as they do unless they are told otherwise.
LEFT_OUT = ("PYTHONDONTWRITEBYTECODE", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "OPENBLAS_THREAD_TIMEOUT")


def describe(program: str, load: float, further: str = "") -> str:
    """Return the lines above a table.

    Args:
        program: of this benchmark, from the repository's root.
        load: of the machine, before the benchmark began.
        further: versions of other programs.
    """
    cores = len(os.sched_getaffinity(0))
    return (
        f"Machine: {cpu_model()}, {cores} cores, {platform.system()}, load at the start {load:.1f}\n"
        f"Versions: pbgeval at {commit_of_package()}, torch {torch.__version__}{f'; {further}' if further else ''}\n"
        f"Command: {shlex.join(['python', program, *sys.argv[1:]])}"
    )


def user_environment() -> dict[str, str]:
    """Return the variables of this process without those that a user of the timed programs would not have set."""
    return {name: value for name, value in os.environ.items() if name not in LEFT_OUT}


def matmul_flops(num_threads: int) -> float:
    """Return the best of several float32 products, in flop per second."""
    torch.set_num_threads(num_threads)
    rows = 64 if "--smoke" in sys.argv else PRODUCT_ROWS
    left, right = torch.rand(rows, rows), torch.rand(rows, rows)
    seconds = []
    for _ in range(10):
        begun = time.perf_counter()
        torch.mm(left, right)
        seconds.append(time.perf_counter() - begun)
    return 2 * rows**3 / min(seconds)


def children_cpu_seconds() -> float:
    """Return the CPU time of all child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def cpu_model() -> str:
    """Return the processor's name and the vector instructions that torch uses."""
    with contextlib.suppress(OSError):
        match = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
        if match:
            return f"{match[1]} ({torch.backends.cpu.get_cpu_capability()})"
    return platform.processor() or platform.machine()


def commit_of_package() -> str:
    """Return the commit, and whether the package has changed since."""
    commands = (["git", "rev-parse", "--short", "HEAD"], ["git", "status", "--porcelain", "--", "pbgeval"])
    try:
        commit, changed = (
            subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout.strip()
            for command in commands
        )
    except (OSError, subprocess.CalledProcessError):
        return "an unknown commit"
    return commit + (" with changes" if changed else "")
