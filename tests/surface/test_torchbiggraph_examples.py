"""The example configs of PyTorch-BigGraph work from the text files that its importers take, by import-graph and run.

FB15k has lines head TAB relation TAB tail, LiveJournal two numbers after some lines of comments. The configs have the
keys and the values of PyTorch-BigGraph's, but for smaller vectors.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from pbgeval.notation import Side
from tests.kit import pbg_files
from tests.kit.commands import metrics_of, run_main
from tests.kit.names import write_tsv

DIMENSION = 8
CONFIG = """
def get_torchbiggraph_config():
    config = dict(
        # I/O data
        entity_path="data/{name}",
        edge_paths=[{edge_paths}],
        checkpoint_path="model/{name}",
        # Graph structure
        entities={{"{entity_type}": {{"num_partitions": 1}}}},
        relations=[
            {{"name": "{relation}", "lhs": "{entity_type}", "rhs": "{entity_type}", "operator": "{operator}"}},
        ],
        {more}
    )
    return config
"""
FB15K = """dynamic_relations=True,
        dimension=8, global_emb=False, comparator="dot",  # Scoring model
        num_epochs=50, num_uniform_negs=1000, loss_fn="softmax", lr=0.1,  # Training
        eval_fraction=0,  # to reproduce results, we need to use all training data"""
FB15K_GPU = FB15K.replace("num_epochs=50, ", "num_epochs=50, batch_size=10000, num_batch_negs=500, workers=2, ")
FB15K_GPU += "\n        num_gpus=1, regularization_coef=1e-3, regularizer='N3', half_precision=False,"
LIVEJOURNAL = """dimension=8, global_emb=False,  # Scoring model
        num_epochs=30, lr=0.001,  # Training
        hogwild_delay=2,  # Misc"""
Names = dict[str, int]


def write_config(path: Path, name: str, splits: str, entity_type: str, relation: str, operator: str, more: str) -> None:
    paths = ", ".join(f'"data/{name}/{split}_partitioned"' for split in splits.split())
    settings = {"entity_type": entity_type, "relation": relation, "operator": operator, "more": more}
    path.write_text(CONFIG.format(name=name, edge_paths=paths, **settings))


def numbers(folder: Path, entity_type: str) -> tuple[Names, Names]:
    """The dictionaries that `import-graph` has written."""
    files = (f"entity_names_{entity_type}_0", "dynamic_rel_names")
    entities, relations = (json.loads((folder / f"{file}.json").read_text()) for file in files)
    return {name: row for row, name in enumerate(entities)}, {name: at for at, name in enumerate(relations)}


def mean_reciprocal_rank(tails: np.ndarray, heads: np.ndarray, test: np.ndarray, known: set[tuple[int, ...]]) -> float:
    """The filtered mean over both sides; scores (edges, entities) have no ties."""
    found = []
    for scores_EN, column in ((heads, 0), (tails, 2)):
        for edge, scores_N in zip(test.tolist(), scores_EN, strict=True):
            others = [n for n in range(len(scores_N)) if (*edge[:column], n, *edge[column + 1 :]) not in known]
            found.append(1 / (1 + sum(scores_N[others] > scores_N[edge[column]])))
    return float(np.mean(found))


def run(root: Path, config: str, *overrides: str, output: str) -> Mapping[str, float]:
    flags = [flag for override in overrides for flag in ("-p", override)]
    done = run_main("run", config, "--quiet", "--workers", "1", "--output", output, *flags, cwd=root)
    assert (done.status, "Traceback" in done.err) == (0, False), done.err
    return metrics_of(root / output)["metrics"]


@pytest.fixture
def fb15k(tmp_path: Path) -> Path:
    """A folder with the text of three splits."""
    rng = random.Random(0)
    entities = [f"/m/0{number:04x}" for number in rng.sample(range(1 << 16), 23)]
    relations = ["/location/country/form_of_government", "/film/film/genre", "/people/person/nationality"]
    triples = [(h, r, t) for h in entities for r in relations for t in rng.sample(entities, 2)]
    rng.shuffle(triples)
    (tmp_path / "FB15k").mkdir()
    for split, part in (("train", triples[:100]), ("valid", triples[100:120]), ("test", triples[120:])):
        write_tsv(tmp_path / "FB15k" / f"freebase_mtr100_mte100-{split}.txt", part)
    for name, more in (("fb15k_config.py", FB15K), ("fb15k_config_gpu.py", FB15K_GPU)):
        splits = " ".join(f"freebase_mtr100_mte100-{split}" for split in ("train", "valid", "test"))
        write_config(tmp_path / name, "FB15k", splits, "all", "all_edges", "complex_diagonal", more)
    return tmp_path


@pytest.mark.parametrize("config", ["fb15k_config.py", "fb15k_config_gpu.py"])
def test_fb15k(config: str, fb15k: Path) -> None:
    files = {split: f"FB15k/freebase_mtr100_mte100-{split}.txt" for split in ("train", "valid", "test")}
    edges = [f"--edges={split}={file}" for split, file in files.items()]
    assert run_main("import-graph", "--quiet", "--output", "data", *edges, cwd=fb15k).printed == ""
    entities, relations = numbers(fb15k / "data" / "entity", "all")
    rng = np.random.default_rng(1)
    vectors = rng.normal(size=(len(entities), DIMENSION)).astype(np.float32)
    halves = {
        (0, side): {part: rng.normal(size=(len(relations), DIMENSION // 2)) for part in ("real", "imag")}
        for side in (Side.LHS, Side.RHS)
    }
    model = fb15k / "model" / "fb15k"
    pbg_files.write_checkpoint_version(model, 50)
    pbg_files.write_embeddings(model, "all", 0, vectors, version=50)
    pbg_files.write_model(model, halves, version=50, dynamic=True)

    places = ("entity_path=data/entity", "checkpoint_path=model/fb15k")
    protocol = ("candidates=all",)
    of_folders = ("edge_paths=data/test", "filter_paths=data/valid,data/train")
    imported = run(fb15k, config, *places, *of_folders, *protocol, output="of_folders")
    by_text = (f"edge_paths={files['test']}", f"filter_paths={files['valid']},{files['train']}")
    direct = run(fb15k, config, *places, *by_text, *protocol, output="of_text")
    sampled = run(fb15k, config, *places, *of_folders, output="sampled")  # as PyTorch-BigGraph evaluates

    rows = {
        split: np.array(
            [
                (entities[h], relations[r], entities[t])
                for h, r, t in (line.split("\t") for line in (fb15k / file).read_text().splitlines())
            ]
        )
        for split, file in files.items()
    }
    lhs, rel, rhs = rows["test"].T
    z = (vectors[:, : DIMENSION // 2] + 1j * vectors[:, DIMENSION // 2 :]).astype(np.complex128)
    turned = {
        side: np.float32(of["real"]).astype(float) + 1j * np.float32(of["imag"]) for (_, side), of in halves.items()
    }
    heads = ((z[rhs] * turned[Side.RHS][rel]) @ z.conj().T).real
    tails = ((z[lhs] * turned[Side.LHS][rel]) @ z.conj().T).real
    known = {tuple(edge) for of in rows.values() for edge in of.tolist()}
    expected = mean_reciprocal_rank(tails, heads, rows["test"], known)
    assert imported["both.realistic.mean_reciprocal_rank"] == pytest.approx(expected, rel=1e-9)
    assert imported == direct
    assert 0 < sampled["both.realistic.mean_reciprocal_rank"] <= 1


def test_livejournal(tmp_path: Path) -> None:
    rng = random.Random(0)
    users = rng.sample(range(4_847_571), 31)
    pairs = [(a, b) for a in users for b in rng.sample(users, 4) if a != b]
    comments = ["# Directed graph (each unordered pair of nodes is saved once): soc-LiveJournal1.txt"]
    comments += ["# Directed LiveJournal friednship social network", f"# Nodes: 31 Edges: {len(pairs)}"]
    comments += ["# FromNodeId\tToNodeId"]
    lines = [f"{a}\t{b}" for a, b in pairs]
    (tmp_path / "soc-LiveJournal1.txt").write_text("\n".join([*comments, *lines]) + "\n")
    rng.shuffle(lines)  # as the example's own script splits
    cut = int(0.75 * len(lines))
    for name, part in (("train", lines[:cut]), ("test", lines[cut:])):
        (tmp_path / f"{name}.txt").write_text("\n".join(part) + "\n")
    (tmp_path / "types.tsv").write_text("follow\tuser_id\tuser_id\n")
    write_config(tmp_path / "livejournal_config.py", "lj", "train test", "user_id", "follow", "none", LIVEJOURNAL)

    asked = ("--quiet", "--edge-columns", "ht", "--types", "types.tsv")
    splits = ("--edges", "train=train.txt", "--edges", "test=test.txt")
    assert run_main("import-graph", *asked, "--output", "data", *splits, cwd=tmp_path).printed == ""
    whole = ("--edges", "whole=soc-LiveJournal1.txt", "--comment", "#")
    assert run_main("import-graph", *asked, "--output", "whole", *whole, cwd=tmp_path).printed == ""
    entities, relations = numbers(tmp_path / "data" / "entity", "user_id")
    vectors = np.random.default_rng(2).normal(size=(len(entities), DIMENSION)).astype(np.float32)
    model = tmp_path / "model" / "lj"
    pbg_files.write_checkpoint_version(model, 30)
    pbg_files.write_embeddings(model, "user_id", 0, vectors, version=30)
    pbg_files.write_model(model, {}, version=30)

    places = ("entity_path=data/entity", "checkpoint_path=model/lj")
    protocol = ("candidates=all",)
    config = "livejournal_config.py"
    of_folders = ("edge_paths=data/test", "filter_paths=data/train")
    imported = run(tmp_path, config, *places, *of_folders, *protocol, output="of_folders")
    columns = ("edge_paths=test.txt", "filter_paths=train.txt", "edge_columns=ht")
    direct = run(tmp_path, config, *places, *columns, *protocol, output="of_text")
    in_comments = ("edge_paths=test.txt", "filter_paths=soc-LiveJournal1.txt", "edge_columns=ht", "edge_comment=#")
    commented = run(tmp_path, config, *places, *in_comments, *protocol, output="of_comments")
    run(tmp_path, config, *places, *of_folders, output="sampled")

    unit = vectors.astype(float) / np.linalg.norm(vectors.astype(float), axis=1, keepdims=True)
    test, known = (
        np.array([(entities[a], 0, entities[b]) for a, b in (line.split("\t") for line in part)])
        for part in (lines[cut:], lines)
    )
    scores = unit @ unit.T
    edges = {tuple(edge) for edge in known.tolist()}
    expected = mean_reciprocal_rank(scores[test[:, 0]], scores[test[:, 2]], test, edges)
    assert relations == {"follow": 0}
    assert imported["both.realistic.mean_reciprocal_rank"] == pytest.approx(expected, rel=1e-9)
    assert imported == direct == commented
    assert numbers(tmp_path / "whole" / "entity", "user_id") == (entities, relations)
