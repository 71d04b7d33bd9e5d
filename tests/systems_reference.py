"""Other systems' models: their score functions by definition, in float64, and files as those systems write them.

Plain numpy, one edge at a time, nothing of `pbgeval`: definitions of METRICS.md 3b (DGL-KE) and of LibKGE's models.
"""

from __future__ import annotations

import json
import math
import sys
import types
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import torch

DGLKE = ("TransE_l1", "TransE_l2", "TransE", "DistMult", "ComplEx", "RotatE", "RESCAL", "TransR", "SimplE")
LIBKGE = ("complex", "distmult", "transe", "rotate", "rescal", "simple", "cp")


def halves(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return x[: len(x) // 2], x[len(x) // 2 :]


def as_complex(x: np.ndarray) -> np.ndarray:
    real, imag = halves(x)
    return real + 1j * imag


def dglke_score(
    name: str, h: np.ndarray, r: np.ndarray, t: np.ndarray, projection: np.ndarray, gamma: float, hidden_dim: int
) -> float:
    """The score of vectors in float64; `projection` is (entity_dim, relation_dim), of TransR alone."""
    if name.startswith("TransE"):
        return gamma - float(np.linalg.norm(h + r - t, 1 if name.endswith("l1") else 2))
    if name == "DistMult":
        return math.fsum(h * r * t)
    if name == "ComplEx":
        return float(np.sum(as_complex(h) * as_complex(r) * as_complex(t).conj()).real)
    if name == "RotatE":
        phase = r * np.pi / ((gamma + 2.0) / hidden_dim)
        return gamma - math.fsum(np.abs(as_complex(h) * np.exp(1j * phase) - as_complex(t)))
    if name == "RESCAL":
        return math.fsum(h * (r.reshape(-1, len(t)) @ t))
    if name == "TransR":
        return gamma - math.fsum(np.abs(h @ projection + r - t @ projection))
    (h_i, h_j), (t_i, t_j), (of, back) = halves(h), halves(t), halves(r)
    return min(max(math.fsum((h_i * of * t_j + t_i * back * h_j) / 2), -20.0), 20.0)


def libkge_score(name: str, s: np.ndarray, p: np.ndarray, o: np.ndarray, norm: int) -> float:
    if name == "complex":
        return float(np.sum(as_complex(s) * as_complex(p) * as_complex(o).conj()).real)
    if name == "distmult":
        return math.fsum(s * p * o)
    if name == "transe":
        return -float(np.linalg.norm(s + p - o, norm))
    if name == "rotate":
        return -float(np.linalg.norm(np.abs(as_complex(s) * np.exp(1j * p) - as_complex(o)), norm))
    if name == "rescal":
        return math.fsum(s * (p.reshape(len(s), len(s)) @ o))
    (s_h, s_t), (o_h, o_t) = halves(s), halves(o)
    if name == "cp":
        return math.fsum(s_h * p * o_t)
    forward, backward = halves(p)
    return math.fsum(s_h * forward * o_t + s_t * backward * o_h) / 2


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
        gamma: float = 12.0,
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
        arguments: dict[str, Any] = {
            **{"dataset": "FB15k", "model_name": name, "hidden_dim": hidden_dim, "gamma": gamma},
            **{"double_ent": double_ent, "double_rel": doubled or double_rel, "lr": 0.1},
            **{"emp_file": "entities.tsv", "rmap_file": "relations.tsv"},
        }
        if released:  # 0.1.2 of the package index has other names
            for name_then, name_now in (("model", "model_name"), ("emb_size", "hidden_dim"), ("emap_file", "emp_file")):
                arguments[name_then] = arguments.pop(name_now)
        (folder / "config.json").write_text(json.dumps(arguments, indent=4))
        np.save(folder / f"FB15k_{name}_entity.npy", self.entity)
        np.save(folder / f"FB15k_{name}_relation.npy", self.relation)
        if name == "TransR":
            np.save(folder / f"FB15k_{name}projection.npy", self.projection)
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
