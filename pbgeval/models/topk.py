"""A ranking file of AnyBURL or SAFRAN, the edges that it ranks and those that are known -> ranks and bounds.

Ranks are those in the list; nothing is guessed: an evaluated edge that the file lacks is counted, an empty list is one
that does not hold the true entity, and the two sides of an edge do not depend on each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from itertools import chain, repeat
from pathlib import Path

import numpy as np
from attrs import define, field, frozen
from numpy.typing import NDArray

from pbgeval.errors import DataError, StorageError
from pbgeval.metrics.given import ListedRanks
from pbgeval.models.topk_lines import RankedEdges, ranked_edges
from pbgeval.models.triple_lines import triple_columns
from pbgeval.notation import ENDS, Side, distinct, sort_distinct
from pbgeval.storage.text import rows

Integers = NDArray[np.int64]

_COUNTS = (
    *("num_missing", "num_not_evaluated", "num_absent", "num_empty"),
    *("num_known_listed", "num_tied_with_last"),
)
_EDGES_AT_A_TIME = 1 << 18
_HALF = 32  # bits of a code: (relation, known entity) is a key, (number of the key, entity) an answer to it


class TopKFilter(Enum):
    """Which entities compete."""

    PRODUCER = "producer"  # whom the lists hold, and of the others those that are not known answers
    KNOWN = "known"  # known answers are taken out of the lists
    NONE = "none"  # all entities compete


class TopKTies(Enum):
    """Which entities tie."""

    CONFIDENCE = "confidence"  # listed entities of equal confidence
    ORDER = "order"  # none: the file's order is finer than its rounded confidences


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

    def select_side(self, side: Side) -> ListedRanks:
        """Return the ranks of the queries that hide one side."""
        return self.ranks.select(self.hidden_Q == side.value)


def read_topk(
    ranking: Path,
    test: Path,
    known: Sequence[Path] = (),
    *,
    entities: Path | None = None,
    filtering: TopKFilter | str = TopKFilter.PRODUCER,
    ties: TopKTies | str = TopKTies.CONFIDENCE,
) -> TopK:
    """Rank the evaluated edges in a ranking file, which is read once, in blocks of edges.

    Args:
        ranking: the file; plain or gzip.
        test: the evaluated edges, which are kept in memory as numbers; each is as many queries as it stands there.
        known: files of further known edges; evaluated ones are always known.
        entities: a file with an entity per line (the last of its columns); no other name is allowed. Default: the
            entities named in any of the files.
        filtering: see `TopKFilter`; what is known also decides how many candidates there are.
        ties: see `TopKTies`.

    Returns:
        Ranks and bounds, and these counts: `num_missing` evaluated edges that the file lacks; `num_not_evaluated` edges
        of the file that are not evaluated; `num_absent` queries whose list does not hold the true entity, and
        `num_empty` whose list is empty; `num_known_listed` listed entities that are known answers (filtered by their
        producer, lists have none); `num_tied_with_last` queries whose true entity ties with the last of its list, so
        that unlisted ones may tie too.

    Raises:
        StorageError: a file cannot be read, or a line is of the wrong form; says which.
        DataError: there is nothing to rank, or an edge comes more often than it is evaluated.
    """
    names = _Names(entities is not None, {} if entities is None else _labels(entities))
    edges = _EvaluatedEdges.read(test, names)
    for path in known:
        edges.add_known(path)
    table = _QueryTable(TopKFilter(filtering), TopKTies(ties), edges)
    for block in ranked_edges(ranking):
        table.add(block)
    if not table.parts:
        raise DataError(f"{ranking}: no edge of {test} is in this file; check that it ranks this split")
    return table.finish()


def _labels(path: Path) -> dict[str, int]:
    labels = {columns[-1]: 0 for _, _, columns in rows(path)}
    if not labels:
        raise StorageError(f"{path}: no entities; write one per line")
    return {label: at for at, label in enumerate(labels)}


@define(eq=False)
class _Names:
    """The known names; memory grows with the names in a ranking file."""

    is_closed: bool  # only names in the file of entities are allowed
    entity_ids: dict[str, int]  # of that file, or of all files
    relation_ids: dict[str, int] = field(factory=dict, init=False)  # of evaluated edges

    def ids_of(self, labels: Sequence[str]) -> tuple[Integers, int | None]:
        """Return the number of each label, and where the first unknown one is."""
        ids = self.entity_ids
        found = list(map(ids.get, labels))
        if None in found:
            if self.is_closed:
                return np.empty(0, np.int64), found.index(None)
            for at in [at for at, number in enumerate(found) if number is None]:
                found[at] = ids.setdefault(labels[at], len(ids))
        return np.array(found, np.int64), None


def _refuse_name(where: object, label: str) -> StorageError:
    return StorageError(f"{where}: expected an entity of the file of entities, found '{label}'")


def _blocks_of_triples(path: Path, names: _Names, *, is_evaluated: bool) -> Iterator[tuple[Integers, ...]]:
    """Yield heads, relations (-1: of no evaluated edge) and tails of a file of edges as numbers."""
    relations = names.relation_ids
    for heads, labels, tails in triple_columns(path):
        head_E, head_fault = names.ids_of(heads)
        tail_E, tail_fault = names.ids_of(tails)
        faults = [at for at in (head_fault, tail_fault) if at is not None]
        if faults:
            raise _refuse_name(path, (heads if head_fault == min(faults) else tails)[min(faults)])
        if is_evaluated:
            relation_E = [relations.setdefault(relation, len(relations)) for relation in labels]
        else:
            relation_E = list(map(relations.get, labels, repeat(-1)))
        yield head_E, np.array(relation_E, np.int64), tail_E


@define(eq=False)
class _EvaluatedEdges:
    """The edges that are ranked, and the known answers of their queries."""

    path: Path
    names: _Names
    num_edges: int
    keys: dict[Side, Integers]  # of queries, ascending
    code_U: Integers  # of each distinct edge, as an answer of its key with a hidden head, ascending
    first_U: Integers  # its first place in `edge_E`
    edge_E: Integers  # the edges of the file, those that are equal next to each other
    answers: dict[Side, Integers]  # codes, ascending, each once
    met_U: Integers = field(init=False)  # how often each has been ranked

    def __attrs_post_init__(self) -> None:
        self.met_U = np.zeros(len(self.code_U), np.int64)

    @classmethod
    def read(cls, path: Path, names: _Names) -> _EvaluatedEdges:
        blocks = list(_blocks_of_triples(path, names, is_evaluated=True))
        if not blocks:
            raise DataError(f"{path}: no edges to evaluate")
        head_E, relation_E, tail_E = (np.concatenate(column) for column in zip(*blocks, strict=True))
        keys = {side: distinct(relation_E << _HALF | side.pick(tail_E, head_E)) for side in ENDS}
        code_E = np.searchsorted(keys[Side.LHS], relation_E << _HALF | tail_E) << _HALF | head_E
        edge_E = np.argsort(code_E, kind="stable")
        code_U, first_U = np.unique(code_E[edge_E], return_index=True)
        edges = cls(path, names, len(code_E), keys, code_U, first_U, edge_E, dict.fromkeys(ENDS, code_U[:0]))
        edges._add_answers(head_E, relation_E, tail_E)
        return edges

    def add_known(self, path: Path) -> None:
        """Take a file of known edges."""
        blocks: list[tuple[Integers, ...]] = []
        for block in _blocks_of_triples(path, self.names, is_evaluated=False):
            blocks.append(block)
            if sum(len(head_E) for head_E, _, _ in blocks) >= _EDGES_AT_A_TIME:
                self._add_answers(*map(np.concatenate, zip(*blocks, strict=True)))
                blocks.clear()
        if blocks:
            self._add_answers(*map(np.concatenate, zip(*blocks, strict=True)))

    def _add_answers(self, head_E: Integers, relation_E: Integers, tail_E: Integers) -> None:
        for side in ENDS:
            code_E = self.codes(side, head_E, relation_E, tail_E)
            found = sort_distinct(code_E[code_E >= 0])
            if found.size:
                self.answers[side] = sort_distinct(np.concatenate([self.answers[side], found]), "stable")

    def codes(self, side: Side, head_E: Integers, relation_E: Integers, tail_E: Integers) -> Integers:
        """Return edges as answers of their queries that hide a side; -1: no evaluated edge has that query."""
        chosen_E = relation_E >= 0
        key_E = relation_E[chosen_E] << _HALF | side.pick(tail_E, head_E)[chosen_E]
        at_E = np.full(len(relation_E), -1, np.int64)
        at_E[chosen_E] = _places(self.keys[side], key_E)
        return np.where(at_E < 0, -1, at_E << _HALF | side.pick(head_E, tail_E))

    def find(self, texts: list[str]) -> tuple[Integers, Integers, Integers, Integers]:
        """Return which evaluated edge each text means (-1: none, -2: several), and its head, relation and tail."""
        is_tabbed = "\t" in "".join(texts)
        if not is_tabbed and set(map(str.count, texts, repeat(" "))) == {2}:
            words, other, meanings = " ".join(texts).split(" "), list[int](), []
        else:
            words_E = [text.split("\t" if "\t" in text else " ") for text in texts]
            other = [at for at, words in enumerate(words_E) if len(words) != 3]  # labels of several words
            meanings = [[] if "\t" in texts[at] else self._meanings(words_E[at]) for at in other]
            for at in other:
                words_E[at] = ["", "", ""]
            words = list(chain.from_iterable(words_E))
        of_names = (self.names.entity_ids, self.names.relation_ids, self.names.entity_ids)
        numbers = [list(map(ids.get, words[place::3], repeat(-1))) for place, ids in enumerate(of_names)]
        head_E, relation_E, tail_E = np.array(numbers, np.int64)
        for at, found in zip(other, meanings, strict=True):
            head_E[at], relation_E[at], tail_E[at] = found[0] if found else (-1, -1, -1)
        code_E = self.codes(Side.LHS, head_E, relation_E, tail_E)
        at_E = np.where((head_E < 0) | (tail_E < 0), -1, _places(self.code_U, code_E))
        at_E[[at for at, found in zip(other, meanings, strict=True) if len(found) > 1]] = -2
        return at_E, head_E, relation_E, tail_E

    def _meanings(self, words: list[str]) -> list[tuple[int, int, int]]:
        """Return the evaluated edges that some words mean, as labels may have spaces."""
        found = []
        for first in range(1, len(words) - 1):
            head = self.names.entity_ids.get(" ".join(words[:first]))
            for second in range(first + 1, len(words) if head is not None else 0):
                relation = self.names.relation_ids.get(" ".join(words[first:second]))
                tail = self.names.entity_ids.get(" ".join(words[second:])) if relation is not None else None
                if head is not None and relation is not None and tail is not None:
                    code = self.codes(Side.LHS, *(np.array([value]) for value in (head, relation, tail)))
                    if _places(self.code_U, code)[0] >= 0:
                        found.append((head, relation, tail))
        return found

    def num_meanings(self, text: str) -> int:
        """Return how many evaluated edges a text means."""
        return len(self._meanings(text.split(" ")))


def _places(sorted_n: Integers, wanted_n: Integers) -> Integers:
    """Return where each value is among some that ascend; -1: nowhere."""
    if not sorted_n.size:
        return np.full(len(wanted_n), -1, np.int64)
    at_n = np.minimum(np.searchsorted(sorted_n, wanted_n), sorted_n.size - 1)
    return np.where(sorted_n[at_n] == wanted_n, at_n, -1)


@define(eq=False)
class _QueryTable:
    """The queries that have been met."""

    filtering: TopKFilter
    ties: TopKTies
    edges: _EvaluatedEdges
    parts: list[NDArray[np.int32]] = field(factory=list)  # (columns, queries), in the order of the file
    counts: dict[str, int] = field(factory=lambda: dict.fromkeys(_COUNTS, 0))
    starts: dict[Side, Integers] = field(init=False)  # of each key's answers; at the end how many there are

    def __attrs_post_init__(self) -> None:
        self.starts = {
            side: np.searchsorted(self.edges.answers[side], np.arange(len(keys) + 1) << _HALF)
            for side, keys in self.edges.keys.items()
        }

    def add(self, block: RankedEdges) -> None:
        """Take edges of the file; those that are not evaluated are counted."""
        entity_n, unknown = self.edges.names.ids_of(block.entity_n)
        if unknown is not None:
            block.check_lists()
            index = int(np.searchsorted(np.cumsum(block.length_L), unknown, "right"))
            raise _refuse_name(f"{block.path}:{block.line_E[index // 2] + 1 + index % 2}", block.entity_n[unknown])
        block.check_distinct(entity_n)
        at_E, *triple_E = self.edges.find(block.text_E)
        edge_E = self._edges_of(block, at_E)
        self.counts["num_not_evaluated"] += int((at_E == -1).sum())
        chosen_E = np.flatnonzero(at_E >= 0)
        if chosen_E.size:
            ranked = self._rank(block, entity_n, chosen_E, *(column[chosen_E] for column in triple_E))
            side_Q = np.tile([side.value for side in ENDS], len(chosen_E))
            self.parts.append(np.stack([side_Q, np.repeat(edge_E, 2), *ranked]).astype(np.int32))

    def _edges_of(self, block: RankedEdges, at_E: Integers) -> Integers:
        """Return the evaluated edges among some, each occurrence another of those that are equal."""
        edges, found = self.edges, []
        at_n = at_E[at_E != -1]
        if at_n.size == distinct(at_n).size and not (at_n < 0).any() and not edges.met_U[at_n].any():
            edges.met_U[at_n] = 1
            edge_n: Integers = edges.edge_E[edges.first_U[at_n]]
            return edge_n
        for place in np.flatnonzero(at_E != -1).tolist():
            at, where, text = int(at_E[place]), f"{block.path}:{block.line_E[place]}", block.text_E[place]
            if at == -2:
                raise DataError(
                    f"{where}: expected a line that means one evaluated edge, found {text!r}, which"
                    f" means {edges.num_meanings(text)}; write it with tabs"
                )
            start = int(edges.first_U[at])
            end = int(edges.first_U[at + 1]) if at + 1 < len(edges.first_U) else edges.num_edges
            if start + edges.met_U[at] == end:
                times = "once" if end - start == 1 else f"{end - start} times"
                raise DataError(f"{where}: expected edge {text!r} {times}, as it is evaluated, found it again")
            found.append(edges.edge_E[start + edges.met_U[at]])
            edges.met_U[at] += 1
        return np.array(found, np.int64)

    def _rank(
        self,
        block: RankedEdges,
        entity_n: Integers,
        chosen_E: Integers,
        head_E: Integers,
        relation_E: Integers,
        tail_E: Integers,
    ) -> tuple[NDArray[np.generic], ...]:
        """Rank the two queries of each of some edges of a block: its head's first.

        Returns:
            Is listed, optimistic, pessimistic, entities that do not compete, length of the list; by query.
        """
        num_queries = 2 * len(chosen_E)
        key_Q, num_answers_Q = np.empty((2, num_queries), np.int64)
        for side in ENDS:
            key_E = self.edges.codes(side, head_E, relation_E, tail_E) >> _HALF
            key_Q[side.value :: 2] = key_E
            num_answers_Q[side.value :: 2] = self.starts[side][key_E + 1] - self.starts[side][key_E]
        length_Q = block.length_L.reshape(-1, 2)[chosen_E].reshape(-1)
        end_Q = np.cumsum(block.length_L).reshape(-1, 2)[chosen_E].reshape(-1)
        query_n = np.repeat(np.arange(num_queries), length_Q)
        row_n = np.arange(len(query_n)) + (end_Q - np.cumsum(length_Q))[query_n]
        confidence_n = block.confidence_n[row_n]
        entity_n = entity_n[row_n]
        is_true_n = entity_n == np.stack([head_E, tail_E], axis=1).reshape(-1)[query_n]
        is_known_n = np.zeros_like(is_true_n)
        for side in ENDS:
            asked = np.flatnonzero((query_n % 2 == side.value) & (num_answers_Q[query_n] > 1) & ~is_true_n)
            code_n = key_Q[query_n[asked]] << _HALF | entity_n[asked]
            is_known_n[asked] = _places(self.edges.answers[side], code_n) >= 0

        def number_Q(chosen_n: NDArray[np.bool_]) -> Integers:
            return np.bincount(query_n[chosen_n], minlength=num_queries).astype(np.int64, copy=False)

        num_known_Q = number_Q(is_known_n)
        excluded_Q = np.zeros_like(num_known_Q) if self.filtering is TopKFilter.NONE else num_answers_Q - 1
        if self.filtering is TopKFilter.PRODUCER:
            excluded_Q = excluded_Q - num_known_Q
        if self.filtering is TopKFilter.KNOWN:
            kept_n = ~is_known_n
            query_n, is_true_n, confidence_n = query_n[kept_n], is_true_n[kept_n], confidence_n[kept_n]
        length_Q = number_Q(np.ones(len(query_n), np.bool_))
        is_listed_Q = number_Q(is_true_n) > 0
        own_Q = np.full(num_queries, np.nan)
        own_Q[query_n[is_true_n]] = confidence_n[is_true_n]
        place_Q = np.zeros(num_queries, np.int64)
        place_Q[query_n[is_true_n]] = np.flatnonzero(is_true_n) - (np.cumsum(length_Q) - length_Q)[query_n[is_true_n]]
        first_Q = number_Q(confidence_n > own_Q[query_n])
        last_Q = first_Q + number_Q(confidence_n == own_Q[query_n])
        self._count(num_known_Q, length_Q, is_listed_Q, last_Q)
        if self.ties is TopKTies.ORDER:
            first_Q, last_Q = place_Q, place_Q + 1
        optimistic_Q = np.where(is_listed_Q, first_Q, length_Q) + 1
        return is_listed_Q, optimistic_Q, np.where(is_listed_Q, last_Q, 0), excluded_Q, length_Q

    def _count(self, known_Q: Integers, length_Q: Integers, is_listed_Q: NDArray[np.bool_], last_Q: Integers) -> None:
        self.counts["num_known_listed"] += int(known_Q.sum())
        self.counts["num_empty"] += int((length_Q == 0).sum())
        self.counts["num_absent"] += int((~is_listed_Q).sum())
        self.counts["num_tied_with_last"] += int((is_listed_Q & (last_Q == length_Q)).sum())

    def finish(self) -> TopK:
        columns = np.concatenate(self.parts, axis=1)
        self.parts.clear()
        side, edge, listed, optimistic, pessimistic, excluded, length = (column.astype(np.int64) for column in columns)
        num_candidates = len(self.edges.names.entity_ids) - excluded
        is_listed = listed.astype(bool)
        self.counts["num_missing"] = self.edges.num_edges - int(self.edges.met_U.sum())
        return TopK(
            ListedRanks(is_listed, optimistic, np.where(is_listed, pessimistic, num_candidates), num_candidates),
            self.filtering,
            hidden_Q=side,
            edge_Q=edge,
            list_length_Q=length,
            num_edges=self.edges.num_edges,
            num_entities=len(self.edges.names.entity_ids),
            counts=self.counts,
        )
