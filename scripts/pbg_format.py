"""Arrays and names -> files in PyTorch-BigGraph's format, and edges back.

The two demo programs share these writers. The files hold nothing that differs between equal runs (no times, no
absolute paths), so equal input gives equal bytes.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

FORMAT_VERSION = 1

Bucket = tuple[int, int]  # (lhs partition, rhs partition)
Edges = npt.NDArray[np.int64]  # one row (lhs, rel, rhs) per edge; lhs and rhs count within their partition
Operator = Mapping[str, npt.NDArray[np.float32]]  # parameter name -> values

# Every key of a config as torchbiggraph 1.0.1.dev0 saves it; a trainer sets those that it departs from;
# paths are relative to the checkpoint's folder.
CONFIG_DEFAULTS: dict[str, Any] = {
    "entities": {},
    "relations": [],
    "dimension": 0,
    "init_scale": 0.001,
    "max_norm": None,
    "global_emb": True,
    "comparator": "cos",
    "bias": False,
    "loss_fn": "ranking",
    "margin": 0.1,
    "regularization_coef": 0.0,
    "regularizer": "N3",
    "entity_path": "../entity",
    "edge_paths": ["../edges_train"],
    "checkpoint_path": ".",
    "init_path": None,
    "checkpoint_preservation_interval": None,
    "num_epochs": 1,
    "num_edge_chunks": None,
    "max_edges_per_chunk": 1_000_000_000,
    "bucket_order": "inside_out",
    "workers": 1,
    "batch_size": 1000,
    "num_batch_negs": 50,
    "num_uniform_negs": 50,
    "disable_lhs_negs": False,
    "disable_rhs_negs": False,
    "lr": 0.01,
    "relation_lr": None,
    "eval_fraction": 0.05,
    "eval_num_batch_negs": 1000,
    "eval_num_uniform_negs": 1000,
    "background_io": False,
    "verbose": 0,
    "hogwild_delay": 2.0,
    "dynamic_relations": False,
    "num_machines": 1,
    "num_partition_servers": -1,
    "distributed_init_method": None,
    "distributed_tree_init_order": True,
    "num_gpus": 0,
    "num_groups_for_partition_server": 16,
    "num_groups_per_sharded_partition_server": 1,
    "partition_shard_size": 250,
    "half_precision": False,
}


def complete_config(
    num_partitions: Mapping[str, int],
    relations: Sequence[tuple[str, str, str]],
    operator: str,
    settings: Mapping[str, object],
) -> dict[str, Any]:
    """A config with every key; `relations` are (name, lhs type, rhs type)."""
    entities = {
        name: {"num_partitions": count, "featurized": False, "dimension": None}
        for name, count in num_partitions.items()
    }
    relation_list = [
        {"name": name, "lhs": lhs, "rhs": rhs, "weight": 1.0, "operator": operator, "all_negs": False}
        for name, lhs, rhs in relations
    ]
    return CONFIG_DEFAULTS | {"entities": entities, "relations": relation_list, **settings}


def write_json(path: Path, value: object) -> None:
    """Write one JSON file, indented as PyTorch-BigGraph does."""
    path.write_text(json.dumps(value, indent=4) + "\n", encoding="utf-8")


def write_entities(folder: Path, names: Mapping[str, Sequence[Sequence[str]]], relation_names: Sequence[str]) -> None:
    """Write counts and names of every entity type (`names[type][partition][row]`), and the relations' names."""
    _empty(folder, "entity_*")
    for entity_type, partitions in names.items():
        for partition, partition_names in enumerate(partitions):
            count_path = folder / f"entity_count_{entity_type}_{partition}.txt"
            count_path.write_text(f"{len(partition_names)}\n", encoding="utf-8")
            write_json(folder / f"entity_names_{entity_type}_{partition}.json", list(partition_names))
    write_json(folder / "dynamic_rel_names.json", list(relation_names))


def write_edges(folder: Path, buckets: Mapping[Bucket, Edges]) -> None:
    """Write one file per bucket; a bucket without edges gets no file."""
    _empty(folder, "edges_*_*.h5")
    for (lhs_partition, rhs_partition), edges in buckets.items():
        if len(edges) == 0:
            continue
        with h5py.File(folder / f"edges_{lhs_partition}_{rhs_partition}.h5", "w") as file:
            file.attrs["format_version"] = FORMAT_VERSION
            for column, name in enumerate(("lhs", "rel", "rhs")):
                file.create_dataset(name, data=np.ascontiguousarray(edges[:, column]))


def read_edges(folder: Path) -> Iterator[tuple[Bucket, Edges]]:
    """Yield every bucket of an edge folder, in order of its partitions."""
    buckets = sorted(tuple(int(part) for part in path.stem.split("_")[1:]) for path in folder.glob("edges_*_*.h5"))
    for lhs_partition, rhs_partition in buckets:
        with h5py.File(folder / f"edges_{lhs_partition}_{rhs_partition}.h5", "r") as file:
            columns = [file[name][:].astype(np.int64) for name in ("lhs", "rel", "rhs")]  # import-graph's are int32
        yield (lhs_partition, rhs_partition), np.stack(columns, axis=1)


def write_checkpoint(
    folder: Path,
    version: int,
    config: Mapping[str, Any],
    embeddings: Mapping[tuple[str, int], npt.NDArray[np.float32]],
    operators: Sequence[Operator],
) -> None:
    """Write embeddings per (type, partition) and the right-hand-side operator of each relation.

    The version file comes last: until it is there, the checkpoint does not exist.
    """
    _empty(folder, "checkpoint_version.txt")
    _empty(folder, "*.v*.h5")
    config_json = json.dumps(config, indent=4)
    (folder / "config.json").write_text(config_json, encoding="utf-8")
    for (entity_type, partition), rows in embeddings.items():
        with h5py.File(folder / f"embeddings_{entity_type}_{partition}.v{version}.h5", "w") as file:
            _write_attributes(file, config_json)
            file.create_dataset("embeddings", data=np.ascontiguousarray(rows, dtype=np.float32))
    with h5py.File(folder / f"model.v{version}.h5", "w") as file:
        _write_attributes(file, config_json)
        model = file.create_group("model", track_order=True)
        for relation, operator in enumerate(operators):
            for name, values in operator.items():
                dataset = model.create_dataset(f"relations/{relation}/operator/rhs/{name}", data=values)
                dataset.attrs["state_dict_key"] = f"rhs_operators.{relation}.{name}"
    (folder / "checkpoint_version.txt").write_text(f"{version}\n", encoding="utf-8")


def _empty(folder: Path, pattern: str) -> None:
    """Make the folder, and remove what an earlier run left there."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.glob(pattern):
        path.unlink()


def _write_attributes(file: h5py.File, config_json: str) -> None:
    file.attrs["format_version"] = FORMAT_VERSION
    file.attrs["config/json"] = config_json
