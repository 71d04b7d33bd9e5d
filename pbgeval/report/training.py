"""Curves of a training run -> a picture (PNG)."""

from __future__ import annotations

import io
from pathlib import Path

from pbgeval.errors import ConfigError
from pbgeval.monitor.curves import Curves
from pbgeval.report.charts import training_charts
from pbgeval.report.output import refuse_others
from pbgeval.storage.writing import write_atomically

PICTURE = "training_curves.png"
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
    refuse_others(path, f"Software\0{_MARK}", "a picture of kgeval-dist monitor")
    figure = Figure(figsize=(9, 8), layout="constrained")
    charts = training_charts(curves)
    for axes, chart in zip(figure.subplots(len(charts), 1, sharex=True), charts, strict=True):
        for line in chart.lines:
            x, y = zip(*line.points, strict=True)
            axes.plot(x, y, "o-" if line.has_dots else "-", color=f"C{line.kind}", markersize=3, linewidth=0.8)
        axes.set_title(chart.title, fontsize="medium")
        axes.set(ylabel=chart.y.label, xlabel=chart.x.label)
        if chart.legend:
            labelled = {line.kind: drawn for line, drawn in zip(chart.lines, axes.lines, strict=True)}
            axes.legend(labelled.values(), [name for _, name in chart.legend], fontsize="small")
        axes.set_xticks(*zip(*chart.x.ticks, strict=True))
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=130, metadata={"Software": _MARK})
    write_atomically(path, image.getvalue())
    return path
