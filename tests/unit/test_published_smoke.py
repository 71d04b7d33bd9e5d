"""Every check of published figures runs: on a made graph, without the data that it needs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.kit.groups import run_script

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks" / "published"
PROGRAMS = sorted(FOLDER.glob("*/main.py"))
NAMES = [program.parent.name for program in PROGRAMS]
# Of figures that others published, or that another program finds.
TABLE = re.compile(r"\| figure \| [\w -]+ \| ours \| difference \|\n\|---\|---\|---\|---\|\n\| ")


def test_every_check_is_listed() -> None:
    assert re.findall(r"\| \[(\w+)\]\(", (FOLDER / "README.md").read_text(encoding="utf-8")) == NAMES


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS, ids=NAMES)
def test_a_check_runs_and_prints_a_table(program: Path, tmp_path: Path) -> None:
    printed = run_script(program, "--smoke", cwd=tmp_path)

    assert TABLE.search(printed)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("program", PROGRAMS, ids=NAMES)
def test_a_check_has_a_readme_with_command_and_table(program: Path) -> None:
    text = (program.parent / "README.md").read_text(encoding="utf-8")

    assert f"python benchmarks/published/{program.parent.name}/main.py" in text
    assert TABLE.search(text)
