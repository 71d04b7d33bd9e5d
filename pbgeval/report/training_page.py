"""Curves of a training run -> a table, a picture (PNG) and a page (HTML) that needs nothing but itself."""

from __future__ import annotations

import html
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from pbgeval.errors import ConfigError
from pbgeval.files import write_atomically
from pbgeval.report.training_curves import METRICS, Curves
from pbgeval.report.training_words import PASS_COLUMNS, Z, cells_of_pass, verdict_of
from pbgeval.version import __version__

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PICTURE, PAGE = "training_curves.png", "training_curves.html"
MOST_BUCKETS = 64  # drawn one by one
_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
figure { margin: 1.5rem 0; background: #fff; } figure svg { width: 100%; height: auto; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .75rem; text-align: right; border-bottom: 1px solid #8884; }
th:last-child, td:last-child { text-align: left; }
"""


def training_table(curves: Curves) -> Table:
    """Return a row per pass, without columns that tell nothing, and below them what the last verdict means."""
    table = Table(title=f"{METRICS[curves.metric]} of held-out edges", title_justify="left")
    rows = [cells_of_pass(row) for row in curves.passes]
    told = [at for at in range(len(PASS_COLUMNS)) if any(row[at] not in ("-", "0") for row in rows) or at == 0]
    for at in told:
        table.add_column(PASS_COLUMNS[at], justify="left" if at == len(PASS_COLUMNS) - 1 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(row[at] for at in told))
    table.caption, table.caption_justify = verdict_of(curves), "left"
    return table


def write_curves(curves: Curves, source: Path, folder: Path) -> tuple[Path, Path]:
    """Write the picture and the page into a folder; return their paths.

    Args:
        curves: what is drawn.
        source: the records' file or folder, named on the page.
        folder: where to.

    Raises:
        ConfigError: matplotlib is not installed.
        OutputError: a file cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError("expected matplotlib to draw, found none; pip install 'pbgeval[monitor]'") from None
    figure = Figure(figsize=(9, 8), layout="constrained")
    _draw(figure, curves)
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=130, metadata={"Software": None})
    write_atomically(folder / PICTURE, image.getvalue())
    write_atomically(folder / PAGE, _page(curves, source, _svg(figure)))
    return folder / PICTURE, folder / PAGE


def _svg(figure: Figure) -> str:
    """Return the picture as markup; names in it do not depend on the time or on chance."""
    from matplotlib import rc_context

    text = io.StringIO()
    with rc_context({"svg.hashsalt": "pbgeval"}):
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return text.getvalue()[text.getvalue().index("<svg") :]


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


def _page(curves: Curves, source: Path, picture: str) -> str:
    head = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in PASS_COLUMNS)
    body = "\n".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells_of_pass(row)) + "</tr>"
        for row in curves.passes
    )
    parts: dict[str, Any] = {
        "style": _STYLE,
        "source": html.escape(str(source)),
        "metric": html.escape(METRICS[curves.metric]),
        "verdict": html.escape(verdict_of(curves)),
    }
    return (
        """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Training curves</title><style>{style}</style></head><body>
<main><h1>Training curves</h1>
<p>{source}: {metric} of held-out edges, before and after each visit to a bucket. <strong>{verdict}</strong>.</p>
<figure role="img" aria-label="{metric} by pass; the table below has the same figures">
""".format(**parts)
        + f"""{picture}</figure>
<div class="scroll" tabindex="0" role="region" aria-label="Passes"><table><thead><tr>{head}</tr></thead>
<tbody>
{body}
</tbody></table></div>
<p>pbgeval {__version__}</p></main></body></html>
"""
    )
