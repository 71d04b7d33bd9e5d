"""WN18RR's test queries and the number of candidates of each. Needs numpy alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.published.graphs import made_graph, numbered, read


def edges(folder: Path | None) -> list[np.ndarray]:
    """Return train, valid and test of a folder, or of a made graph."""
    if folder is None:
        return made_graph(60, 6, 6)
    return numbered([read(folder / f"{name}.txt") for name in ("train", "valid", "test")])


def num_candidates(parts: list[np.ndarray]) -> np.ndarray:
    """Return the entities that compete in each test query, heads first: all but other known answers; int64 (Q,)."""
    known_E3 = np.unique(np.concatenate(parts), axis=0)
    num_entities = int(known_E3[:, [0, 2]].max()) + 1
    found = []
    for columns in ([1, 2], [0, 1]):  # of what a query knows
        keys, answers = np.unique(known_E3[:, columns], axis=0, return_counts=True)
        of_key = {tuple(key): int(count) for key, count in zip(keys.tolist(), answers, strict=True)}
        found += [num_entities - of_key[tuple(key)] + 1 for key in parts[-1][:, columns].tolist()]
    return np.array(found)
