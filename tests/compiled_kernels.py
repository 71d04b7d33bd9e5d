"""Compile the kernels of a GPU that is not here, and count what its instructions are.

    .venv/bin/python -m tests.compiled_kernels        # a row per variant that ships, for compute capability 9.0
    .venv/bin/python -m tests.compiled_kernels names  # its names alone: half the time is that of disassembly

In a process of its own, where Triton compiles: a test session has it interpret.
"""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from attrs import asdict, frozen

from pbgeval.scoring import device_exact, device_lists, device_pairs, device_scores
from pbgeval.scoring.device_scores import LOOP_TILES, PAIRS_PER_PROGRAM, TILES, Term, Tiles

NAMES = {torch.float32: "fp32", torch.float64: "fp64"}
INTEGERS = {
    "row_ptr": "*i64",
    "column_ptr": "*i64",
    "hash_ptr": "*i64",
    "candidate_hash_ptr": "*i64",
    "own_ptr": "*i64",
    "at_ptr": "*i64",
    "sign_ptr": "*i8",
    "better_ptr": "*i32",
    "tied_ptr": "*i32",
    "num_pairs": "i64",
}
OF_SCREEN = {
    **dict.fromkeys(("query_ptr", "candidate_ptr"), "*fp16"),
    **dict.fromkeys(("square_ptr", "true_ptr", "error_ptr"), "*fp32"),
    "better_ptr": "*i32",
    "mark_ptr": "*i8",
    "num_marked_ptr": "*i64",
}
OF_FLOAT64 = {
    **dict.fromkeys(("query_ptr", "candidate_ptr"), "*fp32"),
    **dict.fromkeys(("square_ptr", "high_ptr", "low_ptr"), "*fp64"),
    **dict.fromkeys(("hash_ptr", "candidate_hash_ptr", "own_ptr", "num_open_ptr", "num_tiles_ptr"), "*i64"),
    **dict.fromkeys(("open_query_ptr", "open_column_ptr"), "*i64"),
    "mark_ptr": "*i8",
}  # all else is int32
OF_LISTS = {
    **dict.fromkeys(("mark_ptr", "outside_ptr", "sign_ptr"), "*i8"),
    **dict.fromkeys(("score_ptr", "high_ptr", "low_ptr", "true_ptr"), "*fp32"),
    **dict.fromkeys(("entity_ptr", "key_ptr", "known_key_ptr", "known_ptr", "query_ptr"), "*i64"),
    **dict.fromkeys(("timed_key_ptr", "in_time_key_ptr", "in_time_ptr"), "*i64"),
}
OF_NUMBER = {"number_ptr": "*i64"}
OF_DRAWS = {
    **dict.fromkeys(("word_ptr", "query_ptr", "column_ptr"), "*i64"),
    **dict.fromkeys(("mark_ptr", "drawn_ptr", "kept_ptr"), "*i8"),
}
OF_KNOWN = dict.fromkeys(("first_ptr", "end_ptr", "known_ptr", "query_ptr", "column_ptr", "own_ptr"), "*i64")
TILE = {"ROWS": device_lists.ROWS, "COLUMNS": device_lists.COLUMNS}
OF_EXACT = {
    **dict.fromkeys(("row_ptr", "largest_ptr", "true_ptr"), "*fp32"),
    **dict.fromkeys(
        ("norm_ptr", "square_ptr", "scale_ptr", "length_ptr", "limit_ptr", "score_ptr", "error_ptr"), "*fp64"
    ),
    **dict.fromkeys(("largest_norm_ptr", "largest_square_ptr", "query_scale_ptr", "candidate_scale_ptr"), "*fp64"),
    **dict.fromkeys(("factor_ptr", "hash_ptr", "query_ptr", "column_ptr"), "*i64"),
    "half_ptr": "*fp16",
    "mark_ptr": "*i8",
}
OF_OPEN = OF_EXACT | {"row_ptr": "*i32", "number_ptr": "*i64"}
OF_PAIRS = OF_EXACT | {
    **dict.fromkeys(("query_ptr", "candidate_ptr", "true_row_ptr"), "*fp32"),
    **dict.fromkeys(("true_ptr", "true_error_ptr"), "*fp64"),
    **{"row_ptr": "*i64", "value_ptr": "*fp32", "sign_ptr": "*i8"},
    **OF_NUMBER,
    "num_open_ptr": "*i64",
}
LIMITED = {"ROWS": device_exact.LIMITED_ROWS}
# By name: the module, types of arguments that are no int32, and constants.
SMALL_KERNELS: dict[str, tuple[str, dict[str, str], dict[str, Any]]] = {
    "mark_cells": ("list_kernels", OF_LISTS | {"true_ptr": "*i64"}, TILE),
    "count_stored": ("list_kernels", OF_LISTS | {"count_ptr": "*i64"}, TILE),
    "draw_cells": ("list_kernels", OF_DRAWS, {"CELLS": device_lists.CELLS}),
    "expand_known": ("list_kernels", OF_KNOWN, {"CELLS": device_lists.CELLS}),
    "order_columns": (
        "list_kernels",
        dict.fromkeys(("score_ptr", "best_ptr"), "*fp32"),
        {"COLUMNS": device_lists.ORDERED},
    ),
    "merge_best": (
        "list_kernels",
        {"score_ptr": "*fp32"}
        | dict.fromkeys(("list_ptr", "column_ptr", "entity_ptr", "known_ptr", "merged_ptr"), "*i64"),
        {"PLACES": device_lists.PLACES},
    ),
    "count_signs": ("list_kernels", OF_LISTS | OF_KNOWN | OF_NUMBER, {"CELLS": device_lists.CELLS}),
    "write_limits": ("exact_kernels", OF_EXACT | {"own_ptr": "*i64"}, {"IS_DISTANCE": True} | LIMITED),
    "write_screen_limits": (
        "exact_kernels",
        OF_EXACT | {"error_ptr": "*fp32", "largest_ptr": "*fp64", "screened_square_ptr": "*fp32"},
        {"IS_DISTANCE": True, "UNIT": device_exact.UNIT_OF_SCREEN} | LIMITED,
    ),
    "round_rows": (
        "exact_kernels",
        OF_EXACT | {"largest_norm_ptr": "*fp64"},
        {"ROWS": device_exact.ROUNDED_ROWS, "COLUMNS": device_exact.ROUNDED_COLUMNS},
    ),
    "list_marked": (
        "exact_kernels",
        OF_OPEN,
        {
            "SEGMENT": device_exact.SEGMENT,
            "TILE_ROWS": device_exact.DECIDED_ROWS,
            "QUERIES": device_exact.LISTED_QUERIES,
        },
    ),
    "describe_rows": (
        "pair_kernels",
        OF_EXACT,
        {"ROWS": device_pairs.ROWS, "WORDS": device_pairs.WORDS},
    ),
}
for kind in ("values", "true", "signs"):
    SMALL_KERNELS[f"score_exactly, {kind}"] = (
        "pair_kernels",
        OF_PAIRS,
        {
            "INDEXED": True,
            "KIND": kind,
            "IS_DISTANCE": True,
            "HAS_BIAS": True,
            "UNIT": 2.0**-53,
            "PAIRS": device_pairs.PAIRS,
        },
    )


@frozen
class Variant:
    """A kernel and what it is compiled for."""

    module: str
    kernel: str
    types: dict[str, str]  # of arguments that are no int32
    constants: dict[str, Any]
    options: dict[str, int]
    cells: int


@frozen
class Compiled:
    """What one variant has become."""

    registers: int
    stack_bytes: int
    shared_bytes: int
    threads: int
    instructions: int
    in_loop: dict[str, int]  # of the loop that multiplies, by name with width
    spills: int  # loads and stores of local memory
    matrix_instructions: int
    fma: int  # in PTX
    unfused: list[str]  # products and sums of floats in PTX that are not fused, or that flush to zero
    cells_per_thread: int


def variants() -> dict[str, Variant]:
    """Return what ships, by name."""
    found: dict[str, Variant] = {}
    for name in ("score_tiles", "count_tiles"):
        found[f"{name}, float32"] = _of_tiles(name, torch.float32, TILES)
        found[f"{name}, float32, spelled out"] = _of_tiles(name, torch.float32, LOOP_TILES)
        found[f"{name}, float64, spelled out"] = _of_tiles(name, torch.float64, LOOP_TILES)
    for dtype, name in ((torch.float32, "float32"), (torch.float64, "float64")):
        for kernel in ("score_pairs", "compare_pairs"):
            found[f"{kernel}, {name}"] = _of_pairs(kernel, dtype, "product")
    return found | sum_variants() | exact_variants() | small_variants()


def sum_variants() -> dict[str, Variant]:
    """Return the kernels of sums over columns that are no products, by name."""
    found: dict[str, Variant] = {}
    for dtype, name in ((torch.float32, "float32"), (torch.float64, "float64")):
        for term in ("absolute", "modulus"):
            for kernel in ("score_tiles", "count_tiles"):
                found[f"{kernel}, {name}, {term}"] = _of_tiles(kernel, dtype, LOOP_TILES, term)
            for kernel in ("score_pairs", "compare_pairs"):
                found[f"{kernel}, {name}, {term}"] = _of_pairs(kernel, dtype, term)
    return found


def small_variants() -> dict[str, Variant]:
    """Return the kernels that multiply no tiles, by name."""
    options = {"num_warps": 4}
    return {
        name: Variant(module, name.partition(",")[0], types, constants, options, 1)
        for name, (module, types, constants) in SMALL_KERNELS.items()
    }


def exact_variants() -> dict[str, Variant]:
    """Return the kernels of exact ranks, by name."""
    found = {}
    for distance in ("", ", distances"):
        for columns, parts in ((128, 1), (256, 1), (0, 1), (128, 2)):
            stays = columns > 0 and parts == 1
            options = device_exact.screen_options(columns or 512, parts, stays=stays, is_distance=bool(distance))
            cells = device_exact.SCREEN_ROWS * device_exact.SCREEN_COLUMNS
            name = f"screen_tiles, {columns or 'more'} columns{', two parts' if parts == 2 else ''}{distance}"
            found[name] = Variant("exact_kernels", "screen_tiles", OF_SCREEN, *_split(options), cells)
        cells = device_exact.DECIDED_ROWS * device_exact.DECIDED_COLUMNS
        for num_groups, lists in ((0, ""), (2, ", lists")):
            every = num_groups > 0
            options = device_exact.tile_options(is_distance=bool(distance), num_groups=num_groups, every=every)
            name = f"decide_tiles{lists}{distance}"
            found[name] = Variant("exact_kernels", "decide_tiles", OF_FLOAT64, *_split(options), cells)
    return found


def _of_tiles(kernel: str, dtype: torch.dtype, tiles: Tiles, term: Term = "product") -> Variant:
    with mock.patch.object(device_scores, "multiplies_by_dot", return_value=tiles is TILES):
        options = device_scores._options(torch.empty(0, dtype=dtype), term)
    return Variant("chain_kernels", kernel, _types(kernel, dtype), *_split(options), tiles.rows * tiles.columns)


def _of_pairs(kernel: str, dtype: torch.dtype, term: Term) -> Variant:
    options = _split(device_scores._options_of_pairs(term))
    return Variant("chain_kernels", kernel, _types(kernel, dtype), *options, PAIRS_PER_PROGRAM)


def _types(kernel: str, dtype: torch.dtype) -> dict[str, str]:
    from pbgeval.scoring import chain_kernels

    floats = [name for name in getattr(chain_kernels, kernel).arg_names if name.endswith("_ptr")]
    return dict.fromkeys(floats, f"*{NAMES[dtype]}") | INTEGERS


def _split(options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, int]]:
    """Tell apart what a kernel is written for and how Triton compiles it."""
    names = {"num_warps", "num_stages", "enable_fp_fusion"} & options.keys()
    return {name: of for name, of in options.items() if name not in names}, {name: options[name] for name in names}


def made_of(variant: Variant) -> Any:
    """Compile one variant for compute capability 9.0."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    function = getattr(importlib.import_module(f"pbgeval.scoring.{variant.module}"), variant.kernel)
    pointers = dict.fromkeys([name for name in function.arg_names if name.endswith("_ptr")], "*i32")
    types = {**pointers, **variant.types, **dict.fromkeys(variant.constants, "constexpr")}
    signature = {name: types.get(name, "i32") for name in function.arg_names}
    aligned = {
        (at,): [["tt.divisibility", 16]]
        for at, of in enumerate(function.params)
        if of.name.endswith("_ptr") and not of.do_not_specialize_on_alignment
    }
    values = {(function.arg_names.index(name),): value for name, value in variant.constants.items()}
    return triton.compile(
        ASTSource(function, signature, values, aligned), target=GPUTarget("cuda", 90, 32), options=variant.options
    )


def compiled(variant: Variant) -> Compiled:
    """Compile one variant, and count what its instructions are."""
    made = made_of(variant)
    registers, stack, listing = _disassembled(made)
    ptx = made.asm["ptx"]
    names = _instructions(listing)
    threads = 32 * variant.options["num_warps"]
    return Compiled(
        registers,
        stack,
        made.metadata.shared,
        threads,
        len(names),
        dict(Counter(_in_loop(listing))),
        sum(name.startswith(("LDL", "STL")) for name in names),
        sum(bool(re.match(r"(H|D|I|Q)G?MMA", name)) for name in names),
        len(re.findall(r"fma\.rn\.f(?:32|64)\b", ptx)),
        sorted({*re.findall(r"\b(?:mul|add|sub)(?:\.\w+)*\.f(?:32|64)\b", ptx), *re.findall(r"\S*ftz\S*", ptx)}),
        variant.cells // threads,
    )


def _disassembled(made: Any) -> tuple[int, int, str]:
    """Return the registers and the bytes of the stack of a compiled kernel, and its instructions."""
    from triton.backends import nvidia

    tools = Path(nvidia.__file__).parent / "bin"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(made.asm["cubin"])
        file.flush()
        usage = _said(tools / "cuobjdump", "-res-usage", file.name)
        listing = _said(tools / "nvdisasm", "-c", file.name)
    registers, stack = (int(found) for found in re.findall(r"(?:REG|STACK):(\d+)", usage)[:2])
    return registers, stack, listing


def compiled_draws() -> dict[str, dict[str, int]]:
    """Compile the kernels of draws; return their registers, the bytes of the stack and how many variants ship."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, make_backend
    from triton.runtime.jit import create_function_from_signature

    from pbgeval.scoring import draw_kernels

    target, found = GPUTarget("cuda", 90, 32), {}
    words = torch.zeros(8, dtype=torch.int64)
    for name, constants in (("write_words", {"COUNTERS": 256}), ("scale_words", {"WORDS": 1024})):
        function = getattr(draw_kernels, name)
        pointers = [of for of in function.arg_names if of.endswith("_ptr")]
        numbers = len(function.arg_names) - len(pointers) - len(constants)
        signature = dict.fromkeys(function.arg_names, "i32") | dict.fromkeys(pointers, "*i64")
        signature |= dict.fromkeys(constants, "constexpr")
        values = {(function.arg_names.index(of),): value for of, value in constants.items()}
        made = triton.compile(ASTSource(function, signature, values), target=target, options={"num_warps": 4})
        registers, stack, _ = _disassembled(made)
        bind = create_function_from_signature(function.signature, function.params, make_backend(target))
        given = [[words[start:], words][2 - len(pointers) :] + [start - 1] * numbers for start in (0, 1, 2, 17)]
        variants = {repr(bind(*arguments, **constants)[1]) for arguments in given}
        found[name] = {"registers": registers, "stack_bytes": stack, "variants": len(variants)}
    return found


def variants_of_pairs() -> int:
    """Return how often `score_pairs` is compiled for float32, wherever in memory its rows and pairs begin."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import make_backend
    from triton.runtime.jit import create_function_from_signature

    from pbgeval.scoring.chain_kernels import score_pairs

    backend = make_backend(GPUTarget("cuda", 90, 32))
    bind = create_function_from_signature(score_pairs.signature, score_pairs.params, backend)
    constants, _ = _split(device_scores._options_of_pairs("product"))
    found = set()
    for start in range(4):
        rows, places = torch.zeros(8)[start:], torch.zeros(8, dtype=torch.int64)[start:]
        given = (rows, places, rows, places, rows)
        found.add(repr(bind(*given, 3, 4, 1, **constants)[1]))
    return len(found)


def _said(*command: object) -> str:
    return subprocess.run([str(of) for of in command], capture_output=True, text=True, check=True).stdout


def _instructions(listing: str) -> list[str]:
    """Return names with width: LDS and LDS.128, but FFMA for FFMA.FTZ; what is never executed (@!PT) is left out."""
    listing = re.sub(r"^.*@!PT.*$", "", listing, flags=re.M)
    names = re.findall(r"^\s*(?:/\*\w+\*/)?\s*(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]+)", listing, re.M)
    return [".".join([name.split(".")[0], *({"64", "128"} & {*name.split(".")})]) for name in names]


def _in_loop(listing: str) -> list[str]:
    """Return the instructions between a label and the jump back to it, of the loop that has the most."""
    place = {found[1]: found.start() for found in re.finditer(r"^(\.L_\w+):", listing, re.M)}
    jumps = [(found.start(), place.get(found[1])) for found in re.finditer(r"BRA\S*[^\n]*`\((\.L_\w+)\)", listing)]
    loops = [_instructions(listing[start:stop]) for stop, start in jumps if start is not None and start < stop]
    multiplying = [loop for loop in loops if {"FFMA", "DFMA"} & {*loop}]
    return max(multiplying, key=len) if multiplying else []


if __name__ == "__main__":
    if sys.argv[1:] == ["names"]:
        json.dump([name for name, of in variants().items() if made_of(of)], sys.stdout)
    else:
        json.dump({name: asdict(compiled(of)) for name, of in variants().items()}, sys.stdout, indent=1)
