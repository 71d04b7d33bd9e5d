"""Every public name, and every method of a report, has an example in its docstring that gives what it shows."""

from __future__ import annotations

import doctest
import inspect
from pathlib import Path

import pytest

import pbgeval
from tests.kit.case import TinyCase
from tests.kit.reports import write_records

REPORT = pbgeval.Report
# By name: the docstring. Fields have none; examples of other classes than reports show their methods.
DOCSTRINGS = {
    **{name: inspect.getdoc(getattr(pbgeval, name)) for name in pbgeval.__all__ if not name.startswith("_")},
    **{
        f"Report.{name}": text
        for name in dir(REPORT)
        if not name.startswith("_") and (text := inspect.getdoc(inspect.getattr_static(REPORT, name))) is not None
    },
}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a config, results of two checkpoints, and records of a training run."""
    case = TinyCase.write(tmp_path_factory.mktemp("project"), save_ranks=True)
    for name in ("other", "run"):
        pbgeval.evaluate(case.root / "eval.py", output=case.root / "results" / name, workers=1, device="cpu")
        if name == "other":
            case.spoil_embeddings("user", 1, row=3, value=0.5)
    write_records(case.root / "run" / "monitor")
    return case.root


@pytest.mark.parametrize("name", DOCSTRINGS)
def test_the_example_of_a_docstring_gives_what_it_shows(
    name: str, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    given = {"report": pbgeval.Report.read("results/run")}
    said: list[str] = []

    example = doctest.DocTestParser().get_doctest(DOCSTRINGS[name] or "", given, name, None, None)
    outcome = doctest.DocTestRunner(verbose=False).run(example, out=said.append)

    assert outcome.attempted > 0, "no example"
    assert outcome.failed == 0, "".join(said)
