"""Loads a dataset by OpenBioLink 0.1.4 and ranks it by its evaluator, with scores by DGL-KE 0.1.2's own functions.

Run by the peer's Python: openbiolink_evaluated.py OUT ROOT, where ROOT/HQ_DIR is the dataset, ROOT/labels has the files
of ids, and ROOT/MODEL is a folder of DGL-KE with those ids, for each of MODELS. Writes to OUT

    loaded.json     by "training" (numbered by itself) and "files": what the loader says
    saved/          config.json and tables as DGL-KE's own `save_model` writes them
    MODEL.npz       true (n,), heads (n, N), tails (n, N): scores of the test edges; ranks: (2, n), as its evaluator
                    gives them once its filter is called with its arguments in the right order

Of DGL-KE two modules are loaded by their files: the package itself imports dgl, which these two do not need.
"""

import contextlib
import importlib.metadata
import importlib.util
import io
import json
import sys
import types
from pathlib import Path

import numpy as np
import torch
from openbiolink.evaluation.dataLoader import DataLoader
from openbiolink.evaluation.evaluation import Evaluator

MODELS = ("TransE_l1", "TransE_l2", "DistMult", "ComplEx", "RotatE", "RESCAL", "TransR")
BATCH_SIZE = 4


class RightLoader(DataLoader):
    """With a filter that takes its arguments in the order in which the evaluator gives them."""

    def filter_scores(self, batch, column, scores, value):
        return super().filter_scores(batch, scores, column, value)


class OfScores(Evaluator):
    """Two tables of scores, a row for each test edge."""

    def __init__(self, dl, heads, tails):
        super().__init__(dl)
        self.of_batches = iter(zip(heads.split(BATCH_SIZE), tails.split(BATCH_SIZE), strict=True))

    def score_batch(self, batch):
        heads, tails = next(self.of_batches)
        return heads.clone(), tails.clone()


class Edges:
    """What DGL-KE's functions ask of a batch of edges."""

    def __init__(self, head, rel, tail):
        self.src, self.dst = {"emb": head}, {"emb": tail}
        self.data = {"emb": rel, "head_emb": head, "tail_emb": tail}


def of_dglke(module: str) -> types.ModuleType:
    path = importlib.metadata.distribution("dglke").locate_file(f"dglke/{module}.py")
    spec = importlib.util.spec_from_file_location(module.replace("/", "_"), path)
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def score_function(functions, config, projection, columns):
    """Return the object that DGL-KE makes of these arguments."""
    name, gamma, hidden_dim = config["model_name"], config["gamma"], config["hidden_dim"]
    if name.startswith("TransE"):
        return functions.TransEScore(gamma, name[-2:])
    if name == "TransR":
        return functions.TransRScore(gamma, lambda ids, *_: projection[ids], *columns)
    if name == "RESCAL":
        return functions.RESCALScore(columns[1], columns[1])
    if name == "RotatE":
        return functions.RotatEScore(gamma, (gamma + 2.0) / hidden_dim)
    return {"DistMult": functions.DistMultScore, "ComplEx": functions.ComplExScore}[name]()


def scores_of(folder: Path, functions, edges) -> dict[str, torch.Tensor]:
    config = json.loads((folder / "config.json").read_text())
    stem = folder / f"{config['dataset']}_{config['model_name']}"
    entities, relations = (torch.from_numpy(np.load(f"{stem}_{of}.npy")) for of in ("entity", "relation"))
    projection = torch.from_numpy(np.load(f"{stem}projection.npy")) if config["model_name"] == "TransR" else None
    score = score_function(functions, config, projection, (relations.shape[1], entities.shape[1]))
    head, rel, tail = entities[edges[:, 0]], relations[edges[:, 1]], entities[edges[:, 2]]
    of_edge = head, tail
    if projection is not None:
        matrices = projection[edges[:, 1]].view(len(edges), entities.shape[1], -1)
        of_edge = tuple(torch.einsum("ab,abc->ac", of, matrices) for of in (head, tail))
    found = {"true": score.edge_func(Edges(of_edge[0], rel, of_edge[1]))["score"]}
    sizes = (1, len(edges), len(entities))
    candidates, known = score.create_neg_prepare(True)(edges[:, 1], 1, entities, tail, -1)
    found["heads"] = score.create_neg(True)(candidates, rel, known, *sizes).squeeze(0)
    known, candidates = score.create_neg_prepare(False)(edges[:, 1], 1, head, entities, -1)
    found["tails"] = score.create_neg(False)(known, rel, candidates, *sizes).squeeze(0)
    return found


def ranks_of(dl, scores) -> np.ndarray:
    """Return its ranks with the call repaired."""
    ours = OfScores(dl, scores["heads"], scores["tails"])
    batches = [ours._evaluate_batch(batch).view(2, -1) for batch in dl.get_test_batches(BATCH_SIZE)[1]]
    return torch.cat(batches, dim=1).numpy()


def what_a_loader_says(dl) -> dict[str, object]:
    return {
        "entity_to_id": dl._entity_label_to_id,
        "relation_to_id": dl._relation_label_to_id,
        "splits": {name: getattr(dl, name).tolist() for name in ("training", "validation", "testing")},
    }


def save_by_dglke(folder: Path, source: Path) -> None:
    """Write a model of which DGL-KE itself names the arguments."""
    config = json.loads((source / "config.json").read_text())
    of_training = ("max_step", "batch_size", "neg_sample_size", "lr", "neg_adversarial_sampling")
    more = ("adversarial_temperature", "regularization_coef", "regularization_norm")
    arguments = {name: 1 for name in (*of_training, *more)} | config | {"save_path": str(folder)}
    model = types.SimpleNamespace(
        save_emb=lambda path, dataset: [
            Path(path, file.name).write_bytes(file.read_bytes()) for file in source.glob(f"{dataset}_*.npy")
        ]
    )
    of_dglke("utils").save_model(types.SimpleNamespace(**arguments), model, "entities.tsv", "relations.tsv")


def main(out: Path, root: Path) -> None:
    """Load, score, rank and write."""
    files = {f"{of}_to_id_path": str(root / "labels" / f"{of}.tsv") for of in ("entity", "relation")}
    of_files = RightLoader(str(root), "HQ_DIR", **files)
    loaders = {"training": DataLoader(str(root), "HQ_DIR"), "files": of_files}
    (out / "loaded.json").write_text(
        json.dumps({name: what_a_loader_says(dl) for name, dl in loaders.items()}, default=int)
    )
    functions = of_dglke("models/pytorch/score_fun")
    for name in MODELS:
        scores = scores_of(root / name, functions, of_files.testing)
        ranks = ranks_of(of_files, scores)
        np.savez(out / f"{name}.npz", ranks=ranks, **{key: value.numpy() for key, value in scores.items()})
    save_by_dglke(out / "saved", root / "RotatE")


if __name__ == "__main__":
    with contextlib.redirect_stdout(io.StringIO()):
        main(*map(Path, sys.argv[1:]))
