"""On two hosts with a network between them: torchrun gives the numbers of one worker."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clusters import EVERY_POLICY, CaseAndResult, Host
from tests.kit.commands import COMMAND, numbers_of, run_of
from tests.patience import PATIENCE

pytestmark = pytest.mark.netns

PORT = 29_600  # of a host that nobody else uses


@EVERY_POLICY
def test_torchrun_on_two_hosts(hosts: list[Host], evaluated: CaseAndResult, tmp_path: Path) -> None:
    torchrun = [
        COMMAND.parent / "torchrun",
        "--nnodes=2",
        "--nproc-per-node=1",
        "--rdzv-backend=c10d",
        "--rdzv-id=test",
    ]
    torchrun += [f"--rdzv-endpoint={hosts[0].address}:{PORT}"]
    evaluate = ["-m", "pbgeval", "--config", evaluated.case.config, "--output", tmp_path / "output", "--quiet"]
    started = [
        # Its name does not tell a namespace that it is the host of the rendezvous.
        host.start(
            [*torchrun, f"--rdzv-conf=is_host={host is hosts[0]}", f"--local-addr={host.address}", *evaluate], tmp_path
        )
        for host in hosts
    ]
    try:
        ends = [process.communicate(timeout=PATIENCE) for process in started]
    finally:
        for process in started:
            process.kill()

    assert [process.returncode for process in started] == [0, 0], ends
    assert run_of(tmp_path / "output")["num_workers"] == 2
    assert numbers_of(evaluated.alone) == numbers_of(tmp_path / "output")
