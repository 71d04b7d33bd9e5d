"""The monitor's callback in PyTorch Lightning's own Trainer: the example, by buckets and by epochs."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from pbgeval import ModelSchema, ModelTensors, Monitor, MonitoredRelation
from pbgeval.monitor.records import History, PassKey, read_history
from tests.kit.commands import REPOSITORY, run_program

pytestmark = pytest.mark.peers

EXAMPLE = REPOSITORY / "scripts" / "monitor_lightning.py"
BUCKETS = [(0, 0), (0, 1), (1, 0), (1, 1)]
MRR = "both.realistic.mean_reciprocal_rank"


def run(python: Path, folder: Path, *arguments: str) -> tuple[str, History]:
    files = ["--output", folder / "monitor", "--save", folder / "trained.pt"]
    return run_program(python, EXAMPLE, *files, *arguments), read_history(folder / "monitor", pytest.fail)


@pytest.mark.parametrize("mixed", [False, True], ids=["bucket_by_bucket", "mixed"])
def test_figures_are_those_of_a_monitor_on_the_trained_tables(
    mixed: bool, peer: Callable[[str], Path], tmp_path: Path
) -> None:
    """Mixed training ends when the held-out edges have stalled."""
    asked = ["--epochs", "200", "--patience", "2", "--mixed"] if mixed else ["--epochs", "2"]
    out, history = run(peer("lightning") / "python", tmp_path, *asked)

    num_epochs = len(history.passes)
    assert [PassKey(epoch) for epoch in range(num_epochs)] == [of.key for of in history.passes]
    assert [tuple(visit.bucket) for visit in history.visits] == num_epochs * BUCKETS
    assert 2 < num_epochs < 200 if mixed else num_epochs == 2
    assert re.search(r"trained (\d+) epochs", out)[1] == str(num_epochs)
    assert f"held_out/mrr {history.passes[-1].average.metrics['mrr']:.6f}" in out
    first, second = history.visits[0], history.visits[4]
    # Between its visits other buckets train its partitions, unless all are visited at once.
    assert mixed == (first.after == second.before)
    assert history.passes[1].details.after[MRR] > 1.5 * history.passes[0].details.before[MRR]

    schema = ModelSchema([MonitoredRelation("links", "entity", "entity")], {"entity": 2}, "dot")
    monitor = Monitor(schema, eval_fraction=0.2, eval_num_batch_negs=25, eval_num_uniform_negs=25)
    trained = torch.load(tmp_path / "trained.pt")
    tables = ModelTensors({("entity", at): table for at, table in enumerate(trained["tables"])})
    for bucket, edges in trained["graph"].items():
        monitor.split(edges, bucket)
        if not mixed and bucket != BUCKETS[-1]:
            continue  # its tables have been trained on since
        with monitor.watch(0, bucket, tables) as visit:
            pass
        last = history.visits[-4 + BUCKETS.index(bucket)]
        assert last.details.after == visit.sums.phases[1].values(with_loss=False)
