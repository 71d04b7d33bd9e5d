"""`EvalConfig` and headers -> the plan of work units and the settings of the passes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import chain
from typing import NamedTuple

import numpy as np
from attrs import frozen

from pbgeval.cluster.team import Team
from pbgeval.config import EvalConfig
from pbgeval.config.schema import TRAINING_BREAKDOWNS
from pbgeval.inputs.dispatch import best_walk
from pbgeval.inputs.opening import Inputs
from pbgeval.metrics.auc import AucSample
from pbgeval.metrics.intervals import SampleDesign
from pbgeval.notation import EntityNumbering, Side, WorkUnit, window_units
from pbgeval.ranking.auc_sampling import AucSampling
from pbgeval.ranking.known_answers import TimeWindow
from pbgeval.ranking.sampled_lists import CandidatePolicy, SampledLists
from pbgeval.ranking.settings import LossSettings, PassSettings, Relation
from pbgeval.stats.groups import GroupKey
from pbgeval.stats.rank_stats import StatsLayout

ROWS_PER_PARTITION_UNIT = 1 << 15  # of a unit whose edges are ranked among whole partitions; changes no number
MAX_SAMPLED_EDGES_WITH_KEYS = 1 << 23  # beyond, query keys are not counted
# Up to these bounds, ranks are saved by default: that takes a few percent of a run. Files have a row for
# every edge, also for those that a sample leaves out, so the decision depends on the edge files and the config alone.
MAX_QUERIES_SAVED = 10_000_000
MAX_BUCKETS_SAVED = 64  # a file of ranks takes 10 ms to make
MAX_SAMPLED_BUCKETS_SAVED = 4
MAX_COUNTED_QUERIES = 1 << 22  # whose true scores all others are compared with
AUC_EDGES_OF_ROUNDS = 1 << 16  # evaluated edges that the sample of the AUC is laid out for where rounds decide


class CandidateRange(NamedTuple):
    """Consecutive candidates: rows of one partition."""

    slot: int
    start: int  # row in the partition
    stop: int

    @property
    def num_rows(self) -> int:
        return self.stop - self.start


@frozen
class Protocol:
    """What is evaluated and how, before any model is read; the same on every worker."""

    lists: SampledLists
    sides: tuple[Side, ...]
    layout: StatsLayout
    auc: AucSampling
    relation_auc: AucSampling  # of hidden relations
    uncounted: str  # why scores are not counted where they are too many to keep; empty: they are
    units: tuple[WorkUnit, ...]  # in the order that loads few partitions; none where all entities compete
    groups: tuple[GroupKey, ...]
    sweeps: bool  # all entities compete: two sweeps over the partitions
    filtered: bool  # known edges are read
    time_windows: tuple[TimeWindow | None, ...]  # of which known edges each filter leaves out; None: of any time
    counts_training: bool  # a breakdown or draws by degree need `train_paths`
    counts_keys: bool  # how often each query key occurs, for macro averages
    saves_ranks: bool

    def auc_samples(
        self, design: SampleDesign | None = None, level: float = 0.95, share: float = 1.0
    ) -> dict[Side, AucSample]:
        """Return what the pools of scores of each side hold.

        Args:
            design: how edges were drawn; None: all were evaluated.
            level: of intervals.
            share: of the scores of a sample that pools hold.
        """
        samples = {}
        for side in Side:
            auc = self.relation_auc if side is Side.REL else self.auc
            reason = self.uncounted if side is not Side.REL or share < 1.0 else "those of relations are not counted"
            is_whole = auc.exact and share >= 1.0
            told = f"there are too many scores to keep, and {reason}" if reason and not is_whole else ""
            samples[side] = AucSample(auc.true_rate >= 1.0 and share >= 1.0, is_whole, design, level, told)
        return samples

    @property
    def in_time(self) -> bool:
        """Whether there are time-aware filtered figures."""
        return len(self.time_windows) > 1

    def settings(self, config: EvalConfig, num_relations: int, relations: tuple[Relation, ...]) -> PassSettings:
        """Return the settings of the passes, once the model has been read."""
        return PassSettings(
            layout=self.layout,
            relations=relations,
            num_relations=num_relations,
            lists=self.lists,
            seed=config.seed,
            sides=self.sides,
            auc=self.auc,
            loss=LossSettings(config.loss_fn, config.margin) if config.compute_loss else None,
        )


def make_protocol(inputs: Inputs) -> Protocol:
    """Decide lists, units and their order from the config and the headers alone."""
    config = inputs.config
    lists = SampledLists(
        num_batch_negs=config.num_batch_negs,
        num_uniform_negs=config.num_uniform_negs,
        pbg_semantics=config.pbg_semantics,
        batch_size=config.batch_size,
        num_degree_negs=config.num_degree_negs,
    )
    sweeps = CandidatePolicy.ALL.value in inputs.candidates
    sides = config.sides
    ends = tuple(side for side in sides if side is not Side.REL)
    uncounted = _why_uncounted(inputs, inputs.num_edges * len(ends))
    auc = _auc_sampling(inputs, lists, ends, counts=not uncounted)
    num_relation_cells = max(inputs.num_edges, 1) * inputs.num_relations * len(ends)  # as of all other sides
    latest = None if config.known_until is None else 0
    windows: list[TimeWindow | None] = [None if latest is None else TimeWindow(None, latest)]
    if config.time_window is not None:
        windows.append(TimeWindow(config.time_window, config.time_window if latest is None else latest))
    return Protocol(
        lists=lists,
        sides=sides,
        layout=StatsLayout(tuple(sorted(set(config.hits_at)))),
        auc=auc,
        relation_auc=auc.of_relations(num_relation_cells, inputs.num_relations),
        uncounted=uncounted,
        units=() if sweeps else tuple(_units(inputs, lists)),
        groups=tuple(GroupKey(path_index, bucket, side) for path_index, bucket, _ in inputs.files for side in sides),
        sweeps=sweeps,
        filtered=config.filtered,
        time_windows=tuple(windows),
        counts_training=bool(TRAINING_BREAKDOWNS & set(config.breakdowns))
        or (config.num_degree_negs > 0 and CandidatePolicy.SAMPLED.value in inputs.candidates),
        counts_keys=counts_keys(inputs),
        saves_ranks=_saves_ranks(inputs, len(sides)),
    )


def counts_keys(inputs: Inputs) -> bool:
    """Tell whether query keys are counted: not where entities have no numbers, and not for very many sampled queries.

    Counting takes some 16 bytes for each edge of a partition and a tenth of the time of sampled candidates.
    """
    many = CandidatePolicy.SAMPLED.value in inputs.candidates and inputs.num_edges > MAX_SAMPLED_EDGES_WITH_KEYS
    return not inputs.featurized and not many


def _saves_ranks(inputs: Inputs, num_sides: int) -> bool:
    if inputs.config.save_ranks is not None or inputs.config.needs_ranks:
        return inputs.config.save_ranks is not False
    is_sampled = CandidatePolicy.SAMPLED.value in inputs.candidates
    num_queries, num_buckets = inputs.num_edges * num_sides, sum(map(len, inputs.buckets))
    return not why_ranks_are_not_saved(num_queries, num_buckets, is_sampled=is_sampled)


def why_ranks_are_not_saved(num_queries: int, num_buckets: int, *, is_sampled: bool) -> str:
    """Return how many queries or buckets are too many to save ranks unasked; empty: they are saved."""
    if num_queries > MAX_QUERIES_SAVED:
        return f"{num_queries:,} queries"
    most_buckets = MAX_SAMPLED_BUCKETS_SAVED if is_sampled else MAX_BUCKETS_SAVED
    return f"{num_buckets:,} buckets" if num_buckets > most_buckets else ""


def candidate_ranges(
    numbering: EntityNumbering, team: Team, rows_per_range: int, done: Iterable[CandidateRange] = ()
) -> list[CandidateRange]:
    """Return one worker's part of all rows of all partitions, cut in ranges; every row is in one worker's part.

    Rows are shared, not partitions: workers have equal parts of however few partitions there are.

    Args:
        numbering: of the entities.
        team: of the worker.
        rows_per_range: at most.
        done: rows that are left out.
    """
    left = _without(numbering, done)
    first, stop = team.part(sum(part.num_rows for part in left))
    ranges, before = [], 0
    for part in left:
        low, high = max(first - before, 0), min(stop - before, part.num_rows)
        before += part.num_rows
        ranges += [
            CandidateRange(part.slot, part.start + at, part.start + min(at + rows_per_range, high))
            for at in range(low, high, rows_per_range)
        ]
    return ranges


def _without(numbering: EntityNumbering, done: Iterable[CandidateRange]) -> list[CandidateRange]:
    """Return the rows of each slot between those that are done."""
    ends = [CandidateRange(slot, size, size) for slot, size in enumerate(np.diff(numbering.boundaries).tolist())]
    at_of: dict[int, int] = defaultdict(int)  # one past the last row of a slot that has been met
    left = []
    for part in sorted([*done, *ends]):
        at = at_of[part.slot]
        if at < part.start:
            left.append(CandidateRange(part.slot, at, part.start))
        at_of[part.slot] = max(at, part.stop)
    return left


def _units(inputs: Inputs, lists: SampledLists) -> list[WorkUnit]:
    units: list[WorkUnit] = []
    buckets = {bucket for files in inputs.buckets for bucket in files}
    # Without lists there are no chunks to keep whole: smaller units, since each row meets a whole partition.
    has_chunks = lists.pbg_semantics or CandidatePolicy.SAMPLED.value in inputs.candidates
    for bucket in chain.from_iterable(best_walk(buckets, inputs.partitions_needed)):
        for path_index, files in enumerate(inputs.buckets):
            if bucket in files:
                num_edges = files[bucket].num_edges
                rows = lists.unit_rows(num_edges, inputs.config.workers or 1)
                units += window_units(path_index, bucket, num_edges, rows if has_chunks else ROWS_PER_PARTITION_UNIT)
    return units


def _why_uncounted(inputs: Inputs, num_queries: int) -> str:
    """Return why scores that are too many to keep are not counted; empty: figures are asked for that need it."""
    config = inputs.config
    if not (config.selection.classification or config.selection.pooled_cutoffs):
        return "no figure is asked for that needs all of them"
    if inputs.is_sample:
        return "only a part of them is kept of a sample of edges; sample fewer edges, or none"
    if CandidatePolicy.ALL.value not in inputs.candidates:
        return 'they are only counted with candidates = "all"; evaluate fewer edges'
    if num_queries > MAX_COUNTED_QUERIES:
        return f"they are only counted up to {MAX_COUNTED_QUERIES:,} queries; evaluate fewer edges"
    return ""


def _auc_sampling(inputs: Inputs, lists: SampledLists, sides: tuple[Side, ...], *, counts: bool) -> AucSampling:
    """Decide from upper bounds: which relation an edge has is not known before it is read."""
    if not inputs.config.selection.needs_pools:
        return AucSampling.of_nothing()
    longest_sampled = lists.longest_list if CandidatePolicy.SAMPLED.value in inputs.candidates else 0
    ranges = map(inputs.numbering.range_of_type, inputs.config.used_entity_types)
    largest_type = max(stop - first for first, stop in ranges)
    num_cells = longest_list = 0
    for path_index, bucket, file in inputs.files:
        longest = longest_sampled
        if CandidatePolicy.PARTITION.value in inputs.candidates:
            longest = max(longest, *[inputs.embeddings[key].num_rows for key in inputs.partitions_needed(bucket)])
        if CandidatePolicy.ALL.value in inputs.candidates and inputs.candidate_files:
            given = inputs.candidate_files[path_index].get(bucket)
            longest = max([longest, *(given.num_candidates.values() if given is not None else ())])
        elif CandidatePolicy.ALL.value in inputs.candidates:
            longest = max(longest, largest_type)
        num_cells += file.num_edges * longest * len(sides)
        longest_list = max(longest_list, longest)
    num_queries = inputs.num_edges * len(sides)
    nominal = inputs.config.sample_edges or (AUC_EDGES_OF_ROUNDS if inputs.config.target_error is not None else None)
    if nominal is not None and nominal < inputs.num_edges:  # of a sample fewer cells exist, and more are compared
        num_cells, num_queries = -(-num_cells * nominal // inputs.num_edges), nominal * len(sides)
    return AucSampling.of_size(num_cells, num_queries, longest_list, counts=counts)
