"""Names that users know -> keys of the report: `<side>.<rank type>.<metric>`."""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Collection, Iterable, Mapping

from attrs import frozen

from pbgeval.metrics import classification
from pbgeval.metrics.registry import (
    ABOVE_ZERO,
    ALL_FAMILIES,
    DEFAULT_CUTOFF,
    EXPECTED,
    FAMILIES,
    FROM_ZERO,
    METRICS,
    OPTIONAL_FAMILIES,
    PYKEEN,
    SHARE,
    SIGNED,
    SYNONYMS,
    Definition,
    Metric,
    find_metric,
    known_rank_metrics,
    metric_key,
)
from pbgeval.notation import T
from pbgeval.stats.query_metrics import keyed_metrics
from pbgeval.stats.rank_types import RANK_TYPE_SYNONYMS, RankType

SIDES = {"lhs": "head", "rhs": "tail"} | {label: label for label in ("head", "tail", "relation", "both")}
RANK_TYPE_NAMES = {**{word: of.value for word, of in RANK_TYPE_SYNONYMS.items()}, EXPECTED: EXPECTED}
POOLED_HITS = "pooled_hits_at_"  # a cut-off follows
SIDES_IN_ORDER = ("both", "head", "tail", "relation")  # as columns of tables are read
METRICS_IN_ORDER = ("count", "mean_reciprocal_rank", "hits_at_")  # first; the others as they come
WITHOUT_RANK_TYPE = ("auc", "query_auc", "loss", *classification.NAMES)  # the area under the ROC curve is `auc`
OF_LISTS = ("recall", "precision", "f1", "map", "ndcg", "mrr", "hit_ratio")  # at k: the section `topk_metrics`
_CUTOFF = re.compile(rf"(?:{'|'.join(family.prefix for family in FAMILIES)})([0-9]+)")


class UnknownMetricError(KeyError):
    """No metric of that name; says which are nearest."""

    def __str__(self) -> str:
        return str(self.args[0])


@frozen
class MetricName:
    """A metric's name, parsed."""

    side: str  # head, tail, relation, both; empty where the name leaves it out
    rank_type: str  # the same
    metric: str  # a key of the registry, or whatever stood there

    @property
    def key(self) -> str:
        """The key of a report."""
        if self.metric in WITHOUT_RANK_TYPE or self.metric.startswith(POOLED_HITS):
            return f"{self.side}.{self.metric}"
        return f"{self.side}.{self.rank_type}.{self.metric}"

    def covers(self, other: MetricName) -> bool:
        """Return whether this name, which may lack side and rank type, means the other."""
        return self.metric == other.metric and self.side in ("", other.side) and self.rank_type in ("", other.rank_type)


@functools.lru_cache(maxsize=4096)  # every row of every table asks for the same names
def split(name: str) -> MetricName:
    """Take a name apart: key or synonym, in any case, with or without side and rank type; `hits.10` is hits at 10."""
    parts = name.strip().lower().split(".")
    side = SIDES[parts.pop(0)] if parts[0] in SIDES else ""
    rank_type = RANK_TYPE_NAMES[parts.pop(0)] if parts and parts[0] in RANK_TYPE_NAMES else ""
    metric = "_at_".join(parts) if len(parts) == 2 else ".".join(parts)
    of_scores = (_BY_NAME_OR_SYNONYM.get(word) for word in (metric, metric.replace("-", "_").replace(" ", "_")))
    found = next(filter(None, of_scores), None) or metric_key(metric.replace("pooled_hits@", POOLED_HITS))
    return MetricName(side, rank_type, found)


def parse(name: str, headline: str) -> MetricName:
    """Take a name apart as `split` does; without a side it means both, without a rank type the headline."""
    parts = split(name)
    return MetricName(parts.side or "both", parts.rank_type or headline, parts.metric)


def target_keys(sides: Iterable[str], cutoffs: Iterable[int]) -> list[str]:
    """Return what `target_metric` may mean: the keys of some sides' means over queries."""
    return [f"{side}.{key}" for side in sides for key, *_ in keyed_metrics(tuple(cutoffs), adjusted=False)]


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
    word, at, k = name.rpartition(".")[2].lower().replace("_at_", "@").partition("@")
    for key in (parsed.key, f"{parsed.side}.{word}_at_{k}"):
        if key in keys:
            return key
    metric, dot, last = name.rpartition(".")
    if dot and last == "standard_error":
        raise UnknownMetricError(f"no metric '{name}' here; errors are in report.standard_errors['{metric}']")
    advice = nearest_names(name, parsed, keys)
    cutoff = _CUTOFF.fullmatch(parsed.metric)
    if parsed.metric == "loss":
        advice = "; set compute_loss = True"
    if cutoff and not any(key.endswith(f"_at_{cutoff[1]}") for key in keys):
        has_hits = any(_CUTOFF.fullmatch(key.rpartition(".")[2]) for key in keys)
        to_hits = f"; add {cutoff[1]} to hits_at{advice}"
        advice = to_hits if has_hits else f"; add {name} to metrics, and {cutoff[1]} to hits_at if it is not there"
    if at and word in OF_LISTS:
        advice += f"; with topk_metrics = True, report.topk['{word}@{k}'] has that of the first k candidates"
    raise UnknownMetricError(f"no metric '{name}' here{advice}")


def nearest_names(name: str, parsed: MetricName, keys: Iterable[str]) -> str:
    """Return the end of an error message: the known names nearest to an unknown one."""
    metrics = {key.rpartition(".")[2] for key in keys}
    synonyms = {synonym for synonym, metric in SYNONYMS.items() if metric in metrics}
    known = sorted({*keys, *metrics, *synonyms, *(metric.replace("_at_", "@") for metric in metrics)})
    nearest = difflib.get_close_matches(name, known, n=3) or difflib.get_close_matches(parsed.metric, known, n=3)
    return f"; nearest: {', '.join(nearest)}" if nearest else "; kgeval-dist metrics lists them"


# What the metrics are that have no rank type: of pools of scores, of a classifier, PBG's loss.

OF_CONFUSION = f"{PYKEEN} ClassificationEvaluator, whose confusion matrix is transposed; Fawcett (2006)"


def _rate(
    name: str,
    synonyms: tuple[str, ...],
    direction: int,
    formula: str,
    chance: str = "depends on the share of positives",
    value_range: str = SHARE,
) -> Definition:
    return Definition(name, synonyms, direction, value_range, chance, formula, OF_CONFUSION)


SCORE_METRICS: tuple[Definition, ...] = (
    Definition(
        "query_auc",
        (),
        1,
        SHARE,
        "0.5",
        "mean over queries of the share of competitors that the true entity beats, ties one half",
        "(1 + adjusted_mean_rank_index) / 2 where queries weigh as many as compete",
    ),
    Definition(
        "auc",
        ("area_under_the_receiver_operating_characteristic_curve", "roc_auc", "auc_roc", "auroc"),
        1,
        SHARE,
        "0.5",
        "P(a true score > a competitor's score) + P(equal) / 2, over the pool of all queries",
        "Hanley and McNeil (1982); not PBG's auc",
    ),
    Definition(
        "average_precision_score",
        ("ap", "aps", "average_precision"),
        1,
        ABOVE_ZERO,
        "near the share of positives",
        "mean over true scores of the precision at each; thresholds are the distinct scores",
        f"{PYKEEN} ClassificationEvaluator; scikit-learn",
    ),
    Definition(
        "area_under_the_precision_recall_curve",
        ("pr_auc", "auc_pr"),
        1,
        SHARE,
        "near the share of positives",
        "by trapezoids, which flatters where positives are rare",
        "Davis and Goadrich (2006)",
    ),
    Definition("best_informedness", (), 1, SHARE, "0", "the greatest TPR - FPR of any threshold", "Youden (1950)"),
    Definition("num_scores", (), None, FROM_ZERO, "the count", "scores that were compared", PYKEEN),
    _rate(
        "true_positive_rate",
        ("tpr", "recall", "sensitivity", "hit_rate"),
        1,
        "TP / (TP + FN); the threshold predicts as many positives as there are",
    ),
    _rate("true_negative_rate", ("tnr", "specificity", "selectivity"), 1, "TN / (TN + FP)"),
    _rate("false_positive_rate", ("fpr", "fall_out"), -1, "FP / (FP + TN)"),
    _rate("false_negative_rate", ("fnr", "miss_rate"), -1, "FN / (FN + TP)"),
    _rate("positive_predictive_value", ("ppv", "precision"), 1, "TP / (TP + FP)"),
    _rate("negative_predictive_value", ("npv",), 1, "TN / (TN + FN)"),
    _rate("false_discovery_rate", ("fdr",), -1, "FP / (FP + TP)"),
    _rate("false_omission_rate", ("for",), -1, "FN / (FN + TN)"),
    _rate("positive_likelihood_ratio", ("lr+", "plr"), 1, "TPR / FPR", "1", FROM_ZERO),
    _rate("negative_likelihood_ratio", ("lr-", "nlr"), -1, "FNR / TNR", "1", FROM_ZERO),
    _rate("diagnostic_odds_ratio", ("dor",), 1, "TP TN / (FP FN)", "1", FROM_ZERO),
    _rate("accuracy", ("acc",), 1, "(TP + TN) / (TP + FP + FN + TN)"),
    _rate("balanced_accuracy_score", ("ba", "bacc", "balanced_accuracy"), 1, "(TPR + TNR) / 2", "0.5"),
    _rate("f1_score", ("f1",), 1, "2 TP / (2 TP + FP + FN)"),
    _rate("prevalence_threshold", ("pt",), -1, "√FPR / (√TPR + √FPR)", "0.5"),
    _rate("threat_score", ("ts", "csi", "critical_success_index", "jaccard"), 1, "TP / (TP + FN + FP)"),
    _rate("fowlkes_mallows_index", ("fm", "fmi"), 1, "√(PPV TPR)"),
    _rate("informedness", ("bm", "j", "bookmaker_informedness"), 1, "TPR + TNR - 1", "0", SIGNED),
    _rate(
        "matthews_correlation_coefficient",
        ("mcc", "phi"),
        1,
        "(TP TN - FP FN) / √((TP + FP) (TP + FN) (TN + FP) (TN + FN))",
        "0",
        SIGNED,
    ),
    Definition(
        f"{POOLED_HITS}10",
        ("pooled_hits@10",),
        1,
        SHARE,
        "depends on the pool",
        "share of true scores above the K-th best of all competitors' scores of the side",
        "OGB hits@K of shared negatives",
    ),
    Definition("loss", (), -1, FROM_ZERO, "depends on the loss", "both sides' sum per edge, with compute_loss", "PBG"),
)


_BY_NAME_OR_SYNONYM = {word: of.name for of in SCORE_METRICS for word in (of.name, *of.synonyms)}


# Which metrics a report has: families and single ones of the key `metrics`, or those of a preset.


RANK, AUC, AVERAGE_PRECISION, CLASSIFIER = "rank", "auc", "average_precision", "classification"
METRIC_GROUPS = (RANK, AUC, AVERAGE_PRECISION, CLASSIFIER)
DEFAULT = (RANK, AUC)
OGB_CUTOFFS = (1, 3, 10)  # of its lists of given negatives
OGB_POOLED_CUTOFFS = (10, 20, 50, 100)  # of its pools of shared negatives
PRESETS: Mapping[str, tuple[str, ...]] = {
    "ogb": (
        "mean_reciprocal_rank",
        *(f"hits_at_{k}" for k in OGB_CUTOFFS),
        "mean_reciprocal_rank_at_10",
        *(f"{POOLED_HITS}{k}" for k in OGB_POOLED_CUTOFFS),
    ),
    "tgb": ("mean_reciprocal_rank", "hits_at_10"),
    "dglke": ("mean_rank", "mean_reciprocal_rank", *(f"hits_at_{k}" for k in OGB_CUTOFFS)),
    "recsys": ("mean_reciprocal_rank",),  # the others are in the section `topk_metrics`
}
# What else their protocols fix: settings that have other defaults.
PROTOCOLS: Mapping[str, Mapping[str, object]] = {
    "tgb": {"time_window": 0, "disable_lhs_negs": True},
    "dglke": {"rank_type": "pessimistic"},
    "recsys": {"topk_metrics": True, "candidates": "all", "disable_lhs_negs": True},
}


@frozen
class Selection:
    """A choice of metrics."""

    families: frozenset[str]
    parts: tuple[MetricName, ...]  # single metrics: of one side or of all, of one rank type or of all

    @classmethod
    def from_names(cls, asked: Iterable[str]) -> Selection:
        """Take families and names as a user writes them; whether there are such metrics is not checked."""
        names = list(asked)
        return cls(
            frozenset(name for name in names if name in METRIC_GROUPS),
            tuple(split(name) for name in names if name not in METRIC_GROUPS),
        )

    @property
    def names(self) -> list[str]:
        """The same choice as names that `of` takes, each once and in order."""
        return sorted(self.families | {".".join(filter(None, (of.side, of.rank_type, of.metric))) for of in self.parts})

    def has(self, key: str) -> bool:
        """Return whether a key of metrics.json is chosen; the loss always is."""
        found = split(key)
        is_of_family = bool(self.families & _groups_of(found.metric))
        return found.metric == "loss" or is_of_family or any(of.covers(found) for of in self.parts)

    def has_metric(self, metric: str) -> bool:
        """Whether a metric is chosen for any side and rank type."""
        return bool(self.families & _groups_of(metric)) or any(part.metric == metric for part in self.parts)

    def select(self, metrics: Mapping[str, T]) -> dict[str, T]:
        """Return what is chosen of a mapping by key of metrics.json."""
        return {key: value for key, value in metrics.items() if self.has(key)}

    @property
    def of_ranks(self) -> Selection:
        """The chosen metrics that need no scores."""
        query_auc = [split("query_auc")] if self.has_metric("query_auc") else []
        return Selection(self.families & {RANK}, (*self.parts, *query_auc))

    @property
    def classification(self) -> bool:
        """Whether a metric of a classifier is chosen."""
        return any(map(self.has_metric, classification.NAMES))

    @property
    def pooled_cutoffs(self) -> tuple[int, ...]:
        """The K of pooled hits that are chosen."""
        digits = [part.metric.removeprefix(POOLED_HITS) for part in self.parts if part.metric.startswith(POOLED_HITS)]
        return tuple(sorted({int(text) for text in digits if text.isdecimal() and int(text)}))

    @property
    def needs_pools(self) -> bool:
        """Whether scores must be kept: everything else follows from counts."""
        return self.classification or bool(self.pooled_cutoffs) or self.has_metric("auc")

    @property
    def optional_metrics(self) -> tuple[Metric, ...]:
        """The rank metrics that are chosen and not in every report."""
        names = dict.fromkeys(part.metric for part in self.parts if part.metric.startswith(_OPTIONAL))
        return tuple(metric for metric in map(find_metric, names) if metric is not None)


def key_of_name(name: str, headline: str, sides: Collection[str], cutoffs: Collection[int], *, with_loss: bool) -> str:
    """Return the key that a name means in a report, if that metric is chosen.

    Args:
        name: as a user writes it.
        headline: the rank type that a name without one means.
        sides: those that the report has.
        cutoffs: of its hits.
        with_loss: whether the loss is computed.

    Raises:
        UnknownMetricError: says what is expected instead, and the nearest names.
    """
    parts = split(name)
    if parts.side and parts.side not in sides:
        raise UnknownMetricError(f"'{name}': expected side {' or '.join(sorted(sides))}, as others are disabled")
    alone = Selection.from_names([name])
    if alone.optional_metrics or alone.pooled_cutoffs:
        return parse(name, headline).key
    rank_types = (*(rank_type.value for rank_type in RankType), EXPECTED)
    metrics = [
        *(
            f"{of}.{known.name}"
            for of in rank_types
            for known in known_rank_metrics(cutoffs)
            if known.has_rank_type(of)
        ),
        *(metric for metric in WITHOUT_RANK_TYPE if metric != "loss"),
    ]
    keys = [
        *(f"{side}.{metric}" for side in sides for metric in metrics),
        *(["both.loss"] if with_loss else []),
    ]
    return resolve(name, headline, keys)


ALL_BY_DEFAULT = Selection.from_names(DEFAULT)


def _groups_of(metric: str) -> set[str]:
    """Return the metric's groups; a metric computed only when named has none."""
    if metric.startswith((POOLED_HITS, *_OPTIONAL)):
        return set()
    return _GROUPS_OF.get(metric, {RANK})


_OPTIONAL = tuple(family.prefix for family in OPTIONAL_FAMILIES)
_GROUPS_OF = {
    **{name: {CLASSIFIER} for name in classification.NAMES},
    "average_precision_score": {AVERAGE_PRECISION, CLASSIFIER},
    "auc": {AUC, CLASSIFIER},  # the area under the ROC curve of a classifier
    "query_auc": {AUC},
}


# The registry of metrics -> text for the terminal.


DIRECTIONS = {1: "higher", -1: "lower", None: ""}


def metric_list(name: str | None = None) -> str:
    """Return a paragraph per metric, or that of one metric.

    Raises:
        UnknownMetricError: no such metric; the message names the nearest.
    """
    if name is None:
        return "\n".join(_paragraph(metric) for metric in listed_metrics())
    parsed = parse(name, "realistic")
    # The member of pooled hits that stands for all; another name is kept.
    stands_for = f"{POOLED_HITS}{DEFAULT_CUTOFF}" if parsed.metric.startswith(POOLED_HITS) else parsed.metric
    of_scores = {metric.name: metric for metric in SCORE_METRICS}
    is_of_lists = name.lower().replace("_at_", "@").partition("@")[0] in OF_LISTS
    of_lists = f"; topk_metrics = True gives {name} of the first k candidates: docs/metrics.md" if is_of_lists else ""
    metric = of_scores.get(stands_for) or find_metric(parsed.metric)
    if metric is None:
        keys = [*(known.name for known in known_rank_metrics((1, DEFAULT_CUTOFF))), *of_scores]
        raise UnknownMetricError(f"no metric '{name}'{nearest_names(parsed.metric, parsed, keys)}{of_lists}")
    return _paragraph(metric) + of_lists.removeprefix("; ") + "\n" * bool(of_lists)


def listed_metrics() -> tuple[Definition, ...]:
    """Return every metric, a member for each family."""
    return (*METRICS, *(family.of_cutoff(DEFAULT_CUTOFF) for family in ALL_FAMILIES), *SCORE_METRICS)


def synonyms_of(metric: Definition) -> list[str]:
    """Return the other names of a metric, or of its family."""
    for family in ALL_FAMILIES:
        if metric.name == f"{family.prefix}{DEFAULT_CUTOFF}":
            return [*(f"{word}@{DEFAULT_CUTOFF}" for word in family.words), *family.names]
    return list(metric.synonyms)


def _paragraph(metric: Definition) -> str:
    better = f", {DIRECTIONS[metric.direction]} is better" if metric.direction else ""
    return (
        f"{metric.name}\n"
        f"    {metric.formula}\n"
        f"    range {metric.range}{better}; by chance: {metric.chance}\n"
        f"    also: {', '.join(synonyms_of(metric)) or '-'}\n"
        f"    source: {metric.source}\n"
    )


def in_reading_order(keys: Iterable[str], headline: str) -> list[str]:
    """Return the names of columns or figures, those that people read first in front.

    First what a row is about, then figures: those of the headline's rank type, then those of other rank types; in each
    of these both sides, then each side; in each side the number of queries, MRR, hits, then the others.
    """
    keys = list(keys)
    rank_types = [headline, *(key.split(".")[1] for key in keys if key.count(".") > 1)]

    def place(key: str) -> tuple[int, int, int]:
        side, _, rest = key.partition(".")
        if not rest:  # what a row is about
            return -1, 0, 0
        rank_type, _, metric = rest.rpartition(".")
        first = [at for at, name in enumerate(METRICS_IN_ORDER) if metric.startswith(name)]
        return (
            rank_types.index(rank_type or headline),
            SIDES_IN_ORDER.index(side),
            (first or [len(METRICS_IN_ORDER)])[0],
        )

    return sorted(keys, key=place)
