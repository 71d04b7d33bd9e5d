"""Counts how often the 95% intervals of metrics.json cover the value that they are of, over many seeds.

    python benchmarks/coverage/main.py              # 500 seeds
    python benchmarks/coverage/main.py --seeds 100
    python benchmarks/coverage/main.py --smoke      # one: does it run?

What the value is under each design stands in the README beside this file.
"""

import argparse
import contextlib
import os
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from statistics import NormalDist
from typing import Any
from unittest import mock

import numpy as np
import torch
from attrs import field, frozen

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks import machine
from pbgeval import Edges, EvalConfig, evaluate
from pbgeval.notation import Side
from pbgeval.ranking import auc_sampling

NUM_ENTITIES, NUM_RELATIONS, DIMENSION = 100, 4, 6
NUM_EDGES, SAMPLED_EDGES = 1000, 250
NUM_POPULATION = 20_000
Z = NormalDist().inv_cdf(0.975)
LOWEST, HIGHEST = 0.93, 0.97
SIDES = ("head", "tail", "both")


@frozen(eq=False)
class Model:
    """Bilinear scores of vectors with unlike lengths, so that scores of one query are alike."""

    num_entities: int = NUM_ENTITIES
    num_relations: int = NUM_RELATIONS
    entities_ND: torch.Tensor = field(init=False)
    relations_RD: torch.Tensor = field(init=False)

    @entities_ND.default
    def _entities(self) -> torch.Tensor:
        generator = torch.Generator().manual_seed(1)
        lengths_N1 = torch.exp(torch.randn((self.num_entities, 1), generator=generator) / 2)
        return lengths_N1 * torch.randn((self.num_entities, DIMENSION), generator=generator)

    @relations_RD.default
    def _relations(self) -> torch.Tensor:
        return torch.randn((self.num_relations, DIMENSION), generator=torch.Generator().manual_seed(2))

    def scores(
        self, hidden: Side, known_Q: torch.Tensor, relation_Q: torch.Tensor, candidate_C: torch.Tensor
    ) -> torch.Tensor:
        """Return the scores (Q, C); the model has no direction."""
        query_QD = self.entities_ND[known_Q] * self.relations_RD[relation_Q]
        return (query_QD.double() @ self.entities_ND[candidate_C].double().T).float()


@frozen
class Design:
    """What is drawn anew with each seed, and of what the intervals speak."""

    name: str
    settings: Mapping[str, Any]
    whole: Mapping[str, Any]  # settings of the evaluation that has the true values
    truth_moves: bool = False  # with the seed
    draws_cells: bool = False


FAMILIES = ["rank", "auc", "average_precision", "classification"]
EVERYBODY = {"candidates": "all", "metrics": FAMILIES}
LISTS = {"candidates": "sampled", "num_batch_negs": 10, "num_uniform_negs": 10, "batch_size": 500, "metrics": FAMILIES}
DRAWN = {"candidates": "all", "metrics": ["rank", "auc"]}  # figures of a classifier are not estimated from such pools
RANKS = {"candidates": "all", "metrics": ["rank", "query_auc"], "hits_at": [1, 3, 10]}
SAMPLE = {"sample_edges": SAMPLED_EDGES}
TEST_EDGES = "test edges"  # no sample of them: of all, drawn anew from a population
DESIGNS = (
    Design("edges", EVERYBODY | SAMPLE, EVERYBODY),
    Design("edges, sampled candidates", LISTS | SAMPLE, LISTS, truth_moves=True),
    Design("scores of the pool", DRAWN, DRAWN, draws_cells=True),
    Design("edges and scores of the pool", DRAWN | SAMPLE, DRAWN, draws_cells=True),
)


def edges_of(model: Model, num_edges: int = NUM_EDGES) -> Edges:
    """Draw edges whose tails score high."""
    random = np.random.default_rng(3)
    head = random.integers(0, NUM_ENTITIES, num_edges)
    rel = random.integers(0, NUM_RELATIONS, num_edges)
    every = torch.arange(NUM_ENTITIES)
    scores = model.scores(Side.RHS, torch.from_numpy(head), torch.from_numpy(rel), every).numpy()
    tail = np.argmax(scores + 2 * random.gumbel(size=scores.shape), axis=1)
    return Edges(np.column_stack([head, rel, tail]))


@contextlib.contextmanager
def few_scores(*, drawn: bool) -> Iterator[None]:
    """Have the pools hold a sample of the scores, as those of large evaluations do."""
    with contextlib.ExitStack() as stack:
        if drawn:
            for name, value in (("EXACT_CELLS", 0), ("SAMPLED_CELLS", 60_000), ("SAMPLED_TRUE", 300)):
                stack.enter_context(mock.patch.object(auc_sampling, name, value))
        yield


def run(settings: Mapping[str, Any], seed: int, model: Model, edges: Edges, *, drawn: bool = False) -> dict[str, Any]:
    """Evaluate; return what metrics.json holds."""
    with few_scores(drawn=drawn), tempfile.TemporaryDirectory(prefix="pbgeval-coverage-") as folder:
        return evaluate(
            EvalConfig(seed=seed, **settings),
            output=Path(folder) / "output",
            workers=1,
            device="cpu",
            model=model,
            edges=edges,
        ).document


def coverage(design: Design, seeds: range, model: Model, edges: Edges) -> dict[str, tuple[int, int]]:
    """Return for each interval how often it covers, and how often there is one."""
    covered: dict[str, int] = defaultdict(int)
    found: dict[str, int] = defaultdict(int)
    whole = run(design.whole, 0, model, edges)["metrics"]
    for seed in seeds:
        document = run(design.settings, seed, model, edges, drawn=design.draws_cells)
        if design.truth_moves:
            whole = run(design.whole, seed, model, edges)["metrics"]
        for key, interval in document["intervals"].items():
            if whole.get(key) is not None:
                found[key] += 1
                covered[key] += interval["low"] <= whole[key] + 1e-12 and whole[key] - 1e-12 <= interval["high"]
    return {key: (covered[key], times) for key, times in found.items()}


def coverage_of_errors(seeds: range, model: Model) -> dict[str, tuple[int, int]]:
    """Return for each standard error how often 1.96 of it cover the population's value, and how often there is one."""
    population = np.asarray(edges_of(model, NUM_POPULATION).evaluated)
    whole = run(RANKS, 0, model, Edges(population))["metrics"]
    covered: dict[str, int] = defaultdict(int)
    found: dict[str, int] = defaultdict(int)
    for seed in seeds:
        rows = np.random.default_rng([4, seed]).integers(0, NUM_POPULATION, NUM_EDGES)
        document = run(RANKS, 0, model, Edges(population[rows]))
        for key, error in document["standard_errors"].items():
            found[key] += 1
            covered[key] += abs(document["metrics"][key] - whole[key]) <= Z * error
    return {key: (covered[key], times) for key, times in found.items()}


def rows_of(found: Mapping[str, tuple[int, int]]) -> list[tuple[str, dict[str, float]]]:
    """Return the coverage by metric and side; metrics with the same coverage on every side share a row."""
    table: dict[str, dict[str, float]] = defaultdict(dict)
    for key, (covered, times) in found.items():
        side, _, metric = key.partition(".")
        table[metric][side] = covered / times
    alike: dict[tuple[tuple[str, float], ...], list[str]] = defaultdict(list)
    for metric, shares in sorted(table.items()):
        alike[tuple(sorted(shares.items()))].append(f"`{metric}`")
    return [(", ".join(metrics), dict(shares)) for shares, metrics in alike.items()]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=500)
    parser.add_argument("--smoke", action="store_true", help="one seed: the figures mean nothing")
    parser.add_argument("--designs", nargs="*", default=None, help="parts of the names of designs; all if left out")
    arguments = parser.parse_args()
    num_seeds, load = 1 if arguments.smoke else arguments.seeds, os.getloadavg()[0]
    torch.set_num_threads(1)
    model = Model()
    edges = edges_of(model)
    print(machine.describe("benchmarks/coverage/main.py", load))
    print(f"Graph: {NUM_EDGES} edges, {NUM_ENTITIES} entities; {SAMPLED_EDGES} edges sampled; {num_seeds} seeds\n")
    print("| drawn | metrics | head | tail | both | |\n|---|---|---|---|---|---|")
    ways = {design.name: partial(coverage, design, range(num_seeds), model, edges) for design in DESIGNS}
    ways[TEST_EDGES] = partial(coverage_of_errors, range(num_seeds), model)
    for name, covered in ways.items():
        if arguments.designs and not any(part in name for part in arguments.designs):
            continue
        for metrics, shares in rows_of(covered()):
            shown = [f"{100 * shares[side]:.1f}%" if side in shares else "" for side in SIDES]
            outside = any(not LOWEST <= share <= HIGHEST for share in shares.values())
            print(f"| {name} | {metrics} | {' | '.join(shown)} | {'outside' if outside else ''} |", flush=True)


if __name__ == "__main__":
    main()
