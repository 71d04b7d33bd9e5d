"""Train ComplEx embeddings on a graph that `kgeval-dist import-graph` wrote, and save a PyTorch-BigGraph checkpoint.

    python -m pbgeval.examples.training --graph demo --types demo/types.tsv

A small trainer, not a fast one: ComplEx with PyTorch-BigGraph's conventions (the operator acts on the right-hand side),
a softmax loss over negatives that the edges of a chunk share, and Adagrad. It computes in float64, so that every
machine gets the same model up to the rounding of the saved float32 vectors. pbgeval's monitor holds a share of the
edges out and ranks them before and after each epoch: see `make_monitor`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import numpy as np
import torch
from torch import Tensor, nn

from pbgeval.errors import EvalError
from pbgeval.monitor.monitor import Monitor
from pbgeval.monitor.schema import ModelSchema, ModelTensors, MonitoredRelation
from pbgeval.notation import Bucket, Side
from pbgeval.storage.arrays import TensorRows
from pbgeval.storage.checkpoint_files import write_embeddings, write_model
from pbgeval.storage.edges import find_buckets
from pbgeval.storage.writing import write_atomically

CHUNK_SIZE = 100  # edges of one relation that share their negatives
CHUNKS_PER_BATCH = 10
NUM_UNIFORM_NEGS = 200
LEARNING_RATE = 0.1
REGULARIZATION = 0.01  # of the cubes of the query vectors (N3); without it, rare entities are memorized
INIT_SCALE = 1e-3
OPERATOR = "complex_diagonal"


@attrs.frozen
class Graph:
    """Training edges over the rows of one table, in which types follow each other, and partitions within a type."""

    folder: Path
    sizes: dict[str, list[int]]  # entities of each partition, by type
    relations: list[tuple[str, str, str]]  # name, lhs type, rhs type
    first_row: dict[tuple[str, int], int]  # of each (type, partition)
    edges_E3: Tensor  # lhs row, relation, rhs row
    buckets: dict[Bucket, Tensor]  # (E, 3) as in the files: rows within partitions

    @property
    def num_rows(self) -> int:
        """The number of entities."""
        return sum(map(sum, self.sizes.values()))

    def rows_of_side_R2(self, side: int) -> Tensor:
        """Return the first row and the number of rows of each relation's entity type on a side (1: lhs, 2: rhs)."""
        types = [relation[side] for relation in self.relations]
        return torch.tensor([(self.first_row[name, 0], sum(self.sizes[name])) for name in types])


def load_graph(folder: Path, types_path: Path | None = None) -> Graph:
    """Read the entities and the edges in `train`; without a file of types all entities have one type."""
    sizes = json.loads((folder / "import.json").read_text(encoding="utf-8"))["entities"]
    names = json.loads((folder / "entity" / "dynamic_rel_names.json").read_text(encoding="utf-8"))
    if types_path is None and len(sizes) > 1:
        raise EvalError(f"--types: give the file of the entity types ({', '.join(sizes)}) that each relation connects")
    types_of = {name: (next(iter(sizes)),) * 2 for name in names}
    if types_path is not None:
        lines = [line.split("\t") for line in types_path.read_text(encoding="utf-8").splitlines() if line]
        types_of = {name: (lhs, rhs) for name, lhs, rhs in lines}
    relations = [(name, *types_of[name]) for name in names]
    first_row, next_row = {}, 0
    for entity_type, parts in sizes.items():
        for partition, size in enumerate(parts):
            first_row[entity_type, partition] = next_row
            next_row += size
    buckets, edges = {}, []
    num_partitions = max(map(len, sizes.values()))
    for bucket, file in sorted(find_buckets(folder / "train", num_partitions, num_partitions).items()):
        rows = np.stack(file.read_ids(0, file.num_edges), axis=1)
        buckets[bucket] = torch.from_numpy(rows.copy())
        # A type with one partition is in partition 0 of every bucket.
        for column, side, partition in ((0, 1, bucket.lhs), (2, 2, bucket.rhs)):
            starts = [first_row.get((relation[side], partition), 0) for relation in relations]
            rows[:, column] += np.array(starts)[rows[:, 1]]
        edges.append(torch.from_numpy(rows))
    return Graph(folder, sizes, relations, first_row, torch.cat(edges), buckets)


class Model(nn.Module):
    """Embeddings of all entities, and a complex diagonal operator per relation (ComplEx)."""

    def __init__(self, num_rows: int, num_relations: int, dimension: int, generator: torch.Generator) -> None:
        super().__init__()
        self.entities_ND = nn.Parameter(torch.randn(num_rows, dimension, generator=generator) * INIT_SCALE)
        self.real_RD = nn.Parameter(torch.ones(num_relations, dimension // 2))
        self.imag_RD = nn.Parameter(torch.zeros(num_relations, dimension // 2))

    def look_up(self, rows: Tensor) -> Tensor:
        """Return the embeddings of entities. Their gradient holds these rows only."""
        return nn.functional.embedding(rows, self.entities_ND, sparse=True)

    def transform(self, vectors: Tensor, relations: Tensor, adjoint: bool) -> Tensor:
        """Apply the relations' operators, or their adjoints: <u, f(v)> = <f*(u), v>."""
        real, imag = self.real_RD[relations], self.imag_RD[relations] * (-1 if adjoint else 1)
        a, b = vectors.chunk(2, dim=-1)
        return torch.cat((real * a - imag * b, real * b + imag * a), dim=-1)


def draw_batches(graph: Graph, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield (edge indices, is_real), both (chunks, CHUNK_SIZE), in random order.

    A chunk holds edges of one relation. A short chunk is padded with edges that do not count.
    """
    order = torch.randperm(len(graph.edges_E3), generator=generator)
    relations = graph.edges_E3[order, 1]
    chunks = []
    for relation in range(len(graph.relations)):
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


def side_loss(model: Model, query_BCD: Tensor, true_BC: Tensor, uniform_BK: Tensor) -> Tensor:
    """Return each edge's cross-entropy: the true entity against the chunk's entities and the uniform draws."""
    candidates_BN = torch.cat((true_BC, uniform_BK), dim=1)
    vectors_BND = model.look_up(candidates_BN)
    scores_BCN = query_BCD @ vectors_BND.transpose(1, 2)
    true_score_BC = (query_BCD * vectors_BND[:, : true_BC.shape[1]]).sum(dim=-1)
    is_true_BCN = candidates_BN[:, None, :] == true_BC[:, :, None]
    negatives_BC = scores_BCN.masked_fill(is_true_BCN, -torch.inf).logsumexp(dim=-1)
    loss_BC: Tensor = torch.logaddexp(true_score_BC, negatives_BC) - true_score_BC
    return loss_BC


def train_epoch(model: Model, graph: Graph, optimizer: torch.optim.Optimizer, generator: torch.Generator) -> float:
    """Train on every edge once. Returns the mean loss."""
    total = 0.0
    for edges_BC, is_real_BC in draw_batches(graph, generator):
        lhs_BC, relation_BC, rhs_BC = graph.edges_E3[edges_BC].unbind(dim=-1)
        loss = torch.zeros(())
        for true_BC, known_BC, rows_R2, adjoint in (
            (lhs_BC, rhs_BC, graph.rows_of_side_R2(1), False),
            (rhs_BC, lhs_BC, graph.rows_of_side_R2(2), True),
        ):
            first_B, size_B = rows_R2[relation_BC[:, 0]].unbind(dim=-1)
            draws_BK = torch.rand(len(first_B), NUM_UNIFORM_NEGS, generator=generator)
            uniform_BK = first_B[:, None] + (draws_BK * size_B[:, None]).long()
            query_BCD = model.transform(model.look_up(known_BC), relation_BC, adjoint)
            penalty_BC = REGULARIZATION * query_BCD.abs().pow(3).sum(dim=-1)
            loss = loss + ((side_loss(model, query_BCD, true_BC, uniform_BK) + penalty_BC) * is_real_BC).sum()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        total += loss.item()
    return total / (2 * len(graph.edges_E3))


def make_monitor(graph: Graph, output: Path, eval_fraction: float, seed: int) -> tuple[Monitor, Graph]:
    """Hold edges out; return what watches them, and the graph without them."""
    relations = [MonitoredRelation(name, lhs, rhs, OPERATOR) for name, lhs, rhs in graph.relations]
    monitor = Monitor(
        ModelSchema(relations, {name: len(parts) for name, parts in graph.sizes.items()}, "dot"),
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


def watched_epoch(
    monitor: Monitor,
    epoch: int,
    model: Model,
    graph: Graph,
    optimizer: torch.optim.Optimizer,
    generator: torch.Generator,
) -> str:
    """Train an epoch, in which edges of all buckets are mixed; return the mean loss and the monitor's figures."""
    with contextlib.ExitStack() as visits:
        for bucket in graph.buckets:
            visits.enter_context(monitor.watch(epoch, bucket, model_tensors(model, graph)))
        loss = train_epoch(model, graph, optimizer, generator)
    summary = monitor.end_pass(epoch)
    if summary is None or summary.details is None or summary.details.training is None:
        return f"loss {loss:.3f}"
    name = "both.realistic.mean_reciprocal_rank"
    held_out, training = summary.details.after[name], summary.details.training[name]
    return f"loss {loss:.3f}, MRR {held_out:.3f} on held-out edges, {training:.3f} on training edges"


def model_tensors(model: Model, graph: Graph) -> ModelTensors:
    """Return views of the parameters by partition and relation."""
    table_ND, real_RD, imag_RD = (of.detach() for of in (model.entities_ND, model.real_RD, model.imag_RD))
    tables = {
        (name, partition): table_ND[start : start + graph.sizes[name][partition]]
        for (name, partition), start in graph.first_row.items()
    }
    operators = {(at, Side.RHS): {"real": real_RD[at], "imag": imag_RD[at]} for at in range(len(real_RD))}
    return ModelTensors(tables, operators)


def save(model: Model, graph: Graph, folder: Path, version: int) -> None:
    """Write the model as a checkpoint. The version file comes last: without it, the checkpoint does not exist."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    to_graph = Path(os.path.relpath(graph.folder, folder))  # a checkpoint names its graph
    config = {
        "entities": {name: {"num_partitions": len(parts)} for name, parts in graph.sizes.items()},
        "relations": [
            {"name": name, "lhs": lhs, "rhs": rhs, "operator": OPERATOR} for name, lhs, rhs in graph.relations
        ],
        "dimension": model.entities_ND.shape[1],
        "comparator": "dot",
        "global_emb": False,
        "entity_path": str(to_graph / "entity"),
        "edge_paths": [str(to_graph / "train")],
        "checkpoint_path": ".",
        "loss_fn": "softmax",
        "num_epochs": version,
        "num_batch_negs": CHUNK_SIZE,
        "num_uniform_negs": NUM_UNIFORM_NEGS,
    }
    write_atomically(folder / "config.json", json.dumps(config, indent=4))
    tensors = model_tensors(model, graph)
    for (entity_type, partition), rows_ND in tensors.tables.items():
        write_embeddings(folder, entity_type, partition, version, TensorRows(rows_ND.float()))
    write_model(folder, version, tensors.operators, dynamic=False)
    write_atomically(folder / "checkpoint_version.txt", f"{version}\n")


@contextlib.contextmanager
def reproducible() -> Iterator[None]:
    """Compute in float64, on one thread, by kernels that give the same bits each time; then as before."""
    threads, dtype = torch.get_num_threads(), torch.get_default_dtype()
    deterministic = torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    torch.use_deterministic_algorithms(True)
    torch.sparse.check_sparse_tensor_invariants.disable()  # type: ignore[no-untyped-call]  # unset, it warns
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_default_dtype(dtype)
        torch.use_deterministic_algorithms(deterministic)


@attrs.frozen(kw_only=True)
class Training:
    """How a model is trained."""

    epochs: int = 5
    dimension: int = 64  # an even number: half of the numbers are real parts, half imaginary parts
    seed: int = 0
    eval_fraction: float = 0.05  # share of edges that the monitor holds out


def train(
    folder: Path, types_path: Path | None, output: Path, training: Training, tell: Callable[[str], object]
) -> None:
    """Train on the edges in `folder/train`; write `output/checkpoint` and `output/monitor`.

    Args:
        folder: what `kgeval-dist import-graph` wrote.
        types_path: the file that `import-graph --types` had, if any.
        output: where the checkpoint and the records of the monitor go.
        training: how.
        tell: is given a line after each epoch.

    Raises:
        EvalError: the graph cannot be read, or the model not written.
    """
    with reproducible():
        graph = load_graph(folder, types_path)
        generator = torch.Generator().manual_seed(training.seed)
        model = Model(graph.num_rows, len(graph.relations), training.dimension, generator)
        records = output / "monitor"
        shutil.rmtree(records, ignore_errors=True)  # of an earlier training
        monitor, graph = make_monitor(graph, records, training.eval_fraction, training.seed)
        optimizer = torch.optim.Adagrad(model.parameters(), lr=LEARNING_RATE)
        for epoch in range(1, training.epochs + 1):
            start = time.perf_counter()
            told = watched_epoch(monitor, epoch, model, graph, optimizer, generator)
            tell(f"epoch {epoch:2d} of {training.epochs}: {told}, {time.perf_counter() - start:.1f} s")
        if monitor.is_on and training.epochs:
            num_negs = CHUNK_SIZE + NUM_UNIFORM_NEGS
            tell(f"these MRRs are against {num_negs} sampled candidates; against all entities, the MRR is lower")
        save(model, graph, output / "checkpoint", version=training.epochs)


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Train ComplEx embeddings on an imported graph.")
    parser.add_argument(
        "--graph", type=Path, required=True, help="folder that kgeval-dist import-graph wrote, with edges in train"
    )
    parser.add_argument(
        "--output", type=Path, metavar="DIR", help="folder for checkpoint/ and monitor/ [the folder of --graph]"
    )
    parser.add_argument("--types", type=Path, help="the file that import-graph --types had, if any")
    parser.add_argument("--epochs", type=int, default=5, help="[%(default)s]")
    parser.add_argument("--dimension", type=int, default=64, help="an even number [%(default)s]")
    parser.add_argument("--seed", type=int, default=0, help="[%(default)s]")
    parser.add_argument(
        "--eval-fraction", type=float, default=0.05, help="share of edges held out by the monitor [%(default)s]"
    )
    arguments = parser.parse_args()
    if arguments.dimension % 2:
        parser.error("--dimension must be even: half of the numbers are real parts, half imaginary parts")
    return arguments


def main() -> None:
    """Load, train, save."""
    arguments = parse_arguments()
    output = arguments.output or arguments.graph
    training = Training(
        epochs=arguments.epochs,
        dimension=arguments.dimension,
        seed=arguments.seed,
        eval_fraction=arguments.eval_fraction,
    )
    try:
        train(arguments.graph, arguments.types, output, training, lambda line: print(line, flush=True))
    except EvalError as error:
        sys.exit(str(error))
    print(f"checkpoint written to {output / 'checkpoint'}")


if __name__ == "__main__":
    main()
