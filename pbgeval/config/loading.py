"""A config file and overrides -> a checked `EvalConfig` with absolute paths, or every fault at once."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
from attrs import define, field, frozen

from pbgeval.config.data_files import is_data, read_data
from pbgeval.config.faults import Fault, KeyPath, is_within, wrong_type
from pbgeval.config.overrides import (
    CONFIG_FOLDER,
    WORKING_DIRECTORY,
    Bases,
    apply_override,
    resolve_paths,
)
from pbgeval.config.schema import (
    OF_MODEL,
    TRAINING_KEYS,
    EntitySchema,
    EvalConfig,
    RelationSchema,
    default_of,
    keys_of,
    types_of,
    unknown_key,
    without_none,
)
from pbgeval.errors import ConfigError, EvalError, Faults
from pbgeval.notation import ENTITY_TYPE
from pbgeval.storage.text import did_you_mean, listed, path_text, read_bytes, show

if TYPE_CHECKING:
    from pbgeval.models.model import EmbeddingModel

# A model of another system, or one in memory -> the keys that it decides: what a config of PBG would have said.

IN_MEMORY = "<in memory>"  # a folder without names of entities


@frozen
class ModelForm:
    """The config keys that a model decides."""

    comparator: str
    operator: str
    dimension: int
    dynamic: bool
    # Name, left type, right type of relations that are not dynamic; of dynamic ones: a name for all.
    relations: Sequence[tuple[str, str, str]]
    entity_path: str  # where names of entities may lie

    @classmethod
    def from_model(cls, model: EmbeddingModel, labels: str | None) -> ModelForm:
        """Describe a model of vectors; `labels` may be a folder with names of its relations, in place of its own.

        Raises:
            StorageError: a file of names cannot be read, or has not one per relation.
        """
        formula = model.formula
        relations: Sequence[tuple[str, str, str]] = model.relation_types or [(ENTITY_TYPE,) * 3]
        if not formula.dynamic and not model.relation_types:
            from pbgeval.models.labels import relation_names_in  # as `open_model`

            folder = Path(str(labels or folder_of_model(model.label)))  # its own files are for the model to read
            given = None if folder == folder_of_model(model.label) else relation_names_in(folder, model.num_relations)
            names = given or model.relation_names() or [f"rel{index}" for index in range(model.num_relations)]
            relations = [(name, ENTITY_TYPE, ENTITY_TYPE) for name in names]
        return cls(
            formula.comparator,
            formula.operator,
            model.dimension,
            model.dynamic,
            relations,
            str(folder_of_model(model.label)),
        )


def folder_of_model(path: str) -> Path:
    """Return the folder that a model is, or that its file is in."""
    return Path(path) if os.path.isdir(path) else Path(path).parent


# A model that is asked for scores by number: each entity is its number.
SCORER = ModelForm("dot", "none", 1, dynamic=True, relations=[(ENTITY_TYPE,) * 3], entity_path=IN_MEMORY)


def with_model_of_path(config: EvalConfig) -> tuple[EvalConfig, list[Fault]]:
    """Fill in the keys that the config's model decides; return the faults of both."""
    if config.model is None:
        return config, []
    unread = with_form(config, SCORER)[0]  # so that no fault is reported for what the model decides
    if not os.path.exists(config.model):  # which `resolve_paths` reports
        return unread, []
    from pbgeval.models.opening import open_model  # here: it imports torch, which other configs need not wait for

    try:
        model = open_model(Path(config.model), config.model_options, trust_pickle=config.trust_pickle)
    except EvalError as error:
        return unread, [Fault("model", fault) for fault in error.faults]
    key = next((name for name in ("entity_path", "dictionary_path") if getattr(config, name)), "model")
    try:
        form = ModelForm.from_model(model, config.entity_path or config.dictionary_path)
    except EvalError as error:
        return unread, [Fault(key, fault) for fault in error.faults]
    return with_form(config, form)


def with_form(config: EvalConfig, form: ModelForm) -> tuple[EvalConfig, list[Fault]]:
    """Fill in the keys that a model decides; return a fault for each key that differs."""
    types = list(dict.fromkeys(name for _, *ends in form.relations for name in ends))
    has_features = any(entity.featurized for entity in config.entities.values())
    if len(types) == 1:
        is_other = len(config.entities) > 1
        message = "one entity type without features; give one such type"
    else:
        is_other = not config.entities.keys() <= set(types)
        message = f"the entity types {listed(types)}, without features; give those"
    faults = []
    if is_other or has_features:
        faults.append(Fault("entities", f"the model has {message}, or remove the key"))
    # The one type of a model may have any name.
    names = dict(zip(types, list(config.entities)[:1] or types if len(types) == 1 else types, strict=True))
    relations = [
        RelationSchema(name=relation or "unnamed", lhs=names[lhs], rhs=names[rhs], operator=form.operator)
        for relation, lhs, rhs in form.relations
    ]
    decided: dict[str, Any] = {
        "comparator": form.comparator,
        "dimension": form.dimension,
        "dynamic_relations": form.dynamic,
        "global_emb": False,
        "max_norm": None,
        "bias": False,
        "relations": relations,
        "checkpoint_path": "",
    }
    has_other_types = bool(faults)
    for key, value in decided.items():
        found = getattr(config, key)
        unset = [] if key in config.given else [default_of(keys_of(EvalConfig)[key])]
        unlike = f"{show(value)}, but the config says {show(found)}" if key != "relations" else "its own relations"
        if found not in (*unset, value, None, [], ""):  # what was filled may be filled again
            faults.append(Fault(key, f"the model has {unlike}; remove the key"))
    if has_other_types:
        return config, faults
    entities = {name: config.entities.get(name, EntitySchema(num_partitions=1)) for name in names.values()}
    decided["entities"] = {name: attrs.evolve(entity, dimension=None) for name, entity in entities.items()}
    decided["entity_path"] = config.entity_path or config.dictionary_path or form.entity_path
    return attrs.evolve(config, **decided), faults


# Plain values -> `EvalConfig`, with all faults of type at once.
#
# Nothing is converted but an int where a number is asked for: "4" is not an int, True is not an int, 1.5 is not cut to
# 1. So that one faulty value does not hide faults elsewhere, it is replaced by a blank and its place is remembered.

_BLANKS = {"num_partitions": 1, "name": "", "lhs": "", "rhs": ""}  # of keys without a default
_FAULTY = object()  # stands for a value of the wrong type
_EXPECTED = {
    bool: "a bool (True or False)",
    int: "an int",
    float: "a number",
    str: "a string",
    list: "a list",
    dict: "a dict",
}
_EXPECTED_OF_KEYS = {"sample_edges": "a number of edges, for example 10000"}


@define
class _Structurer:
    """Makes a config of plain values, and notes their faults and the places of blanks."""

    faults: list[Fault] = field(factory=list)
    blanks: list[KeyPath] = field(factory=list)

    def config(self, raw: Mapping[Any, Any]) -> EvalConfig:
        """Make a config from the plain values of a file or its function."""
        needless = {*raw, *(OF_MODEL if raw.get("model") is not None else ())}
        required = [key for key, spec in keys_of(EvalConfig).items() if default_of(spec) is attrs.NOTHING]
        self.blanks = [(key,) for key in required if key not in needless]
        self.faults = [Fault(path, "this key is required") for path in self.blanks]
        used = {key: value for key, value in raw.items() if key not in TRAINING_KEYS}
        made: EvalConfig = self._schema(EvalConfig, used, ())
        return made

    def all_faults(self, config: EvalConfig, others: Iterable[Fault]) -> list[Fault]:
        """Return the faults of types, then those of the config's values and others that no blank has caused."""
        from pbgeval.config.checks import CHECKS  # here: it imports torch, which --help need not wait for

        return self.faults + [
            fault
            for fault in chain(*(check(config) for check in CHECKS), others)
            if not any(is_within(path, blank) for path in (fault.path, *fault.involved) for blank in self.blanks)
        ]

    def _schema(self, schema: Any, raw: Mapping[Any, Any], path: KeyPath) -> Any:  # noqa: ANN401 (one of our classes)
        """Make one of our classes; a faulty value gets its default, or a blank."""
        known = keys_of(schema)
        values = {}
        for key, spec in known.items():
            if key in raw:
                values[key] = self._value(raw[key], types_of(schema)[key], (*path, key))
            elif spec.default is attrs.NOTHING:
                values[key] = self._refuse((*path, key), "this key is required")
        for key in sorted(raw.keys() - known.keys(), key=str):
            values[key] = self._refuse((*path, key), unknown_key(key, known))
        faulty = [key for key, value in values.items() if value is _FAULTY]
        self.blanks += [(*path, key) for key in faulty]
        blanks = {key: _BLANKS[key] for key in faulty if key in _BLANKS and key in known}
        return schema(**{key: value for key, value in values.items() if value is not _FAULTY}, **blanks)

    def _value(self, value: Any, type_: Any, path: KeyPath) -> Any:  # noqa: ANN401 (any value, any annotation)
        """Return a value, converted, if it is of its type, else `_FAULTY`."""
        required = without_none(type_)
        kind, arguments = typing.get_origin(required) or required, typing.get_args(required)
        if (value is None and required != type_) or kind is object:  # the model that uses an object checks it
            return value
        if kind is list and isinstance(value, list):
            items = [self._value(item, arguments[0], (*path, index)) for index, item in enumerate(value)]
            return _FAULTY if any(item is _FAULTY for item in items) else items
        if kind is dict and isinstance(value, dict):
            named = {name: self._value(item, arguments[1], (*path, name)) for name, item in value.items()}
            if wrong := [name for name in named if not isinstance(name, str)]:
                return self._refuse((*path, wrong[0]), wrong_type("a string", wrong[0]))
            return _FAULTY if any(item is _FAULTY for item in named.values()) else named
        if attrs.has(kind) and isinstance(value, dict):
            return self._schema(kind, value, path)
        if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
            is_finite = -sys.float_info.max <= value <= sys.float_info.max
            return float(value) if is_finite else self._refuse(path, f"expected a finite number, got {show(value)}")
        if type(value) is not kind:
            expected = _EXPECTED_OF_KEYS.get(str(path[-1])) or _EXPECTED.get(kind)
            expected = expected or f"a dict with the keys {', '.join(keys_of(kind))}"
            return self._refuse(path, wrong_type(expected, value))
        if isinstance(value, int) and value.bit_length() > 64:  # which messages could not write, nor arrays hold
            return self._refuse(path, f"expected an int of at most 64 bits, got {show(value)}")
        return value

    def _refuse(self, path: KeyPath, message: str) -> object:
        self.faults.append(Fault(path, message))
        return _FAULTY


def plain(value: object, levels: int = 4) -> Any:  # noqa: ANN401 (the same kind of value)
    """Copy dicts, lists, tuples, paths and our classes as dicts, lists and strings; leave all else as it is.

    Keys of an `EvalConfig` that are not set are left out.

    No key is deeper than `entities.NAME.KEY`: what lies below some levels is left as it is and refused for its type,
    so a list that contains itself has an end.
    """
    if not levels:
        return value
    if isinstance(value, EvalConfig | EntitySchema | RelationSchema):
        given = value.given if isinstance(value, EvalConfig) else keys_of(type(value))
        items = {key: (getattr(value, key), default_of(spec)) for key, spec in keys_of(type(value)).items()}
        value = {
            key: item
            for key, (item, default) in items.items()
            # Lists are copied although they are not set: overrides set their parts.
            if key in given or isinstance(item, list | dict) or type(item) is not type(default) or item != default
        }
    if isinstance(value, Mapping):
        return {key: plain(item, levels - 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, levels - 1) for item in value]
    return os.fspath(value) if isinstance(value, os.PathLike) else value


# A Python config file -> what its function returns; any error in it becomes one line with file and line.

FUNCTIONS = ("get_config", "get_torchbiggraph_config")  # the first that a file defines is called


def run_python_file(source: Path, code: bytes) -> tuple[str, object, Any]:
    """Execute a config file from its own place and call its function.

    The file sees its own `__file__` and can import its neighbours. Nothing is cached: neither bytecode beside it, nor
    the modules beside it, so that two configs of one process do not get each other's neighbours.

    Returns:
        The name of the function that was called, what it returned, and that as plain values.

    Raises:
        ConfigError: If the file has a syntax error, raises an exception, or defines none of the functions.
    """
    with code_of_file(source, code, "config") as module:
        for name in FUNCTIONS:
            if callable(function := getattr(module, name, None)):
                value = function()
                return name, value, plain(value)  # a copy, here: a value of its own classes may raise, too
    raise ConfigError(f"{source.name}: this config file has neither {FUNCTIONS[0]}() nor {FUNCTIONS[1]}()")


@contextmanager
def code_of_file(source: Path, code: bytes, purpose: str) -> Iterator[types.ModuleType]:
    """Execute a user's file and yield its module. It can import its neighbours, as a script can; they are forgotten.

    Args:
        source: the file.
        code: what it holds.
        purpose: a word for the name of the module.

    Raises:
        ConfigError: the file or the context raises an exception; the line names the place in the file.
    """
    module = types.ModuleType(f"pbgeval_{purpose}_{source.stem}")
    module.__file__ = str(source)
    known = set(sys.modules)
    sys.path.insert(0, str(source.parent))
    write_bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    importlib.invalidate_caches()
    try:
        sys.modules[module.__name__] = module  # dataclasses and pickle look it up
        exec(compile(code, str(source), "exec", dont_inherit=True), module.__dict__)
        yield module
    except BaseException as error:
        # Signals of an operator or a scheduler pass; any other exception is the file's own.
        if isinstance(error, KeyboardInterrupt) or type(error).__module__.startswith("pbgeval.cluster."):
            raise
        advice = _other_folder(error, source, purpose)
        raise ConfigError(f"{_place(error, source)}: {_describe(error)}{advice}") from error
    finally:
        sys.dont_write_bytecode = write_bytecode
        if str(source.parent) in sys.path:
            sys.path.remove(str(source.parent))
        for name in set(sys.modules) - known:
            if _is_in(getattr(sys.modules[name], "__file__", None), source.parent):
                del sys.modules[name]


def _is_in(file: str | None, folder: Path) -> bool:
    return file is not None and Path(file).parent == folder


def _place(error: BaseException, source: Path) -> str:
    """Return the file and line to look at: the innermost one in the config's folder."""
    if isinstance(error, SyntaxError) and error.lineno is not None and _is_in(error.filename, source.parent):
        return f"{Path(str(error.filename)).name}:{error.lineno}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_in(frame.filename, source.parent)]
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else source.name


def _other_folder(error: BaseException, source: Path, purpose: str) -> str:
    """Return which folder to run in if a relative path that was not found is a file beside the config."""
    name = error.filename if isinstance(error, FileNotFoundError) else None
    if not isinstance(name, str) or os.path.isabs(name) or not (source.parent / name).exists():
        return ""
    folder = os.path.relpath(source.parent)
    return f"; the {purpose} reads files relative to the working directory: run it in {folder}"


def _describe(error: BaseException) -> str:
    try:
        message = str(error.msg) if isinstance(error, SyntaxError) else str(error)
    except Exception:
        message = "an error that cannot be shown"
    name = "" if isinstance(error, ConfigError) else type(error).__name__
    return ": ".join(filter(None, (name, " ".join(message.split()))))


def load_config(
    config: str | os.PathLike[str] | Mapping[str, Any],
    overrides: Iterable[str] = (),
) -> EvalConfig:
    """Load a config, apply `KEY=VALUE` overrides, check everything.

    Args:
        config: a file or a dict of keys. A file is YAML, TOML or JSON, by the end of its name; or Python with
            `get_config()`, which returns an `EvalConfig` or a dict, or with PBG's `get_torchbiggraph_config()`, which
            returns a dict. Relative paths in a dict are relative to the working directory.
        overrides: change single keys.

    Raises:
        ConfigError: With all faults, a line each, which starts with the name of the file or with `-p KEY=VALUE`.

    Examples:
        >>> import pbgeval
        >>> config = pbgeval.load_config("eval.py", ["hits_at=1,10"])
        >>> config.hits_at
        [1, 10]
    """
    if isinstance(config, Mapping):
        return check_config(config_of_dict(config, overrides))
    shown = path_text(config, "config", "give a config file, a dict of keys or an EvalConfig")
    source, working_directory = Path(os.path.abspath(shown)), Path.cwd()
    raw, is_ours = _read_file(source, shown)
    if is_in_checkpoint := source.name == "config.json" and (source.parent / "checkpoint_version.txt").is_file():
        raw["checkpoint_path"] = str(source.parent)
    applied: list[tuple[KeyPath, str]] = []  # the place that each override changed, and its text
    lines = _apply(raw, overrides, applied)

    def bases_of(key: KeyPath) -> Bases:
        of_user, of_file = (working_directory, WORKING_DIRECTORY), (source.parent, CONFIG_FOLDER)
        if any(is_within(key, path) for path, _ in applied):
            return [of_user]
        return [of_file] if is_ours else [of_user, of_file]

    structurer = _Structurer()
    loaded = structurer.config(raw)
    loaded, missing = resolve_paths(loaded, bases_of, has_model=loaded.model is not None)
    loaded, of_model = with_model_of_path(loaded)
    lines += [_line(fault, source.name, applied) for fault in structurer.all_faults(loaded, [*missing, *of_model])]
    Faults(" ".join(line.split()) for line in lines).raise_any(ConfigError)
    # The folder of a checkpoint tells more than `config`.
    name = source.parent.name if is_in_checkpoint and source.parent.name else source.stem
    ignored = tuple(key for key in TRAINING_KEYS if key in raw)
    shared = frozenset(() if is_ours else raw.keys() - {path[0] for path, _ in applied})
    return attrs.evolve(loaded, name=name, source=source, ignored=ignored, shared=shared)


def _apply(raw: dict[Any, Any], overrides: Iterable[str], applied: list[tuple[KeyPath, str]]) -> list[str]:
    """Apply overrides to plain values, and note the place that each has changed; return the faults, a line each."""
    texts, lines = list(overrides), []
    has_model = raw.get("model") is not None or any(text.partition("=")[0].strip() == "model" for text in texts)
    adds_types = has_model and not raw.get("entities")
    for text in texts:
        try:
            applied.append((apply_override(raw, text, adds_types=adds_types), text))
        except ConfigError as error:
            lines.append(f"-p {text}: {error}")
    return lines


def config_of_dict(settings: Mapping[str, Any], overrides: Iterable[str] = ()) -> EvalConfig:
    """Make a config of a dict, with keys of PBG's for training or without; `check_config` checks the values.

    Raises:
        ConfigError: unknown keys or overrides, a line each.
    """
    raw = plain(settings)
    Faults(_apply(raw, overrides, [])).raise_any(ConfigError)
    config = config_of_keys({key: value for key, value in raw.items() if key not in TRAINING_KEYS})
    return attrs.evolve(config, ignored=tuple(key for key in TRAINING_KEYS if key in raw))


def config_of_keys(settings: Mapping[str, Any], arguments: Iterable[str] = ()) -> EvalConfig:
    """Make a config of keys that a caller gives by name; `check_config` checks their values.

    Args:
        settings: the keys.
        arguments: other names that the caller takes: what is unknown may be one of them, misspelt.

    Raises:
        ConfigError: unknown keys, a line each; the message names the nearest.
    """
    known = keys_of(EvalConfig)
    names = [*known, *arguments]
    unknown = (str(Fault(key, unknown_key(key, names))) for key in settings if key not in known)
    Faults(unknown).raise_any(ConfigError)
    return EvalConfig(**settings)


def typed_config(settings: Mapping[str, Any]) -> EvalConfig:
    """Make a config of some keys, as `config_of_keys` does, and check the types of their values.

    Raises:
        ConfigError: unknown keys, or values of other types, a line each.
    """
    structurer = _Structurer()
    config = structurer.config(plain(config_of_keys(settings)))
    Faults(str(fault) for fault in structurer.faults if fault.path[0] in settings).raise_any(ConfigError)
    return config


def check_config(
    config: EvalConfig, form: ModelForm | None = None, edges: Mapping[str, Iterable[str]] | None = None
) -> EvalConfig:
    """Check a config that was made in Python; relative paths are relative to the working directory.

    Args:
        config: what was made.
        form: of a model in memory, instead of the model that the config names.
        edges: the names of edges in memory by config key, instead of paths.

    Raises:
        ConfigError: With all faults, a line each.
    """
    structurer, here, edges = _Structurer(), Path.cwd(), edges or {}
    no_edges: dict[str, Any] = {key: [] for key in edges}
    named: dict[str, Any] = {key: list(names) for key, names in edges.items()}
    structured = attrs.evolve(structurer.config(plain(config)), **no_edges)
    resolved, missing = resolve_paths(
        structured, lambda _: [(here, WORKING_DIRECTORY)], has_model=structured.model is not None or form is not None
    )
    resolved, of_model = with_model_of_path(resolved) if form is None else with_form(resolved, form)
    resolved = attrs.evolve(resolved, **named, has_vectors=form is not SCORER)
    in_memory = dict.fromkeys(edges, "edges are") | ({} if form is None else {"model": "a model is"})
    twice = [
        Fault(key, f"{what} passed in memory, but the key is {show(getattr(config, key))}; remove it")
        for key, what in in_memory.items()
        if getattr(config, key)
    ]
    faults = structurer.all_faults(resolved, [*missing, *twice, *of_model])
    Faults(" ".join(str(fault).split()) for fault in faults).raise_any(ConfigError)
    return attrs.evolve(resolved, name=config.name, ignored=config.ignored)


def _read_file(source: Path, shown: str) -> tuple[dict[Any, Any], bool]:
    """Return the plain values of a config file, and whether it makes an `EvalConfig`."""
    try:
        content = read_bytes(source)
    except FileNotFoundError:
        raise ConfigError(f"{shown}: no such config file{did_you_mean(shown, os.path.isfile)}") from None
    except IsADirectoryError:
        hint = "; did you mean its config.json?" if (source / "config.json").is_file() else ""
        raise ConfigError(f"{shown} is a folder, not a config file{hint}") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{shown}: cannot read the config file: {reason}") from error
    if is_data(source):
        return plain(read_data(source, content)), source.suffix.lower() != ".json"  # which PBG writes
    if b"\0" in content:
        raise ConfigError(
            f"{source.name}: expected a config file, found binary data; for a model, add -p model={shown} to one"
        )
    function, value, copied = run_python_file(source, content)
    is_ours = function == FUNCTIONS[0]
    if not isinstance(value, (EvalConfig, dict) if is_ours else dict):
        expected = "an EvalConfig or a dict" if is_ours else "a dict"
        raise ConfigError(f"{source.name}: {function}(): {wrong_type(expected, value)}")
    return copied, is_ours


def _line(fault: Fault, file_name: str, applied: Sequence[tuple[KeyPath, str]]) -> str:
    """Name the source of a fault: the last override that set the key or a key that makes it wrong, else the file."""
    for changed, text in reversed(applied):
        if any(is_within(path, changed) for path in (fault.path, *fault.involved)):
            return f"-p {text}: {fault.message if changed == fault.path else fault}"
    return f"{file_name}: {fault}"
