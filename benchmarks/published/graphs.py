"""Graphs as text: a line for each edge, head, relation and tail by name, between tabs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

Edge = tuple[str, ...]


def read(path: Path) -> list[Edge]:
    """Read the edges of a file."""
    return [tuple(line.split("\t")) for line in path.read_text(encoding="utf-8").splitlines()]


def numbered(parts: Sequence[Sequence[Edge]]) -> list[np.ndarray]:
    """Number entities and relations in the order of their names; return an array (edges, 3) of each part."""
    edges = [edge for part in parts for edge in part]
    entities = {name: number for number, name in enumerate(sorted({end for edge in edges for end in edge[::2]}))}
    relations = {name: number for number, name in enumerate(sorted({edge[1] for edge in edges}))}
    return [np.array([(entities[head], relations[rel], entities[tail]) for head, rel, tail in part]) for part in parts]


def made_graph(*counts: int) -> list[np.ndarray]:
    """Return random edges of 30 entities and 3 relations, as many parts as counts."""
    source = np.random.default_rng(0)
    return [np.stack([source.integers(size, size=count) for size in (30, 3, 30)], axis=1) for count in counts]
