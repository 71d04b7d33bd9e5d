"""Comparisons of two runs, and of any number of runs -> their pages."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import evolve

from pbgeval.report.charts import Chart
from pbgeval.report.comparison import (
    MEANING_OF_P,
    Comparison,
    difference_tiles,
    names_of_folders,
    relations_to_show,
    sentence_of_two,
    with_letters,
)
from pbgeval.report.comparison_charts import difference_chart
from pbgeval.report.conditions import tags_of
from pbgeval.report.figures import name_of, short_title
from pbgeval.report.many_runs import ManyRuns, diagram_of, many_tiles, sentence_of_many
from pbgeval.report.page import Page, Section, warnings_section
from pbgeval.report.report import Report
from pbgeval.report.tables import DataTable, clipped, without
from pbgeval.storage.text import plural

# Two runs


def comparison_page(comparison: Comparison) -> Page:
    """Return the page of two runs, whose results are read again for their names."""
    a, b = Report.read(comparison.a), Report.read(comparison.b)
    has_names = comparison.names != ("A", "B")
    folders = [
        clipped(of) for of in (comparison.names if has_names else names_of_folders([comparison.a, comparison.b]))
    ]
    names, data = folders if has_names else _names(a, b) or folders, name_of(a).partition(" on ")[2]
    title = f"{names[1]} compared with {names[0]}" + (f" on {data}" if data else "")
    models = dict.fromkeys([comparison.a_model, comparison.b_model])
    tags = [
        *(f"{letter}: {folder}" for letter, folder in zip("AB", folders, strict=True)),
        *(models if len(models) == 1 else ()),
        *comparison.tags,
    ]
    whole, *by_relation = comparison.tables()
    # Beside the chart is room for one p.
    whole = evolve(
        without(whole, ["p"]), title="All metrics", note=" ".join([*MEANING_OF_P, *comparison.condition_sentences])
    )
    shown: list[DataTable | Chart] = [evolve(whole, wide=("A", "B"))]
    sections = [
        warnings_section(comparison.warnings),
        Section("differences", "Differences between the runs", shown, layout="roomy"),
    ]
    for table in by_relation:
        at, relations = relations_to_show(comparison)
        drawn = [(of.relation, of.differences[at]) for of in relations]
        drawn = [row for row in drawn if row[1].low is not None or row[1].is_significant] or drawn  # not the rarest
        main = comparison.differences[at]
        chart = difference_chart(short_title(main.metric), main, drawn)
        few = f"{chart.note} Left out: {plural(len(relations) - len(drawn), 'relation')} without an interval."
        shown.append(chart if len(drawn) == len(relations) else evolve(chart, note=few))
        table = evolve(table, wide=("A", "B", "95% interval"))  # the chart has the intervals
        sections.append(Section("relations", table.title, [table], sortable=True, layout="wide"))
    rows = [
        ("A", comparison.a, comparison.a_model, "; ".join(tags_of(a.document))),
        ("B", comparison.b, comparison.b_model, "; ".join(tags_of(b.document))),
    ]
    sections.append(_provenance(("run", "folder", "model", "conditions"), rows))
    page = Page("Comparison", " and ".join(folders), title, tags, difference_tiles(comparison), sections)
    return evolve(page, lead=sentence_of_two(comparison, with_letters(names)))


def _names(*reports: Report) -> list[str]:
    """Return the models, where they tell the runs apart."""
    names = [name_of(report).partition(" on ")[0] for report in reports]
    return [] if len({*names}) < len(names) else names


def _provenance(columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Section:
    """Return where the runs come from; what all of them share stands below the table."""
    shared = [name for at, name in enumerate(columns) if len({row[at] for row in rows}) == 1 < len(rows)]
    first = dict(zip(columns, rows[0], strict=True))
    note = "".join(f"{name.capitalize()} of all runs: {first[name]}. " for name in shared).rstrip()
    table = DataTable("The runs", columns, rows, note, kinds="l" * len(columns))
    return Section("origin", "Provenance", [without(table, shared)], layout="wide")


# Any number of runs


def many_runs_page(found: ManyRuns) -> Page:
    """Return the page of any number of runs."""
    figures, *others = found.tables()
    tags = [
        f"{len(found.groups)} models" if any(len(of.runs) > 1 for of in found.groups) else f"{len(found.groups)} runs",
        *found.tags,
    ]
    rows = [
        (group.name, folder, model)
        for group in found.groups
        for model, folder in zip(group.models, group.runs, strict=True)
    ]
    shown: list[DataTable | Chart] = [_with_letters(figures), diagram_of(found)]
    by_anchor = {table.anchor: table for table in others}
    pairs = [evolve(by_anchor["pairs"], wide=("95% interval", "p", "p, edges", "p, seeds"))] if found.pairs else []
    sections = [
        warnings_section(found.warnings),
        Section("metrics", "All metrics", shown, layout="roomy"),
        *(Section("differences", table.title, [table], sortable=True, layout="wide") for table in pairs),
        Section("certainty", "How certain and how alike", [by_anchor["spread"], by_anchor["overlap"]], sortable=True),
        _provenance(("run", "folder", "model"), rows),
    ]
    names = [group.name for group in found.groups]
    title = f"{clipped(names[0])} and {plural(len(names) - 1, 'other')} compared" if names[1:] else clipped(names[0])
    page = Page("Comparison", clipped(", ".join(names)), title, tags, many_tiles(found), sections)
    return evolve(page, lead=sentence_of_many(found))


def _with_letters(figures: DataTable) -> DataTable:
    """Return the table of all metrics with the letters beside the figures, as papers have them."""
    at_letters = [at for at, name in enumerate(figures.columns) if name == "group"]
    rows = [
        [f"{cell} {row[at + 1]}" if at + 1 in at_letters else cell for at, cell in enumerate(row)]
        for row in figures.rows
    ]
    kept = [at for at in range(len(figures.columns)) if at not in at_letters]
    columns = tuple(figures.columns[at] for at in kept)
    return evolve(
        figures,
        title="All metrics",
        columns=columns,
        rows=[[row[at] for at in kept] for row in rows],
        note=figures.note.replace("Group: two runs that share a letter", "Two runs that share a letter in a column"),
        kinds="l" + "r" * (len(columns) - 1),
        wide=[name for name in columns[1:] if name not in ("MRR", "hits@1", "hits@10")] if len(columns) > 4 else (),
    )
