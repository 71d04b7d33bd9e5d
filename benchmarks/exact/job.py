"""A trained-like model, in which the two ends of an edge point the same way -> a checkpoint and edges to evaluate."""

from pathlib import Path

import h5py
import numpy as np
from attrs import frozen

from benchmarks import made_graph


@frozen
class JobSize:
    """Sizes of the made model."""

    num_entities: int = 1_000_000
    num_edges: int = 10_000  # two queries each
    dimension: int = 128
    agreement: float = 0.38  # cosine of the vectors at an edge's two ends, the rest is noise: z = 4.3 at D = 128
    seed: int = 0


def write_job(folder: Path, size: JobSize) -> Path:
    """Write the job into an empty folder; return its config file."""
    random = np.random.default_rng(size.seed)
    entity_ND = random.standard_normal((size.num_entities, size.dimension), dtype=np.float32)
    chosen = random.permutation(size.num_entities)[: 2 * size.num_edges]
    lhs, rhs = chosen[: size.num_edges], chosen[size.num_edges :]
    entity_ND[lhs] *= np.float32(np.sqrt(1 - size.agreement**2))
    entity_ND[lhs] += np.float32(size.agreement) * entity_ND[rhs]
    # Frequent entities have longer vectors in most models: here by up to a half.
    entity_ND *= random.uniform(0.75, 1.25, (size.num_entities, 1)).astype(np.float32)
    _write(folder / "checkpoint" / "embeddings_all_0.v1.h5", embeddings=entity_ND)
    _write(folder / "checkpoint" / "model.v1.h5")
    (folder / "checkpoint" / "checkpoint_version.txt").write_text("1\n", encoding="utf-8")
    edges = {"lhs": lhs, "rel": np.zeros_like(lhs), "rhs": rhs}
    _write(folder / "edges" / "edges_0_0.h5", **edges)
    (folder / "entity").mkdir()
    (folder / "entity" / "entity_count_all_0.txt").write_text(f"{size.num_entities}\n", encoding="utf-8")
    settings = {
        "entity_path": str(folder / "entity"),
        "edge_paths": [str(folder / "edges")],
        "checkpoint_path": str(folder / "checkpoint"),
        "entities": {"all": {"num_partitions": 1}},
        "relations": [{"name": "all", "lhs": "all", "rhs": "all", "operator": "none"}],
        "dimension": size.dimension,
        "global_emb": False,
        "comparator": "dot",
        "candidates": "all",
    }
    return made_graph.write_config(folder, settings)


def _write(path: Path, **arrays: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        file.attrs["format_version"] = made_graph.FORMAT_VERSION
        file.create_group("model") if not arrays else None
        for name, array in arrays.items():
            file.create_dataset(name, data=array)
