"""Exact ranks and all figures made of them have the same digits for any thread, instruction set and kind of loop.

Where metrics.json has changed on purpose, `python -m tests.golden.digests` records them anew.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from pbgeval.scoring import device_exact
from tests.golden.digests import POLICIES, RECORD, digests
from tests.kit.commands import REPOSITORY
from tests.laws.test_exact_kernels_equal_cpu import watched

RECORDED = json.loads(RECORD.read_text(encoding="utf-8"))
MADE = {name: digest for name, digest in RECORDED.items() if name.startswith("made, ")}
# Instruction sets of torch, of MKL and of numpy. MKL takes the nearest that the processor has; torch would crash.
HAS_AVX512 = torch.backends.cpu.get_cpu_capability() == "AVX512"
WHERE_AVX512_IS = (  # elsewhere these are what the processor has, as without them
    {"ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2", "OMP_NUM_THREADS": "2"},
    {"ATEN_CPU_CAPABILITY": "avx512", "MKL_ENABLE_INSTRUCTIONS": "AVX512"},
)
ENVIRONMENTS = (
    {"OMP_NUM_THREADS": "2", "NPY_DISABLE_CPU_FEATURES": "AVX512F AVX512_SKX AVX2 FMA3"},
    {"ATEN_CPU_CAPABILITY": "default", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2"},
    *(WHERE_AVX512_IS if HAS_AVX512 else ()),
)


def found_with(of: str, environment: dict[str, str], loops: str = "as usual") -> dict[str, str]:
    """Return the digests that a process of its own finds."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.golden.digests", of, "--loops", loops],
        env={**os.environ, **environment},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, str] = json.loads(done.stdout)
    return found


def test_the_made_graph_has_the_recorded_digests() -> None:
    """With a thread, as all tests here."""
    assert digests("made") == MADE


# Each kernel of exact ranks counts in some: the interpreter takes seconds for each. Scores of the last are kept.
ON_A_GPU = (
    *(f"made, dot, {policy}, ranks alone" for policy in POLICIES),
    "made, squared_l2, all, ranks alone",
    "made, l2, sampled",
)


@pytest.mark.slow
def test_the_kernels_of_a_gpu_give_the_recorded_digests(kernel_device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_exact, "MIN_SCREENED_CELLS", 0)
    launched = {name: watched(monkeypatch, name) for name in ("_screened", "_decide")}

    assert digests("made", ON_A_GPU, kernel_device) == {name: MADE[name] for name in ON_A_GPU}
    assert all(launched.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("environment", "loops"), [*zip(ENVIRONMENTS, itertools.cycle(["always", "never"]), strict=False)], ids=str
)
def test_threads_instruction_sets_and_compiled_loops_change_no_digit(environment: dict[str, str], loops: str) -> None:
    """A process has another of each: whichever changes a digit shows."""
    assert found_with("made", environment, loops) == MADE


@pytest.mark.slow
@pytest.mark.reference
@pytest.mark.parametrize("environment", ENVIRONMENTS[:3], ids=str)
def test_golden_cases_have_the_recorded_digests(environment: dict[str, str], reference_path: Path) -> None:
    found = found_with(str(reference_path / "golden"), environment)

    assert found == {name: digest for name, digest in RECORDED.items() if name not in MADE}
