"""A comparison -> tables on the terminal, in Markdown or LaTeX; rows of CSV; JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from attrs import asdict

from pbgeval.metrics.paired import Difference
from pbgeval.report.comparison import Comparison, RelationDifferences
from pbgeval.report.tables import DataTable, escape_markdown, one_line, to_csv, to_latex, to_markdown

MAX_RELATIONS = 20  # that a table shows: those with the smallest p-values
MIN_P = 1e-4  # smaller ones are written as below this
_COLUMNS = ("A", "B", "B - A", "95 % interval")


def comparison_tables(comparison: Comparison) -> list[DataTable]:
    """Return the table of all metrics, and that of relations where there are any."""
    title = (
        f"{comparison.num_queries:,} queries ({comparison.side}), {comparison.filter}, {comparison.rank_type} ranks; "
        f"A: {comparison.a}, B: {comparison.b}"
    )
    whole = [
        (_name(of.metric), *_cells(of), _probability(of.p_value), _probability(of.p_holm))
        for of in comparison.differences
    ]
    tables = [DataTable(title, ("", *_COLUMNS, "p", "p (Holm)"), whole)]
    if comparison.relations and comparison.differences:
        tables.append(_relations(comparison))
    return tables


def _relations(comparison: Comparison) -> DataTable:
    """Return the relations with the smallest p-values of the mean reciprocal rank, or of the first metric."""
    names = [of.metric for of in comparison.differences]
    at = names.index("mean_reciprocal_rank") if "mean_reciprocal_rank" in names else 0

    def order(of: RelationDifferences) -> tuple[float, float]:
        difference = of.differences[at]
        return (2.0 if difference.p_value is None else difference.p_value), -abs(difference.difference)

    shown = sorted(comparison.relations, key=order)[:MAX_RELATIONS]
    rest = len(comparison.relations) - len(shown)
    rows = [
        (of.relation, f"{of.num_queries:,}", *_cells(of.differences[at]), _probability(of.differences[at].p_holm))
        for of in shown
    ]
    title = f"{_name(names[at])} by relation" + (f"; {rest} more are in JSON and CSV" if rest else "")
    return DataTable(title, ("relation", "queries", *_COLUMNS, "p (Holm)"), rows)


def _name(metric: str) -> str:
    return metric.replace("_", " ")


def _cells(of: Difference) -> list[str]:
    digits = 2 if of.metric == "mean_rank" else 4
    interval = "-" if of.low is None or of.high is None else f"{of.low:+,.{digits}f} to {of.high:+,.{digits}f}"
    return [f"{of.a:,.{digits}f}", f"{of.b:,.{digits}f}", f"{of.difference:+,.{digits}f}", interval]


def _probability(p: float | None) -> str:
    if p is None:
        return "-"
    return f"< {MIN_P:.4f}" if p < MIN_P else f"{p:.4f}"


def _markdown(comparison: Comparison) -> str:
    tables = comparison_tables(comparison)
    return "\n".join(f"{escape_markdown(table.title)}\n\n{to_markdown(table, left='---')}\n" for table in tables)


def _latex(comparison: Comparison) -> str:
    tables = comparison_tables(comparison)
    return "\n".join(f"% {one_line(table.title)}\n{to_latex(table)}\n" for table in tables)


def _csv_rows(comparison: Comparison) -> Iterator[dict[str, Any]]:
    """Yield a row per metric, and one per relation and metric."""
    parts: list[tuple[str, int | str, Comparison | RelationDifferences]] = [("", "", comparison)]
    parts += [(of.relation, of.relation_id, of) for of in comparison.relations]
    for relation, relation_id, part in parts:
        names = {"relation": relation, "relation_id": relation_id, "num_queries": part.num_queries}
        for difference in part.differences:
            yield {**names, **asdict(difference)}


def to_json(comparison: Comparison) -> str:
    """Return all of it; what is undefined is null."""
    return json.dumps(comparison.to_dict(), sort_keys=True, indent=2, allow_nan=False) + "\n"


FORMATS: Mapping[str, Callable[[Comparison], str]] = {
    "json": to_json,
    "csv": lambda comparison: to_csv(_csv_rows(comparison)),
    "md": _markdown,
    "latex": _latex,
}
