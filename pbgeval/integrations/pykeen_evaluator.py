"""An `Evaluator` for PyKEEN's own pipelines: exact ranks by pbgeval, in PyKEEN's results.

    from pbgeval.integrations.pykeen_evaluator import ExactEvaluator
    pipeline(dataset="Nations", model="TransE", evaluator=ExactEvaluator)
    hpo_pipeline(dataset="Nations", model="TransE", evaluator=ExactEvaluator, metric="mrr", n_trials=3)

Importing this module imports PyKEEN 1.11, and makes the class known to its resolver as "exact".
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from pykeen.evaluation import Evaluator, RankBasedMetricResults, evaluator_resolver
from pykeen.models import Model
from torch import Tensor

from pbgeval.errors import ConfigError
from pbgeval.integrations.metric_objects import RankMetric
from pbgeval.integrations.pykeen import RankBasedEvaluator
from pbgeval.notation import ENDS, Side
from pbgeval.report.report import Report, items_of


class ExactResults(RankBasedMetricResults):  # type: ignore[misc] # PyKEEN is not installed where types are checked
    """Figures by PyKEEN's keys; `report` has everything else, and is None for scores that PyKEEN handed over."""

    report: Report | None = None


class ExactEvaluator(Evaluator):  # type: ignore[misc] # not installed where types are checked
    """Ranks by pbgeval wherever PyKEEN takes an evaluator: pipelines, searches, early stopping, callbacks."""

    metric_result_cls = ExactResults

    def __init__(
        self,
        filtered: bool = True,
        *,
        macro: bool = False,
        ks: Sequence[int] = (1, 3, 5, 10),
        settings: Mapping[str, Any] | None = None,
        **options: Any,  # noqa: ANN401 - PyKEEN's: batch_size, slice_size, mode
    ) -> None:
        """Take PyKEEN's arguments.

        Args:
            filtered: whether known triples are left out of the competitors.
            macro: every query key weighs alike, as in PyKEEN's `MacroRankBasedEvaluator`.
            ks: the k of hits at k.
            settings: further keys of `EvalConfig`.
            options: of PyKEEN's `Evaluator`: batch_size, slice_size, mode.
        """
        super().__init__(filtered=filtered, **options)
        self._ours = RankBasedEvaluator(filtered, macro=macro, hits_at=ks, settings=settings or {})  # type: ignore[arg-type] # of attrs' converter
        self.clear()

    def evaluate(
        self,
        model: Model,
        mapped_triples: Tensor,
        batch_size: int | None = None,
        slice_size: int | None = None,
        *,
        device: torch.device | None = None,
        additional_filter_triples: Tensor | list[Tensor] | None = None,
        restrict_entities_to: Collection[int] | None = None,
        restrict_relations_to: Collection[int] | None = None,
        targets: Collection[str] = ("head", "tail"),
        **ignored: Any,  # noqa: ANN401 - use_tqdm, tqdm_kwargs, pre_filtered_triples, do_time_consuming_checks
    ) -> ExactResults:
        """Rank the triples against all entities, as `pbgeval.integrations.pykeen.RankBasedEvaluator.evaluate`.

        Progress bars and checks of PyKEEN's are not needed and ignored; triples are always restricted.
        """
        found = self._ours.evaluate(
            model if device is None else model.to(device),
            mapped_triples,
            additional_filter_triples=additional_filter_triples,
            restrict_entities_to=restrict_entities_to,
            restrict_relations_to=restrict_relations_to,
            targets=targets,
            batch_size=batch_size or self.batch_size,
            slice_size=slice_size or self.slice_size,
            mode=self.mode,
        )
        results = ExactResults(found.data)
        results.report = found.report
        return results

    def process_scores_(
        self,
        hrt_batch: Tensor,
        target: str,
        scores: Tensor,
        true_scores: Tensor | None = None,
        dense_positive_mask: Tensor | None = None,
    ) -> None:
        """Rank a batch of scores of all entities (b, N), as PyKEEN's evaluation loops hand them over.

        Filtered entities have the score NaN there.

        Raises:
            ConfigError: macro averages need all triples at once.
        """
        if self._ours.macro:
            raise ConfigError("ExactEvaluator: macro averages need evaluate(), which has all triples at once")
        side = next(side for side in ENDS if side.label == target)
        true_b = hrt_batch[:, 0 if side is Side.LHS else 2]
        excluded_bN = scores.isnan()
        if true_scores is not None:
            scores = scores.scatter(1, true_b[:, None], true_scores.reshape(-1, 1).to(scores.dtype))
        self._metrics[side].update(scores, true_b, excluded=excluded_bN)

    def clear(self) -> None:
        """Forget the scores so far."""
        self._metrics = {side: RankMetric(self._ours.hits_at) for side in ENDS}

    def finalize(self) -> ExactResults:
        """Return the results of the scores so far, and forget them."""
        both = RankMetric(self._ours.hits_at)
        for metric in self._metrics.values():
            both.merge_state(metric)
        of_sides = {side.label: metric for side, metric in self._metrics.items()} | {"both": both}
        figures = {
            f"{label}.{key.removeprefix('both.')}": value
            for label, metric in of_sides.items()
            for key, value in metric.compute().items()
            if metric.num_queries
        }
        self.clear()
        return ExactResults(dict(items_of(figures, self._ours.hits_at)))


evaluator_resolver.register(ExactEvaluator, raise_on_conflict=False)
