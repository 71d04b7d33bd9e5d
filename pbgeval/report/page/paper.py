"""What a folder holds -> tables for papers, in Markdown or LaTeX (booktabs): headline, breakdowns, training."""

from __future__ import annotations

from pbgeval.report.page.charts import gap_of
from pbgeval.report.page.figures import UNDEFINED, Cell, breakdowns_of, headline_of
from pbgeval.report.page.page import progress_of
from pbgeval.report.page.tables import Column, DataTable, Source, clipped
from pbgeval.report.paper_text import escape_latex, escape_markdown, row_of_latex, row_of_markdown
from pbgeval.report.report import Report
from pbgeval.report.table import title_of

MOST_ROWS = 20  # of a breakdown
_TOO_MUCH = ("id", "MRR, head", "MRR, tail", "AMRI", "AUC per query")  # columns, for the width of a page of paper


def markdown(source: Source) -> str:
    """Return tables in GitHub's Markdown."""
    parts = [f"# {escape_markdown(clipped(source.name))}", escape_markdown(f"{_told(source)}.")]
    for table in tables_of(source):
        head = row_of_markdown([column.title for column in table.columns])
        rule = "|" + "|".join("--:" if column.is_number else ":--" for column in table.columns) + "|"
        parts.append(f"## {escape_markdown(table.title)}")
        parts.append("\n".join([head, rule, *map(row_of_markdown, table.rows)]))
        if table.note:
            parts.append(escape_markdown(table.note))
    return "\n\n".join(parts) + "\n"


def latex(source: Source) -> str:
    r"""Return tables in LaTeX, for a document with \usepackage{booktabs}."""
    tables = [_table_of_latex(table, f"{table.title}. {_told(source)}") for table in tables_of(source)]
    return "\n".join(["% needs \\usepackage{booktabs}", *tables])


def tables_of(source: Source) -> list[DataTable]:
    """Return the tables that papers have: the headline, the first rows of breakdowns, the passes of training."""
    tables: list[DataTable] = []
    if source.report is not None and source.has_metrics:
        tables = [_headline(source.report), *map(_shortened, breakdowns_of(source.report))]
    if source.training is not None:
        tables.append(gap_of(source.training).passes)
    return tables


def _headline(report: Report) -> DataTable:
    headline = headline_of(report)
    rows = tuple((name, *map(_with_error, cells)) for name, cells in headline.rows)
    ranks = f"{report.document['headline']} ranks"
    columns = (Column("metric", is_number=False), *map(Column, headline.sides))
    note = (
        "±: standard error of what is estimated." if any(cell.error for _, of in headline.rows for cell in of) else ""
    )
    return DataTable("headline", f"Headline metrics, {ranks}", columns, rows, note)


def _with_error(cell: Cell) -> str:
    if cell.value == UNDEFINED and cell.interval:
        return cell.interval
    return f"{cell.value} {cell.error}".rstrip()


def _shortened(table: DataTable) -> DataTable:
    kept = [at for at, column in enumerate(table.columns) if column.title not in _TOO_MUCH]
    rows = tuple(tuple(row[at] for at in kept) for row in table.rows[:MOST_ROWS])
    note = "" if len(rows) == len(table.rows) else f"The first {len(rows)} rows; the CSV file has all."
    return DataTable(table.anchor, table.title, tuple(table.columns[at] for at in kept), rows, note)


def _told(source: Source) -> str:
    """Return what was evaluated."""
    report = source.report
    if report is None:
        return "Held-out edges of a training run"
    if not report.document["complete"]:
        so_far = f"; {title_of(report)}" if source.has_metrics else ""
        return f"Not complete: {progress_of(report.document)}{so_far}"
    return title_of(report)


def _table_of_latex(table: DataTable, caption: str) -> str:
    kinds = "".join("r" if column.is_number else "l" for column in table.columns)
    note = f" {table.note}" if table.note else ""
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{escape_latex(f'{caption}.{note}')}}}",
            rf"\label{{tab:{table.anchor}}}",
            rf"\begin{{tabular}}{{{kinds}}}",
            r"\toprule",
            row_of_latex([column.title for column in table.columns]),
            r"\midrule",
            *map(row_of_latex, table.rows),
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )
