"""Checks the recurrency baseline on ICEWS14 against its published figures; prints a table.

    python benchmarks/published/icews14_recurrency/main.py --data FOLDER
    python benchmarks/published/icews14_recurrency/main.py --data FOLDER --last-only    # another reading of the formula
    python benchmarks/published/icews14_recurrency/main.py --smoke    # a made graph: does it run?

What each figure means is explained in the README beside this file.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from benchmarks.published.icews14_recurrency.recurrency import (
    Baseline,
    Chosen,
    History,
    Parameters,
    choose,
    queries,
    reciprocal_ranks,
)
from pbgeval import Report, evaluate_triples, side_scorer

# Percent, single step, both sides, time-aware filter: Gastinger et al., IJCAI 2024, as corrected in 2025.
PUBLISHED = {"strict": {"mrr": 36.0, "hits@10": 47.9}, "combined": {"mrr": 37.4, "hits@10": 51.5}}
NOISE = 1e-4  # largest random number that is added to break ties
HOURS = 24
ROUNDING = 1e-9  # pbgeval rounds each reciprocal rank to fixed point
WAYS = {
    "float64": (torch.float64, 0.0),
    "float32": (torch.float32, 0.0),
    "float64, random ties": (torch.float64, NOISE),
    "float32, random ties": (torch.float32, NOISE),
}


def main() -> None:
    """Choose parameters on valid, evaluate test, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--data", type=Path, help="folder with train.txt, valid.txt, test.txt")
    source.add_argument("--smoke", action="store_true", help="a made graph")
    parser.add_argument("--last-only", action="store_true", help="strict scores of the last time alone, float64")
    options = parser.parse_args()
    train, valid, test = made_graph() if options.smoke else read(options.data)
    facts_E4 = np.concatenate([train, valid, test])
    history = History(facts_E4, int(facts_E4[:, [0, 2]].max()) + 1, last_only=options.last_only)
    ways = ["float64"] if options.last_only else [*WAYS]
    chosen = dict(zip(PUBLISHED, choose(history, valid), strict=True))
    reports = {
        (name, way): evaluate(history, parameters, test, *WAYS[way])
        for name, parameters in chosen.items()
        for way in ways
    }
    print(f"{len(train):,} / {len(valid):,} / {len(test):,} edges, {history.num_entities:,} entities\n")
    print("| figure | published | ours | difference |\n|---|---|---|---|")
    for name, figures in PUBLISHED.items():
        for metric, value in figures.items():
            ours = 100 * reports[name, "float64"].time_filtered[metric]
            print(f"| {name} {metric} | {value} | {ours:.2f} | {ours - value:+.2f} |")
    print("\n| scores | optimistic MRR | realistic | expected | pessimistic | hits@10 |\n|---|---|---|---|---|---|")
    for (name, way), report in reports.items():
        ranks = [report.time_filtered[f"{of}.mrr"] for of in ("optimistic", "realistic", "expected", "pessimistic")]
        cells = " | ".join(f"{100 * value:.2f}" for value in (*ranks, report.time_filtered["hits@10"]))
        print(f"| {name}, {way} | {cells} |")
    for name, parameters in chosen.items():
        by_numpy, by_us = mean_by_numpy(history, parameters, test), reports[name, "float64"].time_filtered["mrr"]
        assert abs(by_numpy - by_us) <= ROUNDING, f"{name}: MRR {by_us} by pbgeval, {by_numpy} by numpy"
        print(f"\n{name}: MRR by numpy alone {by_numpy:.12f}, by pbgeval {by_us:.12f}")


def evaluate(history: History, chosen: Chosen, test: np.ndarray, dtype: torch.dtype, noise: float) -> Report:
    """Rank the test edges with pbgeval."""
    scorer = side_scorer(
        Baseline(history, chosen, dtype, noise),
        num_entities=history.num_entities,
        num_relations=int(test[:, 1].max()) + 1,
        takes_time=True,
    )
    return evaluate_triples(scorer, test, known=[test], time_window=0, metrics=["rank"], hits_at=[1, 3, 10])


def mean_by_numpy(history: History, chosen: Chosen, test: np.ndarray) -> float:
    """Return the mean reciprocal rank, counted without pbgeval."""
    found = []
    for side, query in queries(test):
        known, relation, _, time = query
        parameters = chosen.get((side, relation), Parameters())
        scores_1N = history.combined(side, relation, known, time, parameters)[None]
        found.append(reciprocal_ranks(history, side, query, scores_1N)[0])
    return float(np.mean(found))


def read(folder: Path) -> list[np.ndarray]:
    """Read head, relation, tail and day of the three files."""
    parts = [np.loadtxt(folder / f"{name}.txt", dtype=np.int64)[:, :4] for name in ("train", "valid", "test")]
    return [part // [1, 1, 1, HOURS] for part in parts]


def made_graph() -> list[np.ndarray]:
    """Return edges of 20 days, of which most come again."""
    source = np.random.default_rng(0)
    edges_E4 = np.stack([source.integers(size, size=300) for size in (6, 2, 5, 20)], axis=1)
    return [
        edges_E4[(edges_E4[:, 3] >= start) & (edges_E4[:, 3] < stop)] for start, stop in ((0, 14), (14, 17), (17, 20))
    ]


if __name__ == "__main__":
    main()
