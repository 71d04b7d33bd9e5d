"""What the metrics are that have no rank type: of pools of scores, of a classifier, of graded gains, PBG's loss."""

from __future__ import annotations

from collections import defaultdict

from pbgeval.metrics import classification
from pbgeval.metrics.metric import PYKEEN, Definition, Level, Range
from pbgeval.metrics.names import POOLED_HITS

SHARE = Range("[0, 1]", low=0.0, high=1.0)
SIGNED = Range("[-1, 1]", low=-1.0, high=1.0)
RATIO = Range("[0, inf)", low=0.0)
NO_LEVEL = Level("depends on the share of positives")
OF_CONFUSION = f"{PYKEEN} ClassificationEvaluator, whose confusion matrix is transposed; Fawcett (2006)"
_SYNONYMS: dict[str, list[str]] = defaultdict(list)
for _synonym, _name in classification.SYNONYMS.items():
    _SYNONYMS[_name].append(_synonym)


def _rate(name: str, direction: int, formula: str, chance: Level = NO_LEVEL, value_range: Range = SHARE) -> Definition:
    return Definition(name, tuple(_SYNONYMS[name]), direction, value_range, chance, formula, OF_CONFUSION)


SCORE_METRICS: tuple[Definition, ...] = (
    Definition(
        "query_auc",
        (),
        1,
        SHARE,
        Level("0.5", 0.5),
        "mean over queries of the share of competitors that the true entity beats, ties one half",
        "(1 + adjusted_mean_rank_index) / 2 where queries weigh as many as compete",
    ),
    Definition(
        "auc",
        (classification.ROC_AUC, *_SYNONYMS[classification.ROC_AUC]),
        1,
        SHARE,
        Level("0.5", 0.5),
        "P(a true score > a competitor's score) + P(equal) / 2, over the pool of all queries",
        "Hanley and McNeil (1982); not PBG's auc",
    ),
    Definition(
        "average_precision_score",
        tuple(_SYNONYMS["average_precision_score"]),
        1,
        Range("(0, 1]", low=0.0, high=1.0),
        Level("near the share of positives"),
        "mean over true scores of the precision at each; thresholds are the distinct scores",
        f"{PYKEEN} ClassificationEvaluator; scikit-learn",
    ),
    Definition(
        "area_under_the_precision_recall_curve",
        tuple(_SYNONYMS["area_under_the_precision_recall_curve"]),
        1,
        SHARE,
        Level("near the share of positives"),
        "by trapezoids, which flatters where positives are rare",
        "Davis and Goadrich (2006)",
    ),
    Definition(
        "best_informedness", (), 1, SHARE, Level("0", 0.0), "the greatest TPR - FPR of any threshold", "Youden (1950)"
    ),
    Definition("num_scores", (), None, RATIO, Level("the count"), "scores that were compared", PYKEEN),
    _rate("true_positive_rate", 1, "TP / (TP + FN); the threshold predicts as many positives as there are"),
    _rate("true_negative_rate", 1, "TN / (TN + FP)"),
    _rate("false_positive_rate", -1, "FP / (FP + TN)"),
    _rate("false_negative_rate", -1, "FN / (FN + TP)"),
    _rate("positive_predictive_value", 1, "TP / (TP + FP)"),
    _rate("negative_predictive_value", 1, "TN / (TN + FN)"),
    _rate("false_discovery_rate", -1, "FP / (FP + TP)"),
    _rate("false_omission_rate", -1, "FN / (FN + TN)"),
    _rate("positive_likelihood_ratio", 1, "TPR / FPR", Level("1", 1.0), RATIO),
    _rate("negative_likelihood_ratio", -1, "FNR / TNR", Level("1", 1.0), RATIO),
    _rate("diagnostic_odds_ratio", 1, "TP TN / (FP FN)", Level("1", 1.0), RATIO),
    _rate("accuracy", 1, "(TP + TN) / (TP + FP + FN + TN)"),
    _rate("balanced_accuracy_score", 1, "(TPR + TNR) / 2", Level("0.5", 0.5)),
    _rate("f1_score", 1, "2 TP / (2 TP + FP + FN)"),
    _rate("prevalence_threshold", -1, "√FPR / (√TPR + √FPR)", Level("0.5", 0.5)),
    _rate("threat_score", 1, "TP / (TP + FN + FP)"),
    _rate("fowlkes_mallows_index", 1, "√(PPV TPR)"),
    _rate("informedness", 1, "TPR + TNR - 1", Level("0", 0.0), SIGNED),
    _rate(
        "matthews_correlation_coefficient",
        1,
        "(TP TN - FP FN) / √((TP + FP) (TP + FN) (TN + FP) (TN + FN))",
        Level("0", 0.0),
        SIGNED,
    ),
    Definition(
        f"{POOLED_HITS}10",
        ("pooled_hits@10",),
        1,
        SHARE,
        Level("depends on the pool"),
        "share of true scores above the K-th best of all competitors' scores of the side",
        "OGB hits@K of shared negatives",
    ),
    Definition(
        "loss", (), -1, RATIO, Level("depends on the loss"), "both sides' sum per edge, with compute_loss", "PBG"
    ),
)
