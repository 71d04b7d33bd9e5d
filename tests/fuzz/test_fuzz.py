"""No damaged or hostile input gives a traceback, a hang, gigabytes, pages of messages, or a wrong figure."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.examples import examples
from tests.fuzz.mutations import KINDS

SEED = 17
CASES_PER_TEST = 40
REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[subprocess.Popen[str]]:
    """A process that runs cases: it has imported everything, and forks one child per case."""
    command = [sys.executable, "-m", "tests.fuzz.runner"]
    log = tmp_path_factory.mktemp("fuzz") / "runner.log"
    with (
        log.open("w") as errors,
        subprocess.Popen(
            command, cwd=REPOSITORY, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
        ) as process,
    ):
        yield process


NUM_CASES = {name: examples(kind.num_cases) for name, kind in KINDS.items()}
BATCHES = [
    pytest.param(name, range(first, min(first + CASES_PER_TEST, number)), id=f"{name} from {first}")
    for name, number in NUM_CASES.items()
    for first in range(0, number, CASES_PER_TEST)
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "indices"), BATCHES)
def test_a_damaged_input_is_refused_or_does_not_matter(
    runner: subprocess.Popen[str], kind: str, indices: range
) -> None:
    faults = []
    for index in indices:
        assert runner.stdin is not None
        assert runner.stdout is not None
        runner.stdin.write(f"{kind} {SEED} {index}\n")
        runner.stdin.flush()
        done = json.loads(runner.stdout.readline())
        if done["fault"] is not None:
            faults.append(f"{done['fault']}; {done['case'][2:]}\n    python -m tests.fuzz.runner {kind} {SEED} {index}")

    assert not faults, "\n".join([f"{len(faults)} of {len(indices)} cases of {kind}:", *faults])
