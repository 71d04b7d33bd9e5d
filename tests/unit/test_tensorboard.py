"""Records of a monitor in an event file of TensorBoard, read back by its own reader."""

from __future__ import annotations

from pathlib import Path

from pbgeval.monitor.records import (
    Estimate,
    PassDetails,
    PassKey,
    PassRecord,
    PbgFigures,
    TensorBoardSink,
    VisitRecord,
)
from pbgeval.notation import Bucket
from tests.kit.reports import scalars_in


def test_figures_have_their_tags_and_steps_and_what_is_undefined_has_none(tmp_path: Path) -> None:
    sink = TensorBoardSink(tmp_path)
    before, after = PbgFigures(3, {"mrr": 0.25, "auc": None}), PbgFigures(3, {"mrr": 0.5, "r1": 0.125})
    of_metric = [{"both.query_auc": value, "head.query_auc": 0.0} for value in (0.25, 0.5, 0.75)]
    gaps = {"both.query_auc": Estimate(0.0625, 0.5)}, {"both.query_auc": Estimate(0.375, None)}
    sink.append(VisitRecord(PassKey(0), Bucket(0, 1), 7, None, before, after))
    sink.append(PassRecord(PassKey(0), 8, after, PassDetails(4, 1, *of_metric, *gaps, lost=0.875)))
    sink.append(VisitRecord(PassKey(0, 1, 2), Bucket(0, 1), 9, None, None, PbgFigures(3, {"mrr": 1.0})))
    sink.append(PassRecord(PassKey(0, 1, 2), 9, after))

    of_pass = {"before": 0.25, "after": 0.5, "training": 0.75, "gap": 0.0625, "gap_error": 0.5, "generalization": 0.375}
    assert scalars_in(tmp_path) == {
        "visit/mrr/before": {7: 0.25},
        "visit/mrr/after": {7: 0.5},
        "visit/r1/after": {7: 0.125},
        "bucket_0_1/mrr/before": {7: 0.25},
        "bucket_0_1/mrr/after": {7: 0.5},
        **{f"pass/query_auc/{name}": {8: value} for name, value in of_pass.items()},
        "pass/diverged": {8: 1.0},
        "pass/lost": {8: 0.875},
        "path_1/chunk_2/visit/mrr/after": {9: 1.0},
        "path_1/chunk_2/bucket_0_1/mrr/after": {9: 1.0},
    }
