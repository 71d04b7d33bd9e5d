"""Visits of a pass, on any number of workers -> its summary, and whether the gap persists."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import define, field

from pbgeval.monitor.persistence import BucketVisit, GapTest, Judgement
from pbgeval.monitor.sums import AFTER, BEFORE, TRAINING, PassSums
from pbgeval.ranking import RankType
from pbgeval.training_stats.reading import History
from pbgeval.training_stats.records import PassDetails, PassKey, PassRecord, Values

Place = tuple[int, int, int]  # edge path, edge chunk, number of the bucket: where the same edges come again


@define
class Passes:
    """The figures of each pass, and the test that follows the buckets."""

    headline: RankType
    with_loss: bool
    test: GapTest
    keys: list[PassKey] = field(factory=list, init=False)  # of each pass, in order; so are the next two
    before: list[Values] = field(factory=list, init=False)
    after: list[Values] = field(factory=list, init=False)

    def close(self, key: PassKey, index: int, sums: PassSums) -> tuple[PassRecord, Judgement]:
        """Summarise a pass from its sums over all workers; each is closed once, in order."""
        phases = [phase.values(with_loss=self.with_loss) for phase in sums.phases]
        gap = sums.gaps(self.headline)
        means = sums.bucket_means()
        visits = {
            (key.edge_path, key.edge_chunk, bucket): BucketVisit(*mean) for bucket, mean in enumerate(means) if mean
        }
        judgement = self._judge(visits, sums)
        details = PassDetails(
            num_buckets=len(visits),
            num_diverged=sums.num_diverged,
            before=phases[BEFORE],
            after=phases[AFTER],
            training=phases[TRAINING] if sums.phases[TRAINING].num_edges else None,
            gap=gap,
            generalisation=sums.generalisation(self.headline),
            verdict=judgement.verdict.value,
            lost=judgement.lost,
            level=judgement.level,
        )
        # A pass of which some visit diverged has no figures that could be compared with another's.
        self.keys.append(key)
        self.before.append({} if sums.num_diverged else phases[BEFORE])
        self.after.append({} if sums.num_diverged else phases[AFTER])
        average = sums.phases[AFTER].figures(with_loss=self.with_loss)
        return PassRecord(key, index, average, details), judgement

    def _judge(self, visits: Mapping[Place, BucketVisit], sums: PassSums) -> Judgement:
        followed = sums.teeth.gained.num_queries("mean_reciprocal_rank")
        if followed < sums.gap.num_queries("mean_reciprocal_rank"):  # another worker visited some buckets last time
            return self.test.judge(visits)
        return self.test.judge(
            visits,
            sums.teeth.gained.estimate("mean_reciprocal_rank"),
            sums.teeth.lost.estimate("mean_reciprocal_rank"),
        )

    def resume(self, history: History, num_rhs: int) -> None:
        """Go on from what an earlier process of the same run has recorded; of its errors only those between buckets."""
        name = f"both.{self.headline.value}.mean_reciprocal_rank"
        closed = {of.key for of in history.passes}
        for visit in history.visits:
            ours = visit.details
            if visit.key not in closed or ours is None or ours.diverged:
                continue
            before, after = ours.before.get(name), ours.after.get(name)
            if before is None or after is None:
                continue
            place = (visit.key.edge_path, visit.key.edge_chunk, visit.bucket.lhs * num_rhs + visit.bucket.rhs)
            num_queries = int(ours.after[f"both.{self.headline.value}.count"] or 0)
            self.test.add({place: BucketVisit(num_queries, before, after)})
        for of_pass in {of.key: of for of in history.passes}.values():
            if of_pass.details is not None:
                self.keys.append(of_pass.key)
                self.before.append({} if of_pass.details.num_diverged else of_pass.details.before)
                self.after.append({} if of_pass.details.num_diverged else of_pass.details.after)
                self.test.num_tests += of_pass.details.level is not None
