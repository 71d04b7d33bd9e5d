"""The words of commands and programs on all pages: options, keys, files and names exist."""

from __future__ import annotations

import ast
import functools
import importlib.util
import itertools
import re
import shlex
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import typer

from pbgeval.cli import app
from pbgeval.config.explain import explained_keys
from pbgeval.config.overrides import apply_override
from pbgeval.errors import ConfigError, EvalError
from tests.contracts.test_pykeen_trained import WRONG_IN_MACRO
from tests.kit.commands import REPOSITORY
from tests.pages import LANGUAGES, Block, blocks_of, pages

PAGES = pages()
# Arguments of interfaces and of other systems that sentences show with a value, as they show keys of a config.
SET_ELSEWHERE = {
    "all_entities",
    "broadcasts",
    "eval_fraction",
    "evaluator",
    "filtered",
    "filtering",
    "is_host",
    "keep_own_evaluation",
    "known",
    "mode",
    "overwrite",
    "output",
    "pre_filtered_triples",
    "settings",
    "takes_time",
    "when",
}
_FENCE = re.compile(r"^ *```(\w*)", re.MULTILINE)
_FENCED = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`([^`\n]+)`")
# Commands where output or a drawing is shown: no reader would run them.
_COMMAND = re.compile(r"^\s*(\$ )?(kgeval-dist|torchrun|srun|sbatch|mpirun|pip|python3?|scripts/\S+) ", re.MULTILINE)


# Calls of ours, also by torchrun and srun, up to where a shell ends them; files and modules of the repository.
_CALL = re.compile(r"(?:kgeval-dist|torchrun .*-m +pbgeval)(?=\s)([^\n;|&)>]*)")
_FILE = re.compile(r"(?<![\w./])(?:scripts|benchmarks)/[\w./-]+")
_MODULE = re.compile(r"-m ((?:scripts|benchmarks)\.[\w.]+)")
_EXTRAS = re.compile(r"(?:pbgeval|\.)\[([a-z][\w,]*)\]'")


@functools.cache
def extras() -> set[str]:
    """Return the extras of pyproject.toml."""
    return set(
        tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    )


@pytest.mark.parametrize("page", PAGES)
def test_every_block_says_what_it_is(page: str) -> None:
    fences = _FENCE.findall((REPOSITORY / page).read_text(encoding="utf-8"))
    shown = [block for block in blocks_of(page) if block.language == "text"]

    assert set(fences[::2]) <= set(LANGUAGES), f"a fence says one of {LANGUAGES}"
    assert [block.place for block in shown if _COMMAND.search(block.text)] == [], "commands are bash"


def faults_of(block: Block) -> Iterator[str]:
    """Yield what is wrong with a block's words; of those that run as well, where a fast test can tell."""
    if block.language == "python":
        yield from faults_of_program(block.text)
        return
    text = block.text.replace("\\\n", " ")
    for call in _CALL.findall(text):
        yield from faults_of_call(shlex.split(call, comments=True))
    files = [*_FILE.findall(text), *(f"{module.replace('.', '/')}.py" for module in _MODULE.findall(text))]
    yield from (f"{name}: not in the repository" for name in files if not (REPOSITORY / name).exists())


def faults_of_call(words: list[str]) -> Iterator[str]:
    """Yield what is wrong with a call of kgeval-dist: options that it has not, values of another type, keys."""
    command, words = command_of(words)
    if command is None:
        yield f"{words[0]}: no such command"
        return
    try:
        given = command.make_context("kgeval-dist", words).params
    except (typer.TyperException, EvalError) as error:
        yield f"{shlex.join(words)}: {error.format_message() if isinstance(error, typer.TyperException) else error}"
        return
    yield from faults_of_overrides(given.get("param") or ())


@functools.cache
def commands() -> typer.core.TyperGroup:
    """Return all commands, which take long to make."""
    group = typer.main.get_command(app)
    assert isinstance(group, typer.core.TyperGroup)
    return group


def command_of(words: list[str]) -> tuple[typer.core.TyperCommand | None, list[str]]:
    """Return the command that is called, and its arguments."""
    group = commands()
    if not words or not re.fullmatch("[a-z-]+", words[0]) or words[0].startswith("-"):
        return group, words
    return group.commands.get(words[0]), words[1:] if words[0] in group.commands else words


def faults_of_overrides(overrides: Iterable[str]) -> Iterator[str]:
    for text in overrides:
        try:
            apply_override({}, text)
        except ConfigError as error:
            yield f"-p {text}: {error}"


def faults_in_text(code: str) -> Iterator[str]:
    """Yield what is wrong with a piece of a command within a sentence: `kgeval-dist report --metric`."""
    if not re.fullmatch(r"(kgeval-dist|-p \w+=) ?.*", code):
        return
    words = [word for word in shlex.split(code.removeprefix("kgeval-dist")) if word not in ("...", "|")]
    command, words = command_of(words)
    if command is None:
        yield f"{words[0]}: no such command"
        return
    options = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    yield from (
        f"{code}: no option {word}"
        for word in words
        if re.match(r"--?[a-z]", word) and word not in options | {"--help"}
    )
    yield from faults_of_overrides(
        value for flag, value in itertools.pairwise(words) if flag == "-p" and "=" in value and "KEY" not in value
    )


OF_RECIPES = {"wandb", "mlflow"}  # packages that users of a recipe have


def faults_of_program(text: str) -> Iterator[str]:
    """Yield what a block of Python imports and is not there; names of ours by the source, which may need a library."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names = [of.name for of in node.names if of.name not in OF_RECIPES]
            yield from (f"import {name}" for name in names if importlib.util.find_spec(name) is None)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "pbgeval":
            spec = importlib.util.find_spec(node.module or "")
            source = Path(spec.origin or "").read_text(encoding="utf-8") if spec else ""
            yield from (
                f"from {node.module} import {of.name}" for of in node.names if of.name not in defined_in(source)
            )


@functools.cache
def defined_in(source: str) -> set[str]:
    """Return the names that stand at the top of a module, in its `__all__` or in what it says of its exports."""
    tree = ast.parse(source)
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return texts | {name for node in tree.body if (name := getattr(node, "name", None))}


@pytest.mark.parametrize("page", PAGES)
def test_options_keys_files_and_names_in_blocks_exist(page: str) -> None:
    blocks = [block for block in blocks_of(page) if block.language != "text"]

    assert [f"{block.place}: {fault}" for block in blocks for fault in faults_of(block)] == []


@pytest.mark.parametrize("page", PAGES)
def test_words_of_commands_within_sentences_exist(page: str) -> None:
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    codes = _CODE.findall(_FENCED.sub("", text))
    keys = {key.name.rpartition(".")[2] for key in explained_keys()} | SET_ELSEWHERE
    settings = filter(None, map(re.compile(r"([a-z_]+) ?= ?\S").match, codes))

    assert [fault for code in codes for fault in faults_in_text(code)] == []
    assert [setting.string for setting in settings if setting[1] not in keys] == []
    assert {name for names in _EXTRAS.findall(text) for name in names.split(",")} <= extras()


def test_the_tutorial_lists_every_extra() -> None:
    text = (REPOSITORY / "docs" / "tutorial.md").read_text(encoding="utf-8")
    table = text.partition("| extra | brings |")[2].partition("\n\n")[0]
    listed = [name for row in table.splitlines() for name in re.findall(r"`([a-z0-9]+)`", row.partition(" | ")[0])]

    assert sorted(listed) == sorted(extras())


@pytest.mark.parametrize("metric", WRONG_IN_MACRO)
def test_the_page_of_pykeen_names_every_macro_metric_that_differs(metric: str) -> None:
    page = (REPOSITORY / "docs" / "guides" / "from_pykeen.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("|") and "macro" in line]

    assert any(f"`{metric}`" in row for row in rows)
