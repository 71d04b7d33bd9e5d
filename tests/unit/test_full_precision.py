"""A training loop's settings of products reach neither scores nor bounds, and are the loop's again afterwards."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest
import torch

from pbgeval.scoring.full_precision import full_precision

SETTINGS: dict[str, Callable[[], None]] = {
    "nothing": lambda: None,
    "medium": lambda: torch.set_float32_matmul_precision("medium"),
    "high": lambda: torch.set_float32_matmul_precision("high"),
    "TF32 on a GPU": lambda: setattr(torch.backends.cuda.matmul, "allow_tf32", True),
}
# torch 2.9 and later have a precision for each backend.
BACKENDS = (
    [torch.backends.cuda.matmul, torch.backends.mkldnn.matmul] if hasattr(torch.backends, "fp32_precision") else []
)
if BACKENDS:
    SETTINGS |= {
        "TF32 on a GPU, by its backend": lambda: setattr(torch.backends.cuda.matmul, "fp32_precision", "tf32"),
        "bfloat16 on a CPU": lambda: setattr(torch.backends.mkldnn.matmul, "fp32_precision", "bf16"),
        "TF32 for all operations": lambda: setattr(torch.backends, "fp32_precision", "tf32"),
    }


@pytest.fixture(autouse=True)
def torch_as_it_was() -> Iterator[None]:
    yield
    if BACKENDS:
        torch.backends.fp32_precision = "none"
    torch.set_float32_matmul_precision("highest")
    for backend in BACKENDS:
        backend.fp32_precision = "none"


def settings_of_torch() -> list[str]:
    """What each getter says, or that it refuses to."""

    def said(getter: Callable[[], object]) -> str:
        try:
            return str(getter())
        except RuntimeError as error:
            return str(error)

    return [
        said(torch.get_float32_matmul_precision),
        said(lambda: torch.backends.cuda.matmul.allow_tf32),
        *(said(lambda backend=backend: backend.fp32_precision) for backend in BACKENDS),  # type: ignore[misc]
        *([said(lambda: torch.backends.fp32_precision)] if BACKENDS else []),
    ]


@pytest.mark.parametrize("setting", SETTINGS)
def test_products_are_in_float32_and_settings_come_back_after_an_error_too(setting: str) -> None:
    x_ND = torch.randn((96, 64), generator=torch.Generator().manual_seed(0))
    expected = torch.bmm(x_ND[None], x_ND.T[None])
    SETTINGS[setting]()
    before = settings_of_torch()

    with contextlib.suppress(ZeroDivisionError), full_precision():
        found = torch.bmm(x_ND[None], x_ND.T[None])
        inside = settings_of_torch()
        raise ZeroDivisionError

    assert torch.equal(expected, found)
    expected_inside = ["highest", "False", *("ieee" for _ in BACKENDS)]
    assert (expected_inside, before) == (inside[: len(expected_inside)], settings_of_torch())


def test_autocast_is_suspended_unless_it_is_asked_for() -> None:
    x_ND = torch.ones((4, 4))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with full_precision():
            suspended = x_ND @ x_ND
        with full_precision() as caller_settings, caller_settings.in_force():
            left = x_ND @ x_ND
        after = x_ND @ x_ND

    assert [torch.float32, torch.bfloat16, torch.bfloat16] == [x.dtype for x in (suspended, left, after)]
