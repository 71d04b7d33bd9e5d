"""Every benchmark and every check of published figures runs: tiny, on a made graph, without a peer that is missing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.kit.groups import run_script

REPOSITORY = Path(__file__).resolve().parents[2]
FOLDER = REPOSITORY / "benchmarks"
PROGRAMS = sorted(
    path for name in ("main", "simulate", "sampled", "gpus", "linked") for path in FOLDER.rglob(f"*/{name}.py")
)
NAMES = [str(program.relative_to(FOLDER).with_suffix("")) for program in PROGRAMS]
TABLE = re.compile(r"^\|.*\|\n\|[-|]+\|\n(\|.*\|\n)+", re.MULTILINE)
# Of figures that others published, or that another program finds.
TABLE_OF_PUBLISHED = re.compile(r"\| figure \| [\w -]+ \| ours \| difference \|\n\|---\|---\|---\|---\|\n\| ")


def table_of(program: Path) -> re.Pattern[str]:
    return TABLE_OF_PUBLISHED if program.parents[1].name == "published" else TABLE


@pytest.mark.parametrize("folder", [FOLDER, FOLDER / "published"], ids=lambda of: of.name)
def test_every_program_is_listed_with_its_question(folder: Path) -> None:
    text = (folder / "README.md").read_text(encoding="utf-8")

    folders = [path.parent.name for path in folder.glob("*/README.md")]
    assert folders
    assert sorted(folders) == sorted(re.findall(r"\| \[(\w+)\]\(", text))


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS, ids=NAMES)
def test_a_program_runs_and_prints_a_table(program: Path, tmp_path: Path) -> None:
    printed = run_script(program, "--smoke", cwd=tmp_path)

    assert table_of(program).search(printed), printed
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("program", PROGRAMS, ids=NAMES)
def test_a_program_has_a_readme_with_command_and_table(program: Path) -> None:
    text = (program.parent / "README.md").read_text(encoding="utf-8")

    assert f"python {program.relative_to(REPOSITORY)}" in text
    assert table_of(program).search(text)
