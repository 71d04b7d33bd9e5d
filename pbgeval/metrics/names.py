"""Names that users know -> keys of the report: `<side>.<rank type>.<metric>`."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable

from attrs import frozen

from pbgeval.metrics.metric import EXPECTED
from pbgeval.metrics.registry import FAMILIES, SYNONYMS, metric_key
from pbgeval.ranking import RANK_TYPE_SYNONYMS

SIDES = {"head": "head", "tail": "tail", "both": "both", "lhs": "head", "rhs": "tail"}  # lhs hidden, rhs hidden
RANK_TYPE_NAMES = {**{word: of.value for word, of in RANK_TYPE_SYNONYMS.items()}, EXPECTED: EXPECTED}
WITHOUT_RANK_TYPE = ("auc", "query_auc", "loss")
_CUTOFF = re.compile(rf"(?:{'|'.join(family.prefix for family in FAMILIES)})([0-9]+)")


class UnknownMetricError(KeyError):
    """No metric of that name; says which are nearest."""

    def __str__(self) -> str:
        return str(self.args[0])


@frozen
class MetricName:
    """What a name says."""

    side: str  # head, tail, both
    rank_type: str
    metric: str  # a key of the registry, or whatever stood there

    @property
    def key(self) -> str:
        """The key of a report."""
        if self.metric in WITHOUT_RANK_TYPE:
            return f"{self.side}.{self.metric}"
        return f"{self.side}.{self.rank_type}.{self.metric}"


def parse(name: str, headline: str) -> MetricName:
    """Take a name apart: a key, or a synonym, with or without side and rank type in front.

    Args:
        name: in any case; `hits.10` is hits at 10.
        headline: the rank type that a name without one means.
    """
    parts = name.strip().lower().split(".")
    side = SIDES[parts.pop(0)] if parts[0] in SIDES else "both"
    rank_type = RANK_TYPE_NAMES[parts.pop(0)] if parts and parts[0] in RANK_TYPE_NAMES else headline
    return MetricName(side, rank_type, metric_key("_at_".join(parts) if len(parts) == 2 else ".".join(parts)))


def resolve(name: str, headline: str, keys: Collection[str]) -> str:
    """Return the report's key that a name means.

    Args:
        name: as `parse` takes it.
        headline: the rank type that a name without one means.
        keys: the keys that the report has.

    Raises:
        UnknownMetricError: nothing of that name; the message names the nearest.
    """
    parsed = parse(name, headline)
    if parsed.key in keys:
        return parsed.key
    advice = nearest_names(name, parsed, keys)
    cutoff = _CUTOFF.fullmatch(parsed.metric)
    if parsed.metric == "loss":
        advice = "; set compute_loss = True"
    if cutoff:
        advice = f"; add {cutoff[1]} to hits_at{advice}"
    raise UnknownMetricError(f"no metric '{name}' in this report{advice}")


def nearest_names(name: str, parsed: MetricName, keys: Iterable[str]) -> str:
    """Return the end of a message: the names of metrics with these keys that are most like one that is unknown."""
    metrics = {key.rpartition(".")[2] for key in keys}
    synonyms = {synonym for synonym, metric in SYNONYMS.items() if metric in metrics}
    known = sorted({*keys, *metrics, *synonyms, *(metric.replace("_at_", "@") for metric in metrics)})
    nearest = difflib.get_close_matches(name, known, n=3) or difflib.get_close_matches(parsed.key, known, n=3)
    return f"; nearest: {', '.join(nearest)}" if nearest else ""
