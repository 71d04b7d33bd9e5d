"""Extras in an environment that has the wheel and its core requirements only: one line without them, the thing with."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from attrs import frozen

from tests.installed_wheel import InstalledWheel, extras_of, requirements_of
from tests.kit.case import TinyCase
from tests.kit.reports import write_records

pytestmark = pytest.mark.slow

TOOLS = {"dev", "browser", "docs", "moto"}  # what tests need; the package asks for none of them
# Tried with the extra by tests/contracts/test_sinks_in_their_libraries.py and tests/surface/test_object_storage.py
ELSEWHERE = {"wandb", "mlflow", "s3"}

TO_DF = """
import sys
from pbgeval import evaluate, load_config
from pbgeval.errors import EvalError
report = evaluate(load_config("case/eval.py"), output="frame", workers=1)
try:
    print(type(report.to_df()).__name__)
except EvalError as error:
    sys.exit(str(error))
"""
KERNEL = """
import sys, torch
from pbgeval.ranking import fused
if not fused.is_installed():
    sys.exit(fused.self_check(torch.device("cuda")))  # asks nothing of a device, where there is no kernel
import pbgeval.ranking.fused_kernel
print(fused.version().split()[0])
"""
TENSORBOARD = """
import sys
from pathlib import Path
from pbgeval.errors import EvalError
from pbgeval.monitor.records import TensorBoardSink
from pbgeval.monitor.records import read_history
try:
    sink = TensorBoardSink("events")
except EvalError as error:
    sys.exit(str(error))
for record in read_history(Path("records"), print).visits:
    sink.append(record)
sink.close()
"""
TABLES = """
import sys
from pathlib import Path
from pbgeval.errors import EvalError
from pbgeval.models.opening import open_model
try:
    import numpy, pyarrow, pyarrow.parquet, safetensors.numpy
    rows = numpy.ones((3, 2), numpy.float32)
    pyarrow.parquet.write_table(pyarrow.table({"vector": list(rows)}), "rows.parquet")
    safetensors.numpy.save_file({"rows": rows}, "rows.safetensors")
except ImportError:
    pass
options = {"model": "distmult", "entities": "rows.parquet", "relations": "rows.safetensors"}
try:
    print(open_model(Path(), options).num_entities)
except EvalError as error:
    sys.exit(str(error))
"""


@frozen
class Use:
    """Something that an extra is for."""

    extra: str
    arguments: tuple[str, ...]  # of Python
    missing: str  # the last line without the extra
    has_worked: Callable[[Path, str], bool]  # with it: by what it left in a folder and printed


def sink(name: str, extra: str) -> Use:
    evaluation = ("-m", "pbgeval", "--config", "case/eval.py", "--quiet", "--workers", "1", "--output", "noted")
    return Use(
        extra,
        (*evaluation, "-p", f"sinks={name}"),
        f"-p sinks={name}: sinks[0]: {name} is required for the sink {name}: pip install 'pbgeval[{extra}]'",
        lambda folder, _: any((folder / "noted" / "sinks" / name).iterdir()),
    )


USES = {
    "page": Use(
        "report",
        ("-m", "pbgeval", "report", "done"),
        "jinja2 is required to write a page: pip install 'pbgeval[report]'",
        lambda folder, _: (folder / "done" / "report.html").is_file(),
    ),
    "events": Use(
        "monitor",
        ("-c", TENSORBOARD),
        "events: tensorboard is required for the sink tensorboard: pip install 'pbgeval[monitor]'",
        lambda folder, _: any((folder / "events").iterdir()),
    ),
    "tensorboard": sink("tensorboard", "monitor"),
    "wandb": sink("wandb", "wandb"),
    "mlflow": sink("mlflow", "mlflow"),
    "frame": Use(
        "pandas",
        ("-c", TO_DF),
        "pandas is required for a data frame: pip install 'pbgeval[pandas]'",
        lambda _, out: out.splitlines()[-1] == "DataFrame",
    ),
    "graph": Use(
        "import",
        ("-m", "pbgeval", "import-graph", "--output", "graph", "--edges", "train=train.tsv"),
        "duckdb is required to read text or Parquet edges: pip install 'pbgeval[import]'",
        lambda folder, _: any((folder / "graph").rglob("edges_0_0.h5")),
    ),
    "objects": Use(
        "s3",
        ("-m", "pbgeval", "--config", "case/eval.py", "-p", "checkpoint_path=s3://bucket/checkpoint"),
        "s3://bucket/checkpoint: a package is required for this URL (No module named 'fsspec'): "
        "pip install 'pbgeval[s3]'",
        lambda folder, _: False,  # tried elsewhere
    ),
    "tables": Use(
        "tables",
        ("-c", TABLES),
        "rows.parquet: pyarrow is required to read vectors from Parquet: pip install 'pbgeval[tables]'",
        lambda _, out: out == "3\n",
    ),
    "job": Use(
        "slurm",
        ("-m", "pbgeval", "submit", "--scheduler", "local", "case/eval.py", "--output", "job", "--wait"),
        "submitit is required for kgeval-dist submit: pip install 'pbgeval[slurm]'",
        lambda folder, _: json.loads((folder / "job" / "metrics.json").read_text(encoding="utf-8"))["complete"],
    ),
    "kernel": Use(
        "gpu",
        ("-c", KERNEL),
        "general: triton is required for the fused kernel: pip install 'pbgeval[gpu]'",
        lambda _, out: out == "triton\n",
    ),
}


@pytest.fixture(scope="module")
def prepared(installed: InstalledWheel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a case, a result of it, records of a training run and a file of edges."""
    folder = tmp_path_factory.mktemp("uses")
    case = TinyCase.write(folder / "case")
    (folder / "train.tsv").write_text("a\tr\tb\nb\tr\tc\nc\ts\ta\n", encoding="utf-8")
    write_records(folder / "records")
    evaluation = ["--config", case.config, "--quiet", "--workers", "1", "--output", "done"]
    assert "" == installed.run("-m", "pbgeval", *evaluation, cwd=folder).printed
    return folder


def test_every_extra_is_tried(installed: InstalledWheel) -> None:
    assert extras_of(installed.wheel) == {use.extra for use in USES.values()} | TOOLS


@pytest.mark.parametrize("name", USES)
def test_what_needs_an_extra_says_in_one_line_what_to_install(
    name: str, installed: InstalledWheel, prepared: Path
) -> None:
    done = installed.run(*USES[name].arguments, cwd=prepared)
    assert (1, [USES[name].missing]) == (done.status, done.faults)


@pytest.mark.parametrize("name", [name for name, use in USES.items() if use.extra not in ELSEWHERE])
def test_an_extra_brings_all_that_it_is_for(name: str, installed: InstalledWheel, prepared: Path) -> None:
    use = USES[name]
    done = installed.run(*use.arguments, cwd=prepared, extra=use.extra)

    assert 0 == done.status, done.err
    assert use.has_worked(prepared, done.out)


def test_all_modules_but_those_of_other_trainers_are_imported_without_any_extra(
    installed: InstalledWheel, tmp_path: Path
) -> None:
    program = """
import importlib, json, pkgutil, pbgeval
missing = {}
for module in pkgutil.walk_packages(pbgeval.__path__, "pbgeval."):
    try:
        importlib.import_module(module.name)
    except ModuleNotFoundError as error:
        missing[module.name] = error.name
print(json.dumps(missing))
"""
    assert {
        "pbgeval.ranking.fused_kernel": "triton",
        "pbgeval.integrations.lightning": "lightning",
        "pbgeval.integrations.pykeen_evaluator": "pykeen",
        "pbgeval.integrations.pykeen_training": "pykeen",
        "pbgeval.integrations.torchbiggraph": "torchbiggraph",
    } == json.loads(installed.run("-c", program, cwd=tmp_path).printed)


def test_a_missing_trainer_is_a_line_that_says_what_to_install(installed: InstalledWheel, tmp_path: Path) -> None:
    for module in ("pykeen_evaluator", "pykeen_training"):
        done = installed.run("-c", f"import pbgeval.integrations.{module}", cwd=tmp_path)
        assert done.err.splitlines()[-1] == (
            f"ModuleNotFoundError: pykeen is required for pbgeval.integrations.{module}: pip install pykeen"
        )


def test_libraries_of_extras_are_not_required_by_the_package_itself_and_peers_by_none(
    installed: InstalledWheel,
) -> None:
    wheel, peers = installed.wheel, {"pykeen", "torchbiggraph", "lightning", "openbiolink"}

    assert {"torch", "numpy", "h5py", "attrs", "typer", "rich", "numba"} == {of.name for of in requirements_of(wheel)}
    assert set() == peers & {of.name for extra in extras_of(wheel) for of in requirements_of(wheel, extra)}
