"""A finished report -> what its reader should know before quoting a figure, a line each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MUCH_TIED = 0.01  # share of its candidates that tie with a true entity, on average
MUCH_REPEATED = 0.1  # share of the evaluated edges; fewer are a matter of chance in dense graphs


def warnings_of(document: Mapping[str, Any]) -> list[str]:
    """Return warnings about ties, leaked and repeated edges, and what was not drawn; none for a sound evaluation."""
    return [*_ties(document), *_edges(document.get("edge_diagnostics")), *_draws(document.get("estimates"))]


def _ties(document: Mapping[str, Any]) -> list[str]:
    diagnosis, metrics = document["diagnostics"]["both"], document["metrics"]
    mean_num_ties, mean_num_candidates = diagnosis["mean_num_ties"], diagnosis["num_candidates"]["mean"]
    if not mean_num_ties or mean_num_ties <= MUCH_TIED * (mean_num_candidates - 1):
        return []
    best, worst = (metrics.get(f"both.{of_type}.mean_reciprocal_rank") for of_type in ("optimistic", "pessimistic"))
    so = ""  # where the report does not have it
    if best is not None and worst is not None:
        so = f", so MRR is anything from {worst:.4f} (pessimistic) to {best:.4f} (optimistic)"
    return [
        f"on average {mean_num_ties:.4g} of {mean_num_candidates:.4g} candidates score exactly as the true entity{so}: "
        "equal or zero embeddings (untrained entities, a collapsed model), scores that saturate or are clamped, or "
        "coarse numbers do that"
    ]


def _edges(edges: Mapping[str, Any] | None) -> list[str]:
    if edges is None:
        return []
    warnings = []
    if edges["num_in_training"]:
        warnings.append(
            f"{edges['num_in_training']} of {edges['num_edges']} evaluated edges are also in train_paths: the "
            "model may have seen their answers, so the figures flatter"
        )
    if edges["num_repeated"] > MUCH_REPEATED * edges["num_edges"]:
        warnings.append(
            f"{edges['num_repeated']} of {edges['num_edges']} evaluated edges repeat another one: each "
            "counts as a query"
        )
    if edges["num_entities_unseen"]:
        warnings.append(
            f"{edges['num_entities_unseen']} of {edges['num_entities']} entities of evaluated edges are in no edge of "
            "train_paths: their vectors were never trained on an edge"
        )
    return warnings


def _draws(estimates: Mapping[str, Any] | None) -> list[str]:
    if estimates is None or not estimates["num_queries_without_draws"]:
        return []
    return [
        f"{estimates['num_queries_without_draws']} queries have competitors of which none was drawn, so nothing can be "
        "estimated on their side; raise num_uniform_negs"
    ]
