"""The compiled loop over blocks within whole evaluations: every figure of the general path, whatever is asked of it."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest

from pbgeval.ranking import auc_sampling, blocks, certified, kernels, ranking_pass
from pbgeval.ranking.block_threads import BlockThreads
from tests.examples import crossed
from tests.kit.case import TinyCase
from tests.kit.commands import evaluated, flags, run_command

FILTERED = ("filter_paths=edges",)  # known answers do not compete
SETTINGS = {
    "raw": (),
    "filtered": FILTERED,
    "distances": ("comparator=squared_l2", *FILTERED),
    "cosines": ("comparator=cos",),
    "restricted": ("restrict_entities=" + ",".join(f"user:{at % 2}:{at}" for at in range(3, 30, 2)), *FILTERED),
    "by relation": ("train_paths=edges", "type_constraint=observed"),
    "two operators": ("max_memory=2GB", *FILTERED),
}


CERTIFIED_SETTINGS = [("raw", 1.0), ("filtered", 1.0), ("filtered", 0.2), ("filtered", None), ("by relation", 1.0)]


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TinyCase:
    monkeypatch.setattr(auc_sampling, "EXACT_CELLS", 0)  # else its scores are all wanted
    monkeypatch.setattr(auc_sampling, "SAMPLED_CELLS", 400)
    monkeypatch.setattr(kernels, "QUERIES_PER_BLOCK", 7)
    case = TinyCase.write(tmp_path / "case", partition_sizes=(33, 30), edges_per_bucket=12)
    case.spoil_embeddings("user", 0, slice(3, 30), 0.25)  # twins
    return case


def count_at_a_time(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "BYTES_PER_BLOCK", 1)  # as few candidates as there may be
    for module in (kernels, ranking_pass):
        monkeypatch.setattr(module, "COLUMNS_AT_A_TIME", width)


def num_calls_of(case: TinyCase, *overrides: str) -> int:
    """Compare what both ways find, and return how often the loop was called."""
    with (
        mock.patch.object(blocks, "JIT_MIN_CELLS", 0),
        mock.patch.object(blocks, "count", side_effect=blocks.count) as count,
    ):
        found = evaluated(case, *overrides, output="compiled")
    with mock.patch.object(blocks, "is_installed", return_value=False), mock.patch.object(blocks, "count", None):
        assert found == evaluated(case, *overrides, output="general")  # a call of `count` is a fault
    return count.call_count


@pytest.mark.one_case
@pytest.mark.parametrize(
    ("settings", "num_threads", "width", "candidates"),
    crossed(list(SETTINGS), [(1, 576), (2, 7)], ["all", "partition"], quick=4),
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
    crossed(CERTIFIED_SETTINGS, ["dot", "cos", "l2", "squared_l2"], ["all", "partition"], quick=5),
)
def test_certified_ranks_are_those_of_the_general_path(
    case: TinyCase,
    monkeypatch: pytest.MonkeyPatch,
    candidates: str,
    comparator: str,
    settings: str,
    in_bfloat16: float | None,
) -> None:
    """A product in bfloat16 may leave any share of the cells open, some, or is not tried."""
    monkeypatch.setattr(blocks, "multiplies_bfloat16", lambda: in_bfloat16 is not None)
    monkeypatch.setattr(certified, "MAX_OPEN_SHARE", in_bfloat16 or 0.0)
    count_at_a_time(7 if settings == "filtered" else 576, monkeypatch)
    overrides = (f"candidates={candidates}", "precision=certified", f"comparator={comparator}", *SETTINGS[settings])

    assert num_calls_of(case, *overrides)


@pytest.mark.one_case
@pytest.mark.parametrize("candidates", ["all", "partition"])
def test_more_open_cells_than_there_is_room_for_are_decided_in_halves(
    case: TinyCase, monkeypatch: pytest.MonkeyPatch, candidates: str
) -> None:
    monkeypatch.setattr(certified, "MAX_OPEN", 37)
    case.spoil_embeddings("user", 1, slice(0, 30), 0.25)  # nearly all are twins
    overrides = (f"candidates={candidates}", "precision=certified", *FILTERED)

    assert num_calls_of(case, *overrides) > 50


@pytest.mark.one_case
@pytest.mark.parametrize("candidates", ["all", "partition"])
def test_a_bias_beside_a_root_is_left_to_float64(case: TinyCase, candidates: str) -> None:
    overrides = (f"candidates={candidates}", "precision=certified", "comparator=l2", "bias=True", *FILTERED)

    assert num_calls_of(case, *overrides) == 0


@pytest.mark.parametrize("candidates", ["all", "partition"])
@pytest.mark.parametrize("largest", [1e17, 1e30])
def test_where_scores_may_overflow_the_general_path_counts(
    case: TinyCase, monkeypatch: pytest.MonkeyPatch, candidates: str, largest: float
) -> None:
    """A score that is no number is named alike; infinite ones compare as numbers."""
    case.spoil_embeddings("user", 1, slice(2, 9), largest)
    lines = []
    for is_compiled in (True, False):
        with monkeypatch.context() as patch:
            patch.setattr(blocks, "JIT_MIN_CELLS", 0)
            patch.setattr(blocks, "is_installed", lambda is_compiled=is_compiled: is_compiled)
            done = run_command(case, "--workers", "1", "--quiet", *flags((f"candidates={candidates}",)))
            lines.append((done.status, done.err))

    assert lines[0] == lines[1]


@pytest.mark.one_case
@pytest.mark.parametrize("asked", ["save_topk=3", "metrics=auc"])
def test_who_wants_all_scores_gets_them(case: TinyCase, monkeypatch: pytest.MonkeyPatch, asked: str) -> None:
    monkeypatch.setattr(auc_sampling, "EXACT_CELLS", 1 << 20)

    assert num_calls_of(case, "candidates=all", asked) == 0


def test_few_blocks_of_queries_leave_no_thread_idle(case: TinyCase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "QUERIES_PER_BLOCK", 1 << 20)
    monkeypatch.setattr(ranking_pass, "COLUMNS_AT_A_TIME", 4)
    widths = []
    width = ranking_pass._width
    monkeypatch.setattr(ranking_pass, "_width", lambda *args: widths.append(width(*args)) or widths[-1])
    monkeypatch.setattr(BlockThreads, "of_device", classmethod(lambda cls, *_: cls(2)))

    num_calls = num_calls_of(case, "candidates=all")
    widths = [of_loop for of_loop in widths if of_loop != kernels.CANDIDATES_PER_BLOCK]
    assert widths
    assert max(widths) <= 12  # of 63 candidates
    assert num_calls > 4 * len(widths)
