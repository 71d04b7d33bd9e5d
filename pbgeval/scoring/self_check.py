"""This machine's matrix kernels -> the cheapest rule by which a score depends on its two vectors alone.

Law 2: identical candidates must tie exactly whatever the shape of the block and the number of threads. Kernels differ
by machine, so rules are tried from the cheapest on; all give the bits of one thread and one block shape, which is the
last one, and slow.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator

import torch
from attrs import evolve, frozen
from torch import Tensor

from pbgeval.errors import LowPrecisionError
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


@frozen
class KernelReport:
    """The result of the self-check."""

    rule: BlockRule
    num_threads: int  # as many as there were, or as few as the rule needs
    fingerprint: dict[str, str]
    passed: bool  # whether a rule holds for as many threads as there were


def check_kernels(device: torch.device, dtype: torch.dtype = torch.float32) -> KernelReport:
    """Find and use the cheapest rule that holds for products in `dtype`.

    From then on this process computes by the rule, with the number of threads that it holds for. A process checks a
    device, type and number of threads once.

    Raises:
        LowPrecisionError: products are those of a lower precision, whatever torch is told.
    """
    # Exponentials, logarithms and roots come from MKL's vector library on a CPU. When it is first called it stores the
    # kind of processor twice, in two numberings; a thread that reads in between takes kernels of the lowest accuracy
    # (relative errors up to 1.5e-4). So one thread calls it before others may. 16 numbers are never shared.
    torch.linspace(-1.0, 0.0, 16).exp_()
    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = False
    report = _check(device, dtype, torch.get_num_threads())
    use_block_rule(report.rule, device, dtype)
    torch.set_num_threads(report.num_threads)
    return evolve(report, fingerprint=dict(report.fingerprint))


@functools.cache
def _check(device: torch.device, dtype: torch.dtype, threads: int) -> KernelReport:
    digest = hashlib.sha256()
    samples = [_Sample.draw(dimension, device, dtype) for dimension in DIMENSIONS]
    for sample in samples:
        sample.check_precision()
        digest.update(sample.expected_NN[: SHAPES[-1][0], : SHAPES[-1][1]].cpu().numpy().tobytes())
    # All threads, then powers of two, whose shares are even, down to one.
    powers = reversed(range((threads - 1).bit_length() if device.type == "cpu" else 0))
    counts = [threads, *(1 << power for power in powers)]
    rule, num_threads = next(
        ((rule, fewer) for fewer in counts for rule in CHEAPER_RULES if _holds(rule, samples, fewer)),
        (BlockRule.ONE_SHAPE, counts[-1]),
    )
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else torch.backends.cpu.get_cpu_capability()
    fingerprint = {
        "torch": torch.__version__,
        "device": name,
        "dtype": str(dtype),
        "product_digest": digest.hexdigest()[:16],
    }
    return KernelReport(
        rule, num_threads, fingerprint, passed=num_threads == threads and rule is not BlockRule.ONE_SHAPE
    )


@frozen(eq=False)
class _Sample:
    """Fixed vectors of one length, and their products by the rule that always holds."""

    vectors_ND: Tensor
    expected_NN: Tensor

    @classmethod
    def draw(cls, dimension: int, device: torch.device, dtype: torch.dtype) -> _Sample:
        shapes = SHAPES + LARGE_SHAPES if dimension == LARGE_DIMENSION else SHAPES
        rows, columns = (max(sizes) for sizes in zip(*shapes, strict=True))
        generator = torch.Generator().manual_seed(dimension)
        vectors_ND = torch.randn((columns, dimension), generator=generator).to(device, dtype)
        torch.set_num_threads(1)
        use_block_rule(BlockRule.ONE_SHAPE, device, dtype)
        return cls(vectors_ND, product(vectors_ND[None, :rows], vectors_ND[None])[0])

    def check_precision(self) -> None:
        """Compare some products with those in float64.

        Raises:
            LowPrecisionError: they are off by more than roundings of their type.
        """
        rows, columns = SHAPES[-1]
        found_KC = self.expected_NN[:rows, :columns].double()
        vectors_ND = self.vectors_ND.double()
        exact_KC = vectors_ND[:rows] @ vectors_ND[:columns].T
        magnitude_KC = vectors_ND[:rows].abs() @ vectors_ND[:columns].abs().T
        # Any order of additions stays below it, in float64 too, where both sides round.
        bound_KC = magnitude_KC * (4 * vectors_ND.shape[1] * torch.finfo(self.vectors_ND.dtype).eps)
        if bool(((found_KC - exact_KC).abs() > bound_KC).any()):
            raise LowPrecisionError(
                f"products on {self.vectors_ND.device}: expected those of {self.vectors_ND.dtype}, got some that are "
                "off by more than its roundings; unset what tells a library to multiply in lower precision "
                "(ONEDNN_DEFAULT_FPMATH_MODE, NVIDIA_TF32_OVERRIDE)"
            )

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
    use_block_rule(rule, vectors_ND.device, vectors_ND.dtype)
    for num_threads in sorted({1, threads}):
        torch.set_num_threads(num_threads)
        if not all(
            torch.equal(found, expected) for sample in samples for found, expected in sample.compared(num_threads)
        ):
            return False
    return True
