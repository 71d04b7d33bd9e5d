"""A PyKEEN training loop -> held-out triples, ranked before and after each epoch; a callback, and a stopper.

    training, callback = hold_out(dataset.training, "run/monitor")
    pipeline(training=training, testing=dataset.testing, model="TransE",
             training_kwargs={"callbacks": callback}, stopper=callback.stopper("mrr", patience=3))

PyKEEN does not partition: all triples are one bucket, an epoch is a visit to it. So there is no gap between buckets to
judge; held-out against training triples (`generalization`) tells what is learned by heart. Any model can be watched: it
is asked for its own predictions. Importing this module imports PyKEEN 1.11.
"""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import Any, cast

import torch
from attrs import frozen
from torch import Tensor

from pbgeval.errors import ConfigError, install
from pbgeval.models.functions import CELLS_PER_CALL, in_parts
from pbgeval.models.pykeen import pykeen_scorer
from pbgeval.monitor.improvement import RELATIVE_DELTA
from pbgeval.monitor.measure import ScoredModel, Visit, schema_of_scorer
from pbgeval.monitor.monitor import Monitor
from pbgeval.notation import Bucket, Side
from pbgeval.scoring.block_scorer import evaluation_mode

try:
    from pykeen.models import Model
    from pykeen.stoppers import Stopper
    from pykeen.training import TrainingCallback
    from pykeen.triples import CoreTriplesFactory
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(f"pykeen is required for {__name__}: {install('pykeen')}", name=error.name) from None

BUCKET = Bucket(0, 0)


@frozen(eq=False)
class PredictionScorer:
    """A PyKEEN model's own predictions for some candidates."""

    model: Model
    num_entities: int
    num_relations: int  # without the inverse ones, which its predictions take care of
    device: torch.device

    def scores(self, hidden: Side, known_Q: Tensor, relation_Q: Tensor, candidate_C: Tensor) -> Tensor:
        """Return the score (Q, C) of each query with each candidate."""

        def predict(known_q: Tensor, relation_q: Tensor, candidate_C: Tensor) -> Tensor:
            if hidden is Side.LHS:
                return cast(
                    "Tensor", self.model.predict_h(torch.stack([relation_q, known_q], dim=1), heads=candidate_C)
                )
            return cast("Tensor", self.model.predict_t(torch.stack([known_q, relation_q], dim=1), tails=candidate_C))

        return in_parts(predict, known_Q, relation_Q, candidate_C, CELLS_PER_CALL)


def hold_out(
    factory: CoreTriplesFactory,
    output: str | PathLike[str] | None = None,
    *,
    all_entities: bool = False,
    known: CoreTriplesFactory | Tensor | None = None,
    **settings: Any,  # noqa: ANN401 - those of `Monitor`
) -> tuple[CoreTriplesFactory, MonitorTrainingCallback]:
    """Split training triples in those to train on and those that are watched.

    Args:
        factory: of all training triples.
        output: folder of `training_stats.json`, as `Monitor` has it.
        all_entities: held-out triples are ranked among all entities, not among sampled ones.
        known: further triples whose answers do not compete, as those of validation; needs `filtered=True`.
        settings: of `Monitor`: eval_fraction, eval_num_batch_negs, eval_num_uniform_negs, seed, ...

    Returns:
        A factory without the held-out triples, and the callback to train with.
    """
    monitor = Monitor(schema_of_scorer(factory.real_num_relations, all_entities=all_entities), output, **settings)
    known_triples = known if known is None or isinstance(known, Tensor) else known.mapped_triples
    training, _ = monitor.split(factory.mapped_triples, BUCKET, known=known_triples)
    return factory.clone_and_exchange_triples(training), MonitorTrainingCallback(monitor, len(training))


class MonitorTrainingCallback(TrainingCallback):  # type: ignore[misc] # PyKEEN is not installed where types are checked
    """Watches each epoch; the triples must be those of `hold_out`."""

    def __init__(self, monitor: Monitor, num_triples: int) -> None:
        super().__init__()
        self.monitor = monitor
        self._num_triples = num_triples
        self._stopper: MonitorStopper | None = None
        self._scored: tuple[Model, ScoredModel] | None = None
        self._visit: Visit | None = None
        self._next_epoch = 1

    def stopper(
        self, metric: str = "mrr", patience: int = 3, relative_delta: float = RELATIVE_DELTA, frequency: int = 1
    ) -> MonitorStopper:
        """Return what ends the training when `Monitor.should_stop` says so, and brings the best epoch's model back.

        Args:
            metric: of the held-out triples after an epoch, by any of its names.
            patience: epochs without an improvement.
            relative_delta: share of the best value so far that counts as one.
            frequency: epochs between two decisions.

        Raises:
            ConfigError: no such metric, arguments out of range, or nothing is held out.
        """
        self._stopper = MonitorStopper(self, metric, patience, relative_delta, frequency)
        return self._stopper

    def register_training_loop(self, training_loop: Any) -> None:  # noqa: ANN401 - PyKEEN's
        super().register_training_loop(training_loop)
        self._next_epoch = training_loop._epoch + 1  # of a run that goes on from a checkpoint

    def pre_batch(self, **kwargs: Any) -> None:  # noqa: ANN401 - PyKEEN's
        """Begin a visit with the first batch of an epoch."""
        if self._visit is None and self.monitor.is_on:
            self._visit = self.monitor.watch(self._next_epoch, BUCKET, self._model())
            with evaluation_mode(self.model):
                self._visit.__enter__()
            self.model._free_graph_and_cache()  # what was computed without gradients must not be trained on

    def post_epoch(self, epoch: int, epoch_loss: float, **kwargs: Any) -> None:  # noqa: ANN401 - PyKEEN's
        """End it, and the pass; the result tracker is told the means of its held-out triples."""
        visit, self._visit, self._next_epoch = self._visit, None, epoch + 1
        if visit is None:
            return
        visit.report_training(self._num_triples, loss=epoch_loss)
        with evaluation_mode(self.model):
            visit.__exit__(None, None, None)
        self.model._free_graph_and_cache()
        summary = self.monitor.end_pass(epoch)
        if summary is not None and summary.average is not None:
            self.result_tracker.log_metrics(
                {name: value for name, value in summary.average.metrics.items() if value is not None},
                step=epoch,
                prefix="held_out",
            )
        if self._stopper is not None:
            self._stopper.keep_if_best(epoch)

    def post_train(self, losses: list[float], **kwargs: Any) -> None:  # noqa: ANN401 - PyKEEN's
        """Bring the best model back where nothing ended the training early."""
        if self._stopper is not None:
            self._stopper.restore()

    def _model(self) -> ScoredModel:
        if self._scored is None or self._scored[0] is not self.model:
            scorer = pykeen_scorer(self.model)
            some = PredictionScorer(self.model, scorer.num_entities, scorer.num_relations, scorer.device)
            self._scored = (self.model, ScoredModel(scorer if self.monitor.schema.relations[0].all_negs else some))
        return self._scored[1]


class MonitorStopper(Stopper):  # type: ignore[misc] # not installed where types are checked
    """End the training when the held-out triples have not improved for some epochs.

    `MonitorTrainingCallback.stopper` makes one.

    PyKEEN 1.11.1 saves a state at each best epoch and never reads it again, so this keeps the best parameters.
    """

    def __init__(
        self, callback: MonitorTrainingCallback, metric: str, patience: int, relative_delta: float, frequency: int
    ) -> None:
        super().__init__()
        if not callback.monitor.is_on:
            raise ConfigError("MonitorStopper: needs held-out triples; set eval_fraction above 0")
        if frequency < 1:
            raise ConfigError(f"MonitorStopper: expected frequency >= 1, got {frequency}")
        callback.monitor.should_stop(metric, patience, relative_delta)  # refuses what it cannot judge by
        self.callback = callback
        self.metric, self.patience, self.relative_delta, self.frequency = metric, patience, relative_delta, frequency
        self.stopped = False
        self.best_epoch: int | None = None
        self._best: dict[str, Tensor] | None = None

    def keep_if_best(self, epoch: int) -> None:
        """Keep a copy of the parameters, if this epoch is the best so far."""
        if self.callback.monitor.best_epoch(self.metric, self.relative_delta) == epoch:
            self.best_epoch = epoch
            self._best = {name: of.detach().clone() for name, of in self.callback.model.state_dict().items()}

    def restore(self) -> None:
        """Give the model the parameters of the best epoch."""
        if self._best is not None:
            self.callback.model.load_state_dict(self._best)

    def should_evaluate(self, epoch: int) -> bool:
        """Tell whether this epoch may be the last; its figures are the callback's in any case."""
        return epoch % self.frequency == 0

    def should_stop(self, epoch: int) -> bool:
        """Tell whether this epoch is the last; then the model is the best epoch's."""
        self.stopped = self.callback.monitor.should_stop(self.metric, self.patience, self.relative_delta)
        if self.stopped:
            self.restore()
        return self.stopped

    def get_summary_dict(self) -> Mapping[str, Any]:
        """Return what PyKEEN's checkpoint keeps; the figures are in the monitor's own records."""
        return {"stopped": self.stopped, "best_epoch": self.best_epoch, "best": self._best}

    def _write_from_summary_dict(
        self, *, stopped: bool, best_epoch: int | None, best: dict[str, Tensor] | None
    ) -> None:
        self.stopped, self.best_epoch, self._best = stopped, best_epoch, best
