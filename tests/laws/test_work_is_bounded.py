"""What no figure shows: how much is kept at a time, and how many threads multiply."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pbgeval import evaluate, load_config
from pbgeval.ranking import counting, exact
from pbgeval.ranking.exact import UndecidedCells
from pbgeval.scoring import block_sizes, distances
from pbgeval.scoring.blas import find_sgemm
from pbgeval.stats.ranks import QueryCounts, RankCounts
from tests.kit.case import TinyCase

NUM_ENTITIES = 300
MOST_NUMBERS = 1 << 12  # of a block, in what follows
SMALL = {
    **dict.fromkeys(("queries", "counted_queries", "related_edges", "ordered_rows", "hashed_rows"), 32),
    **dict.fromkeys(("candidates", "counted_candidates", "screened_candidates"), 64),
    **dict.fromkeys(("pairs", "compared_pairs", "decided_pairs", "keys", "true_scores", "prepared_rows"), 256),
    **dict.fromkeys(("list_cells", "compared_cells", "related_cells"), MOST_NUMBERS // 2),
    **dict.fromkeys(("swept_numbers", "searched_numbers", "numbers"), MOST_NUMBERS),
}


class Largest(TorchDispatchMode):
    """Notes how many numbers the largest tensor has that an operation makes."""

    numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        self.numbers = max([self.numbers, *(of.numel() for of in tree_leaves(made) if isinstance(of, torch.Tensor))])
        return made


@pytest.mark.parametrize("candidates", ["all", "partition", "sampled"])
@pytest.mark.parametrize(("comparator", "precision"), [("dot", "float32"), ("l1", "float64"), ("squared_l2", "exact")])
def test_no_tensor_has_a_cell_for_each_query_and_candidate(
    candidates: str, comparator: str, precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {"partition_sizes": (NUM_ENTITIES,), "edges_per_bucket": NUM_ENTITIES}
    settings = {"candidates": candidates, "comparator": comparator, "filter_paths": ["edges"]}
    TinyCase.write(tmp_path, **sizes, **settings)
    config = load_config(tmp_path / "eval.py", ["metrics=rank", f"precision={precision}"])
    evaluate(config, output=tmp_path / "first", workers=1, device="cpu")  # asks libraries what they can do
    for name, value in SMALL.items():
        monkeypatch.setattr(block_sizes.CPU, name, value)
    monkeypatch.setattr(distances, "CELLS_AT_A_TIME", MOST_NUMBERS)

    with Largest() as largest:
        evaluate(config, output=tmp_path / "again", workers=1, device="cpu")

    assert largest.numbers <= 3 * MOST_NUMBERS < NUM_ENTITIES**2 // 4


@given(st.lists(st.integers(0, 30), min_size=1, max_size=9))
def test_many_cells_are_sought_without_a_table_of_all_pairs(lengths: list[int]) -> None:
    rows, columns = torch.arange(40).repeat_interleave(5), torch.arange(200) % 7
    with pytest.MonkeyPatch.context() as patch, Largest() as largest:
        patch.setattr(counting, "FEW_COMPARISONS", 300)
        for length in lengths:
            found = counting.are_among(rows, columns, (rows[:length], columns[:length]), 7)
            assert found.tolist() == [at < length for at in range(200)]

    assert largest.numbers <= 2 * 300


@given(st.lists(st.integers(0, 9), min_size=1, max_size=12))
def test_open_cells_wait_until_there_are_enough_and_each_is_decided_once(lengths: list[int]) -> None:
    zero, decided = QueryCounts.unfiltered(RankCounts.zero(1, torch.device("cpu"))), []
    waiting = UndecidedCells(SimpleNamespace(num_queries=1), SimpleNamespace(rows_BCD=torch.empty(1, 1, 1)))  # type: ignore[arg-type]

    def note(queries: Any, candidates: Any, counts: QueryCounts, cells: Any, known: Any) -> QueryCounts:
        decided.append(cells[0].numel())
        return counts

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exact, "decided", note)
        patch.setattr(block_sizes.CPU, "decided_pairs", 10)
        added = 0
        for length in lengths:
            added += length
            waiting.add(zero, (torch.zeros(length, dtype=torch.int64),) * 2, None, 0)
            assert 0 <= added - sum(decided) < 10
        waiting.decide()

    assert sum(decided) == added
    assert all(num_cells >= 10 for num_cells in decided[:-1])


def test_a_product_of_a_compiled_loop_takes_one_thread_and_gives_the_others_back() -> None:
    gemm = find_sgemm()
    if gemm is None:
        pytest.skip("this torch has no product that loops can call")
    before = gemm._set_threads(3)
    with gemm.one_thread():
        assert gemm._set_threads(1) == 1

    assert gemm._set_threads(before) == 3
