"""Held-out edges of a bucket and a model -> what is found about their queries, by the passes of the command line.

The figures are those of `kgeval-dist` on a checkpoint of this model and a bucket file with these edges in this order,
with the same seed and numbers of negatives.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Mapping
from functools import cached_property
from types import TracebackType
from typing import Any

import numpy as np
import torch
from attrs import asdict, define, evolve, field, frozen
from torch import Tensor

from pbgeval.cluster.resources import kept_thread_count
from pbgeval.errors import DataError, ScorerError, UnrankableError
from pbgeval.metrics.auc import pooled_auc
from pbgeval.metrics.distribution import CandidateGroups, expected_mean_reciprocal_rank
from pbgeval.monitor.followed import Followed
from pbgeval.monitor.gap_test import MIN_TEETH
from pbgeval.monitor.persistence import TRAINING, ClusterSums, PassSums, PhaseSums, QueryValues
from pbgeval.monitor.records import PassKey, PbgFigures, VisitDetails, VisitRecord
from pbgeval.monitor.schema import Model, ModelSchema, ModelTensors, MonitoredRelation
from pbgeval.notation import ENDS, Bucket, Side, window_units
from pbgeval.ranking.auc_sampling import FIRST_POSITION_WORD, AucSampling
from pbgeval.ranking.bucket_pass import bucket_pass
from pbgeval.ranking.cpu_lists import slow_exact_lists
from pbgeval.ranking.keys import DistinctCodes, EdgeColumns, QueryKeys
from pbgeval.ranking.known_answers import KEY_BITS, KnownOfEdges, KnownPairs, SemiJoin
from pbgeval.ranking.sampled_lists import CandidatePolicy, SampledLists, number_chunks
from pbgeval.ranking.settings import Competition, EdgeOrigin, LossSettings, PassSettings, Relation, Tables, UnitOfEdges
from pbgeval.scoring.block_scorer import (
    RowScorer,
    Scorer,
    ScorerComparator,
    ScorerRelation,
    check_mode,
    device_of,
    module_of,
    name_of,
    scorer_state,
    takes_time,
)
from pbgeval.scoring.comparators import Comparator
from pbgeval.scoring.entities import EntityTable
from pbgeval.scoring.exact import ExactComparator, without_exact_ranks
from pbgeval.scoring.full_precision import CallerSettings, full_precision
from pbgeval.scoring.operators import OPERATORS, Parameters
from pbgeval.scoring.scorer import RelationScorer
from pbgeval.scoring.self_check import check_kernels
from pbgeval.stats.groups import ScorePool
from pbgeval.stats.keyed_sums import begins
from pbgeval.stats.rank_stats import RankStats, StatsLayout
from pbgeval.stats.rank_types import RankType
from pbgeval.stats.ranks import RankCounts
from pbgeval.storage.edges import EdgeBlock
from pbgeval.storage.json_files import digest_of

# A model that scores queries by number -> what a monitor reads, in the place of tables of vectors.


def schema_of_scorer(num_relations: int, *, all_entities: bool) -> ModelSchema:
    """Return the schema of a model that scores queries itself, so that the comparator is not asked."""
    return ModelSchema(
        [MonitoredRelation("all", "all", "all", all_negs=all_entities)],
        {"all": 1},
        "dot",
        num_dynamic_relations=num_relations,
    )


@define(eq=False)
class ScoredModel:
    """Any model that is asked for the scores of queries (`Scorer`): one entity type, one partition, any relations.

    One object serves all visits: the self-check of the model's kernels is made at the first of them.

    Examples:
        >>> import pbgeval
        >>> def score(lhs, rel, rhs):
        ...     return -(lhs + 1 - rhs).abs().float()
        ...
        >>> model = pbgeval.ScoredModel(pbgeval.edge_scorer(score, num_entities=5, num_relations=1))
        >>> monitor = pbgeval.Monitor(model.schema(), eval_fraction=0.5)
    """

    scorer: Scorer
    _relation: ScorerRelation | None = field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        """Refuse a scorer that takes times.

        Raises:
            ScorerError: it does.
        """
        if takes_time(self.scorer):
            raise ScorerError(f"{name_of(self.scorer)}: the scorer takes times, but a monitor's edges have none")

    def schema(self, *, all_entities: bool = False) -> ModelSchema:
        """Return the schema to make the monitor with.

        Args:
            all_entities: held-out edges are ranked among all entities, not among sampled ones.
        """
        return schema_of_scorer(self.scorer.num_relations, all_entities=all_entities)

    def relation(self, lhs_type: str, rhs_type: str, caller_settings: CallerSettings) -> ScorerRelation:
        """Return what scores the edges of all relations, under the trainer's settings of torch.

        Raises:
            ScorerError: the model gives other scores each time, or no block of scores.
        """
        if self._relation is None:
            comparator = ScorerComparator(self.scorer, caller_settings=caller_settings)
            relation = ScorerRelation(comparator, lhs_type, rhs_type)
            scorer_state(relation, tuple(ENDS))
            self._relation = relation
        self._relation.comparator.caller_settings = caller_settings  # of this visit
        return self._relation

    def embeddings(self, entity_type: str, partition: int) -> Tensor:
        """Return the number of each entity, float64 (N, 1).

        Each measurement begins with it, so the training may have changed the model since the last one.

        Raises:
            ScorerError: a module in training mode.
        """
        check_mode(module_of(self.scorer), name_of(self.scorer), " before `watch`, and again at its end")
        if isinstance(self.scorer, RowScorer):
            self.scorer.forget()
        return torch.arange(self.scorer.num_entities, dtype=torch.float64, device=device_of(self.scorer)).unsqueeze(1)

    def operator_parameters(self, relation: int, side: Side) -> Mapping[str, Tensor]:
        return {}

    def global_embedding(self, entity_type: str) -> Tensor | None:
        return None


MOST_IDS = 1 << KEY_BITS  # ids of known edges are below
AUC_CELLS_PER_QUERY = 4  # competitors' scores whose sample gives the `auc` of PBG's lines


@frozen
class MonitorProtocol:
    """How held-out edges are ranked: all that can change a number."""

    schema: ModelSchema
    lists: SampledLists
    headline: RankType = RankType.REALISTIC
    seed: int = 0
    sides: tuple[Side, ...] = (Side.LHS, Side.RHS)  # that are hidden
    filtered: bool = False  # known answers do not compete
    layout: StatsLayout = field(factory=lambda: StatsLayout((1, 3, 5, 10, 50)))
    loss: LossSettings | None = None

    @cached_property
    def settings(self) -> dict[str, Any]:
        """All of it that can change a number, by the names of `Monitor`'s arguments and ready for JSON."""
        schema = asdict(self.schema, value_serializer=lambda _, __, of: of.item() if isinstance(of, np.generic) else of)
        for of in schema["relations"]:
            del of["name"]
        return {
            "eval_num_batch_negs": self.lists.num_batch_negs,
            "eval_num_uniform_negs": self.lists.num_uniform_negs,
            "seed": self.seed,
            "sides": sorted(side.name for side in self.sides),
            **({"filtered": True} if self.filtered else {}),
            "pbg_semantics": self.lists.pbg_semantics,
            "batch_size": self.lists.batch_size,
            "loss_fn": self.loss and self.loss.name,
            "margin": self.loss.margin if self.loss is not None and self.loss.name == "ranking" else None,
            "schema": digest_of(schema),
        }

    @cached_property
    def is_exact(self) -> bool:
        """Whether vectors have exact ranks, by the rule of the config's `precision`."""
        schema = self.schema
        if self.lists.pbg_semantics or without_exact_ranks(schema.comparator, [of.operator for of in schema.relations]):
            return False
        sampled = [of.operator for of in schema.relations if not of.all_negs]
        slow = slow_exact_lists(
            schema.comparator,
            sampled,
            bias=schema.bias,
            dynamic=schema.dynamic,
        )
        return slow is None


@frozen(eq=False)
class RankedEdges:
    """Edges that are ranked, and the known answers that do not compete, by hidden side; None: all compete."""

    edges: EdgeBlock
    known: Mapping[Side, tuple[KnownPairs, np.ndarray]] | None = None  # and the position of each edge's key, int64
    extremes: EdgeBlock | None = None  # the known edges with the smallest and largest ids
    digest: str = ""  # of the queries' keys and their known answers, whatever the order of the edges

    @classmethod
    def of_bucket(
        cls, edges: EdgeBlock, known: EdgeColumns, extremes: EdgeBlock, sides: tuple[Side, ...]
    ) -> RankedEdges:
        """Find the known answers of some edges of a bucket.

        Args:
            edges: that are ranked.
            known: edges whose answers do not compete, these among them; ids are from 0 to MOST_IDS - 1.
            extremes: of `known`, from `extremes_of`.
            sides: which are hidden in queries.
        """
        columns = EdgeColumns(edges.lhs.numpy(), edges.rel.numpy(), edges.rhs.numpy())
        keys = {side: QueryKeys.of_edges(side, columns, MOST_IDS) for side in sides}
        answers = {side: DistinctCodes() for side in sides}

        def sink(hidden: Side, key_P: np.ndarray, answer_P: np.ndarray) -> None:
            answers[hidden].add(answer_P << KEY_BITS | key_P)

        SemiJoin(keys, sink).feed(known)
        packed, digest = {}, hashlib.blake2b(digest_size=16)
        for side in sorted(sides, key=lambda side: side.value):
            pairs = KnownPairs(answers[side].sorted())
            packed[side] = pairs, keys[side].index_of(*columns.key(side))
            for codes in (keys[side].codes_K, pairs.packed_P):
                digest.update(f"{side.name} {codes.size} ".encode() + codes.astype("<i8").tobytes())
        return cls(edges, packed, extremes, digest.hexdigest())


def extremes_of(schema: ModelSchema, known: EdgeColumns) -> EdgeBlock:
    """Return the edges with the smallest and the largest ids, for each pair of entity types."""
    types = [(of.lhs, of.rhs) for of in schema.relations]
    rows = []
    for pair in dict.fromkeys(types):
        rows_n = np.arange(known.num_edges)
        if len({*types}) > 1:
            rows_n = np.flatnonzero(np.array([of == pair for of in types])[known.rel_n])
        for ids_n in (known.lhs_n, known.rel_n, known.rhs_n) if rows_n.size else ():
            rows += [rows_n[ids_n[rows_n].argmin()], rows_n[ids_n[rows_n].argmax()]]
    found = known.select(np.array(rows, np.int64))
    lhs, rel, rhs = (torch.from_numpy(ids_n) for ids_n in (found.lhs_n, found.rel_n, found.rhs_n))
    return EdgeBlock(0, lhs, rel, rhs)


@frozen(eq=False)
class Measurement:
    """What was found about the queries of some edges."""

    phase: PhaseSums
    values: QueryValues  # in the order of `chunks_of_edges`
    chunk_E: np.ndarray
    lists: CandidateGroups  # queries by number of candidates
    num_entities: int  # of the larger partition


def measure(
    protocol: MonitorProtocol,
    ranked: RankedEdges,
    edge_path: int,
    bucket: Bucket,
    model: Model,
    caller_settings: CallerSettings,
) -> Measurement:
    """Rank all edges; a model of the trainer's own is called under the trainer's settings of torch.

    Raises:
        UnrankableError: the model has diverged.
        DataError: ids out of range, tables or parameters that do not fit the schema.
        ScorerError: a module in training mode.
    """
    edges, tables = ranked.edges, _tables(protocol, bucket, model)
    for checked in filter(None, (edges, ranked.extremes)):
        _check_ids(protocol.schema, checked, bucket, tables)
    settings = _settings(protocol, model, tables, caller_settings)
    stats = {side: RankStats.zero(protocol.layout) for side in protocol.sides}
    counts = {side: torch.zeros((3, edges.num_edges), dtype=torch.int64) for side in protocol.sides}
    pools = {side: ScorePool() for side in protocol.sides}
    origin = EdgeOrigin(f"held-out edges of bucket {tuple(bucket)}", (edge_path, bucket))
    # What these copy to a GPU lasts as long as the pass.
    known = {side: (pairs.in_rows(), key_E) for side, (pairs, key_E) in (ranked.known or {}).items()}
    for unit in window_units(0, bucket, edges.num_edges, protocol.lists.unit_rows(edges.num_edges, 1)):
        rows = slice(unit.start, unit.stop)
        block = EdgeBlock(unit.start, edges.lhs[rows], edges.rel[rows], edges.rhs[rows])
        of_rows = {side: KnownOfEdges(answers, key_E[rows]) for side, (answers, key_E) in known.items()}
        competition = Competition(filters=[of_rows] if known else [])
        for side, result in bucket_pass(UnitOfEdges(block, origin, tables, competition), settings).items():
            found = result.counts.filtered
            stats[side] += RankStats.from_queries(protocol.layout, found, loss_Q=result.loss_Q)
            counts[side][:, unit.start + result.rows_Q] = torch.stack(
                [found.better_Q, found.tied_Q, found.num_competitors_Q]
            )
            pools[side] += result.filtered_pool if protocol.filtered else result.raw_pool
    auc = pooled_auc([pool.sort() for pool in pools.values()], all_true=True, all_competing=False)
    order, chunk_E = chunks_of_edges(protocol, edges)
    values = QueryValues.from_counts([RankCounts(*of.unbind()) for of in counts.values()], protocol.headline, order)
    phase = PhaseSums.from_stats(
        stats, ClusterSums.from_values(values, chunk_E), None if auc is None else auc.value, edges.num_edges
    )
    candidates_Q = torch.cat([1 + num_competitors_Q for _, _, num_competitors_Q in counts.values()]).numpy()
    num_entities = max(table.num_rows for table in tables.values())
    return Measurement(phase, values, chunk_E, CandidateGroups.from_queries(candidates_Q), num_entities)


def _check_ids(schema: ModelSchema, edges: EdgeBlock, bucket: Bucket, tables: Tables) -> None:
    """Refuse ids out of range by the edge: which row it was in the trainer's own edges is not known here."""
    rel_E, known_E = edges.rel, edges.rel.clamp(0, len(schema.relations) - 1)  # of dynamic relations the only one
    sizes = {
        side: torch.tensor([tables[side.pick(of.lhs, of.rhs), side].num_rows for of in schema.relations])
        for side in ENDS
    }
    limits = {
        "rel": (rel_E, torch.full_like(rel_E, schema.num_relations)),
        "lhs": (edges.lhs, sizes[Side.LHS][known_E]),
        "rhs": (edges.rhs, sizes[Side.RHS][known_E]),
    }
    for name, (ids_E, sizes_E) in limits.items():
        wrong = ((ids_E < 0) | (ids_E >= sizes_E)).nonzero()
        if len(wrong):
            at = int(wrong[0])
            edge = tuple(int(of[at]) for of in (edges.lhs, edges.rel, edges.rhs))
            raise DataError(
                f"bucket {tuple(bucket)}, edge {edge}: expected an id in 0..{int(sizes_E[at]) - 1} as {name}, "
                f"got {int(ids_E[at])}; rows are those within the bucket's partitions"
            )


def chunks_of_edges(protocol: MonitorProtocol, edges: EdgeBlock) -> tuple[np.ndarray, np.ndarray]:
    """Return an order of the edges in which those that share their negatives are neighbours, and their chunks in it.

    An edge that is ranked among whole partitions shares no draws: it is a chunk of its own.
    """
    relations, row_E = protocol.schema.relations, np.arange(edges.num_edges)
    rel_E = np.zeros_like(row_E) if protocol.schema.dynamic else edges.rel.numpy()
    window_E = row_E // protocol.lists.unit_rows(edges.num_edges, 1)
    chunk_E = number_chunks(window_E * len(relations) + rel_E, protocol.lists)
    alone_E = np.where(np.array([of.all_negs for of in relations])[rel_E], row_E, -1)
    order = np.lexsort((alone_E, chunk_E))
    return order, np.cumsum(begins(chunk_E[order], alone_E[order])) - 1


def _settings(protocol: MonitorProtocol, model: Model, tables: Tables, caller_settings: CallerSettings) -> PassSettings:
    schema = protocol.schema
    ends = [(side.pick(of.lhs, of.rhs), side) for of in schema.relations if of.all_negs for side in ENDS]
    longest = max([protocol.lists.longest_list, *(tables[end].num_rows for end in ends)])
    return PassSettings(
        layout=protocol.layout,
        relations=tuple(
            _relation(protocol, index, model, tables, caller_settings) for index in range(len(schema.relations))
        ),
        num_relations=schema.num_relations,
        lists=protocol.lists,
        seed=protocol.seed,
        sides=protocol.sides,
        auc=AucSampling(
            min(AUC_CELLS_PER_QUERY / max(longest, 1), 0.5), 1.0, FIRST_POSITION_WORD + AUC_CELLS_PER_QUERY + 1
        ),
        loss=protocol.loss,
    )


def _relation(
    protocol: MonitorProtocol, index: int, model: Model, tables: Tables, caller_settings: CallerSettings
) -> Relation:
    schema = protocol.schema
    of = schema.relations[index]
    policy = CandidatePolicy.PARTITION if of.all_negs else CandidatePolicy.SAMPLED
    if isinstance(model, ScoredModel):
        return Relation(model.relation(of.lhs, of.rhs, caller_settings), policy, torch.float64)
    if isinstance(model, ModelTensors) and not schema.dynamic and model.operators.get((index, Side.LHS)):
        raise DataError(
            f"operators[{index}, Side.LHS]: this would have no effect, because relations that are not dynamic act on "
            "right entities only; use Side.RHS, or set num_dynamic_relations for operators on both sides"
        )
    dtype = torch.float64 if protocol.is_exact else torch.float32
    return Relation(
        RelationScorer(
            name=of.name,
            operator=of.operator,
            parameters={
                side: {name: value.to(dtype) for name, value in _parameters(schema, index, side, model, tables).items()}
                for side in (ENDS if schema.dynamic else (Side.RHS,))
            },
            comparator=Comparator(schema.comparator, schema.bias),
            dynamic=schema.dynamic,
            lhs_type=of.lhs,
            rhs_type=of.rhs,
            exact_comparator=ExactComparator(schema.comparator, schema.bias) if protocol.is_exact else None,
        ),
        policy,
        dtype,
    )


def _parameters(schema: ModelSchema, index: int, side: Side, model: Model, tables: Tables) -> Parameters:
    """Return an operator's parameters, checked."""
    of = schema.relations[index]
    dimension = tables[side.pick(of.lhs, of.rhs), side].embeddings_ND.shape[1]
    leading = () if schema.num_dynamic_relations is None else (schema.num_dynamic_relations,)
    shapes = {name: (*leading, *shape) for name, shape in OPERATORS[of.operator].shapes(dimension).items()}
    given = model.operator_parameters(index, side) if shapes else {}
    where = f"operator '{of.operator}' of relation '{of.name}' on the {side.pick('lhs', 'rhs')}"
    parameters = {}
    for name, shape in shapes.items():
        found = tuple(given[name].shape) if name in given else None
        if found != shape:
            raise DataError(
                f"{where}: expected operators[{index}, Side.{side.name}]['{name}'] of shape {shape}, "
                f"got {found or 'none'}"
            )
        parameters[name] = given[name].detach().to(tables[of.rhs, Side.RHS].device, torch.float32)
        if not bool(torch.isfinite(parameters[name]).all()):
            raise UnrankableError(f"{where}: expected finite numbers as '{name}', got NaN or infinity")
    return parameters


def _tables(protocol: MonitorProtocol, bucket: Bucket, model: Model) -> Tables:
    schema = protocol.schema
    places = {
        (name, side): (name, bucket.partition_of(side, schema.num_partitions[name]))
        for of in schema.relations
        for name, side in ((of.lhs, Side.LHS), (of.rhs, Side.RHS))
    }
    checked = {place: _table(protocol, *place, model) for place in dict.fromkeys(places.values())}
    return {end: checked[place] for end, place in places.items()}


def _table(protocol: MonitorProtocol, name: str, partition: int, model: Model) -> EntityTable:
    schema, embeddings_ND = protocol.schema, model.embeddings(name, partition).detach()
    if protocol.is_exact and embeddings_ND.dtype is torch.float64 and not isinstance(model, ScoredModel):
        embeddings_ND = embeddings_ND.float()  # as a checkpoint has it
    vector_D = model.global_embedding(name)
    table = EntityTable(name, partition, embeddings_ND, max_norm=schema.max_norm)
    if embeddings_ND.ndim != 2 or not embeddings_ND.is_floating_point():
        raise DataError(
            f"{table.label}: expected embeddings (N, D) of a floating-point type, got {tuple(embeddings_ND.shape)} of "
            f"{embeddings_ND.dtype}"
        )
    if vector_D is not None:
        table = evolve(table, global_embedding_D=vector_D.detach().to(embeddings_ND.device, torch.float32))
        if not bool(torch.isfinite(vector_D).all()):
            raise UnrankableError(f"global embedding of entity type '{name}': got NaN or infinity")
    table.check(refuse_zero_vectors=schema.comparator == "cos", has_bias=schema.bias)
    return table


# One visit to a bucket: its held-out edges are measured when its training begins and when it ends.


@frozen(eq=False)
class HeldOut:
    """The edges of a bucket that are measured."""

    ranked: RankedEdges
    sample: RankedEdges  # training edges for comparison
    digest: int = 0  # of the edges in any order, and of the settings: figures of equal digests can be compared
    order: int = 0  # the same of the edges in this order: these can be followed one by one


@define(eq=False)
class Visit:
    """The context in which a bucket is trained; `Monitor.watch` makes it.

    What the training raises passes through as it is, and nothing is recorded then.
    """

    key: PassKey
    bucket: Bucket
    held_out: HeldOut
    model: Model
    protocol: MonitorProtocol
    finished: Callable[[Visit], None]  # is told of a visit that has come to its end
    followed: Followed | None = None  # the same edges over the visits before
    stats: PbgFigures | None = field(default=None, init=False)
    sums: PassSums | None = field(default=None, init=False)  # None: not measured, or diverged
    lists: CandidateGroups | None = field(default=None, init=False)  # of the held-out edges' queries; None: the same
    num_entities: int = field(default=0, init=False)  # of the larger partition
    reason: str | None = field(default=None, init=False)  # why the model could not be ranked
    seconds: float = field(default=0.0, init=False)  # that measuring took
    _before: Measurement | None = field(default=None, init=False)

    def report_training(self, count: int, **metrics: float) -> None:
        """Say what the training of this bucket reports of itself: edges, mean loss, ...; recorded as `stats`."""
        self.stats = PbgFigures(
            int(count),
            # JSON has no NaN: a figure that is none is null.
            {name: float(value) if math.isfinite(value) else None for name, value in metrics.items()},
        )

    def __enter__(self) -> Visit:
        self._before = self._measure(self.held_out.ranked)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is not None:
            return
        before = self._before
        after = self._measure(self.held_out.ranked)
        training = self._measure(self.held_out.sample)
        if before is not None and after is not None:
            begun = time.perf_counter()
            protocol, values = self.protocol, after.values
            phases = (
                before.phase,
                after.phase,
                PhaseSums.zero(protocol.layout, protocol.sides) if training is None else training.phase,
            )
            reciprocal_ranks = before.values.values_ED[:, 0], values.values_ED[:, 0]
            self.followed = followed = Followed.with_visit(
                self.followed, self.key.epoch, self.held_out.order, *reciprocal_ranks
            )
            teeth = (followed.gained_E, followed.lost_E) if followed.num_teeth >= MIN_TEETH else (None, None)
            fall_E = None if followed.best_E is None else followed.best_E - values.values_ED[:, 0]
            clusters = [
                ClusterSums.from_values(values - before.values, after.chunk_E),
                *(
                    ClusterSums.zero()  # of edges that have not been followed for long
                    if of is None
                    else ClusterSums.from_values(values.with_reciprocal_ranks(of), after.chunk_E)
                    for of in (*teeth, fall_E)
                ),
            ]
            self.lists, self.num_entities = after.lists, after.num_entities
            self.sums = PassSums.from_visit(phases, clusters, protocol.headline, self.held_out.digest)
            self.seconds += time.perf_counter() - begun
        self.finished(self)

    def _measure(self, ranked: RankedEdges) -> Measurement | None:
        if not ranked.edges.num_edges or self.reason is not None:
            return None
        begun = time.perf_counter()
        try:
            schema, model = self.protocol.schema, self.model
            device = model.embeddings(
                schema.relations[0].lhs,
                self.bucket.partition_of(Side.LHS, schema.num_partitions[schema.relations[0].lhs]),
            ).device
            # The trainer's settings of torch stay as they are.
            with kept_thread_count(), full_precision() as caller_settings, torch.no_grad():
                check_kernels(device)  # equal candidates tie (decision 0004)
                return measure(self.protocol, ranked, self.key.edge_path, self.bucket, model, caller_settings)
        except UnrankableError as error:
            self.reason = str(error)
            return None
        finally:
            self.seconds += time.perf_counter() - begun

    @property
    def repeats_candidates(self) -> bool:
        """Whether a query has more than two candidates for each entity, so that most compete several times."""
        return self.lists is not None and self.lists.mean(self.lists.candidates_G) > 2 * self.num_entities

    def record(self, index: int, worker: int, settings: Mapping[str, Any]) -> VisitRecord:
        """Return what is written of the visit; `settings` are those that the digest is of."""
        seconds = round(self.seconds, 6)
        digest = self.held_out.digest if self.held_out.ranked.edges.num_edges else None
        if self.sums is None or self.lists is None:
            details = VisitDetails(
                self.reason is not None, self.reason, worker, seconds=seconds, digest=digest, settings=settings
            )
            return VisitRecord(self.key, self.bucket, index, self.stats, None, None, details)
        with_loss = self.protocol.loss is not None
        before, after = (phase.figures(with_loss=with_loss) for phase in self.sums.phases[:TRAINING])
        details = VisitDetails(
            worker=worker,
            seconds=seconds,
            digest=digest,
            settings=settings,
            cluster=self.sums.clusters[0].unit,
            num_clusters=self.sums.clusters[0].num_clusters,
            candidates=self.lists.mean(self.lists.candidates_G),
            mrr_by_chance=expected_mean_reciprocal_rank(self.lists),
            **self.sums.figures(self.protocol.headline, with_loss=with_loss),
        )
        return VisitRecord(self.key, self.bucket, index, self.stats, before, after, details)
