"""`EvalConfig` -> what its values must satisfy, alone and together: PBG's checks and those that it forgot.

The checks must stand a config in which a faulty value was replaced by a blank. A fault that depends on other keys
than its own names them in `involved`: a fault that a blank has caused is not reported, and `-p` is blamed if it set
one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

from pbgeval.config.checks_of_output import OUTPUT_CHECKS
from pbgeval.config.faults import Fault, KeyPath, not_one_of, show
from pbgeval.config.schema import PRECISIONS, TYPE_CONSTRAINTS, EvalConfig, RelationSchema, default_of, keys_of
from pbgeval.notation import MOST_PARTITIONS

# `EvalConfig` -> what its settings of who competes must satisfy together: candidates, filters, restrictions.
#
# See `checks.py` for what all checks have in common.

_PBG: KeyPath = ("pbg_semantics",)
_GIVEN: KeyPath = ("candidate_path",)
_LISTS = {
    "restrict_entities": "an entity",
    "restrict_relations": "a relation",
    "head_candidates": "an entity",
    "tail_candidates": "an entity",
}


def _sampling(config: EvalConfig) -> Iterator[Fault]:
    batch, uniform = config.num_batch_negs, config.num_uniform_negs
    if batch > 0 and config.batch_size > 0 and config.batch_size % batch:
        message = f"must be a multiple of num_batch_negs ({batch}), got {config.batch_size}"
        yield Fault(("batch_size",), message, (("num_batch_negs",),))
    if batch != 0 or uniform != 0:
        return
    for index, relation in enumerate(config.relations):
        if config.candidates_of(relation) == "sampled":
            message = (
                f"expected an int >= 1, or num_uniform_negs >= 1, as relations[{index}] is ranked against sampled"
                " candidates, got 0 for both; or set all_negs = True or candidates = 'partition'"
            )
            involved: tuple[KeyPath, ...] = (("num_uniform_negs",), ("relations", index, "all_negs"), ("candidates",))
            yield Fault(("num_batch_negs",), message, involved)
            return


def _pbg_semantics(config: EvalConfig) -> Iterator[Fault]:
    if not config.pbg_semantics:
        return
    if config.workers is None:
        message = (
            "required with pbg_semantics = True: PBG cuts each bucket into that many slices before it draws chunks,"
            " so the number is part of its protocol; set the one that PBG ran with (its default is the core count)"
        )
        yield Fault(("workers",), message, (_PBG,))
    if config.candidates == "all":
        message = (
            "expected None, 'sampled' or 'partition' with pbg_semantics = True, got 'all'; torchbiggraph_eval ranks"
            " within the partitions of a bucket only"
        )
        yield Fault(("candidates",), message, (_PBG,))
    if config.precision == "certified":
        message = (
            "expected 'float32' or 'float64' with pbg_semantics = True, got 'certified'; torchbiggraph_eval compares"
            " rounded scores, and which near-ties rounding makes is part of its figures"
        )
        yield Fault(("precision",), message, (_PBG,))
    for key, reason in (
        ("candidate_path", "has no given candidates"),
        ("sample_edges", "evaluates every edge"),
        ("target_error", "evaluates every edge"),
    ):
        if getattr(config, key) is not None:
            found = show(getattr(config, key))
            message = f"expected None with pbg_semantics = True, got {found}; torchbiggraph_eval {reason}"
            yield Fault((key,), message, (_PBG,))


def _loss(config: EvalConfig) -> Iterator[Fault]:
    if not config.compute_loss:
        return
    if config.candidates == "all":
        message = (
            "expected False with candidates = 'all', got True; PBG's loss is defined on one partition's candidates"
        )
        yield Fault(("compute_loss",), message, (("candidates",),))
    elif config.candidate_path is not None:
        message = "expected False with candidate_path, got True; PBG's loss is defined on one partition's candidates"
        yield Fault(("compute_loss",), message, (_GIVEN,))


def _given_candidates(config: EvalConfig) -> Iterator[Fault]:
    """Given lists say by themselves who competes."""
    if config.candidate_path is None:
        return
    if config.candidates not in (None, "all"):
        message = f"expected None or 'all' with candidate_path, got {show(config.candidates)}; remove one of the two"
        yield Fault(("candidates",), message, (_GIVEN,))
    for key in ("type_constraint", "head_candidates", "tail_candidates"):
        default = default_of(keys_of(EvalConfig)[key])
        if getattr(config, key) != default:
            found = show(getattr(config, key))
            message = f"expected {default!r} with candidate_path, got {found}; the lists given say who competes"
            yield Fault((key,), message, (_GIVEN,))


def _lists_of_names(config: EvalConfig) -> Iterator[Fault]:
    for key, element in _LISTS.items():
        names: list[str] | None = getattr(config, key)
        if names is None:
            continue
        if not names:
            message = f"empty restriction: expected the name of {element}, or several, or None, got []; remove the key"
            yield Fault((key,), message)
        for index, name in enumerate(names):
            if not name.strip():
                yield Fault((key, index), f"expected the name of {element}, got {show(name)}")


def _featurized(config: EvalConfig) -> Iterator[Fault]:
    """Featurized entities can only be candidates as entities of the other edges of a chunk."""
    sampled: dict[str, tuple[KeyPath, ...]] = {}
    for index, relation in enumerate(config.relations):
        if config.candidate_path is not None:  # `_known_by_number` refuses it
            break
        for name in _candidate_types(config, relation):
            if not _is_featurized(config, name):
                continue
            involved: tuple[KeyPath, ...] = (("candidates",), ("entities", name, "featurized"))
            if config.candidates_of(relation) == "sampled":
                sampled.setdefault(name, (*involved, ("relations", index, "all_negs")))
            else:
                key: KeyPath = ("candidates",) if config.candidates else ("relations", index, "all_negs")
                expected = "'sampled'" if config.candidates else "False"
                found = show(config.candidates or True)
                message = f"expected {expected}, as entity type {name!r} is featurized, got {found}"
                yield Fault(key, message, involved)
    for name, involved in sampled.items():
        if config.num_batch_negs == 0:
            message = f"expected an int >= 1, as entity type {name!r} is featurized and has no other candidates, got 0"
            yield Fault(("num_batch_negs",), message, involved)
        if config.num_uniform_negs > 0 and not config.pbg_semantics:
            message = f"expected 0, as entity type {name!r} is featurized, got {config.num_uniform_negs}"
            yield Fault(("num_uniform_negs",), message, (*involved, _PBG))


_BY_NUMBER = (
    "filter_paths",
    "train_paths",
    "restrict_entities",
    "head_candidates",
    "tail_candidates",
    "type_constraint",
    "candidate_path",
)


def _known_by_number(config: EvalConfig) -> Iterator[Fault]:
    """Refuse what finds an entity by its number where entities are sets of features, which have none."""
    types = (name for relation in config.relations for name in (relation.lhs, relation.rhs))
    name = next((name for name in types if _is_featurized(config, name)), None)
    if name is None:
        return
    for key in _BY_NUMBER:
        default = default_of(keys_of(EvalConfig)[key])
        if getattr(config, key) != default:
            found = show(getattr(config, key))
            message = (
                f"expected {default!r}, as entity type {name!r} is featurized, got {found};"
                " an entity that is a set of features has no number to be found by"
            )
            yield Fault((key,), message, (("entities", name, "featurized"), ("relations",)))


def _is_featurized(config: EvalConfig, entity_type: str) -> bool:
    return entity_type in config.entities and config.entities[entity_type].featurized


def _candidate_types(config: EvalConfig, relation: RelationSchema) -> list[str]:
    """The entity types on the sides of a relation that are hidden in some query."""
    sides = ((relation.lhs, config.disable_lhs_negs), (relation.rhs, config.disable_rhs_negs))
    return list(dict.fromkeys(entity_type for entity_type, is_disabled in sides if not is_disabled))


COMPETITION_CHECKS: tuple[Callable[[EvalConfig], Iterator[Fault]], ...] = (
    _sampling,
    _pbg_semantics,
    _loss,
    _given_candidates,
    _lists_of_names,
    _featurized,
    _known_by_number,
)


Check: TypeAlias = Callable[[EvalConfig], Iterator[Fault]]

_LARGEST_CUTOFF = 2**40  # no partition is larger
_MOST_CUTOFFS = 1000  # each is a column of every table
_MOST_DIMENSIONS = 2**20

_BOUNDS: Mapping[str, tuple[int, int | None]] = {
    "batch_size": (1, 10**9),
    "num_batch_negs": (0, 10**6),  # of a chunk, whose scores are in memory at once; `candidates` ranks against more
    "num_uniform_negs": (0, 10**6),
    "workers": (1, 10_000),
    "dimension": (1, _MOST_DIMENSIONS),
    "margin": (0, None),
    "sample_edges": (1, 10**15),
    "save_topk": (1, 10_000),
}
_ENTITIES: KeyPath = ("entities",)


def find_faults(config: EvalConfig) -> Iterator[Fault]:
    """Run every check."""
    for check in CHECKS:
        yield from check(config)


def _ranges(config: EvalConfig) -> Iterator[Fault]:
    for key, bounds in _BOUNDS.items():
        yield from _out_of_bounds((key,), getattr(config, key), *bounds)
    if config.max_norm is not None and config.max_norm <= 0:
        yield Fault(("max_norm",), f"expected a number > 0 or None, got {config.max_norm}")
    if config.target_error is not None and config.target_error <= 0:
        yield Fault(("target_error",), f"expected a number > 0 or None, got {config.target_error}")
    if not 0 <= config.seed < 2**63:
        yield Fault(("seed",), f"expected an int >= 0 and < 2**63, got {config.seed}")
    if not config.hits_at:
        yield Fault(("hits_at",), "expected at least one k, got []")
    if len(config.hits_at) > _MOST_CUTOFFS:
        yield Fault(("hits_at",), f"expected at most {_MOST_CUTOFFS} k, got {len(config.hits_at)}")
    for index, k in enumerate(config.hits_at):
        if k > _LARGEST_CUTOFF:
            yield Fault(("hits_at", index), f"expected an int <= 2**40, got {k}")
        yield from _out_of_bounds(("hits_at", index), k, 1, None)


def _out_of_bounds(path: KeyPath, value: float | None, smallest: int, largest: int | None) -> Iterator[Fault]:
    kind = "an int" if isinstance(value, int) else "a number"
    if value is not None and value < smallest:
        yield Fault(path, f"expected {kind} >= {smallest}, got {value}")
    if value is not None and largest is not None and value > largest:
        yield Fault(path, f"expected {kind} <= {largest}, got {value}")


def _names(config: EvalConfig) -> Iterator[Fault]:
    # Each list of names lies with the code that interprets them; imported here, as it brings torch.
    from pbgeval.ranking.chunks import CandidatePolicy
    from pbgeval.scoring.comparators import COMPARATORS
    from pbgeval.scoring.loss import LOSSES
    from pbgeval.scoring.operators import OPERATORS
    from pbgeval.stats.ranks import RANK_TYPE_SYNONYMS

    if config.comparator not in COMPARATORS:
        yield Fault(("comparator",), not_one_of(COMPARATORS, config.comparator))
    if config.loss_fn not in LOSSES:
        yield Fault(("loss_fn",), not_one_of(LOSSES, config.loss_fn))
    if config.rank_type is not None and config.rank_type not in RANK_TYPE_SYNONYMS:
        yield Fault(("rank_type",), not_one_of(RANK_TYPE_SYNONYMS, config.rank_type))
    policies = [policy.value for policy in CandidatePolicy]
    if config.candidates is not None and config.candidates not in policies:
        yield Fault(("candidates",), not_one_of(policies, config.candidates))
    if config.precision not in PRECISIONS:
        yield Fault(("precision",), not_one_of(PRECISIONS, config.precision))
    if config.type_constraint not in TYPE_CONSTRAINTS:
        yield Fault(("type_constraint",), not_one_of(TYPE_CONSTRAINTS, config.type_constraint))
    for index, relation in enumerate(config.relations):
        if relation.operator not in OPERATORS:
            yield Fault(("relations", index, "operator"), not_one_of(sorted(OPERATORS), relation.operator))


def _entities(config: EvalConfig) -> Iterator[Fault]:
    if not config.entities:
        yield Fault(_ENTITIES, "expected at least one entity type, got none")
    for name, entity in config.entities.items():
        if not name or "/" in name or "\0" in name:
            yield Fault(("entities", name), "expected a name that can be part of a file name")
        yield from _out_of_bounds(("entities", name, "num_partitions"), entity.num_partitions, 1, MOST_PARTITIONS)
        yield from _out_of_bounds(("entities", name, "dimension"), entity.dimension, 1, _MOST_DIMENSIONS)


def _edge_paths(config: EvalConfig) -> Iterator[Fault]:
    if not config.edge_paths:
        yield Fault(("edge_paths",), "expected at least one directory, got []")


def _partition_counts(config: EvalConfig) -> Iterator[Fault]:
    partitioned = [
        (name, entity.num_partitions) for name, entity in config.entities.items() if entity.num_partitions > 1
    ]
    for name, count in partitioned[1:]:
        first, expected = partitioned[0]
        if count != expected:
            yield Fault(
                ("entities", name, "num_partitions"),
                f"must equal that of {first!r} ({expected}), got {count}",
                (("entities", first, "num_partitions"),),
            )


def _relations(config: EvalConfig) -> Iterator[Fault]:
    if not config.relations:
        yield Fault(("relations",), "expected at least one relation, got none")
    for index, relation in enumerate(config.relations):
        if not relation.name:
            yield Fault(("relations", index, "name"), "expected a name, got ''")
        if relation.weight <= 0:
            yield Fault(("relations", index, "weight"), f"expected a number > 0, got {relation.weight}")
        for key, entity_type in (("lhs", relation.lhs), ("rhs", relation.rhs)):
            if entity_type not in config.entities:
                expected = f"expected an entity type ({', '.join(config.entities)}), got {show(entity_type)}"
                yield Fault(("relations", index, key), expected, (_ENTITIES,))


def _dynamic_relations(config: EvalConfig) -> Iterator[Fault]:
    if not config.dynamic_relations:
        return
    dynamic: KeyPath = ("dynamic_relations",)
    if len(config.relations) > 1:
        found = f"expected exactly one with dynamic_relations = True, got {len(config.relations)}"
        yield Fault(("relations",), found, (dynamic,))
    if config.global_emb:
        message = "expected False with dynamic_relations = True, got True (PBG's default); set global_emb = False"
        yield Fault(("global_emb",), message, (dynamic,))


def _own_operators(config: EvalConfig) -> Iterator[Fault]:
    """What ours beside PBG's cannot do."""
    from pbgeval.scoring.certified import CERTIFIED_COMPARATORS, CERTIFIED_OPERATORS
    from pbgeval.scoring.comparators import COMPARATORS
    from pbgeval.scoring.operators import OPERATORS

    for index, relation in enumerate(config.relations):
        operator = OPERATORS.get(relation.operator)
        if config.dynamic_relations and operator is not None and operator.acts_on_both_sides:
            message = f"expected False with operator {relation.operator!r}, which acts on candidates too, got True"
            yield Fault(("dynamic_relations",), message, (("relations", index, "operator"),))
    if config.precision != "certified":
        return
    names = [("comparator", config.comparator, CERTIFIED_COMPARATORS, ("comparator",))] + [
        ("operator", relation.operator, CERTIFIED_OPERATORS, ("relations", index, "operator"))
        for index, relation in enumerate(config.relations)
    ]
    for kind, name, certified, path in names:
        if name in OPERATORS.keys() | COMPARATORS.keys() and name not in certified:
            message = (
                f"expected 'float32' or 'float64' with {kind} {name!r}, got 'certified'; exact scores are known of"
            )
            yield Fault(("precision",), f"{message} {', '.join(certified)}", (path,))
            return


def _sides(config: EvalConfig) -> Iterator[Fault]:
    if config.disable_lhs_negs and config.disable_rhs_negs:
        message = "expected False as disable_lhs_negs = True, got True; nothing would be ranked"
        yield Fault(("disable_rhs_negs",), message, (("disable_lhs_negs",),))


def _dimension(config: EvalConfig, entity_type: str) -> int | None:
    entity = config.entities.get(entity_type)
    return config.dimension if entity is None or entity.dimension is None else entity.dimension


def _dimension_paths(config: EvalConfig, *entity_types: str) -> tuple[KeyPath, ...]:
    """The keys that decide the dimensions of some entity types."""
    paths: list[KeyPath] = []
    for name in entity_types:
        paths.append(("entities", name, "dimension"))
        if name not in config.entities or config.entities[name].dimension is None:
            paths.append(("dimension",))
    return tuple(paths)


def _dimensions(config: EvalConfig) -> Iterator[Fault]:
    without = [name for name in config.entities if _dimension(config, name) is None]
    if without:
        types = ", ".join(map(repr, without))
        yield Fault(("dimension",), f"required key missing; entities without a dimension of their own: {types}")
    for name in config.entities:
        dimension = _dimension(config, name)
        if config.bias and dimension == 1:
            paths = _dimension_paths(config, name)
            message = f"expected False or dimensions >= 2, as one of them is the bias; entities[{name!r}] has 1"
            yield Fault(("bias",), message, paths)


def _dimensions_of_relations(config: EvalConfig) -> Iterator[Fault]:
    from pbgeval.scoring.comparators import COMPARATORS
    from pbgeval.scoring.operators import HALVED

    takes_halves = config.comparator in COMPARATORS and COMPARATORS[config.comparator].of_complex_numbers
    for index, relation in enumerate(config.relations):
        if relation.lhs not in config.entities or relation.rhs not in config.entities:
            continue
        lhs, rhs = _dimension(config, relation.lhs), _dimension(config, relation.rhs)
        sides: tuple[KeyPath, ...] = (("relations", index, "lhs"), ("relations", index, "rhs"))
        involved = (*sides, *_dimension_paths(config, relation.lhs, relation.rhs))
        if lhs is None or rhs is None:
            continue
        if lhs != rhs:
            found = f"{relation.lhs!r} has {lhs} and {relation.rhs!r} has {rhs}"
            yield Fault(("relations", index), f"both sides must have the same dimension, but {found}", involved)
        elif relation.operator in HALVED and rhs % 2:
            message = f"{relation.operator} needs an even dimension, but {relation.rhs!r} has {rhs}"
            yield Fault(("relations", index, "operator"), message, involved)
        elif takes_halves and (rhs - config.bias) % 2:
            without = " (the bias left out)" if config.bias else ""
            message = (
                f"{config.comparator} needs an even dimension{without}, but {relation.rhs!r} has {rhs - config.bias}"
            )
            yield Fault(("comparator",), message, (("bias",), *involved))


CHECKS: tuple[Check, ...] = (
    _ranges,
    _names,
    _entities,
    _edge_paths,
    _partition_counts,
    _relations,
    _dynamic_relations,
    _own_operators,
    _sides,
    _dimensions,
    _dimensions_of_relations,
    *COMPETITION_CHECKS,
    *OUTPUT_CHECKS,
)
