"""Pages of docs/ -> their blocks of commands, and a shell into which they are pasted.

Use:
    blocks = blocks_of(PAGE)                     # ```bash and ```python blocks, in order, with their headings
    done = pasted(blocks, folder)                # those of bash in one shell; kgeval-dist and python are ours

A block that is preceded by a line `<!-- needs X -->` is not for this environment: it has `needs`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from attrs import frozen

from tests.tiny_checkpoint import COMMAND

REPOSITORY = Path(__file__).resolve().parents[1]
_HEADING = re.compile(r"^#{1,3} (.+)$")
_NEEDS = re.compile(r"^<!-- needs (.+) -->$")
_CALL = re.compile(r"^kgeval-dist ([a-z][a-z-]*)", re.MULTILINE)


@frozen
class Block:
    """A fenced block of a page."""

    heading: str
    language: str
    text: str
    needs: str | None = None  # what is not installed where tests run

    @property
    def commands(self) -> list[str]:
        """The commands of kgeval-dist that it calls, but for the evaluation, which has no name."""
        return _CALL.findall(self.text)


def blocks_of(page: Path) -> list[Block]:
    """Return the blocks in bash and Python; a line of three backquotes ends each."""
    blocks: list[Block] = []
    heading, language, needs, lines = "", None, None, []
    for line in page.read_text(encoding="utf-8").splitlines():
        if language is not None:
            if line == "```":
                if language in ("bash", "python"):
                    blocks.append(Block(heading, language, "\n".join(lines) + "\n", needs))
                language, needs = None, None
            else:
                lines.append(line)
        elif line.startswith("```"):
            language, lines = line[3:], []
        elif found := _NEEDS.match(line):
            needs = found[1]
        elif found := _HEADING.match(line):
            heading = found[1]
    assert language is None, f"{page}: a block has no end"
    return blocks


def pasted(blocks: Sequence[Block], folder: Path) -> subprocess.CompletedProcess[str]:
    """Paste the blocks in bash that need nothing else into one shell in `folder`, which ends with the first failure."""
    texts = [block.text for block in blocks if block.language == "bash" and block.needs is None]
    path = f"{COMMAND.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-c", "set -euo pipefail\n" + "\n".join(texts)],
        cwd=folder,
        env=os.environ | {"PATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
