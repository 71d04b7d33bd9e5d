"""Pages of documentation -> their blocks of commands and programs, and a reader who follows them from the top.

Use:
    with following("docs/import.md", folder) as reader:
        ...                                      # write what the page takes for given
        reader.paste(2)                          # the next two blocks of commands, in the folder
        names = reader.run({"model": model})     # the next block of Python, with what it takes for given
    # here: every block was run, but for those that need what is not here

Above such a block the page says `*needs X*`, in the paragraph right above it: `test_pages.py` checks its words.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from attrs import define, field, frozen
from markdown_it import MarkdownIt
from markdown_it.token import Token

from tests.kit.commands import COMMAND, run_main

REPOSITORY = Path(__file__).resolve().parents[1]
RUN_LANGUAGES = ("bash", "python")
INDENTED = "indented"  # the language of a block without a fence

_CALL = re.compile(r"^kgeval-dist ([a-z][a-z-]*)", re.MULTILINE)
_SHELL_ONLY = re.compile(r"[$`|&;<>()*?\[\]{}~!]")  # what a shell does not leave as it is


@frozen
class Block:
    """A block of code of a page."""

    page: str  # its path in the repository
    line: int  # of the page, where it begins
    heading: str
    language: str  # what stands behind the fence; INDENTED without a fence
    text: str
    needs: str | None = None  # what is not here where tests run

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def is_run(self) -> bool:
        """Whether a test can run it."""
        return self.language in RUN_LANGUAGES and self.needs is None

    @property
    def commands(self) -> list[str]:
        """The commands of kgeval-dist that it calls, but for the evaluation, which has no name."""
        return _CALL.findall(self.text)


def pages() -> list[str]:
    """Return the pages that users read, as paths in the repository; decisions have no commands to paste."""
    listed = [REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md", *(REPOSITORY / "benchmarks").rglob("*.md")]
    listed += [path for path in (REPOSITORY / "docs").rglob("*.md") if path.parent.name != "decisions"]
    return sorted(path.relative_to(REPOSITORY).as_posix() for path in listed)


@functools.cache
def _tokens(page: str) -> list[Token]:
    return MarkdownIt().enable("table").parse((REPOSITORY / page).read_text(encoding="utf-8"))


def blocks_of(page: str) -> list[Block]:
    """Return all blocks of code of a page, in order."""
    blocks: list[Block] = []
    heading, needs, is_heading = "", None, False
    for token in _tokens(page):
        if token.type == "heading_open":
            is_heading = True
        elif token.type == "inline" and is_heading:
            heading, needs, is_heading = token.content, None, False
        elif token.type == "inline":
            needs = _needs(token.children or [])
        elif token.type in ("fence", "code_block"):
            assert token.map is not None
            language = token.info if token.type == "fence" else INDENTED
            blocks.append(Block(page, token.map[0] + 1, heading, language, token.content, needs))
            needs = None
    return blocks


def _needs(words: Sequence[Token]) -> str | None:
    """Return the X of an emphasised `needs X` of a paragraph."""
    for opening, text in itertools.pairwise(words):
        if opening.type == "em_open" and text.content.startswith("needs "):
            return text.content.removeprefix("needs ")
    return None


def code_in_text(page: str) -> list[str]:
    """Return what stands between backquotes in the sentences and tables of a page."""
    inline = [token for token in _tokens(page) if token.type == "inline"]
    return [word.content for token in inline for word in token.children or [] if word.type == "code_inline"]


def calls_of(text: str) -> list[list[str]] | None:
    """Return the words of each line if all are plain calls of kgeval-dist, of which a shell changes nothing."""
    calls = []
    for line in text.replace("\\\n", " ").splitlines():
        try:
            words = shlex.split(line, comments=True)
        except ValueError:  # quotes that go on in the next line
            return None
        if words and (words[0] != "kgeval-dist" or _SHELL_ONLY.search(" ".join(words))):
            return None
        calls += [words[1:]] if words else []
    return calls


def in_a_shell(text: str, folder: Path) -> str:
    """Paste commands into one shell in a folder, which ends with the first failure; return what they print."""
    path = f"{COMMAND.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", f"set -euo pipefail\n{text}"],
        cwd=folder,
        env=os.environ | {"PATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert 0 == done.returncode, done.stderr
    return done.stdout


@define
class Reader:
    """Somebody who follows a page in a folder, block by block."""

    page: str
    folder: Path
    waiting: list[Block] = field(init=False)  # those that are still to be run, in order

    def __attrs_post_init__(self) -> None:
        self.waiting = [block for block in blocks_of(self.page) if block.is_run]

    def _next(self, language: str) -> Block:
        assert self.waiting, f"{self.page}: no block is left"
        block = self.waiting.pop(0)
        assert language == block.language, f"{block.place}: expected {language}"
        return block

    def paste(self, number: int = 1, folder: Path | None = None) -> str:
        """Paste the next blocks of commands; return what they print.

        Plain calls of kgeval-dist that start no workers are made in this process, which spares the start of Python; all
        else goes to a shell.
        """
        printed = ""
        for _ in range(number):
            block = self._next("bash")
            calls = calls_of(block.text)
            if calls is None or any("--workers" in words for words in calls):
                printed += in_a_shell(block.text, folder or self.folder)
                continue
            with mock.patch("os.cpu_count", return_value=1), mock.patch("pbgeval.evaluation.num_cores", return_value=1):
                for words in calls:  # on a machine of one core, where no workers are started
                    done = run_main(*words, cwd=folder or self.folder)
                    assert 0 == done.status, f"{block.place}: kgeval-dist {shlex.join(words)}: {done.err}"
                    printed += done.out
        return printed

    def paste_all_that_is_left(self) -> str:
        """Paste all further blocks, which are commands, into one shell; return what they print."""
        blocks = [self._next("bash") for _ in range(len(self.waiting))]
        return in_a_shell("\n".join(block.text for block in blocks), self.folder)

    def save(self, name: str) -> Path:
        """Save the next block, which is Python, as a file."""
        path = self.folder / name
        path.write_text(self._next("python").text, encoding="utf-8")
        return path

    def run(self, names: dict[str, Any] | None = None) -> dict[str, Any]:
        """Run the next block, which is Python, with these names; return all names that there are then."""
        block = self._next("python")
        known = dict(names or {})
        with contextlib.chdir(self.folder):
            exec(compile(block.text, block.place, "exec"), known)
        return known


@contextlib.contextmanager
def following(page: str, folder: Path) -> Iterator[Reader]:
    """Follow a page; at the end no block that can be run may be left.

    `test_pages.py` looks for calls of this with the page's name, so it stands there as a literal.
    """
    reader = Reader(page, folder)
    yield reader
    assert [] == [block.place for block in reader.waiting], "these blocks were not run"
