"""`EvalConfig` -> what its settings of who competes must satisfy together: candidates, filters, restrictions.

See `checks.py` for what all checks have in common.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pbgeval.config.faults import Fault, KeyPath, show
from pbgeval.config.fields import default_of, keys_of
from pbgeval.config.schema import EvalConfig, RelationSchema

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
