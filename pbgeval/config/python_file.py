"""A Python config file -> what its function returns; whatever goes wrong in it becomes one line with file and line."""

from __future__ import annotations

import importlib.util
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import SourceFileLoader
from pathlib import Path

import attrs

from pbgeval.config.faults import unknown_key
from pbgeval.config.fields import keys_of
from pbgeval.config.schema import EntitySchema, EvalConfig, RelationSchema
from pbgeval.config.structure import plain
from pbgeval.errors import ConfigError

FUNCTIONS = ("get_config", "get_torchbiggraph_config")  # the first that a file defines is called
_SCHEMAS: dict[str, type[attrs.AttrsInstance]] = {
    schema.__name__: schema for schema in (EvalConfig, EntitySchema, RelationSchema)
}


def run_python_file(source: Path, code: bytes) -> tuple[str, object, object]:
    """Execute a config file from its own place and call its function.

    The file sees its own `__file__` and can import its neighbours. Nothing is cached: neither bytecode beside it, nor
    the modules beside it, so that two configs of one process do not get each other's neighbours.

    Returns:
        The name of the function that was called, what it returned, and that as plain values.

    Raises:
        ConfigError: If the file has a syntax error, raises an exception, or defines none of the functions.
    """
    with _importable(source.parent):
        try:
            name, value = _run(source, code)
            return name, value, plain(value)  # a copy, here: a value of its own classes may raise, too
        except BaseException as error:
            # Not what an operator or a scheduler wants; whatever else a file raises is the file's.
            if isinstance(error, KeyboardInterrupt) or type(error).__module__.startswith("pbgeval.distributed."):
                raise
            raise ConfigError(f"{_place(error, source)}: {_describe(error)}") from error


def _run(source: Path, code: bytes) -> tuple[str, object]:
    module_name = f"pbgeval_config_{source.stem}"
    loader = SourceFileLoader(module_name, str(source))
    spec = importlib.util.spec_from_file_location(module_name, source, loader=loader)
    if spec is None:
        raise ImportError(f"cannot import {source}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses and pickle look it up
    try:
        exec(loader.source_to_code(code, str(source)), module.__dict__)
        for name in FUNCTIONS:
            if callable(function := getattr(module, name, None)):
                return name, function()
    finally:
        del sys.modules[module_name]
    raise _NoFunctionError


class _NoFunctionError(Exception):
    """A file without any of the functions."""


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """Let modules in `folder` be imported, as for a script, and forget them afterwards."""
    known = set(sys.modules)
    sys.path.insert(0, str(folder))
    write_bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.dont_write_bytecode = write_bytecode
        if str(folder) in sys.path:
            sys.path.remove(str(folder))
        for name in set(sys.modules) - known:
            if _is_in(getattr(sys.modules[name], "__file__", None), folder):
                del sys.modules[name]


def _is_in(file: str | None, folder: Path) -> bool:
    return file is not None and Path(file).parent == folder


def _place(error: BaseException, source: Path) -> str:
    """The file and line to look at: the innermost one in the config's folder."""
    if isinstance(error, SyntaxError) and error.lineno is not None and _is_in(error.filename, source.parent):
        return f"{Path(str(error.filename)).name}:{error.lineno}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_in(frame.filename, source.parent)]
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else source.name


def _describe(error: BaseException) -> str:
    if isinstance(error, _NoFunctionError):
        return f"expected a function {FUNCTIONS[0]}() or {FUNCTIONS[1]}(), found neither"
    try:
        message = str(error.msg) if isinstance(error, SyntaxError) else str(error)
    except Exception:
        message = "an error that cannot be shown"
    call = re.match(r"(\w+)\.__init__\(\) (got an unexpected keyword|missing)", message)
    if call and call[1] in _SCHEMAS:
        keys = re.findall(r"'(\w+)'", message)
        told = "required key missing" if call[2] == "missing" else unknown_key(keys[0], keys_of(_SCHEMAS[call[1]]))
        return f"{', '.join(keys)}: {told}"
    return ": ".join(filter(None, (type(error).__name__, " ".join(message.split()))))
