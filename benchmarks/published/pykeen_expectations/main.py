"""Checks the expectations behind adjusted metrics against PyKEEN's closed forms; prints a table.

    python benchmarks/published/pykeen_expectations/main.py --data FOLDER
    python benchmarks/published/pykeen_expectations/main.py --smoke    # a made graph: does it run?

What each figure means is explained in the README beside this file.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from benchmarks.published.pykeen_expectations.queries import edges
from pbgeval import Report, Side, evaluate_triples, side_scorer

# Metric: its expectation and standard deviation under random ranks, by theirs.py with PyKEEN 1.11.1.
PYKEEN = {
    "arithmetic_mean_rank": (20464.501914486278, 149.2333565683212),
    "inverse_harmonic_mean_rank": (0.00027357352873275484, 8.000036391836607e-05),
    "hits_at_1": (2.4433200917966642e-05, 6.2433888372082e-05),
    "hits_at_3": (7.329960275389991e-05, 0.00010813602449821332),
    "hits_at_10": (0.00024433200917966635, 0.00019741158099300307),
}
ADJUSTED = {  # the metrics that were adjusted, and from which the expectation follows
    "arithmetic_mean_rank": "mean_rank",
    "inverse_harmonic_mean_rank": "mean_reciprocal_rank",
    "hits_at_1": "hits_at_1",
    "hits_at_3": "hits_at_3",
    "hits_at_10": "hits_at_10",
}


def main() -> None:
    """Evaluate random scores, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--data", type=Path, help="folder with train.txt, valid.txt, test.txt of WN18RR")
    source.add_argument("--smoke", action="store_true", help="a made graph")
    options = parser.parse_args()
    train_E3, valid_E3, test_E3 = edges(options.data)
    everything_E3 = np.concatenate([train_E3, valid_E3, test_E3])
    num_entities, num_relations = int(everything_E3[:, [0, 2]].max()) + 1, int(everything_E3[:, 1].max()) + 1
    scorer = side_scorer(RandomScores(num_entities), num_entities=num_entities, num_relations=num_relations)
    report = evaluate_triples(scorer, test_E3, train=[train_E3], known=[valid_E3], metrics=["rank"], hits_at=[1, 3, 10])
    print("| figure | PyKEEN | ours | difference |\n|---|---|---|---|")
    for name, of_pykeen in PYKEEN.items():
        for what, theirs, ours in zip(("expectation", "deviation"), of_pykeen, expected(report, name), strict=True):
            print(f"| {name}, {what} | {theirs:.10g} | {ours:.10g} | {ours / theirs - 1:+.0e} of it |")
    print("\n| random scores | value | deviations from the expectation |\n|---|---|---|")
    for name, metric in ADJUSTED.items():
        print(f"| {metric} | {report[metric]:.6g} | {report[f'z_{name}']:+.2f} |")


def expected(report: Report, name: str) -> tuple[float, float]:
    """Return the expectation and the standard deviation that a metric's adjusted and z forms were made with."""
    value = report[ADJUSTED[name]]
    adjusted = report[f"adjusted_{name}"]
    if name == "arithmetic_mean_rank":
        expectation = value / adjusted
        return expectation, (expectation - value) / report[f"z_{name}"]
    expectation = (value - adjusted) / (1 - adjusted)
    return expectation, (value - expectation) / report[f"z_{name}"]


class RandomScores:
    """A function for `pbgeval.side_scorer`: random numbers, the same for a query each time."""

    def __init__(self, num_entities: int) -> None:
        self.num_entities = num_entities

    def __call__(self, hidden: Side, edges_B3: Tensor) -> Tensor:
        """Return the scores (B, N)."""
        seeds = ([hidden.value, *edge] for edge in edges_B3.tolist())
        rows = [np.random.default_rng(seed).random(self.num_entities, np.float32) for seed in seeds]
        return torch.from_numpy(np.stack(rows))


if __name__ == "__main__":
    main()
