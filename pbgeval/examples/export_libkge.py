"""Write a LibKGE checkpoint as plain arrays, in LibKGE's own environment: python export_libkge.py CHECKPOINT FOLDER.

It unpickles the checkpoint, which runs what the file says: only for files of your own. The folder is then a `model`
for kgeval-dist (its config key, or `kgeval-dist import-model`).
"""

import csv
import json
import shlex
import sys
from pathlib import Path

import numpy as np
import torch


def main(checkpoint_path: str, folder: str) -> None:
    """Write model.json, entity.npy, relation.npy and the labels; print what was written and the next command."""
    out = Path(folder)
    out.mkdir(parents=True, exist_ok=True)
    checkpoint = torch.load(checkpoint_path, map_location="cpu", weights_only=False)
    options = checkpoint["config"].options
    name = options["model"]
    reciprocal = name in ("reciprocal_relations_model", "inverse_relations_model")
    own = options[name]["base_model"] if reciprocal else options[name]
    name = own["type"] if reciprocal else name
    norm = own.get("l_norm", options.get(name, {}).get("l_norm", 1))
    if norm not in (1, 2):
        sys.exit(f"{checkpoint_path}: expected norm 1 or 2, found {norm}")
    description = {"model": name, "reciprocal": reciprocal, "norm": int(norm)}
    (out / "model.json").write_text(json.dumps(description, indent=4) + "\n", encoding="utf-8")
    parameters = checkpoint["model"][0]
    for table in ("entity", "relation"):
        ends = tuple(f"_{table}_embedder.{weight}" for weight in ("_embeddings.weight", "embeddings.weight"))
        vectors = next(value for key, value in parameters.items() if key.endswith(ends))
        np.save(out / f"{table}.npy", vectors.detach().float().numpy())
    written = ["model.json", "entity.npy", "relation.npy"]
    for table, target in (("entity", "entities.tsv"), ("relation", "relations.tsv")):
        labels = Path(checkpoint_path).parent / f"{table}_ids.del"
        packaged = ((checkpoint.get("dataset") or {}).get("meta") or {}).get(f"{table}_ids")
        if packaged is not None:
            with (out / target).open("w", encoding="utf-8", newline="") as file:
                csv.writer(file, delimiter="\t", lineterminator="\n").writerows([("id", "label"), *enumerate(packaged)])
        elif labels.is_file():
            (out / target).write_bytes(labels.read_bytes())
        if packaged is not None or labels.is_file():
            written.append(target)
    print(f"wrote {', '.join(written)} to {out}")
    print(f"next: kgeval-dist import-model {shlex.quote(str(out))} --output converted --edges test=test.tsv")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python export_libkge.py CHECKPOINT FOLDER")
    main(sys.argv[1], sys.argv[2])
