"""docs/guides: every command, pasted into a folder as the page describes it, does what the page says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.kit.commands import metrics_of, numbers_of
from tests.kit.projects import pykeen_names, write_labelled_edges, write_project, write_pykeen_arrays
from tests.pasted_commands import blocks_of, following, pages
from tests.pykeen_models import NUM_ENTITIES, NUM_RELATIONS
from tests.systems_reference import DglkeFolder, write_labels


@pytest.mark.parametrize("page", [page for page in pages() if page.startswith("docs/guides/")])
def test_a_guide_shows_an_evaluation(page: str) -> None:
    assert any("kgeval-dist --config" in block.text for block in blocks_of(page))


@pytest.mark.slow
def test_from_pytorch_biggraph(tmp_path: Path) -> None:
    case = write_project(tmp_path / "project")

    with following("docs/guides/from_pytorch_biggraph.md", case.root) as reader:
        reader.paste(2)

    results = {path.name: metrics_of(path) for path in (case.root / "results").iterdir()}
    assert {"ours", "as_pbg", "from_checkpoint", "partition", "filtered"} == results.keys()
    assert results["ours"]["metrics"] == results["from_checkpoint"]["metrics"]
    assert ("realistic", "pessimistic") == (results["ours"]["headline"], results["as_pbg"]["headline"])
    mrr = {name: of["metrics"]["both.realistic.mean_reciprocal_rank"] for name, of in results.items()}
    raw = results["filtered"]["raw_metrics"]["both.realistic.mean_reciprocal_rank"]
    assert raw < mrr["partition"]  # more candidates
    assert raw < mrr["filtered"]  # fewer


@pytest.mark.slow
def test_from_pykeen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The model object and its arrays in partitions have the same figures."""
    write_pykeen_arrays(tmp_path / "exported")
    edges = {
        name: write_labelled_edges(tmp_path / f"{name}.tsv", number, NUM_ENTITIES, NUM_RELATIONS, seed=number)
        for name, number in (("test", 30), ("train", 90))
    }

    with following("docs/guides/from_pykeen.md", tmp_path) as reader:
        of_object = reader.run(pykeen_names(**edges))["results"].report.document["metrics"]
        mrr, hits = capsys.readouterr().out.split()
        printed = reader.paste()

    assert (float(mrr), float(hits)) == tuple(
        of_object[f"both.realistic.{name}"] for name in ("mean_reciprocal_rank", "hits_at_10")
    )
    assert "23 entities of dimension 4 in 3 partitions" in printed
    of_arrays = metrics_of(tmp_path / "results" / "pykeen")["metrics"]
    for name in ("both.realistic.mean_rank", "both.realistic.hits_at_3"):
        assert of_object[name] == of_arrays[name]


@pytest.mark.slow
def test_from_dglke(tmp_path: Path) -> None:
    model = DglkeFolder(tmp_path / "ckpts" / "ComplEx_FB15k_0", "ComplEx")
    num_entities, num_relations = len(model.entity), len(model.relation)
    write_labels(model.folder / "entities.tsv", [f"entity {index}" for index in range(num_entities)])
    write_labels(model.folder / "relations.tsv", [f"relation {index}" for index in range(num_relations)])
    for name, number in (("test", 30), ("train", 90)):
        edges_E3 = write_labelled_edges(tmp_path / f"{name}.txt", number, num_entities, num_relations, seed=number)
        np.save(tmp_path / f"{name}.npy", edges_E3)

    with following("docs/guides/from_dglke.md", tmp_path) as reader:
        reader.save("eval.py")
        reader.paste(2)

    in_place, converted = (metrics_of(tmp_path / "results" / name) for name in ("dglke", "converted"))
    assert (30, 60) == (in_place["num_edges"], in_place["num_queries"])
    assert in_place["metrics"]["both.realistic.mean_rank"] == converted["metrics"]["both.realistic.mean_rank"]


@pytest.mark.slow
def test_billion_edges(tmp_path: Path) -> None:
    case = write_project(tmp_path / "project")
    for name, number in (("test", 30), ("train", 400)):
        write_labelled_edges(case.root / f"{name}.tsv", number, 40, 3, seed=number)

    with following("docs/guides/billion_edges.md", case.root) as reader:
        printed = reader.paste(4)

    assert "40 entities of type all in 4 partitions of 10 to 10" in printed
    results = {path.name: metrics_of(path) for path in (case.root / "results").iterdir()}
    assert {"sample", "until_precise", "sampled", "exact"} == results.keys()
    assert results["exact"]["num_edges"] == results["sampled"]["num_edges"] == results["until_precise"]["num_edges"]
    assert 100 == results["sample"]["num_edges"] < results["exact"]["num_edges"]
    key = "both.realistic.mean_reciprocal_rank"
    interval = results["sample"]["intervals"][key]
    assert interval["low"] < results["sample"]["metrics"][key] < interval["high"]
    assert all(of["complete"] for of in results.values())


@pytest.mark.slow
def test_reading_the_numbers(tmp_path: Path) -> None:
    case = write_project(tmp_path / "project")

    with following("docs/guides/reading_the_numbers.md", case.root) as reader:
        printed = reader.paste(5)

    exact = metrics_of(case.root / "results" / "exact")
    assert f"MRR {exact['metrics']['both.realistic.mean_reciprocal_rank']} raw" in printed
    assert "\nadjusted_mean_rank_index\n" in printed
    assert "p (Holm)" in printed
    estimates = metrics_of(case.root / "results" / "estimates")["estimates"]
    of_partition = metrics_of(case.root / "results" / "partition")["metrics"]
    interval = estimates["intervals"]["both.realistic.mean_rank"]
    # Five standard errors of the draws: an estimate of the mean rank against the whole partition.
    assert of_partition["both.realistic.mean_rank"] == pytest.approx(
        estimates["metrics"]["both.realistic.mean_rank"], abs=5 * interval["standard_error"]
    )
    assert numbers_of(case.root / "results" / "exact") != numbers_of(case.root / "results" / "other")
