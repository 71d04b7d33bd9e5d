"""Every variant of a kernel that ships, compiled for a GPU that is not here (compute capability 9.0)."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from pbgeval.scoring.device_scores import ALIGNMENT
from tests.compiled_kernels import exact_variants, small_variants, sum_variants, variants
from tests.kit.commands import REPOSITORY, run_program

REGISTERS_OF_A_PROCESSOR = 1 << 16
MAX_REGISTERS = {
    **dict.fromkeys(variants(), 255),
    **dict.fromkeys(("score_tiles, float32", "count_tiles, float32"), 112),
    **{f"{name}, {of}": 40 for name in ("score_pairs", "compare_pairs") for of in ("float32", "float64")},
    **dict.fromkeys(small_variants(), 144),
    **{name: 64 for name in sum_variants() if "pairs" in name},
}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What each variant has become, compiled where Triton does not interpret."""
    cache = str(tmp_path_factory.mktemp("cache"))
    printed = run_program(sys.executable, "-m", "tests.compiled_kernels", TRITON_INTERPRET="0", TRITON_CACHE_DIR=cache)
    return dict(json.loads(printed))


@pytest.mark.parametrize("name", variants())
def test_a_kernel_keeps_to_its_registers(found: dict[str, dict[str, Any]], name: str) -> None:
    of = found[name]
    assert (of["stack_bytes"], of["spills"]) == (0, 0)
    assert of["registers"] <= min(MAX_REGISTERS[name], REGISTERS_OF_A_PROCESSOR // of["threads"])


PRODUCTS = variants().keys() - exact_variants().keys() - small_variants().keys() - sum_variants().keys()


@pytest.mark.parametrize("name", sorted(PRODUCTS))
def test_a_kernel_is_a_chain_of_fused_multiply_adds(found: dict[str, dict[str, Any]], name: str) -> None:
    """Law 2: no tensor core, no product and sum apart, nothing flushed to zero; one fma per cell and column."""
    of = found[name]
    columns_in_a_step = ALIGNMENT if name.endswith("float32") else (16 if "_pairs" in name else 1)
    multiply_add = "DFMA" if "float64" in name else "FFMA"
    assert (of["matrix_instructions"], of["unfused"]) == (0, [])
    assert of["fma"] == of["in_loop"][multiply_add] == of["cells_per_thread"] * columns_in_a_step


@pytest.mark.parametrize("name", sum_variants())
def test_no_steps_of_other_sums_are_fused(found: dict[str, dict[str, Any]], name: str) -> None:
    """Each difference, square, root and sum is rounded by itself, and nothing is flushed to zero."""
    of = found[name]
    steps = {"add", "sub"} | ({"mul"} if "modulus" in name else set())
    assert (of["matrix_instructions"], of["fma"]) == (0, 0)
    assert of["unfused"] == sorted(f"{step}.rn.f{64 if 'float64' in name else 32}" for step in steps)


@pytest.mark.parametrize("name", ["score_tiles, float32", "count_tiles, float32"])
def test_tiles_are_read_from_shared_memory_in_full_width(found: dict[str, dict[str, Any]], name: str) -> None:
    """Candidates are transposed: else all lanes of a warp read the same banks, eight times slower."""
    of = found[name]["in_loop"]
    assert not of.get("LDS")
    assert not of.get("LDS.64")
    assert 0 < of["LDS.128"] <= of["FFMA"] / 10
    assert of["LDGSTS.128"] > 0
    assert not of.get("LDGSTS")
    assert 2 * found[name]["shared_bytes"] <= 227 << 10


def test_kernels_of_draws_need_few_registers_and_are_compiled_once() -> None:
    code = "import json; from tests.compiled_kernels import compiled_draws; print(json.dumps(compiled_draws()))"

    found = json.loads(run_program(sys.executable, "-c", code, TRITON_INTERPRET="0"))

    assert {*found} == {"write_words", "scale_words"}
    for of in found.values():
        assert of["registers"] <= 40
        assert (of["stack_bytes"], of["variants"]) == (0, 1)


def test_pairs_are_compiled_once_wherever_they_begin() -> None:
    """Compiling takes about a second, in the middle of a run; `column_ptr` begins anywhere."""
    code = "from tests.compiled_kernels import exact_variants, variants_of_pairs; print(variants_of_pairs())"

    assert run_program(sys.executable, "-c", code, TRITON_INTERPRET="0").strip() == "1"


@pytest.mark.parametrize("name", exact_variants())
def test_exact_ranks_are_multiplied_by_tensor_cores(found: dict[str, dict[str, Any]], name: str) -> None:
    of = found[name]
    assert of["matrix_instructions"] > 0
    assert of["shared_bytes"] <= 227 << 10
    assert not {"FFMA", "DFMA"} & of["in_loop"].keys()


@pytest.mark.parametrize("name", ["screen_tiles, 128 columns", "screen_tiles, 128 columns, distances"])
def test_two_programs_of_the_screen_share_a_processor(found: dict[str, dict[str, Any]], name: str) -> None:
    """One compares while the other multiplies."""
    of = found[name]
    assert 2 * of["registers"] * of["threads"] <= REGISTERS_OF_A_PROCESSOR
    assert 2 * of["shared_bytes"] <= 227 << 10


@pytest.mark.peers
@pytest.mark.parametrize("version", ["3.5.1", "3.6.0"])
def test_every_kernel_is_compiled_by_the_triton_of_an_older_torch(version: str, tmp_path: Path) -> None:
    """Users have the one that their torch brings. 3.6.0 fails an assertion at some scans of two dimensions."""
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", tmp_path / "triton")
    run_program(*pip, f"triton=={version}")
    path = os.pathsep.join((str(tmp_path / "triton"), str(REPOSITORY)))
    environment = {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": path}

    assert (
        run_program(sys.executable, "-c", "import triton; print(triton.__version__)", **environment) == f"{version}\n"
    )
    names = run_program(sys.executable, "-m", "tests.compiled_kernels", "names", **environment)
    assert json.loads(names) == [*variants()]
