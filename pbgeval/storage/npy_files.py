"""A file of numpy's -> its array, mapped."""

from __future__ import annotations

import tokenize
from pathlib import Path

import numpy as np

from pbgeval.errors import StorageError
from pbgeval.storage.text import check_regular, unreadable

# What numpy raises of a damaged header, which it parses as Python; OverflowError: of a shape of many digits.
_DAMAGED = (
    *(ValueError, EOFError, TypeError, OverflowError),
    *(SyntaxError, tokenize.TokenError, RecursionError, MemoryError),
)


def open_npy(path: Path, kinds: str = "f") -> tuple[np.memmap, int]:
    """Map an array of a .npy file that holds plain numbers; return it and the byte at which its values begin.

    Args:
        path: the file.
        kinds: numpy's letters of the types that are expected: f floats, i and u integers.

    Raises:
        StorageError: it is missing, no such file, holds objects, or its values are not laid out row by row.
    """
    with (
        unreadable(path, "expected a .npy file of numbers, found", "", _DAMAGED),
        unreadable(path, "cannot read the .npy file", "; check the path"),
        np.errstate(over="ignore"),  # of a shape that no memory holds, which is refused
    ):
        check_regular(path)
        array = np.lib.format.open_memmap(path, mode="r")
    if array.dtype.kind not in kinds or array.dtype.byteorder == ">":
        expected, dtype = ("floating-point numbers", "float32") if kinds == "f" else ("integers", "int64")
        is_complex = kinds == "f" and array.dtype.kind == "c"
        halves = "write real parts, then imaginary parts: np.concatenate([v.real, v.imag], axis=1)"
        advice = halves if is_complex else f"save it as {dtype}: x.astype('{dtype}')"
        raise StorageError(f"{path}: expected {expected}, found {array.dtype}; {advice}")
    if not array.flags.c_contiguous:
        raise StorageError(f"{path}: expected values row by row, found Fortran order; write np.ascontiguousarray(...)")
    return array, array.offset
