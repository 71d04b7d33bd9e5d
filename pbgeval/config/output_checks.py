"""Check the settings of an `EvalConfig` of memory, sampled edges and output.

See `checks.py` for what all checks have in common.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from pbgeval.config.faults import Check, Fault, KeyPath, not_one_of, read_relation_groups, rule, show
from pbgeval.config.schema import BREAKDOWNS, TRAINING_BREAKDOWNS, EvalConfig
from pbgeval.errors import TRAIN_PATHS, ConfigError
from pbgeval.metrics.names import (
    DEFAULT,
    ESTIMATES,
    METRIC_GROUPS,
    OGB_CUTOFFS,
    PRESETS,
    PROTOCOLS,
    Selection,
    UnknownMetricError,
    check_name,
)
from pbgeval.metrics.popularity import POPULARITY
from pbgeval.sinks import SINKS, missing_library
from pbgeval.stats.ranks import RANK_TYPE_SYNONYMS
from pbgeval.storage.text import parse_memory


def _memory(config: EvalConfig) -> Iterator[Fault]:
    for key in ("max_memory", "scratch_limit"):
        try:
            _ = getattr(config, key) is None or parse_memory(getattr(config, key))
        except ConfigError as error:
            yield Fault((key,), str(error))


def _target_metric(config: EvalConfig) -> Iterator[Fault]:
    if config.target_metric is None or config.rank_type not in (None, *RANK_TYPE_SYNONYMS):  # refused already
        return
    try:
        _ = config.target_key
    except UnknownMetricError:
        cutoffs = " or ".join(f"hits_at_{k}" for k in config.hits_at[:5])
        yield Fault(
            ("target_metric",),
            f"unknown metric {show(config.target_metric)}; use mean_rank, mean_reciprocal_rank,"
            f" query_auc{' or ' if cutoffs else ''}{cutoffs} (hits_at), optionally with an enabled side and a rank type"
            " in front",
            (("hits_at",), ("disable_lhs_negs",), ("disable_rhs_negs",)),
        )


def _metrics(config: EvalConfig) -> Iterator[Fault]:
    groups = " or ".join(map(show, METRIC_GROUPS))
    if not config.metrics:
        yield Fault(("metrics",), f"needs {groups} or names of metrics")
    sides = [side for side, off in (("head", config.disable_lhs_negs), ("tail", config.disable_rhs_negs)) if not off]
    sides += ["relation"] * config.relation_prediction
    for index, name in enumerate(config.metrics):
        try:
            check_name(
                name,
                [*sides, "both"],
                sorted(set(config.hits_at)),
                with_loss=config.compute_loss,
                with_types=config.taxonomy_path is not None,
            )
        except UnknownMetricError as error:
            involved = (("hits_at",), ("compute_loss",), ("disable_lhs_negs",), ("disable_rhs_negs",))
            yield Fault(("metrics", index), f"{error}; use {groups} or the name of a metric", involved)


def _type_metrics(config: EvalConfig) -> Iterator[Fault]:
    for index, name in enumerate(config.metrics if config.taxonomy_path is None else ()):
        if Selection.from_names([name]).ndcg:
            yield Fault(
                ("metrics", index),
                f"{show(name)} needs a hierarchy of types; set taxonomy_path",
                (("taxonomy_path",),),
            )


def _estimates(config: EvalConfig) -> Iterator[Fault]:
    """Refuse estimates where candidates are not uniform draws."""
    if ESTIMATES not in config.metrics or config.preset is not None:  # together they are refused already
        return
    where: KeyPath = ("metrics", config.metrics.index(ESTIMATES))
    if config.pbg_semantics:
        yield Fault(
            where,
            "'estimates' needs pbg_semantics = False, because in PBG the true entity competes with itself",
            (("pbg_semantics",),),
        )
    for index, relation in enumerate(config.relations):
        candidates = "given" if config.candidate_path is not None else config.candidates_of(relation)
        if candidates != "sampled":
            yield Fault(
                where,
                f"'estimates' needs sampled candidates, but relations[{index}] has {show(candidates)}",
                (("candidates",), ("candidate_path",), ("relations", index, "all_negs")),
            )
            break
    featurized = [name for name in config.used_entity_types if config.entities[name].featurized]
    if featurized:
        involved = (("entities", featurized[0], "featurized"),)
        yield Fault(
            where, f"'estimates' cannot draw entities of type {show(featurized[0])}, which is featurized", involved
        )
    elif config.num_degree_negs:
        yield Fault(
            where,
            f"'estimates' needs num_degree_negs = 0, got {config.num_degree_negs}: draws by degree are not uniform, and"
            " ranks do not keep the weights that would correct for it",
            (("num_degree_negs",),),
        )
    elif config.num_batch_negs:
        yield Fault(
            where,
            f"'estimates' needs num_batch_negs = 0, got {config.num_batch_negs}, because entities of a batch are not"
            " uniform draws: they occur as often as they have edges",
            (("num_batch_negs",),),
        )


_REALISTIC = (None, "realistic", "average", "avg")


def _preset(config: EvalConfig) -> Iterator[Fault]:
    if config.preset not in (None, *PRESETS):
        yield Fault(("preset",), not_one_of(PRESETS, config.preset))
    elif config.preset is not None:
        if tuple(config.metrics) != DEFAULT:
            message = f"chooses the metrics itself, but metrics is set to {show(config.metrics)}; remove one of them"
            yield Fault(("preset",), message, (("metrics",),))
        for key, value in PROTOCOLS.get(config.preset, {}).items():
            if getattr(config, key) != value:
                yield Fault(("preset",), f"needs {key} = {value!r}; set it", ((key,),))
        cutoffs = [k for k in OGB_CUTOFFS if f"hits_at_{k}" in PRESETS[config.preset]]
        if not {*cutoffs} <= {*config.hits_at}:
            message = f"reports hits at {', '.join(map(str, cutoffs))}, but hits_at is {show(config.hits_at)}; add them"
            yield Fault(("preset",), message, (("hits_at",),))


def _breakdowns(config: EvalConfig) -> Iterator[Fault]:
    for index, name in enumerate(config.breakdowns):
        where: KeyPath = ("breakdowns", index)
        if name not in BREAKDOWNS:
            yield Fault(where, not_one_of(BREAKDOWNS, name))
        if name in (*TRAINING_BREAKDOWNS, POPULARITY) and not config.train_paths:
            yield Fault(
                where,
                f"{show(name)} counts training edges; set {TRAIN_PATHS}, or remove {show(name)}",
                (("train_paths",),),
            )
        if name == POPULARITY and config.save_ranks is False:
            message = "'popularity' follows from saved ranks; remove save_ranks = False, or remove 'popularity'"
            yield Fault(where, message, (("save_ranks",),))
        if name == "time" and config.time_bin is None:
            yield Fault(where, "'time' needs time_bin; set it, or remove 'time'", (("time_bin",),))
        if name == "groups" and config.relation_groups is None:
            yield Fault(where, "'groups' needs relation_groups; set it, or remove 'groups'", (("relation_groups",),))


def _topk_metrics(config: EvalConfig) -> Iterator[Fault]:
    """Refuse lists that are not whole, or hold known answers."""
    sampled = any(config.candidates_of(relation) == "sampled" for relation in config.relations)
    partial = config.sample_edges is not None or config.target_error is not None
    faults = (
        (
            not config.filtered,
            f"leaves known answers out of lists; set {TRAIN_PATHS} or filter_paths, to edge_paths if no others are "
            "known",
            ("train_paths", "filter_paths"),
        ),
        (sampled, "needs candidates = 'all' or 'partition', or candidate_path", ("candidates", "candidate_path")),
        (
            partial,
            "needs all edges, because a list is judged by all its answers; remove sample_edges and target_error",
            ("sample_edges", "target_error"),
        ),
        (config.save_ranks is False, "follows from saved ranks; remove save_ranks = False", ("save_ranks",)),
        (
            config.known_until is not None,
            "needs lists that are the same at all times; remove known_until",
            ("known_until",),
        ),
        (
            config.pbg_semantics,
            "needs pbg_semantics = False, because in PBG the true entity competes with itself",
            ("pbg_semantics",),
        ),
    )
    for is_wrong, message, involved in faults:
        if config.topk_metrics and is_wrong:
            yield Fault(("topk_metrics",), message, tuple((key,) for key in involved))


def _relation_groups(config: EvalConfig) -> Iterator[Fault]:
    try:
        if os.path.isfile(config.relation_groups or ""):  # a missing file is refused where paths are resolved
            read_relation_groups(str(config.relation_groups))
    except ConfigError as error:
        yield Fault(("relation_groups",), str(error))


def _sinks(config: EvalConfig) -> Iterator[Fault]:
    for index, name in enumerate(config.sinks):
        message = missing_library(name) if name in SINKS else not_one_of(SINKS, name)
        if message is not None:
            yield Fault(("sinks", index), message)


_ONLY_AMONG_ALL = "needs candidates = 'all' without candidate_path"

OUTPUT_CHECKS: tuple[Check, ...] = (
    _memory,
    rule(
        "target_error",
        lambda c: c.sample_edges is not None and c.target_error is not None,
        "sample_edges is set too; set the number of edges or the error to reach, not both",
        "sample_edges",
    ),
    rule(
        "target_metric",
        lambda c: c.target_metric is not None and c.target_error is None,
        "has no effect without target_error; set target_error too",
        "target_error",
    ),
    _target_metric,
    _metrics,
    rule(
        "type_relations",
        lambda c: c.taxonomy_path is None and c.type_relations is not None,
        "needs taxonomy_path; set it too",
        "taxonomy_path",
    ),
    _type_metrics,
    rule(
        "taxonomy_path",
        lambda c: c.taxonomy_path is not None and not c.type_relations,
        "needs type_relations: name the relations whose right-hand side is a type",
        "type_relations",
    ),
    rule(
        "taxonomy_path",
        lambda c: c.taxonomy_path is not None and c.candidates != "all",
        _ONLY_AMONG_ALL,
        "candidates",
    ),
    rule(
        "taxonomy_path",
        lambda c: c.taxonomy_path is not None and c.candidates == "all" and c.candidate_path is not None,
        _ONLY_AMONG_ALL,
        "candidate_path",
    ),
    rule(
        "taxonomy_path",
        lambda c: c.taxonomy_path is not None and c.sample_edges is not None,
        "needs all edges, because a query for types is judged by all its true types; remove sample_edges",
        "sample_edges",
    ),
    rule(
        "taxonomy_path",
        lambda c: c.taxonomy_path is not None and c.target_error is not None,
        "needs all edges, because a query for types is judged by all its true types; remove target_error",
        "target_error",
    ),
    rule(
        "taxonomy_path",
        lambda c: c.taxonomy_path is not None and c.disable_rhs_negs,
        "types are on the right-hand side, which disable_rhs_negs leaves out; set it to False",
        "disable_rhs_negs",
    ),
    _estimates,
    _preset,
    rule(
        "preset",
        lambda c: c.preset == "ogb" and c.filtered,
        "ranks unfiltered among the given candidates; remove filter_paths and train_paths",
        "filter_paths",
        "train_paths",
    ),
    rule(
        "preset",
        lambda c: c.preset in ("ogb", "tgb") and (c.pbg_semantics or c.rank_type not in _REALISTIC),
        "uses realistic ranks; remove rank_type and pbg_semantics",
        "rank_type",
        "pbg_semantics",
    ),
    _breakdowns,
    _topk_metrics,
    _relation_groups,
    rule(
        "save_topk",
        lambda c: c.save_topk is not None and c.candidates != "all",
        "needs candidates = 'all'; add -p candidates=all",
        "candidates",
        "candidate_path",
    ),
    rule(
        "save_topk",
        lambda c: c.save_topk is not None and c.candidates == "all" and c.candidate_path is not None,
        "does not work with candidate_path; remove one of the two",
        "candidates",
        "candidate_path",
    ),
    _sinks,
)
