"""Names in `EvalConfig` -> numbers of entities and ids of relations: the evaluated part and the entities that compete.

An entity is named as entity_names_<type>_<partition>.json names it, or as `type:partition:row`, which always means
the entity of that place if the type is one that relations use.
"""

from __future__ import annotations

import difflib
import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from attrs import field, frozen

from pbgeval.config import EvalConfig
from pbgeval.config.models import IN_MEMORY
from pbgeval.errors import ConfigError
from pbgeval.inputs.names import MAX_NEAREST, entity_names, read_relation_vocabulary
from pbgeval.notation import EntityNumbering, Side, distinct

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
        parts = [self.entities, self.relations, *(self.of_side.get(side) for side in Side)]
        if all(part is None for part in parts):
            return None
        digest = hashlib.sha256()
        for part in parts:
            digest.update(b"-" if part is None else b"%d:" % part.size + part.astype("<i8").tobytes())
        return digest.hexdigest()


def read_restrictions(config: EvalConfig, numbering: EntityNumbering, num_relations: int) -> Restrictions:
    """Find what the lists of names in a config stand for.

    Args:
        config: its `restrict_*`, `head_candidates` and `tail_candidates`.
        numbering: of all types that relations use.
        num_relations: as the ids in edge files have them.

    Raises:
        ConfigError: Names are unknown or ambiguous, rows out of range, or no entity can compete; a line for each.
        StorageError: a file of names cannot be read, or has not one per entity.
    """
    faults: list[str] = []
    relations: np.ndarray | None = None
    if config.restrict_relations is not None:
        vocabulary = read_relation_vocabulary(config, num_relations)
        try:
            relations = vocabulary.find(config.restrict_relations, _where(config, "restrict_relations"))
        except ConfigError as error:
            faults += error.faults[:_MAX_FAULTS]
    keys = ("restrict_entities", "head_candidates", "tail_candidates")
    lists: dict[str, list[str]] = {key: getattr(config, key) for key in keys if getattr(config, key) is not None}
    entities = _Entities(Path(config.entity_path), numbering)
    try:
        numbers = entities.find(lists, {key: _where(config, key) for key in lists})
    except ConfigError as error:
        raise ConfigError(*faults, *error.faults) from None
    allowed = numbers.get("restrict_entities")
    of_side = {side: numbers[f"{side.label}_candidates"] for side in Side if f"{side.label}_candidates" in numbers}
    for side, competing in of_side.items():
        if allowed is not None and not np.intersect1d(allowed, competing, assume_unique=True).size:
            where = _where(config, f"{side.label}_candidates")
            faults.append(f"{where}: empty restriction: needs at least one entity of restrict_entities")
    if faults:
        raise ConfigError(*faults)
    return Restrictions(allowed, relations, of_side)


def _where(config: EvalConfig, key: str) -> str:
    return f"{config.source.name}: {key}" if config.source else key


@frozen
class _Entities:
    """The entities that lists of names can mean."""

    entity_path: Path
    numbering: EntityNumbering
    _slots: dict[tuple[str, int], int] = field(init=False, repr=False)  # by type and partition
    _num_partitions: Counter[str] = field(init=False, repr=False)  # by type

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "_slots", {place: slot for slot, place in enumerate(self.numbering.slots)})
        object.__setattr__(self, "_num_partitions", Counter(of_type for of_type, _ in self.numbering.slots))

    def find(self, lists: Mapping[str, Sequence[str]], where: Mapping[str, str]) -> dict[str, np.ndarray]:
        """Return the sorted numbers of the entities of each list."""
        wanted = {name for names in lists.values() for name in names if self._address(name) is None}
        places: dict[str, list[int]] = defaultdict(list)  # the numbers of the entities that have each name
        has_names = False
        if wanted:
            for first, known in entity_names(self.entity_path, self.numbering):
                has_names = True
                for row, name in enumerate(known):
                    if name in wanted:
                        places[name].append(first + row)
        nearest = self._nearest(sorted(wanted - places.keys())[:MAX_NEAREST])
        faults: list[str] = []
        found: dict[str, np.ndarray] = {}
        for key, names in lists.items():
            if not names:
                faults.append(f"{where[key]}: empty restriction: needs at least one entity")
            numbers = [self._number(name, places.get(name, ()), nearest, has_names) for name in dict.fromkeys(names)]
            wrong = [number for number in numbers if isinstance(number, str)]
            faults += [f"{where[key]}: {fault}" for fault in wrong[:_MAX_FAULTS]]
            found[key] = distinct(np.array([number for number in numbers if isinstance(number, int)], np.int64))
        if faults:
            raise ConfigError(*faults)
        return found

    def _address(self, name: str) -> tuple[str, int, int] | None:
        match = _ADDRESS.fullmatch(name)
        if match is None or match[1] not in self._num_partitions:
            return None
        return match[1], int(match[2]), int(match[3])

    def _number(self, name: str, places: Sequence[int], nearest: Mapping[str, str], has_names: bool) -> int | str:
        """Return the number of the entity that a name means, or what is wrong with it."""
        address = self._address(name)
        if address is not None:
            entity_type, partition, row = address
            slot = self._slots.get((entity_type, partition))
            if slot is None:
                last = self._num_partitions[entity_type] - 1
                return f"partition out of range in {name!r}: expected 0 to {last}"
            first, stop = self.numbering.range_of_slot(slot)
            if row < stop - first:
                return first + row
            return f"row out of range in {name!r}: expected 0 to {stop - first - 1}"
        if len(places) == 1:
            return places[0]
        if places:
            addresses = [":".join(map(str, self.numbering.place_of(number))) for number in places[:4]]
            return f"ambiguous entity {name!r}: {len(places)} have that name; write {' or '.join(map(repr, addresses))}"
        if not has_names and _ADDRESS.fullmatch(name) is None:
            names = f"no entity_names_<type>_<partition>.json in {self.entity_path}"
            if str(self.entity_path).startswith(IN_MEMORY):
                names = "entities in memory have no names"
            return f"unknown entity {name!r}: {names}; write type:partition:row"
        if name in nearest:
            return f"unknown entity {name!r}; did you mean {nearest[name]!r}?"
        used = ", ".join(sorted(self._num_partitions))
        return (
            f"unknown entity {name!r}; expected the name or type:partition:row of an entity of a type that relations "
            f"use ({used})"
        )

    def _nearest(self, unknown: Sequence[str]) -> dict[str, str]:
        """Return the nearest known name to each unknown one that has a near one."""
        close: dict[str, list[str]] = defaultdict(list)
        for _, names in entity_names(self.entity_path, self.numbering) if unknown else ():
            for name in unknown:
                similar = [known for known in names if abs(len(known) - len(name)) <= 2][:_MAX_COMPARED]
                close[name] += difflib.get_close_matches(name, similar, n=1)
        return {name: difflib.get_close_matches(name, found, n=1)[0] for name, found in close.items() if found}
