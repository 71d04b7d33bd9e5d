"""Edges of FB15k-237, or a graph of its size, and random embeddings -> one job in the formats of both programs.

entity/, edges_test/, edges_valid/, edges_train/, checkpoint/, config.py     PyTorch-BigGraph's formats, for pbgeval
arrays.npz                                                                   the same numbers, for PyKEEN
"""

from pathlib import Path

import h5py
import numpy as np
import numpy.typing as npt
from attrs import frozen

FORMAT_VERSION = 1
SPLITS = ("test", "valid", "train")

Edges = npt.NDArray[np.int64]  # one row (lhs, rel, rhs) per edge


@frozen
class JobSize:
    """Sizes of a made graph; by default those of FB15k-237."""

    num_entities: int = 14_541
    num_relations: int = 237
    num_edges: tuple[int, int, int] = (20_466, 17_535, 272_115)  # test, valid, train
    dimension: int = 100
    seed: int = 0


def write_job(folder: Path, size: JobSize, reference: Path | None) -> None:
    """Write the job into an empty folder.

    Args:
        folder: where to.
        size: of the embeddings, and of the graph where there is no reference.
        reference: a folder with `edges_test`, `edges_valid` and `edges_train` of FB15k-237 in one bucket.
    """
    edges = _made_edges(size) if reference is None else [_read(reference / f"edges_{name}") for name in SPLITS]
    random = np.random.default_rng([size.seed, 1])
    # Scores are sums of D products: these scales give them a variance near 1.
    shape = (size.num_entities, size.dimension)
    entity_ND = random.standard_normal(shape, dtype=np.float32) / np.float32(size.dimension**0.25)
    relation_RD = random.standard_normal((size.num_relations, size.dimension), dtype=np.float32)
    for name, of_split in zip(SPLITS, edges, strict=True):
        _write_edges(folder / f"edges_{name}", of_split)
    _write_entities(folder / "entity", size)
    _write_checkpoint(folder / "checkpoint", entity_ND, relation_RD)
    _write_config(folder, size)
    arrays = dict(zip(SPLITS, edges, strict=True))
    np.savez(folder / "arrays.npz", entities=entity_ND, relations=relation_RD, **arrays)


def _made_edges(size: JobSize) -> list[Edges]:
    """Return distinct edges whose entities and relations are as uneven as in real graphs, split at random."""
    random = np.random.default_rng([size.seed, 0])
    wanted = sum(size.num_edges)
    ids = [random.permutation(count) for count in (size.num_entities, size.num_relations, size.num_entities)]
    distinct = np.empty((0, 3), np.int64)
    while len(distinct) < wanted:
        columns = [of[_zipf_like(random, len(of), wanted)] for of in ids]
        distinct = np.unique(np.concatenate([distinct, np.stack(columns, axis=1)]), axis=0)
    shuffled = random.permutation(distinct)[:wanted]
    return np.split(shuffled, np.cumsum(size.num_edges)[:-1])


def _zipf_like(random: np.random.Generator, count: int, num_draws: int) -> Edges:
    """Draw from range(count), k with a probability near 1 / (k + 1)."""
    return (np.exp(random.random(num_draws) * np.log(count + 1)) - 1).astype(np.int64)


def _read(folder: Path) -> Edges:
    with h5py.File(folder / "edges_0_0.h5", "r") as file:
        return np.stack([file[name][:] for name in ("lhs", "rel", "rhs")], axis=1).astype(np.int64)


def _write_edges(folder: Path, edges: Edges) -> None:
    folder.mkdir(parents=True)
    with h5py.File(folder / "edges_0_0.h5", "w") as file:
        file.attrs["format_version"] = FORMAT_VERSION
        for column, name in enumerate(("lhs", "rel", "rhs")):
            file.create_dataset(name, data=np.ascontiguousarray(edges[:, column]))


def _write_entities(folder: Path, size: JobSize) -> None:
    folder.mkdir()
    (folder / "dynamic_rel_count.txt").write_text(f"{size.num_relations}\n", encoding="utf-8")
    (folder / "entity_count_all_0.txt").write_text(f"{size.num_entities}\n", encoding="utf-8")


def _write_checkpoint(folder: Path, entity_ND: npt.NDArray[np.float32], relation_RD: npt.NDArray[np.float32]) -> None:
    """Write a DistMult: dot products, the same diagonal operator for both sides."""
    folder.mkdir()
    with h5py.File(folder / "embeddings_all_0.v1.h5", "w") as file:
        file.attrs["format_version"] = FORMAT_VERSION
        file.create_dataset("embeddings", data=entity_ND)
    with h5py.File(folder / "model.v1.h5", "w") as file:
        file.attrs["format_version"] = FORMAT_VERSION
        model = file.create_group("model", track_order=True)
        for side in ("lhs", "rhs"):
            dataset = model.create_dataset(f"relations/0/operator/{side}/diagonals", data=relation_RD)
            dataset.attrs["state_dict_key"] = f"{side}_operators.0.diagonals"
    (folder / "checkpoint_version.txt").write_text("1\n", encoding="utf-8")


def _write_config(folder: Path, size: JobSize) -> None:
    settings = {
        "entity_path": str(folder / "entity"),
        "edge_paths": [str(folder / "edges_test")],
        "filter_paths": [str(folder / "edges_valid")],
        "train_paths": [str(folder / "edges_train")],
        "checkpoint_path": str(folder / "checkpoint"),
        "entities": {"all": {"num_partitions": 1}},
        "relations": [{"name": "all", "lhs": "all", "rhs": "all", "operator": "diagonal"}],
        "dynamic_relations": True,
        "dimension": size.dimension,
        "global_emb": False,
        "comparator": "dot",
        "candidates": "all",
    }
    path = folder / "config.py"
    path.write_text(f"def get_torchbiggraph_config():\n    return {settings!r}\n", encoding="utf-8")
