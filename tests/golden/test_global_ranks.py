"""Ranks against all entities of a partitioned checkpoint: what PyTorch-BigGraph answers on the partitions merged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pbgeval import evaluate, load_config
from tests.golden.test_golden_figures import NAMES, closeness, settings_of

FILTER = "filter_paths=edges_test,edges_valid,edges_train"
AS_PBG = ("candidates=partition", "pbg_semantics=True", "compute_loss=True")
BOTH = {"metrics": "global_allnegs_filtered", "raw_metrics": "global_allnegs"}


@pytest.mark.one_case
@pytest.mark.reference
@pytest.mark.parametrize(
    ("case", "overrides", "parts"),
    [
        ("fb237_4p_transe", (), {"metrics": "global_allnegs"}),
        ("fb237_4p_complex", (FILTER,), BOTH),
        ("fb237_1p_complex", (FILTER,), {"metrics": "allnegs_filtered"}),
        ("fb237_1p_complex", (FILTER, *AS_PBG), {"metrics": "allnegs_filtered"}),
    ],
)
def test_partitions_apart_rank_as_partitions_merged_and_a_filter_leaves_out_what_pbgs_does(
    case: str,
    overrides: tuple[str, ...],
    parts: dict[str, str],
    reference_path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Within the tolerances of the reference data's README."""
    folder = reference_path / "golden" / case
    if "4p" in case:
        expected = json.loads((folder / "expected_global.json").read_text())
    else:
        expected = {name: of["first_run"][-1] for name, of in settings_of(folder).items()}
    monkeypatch.chdir(folder)
    config = load_config(folder / "eval_allnegs.py", ["candidates=all", "precision=float32", *overrides])

    document = evaluate(config, output=tmp_path / "output", workers=1).document

    for part, setting in parts.items():
        count, figures = expected[setting]["count"], expected[setting]["metrics"]
        assert count == document["num_edges"]
        for name, key in NAMES.items():
            tolerance = closeness([], name, count)
            assert figures[name] == pytest.approx(document[part][f"both.pessimistic.{key}"], rel=0, **tolerance), name
        assert len(overrides) < 2 or figures["loss"] == pytest.approx(document[part]["both.loss"], rel=1e-5)
