"""The scorer of some queries and a device -> the backend that counts them: the one place that decides.

A further backend is a subclass of `TorchBackend` in a file of its own, and a line in each function here.
"""

from __future__ import annotations

import torch

from pbgeval.jit import is_installed
from pbgeval.ranking import cpu_counting
from pbgeval.ranking.cpu_backend import CpuBackend
from pbgeval.ranking.gpu_backend import GpuBackend
from pbgeval.ranking.settings import Kept
from pbgeval.ranking.torch_backend import TorchBackend
from pbgeval.scoring import device_scores
from pbgeval.scoring.scorer import EdgeScorer

Backend = TorchBackend


def backend_for(scorer: EdgeScorer, device: torch.device, dtype: torch.dtype, *, kept: Kept, num_cells: int) -> Backend:
    """Choose who counts.

    Args:
        scorer: of one of the relations; all have one comparator.
        device: where vectors are.
        dtype: of vectors: float64 for exact ranks.
        kept: what is kept of the scores themselves.
        num_cells: the scores that will be counted, about: few of them do not pay for loading a compiled loop.
    """
    has_kernels = device_scores.supports(device)
    if device.type == "cpu" and not has_kernels:
        return CpuBackend.of_scorer(scorer, dtype, kept=kept, num_cells=num_cells)
    backend = GpuBackend if has_kernels else TorchBackend
    return backend(scorer.comparator, scorer.exact_comparator, device, dtype, kept)


def load_compiled(device: torch.device, dtype: torch.dtype, *, with_products: bool) -> None:
    """Load (at first compile) the loops that may count on a device, which the first blocks of scores do else.

    So their memory is known before any is planned. Sampled lists need no loop that also multiplies whole blocks.
    """
    if device.type == "cpu" and is_installed():
        none = torch.empty(0, dtype=torch.int64)
        images = torch.empty(0, dtype=dtype), torch.empty(0, dtype=dtype), none
        cpu_counting.count_scores(torch.empty((0, 0), dtype=dtype), images, none, None, None)
        if with_products and cpu_counting.product_is_callable():
            empty_0D = torch.empty((0, 16), dtype=torch.float32)
            cpu_counting.count(empty_0D, empty_0D, (empty_0D[:, 0], empty_0D[:, 0]), (none, none), None)
