"""This machine's matrix kernels -> whether a score depends on its two vectors alone, and a fingerprint.

Law 2: identical candidates must tie exactly whatever the shape of the block and the number of threads. Where they
do not, evaluation goes on with one thread and one fixed block shape, and the report says so.
"""

from __future__ import annotations

import hashlib

import torch
from attrs import frozen
from torch import Tensor

from pbgeval.scoring import product as kernels

DIMENSIONS = (32, 101)
SHAPES = ((1, 1), (1, 40), (3, 17), (16, 107), (50, 100), (64, 129), (130, 300))


@frozen
class KernelReport:
    """What the self-check found."""

    passed: bool
    fingerprint: dict[str, str]


def check_kernels(device: torch.device, dtype: torch.dtype = torch.float32) -> KernelReport:
    """Compare products in `dtype` of many shapes and thread counts, and duplicated candidates within one.

    If they differ, switch this process to one thread and one block shape.
    """
    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = False
    threads = torch.get_num_threads()
    passed = True
    digest = hashlib.sha256()
    try:
        for dimension in DIMENSIONS:
            vectors_ND = _vectors(dimension).to(device, dtype)
            torch.set_num_threads(1)
            reference_NN = kernels.product(vectors_ND[None].repeat(2, 1, 1), vectors_ND[None].repeat(2, 1, 1))[0]
            digest.update(reference_NN.cpu().numpy().tobytes())
            for num_threads in sorted({1, threads}):
                torch.set_num_threads(num_threads)
                passed = passed and _agrees(vectors_ND, reference_NN)
    finally:
        torch.set_num_threads(threads)
    if not passed:
        torch.set_num_threads(1)
        kernels.use_one_block_shape()
    return KernelReport(passed, _fingerprint(device, dtype, digest.hexdigest()[:16]))


def _vectors(dimension: int) -> Tensor:
    """Return 300 fixed vectors; the second half repeats the first, so duplicates lie far apart."""
    generator = torch.Generator().manual_seed(dimension)
    half = torch.randn((150, dimension), generator=generator)
    return torch.cat([half, half])


def _agrees(vectors_ND: Tensor, reference_NN: Tensor) -> bool:
    half = vectors_ND.shape[0] // 2
    if not torch.equal(reference_NN[:, :half], reference_NN[:, half:]):
        return False
    paired = kernels.paired_product(vectors_ND[:37], vectors_ND[:37])
    if not torch.equal(paired, reference_NN.diagonal()[:37]):
        return False
    for rows, columns in SHAPES:
        for batches in (1, 3):
            queries = vectors_ND[None, :rows].repeat(batches, 1, 1)
            candidates = vectors_ND[None, -columns:].repeat(batches, 1, 1)
            scores = kernels.product(queries, candidates)[-1]
            if not torch.equal(scores, reference_NN[:rows, -columns:]):
                return False
    return True


def _fingerprint(device: torch.device, dtype: torch.dtype, digest: str) -> dict[str, str]:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else torch.backends.cpu.get_cpu_capability()
    return {"torch": torch.__version__, "device": name, "dtype": str(dtype), "product_digest": digest}
