"""Ranked lists of other systems: entities -> a report in the form of `metrics.json`, entity types -> NDCG; tables.

A metric that lists of entities do not tell is null in `metrics`; `intervals` has its bounds (`low`, `high`), or
`refused` the reason why there are none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import evolve

from pbgeval.metrics.given import Absent, ListedRanks
from pbgeval.metrics.ndcg import TypeNdcg, TypeProtocol
from pbgeval.models.topk import TopK, TopKFilter
from pbgeval.notation import ENDS
from pbgeval.report.figures import final_table
from pbgeval.report.report import Report
from pbgeval.report.tables import DataTable
from pbgeval.results.result import SCHEMA_VERSION
from pbgeval.storage.json_files import digest_of
from pbgeval.storage.text import json_text
from pbgeval.version import __version__

NOTES = {
    "num_missing": "evaluated edges that the file lacks: not ranked",
    "num_not_evaluated": "edges of the file that are not evaluated",
    "num_absent": "queries whose list does not hold the true entity",
    "num_empty": "of the lists are empty",
    "num_known_listed": "listed entities that are known answers",
    "num_tied_with_last": "true entities that tie with the last of their list, so unlisted ones may tie too",
}


def topk_report(
    topk: TopK, settings: Mapping[str, Any], absent: Absent, *, headline: str, cutoffs: Sequence[int]
) -> Report:
    """Compute all metrics.

    Args:
        topk: what the file says.
        settings: all that can change a number, for the provenance.
        absent: the convention for true entities that are not listed.
        headline: the rank type that stands for the result.
        cutoffs: of hits.
    """
    labelled = {**{side.label: topk.ranks.select(topk.hidden_Q == side.value) for side in ENDS}, "both": topk.ranks}
    found = {
        f"{label}.{name}": value
        for label, ranks in labelled.items()
        for name, value in ranks.metrics(absent).to_dict(tuple(cutoffs)).items()
    }
    bounds = {key: value for key, value in found.items() if value is not None and not isinstance(value, str)}
    known = {key: low for key, (low, high) in bounds.items() if low == high}
    provenance = {"settings": dict(settings)}
    return Report(
        {
            "schema_version": SCHEMA_VERSION,
            "complete": True,
            "filter": "raw" if topk.filtering is TopKFilter.NONE else "filtered",
            "headline": headline,
            "num_edges": topk.num_edges,
            "num_queries": topk.ranks.num_queries,
            "metrics": {**dict.fromkeys(found), **known},
            "intervals": {key: {"low": low, "high": high} for key, (low, high) in bounds.items() if key not in known},
            "refused": {key: value for key, value in found.items() if isinstance(value, str)},
            "diagnostics": {label: _diagnosis(ranks) for label, ranks in labelled.items()},
            "lists": {
                **topk.counts,
                "num_entities": topk.num_entities,
                "longest": int(topk.list_length_Q.max(initial=0)),
            },
            "provenance": {**provenance, "digest": digest_of(provenance)},
        },
        {"version": __version__},
    )


def _diagnosis(ranks: ListedRanks) -> dict[str, Any]:
    number_Q, num_queries = ranks.num_candidates_Q, ranks.num_queries
    return {
        "num_queries": num_queries,
        "num_listed": int(ranks.is_listed_Q.sum()),
        "num_candidates": {
            "min": int(number_Q.min()) if num_queries else None,
            "mean": float(number_Q.mean()) if num_queries else None,
            "max": int(number_Q.max()) if num_queries else None,
        },
    }


def topk_table(topk: TopK, report: Report) -> DataTable:
    """Return the table of the report, and below it what a reader must know about the lists, a line each."""
    table = final_table(report.document)
    notes = [f"{topk.counts[name]:,} {text}" for name, text in NOTES.items() if topk.counts[name]]
    return evolve(table, note="\n".join(filter(None, [table.note, *notes])))


# Lists of entity types

TYPE_NOTES = {
    "num_undefined": "left out: no true type in the taxonomy",
    "num_missing": "without a list: 0 where something could be gained",
    "num_unasked": "only in the ranking: not judged",
    "num_unknown_true_types": "true types that are not in the taxonomy: not counted",
    "num_unknown_listed_types": "listed types that are not in the taxonomy: no gain",
    "num_roots_listed": "lists that hold the root",
    "num_repeated_types": "listed types that came before in their list",
    "num_on_one_branch": "queries with a true type above another",
}


def type_table(result: TypeNdcg, protocol: TypeProtocol) -> DataTable:
    """Return a row per cut-off, between the protocol and what is odd about the lists."""
    means = {cutoff: result.mean(cutoff) for cutoff in result.of_cutoff}
    return DataTable(
        f"{result.counts['num_queries']:,} queries, {protocol.gain.value} gain, discount {protocol.discount.value}"
        f"{', as published' if protocol.as_published else ''}",
        ("NDCG", "mean"),
        [(f"at {cutoff}", "-" if mean is None else f"{mean:.4f}") for cutoff, mean in means.items()],
        "\n".join(f"{result.counts[name]:,} {text}" for name, text in TYPE_NOTES.items() if result.counts[name]),
    )


def type_document(result: TypeNdcg, protocol: TypeProtocol) -> str:
    """Return the same as JSON, with the value of each query (null: it has none)."""
    return json_text(
        {
            "schema_version": 1,
            "gain": protocol.gain.value,
            "base": protocol.base,
            "discount": protocol.discount.value,
            "as_published": protocol.as_published,
            "metrics": {f"ndcg_at_{cutoff}": result.mean(cutoff) for cutoff in result.of_cutoff},
            "counts": dict(result.counts),
            "queries": {
                query: {f"ndcg_at_{cutoff}": of_query[at] for cutoff, of_query in result.of_cutoff.items()}
                for at, query in enumerate(result.queries)
            },
        }
    )
