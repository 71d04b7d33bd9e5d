"""A result -> what a reader wants first: one sentence, and ten numbers (`summary.json`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import sqrt
from typing import Any

from pbgeval.report.conditions import describe_edges, is_much_tied, num_trained_on
from pbgeval.report.figures import rows_of_both, text_of, time_aware_sentence, with_error
from pbgeval.results.result import errors_of, errors_over_draws, policies_of, section_of

ERRORS_APART = 2.0  # standard errors from which head and tail are said to differ, or a figure from chance
NO_BETTER = "no better than chance"
NEAR_CHANCE = 0.1  # of the way from chance to perfect: what is surely below is no better than chance
CHANCE = {  # figures that tell: (name, value of scores that say nothing); the first that a result has decides
    "both.realistic.adjusted_mean_rank_index": ("AMRI", 0.0),
    "both.query_auc": ("AUC per query", 0.5),
    "both.auc": ("AUC pooled", 0.5),
}
FIGURES = {  # name in summary.json -> key, `*` stands for the headline's rank type
    "mrr": "both.*.mean_reciprocal_rank",
    "mrr_standard_error": "both.*.mean_reciprocal_rank",
    "hits_at_1": "both.*.hits_at_1",
    "hits_at_10": "both.*.hits_at_10",
    "mean_rank": "both.*.mean_rank",
    "query_auc": "both.query_auc",
    "head_mrr": "head.*.mean_reciprocal_rank",
    "tail_mrr": "tail.*.mean_reciprocal_rank",
}


def summary_of(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of `summary.json`: a sentence, ten numbers, and where they come from, in reading order.

    A figure that the run did not compute is left out; one that is undefined is None.
    """
    sources = {name: errors_of(document) if name.endswith("error") else document["metrics"] for name in FIGURES}
    keys = {name: key.replace("*", document["headline"]) for name, key in FIGURES.items()}
    return {
        "sentence": sentence_of(document),
        "filter": document["filter"],
        "ranks": document["headline"],
        "edges": document["num_edges"],
        "candidates": document["diagnostics"]["both"]["num_candidates"]["mean"],
        **{name: sources[name][key] for name, key in keys.items() if key in sources[name]},
        "digest": document["provenance"]["digest"],
    }


def sentence_of(document: Mapping[str, Any]) -> str:
    """Return a finished result in one sentence: its headline, how its sides differ, what to distrust.

    The time-aware filter, where there is one, has a second sentence.
    """
    told = [_headline(document), *_sides(document), *doubts_of(document), *_kind_of(document)]
    return " ".join(filter(None, [f"{'; '.join(told)}.", time_aware_sentence(document)]))


def _headline(document: Mapping[str, Any]) -> str:
    filtered = "Filtered" if document["filter"] == "filtered" else "Unfiltered"
    on = f"on {describe_edges(document)}"
    key = f"both.{document['headline']}.mean_reciprocal_rank"
    name = "MRR"
    if key not in document["metrics"]:  # others were asked for
        rows = rows_of_both(document["metrics"], document["headline"])
        if not rows:
            return f"{filtered} metrics {on}"
        name, key = rows[0]
    value, error = document["metrics"][key], errors_of(document).get(key)
    if value is None:
        return f"{filtered} {name} is undefined {on}"
    told = f"{filtered} {name} {with_error(value, error) if error else text_of(key, value)} {on}"
    return ", ".join(filter(None, [told, chance_verdict(document)]))


def chance_verdict(document: Mapping[str, Any]) -> str:
    """Return that a model is no better than chance, or that too few edges tell; empty where it is better.

    It is better where its AMRI, or its mean reciprocal rank, is above that of random ranks by `ERRORS_APART` standard
    errors: few good ranks beside many bad ones raise only the latter. Without AMRI an AUC is asked.
    """
    metrics, errors = document["metrics"], _all_errors(document)
    found = next((key for key in CHANCE if metrics.get(key) is not None), None)
    if found is None or _mrr_beats_chance(metrics, errors):
        return ""
    (name, chance), value, error = CHANCE[found], metrics[found], errors.get(found, 0.0)
    reach = ERRORS_APART * error
    if value - reach > chance or (not error and value != chance):  # without an error, only equal scores tell
        return ""
    figure = f"{name} {with_error(value, error) if error else text_of(found, value)}"
    if value + reach <= chance + NEAR_CHANCE * (1.0 - chance):
        return f"{NO_BETTER} ({figure})"
    return f"too few edges to tell from chance ({figure})"


def _mrr_beats_chance(metrics: Mapping[str, Any], errors: Mapping[str, float]) -> bool:
    """Tell whether the mean reciprocal rank is above that of random ranks, by its error where it has one."""
    key = "both.realistic.mean_reciprocal_rank"
    value, adjusted = metrics.get(key), metrics.get("both.realistic.adjusted_inverse_harmonic_mean_rank")
    if value is None or adjusted is None:
        return False
    # Adjusted: (MRR - expected) / (1 - expected), so its error is larger by the same factor.
    return bool(adjusted * (1.0 - value) > ERRORS_APART * errors.get(key, 0.0) * (1.0 - adjusted))


def _all_errors(document: Mapping[str, Any]) -> Mapping[str, float]:
    """Return the standard errors of figures, and of the AUC that of comparing a part of the scores."""
    intervals = section_of(document, "intervals")
    return {key: of["standard_error"] for key, of in intervals.items() if "standard_error" in of} | errors_of(document)


def _sides(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield which side is easier, where its mean reciprocal rank differs by more than chance."""
    mrr, variance = {}, 0.0
    for side in ("head", "tail"):
        key = f"{side}.{document['headline']}.mean_reciprocal_rank"
        # Of a sample too: its edges may differ from all edges by less than from other test edges.
        value, error = document["metrics"].get(key), errors_over_draws(document).get(key)
        if value is None or error is None:
            return
        mrr[side], variance = value, variance + error**2
    easy, hard = sorted(mrr, key=lambda side: -mrr[side])
    if mrr[easy] - mrr[hard] > ERRORS_APART * sqrt(variance):
        yield f"{easy}s are easier than {hard}s ({mrr[easy]:#.3g} and {mrr[hard]:#.3g})"


def doubts_of(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield why the headline may not be what it seems; the warnings say more."""
    edges = section_of(document, "edge_diagnostics")
    if trained := num_trained_on(document):
        yield f"the checkpoint was trained on {trained:,} of these edges"
    if document["num_edges"] and is_much_tied(document):
        yield "many candidates tie with the true entity"
    if leaked := edges.get("num_in_training"):
        yield f"{leaked:,} edges are also training edges" if leaked > 1 else "1 edge is also a training edge"
    if unseen := edges.get("num_entities_unseen"):
        yield f"{unseen:,} entities were never trained" if unseen > 1 else "1 entity was never trained"


def _kind_of(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield what candidates are, where they are not all entities."""
    policies = policies_of(document)
    if policies == {"sampled"}:
        yield "candidates were sampled"
    elif policies == {"partition"}:
        yield "candidates are those of one partition"
