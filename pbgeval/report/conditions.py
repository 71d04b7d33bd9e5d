"""A result -> the conditions under which its figures hold, in words, and warnings to read before quoting one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pbgeval.metrics.student import LEVEL
from pbgeval.notation import grouped
from pbgeval.ranking.sampled_lists import CandidatePolicy
from pbgeval.report.pbg_ties import copies_compete
from pbgeval.results.result import is_part_of_edges, policies_of, section_of
from pbgeval.storage.left_out import num_left_out
from pbgeval.storage.text import listed, plural

# A finished report -> what its reader should know before quoting a figure, a line each.

MUCH_TIED = 0.01  # share of its candidates that tie with a true entity, on average
_COPIES = "copies of the true entity, which pbg_semantics lets compete, "
MUCH_REPEATED = 0.1  # share of the evaluated edges; fewer are a matter of chance in dense graphs


def warnings_of(document: Mapping[str, Any]) -> list[str]:
    """Return warnings about ties, leaked and repeated edges, and what was not drawn; none for a sound evaluation."""
    if not document["complete"]:
        return []
    if not document["num_edges"]:
        return ["no edges to evaluate, so the figures are undefined: the evaluated edges are empty, or all left out"]
    warnings = []
    diagnosis, metrics = document["diagnostics"]["both"], document["metrics"]
    if is_much_tied(document):
        ties, candidates = diagnosis["mean_num_ties"], diagnosis["num_candidates"]["mean"]
        best, worst = (metrics.get(f"both.{of_type}.mean_reciprocal_rank") for of_type in ("optimistic", "pessimistic"))
        so = (
            ""  # where the report does not have it
            if best is None or worst is None
            else f", so tie-breaking alone moves MRR from {worst:.4f} (pessimistic) to {best:.4f} (optimistic)"
        )
        warnings.append(
            f"on average {ties:.4g} of {candidates:.4g} candidates have exactly the score of the true entity{so}. "
            f"Usual causes are {_COPIES if copies_compete(document) else ''}untrained entities, a collapsed model, and "
            "scores that saturate or are clamped or rounded"
        )
    edges = {name: number or 0 for name, number in section_of(document, "edge_diagnostics").items()}
    leaked, repeated, unseen = (edges.get(f"num_{name}", 0) for name in ("in_training", "repeated", "entities_unseen"))
    num_edges, num_entities = edges.get("num_edges", 0), edges.get("num_entities", 0)
    lost = num_left_out(document, "filter_paths", "train_paths")
    trained = num_trained_on(document)
    are, them = ("is", "it") if leaked == 1 else ("are", "them")
    occur, their = ("occurs", "its vector is") if unseen == 1 else ("occur", "their vectors are")
    of_training = [of["path"] for of in document.get("edge_paths") or () if of.get("trained_on")]
    found = [
        (
            trained > 0,
            f"{trained:,} of {document['num_edges']:,} evaluated edges are those that the checkpoint was trained on "
            f"({listed(of_training)}), so the figures are of training; set edge_paths to test edges",
        ),
        (lost > 0, f"imports left out {plural(lost, 'known edge')} with unknown names, so they are not filtered out"),
        (
            leaked > 0,
            f"{leaked:,} of {plural(num_edges, 'evaluated edge')} {are} also in train_paths, so the model may have "
            f"been trained on {them} and the figures may be too good",
        ),
        (
            repeated > MUCH_REPEATED * num_edges,
            f"{repeated:,} of {num_edges:,} evaluated edges repeat another one, and each copy counts as a query",
        ),
        (
            unseen > 0,
            f"{unseen:,} of {plural(num_entities, 'evaluated entity', 'evaluated entities')} never {occur} in "
            f"train_paths, so {their} untrained",
        ),
    ]
    return [*warnings, *(warning for applies, warning in found if applies)]


def num_trained_on(document: Mapping[str, Any]) -> int:
    """Return how many evaluated edges are of paths that the checkpoint was trained on."""
    return sum(of["num_edges"] for of in document.get("edge_paths") or () if of.get("trained_on"))


def joint_warnings(named: Sequence[tuple[str, Sequence[str]]]) -> list[str]:
    """Return each warning of some runs, given by name, once, after the runs that it holds for."""
    names_of = grouped((warning, name) for name, warnings in named for warning in warnings)
    everyone = "both runs" if len(named) == 2 else "all runs"
    return [
        f"{everyone if len(names) == len(named) else ', '.join(names)}: {warning}"
        for warning, names in names_of.items()
    ]


def is_much_tied(document: Mapping[str, Any]) -> bool:
    """Tell whether so many candidates tie with the true entity that tie-breaking decides the figures."""
    diagnosis = document["diagnostics"]["both"]
    ties, candidates = diagnosis.get("mean_num_ties"), diagnosis["num_candidates"]["mean"]
    return bool(ties and candidates and ties > MUCH_TIED * (candidates - 1))


# The conditions under which the figures of a report hold, in words: which edges, which candidates, which intervals.


def title_of(document: Mapping[str, Any]) -> str:
    """Return what was evaluated, in a few words; for an unfinished run, what is done so far."""
    if "diagnostics" not in document:
        return f"{describe_edges(document)}, {_filter(document)}"
    spread = candidates_of(document)
    against = spread.replace(" candidates", " candidates per query", 1) if spread else "no queries"
    return f"{describe_edges(document)}, {_filter(document)}, {against}"


def tags_of(document: Mapping[str, Any]) -> list[str]:
    """Return the conditions of the figures, a few words each."""
    if "metrics" not in document:
        return []
    candidates = candidates_of(document) or "no queries" if "diagnostics" in document else ""
    version = section_of(document, "provenance").get("checkpoint_version")
    told = "" if version is None else f"checkpoint version {version}"
    return [
        *filter(None, (describe_edges(document), _filter(document), f"{document['headline']} ranks", candidates, told))
    ]


def _filter(document: Mapping[str, Any]) -> str:
    return "filtered" if document["filter"] == "filtered" else "unfiltered"


def describe_edges(document: Mapping[str, Any]) -> str:
    """Return how many edges were evaluated, so far or in the end, and of how many where they are a sample."""
    edges, sample, lost = plural(document["num_edges"], "edge"), part_of(document), num_left_out(document, "edge_paths")
    given = document.get("num_edges_before_restrictions")
    notes = [
        *([f"of {given:,} before restrictions"] if given is not None else []),
        *([f"{lost:,} more were left out, as their names are unknown"] if lost else []),
    ]
    without = f" ({'; '.join(notes)})" if notes else ""
    if "diagnostics" not in document:
        return f"{edges} so far{without}"
    if sample is None:
        return f"{edges}{without}"
    told = f"a sample of {sample['num_units']:,} of {sample['population']:,} {sample['unit']}s"
    is_told = (sample["unit"], sample["num_units"]) == ("edge", document["num_edges"])
    return f"{told if is_told else f'{edges} ({told})'}{without}"


def part_of(document: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return what is known of the sample; None where all edges were evaluated."""
    return document["sample"] if is_part_of_edges(document) else None


def candidates_of(document: Mapping[str, Any]) -> str:
    """Return against how many candidates queries were ranked; empty if there are no queries."""
    of_sides = document["diagnostics"]
    relation = _range(of_sides["relation"]) if "relation" in of_sides else ""
    spread = _range(of_sides["both"])
    return f"{spread} candidates{f' (relations: {relation})' if relation else ''}" if spread else ""


def _range(diagnosis: Mapping[str, Any]) -> str:
    ends = dict.fromkeys(diagnosis["num_candidates"][end] for end in ("min", "max"))
    return " to ".join(f"{end:,}" for end in ends if end is not None)


def cautions_of(document: Mapping[str, Any]) -> str:
    """Return what sets the figures apart from those of all edges and all candidates, in one line; empty if nothing."""
    estimated = "" if part_of(document) is None else f"the figures are estimates from {describe_edges(document)}"
    sampled = "candidates were sampled, so ranks are not those among all entities"
    return "; ".join(
        filter(None, [estimated, sampled if CandidatePolicy.SAMPLED.value in policies_of(document) else ""])
    )


def interval_name(document: Mapping[str, Any]) -> str:
    """Return what the intervals of a sample of edges are called."""
    level = (document.get("sample") or {"level": LEVEL}).get("level", LEVEL)
    return "interval, corrected for repeated looks:" if level > LEVEL else "95%\u00a0interval"
