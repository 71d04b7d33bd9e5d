"""Which metrics a report has: families and single ones of the key `metrics`, or those of a preset."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TypeVar

from attrs import frozen

from pbgeval.metrics.metric import EXPECTED, Metric
from pbgeval.metrics.names import (
    CLASSIFICATION,
    POOLED_HITS,
    WITHOUT_RANK_TYPE,
    NameParts,
    UnknownMetricError,
    resolve,
    split,
)
from pbgeval.metrics.registry import NDCG_FAMILIES, NDCG_PREFIXES, OPTIONAL_FAMILIES, find_metric, rank_metrics
from pbgeval.ranking import RankType

T = TypeVar("T")

RANK, AUC, AVERAGE_PRECISION, CLASSIFIER = "rank", "auc", "average_precision", "classification"
NDCG = "ndcg"  # of the queries for types, where there is a hierarchy
ESTIMATES = "estimates"  # from sampled candidates: a section of its own, none of whose metrics can be named alone
FAMILIES = (RANK, AUC, AVERAGE_PRECISION, NDCG, CLASSIFIER, ESTIMATES)
DEFAULT = (RANK, AUC)
OGB_CUTOFFS = (1, 3, 10)  # of its lists of given negatives
OGB_POOLED_CUTOFFS = (10, 20, 50, 100)  # of its pools of shared negatives
PRESETS: Mapping[str, tuple[str, ...]] = {
    "ogb": (
        "mean_reciprocal_rank",
        *(f"hits_at_{k}" for k in OGB_CUTOFFS),
        "mean_reciprocal_rank_at_10",
        *(f"{POOLED_HITS}{k}" for k in OGB_POOLED_CUTOFFS),
    )
}


@frozen
class Selection:
    """A choice of metrics."""

    families: frozenset[str]
    parts: tuple[NameParts, ...]  # single metrics: of one side or of all, of one rank type or of all

    @classmethod
    def of(cls, asked: Iterable[str]) -> Selection:
        """Take families and names as a user writes them; whether there are such metrics is not checked."""
        names = list(asked)
        families = frozenset(name for name in names if name in FAMILIES)
        return cls(families, tuple(split(name) for name in names if name not in FAMILIES))

    @property
    def names(self) -> list[str]:
        """The same choice as names that `of` takes, each once and in order."""
        parts = {".".join(filter(None, (part.side, part.rank_type, part.metric))) for part in self.parts}
        return sorted(self.families | parts)

    def has(self, key: str) -> bool:
        """Whether a key of metrics.json is chosen; loss and NDCG always are, as they have switches of their own."""
        found = split(key)
        has_switch = found.metric == "loss" or found.metric.startswith(NDCG_PREFIXES)
        by_family = bool(self.families & _families_of(found.metric))
        return by_family or has_switch or any(part.covers(found) for part in self.parts)

    def has_metric(self, metric: str) -> bool:
        """Whether a metric is chosen for any side and rank type."""
        return bool(self.families & _families_of(metric)) or any(part.metric == metric for part in self.parts)

    def of_metrics(self, metrics: Mapping[str, T]) -> dict[str, T]:
        """Return what is chosen of a mapping by key of metrics.json."""
        return {key: value for key, value in metrics.items() if self.has(key)}

    @property
    def classification(self) -> bool:
        """Whether a metric of a classifier is chosen."""
        return any(map(self.has_metric, CLASSIFICATION))

    @property
    def estimates(self) -> bool:
        """Whether sampled candidates are to tell of all from which they are drawn."""
        return ESTIMATES in self.families

    @property
    def ndcg(self) -> bool:
        """Whether NDCG is asked for by name, so that there must be a hierarchy."""
        return NDCG in self.families or any(part.metric.startswith(NDCG_PREFIXES) for part in self.parts)

    @property
    def pooled_cutoffs(self) -> tuple[int, ...]:
        """The K of pooled hits that are chosen."""
        return _cutoffs(POOLED_HITS, self.parts)

    @property
    def needs_pools(self) -> bool:
        """Whether scores must be kept: everything else follows from counts."""
        return self.classification or bool(self.pooled_cutoffs) or self.has_metric("auc")

    @property
    def optional_metrics(self) -> tuple[Metric, ...]:
        """The rank metrics that are chosen and not in every report."""
        prefixes = tuple(family.prefix for family in OPTIONAL_FAMILIES)
        names = dict.fromkeys(part.metric for part in self.parts if part.metric.startswith(prefixes))
        return tuple(metric for metric in map(find_metric, names) if metric is not None)


def check_name(
    name: str, sides: Collection[str], cutoffs: Collection[int], *, with_loss: bool, with_types: bool = False
) -> None:
    """Refuse a name that is no family and no metric of a report.

    Args:
        name: as a user writes it.
        sides: those that the report has.
        cutoffs: of its hits.
        with_loss: whether the loss is computed.
        with_types: whether there are queries for types of a hierarchy.

    Raises:
        UnknownMetricError: says what is expected instead, and the nearest names.
    """
    if name in FAMILIES:
        return
    parts = split(name)
    if parts.side is not None and parts.side not in sides:
        raise UnknownMetricError(f"'{name}': expected side {' or '.join(sorted(sides))}, as the other is disabled")
    alone = Selection.of([name])
    if alone.optional_metrics or alone.pooled_cutoffs:
        return
    keys = _keys(sides, cutoffs, with_loss=with_loss)
    if with_types:
        keys += [f"{side}.{family.prefix}{k}" for side in ("tail", "both") for family in NDCG_FAMILIES for k in cutoffs]
    resolve(name, parts.rank_type or RankType.REALISTIC.value, keys)


def _keys(sides: Collection[str], cutoffs: Collection[int], *, with_loss: bool) -> list[str]:
    metrics = rank_metrics(cutoffs)
    ranked = [f"{of.value}.{metric.name}" for of in RankType for metric in metrics]
    ranked += [f"{EXPECTED}.{metric.name}" for metric in metrics if metric.has_rank_type(EXPECTED)]
    others = [name for name in WITHOUT_RANK_TYPE if name != "loss"]
    return [f"{side}.{name}" for side in sides for name in ranked + others] + ["both.loss"] * with_loss


ALL_BY_DEFAULT = Selection.of(DEFAULT)


def _families_of(metric: str) -> frozenset[str]:
    if metric in _FAMILIES_OF:
        return _FAMILIES_OF[metric]
    if metric.startswith(NDCG_PREFIXES):
        return frozenset({NDCG})
    return _NONE if metric.startswith((POOLED_HITS, *_OPTIONAL)) else _RANK


def _cutoffs(prefix: str, parts: Iterable[NameParts]) -> tuple[int, ...]:
    digits = [part.metric.removeprefix(prefix) for part in parts if part.metric.startswith(prefix)]
    return tuple(sorted({int(text) for text in digits if text.isdecimal() and int(text)}))


_NONE, _RANK = frozenset[str](), frozenset({RANK})
_OPTIONAL = tuple(family.prefix for family in OPTIONAL_FAMILIES)
_FAMILIES_OF = {
    **dict.fromkeys(CLASSIFICATION, frozenset({CLASSIFIER})),
    "average_precision_score": frozenset({AVERAGE_PRECISION, CLASSIFIER}),
    "auc": frozenset({AUC, CLASSIFIER}),  # the area under the ROC curve of a classifier
    "query_auc": frozenset({AUC}),
}
