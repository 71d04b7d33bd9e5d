"""What a process has told torch about products -> products in the numbers' own type, and its settings back afterwards.

Training loops allow products in TF32 or bfloat16 (`torch.set_float32_matmul_precision("medium")`, `torch.autocast`).
Whoever evaluates in the same process would inherit it: scores off by 1 in 100, and bounds of certified ranks that do
not hold.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

DEVICE_TYPES = ("cpu", "cuda")


@contextmanager
def full_precision(*, of_autocast: bool = True) -> Iterator[None]:
    """Multiply float32 in float32, on every device and in all threads; leave torch's settings as they were.

    Args:
        of_autocast: whether a caller's `torch.autocast` is suspended too. It is not where the caller's own functions
            score, whose types may need it.
    """
    of_cpu: Any = torch.backends.mkldnn  # whose attributes torch makes when it is imported
    backends = (torch.backends.cuda.matmul, of_cpu.matmul)
    of_all, of_each = _precision_of_all(), [backend.fp32_precision for backend in backends]
    with ExitStack() as suspended:
        for device_type in DEVICE_TYPES if of_autocast else ():
            if torch.is_autocast_enabled(device_type):
                suspended.enter_context(torch.autocast(device_type, enabled=False))
        try:
            torch.set_float32_matmul_precision("highest")
            yield
        finally:
            torch.set_float32_matmul_precision(of_all)
            for backend, before in zip(backends, of_each, strict=True):
                _put_back(backend, before)


def _precision_of_all() -> str:
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:  # set for one backend alone since: torch refuses to say, and `_put_back` does the rest
        return "highest"


def _put_back(backend: Any, before: str) -> None:  # noqa: ANN401 - a module of torch with attributes of its own
    backend.fp32_precision = "none"  # as what is set for all operations says
    if backend.fp32_precision != before:
        backend.fp32_precision = before
