"""Counts how often a comparison of five runs is wrong where none differs, and finds a difference that was planted.

    python benchmarks/many_runs/main.py              # 300 comparisons
    python benchmarks/many_runs/main.py --smoke      # few: does it run?

The README beside this file says how runs are simulated.
"""

import argparse
import os
import sys
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks import machine
from pbgeval.metrics.paired import Difference, differences, values_of
from pbgeval.report.comparing_many import corrected
from pbgeval.report.many_runs import GroupDifference, GroupPair
from pbgeval.report.run_overlap import Overlap
from pbgeval.stats.paired import PairedEdges, PairedSide, PairedStats
from pbgeval.stats.query_metrics import MEAN_RANK, MEAN_RECIPROCAL_RANK, hits_at
from pbgeval.stats.rank_types import RankType

METRICS = (MEAN_RANK, MEAN_RECIPROCAL_RANK, hits_at(1), hits_at(3), hits_at(10))
NUM_RUNS = 5
NUM_CANDIDATES = 500
PLANTED = 0.002  # of MRR
NOTHING = Overlap(10, None, 0, 0, None, None)


class Queries:
    """The two queries of each of some edges, as hard as they are for every run; some keys have many queries."""

    def __init__(
        self, words: np.random.Generator, num_edges: int, *, edges_per_unit: int = 1, has_ties: bool = False
    ) -> None:
        self.words, self.num_edges, self.num_keys = words, num_edges, max(num_edges // 2, 1)
        self.has_ties, self.units_have_noise = has_ties, edges_per_unit > 1
        self.unit_E = np.arange(num_edges) // edges_per_unit
        few = (words.pareto(1.2, num_edges) * self.num_keys / 8).astype(np.int64) % self.num_keys
        self.key_2E = np.stack([words.integers(0, self.num_keys, num_edges), few])
        self.how_easy_E = 1.5 * words.normal(size=num_edges)

    def noise(self) -> np.ndarray:
        """Return run-specific noise, (2, E): of edges, keys and queries, and of units of several edges."""
        normal = self.words.normal
        of_edge_E = 0.7 * normal(size=self.num_edges)
        if self.units_have_noise:
            of_edge_E += normal(size=self.num_edges)[self.unit_E]
        of_sides = [
            0.5 * normal(size=self.num_keys)[key_E] + 0.5 * normal(size=self.num_edges) for key_E in self.key_2E
        ]
        return np.stack(of_sides) + of_edge_E

    def values(self, noise_2E: np.ndarray, unlike: float, gain: float) -> np.ndarray:
        """Return each query's metrics, int64 (2, metrics, E); `unlike` scales the run-specific noise."""
        better_2E = np.floor(np.exp(3.0 - 1.2 * (self.how_easy_E + unlike * noise_2E + gain)))
        better_2E = better_2E.astype(np.int64).clip(0, NUM_CANDIDATES // 2)
        tied_2E = np.zeros_like(better_2E)
        if self.has_ties:
            tied_2E = (better_2E % 7 == 0) * self.words.integers(0, 4, better_2E.shape)
        candidates_E = np.full(self.num_edges, NUM_CANDIDATES - 1)
        return np.stack(
            [
                values_of(METRICS, (better_E, tied_E, candidates_E), RankType.REALISTIC)
                for better_E, tied_E in zip(better_2E, tied_2E, strict=True)
            ]
        )

    def differences(self, a_2ME: np.ndarray, b_2ME: np.ndarray, metrics: slice = slice(None)) -> list[Difference]:
        """Compare two runs by some of the metrics."""
        chosen = METRICS[metrics]
        stats = PairedStats.zero(len(chosen), 2, with_keys=True)
        sides = tuple(
            # A hash tells keys apart by its first bits.
            PairedSide(
                np.ones(self.num_edges, bool),
                of_a[metrics],
                (of_b - of_a)[metrics],
                key_E.astype(np.uint64) << np.uint64(32),
            )
            for of_a, of_b, key_E in zip(a_2ME, b_2ME, self.key_2E, strict=True)
        )
        stats.add(PairedEdges(np.zeros(self.num_edges, np.int64), self.unit_E, sides))
        return list(differences(stats, chosen, by_group=False)[0].differences)


def compared(seed: int, num_edges: int, unlike: float, gain: float, metrics: slice) -> list[GroupPair]:
    """Compare runs, the last of which is better."""
    queries = Queries(np.random.default_rng(seed), num_edges)
    gains = [0.0] * (NUM_RUNS - 1) + [gain]
    runs = [queries.values(queries.noise(), unlike, of_run) for of_run in gains]
    pairs = []
    for a, b in combinations(range(NUM_RUNS), 2):
        found = queries.differences(runs[a], runs[b], metrics)
        pairs.append(GroupPair(str(a), str(b), tuple(GroupDifference(of, of.p_value, None) for of in found), NOTHING))
    return corrected(pairs)


def family_wise_error(seeds: range, num_edges: int, unlike: float) -> float:
    """Return the share of comparisons of equal runs in which any two are called different, in any metric."""
    wrong = [
        any(of.difference.is_significant for pair in pairs for of in pair.differences)
        for pairs in (compared(seed, num_edges, unlike, 0.0, slice(None)) for seed in seeds)
    ]
    return sum(wrong) / len(wrong)


def found_pairs(seeds: range, num_edges: int, unlike: float, gain: float) -> Iterator[tuple[bool, float]]:
    """Yield, of each pair with the better run, whether its MRR is called better, and the standard error of the two."""
    for seed in seeds:
        for pair in compared(seed, num_edges, unlike, gain, slice(1, 2)):
            of = pair.differences[0].difference
            if pair.b == str(NUM_RUNS - 1):
                yield of.is_significant and of.difference > 0, of.standard_error or 0.0


def gain_of(planted: float, unlike: float, num_edges: int) -> float:
    """Return by how much a run's scores must be better for a planted difference in MRR, on the mean."""
    queries = Queries(np.random.default_rng(12345), num_edges)
    noise_2E = queries.noise()

    def mrr(gain: float) -> float:
        return float(queries.values(noise_2E, unlike, gain)[:, 1].mean()) / 2.0**32

    low, high, usual = 0.0, 1.0, mrr(0.0)
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if mrr(middle) - usual < planted else (low, middle)
    return high


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=300, metavar="N", help="comparisons of equal runs (default 300)")
    parser.add_argument("--smoke", action="store_true", help="only try whether it runs")
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    trials, edges, of_planted = (2, 60, 1) if arguments.smoke else (arguments.trials, 10_000, 20)
    print(machine.describe("benchmarks/many_runs/main.py", load), end="\n\n")
    print("| runs | queries | run-specific noise | found | |\n|---|---|---|---|---|")
    for num_edges, unlike in ((30, 1.0), (300, 1.0), (300, 0.1), (3_000 if not arguments.smoke else 60, 1.0)):
        error = family_wise_error(range(trials), num_edges, unlike)
        print(
            f"| equal | {2 * num_edges:,} | {unlike} | {100 * error:.1f}% | any two called different, wrongly |",
            flush=True,
        )
    for unlike in (0.05, 0.1, 0.2, 0.4):
        gain = gain_of(PLANTED, unlike, edges if arguments.smoke else 400_000)
        found = [*found_pairs(range(of_planted), edges, unlike, gain)]
        share = sum(is_found for is_found, _ in found) / len(found)
        error = sum(error for _, error in found) / len(found)
        print(
            f"| one is better by {PLANTED} MRR | {2 * edges:,} | {unlike} | {100 * share:.1f}% | pairs called "
            f"different, rightly; standard error {error:.5f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
