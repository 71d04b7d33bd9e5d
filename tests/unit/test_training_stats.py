"""Lines of training statistics: ours come back as they were, PBG's are read, cut ones are passed over."""

from __future__ import annotations

import json
import math
from pathlib import Path
from unittest import mock

import pytest

from pbgeval.errors import OutputError, StorageError
from pbgeval.monitor.records import (
    Estimate,
    History,
    PassDetails,
    PassKey,
    PassRecord,
    PbgFigures,
    StatsFile,
    VisitDetails,
    VisitRecord,
    file_of_worker,
    read_history,
)
from pbgeval.notation import Bucket

BUCKET = Bucket(0, 1)
METRICS = {"pos_rank": 3.5, "mrr": 0.1 + 0.2, "r1": 0.25, "r10": None}


def visit(index: int, epoch: int = 0, bucket: Bucket = BUCKET) -> VisitRecord:
    return VisitRecord(
        key=PassKey(epoch, 1, 2),
        bucket=bucket,
        index=index,
        stats=PbgFigures(90, {"loss": 0.5}),
        before=PbgFigures(10, METRICS),
        after=PbgFigures(10, METRICS | {"mrr": 1.0}),
        details=VisitDetails(
            before={"both.realistic.mean_rank": 2.5, "both.query_auc": None},
            training={"both.query_auc": 0.75},
            gap={"both.query_auc": Estimate(0.125, 1e-3), "both.realistic.mean_rank": Estimate(-1.0, None)},
            cluster="chunk",
            num_clusters=12,
        ),
    )


def append(folder: Path, worker: int, *records: VisitRecord | PassRecord) -> None:
    file = StatsFile(file_of_worker(folder, worker))
    for record in records:
        file.append(record)


def read(path: Path) -> tuple[History, list[str]]:
    warnings: list[str] = []
    return read_history(path, warnings.append), warnings


def test_records_come_back_as_they_were_written(tmp_path: Path) -> None:
    of_pass = PassRecord(
        PassKey(0, 1, 2),
        7,
        PbgFigures(10, METRICS),
        PassDetails(num_buckets=3, verdict="bucket_overfitting", lost=0.5, level=0.025),
    )
    bare = VisitRecord(PassKey(1), Bucket(0, 0), 8, None, None, None)
    append(tmp_path, 0, visit(6), of_pass, bare)

    history, warnings = read(tmp_path)

    assert ((visit(6), bare), (of_pass,), []) == (history.visits, history.passes, warnings)


def test_the_keys_of_a_visit_are_those_of_pbg_and_one_of_ours() -> None:
    expected = ["lhs_partition", "rhs_partition", "index", "stats", "eval_stats_before", "eval_stats_after"]

    assert [*expected, "epoch_idx", "edge_path_idx", "edge_chunk_idx", "pbgeval"] == list(visit(0).to_json())


@pytest.mark.reference
def test_a_file_of_pbg_is_read(reference_path: Path) -> None:
    history, warnings = read(reference_path / "golden" / "fb237_4p_transe" / "checkpoint")

    assert ([len(visits) for visits in history.passes_of_visits.values()], len(history.passes)) == ([16] * 8, 8)
    first = history.visits[0]
    assert (Bucket(0, 0), 0, 718, 13658) == (first.bucket, first.index, first.before.count, first.stats.count)
    assert (first.before.metrics["mrr"], first.after.metrics["mrr"]) == (0.0355622682066681, 0.06148067224656639)
    assert (first.details, warnings) == (None, [])


def test_a_line_is_passed_over_wherever_a_crash_has_cut_it(tmp_path: Path) -> None:
    path = tmp_path / "training_stats.json"
    StatsFile(path).append(visit(0))
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(visit(1).to_json())[:-20])
    assert (visit(0),) == read(path)[0].visits
    StatsFile(path).append(visit(1))

    history, warnings = read(path)

    assert ((visit(0), visit(1)), 1) == (history.visits, len(warnings))
    assert f"{path}: line 2 is passed over" in warnings[0]


def test_a_write_that_fails_half_way_spoils_no_further_line(tmp_path: Path) -> None:
    file = StatsFile(tmp_path / "training_stats.json")
    file.append(visit(0))

    def half(path: Path, line: str) -> None:
        path.write_text(path.read_text() + line[:30])
        raise OutputError("No space left")

    with mock.patch("pbgeval.monitor.records.append_line", side_effect=half), pytest.raises(OutputError):
        file.append(visit(1))
    file.append(visit(2))

    history, warnings = read(tmp_path)
    assert ((visit(0), visit(2)), 1) == (history.visits, len(warnings))


def test_undefined_figures_are_null_and_never_a_bare_nan(tmp_path: Path) -> None:
    bad = VisitRecord(PassKey(0), Bucket(0, 0), 0, PbgFigures(1, {"loss": math.nan}), None, None)

    with pytest.raises(ValueError, match="JSON"):
        StatsFile(tmp_path / "training_stats.json").append(bad)


def test_files_of_several_workers_are_read_as_one_and_a_repeated_visit_counts_once(tmp_path: Path) -> None:
    append(tmp_path, 0, visit(0), visit(2, epoch=1))
    append(tmp_path, 1, visit(1, bucket=Bucket(1, 1)), visit(3))

    history, _ = read(tmp_path)

    assert [record.index for record in history.visits] == [0, 1, 3, 2]
    first, second = history.passes_of_visits.values()
    assert ([record.index for record in first], [record.index for record in second]) == ([3, 1], [2])


def test_workers_of_a_run_that_was_begun_again_are_left_out(tmp_path: Path) -> None:
    """Of the first run there were two workers, of the second one."""
    append(tmp_path, 0, visit(0), PassRecord(PassKey(0, 1, 2), 1, None), visit(2))
    append(tmp_path, 1, visit(1, bucket=Bucket(1, 1)))

    history = read_history(str(tmp_path))

    assert ([of.index for of in history.visits], history.passes) == ([2], ())


def test_lines_that_are_no_records_are_told_to_the_log_by_default(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    StatsFile(tmp_path / "training_stats.json").append(visit(0))
    (tmp_path / "training_stats.worker_1.json").write_text(json.dumps(visit(1).to_json()) + "\n{", encoding="utf-8")

    assert len(read_history(tmp_path).visits) == 2
    assert "line 2 is passed over" in caplog.text


@pytest.mark.parametrize(
    "text", ["no json\n", "[1]\n", '{"index": 3}\n', '{"index": "x", "eval_stats_chunk_avg": 5}\n']
)
def test_a_file_of_something_else_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "training_stats.json"
    path.write_text(text, encoding="utf-8")

    with pytest.raises(StorageError, match="expected a record of training per line"):
        read(path)
