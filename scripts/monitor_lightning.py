"""Embeddings of a small partitioned graph, trained by PyTorch Lightning bucket by bucket under a monitor; an example.

scripts/peers lightning
PYTHONPATH=. .venv-peers/lightning/bin/python scripts/monitor_lightning.py --output run/monitor
kgeval-dist monitor run/monitor
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import lightning.pytorch as pl
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from pbgeval import ModelSchema, ModelTensors, Monitor, MonitoredRelation
from pbgeval.integrations.lightning import MonitorCallback

NUM_PARTITIONS = 2
NUM_ENTITIES = 60  # of a partition
NUM_CLUSTERS = 6  # entities link to those of their own
DIMENSION = 8
BATCH_SIZE = 50

Batch = tuple[int, int, Tensor]  # a bucket and some of its edges (E, 3): lhs, rel, rhs


def make_graph(generator: torch.Generator) -> dict[tuple[int, int], Tensor]:
    """Return the edges (E, 3) of each bucket: rows within partitions."""
    graph = {}
    for lhs in range(NUM_PARTITIONS):
        for rhs in range(NUM_PARTITIONS):
            head = torch.randint(NUM_ENTITIES, (400,), generator=generator)
            member = torch.randint(NUM_ENTITIES // NUM_CLUSTERS, (400,), generator=generator)
            tail = member * NUM_CLUSTERS + head % NUM_CLUSTERS
            graph[lhs, rhs] = torch.stack([head, torch.zeros_like(head), tail], dim=1)
    return graph


class Batches(IterableDataset[Batch]):
    """The batches of one bucket after the other."""

    def __init__(self, graph: dict[tuple[int, int], Tensor]) -> None:
        self.graph = graph

    def __iter__(self) -> Iterator[Batch]:
        for (lhs, rhs), edges in self.graph.items():
            for batch in torch.split(edges[torch.randperm(len(edges))], BATCH_SIZE):
                yield lhs, rhs, batch


class Embeddings(pl.LightningModule):  # type: ignore[misc] # Lightning is not installed where types are checked
    """A table of vectors per partition; an edge's score is an inner product."""

    def __init__(self) -> None:
        super().__init__()
        tables = [nn.Parameter(torch.randn(NUM_ENTITIES, DIMENSION) * 0.3) for _ in range(NUM_PARTITIONS)]
        self.tables = nn.ParameterList(tables)

    def training_step(self, batch: Batch, batch_index: int) -> Tensor:
        """Softmax over all entities of the other side's partition, both sides."""
        lhs, rhs, edges = batch
        head, _, tail = edges.unbind(dim=1)
        lhs_ND, rhs_ND = self.tables[lhs], self.tables[rhs]
        return F.cross_entropy(lhs_ND[head] @ rhs_ND.T, tail) + F.cross_entropy(rhs_ND[tail] @ lhs_ND.T, head)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """The optimizer of all tables."""
        return torch.optim.Adagrad(self.parameters(), lr=0.1)


def monitored(module: Embeddings) -> ModelTensors:
    """Return the tables as the monitor reads them."""
    return ModelTensors({("entity", partition): table for partition, table in enumerate(module.tables)})


def bucket_of(batch: Batch) -> tuple[int, int]:
    """Return the bucket that a batch is of."""
    return batch[0], batch[1]


def main() -> None:
    """Train until the held-out edges have not improved for some epochs."""
    parser = argparse.ArgumentParser(description="Train with PyTorch Lightning under a monitor.")
    parser.add_argument("--output", type=Path, help="folder of training_stats.json (default: none)")
    parser.add_argument("--epochs", type=int, default=30, help="at most [%(default)s]")
    parser.add_argument("--patience", type=int, default=3, help="epochs without an improvement [%(default)s]")
    parser.add_argument("--mixed", action="store_true", help="watch all buckets by the epoch, not one after the other")
    parser.add_argument("--save", type=Path, help="file for graph and trained tables")
    arguments = parser.parse_args()
    pl.seed_everything(0)
    graph = make_graph(torch.Generator().manual_seed(0))
    schema = ModelSchema([MonitoredRelation("links", "entity", "entity")], {"entity": NUM_PARTITIONS}, "dot")
    monitor = Monitor(schema, arguments.output, eval_fraction=0.2, eval_num_batch_negs=25, eval_num_uniform_negs=25)
    training = {bucket: monitor.split(edges, bucket).training for bucket, edges in graph.items()}
    callback = MonitorCallback(
        monitor,
        monitored,
        list(graph),
        bucket_of_batch=None if arguments.mixed else bucket_of,
        patience=arguments.patience,
    )
    module = Embeddings()
    trainer = pl.Trainer(
        max_epochs=arguments.epochs,
        accelerator="cpu",
        devices=1,
        callbacks=[callback],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, DataLoader(Batches(training), batch_size=None))
    if arguments.save is not None:
        tables = [table.detach() for table in module.tables]
        torch.save({"graph": graph, "tables": tables}, arguments.save)
    print(f"trained {trainer.current_epoch} epochs; held_out/mrr {trainer.callback_metrics['held_out/mrr']:.6f}")


if __name__ == "__main__":
    main()
