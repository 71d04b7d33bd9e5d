"""Blocks of docs/cluster.md that need two hosts, pasted on each of two: they give the numbers of one worker.

`first-host` is the first.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.clusters import CaseAndResult, Host
from tests.kit.commands import COMMAND, numbers_of, run_of
from tests.pages import blocks_of
from tests.patience import PATIENCE

pytestmark = pytest.mark.netns

BLOCKS = [block for block in blocks_of("docs/cluster.md") if block.needs == "two hosts"]
# Names are looked up in a file of our own.
IN_A_SHELL = 'mount --bind "$0" /etc/hosts && exec bash -c "$1"'


@pytest.mark.parametrize("text", [block.text for block in BLOCKS], ids=["fixed", "elastic"])
def test_torchrun_of_the_page_on_both_hosts(
    text: str, hosts: list[Host], evaluated: CaseAndResult, tmp_path: Path
) -> None:
    case = shutil.copytree(evaluated.case.root, tmp_path / "case")
    first, second = hosts
    names = f"127.0.0.1 localhost\n{first.address} first-host {first.name}\n{second.address} {second.name}\n"
    (tmp_path / "hosts").write_text(names, encoding="utf-8")
    command = ["unshare", "--mount", "bash", "-c", IN_A_SHELL, tmp_path / "hosts", text]
    environment = {"PATH": f"{COMMAND.parent}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
    started = [host.start(command, case, environment) for host in hosts]
    try:
        ends = [process.communicate(timeout=PATIENCE) for process in started]
    finally:
        for process in started:
            process.kill()

    assert [process.returncode for process in started] == [0, 0], ends
    assert numbers_of(evaluated.alone) == numbers_of(case / "results" / "mine")
    # With `--nnodes 1:2` the first host begins alone where the other is half a minute late.
    assert run_of(case / "results" / "mine")["num_workers"] in ((2, 4) if "1:2" in text else (4,))
