"""The command run on a case, and what it leaves.

Use:
    done = run_command(case, "--workers", "1")       # in this process
    done = start_command(case, "--workers", "2")     # as a user would
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import re
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import typer.main
from attrs import frozen

from tests.kit.case import TinyCase
from tests.patience import PATIENCE

T = TypeVar("T")
ONCE = ("--config", "--workers", "--output", "--ranking")  # options that a test may give anew
# The first line of every run.
DEVICES = re.compile(
    r"(CPU, \d+ cores?(: no GPU found by torch)?|\d+ x .*); precision (exact|float64|float32)(: .*)?; .* per query.*"
)
COMMAND = Path(sys.executable).parent / "kgeval-dist"
REPOSITORY = Path(__file__).resolve().parents[2]
# What typer makes of its declarations, a tenth of a small run: once per process here, as it is for users.
command_of = functools.cache(typer.main.get_command)


@frozen
class Done:
    """How a command ended."""

    status: int
    out: str
    err: str

    @property
    def faults(self) -> list[str]:
        """All lines but the one that names the devices and what the run takes."""
        return [line for line in self.err.splitlines() if DEVICES.fullmatch(line) is None]

    @property
    def fault(self) -> str:
        """The only line of a command that was refused: it has printed nothing else."""
        assert (self.status, self.out, len(self.faults)) == (1, "", 1), self.err
        return self.faults[0]

    @property
    def refusal(self) -> str:
        """All lines of a command that was refused."""
        assert (self.status, self.out) == (1, ""), self.err
        return self.err

    @property
    def printed(self) -> str:
        """What a command has printed that succeeded without a word of warning."""
        assert (self.status, self.faults) == (0, [])
        return self.out

    @property
    def warnings(self) -> list[str]:
        """The warnings of a command that succeeded."""
        assert self.status == 0, self.err
        return [line.removeprefix("warning: ") for line in self.faults if line.startswith("warning: ")]


def run_command(case: TinyCase | Path, *arguments: str, cwd: Path | None = None) -> Done:
    """Run the command in this process; of a case, in its folder."""
    config, folder = (case.config, case.root) if isinstance(case, TinyCase) else (case, case.parent)
    return run_main(*last_of_each(["--config", str(config), *arguments]), cwd=cwd or folder)


def last_of_each(arguments: Sequence[str]) -> list[str]:
    """Return arguments without the earlier ones of options that are there twice, which the command refuses."""
    kept: list[str] = []
    rest = list(arguments)
    while rest:
        flag = rest.pop(0)
        if flag in ONCE and flag in rest:
            rest.pop(0)
        else:
            kept.append(flag)
    return kept


def run_main(*arguments: str, cwd: Path) -> Done:
    """Call `main` with these arguments."""
    from pbgeval.cli import main

    out, err = io.StringIO(), io.StringIO()
    status: object = None
    with (
        contextlib.chdir(cwd),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch.object(sys, "argv", ["kgeval-dist", *arguments]),
        mock.patch.object(typer.main, "get_command", command_of),
        mock.patch.dict(os.environ, {"OMP_NUM_THREADS": "1"}),  # two test processes share the cores
    ):
        try:
            main()
        except SystemExit as exit_:
            status = exit_.code
    assert isinstance(status, int), "main ends the process with a number"
    return Done(status, out.getvalue(), err.getvalue())


def start_command(
    case: TinyCase, *arguments: str, environment: Mapping[str, str] | None = None, timeout: float = PATIENCE
) -> Done:
    """Run the installed command as a process, in the case's folder."""
    return start([COMMAND, "--config", case.config, *arguments], case.root, timeout, **(environment or {}))


def start(command: Sequence[str | Path], cwd: Path, timeout: float = PATIENCE, **environment: str) -> Done:
    """Run a program to its end, with more variables in its environment."""
    done = subprocess.run(
        command,
        cwd=cwd,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
    )
    return Done(done.returncode, done.stdout, done.stderr)


def ending_at_import(module: str, variable: str, main: str) -> str:
    """Return a program that runs `main` of a module, and prints a variable and ends once another is first imported."""
    return f"""
import os, sys
class Ending:
    def find_spec(self, name, path=None, target=None):
        if name == "{module}":
            print(os.environ["{variable}"], flush=True)
            os._exit(0)
sys.meta_path.insert(0, Ending())
from {main} import main
main()
"""


def run_program(*command: object, cwd: Path | None = None, **environment: str) -> str:
    """Run a program in which this repository can be imported, and return what it prints; it must succeed."""
    variables = {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    done = start([*map(str, command)], cwd or Path(), **variables | environment)
    assert done.status == 0, done.err
    return done.out


@contextlib.contextmanager
def umask(mask: int) -> Iterator[None]:
    """Let files that this process makes have no more rights than a mask leaves."""
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def flags(overrides: Sequence[str]) -> list[str]:
    """Return settings (`key=value`) as arguments."""
    return [argument for override in overrides for argument in ("-p", override)]


def evaluated(case: TinyCase, *overrides: str, output: str | Path = "output", workers: int = 1) -> dict[str, Any]:
    """Run the command in this process, with some settings changed; return what metrics.json holds."""
    arguments = ("--workers", str(workers), "--quiet", "--output", str(output), *flags(overrides))
    assert run_command(case, *arguments).printed == ""
    return metrics_of(case.root / output)


def undisturbed_numbers(case: TinyCase, output: Path) -> dict[str, str]:
    """Return the numbers of a run of one worker, in this process, that nothing disturbs."""
    assert run_command(case, "--workers", "1", "--quiet", "--output", str(output)).printed == ""
    return numbers_of(output)


def metrics_of(output: Path) -> dict[str, Any]:
    """Return what metrics.json holds."""
    return json.loads((output / "metrics.json").read_text(encoding="utf-8"))


def run_of(output: Path) -> dict[str, Any]:
    """Return what run.json holds."""
    return json.loads((output / "run.json").read_text(encoding="utf-8"))


def numbers_of(output: Path) -> dict[str, str]:
    """Return, as text, all that equal runs must agree on: metrics.json and the tables."""
    return {path.name: path.read_text(encoding="utf-8") for path in [output / "metrics.json", *output.glob("*.csv")]}


def journaled_units(output: Path) -> set[str]:
    """Return the units whose results the journal of an unfinished run holds."""
    entries = [path.read_bytes() for path in (output / "journal").glob("*.unit") if not path.name.startswith(".")]
    return {unit for entry in entries for unit in json.loads(entry.splitlines()[1])["units"]}


def unit_log(output: Path) -> list[dict[str, Any]]:
    """Return the lines of units.jsonl: who began and finished which unit."""
    return [json.loads(line) for line in (output / "units.jsonl").read_text(encoding="utf-8").splitlines()]


def snapshot(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Return content and time of every file below a folder."""
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def contents_and_times(output: Path) -> dict[str, tuple[bytes, int]]:
    """Return what a run that was held up may not change in a finished output directory.

    Of files per edge the time may: all runs write the same in their places, and between a look at the claim and a write
    a run may be held up.
    """
    per_edge = ("ranks", "topk")
    found = snapshot(output).items()
    return {name: (content, 0 if name.startswith(per_edge) else time) for name, (content, time) in found}


@contextlib.contextmanager
def writes_nothing(folder: Path) -> Iterator[None]:
    """Assert that a folder holds the same files, unchanged, and the same folders before and after."""

    def found() -> tuple[object, list[Path]]:
        folders = [path for path in folder.rglob("*") if path.is_dir() and path.name != "__pycache__"]
        return snapshot(folder), sorted(folders)

    before = found()
    yield
    assert before == found()


def lacking(text: str, *words: str) -> list[str]:
    """Return the words that a text does not hold."""
    return [word for word in words if word not in text]


def with_peak(call: Callable[[], T]) -> tuple[T, int]:
    """Return what a call returns, and the most bytes that Python held for it."""
    tracemalloc.start()
    found = call()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return found, peak
