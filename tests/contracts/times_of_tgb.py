"""Figures of TGB's time-filtered evaluation on a random temporal knowledge graph; run by the peer's Python.

Its command line: `.venv-peers/metrics/bin/python times_of_tgb.py`. Writes JSON: its edges (head, relation,
tail, time), scores by head, relation and tail, TGB's figures, and how many known answers were negatives.
"""

import json
import sys
import tempfile
from typing import Any

import numpy as np
import torch
from tgb.linkproppred.evaluate import Evaluator
from tgb.linkproppred.tkg_negative_generator import TKGNegativeEdgeGenerator
from tgb.linkproppred.tkg_negative_sampler import TKGNegativeEdgeSampler
from torch_geometric.data import TemporalData

NAME, NUM_ENTITIES, NUM_RELATIONS, NUM_EDGES, LAST = "tkgl-polecat", 40, 3, 300, 29


def main() -> None:
    """Compute them."""
    sys.stdout.write(json.dumps(graph_of_tails()))


def graph_of_tails() -> dict[str, Any]:
    """Return a graph whose tails are entities 0 to LAST, and TGB's figures of it."""
    source = np.random.default_rng(0)
    edges_E4 = source.integers((6, NUM_RELATIONS, LAST - 4, 8), size=(NUM_EDGES, 4))
    scores = source.integers(0, 9, (NUM_ENTITIES, NUM_RELATIONS, NUM_ENTITIES)).astype(np.float64)  # many tie
    known = {tuple(edge) for edge in edges_E4.tolist()}
    ranks = [(scores[h, r, negatives], scores[h, r, t]) for (h, r, t, _), negatives in _negatives(edges_E4)]
    evaluator = Evaluator(name=NAME)
    figures = [
        evaluator.eval({"y_pred_pos": np.array([true]), "y_pred_neg": others[None], "eval_metric": ["mrr"]})
        for others, true in ranks
    ]
    num_known = sum(
        (h, r, other, when) in known
        for (h, r, _, when), negatives in _negatives(edges_E4)
        for other in negatives.tolist()
    )
    return {
        "tails": [*range(LAST + 1)],
        "edges": edges_E4.tolist(),
        "scores": scores.tolist(),
        "figures": {name: float(np.mean([of[name] for of in figures])) for name in ("mrr", "hits@10")},
        "num_known": num_known,
    }


def _negatives(edges_E4: np.ndarray) -> list[tuple[list[int], np.ndarray]]:
    head, relation, tail, time = map(torch.from_numpy, edges_E4.T.copy())
    data = TemporalData(src=head, dst=tail, t=time, edge_type=relation)
    sampler = TKGNegativeEdgeSampler(NAME, 0, LAST, strategy="time-filtered")
    with tempfile.TemporaryDirectory() as folder:
        generator = TKGNegativeEdgeGenerator(NAME, 0, LAST, strategy="time-filtered")
        generator.generate_negative_samples(data, "test", folder)
        sampler.load_eval_set(f"{folder}/{NAME}_test_ns.pkl", "test")
    return list(zip(edges_E4.tolist(), sampler.query_batch(head, tail, time, relation), strict=True))


if __name__ == "__main__":
    main()
