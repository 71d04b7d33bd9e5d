"""Of two hosts one is cut off: the other finishes, and the one that was cut off spoils nothing.

A store that does not answer: tests/unit/test_liveness.py.
"""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from pbgeval.cluster.liveness import STALL_VARIABLE
from tests.clusters import Host, stop, wait_until, wait_until_begun, writers
from tests.kit.case import TinyCase
from tests.kit.commands import COMMAND, numbers_of, run_of, snapshot
from tests.kit.groups import has_ended
from tests.patience import PATIENCE

pytestmark = [pytest.mark.netns, pytest.mark.slow]

IMPATIENT = {STALL_VARIABLE: "5", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


def start_torchrun(hosts: list[Host], case: TinyCase, folder: Path) -> list[subprocess.Popen[str]]:
    """Start as the documentation says for runs that are to survive a host; they meet at the first, as worker 0 is."""
    torchrun = [COMMAND.parent / "torchrun", "--nnodes=1:2", "--nproc-per-node=1", "--max-restarts=3"]
    torchrun += ["--rdzv-backend=c10d", "--rdzv-id=cut", f"--rdzv-endpoint={hosts[0].address}:29700"]
    conf = "last_call_timeout=10,keep_alive_interval=2"
    evaluation = ["-m", "pbgeval", "--config", case.config, "--output", folder / "output", "--quiet"]
    meeting = [
        [f"--rdzv-conf=is_host={host is hosts[0]},{conf}", f"--local-addr={host.address}", *evaluation]
        for host in hosts
    ]
    return [host.start([*torchrun, *of], folder, IMPATIENT) for host, of in zip(hosts, meeting, strict=True)]


def test_the_rest_finishes_without_a_host_that_is_cut_off(
    hosts: list[Host], long_case: TinyCase, undisturbed: dict[str, str], tmp_path: Path
) -> None:
    output = tmp_path / "output"
    first, second = start_torchrun(hosts, long_case, tmp_path)
    try:
        wait_until_begun(output)
        both = list(writers(output).values())
        stop(both)
        hosts[1].cut_off()
        for process in both:
            os.kill(process, signal.SIGCONT)

        out, err = first.communicate(timeout=PATIENCE)
        assert first.returncode == 0, out + err
        assert (undisturbed, 1) == (numbers_of(output), run_of(output)["num_workers"])
        after = snapshot(output)
        wait_until(lambda: all(map(has_ended, both)), "the worker that was cut off did not end")
    finally:
        for host in hosts:
            host.end()
    second.communicate(timeout=PATIENCE)
    assert after == snapshot(output)
