"""Rank edges in a ranking file of AnyBURL or SAFRAN: exact ranks, or bounds.

Ranks are those in the list; nothing is guessed: an evaluated edge that the file lacks is counted, an empty list is one
that does not hold the true entity, and the two sides of an edge do not depend on each other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from itertools import compress, count, repeat
from pathlib import Path

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from pbgeval.errors import DataError, StorageError
from pbgeval.metrics.given import ListedRanks
from pbgeval.models.labels import read_labels
from pbgeval.models.topk_lines import RankedEdges, ranked_edges
from pbgeval.notation import ENDS, Integers, Side, distinct, sort_distinct
from pbgeval.storage.edge_text import Names

_COUNTS = (
    *("num_missing", "num_not_evaluated", "num_absent", "num_empty"),
    *("num_known_listed", "num_tied_with_last"),
)
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
    """The ranks of a file's edges. A query is one side of an edge."""

    ranks: ListedRanks
    filtering: TopKFilter
    hidden_Q: NDArray[np.int64]  # `Side.value`
    edge_Q: NDArray[np.int64]  # index in the evaluated edges
    list_length_Q: NDArray[np.int64]  # after filtering
    num_edges: int  # evaluated
    num_entities: int
    counts: Mapping[str, int]  # of what a reader must know


def read_topk(
    ranking: Path,
    test: Path,
    known: Sequence[Path] = (),
    *,
    names_of: Callable[[Path], Iterator[Names]],
    entities: Path | None = None,
    filtering: TopKFilter | str = TopKFilter.PRODUCER,
    ties: TopKTies | str = TopKTies.CONFIDENCE,
) -> TopK:
    """Rank the evaluated edges in a ranking file, which is read once, in blocks of edges.

    Args:
        ranking: the file; plain or gzip.
        test: the evaluated edges, which are kept in memory as numbers; each is as many queries as it stands there.
        known: files of further known edges; evaluated ones are always known.
        names_of: reads a file of edges, in blocks (`importing.edge_names`).
        entities: a file of labels, as `read_labels` takes it; no other name is allowed. Default: the entities named in
            any of the files.
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
    table = _QueryTable(TopKFilter(filtering), TopKTies(ties), _EvaluatedEdges(names_of, test, known, entities))
    for block in ranked_edges(ranking):
        table.add(block)
    if not table.parts:
        raise DataError(f"{ranking}: no edge of {test} is in this file; check that it ranks this split")
    return table.finish()


def _refuse_name(where: object, label: str) -> StorageError:
    return StorageError(f"{where}: expected an entity of the file of entities, found '{label}'")


class _EvaluatedEdges:
    """The edges that are ranked, and the known answers of their queries."""

    def __init__(
        self, names_of: Callable[[Path], Iterator[Names]], path: Path, known: Iterable[Path], entities: Path | None
    ) -> None:
        self.names_of = names_of
        self.is_closed = entities is not None  # only names in the file of entities are allowed
        # Of that file, or of all files: memory grows with the names in a ranking file.
        self.entity_ids: dict[str, int] = defaultdict(count().__next__)
        self.relation_ids: dict[str, int] = {}  # of evaluated edges
        if entities is not None:
            self.entity_ids = {label: at for at, label in enumerate(read_labels(entities))}
            if not self.entity_ids:
                raise StorageError(f"{entities}: no entities; write one per line")
        blocks = list(self._blocks(path, is_evaluated=True))
        head_E, relation_E, tail_E = (np.concatenate(column) for column in zip(*blocks, strict=True))
        self.num_edges = len(head_E)
        # Keys of queries, ascending, and the answers that are known: codes, ascending, each once.
        self.keys = {side: distinct(relation_E << _HALF | side.pick(tail_E, head_E)) for side in ENDS}
        self.answers: dict[Side, Integers] = dict.fromkeys(ENDS, np.empty(0, np.int64))
        self._add_answers([(head_E, relation_E, tail_E)])
        # Distinct edges, as answers of their keys with a hidden head, ascending; their first places in `edge_E`, and at
        # the end the number of edges. In `edge_E`, equal edges of the file are next to each other.
        code_E = self.codes(Side.LHS, head_E, relation_E, tail_E)
        self.edge_E: Integers = np.argsort(code_E, kind="stable")
        self.code_K, first_K = np.unique(code_E[self.edge_E], return_index=True)
        self.first_K = np.append(first_K, self.num_edges)
        self.met_K = np.zeros_like(self.code_K)  # how often each has been ranked
        for further in known:
            self._add_answers(self._blocks(further, is_evaluated=False))

    def ids_of(self, labels: Sequence[str]) -> Integers:
        """Return the number of each label; -1 if the file of entities lacks it."""
        known = self.entity_ids
        numbers = map(known.get, labels, repeat(-1)) if self.is_closed else map(known.__getitem__, labels)
        return np.fromiter(numbers, np.int64, len(labels))

    def _blocks(self, path: Path, *, is_evaluated: bool) -> Iterator[tuple[Integers, ...]]:
        """Yield heads, relations (-1: of no evaluated edge) and tails of a file of edges as numbers."""
        relations = self.relation_ids
        for heads, labels, tails in self.names_of(path):
            ends_E2 = np.stack([self.ids_of(heads), self.ids_of(tails)], axis=1)
            if (ends_E2 < 0).any():
                at, is_tail = np.argwhere(ends_E2 < 0)[0]
                raise _refuse_name(path, (tails if is_tail else heads)[at])
            relation_E = (
                [relations.setdefault(relation, len(relations)) for relation in labels]
                if is_evaluated
                else [relations.get(relation, -1) for relation in labels]
            )
            yield ends_E2[:, 0], np.array(relation_E, np.int64), ends_E2[:, 1]

    def _add_answers(self, blocks: Iterable[tuple[Integers, ...]]) -> None:
        found = {side: [codes] for side, codes in self.answers.items()}
        for block in blocks:
            for side in ENDS:
                code_E = self.codes(side, *block)
                found[side].append(code_E[code_E >= 0])
        self.answers = {side: sort_distinct(np.concatenate(codes)) for side, codes in found.items()}

    def codes(self, side: Side, head_E: Integers, relation_E: Integers, tail_E: Integers) -> Integers:
        """Encode edges as answers of queries that hide a side; -1 if none is evaluated."""
        at_E = _places(self.keys[side], relation_E << _HALF | side.pick(tail_E, head_E))
        return np.where(at_E < 0, -1, at_E << _HALF | side.pick(head_E, tail_E))

    def find(self, texts: list[str]) -> tuple[Integers, Integers, Integers, Integers]:
        """Return which evaluated edge each text means (-1: none, -2: several), and its head, relation and tail."""
        triples, ambiguous = [], []
        for at, text in enumerate(texts):
            words = text.split("\t" if "\t" in text else " ")
            if len(words) == 3:
                triples.append(self._numbers(*words))
            else:  # labels of several words
                meanings = [] if "\t" in text else self.meanings(text)
                triples.append(meanings[0] if meanings else (-1, -1, -1))
                ambiguous += [at] if len(meanings) > 1 else []
        head_E, relation_E, tail_E = np.array(triples, np.int64).reshape(-1, 3).T
        at_E = _places(self.code_K, self.codes(Side.LHS, head_E, relation_E, tail_E))
        at_E[ambiguous] = -2
        return at_E, head_E, relation_E, tail_E

    def _numbers(self, head: str, relation: str, tail: str) -> tuple[int, int, int]:
        return self.entity_ids.get(head, -1), self.relation_ids.get(relation, -1), self.entity_ids.get(tail, -1)

    def meanings(self, text: str) -> list[tuple[int, int, int]]:
        """Return the evaluated edges that a text means, as labels may have spaces."""
        words = text.split(" ")
        triples = [
            self._numbers(" ".join(words[:first]), " ".join(words[first:second]), " ".join(words[second:]))
            for first in range(1, len(words))
            if " ".join(words[:first]) in self.entity_ids
            for second in range(first + 1, len(words))
        ]
        columns = np.array(triples, np.int64).reshape(-1, 3).T
        return list(compress(triples, _places(self.code_K, self.codes(Side.LHS, *columns)) >= 0))


def _places(sorted_n: Integers, wanted_n: Integers) -> Integers:
    """Return the index of each value in a sorted array; -1 if absent."""
    if not sorted_n.size:
        return np.full(len(wanted_n), -1, np.int64)
    at_n = np.minimum(np.searchsorted(sorted_n, wanted_n), sorted_n.size - 1)
    return np.where(sorted_n[at_n] == wanted_n, at_n, -1)


class _QueryTable:
    """The queries that have been met."""

    def __init__(self, filtering: TopKFilter, ties: TopKTies, edges: _EvaluatedEdges) -> None:
        self.filtering, self.ties, self.edges = filtering, ties, edges
        self.parts: list[NDArray[np.int32]] = []  # (columns, queries), in the order of the file
        self.counts = dict.fromkeys(_COUNTS, 0)
        self.starts = {  # of each key's answers; at the end how many there are
            side: np.searchsorted(edges.answers[side], np.arange(len(keys) + 1) << _HALF)
            for side, keys in edges.keys.items()
        }

    def add(self, block: RankedEdges) -> None:
        """Rank a block of edges; those that are not evaluated are only counted."""
        entity_n = self.edges.ids_of(block.entity_n)
        if (entity_n < 0).any():
            block.check_lists()
            unknown = int(np.argmax(entity_n < 0))
            index = int(np.searchsorted(np.cumsum(block.length_N), unknown, "right"))
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
        """Match edges with evaluated ones; repeated edges get different matches."""
        edges = self.edges
        place_n = np.flatnonzero(at_E != -1)
        at_n = at_E[place_n]
        order = np.argsort(at_n, kind="stable")
        again_n = np.empty_like(at_n)  # which occurrence in this block
        again_n[order] = np.arange(len(at_n)) - np.searchsorted(at_n[order], at_n[order])
        edge_n = edges.first_K[at_n] + edges.met_K[at_n] + again_n
        wrong_n = np.flatnonzero((at_n == -2) | (edge_n >= edges.first_K[at_n + 1]))
        if wrong_n.size:
            at, place = at_n[wrong_n[0]], place_n[wrong_n[0]]
            where = f"{block.path}:{block.line_E[place]}"
            text = block.text_E[place]
            if at == -2:
                raise DataError(
                    f"{where}: expected a line that means one evaluated edge, found {text!r}, which"
                    f" means {len(edges.meanings(text))}; write it with tabs"
                )
            times = edges.first_K[at + 1] - edges.first_K[at]
            expected = "once" if times == 1 else f"{times} times"
            raise DataError(f"{where}: expected edge {text!r} {expected}, as it is evaluated, found it again")
        np.add.at(edges.met_K, at_n, 1)
        return np.asarray(edges.edge_E[edge_n])

    def _rank(
        self,
        block: RankedEdges,
        entity_n: Integers,
        chosen_E: Integers,
        head_E: Integers,
        relation_E: Integers,
        tail_E: Integers,
    ) -> tuple[NDArray[np.generic], ...]:
        """Rank both queries of some edges of a block, the head's first.

        Returns:
            Is listed, optimistic, pessimistic, entities that do not compete, length of the list; by query.
        """
        num_queries = 2 * len(chosen_E)
        key_Q, num_answers_Q = np.empty((2, num_queries), np.int64)
        for side in ENDS:
            key_E = self.edges.codes(side, head_E, relation_E, tail_E) >> _HALF
            key_Q[side.value :: 2] = key_E
            num_answers_Q[side.value :: 2] = self.starts[side][key_E + 1] - self.starts[side][key_E]
        length_Q = block.length_N.reshape(-1, 2)[chosen_E].reshape(-1)
        end_Q = np.cumsum(block.length_N).reshape(-1, 2)[chosen_E].reshape(-1)
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
        excluded_Q = {
            TopKFilter.NONE: np.zeros_like(num_known_Q),
            TopKFilter.KNOWN: num_answers_Q - 1,
            TopKFilter.PRODUCER: num_answers_Q - 1 - num_known_Q,
        }[self.filtering]
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
        self.counts["num_known_listed"] += int(num_known_Q.sum())
        self.counts["num_tied_with_last"] += int((is_listed_Q & (last_Q == length_Q)).sum())
        if self.ties is TopKTies.ORDER:
            first_Q, last_Q = place_Q, place_Q + 1
        optimistic_Q = np.where(is_listed_Q, first_Q, length_Q) + 1
        return is_listed_Q, optimistic_Q, np.where(is_listed_Q, last_Q, 0), excluded_Q, length_Q

    def finish(self) -> TopK:
        columns = np.concatenate(self.parts, axis=1)
        self.parts.clear()
        side, edge, listed, optimistic, pessimistic, excluded, length = (column.astype(np.int64) for column in columns)
        num_candidates = len(self.edges.entity_ids) - excluded
        is_listed = listed.astype(bool)
        self.counts["num_missing"] = self.edges.num_edges - int(self.edges.met_K.sum())
        self.counts["num_absent"], self.counts["num_empty"] = int((~is_listed).sum()), int((length == 0).sum())
        return TopK(
            ListedRanks(is_listed, optimistic, np.where(is_listed, pessimistic, num_candidates), num_candidates),
            self.filtering,
            hidden_Q=side,
            edge_Q=edge,
            list_length_Q=length,
            num_edges=self.edges.num_edges,
            num_entities=len(self.edges.entity_ids),
            counts=self.counts,
        )
