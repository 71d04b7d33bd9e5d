"""Figures of torchmetrics, PyTorch Geometric, OGB and TGB on random queries, and ours; run by the peer's Python.

Its command line: `.venv-peers/metrics/bin/python metrics_of_others.py`. Writes JSON: by test, their figures and ours.
"""

import json
import sys
from typing import Any

import ogb.linkproppred
import tgb.linkproppred.evaluate
import torch
from torch_geometric import metrics as geometric
from torchmetrics import retrieval

from pbgeval.integrations.metric_objects import RankMetric, TopKMetric

NUM_QUERIES, NUM_CANDIDATES, K = 400, 30, 5
GEOMETRIC = {
    "recall": geometric.LinkPredRecall,
    "precision": geometric.LinkPredPrecision,
    "f1": geometric.LinkPredF1,
    "map": geometric.LinkPredMAP,
    "ndcg": geometric.LinkPredNDCG,
    "mrr": geometric.LinkPredMRR,
    "hit_ratio": geometric.LinkPredHitRatio,
}


def main() -> None:
    """Compute them."""
    generator = torch.Generator().manual_seed(3)
    distinct_QC = torch.rand((NUM_QUERIES, NUM_CANDIDATES), generator=generator, dtype=torch.float64)
    tied_QC = torch.randint(0, 6, (NUM_QUERIES, NUM_CANDIDATES), generator=generator).double()
    true_Q = torch.randint(0, NUM_CANDIDATES, (NUM_QUERIES,), generator=generator)
    found = {
        "torchmetrics": torchmetrics_of(distinct_QC, true_Q),
        "ogb": ogb_of(tied_QC, "ogbl-wikikg2", ("mrr_list", "hits@1_list", "hits@3_list", "hits@10_list")),
        "ogb shared": ogb_of(tied_QC[:, 0], "ogbl-collab", ("hits@50",)),
        "tgb": tgb_of(tied_QC),
        "tgb shared": tgb_of(tied_QC[:, 0]),
        "geometric": geometric_of(generator),
    }
    sys.stdout.write(json.dumps(found))


def torchmetrics_of(scores_QC: torch.Tensor, true_Q: torch.Tensor) -> dict[str, Any]:
    """Return the mean reciprocal rank and hits of both, of one true candidate per query."""
    row = torch.arange(NUM_QUERIES).repeat_interleave(NUM_CANDIDATES)
    is_true = torch.nn.functional.one_hot(true_Q, NUM_CANDIDATES).flatten()
    theirs = {"mrr": retrieval.RetrievalMRR()} | {f"hits@{k}": retrieval.RetrievalHitRate(top_k=k) for k in (1, 3, 10)}
    ours = RankMetric()
    for begin in range(0, len(row), 7 * NUM_CANDIDATES):
        part = slice(begin, begin + 7 * NUM_CANDIDATES)
        for metric in (*theirs.values(), ours):
            metric.update(scores_QC.flatten()[part], is_true[part], indexes=row[part])
    figures = ours.compute()
    return {
        "theirs": {name: float(metric.compute()) for name, metric in theirs.items()},
        "ours": {name: figures[name] for name in theirs},
    }


def ogb_of(scores: torch.Tensor, dataset: str, names: tuple[str, ...]) -> dict[str, Any]:
    """Return what both evaluators return for one dictionary: the first column or the first ten scores are true ones."""
    positive, negative = (scores[:, 0], scores[:, 1:]) if scores.ndim == 2 else (scores[:100], scores[100:])
    given = {"y_pred_pos": positive, "y_pred_neg": negative}
    theirs, ours = ogb.linkproppred.Evaluator(name=dataset).eval(given), RankMetric((1, 3, 10, 50)).eval(given)
    return {
        side: {name: torch.as_tensor(of[name]).tolist() for name in names}
        for side, of in (("theirs", theirs), ("ours", ours))
    }


def tgb_of(scores: torch.Tensor) -> dict[str, Any]:
    """Return what both evaluators return for TGB's dictionary: negatives of each edge, or the same ones for all."""
    positive, negative = (scores[:, 0], scores[:, 1:]) if scores.ndim == 2 else (scores[:100], scores[100:])
    given = {"y_pred_pos": positive.numpy(), "y_pred_neg": negative.numpy(), "eval_metric": ["mrr"]}
    theirs, ours = tgb.linkproppred.evaluate.Evaluator(name="tgbl-wiki").eval(given), RankMetric((10,)).eval(given)
    found = {"theirs": theirs, "ours": ours}
    return {side: {name: float(of[name]) for name in ("mrr", "hits@10")} for side, of in found.items()}


def geometric_of(generator: torch.Generator) -> dict[str, Any]:
    """Return the figures at k of recommended items, of users with none to many right items."""
    num_users, num_items = 300, 40
    shuffled = torch.rand((num_users, num_items), generator=generator).argsort(dim=1)
    is_right = torch.rand((num_users, num_items), generator=generator) < torch.linspace(0, 0.5, num_users)[:, None]
    theirs = {name: kind(k=K) for name, kind in GEOMETRIC.items()}
    theirs["coverage"] = geometric.LinkPredCoverage(k=K, num_dst_nodes=num_items)
    ours = TopKMetric(K, num_items)
    for part in torch.arange(num_users).split(32):
        for metric in (*theirs.values(), ours):
            metric.update(shuffled[part, :8], is_right[part].nonzero().T)
    return {"theirs": {name: float(metric.compute()) for name, metric in theirs.items()}, "ours": ours.compute()}


if __name__ == "__main__":
    main()
