"""Checks ULTRA on WN18RR, zero-shot, against its published figures; prints a table.

    python benchmarks/published/wn18rr_ultra/main.py --data FOLDER --weights ultra_4g.pth
    python benchmarks/published/wn18rr_ultra/main.py --smoke    # a made graph and random weights: does it run?

What each figure means is explained in the README beside this file.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from benchmarks.published.graphs import made_graph, numbered, read
from benchmarks.published.wn18rr_ultra.ultra import Ultra
from pbgeval import Report, evaluate_triples, side_scorer

# The authors' log of the checkpoint with four graphs: github.com/DeepGraphLearning/ULTRA, issue 26.
PUBLISHED = {"mean_rank": 837.171, "mrr": 0.483882, "hits@1": 0.414805, "hits@3": 0.519783, "hits@10": 0.617422}
RANK_TYPES = ("optimistic", "realistic", "expected", "pessimistic")
BATCH_SIZE = 32
FILES = ("train", "valid", "test")


def main() -> None:
    """Evaluate, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with train.txt, valid.txt, test.txt")
    parser.add_argument("--weights", type=Path, help="ultra_4g.pth")
    parser.add_argument("--smoke", action="store_true", help="a made graph and random weights")
    parser.add_argument("--edges", type=int, help="evaluate a random sample of so many test edges; default: all")
    parser.add_argument("--seed", type=int, default=0, help="of the sample; default: 0")
    options = parser.parse_args()
    if not options.smoke and None in (options.data, options.weights):
        parser.error("--data and --weights are required without --smoke")
    parts = made_graph(60, 6, 6) if options.smoke else numbered([read(options.data / f"{name}.txt") for name in FILES])
    train_E3, valid_E3, test_E3 = parts
    sample_E3 = test_E3
    if options.edges is not None:
        source = np.random.default_rng(options.seed)
        sample_E3 = test_E3[np.sort(source.choice(len(test_E3), options.edges, replace=False))]
    report, seconds = evaluate(train_E3, sample_E3, np.concatenate([valid_E3, test_E3]), options.weights)
    print(f"{len(sample_E3):,} of {len(test_E3):,} test edges, {seconds:,.0f} s of processor\n")
    print("| figure | published | ours | difference |\n|---|---|---|---|")
    for metric, value in PUBLISHED.items():
        ours = report[f"pessimistic.{metric}"]
        print(f"| {metric} | {value:.6g} | {ours:.6g} | {ours - value:+.6f} |")
    print(f"\n| figure | {' | '.join(RANK_TYPES)} | standard error |\n|---|---|---|---|---|---|")
    for metric in PUBLISHED:
        values = [*(report[f"{rank_type}.{metric}"] for rank_type in RANK_TYPES), standard_error(report, metric)]
        print(f"| {metric} | {' | '.join(f'{value:.6g}' for value in values)} |")


def standard_error(report: Report, metric: str) -> float:
    """Return that of sampling test edges."""
    name = {"mrr": "mean_reciprocal_rank"}.get(metric, metric.replace("@", "_at_"))
    return report.standard_errors.get(f"both.pessimistic.{name}", float("nan"))


def evaluate(
    facts_E3: np.ndarray, test_E3: np.ndarray, known_E3: np.ndarray, weights: Path | None
) -> tuple[Report, float]:
    """Rank the test edges with pbgeval; return the report and seconds of processor time."""
    everything_E3 = np.concatenate([facts_E3, test_E3, known_E3])
    num_entities, num_relations = int(everything_E3[:, [0, 2]].max()) + 1, int(everything_E3[:, 1].max()) + 1
    torch.manual_seed(0)
    model = Ultra(facts_E3, num_entities, num_relations).eval()
    if weights is not None:
        model.load(weights)
    known, relation = test_E3[0, :2].tolist()
    assert torch.allclose(model.scores(known, relation), model.slow_scores(known, relation), rtol=1e-3, atol=1e-3)
    start = time.process_time()
    scorer = side_scorer(model, num_entities=num_entities, num_relations=num_relations, batch_size=BATCH_SIZE)
    report = evaluate_triples(scorer, test_E3, train=[facts_E3], known=[known_E3], hits_at=[1, 3, 10])
    return report, time.process_time() - start


if __name__ == "__main__":
    main()
