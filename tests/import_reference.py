"""Importing a graph as a page of plain Python says it: dictionaries, partitions, buckets. No engine, no HDF5."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence

Edge = tuple  # (head, relation, tail) or with a weight
Names = dict  # {type: [names of each partition]}


def dictionaries(
    edges: Sequence[Edge], types: Mapping[str, tuple[str, str]], counts: Mapping[str, int], degree: bool, seed: int
) -> Names:
    """Deal the entities of each type to partitions."""
    degrees: dict[str, Counter[str]] = {name: Counter() for name in counts}
    for head, relation, tail, *_ in edges:
        degrees[types[relation][0]][head] += 1
        degrees[types[relation][1]][tail] += 1
    dealt: Names = {}
    for entity_type, num_partitions in counts.items():
        names = sorted(degrees[entity_type])
        if degree:
            names.sort(key=lambda name: -degrees[entity_type][name])
        else:
            names.sort(key=lambda name: hashlib.md5(f"{seed}:{name}".encode()).hexdigest())
        parts: list[list[str]] = [[] for _ in range(num_partitions)]
        forth = list(range(num_partitions))
        for start in range(0, len(names), num_partitions):
            block = names[start : start + num_partitions]
            back = degree and start // num_partitions % 2 == 1
            for part, name in zip(reversed(forth) if back else forth, block, strict=False):
                parts[part].append(name)
        dealt[entity_type] = parts
    return dealt


def buckets(
    edges: Sequence[Edge], types: Mapping[str, tuple[str, str]], names: Names, relations: Sequence[str]
) -> tuple[dict[tuple[int, int], list[Edge]], Counter[tuple[str, str]]]:
    """Number the edges; return them by bucket, in order, and what the dictionaries lack with how often."""
    places = {
        entity_type: {name: (part, row) for part, of_part in enumerate(parts) for row, name in enumerate(of_part)}
        for entity_type, parts in names.items()
    }
    found: dict[tuple[int, int], list[Edge]] = {}
    unknown: Counter[tuple[str, str]] = Counter()
    for head, relation, tail, *weight in edges:
        if relation not in relations:
            unknown["relation", relation] += 1
            continue
        ends = [(types[relation][0], head), (types[relation][1], tail)]
        lacking = [(entity_type, name) for entity_type, name in ends if name not in places[entity_type]]
        for entity_type, name in lacking:
            unknown[f"entity:{entity_type}", name] += 1
        if not lacking:
            (left, lhs), (right, rhs) = (places[entity_type][name] for entity_type, name in ends)
            found.setdefault((left, right), []).append((lhs, relations.index(relation), rhs, *weight))
    return found, unknown
