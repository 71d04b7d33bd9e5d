"""What is evaluated and how, before any model is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from pbgeval import load_config
from pbgeval.inputs import protocol
from pbgeval.inputs.opening import open_inputs
from tests.kit.case import TinyCase


@pytest.mark.parametrize(
    ("overrides", "num_units"),
    [
        (["candidates=partition"], 3),
        ([], 1),  # one relation has all_negs, the others are sampled
        (["candidates=partition", "pbg_semantics=True"], 2),  # PBG's slices
    ],
)
def test_units_are_small_only_where_no_chunk_can_be_cut(
    overrides: list[str], num_units: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = TinyCase.write(tmp_path / "case", edges_per_bucket=50)
    monkeypatch.chdir(case.root)
    monkeypatch.setattr(protocol, "ROWS_PER_PARTITION_UNIT", 20)

    units = protocol.make_protocol(open_inputs(load_config(case.config, overrides))).units
    assert sum(unit.bucket == (0, 0) for unit in units) == num_units
