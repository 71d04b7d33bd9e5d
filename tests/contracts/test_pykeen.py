"""PyKEEN 1.11.1 itself as an oracle: its evaluators and ours on the same embeddings of its bundled Nations data.

Where it is wrong the test shows by how much, and why (METRICS.md 1f of the reference data, docs/metrics.md). Where it
is right: test_pykeen_trained.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pbgeval import evaluate
from pbgeval.metrics.registry import metric_key
from pbgeval.report.report import Report
from tests.golden.test_full_nations import Nations

pytestmark = pytest.mark.peers

LAST_CUTOFF = {"adjusted_hits_at_k": "adjusted_hits_at_10", "z_hits_at_k": "z_hits_at_10"}  # its key for all of them
# In 1.11.1 macro averages ignore the weights of the first two, and leave the last unscaled.
WRONG_IN_MACRO = ("standard_deviation", "variance", "median_absolute_deviation")


@pytest.fixture(scope="module")
def both(of_pykeen: Path) -> tuple[Report, dict[str, dict[str, Any]]]:
    """Our report and PyKEEN's metrics, micro and macro, by our names."""
    folder = of_pykeen / "nations"
    nations = Nations(folder, folder, "distmult", 1, dynamic=True)
    report = evaluate(nations.config("filtered"), output=folder / "output", workers=1)
    theirs = {name: json.loads((folder / f"{name}.json").read_text()) for name in ("rank_based", "macro")}
    return report, {name: {ours(key): value for key, value in of.items()} for name, of in theirs.items()}


def ours(key: str) -> str:
    side_and_type, _, name = key.rpartition(".")
    return f"{side_and_type}.{LAST_CUTOFF.get(name, metric_key(name))}"


def test_macro_inverse_medians_of_whole_ranks_are_0_in_pykeen(both: tuple[Report, dict[str, dict[str, Any]]]) -> None:
    """It takes the reciprocal of an integer; realistic ranks are floats."""
    report, theirs = both
    found = report.document["macro_metrics"]

    for side in ("head", "tail", "both"):
        for rank_type in ("optimistic", "pessimistic"):
            key = f"{side}.{rank_type}.inverse_median_rank"
            assert theirs["macro"][key] == 0
            assert found[key] == pytest.approx(1 / theirs["macro"][f"{side}.{rank_type}.median_rank"])
        key = f"{side}.realistic.inverse_median_rank"
        assert theirs["macro"][key] == pytest.approx(found[key])


def test_macro_deviations_of_pykeen_have_no_weights(both: tuple[Report, dict[str, dict[str, Any]]]) -> None:
    """It reports the unweighted variance among weighted figures; ours is weighted, and differs."""
    report, theirs = both

    for name in ("standard_deviation", "variance"):
        key = f"both.realistic.{name}"
        unweighted = report.document["metrics"][key]
        assert theirs["macro"][key] == pytest.approx(unweighted, rel=5e-6)
        assert report.document["macro_metrics"][key] != pytest.approx(unweighted, rel=1e-3)


def test_only_the_last_cutoff_of_adjusted_hits_survives_in_pykeen(
    both: tuple[Report, dict[str, dict[str, Any]]],
) -> None:
    report, theirs = both

    assert [key for key in theirs["rank_based"] if ".adjusted_hits_at_" in key and "both.realistic" in key] == [
        "both.realistic.adjusted_hits_at_10"
    ]
    assert {
        int(key.rpartition("_")[2])
        for key in report.document["metrics"]
        if key.startswith("both.realistic.adjusted_hits_at_")
    } == {1, 3, 5, 10, 50}
