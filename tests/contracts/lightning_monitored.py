"""Trains the graph of scripts/monitor_lightning.py under the monitor, alone or in two processes.

Run by the peer's Python. Its command line, by itself (`alone`, `launched`: Lightning starts the second process) or
under torchrun (`team`), which does each of TRAININGS, the others the first:

    lightning_monitored.py FOLDER alone|launched|team

Two processes average the gradients of their batches; one alone accumulates those of the same two batches, halved: the
same bits. Writes to FOLDER/TRAINING: monitor, ended.RANK.json. Alone it also writes FOLDER/refused.txt: what is said to
a team that is not the processes of the Trainer.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import lightning.pytorch as pl
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from pbgeval import ModelSchema, Monitor, MonitoredRelation
from pbgeval.cluster.team import Team
from pbgeval.errors import ConfigError
from pbgeval.integrations.lightning import MonitorCallback
from scripts.monitor_lightning import Batch, Embeddings, bucket_of, make_graph, monitored

NUM_BATCHES, BATCH_SIZE = 5, 40  # of a bucket: as many of each, for processes go in step
NUM_PROCESSES = 2
# Whether batches of all buckets are mixed, the most epochs, and the patience.
TRAININGS = {"mixed": (True, 3, None), "by_bucket": (False, 3, None), "patient": (False, 200, 2)}
BUCKETS = [(0, 0), (0, 1), (1, 0), (1, 1)]
SCHEMA = ModelSchema([MonitoredRelation("links", "entity", "entity")], {"entity": 2}, "dot")


class Batches(IterableDataset[Batch]):
    """The batches of one process's buckets, or of both processes' in turn."""

    def __init__(self, training: dict[tuple[int, int], Tensor], workers: list[int]) -> None:
        self.training, self.workers = training, workers

    def __iter__(self) -> Iterator[Batch]:
        for at in range(0, len(BUCKETS), NUM_PROCESSES):
            for number in range(NUM_BATCHES):
                for worker in self.workers:
                    bucket = BUCKETS[at + worker]
                    edges = self.training[bucket][number * BATCH_SIZE : (number + 1) * BATCH_SIZE]
                    assert len(edges) == BATCH_SIZE, "more is held out than the batches leave"
                    yield *bucket, edges


def train(folder: Path, how: str, team: Team, *, mixed: bool, num_epochs: int, patience: int | None) -> None:
    """Train once, and write."""
    pl.seed_everything(0)
    module = Embeddings()
    negatives = {"eval_num_batch_negs": 16, "eval_num_uniform_negs": 16}
    monitor = Monitor(SCHEMA, folder / "monitor", eval_fraction=0.3, **negatives, team=team)
    training = {
        bucket: monitor.split(edges, bucket).training
        for bucket, edges in make_graph(torch.Generator().manual_seed(0)).items()
    }
    callback = MonitorCallback(
        monitor, monitored, BUCKETS, bucket_of_batch=None if mixed else bucket_of, patience=patience
    )
    alone = how == "alone"
    trainer = pl.Trainer(
        max_epochs=num_epochs,
        accelerator="cpu",
        devices=1 if alone else NUM_PROCESSES,
        strategy="auto" if alone else "ddp_find_unused_parameters_true",  # a batch is of one or two of the tables
        accumulate_grad_batches=NUM_PROCESSES if alone else 1,
        callbacks=[callback],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    workers = list(range(NUM_PROCESSES)) if alone else [trainer.global_rank]
    trainer.fit(module, DataLoader(Batches(training, workers), batch_size=None))
    ended = {"epochs": trainer.current_epoch, "mrr": trainer.callback_metrics["held_out/mrr"].item()}
    (folder / f"ended.{trainer.global_rank}.json").write_text(json.dumps(ended), encoding="utf-8")


def refusal() -> str:
    """Return what is said to a team that is not the Trainer's processes."""
    callback = MonitorCallback(Monitor(SCHEMA, team=Team(rank_in_team=1, size=2)), None)
    try:
        callback.setup(pl.Trainer(accelerator="cpu", devices=1, logger=False), None, "fit")
    except ConfigError as error:
        return str(error)
    return "nothing"


def main() -> None:
    folder, how = Path(sys.argv[1]), sys.argv[2]
    team = Team.join() if how == "team" else Team()
    for name, (mixed, num_epochs, patience) in TRAININGS.items():
        if name == "mixed" or how == "team":
            (folder / name).mkdir(exist_ok=True)
            train(folder / name, how, team, mixed=mixed, num_epochs=num_epochs, patience=patience)
    if how == "alone":
        (folder / "refused.txt").write_text(refusal(), encoding="utf-8")
    team.leave()


if __name__ == "__main__":
    main()
