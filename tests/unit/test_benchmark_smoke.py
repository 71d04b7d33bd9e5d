"""Every benchmark runs: tiny, without its peer where that is not installed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.kit.groups import run_script

REPOSITORY = Path(__file__).resolve().parents[2]
BENCHMARKS = sorted(
    path
    for name in ("main", "simulate", "sampled", "gpus", "linked")
    for path in (REPOSITORY / "benchmarks").glob(f"*/{name}.py")
)
NAMES = [f"{program.parent.name}/{program.stem}" for program in BENCHMARKS]


def test_every_benchmark_is_listed_with_its_question() -> None:
    text = (REPOSITORY / "benchmarks" / "README.md").read_text(encoding="utf-8")

    assert BENCHMARKS
    folders = [path.parent.name for path in (REPOSITORY / "benchmarks").glob("*/README.md")]
    assert sorted(folders) == sorted(re.findall(r"\| \[(\w+)\]\(", text))


@pytest.mark.slow
@pytest.mark.parametrize("program", BENCHMARKS, ids=NAMES)
def test_a_benchmark_runs_and_prints_a_table(program: Path, tmp_path: Path) -> None:
    printed = run_script(program, "--smoke", cwd=tmp_path)

    assert re.search(r"^\|.*\|\n\|[-|]+\|\n(\|.*\|\n)+", printed, re.MULTILINE), printed
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("program", BENCHMARKS, ids=NAMES)
def test_a_benchmark_has_a_readme_with_command_and_table(program: Path) -> None:
    text = (program.parent / "README.md").read_text(encoding="utf-8")

    assert f"python benchmarks/{program.parent.name}/{program.name}" in text
    assert "\n|---" in text
