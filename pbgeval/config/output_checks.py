"""Check the settings of an `EvalConfig` of memory, sampled edges and output.

See `checks.py` for what all checks have in common.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from pbgeval.config.faults import Check, Fault, not_one_of, read_relation_groups, rule
from pbgeval.config.schema import BREAKDOWNS, TRAINING_BREAKDOWNS, EvalConfig
from pbgeval.errors import TRAIN_PATHS, ConfigError
from pbgeval.metrics.breakdown_names import POPULARITY
from pbgeval.metrics.names import (
    DEFAULT,
    METRIC_GROUPS,
    OGB_CUTOFFS,
    PRESETS,
    PROTOCOLS,
    UnknownMetricError,
    key_of_name,
    target_keys,
)
from pbgeval.notation import labels_of
from pbgeval.sinks import TENSORBOARD, missing_tensorboard
from pbgeval.stats.rank_types import RANK_TYPE_SYNONYMS
from pbgeval.storage.text import parse_memory, show


def _memory(config: EvalConfig) -> Iterator[Fault]:
    for key in ("max_memory", "scratch_limit"):
        try:
            _ = getattr(config, key) is None or parse_memory(getattr(config, key))
        except ConfigError as error:
            yield Fault(key, str(error))


def _target_metric(config: EvalConfig) -> Iterator[Fault]:
    if config.target_metric is None or config.rank_type not in (None, *RANK_TYPE_SYNONYMS):  # refused already
        return
    try:
        _ = config.target_key
    except UnknownMetricError:
        names = dict.fromkeys(key.rpartition(".")[2] for key in target_keys(["both"], config.hits_at[:5]))
        yield Fault(
            ("target_metric",),
            f"unknown metric {show(config.target_metric)}; use one of {', '.join(names)} (k of hits_at), optionally"
            " with an enabled side and a rank type in front",
            ["hits_at", "disable_lhs_negs", "disable_rhs_negs"],
        )


def _metrics(config: EvalConfig) -> Iterator[Fault]:
    groups = " or ".join(map(show, METRIC_GROUPS))
    if not config.metrics:
        yield Fault("metrics", f"needs {groups} or names of metrics")
    for index, name in enumerate(config.metrics):
        try:
            if name not in METRIC_GROUPS:
                key_of_name(
                    name,
                    "realistic",
                    labels_of(config.sides),
                    sorted(set(config.hits_at)),
                    with_loss=config.compute_loss,
                )
        except UnknownMetricError as error:
            yield Fault(
                ("metrics", index),
                f"{error}; use {groups} or the name of a metric",
                ["hits_at", "compute_loss", "disable_lhs_negs", "disable_rhs_negs"],
            )


_REALISTIC = (None, "realistic", "average", "avg")


def _preset(config: EvalConfig) -> Iterator[Fault]:
    preset = str(config.preset)
    cutoffs = [k for k in OGB_CUTOFFS if f"hits_at_{k}" in PRESETS.get(preset, ())]
    if config.preset not in (None, *PRESETS):
        yield Fault("preset", not_one_of(PRESETS, config.preset))
    if preset in PRESETS and tuple(config.metrics) != DEFAULT:
        chosen = show(config.metrics)
        yield Fault(
            "preset", f"chooses the metrics itself, but metrics is set to {chosen}; remove one of them", ["metrics"]
        )
    for key, value in PROTOCOLS.get(preset, {}).items():
        if getattr(config, key) != value:
            yield Fault("preset", f"needs {key} = {value!r}; set it", [key])
    if not {*cutoffs} <= {*config.hits_at}:
        yield Fault(
            "preset",
            f"reports hits at {', '.join(map(str, cutoffs))}, but hits_at is {show(config.hits_at)}; add them",
            ["hits_at"],
        )


def _breakdowns(config: EvalConfig) -> Iterator[Fault]:
    for index, name in enumerate(config.breakdowns):
        if name not in BREAKDOWNS:
            yield Fault(("breakdowns", index), not_one_of(BREAKDOWNS, name))
        if name in (*TRAINING_BREAKDOWNS, POPULARITY) and not config.train_paths:
            yield Fault(
                ("breakdowns", index),
                f"{show(name)} counts training edges; set {TRAIN_PATHS}, or remove {show(name)}",
                ["train_paths"],
            )
        if name == POPULARITY and config.save_ranks is False:
            yield Fault(
                ("breakdowns", index),
                "'popularity' follows from saved ranks; remove save_ranks = False, or remove 'popularity'",
                ["save_ranks"],
            )
        if name == "time" and config.time_bin is None:
            yield Fault(("breakdowns", index), "'time' needs time_bin; set it, or remove 'time'", ["time_bin"])
        if name == "groups" and config.relation_groups is None:
            yield Fault(
                ("breakdowns", index),
                "'groups' needs relation_groups; set it, or remove 'groups'",
                ["relation_groups"],
            )


def _topk_metrics(config: EvalConfig) -> Iterator[Fault]:
    """Refuse lists that are not whole, or hold known answers."""
    if not config.topk_metrics:
        return
    if not config.filtered:
        yield Fault(
            "topk_metrics",
            f"leaves known answers out of lists; set {TRAIN_PATHS}, or filter_paths to the same paths as edge_paths",
            ["train_paths", "filter_paths"],
        )
    if any(config.candidates_of(relation) == "sampled" for relation in config.relations):
        yield Fault(
            "topk_metrics",
            "needs candidates = 'all' or 'partition', or candidate_path",
            ["candidates", "candidate_path"],
        )
    if config.sample_edges is not None or config.target_error is not None:
        yield Fault(
            "topk_metrics",
            "needs all edges, because a list is judged by all its answers; remove sample_edges and target_error",
            ["sample_edges", "target_error"],
        )
    if config.save_ranks is False:
        yield Fault("topk_metrics", "follows from saved ranks; remove save_ranks = False", ["save_ranks"])
    if config.known_until is not None:
        yield Fault("topk_metrics", "needs lists that are the same at all times; remove known_until", ["known_until"])
    if config.pbg_semantics:
        yield Fault(
            "topk_metrics",
            "needs pbg_semantics = False, because in PBG the true entity competes with itself",
            ["pbg_semantics"],
        )


def _relation_groups(config: EvalConfig) -> Iterator[Fault]:
    try:
        if os.path.isfile(config.relation_groups or ""):  # a missing file is refused where paths are resolved
            read_relation_groups(str(config.relation_groups))
    except ConfigError as error:
        yield Fault("relation_groups", str(error))


def _sinks(config: EvalConfig) -> Iterator[Fault]:
    for index, name in enumerate(config.sinks):
        message = missing_tensorboard() if name == TENSORBOARD else not_one_of((TENSORBOARD,), name)
        if message is not None:
            yield Fault(("sinks", index), str(message))


OUTPUT_CHECKS: tuple[Check, ...] = (
    _memory,
    rule(
        "target_error",
        lambda c: c.sample_edges is not None and c.target_error is not None,
        "sample_edges is set too; set the number of edges or the error to reach, not both",
        "sample_edges",
    ),
    _target_metric,
    _metrics,
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
