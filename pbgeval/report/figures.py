"""A report -> the tables of its metrics, of what its reader must know of them, and of where they come from."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from attrs import evolve, frozen

from pbgeval.metrics.breakdown_names import BREAKDOWN_FILES, GROUP_COLUMNS
from pbgeval.metrics.names import SIDES_IN_ORDER, in_reading_order
from pbgeval.report.conditions import interval_name, part_of, title_of
from pbgeval.report.notes import notes_of
from pbgeval.report.tables import DataTable, clipped, fitting, interval_line, left_out, without
from pbgeval.results.result import Result, errors_of, section_of, settings_of
from pbgeval.stats.rank_types import RankType
from pbgeval.storage.text import plural

MAX_OTHERS = 8  # rows besides the usual ones, where single metrics were asked for
MAX_BYTES = {"relation": 2_500_000}  # of a breakdown's table on the page
MAX_BYTES_OF_OTHERS = 250_000
MAX_PRINTED = 20  # rows of a table of a report, and
MAX_COLUMNS_PRINTED = 9
_PRINTED = ("queries", "MRR", "hits@1", "hits@10", "mean rank")  # columns of figures where there are more
Z = 1.959963984540054  # of a 95% interval
FEWEST_DECIMALS = 3  # of a mean of reciprocal ranks or hits in a table for papers
MAX_DECIMALS = 8  # of a figure that is rounded to its error
UNDEFINED = "–"
ESTIMATED = "± is the standard error."
OVER_SAMPLES = (
    "± is the standard error of the sample: how far a figure may be from that of all {population:,} {unit}s. It does "
    "not say how much the figure depends on which edges are in the test set; a run of all edges does."
)
OVER_TEST_EDGES = "± is the standard error: how much a figure depends on which edges are in the test set."
WITHOUT_ERROR = "Without ±: no error is computed, or all queries agree."
SURE_HITS = "Hits@k is not shown where no query has more than k candidates, as it is always 1."

_GROUPS = {
    "relation": ("Metrics by relation", "relations"),
    "entity_types": ("Metrics by entity types", "pairs of types"),
    "cardinality": ("Metrics by cardinality of the relation", "cardinalities"),
    "relation_frequency": ("Metrics by frequency of the relation", "quantiles"),
    "entity_frequency": ("Metrics by frequency of the entity", "quantiles"),
    "groups": ("Metrics by group of relations", "groups"),
    "time": ("Metrics by time", "spans of time"),
}
_HEADS = {
    **{name: name for names in GROUP_COLUMNS.values() for name in names},
    **{"relation_id": "id", "lhs_type": "left type", "rhs_type": "right type", "entity_side": "side"},
    **{"time_from": "from", "time_until": "before"},
}
_SHORT = {
    "count": "queries",
    "mean_reciprocal_rank": "MRR",
    "mean_rank": "mean rank",
    "adjusted_mean_rank_index": "AMRI",
    "query_auc": "AUC per query",
}


def final_table(document: Mapping[str, Any]) -> DataTable:
    """Return the table that is shown at the end of a run: a row per metric, a column per side."""
    table, headline = headline_of(document), f"{document['headline']} ranks"
    note = "\n".join(filter(None, [_by_edge_path(document), table.note]))
    return evolve(table, title=capital(title_of(document)), columns=(headline, *table.columns[1:]), note=note)


def _by_edge_path(document: Mapping[str, Any]) -> str:
    """Return the MRR of each edge path in a line, or what was computed in its place; empty where there is one path."""
    paths = document.get("edge_paths") or []
    keys = [f"both.{key}" for _, key in headline_rows(document["metrics"], document["headline"])]
    keys.sort(key=lambda key: not key.endswith("mean_reciprocal_rank"))
    if len(paths) < 2 or not keys:
        return ""
    told = (f"{of['path']}: {short_title(keys[0])} {text_of(keys[0], of['metrics'].get(keys[0]))}" for of in paths)
    return clipped("; ".join(told))


def headline_of(document: Mapping[str, Any], *, for_papers: bool = False) -> DataTable:
    """Return the usual metrics of the headline's rank type by side; a disabled side has none.

    Args:
        document: of a result.
        for_papers: values and errors of a metric have the same decimals, which are at least three; hits that no query
            can miss are not shown.
    """
    metrics, headline = document["metrics"], document["headline"]
    sides = [side for side in SIDES_IN_ORDER if any(key.startswith(f"{side}.") for key in metrics)]
    of_rows = headline_rows(metrics, headline)
    keys = [key for _, key in of_rows]
    if for_papers:
        decimals = _decimals_of_papers(document, keys, sides)
    else:
        decimals = {key: of_row for key in keys if (of_row := _decimals_of_row(document, key)) is not None}
    sure = {(side, key) for side in sides for _, key in of_rows if for_papers and is_sure(document, f"{side}.{key}")}
    rows = [
        (
            name,
            *(
                UNDEFINED if (side, key) in sure else _with_error(document, f"{side}.{key}", decimals.get(key))
                for side in sides
            ),
        )
        for name, key in of_rows
        if not sure.issuperset((side, key) for side in sides)
    ]
    sample = part_of(document)
    told = OVER_TEST_EDGES if sample is None else OVER_SAMPLES.format(**sample)
    figures = [cell for _, *cells in rows for cell in cells if cell != UNDEFINED and " to " not in cell]
    have_error = ["±" in cell for cell in figures]
    of_errors = [*([told] if any(have_error) else []), *([] if all(have_error) else [WITHOUT_ERROR])]
    notes = [*of_errors, *([SURE_HITS] if sure else []), time_aware_sentence(document), *notes_of(document)]
    return DataTable("By hidden side", ("metric", *sides), rows, "\n".join(filter(None, notes)), "headline")


def time_aware_sentence(document: Mapping[str, Any]) -> str:
    """Return the figures of the time-aware filter in a sentence: MRR, hits@1, hits@10, or what there is."""
    metrics, window = section_of(document, "time_filtered_metrics"), settings_of(document).get("time_window")
    keys = [key for _, key in rows_of_both(metrics, document["headline"])]
    usual = [key for key in keys if key.endswith((".mean_reciprocal_rank", ".hits_at_1", ".hits_at_10"))]
    told = ", ".join(f"{short_title(key)} {text_of(key, metrics[key])}" for key in usual or keys[:2])
    return f"Time-aware filter, window {window:,}: {told}." if told and window is not None else ""


def is_sure(document: Mapping[str, Any], key: str) -> bool:
    """Tell whether a metric is hits at k of queries that have at most k candidates."""
    side, cutoff = key.partition(".")[0], key.rpartition(".hits_at_")[2]
    diagnosis = section_of(document, "diagnostics").get(side)  # an unfinished run has none
    most = diagnosis["num_candidates"]["max"] if diagnosis else None
    return most is not None and cutoff.isdecimal() and most <= int(cutoff)


def _decimals_of_row(document: Mapping[str, Any], key: str, sides: Collection[str] = SIDES_IN_ORDER) -> int | None:
    """Return the decimals of a metric that show a digit of its smallest error; None without any."""
    errors = errors_of(document)
    return max((decimals_of(error) for side in sides if (error := errors.get(f"{side}.{key}"))), default=None)


def _decimals_of_papers(document: Mapping[str, Any], keys: Iterable[str], sides: Collection[str]) -> dict[str, int]:
    """Return the decimals of each metric that show a digit of all its errors; of MRR and hits they are the same."""
    errors = errors_of(document)
    found: dict[str, int] = {}
    for key in keys:
        of_row = _decimals_of_row(document, key, sides)
        usual = usual_decimals(key)
        found[key] = of_row if of_row is not None else min(usual, FEWEST_DECIMALS) if errors else usual
    means = [of_key for key, of_key in found.items() if key.endswith("mean_reciprocal_rank") or ".hits_at_" in key]
    common = max([FEWEST_DECIMALS, *means])
    return {key: max(0 if usual_decimals(key) == 2 else common, of_key) for key, of_key in found.items()}


def _with_error(document: Mapping[str, Any], key: str, decimals: int | None = None) -> str:
    """Return a metric with its standard error, or the interval where the value is not known."""
    value, interval = document["metrics"].get(key), document["intervals"].get(key)
    if value is None and interval:
        return f"{text_of(key, interval['low'])} to {text_of(key, interval['high'])}"
    error = errors_of(document).get(key)
    if error and value is not None:
        return with_error(value, error, decimals)
    return text_of(key, value, decimals)


def with_error(value: float, error: float, decimals: int | None = None) -> str:
    """Return a figure and its standard error as text, rounded as `decimals_of` the error says, or as is said."""
    decimals = decimals_of(error) if decimals is None else decimals
    return f"{rounded(value, decimals)} ± {rounded(error, decimals)}"


def decimals_of(error: float, num_digits: int = 1) -> int:
    """Return the decimals of a figure whose standard error has so many digits, at least two if the first is 1.

    A single 1 might stand for anything from 0.95 to 1.5. Negative: the figure ends in zeros.
    """
    digits, exponent = f"{error:.1e}".split("e")
    return min(MAX_DECIMALS, (2 if digits.startswith("1") else num_digits) - 1 - int(exponent))


def rounded(value: float | None, decimals: int, sign: str = "") -> str:
    """Return a figure as text, rounded as `decimals_of` says; `sign` "+" also shows that of positive figures.

    A dash stands for an undefined one.
    """
    if value is None:
        return UNDEFINED
    figure = round(value, decimals) + 0.0  # no minus before a zero
    # Figures to be copied keep the keyboard's minus.
    return f"{figure:{sign if figure else ''},.{max(decimals, 0)}f}".replace("-", "−")


def headline_rows(keys: Iterable[str], headline: str) -> list[tuple[str, str]]:
    """Return (what a row is called, its key without the side): all that a report has, or of many the usual ones."""
    present = dict.fromkeys(key.partition(".")[2] for key in keys)
    usual = {
        f"{headline}.mean_rank": "mean rank",
        f"{headline}.mean_reciprocal_rank": "mean reciprocal rank",
        **_at_cutoffs(present, f"{headline}.hits_at_", "hits@"),
        "query_auc": "AUC per query",
        "auc": "AUC pooled",
        "average_precision_score": "average precision",
        "loss": "loss",
    }
    rows = [(name, key) for key, name in usual.items() if key in present]
    others = [key for key in present if key not in usual and (key.startswith(f"{headline}.") or "." not in key)]
    if len(others) <= MAX_OTHERS or not rows:
        rows += [(key.removeprefix(f"{headline}.").replace("_", " "), key) for key in others]
    return rows


def rows_of_both(metrics: Mapping[str, Any], headline: str) -> list[tuple[str, str]]:
    """Return the rows of `headline_rows` that both sides together have, with the whole key."""
    return [(name, f"both.{key}") for name, key in headline_rows(metrics, headline) if f"both.{key}" in metrics]


def _at_cutoffs(keys: Collection[str], prefix: str, name: str) -> dict[str, str]:
    cutoffs = [key.removeprefix(prefix) for key in keys if key.startswith(prefix)]
    return {f"{prefix}{k}": f"{name}{k}" for k in sorted(filter(str.isdecimal, cutoffs), key=int)}


def text_of(key: str, value: float | None, decimals: int | None = None) -> str:
    """Return a metric as text: a count in full, others with some decimals (None: the usual ones)."""
    if isinstance(value, int):
        return f"{value:,}"
    return rounded(value, usual_decimals(key) if decimals is None else decimals)


def usual_decimals(key: str) -> int:
    """Return how many decimals a metric has where no error says it."""
    return 2 if key.endswith(("mean_rank", "loss")) else 4


def _exact(value: float | None) -> str:
    """Return a figure with as many digits as a reader may want to copy."""
    return UNDEFINED if value is None else f"{value:,}" if isinstance(value, int) else f"{value:.6g}"


def every_metric(document: Mapping[str, Any]) -> DataTable:
    """Return a row per key of metrics.json."""
    intervals = section_of(document, "intervals")
    macro = {"by query key": document.get("macro_metrics"), "by relation": document.get("relation_macro_metrics")}
    columns = {
        "value": document["metrics"],
        "raw": document.get("raw_metrics"),
        "time-aware": document.get("time_filtered_metrics"),
        **macro,
        "standard error": errors_of(document),
        **{of: {key: ends[of] for key, ends in intervals.items()} for of in ("low", "high")},
    }
    columns = {title: values for title, values in columns.items() if values}
    keys = in_reading_order(sorted({key for values in columns.values() for key in values}), document["headline"])
    rows = [(key, *(_exact(values.get(key)) for values in columns.values())) for key in keys]
    note = "By query key and by relation: macro averages that give every key or every relation the same weight."
    note = note if macro.keys() & columns.keys() else ""
    shown = fitting(rows, MAX_BYTES_OF_OTHERS)
    wide = columns.keys() - {"value", "standard error"}
    return DataTable("Every metric", ("metric", *columns), shown, note, "every-metric", wide=wide)


def edge_paths_of(document: Mapping[str, Any]) -> DataTable:
    """Return a row per edge path; none where there is one."""
    paths = document.get("edge_paths") or []
    shown = rows_of_both(document["metrics"], document["headline"])
    rows = [
        (of["path"], f"{of['num_edges']:,}", *(text_of(key, of["metrics"].get(key)) for _, key in shown))
        for of in paths
        if len(paths) > 1
    ]
    columns = ("edge path", "edges", *(name for name, _ in shown))
    return DataTable("Metrics by edge path", columns, fitting(rows, MAX_BYTES_OF_OTHERS), anchor="edge-paths")


POPULARITY_TITLE = "Popularity in training"
_MEASURES = {
    "answer_degree": "answer",
    "answer_half_link": "answer + relation",
    "query_degree": "known entity",
    "query_half_link": "known + relation",
}


def popularity_of(document: Mapping[str, Any]) -> list[DataTable]:
    """Return how much popular entities give to the figures of both sides; nothing where it was not asked for."""
    measures, rows = document.get("popularity"), []
    if not measures or not measures["answer_degree"]["half"] or not measures["answer_degree"]["strata"]:
        return []
    half = measures["answer_degree"]["half"]
    prefix = f"both.{document['headline']}."
    hits = [*_at_cutoffs(measures["answer_degree"]["strata"][0]["metrics"], f"{prefix}hits_at_", "")]
    keys = [f"{prefix}mean_reciprocal_rank", *([key for key in hits if key.endswith("_10")] or hits[-1:])]
    for measure, of in sorted(measures.items()):
        for row in of["strata"]:
            cells = [text_of(key, row[form].get(key)) for key in keys for form in ("metrics", "macro_metrics")]
            cells += [f"{row['query_share']:.1%}", f"{row['mrr_share']:.1%}"]
            rows.append((_MEASURES.get(measure, measure), _training_edges(row), *cells))
        for beta, values in of["stratified"].items():
            cells = [cell for key in keys for cell in (text_of(key, values.get(key)), "")]
            rows.append((_MEASURES.get(measure, measure), f"all (β = {beta})", *cells, "", ""))
    columns = [f"{short_title(key)}{macro}" for key in keys for macro in ("", ", macro")]
    heads = ("edges of", "training edges", *columns, "of queries", "of MRR")
    note = (
        f"The {half['query_share']:.1%} of queries whose answers have {half['at_least']:,} or more training edges make "
        f"{half['mrr_share']:.1%} of MRR.\nQueries are grouped by the training edges of their answer or known entity, "
        "in all or (+ relation) with the query's relation.\nWith β, queries weigh (1 + training edges) to the power −β."
    )
    wide = [name for name in heads if name.endswith("macro") or name == "of MRR"]
    return [DataTable(POPULARITY_TITLE, heads, rows, note, "popularity", "ll" + "r" * (len(heads) - 2), wide=wide)]


def topk_of(document: Mapping[str, Any]) -> list[DataTable]:
    """Return the figures of the first k candidates of queries of both sides; nothing where they were not asked for."""
    section = document.get("topk_metrics")
    if section is None:
        return []
    cutoffs = sorted({int(key.rpartition("_")[2]) for key in section["metrics"]})
    keys, answers, lists = section["macro_metrics"], section["metrics"], section["recommended"] or {}
    strata = {"query keys": ("query_half_link", "macro_metrics"), "answers": ("answer_half_link", "metrics")}
    parts: list[tuple[str, Mapping[str, Any], Collection[str]]] = [
        *(
            (over, of, dict.fromkeys(key.removeprefix("both.").rpartition("_at_")[0] for key in of if "both." in key))
            for over, of in (("query keys", keys), ("answers", answers), ("lists", lists))
        ),
        *(
            (f"{over} with {_training_edges(row)} training edges", row[form], ["recall"])
            for over, (stratum, form) in strata.items()
            for row in section.get(stratum, [])
        ),
    ]
    rows = [
        (
            name.replace("_", " "),
            over,
            *(UNDEFINED if of is None else f"{of:.4f}" for of in (metrics.get(f"both.{name}_at_{k}") for k in cutoffs)),
        )
        for over, metrics, names in parts
        for name in names
    ]
    return [
        DataTable(
            "Top k",
            ("of the first k", "mean over", *(f"k = {k}" for k in cutoffs)),
            rows,
            f"{section['num_queries']['both']:,} query keys have {section['num_answers']['both']:,} answers.",
            "top-k",
            "ll" + "r" * len(cutoffs),
        )
    ]


def _training_edges(row: Mapping[str, Any]) -> str:
    return f"{row['at_least']:,}" + (f" to {row['at_most']:,}" if row["at_most"] else "")


def breakdowns_of(report: Result, *, fewer_decimals: int = 0) -> list[DataTable]:
    """Return the tables of breakdowns, each with its most frequent groups first where not all fit."""
    return [
        _breakdown(name, rows, report.document["headline"], fewer_decimals)
        for name, file in BREAKDOWN_FILES.items()
        if (rows := report.rows.get(file.removesuffix(".csv")))
    ]


def _breakdown(name: str, rows: Sequence[Mapping[str, Any]], headline: str, fewer_decimals: int = 0) -> DataTable:
    # Columns of groups that are worth their width: neither one value in all rows, nor the ids of distinct names
    num_values = {group: len({row[group] for row in rows}) for group in GROUP_COLUMNS[name] if group in rows[0]}
    first, *others = num_values
    useless = {"relation_id"} if first == "relation" and num_values[first] == len(rows) else set()
    groups = [first, *(group for group in others if num_values[group] > 1 and group not in useless)]
    count = f"both.{headline}.count"
    wanted = [
        count,
        *(f"{side}.{headline}.mean_reciprocal_rank" for side in SIDES_IN_ORDER),
        *(key for key in rows[0] if key.startswith(f"both.{headline}.hits_at_")),
        *(f"both.{headline}.{name}" for name in ("mean_rank", "adjusted_mean_rank_index")),
    ]
    shown = [key for key in wanted if any(row.get(key) is not None for row in rows)]
    if name == "relation" and count in rows[0]:
        rows = sorted(rows, key=lambda row: -(row[count] or 0))
    columns = [groups[0], *shown, *groups[1:]] if name == "relation" else [*groups, *shown]  # for phones
    cells = ((_cell(column, row.get(column), fewer_decimals) for column in columns) for row in rows)
    fit = fitting(map(tuple, cells), MAX_BYTES.get(name, MAX_BYTES_OF_OTHERS))
    title, what = _GROUPS[name]
    titles = tuple(_HEADS[column] if column in _HEADS else short_title(column) for column in columns)
    hits = sorted((of for of in titles if of.startswith("hits@")), key="hits@10".__eq__)[-1:]  # this, or the last
    narrow = {titles[0], "queries", "MRR", *hits, *([] if name == "relation" else map(_HEADS.get, groups))}
    return DataTable(
        title,
        titles,
        fit,
        left_out(len(fit), len(rows), what, BREAKDOWN_FILES[name]),
        f"by-{name.replace('_', '-')}",
        "".join("l" if column in groups and column != "relation_id" else "r" for column in columns),
        wide=[of for of in titles if of not in narrow],
    )


def _cell(column: str, value: Any, fewer_decimals: int = 0) -> str:  # noqa: ANN401 (any)
    if column == "entity_side":
        return {"lhs": "left", "rhs": "right"}.get(value, str(value))
    if column in _HEADS or isinstance(value, str):
        return str(value)
    return text_of(column, value, usual_decimals(column) - fewer_decimals)


def rows_table(name: str, rows: Sequence[Mapping[str, Any]], headline: str) -> DataTable:
    """Return the first rows of a report's table, in the columns that are worth their width."""
    of_breakdowns = {file.removesuffix(".csv"): breakdown for breakdown, file in BREAKDOWN_FILES.items()}
    if not rows:
        return DataTable(name, (), ())
    if name in of_breakdowns:
        table = _breakdown(of_breakdowns[name], rows, headline)
    else:
        usual = [f"both.{headline}.{metric}" for metric in ("mean_rank", "mean_reciprocal_rank", "hits_at_10")]
        first = next(iter(rows))
        shown = [key for key in first if "." not in key or key in usual]
        table = DataTable(
            name.replace("_", " "),
            tuple(short_title(key) if key in usual else key.replace("_", " ") for key in shown),
            [[_cell(key, row[key]) for key in shown] for row in islice(rows, MAX_PRINTED)],
            kinds="".join("l" if isinstance(first[key], str) else "r" for key in shown),
        )
    columns = zip(table.columns, table.kinds, strict=True)
    table = evolve(
        table,
        rows=table.rows[:MAX_PRINTED],
        note=f"The first {MAX_PRINTED} of {len(rows):,} rows; to_pandas() has all." if len(rows) > MAX_PRINTED else "",
    )
    others = [name for name, kind in columns if kind == "r" and name not in _PRINTED]
    return without(table, others if len(table.columns) > MAX_COLUMNS_PRINTED else ())


def capital(text: str) -> str:
    """Return text that begins with a capital letter."""
    return text[:1].upper() + text[1:]


def short_title(key: str) -> str:
    """Return what a column is called: the metric, and the side if its key has one alone."""
    side, _, metric = key.rpartition(".")
    side = side.partition(".")[0]
    title = _SHORT.get(metric, metric.replace("hits_at_", "hits@").replace("_", " "))
    return title if side in ("", "both") else f"{title}, {side}"


# What a reader should know before quoting a figure: ties, leakage, who competed.

_DIAGNOSTICS = {
    "min": "fewest candidates",
    "mean": "mean number of candidates",
    "max": "most candidates",
    "num_queries": "ranked queries",
    "num_queries_outside": "queries excluded by the restrictions",
    "num_queries_without_competitors": "queries without other candidates",
    "num_queries_topped_up": "queries with extra random candidates",
    "num_copies_excluded": "copies of the true entity excluded",
    "num_known_excluded": "known answers excluded",
    "num_tied_queries": "queries with ties",
    "tied_share": "share of queries with ties",
    "mean_num_ties": "mean number of ties",
    "num_undefined_losses": "undefined losses",
}
_EDGES = {
    "num_edges": "evaluated edges",
    "num_repeated": "that repeat another one",
    "num_in_training": "that are also in train_paths",
    "num_entities": "entities of evaluated edges",
    "num_entities_unseen": "that never occur in train_paths",
}


def diagnostics_of(document: Mapping[str, Any]) -> DataTable:
    """Return a row per diagnostic that is not zero on all sides, a column per side."""
    diagnostics = document["diagnostics"]
    sides = [side for side in SIDES_IN_ORDER if side in diagnostics]
    found = [{**diagnostics[side], **diagnostics[side]["num_candidates"]} for side in sides]
    rows = [
        (name, *((_share if key == "tied_share" else _count)(of_side.get(key)) for of_side in found))
        for key, name in _DIAGNOSTICS.items()
        if any(key in of_side and of_side[key] != 0 for of_side in found)
    ]
    note = "The true entity counts as one of its candidates. What is zero is left out."
    return DataTable("Candidates and ties", ("queries", *sides), rows, note, "diagnostics")


def ties_sentence(document: Mapping[str, Any]) -> str:
    """Return how many queries have ties, where these change no figure that is shown; else nothing."""
    ties, diagnosis = ties_of(document), section_of(document, "diagnostics", "both")
    if not ties.rows or any(len({*cells}) > 1 for _, *cells in ties.rows):
        return ""
    tied, queries = diagnosis.get("num_tied_queries"), diagnosis.get("num_queries")
    share = f" {tied:,} of {queries:,} queries have ties." if tied is not None and queries else ""
    return f"Ties do not matter: optimistic, realistic and pessimistic figures are the same.{share}"


def ties_of(document: Mapping[str, Any]) -> DataTable:
    """Return how far ties move the figures: each metric under each rank type; no rows where a report has one type."""
    metrics = document["metrics"]
    types = [of.value for of in RankType if any(key.split(".")[1] == of.value for key in metrics)]
    prefix = f"both.{document['headline']}."
    names = [key.removeprefix(prefix) for key in metrics if key.startswith((f"{prefix}mean_", f"{prefix}hits_at_"))]
    names.sort(key=lambda name: (name.startswith("hits_at_"), len(name), name))
    return DataTable(
        "Effect of ties",
        ("both sides", *types),
        [
            (short_title(name), *(text_of(name, metrics.get(f"both.{of}.{name}")) for of in types))
            for name in names
            if len(types) > 1
        ],
        "Optimistic ranks put the true entity before candidates with the same score, pessimistic ranks put it after "
        "them, and realistic ranks are the mean of both. If the columns agree, ties do not matter.",
        "ties",
    )


def edges_of(document: Mapping[str, Any]) -> DataTable:
    """Return what evaluated edges share with each other and with training edges; no rows if it was not counted."""
    edges = document.get("edge_diagnostics")
    rows = [(name, _count(edges.get(key))) for key, name in _EDGES.items()] if edges else []
    unknown = any(count == UNDEFINED for _, count in rows)
    note = f"{UNDEFINED}: unknown, because the config has no train_paths." if unknown else ""
    return DataTable("Repeated and leaked edges", ("edges", "number"), rows, note, "edges")


def _share(value: float | None) -> str:
    return UNDEFINED if value is None else "0" if not value else f"{max(value, 0.0001):.2%}"


def _count(value: float | None) -> str:
    if value is None or isinstance(value, int):
        return _exact(value)
    return f"{value:,.4g}" if value < 1000 else f"{value:,.1f}"


# Where figures come from: settings, data, and the run.

MAX_ENTRIES = 64  # of a list or a mapping that are told one by one
MAX_SETTING_BYTES = 150_000  # of each table


def origin_of(report: Result, meanings: Mapping[str, str]) -> list[DataTable]:
    """Return the tables of settings, digests of the data, and facts of the run, which equal runs may not share.

    A setting can change a number. What its key means stands beside the first one of its key.
    """
    provenance = section_of(report.document, "provenance")
    rows, told, names = [], "", _relation_names(report)
    for name, text in flat(provenance.get("settings")):
        key, _, rest = name.partition(".")
        relation = names.get(rest.partition(".")[0]) if key == "relations" else None
        meaning = meanings.get(key, "")
        shown = name if relation is None else f"{name} ({clipped(relation)})"
        rows.append((shown, text, "" if meaning == told else meaning))
        told = meaning
    settings, data, run = (
        fitting(leaves, MAX_SETTING_BYTES) for leaves in (rows, flat(provenance.get("data")), flat(report.run))
    )
    return [
        DataTable(
            "Settings",
            ("setting", "value", "meaning"),
            settings,
            "Every setting that can change a number. Lists that are too long for this table are in metrics.json.",
            "settings",
            "lll",
            wide=["meaning"],
        ),
        DataTable("Digests of the data", ("data", "digest"), data, anchor="data", kinds="ll"),
        DataTable("The run", ("run", "value"), run, anchor="run", kinds="ll"),
    ]


def _relation_names(report: Result) -> dict[str, str]:
    """Return the names of the settings' relations by their numbers; none where one setting is for all of them."""
    if settings_of(report.document).get("dynamic_relations"):
        return {}
    return {str(row["relation_id"]): str(row["relation"]) for row in report.rows.get("relations") or ()}


def flat(value: Any, name: str = "") -> Iterator[tuple[str, str]]:  # noqa: ANN401 (any JSON)
    """Yield (dotted name, text) of every leaf of JSON; of a long list or mapping how many entries it has."""
    parts: dict[Any, Any] = value if isinstance(value, dict) else {}
    if isinstance(value, list) and any(isinstance(entry, dict | list) for entry in value):
        parts = dict(enumerate(value))
    if isinstance(value, dict | list) and len(value) > MAX_ENTRIES:
        yield name, f"{len(value):,} entries"
    elif parts:
        for key, part in parts.items():
            yield from flat(part, f"{name}.{key}" if name else str(key))
    elif name or value:
        yield name, ", ".join(map(_leaf, value if isinstance(value, list) else [value])) or "none"


def _leaf(value: Any) -> str:  # noqa: ANN401 (any JSON)
    return value if isinstance(value, str) else "none" if value in (None, {}) else json.dumps(value)


# What stands above everything else: what was evaluated, under which conditions, and the figures in large type

_MODELS = {  # by operator: the model that it is with these comparators
    "complex_diagonal": ("ComplEx", ("dot",)),
    "diagonal": ("DistMult", ("dot",)),
    "translation": ("TransE", ("l1", "l2", "squared_l2")),
    "linear": ("RESCAL", ("dot",)),
    "rotate": ("RotatE", ("complex_l1", "l2")),
    "swapped_diagonal": ("SimplE or CP", ("dot", "clamped_dot")),
    "projected_translation": ("TransR", ("l1", "l2", "squared_l2")),
}
LARGE = ("mean_reciprocal_rank", "hits_at_1", "hits_at_10", "mean_rank")


@frozen
class Tile:
    """A figure in large type, and what stands below it."""

    name: str
    value: str
    lines: Sequence[str] = ()


def _model_name(report: Result) -> str:
    settings = settings_of(report.document)
    operators = sorted({of["operator"] for of in settings.get("relations", ())})
    comparator = settings.get("comparator")
    if comparator == "scorer":
        return str(report.run.get("model") or report.document["provenance"]["data"]["model"]["scorer"])
    models = {operator: name for operator, (name, comparators) in _MODELS.items() if comparator in comparators}
    names = " and ".join(models.get(name, f"{name} ({comparator})") for name in operators)
    return names if len(operators) <= 2 else f"Model with {len(operators)} operators"


def model_of(report: Result) -> str:
    """Return the model and where it was, with its version, as far as the report tells them."""
    version = section_of(report.document, "provenance").get("checkpoint_version")
    told = [_model_name(report), report.run.get("model_place"), "" if version is None else f"version {version}"]
    return clipped(", ".join(filter(None, told)))


def name_of(report: Result) -> str:
    """Return the model, the data set and the split, as far as the report tells them."""
    paths = report.document.get("edge_paths") or []
    data = ", ".join([*(report.run.get("edge_folders") or ()), *(of["path"] for of in paths)])
    if data == "edges" and report.run:  # so `storage.edges.Edges` calls an array; run.json names the folder of files
        data = f"{plural(paths[0]['num_edges'], 'edge')} in memory"
    return clipped(" on ".join(filter(None, [_model_name(report), data])))


def tiles_of(report: Result) -> list[Tile]:
    """Return MRR, hits and mean rank of both sides, or the first figures of a report without them."""
    document, tiles = report.document, list[Tile]()
    metrics, headline = section_of(document, "metrics"), document["headline"] if "metrics" in document else ""
    intervals = section_of(document, "intervals")  # an unfinished run has none
    keys = [f"{headline}.{name}" for name in LARGE if f"both.{headline}.{name}" in metrics]
    keys = keys or [key.removeprefix("both.") for _, key in rows_of_both(metrics, headline)[: len(LARGE)]]
    for key in keys:
        ends, decimals = ends_of(intervals.get(f"both.{key}")), _decimals_of_row(document, key)
        of_sides = ", ".join(
            f"{side}\u00a0{_with_error(document, f'{side}.{key}', decimals).partition(' ±')[0]}"
            for side in ("head", "tail")
            if metrics.get(f"{side}.{key}") is not None
        )
        value = section_of(document, "time_filtered_metrics").get(f"both.{key}")
        in_time = "" if value is None else f"time-aware\u00a0{text_of(key, value, decimals)}"
        lines = [interval_line(*ends, interval_name(document)) if ends else "", of_sides, in_time]
        figure = _with_error(document, f"both.{key}", decimals)
        tiles.append(Tile(short_title(f"both.{key}"), figure, [*filter(None, lines)]))
    return tiles


def ends_of(interval: Mapping[str, float] | None) -> tuple[str, str] | None:
    """Return the ends of an interval as text, rounded to its standard error; None where there is none."""
    if not interval or not interval.get("standard_error"):
        return None
    decimals = decimals_of(interval["standard_error"])
    return rounded(interval["low"], decimals), rounded(interval["high"], decimals)
