"""Every block of code of every page runs as it stands, unless the page says what it needs."""

from __future__ import annotations

import contextlib
import csv
import gzip
import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pbgeval import ModelSchema, ModelTensors, Monitor, MonitoredRelation, read_history
from pbgeval.notation import Bucket, Side
from tests.kit.case import TinyCase
from tests.kit.commands import REPOSITORY, evaluated, metrics_of, run_main
from tests.kit.projects import (
    pykeen_names,
    write_demo,
    write_labelled_edges,
    write_openbiolink_dataset,
    write_project,
    write_pykeen_arrays,
    write_suite,
    write_untrained_model,
)
from tests.kit.reports import write_records
from tests.object_store import object_store
from tests.pages import blocks_of, pages, run_page, shown_texts
from tests.pykeen_models import NUM_ENTITIES, NUM_RELATIONS
from tests.systems_reference import DglkeFolder, write_labels
from tests.unit.test_adapters_topk import RANKING, TEST
from tests.unit.test_taxonomy import DATA

MRR = "both.realistic.mean_reciprocal_rank"
Names = dict[str, Any]
# By page: makes what it takes as given in the working directory, yields its names, and then looks at what it left.
GIVEN: dict[str, Callable[[pytest.MonkeyPatch], contextlib.AbstractContextManager[Names]]] = {}


def given(page: str) -> Callable[[Callable[[pytest.MonkeyPatch], Iterator[Names]]], None]:
    """Register what a page takes as given."""

    def register(make: Callable[[pytest.MonkeyPatch], Iterator[Names]]) -> None:
        GIVEN[page] = contextlib.contextmanager(make)

    return register


PAGES = [page for page in pages() if any(block.is_run for block in blocks_of(page))]


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_every_block_of_a_page_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    with GIVEN[page](monkeypatch) as names:
        run_page(page, names)


def test_every_page_that_runs_has_what_it_takes_as_given() -> None:
    assert GIVEN.keys() == set(PAGES)


def results() -> dict[str, Names]:
    return {path.parent.name: metrics_of(path.parent) for path in Path("results").glob("*/metrics.json")}


def write_ids(name: str, num_edges: int, num_entities: int, num_relations: int) -> np.ndarray:
    """Write edges of ids as an array and as text (`.npy`, `.txt`); return them (edges, 3)."""
    source = np.random.default_rng(num_edges)
    edges_E3 = source.integers((num_entities, num_relations, num_entities), size=(num_edges, 3))
    np.save(f"{name}.npy", edges_E3)
    np.savetxt(f"{name}.txt", edges_E3, fmt="%d", delimiter="\t")
    return edges_E3


def vectors_and_edges() -> Names:
    """Vectors of as many entities and relations as FB15k-237 has, and edges."""
    source = np.random.default_rng(2)
    vectors = {
        name: torch.from_numpy(source.normal(size=(n, 3))) for name, n in (("entities", 14541), ("relations", 237))
    }
    return vectors | {name: source.integers((14541, 237, 14541), size=(20, 3)) for name in ("test", "valid", "train")}


def write_named_edges() -> None:
    """Write train.tsv, valid.tsv and test.tsv; the names of all are those of the first."""
    for name, number in (("train", 400), ("valid", 20), ("test", 30)):
        write_labelled_edges(Path(f"{name}.tsv"), number, 40, 3, seed=number)
    Path("train.tsv.gz").write_bytes(gzip.compress(Path("train.tsv").read_bytes()))


def write_tables(folder: Path) -> None:
    """Write vectors of the entities and relations that `write_named_edges` names, and their names."""
    source = np.random.default_rng(5)
    folder.mkdir()
    (folder / "model.json").write_text('{"model": "complex"}')
    for name, plural, number in (("entity", "entities", 40), ("relation", "relations", 3)):
        np.save(folder / f"{name}.npy", source.normal(size=(number, 6)).astype(np.float32))
        (folder / f"{plural}.tsv").write_text("".join(f"{of}\t{name} {of}\n" for of in range(number)))


@given("docs/index.md")
def index(patch: pytest.MonkeyPatch) -> Iterator[Names]:
    write_named_edges()
    write_tables(Path("mine"))
    names: Names = {}
    yield names
    assert names["report"].document["num_edges"] == 30


def trained_names() -> Names:
    """What a training loop has: buckets of likes, tables of users and items, a trainer that does nothing."""
    generator = torch.Generator().manual_seed(4)
    shapes = {**{("user", partition): (20, 4) for partition in range(4)}, ("item", 0): (15, 4)}
    tables = {of: torch.randn(shape, generator=generator) for of, shape in shapes.items()}
    operators = {(0, Side.RHS): {"diagonal": torch.randn(4, generator=generator)}}
    buckets = {
        Bucket(partition, 0): torch.randint(15, (300, 3), generator=generator) * torch.tensor([1, 0, 1])
        for partition in range(4)
    }
    tensors = ModelTensors(tables, operators)
    return {"tables": tables, "operators": operators, "tensors": tensors, "buckets": buckets} | {
        name: lambda edges: None for name in ("train", "train_on")
    }


def watch_a_training(monitor: Monitor) -> None:
    """Call a monitor as a trainer does; the model learns nothing."""
    names = trained_names()
    for epoch in range(2):
        for bucket, edges in names["buckets"].items():
            monitor.split(edges, bucket)
            with monitor.watch(epoch, bucket, names["tensors"]):
                pass
        monitor.end_pass(epoch)


@given("README.md")
def readme(patch: pytest.MonkeyPatch) -> Iterator[Names]:
    write_project(Path.cwd())
    write_demo(Path.cwd())
    model = DglkeFolder(Path("ckpts") / "ComplEx_FB15k_0", "ComplEx")
    for name, number in (("test", 30), ("train", 90)):
        write_ids(name, number, len(model.entity), len(model.relation))
    edges = [write_ids(f"of_{number}", number, NUM_ENTITIES, NUM_RELATIONS) for number in (20, 40)]
    write_named_edges()
    write_tables(Path("mine"))
    names = vectors_and_edges() | pykeen_names(*edges)
    yield names
    folders = [len(list(Path("results").glob(f"{name}-*-*-*"))) for name in ("eval", "mine")]
    assert (len(names["results"].to_df()), folders) == (297, [4, 1])


@given("PACKAGE.md")
def package(patch: pytest.MonkeyPatch) -> Iterator[Names]:
    write_project(Path.cwd())
    write_demo(Path.cwd())
    yield vectors_and_edges()
    assert metrics_of(Path("demo") / "results")["complete"]


@given("docs/tutorial.md")
def tutorial(patch: pytest.MonkeyPatch) -> Iterator[Names]:
    yield {}
    document = metrics_of(Path("result"))  # in the folder to which the page has changed
    assert (document["filter"], document["num_edges"]) == ("filtered", 2123)
    assert document["metrics"]["both.realistic.adjusted_mean_rank_index"] > 0.5  # 0 by chance


@given("docs/guides/from_pytorch_biggraph.md")
def from_pytorch_biggraph(patch: pytest.MonkeyPatch) -> Iterator[Names]:
    write_project(Path.cwd())
    yield {}
    found = results()
    assert found.keys() == {"ours", "as_pbg", "from_checkpoint", "partition", "filtered"}
    assert found["ours"]["metrics"] == found["from_checkpoint"]["metrics"]
    assert (found["ours"]["headline"], found["as_pbg"]["headline"]) == ("realistic", "pessimistic")
    raw = found["filtered"]["raw_metrics"][MRR]
    assert raw < min(found[name]["metrics"][MRR] for name in ("partition", "filtered"))  # among more candidates


@given("docs/guides/from_pykeen.md")
def from_pykeen(patch: pytest.MonkeyPatch) -> Iterator[Names]:
    """The model object and its arrays in partitions have the same figures."""
    write_pykeen_arrays(Path("exported"))
    edges = {
        name: write_ids(f"of_{name}", number, NUM_ENTITIES, NUM_RELATIONS)
        for name, number in (("test", 30), ("train", 90))
    }
    given_names = pykeen_names(**edges)
    yield given_names
    of_object = given_names["results"].report.document["metrics"]
    of_arrays = results()["pykeen"]["metrics"]
    names = ("both.realistic.mean_rank", "both.realistic.hits_at_3")
    assert [of_object[name] for name in names] == [of_arrays[name] for name in names]


@given("docs/guides/other_systems.md")
def other_systems(patch: pytest.MonkeyPatch) -> Iterator[Names]:
    model = DglkeFolder(Path("ckpts") / "ComplEx_FB15k_0", "ComplEx")
    sizes = len(model.entity), len(model.relation)
    for kind, size in zip(("entity", "relation"), sizes, strict=True):
        plural = {"entity": "entities", "relation": "relations"}[kind]
        write_labels(model.folder / f"{plural}.tsv", [f"{kind} {index}" for index in range(size)])
    for name, number in (("test", 30), ("train", 90)):
        np.save(f"{name}.npy", write_labelled_edges(Path(f"{name}.txt"), number, *sizes, seed=number))
    write_openbiolink_dataset(Path("datasets"), num_test=20, num_entities=12, num_relations=2)
    generator = torch.Generator().manual_seed(3)
    scores = {name: torch.randn(20, 12, generator=generator) for name in ("head_scores", "tail_scores")}
    texts = {"test.tsv": TEST, "predictions.txt": RANKING, "train.tsv": "x\tlikes\ty\n", "valid.tsv": "y\tlikes\tx\n"}
    for name, text in texts.items():
        Path(name).write_text(text, encoding="utf-8")
    for name in ("taxonomy", "truth", "ranking"):
        shutil.copy(DATA / f"{name}.tsv", f"{name}.tsv")
    write_typed(Path("typed"))
    tables, of_shop = write_shop(Path("shop"))
    yield scores
    in_place, converted = (results()[name] for name in ("dglke", "converted"))
    assert (in_place["num_edges"], in_place["num_queries"]) == (30, 60)
    assert in_place["metrics"]["both.realistic.mean_rank"] == converted["metrics"]["both.realistic.mean_rank"]
    found = results()["shop"]["metrics"]
    ranks = [*(ranks_among(tables, of_shop, Side.LHS)), *(ranks_among(tables, of_shop, Side.RHS))]
    assert found["both.realistic.mean_rank"] == pytest.approx(np.mean(ranks))
    # What an evaluation gave when it computed NDCG itself, from all scores and not from lists.
    of_types = json.loads(Path("types.json").read_text(encoding="utf-8"))
    assert of_types["metrics"] == pytest.approx({"ndcg_at_5": 0.35911076604528785, "ndcg_at_10": 0.384902035909308})


def write_shop(folder: Path) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Write the tables of a model of users and items and their names, and edges by name; return tables and edges."""
    source = np.random.default_rng(7)
    sizes = {"users": 9, "items": 6, "relations": 2}
    tables = {name: source.integers(-9, 10, (size, 4)).astype(np.float32) for name, size in sizes.items()}
    folder.mkdir()
    np.save(folder / "users.npy", tables["users"])
    torch.save({name: torch.from_numpy(tables[name]) for name in ("items", "relations")}, folder / "rest.pt")
    for kind in ("user", "item"):
        (folder / f"{kind}s.tsv").write_text("".join(f"{kind} {at}\n" for at in range(sizes[f"{kind}s"])))
    edges_E3 = np.array([(at, at % 2, 5 - at) for at in range(6)])  # no answer is known, so none is left out
    lines = [f"user {lhs}\t{('likes', 'buys')[rel]}\titem {rhs}\n" for lhs, rel, rhs in edges_E3]
    Path("test_shop.tsv").write_text("".join(lines))
    return tables, edges_E3


def ranks_among(tables: dict[str, np.ndarray], edges_E3: np.ndarray, side: Side) -> Iterator[float]:
    """Yield the realistic ranks of true ends among all entities of their type."""
    for lhs, rel, rhs in edges_E3:
        scores_UI = (tables["users"] * tables["relations"][rel]) @ tables["items"].T
        scores = scores_UI[:, rhs] if side == Side.LHS else scores_UI[lhs]
        yield 1 + (scores > scores_UI[lhs, rhs]).sum() + ((scores == scores_UI[lhs, rhs]).sum() - 1) / 2


def write_typed(root: Path) -> None:
    """Write a case whose relation `type` leads to all types of the hierarchy, and to one that is not in it."""
    case = TinyCase.write(root, num_tags=24, partition_sizes=(9, 8), edges_per_bucket=40)
    case.config.write_text(case.config.read_text().replace("'has'", "'type'"))
    types = [line.partition("\t")[0] for line in (DATA / "taxonomy.tsv").read_text().splitlines()[1:]]
    (root / "entity" / "entity_names_tag_0.json").write_text(json.dumps([*types, "soft"]))


@given("docs/guides/own_models.md")
def own_models(patch: pytest.MonkeyPatch) -> Iterator[Names]:
    source = np.random.default_rng(5)
    for name, number in (("test", 30), ("valid", 20), ("train", 90)):
        write_labelled_edges(Path(f"{name}.tsv"), number, 20, 3, seed=number)
    np.save("one_edge.npy", np.array([[4, 1, 7]]))
    entity_vectors, relation_vectors = source.normal(size=(20, 6)), source.normal(size=(3, 6))
    tables = {
        "entity_vectors": entity_vectors,
        "relation_vectors": relation_vectors,
        "entity_names": [f"entity {index}" for index in range(20)],
        "relation_names": [f"relation {index}" for index in range(3)],
        "score_names": lambda lhs, rel, rhs: (lhs * 7 + rel * 3 + rhs * 5).remainder(11).float(),
    }
    Path("names").mkdir()
    for plural, name in (("entities", "entity_names"), ("relations", "relation_names")):
        Path(f"names/{plural}.tsv").write_text("".join(f"{label}\n" for label in tables[name]))
    yield vectors_and_edges() | tables
    assert [results()[name]["num_edges"] for name in ("converted", "mine")] == [30, 30]
    # The page's layout: the first half of a row is real, the second imaginary.
    entities, relations = (rows[:, :3] + 1j * rows[:, 3:] for rows in (entity_vectors, relation_vectors))
    scores = (entities[4] * relations[1] * entities.conj()).sum(1).real
    lines = Path("results", "check", "topk", "0", "topk_0_0.tsv").read_text(encoding="utf-8").splitlines()
    best = max(float(row["score"]) for row in csv.DictReader(lines, delimiter="\t") if row["side"] == "tail")
    assert best == pytest.approx(scores.max(), rel=1e-5)


@given("docs/guides/temporal.md")
def temporal(patch: pytest.MonkeyPatch) -> Iterator[Names]:
    """Each head always has the same tail, so it is first as soon as it has been seen: in the test edges, always."""
    edges_E4 = np.array([(head, 1, 9 - head, time) for time in range(12) for head in range(4)])
    parts = {"train": edges_E4[:24], "valid": edges_E4[24:32], "test": edges_E4[32:]}
    names: Names = {**parts, "num_entities": 10, "num_relations": 2}
    yield names
    report = names["report"]
    assert (report.time_filtered["mrr"], report.raw["mrr"]) == (1, 1)
    assert all(figure["pessimistic.mrr"] == 1 == figure["optimistic.mrr"] for figure in (report, report.raw))
    write_named_edges()
    write_tables(Path("mine"))
    for name in ("train", "valid", "test"):
        lines = Path(f"{name}.tsv").read_text().splitlines()
        Path(f"{name}.tsv").write_text("".join(f"{line}\t{at % 50}\n" for at, line in enumerate(lines)))
    run_main("run", "mine.toml", "--output", "on_disk", "--workers", "1", cwd=Path.cwd())
    found = metrics_of(Path("on_disk"))
    assert found["time_filtered_metrics"][MRR] <= found["metrics"][MRR]
    with Path("on_disk", "time.csv").open() as file:
        assert [row["time_from"] for row in csv.DictReader(file)] == ["0", "24"]


@given("docs/guides/large_graphs.md")
def large_graphs(patch: pytest.MonkeyPatch) -> Iterator[Names]:
    write_project(Path.cwd())
    write_named_edges()
    yield {}
    found = results()
    assert found.keys() == {"sample", "until_precise", "sampled", "exact"}
    assert found["sample"]["num_edges"] == 100 < found["exact"]["num_edges"] == found["sampled"]["num_edges"]
    interval = found["sample"]["intervals"][MRR]
    assert interval["low"] < found["sample"]["metrics"][MRR] < interval["high"]


@given("docs/guides/many_graphs.md")
def many_graphs(patch: pytest.MonkeyPatch) -> Iterator[Names]:
    for index, name in enumerate(("nations", "families")):
        write_suite(Path(f"{name}.yaml"), {name: 12 + index})
        Path(name).mkdir()
        for kind in ("train", "valid", "test"):
            Path(f"{name}-{kind}.tsv").rename(Path(name, f"{kind}.tsv"))
    Path("people").mkdir()
    for name, number in (("training", 90), ("people/inference", 60), ("people/valid", 5), ("people/test", 8)):
        write_labelled_edges(Path(f"{name}.tsv"), number, 20, 3, seed=number)
    inference = Path("training.tsv").read_text(encoding="utf-8")
    Path("training.tsv").write_text(inference.replace("entity", "person"), encoding="utf-8")
    for text in shown_texts("docs/guides/many_graphs.md"):
        Path("suite.yaml" if "nations" in text else "inductive.yaml").write_text(text, encoding="utf-8")
    yield {}
    averages = json.loads(Path("results/suite/suite.json").read_text(encoding="utf-8"))["averages"]
    assert averages.keys() == {"complex", "degree"}
    shutil.copy("people/test.tsv", "people/inference.tsv")
    leaked = run_main("suite", "inductive.yaml", "--overwrite", "--quiet", cwd=Path.cwd())
    assert "test edges are among those that the model sees" in leaked.fault


@given("docs/guides/reading_the_numbers.md")
def reading_the_numbers(patch: pytest.MonkeyPatch) -> Iterator[Names]:
    write_project(Path.cwd())
    yield {}
    found = results()
    assert found["sample"]["num_edges"] == 40
    assert found["exact"]["metrics"] != found["other"]["metrics"]


@given("docs/import.md")
def import_files(patch: pytest.MonkeyPatch) -> Iterator[Names]:
    write_named_edges()
    lines = Path("test.tsv").read_text(encoding="utf-8").splitlines()
    Path("later.tsv").write_text("\n".join([*lines, "entity 0\trelation 0\tsomebody new", ""]), encoding="utf-8")
    scratch = Path.cwd().parent
    patch.setenv("TMPDIR", str(scratch))
    patch.setattr("tempfile.tempdir", str(scratch))
    with object_store() as store:
        for name, value in store.environment.items():
            patch.setenv(name, value)

        def write_checkpoint() -> None:
            write_untrained_model(Path.cwd() / "graph", 3)
            store.make_bucket("bucket")
            for path, prefix in (("graph/checkpoint", "bucket/run7/checkpoint"), ("graph/test", "bucket/graph/test")):
                store.upload(Path(path), prefix)

        yield {"write_checkpoint": write_checkpoint}
    unknown = Path("later", "test", "unknown.tsv").read_text(encoding="utf-8").splitlines()
    assert unknown[1:] == ["entity:all\tsomebody new\t1"]
    assert sorted((of["filter"], of["num_edges"]) for of in results().values()) == [("filtered", 30), ("raw", 30)]


@given("docs/cluster.md")
def cluster(patch: pytest.MonkeyPatch) -> Iterator[Names]:
    TinyCase.write(Path.cwd())
    yield {}
    (result,) = results().values()
    assert result["complete"]


@given("docs/metrics.md")
def metrics(patch: pytest.MonkeyPatch) -> Iterator[Names]:
    names: Names = {}
    yield names
    assert names["metrics"]["optimistic.mrr"] == pytest.approx((1 + 1 / 4 + 1 / 2) / 3)


class DotModel(torch.nn.Module):
    """A module of users and items."""

    def __init__(self) -> None:
        super().__init__()
        self.entities = torch.nn.Embedding(200, 4)

    def forward(self, lhs: torch.Tensor, rel: torch.Tensor, rhs: torch.Tensor) -> torch.Tensor:
        return (self.entities(lhs) * self.entities(rhs)).sum(-1)


@given("docs/monitor.md")
def monitor(patch: pytest.MonkeyPatch) -> Iterator[Names]:
    write_records(Path("checkpoint"), num_passes=3, metrics={"mrr": 0.25, "r10": 0.5})
    yield trained_names() | {"train_all": watch_a_training, "model": DotModel()}
    assert list(Path("run", "events").iterdir())
    curve = [float(line.split(",")[1]) for line in Path("run", "curve.csv").read_text(encoding="utf-8").splitlines()]
    text = (REPOSITORY / "docs/monitor.md").read_text(encoding="utf-8")
    told = re.search(r"improve until epoch (\d), then only training edges, and the loop stops after epoch (\d)", text)
    kept = re.search(r"`Keep epoch (\d) \(MRR (0\.\d+)\); now (0\.\d+)\.`", text)
    assert told is not None
    assert kept is not None
    best, last = map(int, told.groups())
    after, training = (
        [getattr(of.details, when)["both.realistic.mean_reciprocal_rank"] for of in read_history("run/monitor").passes]
        for when in ("after", "training")
    )
    assert curve == after
    assert (after.index(max(after)), len(after) - 1) == (best, last) == (int(kept[1]), best + 3)
    assert [after[best], after[last]] == pytest.approx([float(kept[2]), float(kept[3])], abs=0.002)
    assert max(after[:best] + after[best + 1 :]) < 0.97 * after[best], "rounding does not decide"
    assert training[last] > training[best]


@given("docs/results.md")
def results_page(patch: pytest.MonkeyPatch) -> Iterator[Names]:
    case = TinyCase.write(Path.cwd(), workers=1)
    evaluated(case, output="results/mine")
    relations = [MonitoredRelation("likes", "user", "item", "diagonal")]
    watch_a_training(Monitor(ModelSchema(relations, {"user": 4, "item": 1}, "dot"), "run/monitor", eval_fraction=0.2))
    for name in ("three", *(f"{model}-seed-{seed}" for model in ("one", "two") for seed in (1, 2, 3))):
        comparator = "cos" if name.startswith("two") else "dot"
        evaluated(case, "save_ranks=True", f"comparator={comparator}", output=f"results/{name}")
    case.config.rename("one.py")
    case.write_config(comparator="cos").rename("two.py")
    yield {}
    pages = (
        "results/mine/report.html",
        "hits.html",
        "run/monitor/report.html",
        "compare.html",
        "models.html",
        "moved.html",
    )
    written = {
        "table.tex": "toprule",
        "diagram.svg": "<svg",
        "table.md": "| mean rank |",
        **dict.fromkeys(pages, "<html"),
    }
    assert [name for name, words in written.items() if words not in Path(name).read_text(encoding="utf-8")] == []
    assert list(Path("results").glob("one-*/sinks/tensorboard/*"))
