"""What a run imports: torch only to compute; foreign readers and importers of edges by name only where asked for.

And what else makes commands short.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import typer

from pbgeval.cli import app
from pbgeval.errors import EvalError
from tests.kit.case import TinyCase
from tests.kit.commands import REPOSITORY, run_command, run_program, start

NAMES = ("pbgeval.", "torch", "numpy", "h5py", "pydantic")
LOADED = f"print(); print(json.dumps(sorted(name for name in sys.modules if name.startswith({NAMES}))))"
EVALUATION = f"""
import json, sys
import pbgeval
pbgeval.evaluate("eval.py", output="output", workers=1, device="cpu")
{LOADED}
"""
COMMAND = f"""
import json, sys
from pbgeval import cli
try:
    cli.main()
except SystemExit as end:
    assert not end.code, end.code
{LOADED}
"""


def test_a_folder_of_the_same_name_does_not_hide_the_package(tmp_path: Path) -> None:
    """Beside a clone, the folder `pbgeval` is the clone's, not the package."""
    (tmp_path / "pbgeval").mkdir()

    assert run_program(sys.executable, "-c", "import pbgeval; print(pbgeval.evaluate.__name__)", cwd=tmp_path)


def test_an_evaluation_of_buckets_imports_no_importer_and_no_reader_of_foreign_models(tmp_path: Path) -> None:
    case = TinyCase.write(tmp_path, partition_sizes=(9, 8))

    *_, loaded = run_program(sys.executable, "-c", EVALUATION, cwd=case.root).splitlines()
    found = json.loads(loaded)

    unasked = ("pbgeval.importing", "pbgeval.models.opening", "pbgeval.models.arrays", "pbgeval.models.pickles")
    assert "pbgeval.evaluation" in found
    assert [name for name in found if name.startswith(unasked)] == []


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a dataset with two results, `a` and `b`."""
    case = TinyCase.write(tmp_path_factory.mktemp("finished"), partition_sizes=(9, 8), save_ranks=True)
    for output in ("a", "b"):
        done = run_command(case, "--workers", "1", "--quiet", "--output", output)
        assert done.status == 0, done.err
        case.spoil_embeddings("user", 1, row=3, value=0.5)  # so that `b` differs from `a`
    return case.root


@pytest.mark.parametrize(
    ("arguments", "libraries"),
    [
        ("--help", ("numpy", "pydantic")),
        ("report a", ("h5py", "pydantic", "pbgeval.monitor")),
        ("compare a b", ("pydantic", "pbgeval.monitor", "pbgeval.report.charts")),
        *(
            pytest.param(further, (), marks=pytest.mark.slow)
            for further in (
                *("metrics hits@10", "inspect checkpoint", "inspect edges", "--help-config"),
                *("report a --format latex", "compare a b --format html"),
            )
        ),
    ],
)
def test_a_command_that_computes_no_scores_imports_neither_torch_nor_what_it_does_not_need(
    arguments: str, libraries: tuple[str, ...], finished: Path
) -> None:
    *_, loaded = run_program(sys.executable, "-c", COMMAND, *arguments.split(), cwd=finished).splitlines()

    assert [name for name in json.loads(loaded) if name in libraries or name.startswith("torch")] == []


@pytest.mark.parametrize(
    ("arguments", "is_skipped"),
    [("metrics", True), ("report a", True), ("import-graph --edges a=a.tsv -o out", False)],
)
def test_the_last_garbage_collection_is_skipped_where_nothing_needs_it(
    arguments: str, is_skipped: bool, finished: Path
) -> None:
    """Without it, duckdb complains."""
    (finished / "a.tsv").write_text("x\tr\ty\n", encoding="utf-8")
    at_the_end = "import atexit, gc; atexit.register(lambda: print(len(gc.get_objects()) < gc.get_freeze_count()))"
    program = f"{at_the_end}; from pbgeval.__main__ import main; main()"

    done = start([sys.executable, "-c", program, *arguments.split()], finished, PYTHONPATH=str(REPOSITORY))

    assert (done.status, "nanobind" in done.err) == (0, False), done.err
    assert done.out.splitlines()[-1] == str(is_skipped)


TEXTS = ("", "1", "a b", "café", "a\tb", "\udcff", "s3://bucket/a", "-", "cpu", "CPU", "json", "1e-3", "\n")


def test_values_are_read_as_typer_reads_them() -> None:
    """Options and arguments of every command, whichever way they are read."""

    def outcome(read: Callable[[Any, Any], Any], context: Any, value: Any) -> object:
        try:
            return read(context, value)
        except (EvalError, typer.TyperException) as error:
            return type(error), str(error)

    group: Any = typer.main.get_command(app)
    seen = set()
    for name, command in [("", group), *group.commands.items()]:
        context = command.make_context(name, [], resilient_parsing=True)
        for param in command.params:
            if not hasattr(param, "type_descriptor"):
                pytest.skip("this version of typer reads options without pydantic by itself")
            is_list = param.type_descriptor.is_list
            for value in (None, *([[text] for text in TEXTS] if is_list else TEXTS), *([[], ["a", "b"]] * is_list)):
                if param.callback is None:
                    found, expected = (
                        outcome(read, context, value)
                        for read in (param.process_value, partial(type(param).process_value, param))
                    )
                    assert found == expected, (name, param.name, value)
                    assert type(found) is type(expected), (name, param.name, value)
                    seen.add(type(found))
    assert {str, bool, int, float, list, tuple, type(None)} < seen
