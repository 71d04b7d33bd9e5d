"""A config made in Python is checked like one from a file."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest

from pbgeval import EntitySchema, EvalConfig, RelationSchema, evaluate
from pbgeval.config import check_config
from pbgeval.errors import ConfigError
from tests.kit.refusals import faults_of


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EvalConfig:
    monkeypatch.chdir(tmp_path)
    for name in ("entity", "edges", "checkpoint"):
        (tmp_path / name).mkdir()
    return EvalConfig(
        entities={"all": EntitySchema(num_partitions=1)},
        relations=[RelationSchema(name="r", lhs="all", rhs="all")],
        entity_path="entity",
        edge_paths=["edges"],
        checkpoint_path="checkpoint",
        dimension=4,
        global_emb=False,
    )


def test_relative_paths_are_relative_to_the_working_directory(config: EvalConfig, tmp_path: Path) -> None:
    checked = check_config(config)

    assert ([str(tmp_path / "edges")], str(tmp_path / "checkpoint")) == (checked.edge_paths, checked.checkpoint_path)


def test_all_faults_are_reported_at_once(config: EvalConfig) -> None:
    wrong = attrs.evolve(config, comparator="cosine", hits_at=[0], edge_paths=["nowhere"])

    faults = faults_of(lambda: evaluate(wrong), ConfigError)
    assert {"comparator", "hits_at[0]", "edge_paths[0]"} == {fault.partition(":")[0] for fault in faults}


def test_a_name_of_an_entity_type_that_is_no_string_is_a_fault(config: EvalConfig) -> None:
    wrong = attrs.evolve(config, entities={5: EntitySchema(num_partitions=1)})  # type: ignore[dict-item]

    with pytest.raises(ConfigError, match=r"entities\[5\]: expected a string, got 5 \(int\)$"):
        check_config(wrong)
