"""A report -> the table that is shown at the end of a run."""

from __future__ import annotations

from collections.abc import Collection, Iterable

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
    sides = sides_of(metrics)
    table = Table(title=title_of(report), title_justify="left", caption=_caption(report), caption_justify="left")
    table.add_column(f"{headline} ranks")
    for side in sides:
        table.add_column(side, justify="right", no_wrap=True)
    for name, key in headline_rows(metrics, headline):
        table.add_row(name, *(cell_of(report, f"{side}.{key}") for side in sides))
    return table


def sides_of(keys: Collection[str]) -> list[str]:
    """Return the sides that have metrics: a disabled one has none."""
    return [side for side in SIDES if any(key.startswith(f"{side}.") for key in keys)]


def headline_rows(keys: Iterable[str], headline: str) -> list[tuple[str, str]]:
    """Return (what a row is called, its key without the side): all that a report has, or of many the usual ones."""
    present = dict.fromkeys(key.partition(".")[2] for key in keys)
    cutoffs = _cutoffs(present, f"{headline}.hits_at_")
    usual = {
        f"{headline}.mean_rank": "mean rank",
        f"{headline}.mean_reciprocal_rank": "mean reciprocal rank",
        **{f"{headline}.hits_at_{cutoff}": f"hits at {cutoff}" for cutoff in cutoffs},
        **{f"ndcg_jk_at_{cutoff}": f"NDCG of types at {cutoff}" for cutoff in _cutoffs(present, "ndcg_jk_at_")},
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


def _cutoffs(keys: Iterable[str], prefix: str) -> list[int]:
    return sorted(int(key.removeprefix(prefix)) for key in keys if key.startswith(prefix))


def title_of(report: Report) -> str:
    """Return what was evaluated, in a few words; of an unfinished run, what is done so far."""
    document = report.document
    if "diagnostics" not in document:
        return f"{document['num_edges']:,} edges so far, {document['filter']}"
    candidates = document["diagnostics"]["both"]["num_candidates"]
    low, high = candidates["min"], candidates["max"]
    spread = f"{low:,}" if low == high and low is not None else f"{low} to {high}"
    among = f"among {spread} candidates" if low is not None else "no queries"
    return f"{document['num_edges']:,} edges, {document['filter']}, {among}"


def _caption(report: Report) -> str:
    if any("standard_error" in interval for interval in report.intervals.values()):
        return "± standard error of what is estimated"
    return ""


def cell_of(report: Report, key: str) -> str:
    """Return a metric with its standard error, or the interval where the value is not known; `-` where undefined."""
    value = report.document["metrics"].get(key)
    interval = report.intervals.get(key)
    if value is None:
        return "-" if interval is None else f"{number(key, interval['low'])} to {number(key, interval['high'])}"
    text = number(key, value)
    return text if interval is None else f"{text} ±{interval['standard_error']:.1g}"


def number(key: str, value: float) -> str:
    """Return a metric as text: what is counted in full, ranks and losses with two decimals, all others with four."""
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.2f}" if key.endswith(("mean_rank", "loss")) else f"{value:.4f}"
