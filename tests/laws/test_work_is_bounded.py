"""What no figure shows: how much is kept at a time, and how many threads multiply."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pbgeval import evaluate, load_config
from pbgeval.inputs import partitions
from pbgeval.scoring import block_sizes, distances
from pbgeval.scoring.blas import find_sgemm
from tests.kit.case import TinyCase
from tests.kit.commands import unit_log

NUM_ENTITIES = 300
MOST_NUMBERS = 1 << 12  # of a block, in what follows
SMALL = {
    **dict.fromkeys(("queries", "counted_queries", "summed_rows"), 32),
    **dict.fromkeys(("candidates", "counted_candidates", "screened_candidates"), 64),
    **dict.fromkeys(("pairs", "prepared_rows"), 256),
    **dict.fromkeys(("cells", "related_cells"), MOST_NUMBERS // 2),
    **dict.fromkeys(("swept_numbers", "numbers"), MOST_NUMBERS),
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


def test_a_product_of_a_compiled_loop_takes_one_thread_and_gives_the_others_back() -> None:
    gemm = find_sgemm()
    if gemm is None:
        pytest.skip("this torch has no product that loops can call")
    before = gemm._set_threads(3)
    with gemm.one_thread():
        assert gemm._set_threads(1) == 1

    assert gemm._set_threads(before) == 3


@pytest.mark.parametrize(("cells", "num_ranges"), [(1 << 29, 1), (600 * 100, 3), (1, 5)])
def test_a_range_of_candidates_takes_so_many_cells_at_most(
    cells: int, num_ranges: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that little is repeated after an interruption: 300 edges, 600 queries."""
    monkeypatch.setattr(partitions, "CELLS_PER_RANGE", cells)
    monkeypatch.setattr(partitions, "LEAST_ROWS", 70)
    sizes = {"partition_sizes": (NUM_ENTITIES,), "edges_per_bucket": NUM_ENTITIES}
    TinyCase.write(tmp_path, **sizes, candidates="all", dynamic=True, filter_paths=["edges"])
    config = load_config(tmp_path / "eval.py")

    report = evaluate(config, output=tmp_path / "output", workers=1, device="cpu")
    monkeypatch.setattr(partitions, "CELLS_PER_RANGE", 1 << 40)

    events = [line["event"] for line in unit_log(tmp_path / "output")]
    assert events.count("finish") == num_ranges
    assert report.document == evaluate(config, output=tmp_path / "whole", workers=1, device="cpu").document
