"""A ranking file of AnyBURL or SAFRAN, the edges that it ranks and those that are known -> ranks and bounds.

Ranks are those in the list; nothing is guessed: an evaluated edge that the file lacks is counted, an empty list is one
that does not hold the true entity, and the two sides of an edge do not depend on each other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from pathlib import Path

import numpy as np
from attrs import define, field, frozen
from numpy.typing import NDArray

from pbgeval.adapters.topk_lines import RankedEdge, TopKList, ranked_edges
from pbgeval.adapters.triple_lines import Triple, triples_of
from pbgeval.errors import DataError, StorageError
from pbgeval.metrics.listed_ranks import ListedRanks
from pbgeval.notation import Side
from pbgeval.reading import text_lines

Key = tuple[Side, str, str]  # of a query: the hidden side, the relation, the known entity


class TopKFilter(Enum):
    """Who competes."""

    PRODUCER = "producer"  # whom the lists hold, and of the others those that are not known answers
    KNOWN = "known"  # nobody who is a known answer: they are taken out of the lists
    NONE = "none"  # everybody


class TopKTies(Enum):
    """Who ties."""

    CONFIDENCE = "confidence"  # listed entities of equal confidence
    ORDER = "order"  # nobody: the file's order says more than its rounded confidences


@frozen(eq=False)
class TopK:
    """What a ranking file says of the evaluated edges. A query is one side of an edge that the file has."""

    ranks: ListedRanks
    filtering: TopKFilter
    hidden_Q: NDArray[np.int64]  # `Side.value`
    edge_Q: NDArray[np.int64]  # index in the evaluated edges
    list_length_Q: NDArray[np.int64]  # after filtering
    num_edges: int  # evaluated
    num_entities: int
    counts: Mapping[str, int]  # of what a reader must know

    def of_side(self, side: Side) -> ListedRanks:
        """Return the ranks of the queries that hide one side."""
        return self.ranks.of(self.hidden_Q == side.value)


def read_topk(
    ranking: Path,
    test: Path,
    known: Sequence[Path] = (),
    *,
    entities: Path | None = None,
    filtering: TopKFilter | str = TopKFilter.PRODUCER,
    ties: TopKTies | str = TopKTies.CONFIDENCE,
) -> TopK:
    """Rank the evaluated edges in a ranking file, which is read once, edge by edge.

    Args:
        ranking: the file; plain or gzip.
        test: the evaluated edges, which are kept in memory; each is as many queries as it stands there.
        known: files of further known edges; evaluated ones are always known.
        entities: a file with an entity a line (the last of its columns): nobody else may be named. Default: whoever is
            named in any of the files.
        filtering: see `TopKFilter`; what is known also decides how many candidates there are.
        ties: see `TopKTies`.

    Returns:
        Ranks and bounds, and these counts: `num_missing` evaluated edges that the file lacks; `num_not_evaluated` edges
        of the file that are not evaluated; `num_absent` queries whose list does not hold the true entity, and
        `num_empty` whose list is empty; `num_known_listed` listed entities that are known answers (filtered by their
        producer, lists have none); `num_tied_with_last` queries whose true entity ties with the last of its list, so
        that unlisted ones may tie too.

    Raises:
        StorageError: a file cannot be read, or a line is not as it should be; says which.
        DataError: there is nothing to rank, or an edge comes more often than it is evaluated.
    """
    edges = _EvaluatedEdges.of(list(triples_of(test)), str(test))
    names = _Entities(None if entities is None else _labels(entities))
    names.add_edges(edges.triples, test)
    for path in known:
        edges.add_known(_named(triples_of(path), names, path))
    table = _QueryTable(TopKFilter(filtering), TopKTies(ties), edges, names)
    for ranked in ranked_edges(ranking):
        table.add(ranked)
    if not table.edges_of_queries:
        raise DataError(f"{ranking}: expected edges of {test}, found none of them; is it the ranking of another split?")
    return table.finish()


def _named(triples: Iterable[Triple], names: _Entities, path: Path) -> Iterable[Triple]:
    for triple in triples:
        names.add_edges([triple], path)
        yield triple


def _labels(path: Path) -> set[str]:
    labels = {line.split("\t")[-1] for _, line in text_lines(path) if line.strip()}
    if not labels:
        raise StorageError(f"{path}: expected an entity a line, found none")
    return labels


@define(eq=False)
class _Entities:
    """Who is there."""

    only: set[str] | None  # None: whoever is named
    seen: set[str] = field(factory=set)

    @property
    def number(self) -> int:
        return len(self.seen if self.only is None else self.only)

    def add_edges(self, triples: Iterable[Triple], path: Path) -> None:
        for head, _, tail in triples:
            self.add((head, tail), str(path))

    def add(self, labels: Iterable[str], where: str) -> None:
        if self.only is None:
            self.seen.update(labels)
            return
        for label in labels:
            if label not in self.only:
                raise StorageError(f"{where}: expected an entity of the file of entities, found '{label}'")


@define(eq=False)
class _EvaluatedEdges:
    """The edges that are ranked, by how a ranking file writes them, and the known answers of their queries."""

    triples: list[Triple]
    by_text: dict[str, list[int]]  # the edges of a line, in the order of the file
    answers: dict[Key, set[str]]

    @classmethod
    def of(cls, triples: list[Triple], name: str) -> _EvaluatedEdges:
        if not triples:
            raise DataError(f"{name}: expected edges to evaluate, found none")
        by_text: dict[str, list[int]] = {}
        answers: dict[Key, set[str]] = {}
        for index, triple in enumerate(triples):
            for text in (" ".join(triple), "\t".join(triple)):
                by_text.setdefault(text, []).append(index)
            for side in Side:
                answers.setdefault(_key(side, triple), set())
        edges = cls(triples, by_text, answers)
        edges.add_known(triples)
        return edges

    def add_known(self, triples: Iterable[Triple]) -> None:
        for triple in triples:
            for side in Side:
                of_key = self.answers.get(_key(side, triple))
                if of_key is not None:
                    of_key.add(side.pick(triple[0], triple[2]))


def _key(hidden: Side, triple: Triple) -> Key:
    return hidden, triple[1], hidden.pick(triple[2], triple[0])


@define(eq=False)
class _QueryTable:
    """The queries that have been met."""

    filtering: TopKFilter
    ties: TopKTies
    edges: _EvaluatedEdges
    names: _Entities
    edges_of_queries: list[int] = field(factory=list)
    rows: list[tuple[int, bool, int, int, int, int]] = field(factory=list)
    counts: Counter[str] = field(factory=Counter)
    _met: Counter[str] = field(factory=Counter)

    def add(self, ranked: RankedEdge) -> None:
        """Take an edge of the file; one that is not evaluated is counted."""
        for side in Side:
            self.names.add(ranked.of(side).entities, ranked.of(side).where)
        indices = self.edges.by_text.get(ranked.text)
        if indices is None:
            self.counts["num_not_evaluated"] += 1
            return
        triples = {self.edges.triples[index] for index in indices}
        if len(triples) > 1:
            raise DataError(
                f"{ranked.where}: expected a line that means one evaluated edge, found {ranked.text!r}, which"
                f" means {len(triples)}; write it with tabs"
            )
        triple = triples.pop()
        place = self._met["\t".join(triple)]
        of_edge = self.edges.by_text["\t".join(triple)]
        if place == len(of_edge):
            times = "once" if place == 1 else f"{place} times"
            raise DataError(
                f"{ranked.where}: expected edge {ranked.text!r} {times}, as it is evaluated, found it again"
            )
        self._met["\t".join(triple)] += 1
        for side in Side:
            self.edges_of_queries.append(of_edge[place])
            self.rows.append(self._query(side, triple, ranked.of(side)))

    def _query(self, side: Side, triple: Triple, listed: TopKList) -> tuple[int, bool, int, int, int, int]:
        """Return (side, is listed, optimistic, pessimistic, entities that do not compete, length of the list)."""
        true = side.pick(triple[0], triple[2])
        answers = self.edges.answers[_key(side, triple)]  # the true entity among them
        entities, confidences = listed.entities, listed.confidences
        known_listed = answers.intersection(entities) - {true}
        self.counts["num_known_listed"] += len(known_listed)
        num_excluded = 0 if self.filtering is TopKFilter.NONE else len(answers) - 1
        if known_listed and self.filtering is TopKFilter.KNOWN:
            kept = [at for at, entity in enumerate(entities) if entity not in known_listed]
            entities, confidences = [entities[at] for at in kept], [confidences[at] for at in kept]
        elif self.filtering is TopKFilter.PRODUCER:
            num_excluded -= len(known_listed)
        length = len(entities)
        self.counts["num_empty"] += not length
        if true not in entities:
            self.counts["num_absent"] += 1
            return side.value, False, length + 1, 0, num_excluded, length
        at = entities.index(true)
        own = confidences[at]
        self.counts["num_tied_with_last"] += own == confidences[-1]
        if self.ties is TopKTies.ORDER:
            return side.value, True, at + 1, at + 1, num_excluded, length
        first = sum(confidence > own for confidence in confidences)
        return side.value, True, first + 1, first + confidences.count(own), num_excluded, length

    def finish(self) -> TopK:
        side, listed, optimistic, pessimistic, excluded, length = np.array(self.rows, np.int64).reshape(-1, 6).T
        num_candidates = self.names.number - excluded
        is_listed = listed.astype(bool)
        self.counts["num_missing"] = len(self.edges.triples) - sum(self._met.values())
        names = ("num_missing", "num_not_evaluated", "num_absent", "num_empty", "num_known_listed")
        return TopK(
            ListedRanks(is_listed, optimistic, np.where(is_listed, pessimistic, num_candidates), num_candidates),
            self.filtering,
            hidden_Q=side,
            edge_Q=np.array(self.edges_of_queries, np.int64),
            list_length_Q=length,
            num_edges=len(self.edges.triples),
            num_entities=self.names.number,
            counts={name: self.counts[name] for name in (*names, "num_tied_with_last")},
        )
