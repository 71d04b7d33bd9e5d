"""Extras in an environment that has the wheel and its core requirements only: one line without them, the thing with."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from attrs import frozen

from tests.installed_wheel import InstalledWheel, extras_of, requirements_of
from tests.kit.case import TinyCase
from tests.kit.commands import Done, evaluated, lacking
from tests.kit.projects import write_suite

pytestmark = pytest.mark.slow

ELSEWHERE = {"s3"}  # tried with the extra by tests/surface/test_object_storage.py

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
YAML = """
import sys
from pathlib import Path
from pbgeval.config.data_files import read_data
from pbgeval.errors import EvalError
try:
    print(read_data(Path("eval.yaml"), b"hits_at: [7]")["hits_at"])
except EvalError as error:
    sys.exit(str(error))
"""
KERNEL = """
import sys, torch
from pbgeval.errors import EvalError
from pbgeval.scoring.self_check import check_kernels
try:
    from pbgeval.scoring import device_scores
    if not device_scores.is_installed():
        check_kernels(torch.device("cuda"))  # asks nothing of a device, where there is no kernel
except EvalError as error:
    sys.exit(str(error))
import pbgeval.scoring.chain_kernels
print("triton")
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


EVALUATION = ("-m", "pbgeval", "--config", "case/eval.py", "--quiet", "--workers", "1", "--output")
USES = {
    "page": Use(
        "report",
        ("-m", "pbgeval", "report", "done"),
        "jinja2 is required to write a page: pip install jinja2",
        lambda folder, _: (
            not lacking((folder / "done" / "report.html").read_text(), "<!DOCTYPE", "<style>", "<script>")
        ),
    ),
    "tensorboard": Use(
        "monitor",
        (*EVALUATION, "noted", "-p", "sinks=tensorboard"),
        "-p sinks=tensorboard: sinks[0]: tensorboard is required for the sink tensorboard: pip install tensorboard",
        lambda folder, _: any((folder / "noted" / "sinks" / "tensorboard").iterdir()),
    ),
    "frame": Use(
        "pandas",
        ("-c", TO_DF),
        "pandas is required for a data frame: pip install pandas",
        lambda _, out: out.splitlines()[-1] == "DataFrame",
    ),
    "seeds": Use(
        "stats",
        ("-m", "pbgeval", "compare", "a=seeds/0", "a=seeds/1", "b=seeds/2", "b=seeds/3"),
        "networkx is required to compare more than two runs: pip install networkx",
        lambda _, out: "p, seeds" in out,
    ),
    "suite": Use(
        "suite",
        ("-m", "pbgeval", "suite", "suite.yaml", "--quiet"),
        "suite.yaml: PyYAML is required to read a suite: pip install pyyaml",
        lambda folder, _: (folder / "results" / "suite" / "suite.html").exists(),
    ),
    "config": Use(
        "yaml",
        ("-c", YAML),
        "eval.yaml: PyYAML is required to read a YAML config: pip install pyyaml",
        lambda _, out: out == "[7]\n",
    ),
    "graph": Use(
        "import",
        ("-m", "pbgeval", "import-graph", "--output", "graph", "--edges", "train=train.tsv"),
        "duckdb is required to read text or Parquet edges: pip install duckdb",
        lambda folder, _: any((folder / "graph").rglob("edges_0_0.h5")),
    ),
    "objects": Use(
        "s3",
        ("-m", "pbgeval", "--config", "case/eval.py", "-p", "checkpoint_path=s3://bucket/checkpoint"),
        "s3://bucket/checkpoint: a package is required for this URL (No module named 'fsspec'): "
        "pip install fsspec s3fs; gcsfs for gs://, adlfs for abfs://",
        lambda folder, _: False,  # tried elsewhere
    ),
    "tables": Use(
        "tables",
        ("-c", TABLES),
        "rows.parquet: pyarrow is required to read vectors from Parquet: pip install pyarrow",
        lambda _, out: out == "3\n",
    ),
    "job": Use(
        "slurm",
        ("-m", "pbgeval", "submit", "--scheduler", "local", "case/eval.py", "--output", "job", "--wait"),
        "submitit is required for kgeval-dist submit: pip install submitit",
        lambda folder, _: json.loads((folder / "job" / "metrics.json").read_text(encoding="utf-8"))["complete"],
    ),
    "kernel": Use(
        "gpu",
        ("-c", KERNEL),
        "triton is required on a GPU: pip install triton, or use device cpu",
        lambda _, out: out == "triton\n",
    ),
}
HERE = [name for name, use in USES.items() if use.extra not in ELSEWHERE]


IMPORTS = """
import importlib, json, pkgutil, pbgeval
missing = {}
for module in pkgutil.walk_packages(pbgeval.__path__, "pbgeval."):
    try:
        importlib.import_module(module.name)
    except ModuleNotFoundError as error:
        missing[module.name] = error.name
print(json.dumps(missing))
"""
# Runs Python with each name's arguments and libraries; writes stdout and stderr to NAME.1 and NAME.2 and prints the
# statuses. A fork has large core requirements already, and imports all else itself.
FORKS = """
import json, os, runpy, sys
import h5py, numba, rich.console, torch, typer
ended = {}
for name, (libraries, arguments) in json.loads(sys.argv[1]).items():
    child = os.fork()
    if child == 0:
        for number in (1, 2):
            os.dup2(os.open(f"{name}.{number}", os.O_WRONLY | os.O_CREAT), number)
        if libraries is not None:
            sys.path.insert(1, libraries)
            os.environ["PYTHONPATH"] = libraries  # for processes that it starts
        flag, what, *sys.argv[1:] = arguments
        if flag == "-m":
            runpy.run_module(what, run_name="__main__", alter_sys=True)
        else:
            exec(what, {"__name__": "__main__"})
        sys.exit()
    ended[name] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print(json.dumps(ended))
"""


@frozen
class Ended:
    """The folder in which all uses were tried, and how they ended."""

    folder: Path
    done: dict[str, Done]


@pytest.fixture(scope="module")
def ended(installed: InstalledWheel, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """Try every use without its extra, then those that are tried here with it."""
    folder = tmp_path_factory.mktemp("uses")
    TinyCase.write(folder / "case", partition_sizes=(9, 8), edges_per_bucket=5, workers=1)
    (folder / "train.tsv").write_text("a\tr\tb\nb\tr\tc\nc\ts\ta\n", encoding="utf-8")
    write_suite(folder / "suite.yaml", {"one": 9})
    for seed in range(4):
        case = TinyCase.write(folder / f"case-{seed}", scale=1.0 + seed)
        same_queries = (f"edge_paths={folder}/case-0/edges", "candidates=all", "save_ranks=True")
        evaluated(case, *same_queries, output=folder / "seeds" / str(seed))
    tried: dict[str, tuple[str | None, tuple[str, ...]]] = {
        "evaluation": (None, (*EVALUATION, "done")),
        "imports": (None, ("-c", IMPORTS)),
    }
    tried |= {f"{name} without": (None, use.arguments) for name, use in USES.items()}
    tried |= {name: (str(installed.libraries_of(USES[name].extra)), USES[name].arguments) for name in HERE}

    statuses = json.loads(installed.run("-c", FORKS, json.dumps(tried), cwd=folder).printed)

    def text(name: str, number: int) -> str:
        return (folder / f"{name}.{number}").read_text(encoding="utf-8")

    return Ended(folder, {name: Done(status, text(name, 1), text(name, 2)) for name, status in statuses.items()})


def test_every_extra_is_tried(installed: InstalledWheel) -> None:
    assert extras_of(installed.wheel) == {use.extra for use in USES.values()}


def test_without_any_extra_a_case_is_evaluated(ended: Ended) -> None:
    assert ended.done["evaluation"].printed == ""


def test_what_needs_an_extra_says_in_one_line_what_to_install(ended: Ended) -> None:
    found = {name: ended.done[f"{name} without"] for name in USES}

    assert {name: (1, [use.missing]) for name, use in USES.items()} == {
        name: (done.status, done.faults) for name, done in found.items()
    }


@pytest.mark.parametrize("name", HERE)
def test_an_extra_brings_all_that_it_is_for(name: str, ended: Ended) -> None:
    done = ended.done[name]

    assert done.status == 0, done.err
    assert USES[name].has_worked(ended.folder, done.out)


def test_all_modules_but_those_of_other_trainers_are_imported_without_any_extra(ended: Ended) -> None:
    assert json.loads(ended.done["imports"].printed) == {
        "pbgeval.scoring.chain_kernels": "triton",
        "pbgeval.scoring.draw_kernels": "triton",
        "pbgeval.scoring.exact_kernels": "triton",
        "pbgeval.scoring.kernels": "triton",
        "pbgeval.scoring.list_kernels": "triton",
        "pbgeval.scoring.pair_kernels": "triton",
        "pbgeval.integrations.lightning": "lightning",
        "pbgeval.integrations.pykeen_training": "pykeen",
        "pbgeval.integrations.torchbiggraph": "torchbiggraph",
    }


def test_a_missing_trainer_is_a_line_that_says_what_to_install(installed: InstalledWheel, tmp_path: Path) -> None:
    done = installed.run("-c", "import pbgeval.integrations.pykeen_training", cwd=tmp_path)
    assert done.err.splitlines()[-1] == (
        "ModuleNotFoundError: pykeen is required for pbgeval.integrations.pykeen_training: pip install pykeen"
    )


def test_libraries_of_extras_are_not_required_by_the_package_itself_and_peers_by_none(
    installed: InstalledWheel,
) -> None:
    wheel, peers = installed.wheel, {"pykeen", "torchbiggraph", "lightning", "openbiolink"}

    assert {of.name for of in requirements_of(wheel)} == {"torch", "numpy", "h5py", "attrs", "typer", "rich", "numba"}
    assert peers & {of.name for extra in extras_of(wheel) for of in requirements_of(wheel, extra)} == set()
