"""Print the figures of scikit-learn that main.py compares ours with.

    "$(scripts/peers pykeen)"/python benchmarks/published/codex_triples/theirs.py FOLDER

PyKEEN requires scikit-learn.
"""

from __future__ import annotations

import sys
from pathlib import Path

import sklearn
from sklearn import metrics

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from benchmarks.published.codex_triples.triples import predicted, splits

print(f"scikit-learn {sklearn.__version__}")
for name in ("codex-s", "codex-m"):
    valid, test = splits(Path(sys.argv[1]) / name)
    is_positive = predicted(valid, test)
    print(
        name,
        {
            "auc": float(metrics.roc_auc_score(test.is_true_T, test.score_T)),
            "average_precision": float(metrics.average_precision_score(test.is_true_T, test.score_T)),
            "accuracy": float(metrics.accuracy_score(test.is_true_T, is_positive)),
            "f1": float(metrics.f1_score(test.is_true_T, is_positive)),
            "balanced_accuracy": float(metrics.balanced_accuracy_score(test.is_true_T, is_positive)),
            "matthews": float(metrics.matthews_corrcoef(test.is_true_T, is_positive)),
        },
    )
