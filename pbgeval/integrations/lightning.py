"""A training run of PyTorch Lightning -> held-out edges, ranked before and after each epoch or each bucket of it.

    monitor = Monitor(schema, "run/monitor")
    training = {bucket: monitor.split(edges, bucket).training for bucket, edges in buckets.items()}
    callback = MonitorCallback(monitor, lambda module: ModelTensors(...), list(buckets))
    Trainer(callbacks=[callback]).fit(module, loader_of(training))

Where torchrun has started several processes, `Monitor(..., team=Team.join())` lets each measure its own buckets.

Importing this module imports Lightning 2.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info

from pbgeval.errors import ConfigError
from pbgeval.monitor.improvement import RELATIVE_DELTA
from pbgeval.monitor.measure import Visit
from pbgeval.monitor.monitor import Monitor
from pbgeval.monitor.schema import Model
from pbgeval.notation import Bucket
from pbgeval.scoring.block_scorer import evaluation_mode
from pbgeval.storage.text import plural


class MonitorCallback(Callback):  # type: ignore[misc] # Lightning is not installed where types are checked
    """Watches the edges that `Monitor.split` has held out, and may end the training.

    The means of each epoch are logged as `held_out/<metric>` with PBG's names (`held_out/mrr`), so that checkpoints and
    loggers can follow them. Where several processes train copies of a module and the monitor has no team, the first one
    measures for all; with a team of these processes each measures its part, and all get the figures of the whole. While
    edges are ranked, the module is in evaluation mode; it is trained in the mode that it was in.
    """

    def __init__(
        self,
        monitor: Monitor,
        model_of: Callable[[Any], Model],
        buckets: Sequence[tuple[int, int]] = ((0, 0),),
        *,
        bucket_of_batch: Callable[[Any], tuple[int, int]] | None = None,
        stop_metric: str = "mrr",
        patience: int | None = None,
        relative_delta: float = RELATIVE_DELTA,
    ) -> None:
        """Each bucket has been split by the monitor.

        Args:
            monitor: what it is made with says what is ranked, and where records go; its team is that of the Trainer's
                processes, or none.
            model_of: the module's tensors, or its scorer, as `Monitor.watch` takes them; called in evaluation mode.
            buckets: whose edges are mixed in an epoch: each is visited once, by the whole epoch. Each process of a team
                names all of them, and measures its share.
            bucket_of_batch: where buckets are trained one after the other instead: that of a batch; a visit lasts while
                it stays the same. Each process of a team measures the buckets of its own batches, so these should be
                of other buckets than those of the others.
            stop_metric: for `patience`, any name of a metric.
            patience: epochs without an improvement after which the training ends; None: it does not.
            relative_delta: as in `Monitor.should_stop`.

        Raises:
            ConfigError: no such metric, arguments out of range, or nothing is held out that could be judged by.
        """
        if patience is not None:
            if not monitor.is_on:
                raise ConfigError("MonitorCallback: patience needs held-out edges; set eval_fraction above 0")
            monitor.should_stop(stop_metric, patience, relative_delta)  # refuses what it cannot judge by
        self.monitor = monitor
        self._model_of, self._bucket_of_batch = model_of, bucket_of_batch
        self._buckets = [Bucket(*bucket) for bucket in buckets][monitor.worker :: monitor.num_workers]
        self._stopping = None if patience is None else (stop_metric, patience, relative_delta)
        self._visits: dict[Bucket, Visit] = {}  # that are going on

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuse a monitor whose team is not the processes that train."""
        ours = (self.monitor.worker, self.monitor.num_workers)
        if ours[1] > 1 and ours != (trainer.global_rank, trainer.world_size):
            raise ConfigError(
                f"MonitorCallback: expected a monitor without a team, or one of the Trainer's {trainer.world_size} "
                f"processes, got worker {ours[0]} of {ours[1]}; is devices x num_nodes what torchrun has started?"
            )

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Warn of a module that was left in evaluation mode, perhaps because a scorer was made of it."""
        if not pl_module.training and trainer.is_global_zero:
            warnings.warn(
                f"{type(pl_module).__name__}: the module is in evaluation mode, so it is trained without dropout; call "
                "module.train() before Trainer.fit (MonitorCallback itself switches to eval() to measure, and back)",
                stacklevel=2,
            )

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Measure all buckets where an epoch visits all of them."""
        if self._bucket_of_batch is None and self._measures(trainer):
            for bucket in self._buckets:
                self._begin(trainer, pl_module, bucket)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:  # noqa: ANN401 - the user's
        """End a visit and begin the next one where a batch is of another bucket."""
        if self._bucket_of_batch is None or not self._measures(trainer):
            return
        bucket = Bucket(*self._bucket_of_batch(batch))
        if bucket not in self._visits:
            self._end_visits(pl_module)
            self._begin(trainer, pl_module, bucket)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """End the visits and the pass, log its means, and end the training if nothing has improved for long."""
        found: dict[str, float] = {}
        stops = False
        if self._measures(trainer):
            self._end_visits(pl_module)
            summary = self.monitor.end_pass(trainer.current_epoch)
            if summary is not None and summary.average is not None:
                found = {
                    f"held_out/{name}": float(value)
                    for name, value in summary.average.metrics.items()
                    if value is not None
                }
            stops = self._stops()
        found, stops = trainer.strategy.broadcast((found, stops))
        # All processes have the same number: their maximum is exact, a mean may be rounded. Lightning asks for one.
        pl_module.log_dict(found, sync_dist=True, reduce_fx="max")
        trainer.should_stop = trainer.should_stop or stops

    def _stops(self) -> bool:
        """Tell whether the training ends, and say why."""
        if self._stopping is None or not self.monitor.should_stop(*self._stopping):
            return False
        metric, patience, relative_delta = self._stopping
        best = self.monitor.best_epoch(metric, relative_delta)
        rank_zero_info(
            f"MonitorCallback ends the training: {metric} of held-out edges has not improved by more than "
            f"{relative_delta:.1%} in {plural(patience, 'epoch')}." + ("" if best is None else f" Keep epoch {best}.")
        )
        return True

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Forget visits that do not come to their end."""
        self._visits.clear()

    def _measures(self, trainer: Trainer) -> bool:
        return self.monitor.num_workers > 1 or bool(trainer.is_global_zero)

    def _begin(self, trainer: Trainer, pl_module: LightningModule, bucket: Bucket) -> None:
        with evaluation_mode(pl_module):
            visit = self.monitor.watch(trainer.current_epoch, bucket, self._model_of(pl_module))
            self._visits[bucket] = visit.__enter__()

    def _end_visits(self, pl_module: LightningModule) -> None:
        visits, self._visits = self._visits, {}
        with evaluation_mode(pl_module):
            for visit in visits.values():
                visit.__exit__(None, None, None)
