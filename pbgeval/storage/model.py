"""Model file of a checkpoint -> parameters of operators and global embeddings, by one set of names.

PBG writes dynamic relations under plural names and has renamed one parameter over the years; here every parameter has
its singular name of today, and dynamic ones keep their leading dimension (relations).
PBG goes on with identity operators where parameters are missing, and its figures are then wrong without a word;
`operator_parameters` refuses instead.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import attrs
import numpy as np
import torch
from torch import Tensor

from pbgeval.errors import DataError, Faults, MismatchError, StorageError
from pbgeval.notation import Side
from pbgeval.storage.checkpoint_paths import model_path
from pbgeval.storage.hdf5 import Hdf5Dataset, open_hdf5
from pbgeval.storage.text import listed, one_line

# Name on disk -> name of today. Both `rotation`s are transposed (see `_Parameter.from_dataset`).
_NAMES = ("diagonal", "translation", "linear_transformation", "real", "imag", "phase", "projection")
_SINGULAR = {
    **{name: name for name in _NAMES},
    **{f"{name}s": name for name in _NAMES if name not in ("real", "imag")},
    **dict.fromkeys(("rotation", "rotations"), "linear_transformation"),
}
_TRANSPOSED = ("rotation", "rotations")
_KEY_ATTRIBUTE = "state_dict_key"  # PBG reads it first; the path in the file only where it is absent
_KEYS = (  # of an operator's parameter, and of a global embedding
    re.compile(r"(?P<side>lhs|rhs)_operators\.(?P<index>[0-9]+)\.(?P<name>\w+)"),
    re.compile(r"global_embs\.emb_(?P<type>.+)", re.DOTALL),
)
_PATHS = (  # of the same
    re.compile(r"relations/(?P<index>[0-9]+)/operator/(?P<side>lhs|rhs)/(?P<name>\w+)"),
    re.compile(r"entities/(?P<type>.+)/global_embedding", re.DOTALL),
)


@attrs.frozen(eq=False)
class ModelParameters:
    """What a model file holds, float32, every value finite."""

    path: Path
    operators: dict[tuple[int, Side], dict[str, Tensor]]  # by relation and the side that the operator acts on
    global_embeddings: dict[str, Tensor]  # (D) by entity type
    is_there: bool  # the file; else nothing is in it


def read_model_parameters(checkpoint_path: Path, version: int) -> ModelParameters:
    """Read the model file of a checkpoint, which may be missing.

    Raises:
        StorageError: it cannot be read, or holds a dataset that is no known parameter.
        DataError: a parameter is NaN or infinite.
    """
    path = model_path(checkpoint_path, version)
    parameters = ModelParameters(path, {}, {}, path.exists())
    if not parameters.is_there:
        return parameters
    with open_hdf5(path) as file:
        file.check_format_version()
        datasets = file.datasets("model")
        if datasets is None:
            raise StorageError(f"{path}: expected a group model, found {listed(file.names())}; check the path")
        not_finite = Faults()
        for name, dataset in datasets.items():
            if dataset.dtype.kind != "f" or dataset.shape is None:
                raise StorageError(
                    f"{dataset.file.path}: dataset {one_line(dataset.name)}: expected floating-point numbers, found"
                    f" {one_line(dataset.dtype)}; write the file again as float32"
                )
            values = np.empty(dataset.shape, dataset.dtype)
            dataset.read_into(values)
            with np.errstate(over="ignore"):  # becomes infinite, and is refused as such
                value = torch.from_numpy(np.array(values, dtype=np.float32))
            _file_away(parameters, name, dataset, value)
            wrong = torch.nonzero(~torch.isfinite(value))
            if len(wrong):
                not_finite.append(
                    f"{path}: dataset model/{one_line(name)}: expected finite numbers, found {len(wrong)} NaN or"
                    f" infinite, first at {listed([str(tuple(index)) for index in wrong[:3].tolist()])}; check whether"
                    " training diverged"
                )
    not_finite.raise_any(DataError)
    return parameters


def operator_parameters(
    model: ModelParameters,
    relation_index: int,
    side: Side,
    operator_name: str,
    expected: Mapping[str, tuple[int, ...]],
) -> dict[str, Tensor]:
    """Return the parameters of one operator: exactly those expected, in the shapes expected.

    Args:
        model: the model file's parameters.
        relation_index: index of the relation, 0 for dynamic relations.
        side: the side that the operator acts on.
        operator_name: as in the config; for messages.
        expected: shapes by name; empty for operators without parameters.

    Raises:
        StorageError: there is no such file.
        MismatchError: a parameter is missing, a shape differs, or the file has parameters that this operator does not
            have.
    """
    operator = f"operator {operator_name} of relations[{relation_index}]"
    if expected and not model.is_there:
        raise StorageError(
            f"{model.path}: no such file; {operator} needs its parameters; check checkpoint_version.txt, or copy the"
            " file from where the checkpoint was trained"
        )
    found = model.operators.get((relation_index, side), {})
    shapes = {name: tuple(parameter.shape) for name, parameter in found.items()}
    if shapes != {**expected}:
        raise MismatchError(
            f"{model.path}: model/relations/{relation_index}/operator/{side.pick('lhs', 'rhs')} has {_written(shapes)},"
            f" but {operator} needs {_written(expected)};"
            " check operator, dimension and dynamic_relations"
        )
    return {name: found[name] for name in expected}


def _written(shapes: Mapping[str, tuple[int, ...]]) -> str:
    return " and ".join(f"{name} {shape}" for name, shape in sorted(shapes.items())) or "no parameters"


def global_embedding(model: ModelParameters, entity_type: str, dimension: int) -> Tensor | None:
    """Return the global embedding of an entity type, None where there is none.

    Raises:
        MismatchError: its shape is not (dimension,).
    """
    found = model.global_embeddings.get(entity_type)
    if found is not None and tuple(found.shape) != (dimension,):
        raise MismatchError(
            f"{model.path}: the global embedding of type {one_line(entity_type)} has shape {tuple(found.shape)}, but"
            f" the config says {(dimension,)}; check dimension"
        )
    return found


def _file_away(parameters: ModelParameters, name: str, dataset: Hdf5Dataset, value: Tensor) -> None:
    """Put a value where its key says."""
    path = parameters.path
    found = dataset.attribute(_KEY_ATTRIBUTE)
    key = found.decode("utf-8", "replace") if isinstance(found, bytes) else found
    where = f"{path}: dataset model/{one_line(name)}" + ("" if key is None else f" ({_KEY_ATTRIBUTE} {one_line(key)})")
    patterns, text = (_PATHS, name) if key is None else (_KEYS, str(key))
    operator, embedding = (pattern.fullmatch(text) for pattern in patterns)
    if embedding is not None:
        place, parameter = parameters.global_embeddings, embedding["type"]
    elif operator is not None and operator["name"] in _SINGULAR:
        place = parameters.operators.setdefault((int(operator["index"]), Side[operator["side"].upper()]), {})
        parameter = _SINGULAR[operator["name"]]
        if operator["name"] in _TRANSPOSED and value.dim() >= 2:
            value = value.transpose(-1, -2).contiguous()
    else:
        raise StorageError(
            f"{where}: expected a parameter of an operator ({', '.join(sorted(set(_SINGULAR.values())))}) or a global"
            " embedding, found none that is known; was the model trained with an operator of your own?"
        )
    if parameter in place:
        raise StorageError(
            f"{where}: expected {one_line(parameter)} once, found it a second time; keep one of the two datasets"
        )
    place[parameter] = value
