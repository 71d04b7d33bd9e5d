"""Other systems' models: their score functions by definition, in float64, and files as those systems write them.

Plain numpy, one edge at a time, nothing of `pbgeval`: definitions of METRICS.md 3b (DGL-KE) and of LibKGE's models.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import sys
import types
import warnings
from collections import OrderedDict
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

DGLKE = ("TransE_l1", "TransE_l2", "TransE", "DistMult", "ComplEx", "RotatE", "RESCAL", "TransR", "SimplE")
LIBKGE = ("complex", "distmult", "transe", "rotate", "rescal", "simple", "cp")


def halves(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return x[: len(x) // 2], x[len(x) // 2 :]


def as_complex(x: np.ndarray) -> np.ndarray:
    real, imag = halves(x)
    return real + 1j * imag


# Scores that several systems have, each of one edge


def complex_product(h: np.ndarray, r: np.ndarray, t: np.ndarray) -> float:
    return float(np.sum(as_complex(h) * as_complex(r) * as_complex(t).conj()).real)


def minus_distance(h: np.ndarray, r: np.ndarray, t: np.ndarray, norm: int) -> float:
    return -float(np.linalg.norm(h + r - t, norm))


def turned(h: np.ndarray, phase: np.ndarray, t: np.ndarray) -> np.ndarray:
    """What is left between a head that was turned and the tail, complex."""
    return as_complex(h) * np.exp(1j * phase) - as_complex(t)


def bilinear(h: np.ndarray, r: np.ndarray, t: np.ndarray) -> float:
    return math.fsum(h * (r.reshape(-1, len(t)) @ t))


def both_ways(h: np.ndarray, r: np.ndarray, t: np.ndarray) -> float:
    """SimplE: entities have a part as head and one as tail, relations one forth and one back."""
    (h_i, h_j), (t_i, t_j), (forth, back) = halves(h), halves(t), halves(r)
    return math.fsum((h_i * forth * t_j + t_i * back * h_j) / 2)


def dglke_score(
    name: str, h: np.ndarray, r: np.ndarray, t: np.ndarray, projection: np.ndarray, gamma: float, hidden_dim: int
) -> float:
    """The score of vectors in float64; `projection` is (entity_dim, relation_dim), of TransR alone."""
    return {
        "TransE": lambda: gamma + minus_distance(h, r, t, 2),
        "TransE_l1": lambda: gamma + minus_distance(h, r, t, 1),
        "TransE_l2": lambda: gamma + minus_distance(h, r, t, 2),
        "DistMult": lambda: math.fsum(h * r * t),
        "ComplEx": lambda: complex_product(h, r, t),
        "RotatE": lambda: gamma - math.fsum(np.abs(turned(h, r * np.pi / ((gamma + 2.0) / hidden_dim), t))),
        "RESCAL": lambda: bilinear(h, r, t),
        "TransR": lambda: gamma - math.fsum(np.abs(h @ projection + r - t @ projection)),
        "SimplE": lambda: min(max(both_ways(h, r, t), -20.0), 20.0),
    }[name]()


def libkge_score(name: str, s: np.ndarray, p: np.ndarray, o: np.ndarray, norm: int) -> float:
    return {
        "complex": lambda: complex_product(s, p, o),
        "distmult": lambda: math.fsum(s * p * o),
        "transe": lambda: minus_distance(s, p, o, norm),
        "rotate": lambda: -float(np.linalg.norm(np.abs(turned(s, p, o)), norm)),
        "rescal": lambda: bilinear(s, p, o),
        "cp": lambda: math.fsum(halves(s)[0] * p * halves(o)[1]),
        "simple": lambda: both_ways(s, p, o),
    }[name]()


def values(shape: tuple[int, ...], seed: int, *, exact: bool) -> np.ndarray:
    """Multiples of 1/4, some rows repeated, or normal numbers; float32."""
    source = np.random.default_rng(seed)
    table = source.integers(-4, 5, shape) / 4 if exact else source.standard_normal(shape)
    table[-3:] = table[:1]
    return table.astype(np.float32)


class DglkeFolder:
    """A folder as DGL-KE saves it."""

    def __init__(
        self,
        folder: Path,
        name: str,
        *,
        num_entities: int = 41,
        num_relations: int = 4,
        hidden_dim: int = 6,
        double_rel: bool = False,
        gamma: float = 19.5,
        exact: bool = True,
        scale: float = 1.0,
        labels: bool = False,
        released: bool = False,
    ) -> None:
        self.folder, self.name, self.gamma, self.hidden_dim = folder, name, gamma, hidden_dim
        doubled = name in ("ComplEx", "SimplE")
        double_ent = doubled or name == "RotatE"
        entity_dim = hidden_dim * (2 if double_ent else 1)
        relation_dim = hidden_dim * (2 if doubled or double_rel else 1)
        columns = relation_dim * entity_dim if name == "RESCAL" else relation_dim
        self.entity = values((num_entities, entity_dim), 1, exact=exact) * np.float32(scale)
        self.relation = values((num_relations, columns), 2, exact=exact)
        self.projection = values((num_relations, entity_dim * relation_dim), 3, exact=exact)
        folder.mkdir(parents=True, exist_ok=True)
        # 0.1.2 of the package index has other names.
        names = ("model", "emb_size", "emap_file") if released else ("model_name", "hidden_dim", "emp_file")
        arguments: dict[str, Any] = {
            **{"dataset": "FB15k", "gamma": gamma, "double_ent": double_ent, "double_rel": doubled or double_rel},
            **{"lr": 0.1, "rmap_file": "relations.tsv", names[0]: name, names[1]: hidden_dim, names[2]: "entities.tsv"},
        }
        (folder / "config.json").write_text(json.dumps(arguments, indent=4))
        tables = {"_entity": self.entity, "_relation": self.relation}
        for kind, table in (tables | ({"projection": self.projection} if name == "TransR" else {})).items():
            np.save(folder / f"FB15k_{name}{kind}.npy", table)
        if labels:
            write_labels(folder / "entities.tsv", [f"entity {i}" for i in range(num_entities)])
            write_labels(folder / "relations.tsv", [f"relation {i}" for i in range(num_relations)])

    def score(self, lhs: int, rel: int, rhs: int) -> float:
        h, r, t = (table.astype(np.float64) for table in (self.entity[lhs], self.relation[rel], self.entity[rhs]))
        projection = self.projection[rel].astype(np.float64).reshape(len(h), -1)
        return dglke_score(self.name, h, r, t, projection, self.gamma, self.hidden_dim)


def write_labels(path: Path, labels: list[str]) -> None:
    path.write_text("".join(f"{index}\t{label}\n" for index, label in enumerate(labels)), encoding="utf-8")


class LibkgeCheckpoint:
    """A file as LibKGE saves it: its config is an object of its own class."""

    def __init__(
        self,
        path: Path,
        name: str,
        *,
        reciprocal: bool = False,
        norm: int = 1,
        num_entities: int = 37,
        num_relations: int = 3,
        dimension: int = 8,
        exact: bool = True,
        old_names: bool = False,
        more: dict[str, Any] | None = None,
    ) -> None:
        self.path, self.name, self.norm, self.reciprocal = path, name, norm, reciprocal
        self.num_relations = num_relations
        columns = {"rotate": dimension // 2, "cp": dimension // 2, "rescal": dimension**2}.get(name, dimension)
        self.entity = values((num_entities, dimension), 4, exact=exact)
        self.relation = values((num_relations * (2 if reciprocal else 1), columns), 5, exact=exact)
        weight = "embeddings.weight" if old_names else "_embeddings.weight"
        tables = {"_entity_embedder": self.entity, "_relation_embedder": self.relation}
        parameters: OrderedDict[str, Any] = OrderedDict()
        for prefix in ("_base_model.", "") if reciprocal else ("",):
            for embedder, table in tables.items():
                parameters[f"{prefix}{embedder}.{weight}"] = torch.nn.Parameter(torch.from_numpy(table))
        parameters._metadata = OrderedDict(version=1)  # type: ignore[attr-defined]
        options: dict[str, Any] = {"model": name, name: {"class_name": name.title(), "l_norm": float(norm)}}
        if reciprocal:
            options["model"] = "reciprocal_relations_model"
            options["reciprocal_relations_model"] = {"base_model": {"type": name}}
        saved = {
            **{"type": "train", "epoch": 20, "valid_trace": [{"mrr": np.float64(0.5), "hits": {1: 0.25}}]},
            **{"config": Config(options), "model": (parameters, {"some": {"meta"}})},
            **{"optimizer_state_dict": {"state": {0: {"sum": torch.ones(3, 3)}}}, "device": torch.device("cpu")},
            **(more or {}),
        }
        save(saved, path)

    def score(self, lhs: int, rel: int, rhs: int, side: str = "rhs") -> float:
        """The score in a query for `side`, which reciprocal relations alone tell apart."""
        if self.reciprocal and side == "lhs":
            lhs, rel, rhs = rhs, rel + self.num_relations, lhs
        s, p, o = (table.astype(np.float64) for table in (self.entity[lhs], self.relation[rel], self.entity[rhs]))
        return libkge_score(self.name, s, p, o, self.norm)


_KGE = types.ModuleType("kge.config")


class Config:
    """LibKGE's, whose pickle names kge.config.Config: a class that nobody here can import once it is written."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.options, self.folder, self.log_folder = options, "local/experiments", None


LIBKGE_MODULES = {"kge": types.ModuleType("kge"), "kge.config": _KGE}
Config.__module__, _KGE.Config = "kge.config", Config  # type: ignore[attr-defined]


def save(value: object, path: Path) -> None:
    """Call torch.save where LibKGE can be imported, and can no longer afterwards."""
    sys.modules |= LIBKGE_MODULES
    try:
        torch.save(value, path)
    finally:
        for name in LIBKGE_MODULES:
            del sys.modules[name]


def pyg_score(name: str, h: np.ndarray, r: np.ndarray, t: np.ndarray, norm: int) -> float:
    """torch_geometric.nn.kge 2.8.1, of vectors whose imaginary parts stand behind the real ones."""

    def normal(x: np.ndarray) -> np.ndarray:  # transe.py: F.normalize of head and tail by p_norm
        return x / max(float(np.linalg.norm(x, norm)), 1e-12)

    (hr, hi), (rr, ri), (tr, ti) = halves(h), halves(r), halves(t)
    return {
        "transe": lambda: minus_distance(normal(h), r, normal(t), norm),
        "distmult": lambda: math.fsum(h * r * t),
        # complex.py: the four triple products
        "complex": lambda: math.fsum([*(hr * rr * tr), *(hi * rr * ti), *(hr * ri * ti), *(-hi * ri * tr)]),
        # rotate.py: margin - one norm over all real and imaginary parts
        "rotate": lambda: -float(np.linalg.norm(turned(h, r, t))),
    }[name]()


PYG = {"transe": 1, "distmult": 1, "complex": 2, "rotate": 2}  # tables of nodes


class PygState:
    """The state_dict of a KGEModel of PyG's, as torch.save or safetensors write it."""

    def __init__(self, path: Path, name: str, *, norm: int = 1, num_entities: int = 37, exact: bool = True) -> None:
        self.path, self.name, self.norm = path, name, norm
        parts, columns = PYG[name], 6
        self.entity = values((num_entities, columns * parts), 6, exact=exact)
        relation_parts = 2 if name == "complex" else 1
        self.relation = values((3, columns * relation_parts), 7, exact=exact)
        state = {}
        for prefix, table, number in (("node_emb", self.entity, parts), ("rel_emb", self.relation, relation_parts)):
            for index, part in enumerate(np.split(table, number, axis=1)):
                state[f"{prefix}{'_im' if index else ''}.weight"] = torch.from_numpy(part.copy())
        if path.suffix == ".safetensors":
            from safetensors.torch import save_file

            save_file(state, path)
        else:
            torch.save(OrderedDict(state), path)

    @property
    def options(self) -> dict[str, Any]:
        return {"model": self.name} | ({"norm": self.norm} if self.name == "transe" else {})

    def score(self, lhs: int, rel: int, rhs: int) -> float:
        h, r, t = (table.astype(np.float64) for table in (self.entity[lhs], self.relation[rel], self.entity[rhs]))
        return pyg_score(self.name, h, r, t, self.norm)


def graphstorm_score(decoder: str, h: np.ndarray, r: np.ndarray | None, t: np.ndarray, gamma: float = 12.0) -> float:
    """Graphstorm 0.5.1, eval/utils.py: calc_dot_pos_score, calc_distmult_pos_score, calc_transe_, calc_rotate_."""
    emb_init = gamma / (len(h) // 2)  # of LinkPredictRotatEDecoder: gamma / rel_dim
    return {
        "dot_product": lambda: math.fsum(h * t),
        "distmult": lambda: math.fsum(h * r * t),
        "transe_l1": lambda: gamma + minus_distance(h, r, t, 1),
        "transe_l2": lambda: gamma + minus_distance(h, r, t, 2),
        "rotate": lambda: gamma - math.fsum(np.abs(turned(h, r / (emb_init / math.pi), t))),
    }[decoder]()


GRAPHSTORM = ("dot_product", "distmult", "transe_l1", "transe_l2", "rotate")
NODE_TYPES = {"item": 23, "user": 31}
EDGE_TYPES = [("user", "rates", "item"), ("item", "like", "item"), ("user", "follows", "user")]


class GraphStormFolder:
    """A folder of embeddings as GraphStorm saves it: nodes in any order over the parts of some processes.

    `remapped` has raw ids and Parquet in place of tensors, as gconstruct/remap_result.py writes them; `hdf5` has one
    file in place of all, as save_hdf5_embeddings writes it, with nodes in order.
    """

    def __init__(
        self,
        folder: Path,
        decoder: str,
        *,
        parts: int = 2,
        shuffled: bool = True,
        remapped: bool = False,
        hdf5: bool = False,
        exact: bool = True,
        dimension: int = 6,
    ) -> None:
        self.folder, self.decoder, self.gamma = folder, decoder, 12.0
        self.tables = {
            name: values((size, dimension), 11 + len(name), exact=exact) for name, size in NODE_TYPES.items()
        }
        self.edge_types = EDGE_TYPES[:1] if decoder == "dot_product" else EDGE_TYPES
        folder.mkdir(parents=True)
        info = {"format": "pytorch", "emb_name": list(self.tables), "world_size": parts}
        if hdf5:
            info = {"format": "hdf5", "world_size": 0}
            with h5py.File(folder / "embed_dict.hdf5", "w") as file:
                for name, table in self.tables.items():
                    file.create_dataset(name, table.shape, dtype=table.dtype)[:] = table
        info["emb_dim"] = dict.fromkeys(self.tables, dimension)
        for name, table in () if hdf5 else self.tables.items():
            (folder / name).mkdir()
            order = np.random.default_rng(5).permutation(len(table)) if shuffled else np.arange(len(table))
            for index, nids in enumerate(np.array_split(order, parts)):
                self._write_part(folder / name, index, table[nids], nids, shuffled=shuffled, remapped=remapped)
        (folder / "emb_info.json").write_text(json.dumps(info, indent=4))
        self.relation = None
        if decoder != "dot_product":
            width = dimension // 2 if decoder == "rotate" else dimension
            self.relation = values((len(EDGE_TYPES), width), 13, exact=exact)
            torch.save(torch.from_numpy(self.relation), folder / "rel_emb.pt")
            numbers = {str(edge_type): index for index, edge_type in enumerate(EDGE_TYPES)}
            (folder / "relation2id_map.json").write_text(json.dumps(numbers, indent=4))

    def _write_part(
        self, folder: Path, index: int, rows: np.ndarray, nids: np.ndarray, *, shuffled: bool, remapped: bool
    ) -> None:
        if remapped:
            import pyarrow
            from pyarrow import parquet

            raw = [raw_id(folder.name, nid) for nid in nids.tolist()]
            table = pyarrow.table({"emb": pyarrow.array(list(rows)), "nid": raw})
            parquet.write_table(table, folder / f"embed-{index:05d}_00000.parquet", row_group_size=5)
            return
        torch.save(torch.from_numpy(rows.copy()), folder / f"embed-{index:05d}.pt")
        if shuffled:
            torch.save(torch.from_numpy(nids.copy()), folder / f"embed_nids-{index:05d}.pt")

    @property
    def options(self) -> dict[str, Any]:
        options: dict[str, Any] = {"model": self.decoder}
        if self.decoder == "rotate":
            options["gamma"] = self.gamma
        if self.decoder == "dot_product":
            options["relation_types"] = [[",".join(EDGE_TYPES[0]), "user", "item"]]
        return options

    def write_id_maps(self, folder: Path, raw: str = "orig", new: str = "new") -> None:
        """Write raw_id_mappings as gconstruct/id_map.py does, or with GSProcessing's names of columns."""
        import pyarrow
        from pyarrow import parquet

        for name, size in NODE_TYPES.items():
            (folder / name).mkdir(parents=True)
            of = {raw: [raw_id(name, nid) for nid in range(size)], new: list(range(size))}
            parquet.write_table(pyarrow.table(of), folder / name / "part-00000.parquet")

    def score(self, lhs: int, rel: int, rhs: int) -> float:
        left, _, right = self.edge_types[rel]
        h, t = self.tables[left][lhs].astype(np.float64), self.tables[right][rhs].astype(np.float64)
        r = None if self.relation is None else self.relation[rel].astype(np.float64)
        return graphstorm_score(self.decoder, h, r, t, self.gamma)


def raw_id(node_type: str, nid: int) -> str:
    return f"{node_type[0]}-{nid * 7}"


def gigl_operator(name: str, x: np.ndarray, r: np.ndarray) -> np.ndarray:
    """GiGL, lib/model/operators.py; of `linear` the matrix of the edge type, from the right."""

    def product() -> np.ndarray:
        return as_complex(x) * as_complex(r)

    return {
        "identity": lambda: x,
        "translation": lambda: x + r,
        "diagonal": lambda: x * r,
        "linear": lambda: x @ r.reshape(len(x), len(x)),
        "complex_diagonal": lambda: np.concatenate([product().real, product().imag]),
    }[name]()


def gigl_score(similarity: str, s: np.ndarray, d: np.ndarray) -> float:
    """GiGL, lib/model/types.py: SimilarityType."""
    return {
        "dot": lambda: math.fsum(s * d),
        "cosine": lambda: math.fsum(s * d) / float(np.linalg.norm(s) * np.linalg.norm(d)),
        "euclidean": lambda: -math.fsum((s - d) ** 2),
    }[similarity]()


GIGL = ("identity", "translation", "diagonal", "complex_diagonal", "linear")
BAGS = "app.model.large_embeddings.ebc.embedding_bags"


class GiglModel:
    """The state of GiGL's HeterogeneousGraphSparseEmbeddingModel; `write` saves it by torch.distributed.checkpoint."""

    def __init__(self, source: str, destination: str, similarity: str, *, exact: bool = True) -> None:
        self.source, self.destination, self.similarity, dimension = source, destination, similarity, 6
        self.tables = {
            name: values((size, dimension), 21 + len(name), exact=exact) for name, size in NODE_TYPES.items()
        }
        self.edge_types = EDGE_TYPES
        self.parameters = {}
        for side, name, seed in (("src", source, 31), ("dst", destination, 32)):
            self.parameters[side] = values((3, dimension**2 if name == "linear" else dimension), seed, exact=exact)

    @property
    def state(self) -> dict[str, torch.Tensor]:
        """Names and tensors, as a state_dict below app.model has them."""
        state = {f"{BAGS}.{name}.weight": torch.from_numpy(table) for name, table in self.tables.items()}
        for side, name in (("src", self.source), ("dst", self.destination)):
            rows = torch.from_numpy(self.parameters[side])
            if name == "linear":
                state[f"app.model.{side}_operator.edge_type_projection"] = rows.view(3, 6, 6)
            elif name != "identity":
                state[f"app.model.{side}_operator.edge_type_embeddings.weight"] = rows
        return state

    @property
    def options(self) -> dict[str, Any]:
        types = [[",".join(of), of[0], of[2]] for of in self.edge_types]
        return {
            **{"source": self.source.upper(), "destination": self.destination.upper()},
            **{"similarity": self.similarity.upper(), "relation_types": types},
        }

    def score(self, lhs: int, rel: int, rhs: int) -> float:
        left, _, right = self.edge_types[rel]
        s, d = self.tables[left][lhs].astype(np.float64), self.tables[right][rhs].astype(np.float64)
        s = gigl_operator(self.source, s, self.parameters["src"][rel].astype(np.float64))
        d = gigl_operator(self.destination, d, self.parameters["dst"][rel].astype(np.float64))
        return gigl_score(self.similarity, s, d)


def cuts_of(item: Any, tensor: torch.Tensor, plan: str, parts: int) -> list[Any]:
    """The parts of a table as items that the writer of a distributed checkpoint takes; of other tensors the whole."""
    from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
    from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

    if "embedding_bags" not in item.index.fqn or plan == "table":
        return [item]
    dims = {"rows": [0], "columns": [1], "grid": [0, 1]}[plan]
    cuts = [
        [(int(of[0]), len(of)) for of in np.array_split(np.arange(size), parts if dim in dims else 1)]
        for dim, size in enumerate(tensor.shape)
    ]
    chunks = [tuple(zip(*places, strict=True)) for places in itertools.product(*cuts)]
    properties = TensorProperties.create_from_tensor(tensor)
    return [
        WriteItem(
            index=MetadataIndex(item.index.fqn, torch.Size(at), number),
            type=WriteItemType.SHARD,
            tensor_data=TensorWriteData(
                chunk=ChunkStorageMetadata(torch.Size(at), torch.Size(of)),
                properties=properties,
                size=tensor.size(),
            ),
        )
        for number, (at, of) in enumerate(chunks)
    ]


def safetensors_writer() -> Any:
    """Return torch's writer of safetensors, which torch before 2.8 has not."""
    import torch.distributed.checkpoint as dcp

    if not hasattr(dcp, "HuggingFaceStorageWriter"):
        pytest.skip("torch before 2.8 writes no safetensors")
    return dcp.HuggingFaceStorageWriter


def save_checkpoint(
    folder: Path, state: dict[str, torch.Tensor], plan: str = "rows", parts: int = 2, *, safetensors: bool = False
) -> None:
    """Write a distributed checkpoint whose tables are cut as TorchRec cuts them, by torch's own planner and writer.

    Each part is a tensor of its own for the writer, as a process has it; only one process takes part. Safetensors have
    a file for each part, as from as many processes.
    """
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.metadata import Metadata

    class Planner(dcp.DefaultSavePlanner):
        part: int | None = None  # of all

        def create_local_plan(self) -> Any:
            whole = super().create_local_plan()
            cuts = [cuts_of(item, state[item.index.fqn], plan, parts) for item in whole.items]
            items = [cut for of in cuts for cut in (of if self.part is None else of[self.part : self.part + 1])]
            self.plan = dcp.SavePlan(items, planner_data=whole.planner_data)
            return self.plan

        def create_global_plan(self, plans: list[Any]) -> Any:
            return super().create_global_plan(plans) if self.part is None else (plans, Metadata({}))

        def resolve_data(self, item: Any) -> Any:
            found = self.state_dict[item.index.fqn]
            chunk = item.tensor_data.chunk
            for dim, (offset, size) in enumerate(zip(chunk.offsets, chunk.sizes, strict=True)):
                found = found.narrow(dim, offset, size)
            return found.contiguous()

    class ShardWriter(safetensors_writer() if safetensors else object):  # type: ignore[misc]
        def prepare_global_plan(self, plans: list[Any]) -> list[Any]:
            return [dataclasses.replace(one, storage_data={"shard_index": planner.part + 1}) for one in plans]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of there being one process
        for part in range(parts**2) if safetensors else [None]:
            planner = Planner(flatten_state_dict=False)
            planner.part = part
            writer: Any = dcp.FileSystemWriter(folder, single_file_per_rank=False)
            if part is not None:
                writer = ShardWriter(str(folder), save_distributed=True)
            dcp.save(dict(state), storage_writer=writer, planner=planner)
