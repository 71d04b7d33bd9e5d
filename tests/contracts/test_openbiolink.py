"""OpenBioLink's loader and evaluator, and DGL-KE's score functions, as they are released: ours beside them."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pbgeval import EvalConfig, evaluate
from pbgeval.integrations.openbiolink import DataLoader, Evaluator
from pbgeval.models.opening import open_model
from pbgeval.notation import ENDS, Side
from tests.kit.commands import run_program
from tests.systems_reference import DglkeFolder, write_labels

pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("ignore:.*edges with labels that have no number")]

PROGRAM = Path(__file__).with_name("openbiolink_evaluated.py")
EXACT = ("TransE_l1", "DistMult", "ComplEx", "RESCAL", "TransR")  # of multiples of 1/4 in any order of summation
MODELS = (*EXACT, "TransE_l2", "RotatE")
# Its scores of replaced tails are not those of its edges: h M t becomes t M h, and h + r - t becomes h - r - t.
WRONG_TAILS = ("RESCAL", "TransR")
NUM_ENTITIES, NUM_RELATIONS = 41, 4
ENTITIES = [f"GENE:{number * 7 % 100}" for number in range(NUM_ENTITIES)]
RELATIONS = ["GENE_GENE", "DIS_DRUG", "B", "A_Z"]


def edges(number: int, entities: int, seed: int) -> list[tuple[str, str, str]]:
    source = random.Random(seed)
    of_entities = ENTITIES[:entities]
    return [(source.choice(of_entities), source.choice(RELATIONS), source.choice(of_entities)) for _ in range(number)]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset, files of ids in another order than that of labels, and models with those ids."""
    folder = tmp_path_factory.mktemp("datasets")
    data = folder / "HQ_DIR" / "train_test_data"
    data.mkdir(parents=True)
    splits = {
        "train": edges(90, 35, seed=1),
        "val": [*edges(12, NUM_ENTITIES, seed=2), ("GENE:1", "B", "nowhere")],
        "test": [*edges(13, NUM_ENTITIES, seed=3), ("GENE:0", "no relation", "GENE:7")],
    }
    for name, of_split in splits.items():
        lines = "".join("\t".join([*edge, "917", "1", "STRING"]) + "\n" for edge in of_split)
        (data / f"{name}_sample.csv").write_text(lines)
    (folder / "labels").mkdir()
    write_labels(folder / "labels" / "entity.tsv", ENTITIES)
    write_labels(folder / "labels" / "relation.tsv", RELATIONS)
    for name in MODELS:
        DglkeFolder(folder / name, name, num_entities=NUM_ENTITIES, num_relations=NUM_RELATIONS)
    return folder


@pytest.fixture(scope="module")
def theirs(root: Path, peer: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the program wrote."""
    out = tmp_path_factory.mktemp("theirs")
    run_program(peer("openbiolink") / "python", PROGRAM, out, root)
    return out


def loader(root: Path) -> DataLoader:
    paths = {f"{of}_to_id_path": root / "labels" / f"{of}.tsv" for of in ("entity", "relation")}
    return DataLoader("HQ_DIR", root, **paths)


def read(path: Path) -> Any:
    return json.loads(path.read_text())


class OfScores(Evaluator):
    """Scores that DGL-KE's functions gave, by either contract."""

    def __init__(self, dl: DataLoader, scores: Any, documented: bool) -> None:
        super().__init__(dl)
        self.true, self.heads, self.tails = (torch.from_numpy(scores[of]) for of in ("true", "heads", "tails"))
        self.documented = documented
        self.done = 0

    def score_batch(self, batch: torch.Tensor) -> tuple[torch.Tensor, ...]:
        of = slice(self.done, self.done + len(batch))
        self.done += len(batch)
        if self.documented:
            return self.true[of], self.heads[of], self.true[of], self.tails[of]
        return self.heads[of], self.tails[of]


@pytest.mark.parametrize("numbered_by", ["training", "files"])
def test_labels_have_openbiolinks_numbers_and_the_same_edges_are_dropped(
    numbered_by: str, theirs: Path, root: Path
) -> None:
    expected = read(theirs / "loaded.json")[numbered_by]

    found = loader(root) if numbered_by == "files" else DataLoader("HQ_DIR", root)

    assert (found.entity_to_id, found.relation_to_id) == (expected["entity_to_id"], expected["relation_to_id"])
    splits = {name: getattr(found, name).tolist() for name in ("training", "validation", "testing")}
    assert splits == expected["splits"]
    assert {name: len(of_split) + found.num_dropped[name] for name, of_split in splits.items()} == {
        "training": 90,
        "validation": 13,
        "testing": 14,
    }
    assert found.num_dropped["testing"] >= 1


@pytest.mark.parametrize("batch_size", [1, 4, 100])
@pytest.mark.parametrize(
    ("model", "documented"),
    [(model, False) for model in EXACT] + [(model, True) for model in EXACT if model not in WRONG_TAILS],
)
def test_ranks_are_openbiolinks_without_the_true_entity_as_its_own_competitor(
    model: str, batch_size: int, documented: bool, theirs: Path, root: Path
) -> None:
    with np.load(theirs / f"{model}.npz") as scores:
        ranked = OfScores(loader(root), scores, documented).rank(batch_size)
        expected = scores["ranks"] - 1

    found = [1 + ranked.of_side[side].better_Q + ranked.of_side[side].tied_Q for side in ENDS]
    assert expected.tolist() == [of.tolist() for of in found]


@pytest.mark.parametrize("side", ENDS)
@pytest.mark.parametrize("model", MODELS)
def test_scores_of_dglkes_functions_rank_as_its_folder_does(model: str, side: Side, theirs: Path, root: Path) -> None:
    """Exact scores rank equally; rounded ones may swap only candidates within 1e-4 of the true one."""
    dl = loader(root)
    with np.load(theirs / f"{model}.npz") as scores:
        own = {Side.LHS: scores["heads"], Side.RHS: scores["tails"]}[side].astype(np.float64)
    report = evaluate(EvalConfig(model=str(root / model), candidates="all"), edges=dl.edges)
    found = [float(report[f"{side.label}.{kind}.mean_rank"]) for kind in ("optimistic", "pessimistic")]

    true = own[range(len(own)), dl.testing[:, side.pick(0, 2)]]
    known = {tuple(edge) for edge in dl.all.tolist()}
    ranks: dict[float, list[tuple[int, int]]] = {0.0: [], 1e-4: []}
    for row, (lhs, rel, rhs) in enumerate(dl.testing.tolist()):
        other = [at for at in range(NUM_ENTITIES) if side.pick((at, rel, rhs), (lhs, rel, at)) not in known]
        margins = own[row, other] - true[row]
        for error, of_error in ranks.items():
            of_error.append((1 + int((margins > error).sum()), 1 + int((margins >= -error).sum())))
    expected = {error: np.mean(of_error, axis=0) for error, of_error in ranks.items()}
    if side is Side.RHS and model in WRONG_TAILS:
        assert expected[0.0] != pytest.approx(found, rel=1e-9)
    elif model in EXACT:
        assert expected[0.0] == pytest.approx(found, rel=1e-9)
    else:
        assert expected[1e-4][0] - 1e-9 <= found[0] <= found[1] <= expected[1e-4][1] + 1e-9


def test_a_config_that_dglke_wrote_is_read(theirs: Path, root: Path) -> None:
    """Release 0.1.2 names its arguments otherwise than the main branch."""
    assert {"model", "emb_size", "emap_file"} < set(read(theirs / "saved" / "config.json"))

    found, expected = open_model(theirs / "saved"), open_model(root / "RotatE")

    assert (found.formula, found.num_entities) == (expected.formula, expected.num_entities)
    assert torch.equal(expected.entities.load(), found.entities.load())
