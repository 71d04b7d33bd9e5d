"""Candidates from the edge's chunk and uniform draws: a quick look that scales to any number of edges."""

import json
from pathlib import Path

from pbgeval import EntitySchema, EvalConfig, RelationSchema

DEMO = Path(__file__).parent.parent / "demo"


def get_config() -> EvalConfig:
    """Evaluate the demo graph; relative paths are relative to this file's folder."""
    graph = json.loads((DEMO / "graph.json").read_text())
    return EvalConfig(
        entities={name: EntitySchema(num_partitions=len(sizes)) for name, sizes in graph["entities"].items()},
        relations=[
            RelationSchema(name=each["name"], lhs=each["lhs"], rhs=each["rhs"], operator="complex_diagonal")
            for each in graph["relations"]
        ],
        entity_path="../demo/entity",
        edge_paths=["../demo/edges_valid"],
        checkpoint_path="../demo/checkpoint",
        dimension=graph["dimension"],
        global_emb=False,
        comparator="dot",
        num_batch_negs=50,
        num_uniform_negs=200,
        hits_at=[1, 10],
    )
