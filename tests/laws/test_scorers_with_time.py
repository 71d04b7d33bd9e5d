"""Scorers that take times: counts and figures against loops in plain Python over edges, candidates and known edges."""

from __future__ import annotations

import math
import random
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import pytest
import torch

from pbgeval import (
    Edges,
    EntitySchema,
    EvalConfig,
    Report,
    batch_scorer,
    edge_scorer,
    evaluate,
    evaluate_triples,
    side_scorer,
)
from pbgeval.errors import EvalError
from pbgeval.models.functions import in_parts
from pbgeval.notation import Bucket, Side
from tests.examples import crossed, examples
from tests.kit.groups import join, start_workers
from tests.saved_ranks import counts_of, read_ranks

Edge = tuple[int, int, int, int]  # head, relation, tail, time
TIMES = (0, 3, 4, 9, 2**32 + 5, 2**53 + 1, 2**63 - 1)  # float64 does not hold the last two
LABELS = {0: "head", 1: "relation", 2: "tail"}  # by hidden column
SIDES = {0: Side.LHS, 1: Side.REL, 2: Side.RHS}
SCORERS = ("own", "edges", "vectors", "sides", "batches")
POLICIES = ("all", "partition", "sampled")


class Case(NamedTuple):
    """A graph, and a score for each head, relation, tail and place of a time; few values, so that most tie."""

    num_entities: int
    num_relations: int
    scores: list[list[list[list[float]]]]
    test: list[Edge]
    known: list[Edge]

    def score(self, head: int, relation: int, tail: int, time: int) -> float:
        return self.scores[head][relation][tail][TIMES.index(time)]


def random_case(seed: int, num_test: int = 14, num_known: int = 25) -> Case:
    source = random.Random(seed)
    num_entities, num_relations = source.randint(1, 7), source.randint(1, 3)
    values = source.choice([[0.0], [-2.0, -1.0, 3.0], [-math.inf, -1.5, 0.0, math.inf]])
    scores = [
        [[[source.choice(values) for _ in TIMES] for _ in range(num_entities)] for _ in range(num_relations)]
        for _ in range(num_entities)
    ]

    def edges(number: int) -> list[Edge]:
        few = min(num_entities, 2)  # so that keys repeat
        return [
            (source.randrange(few), source.randrange(num_relations), source.randrange(num_entities), when)
            for when in source.choices(TIMES, k=number)
        ]

    test = edges(num_test)
    return Case(num_entities, num_relations, scores, [*test, *test[:2]], edges(num_known))


def lists_of(case: Case, column: int, policy: str) -> list[list[int]]:
    """Who competes with the answer of each query, before filters; an edge's answer itself is not among them."""
    if policy == "sampled":  # one chunk of all edges, and no draws
        return [[other[column] for other in case.test if other[column] != edge[column]] for edge in case.test]
    size = case.num_relations if column == 1 else case.num_entities
    return [[other for other in range(size) if other != edge[column]] for edge in case.test]


def expected_counts(case: Case, column: int, policy: str, window: int | None, until: bool) -> list[dict[str, int]]:
    """Of each query: better and tied, and how many compete, raw and filtered by the known edges of any time or near."""
    found = []
    for edge, others in zip(case.test, lists_of(case, column, policy), strict=True):
        now, true_score = edge[3], case.score(*edge)
        counts = {f"{part} {name}": 0 for part in ("raw", "any", "near") for name in ("better", "tied", "others")}
        for other in others:
            corrupted = (*edge[:column], other, *edge[column + 1 : 3])
            ages = [now - one[3] for one in (*case.test, *case.known) if one[:3] == corrupted]
            ages = [age for age in ages if age >= 0 or not until]
            score = case.score(*corrupted, now)
            parts = {
                "raw": True,
                "any": not ages,
                "near": window is None or not any(abs(age) <= window for age in ages),
            }
            for part in (part for part, competes in parts.items() if competes):
                counts[f"{part} others"] += 1
                counts[f"{part} better"] += score > true_score
                counts[f"{part} tied"] += score == true_score
        found.append(counts)
    return found


def expected_figures(counts: list[dict[str, int]], part: str) -> dict[str, float]:
    ranks = [1 + one[f"{part} better"] + Fraction(one[f"{part} tied"], 2) for one in counts]
    number = len(ranks)
    return {
        "mean_rank": float(sum(ranks) / number),
        "mean_reciprocal_rank": float(sum(1 / rank for rank in ranks) / number),
        "hits_at_1": float(Fraction(sum(rank <= 1 for rank in ranks), number)),
        "hits_at_3": float(Fraction(sum(rank <= 3 for rank in ranks), number)),
    }


class OwnScorer:
    """A scorer that is no function: it gets known ids, relations, candidates and times."""

    scores_relations, takes_time = True, True

    def __init__(self, case: Case) -> None:
        self.num_entities, self.num_relations = case.num_entities, case.num_relations
        self.table, self.digest = torch.tensor(case.scores), repr(case)

    def at(self, lhs: torch.Tensor, rel: torch.Tensor, rhs: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        assert bool(torch.isin(time, torch.tensor(TIMES)).all())
        return self.table[lhs, rel, rhs, torch.searchsorted(torch.tensor(TIMES), time.contiguous())]

    def scores(self, hidden, known_Q, relation_Q, candidate_C, time_Q):
        def part(known, relation, candidate, time):
            known, relation, time = (of.unsqueeze(1) for of in (known, relation, time))
            edges = {Side.LHS: (candidate, relation, known), Side.RHS: (known, relation, candidate)}
            return self.at(*(edges.get(hidden) or (known, candidate, relation)), time)

        return in_parts(part, known_Q, relation_Q, candidate_C, 5000, time_Q)

    def score_side(self, hidden: Side, edges: torch.Tensor) -> torch.Tensor:
        assert edges.shape[1] == 4
        size = self.num_relations if hidden is Side.REL else self.num_entities
        lhs, rel, rhs, time = (of.unsqueeze(1) for of in edges.unbind(1))
        every = torch.arange(size).unsqueeze(0)
        asked = {Side.LHS: (every, rel, rhs), Side.RHS: (lhs, rel, every), Side.REL: (lhs, every, rhs)}
        return self.at(*asked[hidden], time)

    def score_batch(self, edges: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.score_side(Side.LHS, edges), self.score_side(Side.RHS, edges)


def scorer_of(name: str, case: Case) -> Any:
    own, sizes = OwnScorer(case), {"num_entities": case.num_entities, "num_relations": case.num_relations}
    return {
        "own": lambda: own,
        "edges": lambda: edge_scorer(own.at, takes_time=True, cells_per_call=3000, **sizes),
        "vectors": lambda: edge_scorer(own.at, takes_time=True, broadcasts=False, **sizes),
        "sides": lambda: side_scorer(own.score_side, takes_time=True, scores_relations=True, batch_size=3, **sizes),
        "batches": lambda: batch_scorer(own.score_batch, takes_time=True, batch_size=2, **sizes),
    }[name]()


def settings_of(policy: str, case: Case, **more: Any) -> dict[str, Any]:
    lists = {"num_batch_negs": len(case.test), "num_uniform_negs": 0} if policy == "sampled" else {}
    return {"candidates": policy, "hits_at": [1, 3], "save_ranks": True, **lists, **more}


def assert_equals_loops(
    case: Case, report: Report, output: Path, policy: str, columns: tuple[int, ...], window: int | None, until: bool
) -> None:
    saved = read_ranks(output, 0, Bucket(0, 0)).columns
    filtered = bool(case.known)
    for column in columns:
        expected = expected_counts(case, column, policy, window, until)
        of_side = {name: values.tolist() for name, values in saved[SIDES[column]].items()}
        for row, counts in enumerate(expected):
            found = {name: values[row] for name, values in of_side.items()}
            assert [found["better"], found["tied"], found["num_candidates"] - 1] == [
                counts[f"raw {name}"] for name in ("better", "tied", "others")
            ]
            if filtered:
                assert [found["excluded_better"], found["excluded_tied"], found["num_excluded"]] == [
                    counts[f"raw {name}"] - counts[f"any {name}"] for name in ("better", "tied", "others")
                ]
        parts = {"raw_metrics": "raw", "metrics": "any"} if filtered else {"metrics": "raw"}
        parts |= {"time_filtered_metrics": "near"} if window is not None else {}
        for section, part in parts.items():
            for name, value in expected_figures(expected, part).items():
                actual = report.document[section][f"{LABELS[column]}.realistic.{name}"]
                assert actual == pytest.approx(value, rel=1e-12), (section, column, name)


@pytest.mark.parametrize(("name", "policy"), crossed(SCORERS, POLICIES, quick=3))
def test_counts_and_figures_are_those_of_loops(name: str, policy: str, tmp_path: Path) -> None:
    relations = policy != "sampled" and name != "batches"
    for seed in range(examples(8, quick=3)):
        case = random_case(100 * seed + len(name), num_known=0 if seed == 1 else 25, num_test=1 if seed == 2 else 14)
        rules = {"known": [case.known]} if case.known else {}
        window, until = (random.Random(seed).choice([None, 0, 1, 6, 2**62]), seed % 2 == 0) if rules else (None, False)
        rules |= {} if window is None else {"time_window": window}
        rules |= {"known_until": "query"} if until else {}
        rules |= {"relation_prediction": True} if relations else {}
        output = tmp_path / str(seed)

        report = evaluate_triples(scorer_of(name, case), case.test, output=output, **settings_of(policy, case, **rules))

        assert report.run["reproducible"]
        assert_equals_loops(case, report, output, policy, (0, 1, 2) if relations else (0, 2), window, until)


@pytest.mark.parametrize("settings", [{"num_batch_negs": 3, "num_uniform_negs": 4}, {"num_batch_negs": 0}], ids=str)
def test_draws_are_those_of_a_graph_whose_relations_have_a_time_each(settings: dict[str, Any], tmp_path: Path) -> None:
    """A scorer without times, for which (relation, time) is a relation, meets the same lists, and counts the same."""
    case = random_case(11)
    plain = [(head, relation * len(TIMES) + TIMES.index(time), tail) for head, relation, tail, time in case.test]
    table = torch.tensor(case.scores).movedim(3, 2).flatten(1, 2)
    without = edge_scorer(
        lambda lhs, rel, rhs: table[lhs, rel, rhs],
        num_entities=case.num_entities,
        num_relations=case.num_relations * len(TIMES),
    )
    keys = {"candidates": "sampled", "save_ranks": True, **settings}

    evaluate_triples(scorer_of("edges", case), case.test, output=tmp_path / "time", **keys)
    evaluate_triples(without, plain, output=tmp_path / "plain", **keys)

    assert counts_of(tmp_path / "time") == counts_of(tmp_path / "plain")


@pytest.mark.parametrize("policy", ["all", "partition"])
def test_equal_times_give_the_bytes_of_a_scorer_without(policy: str, tmp_path: Path) -> None:
    case = random_case(5)
    case = case._replace(test=[(*edge[:3], 4) for edge in case.test], known=[(*edge[:3], 4) for edge in case.known])
    table = torch.tensor(case.scores)[..., TIMES.index(4)]
    sizes = {"num_entities": case.num_entities, "num_relations": case.num_relations}
    without = edge_scorer(lambda lhs, rel, rhs: table[lhs, rel, rhs], **sizes)
    keys = {"candidates": policy, "time_window": 0, "relation_prediction": True, "known": [case.known]}

    reports = [evaluate_triples(scorer, case.test, **keys).document for scorer in (scorer_of("edges", case), without)]

    left_out = ("provenance", "run")
    assert reports[0]["provenance"]["data"]["model"]["takes_time"] is True
    assert {key: of for key, of in reports[1].items() if key not in left_out} == {
        key: of for key, of in reports[0].items() if key not in left_out
    }


def test_lists_of_the_best_go_by_time(tmp_path: Path) -> None:
    """One query at two times has two lists."""
    scores = [[[[1.0, 5.0] + [0.0] * 5, [2.0] * 7, [3.0] * 7]] for _ in range(3)]
    case, output = Case(3, 1, scores, [(0, 0, 1, 0), (0, 0, 1, 3)], []), tmp_path / "out"

    evaluate_triples(scorer_of("edges", case), case.test, output=output, save_topk=3, disable_lhs_negs=True)

    with h5py.File(output / "topk" / "0" / "topk_0_0.h5") as file:
        assert file["tail"]["entity"][:].tolist() == [[2, 1, 0], [0, 2, 1]]


def evaluate_case(case: Case, keys: dict[str, Any], output: Path) -> None:
    edges = Edges(case.test, known=[case.known])
    evaluate(EvalConfig(**keys), output=output, model=OwnScorer(case), edges=edges, device="cpu")


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
def test_workers_give_the_same_bytes(policy: str, tmp_path: Path) -> None:
    case = random_case(21, num_test=40)
    rules = {"time_window": 1, "known_until": "query", "relation_prediction": policy != "sampled"}
    outputs, keys = [tmp_path / name for name in ("alone", "together")], settings_of(policy, case, **rules)
    evaluate_case(case, keys, outputs[0])
    join(start_workers(3, 1, evaluate_case, case, keys, outputs[1]))

    assert len({(output / "metrics.json").read_bytes() for output in outputs}) == 1
    assert len({str(counts_of(output)) for output in outputs}) == 1
    columns = (0, 1, 2) if policy != "sampled" else (0, 2)
    assert_equals_loops(case, Report.read(outputs[1]), outputs[1], policy, columns, 1, until=True)


@pytest.mark.parametrize("policy", ["all", "partition"])
def test_bucket_files_with_times_are_ranked_as_arrays_are(policy: str, tmp_path: Path) -> None:
    case = random_case(8)
    size, cut = case.num_entities, case.num_entities // 2
    buckets: dict[tuple[bool, bool], list[tuple[int, ...]]] = {}
    for head, relation, tail, time in case.test:
        rows = (head - cut * (head >= cut), relation, tail - cut * (tail >= cut), time)
        buckets.setdefault((head >= cut, tail >= cut), []).append(rows)
    (tmp_path / "edges").mkdir()
    for (left, right), rows in buckets.items():
        with h5py.File(tmp_path / "edges" / f"edges_{left:d}_{right:d}.h5", "w") as file:
            file.attrs["format_version"] = 1
            for name, column in zip(("lhs", "rel", "rhs", "time"), np.array(rows).T, strict=True):
                file[name] = column
    config = EvalConfig(
        edge_paths=[str(tmp_path / "edges")], entities={"all": EntitySchema(num_partitions=2)}, candidates=policy
    )

    report = evaluate(config, model=scorer_of("sides", case), output=tmp_path / "out")

    mean_ranks = []
    for column in (0, 2):
        for edge in case.test:
            ends = range(cut) if edge[column] < cut else range(cut, size)
            others = range(size) if policy == "all" else ends
            scores = [case.score(*edge[:column], other, *edge[column + 1 :]) for other in others]
            true = case.score(*edge)
            mean_ranks.append(Fraction(sum(one > true for one in scores) + sum(one >= true for one in scores) + 1, 2))
    assert report.raw["mean_rank"] == pytest.approx(float(sum(mean_ranks) / len(mean_ranks)), rel=1e-12)


def test_no_edges_are_no_queries() -> None:
    case = random_case(3)
    report = evaluate(EvalConfig(candidates="all"), model=scorer_of("sides", case), edges=Edges(np.empty((0, 4), int)))
    assert report.document["num_queries"] == 0


def timed_scores(lhs: torch.Tensor, rel: torch.Tensor, rhs: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
    return torch.where(time == 7, torch.nan, (lhs + rel + rhs + time).float())


TAKES_TIME = edge_scorer(timed_scores, num_entities=5, num_relations=1, takes_time=True)


@pytest.mark.parametrize(
    ("act", "fault"),
    [
        (
            lambda: evaluate_triples(TAKES_TIME, [(0, 0, 1)]),
            "edges: expected integers of shape (edges, 4): head, relation, tail, time, got no fourth column; add the",
        ),
        (
            lambda: evaluate_triples(TAKES_TIME, [(0, 0, 1, 3)], train=[[(0, 0, 2, 1)]], topk_metrics=True),
            "topk_metrics: needs lists that are the same at all times, but the scorer takes times",
        ),
        (
            lambda: evaluate_triples(TAKES_TIME, [(0, 0, 1, 3), (1, 0, 2, 7)]),
            "the model: expected a number as the score of lhs",
        ),
        (
            lambda: evaluate_triples(
                edge_scorer(lambda lhs, rel, rhs: lhs + rhs, num_entities=5, num_relations=1, takes_time=True),
                [(0, 0, 1, 3)],
            ),
            "the scoring function: TypeError",
        ),
    ],
)
def test_what_does_not_fit_is_refused_in_a_line(act: Any, fault: str) -> None:
    with pytest.raises(EvalError) as refused:
        act()
    [line] = str(refused.value).splitlines()
    assert line.startswith(fault)


def test_known_edges_need_times_only_where_a_filter_goes_by_them() -> None:
    report = evaluate_triples(TAKES_TIME, [(0, 0, 1, 3)], known=[[(0, 0, 4)]], disable_lhs_negs=True)
    assert (report["tail.mean_rank"], report.raw["tail.mean_rank"]) == (3, 4)


def test_a_kept_row_is_of_its_time() -> None:
    """A model that scores all entities at once keeps its last rows: a query of another time is asked anew."""
    scorer = scorer_of("sides", case := random_case(9))
    query = torch.tensor([0]), torch.tensor([0]), torch.arange(case.num_entities)
    for when in (TIMES[1], TIMES[0], TIMES[1], TIMES[6], TIMES[5]):
        expected = [case.score(0, 0, tail, when) for tail in range(case.num_entities)]
        assert scorer.scores(Side.RHS, *query, torch.tensor([when])).tolist() == [expected]
