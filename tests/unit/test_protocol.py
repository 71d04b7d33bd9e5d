"""What is evaluated and how, before any model is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from pbgeval import load_config
from pbgeval.inputs import protocol
from pbgeval.inputs.opening import open_inputs
from tests.kit.case import TinyCase
from tests.kit.commands import evaluated


@pytest.mark.slow
@pytest.mark.parametrize(("dynamic", "precision"), [(False, "float32"), (True, "float64")])
def test_the_size_of_units_changes_no_number_against_whole_partitions(
    dynamic: bool, precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = TinyCase.write(tmp_path / "case", dynamic=dynamic, partition_sizes=(17, 16))
    settings = ["candidates=partition", "compute_loss=True", f"precision={precision}"]

    whole = evaluated(case, *settings, output="whole")
    monkeypatch.setattr(protocol, "ROWS_PER_PARTITION_UNIT", 7)

    assert evaluated(case, *settings, output="parts") == whole


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
