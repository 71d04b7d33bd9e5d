"""The monitor's figures are those of the command on the same model, edges, seed and numbers of negatives."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

from pbgeval import ModelSchema, ModelTensors, Monitor, MonitoredRelation, evaluate
from pbgeval.config import check_config
from pbgeval.monitor.records import read_history
from pbgeval.notation import ENDS, Bucket, Side
from tests.examples import examples
from tests.kit.graphs import TinyGraph, has_zero_vector, tiny_graphs
from tests.kit.on_disk import write_graph

KEYS_OF_PBG = {"pos_rank": "mean_rank", "mrr": "mean_reciprocal_rank", "r1": "hits_at_1", "r10": "hits_at_10"}


def schema_of(graph: TinyGraph) -> ModelSchema:
    relations = graph.relations[:1] if graph.dynamic else graph.relations
    return ModelSchema(
        [MonitoredRelation(of.name, of.lhs, of.rhs, of.operator, of.all_negs) for of in relations],
        graph.num_partitions,
        graph.comparator,
        num_dynamic_relations=len(graph.relations) if graph.dynamic else None,
        bias=graph.bias,
        max_norm=graph.max_norm,
    )


def model_of(graph: TinyGraph) -> ModelTensors:
    operators: dict[tuple[int, Side], Mapping[str, Any]] = {}
    for side in ENDS:
        parameters = [side.pick(of.lhs_params, of.rhs_params) for of in graph.relations]
        if graph.dynamic:
            operators[0, side] = {name: torch.tensor([of[name] for of in parameters]) for name in parameters[0]}
        else:
            for index, of in enumerate(parameters):
                operators[index, side] = {name: torch.tensor(value) for name, value in of.items()}
    tables = {
        (name, partition): torch.tensor(rows)
        for name, of_partitions in graph.embeddings.items()
        for partition, rows in enumerate(of_partitions)
    }
    return ModelTensors(tables, operators, {name: torch.tensor(of) for name, of in graph.global_embeddings.items()})


def edges_of_other_buckets(graph: TinyGraph, bucket: tuple[int, int]) -> list[tuple[int, int, int]]:
    """Return those between the same partitions: a type of one partition is in every bucket."""

    def places(rel: int, of_bucket: tuple[int, int]) -> tuple[int, int]:
        relation, at = graph.relations[0 if graph.dynamic else rel], Bucket(*of_bucket)
        return (
            at.partition_of(Side.LHS, graph.num_partitions[relation.lhs]),
            at.partition_of(Side.RHS, graph.num_partitions[relation.rhs]),
        )

    return [
        edge
        for other, edges in graph.buckets.items()
        for edge in edges
        if other != bucket and places(edge[1], other) == places(edge[1], bucket)
    ]


@pytest.mark.slow
@settings(
    max_examples=examples(15),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    graph=tiny_graphs(),
    negatives=st.tuples(st.integers(0, 7), st.integers(0, 7)).filter(any),
    seed=st.integers(0, 5),
    fraction=st.sampled_from([0.3, 0.6, 0.97]),
    kind=st.sampled_from(["plain", "pbg_semantics", "filtered"]),
)
def test_monitor_and_command_give_the_same_figures(
    tmp_path_factory: pytest.TempPathFactory,
    graph: TinyGraph,
    negatives: tuple[int, int],
    seed: int,
    fraction: float,
    kind: str,
) -> None:
    pbg_semantics, filtered = kind == "pbg_semantics", kind == "filtered"
    assume(graph.comparator != "cos" or not has_zero_vector(graph))
    folder = tmp_path_factory.mktemp("graph")
    monitor = Monitor(
        schema_of(graph),
        folder / "monitor",
        eval_fraction=fraction,
        eval_num_batch_negs=negatives[0],
        eval_num_uniform_negs=negatives[1],
        seed=seed,
        batch_size=6,
        pbg_semantics=pbg_semantics,
        filtered=filtered,
    )
    held_out: dict[tuple[int, int], list[Any]] = {}
    for bucket, edges in graph.buckets.items():
        array = torch.tensor(edges, dtype=torch.int64).view(-1, 3)
        known = torch.tensor(edges_of_other_buckets(graph, bucket), dtype=torch.int64).view(-1, 3) if filtered else None
        held_out[bucket] = [tuple(edge) for edge in monitor.split(array, bucket, known=known).held_out.tolist()]
        with monitor.watch(0, bucket, model_of(graph)):
            pass  # the same model before and after
    summary = monitor.end_pass(0)
    assume(any(held_out.values()))

    config = check_config(
        write_graph(
            TinyGraph(**{**vars(graph), "buckets": held_out}),
            folder,
            filter_edges=[graph.buckets] if filtered else [],
            num_batch_negs=negatives[0],
            num_uniform_negs=negatives[1],
            batch_size=-(-6 // max(negatives[0], 1)) * max(negatives[0], 1),
            seed=seed,
            workers=1,
            pbg_semantics=pbg_semantics,
        )
    )
    report = evaluate(config, output=folder / "output", workers=1)

    expected = report.to_dict()["metrics"]
    assert {key: expected[key] for key in summary.details.after} == summary.details.before == summary.details.after
    assert {f"both.realistic.{name}" for name in KEYS_OF_PBG.values()} | {"both.query_auc"} <= {*summary.details.after}
    with (folder / "output" / "buckets.csv").open(encoding="utf-8", newline="") as file:
        rows = {Bucket(int(row["lhs_partition"]), int(row["rhs_partition"])): row for row in csv.DictReader(file)}
    for visit in read_history(folder / "monitor", pytest.fail).visits:
        row = {key: value or "null" for key, value in rows.get(visit.bucket, {}).items()}  # no file, no row
        assert (0 if visit.after is None else visit.after.count) == int(row.get("num_edges", 0))
        if visit.after is not None:
            details = {key: value for key, value in visit.details.after.items() if key in row}
            details |= {f"both.pessimistic.{metric}": visit.after.metrics[of] for of, metric in KEYS_OF_PBG.items()}
            assert details == {key: json.loads(row[key]) for key in details}
            assert {of.value for of in visit.details.gap.values() if of.value is not None} == {0.0}
