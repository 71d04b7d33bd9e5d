"""README.md and the pages of docs/ beside tutorial and guides: what stands in their blocks does what they say."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pbgeval import ModelSchema, ModelTensors, Monitor, MonitoredRelation
from pbgeval.notation import Bucket, Side
from tests.kit.case import RELATIONS, TinyCase
from tests.kit.commands import evaluated, metrics_of
from tests.kit.projects import (
    pykeen_names,
    write_labelled_edges,
    write_openbiolink_dataset,
    write_project,
    write_untrained_model,
)
from tests.kit.reports import write_records
from tests.object_store import object_store
from tests.pasted_commands import following, in_a_shell
from tests.pykeen_models import NUM_ENTITIES, NUM_RELATIONS
from tests.systems_reference import DglkeFolder
from tests.unit.test_adapters_topk import RANKING, TEST
from tests.unit.test_taxonomy import DATA

pytestmark = pytest.mark.slow

MRR = "both.realistic.mean_reciprocal_rank"


def write_ids(path: Path, num_edges: int, num_entities: int, num_relations: int, seed: int) -> np.ndarray:
    """Write edges of ids as an array beside text (`.npy`, `.txt`); return them (edges, 3)."""
    source = np.random.default_rng(seed)
    edges_E3 = source.integers((num_entities, num_relations, num_entities), size=(num_edges, 3))
    np.save(path.with_suffix(".npy"), edges_E3)
    np.savetxt(path.with_suffix(".txt"), edges_E3, fmt="%d", delimiter="\t")
    return edges_E3


def write_named_edges(folder: Path) -> None:
    """Write train.tsv, valid.tsv and test.tsv; the names of all are those of the first."""
    for name, number in (("train", 400), ("valid", 20), ("test", 30)):
        write_labelled_edges(folder / f"{name}.tsv", number, 40, 3, seed=number)
    text = (folder / "train.tsv").read_text(encoding="utf-8")
    (folder / "train.tsv.gz").write_bytes(gzip.compress(text.encode()))


def watch_a_training(monitor: Monitor, num_passes: int = 2) -> None:
    """Call a monitor of one type `e` in one partition as a trainer does; the model learns nothing."""
    generator = torch.Generator().manual_seed(0)
    edges = torch.randint(30, (200, 3), generator=generator)
    edges[:, 1] = 0
    model = ModelTensors({("e", 0): torch.randn(30, 4, generator=generator)})
    for epoch in range(num_passes):
        monitor.split(edges, Bucket(0, 0))
        with monitor.watch(epoch, Bucket(0, 0), model):
            pass
        monitor.end_pass(epoch)


def one_type() -> ModelSchema:
    return ModelSchema([MonitoredRelation("links", "e", "e")], {"e": 1}, "dot")


def results_in(folder: Path) -> dict[str, dict[str, Any]]:
    return {path.name: metrics_of(path) for path in (folder / "results").iterdir() if (path / "metrics.json").is_file()}


def test_the_readme(tmp_path: Path) -> None:
    with following("README.md", tmp_path) as reader:
        project = write_project(tmp_path / "project").root
        reader.paste(folder=project)
        assert {"realistic": 2, "pessimistic": 1} == {
            name: [of["headline"] for of in results_in(project).values()].count(name)
            for name in ("realistic", "pessimistic")
        }

        paths = {"entity_path": "demo/entity", "edge_paths": ["demo/edges"], "checkpoint_path": "demo/checkpoint"}
        TinyCase.write(tmp_path / "demo", **paths, workers=1)
        reader.save("from_python.py")
        assert "results/eval-" in in_a_shell("python from_python.py", tmp_path)
        scored = reader.run(scored_names())
        assert (20, 40) == (scored["report"].document["num_edges"], scored["report"].document["num_queries"])

        of_others_in_the_readme(reader, tmp_path)
        write_named_edges(tmp_path)
        reader.paste()
        write_untrained_model(tmp_path / "graph", 3)
        reader.paste()
        assert "filtered" in {of["filter"] for of in results_in(tmp_path).values()}

        evaluated(TinyCase.write(tmp_path / "case"), output="results/mine")
        reader.paste(folder=tmp_path / "case")
        assert "toprule" in (tmp_path / "case" / "table.tex").read_text(encoding="utf-8")

        reader.run(watched_names())
        assert len((tmp_path / "run" / "monitor" / "training_stats.json").read_text().splitlines()) > 5

        before = set(results_in(tmp_path))
        reader.paste()  # torchrun
        (joined,) = set(results_in(tmp_path)) - before
        assert 2 == results_in(tmp_path)[joined]["run"]["num_workers"]

        reader.paste(folder=project)
        assert 1 == len([of for of in results_in(project).values() if of["filter"] == "filtered"])
        reader.run()
        lists_in_the_readme(reader, tmp_path)


def scored_names() -> dict[str, Any]:
    """What the page's scorer scores: vectors of as many entities and relations as FB15k-237 has, and edges."""
    source = np.random.default_rng(2)
    vectors = {
        name: torch.from_numpy(source.normal(size=(n, 3))) for name, n in (("entities", 14541), ("relations", 237))
    }
    edges = {name: source.integers((14541, 237, 14541), size=(20, 3)) for name in ("test", "valid", "train")}
    return vectors | edges


def of_others_in_the_readme(reader: Any, folder: Path) -> None:
    """The part about models of other systems."""
    model = DglkeFolder(folder / "ckpts" / "ComplEx_FB15k_0", "ComplEx")
    sizes = len(model.entity), len(model.relation)
    for name, number in (("test", 30), ("train", 90)):
        write_ids(folder / name, number, *sizes, seed=number)
    config = reader.save("of_dglke.py")
    in_a_shell(f"kgeval-dist --config {config.name} --workers 1 --output results/in_place", folder)
    reader.paste()
    (converted,) = [of for name, of in results_in(folder).items() if name.startswith("eval-") and of["num_edges"] == 30]
    in_place = results_in(folder)["in_place"]
    assert in_place["raw_metrics"][MRR] == (converted["raw_metrics"] or converted["metrics"])[MRR]

    sizes = NUM_ENTITIES, NUM_RELATIONS
    reader.run(pykeen_names(*(write_ids(folder / f"of_{n}", n, *sizes, seed=n) for n in (20, 40))))
    reader.run(openbiolink_names(folder))


def openbiolink_names(folder: Path) -> dict[str, Any]:
    """Write the dataset that the page evaluates on; return scores of all its test edges."""
    write_openbiolink_dataset(folder / "datasets", num_test=20, num_entities=12, num_relations=2)
    generator = torch.Generator().manual_seed(3)
    return {name: torch.randn(20, 12, generator=generator) for name in ("head_scores", "tail_scores")}


def watched_names() -> dict[str, Any]:
    """What the page's training loop has: buckets of likes, tables of users and items, a trainer that does nothing."""
    generator = torch.Generator().manual_seed(4)
    shapes = {**{("user", partition): (20, 4) for partition in range(4)}, ("item", 0): (15, 4)}
    tables = {of: torch.randn(shape, generator=generator) for of, shape in shapes.items()}
    model = ModelTensors(tables, {(0, Side.RHS): {"translation": torch.randn(4, generator=generator)}})
    buckets = {}
    for partition in range(4):
        edges = torch.randint(15, (300, 3), generator=generator)
        edges[:, 1] = 0
        buckets[Bucket(partition, 0)] = edges
    return {"model": model, "buckets": buckets, "train": lambda edges: None}


def lists_in_the_readme(reader: Any, folder: Path) -> None:
    """The part about lists of rule learners and of entity types."""
    lists = folder / "lists"
    lists.mkdir()
    texts = {"test.txt": TEST, "predictions.txt": RANKING, "train.txt": "x\tlikes\ty\n", "valid.txt": "y\tlikes\tx\n"}
    for name, text in texts.items():
        (lists / name).write_text(text, encoding="utf-8")
    assert "hits@10" in reader.paste(folder=lists)

    relations = [relation | ({"name": "rdf:type"} if relation["name"] == "has" else {}) for relation in RELATIONS]
    typed = TinyCase.write(folder / "typed", relations=relations, workers=1).root
    tags = ["person", "being", "club", "horse", "thing", "soft"]
    (typed / "entity" / "entity_names_tag_0.json").write_text(json.dumps(tags), encoding="utf-8")
    for name in ("taxonomy", "truth", "ranking"):
        (typed / f"{name}.tsv").write_bytes((DATA / f"{name}.tsv").read_bytes())
    printed = reader.paste(folder=typed)
    assert "8 queries, linear gain, discount jk" in printed
    assert "NDCG of types at 5" in printed


def test_clusters(tmp_path: Path) -> None:
    case = TinyCase.write(tmp_path / "case")
    with following("docs/cluster.md", case.root) as reader:
        reader.paste()

    (result,) = results_in(case.root).values()
    assert (True, 2) == (result["complete"], result["run"]["num_workers"])


def test_import(tmp_path: Path) -> None:
    write_named_edges(tmp_path)
    lines = (tmp_path / "test.tsv").read_text(encoding="utf-8").splitlines()
    (tmp_path / "later.tsv").write_text("\n".join([*lines, "entity 0\trelation 0\tsomebody new", ""]), encoding="utf-8")
    with following("docs/import.md", tmp_path) as reader:
        assert "40 entities of type all in 4 partitions of 10 to 10" in reader.paste()
        for name in ("train", "valid", "test", "entity", "import.json"):
            assert (tmp_path / "graph" / name).exists()
        reader.paste()
        unknown = (tmp_path / "later" / "test" / "unknown.tsv").read_text(encoding="utf-8").splitlines()
        assert ["entity:all\tsomebody new\t1"] == unknown[1:]
        write_untrained_model(tmp_path / "graph", 3)
        reader.paste()
        (result,) = results_in(tmp_path).values()
        assert (30, "filtered") == (result["num_edges"], result["filter"])
        assert list((tmp_path / "results" / "imported").glob("*/test.tsv/edges_*.h5"))
        printed = reader.paste()
    assert "4 partitions" in printed
    assert "int32" in printed


def test_compare(tmp_path: Path) -> None:
    case = TinyCase.write(tmp_path, workers=1)
    case.config.rename(tmp_path / "one.py")
    case.write_config(comparator="cos").rename(tmp_path / "two.py")
    with following("docs/compare.md", tmp_path) as reader:
        printed = reader.paste()

    for heading in ("B − A", "95% interval", "p (Holm)", "MRR by relation"):
        assert heading in printed


def test_monitor(tmp_path: Path) -> None:
    watch_a_training(Monitor(one_type(), tmp_path / "run" / "monitor", eval_fraction=0.2))
    write_records(tmp_path / "checkpoint", num_passes=3, metrics={"mrr": 0.25, "r10": 0.5})
    with following("docs/monitor.md", tmp_path) as reader:
        reader.paste()
        reader.run({"schema": one_type(), "train": watch_a_training})

    for name in ("run/monitor/report.html", "curves"):
        assert (tmp_path / name).is_file()
    assert list((tmp_path / "run" / "events").iterdir())


def test_report(tmp_path: Path) -> None:
    evaluated(TinyCase.write(tmp_path), output="results/mine")
    watch_a_training(Monitor(one_type(), tmp_path / "run" / "monitor", eval_fraction=0.2))
    with following("docs/report.md", tmp_path) as reader:
        reader.paste(2)

    for name in ("results/mine/report.html", "hits.html", "run/monitor/report.html"):
        assert "<html" in (tmp_path / name).read_text(encoding="utf-8")
    assert "toprule" in (tmp_path / "table.tex").read_text(encoding="utf-8")
    assert "| mean rank |" in (tmp_path / "table.md").read_text(encoding="utf-8")


def test_sinks(tmp_path: Path) -> None:
    case = TinyCase.write(tmp_path, workers=1)
    with following("docs/sinks.md", case.root) as reader:
        reader.paste()

    (result,) = (tmp_path / "results").iterdir()
    assert (result / "metrics.jsonl").is_file()
    assert list((result / "sinks" / "tensorboard").iterdir())


def test_object_storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = TinyCase.write(tmp_path / "case", edges_per_bucket=9, workers=1)
    local = evaluated(case, output="local")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with object_store() as store, following("docs/object_storage.md", case.root) as reader:
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        store.make_bucket("bucket")
        for name, prefix in (("checkpoint", "bucket/run7/checkpoint"), ("edges", "bucket/graph/test")):
            store.upload(case.root / name, prefix)
            (case.root / name).rename(tmp_path / f"moved_{name}")
        reader.paste()

    (result,) = results_in(case.root).values()
    assert local["metrics"] == result["metrics"]


def test_interfaces(tmp_path: Path) -> None:
    sizes = NUM_ENTITIES, NUM_RELATIONS
    with following("docs/interfaces.md", tmp_path) as reader:
        names = reader.run(pykeen_names(*(write_ids(tmp_path / f"of_{n}", n, *sizes, seed=n) for n in (20, 40))))
        assert 225 == len(names["results"].to_df())  # as the page says
        mine = reader.run(openbiolink_names(tmp_path))["mine"]

    assert {"hits@1", "hits@3", "hits@10", "mrr"} == set(mine.evaluate(batch_size=100))
