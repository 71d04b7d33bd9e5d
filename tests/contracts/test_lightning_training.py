"""The monitor's callback in PyTorch Lightning's own Trainer: the example, by buckets and by epochs."""

from __future__ import annotations

import json
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
    with_errors = ["sh", "-c", 'exec "$@" 2>&1', "sh"]
    out = run_program(*with_errors, python, EXAMPLE, *files, *arguments)
    return out, read_history(folder / "monitor", pytest.fail)


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
    kept = f"in 2 epochs. Keep epoch {num_epochs - 3}."
    assert (kept in " ".join(out.split())) == mixed
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


MODES = """
import json, warnings
import lightning.pytorch as pl, torch
from torch.utils.data import DataLoader
from pbgeval import Monitor, ScoredModel, edge_scorer
from pbgeval.errors import EvalError
from pbgeval.integrations.lightning import MonitorCallback

class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.table, self.dropout = torch.nn.Parameter(torch.randn(30, 4)), torch.nn.Dropout(0.5)
        self.frozen = torch.nn.Dropout(0.5).eval()
        self.measured, self.trained, self.fails = set(), set(), False

    def modes(self):
        return self.training, self.dropout.training, self.frozen.training

    def score(self, lhs, rel, rhs):
        self.measured.add(self.modes())
        if self.fails:
            raise ValueError("it fails")
        return (self.table[lhs] * self.table[rhs]).sum(-1)

    def training_step(self, batch, index):
        self.trained.add(self.modes())
        return -self.dropout(self.table[batch[:, 0]] * self.table[batch[:, 2]]).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)

def model_of(module):
    return ScoredModel(edge_scorer(module.score, num_entities=30, num_relations=1))

found = []
for in_training, fails in ((True, False), (False, False), (True, True)):
    module = Module()
    schema = model_of(module.eval()).schema()
    module.train(in_training)
    module.frozen.eval()
    monitor = Monitor(schema, eval_fraction=0.4, eval_num_batch_negs=5, eval_num_uniform_negs=0)
    ends = torch.randint(30, (2, 80), generator=torch.Generator().manual_seed(0))
    edges = monitor.split(torch.stack([ends[0], torch.zeros_like(ends[0]), ends[1]], 1), (0, 0)).training
    module.fails = fails
    trainer = pl.Trainer(max_epochs=2, accelerator="cpu", devices=1, callbacks=[MonitorCallback(monitor, model_of)],
        logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            trainer.fit(module, DataLoader(edges, batch_size=16))
        except EvalError as error:
            assert fails and "it fails" in str(error), error
    warned = any("is in evaluation mode" in str(of.message) for of in told)
    found.append([sorted(module.measured), sorted(module.trained), module.modes(), warned])
print(json.dumps(found))
"""


def test_a_module_is_measured_in_evaluation_mode_and_trained_in_its_own(
    peer: Callable[[str], Path], tmp_path: Path
) -> None:
    """Also its parts that are frozen, and after an exception."""
    (tmp_path / "modes.py").write_text(MODES, encoding="utf-8")

    out = run_program(peer("lightning") / "python", tmp_path / "modes.py")

    measured, in_training, in_evaluation = [[False] * 3], [True, True, False], [False] * 3
    assert json.loads(out.splitlines()[-1]) == [
        [measured, [in_training], in_training, False],
        [measured, [in_evaluation], in_evaluation, True],
        [measured, [], in_training, False],
    ]
