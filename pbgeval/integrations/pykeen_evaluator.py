"""An `Evaluator` for PyKEEN's own pipelines: exact ranks by pbgeval, in PyKEEN's results.

    from pbgeval.integrations.pykeen_evaluator import ExactEvaluator
    pipeline(dataset="Nations", model="TransE", evaluator=ExactEvaluator)
    hpo_pipeline(dataset="Nations", model="TransE", evaluator=ExactEvaluator, metric="mrr", n_trials=3)

Importing this module imports PyKEEN 1.11, and makes the class known to its resolver as "exact".
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from attrs import fields
from torch import Tensor

from pbgeval.errors import ConfigError, install
from pbgeval.integrations.metric_objects import RankMetric
from pbgeval.integrations.pykeen import RankBasedEvaluator, usual_figures
from pbgeval.notation import ENDS, Side
from pbgeval.report.report import Item, Report, items_of

try:
    from pykeen.evaluation import Evaluator, RankBasedMetricResults, evaluator_resolver
    from pykeen.evaluation.rank_based_evaluator import RankBasedMetricKey
    from pykeen.models import Model
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(f"pykeen is required for {__name__}: {install('pykeen')}", name=error.name) from None


class ExactResults(RankBasedMetricResults):  # type: ignore[misc] # PyKEEN is not installed where types are checked
    """Figures by PyKEEN's keys; `report` has everything else, and is None for scores that PyKEEN handed over."""

    report: Report | None = None

    def __init__(self, items: Iterable[Item], report: Report | None = None) -> None:
        super().__init__({RankBasedMetricKey(*key): value for key, value in items})
        self.report = report

    def __repr__(self) -> str:
        return usual_figures(self, self.data)


class ExactEvaluator(Evaluator):  # type: ignore[misc] # not installed where types are checked
    """Ranks by pbgeval wherever PyKEEN takes an evaluator: pipelines, searches, early stopping, callbacks."""

    metric_result_cls = ExactResults

    def __init__(
        self,
        filtered: bool = True,
        *,
        batch_size: int | None = None,
        slice_size: int | None = None,
        mode: str | None = None,
        **options: Any,  # noqa: ANN401 - of RankBasedEvaluator
    ) -> None:
        """Take PyKEEN's arguments.

        Args:
            filtered: whether known triples are left out of the competitors.
            batch_size: as PyKEEN's `Evaluator` takes it, like `slice_size` and `mode`.
            slice_size: the same.
            mode: the same.
            options: macro, ks, metrics, settings and others of `pbgeval.integrations.pykeen.RankBasedEvaluator`.

        Raises:
            ConfigError: an option is unknown.
        """
        super().__init__(filtered=filtered, batch_size=batch_size, slice_size=slice_size, mode=mode)
        known = [field.name for field in fields(RankBasedEvaluator)]
        for key in options.keys() - known:
            raise ConfigError(f"ExactEvaluator: unknown option {key}; the options are {', '.join(known)}")
        self._ours = RankBasedEvaluator(filtered, **options)
        self._cutoffs = tuple(self._ours.ks or self._ours.hits_at)
        self.clear()

    def evaluate(
        self,
        model: Model,
        mapped_triples: Tensor,
        batch_size: int | None = None,
        slice_size: int | None = None,
        **options: Any,  # noqa: ANN401 - of RankBasedEvaluator.evaluate
    ) -> ExactResults:
        """Rank the triples against all entities, as `pbgeval.integrations.pykeen.RankBasedEvaluator.evaluate`."""
        found = self._ours.evaluate(
            model,
            mapped_triples,
            batch_size=batch_size or self.batch_size,
            slice_size=slice_size or self.slice_size,
            mode=self.mode,
            **options,
        )
        return ExactResults(found.data.items(), found.report)

    def process_scores_(
        self,
        hrt_batch: Tensor,
        target: str,
        scores: Tensor,
        true_scores: Tensor | None = None,
        dense_positive_mask: Tensor | None = None,
    ) -> None:
        """Rank a batch of scores of all entities (b, N), as PyKEEN's evaluation loops hand them over.

        Filtered entities have the score NaN there, so another NaN among them passes for one: `evaluate` refuses it.

        Raises:
            ConfigError: macro averages need all triples at once; or the target is no entity.
            DataError: the score of a true entity is NaN; if nothing is filtered, any score.
        """
        if self._ours.macro:
            raise ConfigError("ExactEvaluator: macro averages need evaluate(), which has all triples at once")
        side = next((side for side in ENDS if side.label == target), None)
        if side is None:
            raise ConfigError(f"ExactEvaluator: expected the target head or tail, got {target}")
        true_b = hrt_batch[:, 0 if side is Side.LHS else 2]
        excluded_bN = scores.isnan() if self.filtered else None
        if true_scores is not None:
            scores = scores.scatter(1, true_b[:, None], true_scores.reshape(-1, 1).to(scores.dtype))
        self._metrics[side].update(scores, true_b, excluded=excluded_bN)

    def clear(self) -> None:
        """Forget the scores so far."""
        self._metrics = {side: RankMetric(self._cutoffs) for side in ENDS}

    def finalize(self) -> ExactResults:
        """Return the results of the scores so far, and forget them."""
        both = RankMetric(self._cutoffs)
        for metric in self._metrics.values():
            both.merge_state(metric)
        metrics = {side.label: metric for side, metric in self._metrics.items()} | {"both": both}
        figures = {
            f"{label}.{key.removeprefix('both.')}": value
            for label, metric in metrics.items()
            for key, value in metric.compute().items()
            if metric.num_queries
        }
        self.clear()
        return ExactResults(items_of(figures, self._cutoffs))


evaluator_resolver.register(ExactEvaluator, raise_on_conflict=False)
