"""MKL's vector library must know its processor before two threads ask it at once: see pbgeval/scoring/self_check.py."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from tests.kit.commands import run_program

UNKNOWN = -1
# Reads what the library keeps of the processor: the operand of the first instruction, mov eax, [rip + offset].
PROGRAM = """
import ctypes, sys, torch
function = ctypes.CDLL(sys.argv[1]).mkl_vml_serv_cpu_detect
at = ctypes.cast(function, ctypes.c_void_p).value
code = ctypes.string_at(at, 6)
assert code[:2] == bytes([0x8B, 0x05]), code
kind = ctypes.c_int.from_address(at + 6 + int.from_bytes(code[2:], "little", signed=True))
before = kind.value
"""
A_PRODUCTS_CHECK = """
from pbgeval.scoring.self_check import check_kernels
import pbgeval.scoring.self_check as self_check
before_products = []
report = self_check.KernelReport(self_check.BlockRule.FINE, 1, {}, True)
self_check._check = lambda *_: before_products.append(kind.value) or report
check_kernels(torch.device("cpu"))
print(before, *before_products)
"""


@pytest.mark.slow
def test_one_thread_has_the_kernels_chosen_before_others_ask() -> None:
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    if not torch.backends.mkl.is_available() or not library.exists():
        pytest.skip("torch has no MKL here")

    before, after = map(int, run_program(sys.executable, "-c", PROGRAM + A_PRODUCTS_CHECK, library).split())

    assert (before, after != UNKNOWN) == (UNKNOWN, True)
