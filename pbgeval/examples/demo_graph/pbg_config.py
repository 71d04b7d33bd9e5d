"""A config file of PyTorch-BigGraph, as `torchbiggraph_train` reads it. Run it in this folder."""


def get_torchbiggraph_config():  # noqa: ANN201 - PBG's own signature
    """Return PBG's settings. Relative paths start at the working directory, as in PBG."""
    with open("types.tsv") as file:
        relations = [line.split() for line in file]
    return {
        "entities": {
            "function": {"num_partitions": 4},
            "class": {"num_partitions": 4},
            "module": {"num_partitions": 1},
            "package": {"num_partitions": 1},
        },
        "relations": [
            {"name": name, "lhs": lhs, "rhs": rhs, "operator": "complex_diagonal"} for name, lhs, rhs in relations
        ],
        "entity_path": "entity",
        "edge_paths": ["test"],
        "checkpoint_path": "checkpoint",
        "dimension": 64,
        "global_emb": False,
        "comparator": "dot",
        "loss_fn": "softmax",
        "batch_size": 1000,
        "num_batch_negs": 100,
        "num_uniform_negs": 200,
        "workers": 2,
        "num_epochs": 5,
        "lr": 0.1,
    }
