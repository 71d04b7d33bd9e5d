"""Records of a monitor in an event file of TensorBoard, read back by its own reader."""

from __future__ import annotations

from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from pbgeval.errors import OutputError
from pbgeval.monitor.records import PassKey, PassRecord, PbgFigures, TensorBoardSink, VisitRecord, read_history
from pbgeval.notation import Bucket
from tests.kit.training import train

SIZE = {"num_partitions": 2, "edges_per_bucket": 200, "steps_per_visit": 2}


def scalars(folder: Path) -> dict[str, dict[int, float]]:
    """Return the values of each tag, by step."""
    accumulator = EventAccumulator(str(folder)).Reload()
    tags = accumulator.Tags()["scalars"]
    return {tag: {event.step: event.value for event in accumulator.Scalars(tag)} for tag in tags}


def float32(value: float | None) -> object:
    return pytest.approx(value, rel=1e-6, abs=1e-12)


@pytest.mark.slow
def test_all_figures_of_visits_and_passes_are_there_at_their_steps(tmp_path: Path) -> None:
    train(3, num_passes=4, output=tmp_path / "monitor", sinks=[TensorBoardSink(tmp_path / "events")], **SIZE)
    history = read_history(tmp_path / "monitor", pytest.fail)

    found = scalars(tmp_path / "events")

    for when in ("before", "after"):
        for metric in ("mrr", "pos_rank", "r1", "r10", "r50", "auc"):
            expected = {of.index: float32(getattr(of, when).metrics[metric]) for of in history.visits}
            assert found[f"visit/{metric}/{when}"] == expected
        for bucket in {of.bucket for of in history.visits}:
            of_bucket = [of for of in history.visits if of.bucket == bucket]
            expected = {of.index: float32(getattr(of, when).metrics["mrr"]) for of in of_bucket}
            assert (len(expected), found[f"bucket_{bucket.lhs}_{bucket.rhs}/mrr/{when}"]) == (4, expected)
        for metric in ("pessimistic.mean_rank", "query_auc", "realistic.mean_reciprocal_rank"):
            expected = {of.index: float32(getattr(of.details, when)[f"both.{metric}"]) for of in history.passes}
            assert found[f"pass/{metric}/{when}"] == expected
    metric = "realistic.mean_reciprocal_rank"
    gaps = {of.index: of.details.gap[f"both.{metric}"] for of in history.passes}
    assert (found[f"pass/{metric}/gap"], found[f"pass/{metric}/gap_error"], found["pass/diverged"]) == (
        {index: float32(gap.value) for index, gap in gaps.items()},
        {index: float32(gap.standard_error) for index, gap in gaps.items()},
        dict.fromkeys((3, 7, 11, 15), 0.0),
    )
    # There are two visits to each bucket, and something to lose, from the third pass on.
    assert {of.index: float32(of.details.lost) for of in history.passes[2:]} == found["pass/lost"]


def test_what_is_undefined_has_no_scalar_and_other_chunks_have_a_prefix(tmp_path: Path) -> None:
    sink = TensorBoardSink(tmp_path)
    figures = PbgFigures(3, {"mrr": 0.5, "auc": None})
    sink.append(VisitRecord(PassKey(0, 1, 2), Bucket(0, 1), 7, None, None, figures))
    sink.append(PassRecord(PassKey(0, 1, 2), 7, figures))

    assert scalars(tmp_path) == {
        "path_1/chunk_2/visit/mrr/after": {7: 0.5},
        "path_1/chunk_2/bucket_0_1/mrr/after": {7: 0.5},
    }


def test_nothing_is_written_where_nothing_is_held_out(tmp_path: Path) -> None:
    train(3, num_passes=1, eval_fraction=0, sinks=[TensorBoardSink(tmp_path / "events")], **SIZE)

    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_a_warning_and_training_goes_on(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    sink = TensorBoardSink(tmp_path / "file" / "events")

    run = train(3, num_passes=2, output=tmp_path / "monitor", sinks=[sink], **SIZE)

    assert 2 == len(run.passes) == len(read_history(tmp_path / "monitor", pytest.fail).passes)
    assert len(run.warnings) == 1
    assert "cannot write an event file of TensorBoard" in run.warnings[0]
    with pytest.raises(OutputError):
        sink.append(PassRecord(PassKey(0), 0, None))
