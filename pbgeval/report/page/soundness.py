"""metrics.json -> what its reader should know before quoting a figure: ties, leakage, who competed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pbgeval.ranking import RankType
from pbgeval.report.page.figures import UNDEFINED, short_title
from pbgeval.report.page.tables import Column, DataTable
from pbgeval.report.table import SIDES, number

_NUM_COMPETITORS = (("min", "fewest candidates"), ("mean", "mean number of candidates"), ("max", "most candidates"))
_DIAGNOSTICS = {
    "num_queries": "ranked queries",
    "num_queries_outside": "queries outside the restrictions, not ranked",
    "num_queries_without_competitors": "queries without competitors",
    "num_queries_topped_up": "queries whose list was topped up by draws",
    "num_copies_excluded": "copies of the true entity excluded",
    "num_known_excluded": "known answers excluded",
    "num_tied_queries": "queries with ties",
    "tied_share": "share of queries with ties",
    "mean_num_ties": "mean number of ties",
    "num_undefined_losses": "undefined losses",
}
_EDGES = {
    "num_edges": "evaluated edges",
    "num_repeated": "of them repeat another one",
    "num_in_training": "of them are also in train_paths",
    "num_entities": "entities of evaluated edges",
    "num_entities_unseen": "of them are in no training edge",
}


def diagnostics_of(document: Mapping[str, Any]) -> DataTable:
    """Return a row per diagnostic, a column per side."""
    by_side = document["diagnostics"]
    sides = [side for side in SIDES if side in by_side]
    rows = [
        (name, *(_count(by_side[side]["num_candidates"].get(key)) for side in sides)) for key, name in _NUM_COMPETITORS
    ]
    known = {key for side in sides for key in by_side[side]}
    rows += [
        (name, *(_count(by_side[side].get(key)) for side in sides))
        for key, name in _DIAGNOSTICS.items()
        if key in known
    ]
    columns = (Column("queries", is_number=False), *map(Column, sides))
    note = "The true entity is one of its candidates."
    return DataTable("diagnostics", "Competition and ties", columns, tuple(rows), note)


def ties_of(document: Mapping[str, Any]) -> DataTable | None:
    """Return how far ties move the figures: each metric under each rank type; None where a report has one type."""
    metrics = document["metrics"]
    types = [of.value for of in RankType if any(key.split(".")[1] == of.value for key in metrics)]
    headline = document["headline"]
    names = [
        key.rpartition(".")[2]
        for key in metrics
        if key.startswith(f"both.{headline}.") and key.rpartition(".")[2].startswith(("mean_", "hits_at_"))
    ]
    if len(types) < 2 or not names:
        return None
    names.sort(key=lambda name: (name.startswith("hits_at_"), len(name), name))
    rows = []
    for name in names:
        values = [metrics.get(f"both.{of}.{name}") for of in types]
        cells = (UNDEFINED if value is None else number(name, value) for value in values)
        rows.append((short_title(f"both.{name}"), *cells))
    columns = (Column("both sides", is_number=False), *map(Column, types))
    note = (
        "Optimistic: the true entity comes first among candidates of the same score; pessimistic: last; realistic: the "
        "mean of the two ranks. Where the columns agree, ties do not matter."
    )
    return DataTable("ties", "What ties can change", columns, tuple(rows), note)


def edges_of(document: Mapping[str, Any]) -> DataTable | None:
    """Return what evaluated edges share with each other and with training edges; None where nobody looked."""
    edges = document.get("edge_diagnostics")
    if not edges:
        return None
    rows = tuple((name, _count(edges.get(key))) for key, name in _EDGES.items())
    unknown = any(edges.get(key) is None for key in _EDGES)
    note = f"{UNDEFINED}: no train_paths were given, so nobody can tell." if unknown else ""
    return DataTable(
        "edges", "Repeated and leaked edges", (Column("edges", is_number=False), Column("number")), rows, note
    )


def _count(value: float | None) -> str:
    if value is None:
        return UNDEFINED
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}" if value < 1000 else f"{value:,.1f}"
