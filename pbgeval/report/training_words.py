"""One pass of a training run -> its cells in a table; a verdict -> what it means."""

from __future__ import annotations

from pbgeval.report.training_curves import Curves, PassRow

Z = 1.959963984540054  # of a 95 % interval
PASS_COLUMNS = ("pass", "before", "after", "gap", "± SE", "training", "diverged", "verdict")

_VERDICTS = {
    "too_early": "too early to tell: some bucket was visited fewer than three times",
    "vanished": "the gap has vanished: buckets agree",
    "shrinking": "the gap is shrinking",
    "persists": "the gap persists: training overfits to buckets",
    "undecided": "undecided: more passes must tell",
}


def verdict_of(curves: Curves) -> str:
    """Return what the last pass says, in words."""
    return _VERDICTS[curves.passes[-1].verdict]


def cells_of_pass(row: PassRow) -> tuple[str, ...]:
    """Return a text for each of `PASS_COLUMNS`."""
    numbers = (row.before, row.after, row.gap, row.gap_error, row.training)
    before, after, gap, error, training = ("-" if value is None else f"{value:.4f}" for value in numbers)
    key = row.key
    name = str(key.epoch)
    if key.edge_path or key.edge_chunk:
        name += f", path {key.edge_path}, chunk {key.edge_chunk}"
    return name, before, after, gap, error, training, str(row.num_diverged), row.verdict.replace("_", " ")
