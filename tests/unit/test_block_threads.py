"""Threads that take blocks: what they do is done in order, and torch is told in each what a block needs."""

from __future__ import annotations

import pytest
import torch

from pbgeval.ranking.block_threads import BlockThreads


def test_a_gpu_gets_its_work_from_one_thread_and_a_cpu_from_at_least_one() -> None:
    devices = (("cuda", 9), ("cpu", 9), ("cpu", 0))

    assert [BlockThreads.of_device(torch.device(name), most).num_threads for name, most in devices] == [1, 1, 1]


def test_results_are_in_order_whichever_thread_made_them() -> None:
    assert BlockThreads(3).map(lambda number: number * number, range(20)) == [number * number for number in range(20)]


def test_the_first_failing_item_in_order_is_told_of() -> None:
    def fails_late(number: int) -> int:
        if number in (4, 11):
            raise ValueError(f"item {number}")
        return number

    with pytest.raises(ValueError, match="item 4"):
        BlockThreads(3).map(fails_late, range(20))


def test_threads_multiply_alone_and_keep_no_gradients_of_a_model_in_training() -> None:
    embeddings_ND = torch.nn.Parameter(torch.ones(4, 3))
    before = torch.get_num_threads()
    with torch.no_grad():
        found = BlockThreads(2).map(
            lambda row: (torch.get_num_threads(), (2 * embeddings_ND[row]).numpy().tolist()), range(4)
        )

    assert (found, torch.get_num_threads(), torch.is_grad_enabled()) == ([(1, [2.0, 2.0, 2.0])] * 4, before, True)
