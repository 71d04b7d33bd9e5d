"""Templates of cluster jobs against the schemas of their systems; what hosts run is a command of ours."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import REPOSITORY
from tests.kit.commands import run_main, run_program

pytestmark = pytest.mark.peers

PROGRAM = Path(__file__).with_name("cluster_templates.py")


@pytest.fixture(scope="module")
def found(peer: Callable[[str], Path]) -> dict[str, Any]:
    return json.loads(
        run_program(peer("templates") / "python", PROGRAM, REPOSITORY / "pbgeval" / "examples" / "cluster_jobs")
    )


def test_templates_are_of_their_schemas(found: dict[str, Any]) -> None:
    assert found["faults"] == {"kubeflow_trainer.yaml": [], "jobset.yaml": [], "skypilot.yaml": []}


def test_templates_start_a_command_that_the_program_understands(found: dict[str, Any], tmp_path: Path) -> None:
    for name, command in found["commands"].items():
        words = shlex.split(command) if isinstance(command, str) else command
        assert words[0] == "torchrun", name
        done = run_main(*words[words.index("pbgeval") + 1 :], cwd=tmp_path)

        assert (done.status, done.err) == (1, "/data/eval.py: no such config file\n"), name
