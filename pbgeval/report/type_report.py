"""NDCG of lists of entity types -> the table of `kgeval-dist types`, and its file."""

from __future__ import annotations

import json
from typing import Any

from pbgeval.metrics.ndcg import TypeNdcg, TypeProtocol
from pbgeval.report.tables import DataTable

NOTES = {
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
    notes = [f"{result.counts[name]:,} {text}" for name, text in NOTES.items() if result.counts[name]]
    title = f"{result.counts['num_queries']:,} queries, {protocol.gain.value} gain, discount {protocol.discount.value}"
    means = {cutoff: result.mean(cutoff) for cutoff in result.of_cutoff}
    rows = [(f"at {cutoff}", "-" if mean is None else f"{mean:.4f}") for cutoff, mean in means.items()]
    published = ", as published" if protocol.as_published else ""
    return DataTable(title + published, ("NDCG", "mean"), rows, "\n".join(notes))


def type_document(result: TypeNdcg, protocol: TypeProtocol) -> str:
    """Return the same as JSON, with the value of each query (null: it has none)."""
    document: dict[str, Any] = {
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
    return json.dumps(document, sort_keys=True, indent=2, allow_nan=False) + "\n"
