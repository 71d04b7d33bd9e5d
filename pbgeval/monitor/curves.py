"""Records of a training run in a file or folder -> the curves that are drawn, with a verdict for each pass."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pbgeval.monitor.judging import judge_history
from pbgeval.report.training_curves import Curves, curves_of
from pbgeval.training_stats.reading import read_history


def read_curves(records: Path, metric: str, warn: Callable[[str], None]) -> Curves:
    """Read and judge what was recorded.

    Args:
        records: as `read_history` takes it.
        metric: PBG's name of one.
        warn: is told of lines that are no records.

    Raises:
        StorageError: there are no records.
        DataError: they have no held-out edges with this metric.
    """
    history = read_history(records, warn)
    verdicts = {key: judgement.verdict.value for key, judgement in judge_history(history).items()}
    return curves_of(history, verdicts, metric)
