"""A training loop -> held-out edges, their figures before and after each visit to a bucket, and what they tell.

    monitor = Monitor(schema, "run/monitor")
    for epoch in range(num_epochs):
        for bucket, edges in buckets:
            training, held_out = monitor.split(edges, bucket)
            with monitor.watch(epoch, bucket, model):
                train(model, training)
        monitor.end_pass(epoch)
        if monitor.should_stop("mrr", patience=3, relative_delta=0.002):
            break

What goes wrong in the monitor never ends the training: a model that has diverged is recorded as such, a disk that is
full is a warning. Only what the loop itself gets wrong raises: ids out of range, tensors of other shapes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from os import PathLike
from pathlib import Path
from typing import TypeVar

import torch

from pbgeval.candidates.chunks import SampledLists
from pbgeval.distributed.team import Team
from pbgeval.errors import ConfigError, OutputError
from pbgeval.monitor.holdout import threshold_of
from pbgeval.monitor.measure import BucketEdges, Protocol
from pbgeval.monitor.passes import Passes
from pbgeval.monitor.persistence import GapTest, Judgement, Verdict
from pbgeval.monitor.schema import Model, ModelSchema
from pbgeval.monitor.splitting import Split, split_edges
from pbgeval.monitor.stopping import has_stalled, progress_of
from pbgeval.monitor.sums import PassSums
from pbgeval.monitor.visit import Followed, Gauge, Visit
from pbgeval.notation import Bucket, Side
from pbgeval.passes.settings import LossSettings
from pbgeval.ranking import RankType
from pbgeval.scoring.loss import LOSSES
from pbgeval.stats.rank_stats import StatsLayout
from pbgeval.training_stats.reading import History, file_of_worker, read_history
from pbgeval.training_stats.records import PassKey, PassRecord, VisitRecord
from pbgeval.training_stats.writing import Sink, StatsFile

E = TypeVar("E")
CUTOFFS = (1, 3, 5, 10, 50)


class Monitor:
    """Watches the training of a partitioned model; one for each worker."""

    def __init__(
        self,
        schema: ModelSchema,
        output: str | PathLike[str] | None = None,
        *,
        eval_fraction: float = 0.05,
        eval_num_batch_negs: int | None = 1000,
        eval_num_uniform_negs: int | None = 1000,
        seed: int = 0,
        sides: Sequence[Side] = (Side.LHS, Side.RHS),
        compare_with_training: bool = True,
        loss_fn: str | None = None,
        margin: float = 0.1,
        pbg_semantics: bool = False,
        batch_size: int = 1000,
        tolerance: float = 0.1,
        alarm_rate: float = 0.05,
        team: Team | None = None,
        sinks: Sequence[Sink] = (),
        warn: Callable[[str], None] | None = None,
    ) -> None:
        """Every worker makes one, with the same arguments but for `team`.

        Args:
            schema: what does not change in training.
            output: folder of `training_stats.json`, where a run that goes on finds its history. None: nowhere.
            eval_fraction: of the edges, held out; from 0 (off, at no cost) to below 1; the next two as in PBG, too.
            eval_num_batch_negs: entities of its own chunk that an edge is ranked among; 0 or None: none.
            eval_num_uniform_negs: uniform draws from the bucket's partition besides.
            seed: of the holdout and of the draws.
            sides: which are hidden in queries.
            compare_with_training: also rank as many training edges, after each visit (half as much cost again).
            loss_fn: also PBG's loss of that name: logistic, ranking, softmax.
            margin: of the ranking loss.
            pbg_semantics: PBG's own chunks and ties, as `kgeval-dist -p pbg_semantics=True -p workers=1`.
            batch_size: of PBG's, under `pbg_semantics`.
            tolerance: share of the mean reciprocal rank at which a gap may persist without a warning.
            alarm_rate: bound of the probability that a whole run is warned without reason (decision 0017).
            team: the workers that train together; None: this one alone.
            sinks: what is handed each record of this worker besides: `TensorBoardSink`, `ScalarSink`.
            warn: is told of warnings, a line each; None: the logger `pbgeval.monitor`.
        """
        self.threshold = threshold_of(eval_fraction)
        self.schema, self.seed = schema, seed
        lists = _lists(eval_num_batch_negs or 0, eval_num_uniform_negs or 0, batch_size, pbg_semantics=pbg_semantics)
        self.headline = RankType.PESSIMISTIC if pbg_semantics else RankType.REALISTIC
        protocol = Protocol(schema, lists, seed, tuple(sides), StatsLayout(CUTOFFS), _loss(loss_fn, margin))
        self._gauge = Gauge(protocol, self.headline)
        self._compares, self._team = compare_with_training, team or Team()
        self._warn = warn or logging.getLogger("pbgeval.monitor").warning
        self._passes = Passes(self.headline, loss_fn is not None, GapTest(alarm_rate, tolerance))
        self._sinks = [*_stats_file(output, self._team), *sinks]
        self._held_out: dict[tuple[int, int, Bucket], tuple[BucketEdges, BucketEdges]] = {}  # and training edges
        self._followed: dict[tuple[int, int, Bucket], Followed] = {}
        self._key: PassKey | None = None  # of the pass in hand
        self._sums = self._no_sums()
        self._next_index = 0
        self._warned: set[str] = set()
        if self.is_on and output is not None:
            self._resume(Path(output))

    @property
    def is_on(self) -> bool:
        """Whether anything is held out."""
        return self.threshold > 0

    @property
    def worker(self) -> int:
        """Which of its team's workers this monitor is of."""
        return self._team.rank_in_team

    @property
    def num_workers(self) -> int:
        """How many workers its team has."""
        return self._team.size

    def split(self, edges: E, bucket: tuple[int, int], *, edge_path: int = 0, edge_chunk: int = 0) -> Split[E]:
        """Split a bucket's edges in those to train on and those held out, which `watch` then measures.

        The side of an edge depends on the seed, its relation, entities and their types and partitions alone.

        Args:
            edges: (E, 3) of lhs, rel, rhs, or the three columns; tensors or arrays of integers, rows in the partition.
            bucket: partitions of the left and the right side.
            edge_path: where edges come from several.
            edge_chunk: where a bucket is trained in parts.

        Returns:
            What unpacks to `training, held_out`, both in the form of `edges` and in their order.

        Raises:
            DataError: edges of another form, a bucket that is not on the grid.
        """
        place = Bucket(*bucket)
        self.schema.check_bucket(place)
        ends = self.schema.ends(place)
        split = split_edges(edges, ends, self.seed, self.threshold, sample_training=self._compares)
        if self.is_on:
            self._keep(edge_path, edge_chunk, place, split)
        return split

    def watch(
        self, epoch: int, bucket: tuple[int, int], model: Model, *, edge_path: int = 0, edge_chunk: int = 0
    ) -> Visit:
        """Return the context in which a bucket is trained.

        A pass that `end_pass` has not ended ends when the first visit of another one begins (with several workers it
        must be ended by all of them).

        Args:
            epoch: of the pass.
            bucket: as in `split`, which comes first.
            model: is asked for its tensors at the beginning and at the end.
            edge_path: as in `split`.
            edge_chunk: as in `split`.

        Raises:
            ConfigError: the bucket has not been split.
            DataError: the model's tensors do not fit the schema or the edges.
        """
        key, place = PassKey(epoch, edge_path, edge_chunk), Bucket(*bucket)
        if not self.is_on:
            none = torch.empty(0, dtype=torch.int64)
            nothing = BucketEdges(none, none, none)
            return Visit(key, place, nothing, nothing, model, self._gauge, _ignore)
        edges = self._held_out.get((edge_path, edge_chunk, place))
        if edges is None:
            raise ConfigError(f"bucket {tuple(place)}: expected Monitor.split of its edges before Monitor.watch")
        if self._key not in (None, key):
            if self._team.size > 1:
                raise ConfigError(f"expected Monitor.end_pass of {self._key} on all workers before {key} begins")
            self._close()
        self._key = key
        followed = self._followed.get((edge_path, edge_chunk, place))
        if self._team.size > 1 and followed is not None and followed.epoch != epoch - 1:
            followed = None  # another worker has visited the bucket since
        return Visit(key, place, *edges, model, self._gauge, self._finish, followed)

    def end_pass(self, epoch: int, *, edge_path: int = 0, edge_chunk: int = 0) -> PassRecord | None:
        """Add up a pass over all workers, of which each calls it; return its summary, None if nothing is held out."""
        key = PassKey(epoch, edge_path, edge_chunk)
        if not self.is_on:
            return None
        if self._key not in (None, key):
            raise ConfigError(f"expected the end of the pass that was watched, {self._key}, got {key}")
        self._key = key
        return self._close()

    def should_stop(
        self, metric: str = "mrr", patience: int = 3, relative_delta: float = 0.002, *, when: str = "after"
    ) -> bool:
        """Tell whether the last `patience` passes have not improved a held-out metric by more than `relative_delta`.

        All workers get the same answer.

        Args:
            metric: any of the flat metrics, by any of its names.
            patience: passes.
            relative_delta: share of the best value so far.
            when: `after` the visits to the buckets, or `before` them: what later buckets have spoilt shows there first.

        Raises:
            ConfigError: no such metric, or arguments out of range.
        """
        if when not in ("before", "after"):
            raise ConfigError(f"should_stop: expected when = before or after, got {when!r}")
        figures = self._passes.before if when == "before" else self._passes.after
        return has_stalled(figures, metric, self.headline.value, patience, relative_delta)

    def best_epoch(self, metric: str = "mrr", relative_delta: float = 0.002) -> int | None:
        """Return the epoch of the pass that was the last to improve a metric, as `should_stop` tells; None: none was.

        Raises:
            ConfigError: no such metric, or an argument out of range.
        """
        best = progress_of(self._passes.after, metric, self.headline.value, relative_delta).best
        return None if best is None else self._passes.keys[best].epoch

    def _keep(self, edge_path: int, edge_chunk: int, bucket: Bucket, split: Split[E]) -> None:
        """Keep what the next visits measure; other edges than the last time cannot be compared with those."""
        where = (edge_path, edge_chunk, bucket)
        if where in self._held_out and not self._held_out[where][0].equals(split.held_out_edges):
            self._followed.pop(where, None)
        self._held_out[where] = split.held_out_edges, split.sampled_edges

    def _finish(self, visit: Visit) -> None:
        """Record a visit and add it to its pass."""
        grid, protocol = self.schema.grid, self._gauge.protocol
        record = visit.record(self._take_index(), self._team.rank_in_team)
        self._append(record)
        sums = visit.sums
        where = (visit.key.edge_path, visit.key.edge_chunk, visit.bucket)
        if visit.followed is not None:
            self._followed[where] = visit.followed
        if visit.reason is not None:
            sums = PassSums.of_diverged(protocol.layout, protocol.sides)
            self._warn_once(
                "diverged",
                f"epoch {visit.key.epoch}, bucket {tuple(visit.bucket)}: the model has diverged, which is recorded; "
                f"training goes on ({visit.reason})",
            )
        if sums is not None:
            row = visit.bucket.lhs * grid.rhs + visit.bucket.rhs
            self._sums += sums.at_row(row, grid.lhs * grid.rhs)

    def _close(self) -> PassRecord:
        assert self._key is not None, "the caller has set it"
        protocol = self._gauge.protocol
        tensor = self._team.sum_(self._sums.to_tensor())
        sums = PassSums.from_tensor(tensor, protocol.layout, protocol.sides)
        record, judgement = self._passes.close(self._key, max(self._next_index - 1, 0), sums)
        self._key, self._sums = None, self._no_sums()
        if self._team.rank_in_team == 0:
            self._append(record)
            if judgement.verdict is Verdict.PERSISTS:
                self._warn_once("persists", _warning(record.key, judgement))
        return record

    def _no_sums(self) -> PassSums:
        grid, protocol = self.schema.grid, self._gauge.protocol
        return PassSums.zero(protocol.layout, protocol.sides, grid.lhs * grid.rhs)

    def _take_index(self) -> int:
        self._next_index += 1
        return self._next_index - 1

    def _append(self, record: VisitRecord | PassRecord) -> None:
        for number, sink in enumerate(self._sinks):
            try:
                sink.append(record)
            except OutputError as error:
                self._warn_once(f"output {number}", f"{error}; training goes on without records")

    def _warn_once(self, what: str, message: str) -> None:
        if what not in self._warned:
            self._warned.add(what)
            self._warn(message)

    def _resume(self, folder: Path) -> None:
        """Go on from the records of an earlier process, as worker 0 finds them."""
        history = History((), ())
        if self._team.rank_in_team == 0 and folder.is_dir() and any(folder.glob("training_stats*.json")):
            history = read_history(folder, self._warn)
        history = self._team.broadcast_object(history)
        self._passes.resume(history, self.schema.grid.rhs)
        self._next_index = max((visit.index + 1 for visit in history.visits), default=0)


def _ignore(visit: Visit) -> None:
    """Nothing is held out, so nothing has been measured."""


def _stats_file(output: str | PathLike[str] | None, team: Team) -> list[Sink]:
    return [] if output is None else [StatsFile(file_of_worker(Path(output), team.rank_in_team))]


def _lists(num_batch_negs: int, num_uniform_negs: int, batch_size: int, *, pbg_semantics: bool) -> SampledLists:
    if min(num_batch_negs, num_uniform_negs) < 0 or num_batch_negs + num_uniform_negs < 1 or batch_size < 1:
        raise ConfigError(
            "eval_num_batch_negs, eval_num_uniform_negs, batch_size: expected none negative, at least one negative to "
            f"rank among and a batch of at least 1, got {num_batch_negs}, {num_uniform_negs}, {batch_size}"
        )
    if num_batch_negs:
        batch_size = -(-batch_size // num_batch_negs) * num_batch_negs  # as PBG does
    return SampledLists(num_batch_negs, num_uniform_negs, pbg_semantics, batch_size if pbg_semantics else 0)


def _loss(name: str | None, margin: float) -> LossSettings | None:
    if name is not None and name not in LOSSES:
        raise ConfigError(f"loss_fn: expected one of {', '.join(LOSSES)}, got {name!r}")
    return None if name is None else LossSettings(name, margin)


def _warning(key: PassKey, judgement: Judgement) -> str:
    assert judgement.gained is not None, "a gap that persists has been compared"
    assert judgement.lost is not None, "likewise"
    return (
        f"epoch {key.epoch}: training overfits to buckets: the mean reciprocal rank of held-out edges rises by "
        f"{judgement.gained:.4f} while their bucket is trained, and has fallen by {judgement.lost:.4f} since the last "
        "visit; train each bucket less at a time (num_edge_chunks, fewer passes over it), or lower the learning rate"
    )
