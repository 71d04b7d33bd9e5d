"""Judges recommendations with PyTorch Geometric's metrics; prints, as JSON, its time, peak memory and figures.

Its command line: `OMP_NUM_THREADS=2 .venv-peers/metrics/bin/python theirs.py FOLDER K USERS`.
"""

import json
import sys
import time
from pathlib import Path

import h5py
import torch
from torch_geometric import metrics as geometric

USERS_PER_BATCH = 64
KINDS = {
    "recall": geometric.LinkPredRecall,
    "precision": geometric.LinkPredPrecision,
    "map": geometric.LinkPredMAP,
    "ndcg": geometric.LinkPredNDCG,
    "mrr": geometric.LinkPredMRR,
    "hit_ratio": geometric.LinkPredHitRatio,
}


def main() -> None:
    """Score batches of users against all items, leave out training items, and keep the best k."""
    folder, k, num_users = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    tables = (folder / "checkpoint" / f"embeddings_{name}_0.v1.h5" for name in ("user", "item"))
    user_UD, item_ID = (_read(path, "embeddings") for path in tables)
    right, known = (
        torch.stack([_read(folder / name / "edges_0_0.h5", column) for column in ("lhs", "rhs")])
        for name in ("edges", "train")
    )
    right = torch.unique(right, dim=1)
    code_right = right[0] * len(item_ID) + right[1]
    metrics = {name: kind(k=k) for name, kind in KINDS.items()}
    begun = time.perf_counter()
    for start in range(0, num_users, USERS_PER_BATCH):
        stop = min(start + USERS_PER_BATCH, num_users)
        scores = user_UD[start:stop] @ item_ID.T
        of_batch = known[:, (known[0] >= start) & (known[0] < stop)]
        is_right = torch.isin(of_batch[0] * len(item_ID) + of_batch[1], code_right)
        of_batch = of_batch[:, ~is_right]  # an item that is evaluated too is an answer
        scores[of_batch[0] - start, of_batch[1]] = -torch.inf
        best = scores.topk(k, dim=1).indices
        labels = right[:, (right[0] >= start) & (right[0] < stop)].clone()
        labels[0] -= start
        for metric in metrics.values():
            metric.update(best, labels)
    figures = {name: float(metric.compute()) for name, metric in metrics.items()}
    seconds = time.perf_counter() - begun
    status = Path("/proc/self/status").read_text(encoding="ascii")
    peak = next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM:"))
    print(json.dumps({"seconds": seconds, "peak_bytes": peak, "figures": figures}))


def _read(path: Path, name: str) -> torch.Tensor:
    with h5py.File(path) as file:
        return torch.from_numpy(file[name][()])


if __name__ == "__main__":
    main()
