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

import hashlib
import json
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Generic

import numpy as np
import torch
from attrs import evolve, field, frozen
from torch import Tensor

from pbgeval.cluster.team import Team
from pbgeval.errors import ConfigError, DataError, OutputError, StorageError
from pbgeval.monitor.followed import Followed, Where, followed_file, read_followed, write_followed
from pbgeval.monitor.gap_test import BucketVisit, GapTest
from pbgeval.monitor.improvement import CUTOFFS, RELATIVE_DELTA, Compared, best_pass, comparable, last_improvement
from pbgeval.monitor.measure import MOST_IDS, HeldOut, MonitorProtocol, RankedEdges, Visit, extremes_of
from pbgeval.monitor.persistence import AFTER, PassSums
from pbgeval.monitor.records import (
    LOGGER,
    TOLERANCE,
    History,
    PassDetails,
    PassKey,
    PassRecord,
    RecordSink,
    StatsFile,
    Values,
    VisitDetails,
    VisitRecord,
    file_of_worker,
    read_history,
)
from pbgeval.monitor.schema import Model, ModelSchema, digest_of_edges, hash_edges, sample_of_rest, threshold_of
from pbgeval.notation import Bucket, Side, T
from pbgeval.ranking.keys import EdgeColumns
from pbgeval.ranking.sampled_lists import SampledLists
from pbgeval.ranking.settings import LossSettings
from pbgeval.scoring.loss import LOSSES
from pbgeval.stats.query_metrics import MEAN_RECIPROCAL_RANK
from pbgeval.stats.rank_stats import StatsLayout
from pbgeval.stats.rank_types import RankType
from pbgeval.storage.edges import EdgeBlock
from pbgeval.storage.json_files import differing, digest_of
from pbgeval.storage.text import one_line, plural

# Visits of a pass, on any number of workers -> its summary, and whether it overfits to buckets.

Place = tuple[int, int, int]  # edge path, edge chunk, number of the bucket: where the same edges come again


@frozen
class PastPass:
    """What is remembered of a pass."""

    key: PassKey
    details: PassDetails
    visits: Mapping[Place, BucketVisit] = field(factory=dict)
    edges: frozenset[tuple[int, int]] = frozenset()  # by bucket, what tells them from others (`VisitRecord.edges`)

    @property
    def compared(self) -> Compared:
        """What is the same of passes whose figures can be compared: edge path, chunk and held-out edges."""
        return self.key.edge_path, self.key.edge_chunk, self.edges

    def figures(self, when: str) -> Values:
        """Return the figures `before` or `after`; a pass with a visit that diverged has none to compare."""
        return {} if self.details.num_diverged else {"before": self.details.before, "after": self.details.after}[when]


# Edges as a training loop has them -> those to train on and those held out, in the same form.


@frozen(eq=False)
class Split(Generic[T]):
    """The two sides of a bucket's edges; it unpacks to `training, held_out`."""

    training: T
    held_out: T
    training_rows: np.ndarray | None = field(repr=False)  # int64, ascending positions; None: all
    held_out_rows: np.ndarray = field(repr=False)
    sampled_edges: EdgeBlock = field(repr=False)  # as many training edges, for comparison

    def __iter__(self) -> Iterator[T]:
        return iter((self.training, self.held_out))


def _columns(edges: Any, name: str = "edges") -> list[np.ndarray]:  # noqa: ANN401 - what a user hands in
    """Return lhs, rel, rhs as int64 arrays (E,); `name` is that of the argument."""
    parts: Any = edges
    found = type(edges).__name__
    if isinstance(edges, Tensor | np.ndarray):
        parts = [*edges.T] if edges.ndim == 2 else None
        found = str(tuple(edges.shape))
    if not isinstance(parts, list | tuple) or len(parts) != 3:
        raise DataError(f"{name}: expected (E, 3) of lhs, rel, rhs, or the three columns, got {found}")
    columns = [part.detach().cpu().numpy() if isinstance(part, Tensor) else np.asarray(part) for part in parts]
    for side, column in zip(("lhs", "rel", "rhs"), columns, strict=True):
        is_numbers = column.dtype.kind in "iu" or not column.size  # an empty list is of floats
        if column.ndim != 1 or not is_numbers or len(column) != len(columns[0]):
            found = f"{column.shape} of {column.dtype}"
            raise DataError(f"{name}: expected {len(columns[0])} integers as {side}, got {found}")
    return [column.astype(np.int64, copy=False) for column in columns]


def _known_edges(
    columns: list[np.ndarray],
    known: Any,  # noqa: ANN401 - what a user hands in
    num_relations: int,
) -> EdgeColumns:
    """Return the edges whose answers do not compete: a bucket's, and further ones."""
    others = _columns(np.empty((0, 3), np.int64) if known is None else known, "known")
    for name, of_name in (("edges", columns), ("known", others)):
        for side, column, limit in zip(
            ("lhs", "rel", "rhs"), of_name, (MOST_IDS, num_relations, MOST_IDS), strict=True
        ):
            if column.size and not 0 <= column.min() <= column.max() < limit:
                found = f"{column.min()} to {column.max()}"
                raise DataError(f"{name}: expected ids from 0 to {limit - 1} as {side}, got {found}")
    return EdgeColumns(*(np.concatenate(of) for of in zip(columns, others, strict=True)))


def _taken(edges: Any, rows: np.ndarray) -> Any:  # noqa: ANN401 - the same form comes back
    if isinstance(edges, Tensor):
        return edges[torch.from_numpy(rows).to(edges.device)]
    if isinstance(edges, np.ndarray):
        return edges[rows]
    return type(edges)(_taken(part if isinstance(part, Tensor) else np.asarray(part), rows) for part in edges)


def _bucket_edges(columns: list[np.ndarray], rows: np.ndarray) -> EdgeBlock:
    lhs, rel, rhs = (torch.from_numpy(column[rows]) for column in columns)
    return EdgeBlock(0, lhs, rel, rhs)


class Monitor:
    """Watches the training of a partitioned model; one for each worker.

    Examples:
        >>> import torch
        >>> from pbgeval import ModelSchema, ModelTensors, Monitor, MonitoredRelation
        >>> edges = torch.tensor([(number % 20, 0, number % 19) for number in range(200)])
        >>> schema = ModelSchema([MonitoredRelation("likes", "all", "all")], {"all": 1}, "dot")
        >>> monitor = Monitor(schema, eval_fraction=0.1)
        >>> training, held_out = monitor.split(edges, (0, 0))
        >>> len(training) + len(held_out)
        200
        >>> with monitor.watch(0, (0, 0), ModelTensors({("all", 0): torch.eye(20)})):
        ...     pass  # train on `training`
        ...
        >>> record = monitor.end_pass(0)
        >>> monitor.best_epoch("mrr"), monitor.should_stop("mrr", patience=3)
        (0, False)
    """

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
        filtered: bool = False,
        compare_with_training: bool = True,
        loss_fn: str | None = None,
        margin: float = 0.1,
        pbg_semantics: bool = False,
        batch_size: int = 1000,
        tolerance: float = TOLERANCE,
        alarm_rate: float = 0.05,
        team: Team | None = None,
        sinks: Sequence[RecordSink] = (),
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
            filtered: answers in the edges that `split` is given do not compete.
            compare_with_training: also rank as many training edges, after each visit (half as much cost again).
            loss_fn: also PBG's loss of that name: logistic, ranking, softmax.
            margin: of the ranking loss.
            pbg_semantics: PBG's own chunks and ties, as `kgeval-dist -p pbg_semantics=True -p workers=1`.
            batch_size: of PBG's, under `pbg_semantics`.
            tolerance: share of a metric below which a gap is no overfitting to buckets, and a fall no divergence.
            alarm_rate: bound of the probability that a whole run is warned without reason (decision 0017).
            team: the workers that train together; None: this one alone.
            sinks: what is handed each record of this worker besides: what has `append`, as `TensorBoardSink`.
            warn: is told of warnings, a line each; None: the logger `pbgeval.monitor`.
        """
        self.threshold, self.schema, self.seed = threshold_of(eval_fraction), schema, operator.index(seed)
        sizes = (operator.index(of or 0) for of in (eval_num_batch_negs, eval_num_uniform_negs, batch_size))
        lists = _lists(*sizes, pbg_semantics=pbg_semantics)
        self.headline = RankType.PESSIMISTIC if pbg_semantics else RankType.REALISTIC
        if loss_fn is not None and loss_fn not in LOSSES:
            raise ConfigError(f"loss_fn: expected one of {', '.join(LOSSES)}, got {loss_fn!r}")
        if filtered and pbg_semantics:
            raise ConfigError("filtered: PyTorch-BigGraph's ranks are unfiltered; leave out filtered or pbg_semantics")
        loss = None if loss_fn is None else LossSettings(loss_fn, float(margin))
        self._protocol = MonitorProtocol(
            schema, lists, self.headline, self.seed, tuple(sides), filtered, StatsLayout(CUTOFFS), loss
        )
        self._compares, self._team = compare_with_training, team or Team()
        self.worker, self.num_workers = self._team.rank_in_team, self._team.size
        self._warn, self._warned = warn or LOGGER.warning, set[str]()
        self._test, self._past = GapTest(alarm_rate, tolerance), list[PastPass]()  # passes in order
        self._sinks = [*([] if output is None else [StatsFile(file_of_worker(Path(output), self.worker))]), *sinks]
        self._settings = {"eval_fraction": float(eval_fraction), **self._protocol.settings}
        self._digest = digest_of(self._settings)
        self._held_out: dict[Where, HeldOut] = {}
        self._edges: dict[Where, int] = {}  # of the last visit, as `VisitRecord.edges`
        self._followed: dict[Where, Followed] = {}
        self._followed_file = None if output is None else followed_file(Path(output), self.worker)
        self._key: PassKey | None = None  # of the pass in hand
        self._sums, self._next_index = self._no_sums(), 0
        if self.is_on and output is not None:
            self._resume(Path(output))

    @property
    def is_on(self) -> bool:
        """Whether anything is held out."""
        return self.threshold > 0

    def split(
        self,
        edges: T,
        bucket: tuple[int, int],
        *,
        known: Any = None,  # noqa: ANN401 - what a user hands in
        edge_path: int = 0,
        edge_chunk: int = 0,
    ) -> Split[T]:
        """Split a bucket's edges in those to train on and those held out, which `watch` then measures.

        The side of an edge depends on the seed, its relation, entities and their types and partitions alone.

        Args:
            edges: (E, 3) of lhs, rel, rhs, or the three columns; tensors or arrays of integers, rows in the partition.
            bucket: partitions of the left and the right side.
            known: further edges of these partitions, in any form of `edges`, whose answers do not compete, as those of
                validation; None: none. Needs `filtered`.
            edge_path: where edges come from several.
            edge_chunk: where a bucket is trained in parts.

        Returns:
            What unpacks to `training, held_out`, both in the form of `edges` and in their order.

        Raises:
            ConfigError: `known` without `filtered`.
            DataError: edges of another form, a bucket that is not on the grid.
        """
        place = _bucket(bucket)
        if not (0 <= place.lhs < self.schema.grid.lhs and 0 <= place.rhs < self.schema.grid.rhs):
            raise DataError(
                f"bucket {tuple(place)}: expected partitions below {tuple(self.schema.grid)}, as num_partitions says"
            )
        if known is not None and not self._protocol.filtered:
            raise ConfigError("known: has no effect on unfiltered ranks; make the Monitor with filtered=True")
        columns = _columns(edges)
        none = np.empty(0, np.int64)
        if not self.is_on:  # nothing is copied
            return Split(edges, _taken(edges, none), None, none, _bucket_edges(columns, none))
        hash_E = hash_edges(self.seed, self.schema.ends(place), *columns)
        is_held_out_E = hash_E < np.uint64(self.threshold)
        held_out, training = np.flatnonzero(is_held_out_E), np.flatnonzero(~is_held_out_E)
        sampled = sample_of_rest(hash_E, self.threshold, len(held_out)) if self._compares else none
        ranked, sample = (RankedEdges(_bucket_edges(columns, rows)) for rows in (held_out, sampled))
        where = (edge_path, edge_chunk, place)
        held_out_hash_E, compared_by = hash_E[held_out], self._digest
        if self._protocol.filtered:
            known_edges = _known_edges(columns, known, self.schema.num_relations)
            extremes = extremes_of(self.schema, known_edges)
            ranked, sample = (
                RankedEdges.of_bucket(of.edges, known_edges, extremes, self._protocol.sides) for of in (ranked, sample)
            )
            compared_by += f" {ranked.digest}"
        digest = digest_of_edges(held_out_hash_E, compared_by)
        in_order = hashlib.blake2b(f"{digest}".encode(), digest_size=7)
        in_order.update(held_out_hash_E.astype("<u8").tobytes())
        order = int.from_bytes(in_order.digest(), "little")
        edges_held_out = HeldOut(ranked, sample, digest, order)
        if where in self._followed and not self._followed[where].has_edges(order, len(held_out)):
            del self._followed[where]  # other edges than the last time cannot be compared with those
        if self._edges.setdefault(where, edges_held_out.digest) != edges_held_out.digest:
            self._edges[where] = edges_held_out.digest
            or_answers = " or known answers" if self._protocol.filtered else ""
            self._warn_once(
                "edges",
                f"bucket {tuple(place)}: other held-out edges ({len(held_out):,}){or_answers} than in earlier epochs, "
                "so the graph has changed; epochs from now on are compared among themselves only",
            )
        self._held_out[where] = edges_held_out
        return Split(_taken(edges, training), _taken(edges, held_out), training, held_out, sample.edges)

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
            ScorerError: at the beginning or the end, the model is a module in training mode.
        """
        key, place = PassKey(epoch, edge_path, edge_chunk), _bucket(bucket)
        if not self.is_on:
            none = torch.empty(0, dtype=torch.int64)
            nothing = RankedEdges(EdgeBlock(0, none, none, none))
            return Visit(key, place, HeldOut(nothing, nothing), model, self._protocol, lambda visit: None)
        if isinstance(model, Mapping):
            raise DataError("model: pass ModelTensors(tables, operators) or ScoredModel(scorer), not a dictionary")
        edges = self._held_out.get((edge_path, edge_chunk, place))
        if edges is None:
            raise ConfigError(f"bucket {tuple(place)}: expected Monitor.split of its edges before Monitor.watch")
        if self._key not in (None, key):
            if self.num_workers > 1:
                raise ConfigError(f"expected Monitor.end_pass of epoch {self._key} on all workers before {key} begins")
            self._close()
        if self._key is None:
            self._rewind(key)
        self._key = key
        followed = self._followed.get((edge_path, edge_chunk, place))
        # Where it was not visited in the last epoch, another worker has visited the bucket since.
        is_known = followed is not None and (self.num_workers == 1 or followed.epoch == epoch - 1)
        return Visit(key, place, edges, model, self._protocol, self._finish, followed if is_known else None)

    def end_pass(self, epoch: int, *, edge_path: int = 0, edge_chunk: int = 0) -> PassRecord | None:
        """Add up a pass over all workers, of which each calls it; return its summary, None if nothing is held out."""
        key = PassKey(epoch, edge_path, edge_chunk)
        if not self.is_on:
            return None
        if self._key not in (None, key):
            raise ConfigError(f"expected the end of the pass that was watched, epoch {self._key}, got {key}")
        self._key = key
        return self._close()

    def should_stop(
        self, metric: str = "mrr", patience: int = 3, relative_delta: float = RELATIVE_DELTA, *, when: str = "after"
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
        if patience < 1:
            raise ConfigError(f"should_stop: expected patience >= 1, got {patience}")
        figures = [past.figures(when) for past in comparable(self._past)]
        best = best_pass(figures, metric, self.headline.value, relative_delta)
        return len(figures) - (-1 if best is None else best) - 1 >= patience

    def best_epoch(self, metric: str = "mrr", relative_delta: float = RELATIVE_DELTA) -> int | None:
        """Return the epoch of the pass that was the last to improve a metric, as `should_stop` tells; None: none was.

        Raises:
            ConfigError: no such metric, or an argument out of range.
        """
        passes = comparable(self._past)
        best = best_pass([past.figures("after") for past in passes], metric, self.headline.value, relative_delta)
        return None if best is None else passes[best].key.epoch

    def _finish(self, visit: Visit) -> None:
        """Record a visit and add it to its pass."""
        sums = visit.sums
        self._append(visit.record(self._next_index, self.worker, self._settings))
        self._next_index += 1
        if visit.followed is not None:
            self._followed[visit.key.edge_path, visit.key.edge_chunk, visit.bucket] = visit.followed
        if visit.reason is not None:
            sums = PassSums.zero(self._protocol.layout, self._protocol.sides, 1)
            sums.buckets[0, :3] = torch.tensor([1, 1, visit.held_out.digest])  # a visit that diverged
            self._warn_once(
                "diverged",
                f"epoch {visit.key.epoch}, bucket {tuple(visit.bucket)}: the model has diverged, which is recorded; "
                f"training goes on ({visit.reason})",
            )
        if visit.repeats_candidates:
            self._warn_once(
                "negatives",
                f"far more negatives than the {visit.num_entities:,} entities of a partition: most compete repeatedly, "
                "and the MRR is too low; set eval_num_batch_negs + eval_num_uniform_negs to about their number",
            )
        if sums is not None:
            self._sums.add(sums, visit.bucket.lhs * self.schema.grid.rhs + visit.bucket.rhs)

    def _close(self) -> PassRecord:
        """Summarise a pass from its sums over all workers; each is closed once, in order."""
        assert self._key is not None, "the caller has set it"
        key = self._key
        with_loss = self._protocol.loss is not None
        sums = self._sums
        for tensor in (*sums.shared(), sums.buckets):
            self._team.sum_(tensor)
        if sums.buckets[:, 0].any():  # visits of others, perhaps, while this worker had none that could have told
            self._rewind(key)
        visits = {
            (key.edge_path, key.edge_chunk, bucket): visit
            for bucket, visit in enumerate(sums.bucket_visits())
            if visit is not None
        }
        gap, gained, lost, fall = sums.clusters
        # A bucket that another worker visited last time is not followed edge by edge.
        num_queries = gap.num_queries(MEAN_RECIPROCAL_RANK)
        is_followed = gained.num_queries(MEAN_RECIPROCAL_RANK) >= num_queries
        judgement = self._test.judge(visits, *((gained, lost) if is_followed else ()))
        figures = sums.figures(self.headline, with_loss=with_loss)
        num_diverged = int(sums.buckets[:, 1].sum())
        now = PastPass(key, PassDetails(num_diverged=num_diverged, **figures), visits, sums.edges())
        self._past.append(now)
        compared = comparable(self._past)
        best_mrr, best_pass = self._best(compared)
        is_whole = any(past is now for past in compared)
        is_fall_known = (
            is_whole and best_pass != key.epoch and 0 < num_queries <= fall.num_queries(MEAN_RECIPROCAL_RANK)
        )
        if best_pass == key.epoch:
            for place, followed in self._followed.items():
                if place[:2] == (key.edge_path, key.edge_chunk):
                    self._followed[place] = followed.keep(key.epoch)
        details = evolve(
            now.details,
            num_buckets=len(visits),
            verdict=judgement.verdict,
            lost=judgement.lost,
            level=judgement.level,
            best_pass=best_pass,
            best_mrr=best_mrr,
            fall=fall.estimate(MEAN_RECIPROCAL_RANK) if is_fall_known else None,
            fall_clusters=fall.num_clusters if is_fall_known else 0,
            tolerance=self._test.tolerance,
        )
        self._past[-1] = evolve(now, details=details)
        record = PassRecord(key, max(self._next_index - 1, 0), sums.phases[AFTER].figures(with_loss=with_loss), details)
        self._key, self._sums = None, self._no_sums()
        self._write_followed(key, details)
        if self.worker == 0:
            self._append(record)
            if not is_whole:
                visited = plural(len(now.edges), "bucket")
                self._warn_once(
                    "part",
                    f"epoch {key.epoch} visited only {visited}, fewer than other epochs, "
                    "so it is not compared with them",
                )
            if judgement.verdict == "bucket_overfitting":
                self._warn_once(
                    judgement.verdict,
                    f"epoch {key.epoch}: bucket overfitting: the mean reciprocal rank of held-out "
                    f"edges rises by {judgement.gained:.4f} while their bucket is trained, and has fallen by "
                    f"{judgement.lost:.4f} since the last visit; train each bucket less at a time (num_edge_chunks, "
                    "fewer passes over it), or lower the learning rate",
                )
        return record

    def _write_followed(self, key: PassKey, details: PassDetails) -> None:
        """Write what is followed, from which a run that goes on can take it."""
        if self._followed_file is None:
            return
        try:
            write_followed(self._followed_file, key, details, self.num_workers, self._followed)
        except OutputError as error:
            self._warn_once("followed", f"{error}; a resumed run will start its edge-by-edge comparison over")

    def _best(self, passes: Sequence[PastPass]) -> tuple[float | None, int | None]:
        """Return the mean reciprocal rank after the pass to keep so far of some, and its epoch."""
        values = [past.figures("after").get(f"both.{self.headline.value}.mean_reciprocal_rank") for past in passes]
        best = last_improvement(values, 1)
        return (None, None) if best is None else (values[best], passes[best].key.epoch)

    def _rewind(self, key: PassKey) -> None:
        """Forget the passes from this one on if it is over or of an earlier epoch."""
        if all(of.key != key and of.key.epoch <= key.epoch for of in self._past):
            return
        past, self._past = self._past, []
        self._test = GapTest(self._test.alarm_rate, self._test.tolerance)
        for of in past:
            if of.key < key:
                self._remember(of)
        self._followed.clear()
        self._warn(
            f"epoch {key.epoch} is trained again: what was recorded of it and of later passes "
            f"({plural(len(past) - len(self._past), 'pass', 'passes')}) is left out; a folder for each run keeps both"
        )

    def _remember(self, past: PastPass) -> None:
        self._past.append(past)
        self._test.add(past.visits)
        self._test.num_tests += past.details.level is not None

    def _no_sums(self) -> PassSums:
        return PassSums.zero(self._protocol.layout, self._protocol.sides, math.prod(self.schema.grid))

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
        """Go on from the records of an earlier process, and from what it has followed edge by edge.

        Raises:
            ConfigError: they were made with other settings, so that figures cannot be compared.
        """
        history = self._team.broadcast_object(
            read_history(folder, self._warn)
            if self.worker == 0 and folder.is_dir() and any(folder.glob("training_stats*.json"))
            else History((), ())
        )
        self._check_settings(folder, history)
        prefix = f"both.{self.headline.value}."
        visits, edges = dict[PassKey, dict[Place, BucketVisit]](), dict[PassKey, dict[int, int]]()
        for visit in history.visits:
            key, bucket = visit.key, visit.bucket.lhs * self.schema.grid.rhs + visit.bucket.rhs
            if visit.edges is not None:
                edges.setdefault(key, {})[bucket] = visit.edges
            if visit.details is not None and visit.details.digest is not None:
                self._edges[key.edge_path, key.edge_chunk, visit.bucket] = visit.details.digest
            ours = visit.details or VisitDetails(diverged=True)
            before, after = (figures.get(f"{prefix}mean_reciprocal_rank") for figures in (ours.before, ours.after))
            if not ours.diverged and before is not None and after is not None:
                visits.setdefault(key, {})[key.edge_path, key.edge_chunk, bucket] = BucketVisit(
                    int(ours.after[f"{prefix}count"] or 0), before, after, visit.edges
                )
        for key, record in {record.key: record for record in history.passes}.items():
            if record.details is not None:
                self._remember(
                    PastPass(key, record.details, visits.get(key, {}), frozenset(edges.get(key, {}).items()))
                )
        self._next_index = max((visit.index + 1 for visit in history.visits), default=0)
        file = followed_file(folder, self.worker)
        if self._past and file.exists():
            try:
                self._followed = read_followed(file, self._past[-1].key, self._past[-1].details, self.num_workers)
            except StorageError as error:
                self._warn(f"{error}; the edge-by-edge comparison starts over")

    def _check_settings(self, folder: Path, history: History) -> None:
        """Refuse records that were made with other settings; those of an earlier version do not tell."""
        known = [of.details.settings for of in history.visits if of.details is not None and of.details.settings]
        names = differing(known[-1], self._settings) if known else []
        if names:
            told = [
                "another schema (relations, entity types or comparator)"
                if name == "schema"
                else f"{name} = {json.dumps(known[-1].get(name))}, now {json.dumps(self._settings.get(name))}"
                for name in names
            ]
            raise ConfigError(
                f"{folder}: its records were made with {one_line('; '.join(told))}, so epochs could not be compared; "
                "go on with the settings of the records, or choose another folder"
            )


def _bucket(bucket: tuple[int, int]) -> Bucket:
    try:
        return Bucket(*bucket)
    except TypeError as error:
        raise DataError(f"expected a bucket (lhs, rhs), the partitions of its sides, got {bucket!r}") from error


def _lists(num_batch_negs: int, num_uniform_negs: int, batch_size: int, *, pbg_semantics: bool) -> SampledLists:
    if min(num_batch_negs, num_uniform_negs) < 0 or num_batch_negs + num_uniform_negs < 1 or batch_size < 1:
        raise ConfigError(
            "eval_num_batch_negs, eval_num_uniform_negs, batch_size: expected none negative, at least one negative to "
            f"rank among and a batch of at least 1, got {num_batch_negs}, {num_uniform_negs}, {batch_size}"
        )
    if num_batch_negs:
        batch_size = -(-batch_size // num_batch_negs) * num_batch_negs  # as PBG does
    return SampledLists(num_batch_negs, num_uniform_negs, pbg_semantics, batch_size if pbg_semantics else 0)
