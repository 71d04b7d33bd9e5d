"""A hierarchy of entity types -> how far types are from the true ones, and what they gain.

Distance of two types: the difference of their depths if one is an ancestor of the other, else infinite. A type may have
several parents; its ancestors are then those of all of them. Balog and Neumayer, "Hierarchical target type
identification for entity-oriented queries" (CIKM, 2012).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import numpy as np
from attrs import define, field, frozen
from numpy.typing import NDArray

from pbgeval.errors import Faults, StorageError
from pbgeval.notation import Integers
from pbgeval.stats.keyed_sums import begins
from pbgeval.storage.text import MAX_RATIO, text_lines

_COLUMNS = "type, depth and parent, with tabs between"


class TypeGain(Enum):
    """The gain of a type at distance d from the nearest true type on its branch."""

    LINEAR = "linear"  # 1 - d / h, where h is the depth of the hierarchy
    EXPONENTIAL = "exponential"  # b^-d


@frozen(eq=False)
class Taxonomy:
    """The types below the root; a type is addressed by its index in `names`."""

    root: str
    names: tuple[str, ...]
    depth_N: Integers  # from 1
    _parents: tuple[tuple[int, ...], ...] = field(repr=False)  # of each type, without the root
    _related: dict[int, Integers] = field(factory=dict, init=False, repr=False)

    @cached_property
    def _index(self) -> dict[str, int]:
        return {name: type_ for type_, name in enumerate(self.names)}

    @cached_property
    def _children(self) -> tuple[list[int], ...]:
        children: tuple[list[int], ...] = tuple([] for _ in self.names)
        for type_, parents in enumerate(self._parents):
            for parent in parents:
                children[parent].append(type_)
        return children

    @classmethod
    def read(cls, path: Path | str) -> Taxonomy:
        """Read a file of tab-separated lines: type, depth, parent; `docs/formats.md` says what they must satisfy.

        Raises:
            StorageError: the file cannot be read, or is no such hierarchy; a line for each fault.
        """
        table = _TypeLines(str(path))
        for number, line in text_lines(Path(path), max_ratio=MAX_RATIO):
            table.add(number, line)
        return table.taxonomy()

    @property
    def max_depth(self) -> int:
        """The depth h of the deepest type; the root's is 0."""
        return int(self.depth_N.max())

    def find(self, name: str) -> int | None:
        """Return the index of a type; None for the root and for what is not in the hierarchy."""
        return self._index.get(name)

    def related(self, true: Iterable[int]) -> tuple[Integers, Integers]:
        """Return the types that have a gain where some types are true, and their distances of the nearest true type.

        They are the true types, their ancestors below the root, and their descendants, ascending.
        """
        type_n, distance_n = np.concatenate(
            [np.empty((2, 0), np.int64), *(self._related_to(type_) for type_ in sorted(set(true)))], axis=1
        )
        order = np.lexsort((distance_n, type_n))
        nearest = order[begins(type_n[order])]
        return type_n[nearest], distance_n[nearest]

    def share_a_branch(self, types: Iterable[int]) -> bool:
        """Whether one of some types is an ancestor of another."""
        among = set(types)
        return any(len(among.intersection(self._related_to(type_)[0].tolist())) > 1 for type_ in among)

    def gains(self, distance_n: Integers, gain: TypeGain | str, base: float = 2.0) -> NDArray[np.float64]:
        """Return what types at some distances are worth, float64 in [0, 1].

        Args:
            distance_n: of the nearest true type, at most `max_depth`.
            gain: see `TypeGain`.
            base: b of the exponential gain, above 1.
        """
        if TypeGain(gain) is TypeGain.LINEAR:
            return 1.0 - distance_n / self.max_depth
        if not base > 1.0:
            raise ValueError(f"base: expected a number above 1, got {base}")
        return np.power(float(base), -distance_n.astype(np.float64))

    def _related_to(self, type_: int) -> Integers:
        """Return the types on one branch with a type, itself among them, and their distances, (2, n)."""
        if type_ not in self._related:
            above, below = _reached(type_, self._parents), _reached(type_, self._children)
            types = np.array([*sorted(above | below), type_], np.int64)
            self._related[type_] = np.stack([types, np.abs(self.depth_N[types] - self.depth_N[type_])])
        return self._related[type_]


def _reached(start: int, edges: Sequence[Sequence[int]]) -> set[int]:
    """Return all that is reached along edges without a cycle, the start left out."""
    found: set[int] = set()
    ahead = list(edges[start])
    while ahead:
        one = ahead.pop()
        if one not in found:
            found.add(one)
            ahead += edges[one]
    return found


@define
class _TypeLines:
    """The lines of a file, and what is wrong with them."""

    path: str
    faults: Faults = field(factory=Faults)
    root: str | None = None
    depths: dict[str, int] = field(factory=dict)
    parents: dict[str, dict[str, int]] = field(factory=dict)  # of each type, with the line that says so

    def add(self, number: int, line: str) -> None:
        """Take a line; the first may be a header, which has no depth."""
        columns = [column.strip() for column in line.split("\t")]
        columns += [""] * (len(columns) == 2)  # an editor has taken the empty parent of the root
        if not any(columns):
            return
        if len(columns) != 3 or not columns[0]:
            self._fault(number, f"expected {_COLUMNS}, found {line[:100]!r}")
            return
        name, depth, parent = columns
        if not (depth.isascii() and depth.isdigit() and len(depth) <= 9):
            if number > 1:
                self._fault(number, f"expected a depth, a whole number from 0, found {depth[:100]!r}")
            return
        if self.depths.setdefault(name, int(depth)) != int(depth):
            self._fault(number, f"expected depth {self.depths[name]} of '{name}' as in an earlier line, found {depth}")
        elif int(depth) == 0 and parent:
            self._fault(number, f"expected no parent of the root '{name}' (depth 0), found '{parent}'")
        elif int(depth) == 0:
            self.root = self.root or name
            if self.root != name:
                self._fault(number, f"expected one root (depth 0), '{self.root}', found another, '{name}'")
        elif not parent:
            self._fault(number, f"expected a parent of '{name}', as only the root (depth 0) has none, found nothing")
        else:
            self.parents.setdefault(name, {}).setdefault(parent, number)

    def taxonomy(self) -> Taxonomy:
        """Return the hierarchy, if nothing is wrong."""
        if not self.parents and not self.faults:
            self.faults.append(f"{self.path}: expected a line for each type below the root ({_COLUMNS}), found none")
        links = [(name, up, number) for name, parents in self.parents.items() for up, number in parents.items()]
        for name, parent, number in links:  # the root has a line of its own, or is the only parent that has none
            if parent in self.depths:
                continue
            self.root = self.root or parent
            if parent != self.root:
                self._fault(number, f"expected a parent with a line of its own, or the root '{self.root}', of '{name}',"
                            f" found '{parent}'")  # fmt: skip
        try:
            tuple(TopologicalSorter({name: [*parents] for name, parents in self.parents.items()}).static_order())
        except CycleError as error:
            cycle = " > ".join(error.args[1][:7])
            number = min(self.parents[error.args[1][0]].values())
            self._fault(number, f"expected a hierarchy, found a type that is its own ancestor: {cycle}")
        for name, parent, number in links if not self.faults else ():
            depth = self.depths[name]
            above = self.depths.get(parent, 0)
            if depth <= above:
                self._fault(
                    number, f"expected a depth of '{name}' above that of its parent '{parent}', {above}, found {depth}"
                )
        self.faults.raise_any(StorageError)
        names = tuple(self.parents)
        index = {name: type_ for type_, name in enumerate(names)}
        parents = tuple(tuple(index[up] for up in self.parents[name] if up != self.root) for name in names)
        return Taxonomy(self.root or "", names, np.array([self.depths[name] for name in names], np.int64), parents)

    def _fault(self, number: int, message: str) -> None:
        self.faults.append(f"{self.path}:{number}: {message}")
