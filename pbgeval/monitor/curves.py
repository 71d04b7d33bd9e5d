"""Records of a training run in a file or folder -> the curves that are drawn, with a verdict for each pass."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import numpy as np
from attrs import frozen

from pbgeval.errors import DataError
from pbgeval.metrics.names import split
from pbgeval.metrics.student import ERROR_RATE
from pbgeval.monitor.gap_test import BucketVisit, Change, GapTest, Judgement
from pbgeval.monitor.improvement import Compared, comparable, last_improvement
from pbgeval.monitor.records import (
    PBG_NAMES,
    TOLERANCE,
    History,
    PassDetails,
    PassKey,
    Values,
    Verdict,
    VisitDetails,
    VisitRecord,
    read_history,
)
from pbgeval.notation import Bucket
from pbgeval.stats.rank_types import RankType

# Records of a training run, PyTorch-BigGraph's own or ours -> whether training overfits to buckets, pass by pass.


def judge_history(history: History) -> dict[PassKey, Judgement]:
    """Judge each pass by the differences between its buckets, as records do not follow single edges (decision 0017)."""
    test = GapTest()
    return {
        key: test.judge(
            {(key.edge_path, key.edge_chunk, of): visit for of, visit in _bucket_visits(of_pass, "mrr").items()}
        )
        for key, of_pass in history.passes_of_visits.items()
    }


def _bucket_visits(visits: Iterable[VisitRecord], metric: str) -> dict[Bucket, BucketVisit]:
    """Return a metric of held-out edges before and after the visits of a pass, where it was measured."""
    measured = {}
    for visit in visits:
        if visit.before is None or visit.after is None or visit.diverged:
            continue
        before, after = visit.before.metrics.get(metric), visit.after.metrics.get(metric)
        if visit.details is not None and metric in PBG_NAMES:  # PBG's names stand for pessimistic ranks
            headline = _headline(visit.details)
            before = _of_both(visit.details.before, metric, headline, before)
            after = _of_both(visit.details.after, metric, headline, after)
        if before is not None and after is not None:
            measured[visit.bucket] = BucketVisit(2 * visit.after.count, float(before), float(after), visit.edges)
    return measured


def _headline(details: VisitDetails | PassDetails) -> str:
    """Return the monitor's rank type, which its differences have."""
    return next(filter(None, (split(key).rank_type for key in details.gap)), RankType.PESSIMISTIC.value)


def _of_both(values: Values, metric: str, headline: str, default: float | None = None) -> float | None:
    """Return the figure of both sides that PBG's name means."""
    name = f"{headline}.{PBG_NAMES[metric]}" if metric in PBG_NAMES else metric
    value = values.get(f"both.{name}", default)
    return None if value is None or math.isnan(value) else float(value)  # NaN: the record was edited


# Records of a training run, PyTorch-BigGraph's own or ours -> the curves that `kgeval-dist monitor` draws.

# PBG's names, which records of both have -> ours.
TRAINING_METRICS = {
    "mrr": "MRR",
    "pos_rank": "mean rank",
    "r1": "hits@1",
    "r10": "hits@10",
    "r50": "hits@50",
    "auc": "AUC",
    "loss": "loss",
}
_MANY = 1_000_000  # degrees of freedom: errors of edges or chunks are of many


@frozen
class RankedLists:
    """What held-out edges were ranked among."""

    num_edges: int
    candidates: float  # of a query, on average
    mrr_by_chance: float
    filtered: bool = False  # known answers did not compete

    @classmethod
    def of_visits(cls, visits: Sequence[VisitRecord]) -> RankedLists | None:
        """Average over the visits of a pass; None where not all records of held-out edges have it."""
        found = [
            (visit.after.count, visit.details) for visit in visits if visit.after is not None and visit.after.count
        ]
        known = [
            (count, of.candidates, of.mrr_by_chance)
            for count, of in found
            if of is not None and of.candidates is not None and of.mrr_by_chance is not None
        ]
        if not known or len(known) < len(found):
            return None
        num_edges = sum(count for count, _, _ in known)
        candidates, by_chance = (sum(edges[0] * edges[at] for edges in known) / num_edges for at in (1, 2))
        filtered = all(of is not None and bool(of.settings.get("filtered")) for _, of in found)
        return cls(num_edges, candidates, by_chance, filtered=filtered)


@frozen
class PassRow:
    """One pass over all buckets: means over its held-out edges, None where nothing was measured."""

    key: PassKey
    before: float | None
    after: float | None
    training: float | None  # of as many training edges, after; our records alone have it
    gap_error: float | None  # standard error of after - before; None: not known
    verdict: Verdict  # about buckets: decision 0017's
    diverged_buckets: tuple[Bucket, ...]  # where visits did
    generalization_error: float | None = None  # standard error of training - after
    lists: RankedLists | None = None  # None: records without them, as PBG's
    is_finished: bool = True  # False: a pass of our records that has not ended, or was interrupted
    paired_fall: Change | None = None  # how much worse than `fell_from`, edge by edge; None: they were not followed
    fell_from: int | None = None  # epoch
    tolerance: float = TOLERANCE  # share of a metric below which a change is no cause for alarm
    edges: frozenset[tuple[Bucket, int]] = frozenset()  # by bucket, what tells them from others (`VisitRecord.edges`)

    @property
    def compared(self) -> Compared:
        """What is the same of passes that can be compared: edge path, chunk and held-out edges."""
        return self.key.edge_path, self.key.edge_chunk, self.edges

    @property
    def gap(self) -> float | None:
        return None if self.before is None or self.after is None else self.after - self.before

    @property
    def generalization(self) -> float | None:
        return None if self.training is None or self.after is None else self.training - self.after


@frozen
class Curves:
    """What is drawn."""

    metric: str  # PBG's name
    passes: tuple[PassRow, ...]
    # The visits to each bucket (and chunk and edge path), by the number of the pass.
    teeth: Mapping[tuple[int, ...], Mapping[int, BucketVisit]]

    @property
    def num_buckets(self) -> int:
        return len({place[-2:] for place in self.teeth})

    @cached_property
    def last(self) -> PassRow:
        """The last finished pass that measured all buckets; the last one where none is finished."""
        return [*self.passes[-1:], *comparable([row for row in self.passes if row.is_finished])][-1]

    @property
    def not_compared(self) -> list[PassRow]:
        """The finished passes over the same edge path and chunk as the last one that measured other edges."""
        place = self.last.compared[:2]
        rows = [row for row in self.passes if row.is_finished and row.compared[:2] == place]
        return [row for row in rows if row.compared != self.last.compared]

    @property
    def changes(self) -> list[int]:
        """The positions of the finished passes whose held-out edges are others than in the pass before."""
        before, found = dict[tuple[int, int], frozenset[tuple[Bucket, int]]](), []
        for at, row in enumerate(self.passes):
            place = row.key.edge_path, row.key.edge_chunk
            if row.is_finished:
                if before.get(place, row.edges) != row.edges:
                    found.append(at)
                before[place] = row.edges
        return found

    @cached_property
    def best(self) -> PassRow | None:
        """The pass whose model to keep, as `Monitor.best_epoch` tells: the last to improve held-out edges, if any."""
        at = last_improvement([row.after for row in self._comparable], self._sign)
        return None if at is None else self._comparable[at]

    @property
    def slightly_better(self) -> PassRow | None:
        """The pass after which held-out edges were best, if that is not the one to keep."""
        best = max(self._comparable, key=lambda row: self._sign * (row.after or 0.0), default=None)
        return best if best is not None and self.best is not None and best.after != self.best.after else None

    @cached_property
    def _comparable(self) -> list[PassRow]:
        """The finished passes over the edges of the last one, if all of their visits were measured."""
        return [
            row
            for row in self.passes
            if row.compared == self.last.compared
            and row.is_finished
            and not row.diverged_buckets
            and row.after is not None
        ]

    @cached_property
    def diverged_pass(self) -> PassRow | None:
        """The pass in which the model diverged, unless a whole pass since then has figures of all buckets."""
        found = None
        for row in reversed(self.passes):
            if row.diverged_buckets:
                found = row
            elif row.is_finished and row.compared == self.last.compared:
                break
        return found

    @property
    def recovered(self) -> list[PassRow]:
        """The passes with a visit that diverged, where later ones are sound."""
        return [] if self.diverged_pass else [row for row in self.passes if row.diverged_buckets]

    @property
    def fall(self) -> float | None:
        """How much worse held-out edges are after the last pass than after the best one; 0.0: not worse."""
        best, last = self.best, self.last
        if best is None or best.after is None or last.after is None:
            return None
        return max(0.0, self._sign * (best.after - last.after))

    @property
    def epochs_since_best(self) -> int:
        """How many passes have ended since the best one."""
        return 0 if self.best is None else self.passes.index(self.last) - self.passes.index(self.best)

    @property
    def training_improved(self) -> bool | None:
        """Whether training edges are better after the last pass than after the best one; None: not known."""
        best, last = self.best, self.last
        if best is None or best.training is None or last.training is None:
            return None
        return self._sign * (last.training - best.training) > 0

    @property
    def is_bad(self) -> bool:
        """Whether the model diverged, overfits to buckets or to training edges, or gets worse on training edges."""
        if self.diverged_pass is not None:
            return True
        overfits = self.last.verdict == "bucket_overfitting" or self.overfits or self.fits_training_edges_far_better
        return overfits or self.training_fell

    @property
    def is_sound(self) -> bool:
        """Whether nothing speaks for overfitting, to buckets or training edges, or for divergence, nor is it open."""
        return (
            self.last.verdict == "no_bucket_overfitting"
            and self.last.training is not None
            and self.fall == 0.0
            and not self.fits_training_edges_far_better
            and not self.is_chance
            and not self.training_fell
            and not any(row.diverged_buckets for row in self.passes)
        )

    @property
    def is_chance(self) -> bool:
        """Whether held-out edges are ranked no better after the last pass than by chance; False where not known."""
        lists, after = self.last.lists, self.last.after
        return self.metric == "mrr" and lists is not None and after is not None and after <= lists.mrr_by_chance

    @property
    def overfits(self) -> bool:
        """Whether held-out edges got worse since the best pass, beyond the errors, and training edges better."""
        return bool(self.training_improved) and self.held_out_fell

    @property
    def held_out_fell(self) -> bool:
        """Whether held-out edges got worse since the best pass, beyond the errors.

        One-sided at `ERROR_RATE` over the number of passes that could have been best. Where no error is known, there
        are two bounds of it, so large that they need no such correction: both passes' errors as if independent; and
        where each pass begins as the last one ended (a single bucket), so that gaps add up, the sum of their errors.
        """
        best, last = self.best, self.last
        if best is None or best is last or best.after is None or last.after is None:
            return False
        fall = self.change_since_best(best)
        ends = (self.passes.index(best), self.passes.index(last))
        level = ERROR_RATE / ends[1]
        if fall.error is None:
            since = self.passes[ends[0] : ends[1] + 1]
            error = _error_of_both(best, last)
            if all(row.after == following.before for row, following in pairwise(since)):
                error = min(error, sum(math.inf if row.gap_error is None else row.gap_error for row in since[1:]))
            fall, level = Change(self._sign * (best.after - last.after), error, _MANY), ERROR_RATE
        return fall.exceeds(0.0, level)

    @property
    def training_fell(self) -> bool:
        """Whether training edges got worse since the best pass, beyond the tolerance and a bound of errors.

        That is both passes' errors of training - held-out edges, as if independent, which those of training edges
        alone do not exceed. Of a large sample nearly any change is beyond its error, hence the tolerance.
        """
        best, last = self.best, self.last
        if best is None or best.training is None or last.training is None:
            return False
        fall = Change(self._sign * (best.training - last.training), _error_of_both(best, last), _MANY)
        return fall.exceeds(last.tolerance * abs(best.training), ERROR_RATE)

    def change_since_best(self, best: PassRow) -> Change:
        """Return how much worse held-out edges are after the last pass than after the best one.

        Its error is that of the differences edge by edge, where they were followed, else between buckets, which have
        the same edges in each pass; of few buckets it is not known.
        """
        last = self.last
        if last.paired_fall is not None and last.paired_fall.error is not None and last.fell_from == best.key.epoch:
            return last.paired_fall
        ends = (self.passes.index(best), self.passes.index(last))
        shared = [(of[ends[0]], of[ends[1]]) for of in self.teeth.values() if of.keys() >= set(ends)]
        queries_B = np.array([at_last.num_queries for _, at_last in shared])
        falls = [self._sign * (at_best.after - at_last.after) for at_best, at_last in shared]
        return Change.from_buckets(queries_B / queries_B.sum(), falls)

    @property
    def fits_training_edges_far_better(self) -> bool:
        """Whether the last pass has training edges ahead of held-out ones beyond the error, and twice as good."""
        last = self.last
        if last.training is None or last.after is None or last.generalization_error is None:
            return False
        ends = (last.after, last.training) if self._sign > 0 else (last.training, last.after)
        is_ahead = Change(ends[1] - ends[0], last.generalization_error, _MANY).exceeds(0.0, ERROR_RATE / 2)
        return is_ahead and ends[1] >= 2 * ends[0]

    @property
    def fits_training_alone(self) -> bool:
        """Whether held-out edges were never twice as good as by chance, and training edges are far ahead of them."""
        lists, best = self.last.lists, self.best
        if self.metric != "mrr" or lists is None or best is None or best.after is None:
            return False
        return self.fits_training_edges_far_better and best.after < 2 * lists.mrr_by_chance

    @property
    def hardly_learns(self) -> bool:
        """Whether training edges are not twice as good as by chance, either."""
        lists, training = self.last.lists, self.last.training
        if not self.fits_training_alone or lists is None or training is None:
            return False
        return training < 2 * lists.mrr_by_chance

    @property
    def loses_in_visits(self) -> bool:
        """Whether held-out edges got worse in the visits of the last pass."""
        return self._sign * (self.last.gap or 0.0) < 0

    @property
    def cost_of_visits(self) -> float | None:
        """How much worse held-out edges got in the visits of the last pass; None: not beyond the error."""
        gap = self.last.gap
        if gap is None or not Change(gap, self.last.gap_error, _MANY).exceeds(0.0, ERROR_RATE / 2, -self._sign):
            return None
        return abs(gap)

    @property
    def gained_between_visits(self) -> float | None:
        """How much better held-out edges got since the visits before those of the last pass; None: not known."""
        at, since = self.passes.index(self.last), []
        for of in self.teeth.values():
            earlier = max((number for number in of if number < at), default=None)
            if at in of and earlier is not None and of[at].edges == of[earlier].edges:
                since.append((of[at].num_queries, self._sign * (of[at].before - of[earlier].after)))
        return _mean(since)

    @property
    def _sign(self) -> int:
        return -1 if self.metric in ("pos_rank", "loss") else 1


def pbg_name(metric: str) -> str | None:
    """Return PBG's name of a metric that is called by it or by any of ours; None: records do not have it."""
    if metric in TRAINING_METRICS:
        return metric
    return {**{key: name for name, key in PBG_NAMES.items()}, "auc": "auc", "loss": "loss"}.get(split(metric).metric)


def describe_divergence(row: PassRow) -> str:
    """Return where a pass found that the model had diverged."""
    where = f"epoch {row.key}, bucket {tuple(row.diverged_buckets[0])}"
    return f"the model diverged in {where}: scores are NaN or infinite, or a vector is zero under cos"


def both_names(metric: str) -> str:
    """Return PBG's name with ours where it does not tell it by itself: `r10 (hits@10)`."""
    return f"{metric} ({TRAINING_METRICS[metric]})" if TRAINING_METRICS[metric].startswith("hits") else metric


def curves_of(history: History, verdicts: Mapping[PassKey, Verdict], metric: str) -> Curves:
    """Add up each pass.

    Args:
        history: what was recorded.
        verdicts: of passes whose records have none: PBG's, and the pass that is under way.
        metric: one of `TRAINING_METRICS`.

    Raises:
        DataError: no record has held-out edges with this metric, possibly because the model diverged.
    """
    records = {of_pass.key: of_pass for of_pass in history.passes}
    rows: list[PassRow] = []
    teeth: dict[tuple[int, ...], dict[int, BucketVisit]] = {}
    for number, (key, visits) in enumerate(history.passes_of_visits.items()):
        of_buckets = _bucket_visits(visits, metric)
        record = records.get(key)
        details = (None if record is None else record.details) or PassDetails(
            verdict=verdicts.get(key, "needs_3_visits")
        )
        headline = _headline(details)
        rows.append(
            PassRow(
                key,
                _mean([(visit.num_queries, visit.before) for visit in of_buckets.values()]),
                _mean([(visit.num_queries, visit.after) for visit in of_buckets.values()]),
                _of_both(details.training or {}, metric, headline),
                _of_both({name: of.standard_error for name, of in details.gap.items()}, metric, headline),
                details.verdict,
                tuple(visit.bucket for visit in visits if visit.diverged),
                _of_both({name: of.standard_error for name, of in details.generalization.items()}, metric, headline),
                RankedLists.of_visits(visits),
                is_finished=record is not None or not (records or any(visit.details for visit in visits)),
                edges=frozenset((visit.bucket, visit.edges) for visit in visits if visit.edges is not None),
                paired_fall=None
                if details.fall is None or details.fall.value is None or metric != "mrr"
                else Change(details.fall.value, details.fall.standard_error, details.fall_clusters - 1),
                fell_from=details.best_pass,
                tolerance=details.tolerance,
            )
        )
        for bucket, visit in of_buckets.items():
            if visit.num_queries:
                teeth.setdefault((key.edge_path, key.edge_chunk, *bucket), {})[number] = visit
    if not teeth:
        found = sorted(
            {
                name
                for of in history.visits
                if of.after and not of.diverged
                for name in of.after.metrics
                if name in TRAINING_METRICS
            }
        )
        diverged = next((row for row in rows if row.diverged_buckets), None)
        if diverged is not None and not found:
            raise DataError(
                f"{describe_divergence(diverged)}, so there are no figures; train again with a lower learning rate"
            )
        names = ", ".join(map(both_names, found)) or "no held-out edges at all"
        raise DataError(f"expected records of held-out edges with '{both_names(metric)}', found {names}")
    return Curves(metric, tuple(rows), teeth)


def _error_of_both(best: PassRow, last: PassRow) -> float:
    """Return the standard error of a difference of two passes, of training - held-out edges; infinite: not known."""
    return math.hypot(*(of.generalization_error or math.inf for of in (best, last)))


def _mean(values: Sequence[tuple[int, float]]) -> float | None:
    """Average over queries: a bucket counts as much as it has of them."""
    total = sum(count for count, _ in values)
    return sum(count * value for count, value in values) / total if total else None


def read_curves(records: Path, metric: str, warn: Callable[[str], None]) -> Curves:
    """Read and judge what was recorded.

    Args:
        records: as `read_history` takes it.
        metric: PBG's name of one.
        warn: is told of lines that are no records.

    Raises:
        StorageError: there are no records.
        DataError: they have no held-out edges with this metric.
    """
    history = read_history(records, warn)
    return curves_of(history, {key: judgement.verdict for key, judgement in judge_history(history).items()}, metric)
