"""Records of a training run, PyTorch-BigGraph's own or ours -> whether the gap persists, pass by pass."""

from __future__ import annotations

from pbgeval.monitor.persistence import BucketVisit, GapTest, Judgement
from pbgeval.training_stats.reading import History
from pbgeval.training_stats.records import PassKey

METRIC = "mrr"  # PBG's name; records of both have it


def judge_history(history: History, alarm_rate: float = 0.05, tolerance: float = 0.1) -> dict[PassKey, Judgement]:
    """Judge each pass by the differences between its buckets, as records do not follow single edges (decision 0017)."""
    test = GapTest(alarm_rate, tolerance)
    judgements = {}
    for key, of_pass in history.passes_of_visits.items():
        visits = {}
        for visit in of_pass:
            before, after = (None if of is None else of.metrics.get(METRIC) for of in (visit.before, visit.after))
            if before is not None and after is not None and visit.after is not None:
                place = (key.edge_path, key.edge_chunk, visit.bucket)
                visits[place] = BucketVisit(2 * visit.after.count, before, after)
        judgements[key] = test.judge(visits)
    return judgements
