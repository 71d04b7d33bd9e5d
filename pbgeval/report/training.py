"""What a training run has recorded of held-out edges -> its verdict in words, a table of passes, and figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from attrs import evolve

from pbgeval.monitor.curves import TRAINING_METRICS, Curves, PassRow, describe_divergence
from pbgeval.monitor.gap_test import BucketVisit
from pbgeval.monitor.improvement import RELATIVE_DELTA
from pbgeval.monitor.records import Verdict, verdict_in_words
from pbgeval.report.charts import LEFT, RIGHT, WIDTH, Axis, Chart, Line, counted, line_labels, linear
from pbgeval.report.figures import (
    ESTIMATED,
    MAX_BYTES_OF_OTHERS,
    UNDEFINED,
    Tile,
    Z,
    capital,
    decimals_of,
    rounded,
)
from pbgeval.report.tables import DataTable, fitting, interval_line, without
from pbgeval.storage.text import listed, plural

MAX_BUCKETS = 64  # drawn one by one, and
MAX_POINTS = 10_000  # of all of them
FEW_EDGES = 100  # below, the standard error of an MRR may be 0.03 and more
_VERDICT = "bucket overfitting"
_APART = "train−held out"
_PASS_COLUMNS = ("epoch", "before", "after", "gap", "training", _APART, "diverged", _VERDICT)
_IN_COLUMN: Mapping[Verdict, str] = {"no_bucket_overfitting": "no", "bucket_overfitting": "yes"}
_VERDICTS: Mapping[Verdict, str] = {
    "needs_3_visits": "Bucket overfitting: not known yet; every bucket needs 3 visits.",
    "no_bucket_overfitting": "No bucket overfitting: held-out edges keep what they gain in a visit until the next one.",
    "shrinking": "Bucket overfitting: undecided, but the gap is shrinking, as a visit gains less and less.",
    "bucket_overfitting": "Bucket overfitting: held-out edges lose before the next visit what they gain in a visit.",
    "undecided": "Bucket overfitting: undecided; more epochs are needed.",
}
_OF_LOSSES: Mapping[Verdict, str] = {  # where held-out edges get worse in a visit
    "no_bucket_overfitting": "No bucket overfitting: held-out edges are about as good after a visit as before it.",
    "shrinking": "Bucket overfitting: undecided, but the gap is shrinking, as a visit loses less and less.",
    "bucket_overfitting": "Bucket overfitting: what held-out edges lose in a visit comes back before the next one.",
}
# A model that has learned the training edges ranks their answers above those of held-out edges with the same query.
UNFILTERED = "Ranks are unfiltered, so learned answers come first: a filtered evaluation tells how good the model is."
MANY_EPOCHS = 3  # without an improvement, as `should_stop` has them


def verdicts_of(curves: Curves) -> list[str]:
    """Return what the last pass says about training edges and about buckets, in words."""
    others, changed = [str(row.key) for row in curves.not_compared], list[str]()
    if others:
        what, are = ("Epochs", "are") if len(others) > 1 else ("Epoch", "is")
        changed = [
            f"{what} {listed(others)} measured other held-out edges than epoch {curves.last.key}, and {are} "
            "not compared with it."
        ]
    if curves.diverged_pass is not None:
        return [*_about_divergence(curves, curves.diverged_pass), *changed]
    if curves.recovered:
        epochs = [str(row.key) for row in curves.recovered]
        of_epochs = f"epoch{'s' * (len(epochs) > 1)} {listed(epochs)}"
        changed = [f"The model diverged in {of_epochs} but recovered.", *changed]
    of_buckets = [_about_buckets(curves)] if curves.num_buckets != 1 else []
    return [*_about_training_edges(curves), *of_buckets, *changed]


def _about_divergence(curves: Curves, row: PassRow) -> list[str]:
    """Return where the model diverged, which epoch to keep, and what may help; figures since then tell nothing."""
    told, best = f"{capital(describe_divergence(row))}.", curves.best
    if best is None:
        return [f"{told} There is no epoch to keep.", "Train again with a lower learning rate."]
    kept = f"Keep epoch {best.key} ({TRAINING_METRICS[curves.metric]} {_fixed(best.after)})."
    return [f"{told} {kept}", f"To resume, load the model of epoch {best.key} and lower the learning rate."]


def _about_buckets(curves: Curves) -> str:
    """Return whether the model overfits to buckets, and what a visit costs where it loses beyond the error."""
    last, cost, back = curves.last, curves.cost_of_visits, curves.gained_between_visits
    if last.verdict == "no_bucket_overfitting" and cost is not None and back is not None:
        decimals = _decimals([last.gap_error or 0.0])
        told = (
            f"a visit costs its bucket's held-out edges {rounded(cost, decimals)} in {TRAINING_METRICS[curves.metric]}"
        )
        if back > 0:
            return f"No bucket overfitting, but {told}; visits to other buckets give {rounded(back, decimals)} back."
        return f"No bucket overfitting, but {told}, and visits to other buckets give nothing back."
    return {**_VERDICTS, **(_OF_LOSSES if curves.loses_in_visits else {})}[last.verdict]


def _about_training_edges(curves: Curves) -> list[str]:
    """Return which epoch to keep, and whether the model overfits to its training edges, or may be diverging."""
    metric, best, last = TRAINING_METRICS[curves.metric], curves.best, curves.last
    if best is None:
        return [
            f"Overfitting to training edges: not known, as no epoch has the {metric} of held-out edges of all buckets."
        ]
    doubt, epoch = curves.fits_training_edges_far_better, f"epoch {best.key}"
    changes = (
        f"since {epoch}, {metric} of training edges went from {_fixed(best.training)} to "
        f"{_fixed(last.training)} and that of held-out edges from {_fixed(best.after)} to {_fixed(last.after)}"
    )
    undecided, is_late = "", curves.epochs_since_best >= MANY_EPOCHS
    if curves.fall and not curves.held_out_fell:
        undecided = f" Whether held-out edges got worse is undecided, as {_why_undecided(curves, best)}."
    if curves.overfits:
        advice = f"Stop, and use the model of {epoch}." if is_late else "They may recover; train a few more epochs."
        found = f"Overfitting to training edges{'' if is_late else ' so far'}: {changes}. {advice}"
    elif last.training is None or curves.training_improved is None:
        found = "Overfitting to training edges: not known, as training edges were not ranked."
    elif curves.training_fell:
        too = "; held-out edges got worse, too" * curves.held_out_fell
        found = (
            f"Training may be diverging, as training edges got worse: {changes}{too}.{undecided} "
            "A lower learning rate might help."
        )
    elif not curves.fall:
        how = "are at their best" if best is last else f"are as good as after {epoch}"
        found = f"{'Held' if doubt else 'No overfitting to training edges: held'}-out edges {how}."
    elif doubt:
        found = f"{'Held-out edges got worse: ' * curves.held_out_fell}{changes}.{undecided}"
        found = capital(found)
    elif curves.training_improved:
        why = _why_undecided(curves, best)
        found = f"Overfitting to training edges: undecided, as {why}: {changes}."
    else:
        but = ", but held-out edges got worse" * curves.held_out_fell
        found = f"No overfitting to training edges{but}: {changes}.{undecided}"
    by_chance = []
    if curves.is_chance and last.lists is not None:
        chance = _fixed(last.lists.mrr_by_chance)
        by_chance = [f"Held-out edges are ranked no better than by chance ({metric} {chance})."]
    far_better = [_far_better(curves, metric)] if doubt else []
    is_first = curves.overfits or curves.training_fell  # what matters most
    verdicts = [found, *far_better] if is_first else [*far_better, found]
    is_filtered = last.lists is not None and last.lists.filtered
    unfiltered = [UNFILTERED] if curves.fits_training_alone and not (curves.hardly_learns or is_filtered) else []
    return [_epoch_to_keep(curves, best) + _caution(curves), *by_chance, *unfiltered, *verdicts]


def _why_undecided(curves: Curves, best: PassRow) -> str:
    """Return why the test of a fall of held-out edges has found nothing."""
    if curves.change_since_best(best).error is not None:
        return "chance may explain it"
    are = "is" if curves.num_buckets == 1 else "are"
    why = f"{plural(curves.num_buckets, 'bucket')} {are} too few to test such a fall"
    if curves.metric == "mrr":
        why += f", and edges were not compared one by one since epoch {best.key}"
    return why


def _far_better(curves: Curves, metric: str) -> str:
    """Return how far apart training edges and held-out ones are, and what may help."""
    last, advice = curves.last, ""
    if curves.fits_training_alone:
        advice = " More regularization might help."
        if curves.hardly_learns:
            advice = " Neither is far from chance: check the loss, or lower the learning rate."
    elif curves.best is last:
        advice = " Training on still helps; more regularization might, too."
    elif curves.epochs_since_best >= MANY_EPOCHS and not (curves.overfits or curves.training_fell):
        advice = " Held-out edges have stopped improving: stop, or regularize more."
    return (
        f"The model fits its training edges far better: {metric} is {_fixed(last.training)} on them, "
        f"{_fixed(last.after)} on held-out edges.{advice}"
    )


def _epoch_to_keep(curves: Curves, best: PassRow) -> str:
    """Return which epoch to keep, and whether its model is any good or another epoch's figure is better."""
    told = f"Keep epoch {best.key} ({TRAINING_METRICS[curves.metric]} {_fixed(best.after)})"
    lists = curves.last.lists
    if curves.fits_training_alone and lists is not None:
        now = "" if best is curves.last else f"; now {_fixed(curves.last.after)}"
        return f"{told[:-1]}{now}), which is close to chance ({_fixed(lists.mrr_by_chance)})."
    if best is curves.last:
        return f"{told}, the last one."
    other = curves.slightly_better
    if other is not None:
        told += f", as epoch {other.key} ({_fixed(other.after)}) is at most {RELATIVE_DELTA:.1%} better"
    return f"{told}; now {_fixed(curves.last.after)}."


def _caution(curves: Curves) -> str:
    """Return that figures are rough where few edges are held out."""
    lists = curves.last.lists
    if lists is None or lists.num_edges >= FEW_EDGES:
        return ""
    return f" These figures are rough: only {plural(lists.num_edges, 'held-out edge')}; raise eval_fraction."


def describe_lists(curves: Curves) -> str:
    """Return how many held-out edges the last pass ranked among how many candidates, and the MRR by chance."""
    lists = curves.last.lists
    if lists is None:
        return ""
    candidates = float(f"{lists.candidates:.2g}")
    told = f"{plural(lists.num_edges, 'held-out edge')}, about {candidates:,.0f} candidates each"
    told += ", filtered" * lists.filtered
    return f"{told}; by chance the MRR is {_fixed(lists.mrr_by_chance)}"


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
        wide=("before", "gap", _APART, "diverged"),
    )
    # Columns that most runs do not need
    empty = {"training": {UNDEFINED}, _APART: {UNDEFINED}, "diverged": {"0"}}
    left_out = [name for name in empty if {row[_PASS_COLUMNS.index(name)] for row in rows} == empty[name]]
    return without(table, [*left_out, *([_VERDICT] if curves.num_buckets == 1 else [])])


def training_table(curves: Curves) -> DataTable:
    """Return the same for the terminal, of at most 80 columns, with what the last verdict means."""
    title, table = f"{TRAINING_METRICS[curves.metric]} of held-out edges", passes_of(curves)
    shown = without(table, ["diverged"])
    rows = [
        (
            name + f" {len(row.diverged_buckets)} diverged" * bool(row.diverged_buckets),
            *(cell.replace(" ± ", "±") for cell in cells),
        )
        for row, (name, *cells) in zip(curves.passes, shown.rows, strict=False)
    ]
    return evolve(
        shown,
        title=title,
        rows=rows,
        whole_words=(_VERDICT,),
        note="\n".join([*(f"{told}." for told in filter(None, [describe_lists(curves)])), *verdicts_of(curves)]),
    )


def _decimals(errors: Iterable[float | None]) -> int:
    """Return as many decimals as the smallest of some errors asks for, at most those of the figures beside them."""
    return min(4, max(map(decimals_of, filter(None, errors)), default=4))


def _pass_row(row: PassRow, decimals: tuple[int, int], best: PassRow | None = None) -> tuple[str, ...]:
    name = str(row.key)
    figures = (
        _fixed(row.before),
        _fixed(row.after),
        _difference(row.gap, row.gap_error, decimals[0]),
        _fixed(row.training),
        _difference(row.generalization, row.generalization_error, decimals[1]),
    )
    name += " (keep)" * (row is best) + " (unfinished)" * (not row.is_finished)
    return name, *figures, str(len(row.diverged_buckets)), _IN_COLUMN.get(row.verdict, verdict_in_words(row.verdict))


def _difference(value: float | None, error: float | None, decimals: int) -> str:
    told = rounded(value, decimals, "+")
    return f"{told} ± {rounded(error, decimals)}" if value is not None and error else told


def _fixed(value: float | None) -> str:
    return rounded(value, 4)


def training_tiles(curves: Curves) -> list[Tile]:
    """Return the figures of the last finished pass, and those of the one to keep beside them."""
    metric, last, best = TRAINING_METRICS[curves.metric], curves.last, curves.best
    error = last.gap_error or 0.0
    where = [f"in epoch {last.key.epoch}" + " (unfinished)" * (not last.is_finished)]
    interval = []
    if last.gap is not None and error:
        ends = (rounded(end, decimals_of(error), "+") for end in (last.gap - Z * error, last.gap + Z * error))
        interval = [interval_line(*ends)]
    _, before, after, gap, training, *_ = _pass_row(last, (_decimals([error]), 4))
    tiles = (
        Tile(f"{metric} before visits", before, where),
        Tile(f"{metric} after visits", after, where),
        Tile(
            f"{metric} of the epoch to keep",
            _fixed(None if best is None else best.after),
            [f"in epoch {best.key}" if best else ""],
        ),
        Tile("Gap", gap, [*interval, "after − before"]),
        Tile(f"{metric} of training edges", training, where),
    )
    return [tile for tile in tiles if tile.value != UNDEFINED]


# Curves of a training run -> the levels and the gap before and after each visit.


def training_charts(curves: Curves) -> list[Chart]:
    """Return the means before and after each epoch, their gap with its interval, and the visits to several buckets."""
    name, rows = TRAINING_METRICS[curves.metric], curves.passes
    x = counted("epoch", [str(row.key.epoch) for row in rows], LEFT, WIDTH - RIGHT, 47.0)
    series = {
        "held-out, before": [row.before for row in rows],
        "held-out, after": [row.after for row in rows],
        "training, after": [row.training for row in rows],
    }
    shown = {label: values for label, values in series.items() if any(value is not None for value in values)}
    known = [value for values in shown.values() for value in values if value is not None]
    y = linear(name, min(known, default=0.0), max(known, default=1.0))
    lines = [Line(kind, _apart(values, curves), has_dots=True) for kind, values in enumerate(shown.values())]
    levels = Chart(
        title=f"{capital(name)} before and after each epoch",
        description=f"{name} of held-out edges before and after each epoch; the table has the numbers",
        x=x,
        y=y,
        lines=lines,
        labels=line_labels([*shown], lines, x, y, len(rows) - 1.0),
    )
    gaps = [row.gap for row in rows]
    halves = [Z * (row.gap_error or 0.0) for row in rows]
    ends = [
        (at, end)
        for at, (gap, half) in enumerate(zip(gaps, halves, strict=True))
        if gap is not None
        for end in (gap - half, gap + half, None)
    ]
    heights = [0.0, *(end for _, end in ends if end is not None)]
    told = "after − before, with 95% intervals" if any(halves) else "after − before"
    gap = Chart(
        title=f"Gap: {told}",
        description=f"Gap of the {name}, {told}, by epoch; the table has the numbers",
        x=x,
        y=linear(f"gap of {name}", min(heights), max(heights)),
        lines=[
            Line("zero", ((x.low, 0.0), (x.high, 0.0))),
            Line(0, _apart(gaps, curves), has_dots=True),
            *([Line(0, ends)] if any(halves) else []),
        ],
    )
    return [levels, gap, *([_visits(curves, x)] if curves.num_buckets != 1 else [])]


def _visits(curves: Curves, x: Axis) -> Chart:
    lines = [
        Line("thin", _steps(visits))
        for visits in [*curves.teeth.values()][: max(1, min(MAX_BUCKETS, MAX_POINTS // len(curves.passes)))]
    ]
    known = [value for line in lines for _, value in line.points if value is not None]
    name = TRAINING_METRICS[curves.metric]
    which = f"{len(lines)} of {len(curves.teeth)} buckets" if len(lines) < len(curves.teeth) else "each bucket"
    return Chart(
        title=f"{capital(which)} before and after each visit",
        description=f"{name} of held-out edges of {which} before and after each visit",
        x=x,
        y=linear(name, min(known, default=0.0), max(known, default=1.0)),
        lines=lines,
        note="Each line is a bucket. It steps up while the bucket is trained. If it falls back until the next visit, "
        "training overfits to buckets.",
    )


def _steps(visits: Mapping[int, BucketVisit]) -> list[tuple[float, float | None]]:
    """Return the points of a bucket's visits, with a gap where its held-out edges changed."""
    points: list[tuple[float, float | None]] = []
    edges = next(iter(visits.values())).edges
    for at, of in visits.items():
        points += [] if of.edges == edges else [(at - 0.25, None)]
        points += [(at - 0.25, of.before), (at + 0.25, of.after)]
        edges = of.edges
    return points


def _apart(values: Sequence[float | None], curves: Curves) -> list[tuple[float, float | None]]:
    """Return the points of passes, with a gap where held-out edges changed: they cannot be compared."""
    changes = curves.changes
    return [point for at, value in enumerate(values) for point in [(at, None)] * (at in changes) + [(at, value)]]
