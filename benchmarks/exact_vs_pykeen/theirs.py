"""Runs PyKEEN's RankBasedEvaluator on the same job and prints, as JSON, the time of its evaluate, peak memory, MRR.

Its command line: `OMP_NUM_THREADS=2 .venv-peers/pykeen/bin/python theirs.py ARRAYS`.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
from pykeen.evaluation import RankBasedEvaluator
from pykeen.models import DistMult
from pykeen.triples import CoreTriplesFactory


def main() -> None:
    """Build the model from the arrays, then time the evaluation alone."""
    arrays = np.load(sys.argv[1])
    test, valid, train = (torch.from_numpy(arrays[name]) for name in ("test", "valid", "train"))
    entity_ND, relation_RD = torch.from_numpy(arrays["entities"]), torch.from_numpy(arrays["relations"])
    factory = CoreTriplesFactory(train, num_entities=len(entity_ND), num_relations=len(relation_RD))
    model = DistMult(triples_factory=factory, embedding_dim=entity_ND.shape[1])
    with torch.no_grad():
        for representations, values in (
            (model.entity_representations, entity_ND),
            (model.relation_representations, relation_RD),
        ):
            parameter = next(representations[0].parameters())
            parameter.copy_(values.view(parameter.shape))
    evaluator = RankBasedEvaluator()
    begun = time.perf_counter()
    results = evaluator.evaluate(model, test, additional_filter_triples=[train, valid], use_tqdm=False)
    seconds = time.perf_counter() - begun
    status = Path("/proc/self/status").read_text(encoding="ascii")
    peak = next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM:"))
    print(
        json.dumps(
            {
                "seconds": seconds,
                "peak_bytes": peak,
                "mean_reciprocal_rank": results.get_metric("both.realistic.inverse_harmonic_mean_rank"),
                "mean_rank": results.get_metric("both.realistic.arithmetic_mean_rank"),
            }
        )
    )


if __name__ == "__main__":
    main()
