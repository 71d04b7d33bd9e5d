"""A case's edges as a text file of names, and the dictionaries to match."""

from __future__ import annotations

import json
from pathlib import Path

import h5py

from tests.imported_graph import buckets_in
from tests.tiny_checkpoint import NUM_DYNAMIC_RELATIONS, VERSION, TinyCase


def write_edges_by_name(case: TinyCase) -> list[tuple[str, str, str]]:
    """Write `edges.tsv`, bucket by bucket as the rows stand, and names of all entities and relations into `entity`.

    Returns:
        The edges of the file.
    """
    for name, schema in case.settings["entities"].items():
        for part in range(schema["num_partitions"]):
            with h5py.File(case.root / "checkpoint" / f"embeddings_{name}_{part}.v{VERSION}.h5") as file:
                size = len(file["embeddings"])
            names = [f"{name}/{part}/{row}" for row in range(size)]
            path = case.root / "entity" / f"entity_names_{name}_{part}.json"
            path.write_text(json.dumps(names, indent=4), encoding="utf-8")
    (case.root / "entity" / "dynamic_rel_names.json").write_text(json.dumps(_relation_names(case)), encoding="utf-8")
    edges = [
        (_name(case, rel, "lhs", left, lhs), _relation_names(case)[rel], _name(case, rel, "rhs", right, rhs))
        for (left, right), rows in sorted(buckets_in(case.root / "edges").items())
        for lhs, rel, rhs in rows
    ]
    write_tsv(case.root / "edges.tsv", edges)
    return edges


def write_tsv(path: Path, edges: list[tuple[str, ...]]) -> None:
    """Write edges as lines of columns by tabs."""
    path.write_text("".join("\t".join(edge) + "\n" for edge in edges), encoding="utf-8")


def _relation_names(case: TinyCase) -> list[str]:
    if case.settings["dynamic_relations"]:
        return [f"r{index}" for index in range(NUM_DYNAMIC_RELATIONS)]
    return [relation["name"] for relation in case.settings["relations"]]


def _name(case: TinyCase, rel: int, side: str, part: int, row: int) -> str:
    entity_type = case.settings["relations"][0 if case.settings["dynamic_relations"] else rel][side]
    in_parts = case.settings["entities"][entity_type]["num_partitions"] > 1
    return f"{entity_type}/{part if in_parts else 0}/{row}"
