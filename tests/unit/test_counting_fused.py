"""The fused kernel against the reference and the general path; without a GPU, by Triton's interpreter."""

from __future__ import annotations

import sys

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pbgeval.ranking import counting, fused
from tests import reference
from tests.examples import examples
from tests.kit.commands import run_program
from tests.kit.graphs import score_grids

slowly = settings(max_examples=examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture])  # interpreted


def vectors(num_rows: int, dimension: int, seed: int) -> torch.Tensor:
    return torch.randn(num_rows, dimension, generator=torch.Generator().manual_seed(seed))


def count_scores(scores_KC, true_Q, row_Q, cells, device):
    """Count a block of given scores: their inner products with unit vectors are the scores themselves."""
    scores_KC = torch.tensor(scores_KC, device=device)
    unit_CC = torch.eye(scores_KC.shape[1], device=device)
    row_Q = torch.tensor(row_Q, dtype=torch.int64, device=device)
    cells = torch.tensor(cells, dtype=torch.int64, device=device).reshape(-1, 2).unbind(1)
    found, cell_score_P = fused.count(
        scores_KC, unit_CC, torch.tensor(true_Q, device=device), row_Q, (cells[0], cells[1])
    )
    assert torch.int64 == found.better_Q.dtype == found.tied_Q.dtype
    return found.better_Q.tolist(), found.tied_Q.tolist(), cell_score_P.tolist()


@slowly
@given(score_grids(max_queries=6, infinite=False), st.data())
def test_counts_are_those_of_sorting_and_cells_are_read_wherever_they_are(fused_device, block, data):
    """Several queries share a row; a cell may be asked for twice."""
    true_K, scores = block
    keys = st.integers(0, len(scores) - 1)
    row_Q = sorted(data.draw(st.lists(keys, min_size=1, max_size=12)))
    true_Q = data.draw(st.lists(st.sampled_from(true_K + scores[0]), min_size=len(row_Q), max_size=len(row_Q)))
    cells = data.draw(st.lists(st.tuples(keys, st.integers(0, len(scores[0]) - 1)), max_size=20))

    better, tied, of_cells = count_scores(scores, true_Q, row_Q, cells, fused_device)

    expected = [reference.counts_by_sorting(true, scores[row]) for row, true in zip(row_Q, true_Q, strict=True)]
    assert list(zip(better, tied, strict=True)) == expected
    assert of_cells == [scores[row][column] for row, column in cells]


def test_a_cell_of_the_next_tile_is_read_there_though_another_row_has_one_here(fused_device):
    """More tiles than runs, so that a run has two."""
    border = fused.TILES.columns
    candidate_CD = torch.arange(1.0, border * (fused.RUNS_PER_PROCESSOR + 1) + 1).unsqueeze(1)
    query_KD, true_Q = torch.tensor([[1.0], [-1.0]]), torch.zeros(2)
    rows, columns = torch.tensor([0, 1, 1, 1]), torch.tensor([border, 0, border - 1, border])
    blocks = (of.to(fused_device) for of in (query_KD, candidate_CD, true_Q, torch.arange(2)))
    _, cell_score_P = fused.count(*blocks, (rows, columns))
    assert cell_score_P.tolist() == [border + 1, -1, -border, -border - 1]


@pytest.mark.parametrize("dimension", [7, 100, 130])
def test_elsewhere_counts_differ_by_candidates_within_the_rounding_bound_only(fused_device, dimension):
    """|fl(q.c) - q.c| <= n u / (1 - n u) * sum|q_i c_i| in any order of summation (Higham 2002, 3.5)."""
    query_KD, candidate_CD = vectors(30, dimension, 3), vectors(150, dimension, 4)
    row_Q, own_Q = torch.arange(30), torch.arange(30)
    true_Q = (query_KD * candidate_CD[:30]).sum(1)
    exact_KC = query_KD.double() @ candidate_CD.double().t()
    rounding = (dimension + 1) * 2.0**-24 / (1 - (dimension + 1) * 2.0**-24)
    bound_KC = rounding * (query_KD.double().abs() @ candidate_CD.double().abs().t())
    gap_KC = exact_KC - true_Q.double().unsqueeze(1)
    general = counting.count(query_KD @ candidate_CD.t(), true_Q).raw

    found, _ = fused.count(*(x.to(fused_device) for x in (query_KD, candidate_CD, true_Q, row_Q)), (row_Q, own_Q))

    surely_Q, possibly_Q = (gap_KC > bound_KC).sum(1), (gap_KC >= -bound_KC).sum(1)
    doubtful = int((possibly_Q - surely_Q).sum())
    assert 30 <= doubtful < 90, "the true entities, and few besides: the bound says something"
    for better_Q, tied_Q in ((found.better_Q.cpu(), found.tied_Q.cpu()), (general.better_Q, general.tied_Q)):
        assert bool((surely_Q <= better_Q).all() & (better_Q + tied_Q <= possibly_Q).all())


@pytest.mark.slow
@pytest.mark.parametrize("dimension", [5, 64, 101])
def test_a_score_depends_on_its_two_vectors_alone(fused_device, dimension):
    """Law 2: alone or among many, in whatever tile, in a pair: the same bits; so identical candidates tie exactly."""
    query_KD, candidate_CD = vectors(50, dimension, 5), vectors(55, dimension, 6)
    twice_CD = torch.cat([candidate_CD, candidate_CD])
    row, column = (x.flatten() for x in torch.meshgrid(torch.arange(50), torch.arange(110), indexing="ij"))
    one_Q = torch.zeros(50)

    def scores(queries, candidates, cells):
        _, cell_score_P = fused.count(
            queries.to(fused_device), candidates.to(fused_device), one_Q[: len(queries)].to(fused_device),
            torch.arange(len(queries), device=fused_device), cells,
        )  # fmt: skip
        return cell_score_P.cpu()

    all_KC = scores(query_KD, twice_CD, (row, column)).view(50, 110)

    assert torch.equal(all_KC[:, :55], all_KC[:, 55:])
    for keys, columns in ((slice(0, 1), slice(0, 1)), (slice(3, 20), slice(41, 42)), (slice(49, 50), slice(5, 60))):
        part_KC = all_KC[keys, columns]
        cells = tuple(x.flatten() for x in torch.meshgrid(*map(torch.arange, part_KC.shape), indexing="ij"))
        found = scores(query_KD[keys].contiguous(), twice_CD[columns].contiguous(), cells)
        assert torch.equal(part_KC.flatten(), found)
    for size in (1, 16, 50):
        paired_Q = fused.paired_scores(query_KD[:size].to(fused_device), twice_CD[40:][:size].to(fused_device))
        assert torch.equal(all_KC[:size, 40:].diagonal(), paired_Q.cpu())


def test_infinite_scores_compare_as_numbers(fused_device):
    query_KD, candidate_CD = torch.tensor([[1e30], [-1e30]]), torch.tensor([[1e30], [-1e30], [0.0]])
    true_Q, row_Q = torch.tensor([torch.inf, -torch.inf]), torch.arange(2)

    found, _ = fused.count(*(x.to(fused_device) for x in (query_KD, candidate_CD, true_Q, row_Q)), (row_Q, row_Q))

    assert (found.better_Q.tolist(), found.tied_Q.tolist()) == ([0, 2], [1, 1])


@pytest.mark.slow
def test_the_self_check_says_what_counts(fused_device):
    assert fused.self_check(torch.device(fused_device)).startswith("triton ")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "reason"),
    [("other bits", "scores of identical vectors differ"), ("no compiler", "Failed to find C compiler.")],
)
def test_where_the_self_check_fails_the_general_path_counts(fused_device, monkeypatch, fault, reason):
    launch = fused._launch

    def wrong(*args, **kwargs):
        if fault == "no compiler":
            raise RuntimeError("Failed to find C compiler.\nSet CC")
        scores_P, *others = launch(*args, **kwargs)
        return scores_P + torch.linspace(0, 1e-4, scores_P.numel(), device=scores_P.device), *others

    monkeypatch.setattr(fused, "_launch", wrong)

    found = fused.self_check(torch.device(fused_device))

    assert (found, fused.has_kernel(torch.device(fused_device))) == (f"general: {reason}", False)


def test_a_gpu_without_triton_counts_on_the_general_path(monkeypatch):
    monkeypatch.setattr(fused, "is_installed", lambda: False)

    assert (
        fused.self_check(torch.device("cuda", 0))
        == "general: triton is required for the fused kernel: pip install 'pbgeval[gpu]'"
    )
    assert fused.self_check(torch.device("cpu")) is None


COMPILE = """
import re
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from pbgeval.ranking.fused import SLOTS, TILES
from pbgeval.ranking.fused_kernel import count_tiles

constants = {"D": 112, "SLOTS": SLOTS, "TILE_ROWS": TILES.rows, "TILE_COLUMNS": TILES.columns,
             "TILE_DEPTH": TILES.depth}
types = {"bounds_ptr": "*i32", "first_cell_ptr": "*i64", "cell_column_ptr": "*i32", "counts_ptr": "*i32",
         "num_rows": "i32", **dict.fromkeys(constants, "constexpr")}
signature = {name: types.get(name, "*fp32") for name in count_tiles.arg_names}
values = {(count_tiles.arg_names.index(name),): value for name, value in constants.items()}
source = ASTSource(count_tiles, signature, values)
options = {"num_warps": TILES.warps, "num_stages": TILES.stages}
ptx = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm["ptx"]
print(len(re.findall(r"fma\\.rn\\.f32", ptx)), len(re.findall(r"\\bw?g?mma\\b", ptx)), "tf32" in ptx)
"""


@pytest.mark.slow
def test_the_kernel_compiles_for_a_gpu_that_is_not_here(tmp_path):
    """To fused multiply-adds in float32, one per thread and step for each of its scores; to no matrix instruction."""
    printed = run_program(sys.executable, "-c", COMPILE, TRITON_INTERPRET="0", TRITON_CACHE_DIR=str(tmp_path))

    per_thread = fused.TILES.rows * fused.TILES.columns * fused.TILES.depth // (32 * fused.TILES.warps)
    assert f"{per_thread} 0 False" == printed.strip()
