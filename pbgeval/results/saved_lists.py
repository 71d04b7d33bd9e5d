"""The lists of an output directory (`topk/`), by name: the best candidates of a query."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from io import TextIOWrapper
from itertools import islice
from pathlib import Path

from attrs import frozen

from pbgeval.errors import OutputError
from pbgeval.notation import Side, WorkUnit
from pbgeval.results.result import Result, Row
from pbgeval.results.saved_queries import competing_counts
from pbgeval.results.saved_run import SavedRun, folder_of
from pbgeval.stats.rank_types import RankType, doubled_rank
from pbgeval.storage.row_files import find_ranks, query_path
from pbgeval.storage.text import listed, open_input, reason_of
from pbgeval.storage.topk import TABLE_COLUMNS, unescaped


@frozen
class SavedList:
    """The best candidates of a query. Several evaluated edges may ask it: each of their answers is true."""

    candidates: Sequence[Row]  # the best first: place, candidate, score, known, is_true
    answers: Mapping[str, tuple[Path, int]]  # and the file of lists and the row of the first edge with this answer

    def ranks(self, result: Result, side: Side, num_answers: int) -> dict[str, tuple[float, int] | None]:
        """Return the rank of each of the first answers and among how many; None where ranks were not saved.

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


def _rank(run: SavedRun, row: WorkUnit, side: Side) -> tuple[float, int] | None:
    at, (better, tied, competing, *_) = competing_counts(run, row, side, filtered=run.facts.filtered)
    if not len(at):
        return None
    return float(doubled_rank(better, tied, RankType(run.facts.headline))[0]) / 2, int(competing[0]) + 1


def saved_list(folder: Path, hidden: str, known: str, relation: str) -> SavedList:
    """Return the list of a query, by names.

    Args:
        folder: the output directory.
        hidden: the side that is asked for, head or tail.
        known: the name of the entity at the other side.
        relation: the name of the relation.

    Raises:
        OutputError: there are no lists, none of this query, or a file is not as it was written.
    """
    files = sorted((folder / "topk").glob("*/*.tsv"))
    if not files:
        raise OutputError(f"{folder}: no saved lists; evaluate with save_topk=10 and an output folder")
    of_known = "head" if hidden == "tail" else "tail"
    found: list[dict[str, object]] = []
    answers: dict[str, tuple[Path, int]] = {}
    asked: set[tuple[str, str]] = set()
    names: set[str] = set()
    relations: set[str] = set()
    row = None  # of the edge file, whose list is taken
    for path in files:
        for line in _lines(path):
            names.update((line[of_known], line["candidate"]))
            relations.add(line["relation"])
            if line["side"] != hidden:
                continue
            query = unescaped(line[of_known]), unescaped(line["relation"])
            asked.add(query)
            if query != (known, relation):
                continue
            answers.setdefault(unescaped(line[hidden]), (path, int(line["row"])))
            row = row or (path, line["row"])
            if row == (path, line["row"]):
                score, is_known = float(line["score"]), line["known"] == "1"
                candidate = unescaped(line["candidate"])
                found.append({"place": int(line["place"]), "candidate": candidate, "score": score, "known": is_known})
    if not found:
        what = f"no evaluated edge has {of_known} {known!r} and relation {relation!r}"
        raise OutputError(f"{what}{_hint(asked, names, relations, known, relation)}")
    return SavedList([{**of, "is_true": of["candidate"] in answers} for of in found], answers)


def _hint(asked: set[tuple[str, str]], names: set[str], relations: set[str], known: str, relation: str) -> str:
    """Name what may be meant, or how to ask about names that the lists have in other queries."""
    faults = [
        f"no list has the name {name!r}{f'; did you mean {near[0]!r}?' if near else ''}"
        for name, among in ((known, set(map(unescaped, names))), (relation, set(map(unescaped, relations))))
        if name not in among
        for near in [get_close_matches(name, among, n=1)]
    ]
    if faults:
        return "".join(f"; {fault}" for fault in faults)
    tested = sorted(repr(relation) for name, relation in asked if name == known)
    others = f"; tested relations of {known!r}: {listed(tested)}" if tested else ""
    return f"{others}; to ask this, evaluate a file with one edge of them, whose answer may be any name"


def _lines(path: Path) -> Iterator[dict[str, str]]:
    try:
        with TextIOWrapper(open_input(path), encoding="utf-8", newline="\n") as file:
            rows = (line.rstrip("\n").split("\t") for line in file)
            if tuple(next(rows, [])) != TABLE_COLUMNS:
                raise ValueError("other columns")
            yield from (dict(zip(TABLE_COLUMNS, cells, strict=True)) for cells in rows)
    except (OSError, ValueError) as error:
        raise OutputError(f"{path}: expected saved lists, got: {reason_of(error)}; evaluate again") from error
