"""`EvalConfig` -> what relations are called, the ids that names stand for, and named groups of them.

A relation is named as `relations` of the config names it or, where relations are dynamic, as a model of vectors, or
dynamic_rel_names.json or relations.tsv of a folder, names it. `rel:<index>` and the bare index stand for a relation
too, unless some relation has that very name.
"""

from __future__ import annotations

import difflib
import hashlib
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from attrs import Factory, field, frozen

from pbgeval.config import EvalConfig, read_relation_groups
from pbgeval.config.loading import IN_MEMORY, folder_of_model
from pbgeval.errors import ConfigError, Faults
from pbgeval.models.labels import labels_by_type, labels_in_order, relation_names_in
from pbgeval.models.model import EmbeddingModel
from pbgeval.notation import ENDS, EntityNumbering, Side, distinct, grouped
from pbgeval.scoring.block_scorer import Scorer
from pbgeval.storage.entities import entity_names_path, read_entity_names
from pbgeval.storage.text import listed

MAX_NEAREST = 5  # unknown names for which the nearest known one is sought: it takes a while


@frozen(eq=False)
class RelationNames:
    """The relations of a graph by name and by id."""

    num_relations: int
    names: Sequence[str] | None  # None: they have none

    def find(self, names: Sequence[str], where: str) -> np.ndarray:
        """Return the sorted ids of the relations named, each once.

        Args:
            names: at least one.
            where: what a fault begins with: the place of the list.

        Raises:
            ConfigError: A name is unknown, several relations have it, or an index is out of range; a line for each.
        """
        of_name = grouped((name, index) for index, name in enumerate(self.names or ()))
        cut = _cut_at_commas(names, ((name, f"rel:{index}") for index, name in enumerate(self.names or ())))
        ids: set[int] = set()
        faults = Faults([] if names else ["empty restriction: needs at least one relation"])
        for name in names:
            with faults.noted():
                ids.add(self._find(name, of_name, cut, with_nearest=len(faults) < MAX_NEAREST))
        if faults:
            raise ConfigError(*dict.fromkeys(f"{where}: {fault}" for fault in faults))
        return np.array(sorted(ids), np.int64)

    def _find(self, name: str, of_name: Mapping[str, list[int]], cut: Mapping[str, str], *, with_nearest: bool) -> int:
        """Return the id that a name means.

        Raises:
            ConfigError: what is wrong with it.
        """
        found = of_name.get(name, [])
        if len(found) == 1:
            return found[0]
        if found:
            indices = " or ".join(f"'rel:{index}'" for index in found[:5])
            raise ConfigError(f"ambiguous relation {name!r}: {len(found)} have that name; write {indices}")
        digits = name.removeprefix("rel:")
        if digits.isascii() and digits.isdigit():
            if int(digits) < self.num_relations:
                return int(digits)
            raise ConfigError(f"unknown relation {name!r}: expected an index from 0 to {self.num_relations - 1}")
        if name in cut:
            raise ConfigError(f"relation {cut[name]}")
        if self.names is None:
            raise ConfigError(
                f"unknown relation {name!r}: relations have no names (relations.tsv, dynamic_rel_names.json); "
                "write 'rel:0'"
            )
        nearest = difflib.get_close_matches(name, of_name, n=1) if with_nearest else []
        advice = f"did you mean {nearest[0]!r}?" if nearest else f"the relations are {listed(list(of_name))}"
        raise ConfigError(f"unknown relation {name!r}; {advice}")


def _cut_at_commas(names: Sequence[str], known: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return what to tell of the parts of known names, given with other words for each, that were cut at commas."""
    parts, given = {*names}, f",{','.join(names)},"
    return {
        part: f"{name!r} has a comma, where -p cuts: write {other!r}, or a list of names in the config file"
        for name, other in known
        if "," in name and name.partition(",")[0] in parts and f",{name}," in given
        for part in name.split(",")
    }


def read_relation_vocabulary(
    config: EvalConfig, num_relations: int, model: EmbeddingModel | Scorer | None
) -> RelationNames:
    """Find out what relations are called: a model's own names come before those of other files of its folder.

    Args:
        config: the config.
        num_relations: as the ids in edge files have them.
        model: in place of a checkpoint, if there is one.

    Raises:
        StorageError: dynamic_rel_names.json, or a file of labels, cannot be read, or has not one name per relation.
    """
    if not config.dynamic_relations:
        return RelationNames(num_relations, [relation.name for relation in config.relations])
    folder, own = Path(config.entity_path), None
    if isinstance(model, EmbeddingModel) and not model.numbers_relations:
        own = model.relation_names()
        if own is not None and folder == folder_of_model(model.label):
            return RelationNames(num_relations, own)
    is_beside_file = (
        not config.dictionary_path
        and os.path.isfile(config.model or "")
        and folder == folder_of_model(config.model or "")
    )
    with_labels = not config.checkpoint_path and not is_beside_file
    names = relation_names_in(folder, num_relations, with_labels=with_labels)
    return RelationNames(num_relations, own if names is None else names)


def names_of_type(
    config: EvalConfig, model: EmbeddingModel | Scorer | None, entity_type: str, num_entities: int
) -> Iterable[str] | None:
    """Return the names of a type of one partition: those of `entity_path`'s files of labels, else the model's own.

    Args:
        config: the config.
        model: in place of a checkpoint, if there is one.
        entity_type: a type that relations use.
        num_entities: of the type.

    Returns:
        None: a JSON file of `entity_path` has them, or nothing has.

    Raises:
        StorageError: a file of labels cannot be read, or has not one per entity.
    """
    folder = Path(config.entity_path)
    vectors = model if isinstance(model, EmbeddingModel) else None
    own = None if vectors is None else vectors.entity_names(entity_type)
    if model is None or (vectors is not None and folder == folder_of_model(vectors.label)):
        return own
    if entity_names_path(folder, entity_type, 0).exists():
        return None
    numbers_rows = vectors is None or entity_type not in vectors.rows_of_ids  # as labels number them
    labels = labels_by_type(folder, config.used_entity_types).get(entity_type) if numbers_rows else None
    return own if labels is None else labels_in_order(labels, num_entities)


def relation_labels(config: EvalConfig, num_relations: int, model: EmbeddingModel | Scorer | None) -> list[str]:
    """Return what tables call each relation: its name, or its index where it has none.

    Raises:
        StorageError: as `read_relation_vocabulary`.
    """
    names = read_relation_vocabulary(config, num_relations, model).names
    return [str(index) for index in range(num_relations)] if names is None else list(names)


def relation_groups(
    config: EvalConfig, num_relations: int, model: EmbeddingModel | Scorer | None
) -> dict[str, np.ndarray]:
    """Return the sorted ids of the relations of each group of the config's `relation_groups`; none if it is unset.

    Raises:
        ConfigError: The file is of the wrong form, or names relations that are not there; a line for each.
        StorageError: as `read_relation_vocabulary`.
    """
    path = config.relation_groups
    if path is None:
        return {}
    vocabulary = read_relation_vocabulary(config, num_relations, model)
    groups: dict[str, np.ndarray] = {}
    faults = Faults()
    for group, names in read_relation_groups(path).items():
        with faults.noted(ConfigError):
            groups[group] = vocabulary.find(names, f"{path}: group {group!r}")
    faults.raise_any(ConfigError)
    return groups


# `restrict_*`, `head_candidates` and `tail_candidates` -> numbers of entities and ids of relations.
#
# An entity is named as entity_names_<type>_<partition>.json names it, or as `type:partition:row`, which always means
# the entity of that place if the type is one that relations use.

_ADDRESS = re.compile(r"(.+):([0-9]{1,18}):([0-9]{1,18})", re.ASCII | re.DOTALL)
_MAX_FAULTS = 20  # of one list
_MAX_COMPARED = 20_000  # names of each partition that an unknown one is compared with


@frozen(eq=False)
class Restrictions:
    """The evaluated part of the graph and the entities that may compete. Arrays are int64, sorted, distinct."""

    entities: np.ndarray | None = None  # numbers: edges of other entities are dropped, and only these compete
    relations: np.ndarray | None = None  # ids: edges of others are dropped
    of_side: Mapping[Side, np.ndarray] = field(factory=dict)  # numbers: only they compete where this side is hidden

    @property
    def drops_edges(self) -> bool:
        """Whether some edges are left out."""
        return self.entities is not None or self.relations is not None

    @property
    def digest(self) -> str | None:
        """What the names stood for, for the provenance; None where nothing is restricted."""
        parts = [self.entities, self.relations, *(self.of_side.get(side) for side in ENDS)]
        return None if all(part is None for part in parts) else _digest(parts)


def read_restrictions(
    config: EvalConfig, numbering: EntityNumbering, num_relations: int, model: EmbeddingModel | Scorer | None = None
) -> Restrictions:
    """Find what the lists of names in a config stand for.

    Args:
        config: its `restrict_*`, `head_candidates` and `tail_candidates`.
        numbering: of all types that relations use.
        num_relations: as the ids in edge files have them.
        model: in place of a checkpoint, if there is one.

    Raises:
        ConfigError: Names are unknown or ambiguous, rows out of range, or no entity can compete; a line for each.
        StorageError: a file of names cannot be read, or has not one per entity.
    """
    faults = Faults()
    relations: np.ndarray | None = None
    if config.restrict_relations is not None:
        with faults.noted(ConfigError, _MAX_FAULTS):
            relations = read_relation_vocabulary(config, num_relations, model).find(
                config.restrict_relations, _where(config, "restrict_relations")
            )
    keys = ("restrict_entities", "head_candidates", "tail_candidates")
    lists: dict[str, list[str]] = {key: getattr(config, key) for key in keys if getattr(config, key) is not None}
    numbers: dict[str, np.ndarray] = {}
    with faults.noted(ConfigError):
        entities = _Entities(config, numbering, model)
        numbers = entities.find(lists, {key: _where(config, key) for key in lists})
    allowed = numbers.get("restrict_entities")
    of_side = {side: numbers[f"{side.label}_candidates"] for side in ENDS if f"{side.label}_candidates" in numbers}
    faults += [
        f"{_where(config, f'{side.label}_candidates')}: empty restriction: needs at least one entity of"
        " restrict_entities"
        for side, competing in of_side.items()
        if allowed is not None and not np.intersect1d(allowed, competing, assume_unique=True).size
    ]
    faults.raise_any(ConfigError)
    return Restrictions(allowed, relations, of_side)


def _digest(parts: Iterable[np.ndarray | None]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(b"-" if part is None else b"%d:" % part.size + part.astype("<i8").tobytes())
    return digest.hexdigest()


def _where(config: EvalConfig, key: str) -> str:
    return f"{config.source.name}: {key}" if config.source else key


def _entity_names(
    config: EvalConfig, numbering: EntityNumbering, model: EmbeddingModel | Scorer | None
) -> Iterator[tuple[int, list[str]]]:
    """Yield the names of each partition that has some, after the number of its first entity.

    Raises:
        StorageError: a file of names cannot be read, or has not one per entity.
    """
    for slot, (entity_type, partition) in enumerate(numbering.slots):
        first, stop = numbering.range_of_slot(slot)
        names = read_entity_names(Path(config.entity_path), entity_type, partition, stop - first)
        if names is None and config.entities[entity_type].num_partitions == 1:
            of_type = names_of_type(config, model, entity_type, stop - first)
            names = None if of_type is None else [*of_type]
        if names is not None:
            yield first, names


@frozen
class _Entities:
    """The entities that lists of names can mean."""

    config: EvalConfig
    numbering: EntityNumbering
    model: EmbeddingModel | Scorer | None
    _slots: dict[tuple[str, int], int] = field(  # by type and partition
        init=False,
        repr=False,
        default=Factory(lambda self: {place: i for i, place in enumerate(self.numbering.slots)}, takes_self=True),
    )
    _num_partitions: Counter[str] = field(  # by type
        init=False,
        repr=False,
        default=Factory(lambda self: Counter(name for name, _ in self.numbering.slots), takes_self=True),
    )

    def find(self, lists: Mapping[str, Sequence[str]], where: Mapping[str, str]) -> dict[str, np.ndarray]:
        """Return the sorted numbers of the entities of each list."""
        wanted = {name for names in lists.values() for name in names if self._address(name) is None}
        places: dict[str, list[int]] = defaultdict(list)  # the numbers of the entities that have each name
        has_names = False
        for first, known in _entity_names(self.config, self.numbering, self.model) if wanted else ():
            has_names = True
            for row, name in enumerate(known):
                if name in wanted:
                    places[name].append(first + row)
        unknown = sorted(wanted - places.keys())[:MAX_NEAREST]
        close: dict[str, list[str]] = defaultdict(list)  # the nearest known names to each unknown one
        cut: dict[str, dict[str, str]] = {key: {} for key in lists}
        for first, known in _entity_names(self.config, self.numbering, self.model) if unknown else ():
            with_comma = [(name, self._address_of(first + row)) for row, name in enumerate(known) if "," in name]
            for key, names in lists.items():
                cut[key] |= _cut_at_commas(names, with_comma)
            for name in unknown:
                similar = [other for other in known if abs(len(other) - len(name)) <= 2][:_MAX_COMPARED]
                close[name] += difflib.get_close_matches(name, similar, n=1)
        nearest = {name: difflib.get_close_matches(name, near, n=1)[0] for name, near in close.items() if near}
        faults = Faults()
        found: dict[str, np.ndarray] = {}
        for key, names in lists.items():
            faults += [] if names else [f"{where[key]}: empty restriction: needs at least one entity"]
            numbers = [
                self._number(name, places.get(name, ()), nearest, cut[key], has_names) for name in dict.fromkeys(names)
            ]
            wrong = [*dict.fromkeys(number for number in numbers if isinstance(number, str))]
            faults += [f"{where[key]}: {fault}" for fault in wrong[:_MAX_FAULTS]]
            found[key] = distinct(np.array([number for number in numbers if isinstance(number, int)], np.int64))
        faults.raise_any(ConfigError)
        return found

    def _address(self, name: str) -> tuple[str, int, int] | None:
        match = _ADDRESS.fullmatch(name)
        if match is None or match[1] not in self._num_partitions:
            return None
        return match[1], int(match[2]), int(match[3])

    def _address_of(self, number: int) -> str:
        return ":".join(map(str, self.numbering.place_of(number)))

    def _number(
        self,
        name: str,
        places: Sequence[int],
        nearest: Mapping[str, str],
        cut: Mapping[str, str],
        has_names: bool,
    ) -> int | str:
        """Return the number of the entity that a name means, or what is wrong with it."""
        if (address := self._address(name)) is not None:
            entity_type, partition, row = address
            if (entity_type, partition) not in self._slots:
                return f"partition out of range in {name!r}: expected 0 to {self._num_partitions[entity_type] - 1}"
            first, stop = self.numbering.range_of_slot(self._slots[entity_type, partition])
            return (
                first + row if row < stop - first else f"row out of range in {name!r}: expected 0 to {stop - first - 1}"
            )
        if len(places) == 1:
            return places[0]
        if places:
            addresses = [*map(self._address_of, places[:4])]
            return f"ambiguous entity {name!r}: {len(places)} have that name; write {' or '.join(map(repr, addresses))}"
        if not has_names and _ADDRESS.fullmatch(name) is None:
            is_in_memory = self.config.entity_path.startswith(IN_MEMORY)
            labels = "" if self.model is None else " or entities.tsv"
            missing = f"no entity_names_<type>_<partition>.json{labels} in {self.config.entity_path}"
            names = "entities in memory have no names" if is_in_memory else missing
            return f"unknown entity {name!r}: {names}; write type:partition:row"
        if name in cut:
            return f"entity {cut[name]}"
        if name in nearest:
            return f"unknown entity {name!r}; did you mean {nearest[name]!r}?"
        used = ", ".join(sorted(self._num_partitions))
        return (
            f"unknown entity {name!r}; expected the name or type:partition:row of an entity of a type that relations "
            f"use ({used})"
        )
