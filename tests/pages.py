"""Pages of documentation -> their blocks of code, which Sybil finds and runs.

Blocks of Python share the names of their page. Blocks of bash are pasted. A block whose first line is `# NAME.py`, or
`# NAME.toml` or `# NAME.yaml`, is saved as that file. A block that needs what is not here has
`<!-- skip: next "needs X" -->` above it, and `test_pages.py` checks its words.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest import SkipTest, mock

from attrs import frozen
from sybil import Document, Example, Sybil
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.markdown import CodeBlockParser, SkipParser

from tests.kit.commands import COMMAND, REPOSITORY, run_main, start

LANGUAGES = ("bash", "python", "text", "toml", "yaml")
_SAVED = re.compile(r"# ([\w/]+\.(?:py|toml|yaml))\n")
_SHELL_ONLY = re.compile(r"[$`|&;<>()*?\[\]{}~!]")  # what a shell does not leave as it is


def run_python(example: Example) -> None:
    """Save the block if its first line names a file; else run it."""
    name = _SAVED.match(example.parsed)
    if name:
        Path(name[1]).write_text(example.parsed, encoding="utf-8")
    else:
        PythonEvaluator()(example)


def save(example: Example) -> None:
    """Save the block as the file that its first line names."""
    name = _SAVED.match(example.parsed)
    assert name, f"{example.path}:{example.line}: expected the name of a file in the first line: # NAME.toml"
    Path(name[1]).write_text(example.parsed, encoding="utf-8")


def paste(example: Example) -> None:
    """Run commands: in this process, with one worker, where all are plain calls of kgeval-dist, else in a shell.

    A limit of memory counts what a process holds already, which here are all libraries of the tests before it.
    """
    calls = calls_of(example.parsed)
    if calls is None or "max_memory" in example.parsed:
        *_, folder = in_a_shell(f"{example.parsed}\npwd", Path.cwd()).splitlines()
        os.chdir(folder)  # the next block goes on where this one ends
        return
    with mock.patch("os.cpu_count", return_value=1), mock.patch("pbgeval.evaluation.num_cores", return_value=1):
        for words in calls:  # on a machine of one core, where no workers are started
            if "--workers" in words:
                words[words.index("--workers") + 1] = "1"
            done = run_main(*words, cwd=Path.cwd())
            assert done.status == 0, f"kgeval-dist {shlex.join(words)}: {done.err}"


def calls_of(text: str) -> list[list[str]] | None:
    """Return the words of each line if all are calls of kgeval-dist that a shell would not change."""
    try:
        calls = [shlex.split(line, comments=True) for line in text.replace("\\\n", " ").splitlines()]
    except ValueError:  # quotes that go on in the next line
        return None
    if any(words and (words[0] != "kgeval-dist" or _SHELL_ONLY.search(" ".join(words))) for words in calls):
        return None
    return [words[1:] for words in calls if words]


def in_a_shell(text: str, folder: Path) -> str:
    """Paste commands into a shell in a folder, which stops at the first failure; return what they print."""
    path = f"{COMMAND.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = start(["bash", "-c", f"set -euo pipefail\n{text}"], folder, PATH=path, OMP_NUM_THREADS="1")
    assert done.status == 0, done.err
    return done.out


SYBIL = Sybil(
    [
        CodeBlockParser("python", run_python),
        CodeBlockParser("bash", paste),
        CodeBlockParser("toml", save),
        CodeBlockParser("yaml", save),
        CodeBlockParser("text", lambda example: None),
        SkipParser(),
    ]
)


def document_of(page: str) -> Document:
    return SYBIL.parse(REPOSITORY / page)


def run_page(page: str, names: dict[str, object]) -> None:
    """Run all blocks of a page in the working directory.

    Args:
        page: its path in the repository.
        names: what its Python takes as given; at the end, all names that there are.

    Raises:
        Exception: what a block raises, or that it printed an error.
    """
    document = document_of(page)
    document.namespace = names
    for example in document.examples():
        try:
            example.evaluate()
        except SkipTest:
            continue
        except BaseException as error:
            error.add_note(f"{page}:{example.line}")
            raise


@frozen
class Block:
    """A block of code of a page."""

    page: str  # its path in the repository
    line: int
    language: str
    text: str
    needs: str | None = None  # what is not here where tests run

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def is_run(self) -> bool:
        return self.language in ("bash", "python") and self.needs is None


def blocks_of(page: str) -> Iterator[Block]:
    """Yield all blocks of code of a page, in order."""
    needs = None
    for example in document_of(page).examples():
        if isinstance(example.parsed, tuple):  # a directive
            action, reason = example.parsed
            assert (action, bool(reason)) == ("next", True), f'{page}:{example.line}: expected skip: next "needs X"'
            needs = reason.strip().strip('"').removeprefix("needs ")
            continue
        yield Block(page, example.line, example.region.lexemes["arguments"], example.parsed, needs)
        needs = None


def shown_texts(page: str) -> list[str]:
    """Return the blocks of a page that are neither run nor commands: files and output."""
    return [block.text for block in blocks_of(page) if block.language == "text"]


def pages() -> list[str]:
    """Return the pages that users read, as paths in the repository; decisions have no commands to paste."""
    listed = [
        REPOSITORY / "README.md",
        REPOSITORY / "PACKAGE.md",
        REPOSITORY / "CONTRIBUTING.md",
        *(REPOSITORY / "benchmarks").rglob("*.md"),
    ]
    listed += [path for path in (REPOSITORY / "docs").rglob("*.md") if path.parent.name != "decisions"]
    generated = {"config.md", "metrics_list.md", "command_line.md", "python.md"}
    return sorted(path.relative_to(REPOSITORY).as_posix() for path in listed if path.name not in generated)
