"""`taxonomy_path` and `type_relations`: what a user sees, what is refused, and that a run goes on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pbgeval.report.report import Report
from pbgeval.worker import sweep
from tests.kit.case import TinyCase
from tests.kit.commands import Done, flags, metrics_of, numbers_of, run_command
from tests.kit.held_up import entries_after_each_unit, short_of_memory
from tests.kit.reports import rows_of
from tests.unit.test_taxonomy import DATA

TAGS = ["person", "being", "club", "horse", "thing", "soft"]
TYPES = ("candidates=all", f"taxonomy_path={DATA / 'taxonomy.tsv'}", "type_relations=has")


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> TinyCase:
    case = TinyCase.write(tmp_path_factory.mktemp("case"), partition_sizes=(5, 4), edges_per_bucket=9)
    (case.root / "entity" / "entity_names_tag_0.json").write_text(json.dumps(TAGS))
    return case


def run(case: TinyCase, output: Path, *settings: str) -> Done:
    return run_command(case, "--workers", "1", "--output", str(output), *flags(settings))


def test_the_table_and_the_files_have_ndcg_beside_reciprocal_ranks_and_hits(case: TinyCase, tmp_path: Path) -> None:
    done = run(case, tmp_path / "output", *TYPES)

    assert done.status == 0
    report = Report.read(tmp_path / "output")
    shown = f"{report['ndcg@5']:.4f}"
    assert f"NDCG of types at 5 {shown} – {shown}" in " ".join(done.out.replace("│", " ").split())
    assert report["ndcg"] == report["tail.ndcg_jk@10"] == report["both.ndcg_jk_at_10"]
    assert report["ndcg_standard@3"] != report["ndcg@3"] != report["exponential_ndcg@3"]
    section = report.document["types"]
    names = {"tail.realistic.mean_reciprocal_rank", "tail.realistic.hits_at_3", "tail.ndcg_jk_at_3"}
    assert (section["relations"], names - {*section["metrics"]}) == (["has"], set())
    values = {row["relation"]: row["tail.ndcg_jk_at_5"] for row in rows_of(tmp_path / "output" / "relations.csv")}
    assert {"knows": "", "likes": "", "has": repr(report["ndcg@5"]), "marks": ""} == values


def test_a_family_of_metrics_may_be_chosen_alone(case: TinyCase, tmp_path: Path) -> None:
    assert run(case, tmp_path / "family", *TYPES, "metrics=ndcg").status == 0
    assert ["ndcg" in key for key in metrics_of(tmp_path / "family")["metrics"]] == [True] * 2 * 4 * 5


@pytest.mark.one_case
@pytest.mark.parametrize("k", [1, 2, 4])
def test_a_run_goes_on_to_the_same_bytes(k: int, case: TinyCase, tmp_path: Path) -> None:
    settings = (*TYPES, f"train_paths={case.root / 'edges'}", "save_topk=2")
    assert run(case, tmp_path / "whole", *settings).status == 0
    with entries_after_each_unit(), short_of_memory(sweep, "rank", k):
        assert run(case, tmp_path / "output", *settings).status == 75
    assert run(case, tmp_path / "output", *settings).status == 0
    assert numbers_of(tmp_path / "whole") == numbers_of(tmp_path / "output")
    assert metrics_of(tmp_path / "whole")["types"] == metrics_of(tmp_path / "output")["types"]


def test_another_hierarchy_is_another_run(case: TinyCase, tmp_path: Path) -> None:
    taxonomy = tmp_path / "taxonomy.tsv"
    text = (DATA / "taxonomy.tsv").read_text()
    taxonomy.write_text(text)
    settings = (TYPES[0], f"taxonomy_path={taxonomy}", TYPES[2])
    assert run(case, tmp_path / "output", *settings).status == 0

    assert "already complete" in run(case, tmp_path / "output", *settings).err
    taxonomy.write_text(text.replace("person\t2\tbeing", "person\t2\torganism"))
    assert "--overwrite" in run(case, tmp_path / "output", *settings).fault
