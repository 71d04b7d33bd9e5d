"""A golden graph's edges written as text with names type/partition/row, imported, evaluated: the golden figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.golden.test_golden_figures import assert_ranks_equal_pbgs, parts, run, settings_of
from tests.kit.commands import run_main
from tests.kit.names import buckets_in


def write_as_text(case: Path, root: Path) -> None:
    """Write edges of a case as a text file, and dictionaries to match."""
    entity = root / "entity"
    entity.mkdir()
    for part in range(4):
        size = int((case / "entity" / f"entity_count_all_{part}.txt").read_text())
        (entity / f"entity_names_all_{part}.json").write_text(json.dumps([f"all/{part}/{row}" for row in range(size)]))
    num_relations = int((case / "entity" / "dynamic_rel_count.txt").read_text())
    (entity / "dynamic_rel_names.json").write_text(json.dumps([f"rel/{index}" for index in range(num_relations)]))
    with (root / "edges.tsv").open("w", encoding="utf-8") as file:
        for (left, right), rows in sorted(buckets_in(case / "edges_test").items()):
            for lhs, rel, rhs in rows:
                file.write(f"all/{left}/{lhs}\trel/{rel}\tall/{right}/{rhs}\n")


@pytest.mark.slow
@pytest.mark.reference
def test_edges_that_were_text_have_the_golden_figures(
    reference_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = reference_path / "golden" / "fb237_4p_transe"
    write_as_text(case, tmp_path)
    flags = ("--output", "graph", "--edges", "test=edges.tsv", "--dictionary", "entity", "--quiet")
    assert run_main("import-graph", *flags, cwd=tmp_path).printed == ""
    assert buckets_in(case / "edges_test") == buckets_in(tmp_path / "graph" / "test")
    setting = settings_of(case)["allnegs"] | {"params": [f"edge_paths={tmp_path / 'graph' / 'test'}"]}
    metrics, buckets = run(case, setting, tmp_path / "output", monkeypatch)

    assert_ranks_equal_pbgs([], parts(setting, metrics, buckets))
