"""PyTorch-BigGraph 1.0.0 itself as an oracle: its evaluator and ours on the same small graphs, all negatives.

`workers=1`: with more, PBG rescales rows to max_norm in shared memory without a lock, and its figures vary.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import h5py
import pytest

from pbgeval import evaluate, load_config
from tests.kit.case import TinyCase
from tests.kit.commands import run_program

pytestmark = pytest.mark.peers

PROGRAM = Path(__file__).with_name("torchbiggraph_evaluated.py")
NAMES = {"pos_rank": "mean_rank", "mrr": "mean_reciprocal_rank", "r1": "hits_at_1", "r10": "hits_at_10"}
VARIANTS = {
    "dot": {"comparator": "dot"},
    "cos": {"comparator": "cos"},
    "l2": {"comparator": "l2"},
    "squared_l2": {"comparator": "squared_l2"},
    "bias": {"comparator": "dot", "bias": True},
    "max_norm": {"comparator": "dot", "max_norm": 1.5},
    "one_side": {"comparator": "dot", "disable_lhs_negs": True},
}


def drop_optimizers(checkpoint: Path) -> None:
    """Remove the stand-ins for optimizer states, which PBG would unpickle."""
    for path in checkpoint.glob("*.h5"):
        with h5py.File(path, "r+") as file:
            file.pop("optimizer", None)


COMBINATIONS = [
    pytest.param(variant, dynamic, id=f"{variant}-{'dynamic' if dynamic else 'relation_list'}")
    for i, variant in enumerate(VARIANTS)
    for dynamic in ([False, True] if variant == "bias" else [i % 2 == 1])
]


@pytest.fixture(scope="module")
def evaluated(
    peer: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[tuple[str, bool], tuple[TinyCase, dict[str, float]]]:
    """Each case, and PyTorch-BigGraph's figures of it."""
    cases = {}
    for variant, dynamic in (of.values for of in COMBINATIONS):
        root = tmp_path_factory.mktemp("case")
        case = TinyCase.write(root, dynamic=dynamic, edges_per_bucket=60, seed=len(variant))
        relations = [relation | {"all_negs": True} for relation in case.settings["relations"]]
        case.write_config(
            relations=relations, num_batch_negs=0, num_uniform_negs=0, workers=1, batch_size=1000, **VARIANTS[variant]
        )
        drop_optimizers(case.root / "checkpoint")
        cases[variant, dynamic] = case
    printed = run_program(peer("torchbiggraph") / "python", PROGRAM, *(case.root for case in cases.values()))
    figures = map(json.loads, printed.splitlines())
    return {key: (case, of) for (key, case), of in zip(cases.items(), figures, strict=True)}


@pytest.mark.parametrize(("variant", "dynamic"), COMBINATIONS)
def test_all_negatives_figures_are_those_of_torchbiggraph(
    variant: str,
    dynamic: bool,
    evaluated: dict[tuple[str, bool], tuple[TinyCase, dict[str, float]]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case, expected = evaluated[variant, dynamic]
    monkeypatch.chdir(case.root)

    report = evaluate(
        load_config(case.config, ["pbg_semantics=True", "hits_at=1,10"]),
        output=tmp_path / "output",
        workers=1,
    )

    assert report.document["num_edges"] == expected["count"]
    for name, key in NAMES.items():
        assert expected[name] == pytest.approx(report[f"both.pessimistic.{key}"], rel=1e-6), name  # float32
