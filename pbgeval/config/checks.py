"""Check the values of an `EvalConfig`, alone and together: PBG's checks and those that it forgot.

The checks must stand a config in which a faulty value was replaced by a blank. A fault that depends on other keys
than its own names them in `involved`: a fault that a blank has caused is not reported, and `-p` is blamed if it set
one of them. This module imports torch, so `loading` imports it when a config is checked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pbgeval.config.effects import refuse_without_effect
from pbgeval.config.faults import Check, Fault, KeyPath, not_one_of, rule
from pbgeval.config.output_checks import OUTPUT_CHECKS
from pbgeval.config.precision import PRECISIONS, obstacle_to_exact
from pbgeval.config.schema import (
    TRAINING_BREAKDOWNS,
    EvalConfig,
    default_of,
    keys_of,
)
from pbgeval.errors import TRAIN_PATHS
from pbgeval.metrics.breakdown_names import POPULARITY
from pbgeval.notation import MAX_PARTITIONS, Side
from pbgeval.ranking.sampled_lists import CandidatePolicy
from pbgeval.scoring.comparators import COMPARATORS
from pbgeval.scoring.loss import LOSSES
from pbgeval.scoring.operators import HALVED, OPERATORS
from pbgeval.stats.rank_types import RANK_TYPE_SYNONYMS
from pbgeval.storage.text import show

_MAX_CUTOFF = 2**40  # no partition is larger
_MAX_CUTOFFS = 1000  # each is a column of every table
_MAX_DIMENSION = 2**20

_BOUNDS: Mapping[str, tuple[int, int | None]] = {
    "batch_size": (1, 10**9),
    "num_batch_negs": (0, 10**6),  # of a chunk, whose scores are in memory at once; `candidates` ranks against more
    "num_uniform_negs": (0, 10**6),
    "num_degree_negs": (0, 10**6),
    "workers": (1, 10_000),
    "dimension": (1, _MAX_DIMENSION),
    "margin": (0, None),
    "sample_edges": (1, 10**15),
    "save_topk": (1, 10_000),
    "time_window": (0, 2**63 - 1),
    "time_bin": (1, 2**63 - 1),
}
_NAME_LISTS = {
    "restrict_entities": "an entity",
    "restrict_relations": "a relation",
    "head_candidates": "an entity",
    "tail_candidates": "an entity",
}
# Lists of names that other code interprets lie there.
_CHOICES: Mapping[str, Sequence[str]] = {
    "comparator": [*COMPARATORS],
    "loss_fn": [*LOSSES],
    "rank_type": [*RANK_TYPE_SYNONYMS],
    "candidates": [policy.value for policy in CandidatePolicy],
    "precision": PRECISIONS,
    "type_constraint": ["schema", "observed"],
    "known_until": ["query"],
    "unknown": ["refuse", "skip"],
}
_NEED_ENTITY_IDS = (
    "filter_paths",
    "train_paths",
    "restrict_entities",
    "head_candidates",
    "tail_candidates",
    "type_constraint",
    "candidate_path",
)


# Values by themselves, and the graph.


def _bounds(config: EvalConfig) -> Iterator[Fault]:
    for key, bounds in _BOUNDS.items():
        yield from _out_of_bounds((key,), getattr(config, key), *bounds)


def _out_of_bounds(path: KeyPath, value: float | None, smallest: int, largest: int | None) -> Iterator[Fault]:
    kind = "an int" if isinstance(value, int) else "a number"
    if value is not None and value < smallest:
        yield Fault(path, f"expected {kind} >= {smallest}, got {value}")
    if value is not None and largest is not None and value > largest:
        yield Fault(path, f"expected {kind} <= {largest}, got {value}")


def _cutoffs(config: EvalConfig) -> Iterator[Fault]:
    for index, k in enumerate(config.hits_at):
        if k > _MAX_CUTOFF:
            yield Fault(("hits_at", index), f"expected an int <= 2**40, got {k}")
        if k < 1:
            yield Fault(("hits_at", index), f"expected an int >= 1, got {k}")


def _choices(config: EvalConfig) -> Iterator[Fault]:
    for key, names in _CHOICES.items():
        value = getattr(config, key)
        if value not in (None, *names):
            yield Fault(key, not_one_of(names, value))
    for index, relation in enumerate(config.relations):
        if relation.operator not in OPERATORS:
            yield Fault(("relations", index, "operator"), not_one_of(sorted(OPERATORS), relation.operator))


def _entities(config: EvalConfig) -> Iterator[Fault]:
    for name, entity in config.entities.items():
        if not name or "/" in name or "\0" in name:
            yield Fault(("entities", name), "the name of an entity type must be usable in a file name")
        yield from _out_of_bounds(("entities", name, "num_partitions"), entity.num_partitions, 1, MAX_PARTITIONS)
        yield from _out_of_bounds(("entities", name, "dimension"), entity.dimension, 1, _MAX_DIMENSION)


def _partition_counts(config: EvalConfig) -> Iterator[Fault]:
    counts = {name: entity.num_partitions for name, entity in config.entities.items() if entity.num_partitions > 1}
    first = next(iter(counts), "")
    for name, count in counts.items():
        if count != counts[first]:
            yield Fault(
                ("entities", name, "num_partitions"),
                f"is {count}, but entities[{first!r}] has {counts[first]}; both need the same number",
                (("entities", first, "num_partitions"),),
            )


def _relations(config: EvalConfig) -> Iterator[Fault]:
    for index, relation in enumerate(config.relations):
        where = ("relations", index)
        if not relation.name:
            yield Fault((*where, "name"), "the name is empty")
        if relation.weight <= 0:
            yield Fault((*where, "weight"), f"expected a number > 0, got {relation.weight}")
        for key, entity_type in (("lhs", relation.lhs), ("rhs", relation.rhs)):
            if entity_type not in config.entities:
                yield Fault(
                    (*where, key),
                    f"unknown entity type {show(entity_type)}; entities has {', '.join(config.entities)}",
                    ["entities"],
                )


def _operators(config: EvalConfig) -> Iterator[Fault]:
    """Check what operators beyond PBG's cannot do."""
    operators: list[tuple[str, KeyPath]] = [
        (relation.operator, ("relations", index, "operator")) for index, relation in enumerate(config.relations)
    ]
    for name, path in operators:
        if config.dynamic_relations and name in OPERATORS and OPERATORS[name].acts_on_both_sides:
            yield Fault(
                "dynamic_relations",
                f"operator {name!r} also changes the candidates; set dynamic_relations = False",
                (path,),
            )


def _precision(config: EvalConfig) -> Iterator[Fault]:
    obstacle = obstacle_to_exact(config) if config.precision == "exact" else None
    if obstacle is not None:
        message = f"'exact' is not defined for {obstacle.what}; use 'float32' or 'float64'"
        yield Fault("precision", message, obstacle.keys)


def _dimension(config: EvalConfig, entity_type: str) -> int | None:
    entity = config.entities.get(entity_type)
    return config.dimension if entity is None or entity.dimension is None else entity.dimension


def _dimension_paths(config: EvalConfig, *entity_types: str) -> tuple[KeyPath, ...]:
    """Return the keys that decide the dimensions of some entity types."""
    own: list[KeyPath] = [("entities", name, "dimension") for name in entity_types]
    is_own = [name in config.entities and config.entities[name].dimension is not None for name in entity_types]
    return (*own,) if all(is_own) else (*own, ("dimension",))


def _dimensions(config: EvalConfig) -> Iterator[Fault]:
    without = ", ".join(repr(name) for name in config.entities if _dimension(config, name) is None)
    if without:
        yield Fault("dimension", f"required key missing: these entity types set no dimension of their own: {without}")
    for name in config.entities:
        if config.bias and _dimension(config, name) == 1:
            yield Fault(
                "bias",
                f"the bias takes one dimension, but entities[{name!r}] has only one; set it to False",
                _dimension_paths(config, name),
            )
    takes_halves = config.comparator in COMPARATORS and COMPARATORS[config.comparator].of_complex_numbers
    for index, relation in enumerate(config.relations):
        lhs, rhs = _dimension(config, relation.lhs), _dimension(config, relation.rhs)
        if lhs is None or rhs is None or not {relation.lhs, relation.rhs} <= config.entities.keys():
            continue
        key: KeyPath = ("relations", index)
        involved = ((*key, "lhs"), (*key, "rhs"), *_dimension_paths(config, relation.lhs, relation.rhs))
        if lhs != rhs:
            yield Fault(
                key,
                "both sides must have the same dimension, but"
                f" {relation.lhs!r} has {lhs} and {relation.rhs!r} has {rhs}",
                involved,
            )
        elif relation.operator in HALVED and rhs % 2:
            yield Fault(
                (*key, "operator"),
                f"{relation.operator} needs an even dimension, but {relation.rhs!r} has {rhs}",
                involved,
            )
        elif takes_halves and (rhs - config.bias) % 2:
            yield Fault(
                ("comparator",),
                f"{config.comparator} needs an even dimension{' (without the bias)' * config.bias}, but "
                f"{relation.rhs!r} has {rhs - config.bias}",
                (("bias",), *involved),
            )


# Which candidates compete: candidates, filters, restrictions.


def _sampled_candidates(config: EvalConfig) -> Iterator[Fault]:
    index = next((index for index, of in enumerate(config.relations) if config.candidates_of(of) == "sampled"), None)
    if index is not None and config.num_batch_negs == config.num_uniform_negs == config.num_degree_negs == 0:
        yield Fault(
            "num_batch_negs",
            f"relations[{index}] is ranked against sampled candidates, but num_batch_negs, num_uniform_negs and"
            " num_degree_negs are all 0; set one of them, or candidates = 'partition'",
            ["num_uniform_negs", ("relations", index, "all_negs"), "candidates"],
        )


def _known_until(config: EvalConfig) -> Iterator[Fault]:
    """Refuse what is observed in known edges of all times, or counted from them, where the future is unknown."""
    if config.known_until is None:
        return
    counts = "counts training edges of all times, also of those later than a query; remove {}, or remove known_until"
    if config.type_constraint == "observed":
        yield Fault(
            "type_constraint",
            "'observed' takes entities from known edges of all times, also of those later than a query; use 'schema',"
            " or remove known_until",
            ["known_until"],
        )
    if config.num_degree_negs > 0:
        yield Fault("num_degree_negs", counts.format("num_degree_negs"), ["known_until"])
    for index, name in enumerate(config.breakdowns):
        if name in (*TRAINING_BREAKDOWNS, POPULARITY):
            yield Fault(("breakdowns", index), f"{show(name)} {counts.format(show(name))}", ["known_until"])


def _beside_given(config: EvalConfig) -> Iterator[Fault]:
    for key in ("head_candidates", "tail_candidates"):
        if config.candidate_path is not None and getattr(config, key) is not None:
            message = "does not work with candidate_path, which lists all candidates; remove one of the two"
            yield Fault(key, message, ["candidate_path"])


def _lists_of_names(config: EvalConfig) -> Iterator[Fault]:
    for key, element in _NAME_LISTS.items():
        names: list[str] | None = getattr(config, key)
        if names == []:
            yield Fault(key, f"empty restriction: give the name of {element}, or remove the key")
        for index, name in enumerate(names or ()):
            if not name.strip():
                yield Fault((key, index), f"expected the name of {element}, got {show(name)}")


def _featurized(config: EvalConfig) -> Iterator[Fault]:
    """Featurized entities can only be candidates as entities of the other edges of a chunk."""
    if config.candidate_path is not None:  # `_entity_ids` refuses it
        return
    hidden = [side for side in config.sides if side is not Side.REL]
    sampled: dict[str, tuple[str | KeyPath, ...]] = {}
    for index, relation in enumerate(config.relations):
        for name in dict.fromkeys(side.pick(relation.lhs, relation.rhs) for side in hidden):
            involved: tuple[str | KeyPath, ...] = ("candidates", ("entities", name, "featurized"))
            if _is_featurized(config, name) and config.candidates_of(relation) == "sampled":
                sampled.setdefault(name, (*involved, ("relations", index, "all_negs")))
            elif _is_featurized(config, name):
                key: KeyPath = ("candidates",) if config.candidates else ("relations", index, "all_negs")
                expected, found = ("'sampled'", show(config.candidates)) if config.candidates else ("False", "True")
                yield Fault(key, f"entity type {name!r} is featurized, so use {expected}, not {found}", involved)
    for name, involved in sampled.items():
        if config.num_batch_negs == 0:
            yield Fault(
                "num_batch_negs",
                f"entity type {name!r} is featurized and has no other candidates; set it to at least 1",
                involved,
            )
        if config.num_uniform_negs > 0 and not config.pbg_semantics:
            yield Fault(
                "num_uniform_negs",
                f"entity type {name!r} is featurized, so this must be 0, got {config.num_uniform_negs}",
                ["pbg_semantics", *involved],
            )


def _entity_ids(config: EvalConfig) -> Iterator[Fault]:
    """Refuse settings that need ids of entities where entities are sets of features, which have no ids."""
    types = (name for relation in config.relations for name in (relation.lhs, relation.rhs))
    name = next((name for name in types if _is_featurized(config, name)), None)
    for key in _NEED_ENTITY_IDS if name is not None else ():
        if getattr(config, key) != default_of(keys_of(EvalConfig)[key]):
            yield Fault(
                key,
                f"entity type {name!r} is featurized, so its entities have no ids; remove the key",
                [("entities", str(name), "featurized"), "relations"],
            )


def _is_featurized(config: EvalConfig, entity_type: str) -> bool:
    return entity_type in config.entities and config.entities[entity_type].featurized


_LOSS = (
    "PBG's loss needs candidates = 'sampled' or 'partition'; compute it in a separate run, or set compute_loss = False"
)

CHECKS: tuple[Check, ...] = (
    _bounds,
    rule(
        "max_norm", lambda c: c.max_norm is not None and c.max_norm <= 0, "expected a number > 0 or None, got {found}"
    ),
    rule(
        "target_error",
        lambda c: c.target_error is not None and c.target_error <= 0,
        "expected a number > 0 or None, got {found}",
    ),
    rule("seed", lambda c: not 0 <= c.seed < 2**63, "expected an int >= 0 and < 2**63, got {found}"),
    rule("hits_at", lambda c: not c.hits_at, "needs at least one k"),
    rule(
        "hits_at",
        lambda c: len(c.hits_at) > _MAX_CUTOFFS,
        f"{{length}} values of k; at most {_MAX_CUTOFFS} are allowed",
    ),
    _cutoffs,
    _choices,
    rule("entities", lambda c: not c.entities, "needs at least one entity type"),
    _entities,
    rule("edge_paths", lambda c: not c.edge_paths, "needs at least one path"),
    _partition_counts,
    rule("relations", lambda c: not c.relations, "needs at least one relation"),
    _relations,
    rule(
        "relations",
        lambda c: c.dynamic_relations and len(c.relations) > 1,
        "dynamic_relations = True needs exactly one entry, got {length}",
        "dynamic_relations",
    ),
    rule(
        "global_emb",
        lambda c: c.dynamic_relations and c.global_emb,
        "dynamic relations have no global embeddings; set global_emb = False (PBG's default is True)",
        "dynamic_relations",
    ),
    _operators,
    _precision,
    rule(
        "disable_rhs_negs",
        lambda c: c.disable_lhs_negs and c.disable_rhs_negs,
        "disable_lhs_negs is True too, so nothing would be ranked; set one of them to False",
        "disable_lhs_negs",
    ),
    _dimensions,
    # which candidates compete
    rule(
        "batch_size",
        lambda c: c.pbg_semantics and c.num_batch_negs > 0 and c.batch_size > 0 and c.batch_size % c.num_batch_negs,
        "must be a multiple of num_batch_negs ({config.num_batch_negs}), got {found}",
        "num_batch_negs",
    ),
    _sampled_candidates,
    rule(
        "relation_prediction",
        lambda c: (
            c.relation_prediction
            and (c.candidate_path is not None or any(c.candidates_of(of) == "sampled" for of in c.relations))
        ),
        "needs candidates = 'all' or 'partition', and no candidate_path, as relations are not sampled",
        "candidates",
        "candidate_path",
        "relations",
    ),
    rule(
        "relation_prediction",
        lambda c: c.relation_prediction and c.pbg_semantics,
        "pbg_semantics = True does not allow it, because torchbiggraph_eval ranks no relations",
        "pbg_semantics",
    ),
    _known_until,
    rule(
        "degree_power",
        lambda c: not 0 < c.degree_power <= 16,  # beyond, degrees of millions overflow anyway
        "expected a number > 0 and <= 16, got {found}",
    ),
    rule(
        "num_degree_negs",
        lambda c: c.num_degree_negs > 0 and not c.train_paths,
        f"counts training edges; set {TRAIN_PATHS}",
        "train_paths",
    ),
    rule(
        "num_degree_negs",
        lambda c: c.num_degree_negs > 0 and c.pbg_semantics,
        "pbg_semantics = True does not allow draws by degree, because PBG has none; remove one of the two",
        "pbg_semantics",
    ),
    rule(
        "workers",
        lambda c: c.pbg_semantics and c.workers is None,
        "pbg_semantics = True needs the key workers (-p workers=N): PBG's number of workers (its default is the core"
        " count), because PBG cuts each bucket into that many slices; how many workers run here does not set it",
        "pbg_semantics",
    ),
    rule(
        "candidates",
        lambda c: c.pbg_semantics and c.candidates == "all",
        "pbg_semantics = True does not allow 'all', because torchbiggraph_eval ranks within one partition; use"
        " 'sampled' or 'partition'",
        "pbg_semantics",
    ),
    rule(
        "candidate_path",
        lambda c: c.pbg_semantics and c.candidate_path is not None,
        "pbg_semantics = True does not allow given candidates; remove one of the two",
        "pbg_semantics",
    ),
    rule(
        "sample_edges",
        lambda c: c.pbg_semantics and c.sample_edges is not None,
        "pbg_semantics = True does not allow sampling, because torchbiggraph_eval evaluates every edge; remove the key",
        "pbg_semantics",
    ),
    rule(
        "target_error",
        lambda c: c.pbg_semantics and c.target_error is not None,
        "pbg_semantics = True does not allow sampling, because torchbiggraph_eval evaluates every edge; remove the key",
        "pbg_semantics",
    ),
    rule(
        "compute_loss",
        lambda c: c.compute_loss and c.candidates == "all",
        _LOSS,
        "candidates",
    ),
    rule(
        "compute_loss",
        lambda c: c.compute_loss and c.candidates != "all" and c.candidate_path is not None,
        _LOSS,
        "candidate_path",
    ),
    rule(
        "candidates",
        lambda c: c.candidate_path is not None and c.candidates not in (None, "all"),
        "candidate_path lists the candidates, so this must be 'all' or unset, got {found}; remove one of the two",
        "candidate_path",
    ),
    _beside_given,
    _lists_of_names,
    _featurized,
    _entity_ids,
    refuse_without_effect,
    *OUTPUT_CHECKS,
)
