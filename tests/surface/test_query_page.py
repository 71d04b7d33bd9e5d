"""The page of single queries: what it holds against the files of ranks and lists, its size, the choice, refusals."""

from __future__ import annotations

import base64
import csv
import doctest
import gzip
import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from pbgeval import Report, compare_runs, edge_scorer, evaluate_triples
from pbgeval.notation import Bucket
from pbgeval.report import queries
from pbgeval.report.paired_runs import CompareOptions
from pbgeval.report.queries import ANSWER, KNOWN, QueryPage, choose
from pbgeval.results.output import PAGE_MARK
from pbgeval.results.saved_queries import Candidate, SavedQueries, SavedQuery
from pbgeval.stats.rank_types import RankType
from tests.kit.case import TinyCase
from tests.kit.commands import Done, evaluated, flags, lacking, run_command, run_main
from tests.kit.reports import MARKUP, marked_up_case
from tests.saved_ranks import read_ranks

SAVED = ("candidates=all", "save_ranks=True", "save_topk=12", "filter_paths=edges")


def name_entities(case: TinyCase) -> None:
    """Give all entities names of markup, some with a tab or what a table marks as a formula."""
    for name, sizes in (("user", (17, 16, 17)), ("tag", (6,))):
        for part, size in enumerate(sizes):
            names = [f"{MARKUP[row % 4]} ☃\t'=1+{name}{part}/{row}" for row in range(size)]
            path = case.root / "entity" / f"entity_names_{name}_{part}.json"
            path.write_text(json.dumps(names), encoding="utf-8")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graph with names of markup, and two runs with lists, `a` and `b`."""
    case = marked_up_case(tmp_path_factory.mktemp("queries"))
    name_entities(case)
    evaluated(case, *SAVED, output="a")
    done = run_command(case, "--workers", "1", "--output", "b", *flags([*SAVED, "comparator=cos"]))
    assert done.out.endswith("and a page of its queries with: kgeval-dist report b --queries\n")
    return case.root


def content_of(page: str) -> Any:
    """Return what the page's script reads."""
    found = re.search(r'<script type="text/plain" id="data">([A-Za-z0-9+/=]+)</script>', page)
    assert found is not None
    return json.loads(gzip.decompress(base64.b64decode(found[1])))


def queries_of(content: Any, run: int = 0) -> list[tuple[Any, ...]]:
    """Return each query of a page: side, known entity, relation, answer, counts, and its list."""
    names, of = content["names"], content["runs"][run]
    found, start = [], 0
    for at, length in enumerate(of["length"]):
        part = slice(start, start + length)
        start += length
        listed = [
            (names[entity], score, mark == KNOWN, mark == ANSWER)
            for entity, score, mark in zip(of["entity"][part], of["score"][part], of["mark"][part], strict=True)
        ]
        columns = [content[name][at] for name in ("side", "known", "relation", "answer", "competing", "others")]
        side, known, relation, answer, competing, others = columns
        counts = (of["better"][at], of["tied"][at], competing, others, of["knownBetter"][at])
        query = names[known], content["relations"][relation]["name"], names[answer]
        found.append((side, *query, counts, of["place"][at], listed))
    return found


def expected(folder: Path, *, filtered: bool = True) -> list[tuple[Any, ...]]:
    """Return the same from the files, read by csv and h5py."""
    found = []
    for path in (folder / "topk").glob("*/*.tsv"):
        _, lhs, rhs = path.stem.split("_")
        columns = read_ranks(folder, 0, Bucket(int(lhs), int(rhs))).columns
        lists: dict[tuple[str, int], list[dict[str, str]]] = {}
        with path.open(encoding="utf-8", newline="") as file:
            for line in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE):
                lists.setdefault((line["side"], int(line["row"])), []).append(line)
        for side, of in columns.items():
            for row in np.flatnonzero(of["num_candidates"]).tolist():
                lines, count = lists[side.label, row], {name: int(values[row]) for name, values in of.items()}
                out = [
                    count[f"{name}"] if filtered else 0 for name in ("excluded_better", "excluded_tied", "num_excluded")
                ]
                counts = count["better"] - out[0], count["tied"] - out[1], count["num_candidates"] - 1 - out[2]
                place = next((at for at, line in enumerate(lines, 1) if line["is_true"] == "1"), 0)
                chosen = [*lines[:10], *(lines[place - 1 : place] if place > 10 else [])]
                ends = [
                    text(lines[0][name]) for name in (("tail", "head") if side.label == "head" else ("head", "tail"))
                ]
                query = ends[0], text(lines[0]["relation"]), ends[1]
                listed = [
                    (
                        text(one["candidate"]),
                        float(f"{float(one['score']):.6g}"),
                        one["known"] == "1",
                        one["is_true"] == "1",
                    )
                    for one in chosen
                ]
                found.append((side.value, *query, (*counts, out[2], out[0]), place, listed))
    return found


def text(cell: str) -> str:
    """Return the name that a cell of the lists stands for."""
    return re.sub(r"\\(.)", lambda found: {"t": "\t", "\\": "\\"}[found[1]], cell.removeprefix("'"))


def test_the_page_has_the_ranks_and_lists_of_the_files(root: Path) -> None:
    report = Report.read(root / "a")
    content = content_of(QueryPage.of_run(report).render())
    actual = queries_of(content)
    assert sorted(actual) == sorted(expected(root / "a"))
    assert len(actual) == report.document["num_queries"] == content["total"]

    side, known, relation, _, _, _, listed = actual[0]
    top = report.top(relation=relation, **{"head" if side else "tail": known})
    assert [row["candidate"] for row in top] == [name for name, *_ in listed][:10]


def test_queries_have_their_times_where_they_differ_by_them(tmp_path: Path) -> None:
    def score(lhs: Tensor, rel: Tensor, rhs: Tensor, time: Tensor) -> Tensor:
        return ((lhs + rhs) * time).remainder(3).float()

    edges, folders = [(0, 0, 1, 4), (0, 0, 1, 2**53 + 1)], (tmp_path / "a", tmp_path / "b")
    settings: dict[str, Any] = {"save_topk": 3, "save_ranks": True}
    for folder, sign in zip(folders, (1, -1), strict=True):
        model = edge_scorer(lambda *of, sign=sign: sign * score(*of), num_entities=4, num_relations=1, takes_time=True)
        evaluate_triples(model, edges, output=folder, **settings)

    content = content_of(QueryPage.of_run(Report.read(folders[0])).render())
    assert sorted(zip(content["side"], content["time"], strict=True)) == [
        (side, str(time)) for side in (0, 1) for *_, time in edges
    ]
    pair = QueryPage.of_two([("", folder) for folder in folders], CompareOptions())
    assert content_of(pair.render())["time"] == content["time"]
    queries = {row[0] for row in pair.tables()[0].rows}
    assert {f"all:0:0, 0, ? at time {2**53 + 1}", "?, 0, all:0:1 at time 4"} <= queries


def test_figures_of_relations_are_those_of_the_run(root: Path) -> None:
    report = Report.read(root / "a")
    content = content_of(QueryPage.of_run(report).render(max_queries=20))
    assert len(content["side"]) == 20
    lost = 0.0
    for row in report.table("relations"):
        [of] = [one for one in content["relations"] if one["name"] == row["relation"]]
        for (num, total), side in zip(of["sides"], ("head", "tail"), strict=True):
            assert num == row[f"{side}.realistic.count"]
            assert total / num == pytest.approx(row[f"{side}.realistic.mean_reciprocal_rank"], rel=1e-9)
            lost += num - total
    assert lost / content["total"] == pytest.approx(1 - report["mrr"], rel=1e-9)


def test_names_are_text_and_the_example_of_the_docstring_runs(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = QueryPage.of_run(Report.read(root / "a")).render()
    assert PAGE_MARK in page
    body = page[page.index("<body>") :]
    assert not any(name in body for name in MARKUP)
    assert body.count("<script") == 2
    monkeypatch.chdir(tmp_path)
    outcome = doctest.testmod(queries)
    assert (outcome.failed, outcome.attempted > 0) == (0, True)


def test_sentences_count_what_the_lists_say(root: Path) -> None:
    content = content_of(QueryPage.of_run(Report.read(root / "a")).render())
    for of in content["relations"]:
        mine = [query for query in queries_of(content) if query[2] == of["name"]]
        first = sum(better + tied / 2 <= 0 for *_, (better, tied, *_), _, _ in mine)
        share = round(100 * first / len(mine))
        assert any(line.startswith(f"{share}% of the answers come first") for line in of["told"]), of["told"]
        lost = sum(better > 0 for *_, (better, *_), _, _ in mine)
        numbers = [
            re.match(r"In (\d+) of .* another entity comes first(?: \(and in (\d+) )?", line) for line in of["told"]
        ]
        assert sum(int(one[1]) + int(one[2] or 0) for one in numbers if one) == lost
        ranks = sorted(1 + better + tied / 2 for *_, (better, tied, *_), _, _ in mine)
        assert any(line.endswith(f"at most {ranks[(len(ranks) - 1) // 2]:g}.") for line in of["told"])


@pytest.mark.parametrize("filter_", ["filtered", "raw"])
def test_two_runs_have_each_query_once_with_the_ranks_of_both(filter_: str, root: Path) -> None:
    done = run_main("compare", "a", "b", "--queries", "--filter", filter_, "-o", "moved.html", cwd=root)
    assert done.printed == "moved.html\n"
    content = content_of((root / "moved.html").read_text(encoding="utf-8"))
    for run, folder in enumerate("ab"):
        assert sorted(queries_of(content, run)) == sorted(expected(root / folder, filtered=filter_ == "filtered"))


def test_the_table_of_moved_queries_begins_with_the_greatest_change(root: Path) -> None:
    ranks = [[1 + better + tied / 2 for *_, (better, tied, *_), _, _ in queries_of(of)] for of in contents(root)]
    moved = [abs(1 / a - 1 / b) for a, b in zip(*ranks, strict=True)]
    [table] = QueryPage.of_two([("", root / "a"), ("new", root / "b")], CompareOptions()).tables()
    changes = [abs(1 / float(row[2]) - 1 / float(row[3])) for row in table.rows]
    assert changes == pytest.approx(sorted(moved, reverse=True)[:20])
    assert not lacking(table.note, "A: a\n", "B: new\n")
    named = run_main("compare", "old=a", "b", "--queries", cwd=root).printed
    assert not lacking(named, "rank in A", "A: old\n", "B: b\n")

    [pair] = compare_runs([root / "a", root / "b"]).pairs
    assert pair.overlap.answers is not None
    assert f"in the first 10, both do for {pair.overlap.answers:.0%}." in table.note
    assert f"(rank-biased overlap {pair.overlap.rank_biased:.2f})" in table.note
    assert "–: all saved candidates are known answers." in table.note
    told = [(float(rank), best) for _, _, *of in table.rows for rank, best in zip(of[:2], of[2:], strict=True)]
    assert all(rank == 1 for rank, best in told if best.endswith("(the answer)"))
    assert all(rank > 1 for rank, best in told if best.endswith("(the answer, tied)"))
    assert any("(the answer" in best for _, best in told)


def contents(root: Path) -> list[Any]:
    return [content_of(QueryPage.of_run(Report.read(root / name)).render()) for name in "ab"]


@given(
    counts=st.lists(st.integers(1, 30), min_size=1, max_size=6),
    limit=st.integers(1, 120),
    only_first=st.booleans(),
    seed=st.integers(0, 99),
)
def test_every_relation_gets_its_share_of_worst_best_and_random_queries(
    counts: list[int], limit: int, only_first: bool, seed: int
) -> None:
    generator = np.random.default_rng(seed)
    relation_Q = generator.permutation(np.repeat(np.arange(len(counts)), counts))
    weight_Q = generator.integers(0, 9, len(relation_Q)) / 8
    chosen = choose(weight_Q, relation_Q, limit, only_first=only_first)

    assert (np.diff(chosen) > 0).all()
    assert len(chosen) == min(limit, len(relation_Q))
    assert (choose(weight_Q, relation_Q, limit, only_first=only_first) == chosen).all()
    taken = np.bincount(relation_Q[chosen], minlength=len(counts))
    for relation, (count, num) in enumerate(zip(counts, taken.tolist(), strict=True)):
        assert num == count or num >= taken.max() - 1, "who has more gets no more, but for one"
        mine, all_of = (
            np.sort(weight_Q[chosen[relation_Q[chosen] == relation]]),
            np.sort(weight_Q[relation_Q == relation]),
        )
        num_last = 0 if only_first else num // 4
        num_first = num if only_first else num - 2 * (num // 4)
        assert (mine[:num_last] == all_of[:num_last]).all()
        assert (mine[num - num_first :] == all_of[count - num_first :]).all()


WORDS = ("United", "States", "of", "America", "Academy", "Award", "for", "Best", "Actor", "film", "university", "city")


def realistic(num_queries: int, name_length: int) -> QueryPage:
    """Return a page of queries among 14,541 entities with names of words, with lists of 10."""
    generator = np.random.default_rng(7)
    names = [
        " ".join(generator.choice(WORDS, 12))[: int(generator.integers(name_length // 3, name_length))] + f" {at}"
        for at in range(14_541)
    ]
    entity_QK = generator.zipf(1.3, (num_queries, 12)) % len(names)
    score_QK = -np.sort(-generator.normal(0, 5, (num_queries, 10)), axis=1)

    class Lists(SavedQueries):
        def lists(self, numbers: Any) -> Any:
            for number in numbers:
                head, tail, *listed = (names[at] for at in entity_QK[number])
                candidates = [
                    Candidate(place, name, float(score), place % 4 == 0, False)
                    for place, (name, score) in enumerate(zip(listed, score_QK[number], strict=True), 1)
                ]
                yield SavedQuery(head, "", tail, candidates)

    def counts(most: int) -> np.ndarray:
        return generator.integers(0, most, num_queries)

    relations = [f"/people/person/{word}/{at}" for at, word in enumerate(WORDS * 16)]
    lists = Lists(
        tables=[],
        relations=relations,
        winners=names,
        table_Q=np.zeros(num_queries, np.int64),
        side_Q=counts(2),
        better_Q=(generator.pareto(0.3, num_queries).clip(max=14_000)).astype(np.int64),
        tied_Q=counts(2),
        competing_Q=14_541 - counts(900),
        known_Q=counts(900),
        known_better_Q=counts(30),
        offset_Q=np.zeros(num_queries, np.int64),
        relation_Q=counts(len(relations)),
        winner_Q=entity_QK[:, 2],
        is_own_Q=counts(2) > 0,
    )
    return QueryPage("Queries", "run", "model", [], ["run"], RankType.REALISTIC, [lists])


def test_no_more_queries_are_shown_than_allowed_and_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    page = realistic(3_000, name_length=40).render(max_queries=2_000)
    assert len(content_of(page)["side"]) == 2_000
    assert "2,000 of 3,000 queries are shown" in page
    monkeypatch.setattr("pbgeval.report.queries.MAX_BYTES", 150_000)
    page = realistic(3_000, name_length=40).render()
    assert 100_000 < len(page.encode()) <= 150_000
    assert 500 < len(content_of(page)["side"]) < 3_000


def test_what_is_infinite_or_missing_is_shown_as_nothing(root: Path) -> None:
    page = QueryPage.of_run(Report.read(root / "a"))
    [saved] = page.runs

    class Infinite(SavedQueries):
        def lists(self, numbers: Any) -> Any:
            for of in SavedQueries.lists(self, numbers):
                yield evolve(of, candidates=[evolve(one, score=-math.inf) for one in of.candidates])

    infinite = Infinite(**{name: getattr(saved, name) for name in SavedQueries.__annotations__})
    content = content_of(evolve(page, runs=[infinite]).render())
    assert {*content["runs"][0]["score"]} == {None}


def report_queries(*arguments: str, cwd: Path) -> Done:
    return run_main("report", *arguments, "--queries", cwd=cwd)


def test_the_command_writes_beside_the_result_and_replaces_its_own_page_only(root: Path) -> None:
    assert report_queries("a", cwd=root).printed == "a/queries.html\n"
    assert report_queries("a", cwd=root).status == 0
    (root / "a" / "queries.html").write_text("mine", encoding="utf-8")
    assert "queries.html" in report_queries("a", cwd=root).fault
    (root / "a" / "queries.html").unlink()


def test_faults_are_one_line_and_say_what_to_do(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root, tmp_path, dirs_exist_ok=True)
    for command in (("report", "a"), ("compare", "a", "b")):
        for path in (tmp_path / "a" / "topk").glob("*/*.tsv"):
            path.unlink()
        fault = run_main(*command, "--queries", cwd=tmp_path).fault
        assert "evaluate again with candidates=all save_ranks=True save_topk=10" in fault
    shutil.rmtree(tmp_path / "b" / "ranks")
    assert "evaluate again with save_ranks=True" in report_queries("b", cwd=tmp_path).fault
    for arguments, words in (
        (("report", "a", "--format", "md"), "--format has no effect with --queries"),
        (("compare", "a", "b", "a"), "--queries: expected two runs, got 3"),
        (("compare", "a", "b", "--metric", "mrr"), "--metric has no effect with --queries"),
        (("compare", "a", "b", "--format", "csv"), "--format csv: with --queries, expected text, md, latex or html"),
    ):
        assert words in run_main(*arguments, "--queries", cwd=root).fault


@pytest.mark.parametrize("damage", ["cut", "columns", "rows"])
def test_damaged_lists_are_one_line(damage: str, root: Path, tmp_path: Path) -> None:
    shutil.copytree(root / "a", tmp_path / "a")
    path = sorted((tmp_path / "a" / "topk").glob("*/*.tsv"))[0]
    content = path.read_text(encoding="utf-8").splitlines(keepends=True)
    lines = {
        "cut": [*content[:-1], content[-1][:20]],
        "columns": [content[0].replace("score", "value"), *content[1:]],
        "rows": [line for line in content if not line.startswith("2\t")],
    }[damage]
    path.write_text("".join(lines), encoding="utf-8")
    assert "evaluate again" in report_queries("a", cwd=tmp_path).fault
