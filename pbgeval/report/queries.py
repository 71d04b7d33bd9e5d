"""Saved ranks and lists of a run, or of two on the same queries -> a page of relations, their queries and candidates.

The page answers why the MRR of a relation is low. Figures of relations are of all queries; queries are chosen where
there are more than the page has room for. All names are in one packed text, which the page's script writes as text.
"""

from __future__ import annotations

import base64
import gzip
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from attrs import evolve, frozen

from pbgeval.errors import ConfigError
from pbgeval.notation import ENDS
from pbgeval.ranking.keys import split_mix
from pbgeval.report.conditions import tags_of, warnings_of
from pbgeval.report.figures import capital, name_of, rounded
from pbgeval.report.page import Notice, Page
from pbgeval.report.paired_runs import CompareOptions, PairedRuns
from pbgeval.report.query_facts import RelationFacts, explain_change, explain_relation
from pbgeval.report.rendering import render
from pbgeval.report.run_overlap import Overlap, RunOverlaps
from pbgeval.report.tables import DataTable, clipped, to_latex, to_markdown, unbroken
from pbgeval.results.result import Result
from pbgeval.results.saved_queries import Candidate, SavedQueries, SavedQuery
from pbgeval.stats.rank_types import RankType, doubled_rank
from pbgeval.storage.text import plural

MAX_QUERIES = 10_000
MAX_CANDIDATES = 10  # of a list; the answer is shown where it is listed further down
MAX_BYTES = 2_000_000  # of a page
MAX_MOVED = 20  # queries of a table
MAX_NAMED = 3  # relations in the first sentence
DIGITS = 6  # of a score
NOT_KNOWN, KNOWN, ANSWER = range(3)  # what a candidate is


@frozen(eq=False)
class QueryPage:
    """What the page shows: all queries of one run, or of two."""

    kind: str
    name: str
    title: str
    tags: Sequence[str]
    labels: Sequence[str]  # of the runs
    rank_type: RankType
    runs: Sequence[SavedQueries]
    warnings: Sequence[str] = ()
    overlap: Overlap | None = None  # of two runs

    @classmethod
    def of_run(cls, report: Result) -> QueryPage:
        """Read the queries of a run.

        Raises:
            OutputError: the run has not saved ranks and lists, or a file is not as it was written.
            StorageError: a file is damaged.

        Examples:
            >>> import pbgeval
            >>> def score(lhs, rel, rhs):
            ...     return -(lhs + 1 - rhs).abs().float()  # the tail is the next entity
            ...
            >>> model = pbgeval.edge_scorer(score, num_entities=5, num_relations=1)
            >>> report = pbgeval.evaluate_triples(model, [(0, 0, 1), (0, 0, 3)], save_topk=2, output="results/queries")
            >>> page = QueryPage.of_run(report)
            >>> float(page.runs[0].reciprocal_ranks(page.rank_type).mean()) == report["mrr"]
            True
        """
        document = report.document
        queries = SavedQueries.read(report)
        name = clipped(Path(report.path or "").resolve().name)
        rank_type = RankType(document["headline"])
        title, warnings = name_of(report) or name, warnings_of(document)
        return cls("Queries", name, title, tags_of(document), [name], rank_type, [queries], warnings)

    @classmethod
    def of_two(cls, given: Sequence[tuple[str, Path]], options: CompareOptions) -> QueryPage:
        """Read the queries of two runs.

        Args:
            given: the name of each run, empty for that of its folder, and the folder.
            options: of a comparison.

        Raises:
            ConfigError: an argument is wrong in itself.
            OutputError: the runs differ in more than the model, or have not saved ranks and lists.
            StorageError: a file is damaged, or a query of one run is not that of the other.
        """
        folders = [folder for _, folder in given]
        paired = PairedRuns.open(folders, evolve(options, clusters="edge"))
        sides = [side for side in ENDS if side in paired.sides]
        if not sides:
            raise ConfigError("side: expected head, tail or both, as lists are of these")
        runs = [SavedQueries.read(report, filtered=paired.filtered, sides=sides) for report in paired.reports]
        # Raises where the queries are not the same.
        overlap = RunOverlaps.of_runs(evolve(paired, sides=tuple(sides)), MAX_CANDIDATES).between(0, 1)
        has_one_name = folders[0].name == folders[1].name
        labels = [clipped(name or (str(folder) if has_one_name else folder.name)) for name, folder in given]
        tags = [
            *(f"{letter}: {label}" for letter, label in zip("AB", labels, strict=True)),
            "filtered" if paired.filtered else "unfiltered",
            f"{paired.rank_type.value} ranks",
        ]
        title = f"{labels[1]} compared with {labels[0]}"
        name, warnings = " and ".join(labels), paired.warnings("AB")
        return cls("Queries that moved", name, title, tags, labels, paired.rank_type, runs, warnings, overlap)

    def render(self, max_queries: int = MAX_QUERIES) -> str:
        """Return the page, of at most 2 MB: with fewer queries where names are long.

        Raises:
            ConfigError: jinja2 is not installed.
            OutputError: a list is not as it was written.
        """
        relations = RelationFacts.of_runs(self.runs, self.rank_type)
        notice = Notice([*map(capital, self.warnings)]) if self.warnings else None
        page = Page(self.kind, self.name, self.title, self.tags, (), (), notice, lead=self._lead(relations))
        while True:
            chosen = choose(self._weights(), self.runs[0].relation_Q, max_queries, only_first=len(self.runs) > 1)
            text = render(
                "queries.html",
                "queries.js",
                page=page,
                is_pair=len(self.runs) > 1,
                note=_note(chosen, len(self.runs[0]), len(self.runs)),
                data=packed(self._content(relations, chosen)),
            )
            size = len(text.encode())
            if size <= MAX_BYTES or not len(chosen):
                return text
            max_queries = min(max_queries, len(chosen)) * MAX_BYTES * 9 // (size * 10)

    def tables(self) -> list[DataTable]:
        """Return the table of the queries of two runs that moved most.

        Raises:
            OutputError: a list is not as it was written.
        """
        weight_Q = self._weights()
        first = np.argsort(-weight_Q, kind="stable")[:MAX_MOVED]
        doubled = [doubled_rank(of.better_Q, of.tied_Q, self.rank_type) for of in self.runs]
        rows = []
        for number, of_a, of_b in zip(first, *(of.lists(first) for of in self.runs), strict=True):
            hides_head = self.runs[0].side_Q[number] == 0
            query = f"?, {of_a.relation}, {of_a.tail}" if hides_head else f"{of_a.head}, {of_a.relation}, ?"
            query += f" at time {when}" if (when := of_a.time or of_b.time) else ""
            ranks = [f"{doubled_Q[number] / 2:,.10g}" for doubled_Q in doubled]
            best = [
                _best(of.candidates, is_tied=bool(run.tied_Q[number]))
                for of, run in zip((of_a, of_b), self.runs, strict=True)
            ]
            rows.append([clipped(cell) for cell in (query, of_a.head if hides_head else of_a.tail, *ranks, *best)])
        table = DataTable(
            f"The {len(rows)} of {len(weight_Q):,} queries whose 1 / rank differs most",
            ("query", "answer", "rank in A", "rank in B", "best in A", "best in B"),
            rows,
            note=f"A: {self.labels[0]}\nB: {self.labels[1]}\nBest: the first saved candidate that can win. "
            "–: all saved candidates are known answers.\n"
            f"{self._overlap_sentence()}",
            kinds="llrrll",
        )
        return [table]

    def to_format(self, form: str) -> str:
        """Return the table as text, md or latex.

        Raises:
            ConfigError: it has no such form.
        """
        writers = {"text": lambda of: unbroken([of]), "md": to_markdown, "latex": to_latex}
        if form not in writers:
            raise ConfigError(f"--format {form}: with --queries, expected text, md, latex or html")
        [table] = self.tables()
        return f"{writers[form](table).rstrip()}\n"

    def _overlap_sentence(self) -> str:
        """Return what both runs find, in words."""
        of, told = self.overlap, []
        if of is not None and of.answers is not None:
            told.append(f"Of the answers that A or B ranks in the first {of.cutoff}, both do for {of.answers:.0%}.")
        if of is not None and of.candidates is not None and of.rank_biased is not None:
            told.append(
                f"Their lists share {of.candidates:.0%} of the first {of.depth} candidates, known answers included "
                f"(rank-biased overlap {of.rank_biased:.2f})."
            )
        return " ".join(told)

    def _weights(self) -> np.ndarray:
        """Return how much each query matters: what it loses of an MRR of 1, or by how much its 1 / rank moved."""
        of_runs = [queries.reciprocal_ranks(self.rank_type) for queries in self.runs]
        return 1.0 - of_runs[0] if len(of_runs) == 1 else np.abs(of_runs[1] - of_runs[0])

    def _lead(self, relations: RelationFacts) -> str:
        mrr, num_queries = relations.total_mrr, relations.num_queries
        first = [at for at in relations.by_weight if relations.weight[at] >= 0.00005][:MAX_NAMED]
        if len(mrr) == 1:
            shares = ", ".join(f"{clipped(relations.names[at])} ({relations.weight[at]:.3f})" for at in first)
            lost = f" Most of the gap to an MRR of 1 ({1 - mrr[0]:.3f}) comes from {shares}." if first else ""
            lowest = relations.lowest
            if lowest is not None:
                queries = plural(int(relations.num_R2[lowest].sum()), "query", "queries")
                lost += f" Lowest MRR: {clipped(relations.names[lowest])}, {relations.mrr_R[lowest]:.3f} on {queries}."
            return f"MRR {mrr[0]:.3f} on {num_queries:,} queries.{lost}"
        change = [f"{clipped(relations.names[at])} {rounded(float(relations.change[at]), 4, '+')}" for at in first]
        most = f" Most of the change comes from {', '.join(change)}." if first else ""
        return f"MRR {mrr[0]:.3f} (A) and {mrr[1]:.3f} (B) on {num_queries:,} queries.{most} {self._overlap_sentence()}"

    def _content(self, relations: RelationFacts, chosen: np.ndarray) -> dict[str, Any]:
        """Return what the script reads; columns have an element for each chosen query."""
        names: dict[str, int] = {}
        first = self.runs[0]

        def number(name: str) -> int:
            return names.setdefault(clipped(name), len(names))

        columns: dict[str, Any] = {"known": [], "answer": []}
        times = [""] * len(chosen)
        of_runs = []
        for at, queries in enumerate(self.runs):
            places, entities, scores, marks, lengths = [], list[int](), list[float | None](), list[int](), list[int]()
            for index, (query, side) in enumerate(zip(queries.lists(chosen), first.side_Q[chosen], strict=True)):
                times[index] = times[index] or query.time
                if at == 0:
                    ends = (query.tail, query.head) if side == 0 else (query.head, query.tail)
                    columns["known"].append(number(ends[0]))
                    columns["answer"].append(number(ends[1]))
                place, shown = shown_of(query)
                places.append(place)
                lengths.append(len(shown))
                entities += [number(of.name) for of in shown]
                scores += [_short(of.score) for of in shown]
                marks += [ANSWER if of.is_true else KNOWN if of.is_known else NOT_KNOWN for of in shown]
            of_runs.append(
                {
                    **{name: getattr(queries, f"{name}_Q")[chosen].tolist() for name in ("better", "tied")},
                    "knownBetter": queries.known_better_Q[chosen].tolist(),
                    "place": places,
                    "length": lengths,
                    "entity": entities,
                    "score": scores,
                    "mark": marks,
                }
            )
        told = [*self._explanations(relations)]
        return {
            "labels": [*self.labels],
            "rankType": self.rank_type.value,
            "total": relations.num_queries,
            "relations": [
                {"name": clipped(name), "sides": relations.of_sides(index), "told": told[index]}
                for index, name in enumerate(relations.names)
            ],
            **columns,
            "time": times if any(times) else [],
            **{name: getattr(first, f"{name}_Q")[chosen].tolist() for name in ("relation", "side", "competing")},
            "others": first.known_Q[chosen].tolist(),
            "runs": of_runs,
            "names": [*names],
        }

    def _explanations(self, relations: RelationFacts) -> Iterator[list[str]]:
        for index in range(len(relations.names)):
            if len(self.runs) == 1:
                yield explain_relation(relations, index, self.runs[0])
            else:
                yield explain_change(relations, index, self.runs)


def shown_of(query: SavedQuery) -> tuple[int, Sequence[Any]]:
    """Return the place of the answer in a list (0: not listed), and the candidates to show."""
    place = next((of.place for of in query.candidates if of.is_true), 0)
    further = query.candidates[place - 1 : place] if place > MAX_CANDIDATES else ()
    return place, [*query.candidates[:MAX_CANDIDATES], *further]


def _short(score: float) -> float | None:
    return float(f"{score:.{DIGITS}g}") if math.isfinite(score) else None


def packed(content: object) -> str:
    """Return a value as gzipped JSON in base64, the same bytes each time."""
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def choose(weight_Q: np.ndarray, relation_Q: np.ndarray, limit: int, *, only_first: bool = False) -> np.ndarray:
    """Return the numbers of the queries to show, ascending: all of them if there are not too many.

    Else each relation gets the same number at most: half of it are those of the greatest weight, a quarter those of the
    least, the others are random, the same ones each time.

    Args:
        weight_Q: how much each query matters.
        relation_Q: the relation of each query.
        limit: how many there may be.
        only_first: take only those of the greatest weight.
    """
    if len(weight_Q) <= limit:
        return np.arange(len(weight_Q))
    by_relation = np.lexsort((-weight_Q, relation_Q))
    count_R = np.bincount(relation_Q)
    starts = np.cumsum(count_R) - count_R
    chosen, left = [], limit
    for done, relation in enumerate(np.argsort(count_R, kind="stable").tolist()):  # what small ones leave, others get
        quota = min(int(count_R[relation]), left // (len(count_R) - done))
        left -= quota
        ranked = by_relation[starts[relation] : starts[relation] + count_R[relation]]
        num_last = 0 if only_first or quota == len(ranked) else quota // 4
        num_first = quota if only_first or quota == len(ranked) else quota - num_last - quota // 4
        between = ranked[num_first : len(ranked) - num_last]
        order = np.argsort(split_mix(between.astype(np.uint64)), kind="stable")
        drawn = between[order[: quota - num_first - num_last]]
        chosen.append(np.concatenate((ranked[:num_first], drawn, ranked[len(ranked) - num_last :])))
    return np.sort(np.concatenate(chosen))


def _best(candidates: Sequence[Candidate], *, is_tied: bool) -> str:
    """Return the first candidate that can win, and whether that is the answer."""
    first = next((one for one in candidates if not one.is_known), None)
    if first is None:
        return "–"
    return first.name if not first.is_true else f"{first.name} (the answer{', tied' * is_tied})"


def _note(chosen: np.ndarray, num_queries: int, num_runs: int) -> str:
    """Return what the figures mean, and which queries are shown."""
    means = (
        "A relation changes the MRR of all queries by what its line says in the end; these parts add up."
        if num_runs > 1
        else "The MRR would be 1 if each answer came first. The last figure of a line is the relation's part of what "
        "is lost; the parts add up."
    )
    if len(chosen) == num_queries:
        return f"{means} All {num_queries:,} queries are shown."
    how = (
        "those that moved most"
        if num_runs > 1
        else "half of them are the worst, a quarter the best, the others a random sample"
    )
    return (
        f"{means} {len(chosen):,} of {num_queries:,} queries are shown, of each relation the same number at most: "
        f"{how}. The others are left out, but the figures are of all queries."
    )
