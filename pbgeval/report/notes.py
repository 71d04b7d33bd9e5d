"""The content of `metrics.json` -> what stands below the table of its figures, a line each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pbgeval.notation import grouped
from pbgeval.report.conditions import part_of
from pbgeval.report.pbg_ties import note_on_pbg_ties
from pbgeval.results.result import section_of, settings_of
from pbgeval.storage.text import plural

FLATTERED = ("average_precision_score", "area_under_the_precision_recall_curve")
LEAKS_UNCHECKED = "Leaks were not checked: this is a sample."
NO_HIT = "Where no sampled query hits, the error is that of Wilson's interval: how rare hits may be."
TOO_HIGH = "Average precision of a sample of edges is too high, by about half of its standard error."


def notes_of(document: Mapping[str, Any]) -> list[str]:
    """Return where PBG's figure lies, what a sample leaves open, and what is null and why, a line each."""
    notes, sample = note_on_pbg_ties(document), document.get("sample")
    target = settings_of(document).get("target_error")
    if sample and target is not None:
        reached = f"reached after {sample['num_units']:,} of {sample['population']:,} {sample['unit']}s"
        so = "not reached: all edges were evaluated" if part_of(document) is None else reached
        notes.append(f"Target ±{target:g} {so}.")
    relation = section_of(document, "diagnostics", "relation")
    alone = relation.get("num_queries_without_competitors")
    if alone:
        notes.append(f"{alone:,} of {relation['num_queries']:,} relation queries have no competitor: their rank is 1.")
    of_sample = part_of(document) is not None
    training = section_of(document, "provenance", "data").get("training")
    if sample and training and document.get("edge_diagnostics") is None:
        notes.append(LEAKS_UNCHECKED)
    if of_sample and any(value is not None and key.endswith(FLATTERED) for key, value in document["metrics"].items()):
        notes.append(TOO_HIGH)
    if of_sample and any(_has_no_hit(document, key) for key in document["metrics"]):
        notes.append(NO_HIT)
    names_of = grouped((reason, key.partition(".")[2]) for key, reason in document.get("refused", {}).items())
    for reason, names in names_of.items():
        first, *others = dict.fromkeys(names)
        told = f"{first} and {plural(len(others), 'other metric')} are" if others else f"{first} is"
        notes.append(f"{told} null: {reason}.")
    return notes


def _has_no_hit(document: Mapping[str, Any], key: str) -> bool:
    """Tell whether a key is that of hits, of which there are none, and an error is shown all the same."""
    is_of_hits = f".{document['headline']}.hits_at_" in key and document["metrics"][key] == 0.0
    return is_of_hits and bool(section_of(document, "intervals", key).get("standard_error"))
