"""Trains a small partitioned graph by PyTorch Lightning under the monitor, alone or in two processes.

Run by the peer's Python. Its command line, by itself (`alone`, `launched`: Lightning starts the second process) or
under torchrun (`team`), which does each of TRAININGS, the others the first:

    lightning_monitored.py FOLDER alone|launched|team

Two processes average the gradients of their batches; one alone accumulates those of the same two batches, halved: the
same bits. Writes to FOLDER/TRAINING: monitor, ended.RANK.json. Alone it also writes FOLDER/refused.txt: what is said to
a team that is not the processes of the Trainer.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import lightning.pytorch as pl
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from pbgeval import ModelSchema, ModelTensors, Monitor, MonitoredRelation
from pbgeval.cluster.team import Team
from pbgeval.errors import ConfigError
from pbgeval.integrations.lightning import MonitorCallback

NUM_PARTITIONS, NUM_ENTITIES, DIMENSION = 2, 48, 8
NUM_BATCHES, BATCH_SIZE = 5, 40  # of a bucket: as many of each, for processes go in step
NUM_PROCESSES = 2
# Whether batches of all buckets are mixed, the most epochs, and the patience.
TRAININGS = {"mixed": (True, 3, None), "by_bucket": (False, 3, None), "patient": (False, 200, 2)}
BUCKETS = [(0, 0), (0, 1), (1, 0), (1, 1)]

Batch = tuple[int, int, Tensor]


def make_graph() -> dict[tuple[int, int], Tensor]:
    """Return the edges (E, 3) of each bucket; entities link to those with the same rest by 6."""
    generator = torch.Generator().manual_seed(0)
    graph = {}
    for bucket in BUCKETS:
        head = torch.randint(NUM_ENTITIES, (400,), generator=generator)
        tail = torch.randint(NUM_ENTITIES // 6, (400,), generator=generator) * 6 + head % 6
        graph[bucket] = torch.stack([head, torch.zeros_like(head), tail], dim=1)
    return graph


def schema() -> ModelSchema:
    return ModelSchema([MonitoredRelation("links", "entity", "entity")], {"entity": NUM_PARTITIONS}, "dot")


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


class Embeddings(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        tables = [torch.randn((NUM_ENTITIES, DIMENSION), generator=generator) * 0.3 for _ in range(NUM_PARTITIONS)]
        self.tables = nn.ParameterList([nn.Parameter(table) for table in tables])

    def training_step(self, batch: Batch, batch_index: int) -> Tensor:
        lhs, rhs, edges = batch
        head, _, tail = edges.unbind(dim=1)
        lhs_ND, rhs_ND = self.tables[lhs], self.tables[rhs]
        return F.cross_entropy(lhs_ND[head] @ rhs_ND.T, tail) + F.cross_entropy(rhs_ND[tail] @ lhs_ND.T, head)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=4.0)


def monitored(module: Embeddings) -> ModelTensors:
    return ModelTensors({("entity", at): table for at, table in enumerate(module.tables)})


def train(folder: Path, how: str, team: Team, *, mixed: bool, num_epochs: int, patience: int | None) -> None:
    """Train once, and write."""
    module = Embeddings()
    negatives = {"eval_num_batch_negs": 16, "eval_num_uniform_negs": 16}
    monitor = Monitor(schema(), folder / "monitor", eval_fraction=0.3, **negatives, team=team)
    training = {bucket: monitor.split(edges, bucket).training for bucket, edges in make_graph().items()}
    of_batch = None if mixed else (lambda batch: batch[:2])
    callback = MonitorCallback(monitor, monitored, BUCKETS, bucket_of_batch=of_batch, patience=patience)
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
    callback = MonitorCallback(Monitor(schema(), team=Team(rank_in_team=1, size=2)), None)
    try:
        callback.setup(pl.Trainer(accelerator="cpu", devices=1, logger=False), None, "fit")
    except ConfigError as error:
        return str(error)
    return "nothing"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("how", choices=["alone", "launched", "team"])
    arguments = parser.parse_args()
    team = Team.join() if arguments.how == "team" else Team()
    for name, (mixed, num_epochs, patience) in TRAININGS.items():
        if name == "mixed" or arguments.how == "team":
            (arguments.folder / name).mkdir(exist_ok=True)
            train(arguments.folder / name, arguments.how, team, mixed=mixed, num_epochs=num_epochs, patience=patience)
    if arguments.how == "alone":
        (arguments.folder / "refused.txt").write_text(refusal(), encoding="utf-8")
    team.leave()


if __name__ == "__main__":
    main()
