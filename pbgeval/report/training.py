"""Curves of a training run -> a picture (PNG)."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import TYPE_CHECKING

from pbgeval.errors import ConfigError, OutputError
from pbgeval.monitor.curves import METRICS, Curves
from pbgeval.report.charts import Z
from pbgeval.storage.text import open_input
from pbgeval.storage.writing import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


PICTURE = "training_curves.png"
MOST_BUCKETS = 64  # drawn one by one
_MARK = "kgeval-dist monitor"  # in the picture, so that only such pictures are replaced


def write_picture(curves: Curves, folder: Path) -> Path:
    """Write the picture into a folder; return its path.

    Raises:
        ConfigError: matplotlib is not installed.
        OutputError: the file cannot be written, or one of this name is not such a picture.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError("expected matplotlib to draw, found none; pip install 'pbgeval[monitor]'") from None
    path = folder / PICTURE
    if os.path.lexists(path) and not _is_ours(path):
        raise OutputError(f"{path}: this file is not a picture of kgeval-dist monitor; give another --output")
    figure = Figure(figsize=(9, 8), layout="constrained")
    _draw(figure, curves)
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=130, metadata={"Software": _MARK})
    write_atomically(path, image.getvalue())
    return path


def _is_ours(path: Path) -> bool:
    try:
        with open_input(path) as file:
            return f"Software\0{_MARK}".encode() in file.read(1000)
    except OSError:
        return False


def _draw(figure: Figure, curves: Curves) -> None:
    of_passes, of_gaps, of_buckets = figure.subplots(3, 1, sharex=True)
    name = METRICS[curves.metric]
    numbers = range(len(curves.passes))
    for label, values in (
        ("held out, before", [row.before for row in curves.passes]),
        ("held out, after", [row.after for row in curves.passes]),
        ("training edges, after", [row.training for row in curves.passes]),
    ):
        _line(of_passes, numbers, values, label)
    of_passes.set_ylabel(name)
    of_passes.legend(fontsize="small")
    gaps = [row.gap for row in curves.passes]
    errors = [Z * (row.gap_error or 0.0) for row in curves.passes]
    known = [number for number in numbers if gaps[number] is not None]
    of_gaps.axhline(0.0, color="0.6", linewidth=0.8)
    half = [errors[at] for at in known] if any(errors) else None
    of_gaps.errorbar(known, [gaps[at] for at in known], yerr=half, fmt="o-", markersize=3, capsize=3)
    of_gaps.set_ylabel("after − before, 95 %" if any(errors) else "after − before")
    for place in list(curves.teeth)[:MOST_BUCKETS]:
        of_place = curves.teeth[place]
        x = [number + offset for number, _, _ in of_place for offset in (-0.25, 0.25)]
        of_buckets.plot(x, [value for _, before, after in of_place for value in (before, after)], linewidth=0.7)
    shown = min(len(curves.teeth), MOST_BUCKETS)
    of_buckets.set_ylabel(f"{shown} of {len(curves.teeth)} buckets" if shown < len(curves.teeth) else "each bucket")
    of_buckets.set_xlabel("pass")
    of_buckets.locator_params(axis="x", integer=True)


def _line(axes: Axes, numbers: range, values: list[float | None], label: str) -> None:
    known = [(number, value) for number, value in zip(numbers, values, strict=True) if value is not None]
    if known:
        axes.plot(*zip(*known, strict=True), "o-", markersize=3, label=label)
