"""Every benchmark runs: tiny, without its peer where that is not installed."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest

from tests.kit.commands import run_program

REPOSITORY = Path(__file__).resolve().parents[2]
BENCHMARKS = sorted(
    [*(REPOSITORY / "benchmarks").glob("*/main.py"), *(REPOSITORY / "benchmarks").glob("*/simulate.py")]
)
# In processes of their own: who adopts processes, who is imported by those it starts, who imports files beside it.
APART = ("sampled_vs_torchbiggraph", "scaling", "foreign_checkpoints", "certified", "exact_vs_pykeen", "out_of_core")
NAMES = [f"{program.parent.name}/{program.stem}" for program in BENCHMARKS]


def test_every_benchmark_is_listed_with_its_question() -> None:
    text = (REPOSITORY / "benchmarks" / "README.md").read_text(encoding="utf-8")

    assert BENCHMARKS
    folders = [path.parent.name for path in (REPOSITORY / "benchmarks").glob("*/README.md")]
    assert sorted(folders) == sorted(re.findall(r"\| \[(\w+)\]\(", text))


@pytest.mark.slow
@pytest.mark.parametrize("program", BENCHMARKS, ids=NAMES)
def test_a_benchmark_runs_and_prints_a_table(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if program.parent.name in APART:
        printed = run_program(sys.executable, program, "--smoke", cwd=tmp_path)
    else:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("OMP_NUM_THREADS", "1")
        monkeypatch.setattr(sys, "path", [*sys.path])
        monkeypatch.setattr(sys, "argv", [str(program), "--smoke"])
        runpy.run_path(str(program), run_name="__main__")
        printed = capsys.readouterr().out

    assert re.search(r"^\|.*\|\n\|[-|]+\|\n(\|.*\|\n)+", printed, re.MULTILINE), printed
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("program", BENCHMARKS, ids=NAMES)
def test_a_benchmark_has_a_readme_with_command_and_table(program: Path) -> None:
    text = (program.parent / "README.md").read_text(encoding="utf-8")

    assert f"python benchmarks/{program.parent.name}/{program.name}" in text
    assert "\n|---" in text
