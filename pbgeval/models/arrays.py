"""Open tables of vectors with a description: arrays, tensor files, checkpoints of torch.distributed.

The description is model.json in the folder, or `model_options` in a config. What it does not say:

    a folder with model.json     entity.npy and relation.npy, as pbgeval/examples/export_*.py write
                                 them, and optional entities.tsv and relations.tsv: one label per line in the order of
                                 the rows, or id<TAB>label
    a KGEModel of PyG's          node_emb.weight, rel_emb.weight and their imaginary parts (torch_geometric.nn.kge 2.8)
    GiGL and TorchRec            embedding_bags.TYPE.weight, src_operator and dst_operator (GiGL's
                                 HeterogeneousGraphSparseEmbeddingModel, lib/model/operators.py)

Complex vectors (complex, rotate) are real parts, then imaginary parts. A rotate relation is a row of phases.
"""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from pbgeval.errors import StorageError
from pbgeval.models.formulas import OPERATORS, SIDE_OPERATORS, SIMILARITIES, Formula, TwoOperators
from pbgeval.models.labels import OF_RELATIONS, labels_beside, labels_by_type
from pbgeval.models.model import EmbeddingModel, TypedRelations
from pbgeval.models.tensors import SHARDS, Tensors, is_checkpoint, table_at, tensors_of
from pbgeval.notation import ENTITY_TYPE
from pbgeval.storage.arrays import Shard, ShardedRows, Table, sharded
from pbgeval.storage.json_files import read_object
from pbgeval.storage.text import listed, one_line

DESCRIPTION = "model.json"
RELATIONS = "relation.npy"
_PLACES = (  # keys that name files
    *("entities", "relations", "source_relations", "destination_relations", "id_maps"),
    *("entity_labels", "relation_labels"),
)
EXAMPLE = '{"model": "complex"}'
_KEYS: Mapping[str, type | tuple[type, ...]] = {
    "model": str,
    "reciprocal": bool,
    "norm": int,
    "phase_unit": (int, float),
    "clamped": bool,
    "gamma": (int, float),  # of rotate, where phases are relations * pi / (gamma / columns)
    "unit_norm": int,  # entity rows are divided by this norm of theirs
    "entities": (str, list, dict),  # of one type, or by type: `FILE#NAME`, or a list of them, side by side
    "relations": (str, list),
    "relation_types": list,  # [name, left type, right type] of each relation
    "source": str,  # operators of either side, and how what they make is compared
    "destination": str,
    "similarity": str,
    "source_relations": str,  # the tables of their parameters
    "destination_relations": str,
    "entity_labels": (str, dict),  # a file of labels, or one by type
    "relation_labels": str,
    "id_maps": str,  # GraphStorm's folder raw_id_mappings
    "num_files": int,  # shards of safetensors
}
_TABLES = {
    "entities",
    "entity_labels",
    "relation_labels",
    "relation_types",
    "unit_norm",
    "num_files",
}  # keys of all tables of vectors
_RELATIONAL = OPERATORS.keys() - {"dot"}
_FORMULAS: Mapping[str, Collection[str]] = {  # keys of some formulas
    "norm": {"transe", "rotate"},
    "reciprocal": _RELATIONAL,
    "phase_unit": {"rotate"},
    "clamped": {"simple"},
    "gamma": {"rotate"},
    "relations": _RELATIONAL,
}
_NORMLESS = OPERATORS.keys() - _FORMULAS["norm"]
_NODES, _BAG = "node_emb.weight", re.compile(r"(?:^|\.)embedding(?:_bag)?s\.([^.]+)\.weight$")
_MODULES = {"source": "src_operator", "destination": "dst_operator"}
_WEIGHT = "edge_type_embeddings.weight"
_WEIGHTS = {"linear": "edge_type_projection"}


def read_description(path: Path, options: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the folder's model.json with the options of a config, which win.

    Raises:
        StorageError: a key is unknown, or a value of the wrong type.
    """
    file = path / DESCRIPTION
    from_file = read_object(file, "a description of a model") if file.is_file() else {}
    for where, given in ((str(file), from_file), ("model_options", options)):
        for key, value in given.items():
            what = f"wrong value of {key}: {one_line(value)}" if key in _KEYS else f"unknown key {one_line(key)}"
            if key not in _KEYS or not isinstance(value, _KEYS[key]):
                raise StorageError(f"{where}: {what}; the keys are {', '.join(_KEYS)}, such as {EXAMPLE}")
            if key in ("norm", "unit_norm") and value not in (1, 2):
                raise StorageError(f"{where}: {key} must be 1 or 2, got {one_line(value)}")
            if isinstance(value, int | float) and not abs(value) <= sys.float_info.max:  # NaN, and integers beyond
                raise StorageError(f"{where}: {key} must be a finite number, got {one_line(value)}")
    named = [from_file.get(key) for key in _PLACES if key not in options]
    for one in named:  # it grows
        if isinstance(one, list | dict):
            named.extend(one.values() if isinstance(one, dict) else one)
        elif isinstance(one, str) and (os.path.isabs(one) or os.pardir in Path(one).parts):
            raise StorageError(
                f"{file}: expected files in its folder, found {one_line(one)}; name others in model_options"
            )
    described = {**from_file, **options}
    if "norm" not in options and described.get("norm") == 1 and described.get("model") in _NORMLESS:
        del described["norm"]  # scripts/export_*.py write it for every model
    return described


def refuse_unused(path: Path, options: Mapping[str, Any], used: Collection[str], model: str) -> None:
    """Refuse what a description says without effect.

    Args:
        path: the model.
        options: the description.
        used: the keys that have an effect.
        model: on what the others have none.

    Raises:
        StorageError: there is another key.
    """
    unused = next((key for key in options if key not in used), None)
    if unused is not None:
        file = path / DESCRIPTION
        is_of_file = file.is_file() and unused in read_object(file, "a description of a model")
        raise StorageError(f"{file if is_of_file else 'model_options'}: {unused} has no effect on {model}; remove it")


def open_arrays(path: Path, options: Mapping[str, Any]) -> EmbeddingModel:
    """Open tables of vectors.

    Args:
        path: a folder with files of tables, one such file, or a checkpoint of torch.distributed.
        options: the description.

    Raises:
        StorageError: a table is missing or has the wrong form, or the description is not one of a model.
    """
    tensors = None if path.is_dir() and not is_checkpoint(path) else tensors_of(path, options.get("num_files"))
    if tensors is None and "entities" not in options and not os.path.exists(path / "entity.npy"):
        raise StorageError(
            f"{path}: expected entity.npy, emb_info.json (GraphStorm) or .metadata (torch.distributed), found none of "
            "them in this folder; copy them here, or set entities in model_options"
        )
    system = "arrays" if tensors is None else "tensors"
    if tensors is not None and any(name.endswith(_NODES) for name in tensors):
        system = "pyg"
    _check_effects(path, options, system)
    if tensors is not None and system == "pyg":
        options = {**_pyg_options(path, tensors, options), **options}
    where = str(path / DESCRIPTION if tensors is None and not options.get("entities") else path)
    tables = _entities(path, options, tensors)
    dimension = next(iter(tables.values())).dimension  # of all types
    numbers: dict[str, Path | Iterable[object]] = {name: range(table.num_rows) for name, table in tables.items()}
    types = relation_types_of(where, options, list(tables))
    if "source" in options or "destination" in options:
        operators = _two_operators(where, options)
        parameters = _parameters_of_sides(path, options, operators, tensors)
        operators.check(where, dimension, {side: table.dimension for side, table in parameters.items()})
        types = types or untyped_relations(where, parameters, list(tables))
        _check_relations(where, types, parameters, options)
        names = numbers | _labels(path, options, list(tables))[0]
        return EmbeddingModel(str(path), "gigl", operators, tables, parameters, names, None, types)
    formula = formula_of(where, options, dimension)
    parameters = {}
    if formula.kind != "dot":
        if tensors is None and "relations" not in options and not (path / RELATIONS).exists():
            raise StorageError(
                f"{path / RELATIONS}: no such file; name the table of relations by the key relations of model_options"
            )
        relations = parameters["relations"] = _table(path, options.get("relations", RELATIONS), tensors)
        formula.check(str(path), dimension, relations.dimension, relations.num_rows)
    types = types or (untyped_relations(where, {}, list(tables)) if formula.kind == "dot" or len(tables) > 1 else ())
    _check_relations(where, types, parameters, options)
    if types and formula.reciprocal:
        raise StorageError(f"{where}: reciprocal relations have one entity type; remove relation_types")
    entity_labels, relation_labels = _labels(path, options, list(tables))
    has_no_names = tensors is not None or bool(options.get("entities"))  # then edges by name have the numbers of rows
    num_relations = formula.num_relations(parameters["relations"].num_rows) if parameters else 0
    relation_names = relation_labels or (tuple(map(str, range(num_relations))) if has_no_names else None)
    entity_names = (numbers if has_no_names else {}) | entity_labels
    return EmbeddingModel(str(path), system, formula, tables, parameters, entity_names, relation_names, types)


def _labels(path: Path, options: Mapping[str, Any], types: Sequence[str]) -> tuple[dict[str, Path], Path | None]:
    """Return the files of labels that a description names or the folder has: by entity type, and of relations.

    Raises:
        StorageError: one that is named is not there, or its type is not.
    """
    folder = path if path.is_dir() else path.parent
    named = options.get("entity_labels", {})
    named = named if isinstance(named, dict) else dict.fromkeys(types, named)
    relations = options.get("relation_labels")
    for key, name, of_type in (
        *(("entity_labels", file, name) for name, file in named.items()),
        ("relation_labels", relations, types[0]),
    ):
        if of_type not in types:
            raise StorageError(f"{path}: {key}: {one_line(of_type)} is none of the entity types {listed(list(types))}")
        if name is not None and not isinstance(name, str):
            raise StorageError(f"{path}: {key}: expected a file, found {one_line(name)}")
        if isinstance(name, str) and not os.path.isfile(folder / name):
            raise StorageError(f"{folder / str(name)}: no such file, which {key} names")
    entities = labels_by_type(folder, types) | {name: folder / file for name, file in named.items()}
    return entities, labels_beside(folder, OF_RELATIONS) if relations is None else folder / relations


def _check_effects(path: Path, options: Mapping[str, Any], system: str) -> None:
    """Refuse options without effect on the model that the others describe."""
    if not path.is_dir() or not any(path.glob(SHARDS)):
        refuse_unused(path, options, _KEYS.keys() - {"num_files"}, f"a model without {SHARDS}")
    if "source" in options or "destination" in options:
        chosen = {side: options.get(side, "identity") for side in _MODULES}
        tables = {f"{side}_relations" for side, name in chosen.items() if name.lower() != "identity"}
        model = f"the operators {one_line(chosen['source'])} and {one_line(chosen['destination'])}"
        refuse_unused(path, options, {*_TABLES, *_MODULES, "similarity", *tables}, model)
        return
    kind = options.get("model")
    if kind in OPERATORS:  # another one is refused when its formula is made
        has_gamma = kind == "rotate" and "gamma" in options
        without = {"phase_unit": has_gamma, "norm": system == "pyg" and kind == "rotate"}
        keys = (key for key, kinds in _FORMULAS.items() if kind in kinds and not without.get(key))
        model = f"{kind}{' of PyG' if system == 'pyg' else ''}{' with gamma' if has_gamma else ''}"
        refuse_unused(path, options, {"model", *_TABLES, *keys}, model)


def _pyg_options(path: Path, tensors: Tensors, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return how torch_geometric.nn.kge's models score: RotatE takes one norm of all numbers.

    TransE divides entities by the norm that measures distances. Imaginary parts are tables of their own.
    """
    kind = options.get("model")
    for key, name, kinds in (
        ("entities", "node_emb_im.weight", ("complex", "rotate")),
        ("relations", "rel_emb_im.weight", ("complex",)),
    ):
        is_unlike = _holds(tensors, name) != (kind in kinds)
        if kind in OPERATORS and key not in options and is_unlike:
            missing = f"expected {name}, which {kind} of PyG has, found none"
            fault = missing if kind in kinds else f"found {name}, which {kind} of PyG has not"
            raise StorageError(f"{path}: {fault}; check model")
    norms = {"transe": {"unit_norm": options.get("norm", 1)}, "rotate": {"norm": 2}}
    tables = {
        key: [f"#{name}.weight" for name in (real, f"{real}_im") if name == real or _holds(tensors, f"{name}.weight")]
        for key, real in (("entities", "node_emb"), ("relations", "rel_emb"))
    }
    return {**tables, **norms.get(str(kind), {})}


def _holds(tensors: Tensors, name: str) -> bool:
    return any(key == name or key.endswith(f".{name}") for key in tensors)


def _entities(path: Path, options: Mapping[str, Any], tensors: Tensors | None) -> dict[str, Table]:
    bags = {found[1]: f"#{name}" for name in sorted(tensors or {}) if (found := _BAG.search(name))}
    addresses = options.get("entities", "entity.npy" if tensors is None else bags)
    if addresses == {} and "entities" not in options:
        raise StorageError(
            f"{path}: expected the names of tables, entities and relations, in model_options, found the tensors "
            f"{listed(sorted(tensors or {}))}"
        )
    if not isinstance(addresses, dict):
        addresses = {ENTITY_TYPE: addresses}
    tables = {name: _table(path, address, tensors) for name, address in addresses.items()}
    widths = sorted({table.dimension for table in tables.values()})
    for name in tables:
        if not re.fullmatch(r"[^/\0]+", str(name)):
            raise StorageError(f"{path}: entities: expected names of types without a slash, found {one_line(name)!r}")
    if len(widths) != 1:
        raise StorageError(f"{path}: expected entity types with vectors of one dimension, found {widths}")
    if "unit_norm" not in options:
        return tables
    return {
        name: ShardedRows(table.num_rows, table.dimension, (Shard(0, 0, table),), unit_norm=options["unit_norm"])
        for name, table in tables.items()
    }


def _table(path: Path, address: object, tensors: Tensors | None) -> Table:
    """Open a table, or join several column by column."""
    given = address if isinstance(address, list) else [address]
    addresses = [one for one in given if isinstance(one, str)]
    if not addresses or len(addresses) < len(given):
        raise StorageError(f"{path}: expected FILE or FILE#NAME, or a list of them, found {one_line(address)}")
    tables = [table_at(path, one, tensors) for one in addresses]
    if len(tables) == 1:
        return tables[0]
    starts = [*accumulate((table.dimension for table in tables), initial=0)]
    shards = [Shard(0, start, table) for start, table in zip(starts, tables, strict=False)]
    return sharded(str(path), shards, tables[0].num_rows, starts[-1])


def formula_of(where: str, options: Mapping[str, Any], dimension: int) -> Formula:
    """Return the formula that a description names.

    Raises:
        StorageError: it names none, or a value that there is not.
    """
    kinds = [kind for kind in OPERATORS if kind != "transr"]
    phase_unit, gamma = float(options.get("phase_unit", 1.0)), options.get("gamma")
    if gamma is not None:
        phase_unit = math.pi * (dimension // 2) / gamma if gamma > 0 else math.inf
    if options.get("model") not in kinds:
        raise StorageError(f"{where}: model must be one of {', '.join(kinds)}, got {one_line(options.get('model'))}")
    if phase_unit == math.inf:
        raise StorageError(f"{where}: gamma must be > 0, and not tiny, got {gamma}")
    return Formula(
        options["model"],
        norm=options.get("norm", 1),
        phase_unit=phase_unit,
        clamped=options.get("clamped", False),
        reciprocal=options.get("reciprocal", False),
    )


def _two_operators(where: str, options: Mapping[str, Any]) -> TwoOperators:
    chosen = {"source": "identity", "destination": "identity", "similarity": "cosine"}  # GiGL's defaults
    chosen |= {key: options[key].lower() for key in chosen if key in options}
    known = {"source": SIDE_OPERATORS, "destination": SIDE_OPERATORS, "similarity": SIMILARITIES}
    for key, name in chosen.items():
        if name not in known[key]:
            raise StorageError(
                f"{where}: {key} must be one of {', '.join(known[key])}, got {one_line(options.get(key))}"
            )
    return TwoOperators(**chosen)


def _parameters_of_sides(
    path: Path, options: Mapping[str, Any], operators: TwoOperators, tensors: Tensors | None
) -> dict[str, Table]:
    chosen = {"source": operators.source, "destination": operators.destination}
    defaults = {side: f"#{_MODULES[side]}.{_WEIGHTS.get(name, _WEIGHT)}" for side, name in chosen.items()}
    return {
        side: _table(path, options.get(f"{side}_relations", defaults[side]), tensors)
        for side, operator in chosen.items()
        if operator != "identity"
    }


def relation_types_of(where: str, options: Mapping[str, Any], types: Sequence[str]) -> TypedRelations:
    """Return the relations that a description names.

    Raises:
        StorageError: one is of the wrong form, or has a type without a table.
    """
    named = options.get("relation_types", [])
    for one in named:
        if not isinstance(one, list) or len(one) != 3 or not all(isinstance(name, str) for name in one):
            raise StorageError(f"{where}: relation_types: expected [name, left type, right type], got {one_line(one)}")
        for name in one[1:]:
            if name not in types:
                raise StorageError(f"{where}: relation_types: {name} is none of the entity types {listed(list(types))}")
    return tuple((name, lhs, rhs) for name, lhs, rhs in named)


def untyped_relations(where: str, parameters: Mapping[str, Table], types: Sequence[str]) -> TypedRelations:
    """Return the relations of a model of one type that names none.

    Raises:
        StorageError: there are several types.
    """
    if len(types) > 1:
        raise StorageError(
            f"{where}: a model of several entity types ({listed(list(types))}) needs relation_types: [[name, left "
            "type, right type], ...] in the order of the relations' rows"
        )
    num_relations = max((table.num_rows for table in parameters.values()), default=1)
    return tuple((f"rel{index}", types[0], types[0]) for index in range(num_relations))


def _check_relations(
    where: str, types: Sequence[object], parameters: Mapping[str, Table], options: Mapping[str, Any]
) -> None:
    if types and "relation_labels" in options:
        raise StorageError(f"{where}: relation_labels has no effect, as these relations have names already; remove it")
    for name, table in parameters.items():
        if types and table.num_rows != len(types):
            raise StorageError(
                f"{where}: {name}: expected a row for each of {len(types)} relations, found {table.num_rows}"
            )
