"""`taxonomy_path` and `type_relations` -> the relations that ask for types, and which entities are types."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from attrs import frozen

from pbgeval.config import EvalConfig
from pbgeval.errors import ConfigError
from pbgeval.inputs.relation_names import read_relation_vocabulary
from pbgeval.notation import EntityNumbering
from pbgeval.passes.type_gains import TypeEntities
from pbgeval.storage.entities import read_entity_names
from pbgeval.storage.labels import wrong_number_of_names
from pbgeval.taxonomy import Taxonomy


@frozen(eq=False)
class TypeQueries:
    """The queries for types: which relations ask, and who may be an answer that gains."""

    relations: np.ndarray  # int64: sorted ids
    entities: TypeEntities

    @property
    def digest(self) -> str:
        """What the files and names stand for, for the provenance."""
        taxonomy = self.entities.taxonomy
        related = [taxonomy.related([type_]) for type_ in range(len(taxonomy.names))]
        parts = [self.relations, self.entities.number_T, self.entities.type_T, taxonomy.depth_T]
        parts += [array for of_type in related for array in (of_type.type_n, of_type.distance_n)]
        digest = hashlib.sha256(json.dumps(taxonomy.names).encode())
        for part in parts:
            digest.update(b"%d:" % part.size + part.astype("<i8").tobytes())
        return digest.hexdigest()


def read_type_queries(config: EvalConfig, numbering: EntityNumbering, num_relations: int) -> TypeQueries | None:
    """Read the hierarchy and find its types among the entities; None if none is set.

    Raises:
        ConfigError: a relation is unknown, or no entity on its right-hand side is a type, or several have one's name.
        StorageError: a file cannot be read, or does not hold what it should.
    """
    if config.taxonomy_path is None or config.type_relations is None:
        return None
    where = f"{config.source.name}: type_relations" if config.source else "type_relations"
    relations = read_relation_vocabulary(config, num_relations).find(config.type_relations, where)
    taxonomy = Taxonomy.read(config.taxonomy_path)
    schemas = {0} if config.dynamic_relations else set(relations.tolist())
    answers = sorted({config.relations[schema].rhs for schema in schemas})
    found: dict[int, int] = {}  # number -> type
    faults = []
    for of_type in answers:
        own: dict[int, int] = {}
        for number, name in _names(Path(config.entity_path), numbering, of_type):
            type_ = taxonomy.find(name)
            if type_ is None:
                continue
            if type_ in own:
                faults.append(f"{where}: expected one entity of type '{of_type}' called '{name}', found several")
            own[type_] = number
        if not own:
            faults.append(
                f"{where}: expected entities of type '{of_type}' that are called as types of {config.taxonomy_path},"
                f" found none; names are in {config.entity_path}/entity_names_{of_type}_<partition>.json"
            )
        found |= {number: type_ for type_, number in own.items()}
    if faults:
        raise ConfigError(*faults)
    number_T = np.array(sorted(found), np.int64)
    type_T = np.array([found[number] for number in number_T.tolist()], np.int64)
    return TypeQueries(relations, TypeEntities(taxonomy, number_T, type_T))


def _names(entity_path: Path, numbering: EntityNumbering, entity_type: str) -> Iterator[tuple[int, str]]:
    """Yield the numbers and names of the entities of a type, a partition at a time."""
    for slot, (of_slot, partition) in enumerate(numbering.slots):
        names = read_entity_names(entity_path, of_slot, partition) if of_slot == entity_type else None
        if names is None:
            continue
        first, stop = numbering.range_of_slot(slot)
        if len(names) != stop - first:
            raise wrong_number_of_names(entity_path, of_slot, partition, stop - first, len(names))
        yield from enumerate(names, first)
