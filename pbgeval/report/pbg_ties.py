"""A report in PyTorch-BigGraph's protocol -> between which figures that of `torchbiggraph_eval` should lie."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pbgeval.ranking.sampled_lists import CandidatePolicy
from pbgeval.results.result import policies_of, section_of, settings_of

_BOUNDS = ("pessimistic", "optimistic")


def copies_compete(document: Mapping[str, Any]) -> bool:
    """Tell whether drawn lists may hold the true entity again, as in PyTorch-BigGraph."""
    is_pbg = bool(settings_of(document).get("pbg_semantics"))
    return is_pbg and CandidatePolicy.SAMPLED.value in policies_of(document)


def note_on_pbg_ties(document: Mapping[str, Any]) -> list[str]:
    """Return the range of PBG's mean reciprocal rank and why it is one; nothing where ties cannot move it.

    Equal vectors tie here; in PBG rounding decides which wins, as does a true entity that a drawn list holds again. PBG
    does not filter, so the range is that of the unfiltered figures.
    """
    if not settings_of(document).get("pbg_semantics"):
        return []
    copies = " with copies of the true entity" if copies_compete(document) else ""
    is_filtered = document.get("filter") == "filtered"
    share = section_of(document, "diagnostics", "both").get("tied_share")
    if share is None or not (share or is_filtered):
        return []
    figures = section_of(document, "raw_metrics" if is_filtered else "metrics")
    low, high = (figures.get(f"both.{of_type}.mean_reciprocal_rank") for of_type in _BOUNDS)
    if low is not None and low == high:
        return []
    many = "" if is_filtered else f" ({_percent(share)} of queries have ties)"
    expected = "its figures should lie between the pessimistic and the optimistic ones"
    if low is not None and high is not None:
        expected = f"its {'unfiltered ' * is_filtered}MRR should lie between {low:.4f} and {high:.4f}"
    draws = ", but for its own random draws" if copies and settings_of(document).get("num_uniform_negs") else ""
    return [f"torchbiggraph_eval lets rounding decide ties{copies}{many}: {expected}{draws}."]


def _percent(share: float) -> str:
    return "less than 1%" if share < 0.01 else f"{share:.0%}"
