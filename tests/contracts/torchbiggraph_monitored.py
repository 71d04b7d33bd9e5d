"""Trains a small graph with PyTorch-BigGraph under the monitor; run by the peer's Python, in the graph's folder.

Its command line: `.venv-peers/torchbiggraph/bin/python torchbiggraph_monitored.py CONFIG SETTINGS`: a config file of
PyTorch-BigGraph, and keyword arguments of `train` as JSON. Each process appends the edges that it trains on to
`trained/<its id>.csv`.
"""

import json
import os
import sys
from pathlib import Path

import torch
from torch.optim import Adagrad
from torchbiggraph.config import ConfigFileLoader
from torchbiggraph.edgelist import EdgeList
from torchbiggraph.model import MultiRelationEmbedder, make_model
from torchbiggraph.stats import Stats
from torchbiggraph.train import Trainer

from pbgeval.integrations.torchbiggraph import train


class RecordingTrainer(Trainer):
    """PyTorch-BigGraph's trainer, which also writes down what it is given."""

    def process_one_batch(self, model: MultiRelationEmbedder, batch_edges: EdgeList) -> Stats:
        columns = (batch_edges.lhs.tensor, batch_edges.get_relation_type_as_vector(), batch_edges.rhs.tensor)
        with Path("trained", f"{os.getpid()}.csv").open("a") as file:
            file.writelines(",".join(map(str, edge)) + "\n" for edge in torch.stack(columns, 1).tolist())
        return super().process_one_batch(model, batch_edges)


def main() -> None:
    """Train."""
    config = ConfigFileLoader().load_config(sys.argv[1])
    Path("trained").mkdir(exist_ok=True)
    model = make_model(config)
    optimizer = Adagrad(model.parameters(), lr=config.lr)
    optimizer.share_memory()
    trainer = RecordingTrainer(optimizer, config.loss_fn, config.margin, config.relations)
    train(config, "monitor", model=model, trainer=trainer, **json.loads(sys.argv[2]))


if __name__ == "__main__":
    main()
