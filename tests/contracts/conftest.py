"""What several tests of one peer share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import made_once
from tests.kit.commands import run_program


@pytest.fixture(scope="session")
def of_pykeen(peer: Callable[[str], Path], shared_folder: Path) -> Path:
    """The folders that the parts of pykeen_programs.py have written, once for all test processes."""
    programs, ours = peer("pykeen"), Path(__file__).with_name("pykeen_programs.py")
    return made_once(shared_folder / "of_pykeen", lambda folder: run_program(programs / "python", ours, folder))
