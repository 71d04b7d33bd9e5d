"""Names that users know -> keys of the report: `<side>.<rank type>.<metric>`."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection

from pbgeval.ranking import RANK_TYPE_SYNONYMS

SIDES = {"head": "head", "tail": "tail", "both": "both", "lhs": "head", "rhs": "tail"}  # lhs hidden, rhs hidden

SYNONYMS = {
    "arithmetic_mean_rank": "mean_rank",
    "mr": "mean_rank",
    "pos_rank": "mean_rank",  # PBG
    "inverse_harmonic_mean_rank": "mean_reciprocal_rank",
    "mrr": "mean_reciprocal_rank",
    "rank_count": "count",
}
_HITS = re.compile(r"(?:hits|h|r)(?:_at_|@|_at|)(\d+)")  # hits_at_10, hits@10, h@10; PBG's r10
WITHOUT_RANK_TYPE = ("auc", "query_auc", "loss")


class UnknownMetricError(KeyError):
    """No metric of that name; says which are nearest."""

    def __str__(self) -> str:
        return str(self.args[0])


def resolve(name: str, headline: str, keys: Collection[str]) -> str:
    """Return the report's key that a name means.

    Args:
        name: a key, or a synonym, with or without side and rank type in front.
        headline: the rank type that a name without one means.
        keys: the keys that the report has.

    Raises:
        UnknownMetricError: nothing of that name; the message names the nearest.
    """
    parts = name.strip().lower().split(".")
    side = SIDES[parts.pop(0)] if parts[0] in SIDES else "both"
    rank_type = RANK_TYPE_SYNONYMS[parts.pop(0)].value if parts and parts[0] in RANK_TYPE_SYNONYMS else headline
    metric = "_at_".join(parts) if len(parts) == 2 else ".".join(parts)
    metric = SYNONYMS.get(metric, metric)
    hits = _HITS.fullmatch(metric)
    metric = f"hits_at_{hits[1]}" if hits else metric
    key = f"{side}.{metric}" if metric in WITHOUT_RANK_TYPE else f"{side}.{rank_type}.{metric}"
    if key in keys:
        return key
    known = sorted({*keys, *SYNONYMS, *(known_key.rpartition(".")[2] for known_key in keys)})
    nearest = difflib.get_close_matches(name, known, n=3) or difflib.get_close_matches(key, known, n=3)
    advice = f"; nearest: {', '.join(nearest)}" if nearest else ""
    if metric == "loss":
        advice = "; set compute_loss = True"
    if hits:
        advice = f"; add {hits[1]} to hits_at{advice}"
    raise UnknownMetricError(f"no metric '{name}' in this report{advice}")
