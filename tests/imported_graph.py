"""What an import has written, read with h5py and json alone."""

from __future__ import annotations

import json
import re
from pathlib import Path

import h5py

from pbgeval.storage.text import name_of

BUCKET = re.compile(r"edges_(\d+)_(\d+)\.h5")


def buckets_in(folder: Path) -> dict[tuple[int, int], list[tuple]]:
    """Return rows (lhs, rel, rhs) or with weights, by bucket."""
    found = {}
    for path in folder.iterdir():
        match = BUCKET.fullmatch(path.name)
        if match:
            with h5py.File(path) as file:
                names = ["lhs", "rel", "rhs", *(["weight"] if "weight" in file else [])]
                rows = list(zip(*(file[name][:].tolist() for name in names), strict=True))
            found[int(match[1]), int(match[2])] = rows
    return found


def names_in(folder: Path, counts: dict[str, int]) -> dict[str, list[list[str]]]:
    """Return the names of each partition of each type, after a look at the counts."""
    names = {
        entity_type: [json.loads((folder / f"entity_names_{entity_type}_{part}.json").read_text()) for part in range(n)]
        for entity_type, n in counts.items()
    }
    for entity_type, parts in names.items():
        for part, of_part in enumerate(parts):
            assert f"{len(of_part)}\n" == (folder / f"entity_count_{entity_type}_{part}.txt").read_text()
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
    assert ["what", "name", "occurrences"] == rows[0]
    return {(what, name_of(name)): int(number) for what, name, number in rows[1:]}
