"""Several processes of PyTorch Lightning under one monitor: one summary, the same bits as that of one process."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pbgeval.monitor.records import file_of_worker, read_history
from tests.kit.commands import REPOSITORY, start
from tests.kit.training import passes_of

pytestmark = pytest.mark.peers

PROGRAM = Path(__file__).with_name("lightning_monitored.py")
BUCKETS = [(0, 0), (0, 1), (1, 0), (1, 1)]
NUM_EPOCHS = 3
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


@pytest.fixture(scope="module")
def trained(peer: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Trains in one of the ways and returns the folder, once for each way."""

    @functools.cache
    def train(how: str) -> Path:
        folder = tmp_path_factory.mktemp(how)
        launcher = TORCHRUN if how == "team" else []
        environment = {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
        done = start([peer("lightning") / "python", *launcher, PROGRAM, folder, how], Path(), **environment)
        assert done.status == 0, done.err
        assert "sync_dist" not in done.err  # Lightning's warning of figures that processes may not share
        return folder

    return train


def ends_of(folder: Path) -> list[dict[str, Any]]:
    """Return what each process says of its end."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("ended.*.json"))]


def visits_of(monitored: Path) -> dict[tuple[int, ...], tuple[Any, Any]]:
    """Return what has been found at both ends of each visit, by epoch and bucket."""
    visits = read_history(monitored, pytest.fail).visits
    found = {(of.key.epoch, *of.bucket): (of.details.before, of.details.after) for of in visits}
    assert len(found) == len(visits) == NUM_EPOCHS * len(BUCKETS)
    return found


def workers_of(monitored: Path) -> dict[tuple[int, int], set[int]]:
    """Return the workers that have visited each bucket."""
    visits = read_history(monitored, pytest.fail).visits
    return {bucket: {of.details.worker for of in visits if tuple(of.bucket) == bucket} for bucket in BUCKETS}


@pytest.mark.parametrize("how", ["team", "launched"])
def test_epochs_of_two_processes_give_the_figures_of_one(how: str, trained: Callable[[str], Path]) -> None:
    one, two = trained("alone") / "mixed", trained(how) / "mixed"

    assert passes_of(one / "monitor") == passes_of(two / "monitor")
    assert visits_of(one / "monitor") == visits_of(two / "monitor")
    assert ends_of(one) * 2 == ends_of(two)  # both processes log the figures of the whole
    # A team shares the work; else the first process does it all.
    shares = [{at % 2 if how == "team" else 0} for at in range(len(BUCKETS))]
    assert dict(zip(BUCKETS, shares, strict=True)) == workers_of(two / "monitor")
    assert (how == "team") == file_of_worker(two / "monitor", 1).exists()


def test_every_process_of_a_team_monitors_the_buckets_of_its_own_batches(trained: Callable[[str], Path]) -> None:
    """That the summary is that of one worker: tests/distributed/test_workers_monitor_their_own_buckets.py."""
    two = trained("team") / "by_bucket"

    passes = passes_of(two / "monitor")
    assert workers_of(two / "monitor") == {(0, 0): {0}, (0, 1): {1}, (1, 0): {0}, (1, 1): {1}}
    last = passes[-1]["eval_stats_chunk_avg"]["metrics"]["mrr"]
    assert [of["mrr"] for of in ends_of(two)] == [pytest.approx(last, rel=1e-6)] * 2  # Lightning keeps float32
    name = "both.realistic.mean_reciprocal_rank"
    assert passes[-1]["pbgeval"]["after"][name] > 1.2 * passes[0]["pbgeval"]["before"][name]


def test_all_processes_of_a_team_stop_together(trained: Callable[[str], Path]) -> None:
    two = trained("team") / "patient"

    num_passes = len(read_history(two / "monitor", pytest.fail).passes)
    assert [num_passes] * 2 == [of["epochs"] for of in ends_of(two)]
    assert 3 <= num_passes < 200


def test_a_team_that_is_not_the_trainer_s_processes_is_refused(trained: Callable[[str], Path]) -> None:
    expected = (
        "MonitorCallback: expected a monitor without a team, or one of the Trainer's 1 processes, got worker 1 of 2; "
        "is devices x num_nodes what torchrun has started?"
    )
    assert (trained("alone") / "refused.txt").read_text(encoding="utf-8") == expected
