"""What several tests of one peer share."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import one_process_at_a_time
from tests.kit.commands import run_program


@pytest.fixture(scope="session")
def of_pykeen(peer: Callable[[str], Path], shared_folder: Path) -> Path:
    """The folders that the parts of pykeen_programs.py have written, once for all test processes."""
    programs, folder = peer("pykeen"), shared_folder / "of_pykeen"
    with one_process_at_a_time(shared_folder / "of_pykeen.lock"):
        if not (folder / "complete").exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            run_program(programs / "python", Path(__file__).with_name("pykeen_programs.py"), folder)
            (folder / "complete").touch()
    return folder
