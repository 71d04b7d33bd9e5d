"""A file `relation<TAB>left type<TAB>right type` -> the entity types of each relation, in the order of their ids."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from attrs import frozen

from pbgeval.errors import ConfigError, StorageError
from pbgeval.notation import ENTITY_TYPE, MAX_PARTITIONS
from pbgeval.storage.text import one_line, rows

ANY_OTHER = "*"


@frozen
class RelationTypes:
    """Which types relations connect."""

    listed: tuple[tuple[str, str, str], ...] = ()  # (relation, left type, right type), in the order of their ids
    other: tuple[str, str] | None = (ENTITY_TYPE, ENTITY_TYPE)  # of relations not listed; None: there must be none
    path: Path | None = None  # where this was read

    @property
    def entity_types(self) -> tuple[str, ...]:
        """All types, by name."""
        pairs = [(lhs, rhs) for _, lhs, rhs in self.listed] + ([self.other] if self.other else [])
        return tuple(sorted({name for pair in pairs for name in pair}))

    @classmethod
    def read(cls, path: Path) -> RelationTypes:
        """Read a file; a relation `*` says the types of all that are not listed.

        Raises:
            StorageError: a line is not of that form; names it.
        """
        listed: dict[str, tuple[str, str]] = {}
        for number, line, fields in rows(path):
            if len(fields) != 3 or not all(fields) or any("/" in name for name in fields[1:]):
                raise StorageError(
                    f"{path}:{number}: expected relation<TAB>left type<TAB>right type (types without /), got "
                    f"{one_line(line)!r}"
                )
            if fields[0] in listed:
                raise StorageError(f"{path}:{number}: the relation {one_line(fields[0])!r} occurs twice")
            listed[fields[0]] = (fields[1], fields[2])
        other = listed.pop(ANY_OTHER, None)
        if not listed and other is None:
            raise StorageError(f"{path}: there are no relations in this file")
        return cls(tuple((name, *types) for name, types in listed.items()), other, path)


@frozen
class Partitioning:
    """How entities of each type are dealt to partitions."""

    num_partitions: int = 1
    of_type: tuple[tuple[str, int], ...] = ()  # where another number
    by_degree: bool = False  # else at random
    seed: int = 0

    def of(self, entity_type: str) -> int:
        """Return the number of partitions of a type."""
        return dict(self.of_type).get(entity_type, self.num_partitions)

    def check(self, entity_types: tuple[str, ...]) -> None:
        """Refuse what PyTorch-BigGraph's buckets cannot express.

        Raises:
            ConfigError: a type is not there, or two types have unlike numbers of partitions, neither being 1.
        """
        for name, _ in self.of_type:
            if name not in entity_types:
                raise ConfigError(f"--partitions {name}: no such entity type; the types are {', '.join(entity_types)}")
        counts = {name: self.of(name) for name in entity_types}
        if len(set(counts.values()) - {1}) > 1:
            found = ", ".join(f"{name} {count}" for name, count in counts.items())
            raise ConfigError(f"--partitions: all types with more than one partition need the same number, got {found}")


def partition_counts(texts: Sequence[str]) -> tuple[int, tuple[tuple[str, int], ...]]:
    """Read `N` and `TYPE=N`: the number of partitions of all types, and of some.

    Raises:
        ConfigError: one is neither.
    """
    of_all, of_type = 1, {}
    for text in texts:
        name, _, number = text.rpartition("=")
        if not (number.isascii() and number.isdigit() and len(number) <= 18 and int(number) >= 1):
            raise ConfigError(f"--partitions {text}: expected a number >= 1, or TYPE=NUMBER")
        if int(number) > MAX_PARTITIONS:
            raise ConfigError(f"--partitions {text}: expected at most {MAX_PARTITIONS:,}")
        if name:
            of_type[name] = int(number)
        else:
            of_all = int(number)
    return of_all, tuple(of_type.items())
