"""Trains small graphs with PyTorch-BigGraph under the monitor, one after the other; run by the peer's Python.

Its command line: `.venv-peers/torchbiggraph/bin/python torchbiggraph_monitored.py FOLDER SETTINGS...`: folders with a
config file of PyTorch-BigGraph, each with keyword arguments of `train` as JSON. Each process appends the edges that it
trains on to `trained/<its id>.csv`. The processes of the pools are forked: new ones would import torch for seconds.
"""

import contextlib
import json
import multiprocessing
import os
import sys
from pathlib import Path
from unittest import mock

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


def train_here(settings: dict[str, object]) -> None:
    """Train on the graph of the working directory."""
    config = ConfigFileLoader().load_config("eval.py")
    Path("trained").mkdir(exist_ok=True)
    model = make_model(config)
    optimizer = Adagrad(model.parameters(), lr=config.lr)
    optimizer.share_memory()
    trainer = RecordingTrainer(optimizer, config.loss_fn, config.margin, config.relations)
    train(config, "monitor", model=model, trainer=trainer, **settings)


if __name__ == "__main__":
    forked = multiprocessing.get_context("fork").Pool
    with mock.patch("torchbiggraph.train.create_pool", lambda number, *_, **__: forked(number)):
        for folder, settings in zip(sys.argv[1::2], sys.argv[2::2], strict=True):
            with contextlib.chdir(folder):
                train_here(json.loads(settings))
