"""`scripts/mutation_score.py` on a package of one module: what its test notices is killed, the rest is listed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from scripts.mutation_score import callers_in

REPOSITORY = Path(__file__).resolve().parents[2]
MODULE = '''BLOCK = 1 << 10

def rank(true: int, others: list[int] = [0]) -> int:
    """Ties count as neither."""
    assert len(others) < 99
    return 1 + sum(other > true for other in others)

def is_first(true, others):
    return rank(true, others) == 1

def pairs(true, others):
    yield from zip(true, others, strict=True)
'''
TESTS = """import pytest
from pbgeval.ranking.ranks import rank

def test_rank():
    assert (1, 2, 3) == (rank(5, [1, 2]), rank(4, [9]), rank(0, [7, 8]))

@pytest.mark.slow
def test_ties():
    assert rank(5, [5]) == 1
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    files = {
        "pbgeval/__init__.py": "",
        "pbgeval/ranking/__init__.py": "",
        "pbgeval/ranking/ranks.py": MODULE,
        "pbgeval/report/page.py": "def page():\n    return 1\n",
        "conftest.py": "from hypothesis import settings\nsettings.register_profile('quick')\n",
        "tests/test_ranks.py": TESTS,
    }
    for name, text in files.items():
        (tmp_path / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tree" / name).write_text(text)
    return tmp_path / "tree"


@pytest.mark.slow
def test_what_a_test_notices_is_killed_and_the_rest_is_listed(tree: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "scripts.mutation_score", "--tree", tree, "--map", tmp_path / "map.json"]
    done = subprocess.run(
        [*command, "--count", "99", "--tests", "tests"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )

    place = "  pbgeval/ranking/ranks.py:"
    survivors = {line for line in done.stdout.splitlines() if line.startswith(place)}
    assert survivors == {
        f"{place}9: comparison: rank(true, others) == 1 -> (rank(true, others) != 1)",
        f"{place}9: constant: 1 -> 2",
        f"{place}9: return: return rank(true, others) == 1 -> return None",
    }
    assert "killed by tests/test_ranks.py::test_ties: pbgeval/ranking/ranks.py:6: boundary: " in done.stdout
    assert "killed 5 of 8 (62.5%), 1 of them by tests marked slow alone, 3 reached by no test, seed 0, " in done.stdout
    assert (tree / "pbgeval/ranking/ranks.py").read_text() == MODULE


def test_a_compiled_function_is_reached_by_those_of_its_own_file_that_name_it(tree: Path) -> None:
    (tree / "pbgeval/ranking/loops.py").write_text("def rank():\n    pass\n\ndef loop():\n    rank()\n")

    found = callers_in(tree)

    assert found["pbgeval/ranking/loops.py", 1] == {("pbgeval/ranking/loops.py", 4)}
    assert found["pbgeval/ranking/ranks.py", 3] == {("pbgeval/ranking/ranks.py", 8)}
    assert found["pbgeval/ranking/loops.py", 4] == set()
