"""Compiled loops within whole evaluations: every figure and count of the general path, whatever is asked of them.

One loop counts blocks of queries and candidates, another gathers the lists of sampled candidates.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import h5py
import numpy as np
import pytest
import torch

from pbgeval.jit import CompiledLoop
from pbgeval.notation import Bucket, Side
from pbgeval.ranking import auc_sampling, cpu_backend, cpu_counting, cpu_lists, cpu_loops, ranking_pass
from pbgeval.ranking.block_threads import BlockThreads
from pbgeval.ranking.cpu_loops import put_on_grid, value_on_grids
from pbgeval.ranking.query_edges import QueryBlock
from pbgeval.ranking.query_group_state import ScoreCollector
from pbgeval.ranking.tally import LossFold
from pbgeval.scoring import block_sizes, comparators, exact, fast_products
from tests.examples import crossed
from tests.kit.case import TinyCase
from tests.kit.commands import evaluated
from tests.kit.loops import loops_used, use_loops
from tests.saved_ranks import counts_of, read_ranks

FILTERED = ("filter_paths=edges",)  # known answers do not compete
SETTINGS = {
    "raw": (),
    "filtered": FILTERED,
    "distances": ("comparator=squared_l2", *FILTERED),
    "cosines": ("comparator=cos",),
    "restricted": ("restrict_entities=" + ",".join(f"user:{at % 2}:{at}" for at in range(3, 30, 2)), *FILTERED),
    "by relation": ("train_paths=edges", "type_constraint=observed"),
    "two operators": ("max_memory=8GB", *FILTERED),  # a process of many tests holds much
}
SETTINGS_OF_CHUNKS = {  # and whether the loop gathers the lists
    "raw": ((), True),
    "filtered": (FILTERED, True),
    "tails": (("disable_lhs_negs=True", *FILTERED), True),
    "as PyTorch-BigGraph": (("pbg_semantics=True",), True),
    "short lists": (("num_batch_negs=1", "num_uniform_negs=40"), True),
    "no batch": (("num_batch_negs=0", *FILTERED), False),
    "no batch, distances": (("num_batch_negs=0", "num_uniform_negs=7", "comparator=l2"), False),
    "no batch, heads": (("num_batch_negs=0", "disable_rhs_negs=True", "comparator=cos", *FILTERED), False),
    "distances": (("comparator=l2", *FILTERED), False),
    "cosines": (("comparator=cos", *FILTERED), False),
    "biased": (("bias=True", *FILTERED), False),
    "biased cosines": (("bias=True", "comparator=cos", "max_norm=1.5"), False),
    "scaled": (("max_norm=1.5", *FILTERED), False),
    "scaled distances": (("max_norm=1.5", "comparator=squared_l2", "num_batch_negs=0"), False),
    "biased distances": (("bias=True", "comparator=squared_l2"), False),
    "clamped": (("comparator=clamped_dot", *FILTERED), False),
    "constrained": (SETTINGS["by relation"], None),
    "a loss": (("compute_loss=True", *FILTERED), False),
    "a loss of distances": (("compute_loss=True", "comparator=l2"), False),
    "a loss of biased cosines": (("compute_loss=True", "comparator=cos", "bias=True"), False),
    "a loss, clamped, no batch": (("compute_loss=True", "comparator=clamped_dot", "num_batch_negs=0"), False),
    "a loss, biased and scaled": (("compute_loss=True", "loss_fn=softmax", "bias=True", "max_norm=1.5"), False),
    "a loss of squares, constrained": (("compute_loss=True", "comparator=squared_l2", *SETTINGS["by relation"]), None),
}
EXACT_SETTINGS = [("raw", 1.0), ("filtered", 1.0), ("filtered", 0.2), ("filtered", None), ("by relation", 1.0)]


def write_case(folder: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> TinyCase:
    """Write a graph with duplicates, whose AUC needs a sample of scores."""
    monkeypatch.setattr(auc_sampling, "EXACT_CELLS", 0)  # else its scores are all wanted
    monkeypatch.setattr(auc_sampling, "SAMPLED_CELLS", 400)
    for module in (comparators, exact, fast_products):
        monkeypatch.setattr(module, "CLAMP", 0.5)  # many scores lie beyond it
    monkeypatch.setattr(block_sizes.CPU, "queries", 7)
    monkeypatch.setattr(block_sizes.CPU, "cells", 500)
    case = TinyCase.write(folder, partition_sizes=(33, 30), edges_per_bucket=12, **settings)
    case.spoil_embeddings("user", 0, slice(3, 30), 0.25)  # duplicates
    return case


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TinyCase:
    return write_case(tmp_path / "case", monkeypatch)


def count_at_a_time(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_backend, "BYTES_PER_BLOCK", 1)  # as few candidates as there may be
    monkeypatch.setattr(cpu_backend, "COLUMNS_AT_A_TIME", width)


def num_calls_of(
    case: TinyCase, *overrides: str, loop: CompiledLoop = cpu_loops.count_block, owner: Any = cpu_counting
) -> int:
    """Compare what both ways find, and return how often the loop was called: of float32, if nothing else is asked."""
    overrides = ("precision=float32", *overrides)
    with (
        loops_used(True, loop),
        mock.patch.object(owner, "count", autospec=True, side_effect=owner.count) as count,
    ):
        found = evaluated(case, *overrides, "save_ranks=True", output="compiled")
    with (
        loops_used(False),
        mock.patch("pbgeval.worker.plan.load_compiled"),
        mock.patch.object(owner, "count", None),
    ):
        expected = evaluated(case, *overrides, "save_ranks=True", output="general")  # a call of `count` is a fault
    assert (found, counts_of(case.root / "compiled")) == (expected, counts_of(case.root / "general"))
    return count.call_count


def num_gathered(case: TinyCase, *overrides: str) -> int:
    is_exact = "precision=exact" in overrides
    chunks = cpu_lists.ExactChunks if is_exact else cpu_lists.GatheredChunks
    loop = cpu_loops.count_gathered_exactly if is_exact else cpu_loops.count_gathered
    return num_calls_of(case, "candidates=sampled", *overrides, loop=loop, owner=chunks)


@pytest.mark.one_case
@pytest.mark.parametrize(
    ("settings", "num_threads", "width", "candidates"),
    crossed(list(SETTINGS), [(1, 576), (2, 7)], ["all", "partition"], quick=4, thorough=2),
)
def test_the_loop_gives_the_figures_of_the_general_path(
    case: TinyCase, monkeypatch: pytest.MonkeyPatch, candidates: str, num_threads: int, width: int, settings: str
) -> None:
    """With all candidates of a partition at a time, or seven."""
    monkeypatch.setattr(BlockThreads, "of_device", classmethod(lambda cls, *_: cls(num_threads)))
    count_at_a_time(width, monkeypatch)

    assert num_calls_of(case, f"candidates={candidates}", *SETTINGS[settings])


@pytest.mark.one_case
@pytest.mark.parametrize(
    ("settings", "in_bfloat16", "comparator", "candidates"),
    crossed(
        EXACT_SETTINGS, ["dot", "cos", "l2", "squared_l2", "clamped_dot"], ["all", "partition"], quick=6, thorough=2
    ),
)
def test_exact_ranks_are_those_of_the_general_path(
    case: TinyCase,
    monkeypatch: pytest.MonkeyPatch,
    candidates: str,
    comparator: str,
    settings: str,
    in_bfloat16: float | None,
) -> None:
    """A product in bfloat16 may leave any share of the cells open, some, or is not tried."""
    monkeypatch.setattr(cpu_counting, "multiplies_bfloat16", lambda: in_bfloat16 is not None)
    monkeypatch.setattr(cpu_backend, "MAX_OPEN_SHARE", in_bfloat16 or 0.0)
    count_at_a_time(7 if settings == "filtered" else 576, monkeypatch)
    overrides = (f"candidates={candidates}", "precision=exact", f"comparator={comparator}", *SETTINGS[settings])

    assert num_calls_of(case, *overrides)


@pytest.mark.one_case
@pytest.mark.parametrize("candidates", ["all", "partition"])
def test_more_open_cells_than_there_is_room_for_are_decided_in_halves(
    case: TinyCase, monkeypatch: pytest.MonkeyPatch, candidates: str
) -> None:
    monkeypatch.setattr(cpu_backend, "MAX_OPEN", 37)
    monkeypatch.setattr(cpu_counting, "relative_error", lambda _: 1e9)  # so the loop decides nothing
    monkeypatch.setattr(
        cpu_backend, "limits", lambda _, true, *__: (true.value_Q + torch.inf, true.value_Q - torch.inf)
    )
    overrides = (f"candidates={candidates}", "precision=exact", *FILTERED)

    assert num_calls_of(case, *overrides) > 50


@pytest.mark.one_case
@pytest.mark.parametrize("candidates", ["all", "partition"])
def test_a_bias_beside_a_root_is_left_to_float64(case: TinyCase, candidates: str) -> None:
    overrides = (f"candidates={candidates}", "precision=exact", "comparator=l2", "bias=True", *FILTERED)

    assert num_calls_of(case, *overrides) == 0


@pytest.mark.one_case
@pytest.mark.parametrize("asked", ["save_topk=3", "metrics=auc"])
def test_who_wants_all_scores_gets_them(case: TinyCase, monkeypatch: pytest.MonkeyPatch, asked: str) -> None:
    monkeypatch.setattr(auc_sampling, "EXACT_CELLS", 1 << 20)

    assert num_calls_of(case, "candidates=all", asked) == 0


@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize("comparator", ["dot", "cos", "l2"])
def test_candidates_with_a_true_entitys_vector_tie_with_it(
    comparator: str, is_compiled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever its score is compared with: a sum that need not have the last bits of the kernel's."""
    use_loops(monkeypatch, is_compiled)
    case = TinyCase.write(tmp_path, dynamic=True, partition_sizes=(120,), edges_per_bucket=90, dimension=34)
    case.spoil_embeddings("user", 0, slice(None, None, 3), np.random.default_rng(0).standard_normal(34))
    asked = ("candidates=all", "precision=float32", f"comparator={comparator}", "metrics=rank", "save_ranks=True")
    evaluated(case, *asked)

    columns = read_ranks(tmp_path / "output", 0, Bucket(0, 0)).columns
    with h5py.File(case.edges(0, 0)) as file:
        for side, name in {Side.LHS: "lhs", Side.RHS: "rhs"}.items():
            assert columns[side]["tied"][file[name][:] % 3 == 0].min() >= 120 / 3 - 1


@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize("candidates", ["all", "partition"])
def test_sampled_scores_have_the_bits_of_pairs(
    case: TinyCase, monkeypatch: pytest.MonkeyPatch, candidates: str, is_compiled: bool
) -> None:
    """They are read from blocks as these are counted, and computed again from each query and its candidate."""
    use_loops(monkeypatch, is_compiled)
    monkeypatch.setattr(BlockThreads, "of_device", classmethod(lambda cls, *_: cls(1)))  # one after the other
    sampled_in, add = ranking_pass.RangeWork.sampled_in, ScoreCollector.add
    read: list[torch.Tensor] = []
    of_pairs: list[torch.Tensor] = []

    def cells_in(work: ranking_pass.RangeWork, run: int, block: QueryBlock) -> Any:
        found = sampled_in(work, run, block)
        row_P, column_P = found[-1]
        queries_KD = work.state.query_rows(block).rows_KD
        if row_P.numel():
            of_pairs.append(work.state.backend.pairs(queries_KD[row_P], work.runs[run].rows_CD[column_P]))
        return found

    def added(scores: ScoreCollector, query_P: np.ndarray, score_P: torch.Tensor, known_P: np.ndarray | None) -> None:
        read.append(score_P)
        add(scores, query_P, score_P, known_P)

    monkeypatch.setattr(ranking_pass.RangeWork, "sampled_in", cells_in)
    monkeypatch.setattr(ScoreCollector, "add", added)
    evaluated(case, f"candidates={candidates}", "precision=float32", *FILTERED)

    assert sum(map(len, of_pairs)) > 100
    assert list(map(torch.equal, read, of_pairs)) == [True] * len(of_pairs)


def test_few_blocks_of_queries_leave_no_thread_idle(case: TinyCase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_sizes.CPU, "queries", 1 << 20)
    monkeypatch.setattr(cpu_backend, "COLUMNS_AT_A_TIME", 4)
    widths = []
    width = cpu_backend.CpuBackend.candidates_per_block

    def noted(*arguments: Any, **named: Any) -> int:
        widths.append(width(*arguments, **named))
        return widths[-1]

    monkeypatch.setattr(cpu_backend.CpuBackend, "candidates_per_block", noted)
    monkeypatch.setattr(BlockThreads, "of_device", classmethod(lambda cls, *_: cls(2)))

    num_calls = num_calls_of(case, "candidates=all")
    widths = [of_loop for of_loop in widths if of_loop != block_sizes.CPU.candidates]
    assert 0 < max(widths, default=0) <= 12  # of 63 candidates
    assert num_calls > 4 * len(widths)


# Lists of sampled candidates

DYNAMIC_AND_DIMENSION = [(False, 8), (False, 300), (True, 300), (True, 8)]


@pytest.mark.parametrize(
    ("name", "dynamic", "dimension"), crossed(list(SETTINGS_OF_CHUNKS), DYNAMIC_AND_DIMENSION, quick=4, thorough=2)
)
def test_gathered_lists_give_the_figures_of_the_general_path(
    name: str, dynamic: bool, dimension: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of every operator that the loop knows, with global embeddings and without."""
    overrides, is_gathered = SETTINGS_OF_CHUNKS[name]
    case = write_case(tmp_path / "case", monkeypatch, dynamic=dynamic, dimension=dimension)

    assert is_gathered in (None, num_gathered(case, *overrides) > 0)


@pytest.mark.parametrize(
    ("name", "dynamic", "dimension"),
    crossed([of for of in SETTINGS_OF_CHUNKS if "Py" not in of], DYNAMIC_AND_DIMENSION, quick=4, thorough=2),
)
def test_lists_that_are_gathered_exactly_give_the_figures_of_the_general_path(
    name: str, dynamic: bool, dimension: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides, _ = SETTINGS_OF_CHUNKS[name]
    case = write_case(tmp_path / "case", monkeypatch, dynamic=dynamic, dimension=dimension)

    assert (num_gathered(case, "precision=exact", *overrides) > 0) is (name != "biased distances")


@pytest.mark.parametrize(
    ("name", "dynamic", "dimension"),
    crossed([of for of in SETTINGS_OF_CHUNKS if "loss" in of], DYNAMIC_AND_DIMENSION, quick=6, thorough=2),
)
def test_a_loss_is_made_of_scores_with_the_bits_of_the_general_path(
    name: str, dynamic: bool, dimension: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, folded, fold = (
        write_case(tmp_path / "case", monkeypatch, dynamic=dynamic, dimension=dimension),
        [],
        LossFold.fold,
    )
    monkeypatch.setattr(BlockThreads, "of_device", classmethod(lambda cls, *_: cls(2)))

    def noted(self: LossFold, scores_KC: torch.Tensor, *others: Any) -> None:
        folded.append(scores_KC.clone())
        fold(self, scores_KC, *others)

    monkeypatch.setattr(LossFold, "fold", noted)
    assert num_gathered(case, "precision=exact", *SETTINGS_OF_CHUNKS[name][0])

    of_loop, of_torch = folded[: len(folded) // 2], folded[len(folded) // 2 :]
    assert len(of_loop) > 5
    assert {scores_QC.dtype for scores_QC in folded} == {torch.float32}
    assert all(map(torch.equal, of_loop, of_torch))


@pytest.mark.parametrize("room", [0, 1])
def test_more_cells_stay_open_in_lists_than_there_is_room_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    """Sums of quarters that differ in their terms are equal: no bound decides. Without room the general path does."""
    case = write_case(tmp_path / "case", monkeypatch, dynamic=True, dimension=8)
    vectors = np.random.default_rng(0).permuted(np.tile([1.0, 1.0, 0.5, 0.5, 0.5, 0.25, 0.25, 0.0], (33, 1)), axis=1)
    for partition, rows in enumerate((33, 30)):
        case.spoil_embeddings("user", partition, slice(None), vectors[:rows])
    monkeypatch.setattr(cpu_lists, "OPEN_PER_QUERY", 1000 * room)

    assert num_gathered(case, "precision=exact", *FILTERED)


@CompiledLoop
def values_of_pairs(rows: Any, width: Any, shifts: Any, of_squares: Any, grid_D: Any, value_P: Any) -> None:
    """Put each first row on its grid, and write its value with the second."""
    for pair in range(value_P.size):
        put_on_grid(rows[0, pair], width, shifts, grid_D)
        value_P[pair] = value_on_grids(grid_D, rows[1, pair], width, shifts, of_squares)


@pytest.mark.parametrize("width", [1, 7, 32, 33, 100, 129, 500])
def test_values_in_lists_are_grid_products(width: int) -> None:
    """Of rows with ties of rounding, whose numbers reach from subnormal ones to the largest, and of zeros."""
    random = np.random.default_rng(width)
    whole = random.integers(-(1 << 24), 1 << 24, (2, 400, width)).astype(np.float64)
    whole *= 2.0 ** -random.integers(0, 30, whole.shape)
    rows = (whole * 2.0 ** random.choice([-173, -150, -24, 0, 103], (2, 400, 1))).astype(np.float32)
    rows[:, ::50] = 0
    shifts, query_PD = cpu_lists.grid_shifts(width), torch.nn.functional.pad(torch.from_numpy(rows[0]), (0, 1))
    for name in ("dot", "squared_l2"):
        comparator = exact.ExactComparator(name)
        value_P = np.empty(400)
        values_of_pairs(rows, width, shifts, comparator.adds_squares, np.empty(width), value_P)

        with loops_used(False):
            expected_P = fast_products.values_of_pairs(comparator, query_PD, torch.from_numpy(rows[1]))
        assert np.array_equal(value_P, expected_P.numpy())


def test_threads_share_a_block_of_lists(case: TinyCase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")

    assert num_gathered(case, *FILTERED) >= 3


def test_without_the_routine_of_torch_the_general_path_serves(case: TinyCase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_counting.blas, "find_sgemm", lambda: None)

    assert not num_gathered(case)


def test_other_bits_than_those_of_products_are_not_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu_counting._agrees.cache_clear()
    other = cpu_counting.product
    monkeypatch.setattr(cpu_counting, "product", lambda q, c: torch.nextafter(other(q, c), torch.tensor(9.0)))
    try:
        assert not cpu_counting.product_is_callable()
    finally:
        cpu_counting._agrees.cache_clear()
