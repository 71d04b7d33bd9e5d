"""scripts/quickstart: a checkout becomes a result, and the README shows that result."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest

from pbgeval.examples.files import DEMO_GRAPH
from tests.kit.commands import COMMAND, REPOSITORY, run_program

_ROW = re.compile(r"^│ ([^│]+?) +│(.+)│$", re.MULTILINE)
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")


def rows_of(text: str) -> dict[str, list[float]]:
    """Return the numbers of each row of a table on the terminal, without standard errors."""
    return {
        name: [float(_NUMBER.search(cell)[0].replace(",", "")) for cell in cells.split("│")]
        for name, cells in _ROW.findall(text)
    }


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout whose .venv is this environment, so that nothing is installed."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(REPOSITORY / name, folder)
    shutil.copytree(REPOSITORY / "scripts", folder / "scripts")
    programs = folder / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name, program in (("python", sys.executable), ("kgeval-dist", COMMAND)):
        (programs / name).write_text(f'#!/bin/sh\nexec "{program}" "$@"\n', encoding="utf-8")
        (programs / name).chmod(0o755)
    wanted = "".join((folder / name).read_text(encoding="utf-8") for name in ("pyproject.toml", "constraints.txt"))
    (folder / ".venv" / ".installed").write_text(f"{folder}\n{wanted}", encoding="utf-8")
    return folder


@pytest.mark.slow
def test_the_quickstart_ends_with_the_table_of_the_readme(checkout: Path) -> None:
    printed = run_program(checkout / "scripts" / "quickstart")

    assert "already installed" in printed
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    shown = rows_of(readme)
    # Two digits of figures between 0 and 1, and of mean ranks.
    assert rows_of(printed) == {name: pytest.approx(row, abs=0.005, rel=0.005) for name, row in shown.items()}
    assert (checkout / "demo" / "results" / "metrics.json").is_file()
    *_, last = printed.strip().splitlines()
    assert re.fullmatch(r"Demo and evaluation took \d+ s\. Before .*: \. \.venv/bin/activate", last)
    notes = re.findall(r"^(?:±|Without ±).*$", readme, re.MULTILINE)
    assert len(notes) == 2
    assert " ".join(notes) in " ".join(printed.split())  # lines may be broken at 80 columns


def test_the_demo_graph_is_small_enough_for_the_repository() -> None:
    assert sum(path.stat().st_size for path in DEMO_GRAPH.iterdir() if path.is_file()) < 300_000
