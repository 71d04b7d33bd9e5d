"""This machine's kernels -> the cheapest rule by which a score depends on its two vectors alone.

Law 2: identical candidates must tie exactly whatever the shape of the block and the number of threads. A CPU's
matrix kernels differ by machine, so rules are tried from the cheapest on; all give the bits of one thread and one block
shape, which is the last one, and slow. On a GPU a score is defined, and two kernels that compute it are compared.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum

import torch
from attrs import evolve, frozen
from torch import Tensor

from pbgeval.errors import LaunchError, LowPrecisionError
from pbgeval.scoring import device_exact, device_scores
from pbgeval.scoring.product import BlockRule, paired_product, product, use_block_rule

DIMENSIONS = (16, 101, 257)  # the last is longer than what kernels add up in one go, by as little as any
LARGE_DIMENSION = 16
SHAPES = ((1, 1), (1, 40), (3, 17), (16, 107), (50, 100), (64, 129), (130, 300))
# Kernels deal tiles of columns out to threads: what is left over for the last ones is the shape that differs.
LARGE_SHAPES = (
    *((192, columns) for columns in range(384, 2113, 192)),
    *((384, 1152), (96, 960), (576, 480), (768, 48), (500, 1000)),
)
LARGE_SHAPES_OF_ONE_THREAD = ((192, 1536), (768, 48), (500, 1000))
NUM_PRODUCTS = (1, 2, 3)
CHEAPER_RULES = [rule for rule in BlockRule if rule is not BlockRule.ONE_SHAPE]  # this one is the last resort


class DeviceRule(Enum):
    """How a GPU's kernel of tiles multiplies; the value names it in reports."""

    DOT = "chains of fma"
    LOOP = "chains of fma, spelled out"  # slower: Triton's dot has other bits there


@frozen
class KernelReport:
    """The result of the self-check."""

    rule: BlockRule | DeviceRule
    num_threads: int  # as many as there were, or as few as the rule needs
    fingerprint: dict[str, str]
    passed: bool  # whether a rule holds for as many threads as there were


def check_kernels(device: torch.device, dtype: torch.dtype = torch.float32, *, exact: bool = False) -> KernelReport:
    """Find and use the cheapest rule that holds for products in `dtype`.

    From then on this process computes by the rule, with the number of threads that it holds for. A process checks a
    device, type and number of threads once.

    Args:
        device: that computes.
        dtype: of the products.
        exact: whether ranks are exact, so that a GPU screens candidates in float16.

    Raises:
        LaunchError: Triton is not installed, or makes no kernels that agree, for a GPU.
        LowPrecisionError: products are those of a lower precision, whatever torch is told.
    """
    # Exponentials, logarithms and roots come from MKL's vector library on a CPU. When it is first called it stores the
    # kind of processor twice, in two numberings; a thread that reads in between takes kernels of the lowest accuracy
    # (relative errors up to 1.5e-4). So one thread calls it before others may. 16 numbers are never shared.
    torch.linspace(-1.0, 0.0, 16).exp_()
    if device_scores.supports(device):
        report = _check_device(device, dtype)
        if exact:
            screens = _screens(device)
            fingerprint = report.fingerprint | {"screen": "float16" if screens else "none"}
            report = evolve(report, fingerprint=fingerprint, passed=report.passed and screens)
    else:
        report = _check(dtype, torch.get_num_threads())
        assert isinstance(report.rule, BlockRule), "of a CPU"
        use_block_rule(report.rule, dtype)
        torch.set_num_threads(report.num_threads)
    return evolve(report, fingerprint=dict(report.fingerprint))


@functools.cache
def _check(dtype: torch.dtype, threads: int) -> KernelReport:
    digest = hashlib.sha256()
    samples = [_Sample.draw(dimension, dtype) for dimension in DIMENSIONS]
    rows, columns = SHAPES[-1]
    for sample in samples:
        check_precision(sample.vectors_ND, sample.expected_NN[:rows, :columns])
        digest.update(sample.expected_NN[:rows, :columns].numpy().tobytes())
    # All threads, then powers of two, whose shares are even, down to one.
    powers = reversed(range((threads - 1).bit_length()))
    counts = [threads, *(1 << power for power in powers)]
    rule, num_threads = next(
        ((rule, fewer) for fewer in counts for rule in CHEAPER_RULES if _holds(rule, samples, fewer)),
        (BlockRule.ONE_SHAPE, counts[-1]),
    )
    fingerprint = {
        "torch": torch.__version__,
        "device": torch.backends.cpu.get_cpu_capability(),
        "dtype": str(dtype),
        "product_digest": digest.hexdigest()[:16],
    }
    return KernelReport(
        rule, num_threads, fingerprint, passed=num_threads == threads and rule is not BlockRule.ONE_SHAPE
    )


def _normal(num_rows: int, dimension: int, dtype: torch.dtype) -> Tensor:
    return torch.randn((num_rows, dimension), generator=torch.Generator().manual_seed(dimension)).to(dtype)


def check_precision(vectors_ND: Tensor, found_KC: Tensor) -> None:
    """Compare products (K, C) of the first vectors with the first vectors with those in float64.

    Raises:
        LowPrecisionError: they are off by more than roundings of their type.
    """
    rows, columns = found_KC.shape
    x_ND = vectors_ND.double().cpu()
    exact_KC = x_ND[:rows] @ x_ND[:columns].T
    magnitude_KC = x_ND[:rows].abs() @ x_ND[:columns].abs().T
    # Any order of additions stays below it, in float64 too, where both sides round.
    bound_KC = magnitude_KC * (4 * vectors_ND.shape[1] * torch.finfo(vectors_ND.dtype).eps)
    if bool(((found_KC.double().cpu() - exact_KC).abs() > bound_KC).any()):
        raise LowPrecisionError(
            f"products on {vectors_ND.device}: expected those of {vectors_ND.dtype}, got some that are "
            "off by more than its roundings; unset what tells a library to multiply in lower precision "
            "(ONEDNN_DEFAULT_FPMATH_MODE, NVIDIA_TF32_OVERRIDE)"
        )


@frozen(eq=False)
class _Sample:
    """Fixed vectors of one length, and their products by the rule that always holds."""

    vectors_ND: Tensor
    expected_NN: Tensor

    @classmethod
    def draw(cls, dimension: int, dtype: torch.dtype) -> _Sample:
        shapes = SHAPES + LARGE_SHAPES if dimension == LARGE_DIMENSION else SHAPES
        rows, columns = (max(sizes) for sizes in zip(*shapes, strict=True))
        vectors_ND = _normal(columns, dimension, dtype)
        torch.set_num_threads(1)
        use_block_rule(BlockRule.ONE_SHAPE, dtype)
        return cls(vectors_ND, product(vectors_ND[None, :rows], vectors_ND[None])[0])

    def compared(self, num_threads: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield products of many shapes, each with what is expected."""
        vectors_ND = self.vectors_ND
        yield paired_product(vectors_ND[:37], vectors_ND[:37]), self.expected_NN.diagonal()[:37]
        large = LARGE_SHAPES if num_threads > 1 else LARGE_SHAPES_OF_ONE_THREAD
        for rows, columns in SHAPES + (large if vectors_ND.shape[1] == LARGE_DIMENSION else ()):
            # The columns of a block lie elsewhere in it than in what is expected: no cell may depend on its place.
            place = slice(vectors_ND.shape[0] - columns, None)
            for num_products in NUM_PRODUCTS:
                queries = vectors_ND[None, :rows].expand(num_products, -1, -1).contiguous()
                candidates = vectors_ND[None, place].expand(num_products, -1, -1).contiguous()
                yield product(queries, candidates)[-1], self.expected_NN[:rows, place]


def _holds(rule: BlockRule, samples: list[_Sample], threads: int) -> bool:
    vectors_ND = samples[0].vectors_ND
    use_block_rule(rule, vectors_ND.dtype)
    for num_threads in sorted({1, threads}):
        torch.set_num_threads(num_threads)
        if not all(
            torch.equal(found, expected) for sample in samples for found, expected in sample.compared(num_threads)
        ):
            return False
    return True


# The same of a GPU: tiles, of any place in a block, against the kernel of pairs.

DEVICE_DIMENSIONS = DIMENSIONS
DEVICE_SHAPES = ((1, 1), (1, 40), (3, 17), (130, 300))  # more than a tile each way


@functools.cache
def _screens(device: torch.device) -> bool:
    with _errors_of_triton(device):
        return device_exact.check_screen(device)


@contextmanager
def _errors_of_triton(device: torch.device) -> Iterator[None]:
    try:
        yield
    except (RuntimeError, OSError) as error:  # such as no compiler for the code that starts a kernel
        reason = str(error).partition("\n")[0]
        raise LaunchError(f"device {device}: triton cannot run its kernels: {reason}; or use device cpu") from error


@functools.cache
def _check_device(device: torch.device, dtype: torch.dtype) -> KernelReport:
    digest = hashlib.sha256()
    samples = []
    with _errors_of_triton(device):
        triton = device_scores.version()
        for dimension in DEVICE_DIMENSIONS:
            vectors_ND = _normal(max(DEVICE_SHAPES[-1]), dimension, dtype).to(device)
            samples.append((vectors_ND, _paired_scores(vectors_ND, DEVICE_SHAPES[-1])))
        agree = _tiles_agree(samples)
        if not agree and device_scores.multiplies_by_dot(device, dtype):
            device_scores.multiply_by_loop(device)
            agree = _tiles_agree(samples)
    if not agree:
        raise LaunchError(f"device {device}: kernels of triton {triton} give one pair several scores; use device cpu")
    for vectors_ND, expected_KC in samples:
        check_precision(vectors_ND, expected_KC)
        check_precision(vectors_ND, vectors_ND @ vectors_ND.T)  # of exact ranks
        digest.update(expected_KC.cpu().numpy().tobytes())
    by_dot = device_scores.multiplies_by_dot(device, dtype)
    return KernelReport(
        DeviceRule.DOT if by_dot else DeviceRule.LOOP,
        torch.get_num_threads(),
        {
            "torch": torch.__version__,
            "triton": triton,
            "device": torch.cuda.get_device_name(device),
            "dtype": str(dtype),
            "product_digest": digest.hexdigest()[:16],
        },
        passed=by_dot or dtype is not torch.float32,
    )


def _paired_scores(vectors_ND: Tensor, shape: tuple[int, int]) -> Tensor:
    rows, columns = (torch.arange(size, device=vectors_ND.device) for size in shape)
    row_P, column_P = rows.repeat_interleave(shape[1]), columns.repeat(shape[0])
    return device_scores.pairs(vectors_ND, row_P, vectors_ND, column_P).view(shape)


def _tiles_agree(samples: list[tuple[Tensor, Tensor]]) -> bool:
    """Tell whether tiles, stored and counted, have the bits of pairs."""
    for vectors_ND, expected_KC in samples:
        for rows, columns in DEVICE_SHAPES:
            place = slice(DEVICE_SHAPES[-1][1] - columns, DEVICE_SHAPES[-1][1])
            for num_blocks in NUM_PRODUCTS:
                query_BQD, candidate_BCD = (
                    torch.cat([vectors_ND.roll(1, 0)[:of].expand(num_blocks - 1, -1, -1), x_ND[None]])
                    for of, x_ND in ((rows, vectors_ND[:rows]), (columns, vectors_ND[place]))
                )
                if not torch.equal(device_scores.scores(query_BQD, candidate_BCD)[-1], expected_KC[:rows, place]):
                    return False
        every_K = torch.arange(expected_KC.shape[0], device=vectors_ND.device)
        true_K = expected_KC.diagonal()
        none_C = torch.zeros(expected_KC.shape[1], dtype=torch.int64, device=vectors_ND.device)
        columns_of = device_scores.Columns.from_rows(vectors_ND, none_C)
        targets = device_scores.Targets(every_K, true_K, true_K, every_K + 1, every_K)
        better_K, tied_K = device_scores.count(vectors_ND, columns_of, targets)
        is_better_KC, ties_KC = expected_KC > true_K[:, None], expected_KC == true_K[:, None]
        expected = is_better_KC.sum(1), ties_KC.sum(1) - 1  # itself does not compete
        if not all(map(torch.equal, (better_K.long(), tied_K.long()), expected)):
            return False
    return True
