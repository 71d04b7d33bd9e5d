"""A report -> under which conditions its figures hold, in words: which edges, which candidates, which intervals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pbgeval.ranking.chunks import CandidatePolicy
from pbgeval.report.report import Report
from pbgeval.storage.text import plural

LEVEL = 0.95  # of intervals; a higher one is corrected for repeated looks


def title_of(report: Report) -> str:
    """Return what was evaluated, in a few words; for an unfinished run, what is done so far."""
    document = report.document
    if "diagnostics" not in document:
        return f"{plural(document['num_edges'], 'edge')} so far, {_filter(document)}"
    spread = candidates_of(document)
    against = f"each ranked against {spread}, the true entity included" if spread else "no queries"
    return f"{edges_told(document)}, {_filter(document)}, {against}"


def tags_of(report: Report) -> list[str]:
    """Return the conditions of the figures, a few words each."""
    document = report.document
    if "metrics" not in document:
        return []
    is_done = "diagnostics" in document
    edges = edges_told(document) if is_done else f"{plural(document['num_edges'], 'edge')} so far"
    tags = [edges, _filter(document), f"{document['headline']} ranks"]
    if is_done:
        tags.append(candidates_of(document) or "no queries")
    version = (document.get("provenance") or {}).get("checkpoint_version")
    return tags if version is None else [*tags, f"checkpoint version {version}"]


def _filter(document: Mapping[str, Any]) -> str:
    return "filtered" if document["filter"] == "filtered" else "unfiltered"


def edges_told(document: Mapping[str, Any]) -> str:
    """Return how many edges were evaluated, and of how many where they are a sample."""
    edges, sample = plural(document["num_edges"], "edge"), _part(document)
    if sample is None:
        return edges
    told = f"a sample of {sample['num_units']:,} of {sample['population']:,} {sample['unit']}s"
    return told if (sample["unit"], sample["num_units"]) == ("edge", document["num_edges"]) else f"{edges} ({told})"


def _part(document: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return what is known of the sample; None where all edges were evaluated."""
    sample: Mapping[str, Any] | None = document.get("sample")
    return sample if sample and sample["num_units"] < sample["population"] else None


def candidates_of(document: Mapping[str, Any]) -> str:
    """Return against how many candidates queries were ranked; empty if there are no queries."""
    of_sides = document["diagnostics"]
    relation = _range(of_sides["relation"]) if "relation" in of_sides else ""
    spread = _range(of_sides["both"])
    return f"{spread} candidates{f' (relations: {relation})' if relation else ''}" if spread else ""


def _range(diagnosis: Mapping[str, Any]) -> str:
    low, high = (diagnosis["num_candidates"][end] for end in ("min", "max"))
    if low is None:
        return ""
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def notes_of(document: Mapping[str, Any]) -> list[str]:
    """Return whether a sample reached its target, and how many relation queries have no competitor, a line each."""
    notes, sample = [], document.get("sample")
    target = _settings(document).get("target_error")
    if sample and target is not None:
        so = "not reached: all edges were evaluated"
        if _part(document) is not None:
            so = f"reached after {sample['num_units']:,} of {sample['population']:,} {sample['unit']}s"
        notes.append(f"Target ±{target:g} {so}.")
    relation = (document.get("diagnostics") or {}).get("relation") or {}
    alone = relation.get("num_queries_without_competitors")
    if alone:
        notes.append(f"{alone:,} of {relation['num_queries']:,} relation queries have no competitor: their rank is 1.")
    return notes


def cautions_of(document: Mapping[str, Any]) -> str:
    """Return what sets the figures apart from those of all edges and all candidates, in one line; empty if nothing."""
    cautions = []
    if _part(document) is not None:
        cautions.append(f"the figures are estimates from {edges_told(document)}")
    if any(of.get("candidates") == CandidatePolicy.SAMPLED.value for of in _settings(document).get("relations") or ()):
        cautions.append("candidates were sampled, so ranks are not those among all entities")
    return "; ".join(cautions)


def _settings(document: Mapping[str, Any]) -> Mapping[str, Any]:
    return (document.get("provenance") or {}).get("settings") or {}


def interval_name(document: Mapping[str, Any]) -> str:
    """Return what the intervals of a sample of edges are called."""
    level = (document.get("sample") or {"level": LEVEL}).get("level", LEVEL)
    return "interval, corrected for repeated looks:" if level > LEVEL else "95%\u00a0interval"


def interval_line(low: str, high: str, name: str = "95%\u00a0interval") -> str:
    """Return what a tile says of an interval; it breaks before the figures if at all."""
    return f"{name} {low}\u00a0to\u00a0{high}"
