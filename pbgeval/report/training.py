"""What a training run has recorded of held-out edges -> its verdict in words, a table of passes, and figures."""

from __future__ import annotations

from collections.abc import Iterable

from attrs import evolve

from pbgeval.monitor.curves import TRAINING_METRICS, Curves, PassRow
from pbgeval.report.figures import (
    ESTIMATED,
    MAX_BYTES_OF_OTHERS,
    UNDEFINED,
    Tile,
    Z,
    decimals_of,
    rounded,
)
from pbgeval.report.tables import DataTable, fitting, interval_line, without

_PASS_COLUMNS = ("pass", "before", "after", "gap", "training", "generalization", "diverged", "verdict")
_VERDICTS = {
    "too_early": "Too early to tell: some bucket was visited fewer than three times.",
    "vanished": "No overfitting to buckets: what a visit gains is still there at the next one.",
    "shrinking": "The gap is shrinking: a visit gains less and less.",
    "persists": "Training overfits to buckets: what a visit gains is lost before the next one.",
    "undecided": "Undecided: more passes are needed to tell.",
}
_OF_LOSSES = {  # where held-out edges get worse in a visit
    "vanished": "No overfitting to buckets: held-out edges are about as good after a visit as before it.",
    "shrinking": "The gap is shrinking: a visit loses less and less.",
    "persists": "Training overfits to buckets: what a visit loses comes back before the next one.",
}


def verdicts_of(curves: Curves) -> list[str]:
    """Return what the last pass says, in words."""
    metric = TRAINING_METRICS[curves.metric]
    best = curves.best
    last = curves.last
    told = []
    if curves.fits_training_edges_far_better:
        told.append(
            f"{metric} of training edges is {_fixed(last.training)}, that of held-out edges {_fixed(last.after)}: the "
            "model fits its training edges far better."
        )
    if best is not None and curves.overfits:
        told.append(
            f"Held-out {metric} was best in pass {best.key.epoch} ({_fixed(best.after)}) and is {_fixed(last.after)} "
            f"now, while that of training edges went from {_fixed(best.training)} to {_fixed(last.training)}: the "
            "model overfits."
        )
    verdicts = _VERDICTS | (_OF_LOSSES if curves.visits_lose else {})
    return [
        *told,
        "With one bucket there is no verdict about buckets." if curves.has_one_bucket else verdicts[last.verdict],
    ]


def passes_of(curves: Curves) -> DataTable:
    """Return a row per pass."""
    passes = curves.passes
    decimals = _decimals(row.gap_error for row in passes), _decimals(row.generalization_error for row in passes)
    rows = fitting((_pass_row(row, decimals, curves.best) for row in passes), MAX_BYTES_OF_OTHERS)
    table = DataTable(
        "Passes",
        _PASS_COLUMNS,
        rows,
        ESTIMATED if any("±" in row[3] for row in rows) else "",
        "passes",
        "lrrrrrrl",
        ("verdict",),
    )
    # Columns that most runs do not need
    empty = {"training": {UNDEFINED}, "generalization": {UNDEFINED}, "diverged": {"0"}}
    left_out = [name for name in empty if {row[_PASS_COLUMNS.index(name)] for row in rows} == empty[name]]
    return without(table, [*left_out, *(["verdict"] if curves.has_one_bucket else [])])


def training_table(curves: Curves) -> DataTable:
    """Return the same for the terminal, of at most 80 columns, with what the last verdict means."""
    title, table = f"{TRAINING_METRICS[curves.metric]} of held-out edges", passes_of(curves)
    shown = without(table, ["diverged"])
    rows = [
        (name + f" {row.num_diverged} diverged" * bool(row.num_diverged), *(cell.replace(" ± ", "±") for cell in cells))
        for row, (name, *cells) in zip(curves.passes, shown.rows, strict=False)
    ]
    return evolve(shown, title=title, rows=rows, note="\n".join(verdicts_of(curves)))


def _decimals(errors: Iterable[float | None]) -> int:
    """Return as many decimals as the smallest of some errors asks for, at most those of the figures beside them."""
    return min(4, max(map(decimals_of, filter(None, errors)), default=4))


def _pass_row(row: PassRow, decimals: tuple[int, int], best: PassRow | None = None) -> tuple[str, ...]:
    key, name = row.key, str(row.key.epoch)
    name += f", path {key.edge_path}, chunk {key.edge_chunk}" if key.edge_path or key.edge_chunk else ""
    figures = (
        _fixed(row.before),
        _fixed(row.after),
        _difference(row.gap, row.gap_error, decimals[0]),
        _fixed(row.training),
        _difference(row.generalization, row.generalization_error, decimals[1]),
    )
    name += " (best)" * (row is best) + " (unfinished)" * (not row.is_finished)
    return name, *figures, str(row.num_diverged), row.verdict.replace("_", " ")


def _difference(value: float | None, error: float | None, decimals: int) -> str:
    told = UNDEFINED if value is None else rounded(value, decimals, "+")
    return f"{told} ± {rounded(error, decimals)}" if value is not None and error else told


def _fixed(value: float | None) -> str:
    return UNDEFINED if value is None else rounded(value, 4)


def training_tiles(curves: Curves) -> list[Tile]:
    """Return the figures of the last finished pass."""
    metric, last = TRAINING_METRICS[curves.metric], curves.last
    error = last.gap_error or 0.0
    where = [f"in pass {last.key.epoch}" + " (unfinished)" * (not last.is_finished)]
    interval = []
    if last.gap is not None and error:
        ends = (rounded(end, decimals_of(error), "+") for end in (last.gap - Z * error, last.gap + Z * error))
        interval = [interval_line(*ends)]
    _, before, after, gap, training, *_ = _pass_row(last, (_decimals([error]), 4))
    tiles = (
        Tile(f"{metric} before visits", before, where),
        Tile(f"{metric} after visits", after, where),
        Tile("Gap", gap, [*interval, "after − before"]),
        Tile(f"{metric} of training edges", training, where),
    )
    return [tile for tile in tiles if tile.value != UNDEFINED]
