"""An evaluation in a process that trains has the numbers of one in a process that does not (decision 0004)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pbgeval import Report, evaluate_triples
from pbgeval.notation import Side
from pbgeval.ranking import auc_sampling
from tests.examples import crossed
from tests.kit.case import TinyCase
from tests.kit.commands import evaluated
from tests.kit.loops import use_loops


@contextmanager
def temporarily(setting: Callable[[Any], object], value: Any, usual: Any) -> Iterator[None]:
    setting(value)
    try:
        yield
    finally:
        setting(usual)


class OwnModel:
    """A model that makes tensors as the caller has set."""

    num_entities, num_relations = 300, 7

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.entities_ND = torch.randn((self.num_entities, 16), generator=generator)
        self.relations_RD = torch.randn((self.num_relations, 16), generator=generator)
        self.seen: set[tuple[torch.dtype, str, bool]] = set()

    def scores(self, hidden: Side, known_Q: Tensor, relation_Q: Tensor, candidate_C: Tensor) -> Tensor:
        self.seen.add((torch.empty(0).dtype, torch.empty(0).device.type, torch.is_autocast_enabled("cpu")))
        queries_QD = self.entities_ND[known_Q] * self.relations_RD[relation_Q]
        with torch.autocast("cpu", enabled=False):
            return (queries_QD.unsqueeze(1) * self.entities_ND[candidate_C]).sum(-1)


SETTINGS: dict[str, Callable[[], AbstractContextManager[object]]] = {
    # As Lightning advises for tensor cores; it changes products where the processor multiplies bfloat16.
    "medium": lambda: temporarily(torch.set_float32_matmul_precision, "medium", "highest"),
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "bfloat16 by default": lambda: temporarily(torch.set_default_dtype, torch.bfloat16, torch.float32),
    "float64 by default": lambda: temporarily(torch.set_default_dtype, torch.float64, torch.float32),
    "on a GPU by default": lambda: torch.device("meta"),  # where nothing can be computed
}


@pytest.mark.one_case
@pytest.mark.parametrize(
    ("candidates", "precision", "setting"),
    crossed(["all", "partition", "sampled"], ["float32", "exact"], list(SETTINGS), quick=2, thorough=2),
)
def test_products_are_not_those_of_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, candidates: str, precision: str, setting: str
) -> None:
    monkeypatch.setattr(auc_sampling, "EXACT_CELLS", 0)  # exact values are of float64
    use_loops(monkeypatch, False)  # compiled loops know of no setting
    case = TinyCase.write(tmp_path / "case", partition_sizes=(300, 300), edges_per_bucket=60, dimension=32)
    asked = (f"candidates={candidates}", f"precision={precision}", "num_uniform_negs=100")
    expected = evaluated(case, *asked, output="expected")

    with SETTINGS[setting]():
        found = evaluated(case, *asked, output="found")

    assert found["metrics"] == expected["metrics"]


@pytest.mark.one_case
@pytest.mark.parametrize("setting", list(SETTINGS))
@pytest.mark.parametrize("candidates", ["all", "sampled"])
def test_an_own_model_keeps_what_its_caller_has_set(candidates: str, setting: str) -> None:
    random = np.random.default_rng(0)
    test = np.stack([random.integers(0, of, 60) for of in (300, 7, 300)], axis=1)
    model = OwnModel()
    expected = _figures(evaluate_triples(model, test, candidates=candidates))
    assert model.seen == {(torch.float32, "cpu", False)}
    model.seen.clear()

    with SETTINGS[setting]():
        set_by_caller = torch.empty(0).dtype, torch.empty(0).device.type, torch.is_autocast_enabled("cpu")
        found = _figures(evaluate_triples(model, test, candidates=candidates))  # some are computed when they are read

    assert (found, model.seen) == (expected, {set_by_caller})


def _figures(report: Report) -> dict[str, Any]:
    return {name: section for name, section in report.document.items() if name != "provenance"}  # it names each run
