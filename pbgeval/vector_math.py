"""Exponentials, logarithms and roots of a process, which must have one way of computing them before threads ask.

torch takes them from MKL's vector library on a CPU. When that is first called in a process it stores the kind of
processor twice, first in one numbering and then in another; a thread that reads in between takes kernels of the lowest
accuracy for its share of the numbers (relative errors up to 1.5e-4 where 1e-7 was asked for). So one thread calls it
before any others may.
"""

from __future__ import annotations

import functools

import torch


@functools.cache
def settle() -> None:
    """Have the kernels chosen; any function of the library does it for all, and 16 numbers are never shared."""
    torch.linspace(-1.0, 0.0, 16).exp_()
