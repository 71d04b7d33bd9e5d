"""Compiled loops: who is told that one is compiled."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.kit.commands import run_program

PROGRAM = """
import numpy as np
from pbgeval import jit
from pbgeval.ranking import known_answers
from pbgeval.stats import cluster_sums
said = []
with jit.announced_compiling(said.append):
    numbers = np.zeros(8, np.int64)
    known_answers._passes(numbers, numbers, 1, np.zeros(8, bool), np.zeros_like(numbers))
    cluster_sums._add_rows(numbers, numbers, np.zeros((8, 1), np.int64), np.zeros((1, 1), np.int64))
print(len(said), jit._announcer().say, *said, sep=";")
"""


@pytest.mark.slow
def test_only_the_first_process_says_that_it_compiles_and_once_for_all_loops(tmp_path: Path) -> None:
    runs = [run_program(sys.executable, "-c", PROGRAM, NUMBA_CACHE_DIR=str(tmp_path)) for _ in range(2)]

    assert runs == [
        "1;None;compiling loops, about 10 s each; later runs with such settings on this machine skip this\n",
        "0;None\n",
    ]
