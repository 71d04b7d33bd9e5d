"""A small valid dataset in PyTorch-BigGraph's format with its checkpoint and config.

Use:
    case = TinyCase.write(tmp_path)                  # two entity types, four operators, global embeddings
    case = TinyCase.write(tmp_path, dynamic=True)    # one entity type, dynamic relations
    case.spoil_embeddings("user", 1, row=3, value=math.nan)
"""

from __future__ import annotations

import pprint
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from attrs import frozen

from pbgeval.notation import ENDS, Side
from tests.kit import pbg_files

VERSION = 3
DIMENSION = 8
RELATIONS = (
    {"name": "knows", "lhs": "user", "rhs": "user", "operator": "none"},
    {"name": "likes", "lhs": "user", "rhs": "user", "operator": "diagonal"},
    {"name": "has", "lhs": "user", "rhs": "tag", "operator": "translation", "weight": 0.5},
    {"name": "marks", "lhs": "tag", "rhs": "user", "operator": "complex_diagonal", "all_negs": True},
)
NUM_DYNAMIC_RELATIONS = 5


@frozen
class TinyCase:
    """Where the files are, and what the config says."""

    root: Path
    settings: dict[str, Any]

    @classmethod
    def write(
        cls,
        root: Path,
        *,
        dynamic: bool = False,
        partition_sizes: Sequence[int] = (17, 16, 17),
        num_tags: int = 6,
        edges_per_bucket: int = 23,
        dimension: int = DIMENSION,
        scale: float = 1.0,
        seed: int = 1,
        **settings: object,
    ) -> TinyCase:
        """Write all files.

        Args:
            root: the folder; made if need be.
            dynamic: one entry of `relations`, its operator `complex_diagonal`.
            partition_sizes: entities of each partition of `user`.
            num_tags: entities of `tag`, in one partition; there are none when relations are dynamic.
            edges_per_bucket: of the first bucket; each further one has an edge more.
            dimension: of all embeddings.
            scale: of the embeddings' values.
            seed: of all values and edges.
            **settings: further keys of the config, or other values.
        """
        generator = np.random.default_rng(seed)
        root.mkdir(parents=True, exist_ok=True)
        sizes = {"user": list(partition_sizes)} | ({} if dynamic else {"tag": [num_tags]})
        entities = {name: {"num_partitions": len(counts)} for name, counts in sizes.items()}
        relations = [RELATIONS[0] | {"operator": "complex_diagonal"}] if dynamic else list(RELATIONS)
        keys: dict[str, Any] = {
            "entity_path": "entity",
            "edge_paths": ["edges"],
            "checkpoint_path": "checkpoint",
            "entities": entities,
            "relations": relations,
            "dynamic_relations": dynamic,
            "dimension": dimension,
            "global_emb": not dynamic,
            "comparator": "dot",
            "num_batch_negs": 5,
            "num_uniform_negs": 5,
            "batch_size": 10,
            "workers": 2,
        }
        keys.update(settings)
        case = cls(root, keys)
        num_relations = NUM_DYNAMIC_RELATIONS if dynamic else len(keys["relations"])
        pbg_files.write_entity_counts(root / "entity", sizes, num_dynamic_relations=num_relations if dynamic else None)
        for number, (lhs, rhs) in enumerate(np.ndindex(len(partition_sizes), len(partition_sizes))):
            case._write_bucket(generator, (lhs, rhs), edges_per_bucket + number, sizes, num_relations)
        pbg_files.write_checkpoint_version(root / "checkpoint", VERSION)
        for name, counts in sizes.items():
            for partition, count in enumerate(counts):
                values = scale * generator.standard_normal((count, dimension))
                pbg_files.write_embeddings(root / "checkpoint", name, partition, values, version=VERSION)
        case._write_model(generator, dimension, dynamic)
        case.write_config()
        return case

    def _write_bucket(
        self,
        generator: np.random.Generator,
        bucket: tuple[int, int],
        num_edges: int,
        sizes: Mapping[str, Sequence[int]],
        num_relations: int,
    ) -> None:
        rel = generator.integers(num_relations, size=num_edges)
        ids = {}
        for side in ENDS:
            # The size of the partition that each edge's relation has on this side.
            of_relation = []
            for relation in range(num_relations):
                schema = self.settings["relations"][0 if self.settings["dynamic_relations"] else relation]
                counts = sizes[side.pick(schema["lhs"], schema["rhs"])]
                of_relation.append(counts[side.pick(*bucket)] if len(counts) > 1 else counts[0])
            ids[side] = generator.integers(1 << 30, size=num_edges) % np.array(of_relation)[rel]
        pbg_files.write_edges(self.root / "edges", bucket, ids[Side.LHS], rel, ids[Side.RHS])

    def _write_model(self, generator: np.random.Generator, dimension: int, dynamic: bool) -> None:
        operators: dict[tuple[int, Side], dict[str, Any]] = {}
        if dynamic:
            shape = (NUM_DYNAMIC_RELATIONS, dimension // 2)
            for side in ENDS:
                operators[0, side] = {name: generator.standard_normal(shape) for name in ("real", "imag")}
        else:
            half, whole = (dimension // 2,), (dimension,)
            operators[1, Side.RHS] = {"diagonal": generator.standard_normal(whole)}
            operators[2, Side.RHS] = {"translation": generator.standard_normal(whole)}
            operators[3, Side.RHS] = {name: generator.standard_normal(half) for name in ("real", "imag")}
        names = [] if dynamic else list(self.settings["entities"])
        globals_ = {name: generator.standard_normal(dimension) for name in names}
        pbg_files.write_model(self.root / "checkpoint", operators, globals_, version=VERSION, dynamic=dynamic)

    @property
    def config(self) -> Path:
        return self.root / "eval.py"

    def write_config(self, **settings: object) -> Path:
        """Write the config file anew, with other values of some keys."""
        text = pprint.pformat(self.settings | settings)
        self.config.write_text(f"def get_torchbiggraph_config():\n    return {text}\n", encoding="utf-8")
        return self.config

    def edges(self, lhs: int, rhs: int) -> Path:
        return self.root / "edges" / f"edges_{lhs}_{rhs}.h5"

    def embeddings(self, entity_type: str, partition: int) -> Path:
        return self.root / "checkpoint" / f"embeddings_{entity_type}_{partition}.v{VERSION}.h5"

    @property
    def model(self) -> Path:
        return self.root / "checkpoint" / f"model.v{VERSION}.h5"

    def spoil_embeddings(self, entity_type: str, partition: int, row: Any, value: object) -> None:
        """Set rows of a partition to a value."""
        with h5py.File(self.embeddings(entity_type, partition), "r+") as file:
            file["embeddings"][row] = value

    def give_times(self) -> None:
        """Give every edge one of four times."""
        for path in self.root.glob("edges/*.h5"):
            with h5py.File(path, "r+") as file:
                file["time"] = np.arange(len(file["rel"]), dtype=np.int32) % 4

    def spoil_edges(self, lhs: int, rhs: int, column: str, row: int, value: int) -> None:
        """Set one id of a bucket file."""
        with h5py.File(self.edges(lhs, rhs), "r+") as file:
            file[column][row] = value
