"""A report -> the table that is shown at the end of a run."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from pbgeval.report.report import Report

MOST_OTHERS = 8  # rows besides the usual ones, where single metrics were asked for
SIDES = ("head", "tail", "both")


def print_table(report: Report, console: Console) -> None:
    """Show the headline metrics of each side, with standard errors where there are any."""
    console.print(final_table(report))


def final_table(report: Report) -> Table:
    """Return a row per metric and a column per side: narrow enough for any terminal."""
    metrics, headline = report.document["metrics"], report.document["headline"]
    sides = [side for side in SIDES if any(key.startswith(f"{side}.") for key in metrics)]
    table = Table(title=_title(report), title_justify="left", caption=_caption(report), caption_justify="left")
    table.add_column(f"{headline} ranks")
    for side in sides:
        table.add_column(side, justify="right", no_wrap=True)
    for name, key in _rows(list(metrics), headline):
        table.add_row(name, *(_cell(report, f"{side}.{key}") for side in sides))
    return table


def _rows(keys: list[str], headline: str) -> list[tuple[str, str]]:
    """Return (what a row is called, its key without the side): all that a report has, or of many the usual ones."""
    present = dict.fromkeys(key.partition(".")[2] for key in keys)
    cutoffs = sorted(int(key.rpartition("_")[2]) for key in present if key.startswith(f"{headline}.hits_at_"))
    usual = {
        f"{headline}.mean_rank": "mean rank",
        f"{headline}.mean_reciprocal_rank": "mean reciprocal rank",
        **{f"{headline}.hits_at_{cutoff}": f"hits at {cutoff}" for cutoff in cutoffs},
        "query_auc": "AUC per query",
        "auc": "AUC pooled",
        "average_precision_score": "average precision",
        "loss": "loss",
    }
    rows = [(name, key) for key, name in usual.items() if key in present]
    others = [key for key in present if key not in usual and (key.startswith(f"{headline}.") or "." not in key)]
    if len(others) <= MOST_OTHERS or not rows:
        rows += [(key.removeprefix(f"{headline}.").replace("_", " "), key) for key in others]
    return rows


def _title(report: Report) -> str:
    document = report.document
    candidates = document["diagnostics"]["both"]["num_candidates"]
    low, high = candidates["min"], candidates["max"]
    spread = f"{low:,}" if low == high and low is not None else f"{low} to {high}"
    among = f"among {spread} candidates" if low is not None else "no queries"
    return f"{document['num_edges']:,} edges, {document['filter']}, {among}"


def _caption(report: Report) -> str:
    return "± standard error of what is estimated" if report.intervals else ""


def _cell(report: Report, key: str) -> str:
    value = report.document["metrics"].get(key)
    if value is None:
        return "-"
    text = f"{value:,.2f}" if key.endswith(("mean_rank", "loss")) else f"{value:.4f}"
    interval = report.intervals.get(key)
    return text if interval is None else f"{text} ±{interval['standard_error']:.1g}"
