"""A finished report -> what its reader should know before quoting a figure, a line each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MUCH_TIED = 0.01  # share of its candidates that tie with a true entity, on average
EDGES = ("num_edges", "num_repeated", "num_in_training", "num_entities", "num_entities_unseen")
MUCH_REPEATED = 0.1  # share of the evaluated edges; fewer are a matter of chance in dense graphs


def warnings_of(document: Mapping[str, Any]) -> list[str]:
    """Return warnings about ties, leaked and repeated edges, and what was not drawn; none for a sound evaluation."""
    warnings = []
    diagnosis, metrics = document["diagnostics"]["both"], document["metrics"]
    ties, candidates = diagnosis["mean_num_ties"], diagnosis["num_candidates"]["mean"]
    if ties and ties > MUCH_TIED * (candidates - 1):
        best, worst = (metrics.get(f"both.{of_type}.mean_reciprocal_rank") for of_type in ("optimistic", "pessimistic"))
        so = ""  # where the report does not have it
        if best is not None and worst is not None:
            so = f", so tie-breaking alone moves MRR from {worst:.4f} (pessimistic) to {best:.4f} (optimistic)"
        warnings.append(
            f"on average {ties:.4g} of {candidates:.4g} candidates have exactly the score of the true entity{so}. "
            "Usual causes are untrained entities, a collapsed model, and scores that saturate or are clamped or rounded"
        )
    edges = document.get("edge_diagnostics") or dict.fromkeys(EDGES, 0)
    if edges["num_in_training"]:
        warnings.append(
            f"{edges['num_in_training']:,} of {edges['num_edges']:,} evaluated edges are also in train_paths, so the "
            "model may have been trained on them and the figures may be too good"
        )
    if edges["num_repeated"] > MUCH_REPEATED * edges["num_edges"]:
        warnings.append(
            f"{edges['num_repeated']:,} of {edges['num_edges']:,} evaluated edges repeat another one, and each copy "
            "counts as a query"
        )
    if edges["num_entities_unseen"]:
        warnings.append(
            f"{edges['num_entities_unseen']:,} of {edges['num_entities']:,} evaluated entities never occur in "
            "train_paths, so their vectors are untrained"
        )
    num_without_draws = (document.get("estimates") or {}).get("num_queries_without_draws")
    if num_without_draws:
        warnings.append(
            f"{num_without_draws:,} queries have no estimate because none of their competitors was drawn; raise "
            "num_uniform_negs"
        )
    return warnings
