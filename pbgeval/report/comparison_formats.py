"""A comparison -> a table on the terminal, in Markdown or LaTeX; rows of CSV; JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import asdict
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from pbgeval.metrics.paired import Difference
from pbgeval.report.comparison import Comparison, RelationDifferences
from pbgeval.report.output import csv_table
from pbgeval.report.paper_text import escape_markdown, one_line, row_of_latex, row_of_markdown
from pbgeval.storage.text import printable

MOST_RELATIONS = 20  # that a table shows: those with the smallest p-values
LEAST_P = 1e-4  # smaller ones are written as below this
_COLUMNS = ("A", "B", "B - A", "95 % interval")


def comparison_tables(comparison: Comparison) -> list[Table]:
    """Return the table of all metrics, and that of relations where there are any."""
    return [_rich(title, head, rows) for title, head, rows in _tables(comparison)]


def to_markdown(comparison: Comparison) -> str:
    """Return the same tables in Markdown."""
    parts = []
    for title, head, rows in _tables(comparison):
        rule = "|---|" + "--:|" * (len(head) - 1)
        lines = [f"{escape_markdown(title)}\n", row_of_markdown(head), rule, *map(row_of_markdown, rows)]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def to_latex(comparison: Comparison) -> str:
    """Return the same tables in LaTeX, with the rules of booktabs."""
    parts = []
    for title, head, rows in _tables(comparison):
        lines = [
            f"% {one_line(title)}",
            rf"\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}",
            r"\toprule",
            row_of_latex(head),
        ]
        lines += [r"\midrule", *map(row_of_latex, rows), r"\bottomrule", r"\end{tabular}"]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def to_csv(comparison: Comparison) -> str:
    """Return a row per metric, and one per relation and metric."""
    rows = [_csv_row("", "", comparison.num_queries, of) for of in comparison.differences]
    for relation in comparison.relations:
        names = relation.relation, relation.relation_id, relation.num_queries
        rows += [_csv_row(*names, of) for of in relation.differences]
    return csv_table(rows)


def to_json(comparison: Comparison) -> str:
    """Return all of it; what is undefined is null."""
    return json.dumps(comparison.to_dict(), sort_keys=True, indent=2, allow_nan=False) + "\n"


FORMATS: Mapping[str, Callable[[Comparison], str]] = {
    "json": to_json,
    "csv": to_csv,
    "md": to_markdown,
    "latex": to_latex,
}


def _csv_row(relation: str, relation_id: int | str, num_queries: int, difference: Difference) -> dict[str, Any]:
    names = {"relation": relation, "relation_id": relation_id, "num_queries": num_queries}
    return {**names, **asdict(difference)}


def _tables(comparison: Comparison) -> list[tuple[str, list[str], list[list[str]]]]:
    """Return (title, head, rows) of each table."""
    metric = _main_metric(comparison)
    title = (
        f"{comparison.num_queries:,} queries ({comparison.side}), {comparison.filter}, {comparison.rank_type} ranks; "
        f"A: {comparison.a}, B: {comparison.b}"
    )
    whole = [
        [_name(of.metric), *_cells(of), _probability(of.p_value), _probability(of.p_holm)]
        for of in comparison.differences
    ]
    tables = [(title, ["", *_COLUMNS, "p", "p (Holm)"], whole)]
    if comparison.relations and metric is not None:
        shown = sorted(comparison.relations, key=lambda of: _order(_of(of, metric)))[:MOST_RELATIONS]
        left = len(comparison.relations) - len(shown)
        title = f"{_name(metric)} by relation" + (f"; {left} more are in JSON and CSV" if left else "")
        rows = []
        for of in shown:
            difference = _of(of, metric)
            rows.append([of.relation, f"{of.num_queries:,}", *_cells(difference), _probability(difference.p_holm)])
        tables.append((title, ["relation", "queries", *_COLUMNS, "p (Holm)"], rows))
    return tables


def _main_metric(comparison: Comparison) -> str | None:
    names = [of.metric for of in comparison.differences]
    usual = "mean_reciprocal_rank"
    return usual if usual in names else next(iter(names), None)


def _of(relation: RelationDifferences, metric: str) -> Difference:
    return next(of for of in relation.differences if of.metric == metric)


def _order(difference: Difference) -> tuple[float, float]:
    return (2.0 if difference.p_value is None else difference.p_value), -abs(difference.difference)


def _name(metric: str) -> str:
    return metric.replace("_", " ")


def _cells(of: Difference) -> list[str]:
    digits = 2 if of.metric == "mean_rank" else 4
    interval = "-" if of.low is None or of.high is None else f"{of.low:+,.{digits}f} to {of.high:+,.{digits}f}"
    values = [f"{of.a:,.{digits}f}", f"{of.b:,.{digits}f}", f"{of.difference:+,.{digits}f}"]
    return [*values, interval]


def _probability(p: float | None) -> str:
    if p is None:
        return "-"
    return f"< {LEAST_P:.4f}" if p < LEAST_P else f"{p:.4f}"


def _rich(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(title=Text(title), title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for place, name in enumerate(head):
        table.add_column(Text(name), justify="right" if place else "left", no_wrap=place > 0)
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    return table
