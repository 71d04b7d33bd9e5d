"""What several tests of one peer share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kit.commands import run_program


@pytest.fixture(scope="session")
def of_pykeen(peer: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folders that the parts of pykeen_programs.py have written."""
    folder = tmp_path_factory.mktemp("pykeen")
    run_program(peer("pykeen") / "python", Path(__file__).with_name("pykeen_programs.py"), folder)
    return folder
