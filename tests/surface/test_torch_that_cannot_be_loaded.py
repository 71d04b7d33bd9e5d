"""Where torch cannot be loaded, commands say so in a line."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.kit.commands import REPOSITORY, start

MISSING = "libcublas.so.12: cannot open shared object file: No such file or directory"


@pytest.mark.one_case
@pytest.mark.parametrize("error", ["OSError", "ImportError"])
def test_a_library_of_torch_is_missing(error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(f"raise {error}('first line\\n{MISSING}')\n", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{REPOSITORY}")

    done = start([sys.executable, "-m", "pbgeval", "demo", "folder"], tmp_path)

    assert (done.status, done.err) == (1, f"torch cannot be loaded: {MISSING}; reinstall torch\n")
