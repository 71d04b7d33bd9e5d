"""Checks LibKGE's published checkpoints against the figures of its README; prints a table.

    python benchmarks/published/libkge_checkpoints/main.py --data FOLDER --checkpoints FOLDER
    python benchmarks/published/libkge_checkpoints/main.py --smoke    # a made checkpoint: does it run?

What each figure means is explained in the README beside this file. Nobody has run it on the published files.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from benchmarks.published.graphs import made_graph
from pbgeval import Report, evaluate_triples

METRICS = ("mrr", "hits@1", "hits@3", "hits@10")
# By data set and model, as the checkpoints' files are called: github.com/uma-pi1/kge, "Results and pretrained models".
PUBLISHED = {
    "fb15k-237-rescal": (0.356, 0.263, 0.393, 0.541),
    "fb15k-237-transe": (0.313, 0.221, 0.347, 0.497),
    "fb15k-237-distmult": (0.343, 0.250, 0.378, 0.531),
    "fb15k-237-complex": (0.348, 0.253, 0.384, 0.536),
    "fb15k-237-rotate": (0.333, 0.240, 0.368, 0.522),
    "wnrr-rescal": (0.467, 0.439, 0.480, 0.517),
    "wnrr-transe": (0.228, 0.053, 0.368, 0.520),
    "wnrr-distmult": (0.452, 0.413, 0.466, 0.530),
    "wnrr-complex": (0.475, 0.438, 0.490, 0.547),
    "wnrr-rotate": (0.478, 0.439, 0.494, 0.553),
    "fb15k-rescal": (0.644, 0.544, 0.708, 0.824),
    "fb15k-transe": (0.676, 0.542, 0.787, 0.875),
    "fb15k-distmult": (0.841, 0.806, 0.863, 0.903),
    "fb15k-complex": (0.838, 0.807, 0.856, 0.893),
    "fb15k-rotate": (0.783, 0.727, 0.820, 0.877),
    "wn18-rescal": (0.948, 0.943, 0.951, 0.956),
    "wn18-transe": (0.553, 0.315, 0.764, 0.924),
    "wn18-distmult": (0.941, 0.932, 0.948, 0.954),
    "wn18-complex": (0.951, 0.947, 0.953, 0.958),
    "wn18-rotate": (0.946, 0.943, 0.948, 0.953),
    "yago3-10-complex": (0.551, 0.476, 0.596, 0.682),
}
FILES = ("train", "valid", "test")


def main() -> None:
    """Evaluate the checkpoints that are there, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="LibKGE's data folder, after its download_all.sh: data/wnrr, ...")
    parser.add_argument("--checkpoints", type=Path, help="folder with files such as wnrr-complex.pt")
    parser.add_argument("--smoke", action="store_true", help="a made checkpoint")
    options = parser.parse_args()
    if options.smoke:
        with tempfile.TemporaryDirectory() as folder:
            make_files(Path(folder))
            check(Path(folder), Path(folder))
    elif None in (options.data, options.checkpoints):
        parser.error("--data and --checkpoints are required without --smoke")
    else:
        check(options.data, options.checkpoints)


def check(data: Path, checkpoints: Path) -> None:
    """Print a table of the checkpoints that are there."""
    found = [name for name in PUBLISHED if (checkpoints / f"{name}.pt").exists()]
    if not found:
        sys.exit(f"{checkpoints}: no checkpoint such as wnrr-complex.pt")
    print("| figure | published | ours | difference |\n|---|---|---|---|")
    for name in found:
        report = evaluate(data / name.rsplit("-", 1)[0], checkpoints / f"{name}.pt")
        for metric, value in zip(METRICS, PUBLISHED[name], strict=True):
            print(f"| {name} {metric} | {value:.3f} | {report[metric]:.6f} | {report[metric] - value:+.6f} |")


def evaluate(graph: Path, checkpoint: Path) -> Report:
    """Rank the test edges of a folder by the ids of LibKGE, which its preprocessing writes to *.del."""
    train_E3, valid_E3, test_E3 = (np.loadtxt(graph / f"{name}.del", dtype=np.int64) for name in FILES)
    return evaluate_triples(checkpoint, test_E3, train=[train_E3], known=[valid_E3], hits_at=[1, 3, 10])


def make_files(folder: Path) -> None:
    """Write a graph and a checkpoint with random vectors in the place of wnrr-complex.pt."""
    (folder / "wnrr").mkdir()
    for name, edges_E3 in zip(FILES, made_graph(60, 6, 6), strict=True):
        np.savetxt(folder / "wnrr" / f"{name}.del", edges_E3, fmt="%d", delimiter="\t")
    tables = {"_entity_embedder": (30, 8), "_relation_embedder": (3, 8)}
    torch.manual_seed(0)
    parameters = {f"{name}._embeddings.weight": torch.randn(shape) for name, shape in tables.items()}
    config = {"options": {"model": "complex", "complex": {"class_name": "ComplEx"}}}
    torch.save({"type": "train", "config": config, "model": (parameters, {})}, folder / "wnrr-complex.pt")


if __name__ == "__main__":
    main()
