"""The lists of an output directory (`topk/`), by name: the best candidates of a query."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from io import TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import TypeAlias

from attrs import frozen

from pbgeval.errors import OutputError
from pbgeval.models.labels import is_id
from pbgeval.notation import Side, WorkUnit
from pbgeval.results.result import Result, Row
from pbgeval.results.saved_queries import competing_counts
from pbgeval.results.saved_run import SavedRun, folder_of
from pbgeval.stats.rank_types import RankType, doubled_rank
from pbgeval.storage.row_files import find_ranks, query_path
from pbgeval.storage.text import listed, open_input, reason_of
from pbgeval.storage.topk import TABLE_COLUMNS, TIMED_COLUMNS, unescaped

_PLACE = re.compile(r".+:\d+:\d+", re.DOTALL)  # what an entity without a name is called

Named: TypeAlias = str | int  # an entity or a relation: its name or its id
_Query: TypeAlias = tuple[str, str]  # the known entity's name; the time, "" where queries of all times are the same


@frozen
class SavedList:
    """The best candidates of a query. Several evaluated edges may ask it: each of their answers is true."""

    candidates: Sequence[Row]  # the best first: place, candidate, score, known, is_true
    answers: Mapping[str, tuple[Path, int]]  # and the file of lists and the row of the first edge with this answer
    known: str  # the names that the query has in the lists
    relation: str
    time: str  # "" where queries of all times are the same

    def ranks(self, result: Result, side: Side, num_answers: int) -> dict[str, tuple[float, int, int] | None]:
        """Return the rank of each of the first answers, among how many, and its ties; None where ranks were not saved.

        Raises:
            OutputError: the ranks are of another run.
            StorageError: a file is damaged.
        """
        folder = folder_of(result)
        answers = dict(islice(self.answers.items(), num_answers))
        if not find_ranks(folder):
            return dict.fromkeys(answers)
        run = SavedRun.open(result, None)
        place_of = {query_path(folder, "topk", *place).with_suffix(".tsv"): place for place in run.ranks}
        return {
            name: _rank(run, WorkUnit(*place_of[path], row, row + 1), side) for name, (path, row) in answers.items()
        }


def _rank(run: SavedRun, row: WorkUnit, side: Side) -> tuple[float, int, int] | None:
    at, (better, tied, competing, *_) = competing_counts(run, row, side, filtered=run.facts.filtered)
    if not len(at):
        return None
    rank = float(doubled_rank(better, tied, RankType(run.facts.headline))[0]) / 2
    return rank, int(competing[0]) + 1, int(tied[0])


def saved_list(result: Result, hidden: str, known: Named, relation: Named, time: int | None = None) -> SavedList:
    """Return the list of a query, by names or ids.

    Args:
        result: with its output directory.
        hidden: the side that is asked for, head or tail.
        known: the entity at the other side.
        relation: the relation.
        time: the query's time, where queries of different times differ.

    Raises:
        OutputError: there are no lists, none of this query, or a file is not as it was written; an id alone does not
            say which entity is meant; or the query has several times, and none is given.
    """
    folder = folder_of(result)
    files = sorted((folder / "topk").glob("*/*.tsv"))
    if not files:
        raise OutputError(f"{folder}: no saved lists; evaluate with save_topk=10 and an output folder")
    of_known = "head" if hidden == "tail" else "tail"
    called, related = _names_of_entity(result, known), _names_of_relation(result, relation)
    found: dict[_Query, list[dict[str, object]]] = {}  # candidates
    answers: dict[_Query, dict[str, tuple[Path, int]]] = {}
    row: dict[_Query, tuple[Path, str]] = {}  # of the edge file, whose list is taken
    asked: set[tuple[str, str]] = set()
    names: set[str] = set()
    relations: set[str] = set()
    for path in files:
        for line in _lines(path):
            names.update((line[of_known], line["candidate"]))
            relations.add(line["relation"])
            if line["side"] != hidden:
                continue
            name, its_relation = unescaped(line[of_known]), unescaped(line["relation"])
            asked.add((name, its_relation))
            if name not in called or its_relation not in related:
                continue
            query = name, line.get("time", "")
            answers.setdefault(query, {}).setdefault(unescaped(line[hidden]), (path, int(line["row"])))
            if row.setdefault(query, (path, line["row"])) == (path, line["row"]):
                score, is_known = float(line["score"]), line["known"] == "1"
                candidate = unescaped(line["candidate"])
                found.setdefault(query, []).append(
                    {"place": int(line["place"]), "candidate": candidate, "score": score, "known": is_known}
                )
    if not names:
        raise OutputError(f"{folder}: the saved lists are empty, as no query was evaluated")
    what = f"{of_known} {known!r} and relation {relation!r}"
    chosen = next((name for name in called if name in {of for of, _ in found}), None)
    if chosen is None:
        raise OutputError(f"no evaluated edge has {what}{_hint(asked, names, relations, called, related)}")
    when = _time_of([of_query for name, of_query in found if name == chosen], time, what)
    rows = [{**of, "is_true": of["candidate"] in answers[chosen, when]} for of in found[chosen, when]]
    return SavedList(rows, answers[chosen, when], chosen, related[0], when)


def _time_of(times: list[str], given: int | None, what: str) -> str:
    """Return the time of a query, "" where lists have none."""
    if given is None and len(times) == 1:
        return times[0]
    if str(given) in times:
        return str(given)
    if times == [""]:
        raise OutputError("the lists of this run are the same at all times; leave out time")
    told = listed(sorted(times, key=int))
    if given is None:
        raise OutputError(f"{what}: this query has {len(times)} times, each with a list of its own; give time: {told}")
    raise OutputError(f"no evaluated edge has {what} at time {given}; times of this query: {told}")


def _names_of_entity(result: Result, entity: Named) -> list[str]:
    """Return what lists may call an entity: its name, or the place of its id where entities have no names."""
    if isinstance(entity, str) and not is_id(entity):
        return [entity]
    types = result.document["provenance"]["settings"]["entities"]
    places = [f"{name}:0:{entity}" for name, of in types.items() if of["num_partitions"] == 1]
    if not isinstance(entity, str) and not places:
        raise OutputError(f"entity {entity}: an id alone does not say which partition; write type:partition:row")
    return [entity, *places] if isinstance(entity, str) else places


def _names_of_relation(result: Result, relation: Named) -> list[str]:
    """Return what lists call a relation: a table has the ids of those with names."""
    if isinstance(relation, str):
        return [relation]
    ids = {row.get("relation_id"): row["relation"] for row in result.rows.get("relations", ())}
    return [str(ids.get(relation, relation))]


def _hint(
    asked: set[tuple[str, str]], names: set[str], relations: set[str], called: list[str], related: list[str]
) -> str:
    """Name what may be meant, or how to ask about names that the lists have in other queries."""
    entities, others = {*map(unescaped, names)}, {*map(unescaped, relations)}
    faults = [
        f"no list has the name {found[0]!r}{_nearest(found[0], among)}"
        for found, among in ((called, entities), (related, others))
        if among.isdisjoint(found)
    ]
    if faults:
        return "".join(f"; {fault}" for fault in faults)
    tested = sorted(repr(relation) for name, relation in asked if name in called)
    told = f"; tested relations of {called[0]!r}: {listed(tested)}" if tested else ""
    return f"{told}; to ask this, evaluate a file with one edge of them, whose answer may be any name"


def _nearest(name: str, among: set[str]) -> str:
    """Return what names there are, for someone who has asked for another."""
    example = min(among)
    if _PLACE.fullmatch(example):
        advice = "give their ids, or evaluate with labels=FOLDER (in a config, dictionary_path)"
        return f" (they are places, for example {example!r}; entities have no names here: {advice})"
    near = get_close_matches(name, among, n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; names are, for example, {example!r}"


def _lines(path: Path) -> Iterator[dict[str, str]]:
    try:
        with TextIOWrapper(open_input(path), encoding="utf-8", newline="\n") as file:
            rows = (line.rstrip("\n").split("\t") for line in file)
            if (columns := tuple(next(rows, []))) not in (TABLE_COLUMNS, TIMED_COLUMNS):
                raise ValueError("other columns")
            yield from (dict(zip(columns, cells, strict=True)) for cells in rows)
    except (OSError, ValueError) as error:
        raise OutputError(f"{path}: expected saved lists, got: {reason_of(error)}; evaluate again") from error
