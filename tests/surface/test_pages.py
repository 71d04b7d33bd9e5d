"""Every block of code of every page is run by a test as it stands, or says what it needs and is checked."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from pbgeval.config.explain import explained_keys
from tests.pasted_commands import INDENTED, REPOSITORY, RUN_LANGUAGES, Block, blocks_of, calls_of, code_in_text, pages
from tests.unrun_commands import (
    extras,
    faults_in_text,
    faults_of_call,
    faults_of_commands,
    faults_of_program,
)

PAGES = pages()
# Arguments of interfaces and of other systems that sentences show with a value, as they show keys of a config.
SET_ELSEWHERE = {
    "all_entities",
    "filtered",
    "filtering",
    "is_host",
    "keep_own_evaluation",
    "mode",
    "pre_filtered_triples",
}
# Commands where output or a drawing is shown: they would be run by nobody.
_COMMAND = re.compile(r"^\s*(\$ )?(kgeval-dist|torchrun|srun|sbatch|mpirun|pip|python3?|scripts/\S+) ", re.MULTILINE)


def followed() -> set[str]:
    """Return the pages that tests follow: the literals of `following(page, ...)`."""
    found = set()
    for path in (REPOSITORY / "tests").rglob("test_*.py"):
        text = path.read_text(encoding="utf-8")
        if "following(" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "following":
                page = node.args[0]
                assert isinstance(page, ast.Constant), f"{path.name}:{node.lineno}: the page's name as it is, please"
                found.add(page.value)
    return found


def test_the_pages_are_those_that_users_read() -> None:
    assert {"README.md", "CONTRIBUTING.md", "docs/tutorial.md", "docs/guides/from_pykeen.md"} <= set(PAGES)
    assert {"docs/cluster.md", "docs/object_storage.md", "benchmarks/scaling/README.md"} <= set(PAGES)
    assert [] == [page for page in PAGES if page.startswith("docs/decisions/")]


def test_every_page_with_commands_or_programs_is_followed_by_a_test() -> None:
    run = {page for page in PAGES if any(block.is_run for block in blocks_of(page))}

    assert run == followed(), "a test calls following(page, folder), or the page says *needs X* right above the block"


@pytest.mark.parametrize("page", PAGES)
def test_every_block_says_what_it_is(page: str) -> None:
    blocks = blocks_of(page)

    assert [] == [block.place for block in blocks if block.language == INDENTED], "a fence says bash, python or text"
    assert [] == [block.place for block in blocks if block.language not in ("bash", "python", "text")]
    assert [] == [block.place for block in blocks if block.language == "text" and _COMMAND.search(block.text)]


def faults_of(block: Block) -> list[str]:
    """Return what is wrong with a block's words; of those that run as well, where a fast test can tell."""
    if block.language == "python":
        faults = faults_of_program(block.text)
    elif block.needs is not None:
        faults = faults_of_commands(block.text)
    else:
        faults = (fault for call in calls_of(block.text) or () for fault in faults_of_call(call))
    return [f"{block.place}: {fault}" for fault in faults]


@pytest.mark.parametrize("page", PAGES)
def test_options_keys_files_and_names_in_blocks_exist(page: str) -> None:
    blocks = [block for block in blocks_of(page) if block.language in RUN_LANGUAGES]

    assert [] == [fault for block in blocks for fault in faults_of(block)]


@pytest.mark.parametrize("page", PAGES)
def test_commands_within_sentences_have_options_and_keys_that_exist(page: str) -> None:
    assert [] == [fault for code in code_in_text(page) for fault in faults_in_text(code)]


@pytest.mark.parametrize("page", PAGES)
def test_settings_within_sentences_are_keys_of_a_config(page: str) -> None:
    keys = {key.name.rpartition(".")[2] for key in explained_keys()} | SET_ELSEWHERE
    settings = filter(None, map(re.compile(r"([a-z_]+) ?= ?\S").match, code_in_text(page)))

    assert [] == [setting.string for setting in settings if setting[1] not in keys]


# The checks find what is wrong


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("kgeval-dist --config eval.py --nodes 2", "No such option: --nodes"),
        ("kgeval-dist reports x", "kgeval-dist reports: no such command"),
        ("kgeval-dist --config eval.py -p candidate=all", "-p candidate=all: "),
        ("kgeval-dist --config eval.py --workers two", "valid integer"),
        ("until kgeval-dist report x --wach; do sleep 60; done", "No such option: --wach"),
        ("srun --nodes 2 kgeval-dist --confg eval.py", "No such option: --confg"),
        ("A=1 mpirun -n 4 hostname", "neither kgeval-dist nor a script"),
        ("sbatch slurn.sbatch --config eval.py", "slurn.sbatch: not in scripts/"),
        ("torchrun --hosts 2 -m pbgeval --config eval.py", "torchrun --hosts 2"),
        ("torchrun --nnodes 2 -m \\\n    pbgeval --config eval.py -p hits=1", "-p hits=1: "),
        ("pip install 'pbgeval[import,reports]'", "no extra reports"),
        ("pip install -c constraint.txt -e .", "no file constraint.txt"),
        ("python scripts/export_pykene.py a b", "scripts/export_pykene.py: not in the repository"),
        ("python -m scripts.monitor_pictures --quick x", "no option --quick"),
        ("scripts/test --al  # everything", "no option --al"),
        ("kgeval eval.py", "kgeval: a command that nobody knows how to check"),
    ],
)
def test_a_wrong_word_of_a_command_is_found(text: str, fault: str) -> None:
    (found,) = [*faults_of_commands(text)][:1]

    assert fault in found


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("from pbgeval import Monitr", "from pbgeval import Monitr: no such name"),
        ("from pbgeval.moniter import Monitor", "from pbgeval.moniter import Monitor: no such name"),
        ("from pbgeval.integrations.lightning import Callback_", "Callback_: no such name"),
        ("import pbgevl", "import pbgevl: no such module"),
        ("from pbgeval import Monitor\nMonitor(schema, share=0.1)", "Monitor(share=...): no such argument"),
        (
            "from pbgeval.integrations.lightning import MonitorCallback\nMonitorCallback(m, waits=1)",
            "MonitorCallback(waits=...): no such argument",
        ),
        ("a = (", "line 1: "),
    ],
)
def test_a_wrong_word_of_a_program_is_found(text: str, fault: str) -> None:
    (found,) = faults_of_program(text)

    assert fault in found


def test_a_wrong_word_within_a_sentence_is_found() -> None:
    codes = ["kgeval-dist report --wach", "kgeval-dist reprt", "-p candidate=all", "pip install 'pbgeval[s4]'"]

    assert [1, 1, 1, 1] == [len([*faults_in_text(code)]) for code in codes]
    right = ["kgeval-dist report --metric", "kgeval-dist --config eval.py --workers 1", "report", "-p KEY=VALUE"]
    assert [] == [fault for code in right for fault in faults_in_text(code)]


def test_a_block_has_its_heading_its_line_and_its_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.pasted_commands.REPOSITORY", tmp_path)
    page = (
        "# One\n\n```bash\na\n```\n\n## Two\n\nOn `two hosts` (*needs two hosts*):\n\n```bash\nb \\\n  c\n```\n\n"
        "```text\nd\n```\n\n- a list\n\n  ```python\n  e\n  ```\n\n      f\n"
    )
    (tmp_path / "page.md").write_text(page, encoding="utf-8")

    found = [(b.heading, b.line, b.language, b.text, b.needs) for b in blocks_of("page.md")]

    assert ("One", 3, "bash", "a\n", None) == found[0]
    assert ("Two", 11, "bash", "b \\\n  c\n", "two hosts") == found[1]
    assert ["text", "python", INDENTED] == [language for _, _, language, _, _ in found[2:]]
    assert [None] * 3 == [needs for *_, needs in found[2:]]


def test_plain_calls_are_told_from_what_only_a_shell_does() -> None:
    calls = "kgeval-dist inspect graph   # what's in it?\nkgeval-dist --config a.py \\\n    -p 'b=c d'\n"

    assert [["inspect", "graph"], ["--config", "a.py", "-p", "b=c d"]] == calls_of(calls)
    assert calls_of("kgeval-dist report a > b") is None
    assert calls_of("cd a\nkgeval-dist report a") is None
    assert calls_of('python -c "\nprint(1)\n"') is None


def test_the_readme_lists_every_extra() -> None:
    table = (
        (REPOSITORY / "README.md").read_text(encoding="utf-8").partition("| extra | brings |")[2].partition("\n\n")[0]
    )
    listed = [name for row in table.splitlines() for name in re.findall(r"`([a-z0-9]+)`", row.partition(" | ")[0])]

    assert sorted(listed) == sorted(extras())
