"""The shape of metrics.json and run.json: what their readers rely on, checked once, where a result is read.

docs/reference/output_files.md describes every key. Here stands of which form those are that something is computed or
printed from.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pbgeval.metrics.breakdown_names import MEASURES
from pbgeval.stats.rank_types import RankType
from pbgeval.storage.shapes import COUNT, FLAG, NUMBER, POSITIVE, TEXT, Items, Keys, OrNull, Shape, one_of

SIDES = ("head", "tail", "relation", "both")
_OF_SIDE = rf"(?:{'|'.join(SIDES)})[.].+"

FIGURES = Keys(others=OrNull(NUMBER), pattern=_OF_SIDE)
FIGURES_AT_K = Keys(others=OrNull(NUMBER), pattern=rf"{_OF_SIDE}_at_[0-9]{{1,9}}")
INTERVAL = Keys({"low": NUMBER, "high": NUMBER}, {"standard_error": NUMBER})
INTERVALS = Keys(others=INTERVAL, pattern=_OF_SIDE)
DIAGNOSIS = Keys(
    {
        "num_queries": COUNT,
        "num_candidates": Keys({"min": OrNull(COUNT), "mean": OrNull(NUMBER), "max": OrNull(COUNT)}),
    },
    others=OrNull(NUMBER),
)
OF_SIDES = Keys({"both": COUNT}, others=COUNT)
STRATUM: Mapping[str, Shape] = {"at_least": COUNT, "at_most": OrNull(COUNT)}
HALF = Keys({"at_least": COUNT, "query_share": NUMBER, "mrr_share": NUMBER})
POPULARITY = Keys(
    {
        "half": OrNull(HALF),
        "strata": Items(
            Keys({**STRATUM, "query_share": NUMBER, "mrr_share": NUMBER, "metrics": FIGURES, "macro_metrics": FIGURES})
        ),
        "stratified": Keys(others=FIGURES),
    }
)
DIGESTS = Items(Keys(others=TEXT))
OF_PATHS = Items(TEXT)

SETTINGS = Keys(
    optional={
        **dict.fromkeys(("pbg_semantics", "disable_lhs_negs", "disable_rhs_negs", "dynamic_relations"), FLAG),
        **dict.fromkeys(("relation_prediction", "topk_metrics"), FLAG),
        **dict.fromkeys(("num_batch_negs", "num_uniform_negs", "num_degree_negs", "seed"), COUNT),
        **dict.fromkeys(("batch_size", "workers"), OrNull(POSITIVE)),
        **dict.fromkeys(("target_error", "sample_edges"), OrNull(NUMBER)),
        **dict.fromkeys(("save_topk", "time_window"), OrNull(COUNT)),
        "hits_at": Items(POSITIVE),
        **dict.fromkeys(("breakdowns", "metrics"), Items(TEXT)),
        **dict.fromkeys(("comparator", "precision"), TEXT),
        "relations": Items(Keys(dict.fromkeys(("lhs", "rhs", "candidates", "operator"), TEXT))),
        "entities": Keys(others=Keys({"featurized": FLAG, "num_partitions": POSITIVE})),
    }
)
PROVENANCE = Keys(
    {"digest": TEXT},
    {
        "settings": SETTINGS,
        "checkpoint_version": OrNull(COUNT),
        "data": Keys(optional={"edges": DIGESTS, "filter": DIGESTS, "training": DIGESTS}),
        "evaluated": Keys({"edges": OF_PATHS, "rows": OF_PATHS}, {"times": OF_PATHS, "known": TEXT}),
    },
)

# Of a run that is not complete: without figures, and with those so far
BEGUN = Keys({"schema_version": COUNT, "complete": FLAG, "provenance": PROVENANCE})
_RESULT: Mapping[str, Shape] = {
    **BEGUN.required,
    "filter": one_of("raw", "filtered"),
    "headline": one_of(*(of.value for of in RankType)),
    "num_edges": COUNT,
    "num_queries": COUNT,
    "metrics": FIGURES,
    "intervals": INTERVALS,
}
_SECTIONS: Mapping[str, Shape] = {
    "progress": Keys({"units_done": COUNT, "units": COUNT}),
    **dict.fromkeys(("raw_metrics", "time_filtered_metrics"), FIGURES),
    **dict.fromkeys(("macro_metrics", "relation_macro_metrics"), OrNull(FIGURES)),
    "standard_errors": Keys(others=NUMBER, pattern=_OF_SIDE),
    "refused": Keys(others=TEXT),
    "left_out": Keys(others=Items(COUNT)),
    "num_edges_before_restrictions": COUNT,
    "sample": Keys(
        {
            "unit": one_of("edge", "chunk"),
            **dict.fromkeys(("num_units", "population", "num_strata", "rounds"), COUNT),
            "level": NUMBER,
        }
    ),
    "edge_paths": Items(
        Keys({"path": TEXT, "num_edges": COUNT, "metrics": FIGURES}, {"intervals": INTERVALS, "trained_on": FLAG})
    ),
    "diagnostics": Keys({"both": DIAGNOSIS}, dict.fromkeys(SIDES, DIAGNOSIS)),
    "edge_diagnostics": OrNull(Keys(others=OrNull(COUNT))),
    "popularity": Keys(dict.fromkeys(MEASURES, POPULARITY), others=POPULARITY),
    "topk_metrics": Keys(
        {
            **dict.fromkeys(("num_queries", "num_answers"), OF_SIDES),
            **dict.fromkeys(("metrics", "macro_metrics"), FIGURES_AT_K),
            "recommended": OrNull(FIGURES_AT_K),
        },
        {
            "query_half_link": Items(Keys({**STRATUM, "macro_metrics": FIGURES_AT_K})),
            "answer_half_link": Items(Keys({**STRATUM, "metrics": FIGURES_AT_K})),
        },
    ),
}
SO_FAR = Keys(_RESULT, _SECTIONS)
FROM_LISTS = Keys({**_RESULT, "diagnostics": _SECTIONS["diagnostics"]}, _SECTIONS)  # the edges are in a file
FINISHED = Keys({**FROM_LISTS.required, "edge_paths": _SECTIONS["edge_paths"]}, _SECTIONS)

RUN = Keys(
    optional={
        **dict.fromkeys(("model", "model_place", "started", "version"), TEXT),
        **dict.fromkeys(("edge_folders", "edge_paths"), Items(TEXT)),
    }
)


def shape_of(document: Mapping[str, Any]) -> Keys:
    """Return the shape that a result has, by how far the run is."""
    if document.get("complete") is True:
        return FROM_LISTS if "lists" in document else FINISHED
    return SO_FAR if "metrics" in document or "progress" in document else BEGUN
