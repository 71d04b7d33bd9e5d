"""Which keys of a config have an effect only together with another: the one table of them.

A key that is set and has no effect is refused if a user would believe that it shaped the figures. It is only warned of
if no figure would be other than believed, or if PyTorch-BigGraph's training reads the key, because its config files
are shared with training: such a file's keys are named with those that only training uses, if it has any.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from enum import Enum

from attrs import frozen

from pbgeval.config.faults import Fault
from pbgeval.config.schema import EvalConfig, RelationSchema, default_of, keys_of
from pbgeval.errors import TRAIN_PATHS
from pbgeval.notation import grouped
from pbgeval.storage.text import is_url, listed, names_file_of_edges

Condition = Callable[[EvalConfig], object]


class Answer(Enum):
    """What happens where a key that is set has no effect."""

    REFUSED = "refused"
    WARNED = "warned"
    OF_TRAINING = "named with PBG's training keys"


@frozen
class Need:
    """What a key needs to have an effect."""

    key: str  # relations.KEY of a relation
    is_met: Condition
    reason: str  # completes "has no effect ..."
    answer: Answer
    advice: str = ""
    involved: tuple[str, ...] = ()

    def lacks(self, config: EvalConfig) -> bool:
        """Whether the key is set, but not to its default, and has no effect."""
        return _is_set(config, self.key) and not self.is_met(config)


def _is_set(config: EvalConfig, key: str) -> bool:
    owner, _, name = key.rpartition(".")
    schema, holders = (RelationSchema, config.relations) if owner else (EvalConfig, [config])
    default = default_of(keys_of(schema)[name])
    return any(getattr(of, name) != default for of in holders)


def _samples(config: EvalConfig) -> bool:
    return any(config.candidates_of(relation) == "sampled" for relation in config.relations)


def _names_edges(config: EvalConfig) -> bool:
    paths = (*config.edge_paths, *config.filter_paths, *config.train_paths)
    return any(names_file_of_edges(path) and not os.path.isdir(path) for path in paths)


def _names_model(config: EvalConfig) -> bool:
    return not config.checkpoint_path and config.dictionary_path == config.entity_path


def _reads_urls(config: EvalConfig) -> bool:
    paths = (config.entity_path, config.checkpoint_path, *config.edge_paths, *config.filter_paths, *config.train_paths)
    return any(map(is_url, paths))


def _has_loss(config: EvalConfig) -> bool:
    return config.compute_loss


def _knows_edges(config: EvalConfig) -> bool:
    return config.filtered


def _observes_edges(config: EvalConfig) -> bool:
    """Whether there is something to observe; featurized types and other values have faults of their own."""
    return (
        config.type_constraint != "observed"
        or config.filtered
        or any(entity.featurized for entity in config.entities.values())
    )


_REFUSED, _WARNED, _OF_TRAINING = Answer
_UNKNOWN = (
    "without known edges",
    _REFUSED,
    f"set filter_paths (for arrays: known=[...]) or {TRAIN_PATHS}",
    ("filter_paths", "train_paths"),
)
_NOT_SAMPLED = "where no relation is ranked against sampled candidates"
_UNNAMED = "where no path of edges names a file of text or Parquet"
_LOCAL = "where no path is a URL"
_WITHOUT_LOSS = "without compute_loss"

NEEDS: tuple[Need, ...] = (
    Need("dictionary_path", lambda c: _names_edges(c) or _names_model(c), _UNNAMED, _WARNED),
    Need("edge_columns", _names_edges, _UNNAMED, _WARNED),
    Need("edge_delimiter", _names_edges, _UNNAMED, _WARNED),
    Need("edge_comment", _names_edges, _UNNAMED, _WARNED),
    Need(
        "dimension",
        lambda c: c.model or not c.entities or any(of.dimension is None for of in c.entities.values()),
        "where every entity type sets its own",
        _WARNED,
    ),
    Need("model_options", lambda c: c.model, "without model", _REFUSED, "set model, or remove the key", ("model",)),
    Need("trust_pickle", lambda c: c.model, "without model", _WARNED),
    Need("num_batch_negs", _samples, _NOT_SAMPLED, _OF_TRAINING),
    Need("num_uniform_negs", _samples, _NOT_SAMPLED, _OF_TRAINING),
    Need(
        "num_degree_negs",
        _samples,
        _NOT_SAMPLED,
        _REFUSED,
        "set candidates = 'sampled', or remove the key",
        ("candidates", "candidate_path", "relations"),
    ),
    Need(
        "degree_power",
        lambda c: c.num_degree_negs,
        "without num_degree_negs",
        _REFUSED,
        "set num_degree_negs too",
        ("num_degree_negs",),
    ),
    Need("loss_fn", _has_loss, _WITHOUT_LOSS, _OF_TRAINING),
    Need("margin", lambda c: c.compute_loss and c.loss_fn == "ranking", "without the ranking loss", _OF_TRAINING),
    Need("batch_size", lambda c: c.pbg_semantics, "without pbg_semantics", _OF_TRAINING),
    Need("time_window", _knows_edges, *_UNKNOWN),
    Need("known_until", _knows_edges, *_UNKNOWN),
    Need(
        "head_candidates",
        lambda c: not c.disable_lhs_negs,
        "without head queries",
        _REFUSED,
        "set disable_lhs_negs = False, or remove the key",
        ("disable_lhs_negs",),
    ),
    Need(
        "tail_candidates",
        lambda c: not c.disable_rhs_negs,
        "without tail queries",
        _REFUSED,
        "set disable_rhs_negs = False, or remove the key",
        ("disable_rhs_negs",),
    ),
    Need(
        "type_constraint",
        lambda c: c.candidate_path is None,
        "with candidate_path, which lists all candidates",
        _REFUSED,
        "remove one of the two",
        ("candidate_path",),
    ),
    Need("type_constraint", lambda c: c.candidate_path is not None or _observes_edges(c), *_UNKNOWN),
    Need(
        "target_metric",
        lambda c: c.target_error is not None,
        "without target_error",
        _REFUSED,
        "set target_error too",
        ("target_error",),
    ),
    Need("scratch_path", _reads_urls, _LOCAL, _WARNED),
    Need("scratch_limit", _reads_urls, _LOCAL, _WARNED),
    Need("time_bin", lambda c: "time" in c.breakdowns, "without 'time' in breakdowns", _WARNED),
    Need("relation_groups", lambda c: "groups" in c.breakdowns, "without 'groups' in breakdowns", _WARNED),
    Need("relations.weight", _has_loss, _WITHOUT_LOSS, _OF_TRAINING),
    Need(
        "relations.all_negs",
        lambda c: c.candidate_path is None and c.candidates in (None, "partition"),
        "where candidates is set",
        _OF_TRAINING,
    ),
)


def refuse_without_effect(config: EvalConfig) -> Iterator[Fault]:
    """Yield a fault for each key that is refused where it has no effect."""
    for need in NEEDS:
        if need.answer is Answer.REFUSED and need.lacks(config):
            message = f"has no effect {need.reason}; {need.advice}"
            yield Fault(need.key, message, need.involved)


def warnings_without_effect(config: EvalConfig) -> Iterator[str]:
    """Yield warnings of other keys that have no effect: a line for all that only training uses, and one per reason."""
    name = config.source.name if config.source else config.name
    lacking = [need for need in NEEDS if need.lacks(config)]
    of_training = [need.key for need in lacking if need.answer is Answer.OF_TRAINING]
    if not config.ignored:  # what a file of PBG sets for its training, and nothing else, is no slip
        of_training = [key for key in of_training if key.partition(".")[0] not in config.shared]
    of_training += config.ignored
    if of_training:
        yield f"{name}: keys without effect on this evaluation: {listed(of_training)}"
    warned = grouped((need.reason, need.key) for need in lacking if need.answer is Answer.WARNED)
    for reason, keys in warned.items():
        yield f"{name}: {' and '.join(keys)} {'has' if len(keys) == 1 else 'have'} no effect {reason}"
