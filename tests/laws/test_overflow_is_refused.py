"""Finite embeddings whose scores overflow both ways are refused by every policy and every fast path.

Infinity minus infinity is NaN, which compares as false with everything, so its query would rank first. A kernel with
fused multiply-adds returns the first infinity instead. Neither may become a rank.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pbgeval import evaluate
from pbgeval.errors import EvalError
from pbgeval.notation import Bucket
from pbgeval.ranking.groups import first_nan
from pbgeval.report.report import Report
from pbgeval.scoring.comparators import COMPARATORS, Comparator
from tests.examples import crossed
from tests.fast_paths import PATHS, switch
from tests.kit.graphs import Relation, TinyGraph
from tests.kit.on_disk import write_graph
from tests.unit.test_storage_candidates import write as write_candidates

DIMENSION = 20
HUGE = 1e30
UP = [HUGE, HUGE, *[0.0] * (DIMENSION - 2)]
DOWN = [HUGE, -HUGE, *[0.0] * (DIMENSION - 2)]
SMALL = [1e-3 * (1 + at % 3) for at in range(DIMENSION)]
# What leaves rows as they are, so that an example has the same scores with each.
UNCHANGING: dict[str, dict[str, Any]] = {
    "none": {},
    "diagonal": {"diagonal": [1.0] * DIMENSION},
    "translation": {"translation": [0.0] * DIMENSION},
    "linear": {
        "linear_transformation": [[float(row == column) for column in range(DIMENSION)] for row in range(DIMENSION)]
    },
    "complex_diagonal": {"real": [1.0] * (DIMENSION // 2), "imag": [0.0] * (DIMENSION // 2)},
}
# Rows of the four entities; the edge that is evaluated leads from entity 0 to entity 1.
EXAMPLES = {
    "every score": [DOWN, UP, DOWN, UP],
    "the true score alone": [UP, DOWN, SMALL, SMALL],
    "one candidate alone": [UP, SMALL, SMALL, DOWN],
}
POLICIES: dict[str, dict[str, Any]] = {
    "sampled": {"candidates": "sampled", "num_batch_negs": 2, "num_uniform_negs": 40},
    "sampled, no batch": {"candidates": "sampled", "num_batch_negs": 0, "num_uniform_negs": 40},
    "sampled, as PBG": {"candidates": "sampled", "num_uniform_negs": 40, "pbg_semantics": True, "workers": 1},
    "sampled, with loss": {"candidates": "sampled", "num_uniform_negs": 40, "compute_loss": True},
    "partition": {"candidates": "partition"},
    "all": {"candidates": "all"},
    "given": {"candidate_path": "set by run"},
}
NEVER_NAN = ("cos", *(name for name, of in COMPARATORS.items() if not of.multiplies))  # normalised, or magnitudes


def run(
    folder: Path,
    policy: str,
    rows: list[list[float]],
    comparator: str,
    operator: str,
    *,
    params: dict[str, Any] | None = None,
    dynamic: bool = False,
    bias: bool = False,
) -> Report:
    settings = POLICIES[policy] | {"disable_lhs_negs": True, "metrics": ["rank"], "precision": "float32"}
    params = params or UNCHANGING[operator]
    graph = TinyGraph(
        [Relation("likes", "user", "user", operator, params, params if dynamic else {})],
        {"user": [rows]},
        {},
        {(0, 0): [(0, 0, 1)]},
        dynamic=dynamic,
        comparator=comparator,
        bias=bias,
    )
    if policy == "given":
        write_candidates(folder / "given", Bucket(0, 0), tail=[[0, 2, 3]])
        settings["candidate_path"] = str(folder / "given")
    return evaluate(write_graph(graph, folder / "data", **settings), output=folder / "out", workers=1)


def assert_refused(
    folder: Path, policy: str, rows: list[list[float]], comparator: str, operator: str, **more: bool
) -> None:
    with pytest.raises(EvalError, match=r"edges_0_0\.h5: row 0 .*got NaN: finite embeddings overflow"):
        run(folder, policy, rows, comparator, operator, **more)
    assert not (folder / "out" / "metrics.json").exists()


@pytest.mark.one_case
@pytest.mark.parametrize(("policy", "example"), crossed(tuple(POLICIES), tuple(EXAMPLES), quick=3))
def test_a_score_that_overflows_both_ways_is_refused(
    policy: str, example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The general path, with every comparator."""
    switch(monkeypatch)
    bias = example == "one candidate alone"
    rows = [[0.0, *row[:-1]] for row in EXAMPLES[example]] if bias else EXAMPLES[example]
    for comparator in set(COMPARATORS) - set(NEVER_NAN):
        assert_refused(tmp_path / comparator, policy, rows, comparator, "none", bias=bias)


# Policies in which this graph takes a path. A path of exact ranks, known edges, distances, heads or what follows counts
# has none.
TAKEN_BY: dict[str, tuple[str, ...]] = {
    "compiled": tuple(policy for policy in POLICIES if policy != "given"),
    "blocks": ("partition", "all"),
    "lists": ("sampled", "sampled, as PBG"),
    "repeated_counts": ("sampled", "partition", "all", "given"),
    "tiles": ("partition", "all"),
    **dict.fromkeys(
        ("distances", "pairs", "values", "semi_join", "bfloat16", "float32", "moved_operators", "exact_lists"), ()
    ),
    "clusters": (),
    "open_cells": (),
}


@pytest.mark.parametrize(
    ("path", "policy"), crossed([(path, policy) for path in PATHS for policy in TAKEN_BY[path]], quick=3)
)
def test_a_score_that_overflows_both_ways_is_refused_on_every_fast_path(
    path: str, policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    if path == "tiles":
        request.getfixturevalue("kernel_device")
    taken = switch(monkeypatch, path)
    for (example, rows), operator in zip(
        EXAMPLES.items(), ("none", "complex_diagonal", "complex_diagonal"), strict=True
    ):
        assert_refused(tmp_path / example, policy, rows, "dot", operator, dynamic=operator != "none")
    run(tmp_path / "small", policy, [SMALL] * 4, "dot", "complex_diagonal", dynamic=True)
    assert path in taken


@pytest.mark.parametrize(("policy", "operator"), crossed(tuple(POLICIES), tuple(UNCHANGING), quick=3))
def test_a_score_that_overflows_both_ways_is_refused_with_every_operator(
    policy: str, operator: str, tmp_path: Path
) -> None:
    """By whatever path the package takes."""
    for dynamic in (False, True):
        assert_refused(tmp_path / str(dynamic), policy, EXAMPLES["every score"], "dot", operator, dynamic=dynamic)


@pytest.mark.parametrize(
    ("policy", "comparator"), crossed(tuple(POLICIES), (*NEVER_NAN, "dot", "clamped_dot"), quick=3)
)
def test_scores_that_overflow_one_way_are_numbers(policy: str, comparator: str, tmp_path: Path) -> None:
    assert run(tmp_path, policy, [UP, UP, SMALL, SMALL], comparator, "none")["tail.optimistic.mean_rank"] == 1


@pytest.mark.parametrize("policy", POLICIES)
def test_rows_that_an_operator_makes_infinite_are_refused(policy: str, tmp_path: Path) -> None:
    """Whether a matrix kernel meets infinity or NaN on the way depends on the kernel."""
    params = {"linear_transformation": [[HUGE] * DIMENSION] * DIMENSION}

    with pytest.raises(EvalError, match=r"expected numbers within float32, got larger ones .*operator.* 'likes'"):
        run(tmp_path, policy, [UP, DOWN, SMALL, SMALL], "dot", "linear", params=params)


numbers = st.sampled_from([0.0, 1.0, -1.0, 1e18, -1e18, 1e25, -1e25, 3e38, -3e38])


@given(st.data(), st.integers(1, 3), st.integers(1, 4), st.integers(1, 4), st.integers(1, 5))
def test_wherever_a_plain_sum_meets_two_infinities_a_score_is_refused(
    data: st.DataObject, chunks: int, queries: int, candidates: int, dimension: int
) -> None:
    def rows(number: int) -> torch.Tensor:
        size = chunks * number * dimension
        drawn = data.draw(st.lists(numbers, min_size=size, max_size=size))
        return torch.tensor(drawn).view(chunks, number, dimension)

    query, candidate = rows(queries), rows(candidates)
    terms = query.unsqueeze(2) * candidate.unsqueeze(1)
    meets = (torch.isposinf(terms).any(-1) & torch.isneginf(terms).any(-1)).any()
    found = first_nan(Comparator("dot"), query, candidate, Comparator("dot").scores(query, candidate))

    assert (found is not None) >= bool(meets)
    if found is not None:
        chunk, row, column = found
        of_terms = query[chunk, row].double() * candidate[chunk, column].double()
        assert float(of_terms.relu().sum()) > 3.4e38 < float((-of_terms).relu().sum())
