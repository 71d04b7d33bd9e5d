"""What every scorer must satisfy: subclass `ScorerContract` and say how to make one, and what its scores are.

A scorer joins in so:

    class TestMine(ScorerContract):
        num_entities, num_relations = 40, 3

        def make(self) -> Scorer: ...
        def score(self, lhs: int, rel: int, rhs: int) -> float: ...  # slow, in float64, without the scorer
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pbgeval import Edges, EvalConfig, Scorer, evaluate
from pbgeval.notation import ENDS, Bucket, Side
from pbgeval.report.report import Report
from pbgeval.scoring.block_scorer import CONSISTENT, ScorerComparator, ScorerRelation, device_of, scorer_state
from tests.saved_ranks import read_ranks

Edge = tuple[int, int, int]
Score = Callable[[int, int, int], float]


def some_edges(num_entities: int, num_relations: int, number: int, seed: int) -> list[Edge]:
    """Return edges of which some share their keys, and some are repeated."""
    source = random.Random(seed)
    edges = [
        (source.randrange(num_entities), source.randrange(num_relations), source.randrange(num_entities))
        for _ in range(number)
    ]
    return [*edges, *((lhs, rel, source.randrange(num_entities)) for lhs, rel, _ in edges[:5]), *edges[:2]]


def evaluated(
    model: Path, options: Mapping[str, Any], edges: list[Edge], known: list[Edge], output: Path, **settings: Any
) -> Report:
    """Evaluate a saved model through a config: .npy files of edges, known ones among them; save ranks."""
    output.parent.mkdir(exist_ok=True, parents=True)
    test, train = output.with_suffix(".test.npy"), output.with_suffix(".train.npy")
    np.save(test, np.array(edges))
    np.save(train, np.array(known, np.int32))
    paths = {"edge_paths": [str(test)], "train_paths": [str(train)]}
    keys = {"model": str(model), "model_options": dict(options), "candidates": "all", **paths, **settings}
    return evaluate(EvalConfig(**keys, save_ranks=True), output=output, workers=1)


def assert_ranks(
    output: Path, edges: list[Edge], score: Score, num_entities: int, known: Collection[Edge] = (), error: float = 0.0
) -> None:
    """Compare every rank against all entities with the order of reference scores, but for those within an error."""
    for side in ENDS:
        assert_ranks_of_side(output, side, edges, score, lambda _: num_entities, known, error)


def assert_ranks_of_side(
    output: Path,
    side: Side,
    edges: list[Edge],
    score: Score,
    num_entities: Callable[[int], int],
    known: Collection[Edge],
    error: float,
) -> None:
    """Compare the ranks of one side; `num_entities`: those that compete in each relation."""
    known = {*known, *edges}
    columns = {name: values.tolist() for name, values in read_ranks(output, 0, Bucket(0, 0)).columns[side].items()}
    for row, (lhs, rel, rhs) in enumerate(edges):
        found = {name: values[row] for name, values in columns.items()}
        true, size = side.pick(lhs, rhs), num_entities(rel)
        others = [side.pick((other, rel, rhs), (lhs, rel, other)) for other in range(size) if other != true]
        counted = found["num_candidates"], found["num_excluded"]
        assert counted == (size, sum(other in known for other in others))
        true_score = score(lhs, rel, rhs)
        margins = [(score(*other) - true_score, other in known) for other in others]
        for wanted, prefix in ((margins, ""), ([one for one in margins if one[1]], "excluded_")):
            better, tied = found[f"{prefix}better"], found[f"{prefix}tied"]
            if error == 0:
                assert (sum(m > 0 for m, _ in wanted), sum(m == 0 for m, _ in wanted)) == (better, tied)
            else:
                assert sum(m > error for m, _ in wanted) <= better
                assert better + tied <= sum(m >= -error for m, _ in wanted)


class ScorerContract(ABC):
    """The suite."""

    num_entities: int
    num_relations: int
    error: float = 0.0  # by which scores may be off; 0: they are exact, and so are ranks

    @abstractmethod
    def make(self) -> Scorer:
        """Return the scorer."""

    @abstractmethod
    def score(self, lhs: int, rel: int, rhs: int) -> float:
        """Return the score of one edge, without the scorer."""

    def block(self, scorer: Scorer, hidden: Side, known: list[int], rel: list[int], candidates: list[int]) -> Any:
        device = device_of(scorer)
        ids = (torch.tensor(of, dtype=torch.int64, device=device) for of in (known, rel, candidates))
        with torch.no_grad():
            return torch.as_tensor(scorer.scores(hidden, *ids)).cpu().double()

    def evaluate(self, tmp_path: Path, edges: Edges, **settings: Any) -> Report:
        config = EvalConfig(save_ranks=True, **{"candidates": "all", "hits_at": [1, 3]} | settings)
        return evaluate(config, output=tmp_path / "output", model=self.make(), edges=edges)

    @pytest.mark.parametrize("hidden", ENDS)
    def test_a_block_has_the_scores_of_its_queries_and_candidates(self, hidden):
        """Of any shape, candidates in any order and more than once."""
        source = random.Random(1)
        for num_queries, num_candidates in ((1, 1), (3, 1), (1, 7), (5, 2 * self.num_entities)):
            known = [source.randrange(self.num_entities) for _ in range(num_queries)]
            rel = [source.randrange(self.num_relations) for _ in range(num_queries)]
            candidates = [source.randrange(self.num_entities) for _ in range(num_candidates)]

            found = self.block(self.make(), hidden, known, rel, candidates)

            expected = [
                [self.score(*hidden.pick((c, r, k), (k, r, c))) for c in candidates]
                for k, r in zip(known, rel, strict=True)
            ]
            np.testing.assert_allclose(found, np.array(expected), rtol=0, atol=self.error)

    def test_a_score_depends_on_its_query_and_candidate_alone(self):
        assert scorer_state(ScorerRelation(ScorerComparator(self.make()), "all", "all"), tuple(ENDS)) == CONSISTENT

    def test_ranks_against_all_are_those_of_its_scores(self, tmp_path):
        edges = some_edges(self.num_entities, self.num_relations, 12, seed=2)
        known = some_edges(self.num_entities, self.num_relations, 60, seed=3)
        valid, train = np.array(known[:20]), np.array(known[20:])

        report = self.evaluate(tmp_path, Edges(torch.tensor(edges), known=[valid], train=[train]))

        assert report.run["reproducible"]
        assert ("filtered", len(edges)) == (report.document["filter"], report.document["num_edges"])
        assert_ranks(tmp_path / "output", edges, self.score, self.num_entities, known, self.error)

    def test_a_partition_ranks_as_all_do(self, tmp_path):
        edges = some_edges(self.num_entities, self.num_relations, 12, seed=4)

        every, partition = (
            self.evaluate(tmp_path / name, Edges(edges, train=[edges]), candidates=name)
            for name in ("all", "partition")
        )

        for key in ("metrics", "raw_metrics", "macro_metrics", "relation_macro_metrics"):
            assert every.document[key] == partition.document[key]

    def test_sampled_candidates_are_ranked_by_its_scores(self, tmp_path):
        """An edge is its chunk, so its list is its own draws: with very many, every entity is there."""
        edges = some_edges(self.num_entities, self.num_relations, 6, seed=5)
        lists = {"num_batch_negs": 1, "num_uniform_negs": 40 * self.num_entities}

        report = self.evaluate(tmp_path, Edges(edges), candidates="sampled", **lists)

        columns = read_ranks(tmp_path / "output", 0, Bucket(0, 0)).columns
        for side in ENDS:
            for row, (lhs, rel, rhs) in enumerate(edges):
                true = self.score(lhs, rel, rhs)
                others = [side.pick((at, rel, rhs), (lhs, rel, at)) for at in range(self.num_entities)]
                margins = [self.score(*other) - true for other in others if other != (lhs, rel, rhs)]
                better, tied = (int(columns[side][name][row]) for name in ("better", "tied"))
                is_better, may_be = (any(margin > error for margin in margins) for error in (self.error, -self.error))
                assert is_better <= (better > 0) <= may_be
                assert better + tied <= int(columns[side]["num_candidates"][row]) - 1
        assert len(edges) * 2 == report.document["num_queries"]

    def test_blocks_and_threads_change_no_number(self, tmp_path, monkeypatch):
        edges = Edges(some_edges(self.num_entities, self.num_relations, 30, seed=6))
        whole = self.evaluate(tmp_path / "whole", edges).document
        monkeypatch.setattr("pbgeval.scoring.block_sizes.CPU.queries", 7)
        monkeypatch.setattr("pbgeval.ranking.torch_backend.SCORER_CANDIDATES_PER_BLOCK", 11)
        monkeypatch.setenv("OMP_NUM_THREADS", "2")

        assert whole["metrics"] == self.evaluate(tmp_path / "small", edges).document["metrics"]
