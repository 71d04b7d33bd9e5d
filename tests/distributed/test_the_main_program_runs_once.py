"""Programs that call `evaluate` with several workers: these never run the program, with or without a main guard."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from tests.kit.case import TinyCase
from tests.kit.commands import REPOSITORY, Done, metrics_of, start

BEGIN = """
with open("effects", "a") as effects:
    _ = effects.write("once")

import pbgeval
"""
BARE = f"""{BEGIN}
_ = pbgeval.evaluate("eval.py", output="output", workers=2)

print("done")
"""
GUARDED = f"""{BEGIN}
if __name__ == "__main__":
    pbgeval.evaluate("eval.py", output="output", workers=2)
    print("done")
"""
OBSERVER = """
from pathlib import Path

import pbgeval


class Mine(pbgeval.Observer):
    def started(self, num_edges, rank_in_team):
        Path(f"started_{rank_in_team}").write_text(str(num_edges))

"""
PYTHON = shlex.quote(sys.executable)
WAYS = {
    "script": f"{PYTHON} program.py",
    "standard input": f"{PYTHON} - < program.py",
    "text": f'{PYTHON} -c "$(cat program.py)"',
    "module": f"{PYTHON} -m program",
    "package": f"mkdir package; mv program.py package/__main__.py; {PYTHON} -m package",
    "interactive": f"{PYTHON} -iq < program.py 2> prompts",
}


@pytest.fixture
def case(tmp_path: Path) -> TinyCase:
    return TinyCase.write(tmp_path / "case", partition_sizes=(9, 8))


def run(case: TinyCase, program: str, command: str = WAYS["script"]) -> Done:
    (case.root / "program.py").write_text(program, encoding="utf-8")
    return start(["sh", "-c", command], case.root, PYTHONPATH=str(REPOSITORY), OMP_NUM_THREADS="1")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "way"),
    [*((BARE, way) for way in WAYS), (GUARDED, "script")],
    ids=[*WAYS, "guarded script"],
)
def test_a_program_runs_once_however_it_is_started(case: TinyCase, program: str, way: str) -> None:
    done = run(case, program, WAYS[way])

    assert (done.status, done.out, done.err) == (0, "done\n", "")
    assert (case.root / "effects").read_text() == "once"
    assert metrics_of(case.root / "output")["complete"]


@pytest.mark.slow
def test_an_observer_of_a_module_beside_the_program_reaches_the_workers(case: TinyCase) -> None:
    (case.root / "mine.py").write_text(OBSERVER)
    call = 'pbgeval.evaluate("eval.py", output="output", workers=2, observer=mine.Mine())'

    done = run(case, f"import mine, pbgeval\n{call}\n")

    assert (done.status, done.out, done.err) == (0, "", "")
    assert [(case.root / f"started_{rank}").exists() for rank in range(2)] == [True, True]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (
            "Mine()",
            "Mine is defined in the main program, which workers do not run; move it to a module and import it, or use"
            " workers=1",
        ),
        ("with_attribute(lambda: None)", "<lambda> is defined in the main program, which workers do not run; "),
        ("with_attribute(open('effects'))", "cannot send to another process: cannot pickle"),
        ("of_no_file()", "cannot load in another process: No module named 'of_no_file'; use workers=1"),
    ],
    ids=["of the main program", "with a lambda", "with an open file", "of no file"],
)
def test_an_observer_that_cannot_reach_the_workers_is_one_line(case: TinyCase, made: str, expected: str) -> None:
    program = f"""{BEGIN}{OBSERVER}
import sys, types

def with_attribute(value):
    observer = pbgeval.Observer()
    observer.value = value
    return observer

def of_no_file():
    module = sys.modules["of_no_file"] = types.ModuleType("of_no_file")
    exec(OBSERVER, module.__dict__)
    return module.Mine()

OBSERVER = {OBSERVER!r}
try:
    pbgeval.evaluate("eval.py", output="output", workers=2, observer={made})
except pbgeval.EvalError as error:
    sys.exit(str(error))
"""
    assert run(case, program).fault.startswith(f"workers: {expected}")
    assert (case.root / "effects").read_text() == "once"
    assert not (case.root / "output").exists()
