"""The rooms of the house: what a module may import, and what importing it costs.

Which module may import which: .importlinter, by scripts/test.
"""

from __future__ import annotations

import ast
import functools
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.commands import REPOSITORY, start

PACKAGE = REPOSITORY / "pbgeval"

MAX_ROOMS = 27

# What each room may import from outside the standard library. torch.distributed: ruff's TID251 and the test below.
NUMERICS = {"torch", "numpy", "attrs"}
LIBRARIES = {
    "cli": {"typer"},
    "command_line": NUMERICS | {"typer"},
    "report": NUMERICS | {"rich", "jinja2", "pandas", "networkx"},
    "suite": NUMERICS | {"yaml"},
    "integrations": NUMERICS | {"pandas", "pykeen", "torchbiggraph", "lightning"},
    "config": {"attrs", "yaml"},
    "importing": NUMERICS | {"duckdb"},
    "jit": {"numba", "llvmlite", "attrs"},
    "scoring": NUMERICS | {"triton"},
    "models": NUMERICS | {"safetensors"},
    "storage": NUMERICS | {"h5py", "fsspec", "pyarrow"},
    "sinks": NUMERICS,
    "cluster": NUMERICS | {"submitit"},
}


@functools.cache
def modules() -> dict[str, ast.Module]:
    """Every module by its path in the package."""
    return {path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}


def room_of(name: str) -> str:
    return name.partition("/")[0].removesuffix(".py")


def imports_of(module: ast.Module) -> Iterator[str]:
    """Full names that a module imports, inside functions too."""
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_every_room_is_described_and_there_are_few() -> None:
    rooms = {room_of(name) for name in modules()} - {"__init__"}
    document = (REPOSITORY / "docs" / "architecture.md").read_text(encoding="utf-8")

    assert {room for room in rooms if f"`{room}/`" not in document and f"`{room}.py`" not in document} == set()
    assert len(rooms) <= MAX_ROOMS


def test_a_room_imports_only_the_libraries_it_may() -> None:
    standard = sys.stdlib_module_names | {"pbgeval"}
    outside = {
        name: {found.partition(".")[0] for found in imports_of(module)} - standard for name, module in modules().items()
    }
    forbidden = {name: used - LIBRARIES.get(room_of(name), NUMERICS) for name, used in outside.items()}

    assert {name: libraries for name, libraries in forbidden.items() if libraries} == {}


@pytest.mark.parametrize(("library", "users"), [("h5py", "storage/hdf5.py"), ("torch.distributed", "cluster/")])
def test_a_library_that_one_place_makes_safe_is_imported_there_alone(library: str, users: str) -> None:
    found = [
        name for name, of in modules().items() if any(f"{used}.".startswith(f"{library}.") for used in imports_of(of))
    ]

    assert found
    assert [name for name in found if not name.startswith(users)] == []


def test_no_module_is_named_after_nothing_in_particular() -> None:
    shapeless = {"util", "utils", "common", "helper", "helpers", "misc"}

    assert [name for name in modules() if shapeless & {Path(name).stem, *Path(name).parent.parts}] == []


@pytest.mark.parametrize("module", ["pbgeval", "pbgeval.cli"])
def test_importing_the_package_or_the_command_does_not_import_torch(module: str) -> None:
    program = f"import sys, {module}; print('torch' in sys.modules)"
    assert start([sys.executable, "-c", program], REPOSITORY).printed == "False\n"


# Rooms that only the command enters; a module with options of its own; help texts of the command.
ONLY_COMMANDS = (
    "cli.py",
    "command_line/",
    "cluster/submit.py",
    "examples/training.py",
    "integrations/torchbiggraph.py",
    "config/schema.py",
)
OF_BOTH = re.compile(r"--(workers|overwrite|output|device)\b(?!\))")  # arguments of `evaluate`; not "output (--output)"


def test_messages_that_name_an_option_of_the_command_name_the_argument_of_python() -> None:
    faults = []
    for path, tree in modules().items():
        if not path.startswith(ONLY_COMMANDS):
            docstrings = {ast.get_docstring(of, clean=False) for of in ast.walk(tree) if isinstance(of, DOCUMENTED)}
            texts = ["".join(_constants(of)) for of in ast.walk(tree) if isinstance(of, ast.JoinedStr | ast.Constant)]
            in_longer = {part for of in ast.walk(tree) if isinstance(of, ast.JoinedStr) for part in _constants(of)}
            faults += [
                (path, text)
                for text in texts
                if text not in docstrings and text not in in_longer
                if OF_BOTH.search(text) and "in Python" not in text and "kgeval-dist" not in text
            ]

    assert faults == []


DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def _constants(node: ast.AST) -> list[str]:
    return [of.value for of in ast.walk(node) if isinstance(of, ast.Constant) and isinstance(of.value, str)]
