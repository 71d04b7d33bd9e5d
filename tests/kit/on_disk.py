"""A tiny graph -> the files that PyTorch-BigGraph would have written, and the config that evaluates them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pbgeval.config import EntitySchema, EvalConfig, RelationSchema
from pbgeval.notation import ENDS, Side
from tests.kit import pbg_files
from tests.kit.graphs import Bucket, Edge, TinyGraph

VERSION = 7


def write_graph(
    graph: TinyGraph,
    folder: Path,
    *,
    more_edge_paths: Sequence[Mapping[Bucket, list[Edge]]] = (),
    filter_edges: Sequence[Mapping[Bucket, list[Edge]]] = (),
    train_edges: Sequence[Mapping[Bucket, list[Edge]]] = (),
    weights: Mapping[Bucket, list[float]] | None = None,
    times: Sequence[Mapping[Bucket, list[int]]] = (),
    **settings: Any,
) -> EvalConfig:
    """Write a graph and its checkpoint.

    Args:
        graph: what is written.
        folder: where.
        more_edge_paths: edges beside those of the graph, each an edge path of its own.
        filter_edges: known edges, each a path of `filter_paths`.
        train_edges: known edges, each a path of `train_paths`.
        weights: of the graph's own edges.
        times: of all edges, by path: those that are evaluated, filter, train.
        settings: keys of the config beside those that the graph decides.
    """
    counts = {entity_type: [len(table) for table in tables] for entity_type, tables in graph.embeddings.items()}
    num_dynamic = len(graph.relations) if graph.dynamic else None
    pbg_files.write_entity_counts(folder / "entity", counts, num_dynamic_relations=num_dynamic)
    edge_paths = []
    times_of_paths = iter(times)
    for index, buckets in enumerate((graph.buckets, *more_edge_paths)):
        edge_paths.append(str(folder / f"edges{index}"))
        _write_edges(Path(edge_paths[-1]), buckets, (weights or {}) if index == 0 else {}, next(times_of_paths, {}))
    known_paths: dict[str, list[str]] = {}
    for key, paths in (("filter_paths", filter_edges), ("train_paths", train_edges)):
        known_paths[key] = [str(folder / f"{key}{index}") for index in range(len(paths))]
        for path, buckets in zip(known_paths[key], paths, strict=True):
            _write_edges(Path(path), buckets, {}, next(times_of_paths, {}))
    _write_checkpoint(graph, folder / "checkpoint")
    schemas = graph.relations[:1] if graph.dynamic else graph.relations
    return EvalConfig(
        entities={name: EntitySchema(num_partitions=count) for name, count in graph.num_partitions.items()},
        relations=[
            RelationSchema(
                name=relation.name,
                lhs=relation.lhs,
                rhs=relation.rhs,
                weight=relation.weight,
                operator=relation.operator,
                all_negs=relation.all_negs,
            )
            for relation in schemas
        ],
        entity_path=str(folder / "entity"),
        edge_paths=edge_paths,
        filter_paths=known_paths["filter_paths"],
        train_paths=known_paths["train_paths"],
        checkpoint_path=str(folder / "checkpoint"),
        dynamic_relations=graph.dynamic,
        dimension=graph.dimension,
        max_norm=graph.max_norm,
        global_emb=bool(graph.global_embeddings),
        comparator=graph.comparator,
        bias=graph.bias,
        **settings,
    )


def has_file(bucket: Bucket, edges: list[Edge]) -> bool:
    """Tell whether a bucket is written: every other empty one is, as a file without edges."""
    return bool(edges) or sum(bucket) % 2 == 0


def _write_edges(
    path: Path,
    buckets: Mapping[Bucket, list[Edge]],
    weights: Mapping[Bucket, list[float]],
    times: Mapping[Bucket, list[int]],
) -> None:
    layouts = list(pbg_files.LAYOUTS.values())
    for bucket, edges in buckets.items():
        if has_file(bucket, edges):
            lhs, rel, rhs = zip(*edges, strict=True) if edges else ([], [], [])
            layout = layouts[sum(bucket) % len(layouts)] if edges else {}
            time = np.asarray(times[bucket], np.int64) if bucket in times else None
            pbg_files.write_edges(path, bucket, lhs, rel, rhs, layout=layout, weight=weights.get(bucket), time=time)


def _write_checkpoint(graph: TinyGraph, path: Path) -> None:
    pbg_files.write_checkpoint_version(path, VERSION)
    for entity_type, tables in graph.embeddings.items():
        for partition, rows in enumerate(tables):
            pbg_files.write_embeddings(path, entity_type, partition, rows, version=VERSION)
    operators: dict[tuple[int, Side], dict[str, Any]] = {}
    if graph.dynamic:
        for side in ENDS:
            stacked = [side.pick(relation.lhs_params, relation.rhs_params) for relation in graph.relations]
            operators[0, side] = {name: [params[name] for params in stacked] for name in stacked[0]}
    else:
        for index, relation in enumerate(graph.relations):
            operators[index, Side.RHS] = dict(relation.rhs_params)
    pbg_files.write_model(path, operators, graph.global_embeddings, version=VERSION, dynamic=graph.dynamic)
