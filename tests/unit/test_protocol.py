"""What is evaluated and how, before any model is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from pbgeval import evaluate, load_config
from pbgeval.inputs import protocol
from pbgeval.inputs.opening import open_inputs
from tests.kit.case import TinyCase


@pytest.mark.slow
@pytest.mark.parametrize(("dynamic", "precision"), [(False, "float32"), (True, "float64")])
def test_the_size_of_units_changes_no_number_against_whole_partitions(
    dynamic: bool, precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = TinyCase.write(tmp_path / "case", dynamic=dynamic, partition_sizes=(17, 16))
    monkeypatch.chdir(case.root)
    overrides = ["candidates=partition", "compute_loss=True", f"precision={precision}"]
    documents = []
    for rows in (protocol.ROWS_PER_PARTITION_UNIT, 7):
        monkeypatch.setattr(protocol, "ROWS_PER_PARTITION_UNIT", rows)
        output = tmp_path / f"output{rows}"
        documents.append(evaluate(load_config(case.config, overrides), output=output, workers=1).to_dict())

    assert documents[0] == documents[1]


def test_units_are_small_only_where_no_chunk_can_be_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = TinyCase.write(tmp_path / "case", edges_per_bucket=50)
    monkeypatch.chdir(case.root)
    monkeypatch.setattr(protocol, "ROWS_PER_PARTITION_UNIT", 20)

    def units_of_first_bucket(*overrides: str) -> int:
        units = protocol.make_protocol(open_inputs(load_config(case.config, overrides))).units
        return sum(unit.bucket == (0, 0) for unit in units)

    assert units_of_first_bucket("candidates=partition") == 3
    assert units_of_first_bucket() == 1  # one relation has all_negs, the others are sampled
    assert units_of_first_bucket("candidates=partition", "pbg_semantics=True") == 2  # PBG's slices
