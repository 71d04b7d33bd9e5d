"""Print the closed forms of PyKEEN that main.py compares ours with.

"$(scripts/peers pykeen)"/python benchmarks/published/pykeen_expectations/theirs.py FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

from pykeen.metrics import ranking

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from benchmarks.published.pykeen_expectations.queries import edges, num_candidates

candidates = num_candidates(edges(Path(sys.argv[1])))
print(f"{candidates.size:,} queries, {candidates.min():,} to {candidates.max():,} candidates")
for name, metric in {
    "arithmetic_mean_rank": ranking.ArithmeticMeanRank(),
    "inverse_harmonic_mean_rank": ranking.InverseHarmonicMeanRank(),
    **{f"hits_at_{k}": ranking.HitsAtK(k=k) for k in (1, 3, 10)},
}.items():
    deviation = metric.variance(num_candidates=candidates) ** 0.5
    print(f'    "{name}": ({float(metric.expected_value(num_candidates=candidates))!r}, {float(deviation)!r}),')
