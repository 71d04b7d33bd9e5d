"""A config file and overrides -> a checked `EvalConfig` with absolute paths, or every fault at once."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import re
import sys
import traceback
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any, TypeAlias

import attrs
from attrs import frozen
from cattrs import (
    BaseValidationError,
    ClassValidationError,
    Converter,
    ForbiddenExtraKeysError,
    IterableValidationError,
)
from cattrs.cols import list_structure_factory
from cattrs.gen import make_dict_structure_fn, override

from pbgeval.config.checks import find_faults
from pbgeval.config.faults import Fault, KeyPath, is_within, show, unknown_key, wrong_type
from pbgeval.config.models import Given, with_form, with_model_of_path
from pbgeval.config.overrides import (
    CONFIG_FOLDER,
    WORKING_DIRECTORY,
    Bases,
    Override,
    OverrideError,
    apply_override,
    resolve_paths,
)
from pbgeval.config.schema import TRAINING, EntitySchema, EvalConfig, RelationSchema, default_of, keys_of
from pbgeval.errors import ConfigError
from pbgeval.storage.text import read_bytes

# Plain values -> `EvalConfig`, with all faults of type at once.
#
# Nothing is converted but an int where a number is asked for: "4" is not an int, True is not an int, 1.5 is not cut to
# 1.
# So that one faulty value does not hide faults elsewhere, it is replaced by a blank and its place is remembered.

_Hook: TypeAlias = Callable[[Any, Any], Any]  # (value, type) -> value of that type

_NESTED: Mapping[object, type[attrs.AttrsInstance]] = {"entities": EntitySchema, "relations": RelationSchema}
OF_MODEL = ("entities", "relations", "entity_path", "checkpoint_path")  # required keys that `model` stands for
_BLANKS: Mapping[str, Callable[[], object]] = {
    "entities": dict,
    "relations": list,
    "edge_paths": list,
    "num_partitions": lambda: 1,
}  # of required keys; all others are strings


@frozen
class Structured:
    """A config, and what of it is a blank in the place of a faulty value."""

    config: EvalConfig
    faults: tuple[Fault, ...]
    blanks: tuple[KeyPath, ...]

    def is_blank(self, fault: Fault) -> bool:
        """Tell whether a fault is only a consequence of one already found."""
        return any(is_within(path, blank) for path in (fault.path, *fault.involved) for blank in self.blanks)


def plain(value: object, levels: int = 4) -> object:
    """Copy dicts, lists, tuples, paths and our classes as dicts, lists and strings; leave all else as it is.

    No key is deeper than `entities.NAME.KEY`: what lies below some levels is left as it is and refused for its type,
    so a list that contains itself has an end.
    """
    if not levels:
        return value
    if isinstance(value, EvalConfig | EntitySchema | RelationSchema):
        return {key: plain(getattr(value, key), levels - 1) for key in keys_of(type(value))}
    if isinstance(value, Mapping):
        return {key: plain(item, levels - 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, levels - 1) for item in value]
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def structure(raw: dict[Any, Any]) -> Structured:
    """Make a config of plain values. `raw` is changed: faulty values are taken out."""
    faults = [*_missing(raw)]
    blanks = [fault.path for fault in faults]
    converter = _make_converter()
    try:
        config = converter.structure(raw, EvalConfig)
    except BaseValidationError as error:
        found = list(_faults_of(error, ()))
        faults += found
        blanks += [_blank_out(raw, fault.path) for fault in sorted(found, key=lambda fault: len(fault.path))]
        config = converter.structure(raw, EvalConfig)
    return Structured(config, tuple(faults), tuple(blanks))


def _missing(raw: dict[Any, Any]) -> Iterator[Fault]:
    """Name the required keys that are not there; a model says what most of them would."""
    for key, spec in keys_of(EvalConfig).items():
        is_said = raw.get("model") is not None and key in OF_MODEL
        if default_of(spec) is attrs.NOTHING and key not in raw and not is_said:
            yield Fault((key,), "required key missing")


@functools.cache
def _make_converter() -> Converter:
    """Write code that structures each class: nine tenths of the time that a small config takes, once per process."""
    converter = Converter(detailed_validation=True, forbid_extra_keys=True)
    for type_, expected in ((bool, "a bool (True or False)"), (int, "an int"), (str, "a string")):
        converter.register_structure_hook(type_, _strict(type_, expected))
    converter.register_structure_hook(float, _structure_number)
    converter.register_structure_hook_factory(_is_a(list), _list_hook)
    converter.register_structure_hook_factory(_is_a(dict), _dict_hook)
    for schema in (EntitySchema, RelationSchema, EvalConfig):
        converter.register_structure_hook(schema, _schema_hook(schema, converter))
    return converter


def _strict(type_: type, expected: str) -> _Hook:
    def structure_strictly(value: object, _: object) -> object:
        if type(value) is not type_:
            raise TypeError(wrong_type(expected, value))
        if isinstance(value, int) and value.bit_length() > 64:  # which messages could not write, nor arrays hold
            raise ValueError(f"expected an int of at most 64 bits, got {show(value)}")
        return value

    return structure_strictly


def _structure_number(value: object, _: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(wrong_type("a number", value))
    if not -sys.float_info.max <= value <= sys.float_info.max:
        raise ValueError(f"expected a finite number, got {show(value)}")
    return float(value)


def _is_a(container: type) -> Callable[[object], bool]:
    def is_such(type_: object) -> bool:
        return typing.get_origin(type_) == container

    return is_such


def _list_hook(type_: Any, converter: Converter) -> _Hook:  # noqa: ANN401 (cattrs' signature)
    inner = list_structure_factory(type_, converter)
    return _only_if(list, "a list", inner)


def _dict_hook(type_: Any, converter: Converter) -> _Hook:  # noqa: ANN401 (cattrs' signature)
    return _only_if(dict, "a dict", converter.gen_structure_mapping(type_))


def _schema_hook(schema: type[attrs.AttrsInstance], converter: Converter) -> _Hook:
    hidden = {name: override(omit=True) for name in attrs.fields_dict(schema) if name not in keys_of(schema)}
    inner: _Hook = make_dict_structure_fn(schema, converter, **hidden)  # type: ignore[arg-type]
    return _only_if(dict, f"a dict with the keys {', '.join(keys_of(schema))}", inner)


def _only_if(type_: type, expected: str, inner: _Hook) -> _Hook:
    def structure_it(value: object, target: object) -> object:
        if not isinstance(value, type_):
            raise TypeError(wrong_type(expected, value))
        return inner(value, target)

    return structure_it


def _faults_of(error: Exception, path: KeyPath) -> Iterator[Fault]:
    """Flatten what cattrs collected: one fault per place."""
    if isinstance(error, ClassValidationError):
        for inner, attribute in error.group_exceptions()[0]:
            yield from _faults_of(inner, (*path, attribute.name))
        for other in error.group_exceptions()[1]:
            yield from _faults_of(other, path)
    elif isinstance(error, IterableValidationError):
        for inner, item in error.group_exceptions()[0]:
            yield from _faults_of(inner, (*path, item.index))
    elif isinstance(error, ForbiddenExtraKeysError):
        for key in sorted(error.extra_fields, key=str):
            yield Fault((*path, key), unknown_key(key, keys_of(error.cl)))
    elif isinstance(error, KeyError):
        yield Fault(path, "required key missing")
    else:
        yield Fault(path, str(error))


def _blank_out(raw: dict[Any, Any], path: KeyPath) -> KeyPath:
    """Take the faulty value at `path` out of `raw`, with what encloses it up to a key; return the path of that key."""
    schema: type[attrs.AttrsInstance] = EvalConfig
    owner, depth = raw, 0
    if len(path) > 2 and path[0] in _NESTED:
        if not raw[path[0]]:  # already blanked with all that is in it
            return path[:1]
        schema, owner, depth = _NESTED[path[0]], raw[path[0]][path[1]], 2
    key = path[depth]
    spec = keys_of(schema).get(str(key))
    if spec is not None and default_of(spec) is attrs.NOTHING:
        owner[key] = _BLANKS.get(spec.name, str)()
    else:
        owner.pop(key, None)
    return path[: depth + 1]


# A Python config file -> what its function returns; whatever goes wrong in it becomes one line with file and line.

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
            if isinstance(error, KeyboardInterrupt) or type(error).__module__.startswith("pbgeval.cluster."):
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


@frozen
class _Document:
    """What a config file says, before types are checked."""

    raw: dict[Any, Any]
    is_ours: bool  # it comes from get_config(), not from a PBG dict


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> EvalConfig:
    """Load a config file, apply `KEY=VALUE` overrides, check everything.

    The file is Python with `get_config()`, which returns an `EvalConfig`, or with PBG's `get_torchbiggraph_config()`,
    which returns a dict; or JSON (a name that ends in .json).

    Raises:
        ConfigError: With all faults, a line each, which starts with the name of the file or with `-p KEY=VALUE`.
    """
    source = Path(os.path.abspath(path))
    working_directory = Path.cwd()
    document = _read_document(source, str(path))
    raw = document.raw
    if _is_in_checkpoint(source):
        raw["checkpoint_path"] = str(source.parent)
    applied, lines = _apply_overrides(raw, overrides)
    ignored = _ignored_keys(document)

    structured = structure(raw)
    bases = [(source.parent, CONFIG_FOLDER)]
    if not document.is_ours:
        bases.insert(0, (working_directory, WORKING_DIRECTORY))
    config, missing = resolve_paths(structured.config, Bases(working_directory, tuple(bases)), applied)
    config, of_model = with_model_of_path(config)
    missing = (*missing, *of_model)
    lines += [_line(fault, source.name, applied) for fault in _all_faults(structured, config, missing)]
    if lines:
        raise ConfigError(*(" ".join(line.split()) for line in lines))
    return attrs.evolve(config, name=_name(source), source=source, ignored=ignored)


def check_config(config: EvalConfig, given: Given | None = None) -> EvalConfig:
    """Check a config that was made in Python; relative paths are relative to the working directory.

    Args:
        config: what was made.
        given: what is handed in, in place of what the config's paths would name.

    Raises:
        ConfigError: With all faults, a line each.
    """
    structured = structure(_plain_dict(config))
    here = Path.cwd()
    given = given or Given()
    bases = Bases(here, ((here, WORKING_DIRECTORY),))
    resolved, missing = resolve_paths(given.blanked(structured.config), bases, [], given.paths)
    resolved, of_model = with_model_of_path(resolved) if given.form is None else with_form(resolved, given.form)
    faults = _all_faults(structured, given.named(resolved), (*missing, *given.faults(config), *of_model))
    resolved = given.named(resolved)
    if faults:
        raise ConfigError(*(" ".join(str(fault).split()) for fault in faults))
    return attrs.evolve(resolved, name=config.name, ignored=config.ignored)


def _all_faults(structured: Structured, config: EvalConfig, missing: Iterable[Fault]) -> list[Fault]:
    """Faults of types, then those of values; a value that only stands in for a faulty one is not blamed."""
    consequences = [*find_faults(config), *missing]
    return [*structured.faults, *(fault for fault in consequences if not structured.is_blank(fault))]


def _read_document(source: Path, shown: str) -> _Document:
    try:
        content = read_bytes(source)
    except FileNotFoundError:
        raise ConfigError(f"{shown}: no such config file") from None
    except IsADirectoryError:
        hint = "; did you mean its config.json?" if (source / "config.json").is_file() else ""
        raise ConfigError(f"{shown}: expected a config file, found a directory{hint}") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{shown}: cannot read the config file: {reason}") from error
    if source.suffix.lower() == ".json":
        return _Document(_read_json(source, content), is_ours=False)
    function, value, copied = run_python_file(source, content)
    is_ours = function == "get_config"
    if not isinstance(value, EvalConfig if is_ours else dict):
        expected = "an EvalConfig" if is_ours else "a dict"
        raise ConfigError(f"{source.name}: {function}(): {wrong_type(expected, value)}")
    assert isinstance(copied, dict)
    return _Document(copied, is_ours)


def _read_json(source: Path, content: bytes) -> dict[Any, Any]:
    try:
        value = json.loads(content.decode("utf-8-sig"))
    except json.JSONDecodeError as error:
        raise ConfigError(f"{source.name}:{error.lineno}:{error.colno}: not valid JSON: {error.msg}") from error
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError included
        raise ConfigError(f"{source.name}: not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{source.name}: expected a JSON object, got {show(value)}")
    return _plain_dict(value)


def _plain_dict(value: object) -> dict[Any, Any]:
    copied = plain(value)
    assert isinstance(copied, dict)
    return copied


def _apply_overrides(raw: dict[Any, Any], overrides: Iterable[str]) -> tuple[list[Override], list[str]]:
    applied: list[Override] = []
    lines: list[str] = []
    for text in overrides:
        try:
            applied.append(apply_override(raw, text))
        except OverrideError as error:
            lines.append(f"-p {text}: {error}")
    return applied, lines


def _ignored_keys(document: _Document) -> tuple[str, ...]:
    """The training-only keys that a config sets; of an `EvalConfig`, those that differ from their defaults."""
    training = {key: spec for key, spec in keys_of(EvalConfig).items() if spec.metadata["group"] == TRAINING}
    present = [key for key in training if key in document.raw]
    if document.is_ours:
        present = [key for key in present if document.raw[key] != default_of(training[key])]
    return tuple(present)


def _line(fault: Fault, file_name: str, applied: Sequence[Override]) -> str:
    """Say who is to blame: the last override that set the faulty key or one that makes it faulty, else the file."""
    for last in reversed(applied):
        if last.path == fault.path:
            return f"-p {last.text}: {fault.message}"
        if any(last.sets(path) for path in (fault.path, *fault.involved)):
            return f"-p {last.text}: {fault}"
    return f"{file_name}: {fault}"


def _is_in_checkpoint(source: Path) -> bool:
    return source.name == "config.json" and (source.parent / "checkpoint_version.txt").is_file()


def _name(source: Path) -> str:
    """The name of a config: its file's, or its checkpoint's, which is more telling than `config`."""
    return source.parent.name if _is_in_checkpoint(source) and source.parent.name else source.stem
