"""A small partitioned training run under a monitor: many passes over a bucket at a time, or few.

Entities belong to clusters, and in each bucket the heads of a cluster link to the tails of another, chosen for that
bucket alone. So buckets pull at the embeddings that they share: a model that is trained on one for long forgets others.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from attrs import frozen
from torch import Tensor

from pbgeval import ModelSchema, ModelTensors, Monitor, MonitoredRelation
from pbgeval.monitor.records import PassRecord, read_history
from pbgeval.notation import Bucket

NUM_CLUSTERS = 6
NOISE = 0.2  # share of edges that lead anywhere
DIMENSION = 8

# Runs that the tests and the pictures of docs/monitor.md have in common: arguments of `train`.
_GRAPH = {"edges_per_bucket": 1200, "learning_rate": 0.1}
OVERFIT: dict[str, Any] = {"steps_per_visit": 25, "num_passes": 5, **_GRAPH}
MIXED: dict[str, Any] = {"steps_per_visit": 1, "num_passes": 5, **_GRAPH}


def make_graph(seed: int, num_partitions: int, num_entities: int, edges_per_bucket: int) -> dict[Bucket, Tensor]:
    """Return (E, 3) edges of each bucket."""
    random = np.random.default_rng(seed)
    graph = {}
    for lhs, rhs in np.ndindex(num_partitions, num_partitions):
        leads_to = random.permutation(NUM_CLUSTERS)
        head = random.integers(num_entities, size=edges_per_bucket)
        members = random.integers(num_entities // NUM_CLUSTERS, size=edges_per_bucket)
        tail = members * NUM_CLUSTERS + leads_to[head % NUM_CLUSTERS]
        anywhere = random.random(edges_per_bucket) < NOISE
        tail = np.where(anywhere, random.integers(num_entities, size=edges_per_bucket), tail)
        graph[Bucket(lhs, rhs)] = torch.from_numpy(np.stack([head, np.zeros_like(head), tail], 1))
    return graph


@frozen(eq=False)
class Run:
    """What came of a run."""

    passes: list[PassRecord]
    warnings: list[str]

    @property
    def warned_of_overfitting(self) -> bool:
        return any(": bucket overfitting: " in warning for warning in self.warnings)


def train(
    seed: int,
    *,
    steps_per_visit: int,
    num_passes: int,
    num_partitions: int = 3,
    num_entities: int = 48,
    edges_per_bucket: int = 800,
    learning_rate: float = 0.1,
    output: Path | None = None,
    until_warned: bool = False,
    **settings: Any,
) -> Run:
    """Train, visiting all buckets in random order in each pass; a step takes all edges of a bucket."""
    generator = torch.Generator().manual_seed(seed)
    graph = make_graph(seed, num_partitions, num_entities, edges_per_bucket)
    tables = [torch.randn(num_entities, DIMENSION, generator=generator) * 0.3 for _ in range(num_partitions)]
    for table in tables:
        table.requires_grad_()
    optimizer = torch.optim.Adagrad(tables, lr=learning_rate)
    warnings: list[str] = []
    schema = ModelSchema([MonitoredRelation("links", "e", "e")], {"e": num_partitions}, "dot")
    keys: dict[str, Any] = {"eval_fraction": 0.2, "eval_num_batch_negs": 25, "eval_num_uniform_negs": 25, "seed": seed}
    keys |= {"compare_with_training": False, **settings}
    monitor = Monitor(schema, output, warn=warnings.append, **keys)
    model = ModelTensors({("e", partition): table for partition, table in enumerate(tables)})
    training = {bucket: monitor.split(edges, bucket).training for bucket, edges in graph.items()}
    passes = []
    for epoch in range(num_passes):
        for index in torch.randperm(len(graph), generator=generator).tolist():
            bucket = list(graph)[index]
            with monitor.watch(epoch, bucket, model):
                for _ in range(steps_per_visit):
                    _step(tables[bucket.lhs], tables[bucket.rhs], training[bucket], optimizer)
        summary = monitor.end_pass(epoch)
        if summary is not None:
            passes.append(summary)
        if until_warned and warnings:
            break
    return Run(passes, warnings)


def passes_of(monitored: Path) -> list[dict[str, Any]]:
    """Return the records of a folder's passes, without their running numbers, which are each worker's own."""
    return [of.to_json() | {"index": None} for of in read_history(monitored, pytest.fail).passes]


def _step(lhs_ND: Tensor, rhs_ND: Tensor, edges: Tensor, optimizer: torch.optim.Optimizer) -> None:
    head, _, tail = edges.unbind(1)
    loss = F.cross_entropy(lhs_ND[head] @ rhs_ND.T, tail) + F.cross_entropy(rhs_ND[tail] @ lhs_ND.T, head)
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
