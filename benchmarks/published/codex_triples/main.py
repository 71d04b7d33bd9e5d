"""Checks metrics of triple classification on CoDEx's verified negatives against scikit-learn's; prints a table.

    python benchmarks/published/codex_triples/main.py --data FOLDER
    python benchmarks/published/codex_triples/main.py --smoke    # a made graph: does it run?

FOLDER holds codex-s and codex-m. What each figure means is explained in the README beside this file.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from benchmarks.published.codex_triples.triples import Classified, predicted, splits
from pbgeval.metrics.auc import pooled_auc
from pbgeval.metrics.classification import classification_metrics, confusion_metrics
from pbgeval.stats.groups import ScorePool, sortable_int32

# By theirs.py, with scikit-learn 1.9.1.
SCIKIT_LEARN = {
    "codex-s": {
        "auc": 0.8318067120263924,
        "average_precision": 0.8251940250940664,
        "accuracy": 0.7981400437636762,
        "f1": 0.8082120582120582,
        "balanced_accuracy": 0.7981400437636761,
        "matthews": 0.5995966027946923,
    },
    "codex-m": {
        "auc": 0.6773669590505901,
        "average_precision": 0.6976797233428176,
        "accuracy": 0.7522548734361362,
        "f1": 0.7363913110778597,
        "balanced_accuracy": 0.7522548734361362,
        "matthews": 0.5082040412142225,
    },
}


def main() -> None:
    """Compute, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--data", type=Path, help="folder with codex-s and codex-m")
    source.add_argument("--smoke", action="store_true", help="a made graph")
    options = parser.parse_args()
    print("| figure | scikit-learn | ours | difference |\n|---|---|---|---|")
    for name, theirs in SCIKIT_LEARN.items():
        ours = figures(*splits(None if options.smoke else options.data / name))
        for figure, value in theirs.items():
            print(f"| {name} {figure} | {value:.12f} | {ours[figure]:.12f} | {ours[figure] - value:+.1e} |")


def figures(valid: Classified, test: Classified) -> dict[str, float | None]:
    """Return our figures of the test triples."""
    true, false = (test.score_T[test.is_true_T == kind] for kind in (True, False))
    pool = ScorePool(*([sortable_int32(torch.from_numpy(of))] for of in (true, false))).sort()
    auc = pooled_auc([pool], all_true=True, all_competing=True)
    assert auc is not None, "both kinds have triples"
    options, place_T = np.unique(-test.score_T, return_inverse=True)
    counts = [np.bincount(place_T[test.is_true_T == kind], minlength=options.size) for kind in (True, False)]
    of_scores = classification_metrics(*counts, num_scores=place_T.size)
    is_positive_T = predicted(valid, test)
    tp, fn = (int((test.is_true_T & (is_positive_T == kind)).sum()) for kind in (True, False))
    fp, tn = (int((~test.is_true_T & (is_positive_T == kind)).sum()) for kind in (True, False))
    of_threshold = confusion_metrics(tp, fp, fn, tn)
    return {"auc": auc.value, "average_precision": of_scores["average_precision_score"]} | {
        name: of_threshold[key]
        for name, key in (
            ("accuracy", "accuracy"),
            ("f1", "f1_score"),
            ("balanced_accuracy", "balanced_accuracy_score"),
            ("matthews", "matthews_correlation_coefficient"),
        )
    }


if __name__ == "__main__":
    main()
