"""The demo graph -> a trained checkpoint, an untrained one, and one trained on shuffled relations.

A small trainer, not a fast one: ComplEx with PyTorch-BigGraph's conventions (the operator acts on the right-hand side),
a softmax loss over negatives that the edges of a chunk share, and Adagrad. One seed gives one checkpoint.
A share of the training edges is held out and measured before and after each epoch, by pbgeval's own monitor; see
`monitor_of` for all that a training loop needs.
"""

import argparse
import contextlib
import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pbg_format
import torch
from torch import Tensor, nn

from pbgeval import ModelSchema, ModelTensors, Monitor, MonitoredRelation
from pbgeval.notation import Side

DIMENSION = 64  # where no graph.json says another
CHUNK_SIZE = 100  # edges of one relation that share their negatives
CHUNKS_PER_BATCH = 10
NUM_UNIFORM_NEGS = 200
LEARNING_RATE = 0.1
REGULARIZATION = 0.01  # of the cubes of the query vectors (N3); without it, rare entities are learned by heart
INIT_SCALE = 1e-3


@attrs.frozen
class Graph:
    """Training edges over rows of one table: types follow each other, and partitions within a type."""

    schema: dict[str, Any]
    first_row: dict[tuple[str, int], int]  # of each (type, partition)
    type_rows_T2: Tensor  # first row and number of rows of each entity type
    lhs_type_R: Tensor
    rhs_type_R: Tensor
    edges_E3: Tensor  # lhs row, relation, rhs row
    buckets: dict[tuple[int, int], Tensor]  # (E, 3) as the files have them: rows within partitions

    @property
    def num_rows(self) -> int:
        """The number of entities."""
        return int(self.type_rows_T2[:, 1].sum())


def imported_schema(folder: Path, types: Path) -> dict[str, Any]:
    """What graph.json says, of a graph that `kgeval-dist import-graph --types` wrote."""
    lines = [line.split("\t") for line in types.read_text(encoding="utf-8").splitlines() if line]
    types_of = {name: (lhs, rhs) for name, lhs, rhs in lines}
    names = json.loads((folder / "entity" / "dynamic_rel_names.json").read_text(encoding="utf-8"))
    return {
        "dimension": DIMENSION,
        "entities": json.loads((folder / "import.json").read_text(encoding="utf-8"))["entities"],
        "relations": [{"name": name, "lhs": types_of[name][0], "rhs": types_of[name][1]} for name in names],
    }


def load_graph(folder: Path, types_path: Path | None = None) -> Graph:
    """Read the schema and the training edges."""
    if types_path is not None:
        schema = imported_schema(folder, types_path)
    else:
        schema = json.loads((folder / "graph.json").read_text(encoding="utf-8"))
    first_row, type_rows, next_row = {}, [], 0
    for entity_type, sizes in schema["entities"].items():
        type_rows.append((next_row, sum(sizes)))
        for partition, size in enumerate(sizes):
            first_row[entity_type, partition] = next_row
            next_row += size
    types = list(schema["entities"])
    edges, buckets = [], {}
    for (lhs_partition, rhs_partition), bucket in pbg_format.read_edges(folder / "edges_train"):
        buckets[lhs_partition, rhs_partition] = torch.from_numpy(bucket.copy())
        # An unpartitioned type is in partition 0, and so is its side of the bucket.
        for column, side, partition in ((0, "lhs", lhs_partition), (2, "rhs", rhs_partition)):
            starts = [first_row.get((relation[side], partition), 0) for relation in schema["relations"]]
            bucket[:, column] += np.array(starts)[bucket[:, 1]]
        edges.append(torch.from_numpy(bucket))
    lhs_type_R, rhs_type_R = (
        torch.tensor([types.index(relation[side]) for relation in schema["relations"]]) for side in ("lhs", "rhs")
    )
    return Graph(schema, first_row, torch.tensor(type_rows), lhs_type_R, rhs_type_R, torch.cat(edges), buckets)


class Model(nn.Module):
    """Embeddings of all entities and a complex diagonal operator per relation."""

    def __init__(self, num_rows: int, num_relations: int, dimension: int, generator: torch.Generator) -> None:
        super().__init__()
        self.entities_ND = nn.Parameter(torch.randn(num_rows, dimension, generator=generator) * INIT_SCALE)
        self.real_RD = nn.Parameter(torch.ones(num_relations, dimension // 2))
        self.imag_RD = nn.Parameter(torch.zeros(num_relations, dimension // 2))

    def look_up(self, rows: Tensor) -> Tensor:
        """The embeddings of entities; their gradient holds these rows only."""
        return nn.functional.embedding(rows, self.entities_ND, sparse=True)

    def transform(self, vectors: Tensor, relations: Tensor, adjoint: bool) -> Tensor:
        """Apply the relations' operators, or their adjoints: <u, f(v)> = <f*(u), v>."""
        real, imag = self.real_RD[relations], self.imag_RD[relations] * (-1 if adjoint else 1)
        a, b = vectors.chunk(2, dim=-1)
        return torch.cat((real * a - imag * b, real * b + imag * a), dim=-1)


def draw_batches(graph: Graph, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield (edge indices, is_real), both (chunks, CHUNK_SIZE), in random order.

    A chunk is of one relation; a short one is filled up with edges of that relation that do not count.
    """
    order = torch.randperm(len(graph.edges_E3), generator=generator)
    relations = graph.edges_E3[order, 1]
    chunks = []
    for relation in range(len(graph.lhs_type_R)):
        indices = order[relations == relation]
        if len(indices) == 0:
            continue
        positions = torch.arange(len(indices) + -len(indices) % CHUNK_SIZE)
        chunk_indices, is_real = indices[positions % len(indices)], positions < len(indices)
        chunks.append(torch.stack((chunk_indices, is_real.long())).view(2, -1, CHUNK_SIZE))
    all_chunks = torch.cat(chunks, dim=1)
    chunk_order = torch.randperm(all_chunks.shape[1], generator=generator)
    for start in range(0, len(chunk_order), CHUNKS_PER_BATCH):
        edges_BC, is_real_BC = all_chunks[:, chunk_order[start : start + CHUNKS_PER_BATCH]]
        yield edges_BC, is_real_BC


def side_loss(model: Model, query_BCD: Tensor, true_BC: Tensor, uniform_BU: Tensor) -> Tensor:
    """Cross-entropy of the true entity against those of the chunk and the uniform draws, per edge."""
    candidates_BN = torch.cat((true_BC, uniform_BU), dim=1)
    vectors_BND = model.look_up(candidates_BN)
    scores_BCN = query_BCD @ vectors_BND.transpose(1, 2)
    true_score_BC = (query_BCD * vectors_BND[:, : true_BC.shape[1]]).sum(dim=-1)
    is_true_BCN = candidates_BN[:, None, :] == true_BC[:, :, None]
    negatives_BC = scores_BCN.masked_fill(is_true_BCN, -torch.inf).logsumexp(dim=-1)
    loss_BC: Tensor = torch.logaddexp(true_score_BC, negatives_BC) - true_score_BC
    return loss_BC


def train_epoch(
    model: Model, graph: Graph, operator_E: Tensor, optimizer: torch.optim.Optimizer, generator: torch.Generator
) -> float:
    """One pass over the edges; `operator_E` says which relation's operator each edge uses. Returns the mean loss."""
    total = 0.0
    for edges_BC, is_real_BC in draw_batches(graph, generator):
        lhs_BC, relation_BC, rhs_BC = graph.edges_E3[edges_BC].unbind(dim=-1)
        operator_BC = operator_E[edges_BC]
        loss = torch.zeros(())
        for true_BC, known_BC, type_R, adjoint in (
            (lhs_BC, rhs_BC, graph.lhs_type_R, False),
            (rhs_BC, lhs_BC, graph.rhs_type_R, True),
        ):
            first_B, size_B = graph.type_rows_T2[type_R[relation_BC[:, 0]]].unbind(dim=-1)
            draws_BU = torch.rand(len(first_B), NUM_UNIFORM_NEGS, generator=generator, dtype=torch.float64)
            uniform_BU = first_B[:, None] + (draws_BU * size_B[:, None]).long()
            query_BCD = model.transform(model.look_up(known_BC), operator_BC, adjoint)
            penalty_BC = REGULARIZATION * query_BCD.abs().pow(3).sum(dim=-1)
            loss = loss + ((side_loss(model, query_BCD, true_BC, uniform_BU) + penalty_BC) * is_real_BC).sum()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        total += loss.item()
    return total / (2 * len(graph.edges_E3))


def monitor_of(graph: Graph, output: Path | None, eval_fraction: float, seed: int) -> tuple[Monitor, Graph]:
    """Hold edges out; return what watches them, and the graph without them."""
    relations = [
        MonitoredRelation(of["name"], of["lhs"], of["rhs"], "complex_diagonal") for of in graph.schema["relations"]
    ]
    num_partitions = {name: len(sizes) for name, sizes in graph.schema["entities"].items()}
    monitor = Monitor(
        ModelSchema(relations, num_partitions, "dot"),
        output,
        eval_fraction=eval_fraction,
        eval_num_batch_negs=CHUNK_SIZE,  # as in training
        eval_num_uniform_negs=NUM_UNIFORM_NEGS,
        seed=seed,
    )
    kept, start = [], 0
    for bucket, edges in graph.buckets.items():
        rows = monitor.split(edges, bucket).training_rows
        kept.append(start + (torch.arange(len(edges)) if rows is None else torch.from_numpy(rows)))
        start += len(edges)
    return monitor, attrs.evolve(graph, edges_E3=graph.edges_E3[torch.cat(kept)])


def monitored(model: Model, graph: Graph) -> ModelTensors:
    """Return views of the parameters, as the monitor reads them."""
    table, real_RD, imag_RD = (of.detach() for of in (model.entities_ND, model.real_RD, model.imag_RD))
    tables = {
        (name, partition): table[start : start + graph.schema["entities"][name][partition]]
        for (name, partition), start in graph.first_row.items()
    }
    operators = {(at, Side.RHS): {"real": real_RD[at], "imag": imag_RD[at]} for at in range(len(real_RD))}
    return ModelTensors(tables, operators)


def watched_epoch(
    monitor: Monitor,
    epoch: int,
    model: Model,
    graph: Graph,
    operator_E: Tensor,
    optimizer: torch.optim.Optimizer,
    generator: torch.Generator,
) -> tuple[float, str]:
    """Train an epoch, in which edges of all buckets are mixed; return the mean loss, and what the monitor says."""
    with contextlib.ExitStack() as visits:
        for bucket in graph.buckets:
            visits.enter_context(monitor.watch(epoch, bucket, monitored(model, graph)))
        loss = train_epoch(model, graph, operator_E, optimizer, generator)
    summary = monitor.end_pass(epoch)
    if summary is None or summary.details is None:
        return loss, ""
    name = "both.realistic.mean_reciprocal_rank"
    held_out = summary.details.after[name]
    training = summary.details.training[name] if summary.details.training else None
    told = [
        f"{label} {value:.3f}" for label, value in (("held out", held_out), ("training", training)) if value is not None
    ]
    return loss, f", mean reciprocal rank {', '.join(told)}" if told else ""


def save(model: Model, graph: Graph, folder: Path, version: int) -> None:
    """Write the model as a checkpoint."""
    table, real, imag = (parameter.detach().numpy() for parameter in (model.entities_ND, model.real_RD, model.imag_RD))
    embeddings = {
        (entity_type, partition): table[start : start + graph.schema["entities"][entity_type][partition]]
        for (entity_type, partition), start in graph.first_row.items()
    }
    operators = [{"real": real[relation], "imag": imag[relation]} for relation in range(len(real))]
    num_partitions = {name: len(sizes) for name, sizes in graph.schema["entities"].items()}
    relations = [(relation["name"], relation["lhs"], relation["rhs"]) for relation in graph.schema["relations"]]
    model_settings = dict(dimension=table.shape[1], init_scale=INIT_SCALE, global_emb=False, comparator="dot")
    negatives = dict(num_batch_negs=CHUNK_SIZE, num_uniform_negs=NUM_UNIFORM_NEGS)
    training = dict(num_epochs=version, loss_fn="softmax", regularization_coef=REGULARIZATION, lr=LEARNING_RATE)
    settings = {**model_settings, **negatives, **training}
    config = pbg_format.complete_config(num_partitions, relations, "complex_diagonal", settings)
    pbg_format.write_checkpoint(folder, version, config, embeddings, operators)
    print(f"checkpoint written to {folder}")


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Train embeddings of the demo graph.")
    parser.add_argument("--graph", type=Path, required=True, help="folder that build_demo_graph.py wrote")
    parser.add_argument("--types", type=Path, help="of relations, where import-graph wrote the folder (edges_train)")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--dimension", type=int, help="even (default: graph.json's, else 64)")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--untrained", action="store_true", help="write only the initial checkpoint")
    kind.add_argument("--shuffle-relations", action="store_true", help="the control: operators assigned at random")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--eval-fraction", type=float, default=0.05, help="of the edges, held out [%(default)s]")
    arguments = parser.parse_args()
    if (arguments.dimension or 2) % 2:
        parser.error("--dimension must be even: half of it are real parts, half imaginary ones")
    return arguments


def main() -> None:
    """Load, train, save."""
    arguments = parse_arguments()
    torch.set_num_threads(1)  # enough here, and the same numbers whatever else the machine does
    torch.use_deterministic_algorithms(True)
    torch.sparse.check_sparse_tensor_invariants.disable()  # type: ignore[no-untyped-call]  # unset, it warns
    graph = load_graph(arguments.graph, arguments.types)
    generator = torch.Generator().manual_seed(arguments.seed)
    dimension = arguments.dimension or graph.schema["dimension"]
    if dimension != graph.schema["dimension"]:
        print(f"evaluate with -p dimension={dimension}: eval.py says {graph.schema['dimension']}")
    model = Model(graph.num_rows, len(graph.schema["relations"]), dimension, generator)
    if not arguments.shuffle_relations:
        save(model, graph, arguments.graph / "checkpoint_untrained", version=0)
    if arguments.untrained:
        return
    name = "checkpoint_shuffled" if arguments.shuffle_relations else "checkpoint"
    output = None if arguments.shuffle_relations else arguments.graph / "monitor"
    if output is not None:
        shutil.rmtree(output, ignore_errors=True)  # of an earlier training
    monitor, graph = monitor_of(graph, output, arguments.eval_fraction, arguments.seed)
    operator_E = graph.edges_E3[:, 1]
    if arguments.shuffle_relations:
        operator_E = operator_E[torch.randperm(len(operator_E), generator=generator)]
    optimizer = torch.optim.Adagrad(model.parameters(), lr=LEARNING_RATE)
    start = time.perf_counter()
    for epoch in range(1, arguments.epochs + 1):
        loss, told = watched_epoch(monitor, epoch, model, graph, operator_E, optimizer, generator)
        print(f"epoch {epoch:2d} of {arguments.epochs}: loss {loss:.3f}{told}, {time.perf_counter() - start:.1f} s")
    if output is not None and monitor.is_on:
        print(f"what the monitor recorded: {output / 'training_stats.json'}")
    save(model, graph, arguments.graph / name, version=arguments.epochs)


if __name__ == "__main__":
    main()
