"""`EvalConfig` -> what its settings of sampled edges, memory and output must satisfy.

See `checks.py` for what all checks have in common.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from pbgeval.config.faults import Fault, KeyPath, not_one_of, show, wrong_type
from pbgeval.config.schema import BREAKDOWNS, TRAINING_BREAKDOWNS, EvalConfig, parse_memory
from pbgeval.errors import ConfigError
from pbgeval.sinks import SINKS, missing_library
from pbgeval.storage.text import read_bytes

# The file of `relation_groups` -> names of groups and of the relations in each.

_FORM = 'a JSON object such as {"family": ["parent_of", "child_of"]}'


def read_relation_groups(path: str | Path) -> dict[str, list[str]]:
    """Read named groups of relations; whether the relations exist is for the caller to see.

    A relation may be in several groups, or in none.

    Returns:
        The names of the relations of each group, as the file has them.

    Raises:
        ConfigError: The file cannot be read, is not JSON, or is not an object whose values are lists of strings.
    """
    try:
        groups = json.loads(read_bytes(Path(path)).decode("utf-8-sig"), object_pairs_hook=_without_repeats)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path}:{error.lineno}:{error.colno}: not valid JSON: {error.msg}") from error
    except OSError as error:
        raise ConfigError(f"{path}: expected a file that can be read, got: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError included
        raise ConfigError(f"{path}: not valid JSON: {' '.join(str(error).split())}") from error
    if not isinstance(groups, dict) or not groups:
        raise ConfigError(f"{path}: expected {_FORM}, got {show(groups)}")
    for group, names in groups.items():
        _check_group(f"{path}: group {show(group)}", names)
    return groups


def _check_group(where: str, names: object) -> None:
    if not isinstance(names, list):
        raise ConfigError(f"{where}: {wrong_type('a list of names of relations', names)}")
    if not names:
        raise ConfigError(f"{where}: expected at least one relation, got []")
    for index, name in enumerate(names):
        if not isinstance(name, str):
            raise ConfigError(f"{where}: element {index}: {wrong_type('the name of a relation', name)}")


def _without_repeats(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Refuse a group that is there twice: JSON would keep the last and drop the other."""
    for name, count in Counter(name for name, _ in pairs).items():
        if count > 1:
            raise ValueError(f"the name {show(name)} is there {count} times")
    return dict(pairs)


def _memory(config: EvalConfig) -> Iterator[Fault]:
    try:
        _ = config.max_memory_bytes
    except ConfigError as error:
        yield Fault(("max_memory",), str(error))
    try:
        _ = config.scratch_limit is None or parse_memory(config.scratch_limit)
    except ConfigError as error:
        yield Fault(("scratch_limit",), str(error))


def _sample(config: EvalConfig) -> Iterator[Fault]:
    if config.sample_edges is not None and config.target_error is not None:
        message = (
            f"expected None with sample_edges = {config.sample_edges}, got {config.target_error};"
            " set the number of edges or the error to reach, not both"
        )
        yield Fault(("target_error",), message, (("sample_edges",),))
    if config.target_metric is None:
        return
    if config.target_error is None:
        message = f"expected None without target_error, got {show(config.target_metric)}; set target_error too"
        yield Fault(("target_metric",), message, (("target_error",),))
    if config.rank_type is None or config.rank_type in _rank_types():  # else it is refused already
        yield from _target_metric(config)


def _rank_types() -> frozenset[str]:
    from pbgeval.stats.ranks import RANK_TYPE_SYNONYMS  # here: it imports torch

    return frozenset(RANK_TYPE_SYNONYMS)


def _target_metric(config: EvalConfig) -> Iterator[Fault]:
    from pbgeval.metrics.names import UnknownMetricError

    try:
        _ = config.target_key
    except UnknownMetricError:
        cutoffs = " or ".join(f"hits_at_{k}" for k in config.hits_at[:5])
        message = (
            f"expected mean_rank, mean_reciprocal_rank, query_auc{' or ' if cutoffs else ''}{cutoffs} (hits_at), with"
            f" an enabled side and a rank type in front if wanted, got {show(config.target_metric)}"
        )
        sides: tuple[KeyPath, ...] = (("disable_lhs_negs",), ("disable_rhs_negs",))
        yield Fault(("target_metric",), message, (("hits_at",), *sides))


def _metrics(config: EvalConfig) -> Iterator[Fault]:
    from pbgeval.metrics.names import METRIC_GROUPS, UnknownMetricError, check_name  # here: they import torch

    if not config.metrics:
        yield Fault(("metrics",), f"expected {' or '.join(map(show, METRIC_GROUPS))} or names of metrics, got []")
    sides = [side for side, off in (("head", config.disable_lhs_negs), ("tail", config.disable_rhs_negs)) if not off]
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
            involved: tuple[KeyPath, ...] = (("hits_at",), ("compute_loss",), ("disable_lhs_negs",))
            message = f"expected {' or '.join(map(show, METRIC_GROUPS))} or the name of a metric: {error}"
            yield Fault(("metrics", index), message, (*involved, ("disable_rhs_negs",)))


def _types(config: EvalConfig) -> Iterator[Fault]:
    if config.taxonomy_path is not None:
        yield from _types_of_taxonomy(config)
        return
    from pbgeval.metrics.names import Selection

    taxonomy: KeyPath = ("taxonomy_path",)
    if config.type_relations is not None:
        yield Fault(("type_relations",), "needs taxonomy_path, got None; set it", (taxonomy,))
    for index, name in enumerate(config.metrics):
        if Selection.of([name]).ndcg:
            message = f"{show(name)} needs a hierarchy of types: expected taxonomy_path, got None; set it"
            yield Fault(("metrics", index), message, (taxonomy,))


def _types_of_taxonomy(config: EvalConfig) -> Iterator[Fault]:
    """Queries for types rank all type entities, and know all evaluated answers."""
    taxonomy: KeyPath = ("taxonomy_path",)
    if not config.type_relations:
        found = show(config.type_relations)
        yield Fault(taxonomy, f"needs type_relations, got {found}; name the relations to types", (("type_relations",),))
    message = "expected None, as types are ranked among all entities only with candidates = 'all', got a path"
    if config.candidates != "all":
        yield Fault(taxonomy, f"{message}; set candidates = 'all'", (("candidates",),))
    elif config.candidate_path is not None:
        yield Fault(taxonomy, f"{message}; remove candidate_path", (("candidate_path",),))
    for key in ("sample_edges", "target_error"):
        if getattr(config, key) is not None:
            reason = "a query for types needs all of its true ones"
            yield Fault(taxonomy, f"expected {key} unset, got {getattr(config, key)}; {reason}", ((key,),))
    if config.disable_rhs_negs:
        reason = "no query asks for the right-hand side, where types are"
        yield Fault(taxonomy, f"expected disable_rhs_negs = False, got True; {reason}", (("disable_rhs_negs",),))


def _estimates(config: EvalConfig) -> Iterator[Fault]:
    """Only uniform draws tell of those from whom they were drawn."""
    from pbgeval.metrics.names import ESTIMATES

    if ESTIMATES not in config.metrics or config.preset is not None:  # together they are refused already
        return
    where: KeyPath = ("metrics", config.metrics.index(ESTIMATES))
    if config.pbg_semantics:
        message = "expected pbg_semantics = False, as PBG lets the true entity compete with itself, got True"
        yield Fault(where, f"'estimates': {message}", (("pbg_semantics",),))
    for index, relation in enumerate(config.relations):
        candidates = "given" if config.candidate_path is not None else config.candidates_of(relation)
        if candidates != "sampled":
            message = f"expected sampled candidates, as of others nothing is left to estimate; relations[{index}] has"
            involved: tuple[KeyPath, ...] = (("candidates",), ("candidate_path",), ("relations", index, "all_negs"))
            yield Fault(where, f"'estimates': {message} {show(candidates)}", involved)
            break
    featurized = [name for name in config.used_entity_types if config.entities[name].featurized]
    if featurized:
        message = f"expected types whose entities can be drawn, got {show(featurized[0])}, which is featurized"
        yield Fault(where, f"'estimates': {message}", (("entities", featurized[0], "featurized"),))
    elif config.num_batch_negs:
        message = f"expected num_batch_negs = 0, got {config.num_batch_negs}; entities of a batch are no uniform draws"
        reason = "they are drawn as often as they have edges, and tell nothing of the rank among all"
        yield Fault(where, f"'estimates': {message}: {reason}", (("num_batch_negs",),))


def _preset(config: EvalConfig) -> Iterator[Fault]:
    from pbgeval.metrics.names import DEFAULT, OGB_CUTOFFS, PRESETS

    if config.preset is None:
        return
    if config.preset not in PRESETS:
        yield Fault(("preset",), not_one_of(tuple(PRESETS), config.preset))
        return
    where: KeyPath = ("preset",)
    if tuple(config.metrics) != DEFAULT:
        message = f"chooses the metrics itself: expected metrics unset, got {show(config.metrics)}; remove one of them"
        yield Fault(where, message, (("metrics",),))
    if config.filtered:
        message = (
            "ranks among the candidates that it is given, unfiltered: expected neither filter_paths nor train_paths"
        )
        yield Fault(where, f"{message}; remove them", (("filter_paths",), ("train_paths",)))
    if config.pbg_semantics or config.rank_type not in (None, "realistic", "average", "avg"):
        message = "has realistic ranks: expected rank_type and pbg_semantics unset; remove them"
        yield Fault(where, message, (("rank_type",), ("pbg_semantics",)))
    missing = [k for k in OGB_CUTOFFS if k not in config.hits_at]
    if missing:
        yield Fault(
            where, f"reports hits at 1, 3 and 10: expected them in hits_at, got {config.hits_at}", (("hits_at",),)
        )


def _breakdowns(config: EvalConfig) -> Iterator[Fault]:
    for index, name in enumerate(config.breakdowns):
        where: KeyPath = ("breakdowns", index)
        if name not in BREAKDOWNS:
            yield Fault(where, not_one_of(BREAKDOWNS, name))
        if name in TRAINING_BREAKDOWNS and not config.train_paths:
            message = f"{show(name)} counts training edges: expected train_paths, got []; set it or remove {show(name)}"
            yield Fault(where, message, (("train_paths",),))
        if name == "groups" and config.relation_groups is None:
            message = "'groups' needs relation_groups, got None; set it or remove 'groups'"
            yield Fault(where, message, (("relation_groups",),))


def _relation_groups(config: EvalConfig) -> Iterator[Fault]:
    path = config.relation_groups
    if path is None or not os.path.isfile(path):  # a missing file is refused where paths are resolved
        return
    try:
        read_relation_groups(path)
    except ConfigError as error:
        yield Fault(("relation_groups",), str(error))


def _topk(config: EvalConfig) -> Iterator[Fault]:
    if config.save_topk is None:
        return
    involved: tuple[KeyPath, ...] = (("candidates",), ("candidate_path",))
    if config.candidates != "all":
        found = f"got {config.save_topk}; set candidates = 'all'"
        message = f"expected None, as the best are sought among all entities only with candidates = 'all', {found}"
        yield Fault(("save_topk",), message, involved)
    elif config.candidate_path is not None:
        message = (
            f"expected None with candidate_path, got {config.save_topk}; given lists are not searched for the best"
        )
        yield Fault(("save_topk",), message, involved)


def _sinks(config: EvalConfig) -> Iterator[Fault]:
    for index, name in enumerate(config.sinks):
        fault = missing_library(name) if name in SINKS else not_one_of(SINKS, name)
        if fault is not None:
            yield Fault(("sinks", index), fault)


OUTPUT_CHECKS: tuple[Callable[[EvalConfig], Iterator[Fault]], ...] = (
    _memory,
    _sample,
    _metrics,
    _types,
    _estimates,
    _preset,
    _breakdowns,
    _relation_groups,
    _topk,
    _sinks,
)
