"""Saves models by TorchRec, PyG and GraphStorm themselves, and scores edges by their own code.

Run by the peer's Python: foreign_models_saved.py OUT. Writes to OUT

    torchrec/, torchrec.npy     a checkpoint of torch.distributed with tables that DistributedModelParallel has sharded
                                over two processes: `user` by rows, `item` by columns, `tag` whole; and the scores
                                (3 relations, 31, 23) of users with items, then (3, 23, 17) of items with tags in
                                torchrec_tags.npy, of what TorchRec's lookup returns, by a diagonal source operator
    torchrec_safetensors/       the same checkpoint as safetensors, a file for each process
    MODEL.pt, MODEL.npy         state dicts of PyG's KGEModels, and their scores (37, 3, 37)
    DECODER.npz                 node vectors, relation vectors and scores (31, 3, 23) by graphstorm.eval.utils
"""

import importlib.util
import json
import os
import socket
import sys
import types
from importlib import metadata
from pathlib import Path

import numpy as np
import torch

DIMENSION, NUM_RELATIONS = 8, 3
SIZES = {"user": 31, "item": 23, "tag": 17}
PREFIX = "large_embeddings.ebc.embedding_bags"


def vectors(rows: int, columns: int, seed: int) -> torch.Tensor:
    return torch.randn((rows, columns), generator=torch.Generator().manual_seed(seed))


def save_torchrec(rank: int, port: int, out: Path) -> None:
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    import torchrec
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
    from torchrec.distributed.model_parallel import DistributedModelParallel
    from torchrec.distributed.sharding_plan import (
        column_wise,
        construct_module_sharding_plan,
        row_wise,
        table_wise,
    )
    from torchrec.distributed.types import ShardingEnv, ShardingPlan

    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2"}
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)

    class Lookup(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            tables = [
                torchrec.EmbeddingBagConfig(
                    name=name, embedding_dim=DIMENSION, num_embeddings=size, feature_names=[name]
                )
                for name, size in SIZES.items()
            ]
            self.ebc = torchrec.EmbeddingBagCollection(tables=tables, device=torch.device("cpu"))

        def forward(self, features: torchrec.KeyedJaggedTensor) -> torchrec.KeyedTensor:
            return self.ebc(features)

    class Model(torch.nn.Module):
        """The parts of GiGL's HeterogeneousGraphSparseEmbeddingModel that hold parameters, by its names."""

        def __init__(self) -> None:
            super().__init__()
            self.large_embeddings = Lookup()
            self.src_operator = torch.nn.Module()
            self.src_operator.edge_type_embeddings = torch.nn.Embedding(NUM_RELATIONS, DIMENSION)

    model = Model()
    with torch.no_grad():
        for index, table in enumerate(model.large_embeddings.ebc.embedding_bags.values()):
            table.weight.copy_(vectors(*table.weight.shape, seed=index))
        model.src_operator.edge_type_embeddings.weight.copy_(vectors(NUM_RELATIONS, DIMENSION, seed=9))
    sharder = EmbeddingBagCollectionSharder()
    by_table = {"user": row_wise(), "item": column_wise(ranks=[0, 1]), "tag": table_wise(rank=1)}
    plan = construct_module_sharding_plan(
        model.large_embeddings.ebc, by_table, sharder=sharder, local_size=2, world_size=2, device_type="cpu"
    )
    sharded = DistributedModelParallel(
        module=model,
        env=ShardingEnv.from_process_group(dist.group.WORLD),
        device=torch.device("cpu"),
        plan=ShardingPlan({"large_embeddings.ebc": plan}),
        sharders=[sharder],
    )
    dcp.save({"app": {"model": sharded.state_dict()}}, checkpoint_id=out / "torchrec")
    shards = dcp.HuggingFaceStorageWriter(str(out / "torchrec_safetensors"), save_distributed=True)
    dcp.save({"app": {"model": sharded.state_dict()}}, storage_writer=shards)
    looked_up = {}
    for name, size in SIZES.items():  # each process asks for all nodes of one type
        features = {other: torch.arange(size if other == name else 0) for other in SIZES}
        lengths = torch.cat([torch.full((size,), int(other == name)) for other in SIZES])
        jagged = torchrec.KeyedJaggedTensor(list(SIZES), torch.cat(list(features.values())), lengths=lengths)
        looked_up[name] = sharded.module.large_embeddings(jagged)[name].detach()
    if rank == 0:
        relation = model_relations(sharded)
        for left, right, file in (("user", "item", "torchrec.npy"), ("item", "tag", "torchrec_tags.npy")):
            np.save(out / file, ((looked_up[left].unsqueeze(0) * relation.unsqueeze(1)) @ looked_up[right].T).numpy())
    dist.barrier()
    dist.destroy_process_group()


def model_relations(sharded: torch.nn.Module) -> torch.Tensor:
    module = sharded.module.src_operator
    module = getattr(module, "module", module)
    return module.edge_type_embeddings.weight.detach()


def save_pyg(out: Path) -> None:
    from torch_geometric.nn import kge

    torch.manual_seed(3)
    models = {
        "transe_1": kge.TransE(37, NUM_RELATIONS, 6, p_norm=1.0),
        "transe_2": kge.TransE(37, NUM_RELATIONS, 6, p_norm=2.0),
        "distmult": kge.DistMult(37, NUM_RELATIONS, 6),
        "complex": kge.ComplEx(37, NUM_RELATIONS, 6),
        "rotate": kge.RotatE(37, NUM_RELATIONS, 6),
    }
    ids = torch.cartesian_prod(torch.arange(37), torch.arange(NUM_RELATIONS), torch.arange(37))
    for name, model in models.items():
        torch.save(model.state_dict(), out / f"{name}.pt")
        with torch.no_grad():
            np.save(out / f"{name}.npy", model.double()(*ids.T).view(37, NUM_RELATIONS, 37).numpy())


def save_graphstorm(out: Path) -> None:
    """Score by the functions of its decoders; the package imports dgl, which these do not need."""
    path = Path(str(metadata.distribution("graphstorm").locate_file("graphstorm"))) / "eval" / "utils.py"
    for name in ("graphstorm", "graphstorm.eval", "graphstorm.data", "graphstorm.utils", "graphstorm.data.utils"):
        sys.modules[name] = types.ModuleType(name)
    of_processes = {"graphstorm.utils": ("get_backend", "is_distributed")}
    of_processes["graphstorm.data.utils"] = ("alltoallv_cpu", "alltoallv_nccl")
    for module, functions in of_processes.items():
        for function in functions:
            setattr(sys.modules[module], function, lambda: False)
    spec = importlib.util.spec_from_file_location("graphstorm.eval.utils", path)
    theirs = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(theirs)
    h, t, gamma = vectors(31, 6, seed=1).double(), vectors(23, 6, seed=2).double(), 12.0
    wide, narrow = vectors(NUM_RELATIONS, 6, seed=3).double(), vectors(NUM_RELATIONS, 3, seed=4).double()
    heads, tails = h.view(31, 1, 1, 6), t.view(1, 1, 23, 6)
    scores = {
        "dot_product": theirs.calc_dot_pos_score(heads, tails).expand(31, NUM_RELATIONS, 23),
        "distmult": theirs.calc_distmult_pos_score(heads, tails, wide.view(1, NUM_RELATIONS, 1, 6)),
        "transe_l1": theirs.calc_transe_pos_score(heads, tails, wide.view(1, NUM_RELATIONS, 1, 6), gamma, "l1"),
        "transe_l2": theirs.calc_transe_pos_score(heads, tails, wide.view(1, NUM_RELATIONS, 1, 6), gamma, "l2"),
        "rotate": theirs.calc_rotate_pos_score(heads, tails, narrow.view(1, NUM_RELATIONS, 1, 3), gamma / 3, gamma),
    }
    for name, of in scores.items():
        tables = {"user": h, "item": t, "relation": narrow if name == "rotate" else wide, "scores": of}
        np.savez(out / f"{name}.npz", **{key: table.numpy() for key, table in tables.items()})


def main() -> None:
    out = Path(sys.argv[1])
    save_pyg(out)
    save_graphstorm(out)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    torch.multiprocessing.spawn(save_torchrec, (port, out), nprocs=2)
    names = ("torchrec", "torch_geometric", "graphstorm", "torch")
    (out / "versions.json").write_text(json.dumps({name: metadata.version(name) for name in names}))


if __name__ == "__main__":
    main()
