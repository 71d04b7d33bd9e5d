"""Plain values -> `EvalConfig`, with all faults of type at once.

Nothing is converted but an int where a number is asked for: "4" is not an int, True is not an int, 1.5 is not cut to 1.
So that one faulty value does not hide faults elsewhere, it is replaced by a blank and its place is remembered.
"""

from __future__ import annotations

import functools
import os
import sys
import typing
from collections.abc import Callable, Iterator, Mapping
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

from pbgeval.config.faults import Fault, KeyPath, is_within, show, unknown_key, wrong_type
from pbgeval.config.fields import default_of, keys_of
from pbgeval.config.schema import EntitySchema, EvalConfig, RelationSchema

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
