"""A case's edges as a file of names with its dictionaries, and what an import has written, by h5py alone."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from pathlib import Path

import h5py

from pbgeval.importing.edge_names import edge_names
from pbgeval.storage.edge_columns import ColumnForm
from pbgeval.storage.edge_text import Names
from pbgeval.storage.text import name_of
from tests.kit.case import NUM_DYNAMIC_RELATIONS, VERSION, TinyCase


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


def names_of(path: Path) -> Iterator[Names]:
    """Read a file of edges in blocks as commands do without options; what is doubtful is a failure."""
    return edge_names(path, ColumnForm(), warnings.warn)


def _relation_names(case: TinyCase) -> list[str]:
    if case.settings["dynamic_relations"]:
        return [f"r{index}" for index in range(NUM_DYNAMIC_RELATIONS)]
    return [relation["name"] for relation in case.settings["relations"]]


def _name(case: TinyCase, rel: int, side: str, part: int, row: int) -> str:
    entity_type = case.settings["relations"][0 if case.settings["dynamic_relations"] else rel][side]
    in_parts = case.settings["entities"][entity_type]["num_partitions"] > 1
    return f"{entity_type}/{part if in_parts else 0}/{row}"


# What an import has written


def buckets_in(folder: Path) -> dict[tuple[int, int], list[tuple]]:
    """Return rows (lhs, rel, rhs) or with weights and times, by bucket."""
    found = {}
    for path in folder.glob("edges_*_*.h5"):
        with h5py.File(path) as file:
            names = ["lhs", "rel", "rhs", *(name for name in ("weight", "time") if name in file)]
            _, lhs, rhs = path.stem.split("_")
            found[int(lhs), int(rhs)] = list(zip(*(file[name][:].tolist() for name in names), strict=True))
    return found


def names_in(folder: Path, counts: dict[str, int]) -> dict[str, list[list[str]]]:
    """Return the names of each partition of each type, after a look at the counts."""
    names = {
        entity_type: [json.loads((folder / f"entity_names_{entity_type}_{part}.json").read_text()) for part in range(n)]
        for entity_type, n in counts.items()
    }
    assert [
        (entity_type, parts, part, of_part)
        for entity_type, parts in names.items()
        for part, of_part in enumerate(parts)
        if f"{len(of_part)}\n" != (folder / f"entity_count_{entity_type}_{part}.txt").read_text()
    ] == []
    return names


def relations_in(folder: Path) -> list[str]:
    """Return the names of relations, after a look at their number."""
    names = json.loads((folder / "dynamic_rel_names.json").read_text())
    assert f"{len(names)}\n" == (folder / "dynamic_rel_count.txt").read_text()
    return names


def unknown_in(path: Path) -> dict[tuple[str, str], int]:
    """Return the occurrences of what `unknown.tsv` lists; nothing where there is none."""
    if not path.exists():
        return {}
    rows = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]
    assert rows[0] == ["what", "name", "occurrences"]
    return {(what, name_of(name)): int(number) for what, name, number in rows[1:]}
