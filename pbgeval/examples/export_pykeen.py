"""Write a PyKEEN model as plain arrays, in PyKEEN's environment: python -m pbgeval.examples.export_pykeen MODEL FOLDER.

MODEL is trained_model.pkl of `save_to_directory`; labels are taken from training_triples beside it. It unpickles the
model, which runs what the file says: only for files of your own. The folder is then a `model` for kgeval-dist (its
config key, or `kgeval-dist import-model`). DistMult, ComplEx, TransE, RotatE, RESCAL, CP and SimplE, also with inverse
triples. The script compares some scores with the model's own before it writes. It needs attrs and h5py beside PyKEEN.
"""

import gzip
import json
import shlex
import sys
from pathlib import Path

import numpy as np
import torch

sys.path.append(str(Path(__file__).resolve().parents[2]))  # where pbgeval is not installed

from pbgeval.models.formulas import Formula
from pbgeval.models.labels import OF_ENTITIES, OF_RELATIONS, read_labels
from pbgeval.models.pykeen import KINDS, pykeen_vectors


def main(model_path: str, folder: str) -> None:
    """Write model.json, entity.npy, relation.npy and the labels; print what was written and the next command."""
    model = torch.load(model_path, map_location="cpu", weights_only=False)
    found = pykeen_vectors(model)
    if found is None:
        kinds = f"{', '.join(KINDS)} in float32, with norm 1 or 2 and without a sigmoid or a clamp"
        interaction = type(getattr(model, "interaction", model)).__name__
        sys.exit(
            f"{model_path}: expected one of {kinds}, found {interaction}, or scores that its formula does not give"
        )
    out = Path(folder)
    out.mkdir(parents=True, exist_ok=True)
    formula = found.formula
    assert isinstance(formula, Formula), "PyKEEN's models have one operator"
    description = {"model": formula.kind, "reciprocal": formula.reciprocal, "norm": formula.norm}
    (out / "model.json").write_text(json.dumps(description, indent=4) + "\n", encoding="utf-8")
    np.save(out / "entity.npy", found.entities.load().numpy())
    np.save(out / "relation.npy", found.parameter_tables["relations"].load().numpy())
    labels = write_labels(Path(model_path).parent / "training_triples", out)
    print(f"wrote {', '.join(['model.json', 'entity.npy', 'relation.npy', *labels])} to {out}")
    if not labels:
        print(f"no labels in {Path(model_path).parent / 'training_triples'}: edges need numbers of rows")
    print(f"next: kgeval-dist import-model {shlex.quote(str(out))} --output converted --edges test=test.tsv")


def write_labels(triples: Path, out: Path) -> list[str]:
    """Copy the labels that PyKEEN saved: with their header, which says that they follow the rules of CSV.

    Returns:
        The names of the files.
    """
    written = []
    for source, target in (("entity_to_id", OF_ENTITIES[0]), ("relation_to_id", OF_RELATIONS[0])):
        labels = triples / f"{source}.tsv.gz"
        if labels.is_file():
            read_labels(labels)  # a damaged file is refused here
            (out / target).write_bytes(gzip.decompress(labels.read_bytes()))
            written.append(target)
    return written


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python export_pykeen.py MODEL FOLDER")
    main(sys.argv[1], sys.argv[2])
