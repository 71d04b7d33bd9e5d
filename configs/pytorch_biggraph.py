"""A PyTorch-BigGraph config as `torchbiggraph_train` reads it; run it inside the folder `demo`."""

import json


def get_torchbiggraph_config():  # noqa: ANN201 - PBG's own signature
    """Return PBG's settings; relative paths are relative to the working directory, as in PBG."""
    with open("graph.json") as file:
        graph = json.load(file)
    return {
        "entities": {name: {"num_partitions": len(sizes)} for name, sizes in graph["entities"].items()},
        "relations": [
            {"name": each["name"], "lhs": each["lhs"], "rhs": each["rhs"], "operator": "complex_diagonal"}
            for each in graph["relations"]
        ],
        "entity_path": "entity",
        "edge_paths": ["edges_valid"],
        "checkpoint_path": "checkpoint",
        "dimension": graph["dimension"],
        "global_emb": False,
        "comparator": "dot",
        "loss_fn": "softmax",
        "batch_size": 1000,
        "num_batch_negs": 50,
        "num_uniform_negs": 50,
        "workers": 2,
        "num_epochs": 10,
        "lr": 0.1,
    }
