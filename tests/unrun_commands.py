"""Commands and programs that cannot be run where tests run -> what is wrong with their words.

Options are those that the programs have, config keys those of `EvalConfig`, files those of the repository, and what
Python imports is there. What needs another system (Slurm, a second host) is believed but for the part that is ours.
"""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
import inspect
import re
import runpy
import shlex
from collections.abc import Iterator, Sequence
from unittest import mock

import typer

from pbgeval.cli import app
from pbgeval.config.overrides import OverrideError, apply_override
from tests.pasted_commands import REPOSITORY

OURS = "kgeval-dist"
# Programs of other systems, which start ours: their own options are not looked at.
LAUNCHERS = ("srun", "mpirun", "sbatch")
_ASSIGNMENT = re.compile(r"\w+=")
_ENDS = re.compile(r"[;&|()]+")
_WORDS_OF_THE_SHELL = {"until", "while", "do", "done", "if", "then", "fi"}


def faults_of_commands(text: str) -> Iterator[str]:
    """Yield a line for each word of a block of commands that cannot be right."""
    for line in text.replace("\\\n", " ").splitlines():
        for words in _simple_commands(line):
            yield from _faults(words)


def _simple_commands(line: str) -> Iterator[list[str]]:
    split = shlex.shlex(line, posix=True, punctuation_chars=";&|()")
    split.whitespace_split = True
    words: list[str] = []
    for word in [*split, ";"]:
        if not _ENDS.fullmatch(word):
            words.append(word)
            continue
        while words and (words[0] in _WORDS_OF_THE_SHELL or _ASSIGNMENT.match(words[0])):
            words.pop(0)
        if words:
            yield words
        words = []


def _faults(words: Sequence[str]) -> Iterator[str]:
    """Yield what is wrong with one command."""
    program, *arguments = words
    if program == OURS:
        yield from faults_of_call(arguments)
    elif program == "torchrun":
        yield from _faults_of_torchrun(arguments)
    elif program in LAUNCHERS:
        yield from _faults_of_launched(arguments)
    elif program == "pip":
        yield from _faults_of_pip(arguments)
    elif re.fullmatch(r"(\S*/)?python3?", program):
        yield from _faults_of_python(arguments)
    elif program.startswith("scripts/"):
        yield from _faults_of_file(program, arguments)
    elif program not in (".", "export"):
        yield f"{program}: a command that nobody knows how to check; see tests/unrun_commands.py"


def faults_of_call(arguments: Sequence[str]) -> Iterator[str]:
    """Yield what is wrong with a call of kgeval-dist: options that it has not, values of another type, keys."""
    group = typer.main.get_command(app)
    assert isinstance(group, typer.core.TyperGroup)
    named = arguments[0] if arguments and not arguments[0].startswith("-") else None
    if named is not None and named not in group.commands:
        yield f"{OURS} {named}: no such command"
        return
    command = group if named is None else group.commands[named]
    try:
        given = command.make_context(OURS, list(arguments if named is None else arguments[1:])).params
    except typer.TyperException as error:
        yield f"{OURS} {shlex.join(arguments)}: {error.format_message()}"
        return
    for override in given.get("param") or ():
        yield from _faults_of_override(override)


def _faults_of_override(text: str) -> Iterator[str]:
    try:
        apply_override({}, text)
    except OverrideError as error:
        yield f"-p {text}: {error}"


def _faults_of_torchrun(arguments: Sequence[str]) -> Iterator[str]:
    from torch.distributed.run import get_args_parser

    with mock.patch("argparse.ArgumentParser.error", side_effect=ValueError):  # which ends the process
        try:
            given = get_args_parser().parse_args(list(arguments))
        except ValueError:
            yield f"torchrun {shlex.join(arguments)}: not its options"
            return
    if (True, "pbgeval") != (given.module, given.training_script):
        yield f"torchrun {shlex.join(arguments)}: expected -m pbgeval"
    yield from faults_of_call(given.training_script_args)


def _faults_of_launched(arguments: Sequence[str]) -> Iterator[str]:
    """Of srun and mpirun, which start our command, and of sbatch, which takes a script of ours."""
    at = [index for index, word in enumerate(arguments) if word == OURS or word.endswith(".sbatch")]
    if not at:
        yield f"{shlex.join(arguments)}: neither {OURS} nor a script for sbatch"
        return
    program = arguments[at[0]]
    if program != OURS and not (REPOSITORY / "scripts" / program).is_file():
        yield f"{program}: not in scripts/"
    yield from faults_of_call(arguments[at[0] + 1 :])


def _faults_of_pip(arguments: Sequence[str]) -> Iterator[str]:
    if arguments[0] != "install":
        yield f"pip {arguments[0]}: expected install"
    for word in arguments[1:]:
        wanted = re.search(r"\[(.+)\]$", word)
        for extra in wanted[1].split(",") if wanted else ():
            if extra not in extras():
                yield f"pip: setup.py has no extra {extra}"
        if word.endswith(".txt") and not (REPOSITORY / word).is_file():
            yield f"pip: no file {word}"


@functools.cache
def extras() -> set[str]:
    """Return the extras of setup.py."""
    with mock.patch("setuptools.setup") as setup:
        runpy.run_path(str(REPOSITORY / "setup.py"))
    return set(setup.call_args.kwargs["extras_require"])


def _faults_of_python(arguments: Sequence[str]) -> Iterator[str]:
    if arguments[0] == "-m" and arguments[1] == "venv":
        return
    if arguments[0] == "-m":
        yield from _faults_of_file(arguments[1].replace(".", "/") + ".py", arguments[2:])
    else:
        yield from _faults_of_file(arguments[0], arguments[1:])


def _faults_of_file(name: str, arguments: Sequence[str]) -> Iterator[str]:
    """Of a program of the repository: it is there, and its text knows the options."""
    if not (REPOSITORY / name).is_file():
        yield f"{name}: not in the repository"
        return
    text = (REPOSITORY / name).read_text(encoding="utf-8")
    for word in arguments:
        option = word.partition("=")[0]
        of_pytest = name == "scripts/test" and option in ("-k", "-m")
        if option.startswith("-") and not of_pytest and not re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", text):
            yield f"{name}: no option {option}"


def faults_in_text(code: str) -> Iterator[str]:
    """Yield what is wrong with a piece of a command within a sentence: `kgeval-dist report --metric`."""
    if not re.fullmatch(r"(kgeval-dist|pip install|-p \w+=) ?.*", code):
        return
    words = [word for word in shlex.split(code) if word not in ("...", "|")]
    if words[0] == "pip":
        yield from _faults_of_pip(words[1:])
        return
    group = typer.main.get_command(app)
    assert isinstance(group, typer.core.TyperGroup)
    named = words[1] if words[0] == OURS and len(words) > 1 and re.fullmatch(r"[a-z-]+", words[1]) else "-"
    if not named.startswith("-") and named not in group.commands:
        yield f"{OURS} {named}: no such command"
        return
    command = group if named.startswith("-") else group.commands[named]
    options = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if re.match(r"--?[a-z]", word) and word not in {*options, "--help"}:
            yield f"{code}: no option {word}"
        if word == "-p" and "=" in following and "KEY" not in following:
            yield from _faults_of_override(following)


def faults_of_program(text: str) -> Iterator[str]:
    """Yield what is wrong with a block of Python: it compiles, what it imports is there, with the arguments it names.

    Of modules of ours that import what is not installed, the source is looked at.
    """
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        yield f"line {error.lineno}: {error.msg}"
        return
    froms = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module is not None]
    imported = {alias.asname or alias.name: (node.module, alias.name) for node in froms for alias in node.names}
    modules = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    yield from (f"import {module}: no such module" for module in modules if importlib.util.find_spec(module) is None)
    for module, name in imported.values():
        if _is_ours(module) and not _has(module, name):
            yield f"from {module} import {name}: no such name"
            return
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in imported:
            yield from _faults_of_arguments(node, *imported[node.func.id])


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] == "pbgeval"


def _has(module: str, name: str) -> bool:
    """Whether a module of ours has a name: imported if its libraries are here, else what its source defines."""
    if importlib.util.find_spec(module) is None:
        return False
    try:
        return hasattr(importlib.import_module(module), name)
    except ModuleNotFoundError:
        return any(getattr(node, "name", None) == name for node in _source_of(module).body)


def _source_of(module: str) -> ast.Module:
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    with open(spec.origin, encoding="utf-8") as source:
        return ast.parse(source.read())


def _faults_of_arguments(call: ast.Call, module: str, name: str) -> Iterator[str]:
    """Yield the keywords of a call that a class or function of ours does not take."""
    if not _is_ours(module):
        return
    taken = _arguments_of(module, name)
    for keyword in call.keywords:
        if keyword.arg is not None and taken is not None and keyword.arg not in taken:
            yield f"{name}({keyword.arg}=...): no such argument"


def _arguments_of(module: str, name: str) -> set[str] | None:
    """Return what may be named in a call; None: anything."""
    try:
        signature = inspect.signature(getattr(importlib.import_module(module), name))
    except ModuleNotFoundError:
        made = next(node for node in _source_of(module).body if getattr(node, "name", None) == name)
        functions = [made] if isinstance(made, ast.FunctionDef) else _methods(made)
        return {of.arg for function in functions for of in (*function.args.args, *function.args.kwonlyargs)}
    if any(of.kind is inspect.Parameter.VAR_KEYWORD for of in signature.parameters.values()):
        return None
    return set(signature.parameters)


def _methods(made: ast.stmt) -> list[ast.FunctionDef]:
    assert isinstance(made, ast.ClassDef)
    return [node for node in made.body if isinstance(node, ast.FunctionDef) and node.name == "__init__"]
