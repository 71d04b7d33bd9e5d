"""Checks ranks under the type constraints of OpenKE's files against a slow reference; prints a table.

    python benchmarks/published/openke_types/main.py --data FOLDER
    python benchmarks/published/openke_types/main.py --smoke    # a made graph: does it run?

What each figure means is explained in the README beside this file.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

import h5py
import numpy as np
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from benchmarks.published.graphs import made_graph
from pbgeval import Side, evaluate_triples, from_ranks, side_scorer

HEAD, RELATION, TAIL = range(3)
SIDES = {Side.LHS: (HEAD, TAIL), Side.RHS: (TAIL, HEAD)}  # columns of the answer and of the known entity
DIMENSION = 8
FIGURES = ("optimistic.mrr", "realistic.mrr", "pessimistic.mrr", "mean_rank", "hits@10", "adjusted_mean_rank_index")

Types = dict[tuple[Side, int], set[int]]  # the entities that may be at a side of a relation


def main() -> None:
    """Evaluate, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--data", type=Path, help="folder of OpenKE's benchmarks, for example WN18RR")
    source.add_argument("--smoke", action="store_true", help="a made graph")
    options = parser.parse_args()
    parts = made_graph(60, 6, 6) if options.smoke else [read(options.data / f"{name}2id.txt") for name in FILES]
    of_edges = types_of_edges(np.concatenate(parts))
    types = of_edges if options.smoke else read_types(options.data / "type_constrain.txt")
    unlike = sum(types[key] != of_edges.get(key) for key in types)
    print(f"{len(types)} lists of type_constrain.txt; not what the edges have: {unlike}\n")
    vectors = Vectors(parts)
    theirs = slow_ranks(vectors, parts, types)
    ours = our_ranks(vectors, parts)
    equal = int((theirs == ours).all(axis=0).sum())
    print("| figure | reference | ours | difference |\n|---|---|---|---|")
    print(f"| queries with equal ranks and candidates | {theirs.shape[1]} | {equal} | {equal - theirs.shape[1]} |")
    figures = [from_ranks(*of) for of in (theirs, ours)]
    for name in FIGURES:
        reference, found = (of[name] for of in figures)
        print(f"| {name} | {reference:.12f} | {found:.12f} | {found - reference:+.1e} |")
    without_test = types_of_edges(np.concatenate(parts[:2]))
    outside = sum(
        edge[answer] not in without_test.get((side, edge[RELATION]), ())
        for side, (answer, _) in SIDES.items()
        for edge in parts[-1].tolist()
    )
    print(f"\nqueries whose answer only test edges put into the list: {outside} of {2 * len(parts[-1])}")


FILES = ("train", "valid", "test")


def read(path: Path) -> np.ndarray:
    """Read head, tail and relation of each line but the first; return (edges, 3): head, relation, tail."""
    return np.loadtxt(path, dtype=np.int64, skiprows=1)[:, [0, 2, 1]]


def read_types(path: Path) -> Types:
    """Read two lines for each relation, heads and tails: the relation, the number of entities, the entities."""
    found: Types = {}
    for line in path.read_text(encoding="utf-8").splitlines()[1:]:
        relation, count, *entities = map(int, line.split())
        assert len(entities) == count, f"{path}: relation {relation}: {len(entities)} entities, not {count}"
        side = Side.RHS if (Side.LHS, relation) in found else Side.LHS
        found[side, relation] = set(entities)
    return found


def types_of_edges(edges_E3: np.ndarray) -> Types:
    """Return the entities that edges have at each side of each relation."""
    found: Types = defaultdict(set)
    for side, (answer, _) in SIDES.items():
        for edge in edges_E3.tolist():
            found[side, edge[RELATION]].add(edge[answer])
    return dict(found)


class Vectors:
    """A model of small whole numbers (DistMult), whose scores are exact in float32 and tie often."""

    def __init__(self, parts: list[np.ndarray]) -> None:
        everything_E3 = np.concatenate(parts)
        source = np.random.default_rng(0)
        self.num_entities = int(everything_E3[:, [HEAD, TAIL]].max()) + 1
        self.num_relations = int(everything_E3[:, RELATION].max()) + 1
        self.entity_ND = source.integers(-9, 10, (self.num_entities, DIMENSION)).astype(np.float32)
        self.relation_RD = source.integers(-9, 10, (self.num_relations, DIMENSION)).astype(np.float32)

    def __call__(self, hidden: Side, edges_B3: Tensor) -> Tensor:
        """Return the scores (B, N)."""
        known_B, relation_B = edges_B3[:, SIDES[hidden][1]].numpy(), edges_B3[:, RELATION].numpy()
        return torch.from_numpy((self.entity_ND[known_B] * self.relation_RD[relation_B]) @ self.entity_ND.T)


def our_ranks(vectors: Vectors, parts: list[np.ndarray]) -> np.ndarray:
    """Return the optimistic and pessimistic rank and the number of candidates of each query by pbgeval, (3, Q)."""
    train_E3, valid_E3, test_E3 = parts
    scorer = side_scorer(vectors, num_entities=vectors.num_entities, num_relations=vectors.num_relations)
    with tempfile.TemporaryDirectory() as folder:
        evaluate_triples(
            scorer,
            test_E3,
            train=[train_E3],
            known=[valid_E3],
            type_constraint="observed",
            metrics=["rank"],
            save_ranks=True,
            output=Path(folder) / "out",
        )
        (path,) = (Path(folder) / "out" / "ranks").glob("*/ranks_*.h5")
        with h5py.File(path) as file:
            sides = [{name: column[:] for name, column in file[side].items()} for side in ("head", "tail")]
    found = []
    for of in sides:
        better = of["better"] - of["excluded_better"]
        tied = of["tied"] - of["excluded_tied"]
        found.append((1 + better, 1 + better + tied, of["num_candidates"] - of["num_excluded"]))
    return np.concatenate(found, axis=1)


def slow_ranks(vectors: Vectors, parts: list[np.ndarray], types: Types) -> np.ndarray:
    """Return the same, one query at a time, from the lists of a file."""
    answers = defaultdict(set)
    for side, (answer, known) in SIDES.items():
        for edge in np.concatenate(parts).tolist():
            answers[side, edge[known], edge[RELATION]].add(edge[answer])
    found = []
    for side, (answer, known) in SIDES.items():
        for edge in parts[-1].tolist():
            competing = types[side, edge[RELATION]] - answers[side, edge[known], edge[RELATION]]
            query_D = vectors.entity_ND[edge[known]].astype(np.int64) * vectors.relation_RD[edge[RELATION]].astype(
                np.int64
            )
            scores = vectors.entity_ND[list(competing)].astype(np.int64) @ query_D
            true = int(vectors.entity_ND[edge[answer]].astype(np.int64) @ query_D)
            better, tied = int((scores > true).sum()), int((scores == true).sum())
            found.append((1 + better, 1 + better + tied, 1 + len(competing)))
    return np.array(found).T


if __name__ == "__main__":
    main()
