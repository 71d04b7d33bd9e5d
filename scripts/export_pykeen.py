"""Write a PyKEEN model as plain arrays, in PyKEEN's own environment: python export_pykeen.py MODEL FOLDER.

MODEL is trained_model.pkl of `save_to_directory`; labels are taken from training_triples beside it. It unpickles the
model, which runs what the file says: only for files of your own. The folder is then a `model` for kgeval-dist (its
config key, or `kgeval-dist import-model`). DistMult, ComplEx, TransE, RotatE and RESCAL, also with inverse triples.
"""

import gzip
import json
import sys
from pathlib import Path

import numpy as np
import torch

# By the name of the interaction: the model's name in model.json.
KINDS = {"DistMult": "distmult", "ComplEx": "complex", "TransE": "transe", "RotatE": "rotate", "RESCAL": "rescal"}


def main(model_path: str, folder: str) -> None:
    """Write model.json, entity.npy, relation.npy and the labels."""
    model = torch.load(model_path, map_location="cpu", weights_only=False).eval()
    name = type(model.interaction).__name__.removesuffix("Interaction")
    if name not in KINDS or len(model.entity_representations) != 1 or len(model.relation_representations) != 1:
        sys.exit(f"{model_path}: expected one of {', '.join(KINDS)}, with one vector an entity, found {name}")
    norm = getattr(model.interaction, "p", 1)
    if norm not in (1, 2):
        sys.exit(f"{model_path}: expected norm 1 or 2, found {norm}")
    entities, relations = (of[0](indices=None) for of in (model.entity_representations, model.relation_representations))
    if name == "RotatE":
        relations = torch.angle(relations)
    reciprocal = bool(model.use_inverse_triples)
    if reciprocal:  # 2 r is the relation, 2 r + 1 its inverse
        relations = torch.cat([relations[0::2], relations[1::2]])
    out = Path(folder)
    out.mkdir(parents=True, exist_ok=True)
    description = {"model": KINDS[name], "reciprocal": reciprocal, "norm": int(norm)}
    (out / "model.json").write_text(json.dumps(description, indent=4) + "\n", encoding="utf-8")
    np.save(out / "entity.npy", real_rows(entities))
    np.save(out / "relation.npy", real_rows(relations))
    for source, target in (("entity_to_id", "entities.tsv"), ("relation_to_id", "relations.tsv")):
        labels = Path(model_path).parent / "training_triples" / f"{source}.tsv.gz"
        if labels.is_file():
            lines = gzip.decompress(labels.read_bytes()).decode("utf-8").splitlines(keepends=True)[1:]  # a header
            (out / target).write_text("".join(lines), encoding="utf-8")


def real_rows(vectors: torch.Tensor) -> np.ndarray:
    """Return float32, a row each; of complex numbers the real parts, then the imaginary ones."""
    rows = vectors.flatten(1)
    return (torch.cat([rows.real, rows.imag], dim=1) if rows.is_complex() else rows).detach().float().numpy()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python export_pykeen.py MODEL FOLDER")
    main(sys.argv[1], sys.argv[2])
