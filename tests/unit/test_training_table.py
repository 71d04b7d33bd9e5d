"""The table that grows on a terminal while a model trains."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from pbgeval.notation import Bucket
from pbgeval.report.training_table import NUM_PASSES_SHOWN, TrainingTable
from pbgeval.training_stats.reading import read_history
from pbgeval.training_stats.records import Difference, Figures, PassDetails, PassKey, PassRecord, VisitDetails
from pbgeval.training_stats.records import VisitRecord as Visit
from tests.monitored_training import train

KEY = "both.pessimistic.mean_reciprocal_rank"
SIZE = {"num_partitions": 2, "edges_per_bucket": 200, "steps_per_visit": 2}


def pass_record(epoch: int, **changes: object) -> PassRecord:
    details = PassDetails(
        num_buckets=4,
        before={KEY: 0.25},
        after={KEY: 0.5},
        training={KEY: 0.75},
        gap={KEY: Difference(0.25, 0.01)},
        verdict="too_early",
    )
    values = {**{name: getattr(details, name) for name in PassDetails.__slots__ if name != "__weakref__"}, **changes}
    return PassRecord(PassKey(epoch), epoch, Figures(4), PassDetails(**values))


def drawn(table: TrainingTable) -> str:
    """What stands on the screen now."""
    console = Console(file=io.StringIO(), width=120)
    console.print(table._drawing())
    return console.file.getvalue()


def test_a_terminal_shows_the_last_passes_and_the_visit_in_hand() -> None:
    screen = io.StringIO()
    table = TrainingTable(Console(file=screen, force_terminal=True, width=120))
    with table:
        for epoch in range(NUM_PASSES_SHOWN + 2):
            table.append(pass_record(epoch))
        details = VisitDetails(before={KEY: 0.1}, after={KEY: 0.2}, gap={KEY: Difference(0.1, None)})
        table.append(Visit(PassKey(14, 1, 2), Bucket(0, 3), 60, None, None, None, details))
        shown = drawn(table)

    rows = [line.split("│") for line in shown.splitlines() if "0.2500" in line]
    assert [str(epoch) for epoch in range(2, NUM_PASSES_SHOWN + 2)] == [row[1].strip() for row in rows]
    assert ["4", "0.2500", "0.5000", "+0.2500 ± 0.0100", "0.7500", "too early"] == [of.strip() for of in rows[0][2:8]]
    assert "epoch 14 (path 1, chunk 2), bucket (0, 3): 0.1000 before, 0.2000 after" in shown
    assert "\x1b[?25l" in screen.getvalue()
    assert "\x1b[?25h" in screen.getvalue().rpartition("\x1b[?25l")[2], "the cursor comes back"


def test_divergence_and_missing_figures_are_said() -> None:
    table = TrainingTable(Console(file=io.StringIO(), force_terminal=True, width=120))
    table.append(pass_record(0, num_diverged=2, gap={}, training=None))
    table.append(Visit(PassKey(1), Bucket(0, 0), 4, None, None, None, VisitDetails(diverged=True, reason="NaN")))
    shown = drawn(table)
    table.append(Visit(PassKey(1), Bucket(0, 1), 5, None, None, None, VisitDetails()))
    table.close()

    assert "4, 2 diverged" in shown
    assert "epoch 1, bucket (0, 0): diverged" in shown
    assert "epoch 1, bucket (0, 1): nothing held out" in drawn(table)


def test_what_is_no_terminal_gets_a_line_per_pass(tmp_path: Path) -> None:
    told = io.StringIO()
    table = TrainingTable(Console(file=told, width=40))
    train(3, num_passes=3, output=tmp_path, sinks=[table], **SIZE)
    table.close()

    passes = read_history(tmp_path, pytest.fail).passes
    lines = told.getvalue().splitlines()
    assert 3 == len(lines)
    for line, of_pass in zip(lines, passes, strict=True):
        after = of_pass.details.after["both.realistic.mean_reciprocal_rank"]
        assert line.startswith(f"epoch {of_pass.key.epoch}: 4 buckets, ")
        assert f"{after:.4f} after" in line
        assert line.endswith(f"the gap: {of_pass.details.verdict.replace('_', ' ')}")
        assert "of training edges -;" in line
