from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest

from tests.pbg_holdout import drawn_by_pbg

DOCUMENT = Path(__file__).parents[2] / "docs" / "monitor.md"
ROW = re.compile(r"^\| (0\.\d+) \| ([\d,]+) \| ([\d,]+) \(([\d.]+)%\) \| ([\d,]+) \|$", re.MULTILINE)
NUM_EDGES = 100_000


def rows_of_the_document() -> list[tuple[str, ...]]:
    return ROW.findall(DOCUMENT.read_text(encoding="utf-8"))


def test_the_document_has_a_table() -> None:
    assert [row[0] for row in rows_of_the_document()] == ["0.05", "0.1", "0.2"]


@pytest.mark.parametrize("row", rows_of_the_document())
def test_figures_of_the_leak_are_those_of_the_index_arithmetic(row: tuple[str, ...]) -> None:
    fraction, *figures = float(row[0]), *(float(cell.replace(",", "")) for cell in row[1:])
    held_out, training = drawn_by_pbg(NUM_EDGES, fraction, seed=0)
    distinct = np.unique(held_out)
    leaked = np.intersect1d(distinct, training)
    unused = np.setdiff1d(np.setdiff1d(np.arange(NUM_EDGES), distinct), training)

    expected = [len(distinct), len(leaked), round(100 * len(leaked) / len(distinct), 1), len(unused)]
    assert figures == expected
    formula = (1 - fraction) * (1 - math.exp(-fraction))
    assert len(leaked) / len(distinct) == pytest.approx(formula, abs=5 * math.sqrt(formula / len(distinct)))
