"""The rooms of the house: which module may import which, how long it may grow, what importing it costs."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGE = REPOSITORY / "pbgeval"
MODULES = sorted(PACKAGE.rglob("*.py"))
ROOMS = sorted({path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in MODULES} - {"__init__"})

MAX_FUNCTION_LINES = 60
MAX_MODULE_LINES = 600
MAX_DRIVER_LINES = 200

# What each room may import from outside the standard library. torch.distributed: ruff's TID251 and the test below.
NUMERICS = {"torch", "numpy", "attrs"}
LIBRARIES = {
    "cli": {"typer", "rich"},
    "commands": {"typer", "rich"},
    "report_command": {"typer"},
    "report": {"rich", "numpy", "attrs", "matplotlib", "jinja2", "pandas"},
    "interfaces": NUMERICS | {"pandas", "pykeen", "torchbiggraph", "lightning"},
    "config": {"cattrs", "attrs"},
    "importing": NUMERICS | {"duckdb"},
    "jit": {"numba", "llvmlite", "attrs"},
    "counting": NUMERICS | {"triton"},
    "storage": NUMERICS | {"h5py", "fsspec"},
    "sinks": NUMERICS | {"wandb", "mlflow"},
    "distributed": NUMERICS | {"submitit"},
}


def run_python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=120
    )


def name_of(path: Path) -> str:
    return path.relative_to(REPOSITORY).as_posix()


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports_of(path: Path) -> Iterator[str]:
    """Full names that a module imports, inside functions too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_the_layer_contracts_of_the_import_linter_are_kept() -> None:
    done = run_python(
        "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()", "--no-logo", "--no-cache"
    )

    assert 0 == done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("room", ROOMS)
def test_every_room_is_described_in_the_architecture_document(room: str) -> None:
    document = REPOSITORY / "docs" / "architecture.md"

    assert document.exists(), "docs/architecture.md is missing: it names every module of pbgeval"
    names = (f"`{room}`", f"`{room}/`", f"`{room}.py`", f"{room}.py", f"{room}/")
    assert any(name in document.read_text(encoding="utf-8") for name in names), (
        f"docs/architecture.md does not name {room}: say there what it is for, and give it a layer in .importlinter"
    )


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_room_imports_only_the_libraries_it_may(path: Path) -> None:
    outside = {name.partition(".")[0] for name in imports_of(path)} - sys.stdlib_module_names - {"pbgeval"}

    assert set() == outside - LIBRARIES.get(room_of(path), NUMERICS), (
        f"{name_of(path)} imports a library that its room may not use: see docs/architecture.md"
    )


@pytest.mark.parametrize("path", [path for path in MODULES if room_of(path) != "distributed"], ids=name_of)
def test_only_the_room_distributed_imports_torch_distributed(path: Path) -> None:
    assert [] == [name for name in imports_of(path) if f"{name}.".startswith("torch.distributed.")]


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_no_module_and_no_function_grows_too_long_to_read(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    functions = [
        node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    lengths = {node.name: (node.end_lineno or node.lineno) - node.lineno + 1 for node in functions}

    assert len(source.splitlines()) <= MAX_MODULE_LINES, f"{name_of(path)}: is it still one idea?"
    assert {} == {name: lines for name, lines in lengths.items() if lines > MAX_FUNCTION_LINES}


def test_the_driver_stays_readable_at_one_sitting() -> None:
    assert len((PACKAGE / "driver.py").read_text(encoding="utf-8").splitlines()) <= MAX_DRIVER_LINES


def test_no_module_is_named_after_nothing_in_particular() -> None:
    shapeless = {"util", "utils", "common", "helper", "helpers", "misc"}

    assert [] == [name_of(path) for path in MODULES if path.stem in shapeless or path.parent.name in shapeless]


@pytest.mark.parametrize("module", ["pbgeval", "pbgeval.cli"])
def test_importing_the_package_or_the_command_does_not_import_torch(module: str) -> None:
    done = run_python("-c", f"import sys, {module}; print('torch' in sys.modules)")

    assert (0, "False\n") == (done.returncode, done.stdout), done.stderr
