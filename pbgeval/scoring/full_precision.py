"""What a process has told torch about products -> products in the numbers' own type, and its settings back afterwards.

Training loops allow products in TF32 or bfloat16 (`torch.set_float32_matmul_precision("medium")`, `torch.autocast`),
and make tensors of bfloat16, or on a GPU, by default. An evaluation in the same process would inherit these settings:
scores would be off by 1 in 100, and bounds of exact ranks would not hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from typing import Any

import torch
from attrs import frozen

DEVICE_TYPES = ("cpu", "cuda")


@frozen(eq=False)
class CallerSettings:
    """The autocast and the defaults of new tensors that a caller has set; nothing: those that are in force."""

    settings: tuple[Callable[[], AbstractContextManager[object]], ...] = ()

    @classmethod
    def now(cls) -> CallerSettings:
        """Return what is in force."""
        settings: list[Callable[[], AbstractContextManager[object]]] = [
            partial(_default_dtype, torch.get_default_dtype()),
            *(
                partial(torch.autocast, device_type, torch.get_autocast_dtype(device_type))
                for device_type in DEVICE_TYPES
                if torch.is_autocast_enabled(device_type)
            ),
        ]
        if torch.get_default_device().type != "cpu":
            settings.append(partial(torch.device, torch.get_default_device()))
        return cls(tuple(settings))

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Give a caller's own function these settings."""
        with ExitStack() as stack:
            for setting in self.settings:
                stack.enter_context(setting())
            yield


@contextmanager
def full_precision() -> Iterator[CallerSettings]:
    """Multiply float32 in float32 on every device, and make tensors of float32 on the CPU where nothing else is said.

    Torch's settings, `torch.autocast` and the defaults of new tensors come back afterwards.

    Yields:
        The caller's autocast and defaults, for functions of the caller's that are called inside.
    """
    backends = _backends_with_a_precision()
    of_all = "highest"
    of_each = [backend.fp32_precision for backend in backends]
    with suppress(RuntimeError):  # set for one backend alone since: torch refuses to say, and `of_each` does the rest
        of_all = torch.get_float32_matmul_precision()
    caller_settings = CallerSettings.now()
    with ExitStack() as stack:
        stack.enter_context(_default_dtype(torch.float32))
        for device_type in filter(torch.is_autocast_enabled, DEVICE_TYPES):
            stack.enter_context(torch.autocast(device_type, enabled=False))
        if torch.get_default_device().type != "cpu":
            stack.enter_context(torch.device("cpu"))
        try:
            torch.set_float32_matmul_precision("highest")
            yield caller_settings
        finally:
            torch.set_float32_matmul_precision(of_all)
            for backend, precision in zip(backends, of_each, strict=True):
                backend.fp32_precision = "none"  # so that the setting for all operations applies
                if backend.fp32_precision != precision:
                    backend.fp32_precision = precision


def _backends_with_a_precision() -> list[Any]:
    """Return the backends whose products have a precision of their own: none before torch 2.9."""
    backends = (torch.backends.cuda.matmul, getattr(torch.backends.mkldnn, "matmul", None))
    return [backend for backend in backends if hasattr(backend, "fp32_precision")]


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
