"""What TorchRec, PyG and GraphStorm save, and what their own code scores: ours read it and rank as they do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pbgeval import EvalConfig, evaluate
from pbgeval.notation import ENDS, Bucket, Side
from tests.contracts.scorer_contract import some_edges
from tests.kit.commands import run_program
from tests.saved_ranks import read_ranks
from tests.systems_reference import GRAPHSTORM

pytestmark = pytest.mark.peers

PROGRAM = Path(__file__).with_name("foreign_models_saved.py")
ERROR = 1e-5


@pytest.fixture(scope="module")
def saved(peer: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the peers have written to."""
    out = tmp_path_factory.mktemp("foreign")
    run_program(peer("foreign") / "python", PROGRAM, out)
    return out


def ranks_of(model: Path, options: dict[str, Any], edges: np.ndarray, output: Path) -> Any:
    np.save(output.with_suffix(".npy"), edges)
    config = EvalConfig(
        model=str(model),
        model_options=options,
        edge_paths=[str(output.with_suffix(".npy"))],
        candidates="all",
        save_ranks=True,
        precision="float64",
    )
    evaluate(config, output=output, workers=1)
    return read_ranks(output, 0, Bucket(0, 0)).columns


def assert_ranked_by(columns: Any, edges: np.ndarray, scores: dict[int, np.ndarray]) -> None:
    """Compare raw ranks with tables of scores (left, right) by relation."""
    for side in ENDS:
        for row, (lhs, rel, rhs) in enumerate(edges.tolist()):
            others = scores[rel][:, rhs] if side is Side.LHS else scores[rel][lhs]
            margins = np.delete(others, side.pick(lhs, rhs)) - scores[rel][lhs, rhs]
            better, tied = (int(columns[side][name][row]) for name in ("better", "tied"))
            assert (margins > ERROR).sum() <= better
            assert better + tied <= (margins >= -ERROR).sum()


@pytest.mark.parametrize(("folder", "more"), [("torchrec", {}), ("torchrec_safetensors", {"num_files": 2})])
def test_a_sharded_checkpoint_of_torchrec_is_ranked_as_it_looks_it_up(
    folder: str, more: dict[str, int], saved: Path, tmp_path: Path
) -> None:
    """Tables are sharded by rows, by columns, and not at all."""
    users, tags = np.load(saved / "torchrec.npy"), np.load(saved / "torchrec_tags.npy")
    relation_types = [["rates", "user", "item"], ["likes", "user", "item"], ["has", "item", "tag"]]
    options = {"source": "DIAGONAL", "similarity": "DOT", "relation_types": relation_types} | more
    source = np.random.default_rng(1)
    rels = source.integers(0, 3, 40)
    lhs = source.integers(0, np.where(rels == 2, 23, 31))
    edges = np.stack([lhs, rels, source.integers(0, np.where(rels == 2, 17, 23))], axis=1)

    columns = ranks_of(saved / folder, options, edges, tmp_path / "out")

    assert_ranked_by(columns, edges, {0: users[0], 1: users[1], 2: tags[2]})


@pytest.mark.parametrize("name", ["transe_1", "transe_2", "distmult", "complex", "rotate"])
def test_a_state_dict_of_pyg_is_ranked_as_the_model_scores(name: str, saved: Path, tmp_path: Path) -> None:
    scores = np.load(saved / f"{name}.npy")
    kind, _, norm = name.partition("_")
    options = {"model": kind} | ({"norm": int(norm)} if norm else {})
    edges = np.array(some_edges(37, 3, 30, seed=1))

    columns = ranks_of(saved / f"{name}.pt", options, edges, tmp_path / "out")

    assert_ranked_by(columns, edges, {rel: scores[:, rel] for rel in range(3)})


@pytest.mark.parametrize("decoder", GRAPHSTORM)
def test_embeddings_of_graphstorm_are_ranked_as_its_decoder_scores(decoder: str, saved: Path, tmp_path: Path) -> None:
    """The folder is written by the rules of its saving functions, as the package needs a dgl that is not released."""
    arrays = np.load(saved / f"{decoder}.npz")
    num_relations = 1 if decoder == "dot_product" else 3
    folder, types = tmp_path / "emb", [("user", f"rel{index}", "item") for index in range(num_relations)]
    for name in ("user", "item"):
        (folder / name).mkdir(parents=True)
        torch.save(torch.from_numpy(arrays[name]), folder / name / "embed-00000.pt")
    info = '{"format": "pytorch", "emb_name": ["user", "item"], "world_size": 1, "emb_dim": {"user": 6, "item": 6}}'
    (folder / "emb_info.json").write_text(info)
    options: dict[str, Any] = {"model": decoder}
    if decoder == "dot_product":
        options["relation_types"] = [["rel0", "user", "item"]]
    else:
        torch.save(torch.from_numpy(arrays["relation"]), folder / "rel_emb.pt")
        numbers = ", ".join(f'"{of}": {index}' for index, of in enumerate(types))
        (folder / "relation2id_map.json").write_text(f"{{{numbers}}}")
    if decoder == "rotate":
        options["gamma"] = 12.0
    source = np.random.default_rng(2)
    edges = np.stack([source.integers(0, high, 40) for high in (31, num_relations, 23)], axis=1)

    columns = ranks_of(folder, options, edges, tmp_path / "out")

    assert_ranked_by(columns, edges, {rel: arrays["scores"][:, rel] for rel in range(num_relations)})
