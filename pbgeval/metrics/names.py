"""Names that users know -> keys of the report: `<side>.<rank type>.<metric>`."""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Collection, Iterable

from attrs import frozen

from pbgeval.metrics import classification
from pbgeval.metrics.metric import EXPECTED
from pbgeval.metrics.registry import FAMILIES, NDCG_PREFIXES, SYNONYMS, metric_key
from pbgeval.ranking import RANK_TYPE_SYNONYMS

SIDES = {"head": "head", "tail": "tail", "both": "both", "lhs": "head", "rhs": "tail"}  # lhs hidden, rhs hidden
RANK_TYPE_NAMES = {**{word: of.value for word, of in RANK_TYPE_SYNONYMS.items()}, EXPECTED: EXPECTED}
POOLED_HITS = "pooled_hits_at_"  # a cut-off follows
# Of a classifier, but for the area under the ROC curve, which is `auc`.
CLASSIFICATION = tuple(name for name in classification.NAMES if name != classification.ROC_AUC)
WITHOUT_RANK_TYPE = ("auc", "query_auc", "loss", *CLASSIFICATION)
_OF_CLASSIFICATION = {**{name: name for name in classification.NAMES}, **classification.SYNONYMS}
_CUTOFF = re.compile(rf"(?:{'|'.join((*(family.prefix for family in FAMILIES), *NDCG_PREFIXES))})([0-9]+)")


class UnknownMetricError(KeyError):
    """No metric of that name; says which are nearest."""

    def __str__(self) -> str:
        return str(self.args[0])


@frozen
class MetricName:
    """What a name says, what it leaves out filled in."""

    side: str  # head, tail, both
    rank_type: str
    metric: str  # a key of the registry, or whatever stood there

    @property
    def key(self) -> str:
        """The key of a report."""
        if self.metric in WITHOUT_RANK_TYPE or self.metric.startswith((POOLED_HITS, *NDCG_PREFIXES)):
            return f"{self.side}.{self.metric}"
        return f"{self.side}.{self.rank_type}.{self.metric}"


@frozen
class NameParts:
    """What a name says, and what it leaves out."""

    side: str | None
    rank_type: str | None
    metric: str  # a key of the registry, or whatever stood there

    def covers(self, other: NameParts) -> bool:
        """Whether another name is of this metric and of the side and rank type that this one says, if it does."""
        return (
            self.metric == other.metric
            and self.side in (None, other.side)
            and self.rank_type in (None, other.rank_type)
        )


@functools.lru_cache(maxsize=4096)  # every row of every table asks for the same names
def split(name: str) -> NameParts:
    """Take a name apart: key or synonym, in any case, with or without side and rank type; `hits.10` is hits at 10."""
    parts = name.strip().lower().split(".")
    side = SIDES[parts.pop(0)] if parts[0] in SIDES else None
    rank_type = RANK_TYPE_NAMES[parts.pop(0)] if parts and parts[0] in RANK_TYPE_NAMES else None
    return NameParts(side, rank_type, _metric_of("_at_".join(parts) if len(parts) == 2 else ".".join(parts)))


def parse(name: str, headline: str) -> MetricName:
    """Take a name apart as `split` does; without a side it means both, without a rank type the headline."""
    parts = split(name)
    return MetricName(parts.side or "both", parts.rank_type or headline, parts.metric)


def _metric_of(name: str) -> str:
    """Return the key of a metric's name: of ranks, of a classifier, of pooled hits; an unknown one is kept."""
    found = _OF_CLASSIFICATION.get(name) or _OF_CLASSIFICATION.get(name.replace("-", "_").replace(" ", "_"))
    if found is None:
        return metric_key(name.replace("pooled_hits@", POOLED_HITS))
    return "auc" if found == classification.ROC_AUC else found


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
