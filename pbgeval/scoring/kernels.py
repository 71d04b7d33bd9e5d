"""How Triton compiles the package's kernels.

Imported by the modules of kernels alone: Triton decides when it sees a kernel whether it compiles or interprets it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import triton


def kernel(*unaligned: str) -> Callable[[Callable[..., None]], Any]:
    """Compile a kernel once for all numbers; Triton would do it again for 1 and for those that 16 divides.

    Args:
        unaligned: names of tensors that may begin anywhere in memory: it is not compiled again for these either.
    """

    def compiled(function: Callable[..., None]) -> Any:  # noqa: ANN401 - Triton has no types
        numbers = [
            name
            for name, parameter in inspect.signature(function).parameters.items()
            if not name.endswith("_ptr") and parameter.annotation != "tl.constexpr"
        ]
        return triton.jit(function, do_not_specialize=numbers, do_not_specialize_on_alignment=unaligned)

    return compiled
